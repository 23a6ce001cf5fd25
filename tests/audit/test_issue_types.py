"""Issue types on planted problems, which they must find, and on clean data, where they must find none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import LabelReport, audit, corrected, read_audit, read_rows
from noiseproof.audit.apply import plan_fixes, write_corrected
from noiseproof.audit.evidence.gather import AuditEvidence, Surroundings
from noiseproof.audit.issues import ISSUES, Issue
from noiseproof.audit.labels import find_label_issues


def clean_table(rows: int = 300, seed: int = 0, classes: int = 2) -> pd.DataFrame:
    """Classes that overlap a little, three columns of numbers and one of words, in random order."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, rows)
    return pd.DataFrame({
        "size": random.normal(size=rows) + 3 * y, "weight": random.normal(10, 2, rows), "noise": random.random(rows),
        "colour": random.choice(["red", "green", "blue"], rows), "kind": [f"kind {k}" for k in y],
    })  # fmt: skip


def look_for(name: str, data: Any, probs: Any = None, **options: Any) -> Issue:
    """An issue type on data whose labels are judged by ``probs``, by default those of the given labels."""
    rows = data if not isinstance(data, pd.DataFrame) else read_rows(data, label="kind", **options)
    if probs is None:
        probs = np.where(np.eye(len(rows.classes))[rows.given] == 1, 0.9, 0.1 / max(1, len(rows.classes) - 1))
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
    clean_table, lambda: clean_table(1000, 1, 5), lambda: clean_table(60, 2), lambda: clean_table(5000, 3, 3),
]  # fmt: skip


@pytest.mark.parametrize("table", CLEAN)
@pytest.mark.parametrize("name", ["imbalance", "columns", "spelling"])
def test_nothing_is_found_in_clean_tables(name: str, table: Callable[[], pd.DataFrame]) -> None:
    assert not look_for(name, table()).findings


def test_rare_classes_are_found_and_those_that_are_learned_need_no_action() -> None:
    table = clean_table(1000)
    table.loc[:8, "kind"], table.loc[9:60, "kind"] = "nine rows", "fifty rows"
    found = look_for("imbalance", table)
    assert [one.about for one in found.findings] == ["class 'nine rows'"]  # 1000 / (10 · 4) = 25
    assert found.findings[0].score < 0.5  # predictions find all of them
    rows = read_rows(table, label="kind")
    probs = np.full((len(table), 4), 0.02)
    probs[np.arange(len(table)), np.where(rows.given == rows.classes.index("nine rows"), 1, rows.given)] = 0.94
    found = look_for("imbalance", rows, probs)
    assert found.findings[0].score > 0.5 and "9 of 1000 rows" in found.findings[0].sentence
    assert "predictions find 0 of them" in found.findings[0].sentence


def test_empty_constant_and_incomplete_columns_are_found(tmp_path: Path) -> None:
    table = clean_table().assign(empty=None, one="yes", twice=7.0)
    table.loc[:9, "weight"], table.loc[10:, "noise"] = np.nan, np.nan  # 10 of 300, which is little, and 290
    table.loc[4, "one"] = "no"  # no constant
    report, folder = audited(table, tmp_path)
    found = next(issue for issue in report.issues if issue.name == "columns")
    assert {one.about for one in found.findings} == {"column 'empty'", "column 'twice'", "column 'noise'"}
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
        ".parquet": lambda: table.to_parquet(path, index=False), ".arrow": lambda: table.to_feather(path),
    }  # fmt: skip
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
        again.astype(str), expected.drop(index=7).reset_index(drop=True).astype(str), check_dtype=False
    )
    assert path.read_bytes() == before
    assert write_corrected(saved, {3: "kind 0"}, out, left_out=[7], fix=fix, same_ok=True) == out


def test_tables_in_memory_are_fixed_too(tmp_path: Path) -> None:
    table = clean_table().assign(one=1)
    audit(table, label="kind", mode="fast", model="trees", device="cpu").save(tmp_path / "audit")
    changed = corrected(tmp_path / "audit", table, fix=["columns"])
    pd.testing.assert_frame_equal(changed, table.drop(columns="one"))
    assert "one" in table


def test_spellings_are_one_class_after_the_fix(tmp_path: Path) -> None:
    table = clean_table()
    table.loc[:3, "kind"], table.loc[4:5, "kind"] = "Kind 1", "kind 1 "
    report, folder = audited(table, tmp_path)
    found = next(issue for issue in report.issues if issue.name == "spelling")
    assert {one.about for one in found.findings} == {"class 'Kind 1'", "class 'kind 1 '"} and found.score >= 0.5
    saved = read_audit(folder)
    out = write_corrected(saved, {}, tmp_path / "out.csv", fix=plan_fixes(saved, ["spelling"])["spelling"])
    assert {*pd.read_csv(out)["kind"]} == {"kind 0", "kind 1"}


def test_near_duplicates_keep_one_row_of_each_group_whose_labels_agree(tmp_path: Path) -> None:
    table = clean_table()
    copies = pd.concat([table.iloc[[5, 6, 7, 7]], table.iloc[[8]].assign(kind="kind 0")])
    table.loc[8, "kind"] = "kind 1"
    _, folder = audited(pd.concat([table, copies], ignore_index=True), tmp_path)
    saved = read_audit(folder)
    fix = plan_fixes(saved, ["near-duplicate"])["near-duplicate"]
    assert fix.left_out == {300, 301, 302, 303}  # copies of 5, 6 and 7; which label of row 8 is right is not known
    assert len(pd.read_csv(write_corrected(saved, {}, tmp_path / "out.csv", fix=fix))) == 301


def test_a_type_without_a_fix_is_refused_with_what_to_do(tmp_path: Path) -> None:
    _, folder = audited(clean_table(), tmp_path)
    with pytest.raises(ValueError, match="nothing can be done about 'imbalance' by a command. Collect more rows"):
        plan_fixes(read_audit(folder), ["imbalance"])
    with pytest.raises(ValueError, match="Expected issue types with a fix, columns, .*, got 'speling'"):
        plan_fixes(read_audit(folder), ["speling"])
