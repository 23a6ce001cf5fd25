"""Votes with a line for each label: read beside tables, pictures and arrays, as the wide format;
refusals; a crowd.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from crowds import simulate

from noiseproof.audit import audit, read_rows
from noiseproof.data.votes import Votes

NAMES = np.array(["ant", "bee", "cat"])


def frames(seed: int = 0, **options: Any) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Items with a feature that predicts the class a little, their votes, and the truth."""
    crowd = simulate(seed, **options)
    noise = np.random.default_rng(seed).standard_normal((len(crowd.truth), 2))
    items = pd.DataFrame(
        {"name": [f"i{k:03}" for k in range(len(crowd.truth))], "x": crowd.truth + noise[:, 0]}
    )
    items["z"] = noise[:, 1]
    votes = crowd.votes
    lines = pd.DataFrame({"row": votes.row, "annotator": np.array(votes.names)[votes.annotator]})
    return items, lines.assign(label=NAMES[votes.label]), crowd.truth


def test_long_and_wide_are_the_same(tmp_path: Path) -> None:
    items, lines, _ = frames(rows=80, annotators=7, per_row=3)
    wide = items.join(lines.pivot(index="row", columns="annotator", values="label"))
    people = sorted(lines["annotator"].unique())
    items.to_csv(tmp_path / "items.csv", index=False)
    lines.sample(frac=1, random_state=0).to_csv(tmp_path / "votes.csv", index=False)
    by_column = read_rows(wide, annotators=people, ignore=["name"])
    by_line = read_rows(tmp_path / "items.csv", annotations=tmp_path / "votes.csv", ignore=["name"])
    assert by_line.labels.votes is not None and by_column.labels.votes is not None
    assert by_line.labels.votes.names == by_column.labels.votes.names == tuple(people)
    assert (by_line.labels.votes.table() == by_column.labels.votes.table()).all()
    assert (by_line.given == by_column.given).all() and by_line.classes == tuple(NAMES)
    assert by_line.source.config["annotations"] == str(tmp_path / "votes.csv")
    named = lines.assign(row=items["name"].to_numpy()[lines["row"]]).rename(columns={"row": "name"})
    by_id = read_rows(items, id="name", annotations=named)
    assert (
        by_id.labels.votes is not None
        and (by_id.labels.votes.table() == by_line.labels.votes.table()).all()
    )
    crowd_kit = lines.rename(columns={"row": "task", "annotator": "worker"})
    assert (read_rows(items, annotations=crowd_kit, ignore=["name"]).given == by_line.given).all()


def test_rows_that_are_left_out_take_their_votes_with_them() -> None:
    items, lines, _ = frames(rows=60, annotators=5, per_row=3)
    lines = lines[lines["row"] != 4]
    data = read_rows(items, annotations=lines, ignore=["name"])
    assert 4 not in data.row and data.labels.votes is not None
    whole = Votes.of_table(
        lines.pivot(index="row", columns="annotator", values="label").notna().to_numpy() - 1
    )
    assert len(data.labels.votes) == len(data) == 59 and len(whole) == 59
    row, who = int(data.row[10]), data.labels.votes.names
    expected = {
        (a, label)
        for a, label in lines.loc[lines["row"] == row, ["annotator", "label"]].itertuples(
            index=False
        )
    }
    votes = data.labels.votes[np.array([10])]
    assert {
        (who[a], NAMES[k]) for a, k in zip(votes.annotator, votes.label, strict=True)
    } == expected


def test_beside_given_labels_arrays_and_predictions(tmp_path: Path) -> None:
    items, lines, truth = frames(rows=90, annotators=6, per_row=3)
    given = read_rows(items.assign(y=NAMES[truth]), label="y", annotations=lines, ignore=["name"])
    assert (
        (given.given == truth).all()
        and given.labels.votes is not None
        and not given.source.is_voted
    )
    x = items[["x", "z"]].to_numpy(np.float32)
    array = read_rows(x, annotations=lines)
    assert (
        array.classes == tuple(NAMES) and array.source.is_voted and array.labels.votes is not None
    )
    np.save(tmp_path / "x.npy", x)
    lines.to_csv(tmp_path / "votes.csv", index=False)
    assert (
        read_rows(tmp_path / "x.npy", annotations=tmp_path / "votes.csv").given == array.given
    ).all()
    probs = np.full((90, 3), 0.1) + 0.7 * (truth[:, None] == np.arange(3))
    numbered = lines.assign(label=lines["label"].map({name: k for k, name in enumerate(NAMES)}))
    predicted = read_rows(pred_probs=probs, annotations=numbered)
    assert predicted.classes == ("0", "1", "2")
    counts = predicted.labels.votes.counts(3)  # type: ignore[union-attr]
    tied = (counts == counts.max(1, keepdims=True)).sum(1) > 1
    # predictions resolve ties
    assert tied.sum() > 3 and (predicted.given == truth[predicted.row])[tied].mean() > 0.9
    assert (predicted.given == counts.argmax(1))[~tied].all()


def test_pictures_are_called_by_their_paths(tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8)).save(
            tmp_path / "photos" / name
        )
    votes = pd.DataFrame(
        {"row": ["cat/2.png", "dog/1.png"], "annotator": ["ann", "bob"], "label": ["dog", "dog"]}
    )
    data = read_rows(tmp_path / "photos", annotations=votes, features="patches")
    assert data.labels.votes is not None
    assert data.labels.votes.table().tolist() == [[-1, -1], [1, -1], [-1, 1], [-1, -1]]
    with pytest.raises(ValueError, match="among 'cat', 'dog', got 'fish'"):
        read_rows(tmp_path / "photos", annotations=votes.assign(label="fish"), features="patches")


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda v: v.assign(row=v["row"] + 200),
            "Expected row numbers from 0 to 79 in `annotations`, got 200, ",
        ),
        (
            lambda v: v.assign(row="a" + v["row"].astype(str)),
            "got 'a0', .*If these are ids, name their column",
        ),
        (
            lambda v: pd.concat([v, v.iloc[:2]]),
            "Expected one label of each annotator .*more in 2 cases",
        ),
        (
            lambda v: v.drop(columns="annotator"),
            "Expected the columns row, annotator, label in `annotations`, a line",
        ),
        (
            lambda v: v.assign(annotator=[None, *v["annotator"][1:]]),
            "Expected an annotator in every line .*none in 1",
        ),
    ],
)
def test_refusals(change: Any, message: str) -> None:
    items, lines, _ = frames(rows=80, annotators=5, per_row=3)
    with pytest.raises(ValueError, match=message):
        read_rows(items, annotations=change(lines), ignore=["name"])


def test_more_refusals(tmp_path: Path) -> None:
    items, lines, _ = frames(rows=80, annotators=5, per_row=3)
    with pytest.raises(
        ValueError,
        match="Expected the ids of the data in `annotations`, got '0', '1', .*which the data",
    ):
        read_rows(items, id="name", annotations=lines)
    twice = items.assign(name="same")
    with pytest.raises(ValueError, match="Expected each id once in the data, .*got 'same' twice"):
        read_rows(twice, id="name", annotations=lines.assign(row="same"))
    with pytest.raises(ValueError, match="among 'ant', 'bee', got 'cat'"):
        read_rows(items, annotations=lines, classes=["ant", "bee"], ignore=["name"])
    with pytest.raises(ValueError, match="either `annotators` or `annotations`"):
        read_rows(items, annotations=lines, annotators=["z"])
    with pytest.raises(
        ValueError, match="Expected `consensus` to be one of majority, .*got 'median'"
    ):
        read_rows(items, annotations=lines, consensus="median")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "votes.csv"))):
        read_rows(items, annotations=tmp_path / "votes.csv")


def test_hundreds_of_annotators_and_few_labels_each() -> None:
    items, lines, truth = frames(4, rows=400, annotators=300, per_row=5, skew=0.3)
    assert lines.groupby("annotator").size().median() < 8
    for consensus in ("majority", "dawid-skene", "pooled"):
        data = read_rows(items, annotations=lines, ignore=["name"], consensus=consensus)
        assert data.source.config["consensus"] == consensus
    report = audit(items, annotations=lines, ignore=["name"], model="trees")
    labels, given = report.label_issues, report.data.given
    joined = np.where(labels.suggestion_quality > labels.quality, labels.suggested, given)
    rows = report.data.row
    assert (joined == truth[rows]).mean() > (given == truth[rows]).mean() + 0.02


def test_our_votes_can_be_read_again_by_ids(tmp_path: Path) -> None:
    items, lines, _ = frames(rows=80, annotators=6, per_row=3)
    items["uid"] = np.random.default_rng(0).permutation(80)  # numbers, as the rows have
    report = audit(read_rows(items, annotations=lines, ignore=["name", "uid"]), mode="fast")
    votes = report.votes()
    votes["id"] = items["uid"].to_numpy()[votes["row"]]
    again = read_rows(items, id="uid", annotations=votes, ignore=["name"])
    assert np.array_equal(
        again.labels.votes.table(), read_rows(items, annotations=lines).labels.votes.table()
    )
    with pytest.raises(
        ValueError, match="Expected labels of annotators in `annotations`, got none"
    ):
        read_rows(items, annotations=lines.assign(label=None))
