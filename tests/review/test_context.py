"""What the review shows of a row and beside it, against independent references."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_film_audit
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from noiseproof.audit.files import read_audit
from noiseproof.audit.pictures import find_pixels, pixel_columns
from noiseproof.audit.sources import open_rows
from noiseproof.review.comparisons import (
    ColumnRanking,
    Nearby,
    WordRanking,
    compare_numbers,
    compare_words,
)
from noiseproof.review.context import Context

# --- nearest and typical rows ---------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_nearest_rows_of_a_class_are_those_of_scikit_learn(offset: float) -> None:
    random = np.random.default_rng(0)
    x = (random.normal(size=(900, 12)) + offset).astype(np.float32)
    given, row = random.integers(0, 3, 900), random.permutation(2000)[:900]
    x[5], given[5] = x[6], given[6]  # a copy is a neighbour, the row itself is none
    nearby = Nearby(x, row, given, random.random(900))
    for at in (0, 5, 17, 300, 899):
        for label in range(3):
            others = np.flatnonzero((given == label) & (np.arange(900) != at))
            search = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(
                x[others].astype(np.float64)
            )
            _, index = search.kneighbors(x[[at]].astype(np.float64))
            found = nearby.nearest(int(row[at]), label, 5)
            assert found == row[others[index[0]]].tolist()
    assert nearby.nearest(5000, 0, 5) == []  # not among the rows
    assert nearby.nearest(int(row[0]), 7, 5) == []  # no such class


def test_a_small_class_has_fewer_neighbours() -> None:
    x = np.arange(6, dtype=np.float32)[:, None]
    nearby = Nearby(x, np.arange(6), np.array([0, 0, 0, 0, 1, 1]), np.ones(6))
    assert nearby.nearest(4, 1, 5) == [5]
    assert nearby.nearest(4, 0, 5) == [3, 2, 1, 0]


def test_typical_rows_have_the_best_labels_and_lie_in_the_middle() -> None:
    x = np.concatenate([np.linspace(-1, 1, 201), [0.0]]).astype(np.float32)[:, None]
    quality = np.where(np.abs(x[:, 0]) < 0.5, 0.99, 0.6)
    quality[201] = 0.1  # the middle of all, with a bad label
    nearby = Nearby(x, np.arange(202), np.zeros(202, int), quality)
    typical = nearby.typical(0)[:2]
    assert 201 not in typical and all(quality[r] == 0.99 for r in typical)


# --- columns --------------------------------------------------------------------------------------


def test_columns_are_ranked_by_how_much_they_separate_two_classes() -> None:
    random = np.random.default_rng(0)
    given = np.repeat([0, 1, 2], 400)
    colour = np.where(random.random(1200) < np.where(given == 0, 0.9, 0.3), "red", "blue").astype(
        object
    )
    columns: dict[str, Any] = {
        "noise": random.normal(size=1200),
        "half": random.normal(size=1200) + 1.0 * (given == 1),
        "colour": colour,
        "best": random.normal(size=1200) + 9.0 * (given == 1),
        "third": random.normal(size=1200) + 9.0 * (given == 2),  # separates another class
        "words": random.choice(list("abcdefgh"), 1200).astype(object),
        "key": np.array([f"k{i}" for i in range(1200)], dtype=object),  # each word once
    }
    ranking = ColumnRanking(columns, given)
    found = ranking.between(0, 1)
    assert [column["name"] for column in found] == ["best", "colour", "half"]
    assert found[0]["separation"] == 1
    one, two = columns["best"][given == 0], columns["best"][given == 1]
    np.testing.assert_allclose(
        found[0]["given"], np.percentile(one, [0, 5, 10, 25, 50, 75, 90, 95, 100]), rtol=1e-4
    )
    np.testing.assert_allclose(found[0]["suggested"][4], np.median(two), rtol=1e-4)
    shares = {word: (a, b) for word, a, b in found[1]["words"]}
    for side, label in enumerate((0, 1)):
        assert shares["red"][side] == pytest.approx(
            (colour[given == label] == "red").mean(), abs=1e-3
        )
    assert ranking.between(0, 2)[0]["name"] == "third"
    assert ranking.between(0, 5) == []


def test_separations_are_those_of_scipy_and_gaps_are_left_out() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(1)
    one, two = (
        random.normal(size=300),
        np.concatenate([random.normal(0.6, 2, 200), np.full(50, np.nan)]),
    )
    found = compare_numbers(one, two)
    assert found is not None
    assert found["separation"] == pytest.approx(stats.ks_2samp(one, two[:200]).statistic, abs=1e-4)
    assert compare_numbers(one, np.full(5, np.nan)) is None
    a, b = (
        np.array(["x"] * 60 + ["y"] * 40, object),
        np.array(["x"] * 20 + ["y"] * 70 + ["z"] * 10, object),
    )
    words = compare_words(a, b)
    assert words is not None and words["separation"] == pytest.approx(0.4)


def test_columns_that_do_not_separate_are_left_out_in_99_of_100_cases() -> None:
    random = np.random.default_rng(2)
    one, two = random.normal(size=(500, 150)), random.normal(size=(500, 100))
    assert sum(compare_numbers(a, b) is not None for a, b in zip(one, two, strict=True)) <= 10
    words = random.choice([f"w{i}" for i in range(30)], (300, 250)).astype(object)
    assert sum(compare_words(row[:150], row[150:]) is not None for row in words) <= 6


def test_many_columns_are_compared_in_the_same_way() -> None:
    random = np.random.default_rng(3)
    given = np.repeat([0, 1], 300)
    columns = {f"c{k}": random.normal(size=600) + (k == 377) * 3 * given for k in range(500)}
    assert [column["name"] for column in ColumnRanking(columns, given).between(0, 1)] == ["c377"]


# --- words ----------------------------------------------------------------------------------------


def test_words_are_marked_by_their_frequency_in_the_other_texts() -> None:
    texts = ["A Lovely film", "dull film"] * 20 + ["lovely, dull and ÉPIQUE film unique"]
    given = np.array([0, 1] * 20 + [1])
    marks = WordRanking(texts, given).between(40, 1, 0)
    # 20 of 20 other texts of class 0 have the word, 0 of 20 other ones of class 1.
    assert marks == {
        "lovely": pytest.approx(np.log(20.5 / 21) - np.log(0.5 / 21), abs=1e-3),
        "dull": pytest.approx(np.log(0.5 / 21) - np.log(20.5 / 21), abs=1e-3),
    }
    assert WordRanking(texts, given).between(40, 0, 1)["lovely"] == -marks["lovely"]
    assert WordRanking(["", "!"], np.array([0, 1])).between(0, 0, 1) == {}


def test_the_words_of_a_row_do_not_vouch_for_themselves() -> None:
    texts = ["same words"] * 3 + ["rare rare secret"] + ["same words"] * 3
    assert WordRanking(texts, np.array([0, 0, 0, 0, 1, 1, 1])).between(3, 0, 1) == {}


# --- pictures -------------------------------------------------------------------------------------


def test_pixel_columns_are_called_so() -> None:
    assert pixel_columns(["y", *(f"pixel{i}" for i in range(64)), "id"]) == list(range(1, 65))
    assert pixel_columns([f"{i // 8 + 1}x{i % 8 + 1}" for i in range(64)]) == list(range(64))
    # by line, whatever the order
    assert pixel_columns([f"{i % 8}x{i // 8}" for i in range(64)])[:3] == [0, 8, 16]
    for names in (
        [f"pixel{i}" for i in range(63)],
        [f"{i // 4}x{i % 4}" for i in range(16)],
        [f"p{i}" for i in range(64)],
        ["a", "b"],
        [],
    ):
        assert pixel_columns(names) == []


def test_pixels_have_the_range_of_the_table() -> None:
    digits = load_digits().data
    names = [f"pixel{i}" for i in range(64)]
    found = find_pixels(names, digits.astype(str))
    assert found is not None and (found.low, found.high) == (0, 16)
    picture = found.picture(digits[0].astype(str), 8)
    assert picture is not None and picture[1] == "image/png"
    drawn = np.asarray(Image.open(io.BytesIO(picture[0])).convert("L"))
    np.testing.assert_array_equal(drawn, np.round(digits[0].reshape(8, 8) * 255 / 16))
    assert found.picture(["?"] * 64, 8) is None
    assert find_pixels(names, [["?"] * 64]) is None
    assert find_pixels(names, [["inf"] + ["1"] * 63]) is None


# --- the whole ------------------------------------------------------------------------------------


def prepared(folder: Path) -> Context:
    audit = read_audit(folder)
    context = Context(audit, open_rows(audit.config))
    context.start().join()
    return context


def write_flowers(root: Path, rows: int = 300) -> Path:
    """A table of which one column separates the classes, with votes of annotators; row 0 has the
    wrong label.
    """
    random = np.random.default_rng(0)
    truth = np.arange(rows) % 2
    given = np.where(np.arange(rows) == 0, 1, truth)
    names = np.array(["iris", "rose"])
    frame = pd.DataFrame({f"noise{i}": random.normal(size=rows).round(3) for i in range(12)})
    frame.insert(5, "petal", (truth * 5 + random.normal(size=rows)).round(3))
    frame["empty"] = 0
    frame["kind"], frame["ann"], frame["bob"] = names[given], names[truth], ""
    frame.to_csv(root / "flowers.csv", index=False)
    folder = write_audit(
        root / "audit",
        names[given].tolist(),
        names[1 - given].tolist(),
        issues=3,
        kind="table",
        data=root / "flowers.csv",
        label="kind",
        annotators=["ann", "bob"],
        header=True,
    )
    by_annotator = {"ann": names[truth], "bob": names[given]}
    votes = pd.concat(
        pd.DataFrame({"row": range(rows), "annotator": annotator, "label": labels})
        for annotator, labels in by_annotator.items()
    )
    votes.to_csv(folder / "votes.csv", index=False)
    return folder


def test_the_context_of_a_table(tmp_path: Path) -> None:
    context = prepared(write_flowers(tmp_path))
    shown, frame = context.show(0), pd.read_csv(tmp_path / "flowers.csv")
    assert not shown["pending"] and shown["note"] is None
    assert [column["name"] for column in shown["columns"]] == ["petal"]
    assert shown["votes"] == [["ann", "iris"], ["bob", "rose"]]
    groups = {name: [other["row"] for other in rows] for name, rows in shown["groups"].items()}
    assert {name: len(rows) for name, rows in groups.items()} == {
        "duplicates": 10,
        "nearest_given": 5,
        "nearest_suggested": 5,
        "typical_given": 2,
        "typical_suggested": 2,
    }
    features = frame.drop(columns=["kind", "ann", "bob", "empty"])
    features = ((features - features.mean()) / features.std(ddof=0)).to_numpy()
    for side, label in (("given", "rose"), ("suggested", "iris")):
        others = np.flatnonzero((frame["kind"] == label) & (frame.index != 0))
        index = (
            NearestNeighbors(n_neighbors=5).fit(features[others]).kneighbors(features[[0]])[1][0]
        )
        assert groups[f"nearest_{side}"] == others[index].tolist()
        assert {other["label"] for other in shown["groups"][f"nearest_{side}"]} == {label}
    near = shown["groups"]["nearest_given"][0]
    assert near["fields"] == [["petal", f"{frame['petal'][near['row']]:g}"]]
    # Handmade: every seventh row is in one group of near-duplicates. Those of the other label come
    # first.
    labels = frame["kind"][groups["duplicates"]].tolist()
    assert (
        labels == sorted(labels)
        and set(labels) == {"iris"}
        and all(row % 7 == 0 for row in groups["duplicates"])
    )


def test_the_context_of_texts(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = {"good": ["lovely", "great", "fun"], "bad": ["dull", "poor", "slow"]}
    truth = ["good", "bad"] * 60
    texts = [
        " ".join([*random.choice(words[label], 2, replace=False), f"film {i}"])
        for i, label in enumerate(truth)
    ]
    given = ["bad", *truth[1:]]
    folder = write_film_audit(tmp_path, texts, given, issues=1)
    shown = prepared(folder).show(0)
    marked = {*texts[0].split()} & {*words["good"]}
    assert {*shown["words"]} == marked and all(ratio > 0 for ratio in shown["words"].values())
    nearest = shown["groups"]["nearest_suggested"]
    assert (
        len(nearest) == 5 and nearest[0]["text"] == texts[nearest[0]["row"]] and "columns" in shown
    )


def test_digits_in_columns_and_in_arrays_are_pictures(tmp_path: Path) -> None:
    digits = load_digits()
    given = digits.target[:300].astype(str).tolist()
    suggested = [str((int(name) + 1) % 10) for name in given]
    names = [str(k) for k in range(10)]
    frame = pd.DataFrame(digits.data[:300]).add_prefix("pixel").assign(digit=given)
    frame.to_csv(tmp_path / "digits.csv", index=False)
    np.save(tmp_path / "x.npy", digits.images[:300])
    np.save(tmp_path / "y.npy", digits.target[:300])
    table = write_audit(
        tmp_path / "table",
        given,
        suggested,
        issues=9,
        kind="table",
        data=tmp_path / "digits.csv",
        label="digit",
        classes=names,
        header=True,
    )
    arrays = write_audit(
        tmp_path / "arrays",
        given,
        suggested,
        issues=9,
        kind="arrays",
        data=tmp_path / "x.npy",
        classes=names,
        labels=str(tmp_path / "y.npy"),
        labels_key=None,
    )
    full = int(np.argmax(digits.data.max(1) == 16))  # a row with the range of all
    pictures = []
    for folder in (table, arrays):
        context = prepared(folder)
        assert context.rows.has_pictures and context.rows.show(3, "3")["has_image"]
        assert context.rows.show(3, "3").get("fields", []) == []
        shown = context.show(3)
        assert shown["columns"] == [] and all(
            other["has_image"] for other in shown["groups"]["nearest_given"]
        )
        pictures.append(context.rows.picture(full, str(full), 640))
    assert pictures[0] == pictures[1] and pictures[0] is not None and pictures[0][1] == "image/png"


def test_without_data_only_what_the_audit_wrote_is_shown(tmp_path: Path) -> None:
    folder = write_audit(
        tmp_path / "audit",
        list("abab") * 10,
        list("baba") * 10,
        issues=40,
        kind="predictions",
        data=None,
    )
    shown = prepared(folder).show(0)
    assert (
        list(shown["groups"]) == ["duplicates"] and shown["columns"] == [] and shown["words"] == {}
    )


def test_long_rows_do_not_begin_with_zeros(tmp_path: Path) -> None:
    x = np.zeros((40, 500), np.float32)
    x[np.arange(40), 400 + np.arange(40)] = 7
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.array(list("ab") * 20))
    folder = write_audit(
        tmp_path / "audit",
        list("ab") * 20,
        list("ba") * 20,
        issues=40,
        kind="arrays",
        data=tmp_path / "x.npy",
        labels=str(tmp_path / "y.npy"),
        labels_key=None,
    )
    content = open_rows(read_audit(folder).config).show(3, "3")
    assert ["403", "7"] in content["fields"] and content["note"] == "64 of 500 numbers; 499 are 0"


def test_an_audit_of_predictions_shows_them(tmp_path: Path) -> None:
    given = np.array(["a", "b", "c", "a"] * 10)
    probs = np.tile(
        [[0.125, 0.75, 0.125], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75], [0.5, 0.25, 0.25]], (10, 1)
    )
    np.save(tmp_path / "y.npy", given)
    np.save(tmp_path / "p.npy", probs)
    folder = write_audit(
        tmp_path / "audit",
        given.tolist(),
        ["b", "a", "a", "b"] * 10,
        issues=40,
        kind="predictions",
        data=None,
        labels=str(tmp_path / "y.npy"),
        pred_probs=str(tmp_path / "p.npy"),
    )
    rows = open_rows(read_audit(folder).config)
    assert rows.show(2, "2")["predictions"] == [["c", "75.0 %"], ["a", "25.0 %"], ["b", "0.0 %"]]
    assert (
        "fields" not in rows.show(2, "2")
        and not rows.has_pictures
        and rows.picture(2, "2", 96) is None
    )
    context = prepared(folder)
    assert context.note is None and context.show(0)["groups"]["duplicates"][0]["fields"][0] == [
        "c",
        "75.0 %",
    ]
    np.save(tmp_path / "y.npy", given[::-1])  # other labels now
    assert list(open_rows(read_audit(folder).config).show(2, "2")) == ["note"]
