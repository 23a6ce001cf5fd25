"""What users have, read from real files: every kind of data, and every way in which it can be
bad.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from noiseproof.audit import AuditData, read_rows
from noiseproof.audit.files import Audit
from noiseproof.audit.inputs import read_again
from noiseproof.core.messages import install_command
from noiseproof.data.pictures import PatchFeatures, Pictures
from noiseproof.data.text import TfidfFeatures


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def described(data: AuditData, i: int) -> str:
    return data.source.describe(int(data.row[i]), str(data.names[i]))


def reasons(data: AuditData) -> dict[str, list[int]]:
    return {skipped.reason: skipped.rows.tolist() for skipped in data.skipped}


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write(
        tmp_path / "data.csv",
        "name,size,colour,y,who,when,ok\n"
        "a,1.5,red,cat,1,2020-01-01,yes\n"
        "b,2.5,blue,dog,1,2020-01-03,no\n"
        "c,,red,cat,2,2020-01-02,no\n"
        "d,4.5,blue,dog,2,2020-01-05,no\n"
        "e,0.5,red,,3,2020-01-04,no\n",
    )


def test_a_table_becomes_standardised_numbers_and_one_hot_words(csv: Path) -> None:
    data = read_rows(csv, label="y", id="name", ignore=["who", "when", "ok"])
    assert (data.source.name, data.classes, data.source_rows) == ("table", ("cat", "dog"), 5)
    assert data.given.tolist() == [0, 1, 0, 1]
    assert data.row.tolist() == [0, 1, 2, 3]
    assert reasons(data) == {"no label": [4]}
    assert data.names.tolist() == ["a", "b", "c", "d"]
    # the gap holds the median of all rows, labelled or not
    filled = np.array([1.5, 2.5, 2.0, 4.5, 0.5])
    numbers = (filled - filled.mean()) / filled.std()
    assert data.x is not None
    np.testing.assert_allclose(data.x[:, 0], numbers[:4], rtol=1e-5)
    np.testing.assert_array_equal(data.x[:, 1:], [[0, 1], [1, 0], [0, 1], [1, 0]])
    assert any("median" in note for note in data.notes)
    assert described(data, 0).splitlines()[:2] == ["name: a", "size: 1.5"]
    assert "cat" not in described(data, 0)


def test_the_source_says_how_to_read_the_same_rows_again(csv: Path) -> None:
    data = read_rows(csv, label="y", ignore=["name"])
    assert data.source.config["data"] == str(csv)
    assert (
        data.source.config["labels_sha256"] == hashlib.sha256(b"cat\ndog\ncat\ndog\n").hexdigest()
    )
    names = (
        "data",
        "label",
        "text",
        "id",
        "group",
        "time",
        "annotators",
        "ignore",
        "trusted",
        "features",
    )
    again = read_rows(**{name: data.source.config[name] for name in names})
    assert again.x is not None and data.x is not None
    np.testing.assert_array_equal(again.x, data.x)
    assert again.source.config == data.source.config


def test_groups_times_and_trusted_columns(csv: Path) -> None:
    data = read_rows(csv, label="y", id="name", group="who", time="when", trusted="ok")
    assert data.groups is not None and data.time is not None and data.trusted is not None
    assert data.groups.tolist() == [0, 0, 1, 1]
    assert np.argsort(data.time).tolist() == [0, 2, 1, 3]
    assert data.trusted.tolist() == [True, False, False, False]
    assert data.x is not None and data.x.shape[1] == 3  # none of these columns is seen by a model


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".csv.gz"])
def test_other_files_hold_the_same_table(csv: Path, suffix: str) -> None:
    frame, path = pd.read_csv(csv), csv.with_suffix("").with_suffix(suffix)
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if suffix == ".tsv" else ",", index=False)
    data, first = read_rows(path, label="y"), read_rows(csv, label="y")
    assert data.given.tolist() == first.given.tolist() and reasons(data) == {"no label": [4]}
    frames = read_rows(frame, label="y")
    assert frames.given.tolist() == first.given.tolist() and frames.source.config["data"] is None


def test_texts_are_seen_by_their_words(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "text,n,mood\nthe sun shines,1,good\ndark rain,2,bad\n,3,bad\nsun and"
        " sun,4,good\nrain,5,bad\n",
    )
    data = read_rows(path, label="mood", text="text")
    assert data.source.name == "text" and data.row.tolist() == [0, 1, 3, 4]
    assert reasons(data) == {"no text in 'text'": [2]}
    assert data.x is not None
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1, rtol=1e-5)
    assert data.x[0] @ data.x[2] > data.x[0] @ data.x[1]  # they share a word
    assert described(data, 2) == "sun and sun"
    (note,) = (note for note in data.notes if "Only the text was used" in note)
    assert "'n'" in note and "`--embeddings`" in note


def test_texts_without_a_word_are_listed(tmp_path: Path) -> None:
    rows = ["good sun,a", "👍,a", "👎,b", "bad rain,b", "sun sun,a", "!?,", " ,b", "rain,b"]
    data = read_rows(
        write(tmp_path / "t.csv", "\n".join(["text,y", *rows])),
        label="y",
        text="text",
        features="tfidf",
    )
    assert data.row.tolist() == [0, 3, 4, 7] and [
        "tfidf. Pretrained" in note for note in data.notes
    ] == [True]
    assert reasons(data) == {
        "no label": [5],
        "no text in 'text'": [6],
        "no words in 'text'": [1, 2],
    }


def test_named_features_are_kept_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        f"{word} {i % 5} film,{y}" for i in range(20) for word, y in (("good", "a"), ("bad", "b"))
    ]
    path, cache = write(tmp_path / "t.csv", "\n".join(["text,y", *rows])), tmp_path / ".noiseproof"
    data = read_rows(path, label="y", text="text", features="tfidf:dim=4", cache=cache)
    config = data.source.config
    assert (config["features"], config["weights"]) == ("tfidf:dim=4", None) and len(
        [*cache.iterdir()]
    ) == 1
    monkeypatch.setattr(TfidfFeatures, "encode", None)  # nothing is computed again
    config |= {"classes": list(data.classes), "seed": 0}
    again = read_again(Audit(tmp_path / "audit", pd.DataFrame(), {}, config, ""))
    assert data.x is not None and again.x is not None and data.x.tobytes() == again.x.tobytes()
    for bad, why in (
        ({"features": "patches"}, "Expected features for texts"),
        (
            {"features": "tfidf", "embeddings": np.ones((40, 2))},
            "Expected either `features` or other models'",
        ),
        (
            {"features": "tfidf", "text": None},
            "Expected texts or pictures for the features 'tfidf', got a table",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            read_rows(path, **{"label": "y", "text": "text", **bad})
    with pytest.raises(
        ValueError, match=r"Expected pictures \(N, C, H, W\) for `features`, got `inputs`"
    ):
        read_rows(
            np.random.default_rng(0).normal(size=(9, 3)), labels=[0, 1, 0] * 3, features="patches"
        )


def test_numbers_are_shown_as_they_are() -> None:
    table = pd.DataFrame(
        {"id": 2**60 + np.arange(4), "share": [0.5, 0.25, 1, 2], "y": list("uvuv")}
    )
    assert described(read_rows(table, label="y", id="id"), 1) == f"id: {2**60 + 1}\nshare: 0.25"
    assert (
        described(
            read_rows(table[["share", "id", "y"]].assign(y=[0, 1, 0, 1]), label="y", id="id"), 3
        )
        == f"share: 2.0\nid: {2**60 + 3}"
    )


def test_annotators_vote_where_there_is_no_label(tmp_path: Path) -> None:
    # Of row 3 they say three labels; b, who says cat, is right elsewhere, and a and c are wrong
    # once.
    rows = [
        "1,cat,cat,cat",
        "2,dog,,dog",
        "3,,,",
        "4,dog,cat,bird",
        "5,bird,bird,bird",
        "6,dog,dog,cat",
        "7,dog,cat,cat",
        "8,cat,cat,cat",
    ]
    path = write(tmp_path / "a.csv", "\n".join(["x,a,b,c", *rows]))
    data = read_rows(path, annotators=["a", "b", "c"])
    assert data.classes == ("bird", "cat", "dog") and data.row.tolist() == [0, 1, 3, 5, 6, 7]
    assert data.given.tolist() == [1, 2, 1, 2, 1, 1]
    assert data.labels.votes is not None and data.labels.votes.names == ("a", "b", "c")
    table = [[1, 1, 1], [2, -1, 2], [2, 1, 0], [2, 2, 1], [2, 1, 1], [1, 1, 1]]
    assert data.labels.votes.table().tolist() == table
    assert reasons(data) == {
        "no label": [2],
        "the only row of its class: there is nothing to compare it with": [4],
    }
    # the label is one column, the others speak too
    beside = read_rows(path, label="a", annotators=["b", "c"])
    assert beside.classes == data.classes and beside.row.tolist() == [0, 1, 3, 5, 6, 7]
    assert beside.labels.votes is not None and beside.labels.votes.table().tolist() == [
        row[1:] for row in table
    ]


def test_annotators_groups_and_ids_are_read_as_they_are_written(tmp_path: Path) -> None:
    rows = [
        "1,01,01,NA,00152,NA",
        "2,02,,01,,NA",
        "3,01,02,02,128e2,null",
        "4,02,02,02,128,",
        "5,NA,NA,NA,9,",
    ]
    path = write(tmp_path / "a.csv", "\n".join(["x,y,a,b,name,who", *rows, "6,NA,01,NA,10,None"]))
    data = read_rows(path, label="y", annotators=["a", "b"], id="name", group="who")
    assert data.classes == ("01", "02", "NA") and data.given.tolist() == [0, 1, 0, 1, 2, 2]
    assert data.labels.votes is not None
    assert data.labels.votes.table().tolist() == [[0, 2], [-1, 0], [1, 1], [1, 1], [2, 2], [0, 2]]
    assert data.names.tolist() == ["00152", "", "128e2", "128", "9", "10"]
    assert data.groups is not None and data.groups[0] == data.groups[1]
    assert len(set(data.groups.tolist())) == 5  # NA, null, None, and two rows that belong to nobody


def test_a_trusted_table_adds_rows_that_are_not_audited(csv: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more.csv", "size,colour,y,when,ok\n9,red,dog,2020-01-01,no\n")
    data = read_rows(csv, label="y", id="name", group="who", trusted=str(more))
    assert data.row.tolist() == [0, 1, 2, 3, -1] and data.given.tolist() == [0, 1, 0, 1, 1]
    assert data.trusted is not None and data.trusted.tolist() == [False] * 4 + [True]
    assert data.source_rows == 5 and reasons(data) == {"no label": [4]}


def test_a_trusted_table_of_numerals_alone_is_read_as_the_other(tmp_path: Path) -> None:
    table = write(tmp_path / "codes.csv", "code,y\n01,a\nA5,b\n01,a\nA5,b\n")
    more = write(tmp_path / "more.csv", "code,y\n01,a\n")
    x = read_rows(table, label="y", trusted=str(more)).x
    assert (
        x is not None
        and x.shape == (5, 2)
        and torch.equal(torch.as_tensor(x[4]), torch.as_tensor(x[0]))
    )


def test_a_trusted_table_in_memory_is_as_good_as_its_file(csv: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more.csv", "size,colour,y,when,ok\n9,red,dog,2020-01-01,no\n")
    trusted = pd.read_csv(more)
    file = read_rows(csv, label="y", id="name", group="who", trusted=str(more))
    for data in (csv, pd.read_csv(csv)):
        found = read_rows(data, label="y", id="name", group="who", trusted=trusted)
        assert (
            found.row.tolist() == file.row.tolist() and found.given.tolist() == file.given.tolist()
        )
        assert found.trusted is not None and found.trusted.tolist() == [False] * 4 + [True]
        np.testing.assert_array_equal(found.x, file.x)
    with pytest.raises(
        ValueError, match="of the audited table in `trusted`, got 'fox', which it never has"
    ):
        read_rows(csv, label="y", id="name", group="who", trusted=trusted.assign(y="fox"))
    with pytest.raises(
        ValueError, match="of the audited table in `trusted`, 'colour' are not there"
    ):
        read_rows(csv, label="y", id="name", group="who", trusted=trusted.drop(columns="colour"))


def test_trusted_rows_from_an_array(csv: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([1, 3]))
    np.save(tmp_path / "flags.npy", np.array([False, True, False, True, False]))
    for name in ("rows", "flags"):
        data = read_rows(csv, label="y", trusted=str(tmp_path / f"{name}.npy"))
        assert data.trusted is not None and data.trusted.tolist() == [False, True, False, True]
    with pytest.raises(ValueError, match="below 5 in `trusted`, got 5"):
        read_rows(csv, label="y", trusted=np.array([5]))
    with pytest.raises(ValueError, match="to hold 5 booleans or row numbers"):
        read_rows(csv, label="y", trusted=np.array([0.5]))
    with pytest.raises(ValueError, match="`trusted` to hold .*, got none"):
        read_rows(csv, label="y", trusted=np.array([], dtype=np.int64))


# --- arrays and predictions -----------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_arrays_of_constant_columns_are_read_without_a_warning() -> None:
    data = read_rows(np.full((6, 2), 7.0), labels=[0, 1, 0, 1, 0, 1])
    assert data.x is not None and (data.x == 0).all()
    data = read_rows(np.array([[7.0, k] for k in (1.0, 3.0)] * 3), labels=[0, 1] * 3)
    assert data.x is not None and data.x[:2].tolist() == [[0, -1], [0, 1]]


def test_arrays_from_npz_and_npy(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(3, 2, (6, 4)), np.array(["b", "a", "b", "a", "b", "a"])
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    one = read_rows(tmp_path / "d.npz")
    two = read_rows(tmp_path / "x.npy", labels=tmp_path / "y.npy")
    three = read_rows(x, labels=y)
    four = read_rows(torch.from_numpy(x), labels=pd.Series(y).set_axis(range(6)[::-1]))
    assert (
        three.source.config["data"]
        is three.source.config["labels"]
        is three.source.config["labels_key"]
        is None
    )
    assert one.source.config["labels_key"] == "labels" and two.source.config["labels_key"] is None
    assert two.source.config["labels"] == str(tmp_path / "y.npy")
    for data in (one, two, three, four):
        assert (data.source.name, data.classes, data.given.tolist()) == (
            "arrays",
            ("a", "b"),
            [1, 0, 1, 0, 1, 0],
        )
        assert data.x is not None
        # spreads of one order stay as they are to one another
        expected = (x - x.mean(0)) / np.median(x.std(0))
        np.testing.assert_allclose(data.x, expected, rtol=1e-4)


def test_columns_of_different_units_are_scaled_apart(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 1, 1000]
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(50) % 2)
    data = read_rows(tmp_path / "d.npz")
    assert data.x is not None
    np.testing.assert_allclose(data.x.std(0), 1, rtol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_any_numbers_are_seen_as_pictures(tmp_path: Path, channels: int) -> None:
    bytes_ = np.random.default_rng(0).integers(0, 256, (12, channels, 20, 18), dtype=np.uint8)
    bytes_[0, 0, 0, :2] = 0, 255
    y = np.arange(12) % 2

    def seen(pictures: np.ndarray) -> AuditData:
        np.savez(tmp_path / "d.npz", x=pictures, y=y)
        return read_rows(tmp_path / "d.npz")

    expected = seen(bytes_)
    assert not any("black" in note for note in expected.notes)
    unit = bytes_ / 255
    same: list[np.ndarray] = [
        unit,
        unit.astype(np.float32),
        bytes_.astype(np.float32),
        2 * unit - 1,
        bytes_.astype(np.uint16) * 257,
        unit.transpose(0, 2, 3, 1),
    ]
    for pictures in same:
        found = seen(pictures)
        np.testing.assert_array_equal(found.x, expected.x)
        assert any("were read as pictures" in note and "as white" in note for note in found.notes)
    assert "-1 as black, 1 as white" in seen(2 * unit - 1).notes[0]
    unit[3, 0, 5, 5] = np.nan
    assert reasons(seen(unit)) == {"NaN, infinite or too large numbers in inputs": [3]}
    loose = seen(unit[:, 0])
    assert loose.x is not None and loose.x.shape == (11, 360)
    assert "were audited as plain numbers. Save pictures as (N, C, H, W)." in loose.notes[0]
    assert seen(unit[:, :, :8, :8]).notes == ()  # so small that their pixels are all that is seen


def test_rows_that_are_not_finite_are_listed(tmp_path: Path) -> None:
    x = np.ones((6, 2)) * np.arange(6)[:, None]
    x[2, 1], x[4, 0] = np.nan, np.inf
    y = np.array([0, 1, 0, 1, 0, np.nan])
    np.savez(tmp_path / "d.npz", x=x, y=y)
    np.savez(tmp_path / "more.npz", x=np.concatenate([x, x[:2]]), y=np.concatenate([y, y[:2]]))
    data = read_rows(tmp_path / "more.npz")
    assert reasons(data) == {
        "no label": [5],
        "NaN, infinite or too large numbers in inputs": [2, 4],
    }
    assert data.row.tolist() == [0, 1, 3, 6, 7]


def test_predictions_alone(tmp_path: Path) -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [np.nan] * 3])
    y = np.array([0, 1, 1, 0, 1])
    np.save(tmp_path / "p.npy", p)
    np.save(tmp_path / "y.npy", y)
    data = read_rows(labels=tmp_path / "y.npy", pred_probs=tmp_path / "p.npy")
    assert (data.source.name, data.classes, data.x) == ("predictions", ("0", "1", "2"), None)
    assert data.pred_probs is not None
    np.testing.assert_allclose(data.pred_probs, p[:4], rtol=1e-6)
    assert reasons(data) == {"NaN or infinite predictions": [4]}
    assert any("no training example: '2'" in note for note in data.notes)
    with pytest.raises(ValueError, match="Apply softmax to logits"):
        read_rows(labels=y, pred_probs=p[:, ::-1] * 9 - 4)
    with pytest.raises(ValueError, match="with 5 rows, as the data has, got shape"):
        read_rows(labels=y, pred_probs=p[:4])
    with pytest.raises(ValueError, match="there are no rows"):
        read_rows(labels=y, pred_probs=np.full((5, 3), np.nan))
    for alone, given in (
        ({"pred_probs": p}, "`pred_probs` alone"),
        ({"labels": y}, "`labels` alone"),
        ({}, "none"),
    ):
        with pytest.raises(
            ValueError, match=rf"both `labels` and `pred_probs` \(or `embeddings`\), got {given}\.$"
        ):
            read_rows(**alone)  # type: ignore[arg-type]
    words = read_rows(
        labels=np.array(["a", "b", "b", "a", "c"]), pred_probs=np.full((5, 3), 1 / 3), classes=None
    )
    assert words.classes == ("a", "b", "c") and len(words) == 4  # c is alone


BY_WORD = sorted(map(str, range(11)))  # 0, 1, 10, 2 …


def test_predictions_that_repeat_every_label_are_noted() -> None:
    labels = np.arange(60) % 3
    repeated = np.eye(3)[labels]
    assert "cross-validation" in " ".join(read_rows(labels=labels, pred_probs=repeated).notes)
    repeated[0] = repeated[1]
    assert not read_rows(labels=labels, pred_probs=repeated).notes


@pytest.mark.parametrize("kind", ["array", "csv", "frame", "folder"])
def test_columns_of_predictions_in_the_order_of_words(tmp_path: Path, kind: str) -> None:
    y = np.arange(33) // 3
    words = np.sort(y.astype(str))  # as the pictures of folders come
    p = 0.89 * np.eye(11)[[BY_WORD.index(word) for word in words]] + 0.01
    options: dict[str, object] = {}
    if kind == "array":
        options = {"labels": words}
    elif kind in ("csv", "frame"):
        table = pd.DataFrame({"x": y, "y": words})
        table.to_csv(tmp_path / "t.csv", index=False)
        options = {"data": tmp_path / "t.csv" if kind == "csv" else table, "label": "y"}
    else:
        for i, word in enumerate(words):
            (tmp_path / "f" / word).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(
                tmp_path / "f" / word / f"{i:02d}.png"
            )
        options = {"data": tmp_path / "f"}
    with pytest.raises(
        ValueError,
        match="match 33 in the order '0', '1', '10'.*in the order of the columns with `cl",
    ):
        read_rows(pred_probs=p, **options)  # type: ignore[arg-type]
    named = read_rows(pred_probs=p, classes=BY_WORD, **options)  # type: ignore[arg-type]
    assert named.classes == tuple(BY_WORD) and named.pred_probs is not None
    assert [named.classes[k] for k in named.given] == words.tolist()
    assert (named.pred_probs.argmax(1) == named.given).all()
    # columns in the order of numbers need no names
    numbers = 0.89 * np.eye(11)[words.astype(int)] + 0.01
    plain = read_rows(pred_probs=numbers, **options)  # type: ignore[arg-type]
    assert plain.pred_probs is not None and (plain.pred_probs.argmax(1) == plain.given).all()


def test_numbers_that_are_names_and_other_positions_are_refused() -> None:
    y, p = np.arange(22) % 11, np.full((22, 11), 1 / 11)
    with pytest.raises(
        ValueError, match="got 10, which is the name of one class and the position of another. Save"
    ):
        read_rows(labels=y, pred_probs=p, classes=BY_WORD)
    table = pd.DataFrame({"x": y, "y": y, "a": y})
    for options in ({"label": "y"}, {"annotators": ["y", "a"]}):
        with pytest.raises(
            ValueError, match="Save the labels as words, which are looked up by name"
        ):
            read_rows(table, classes=BY_WORD, **options)
    assert (
        read_rows(labels=y, pred_probs=p, classes=list("abcdefghijk")).given.tolist() == y.tolist()
    )
    assert (
        read_rows(labels=y, pred_probs=p, classes=[str(k) for k in range(11)]).given.tolist()
        == y.tolist()
    )


@pytest.mark.parametrize("kind", ["frame", "array", "csv"])
def test_columns_of_predictions_are_found_by_their_names(tmp_path: Path, kind: str) -> None:
    names = ["cat", "dog", "eel", "fox"]
    y = np.arange(40) % 4
    table = pd.DataFrame({"x": np.arange(40.0), "kind": np.array(names)[y]})
    table.to_csv(tmp_path / "t.csv", index=False)
    options: dict[str, object] = {"data": table, "label": "kind"}
    if kind == "array":
        options = {"labels": table["kind"].to_numpy()}
    elif kind == "csv":
        options["data"] = tmp_path / "t.csv"
    p = np.eye(4)[y] * 0.8 + 0.05
    frame = pd.DataFrame(p, columns=names)
    for order in (names, ["cat", "dog", "fox", "eel"]):
        for classes in (None, names, names[::-1]):
            found = read_rows(pred_probs=frame[order], classes=classes, **options)  # type: ignore[arg-type]
            assert found.pred_probs is not None
            assert (found.pred_probs.argmax(1) == found.given).all()
            assert [found.classes[k] for k in found.given] == table["kind"].tolist()
    for plain in (
        p,
        pd.DataFrame(p),
        pd.DataFrame(p, columns=list("0123")),
        pd.DataFrame(p, columns=[5, 6, 7, 8]),
    ):
        found = read_rows(pred_probs=plain, **options)  # type: ignore[arg-type]  # by position
        np.testing.assert_allclose(found.pred_probs, p, rtol=1e-6)  # type: ignore[arg-type]
    for other in (
        ["cat", "dog", "fox", "owl"],
        ["cat", "cat", "dog", "fox"],
        ["p_cat", "p_dog", "p_eel", "p_fox"],
    ):
        with pytest.raises(
            ValueError, match=f"called as the classes, 'cat', .* got '{other[0]}', .*pass an array"
        ):
            read_rows(pred_probs=frame.set_axis(other, axis=1), **options)  # type: ignore[arg-type]


def test_columns_called_by_numbers_are_found_by_them_too() -> None:
    y = np.array([3, 10, 8] * 8)
    p = 0.8 * (y[:, None] == [8, 10, 3]) + 0.2 / 3
    found = read_rows(labels=y, pred_probs=pd.DataFrame(p, columns=[8, 10, 3]))
    assert found.classes == ("3", "8", "10") and found.pred_probs is not None
    assert (found.pred_probs.argmax(1) == found.given).all()
    backwards = pd.DataFrame(np.eye(2)[[1, 0] * 4]).iloc[:, ::-1]
    found = read_rows(labels=np.array([1, 0] * 4), pred_probs=backwards)
    assert found.pred_probs is not None and (found.pred_probs.argmax(1) == found.given).all()
    words = pd.DataFrame(np.eye(2)[[1, 0] * 4], columns=["off", "on"])
    with pytest.raises(
        ValueError,
        match="called as the classes, '0', '1', got 'off', 'on'. .*name all classes with",
    ):
        read_rows(labels=np.array([1, 0] * 4), pred_probs=words)
    assert read_rows(
        labels=np.array([1, 0] * 4), pred_probs=words, classes=["off", "on"]
    ).classes == ("off", "on")


@pytest.mark.parametrize("name", ["pred_probs", "embeddings"])
def test_rows_in_another_order_by_their_index_are_refused(csv: Path, name: str) -> None:
    values = pd.DataFrame(np.tile([0.25, 0.75], (5, 1)))
    table = pd.read_csv(csv).set_axis(list("vwxyz"))
    moved = values.set_axis(list("zyxwv"))
    refused = (
        f"Expected the rows of `{name}` in the order of the data, its index has them in"
        " another.*to_numpy"
    )
    for data, options in (
        ({"data": table, "label": "y"}, {name: moved}),
        ({"data": csv, "label": "y"}, {name: values[::-1]}),
        ({"labels": table["name"].str.replace("[bd]", "a", regex=True)}, {name: moved}),
    ):
        with pytest.raises(ValueError, match=refused):
            read_rows(**data, **options)  # type: ignore[arg-type]
    # names of their own
    for right in (moved[::-1], moved.to_numpy(), values, values.set_axis(list("abcde"))):
        assert len(read_rows(table, label="y", **{name: right})) == 4  # type: ignore[arg-type]


def test_one_probability_a_row_is_made_two_columns() -> None:
    y, p = np.arange(6) % 2, np.linspace(0, 1, 6)
    with pytest.raises(
        ValueError,
        match=r"got shape \(6,\). For two classes, make columns 1 − p and p, the second one's",
    ):
        read_rows(labels=y, pred_probs=p)
    assert len(read_rows(labels=y, pred_probs=np.stack([1 - p, p], axis=1))) == 6


def test_predictions_and_embeddings_beside_a_table(csv: Path) -> None:
    p = np.tile([0.5, 0.5], (5, 1))
    data = read_rows(csv, label="y", pred_probs=p)
    assert data.x is None and data.pred_probs is not None and data.pred_probs.shape == (4, 2)
    data = read_rows(csv, label="y", embeddings=np.arange(15.0).reshape(5, 3))
    assert data.x is not None
    np.testing.assert_array_equal(data.x, np.arange(12.0).reshape(4, 3))
    huge = read_rows(csv, label="y", embeddings=np.full((5, 2), 1e30))
    assert huge.x is not None and huge.x.max() == 1  # squares of 1e30 are infinite in float32
    with pytest.raises(
        ValueError, match=r"shape \(5, 2\), a column for each class in the order 'cat', 'dog'"
    ):
        read_rows(csv, label="y", pred_probs=np.full((5, 4), 0.25))


def test_embeddings_beside_labels_alone(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(6, 2)
    x[4, 1] = np.nan
    y = np.array(["b", "a", "b", "a", "b", "a"])
    np.save(tmp_path / "x.npy", x)
    for embeddings in (x, pd.DataFrame(x, columns=["p", "q"]), tmp_path / "x.npy"):
        data = read_rows(labels=y, embeddings=embeddings)
        assert (
            data.classes == ("a", "b")
            and data.given.tolist() == [1, 0, 1, 0, 0]
            and data.pred_probs is None
        )
        np.testing.assert_array_equal(data.x, x[[0, 1, 2, 3, 5]])
        assert reasons(data) == {"NaN, infinite or too large numbers in embeddings": [4]}


# --- pictures -------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name, colour in (("red", 0), ("blue", 2)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(4):
            pixels = random.integers(0, 60, (40, 50, 3), dtype=np.uint8)
            pixels[..., colour] += 150
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_of_pictures_with_a_broken_one(photos: Path) -> None:
    write(photos / "red" / "9.png", "no picture")
    (photos / "blue" / "7.jpg").write_bytes((photos / "blue" / "0.png").read_bytes()[:200])
    write(photos / "blue" / "notes.txt", "not looked at")
    seen: list[tuple[str, int, int]] = []
    data = read_rows(photos, features="patches", progress=lambda *told: seen.append(told))
    assert (data.source.name, data.classes) == ("folder", ("blue", "red"))
    assert data.names.tolist() == [f"blue/{i}.png" for i in range(4)] + [
        f"red/{i}.png" for i in range(4)
    ]
    assert sorted(row for rows in reasons(data).values() for row in rows) == [4, 9]
    assert all("not a readable picture" in reason for reason in reasons(data))
    assert data.row.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert data.source.file(data.names[4]) == photos / "red" / "0.png"
    assert seen[-1] == ("reading pictures", 10, 10)
    assert data.x is not None and np.isfinite(data.x).all()
    same = np.linalg.norm(data.x[0] - data.x[1:4], axis=1).max()
    assert same < np.linalg.norm(data.x[0] - data.x[4:], axis=1).min()
    assert any("by the features patches. Pretrained ones see more" in note for note in data.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_names_that_are_no_utf8(photos: Path) -> None:
    broken = os.fsencode(photos / "blue") + b"/caf\xe9.png"
    with open(broken, "wb") as file:
        file.write((photos / "blue" / "0.png").read_bytes())
    data = read_rows(photos)
    assert reasons(data) == {"file name is not UTF-8": [4]} and len(data) == 8
    os.rename(os.fsencode(photos / "blue"), os.fsencode(photos) + b"/bl\xe9")
    with pytest.raises(
        ValueError, match=r"Expected names of folders in UTF-8 in .* got 'bl\\udce9'"
    ):
        read_rows(photos)
    os.rename(os.fsencode(photos), os.fsencode(photos) + b"\xe9")
    with pytest.raises(
        ValueError,
        match=r"Expected names in UTF-8, which config.json can hold, got '.*photos\\udce9'",
    ):
        read_rows(os.fsdecode(os.fsencode(photos) + b"\xe9"))


def test_the_classes_of_a_folder_are_its_folders(photos: Path) -> None:
    one, two = read_rows(photos), read_rows(photos, classes=["red", "blue"])
    assert (one.classes, two.classes) == (("blue", "red"), ("red", "blue"))
    assert (
        one.given.tolist() == (1 - two.given).tolist() and one.names.tolist() == two.names.tolist()
    )
    assert one.source.config["labels_sha256"] == two.source.config["labels_sha256"]
    for classes in (["x", "blue"], ["red", "blue", "x"], ["blue"], ["red", "red", "blue"]):
        with pytest.raises(
            ValueError, match="each of the 2 folders of .*photos once in `classes`, got"
        ) as refused:
            read_rows(photos, classes=classes)
        assert ("No folders: 'x'" in str(refused.value)) == ("x" in classes)
        assert ("not named: 'red'" in str(refused.value)) == ("red" not in classes)


def test_only_the_training_part_of_a_folder_is_audited(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "test").mkdir(parents=True)
    photos.rename(root / "train")
    for name in ("red", "blue"):
        (root / "test" / name).mkdir()
        Image.new("RGB", (20, 20)).save(root / "test" / name / "0.png")
    data = read_rows(root)
    assert len(data) == 8 and data.source.config["data"] == str(root / "train")
    assert any("Only train/ was audited" in note for note in data.notes)
    (root / "test" / "green").mkdir()
    with pytest.raises(ValueError, match="got also 'green'"):  # a label seen only in test
        read_rows(root)


class Colours(nn.Module):
    """As far as timm's models go: pretrained, the mean of each channel."""

    num_features = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def test_a_frozen_backbone_of_timm(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Unknown features 'lenet5'"):
        read_rows(photos, features="lenet5")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_command("timm"))):
        read_rows(photos, features="timm:colours")
    timm, calls = ModuleType("timm"), []
    timm.create_model = lambda name, **options: calls.append((name, options)) or Colours()  # type: ignore[attr-defined]
    timm.__spec__ = ModuleSpec("timm", None)
    monkeypatch.setitem(sys.modules, "timm", timm)
    write(photos / "blue" / "0a.png", "no picture")
    data = read_rows(photos, features="timm:colours")
    assert calls == [("colours", {"pretrained": True, "num_classes": 0, "in_chans": 3})]
    assert data.x is not None and data.row.tolist() == [0, 2, 3, 4, 5, 6, 7, 8]
    means = [np.asarray(Image.open(photos / name)).mean((0, 1)) / 255 for name in data.names]
    expected = (np.array(means) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(data.x, expected, atol=0.02)  # scaled to 224 × 224


def stripes(n: int) -> tuple[torch.Tensor, np.ndarray]:
    """Stripes that stand or lie, each of its own random shade: no pixel tells which."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, n)
    shades = random.normal(0, 40, (n, 24))
    pictures = np.where(y[:, None, None] == 1, shades[:, :, None], shades[:, None, :])
    pictures = 128 + pictures + random.normal(0, 8, pictures.shape)
    return torch.from_numpy(pictures.clip(0, 255).astype(np.uint8))[:, None], y


def test_patch_features_see_what_pixels_do_not() -> None:
    pictures, y = stripes(400)
    first, rows = Pictures(pictures[:200]), Pictures(pictures)
    again = PatchFeatures(centres=32, dim=16).fit(first).encode(rows)
    x = torch.from_numpy(PatchFeatures(centres=32, dim=16).fit(first).encode(rows))
    assert x.shape == (400, 16)
    assert torch.equal(x, torch.from_numpy(again))

    def accuracy(features: torch.Tensor) -> float:
        centres = torch.stack(
            [features[:200][torch.from_numpy(y[:200] == k)].mean(0) for k in (0, 1)]
        )
        return float((torch.cdist(features[200:], centres).argmin(1).numpy() == y[200:]).mean())

    assert accuracy(x) > 0.95
    assert accuracy(pictures.flatten(1).float()) < 0.65


def test_patch_features_are_those_of_the_paper() -> None:
    pictures, _ = stripes(60)
    features = PatchFeatures(centres=8, dim=5).fit(Pictures(pictures))
    image = pictures[7, 0].double().numpy()
    answers = np.zeros((10, 10, 8))
    for i in range(10):
        for j in range(10):
            patch = image[2 * i : 2 * i + 6, 2 * j : 2 * j + 6].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
            white = (patch - features.mean.double().numpy()) @ features.whitening.double().numpy()
            distance = np.linalg.norm(white - features.typical.double().numpy(), axis=1)
            answers[i, j] = np.maximum(0, distance.mean() - distance)
    quarters = [answers[a : a + 5, b : b + 5].mean((0, 1)) for a in (0, 5) for b in (0, 5)]
    small = image.reshape(4, 6, 4, 6).mean((1, 3)).ravel()
    pooled = np.concatenate([np.stack(quarters, 1).ravel(), features.colour * small])
    expected = (pooled - features.axes.mean.double().numpy()) @ features.axes.axes.double().numpy()
    np.testing.assert_allclose(
        features.encode(Pictures(pictures))[7], expected, rtol=1e-3, atol=1e-4
    )


# --- bad input ------------------------------------------------------------------------------------

BAD = {
    "no such column": ("x,y\n1,a\n2,b\n", {"label": "z"}, "Expected a column 'z'"),
    "close name": ("x,label\n1,a\n2,b\n", {"label": "lable"}, "Did you mean 'label'"),
    "no label named": ("x,y\n1,a\n2,b\n", {}, "Expected `label`, the name of the column"),
    "constant": ("x,y\n1,a\n2,a\n3,a\n", {"label": "y"}, "every label is 'a'"),
    "empty labels": ("x,y\n1,\n2,\n", {"label": "y"}, "got none in any of 2 rows"),
    "one example per class": (
        "x,y\n1,a\n2,b\n3,c\n",
        {"label": "y"},
        "Is it an identifier rather than a label",
    ),
    "real numbers": (
        "x,y\n1,0.5\n2,0.25\n3,0.5\n4,0.25\n",
        {"label": "y"},
        "Bin them into classes",
    ),
    "no features": ("y\na\nb\na\nb\n", {"label": "y"}, "Expected columns besides the label"),
    "useless features": (
        "x,y\n,a\n,b\n,a\n,b\n",
        {"label": "y"},
        "Expected at least one usable column",
    ),
    "infinite": (
        "x,y\n1,a\ninf,b\n1,a\n2,b\n",
        {"label": "y"},
        "Expected finite numbers in column 'x'",
    ),
    "no rows": ("x,y\n", {"label": "y"}, "got an empty table"),
    "ragged": ("x,y\n1,a,7,8\n2,b\n", {"label": "y"}, "Expected a readable .csv"),
    "bad time": (
        "x,y,t\n1,a,2020\n2,b,soon\n",
        {"label": "y", "time": "t"},
        "Expected numbers or dates in column 't'",
    ),
    "bad trusted": (
        "x,y,t\n1,a,2\n2,b,1\n",
        {"label": "y", "trusted": "t"},
        "Expected 1 or 0, yes or no",
    ),
    "trusted is nothing": (
        "x,y\n1,a\n2,b\n",
        {"label": "y", "trusted": "t"},
        "to be a column, a table or a .npy file",
    ),
    "two roles": ("x,y\n1,a\n2,b\n", {"label": "y", "group": "y"}, "got 'y' in two"),
    "ignored column": (
        "x,y\n1,a\n2,b\n",
        {"label": "y", "ignore": ["q"]},
        "Expected the columns 'q' in the table",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_with_advice(tmp_path: Path, case: str) -> None:
    content, options, message = BAD[case]
    path = write(tmp_path / "bad.csv", content)
    with pytest.raises(ValueError, match="^Expected") as refused:
        read_rows(path, **options)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_mixed_types_and_a_class_of_one_row_are_told(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.csv", "x,n,id,y\n1,7,i,a\nlow,8,j,1\n2,9,i,a\nhigh,10,k,1\n3,11,l,b\n"
    )
    data = read_rows(path, label="y", id="id")
    assert data.classes == ("1", "a", "b") and data.row.tolist() == [0, 1, 2, 3]
    assert reasons(data) == {"the only row of its class: there is nothing to compare it with": [4]}
    notes = " ".join(data.notes)
    assert "Column 'x' holds numbers written as words, but for 'high', 'low'" in notes
    assert "1 id in 'id' names several rows: 'i'" in notes
    assert "1 of 3 classes have a single training example: 'b'" in notes


def test_a_label_only_in_the_trusted_table_is_refused(csv: Path, tmp_path: Path) -> None:
    more = write(
        tmp_path / "more.csv", "name,size,colour,y,who,when,ok\nz,9,red,fox,1,2020-01-01,no\n"
    )
    with pytest.raises(ValueError, match="got 'fox', which it never has"):
        read_rows(csv, label="y", trusted=str(more))
    with pytest.raises(ValueError, match="'colour' are not there"):
        read_rows(
            csv,
            label="y",
            trusted=str(write(tmp_path / "few.csv", "name,size,y,who,when,ok\nz,9,dog,1,2,no\n")),
        )


def test_files_that_are_not_what_they_seem(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found none"):
        read_rows(tmp_path / "gone.csv", label="y")
    with pytest.raises(FileNotFoundError, match="Expected labels at"):
        read_rows(labels=tmp_path / "gone.npy", pred_probs=np.ones((2, 1)))
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    write(tmp_path / "cut.npy", "x")
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object))  # a pickle
    for name in ("cut.npy", "evil.npy"):
        with pytest.raises(ValueError, match="Expected arrays of numbers or words"):
            read_rows(tmp_path / "x.npy", labels=tmp_path / name)
    with pytest.raises(ValueError, match="Name their .npy file with `labels`"):
        read_rows(tmp_path / "x.npy")
    x, y, evil = np.zeros((4, 2)), np.arange(4) % 2, np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "both.npz", x=x, y=y, data=evil)  # only the first of the names is read
    assert len(read_rows(tmp_path / "both.npz").given) == 4
    np.savez(tmp_path / "evil.npz", x=x, y=evil)
    np.save(tmp_path / "y.npy", y)
    assert len(read_rows(tmp_path / "evil.npz", labels=tmp_path / "y.npy").given) == 4
    np.savez(tmp_path / "odd.npz", a=np.zeros(3), b=np.ones(3))
    with pytest.raises(ValueError, match="Expected inputs in .*odd.npz, called x or"):
        read_rows(tmp_path / "odd.npz")
    kinds = (
        "Expected arrays .*, a folder of pictures, a table .* or a file of Label Studio, .*, got"
    )
    for name, text in (
        ("data.txt", "hi"),
        ("data.json", "[1]"),
        ("data.csv.bz2", "hi"),
        ("data.parquet.gz", "hi"),
    ):
        for label in (None, "y"):
            with pytest.raises(ValueError, match=f"{kinds} {name}"):
                read_rows(write(tmp_path / name, text), label=label)
    with pytest.raises(ValueError, match="Expected JSON in .*data.json, got"):
        read_rows(write(tmp_path / "data.json", "hello"))
    with pytest.raises(ValueError, match="Expected `labels` with the array of inputs, got none"):
        read_rows(np.zeros((4, 2)))
    with pytest.raises(
        ValueError, match="no columns for arrays, got 'label'. Only tables have columns"
    ):
        read_rows(np.zeros((4, 2)), label="y")
    with pytest.raises(ValueError, match="Only tables have columns"):
        read_rows(photos, label="y")
    with pytest.raises(ValueError, match="the names of its folders are the labels"):
        read_rows(photos, labels=np.arange(8))
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="Expected images"):
        read_rows(tmp_path / "empty")
    (tmp_path / "empty" / "b").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "empty" / name / "0.png", "x")
    with pytest.raises(ValueError, match="Expected readable pictures in .* got none among 2"):
        read_rows(tmp_path / "empty")


def test_words_are_no_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([["a", "b"]] * 4))
    with pytest.raises(
        TypeError, match="Expected numbers in `inputs`, got dtype <U1. Audit words as a column"
    ):
        read_rows(tmp_path / "x.npy", labels=np.array([0, 1, 0, 1]))


def test_labels_in_bytes_have_the_digest_of_their_words(tmp_path: Path) -> None:
    words = ["chat", "chien é", "chat", "chien é"]
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
    of_bytes = np.array([word.encode() for word in words])
    for labels in (np.array(words), of_bytes, of_bytes.astype(object)):
        data = read_rows(tmp_path / "x.npy", labels=labels)
        assert data.classes == ("chat", "chien é") and data.source.config["labels_sha256"] == digest


def test_lengths_must_match(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    with pytest.raises(ValueError, match="`inputs` with 3 rows, as the data has, got shape"):
        read_rows(tmp_path / "x.npy", labels=np.array([0, 1, 0]))
    with pytest.raises(ValueError, match="For one-hot rows use argmax"):
        read_rows(tmp_path / "x.npy", labels=np.eye(4))


def test_dates_are_labels_and_a_missing_one_is_no_time() -> None:
    table = pd.DataFrame(
        {
            "a": [1.0, 2, 3, 4, 5],
            "y": np.array(["2020-01-01", "2021-05-05"], "M8[ns]")[[0, 1, 0, 1, 0]],
        }
    )
    table["t"] = pd.Series(
        np.array(["2020-01-01", "2020-01-02", "NaT", "2020-01-04", "2020-01-05"], "M8[ns]")
    )
    data = read_rows(table, label="y", time="t")
    assert data.classes == ("2020-01-01", "2021-05-05") and data.row.tolist() == [0, 1, 3, 4]
    assert reasons(data) == {"no time in 't'": [2]}
    zoned = read_rows(table.assign(t=table["t"].dt.tz_localize("Asia/Tokyo")), label="y", time="t")
    assert zoned.row.tolist() == [0, 1, 3, 4] and np.ptp(zoned.time) == np.ptp(data.time)  # type: ignore[arg-type]


def dated(*dates: str) -> AuditData:
    table = pd.DataFrame(
        {"a": np.sin(np.arange(len(dates))), "y": np.arange(len(dates)) % 2, "t": dates}
    )
    return read_rows(table, label="y", time="t")


@pytest.mark.parametrize(
    "form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y", "%m-%d-%Y %H:%M", "%Y/%m/%d", "%d %B %Y", "%Y%m%d"]
)
def test_days_and_months_are_read_in_one_order(form: str) -> None:
    days = pd.date_range("2023-01-01", "2023-12-31")
    data = dated(*days.strftime(form))
    np.testing.assert_array_equal(np.argsort(data.time), np.arange(365))  # type: ignore[arg-type]


def test_dates_of_which_nobody_can_tell_the_month_are_refused() -> None:
    for dates in (
        ["01/02/2023", "03/02/2023", "05/05/2023", "07/02/2023"],
        ["31/01/2023", "02/03/2023", "01/31/2023"],
    ):
        with pytest.raises(
            ValueError,
            match=f"column 't' that all begin with the day.* got '{dates[0]}', .*2020-12-31",
        ):
            dated(*dates)
    # which are one day in either order
    same = dated("01/01/2023", "02/02/2023", "2023-02-01", "2023-01-15")
    assert np.argsort(same.time).tolist() == [0, 3, 2, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["ns", "s", "D"])
def test_dates_of_arrays_are_labels_as_those_of_tables(tmp_path: Path, unit: str) -> None:
    dates = np.array(["2021-05-05", "2020-01-01", "2021-05-05", "NaT", "2020-01-01"], f"M8[{unit}]")
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    np.save(tmp_path / "y.npy", dates)
    data = read_rows(tmp_path / "x.npy", labels=tmp_path / "y.npy")
    table = read_rows(pd.DataFrame({"a": np.arange(5.0), "y": dates.astype("M8[ns]")}), label="y")
    for found in (data, table):
        assert found.classes == ("2020-01-01", "2021-05-05")
        assert found.given.tolist() == [1, 0, 1, 0] and reasons(found) == {"no label": [3]}
    np.save(tmp_path / "y.npy", dates - dates[0])
    with pytest.raises(
        ValueError, match="words, whole numbers or dates as labels in `labels`, got timedelta64"
    ):
        read_rows(tmp_path / "x.npy", labels=tmp_path / "y.npy")


def test_what_is_trusted_is_found_from_everywhere(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("sure.npy", np.array([0]))
    assert read_rows(csv, label="y", trusted="sure.npy").source.config["trusted"] == str(
        tmp_path / "sure.npy"
    )
    table = pd.DataFrame({"a": [1, 2, 3, 4], "y": list("uvuv"), "sure": [1, 0, 0, 1]})
    assert read_rows(table, label="y", trusted="sure").source.config["trusted"] == "sure"


def test_numbers_far_from_zero_keep_what_differs() -> None:
    seconds = 1.7e9 + np.arange(40.0)  # which float32 has in steps of 128
    y = np.arange(40) % 2
    frame = pd.DataFrame({"x": y, "y": y})
    found = read_rows(frame, label="y", embeddings=np.stack([seconds, np.ones(40)], 1))
    assert found.x is not None and len(np.unique(found.x[:, 0])) == 40
    with pytest.raises(
        ValueError, match=r"got shape \(40,\). For one number per row, make a column of them"
    ):
        read_rows(frame, label="y", embeddings=seconds)
