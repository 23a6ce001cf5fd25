"""Issue types on planted problems, which they must find, and on clean data, where they must find
none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noiseproof.audit import LabelReport, audit, corrected, read_audit, read_rows
from noiseproof.audit.apply import plan_fixes, write_corrected
from noiseproof.audit.decisions import Decision, DecisionLog
from noiseproof.audit.issues import ISSUES, Issue
from noiseproof.audit.plan import read_reviewed
from noiseproof.cli import app
from noiseproof.judge.evidence.gather import AuditEvidence, Surroundings
from noiseproof.judge.issues.mixed import _notations, _rewritten
from noiseproof.judge.labels import find_label_issues


def clean_table(rows: int = 300, seed: int = 0, classes: int = 2) -> pd.DataFrame:
    """Classes that overlap a little, three columns of numbers and one of words, in random order."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, rows)
    return pd.DataFrame(
        {
            "size": random.normal(size=rows) + 3 * y,
            "weight": random.normal(10, 2, rows),
            "noise": random.random(rows),
            "colour": random.choice(["red", "green", "blue"], rows),
            "kind": [f"kind {k}" for k in y],
        }
    )


def look_for(name: str, data: Any, probs: Any = None, **options: Any) -> Issue:
    """An issue type on data whose labels are judged by ``probs``, by default those of the given
    labels.
    """
    rows = data if not isinstance(data, pd.DataFrame) else read_rows(data, label="kind", **options)
    if probs is None:
        probs = np.where(
            np.eye(len(rows.classes))[rows.given] == 1, 0.9, 0.1 / max(1, len(rows.classes) - 1)
        )
    assert rows.x is not None
    evidence = AuditEvidence(rows, Surroundings.search(rows.x, rows.given, 0))
    kind: Any = ISSUES[name]
    assert kind.applies(rows)
    return kind.find(evidence, find_label_issues(rows.given, probs))  # type: ignore[no-any-return]


def audited(table: pd.DataFrame, folder: Path, **options: Any) -> tuple[LabelReport, Path]:
    """The quick audit of a table in a file, saved."""
    path = folder / "data.csv"
    table.to_csv(path, index=False)
    report = audit(path, label="kind", mode="fast", model="trees", device="cpu", **options)
    report.save(folder / "audit")
    return report, folder / "audit"


CLEAN: list[Callable[[], pd.DataFrame]] = [
    clean_table,
    lambda: clean_table(1000, 1, 5),
    lambda: clean_table(60, 2),
    lambda: clean_table(5000, 3, 3),
]


@pytest.mark.parametrize("table", CLEAN)
@pytest.mark.parametrize(
    "name",
    [
        "imbalance",
        "columns",
        "spelling",
        "leakage",
        "order",
        "mixed",
        "slice",
        "test-overlap",
        "drift",
    ],
)
def test_nothing_is_found_in_clean_tables(name: str, table: Callable[[], pd.DataFrame]) -> None:
    clean = table()
    options = (
        {"test": clean_table(400, 99, clean["kind"].nunique())}
        if name in ("test-overlap", "drift")
        else {}
    )
    assert not look_for(name, clean, **options).findings


def clean_texts(rows: int = 200, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    words = [
        "the",
        "film",
        "was",
        "good",
        "and",
        "we",
        "liked",
        "it",
        "but",
        "this",
        "is",
        "not",
        "for",
        "you",
        "with",
    ]
    return [" ".join(random.choice(words, 12)) for _ in range(rows)]


def test_rare_classes_are_found_and_those_that_are_learned_need_no_action() -> None:
    table = clean_table(1000)
    table.loc[:8, "kind"], table.loc[9:60, "kind"] = "nine rows", "fifty rows"
    found = look_for("imbalance", table)
    assert [one.about for one in found.findings] == ["class 'nine rows'"]  # 1000 / (10 · 4) = 25
    assert found.findings[0].score < 0.5  # predictions find all of them
    rows = read_rows(table, label="kind")
    probs = np.full((len(table), 4), 0.02)
    probs[
        np.arange(len(table)),
        np.where(rows.given == rows.classes.index("nine rows"), 1, rows.given),
    ] = 0.94
    found = look_for("imbalance", rows, probs)
    assert found.findings[0].score > 0.5 and "9 of 1000 rows" in found.findings[0].sentence
    assert "predictions find 0 of them" in found.findings[0].sentence


def test_empty_constant_and_incomplete_columns_are_found(tmp_path: Path) -> None:
    table = clean_table().assign(empty=None, one="yes", twice=7.0)
    # 10 of 300, which is little, and 290
    table.loc[:9, "weight"], table.loc[10:, "noise"] = np.nan, np.nan
    table.loc[4, "one"] = "no"  # no constant
    report, folder = audited(table, tmp_path)
    found = next(issue for issue in report.issues if issue.name == "columns")
    assert {one.about for one in found.findings} == {
        "column 'empty'",
        "column 'twice'",
        "column 'noise'",
    }
    assert all(one.score >= 0.5 for one in found.findings)
    gaps = next(one for one in found.findings if "noise" in one.about)
    assert gaps.sentence.startswith("96.7% of the cells") and gaps.picture is not None
    assert gaps.picture.bars[gaps.picture.marked[0]] == ("noise", 96.7)
    fix = plan_fixes(read_audit(folder), ["columns"])["columns"]
    assert fix.columns == {"empty", "twice"}  # what has gaps is left to its owner


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".jsonl", ".parquet", ".arrow"])
def test_a_copy_without_columns_has_all_other_cells(ending: str, tmp_path: Path) -> None:
    table = clean_table(40).round(6).assign(one=1)[["one", "size", "colour", "kind"]]
    table["colour"] = table["colour"].replace({"red": 're"d,\nrot', "blue": "bläu"})
    path = tmp_path / f"data{ending}"
    writers: dict[str, Callable[[], Any]] = {
        ".tsv": lambda: table.to_csv(path, sep="\t", index=False),
        ".jsonl": lambda: table.to_json(path, orient="records", lines=True, force_ascii=False),
        ".parquet": lambda: table.to_parquet(path, index=False),
        ".arrow": lambda: table.to_feather(path),
    }
    writers.get(ending, lambda: table.to_csv(path, index=False))()
    before = path.read_bytes()
    report = audit(path, label="kind", mode="fast", model="trees", device="cpu")
    report.save(tmp_path / "audit")
    saved = read_audit(tmp_path / "audit")
    fix = plan_fixes(saved, ["columns"])["columns"]
    out = write_corrected(saved, {3: "kind 0"}, tmp_path / f"out{ending}", left_out=[7], fix=fix)
    again = read_rows(out, label="kind").source.frame  # type: ignore[attr-defined]
    again = again.read() if hasattr(again, "read") else again
    expected = table.drop(columns="one")
    expected.loc[3, "kind"] = "kind 0"
    pd.testing.assert_frame_equal(
        again.astype(str),
        expected.drop(index=7).reset_index(drop=True).astype(str),
        check_dtype=False,
    )
    assert path.read_bytes() == before
    assert write_corrected(saved, {3: "kind 0"}, out, left_out=[7], fix=fix, same_ok=True) == out


def test_tables_in_memory_are_fixed_too(tmp_path: Path) -> None:
    table = clean_table().assign(one=1)
    audit(table, label="kind", mode="fast", model="trees", device="cpu").save(tmp_path / "audit")
    changed = corrected(tmp_path / "audit", table, fix=["columns"])
    pd.testing.assert_frame_equal(changed, table.drop(columns="one"))
    assert "one" in table
    with pytest.raises(
        ValueError, match="a Hugging Face data set to change its columns, got a dict"
    ):
        corrected(tmp_path / "audit", table.to_dict("list"), fix=["columns"])


def test_spellings_are_one_class_after_the_fix(tmp_path: Path) -> None:
    table = clean_table()
    table.loc[:3, "kind"], table.loc[4:5, "kind"] = "Kind 1", "kind 1 "
    report, folder = audited(table, tmp_path)
    found = next(issue for issue in report.issues if issue.name == "spelling")
    assert {one.about for one in found.findings} == {
        "class 'Kind 1'",
        "class 'kind 1 '",
    } and found.score >= 0.5
    saved = read_audit(folder)
    out = write_corrected(
        saved, {}, tmp_path / "out.csv", fix=plan_fixes(saved, ["spelling"])["spelling"]
    )
    assert {*pd.read_csv(out)["kind"]} == {"kind 0", "kind 1"}


def test_near_duplicates_keep_one_row_of_each_group_whose_labels_agree(tmp_path: Path) -> None:
    table = clean_table()
    copies = pd.concat([table.iloc[[5, 6, 7, 7]], table.iloc[[8]].assign(kind="kind 0")])
    table.loc[8, "kind"] = "kind 1"
    _, folder = audited(pd.concat([table, copies], ignore_index=True), tmp_path)
    saved = read_audit(folder)
    fix = plan_fixes(saved, ["near-duplicate"])["near-duplicate"]
    # copies of 5, 6 and 7; which label of row 8 is right is not known
    assert fix.left_out == {300, 301, 302, 303}
    assert len(pd.read_csv(write_corrected(saved, {}, tmp_path / "out.csv", fix=fix))) == 301


SAID = [
    "call me",
    "the same again",
    "it is broken",
    "where is it",
    "please refund me",
    "many thanks",
]


def tickets() -> pd.DataFrame:
    """Rows 300 and 301 are copies of 5 and 6 but for a new id; row 302 of 7 has another text, 303
    of 8 another word.
    """
    table = clean_table()
    table["message"] = [f"{SAID[k % 6]}, {k // 6} days" for k in range(300)]
    table["town"] = [f"town-{k // 2}" for k in range(300)]  # words that repeat
    table = pd.concat([table, table.iloc[[5, 6, 7, 8]]], ignore_index=True)
    table.loc[301, "message"] = str(table.loc[301, "message"]).upper()
    table.loc[302, "message"], table.loc[303, "town"] = "something else altogether", "elsewhere"
    return table.assign(ticket=[f"T-{k * 7919 % 1000:03}" for k in range(304)])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_that_differ_in_a_left_out_text_are_no_duplicates(tmp_path: Path, suffix: str) -> None:
    path, table = tmp_path / f"data{suffix}", tickets()
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    report = audit(path, label="kind", mode="fast", model="trees", device="cpu")
    assert "Column 'ticket' holds 304 different words and was left out." in report.data.notes
    assert any(
        note.startswith("Column 'message' holds 302 different texts") for note in report.data.notes
    )
    assert any("`--text message`" in note for note in report.data.notes)
    report.save(tmp_path / "audit")
    fix = plan_fixes(read_audit(tmp_path / "audit"), ["near-duplicate"])["near-duplicate"]
    assert fix.left_out == {300, 301}


def test_rows_that_differ_in_a_left_out_text_are_not_in_the_test_set() -> None:
    table = tickets()
    found = look_for("test-overlap", table.iloc[:300], test=table.iloc[300:])
    assert np.flatnonzero(found.mask).tolist() == [5, 6]


def test_near_duplicates_keep_the_row_that_was_decided_on(tmp_path: Path) -> None:
    table = clean_table()
    table.iloc[200], table.iloc[201], table.iloc[[202, 203]] = (
        table.iloc[0],
        table.iloc[1],
        table.iloc[2],
    )
    _, folder = audited(table, tmp_path)
    given = table["kind"].tolist()
    log = DecisionLog(folder / "decisions.csv")
    for row, choice, label in (
        (200, "other", "new"),
        (1, "exclude", ""),
        (202, "other", "new"),
        (203, "keep", given[203]),
    ):
        log.add(Decision(row, str(row), given[row], choice, label))  # type: ignore[arg-type]
    log.close()
    saved, reviewed = read_audit(folder), read_reviewed(folder, None)
    assert plan_fixes(saved, ["near-duplicate"])["near-duplicate"].left_out == {200, 201, 202, 203}
    fix = plan_fixes(saved, ["near-duplicate"], reviewed.decisions)["near-duplicate"]
    assert fix.left_out == {0, 1, 2}  # 202 and 203 were decided differently: both stay
    result = CliRunner().invoke(
        app, ["apply", str(folder), "--fix", "near-duplicate", "--out", str(tmp_path / "o.csv")]
    )
    assert result.exit_code == 0, result.output
    assert (pd.read_csv(tmp_path / "o.csv")["kind"] == "new").sum() == 2


def test_a_fix_of_what_was_not_looked_for_is_refused(tmp_path: Path) -> None:
    _, folder = audited(clean_table(60), tmp_path)
    for name in ("text", "picture", "test-overlap"):
        with pytest.raises(ValueError, match=f"Expected an audit that looked for '{name}'"):
            plan_fixes(read_audit(folder), [name])


def test_a_type_without_a_fix_is_refused_with_what_to_do(tmp_path: Path) -> None:
    _, folder = audited(clean_table(), tmp_path)
    with pytest.raises(
        ValueError, match="nothing can be done about 'imbalance' by a command. Collect more rows"
    ):
        plan_fixes(read_audit(folder), ["imbalance"])
    with pytest.raises(
        ValueError, match="Expected issue types with a fix, columns, .*, got 'speling'"
    ):
        plan_fixes(read_audit(folder), ["speling"])


# --- leakage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda y, r: y + 10,  # a code of the label
        lambda y, r: np.where(r.random(len(y)) < 0.99, y, 1 - y).astype(
            str
        ),  # one in a hundred wrong
        # a number made from it
        lambda y, r: np.where(y == 1, r.normal(5, 1, len(y)), r.normal(-5, 1, len(y))),
        lambda y, r: np.where(y == 1, np.nan, r.random(len(y))),  # gaps of one class
    ],
)
def test_a_column_made_from_the_label_is_found(make: Callable[..., Any]) -> None:
    table = clean_table(500, 5)
    y = (table["kind"] == "kind 1").to_numpy(int)
    leaking = table.assign(late=make(y, np.random.default_rng(0)))
    found = look_for("leakage", leaking)
    assert [one.columns for one in found.findings] == [("late",)] and found.score >= 0.95


def test_columns_that_number_or_name_the_rows_are_found() -> None:
    table = clean_table(300).assign(
        number=np.arange(300) + 7,
        customer_id=np.random.default_rng(0).permutation(9000)[:300],
        code=[f"A-{k:04}" for k in np.random.default_rng(1).permutation(300)],
        # differs in every row, and is no identifier
        income=np.random.default_rng(2).permutation(90_000)[:300],
    )
    found = look_for("leakage", table)
    assert {one.columns[0] for one in found.findings} == {"number", "customer_id", "code"}
    assert not look_for("order", table).findings  # that numbers are in order is no news


def test_a_leaking_column_is_left_out_by_the_fix(tmp_path: Path) -> None:
    table = clean_table()
    table["late"] = np.where(np.arange(300) % 100 == 0, "?", table["kind"].str.upper())
    _, folder = audited(table, tmp_path)
    assert plan_fixes(read_audit(folder), ["leakage"])["leakage"].columns == {"late"}


def test_the_verdict_of_models_that_saw_a_leaking_column_is_not_trusted(tmp_path: Path) -> None:
    table = clean_table(400).sort_values("kind", ignore_index=True)
    y = (table["kind"] == "kind 1").to_numpy(int)
    # one in two hundred wrong
    late, code = (np.where(np.arange(400) % 200 == k, 1 - y, y) for k in (3, 5))
    table = table.assign(
        customer_id=np.arange(400) + 70, late=late, code=[f"code {k}" for k in code]
    )
    report, folder = audited(table, tmp_path, ignore=["noise"])
    words = (
        "Not to be trusted: `late`, `code` each predict the label almost perfectly. "
        "Audit again without them: --ignore noise,late,code. With them, "
    )
    for text in (read_audit(folder).summary["verdict"], repr(report).splitlines()[1]):
        assert text.startswith(words)
    assert words in report._repr_html_()
    assert (
        report.label_issues.looks_fine and read_audit(folder).summary["labels_look_fine"] is False
    )
    found = next(issue for issue in report.issues if issue.name == "leakage")
    # which no model saw
    assert [one.columns[0] for one in found.findings] == ["late", "code", "customer_id"]
    assert found.headline(report.summary()).endswith("Also column 'code', column 'customer_id'.")
    again = audit(
        tmp_path / "data.csv",
        label="kind",
        ignore=["noise", "late", "code"],
        mode="fast",
        model="trees",
        device="cpu",
    )
    assert "trusted" not in again.summary()["verdict"]


def test_arrays_with_a_leaking_column_and_given_predictions_say_so() -> None:
    table = clean_table(400)
    y = (table["kind"] == "kind 1").to_numpy(int)
    late = np.where(np.arange(400) % 200 == 3, 1 - y, y)
    x = np.column_stack([table[["size", "weight"]], late])
    report = audit({"x": x, "labels": table["kind"]}, mode="fast", model="trees", device="cpu")
    words = (
        "Not to be trusted: `2` alone predicts the label almost perfectly. Audit again without it:"
        " leave it out of "
    )
    assert report.summary()["verdict"].startswith(
        f"{words}the array. With it, the labels look fine"
    )
    assert report.summary()["labels_look_fine"] is False
    probs = np.where(y[:, None] == [0, 1], 0.99, 0.01)
    fine, wrong = (
        audit(labels=np.where(np.arange(400) % 400 < k, 1 - y, y), pred_probs=probs).summary()
        for k in (1, 90)
    )
    note = "wrong labels look right if their model saw a column that was made from the label."
    assert fine["labels_look_fine"] and fine["notes"][-1].endswith(note)
    assert not any(text.endswith(note) for text in wrong["notes"])


# --- order and drift: alarms as often as promised, in simulation ----------------------------------


def test_false_alarms_are_as_rare_as_promised() -> None:
    alarms = {"order": 0, "drift": 0}
    for seed in range(150):
        random = np.random.default_rng(500 + seed)
        table, test = (
            clean_table(rows, seed=s, classes=3).assign(
                heavy=random.exponential(size=rows) ** 3,
                tied=random.integers(0, 3, rows),
                rare=random.random(rows) < 0.1,
            )
            for rows, s in ((150, seed), (120, 10_000 + seed))
        )
        # which look neither at neighbours nor at the judgement of the labels
        evidence = AuditEvidence(read_rows(table, label="kind", test=test), None)  # type: ignore[arg-type]
        for name in alarms:
            alarms[name] += bool(ISSUES[name].find(evidence, None).findings)  # type: ignore[attr-defined]
    # At 1 % each, more than 6 of 150 have a probability of 0.001.
    assert max(alarms.values()) <= 6


def test_sorted_drifting_and_serial_columns_are_found() -> None:
    table = clean_table(600, classes=3)
    found = look_for("order", table.sort_values("kind"))
    # sizes follow from that
    assert [one.about for one in found.findings] == ["the label"] and found.score == 1.0
    drifting = table.assign(weight=table["weight"] + np.linspace(0, 3, 600))
    assert [one.about for one in look_for("order", drifting).findings] == ["weight"]
    smooth = np.convolve(np.random.default_rng(0).normal(size=604), np.ones(5), "valid")
    assert look_for("order", table.assign(noise=smooth)).score > 0.5
    blocks = table.assign(colour=np.repeat(["red", "green", "blue"], 200))
    assert [one.about for one in look_for("order", blocks).findings] == ["colour"]


def test_rows_are_ordered_by_time_where_there_is_one() -> None:
    table = clean_table(600).assign(day=np.random.default_rng(0).permutation(600))
    table["weight"] += table["day"] / 150
    found = look_for("order", table, time="day")
    assert [one.about for one in found.findings] == [
        "weight"
    ] and "depends on time" in found.findings[0].sentence
    assert not look_for("order", table.drop(columns="day")).findings


def test_labels_of_the_test_set_are_found_among_the_classes() -> None:
    table, test = (
        clean_table(300, seed).assign(kind=lambda t: (t["kind"] == "kind 1") * 1) for seed in (1, 2)
    )
    # 1.0 and 1 are one class
    assert not look_for("drift", table.astype({"kind": float}), test=test).findings
    found = look_for(
        "drift", table, test=test.assign(kind=np.where(np.arange(300) % 2, "new", test["kind"]))
    )
    assert [one.about for one in found.findings] == ["the label"]
    assert found.findings[0].picture is not None
    assert any(
        "a class that the data does not" in name for name, _ in found.findings[0].picture.bars
    )


def test_a_test_set_of_another_distribution_is_found() -> None:
    table, test = clean_table(500), clean_table(300, seed=7)
    assert [
        one.about
        for one in look_for("drift", table, test=test.assign(weight=test["weight"] + 2)).findings
    ] == ["weight"]
    reds = test.assign(colour=np.where(np.arange(300) % 2, test["colour"], "red"))
    assert [one.about for one in look_for("drift", table, test=reds).findings] == ["colour"]
    few = (
        test[(test["kind"] == "kind 0") | (np.arange(300) % 4 == 0)]
        .drop(columns="size")
        .assign(size=0.0)
    )
    found = look_for("drift", table, test=few)
    assert {one.about for one in found.findings} == {"the label", "size"} and found.score >= 0.5


def test_a_word_among_the_numbers_of_the_test_set_is_no_drift() -> None:
    random = np.random.default_rng(0)
    table, test = (
        clean_table(n, n).assign(count=random.integers(0, 5, n).astype(float)) for n in (500, 300)
    )
    table.loc[0, "count"] = np.nan
    one_word = test.assign(count=["?", *test["count"].astype(int).astype(str)[1:]])
    assert not look_for("drift", table, test=one_word).findings
    more = test.assign(count=["?", *(test["count"].astype(int) + 2).astype(str)[1:]])
    assert [one.about for one in look_for("drift", table, test=more).findings] == ["count"]
    words = test.assign(count=random.choice(["few", "many"], 300))
    assert [one.about for one in look_for("drift", table, test=words).findings] == ["count"]


def test_all_equal_rows_of_a_test_row_are_marked() -> None:
    """Without all of them, a model would still have seen the test row."""
    table = clean_table(300)
    table = pd.concat([table, table.iloc[[10, 10, 20]]], ignore_index=True)
    found = look_for("test-overlap", table, test=pd.concat([clean_table(100, 7), table.iloc[[10]]]))
    assert np.flatnonzero(found.mask).tolist() == [10, 300, 301]


def test_a_sample_of_the_test_set_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noiseproof.judge.issues.overlap.MOST_PAIRS", 400 * 30)
    table = clean_table(400)
    found = look_for(
        "test-overlap", table, test=pd.concat([clean_table(100, 7), table.iloc[[10, 20]]])
    )
    assert "2 of 102 rows" in found.findings[0].sentence
    # 30, and the 2 equal ones
    assert found.findings[0].sentence.endswith("looked for among 32 of them.")


def test_rows_of_the_test_set_are_found_and_left_out(tmp_path: Path) -> None:
    table, test = clean_table(400), clean_table(100, seed=7)
    near = table.iloc[[3, 50]].assign(weight=lambda t: t["weight"] + 1e-4, kind="kind 0")
    table.loc[[3, 50], "kind"] = "kind 1"
    path = tmp_path / "test.csv"
    pd.concat([test, table.iloc[[10, 20]], near]).to_csv(path, index=False)
    report, folder = audited(table, tmp_path, test=path)
    found = next(issue for issue in report.issues if issue.name == "test-overlap")
    assert np.flatnonzero(found.mask).tolist() == [3, 10, 20, 50]
    assert found.findings[0].sentence.startswith(
        "4 of 104 rows of the test set (3.8%) are in the data, too, 2 of them"
    )
    assert "2 have another label there" in found.findings[0].sentence
    assert plan_fixes(read_audit(folder), ["test-overlap"])["test-overlap"].left_out == {
        3,
        10,
        20,
        50,
    }


def test_a_test_set_needs_the_columns_that_are_compared_alone(tmp_path: Path) -> None:
    table = clean_table(120).assign(checked=np.arange(120) % 9 == 0, text=clean_texts(120))
    test = clean_table(60, 5).assign(text=clean_texts(60, 1))
    assert not look_for("drift", table.drop(columns="text"), trusted="checked", test=test).findings
    texts = read_rows(
        table, label="kind", text="text", features="tfidf", test=test[["kind", "text"]]
    )
    assert (
        texts.test is not None
        and texts.x is not None
        and texts.test.x.shape == (60, texts.x.shape[1])
    )
    with pytest.raises(ValueError, match="in `test`, 'weight', 'checked' are not there"):
        read_rows(table, label="kind", test=test.drop(columns="weight"))


def test_a_type_that_fails_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(ISSUES["slice"], "find", fail)
    report = audit(clean_table(), label="kind", mode="fast", model="trees", device="cpu")
    assert "slice could not be looked for: RuntimeError: no memory." in caplog.text
    assert {"order", "leakage"} <= {
        issue.name for issue in report.issues
    } and "slice" not in report.summary()


# --- notations and units --------------------------------------------------------------------------


def test_commas_between_thousands_are_removed_and_no_number_is_emptied(tmp_path: Path) -> None:
    number = np.arange(300) + 100
    number[::20] += 1000
    grouped = [f"{n:,}" for n in number]
    table = clean_table(300).assign(
        sales=grouped,
        visits=["none" if k == 7 else word for k, word in enumerate(grouped)],
        price=["1,500" if k == 0 else f"0,{k}" if k % 2 else f"{k}.5" for k in range(300)],
    )
    report, folder = audited(table, tmp_path)
    found = {
        one.columns[0]: one.sentence
        for issue in report.issues
        if issue.name == "mixed"
        for one in issue.findings
    }
    assert "15 numbers with commas between thousands, such as '1,100', beside 285" in found["sales"]
    assert "1 word among 299 numbers" in found["visits"]
    saved = read_audit(folder)
    fixed = pd.read_csv(
        write_corrected(saved, {}, tmp_path / "out.csv", fix=plan_fixes(saved, ["mixed"])["mixed"])
    )
    assert fixed["sales"].tolist() == number.tolist()
    np.testing.assert_array_equal(fixed["visits"], np.where(np.arange(300) == 7, np.nan, number))
    assert fixed["price"].tolist()[:3] == ["1,500", "0.1", "2.5"]  # 1500 or 1.5: left to its owner


def test_notations_units_words_and_codes_are_found_and_fixed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = clean_table(300)
    grams = np.where(random.random(300) < 0.2, 1000, 1) * random.uniform(40, 90, 300).round(1)
    decimal = [
        f"{value:.2f}".replace(".", "," if k % 7 == 0 else ".")
        for k, value in enumerate(random.random(300) * 9)
    ]
    words = [
        ("unknown" if k % 30 == 0 else f"{value:.1f}")
        for k, value in enumerate(random.random(300) * 50)
    ]
    coded = np.where(np.arange(300) % 40 == 0, -999, random.normal(20, 5, 300).round(2))
    tall = [
        f"{value:.0f} {'in' if k % 5 == 0 else 'cm'}"
        for k, value in enumerate(random.uniform(60, 200, 300))
    ]
    table = table.assign(grams=grams, price=decimal, age=words, degrees=coded, tall=tall)
    report, folder = audited(table, tmp_path)
    found = next(issue for issue in report.issues if issue.name == "mixed")
    assert {one.columns[0] for one in found.findings} == {
        "grams",
        "price",
        "age",
        "degrees",
        "tall",
    }
    saved = read_audit(folder)
    fix = plan_fixes(saved, ["mixed"])["mixed"]
    assert {*fix.cells} == {"grams", "price", "age", "degrees"}  # inches are left to their owner
    fixed = pd.read_csv(write_corrected(saved, {}, tmp_path / "out.csv", fix=fix))
    np.testing.assert_allclose(fixed["grams"], np.where(grams > 1000, grams / 1000, grams))
    np.testing.assert_allclose(fixed["price"], [float(word.replace(",", ".")) for word in decimal])
    np.testing.assert_allclose(
        fixed["age"], [np.nan if word == "unknown" else float(word) for word in words]
    )
    np.testing.assert_allclose(fixed["degrees"], np.where(coded == -999, np.nan, coded))
    pd.testing.assert_frame_equal(
        fixed[["size", "tall", "kind"]],
        pd.read_csv(tmp_path / "data.csv")[["size", "tall", "kind"]],
    )


def test_every_finding_of_a_column_is_fixed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    true = random.uniform(40, 90, 300).round(1)
    rare, other = np.arange(300) % 30 == 0, np.arange(300) % 5 == 1
    grams = np.where(rare, -999, np.where(other, 1000, 1) * true)
    price = np.where(
        rare,
        "unknown",
        [f"{v}".replace(".", "," if o else ".") for v, o in zip(true, other, strict=True)],
    )
    sales = np.where(rare, "none", [f"{round(20 * v):,}" for v in true])
    weight = [
        f"{v / 10:.3f}".replace(".", "," if o else ".") for v, o in zip(true, other, strict=True)
    ]  # 4,321 is 4.321
    turnover = [
        f"{20 * v:,.2f}".translate(str.maketrans(",.", ".,")) if o else f"{20 * v:.2f}"
        for v, o in zip(true, other, strict=True)
    ]  # 1.234,50 beside 1234.50
    table = clean_table(300).assign(
        grams=grams, price=price, sales=sales, weight=weight, turnover=turnover
    )
    report, folder = audited(table, tmp_path)
    found = [
        one.columns[0] for issue in report.issues if issue.name == "mixed" for one in issue.findings
    ]
    assert {name: found.count(name) for name in found} == {
        "grams": 2,
        "price": 2,
        "sales": 2,
        "weight": 1,
        "turnover": 1,
    }
    saved = read_audit(folder)
    fixed = pd.read_csv(
        write_corrected(saved, {}, tmp_path / "out.csv", fix=plan_fixes(saved, ["mixed"])["mixed"])
    )
    np.testing.assert_allclose(fixed["grams"], np.where(rare, np.nan, true))
    np.testing.assert_allclose(fixed["price"], np.where(rare, np.nan, true))
    np.testing.assert_allclose(fixed["sales"], np.where(rare, np.nan, (20 * true).round()))
    np.testing.assert_allclose(fixed["weight"], true / 10, atol=5e-4)
    np.testing.assert_allclose(fixed["turnover"], 20 * true)
    assert not look_for("mixed", fixed).findings


def test_a_comma_that_may_mean_either_is_named_and_left_to_its_owner(tmp_path: Path) -> None:
    # medians 152 and 456: 152.5 or 152500?
    either = [f"{k},500" if k % 4 == 0 else f"{k * 3}" for k in range(2, 302)]
    # 4.5 or 4500 beside 150
    numbers = [f"{30 * (k % 9 + 1)}" if k % 4 else f"{k % 7 + 1},500" for k in range(300)]
    report, folder = audited(clean_table(300).assign(either=either, numbers=numbers), tmp_path)
    found = {
        one.columns[0]: one.sentence
        for issue in report.issues
        if issue.name == "mixed"
        for one in issue.findings
    }
    assert (
        "decimal comma" in found["either"]
        and "between thousands or before decimals" in found["numbers"]
    )
    saved = read_audit(folder)
    assert {*plan_fixes(saved, ["mixed"])["mixed"].cells} == {"either"}


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).lognormal(0, 3, 400),
        np.random.default_rng(1).exponential(size=400) ** 4,
        np.repeat([1, 10, 100, 1000], 100),
        np.arange(400),
        np.random.default_rng(2).choice([0, 99, 1, 2], 400),
        np.concatenate(
            [
                np.random.default_rng(3).normal(5, 1, 300),
                np.random.default_rng(4).normal(5000, 9, 100),
            ]
        ),
    ],
)
def test_skewed_and_grouped_numbers_are_no_units(values: Any) -> None:
    assert not look_for("mixed", clean_table(400).assign(value=values)).findings


# --- slices ---------------------------------------------------------------------------------------


def noisy_predictions(table: pd.DataFrame, wrong: Any, seed: int) -> tuple[Any, Any]:
    rows = read_rows(table, label="kind")
    flips = np.random.default_rng(seed).random(len(table)) < wrong
    guess = np.where(flips, 1 - rows.given, rows.given)
    return rows, np.where(np.eye(2)[guess] == 1, 0.9, 0.1)


def test_slices_where_predictions_fail_are_found() -> None:
    table = clean_table(3000)
    bad = (table["colour"] == "red") & (table["weight"] > 11)
    found = look_for("slice", *noisy_predictions(table, np.where(bad, 0.5, 0.05), 1))
    assert len(found.findings) >= 1 and found.score >= 0.5
    rows = {row for one in found.findings for row in one.rows}
    assert np.mean([bad[row] for row in rows]) > 0.8 and len(rows) > 0.6 * bad.sum()
    assert (
        "colour is 'red'" in found.findings[0].sentence
        and "weight > 1" in found.findings[0].sentence
    )


def test_no_slice_is_found_where_errors_are_everywhere() -> None:
    found = [
        look_for("slice", *noisy_predictions(clean_table(600, seed), 0.2, seed)).findings
        for seed in range(60)
    ]
    assert sum(map(bool, found)) <= 3  # at 1 % each, more than 3 of 60 have a probability of 0.003


# --- texts and pictures ---------------------------------------------------------------------------

ODD_TEXTS = {
    "garbled": [
        "cafÃ© crÃ¨me trÃ¨s bon",
        "\ufffd\ufffd\ufffd nothing \ufffd\ufffd",
        "x8%$#@!!~~^^&&**((__++{}|",
        *(
            text.encode("utf-8").decode("latin-1")
            for text in ("это хороший фильм", "πολύ καλή ταινία", "příliš žlutý")
        ),
        "asdkfjhgkwrtpqzxcvbnmlkjhgfdsrtpwqkzxcvbnm qwrtpsdfghjk",
    ],
    "foreign": [
        "der Film war nicht gut und die Musik ist auch nicht für mich",
        "la película no es muy buena pero el final me gusta",
        "это очень хороший фильм для всей семьи",
        "この映画はとても良かったと思います、また見たいです",
        "le film est dans une salle avec des gens qui ne sont pas là",
    ],
}


def audited_texts(texts: list[str]) -> Issue:
    table = pd.DataFrame({"text": texts, "kind": [f"kind {k % 2}" for k in range(len(texts))]})
    rows = read_rows(table, label="kind", text="text", features="tfidf")
    return look_for("text", rows)


@pytest.mark.parametrize("kind", ODD_TEXTS)
def test_garbled_and_foreign_texts_are_found(kind: str) -> None:
    found = audited_texts([*clean_texts(), *ODD_TEXTS[kind]])
    assert np.flatnonzero(found.mask).tolist() == [*range(200, 200 + len(ODD_TEXTS[kind]))]
    assert len(found.findings) == 1 and found.score >= 0.5


def test_plain_texts_are_neither_garbled_nor_foreign() -> None:
    usual = [
        "See https://example.org/a/very/long/path/that/goes/on-and-on?with=arguments",
        "OK",
        "10/10!!! :-)",
        "C'est la vie, as they say in the film, and it was good",
        "naïve café owners of São Paulo, the best of all",
        "Ångström, Ärger, Ñandú and « Île »: ÅÄÎ» are what names of the old maps have",
        "The U.S. vs. the E.U. (2001), cf. p. 12",
        "WTF LOL",
        "def f(x): return x ** 2  # it is the code for you",
    ]
    assert not audited_texts([*clean_texts(), *usual]).findings


@pytest.mark.parametrize(
    "text",
    [
        "这部电影非常好看演员的表演也很精彩故事情节引人入胜我会推荐给所有的朋友们去电影院观看它",
        "この映画はとても面白かったので友達みんなに勧めたいと思いますまた見に行きたいです",
        "ภาพยนตร์เรื่องนี้สนุกมากและนักแสดงเล่นได้ดีมากฉันอยากแนะนำให้เพื่อนทุกคนไปดู",
    ],
)
def test_texts_without_spaces_are_not_garbled(text: str) -> None:
    assert not audited_texts([f"{text} {k}" for k in range(60)]).findings
    assert np.flatnonzero(
        audited_texts([*[f"{text} {k}" for k in range(60)], "xkcd" * 12]).mask
    ).tolist() == [60]


def test_a_japanese_text_of_many_kanji_is_not_foreign() -> None:
    usual = [f"この映画はとても面白かったので友達みんなに勧めたいと思います {k}" for k in range(60)]
    kanji = "東京都千代田区霞が関一丁目経済産業省特許庁審査第一部"
    assert not audited_texts(
        [*usual, kanji, "スーパーマーケットノアイスクリームハサイコー"]
    ).findings


def test_empty_texts_are_counted() -> None:
    found = audited_texts([*clean_texts(), "", "  "])
    assert [one.sentence for one in found.findings] == [
        "2 texts without words, left out of the audit."
    ]


def picture_folder(folder: Path, odd: dict[str, Any]) -> Path:
    """60 sharp pictures of 144 × 108 pixels in two classes, and ``odd`` ones in the first."""
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(60):
        path = folder / f"kind {i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (9, 12, 3)).astype(np.uint8).repeat(12, 0).repeat(12, 1)
        Image.fromarray(coarse).save(path)
    for name, pixels in odd.items():
        Image.fromarray(np.asarray(pixels).clip(0, 255).astype(np.uint8)).save(
            folder / "kind 0" / f"{name}.png"
        )
    return folder


def test_blank_dark_bright_blurred_and_odd_sized_pictures_are_found(tmp_path: Path) -> None:
    from PIL import Image, ImageFilter

    random = np.random.default_rng(1)
    usual = random.integers(0, 256, (9, 12, 3)).repeat(12, 0).repeat(12, 1)
    blurred = Image.fromarray(usual.astype(np.uint8)).filter(ImageFilter.GaussianBlur(9))
    odd = {
        "blank": np.full((108, 144, 3), 90),
        "dark": usual * 0.12,
        "bright": 225 + usual * 0.11,
        "blurred": blurred,
        "small": usual[::8, ::8],
        "long": np.tile(usual, (1, 4, 1)),
    }
    found = look_for(
        "picture", read_rows(picture_folder(tmp_path / "pictures", odd), features="pixels")
    )
    rows = read_rows(tmp_path / "pictures", features="pixels")
    assert {Path(rows.names[i]).stem for i in np.flatnonzero(found.mask)} == {*odd}
    assert {one.about for one in found.findings} == {
        f"{kind} pictures" for kind in ("blank", "dark", "bright", "blurred", "of an odd size")
    }


def test_usual_pictures_have_no_issue(tmp_path: Path) -> None:
    assert not look_for(
        "picture", read_rows(picture_folder(tmp_path, {}), features="pixels")
    ).findings


def test_numbers_in_notations_that_are_not_known_are_not_emptied() -> None:
    """Grouped by spaces, apostrophes or points; beside 1.234,56 the cell 1.234 is a thousand and
    more.
    """
    words = [
        *["7,5"] * 20,
        *["8.5"] * 20,
        "1 234,56",
        "1.234.567",
        "1’234.5",
        "n/a",
        "1.234,56",
        "1.234",
    ]
    commas, others = _notations("price", words)
    assert others.details == {"words": 4}
    details = commas.details | others.details
    kept = {word: _rewritten(word, details) for word in words[40:]}
    assert list(kept.values()) == ["1 234,56", "1234567", "1’234.5", "", "1234.56", "1234"]
