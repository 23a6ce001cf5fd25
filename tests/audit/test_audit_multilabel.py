"""Audits of rows with several labels: every form of them, judged label by label, and written back
as it came.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, f1_score
from sklearn.multioutput import MultiOutputClassifier
from typer.testing import CliRunner

from noiseproof.audit import (
    audit,
    corrected,
    find_label_issues,
    plan_retraining,
    read_audit,
    read_rows,
)
from noiseproof.audit.again import audit_again
from noiseproof.audit.apply import default_out, write_corrected
from noiseproof.audit.decisions import Decision, DecisionLog
from noiseproof.audit.exchange.hugging_face import ImageFolder
from noiseproof.cli import app
from noiseproof.data.labelsets import Labels, split_set, with_sets
from noiseproof.judge.answers import fit_answer_noise
from noiseproof.judge.issues.spelling import SpellingVariants
from noiseproof.judge.labelissues import LabelSetIssues
from noiseproof.judge.labelsets import find_label_set_issues

NAMES = ("calm", "sad", "happy")
random = np.random.default_rng(0)
X = random.normal(size=(240, 4))
TRUE = (np.stack([X[:, 0], X[:, 1], X[:, 0] + X[:, 2]], 1) > 0.3).astype(int)
GIVEN = TRUE.copy()
LOST = [int(i) for i in np.flatnonzero((TRUE[:, 0] == 1) & (X[:, 0] > 1))[:6]]  # clear cases
ADDED = [int(i) for i in np.flatnonzero((TRUE[:, 1] == 0) & (X[:, 1] < -0.8))[:6]]
GIVEN[LOST, 0], GIVEN[ADDED, 1] = 0, 1
WORDS = ["|".join(name for name, yes in zip(NAMES, row, strict=True) if yes) for row in GIVEN]
FAST = {"model": "network", "folds": 3, "epochs": 12}


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame(X.round(6), columns=list("wxyz")).assign(**more)


def columns() -> pd.DataFrame:
    return frame(**{name: GIVEN[:, k] for k, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def report() -> Any:
    return audit(X, labels=GIVEN, classes=NAMES, **FAST)


# --- the judgement -------------------------------------------------------------------------------
def test_planted_errors_are_the_worst_labels(report: Any) -> None:
    issues = report.label_issues
    assert isinstance(issues, LabelSetIssues) and issues.names == NAMES
    wrong = GIVEN != TRUE
    worst = np.argsort(issues.label_quality.ravel())[: 2 * int(wrong.sum())]
    assert np.isin(np.flatnonzero(wrong.ravel()), worst).mean() > 0.8
    assert issues.label_is_issue[wrong].mean() > 0.8
    rows = sorted({*LOST, *ADDED})
    table = report.table().set_index("row")
    assert (table.loc[LOST, "add_labels"].str.contains("calm")).mean() > 0.8
    assert (table.loc[ADDED, "remove_labels"].str.contains("sad")).mean() > 0.8
    assert table.loc[rows, "is_label_issue"].mean() > 0.8


def test_a_row_is_as_good_as_its_worst_label(report: Any) -> None:
    issues = report.label_issues
    assert np.array_equal(issues.quality, issues.label_quality.min(1))
    assert np.array_equal(issues.is_issue, issues.label_is_issue.any(1))
    flipped = issues.suggested_answers != issues.answers
    assert np.array_equal(flipped[issues.is_issue], issues.label_is_issue[issues.is_issue])
    assert (flipped[~issues.is_issue].sum(1) == 1).all()
    assert ((issues.quality + issues.suggestion_quality) <= 1 + 1e-6).all()
    members = report.data.labels.members
    assert np.array_equal(members[issues.suggested], issues.suggested_answers)
    assert np.array_equal(members[report.data.given], GIVEN.astype(bool))


def test_each_label_is_judged_as_a_question() -> None:
    p = np.clip(
        1 / (1 + np.exp(-3 * (np.stack([X[:, 0], X[:, 1], X[:, 0] + X[:, 2]], 1) - 0.3))),
        0.01,
        0.99,
    )
    found = find_label_issues(GIVEN, p)
    assert isinstance(found, LabelSetIssues)
    noise = fit_answer_noise(GIVEN == 1, p.astype(np.float32))
    assert found.label_quality == pytest.approx(
        1 - noise.wrong(GIVEN == 1, p.astype(np.float32)), abs=1e-6
    )
    assert np.array_equal(found.lost_rates, noise.transition[:, 1, 0])
    for k in range(3):
        assert found.class_rates[k] == pytest.approx(
            1 - found.label_quality[GIVEN[:, k] == 1, k].mean(), abs=1e-6
        )
    assert found.noise_rate == pytest.approx(1 - found.label_quality.mean(), abs=1e-6)
    assert found.noise_interval[0] <= found.noise_rate <= found.noise_interval[1]
    wrong = GIVEN != TRUE
    assert found.label_is_issue[wrong].mean() > 0.8 and found.label_is_issue[~wrong].mean() < 0.03
    lists = [[NAMES[k] for k in np.flatnonzero(row)] for row in GIVEN]
    again = find_label_issues(lists, p[:, [0, 2, 1]], classes=("calm", "happy", "sad"))
    assert again.label_quality[:, [0, 2, 1]] == pytest.approx(found.label_quality)
    budget = find_label_issues(GIVEN, p, goal="budget=5")
    assert int(budget.label_is_issue.sum()) == 5


def test_trusted_rows_are_never_issues() -> None:
    p = np.full(GIVEN.shape, 0.5) + 0.3 * (TRUE - 0.5)
    found = find_label_issues(GIVEN, p, trusted=np.arange(240) % 2 == 0)
    assert not found.is_issue[::2].any() and (found.quality[::2] == 1).all()


@pytest.mark.parametrize(
    ("labels", "p", "message"),
    [
        (GIVEN, GIVEN[:, :2] * 1.0, r"`pred_probs` of shape \(240, 3\) from 0 to 1"),
        (GIVEN, GIVEN * 2.0, "from 0 to 1"),
        (GIVEN, None, "the probability of each label, or `evidence`"),
        (np.tri(2, dtype=int), np.eye(2), "a label that two rows or more have"),
        (
            np.eye(3, dtype=int)[np.arange(240) % 3],
            np.full((240, 3), 1 / 3),
            r"`labels` of shape \(240,\), one for each row",
        ),
    ],
)
def test_bad_probabilities_are_refused(labels: Any, p: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_label_issues(labels, p)
    with pytest.raises(ValueError, match="one label per row with `annotators`"):
        find_label_issues(GIVEN, GIVEN * 1.0, annotators=GIVEN)


def test_predictions_of_another_model_by_the_names_of_labels() -> None:
    p = pd.DataFrame(0.01 + 0.98 * TRUE, columns=NAMES)[["happy", "calm", "sad"]]
    rows = read_rows(frame(tags=WORDS), label="tags", multi_label="|", pred_probs=p)
    assert rows.labels.are_sets and rows.labels.names == ("calm", "happy", "sad")
    found = audit(rows).label_issues
    assert found.label_is_issue[LOST, 0].all() and found.label_is_issue[ADDED, 2].all()


# --- words ---------------------------------------------------------------------------------------
def test_words_spell_sets() -> None:
    sets = Labels.of_sets(["b, a", "a", "(none)", "b"], ",")
    assert sets.names == ("a", "b") and sets.joiner == ", "
    assert sets.answers.tolist() == [[True, True], [True, False], [False, False], [False, True]]
    assert sets.spell(0, np.array([True, True])) == "b, a"  # as it was
    assert sets.spell(3, np.array([True, True])) == "b, a"
    assert sets.spell(3, np.array([False, False])) == "(none)"
    assert split_set(" a,,b ,a", ",") == ["a", "b"]
    assert Labels.of_sets(["10|2"], "|").names == ("2", "10")


def test_the_same_set_in_another_order_is_the_same() -> None:
    words = ["b|a", "a|b", "a", "b", "(none)", "a"] * 10
    data = read_rows(frame(tags=(words * 4)), label="tags", multi_label="|")
    codes = data.labels.comparable
    assert codes[0] == codes[1] != codes[2]


# --- every form, there and back -------------------------------------------------------------------
def decide(folder: Path, changes: dict[int, str]) -> None:
    """Write a decision for each row: the label as one word."""
    issues = read_audit(folder).issues.set_index("row")
    log = DecisionLog(folder / "decisions.csv")
    for row, word in changes.items():
        log.add(Decision(row, issues.loc[row, "id"], issues.loc[row, "given_label"], "other", word))
    log.close()


def saved(report: Any, folder: Path) -> Path:
    report.save(folder)
    return folder


def test_words_of_a_csv_file_are_written_back(tmp_path: Path) -> None:
    words = [word.replace("|", " | ") for word in WORDS]
    source = tmp_path / "songs.csv"
    frame(tags=words).to_csv(source, index=False)
    report = audit(source, label="tags", multi_label="|", **FAST)
    folder = saved(report, tmp_path / "audit")
    config = json.loads((folder / "config.json").read_text())
    assert (
        config["multi_label"]["labels"] == ["calm", "happy", "sad"]
        and config["multi_label"]["separator"] == "|"
    )
    empty = WORDS.index("")
    decide(folder, {0: "happy | sad", empty: "calm", 5: "(none)"})
    plan = {0: "happy | sad", empty: "calm", 5: "(none)"}
    out = write_corrected(read_audit(folder), plan, tmp_path / "new.csv")
    before, after = (pd.read_csv(path, keep_default_na=False) for path in (source, out))
    assert after.loc[[0, empty, 5], "tags"].tolist() == ["happy | sad", "calm", ""]
    keep = [row for row in range(240) if row not in plan]
    assert before.loc[keep].equals(after.loc[keep]) and before.drop(columns="tags").equals(
        after.drop(columns="tags")
    )
    report = audit(out, label="tags", multi_label="|", **FAST)  # no labels in row 5 are no labels
    assert not report.data.labels.answers[report.data.row == 5].any()


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "jsonl", "xlsx"])
def test_columns_of_zeros_and_ones_are_written_back(kind: str, tmp_path: Path) -> None:
    source, table = tmp_path / f"songs.{kind}", columns()
    write = {
        "parquet": table.to_parquet,
        "xlsx": table.to_excel,
        "csv": table.to_csv,
        "csv.gz": table.to_csv,
    }
    if kind == "jsonl":
        table.to_json(source, orient="records", lines=True)
    else:
        write[kind](source, index=False)
    report = audit(source, label="calm,sad,happy", multi_label="columns", **FAST)
    assert (
        np.array_equal(report.data.labels.answers, GIVEN.astype(bool))
        and report.data.x.shape[1] == 4
    )
    folder = saved(report, tmp_path / "audit")
    out = tmp_path / f"new.{kind}"
    write_corrected(read_audit(folder), {0: "sad|happy", 1: "(none)"}, out)
    read = {
        "parquet": pd.read_parquet,
        "xlsx": pd.read_excel,
        "jsonl": lambda path: pd.read_json(path, lines=True),
    }
    after = read.get(kind, pd.read_csv)(out)
    assert after.loc[[0, 1], list(NAMES)].to_numpy().tolist() == [[0, 1, 1], [0, 0, 0]]
    want = table.copy()
    want.loc[[0, 1], list(NAMES)] = [[0, 1, 1], [0, 0, 0]]
    pd.testing.assert_frame_equal(after, want, check_dtype=False)


def test_words_in_memory_are_returned(tmp_path: Path) -> None:
    table = frame(tags=WORDS)
    folder = saved(audit(table, label="tags", multi_label="|", **FAST), tmp_path / "audit")
    decide(folder, {0: "happy|sad", 5: "(none)"})
    after = corrected(folder, table)
    assert after.loc[[0, 5], "tags"].tolist() == ["happy|sad", ""]
    assert after.drop(index=[0, 5]).equals(table.drop(index=[0, 5]))


def test_tables_in_memory_keep_their_columns(tmp_path: Path) -> None:
    table = columns().astype({"calm": bool}).assign(sad=lambda t: t["sad"].map({1: "yes", 0: "no"}))
    folder = saved(audit(table, label=list(NAMES), **FAST), tmp_path / "audit")
    decide(folder, {3: "calm|sad", 4: "(none)"})
    after = corrected(folder, table)
    assert after.loc[3, list(NAMES)].tolist() == [True, "yes", 0] and after.loc[
        4, list(NAMES)
    ].tolist() == [False, "no", 0]
    assert after.dtypes.equals(table.dtypes)
    moved = corrected(folder, table.iloc[::-1].reset_index(drop=True))
    assert moved.loc[236, list(NAMES)].tolist() == [True, "yes", 0]


@pytest.mark.parametrize(
    "labels",
    [
        GIVEN,
        GIVEN.astype(bool),
        torch.tensor(GIVEN),
        pd.DataFrame(GIVEN, columns=NAMES),
        csr_matrix(GIVEN),
        GIVEN.tolist(),
        [[NAMES[k] for k in np.flatnonzero(row)] for row in GIVEN],
    ],
    ids=["ints", "bools", "tensor", "frame", "sparse", "rows", "lists"],
)
def test_labels_beside_arrays_are_returned_as_what_they_were(labels: Any, tmp_path: Path) -> None:
    folder = saved(audit(X, labels=labels, classes=NAMES, **FAST), tmp_path / "audit")
    decide(folder, {7: "calm|happy", 8: "(none)"})
    after = corrected(folder, labels)
    assert type(after) is type(labels)
    if isinstance(labels, list) and labels != GIVEN.tolist():
        assert after[7:9] == [["calm", "happy"], []] and after[:7] == labels[:7]
        return
    dense = np.asarray(after.toarray() if hasattr(after, "toarray") else after)
    want = GIVEN.copy()
    want[7], want[8] = [1, 0, 1], 0
    assert (
        np.array_equal(dense, want)
        and dense.dtype == np.asarray(getattr(labels, "toarray", lambda: labels)()).dtype
    )


def test_files_of_arrays_are_written_back(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", GIVEN.astype(np.uint8))
    report = audit(tmp_path / "x.npy", labels=tmp_path / "y.npy", **FAST)
    folder = saved(report, tmp_path / "audit")
    out = write_corrected(read_audit(folder), {2: "0|2"}, tmp_path / "new.npy")
    after = np.load(out)
    assert (
        after.dtype == np.uint8
        and after[2].tolist() == [1, 0, 1]
        and np.array_equal(after[3:], GIVEN[3:])
    )


def test_texts_have_several_labels() -> None:
    topics = {
        "calm": "quiet slow soft piano",
        "sad": "tears grey rain alone",
        "happy": "dance sun loud bright",
    }
    texts = [
        " ".join(topics[name] for name, yes in zip(NAMES, row, strict=True) if yes)
        + f" song {i % 7}"
        for i, row in enumerate(TRUE)
    ]
    report = audit(
        texts, labels=[word.split("|") if word else [] for word in WORDS], features="tfidf", **FAST
    )
    issues = report.label_issues
    assert issues.names == ("calm", "happy", "sad") and issues.label_is_issue[LOST, 0].mean() > 0.8


@pytest.mark.parametrize(
    "cells",
    [
        [[0, 2], (1,), None, [2]],
        [np.array([0, 2]), np.array([1]), None, np.array([2])],
        [["calm", "sad"], ("sad",), None, {"sad"}],
        [np.array(["a"]), np.array(["a", "b"]), None, np.array(["b"])],
    ],
    ids=["numbers", "arrays", "words", "arrays of words"],
)
@pytest.mark.parametrize("container", [list, tuple, pd.Series, "array"])
def test_lists_of_every_kind_are_corrected(cells: list[Any], container: Any) -> None:
    labels = (
        np.array([*cells, None], dtype=object)[:-1] if container == "array" else container(cells)
    )
    names = sorted({str(name) for cell in cells if cell is not None for name in cell})
    after = with_sets(labels, {0: names[0], 1: "(none)", 2: "|".join(names)}, "|", None)
    assert type(after) is type(labels) and len(after) == 4
    assert [type(cell) for cell in after] == [
        type(cell) if cell is not None else list for cell in cells
    ]
    values = [list(cell) for cell in after]
    assert values[1] == [] and [[str(name) for name in row] for row in values[:3]] == [
        names[:1],
        [],
        names,
    ]
    assert {type(name) for row in values for name in row} == {
        type(name) for cell in cells if cell is not None for name in cell
    }
    assert values[3] == list(cells[3])


def test_empty_cells_of_label_columns_are_noted(tmp_path: Path) -> None:
    table = columns().astype({"calm": "Int64"})
    table.loc[[0, 3], "calm"] = pd.NA
    source = tmp_path / "songs.csv"
    table.to_csv(source, index=False)
    for data in (table, source):
        rows = read_rows(data, label=list(NAMES))
        assert not rows.labels.answers[[0, 3], 0].any() and np.array_equal(
            rows.labels.answers[4:], GIVEN[4:] == 1
        )
        assert "Empty cells of label columns count as no: 2 in 'calm'." in rows.notes


def test_spellings_of_labels_are_found_and_merged(tmp_path: Path) -> None:
    words = [word.replace("calm", "Calm ") if i % 12 == 0 else word for i, word in enumerate(WORDS)]
    source = tmp_path / "songs.csv"
    frame(
        tags=[word.replace("sad", "sda") if i == 7 else word for i, word in enumerate(words)]
    ).to_csv(source)
    report = audit(source, label="tags", multi_label="|", issues=["spelling"], **FAST)
    finding = report.summary()["spelling"]["findings"]
    assert [one["about"] for one in finding] == ["label 'Calm'"]
    folder = saved(report, tmp_path / "audit")
    after = pd.read_csv(
        write_corrected(
            read_audit(folder),
            {},
            tmp_path / "new.csv",
            fix=SpellingVariants.fix(read_audit(folder)),
        ),
        dtype=str,
    )
    assert not after["tags"].str.contains("Calm").any()
    assert after["tags"].str.contains("calm").sum() == GIVEN[:, 0].sum()


@pytest.mark.parametrize("form", ["csv", "words", "columns", "lists", "matrix"])
def test_spellings_in_sets_that_a_review_chose_are_merged(form: str, tmp_path: Path) -> None:
    """Also sets that no row has, in files and in memory; columns and matrices have no place for new
    labels.
    """
    names, is_fixed = ("calm", "Calm", "sad"), form in ("columns", "matrix")
    answers = np.stack([GIVEN[:, 0], np.arange(240) % 40 == 3, GIVEN[:, 1]], 1)
    sets = [[name for name, yes in zip(names, row, strict=True) if yes] for row in answers]
    words = frame(tags=["|".join(each) for each in sets])
    words.to_csv(tmp_path / "songs.csv", index=False)
    data: Any = {
        "csv": tmp_path / "songs.csv",
        "words": words,
        "lists": frame(tags=pd.Series(sets)),
        "matrix": answers,
        "columns": frame(**{name: answers[:, k] for k, name in enumerate(names)}),
    }[form]
    options: dict[str, Any] = {
        "columns": {"label": list(names)},
        "lists": {"label": "tags"},
        "matrix": {"labels": answers},
    }.get(form, {"label": "tags", "multi_label": "|"})
    order = names if is_fixed else tuple(sorted(names))
    probs = np.where(answers[:, [names.index(name) for name in order]], 0.9, 0.1)
    rows = read_rows(X if form == "matrix" else data, **options, classes=order, pred_probs=probs)
    folder = saved(audit(rows, issues=["spelling"]), tmp_path / "audit")
    decide(folder, {0: "sad|Calm" if is_fixed else "sad|Calm|new", 1: "Calm", 2: "(none)"})
    if form == "csv":
        command = ["apply", str(folder), "--fix", "spelling", "--out", str(tmp_path / "new.csv")]
        result = CliRunner().invoke(app, command)
        assert (
            result.exit_code == 0
            and "fixed spelling: 'Calm' is 'calm' in all rows\n" in result.stdout
        )
        after: Any = pd.read_csv(tmp_path / "new.csv", keep_default_na=False)
    else:
        after = corrected(folder, data, fix=["spelling"])
    want = [list(dict.fromkeys(name.lower() for name in each)) for each in sets]
    want[:3] = [["calm", "sad"] if is_fixed else ["sad", "calm", "new"], ["calm"], []]
    if is_fixed:
        cells = after if form == "matrix" else after[list(names)].to_numpy()
        assert [
            [name for name, yes in zip(names, row, strict=True) if yes] for row in cells
        ] == want
    else:
        assert [
            cell if form == "lists" else cell.split("|") if cell else [] for cell in after["tags"]
        ] == want


def test_forgotten_options_are_hinted_at(tmp_path: Path) -> None:
    notes = read_rows(frame(tags=[word or "none" for word in WORDS]), label="tags").notes
    assert any(
        "to judge each of 4 labels by itself, audit with `--multi-label='|'`" in note
        for note in notes
    )
    with pytest.raises(ValueError, match="several ones, such as .*`--multi-label='|'`"):
        letters = "abcdefghijklmnopqrstuvwxyz"
        pairs = [f"{one}|{two}" for one in letters for two in letters if one < two][:240]
        read_rows(frame(tags=pairs), label="tags")
    for words in (
        ["New York", "Paris"] * 120,
        ["a,b", "c"] * 120,
        [f"x|{i % 60}" for i in range(240)],
    ):
        assert not any(
            "several ones" in note for note in read_rows(frame(tags=words), label="tags").notes
        )
    source = tmp_path / "songs.csv"
    columns().to_csv(source, index=False)
    for data in (source, columns()):
        with pytest.raises(
            ValueError, match="3 names: if rows have several labels.*--multi-label columns"
        ):
            read_rows(data, label="calm,sad,happy")


def test_a_test_set_is_compared_with(tmp_path: Path) -> None:
    test = columns().iloc[:60].copy()
    test[["w", "x", "y"]] += np.random.default_rng(1).normal(size=(60, 3))
    test.iloc[:10] = columns().iloc[:10]
    test.loc[:4, "sad"] = 1 - test.loc[:4, "sad"]
    test.loc[5:, "happy"] = 1
    for data, other, options in (
        (columns(), test, {"label": list(NAMES)}),
        (
            frame(tags=WORDS),
            frame(tags=WORDS).iloc[:60].assign(tags=spelled(test), **test[list("wxyz")]),
            {"label": "tags", "multi_label": "|"},
        ),
    ):
        paths = [tmp_path / "data.csv", tmp_path / "test.csv"]
        for part, path in zip((data, other), paths, strict=True):
            part.to_csv(path, index=False)
        report = audit(paths[0], test=paths[1], **options, **FAST)
        summary = report.summary()
        found = summary["test-overlap"]["findings"][0]["sentence"]
        assert "10 of 60 rows of the test set" in found and "exactly" in found
        wrong = (test[list(NAMES)].to_numpy()[:10] != GIVEN[:10]).any(1).sum()
        assert f"{wrong} have another label there" in found
        assert any(one["about"] == "the label 'happy'" for one in summary["drift"]["findings"])


def spelled(table: pd.DataFrame) -> list[str]:
    """The labels of columns, in another order."""
    return ["|".join(name for name in reversed(NAMES) if row[name]) for _, row in table.iterrows()]


def test_pictures_in_a_folder_with_a_table_of_labels(tmp_path: Path) -> None:
    folder, random = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    colours, labels = {"red": 0, "green": 1, "blue": 2}, []
    for i in range(60):
        shown = [name for name in colours if random.uniform() < 0.5]
        pixels = random.integers(0, 40, (16, 16, 3))
        for name in shown:
            pixels[..., colours[name]] += 200
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        labels.append(";".join(shown))
    wrong = next(i for i, word in enumerate(labels) if word == "red;green")
    given = [*labels[:wrong], "red", *labels[wrong + 1 :]]
    table = pd.DataFrame({"file_name": [f"{i}.png" for i in range(60)], "by": "me", "label": given})
    table.to_csv(folder / "metadata.csv", index=False)
    report = audit(folder, multi_label=";", features="patches", **FAST)
    assert report.data.labels.names == ("blue", "green", "red") and len(report.data) == 60
    assert np.array_equal(report.data.labels.answers[:, 2], ["red" in word for word in given])
    assert report.table().set_index("row").loc[wrong, "add_labels"] == "green"
    saved(report, tmp_path / "audit")
    for name in ("new.png", "other.PNG"):  # which nobody has labelled yet
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    notes = read_rows(folder, multi_label=";", features="patches").notes
    said = (
        "2 pictures were left out as not labelled, without an entry in metadata.csv: 'new.png',"
        " 'other.PNG'."
    )
    assert said in notes and "entry in" not in " ".join(report.data.notes)
    write_corrected(
        read_audit(tmp_path / "audit"), {wrong: "red;green", 0: "(none)"}, tmp_path / "new"
    )
    assert (tmp_path / "new" / "new.png").exists()
    after = pd.read_csv(tmp_path / "new" / "metadata.csv", keep_default_na=False)
    want = table.assign(label=labels)
    want.loc[0, "label"] = ""
    pd.testing.assert_frame_equal(after, want)
    assert (tmp_path / "new" / "0.png").read_bytes() == (folder / "0.png").read_bytes()


# --- decisions teach models -----------------------------------------------------------------------
def with_decisions(data: Any, rows: list[int], answers: Any) -> Any:
    """The data with decided sets of labels, as ``audit_again`` makes it."""
    words = [
        "|".join(name for name, yes in zip(NAMES, row, strict=True) if yes) or "(none)"
        for row in answers
    ]
    data = replace(data, labels=data.labels.with_words(words))
    decided = np.full(len(data), -1)
    decided[rows] = [data.classes.index(word) for word in words]
    return replace(data, decided=decided)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "network"},
        {"model": "both"},
        {"mode": "fast"},
        {"estimator": LogisticRegression()},
    ],
    ids=str,
)
def test_the_decision_on_a_row_has_no_influence_on_its_own_quality(options: dict[str, Any]) -> None:
    data, rows = read_rows(X, labels=GIVEN, classes=NAMES), list(range(0, 120, 2))
    changed = TRUE[rows]
    changed[0] = 1 - changed[0]
    quick: dict[str, Any] = {"epochs": 3, "folds": 3, **options}
    first, second, alone = (
        audit(with_decisions(data, *decided), **quick).label_issues
        for decided in ((rows, TRUE[rows]), (rows, changed), (rows[1:], TRUE[rows[1:]]))
    )
    for name in ("quality", "label_quality", "label_probs", "confidence", "margin"):
        values = [getattr(labels, name)[rows[0]] for labels in (first, second, alone)]
        assert np.array_equal(values[0], values[1]) and np.array_equal(values[0], values[2]), name
    assert (first.label_quality != second.label_quality).any(1).sum() > 20


def test_models_that_learned_decisions_rank_other_rows_better() -> None:
    noisy = np.where(np.random.default_rng(3).random(TRUE.shape) < 0.3, 1 - TRUE, TRUE)
    data, others, rows = (
        read_rows(X, labels=noisy, classes=NAMES),
        np.arange(80),
        list(range(80, 240)),
    )
    before = audit(data, **FAST).label_issues
    report = audit(with_decisions(data, rows, TRUE[rows]), **FAST)
    after, wrong = report.label_issues, (noisy != TRUE)[others].ravel()
    precision = [
        average_precision_score(wrong, -found.label_quality[others].ravel())
        for found in (before, after)
    ]
    assert precision[1] > precision[0] + 0.03
    assert np.array_equal(report.data.labels.answers, noisy == 1)
    known = (
        (noisy != TRUE)[rows].sum() + (1 - after.label_quality[others].astype(float)).sum()
    ) / TRUE.size
    assert after.noise_rate == pytest.approx(known, abs=1e-6)
    assert after.noise_interval[0] <= after.noise_rate <= after.noise_interval[1]


@pytest.mark.parametrize("form", ["words", "columns", "arrays"])
def test_an_audit_of_sets_is_done_again(form: str, tmp_path: Path) -> None:
    source, options = tmp_path / "songs.csv", {"label": "calm,sad,happy", "multi_label": "columns"}
    if form == "arrays":
        source, options = tmp_path / "x.npy", {"labels": str(tmp_path / "y.npy"), "classes": NAMES}
        np.save(source, X)
        np.save(tmp_path / "y.npy", GIVEN)
    elif form == "words":
        options = {"label": "tags", "multi_label": "|"}
        frame(tags=WORDS).to_csv(source, index=False)
    else:
        columns().to_csv(source, index=False)
    folder = saved(audit(source, **options, **FAST), tmp_path / "audit")
    true = [
        "|".join(name for name, yes in zip(NAMES, row, strict=True) if yes) or "(none)"
        for row in TRUE
    ]
    before = read_audit(folder).issues.set_index("row")
    rows = [*LOST, *ADDED, 50, 51]
    decide(folder, {row: true[row] for row in rows} | {52: "calm|new"})
    report = audit_again(folder)
    notes = " ".join(report.data.notes)
    kept = sum(
        {*true[row].split("|")} == {*before.loc[row, "given_label"].split("|")} for row in rows
    )
    assert f"with {len(rows)} decisions" in notes and f"and {len(rows) - kept} corrected" in notes
    assert "1 decision to exclude a row or name a new class" in notes
    after = read_audit(folder).issues.set_index("row")
    assert after["given_label"].sort_index().equals(before["given_label"].sort_index())
    assert read_audit(folder).config["again"] == 1
    audit_again(folder)  # the classes, which are words, may be others now
    assert read_audit(folder).config["again"] == 2


# --- trained again --------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", [None, LogisticRegression()])
def test_a_model_is_compared_before_and_after(estimator: Any, tmp_path: Path) -> None:
    """With the true labels of trusted rows; accuracies are exact matches, beside micro F1."""
    noisy = np.where(np.random.default_rng(5).random(TRUE.shape) < 0.3, 1 - TRUE, TRUE)
    trusted = np.arange(240) % 4 == 0
    noisy[trusted] = TRUE[trusted]
    source = tmp_path / "songs.csv"
    frame(
        **{name: noisy[:, k] for k, name in enumerate(NAMES)}, checked=trusted.astype(int)
    ).to_csv(source)
    folder = saved(audit(source, label=list(NAMES), trusted="checked", **FAST), tmp_path / "audit")
    word = {
        row: "|".join(name for name, yes in zip(NAMES, TRUE[row], strict=True) if yes)
        for row in range(240)
    }
    changes = {
        row: word[row] or "(none)" for row in np.flatnonzero((noisy != TRUE).any(1)).tolist()
    }
    planned = plan_retraining(read_audit(folder), changes, {}, estimator=estimator, epochs=None)
    assert np.array_equal(planned.held, trusted) and np.array_equal(planned.given, noisy)
    assert np.array_equal(planned.corrected, TRUE) and planned.classes == NAMES
    found = planned.run()
    assert (
        found.changed == int((noisy != TRUE)[~trusted].any(1).sum())
        and found.held_rows == trusted.sum()
    )
    assert found.f1 is not None and found.after > found.before and found.f1[1] > found.f1[0] + 0.05
    assert found.interval[0] <= found.after - found.before <= found.interval[1]
    if estimator is not None:  # against scikit-learn itself
        x = planned.x[~trusted]
        for when, labels in (("before", noisy), ("after", TRUE)):
            model = MultiOutputClassifier(LogisticRegression(random_state=0)).fit(
                x, labels[~trusted]
            )
            predicted = model.predict(planned.x[trusted])
            assert getattr(found, when) == pytest.approx(accuracy_score(TRUE[trusted], predicted))
            f1 = f1_score(TRUE[trusted], predicted, average="micro")
            assert found.f1[when == "after"] == pytest.approx(f1)


def test_a_new_label_is_learned_and_shown(tmp_path: Path) -> None:
    source = tmp_path / "songs.csv"
    frame(tags=WORDS).to_csv(source, index=False)
    folder = saved(audit(source, label="tags", multi_label="|", **FAST), tmp_path / "audit")
    decide(folder, {0: "calm|new", 1: "(none)"})
    planned = plan_retraining(read_audit(folder), {0: "calm|new", 1: "(none)"}, {})
    assert planned.classes == ("calm", "happy", "sad", "new")
    assert (
        planned.corrected[:2].tolist() == [[1, 0, 0, 1], [0] * 4] and not planned.given[:, 3].any()
    )
    command = [
        "apply",
        str(folder),
        "--out",
        str(tmp_path / "new.csv"),
        "--retrain",
        "--epochs",
        "2",
    ]
    shown = CliRunner().invoke(app, command).stdout
    assert "rows without an error" in shown and "micro F1" in shown
    assert "new class: 'new' in 1 row\n" in shown and shown.count("new class") == 1


# --- files, notes, refusals ---------------------------------------------------------------------
def test_the_summary_is_of_labels(report: Any, tmp_path: Path) -> None:
    summary = report.summary()
    by_name = {one["name"]: one for one in summary["classes"]}
    assert list(by_name) == list(NAMES)
    assert by_name["calm"]["rows"] == GIVEN[:, 0].sum()
    assert by_name["calm"]["missing"] >= 4 and by_name["sad"]["issues"] >= 4
    assert summary["label_issues"] == int(report.label_issues.label_is_issue.sum())
    folder = saved(report, tmp_path / "audit")
    again = read_audit(folder)
    assert len(again.issues) == 240 and {"add_labels", "remove_labels"} <= {*again.issues.columns}
    assert "3 labels" in repr(report) and "rows called wrong" in repr(report)
    assert report.figure("quality") is not None and "noiseproof" in report._repr_html_()


def test_one_row_is_called_wrong_in_the_singular() -> None:
    probs = np.where(TRUE, 0.95, 0.05)
    report = audit(read_rows(X, labels=GIVEN, classes=NAMES, pred_probs=probs), goal="budget=1")
    assert repr(report).startswith("Audit: 240 rows, 3 labels, 1 row called wrong\n")


def test_labels_of_hardly_any_row_are_not_judged() -> None:
    labels = np.concatenate([GIVEN, np.zeros((240, 1), int)], 1)
    labels[0, 3] = 1
    report = audit(X, labels=labels, classes=(*NAMES, "rare"), **FAST)
    assert (
        not report.label_issues.is_judged[3] and not report.label_issues.label_is_issue[:, 3].any()
    )
    assert "1 of 4 labels were not judged" in " ".join(report.summary()["notes"])


def test_what_does_not_work_is_refused(report: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one label per row with `annotators`"):
        read_rows(columns(), label=list(NAMES), annotators=["w"])
    with pytest.raises(ValueError, match="label columns 'angry'"):
        read_rows(columns(), label=["calm", "angry"])
    with pytest.raises(
        ValueError, match="1 or 0, yes or no, true or false in the label column 'w'"
    ):
        read_rows(columns(), label=["calm", "w"])
    with pytest.raises(ValueError, match="Is the separator right"):
        read_rows(frame(tags=[f"{i};a" for i in range(240)]), label="tags", multi_label="|")
    with pytest.raises(ValueError, match="two label columns or more"):
        read_rows(columns(), label=["calm"])
    for method in ("elr", "ln"):
        with pytest.raises(ValueError, match="the label's probability alone for each label"):
            audit(X, labels=GIVEN, method=method, model="network", folds=2, epochs=1)
    source = tmp_path / "songs.csv"
    columns().to_csv(source, index=False)
    folder = saved(audit(source, label=list(NAMES), **FAST), tmp_path / "audit")
    assert default_out(read_audit(folder)).suffix == ".csv"


def test_a_label_that_nothing_predicts_has_no_issues() -> None:
    random = np.random.default_rng(1)
    sure = np.where(random.uniform(size=(2000, 2)) < 0.1, 0.97, 0.02)
    answers = np.hstack(
        [random.uniform(size=(2000, 2)) < sure, random.uniform(size=(2000, 1)) < 0.5]
    )
    probs = np.hstack([sure, 0.5 + 0.05 * random.normal(size=(2000, 1))]).astype(np.float32)
    found = find_label_set_issues(answers.astype(int), probs)
    assert found.label_is_issue[:, 2].sum() == 0 < found.label_is_issue[:, :2].sum()


@pytest.mark.parametrize("certainty", [1.0, 0.99])
def test_labels_that_all_predictions_agree_with_are_no_issues(certainty: float) -> None:
    answers = np.random.default_rng(0).uniform(size=(200, 3)) < 0.3
    found = find_label_set_issues(
        answers.astype(int), np.where(answers, certainty, 1 - certainty).astype(np.float32)
    )
    assert not found.is_issue.any()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"file_name,label\na.png,cat\nb.png,dog,extra\n",
            "Expected 2 cells in every line .*, got 3 in line 3. Quote",
        ),
        (b"file_name,label\na.png,k\xf6ter\n", "in UTF-8, got .* save the file as UTF-8"),
    ],
)
def test_a_metadata_file_that_is_not_whole_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "metadata.csv").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        ImageFolder().parse(tmp_path)


@pytest.mark.parametrize(
    "content", ["name,note\na,b\n".encode("utf-16"), b"k\xf6rper\n", b'"' + b"x" * 200_000, b""]
)
def test_another_metadata_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.csv").write_bytes(content)
    assert ImageFolder().parse(tmp_path) is None


@pytest.mark.parametrize("rows", [[(0, 1), (1, 0)], [np.array([0, 1]), [True, 0.0]]], ids=str)
def test_rows_that_do_not_change_stay_the_same(rows: list[Any]) -> None:
    for container in (list, tuple):
        after = with_sets(container(rows), {0: "sad"}, "|", ["sad", "calm"])
        assert type(after) is container and after[1] is rows[1]
        assert after[0] == [1, 0] and all(type(value) is int for value in after[0])
