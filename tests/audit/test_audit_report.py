"""What an audit writes, checked field by field on a report made by hand; and audits of real data
from end to end.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from chaos import bits, flipped, outcome_of
from handmade_audit import write_table_audit

from noiseproof.audit import AuditData, LabelIssues, LabelReport, audit, read_rows
from noiseproof.audit.decisions import BadDecisions, DecisionLog
from noiseproof.audit.files import check_folder, read_audit
from noiseproof.audit.issues import WrongLabels
from noiseproof.audit.sources.arrays import ArraySource
from noiseproof.audit.sources.predictions import PredictionSource
from noiseproof.audit.sources.text import TextSource
from noiseproof.core.files import replacing, replacing_all
from noiseproof.data.labelsets import Labels
from noiseproof.data.rows import Rows, Skipped
from noiseproof.judge.evidence.gather import Surroundings
from noiseproof.judge.evidence.neighbours import Duplicates
from noiseproof.judge.issues.base import MAX_LISTED
from noiseproof.judge.issues.duplicate import NearDuplicates
from noiseproof.judge.issues.outlier import Outliers

COLUMNS = [
    "row",
    "id",
    "is_label_issue",
    "label_quality",
    "given_label",
    "predicted_label",
    "suggested_label",
    "suggestion_quality",
    "why",
    "margin",
    "neighbour_agreement",
    "is_near_duplicate",
    "duplicate_group",
    "duplicate_conflict",
    "is_outlier",
    "outlier_score",
    "confidence",
    "suggested_confidence",
    "unlearned",
    "doubt",
    "model_quality",
    "model_suggestion_quality",
]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def by_hand(**changes: Any) -> LabelReport:
    """Five rows of three classes, the last one trusted and from another file."""
    source = TextSource({"kind": "text", "text": "t", "label": "y", "id": None})
    source.frame = pd.DataFrame({"t": [f"text {i}" for i in range(6)], "y": list("abcabc")})
    data = AuditData(
        Labels.of_classes(("ant", 'b"ee', "Käfer, rot"), np.array([0, 1, 0, 2, 1])),
        np.array([4, 0, 2, 1, -1]),
        6,
        x=np.zeros((5, 2), np.float32),
        ids=np.array(["e", "a", "c", "b", "t"], dtype=object),
        trusted=np.array([False, False, True, False, True]),
        source=source,
        skipped=(Skipped("no label", np.array([3, 5])),),
        notes=("A note.",),
    )
    labels = LabelIssues(
        quality=floats(0.125, 0.5, 0.75, 0.25, 1),
        is_issue=np.array([True, False, False, True, False]),
        suggested=np.array([1, 0, 2, 1, 0]),
        suggestion_quality=floats(0.75, 0.5, 0.125, 0.5, 0),
        predicted=np.array([1, 1, 2, 2, 1]),
        noise_rate=0.4,
        class_rates=np.array([0.5, 0.25, 0.75]),
        noise_interval=(0.3, 0.5),
        transition=np.array([[0.75, 0.25, 0], [0.5, 0.25, 0.25], [0, 0, 1]]),
        cut=np.array([0.5, 0.4, 0.3]),
        false_positive_rate=0.05,
        margin=floats(-2, 1, 0.5, -1, 3),
        confidence=floats(0.0625, 0.75, 0.5, 0.125, 0.9),
        suggested_confidence=floats(0.9, 0.25, 0.25, 0.5, 0.05),
        neighbour_agreement=floats(0.25, 1, 0.5, 0, 1),
        unlearned=floats(0.75, 0, 0.5, 0.25, 0),
        doubt=None,
    )
    copies = Duplicates(
        np.array([0, -1, 0, -1, -1]), np.array([True, False, True, False, False]), 0
    )
    issues = (WrongLabels(labels), NearDuplicates(copies), Outliers(floats(1, 1, 2, 1, 9), 1.5))
    report = LabelReport(
        data, issues, 0.98, {"format": 2, "seed": 3, "odd": float("nan")}, {"training": 1.5}
    )
    return dataclasses.replace(report, **changes)


def with_labels(report: LabelReport, **changes: Any) -> LabelReport:
    """The report with other numbers on its labels."""
    labels = dataclasses.replace(report.label_issues, **changes)
    return dataclasses.replace(report, issues=(WrongLabels(labels), *report.issues[1:]))


# --- files ----------------------------------------------------------------------------------------


def test_out_of_sample_predictions_are_kept_for_further_audits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.repeat(["a", "b"], 60)
    x = random.normal(0, 1, (120, 3)) + 3 * (y == "b")[:, None]
    x[7] = np.nan  # a row that can't be audited
    data = read_rows(x.astype(np.float32), labels=y)
    report = audit(data, epochs=3)
    (path,) = (path for path in report.save(tmp_path / "audit") if path.name.startswith("out_of"))
    kept = np.load(path)
    assert path.name == "out_of_sample.npy" and kept.shape == (120, 2) and np.isnan(kept[7]).all()
    assert report.out_of_sample is not None
    np.testing.assert_array_equal(kept[data.row], report.out_of_sample)
    again = audit(read_rows(labels=y, pred_probs=path))
    assert again.data.row.tolist() == data.row.tolist() and again.config["mode"] == "predictions"
    audit(data, mode="fast", epochs=1).save(tmp_path / "audit", force=True)
    # a fast audit has no such predictions, and those of another one do not stay
    assert not path.exists()


def test_the_list_is_ranked_and_every_cell_is_right(tmp_path: Path) -> None:
    written = by_hand().save(tmp_path / "audit")
    assert [path.name for path in written] == [
        "issues.csv",
        "issues.parquet",
        "summary.json",
        "config.json",
    ]
    text = (tmp_path / "audit" / "issues.csv").read_text("utf-8")
    table = pd.read_csv(tmp_path / "audit" / "issues.csv", keep_default_na=False)
    assert list(table.columns) == COLUMNS
    assert table["row"].tolist() == [4, 1, 0, 2]  # issues first, then by quality; −1 is not audited
    assert table["id"].tolist() == ["e", "b", "a", "c"]
    assert table["is_label_issue"].tolist() == [True, True, False, False]
    assert (
        table["label_quality"].tolist()
        == table["model_quality"].tolist()
        == [0.125, 0.25, 0.5, 0.75]
    )
    assert table["suggestion_quality"].tolist() == [0.75, 0.5, 0.5, 0.125]
    assert table["model_suggestion_quality"].equals(table["suggestion_quality"])
    assert table["given_label"].tolist() == ["ant", "Käfer, rot", 'b"ee', "ant"]
    assert table["predicted_label"].tolist() == ['b"ee', "Käfer, rot", 'b"ee', "Käfer, rot"]
    assert table["suggested_label"].tolist() == ['b"ee', 'b"ee', "ant", "Käfer, rot"]
    assert table["why"].tolist() == [
        (
            "This looks like 'b\"ee' (90 %) rather than 'ant' (6 %); only 25 % of the most similar"
            " rows are labelled 'ant'; while learning, the model rarely took it for 'ant'; a"
            " near-duplicate has another label."
        ),
        (
            "This looks like 'b\"ee' (50 %) rather than 'Käfer, rot' (12 %); none of the most"
            " similar rows is labelled 'Käfer, rot'."
        ),
        "The evidence agrees with the label.",
        "The label is trusted.",
    ]
    assert table["margin"].tolist() == [-2, -1, 1, 0.5]
    assert table["neighbour_agreement"].tolist() == [0.25, 0, 1, 0.5]
    assert table["is_near_duplicate"].tolist() == [True, False, False, True]
    assert table["duplicate_group"].tolist() == ["0", "", "", "0"]
    assert table["duplicate_conflict"].tolist() == [True, False, False, True]
    assert table["is_outlier"].tolist() == [False, False, False, True]
    assert table["outlier_score"].tolist() == [1, 1, 1, 2]
    assert table["unlearned"].tolist() == [0.75, 0.25, 0, 0.5]
    assert table["doubt"].tolist() == [""] * 4
    assert text.splitlines()[0] == ",".join(COLUMNS) and "\r" not in text
    same = pd.read_parquet(tmp_path / "audit" / "issues.parquet")
    assert list(same.columns) == COLUMNS
    for column in ("row", "given_label", "suggested_label", "why", "label_quality"):
        assert same[column].astype(str).tolist() == table[column].astype(str).tolist()


def test_the_summary_counts_what_the_list_shows(tmp_path: Path) -> None:
    by_hand().save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary.pop("seconds")["training"] == 1.5
    assert summary == {
        "format": 2,
        "source_rows": 6,
        "rows": 4,
        "issues": 2,
        "labels_look_fine": False,
        "verdict": (
            "About 40.0% of the labels look wrong (at least 30.0%, at most 50.0%): 2 of 4 are"
            " called issues."
        ),
        "assumption": "The share of wrong labels is estimated as in other data with real mistakes",
        "noise_rate": {"estimate": 0.4, "low": 0.3, "high": 0.5},
        "false_positive_rate": 0.05,
        "classes": [
            {"name": "ant", "rows": 2, "issues": 1, "cut": 0.5, "noise_rate": 0.5},
            {"name": 'b"ee', "rows": 1, "issues": 0, "cut": 0.4, "noise_rate": 0.25},
            {"name": "Käfer, rot", "rows": 1, "issues": 1, "cut": 0.3, "noise_rate": 0.75},
        ],
        "transition": [[0.75, 0.25, 0], [0.5, 0.25, 0.25], [0, 0, 1]],
        "worst_pairs": [
            {"given": "ant", "suggested": 'b"ee', "issues": 1, "probability": 0.5},
            {"given": "Käfer, rot", "suggested": 'b"ee', "issues": 1, "probability": 0.25},
        ],
        "near_duplicates": {
            "groups": 1,
            "rows": 2,
            "conflicting": 1,
            "conflicts": [{"group": 0, "rows": [4, 2], "labels": ["ant", "ant"]}],
        },
        "outliers": {"rows": 1, "cut": 1.5},
        "known": {"trusted": 2, "annotators": 0},
        "models": [],
        "skipped": [{"reason": "no label", "count": 2, "rows": [3, 5]}],
        "notes": ["A note.", "Neighbours were found approximately, 98.0% of the true ones."],
        "neighbour_recall": 0.98,
    }
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config == {"format": 2, "seed": 3, "odd": None, "csv_safe": True}  # NaN is no JSON


def test_a_report_without_features_leaves_cells_empty(tmp_path: Path) -> None:
    nothing = Surroundings.none(5)
    issues = (
        NearDuplicates(nothing.duplicates),
        Outliers(nothing.outlier_scores, nothing.outlier_cut),
    )
    report = by_hand(neighbour_recall=None)
    report = dataclasses.replace(report, issues=(report.issues[0], *issues))
    table = report.table()
    assert not table["is_outlier"].any() and not table["is_near_duplicate"].any()
    assert table["duplicate_group"].isna().all() and table["outlier_score"].isna().all()
    assert report.summary()["outliers"] == {"rows": 0, "cut": None}
    report.save(tmp_path)


def test_the_matrix_of_many_classes_stays_out_of_the_summary() -> None:
    report = by_hand()
    names = (*report.data.classes, *(f"more {k}" for k in range(198)))
    data = dataclasses.replace(
        report.data, labels=dataclasses.replace(report.data.labels, words=names, names=names)
    )
    report = with_labels(
        dataclasses.replace(report, data=data),
        transition=np.eye(201),
        cut=np.zeros(201),
        class_rates=np.zeros(201),
    )
    summary = report.summary()
    assert summary["transition"] is None and len(summary["classes"]) == 201
    assert summary["worst_pairs"][0] == {
        "given": "ant",
        "suggested": 'b"ee',
        "issues": 1,
        "probability": 0.0,
    }


def test_labels_that_look_fine() -> None:
    report = with_labels(
        by_hand(),
        is_issue=np.zeros(5, dtype=bool),
        noise_rate=0.01,
        noise_interval=(0.0, 0.02),
        class_rates=np.array([0.02, 0.0, 0.1]),
        transition=np.array([[0.95, 0.05, 0], [0, 0.9, 0.1], [0, 0, 1]]),
    )
    assert report.summary()["labels_look_fine"] is True
    assert (
        report.summary()["verdict"]
        == "The labels look fine: about 1.0% wrong (at least 0.0%, at most 2.0%) "
        "(expected share of right labels called issues: 5.00%)."
    )
    unknown = with_labels(report, is_predictable=False, hit_rate=0.5, chance_rate=0.51)
    assert (
        unknown.summary()["labels_look_fine"] is False and unknown.summary()["assumption"] is None
    )
    assert (
        unknown.summary()["verdict"]
        == "The labels are hardly predictable from the features, so none can be called wrong, and"
        " the estimate of 1.0% wrong ones means little: predictions match 50.0% of the labels,"
        " 51.0% would match by chance. Check the columns, or give better features."
    )


def test_labels_never_look_fine_while_the_estimate_is_far_above_one_percent() -> None:
    low = {
        "noise_interval": (0.002, 0.099),
        "class_rates": np.full(3, 0.053),
        "transition": np.eye(3),
    }
    report = with_labels(by_hand(), noise_rate=0.053, **low)
    assert report.summary()["labels_look_fine"] is False
    assert (
        report.summary()["verdict"]
        == "Probably about 5.3% of the labels are wrong, as in other data like this (at least 0.2%,"
        " at most 9.9%), but predictions alone can't show it: if nothing is wrong, overlap"
        " between classes explains them all; 2 of 4 are called issues."
    )
    few = {"noise_rate": 0.01, "noise_interval": (0.0, 0.05)}
    assert with_labels(report, **few).summary()["labels_look_fine"] is True
    assert (
        with_labels(report, **few | {"noise_rate": 0.0101}).summary()["labels_look_fine"] is False
    )
    hidden = with_labels(report, **few | {"noise_interval": (0.0, 0.051)})
    # 5 % wrong labels may hide among what is contradicted
    assert hidden.summary()["labels_look_fine"] is False


def test_classes_that_differ_are_named() -> None:
    report = by_hand()
    given = np.repeat([0, 1, 2], [1000, 50, 20])
    data = dataclasses.replace(
        report.data,
        labels=dataclasses.replace(report.data.labels, codes=given),
        row=np.arange(1070),
        source_rows=1070,
        ids=None,
        trusted=None,
        x=None,
        skipped=(),
    )
    few = {"noise_rate": 0.009, "noise_interval": (0.0, 0.02), "transition": np.eye(3)}
    report = with_labels(
        dataclasses.replace(report, data=data),
        **few,
        class_rates=np.array([0.001, 0.16, 0.05]),
        is_issue=np.zeros(1070, dtype=bool),
        suggested=np.zeros(1070, np.int64),
    )
    summary = WrongLabels(report.label_issues).summary(data)
    assert summary["labels_look_fine"] is False  # a sixth of a class is not fine
    assert (
        summary["verdict"]
        == "Probably about 0.9% of the labels are wrong, as in other data like this (at least 0.0%,"
        " at most 2.0%), but predictions alone can't show it: if nothing is wrong, overlap"
        " between classes explains them all; 0 of 1070 are called issues. Of the 50 rows"
        " labelled 'b\"ee', about 16.0% look wrong."
    )
    lost = dataclasses.replace(
        report.label_issues,
        class_rates=np.array([0.009, 0.0, 0.0]),
        transition=np.array([[1, 0, 0], [0.2, 0.8, 0], [0, 0.05, 0.95]]),
    )
    summary = WrongLabels(lost).summary(data)
    assert summary["labels_look_fine"] is False
    assert summary["verdict"].endswith(
        "issues. Of the rows that should be 'b\"ee', about 20.0% have another label."
    )


def test_labels_that_neighbours_contradict_do_not_look_fine() -> None:
    report = by_hand()
    assert not any("memorised" in note for note in report.summary()["notes"])
    few = with_labels(report, noise_interval=(0.0, 0.125), contradicted=0.107)
    summary = few.summary()
    assert (
        summary["labels_look_fine"] is False
        and "they contradict 10.7% of the labels" in summary["notes"][-1]
    )
    assert (
        summary["verdict"]
        == "One training can't decide whether the labels are fine: about 40.0% look wrong (at least"
        " 0.0%, at most 12.5%); 2 of 4 are called issues."
    )
    summary = with_labels(few, noise_interval=(0.06, 0.125), noise_rate=0.09).summary()
    assert summary["verdict"].startswith(
        "About 9.0% of the labels look wrong (at least 6.0%, at most 12.5%)"
    )
    assert "--thorough" in summary["notes"][-1]


@pytest.mark.parametrize("name", ["issues.csv", "summary.json", "config.json", "checksums.json"])
def test_a_flipped_bit_in_the_folder_of_an_audit_is_refused(name: str, tmp_path: Path) -> None:
    write_checked_audit(tmp_path)
    path = tmp_path / name
    for bit in bits(path, 20):
        with flipped(path, bit):
            outcome = outcome_of(lambda: read_audit(tmp_path).key)
            assert outcome.is_refusal or name == "checksums.json", f"bit {bit}: {outcome}"
    assert read_audit(tmp_path).key


def write_checked_audit(folder: Path) -> None:
    """The files of an audit with their checksums."""
    with TemporaryDirectory() as other:
        audit = write_table_audit(Path(other), rows=20, issues=4)
        with replacing_all(folder) as part:
            for file in audit.iterdir():
                shutil.copy(file, part(file.name))


def test_an_existing_folder_is_refused_and_nothing_else_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    report = by_hand()
    report.save(folder)  # empty is as good as new
    (folder / "decisions.csv").write_text("mine")
    (folder / "notes.txt").write_text("mine, too")
    (folder / "config.json").write_text("old")
    with pytest.raises(FileExistsError, match="which holds files"):
        report.save(folder)
    assert (folder / "config.json").read_text() == "old"
    told: list[str] = []
    report.save(folder, force=True, tell=told.append)
    assert json.loads((folder / "config.json").read_text())["seed"] == 3
    assert (folder / "notes.txt").read_text() == "mine, too"
    (aside,) = folder.glob("decisions*.csv")  # on rows of which nobody knows any more
    assert aside.name != "decisions.csv" and aside.read_text() == "mine" and aside.name in told[0]
    assert not list(folder.glob(".*"))  # no half-written files
    with pytest.raises(FileExistsError, match="got the file"):
        check_folder(folder / "config.json")


def test_an_audit_is_not_replaced_under_an_open_review(tmp_path: Path) -> None:
    report = by_hand()
    report.save(tmp_path / "audit")
    before = (tmp_path / "audit" / "issues.csv").read_bytes()
    log = DecisionLog(tmp_path / "audit" / "decisions.csv")
    with pytest.raises(
        BadDecisions, match="another review writes to it. Use the page of that review or stop it"
    ):
        # which an audit asks before it trains anything
        check_folder(tmp_path / "audit", force=True)
    with pytest.raises(BadDecisions):
        report.save(tmp_path / "audit", force=True)
    log.close()
    assert (tmp_path / "audit" / "issues.csv").read_bytes() == before
    report.save(tmp_path / "audit", force=True)


# --- exports --------------------------------------------------------------------------------------


def test_label_studio_tasks(tmp_path: Path) -> None:
    path = by_hand().export("label-studio", tmp_path / "tasks.json")
    first, second = json.loads(path.read_text("utf-8"))
    why = first["data"].pop("why")
    assert why.startswith("This looks like 'b\"ee' (90 %)")
    assert first == {
        "data": {
            "text": "text 4",
            "row": 4,
            "source_id": "e",
            "given_label": "ant",
            "suggested_label": 'b"ee',
            "label_quality": 0.125,
            "is_label_issue": True,
            "is_near_duplicate": True,
            "is_outlier": False,
        },
        "predictions": [
            {
                "model_version": "noiseproof",
                "score": 0.9,
                "result": [
                    {
                        "id": "row-4",
                        "from_name": "label",
                        "to_name": "text",
                        "type": "choices",
                        "value": {"choices": ['b"ee']},
                    }
                ],
            }
        ],
    }
    assert second["data"]["row"] == 1
    view = ET.parse(tmp_path / "tasks.xml").getroot()
    choices = view.find("Choices")
    assert choices is not None and choices.attrib == {
        "name": "label",
        "toName": "text",
        "choice": "single",
    }
    assert [choice.get("value") for choice in choices] == ["ant", 'b"ee', "Käfer, rot"]
    shown = view.find("Text")
    assert shown is not None and shown.attrib == {"name": "text", "value": "$text"}
    with pytest.raises(FileExistsError, match="exists. Choose another name"):
        by_hand().export("label-studio", tmp_path / "tasks.json")
    everything = json.loads(
        by_hand().export("label-studio", tmp_path / "all.json", all_rows=True).read_text("utf-8")
    )
    assert [task["data"]["row"] for task in everything] == [4, 1, 0, 2]


# --- from end to end ------------------------------------------------------------------------------


def clouds(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that do not touch."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (np.eye(3)[y] * 8 + random.normal(size=(n, 3))).astype(np.float32), y


def audited(x: np.ndarray, y: np.ndarray, *, mode: str = "thorough", **options: Any) -> LabelReport:
    columns = {
        name: options.pop(name)
        for name in ("trusted", "groups", "time", "annotators")
        if name in options
    }
    data = AuditData(
        Labels.of_classes("abc", y),
        np.arange(len(y)),
        len(y),
        x,
        source=ArraySource({"kind": "arrays"}),
        **columns,
    )
    return audit(data, mode=mode, epochs=6, folds=2, device="cpu", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["thorough", "fast"])
def test_a_planted_copy_a_planted_stranger_and_planted_mistakes(mode: str) -> None:
    x, y = clouds()
    given = y.copy()
    given[[5, 50, 101]] = (y[[5, 50, 101]] + 1) % 3
    x[200] = x[101]  # the same row with its right label, whatever 200 was
    given[200] = y[101]
    x[77] = [40, -40, 40]
    told: list[tuple[str, int, int]] = []
    report = audited(x, given, mode=mode, progress=lambda *what: told.append(what))
    table = report.table().set_index("row")
    assert set(table.index[table["is_label_issue"]]) >= {5, 50}
    assert table["is_label_issue"].sum() <= 6
    assert table.loc[101, "duplicate_group"] == table.loc[200, "duplicate_group"]
    assert set(table.index[table["duplicate_conflict"]]) == {101, 200}
    assert report.summary()["near_duplicates"]["conflicts"] == [
        {"group": 0, "rows": [101, 200], "labels": ["abc"[given[101]], "abc"[given[200]]]}
    ]
    assert table.loc[77, "is_outlier"] and table["is_outlier"].sum() <= 3
    assert table["outlier_score"].idxmax() == 77
    assert [stage for stage, done, total in told if done == total] == [
        "digests of rows",
        "near-duplicates and outliers",
        "training",
        "judging labels",
        "other issues",
    ]
    assert [*report.seconds] == [
        "reading",
        "digests of rows",
        "near-duplicates and outliers",
        "training",
        "judging labels",
        "other issues",
    ]


def test_trusted_labels_are_never_issues() -> None:
    x, y = clouds()
    given = y.copy()
    given[[5, 50]] = (y[[5, 50]] + 1) % 3
    report = audited(x, given, trusted=np.isin(np.arange(240), [5, 6, 7]))
    table = report.table().set_index("row")
    assert not table.loc[5, "is_label_issue"] and table.loc[50, "is_label_issue"]
    assert table.loc[5, "why"] == "The label is trusted."


def test_a_trusted_table_dilutes_no_rate() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 1600)
    wrong = (random.random(1600) < 0.2) & (np.arange(1600) < 400)
    p = np.eye(3)[y] * 0.85 + 0.05
    data = AuditData(
        Labels.of_classes("abc", np.where(wrong, (y + 1) % 3, y)),
        np.concatenate([np.arange(400), np.full(1200, -1)]),
        400,
        pred_probs=p.astype(np.float32),
        trusted=np.arange(1600) >= 400,
        source=PredictionSource({"kind": "predictions"}),
    )
    summary = audit(data).summary()
    assert summary["rows"] == 400 and summary["issues"] == wrong.sum()
    assert summary["noise_rate"]["estimate"] == pytest.approx(wrong.sum() / 400, abs=0.01)
    assert summary["transition"][0][1] == pytest.approx(
        (wrong & (y == 0)).sum() / (y[:400] == 0).sum(), abs=0.02
    )


def test_videos_of_many_frames_are_audited_by_watching() -> None:
    random = np.random.default_rng(0)
    video = np.repeat(np.arange(15), 40)
    y = video % 3
    x = (
        6 * np.eye(3, 8)[y]
        + random.normal(size=(15, 8))[video]
        + 0.1 * random.normal(size=(600, 8))
    ).astype(np.float32)
    wrong = random.random(600) < 0.1
    report = audited(x, np.where(wrong, (y + 1) % 3, y), mode="fast", groups=video)
    assert (report.label_issues.is_issue == wrong).mean() > 0.98 and report.summary()["issues"] > 40


def test_a_class_of_one_group_is_listed_and_not_judged() -> None:
    x, y = clouds()
    groups = np.where(y == 2, 0, 1 + np.arange(240))  # every c belongs to one patient
    report = audited(x, y, groups=groups)
    assert len(report.data) == 160 and len(report.table()) == 160
    (skipped,) = report.data.skipped
    assert (
        skipped.reason.startswith("all rows of its class are in one fold")
        and len(skipped.rows) == 80
    )
    with pytest.raises(ValueError, match="Expected classes with rows in several groups or times"):
        audited(x, y, groups=y)
    assert len(audited(x, y, groups=y, mode="fast").data) == 240


def test_classes_of_copies_alone_are_judged_all_the_same() -> None:
    x, y = clouds(60)
    x[y == 2] = x[2]  # twenty copies of one row
    report = audited(x, y)
    assert len(report.data) == 60 and report.data.notes[-1].startswith(
        "Near-duplicates were split between folds"
    )
    with pytest.raises(ValueError, match="Expected columns that vary, got constants alone"):
        audited(np.ones((60, 3), np.float32), y)
    with pytest.raises(ValueError, match="Expected columns that vary, got constants alone"):
        audited(np.full((60, 3), 0.1, np.float32), y)  # whose mean is rounded


def test_an_unknown_mode_and_nothing_to_learn_from_are_refused() -> None:
    x, y = clouds(30)
    with pytest.raises(ValueError, match="Expected `mode` to be thorough or fast, got 'slow'"):
        audited(x, y, mode="slow")
    with pytest.raises(ValueError, match="Expected features to train on, or predictions"):
        audited(None, y)  # type: ignore[arg-type]


def test_the_configuration_runs_the_audit_again(tmp_path: Path) -> None:
    x, y = clouds(90)
    table = pd.DataFrame(x, columns=list("pqr")).assign(y=np.array(["a", "b", "c"])[y])
    table.to_csv(tmp_path / "d.csv", index=False)
    report = audit(
        read_rows(tmp_path / "d.csv", label="y", ignore=["r"]),
        mode="fast",
        epochs=4,
        seed=2,
        device="cpu",
    )
    report.save(tmp_path / "one")
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (
        config["method"] == "ln:lam=1,tau=0.5"
        and config["model"] == "auto"
        and config["folds"] is None
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
    rows = read_rows(**{name: config[name] for name in names}, seed=config["seed"])
    again = {name: config[name] for name in ("mode", "method", "model", "epochs", "seed")}
    audit(rows, **again, device="cpu").save(tmp_path / "two")
    assert (tmp_path / "one" / "issues.csv").read_bytes() == (
        tmp_path / "two" / "issues.csv"
    ).read_bytes()


def test_all_conflicts_are_counted_and_the_first_thousand_listed() -> None:
    n = 2 * (MAX_LISTED + 5)
    data = Rows(Labels.of_classes("ab", np.arange(n) % 2), np.arange(n), n)
    copies = NearDuplicates(Duplicates(np.arange(n) // 2, np.ones(n, dtype=bool), 0))
    counts = copies.summary(data)["near_duplicates"]
    assert (
        counts["groups"] == counts["conflicting"] == MAX_LISTED + 5
        and len(counts["conflicts"]) == MAX_LISTED
    )


def test_carriage_returns_in_names_come_back(tmp_path: Path) -> None:
    report = by_hand()
    ids = np.array(["e\re", "a", "c", "b", "t"], dtype=object)
    labels = dataclasses.replace(report.data.labels, words=("ant\rx", "b\n", "c"))
    data = dataclasses.replace(report.data, labels=labels, ids=ids)
    config = {"format": 2, "classes": data.classes}
    dataclasses.replace(report, data=data, config=config).save(tmp_path)
    issues = read_audit(tmp_path).issues
    assert issues["id"].tolist() == ["e\re", "b", "a", "c"]
    assert issues["given_label"].tolist() == ["ant\rx", "c", "b\n", "ant\rx"]


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="full"), replacing(tmp_path / "a") as part:
        part.write_text("half")
        raise OSError("disk full")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_few_rows_are_said_to_be_few(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    np.savez(tmp_path / "few.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    report = audit(read_rows(tmp_path / "few.npz"), mode="fast", model="network", epochs=2)
    notes = " ".join(report.summary()["notes"])
    assert (
        "With 30 rows, rates and counts mean little" in notes
        and "a thorough audit finds more" in notes
    )


@pytest.mark.parametrize("device", ["gpu", *(["cuda"] if not torch.cuda.is_available() else [])])
def test_a_device_that_is_not_here_is_refused_at_once(device: str) -> None:
    with pytest.raises(
        ValueError, match=f"Expected a device of this machine, such as cpu, got '{device}'"
    ):
        audit(np.zeros((4, 2)), labels=[0, 1, 0, 1], device=device)


def test_an_unknown_option_is_refused_by_the_function_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"audit\(\) has no option 'txt'. Did you mean 'text'"):
        audit({"message": ["a b", "c d"], "topic": ["x", "y"]}, label="topic", txt="message")
    with pytest.raises(
        TypeError, match=r"audit\(\) has no option 'modle'. Did you mean 'mode', 'model'"
    ):
        audit({"a": [1.0], "topic": ["x"]}, label="topic", modle="trees")
