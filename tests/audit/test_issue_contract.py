"""What every registered issue type must do; a new one is found and tested without editing this
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image

from noiseproof.audit import LabelReport, audit, read_rows
from noiseproof.audit.files import COLUMNS, read_audit
from noiseproof.audit.issues import ISSUES, Issue, badges, register_issue
from noiseproof.judge.issues.base import ALWAYS, chosen_types
from noiseproof.review.issues import Issues

pytestmark = pytest.mark.usefixtures("forget_plugins")
DOCS = Path(__file__).parents[2] / "docs" / "audit.md"
TYPES = DOCS.with_name("issues.md")


IN_REPORT = ("label", "near-duplicate", "outlier")  # the types that occur in it
NAMES = list(ISSUES)


@pytest.fixture(scope="module")
def report() -> LabelReport:
    """120 rows in three clusters: some wrong labels, a copy with another label, an outlier."""
    random = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (np.eye(3)[y] * 8 + random.normal(size=(120, 3))).astype(np.float32)
    given = np.where(np.isin(np.arange(120), [4, 17, 60]), (y + 1) % 3, y)
    x[100], x[77] = x[4], [40, -40, 40]
    return audit(read_rows(x, labels=given), mode="fast", epochs=4, device="cpu", issues="all")


@pytest.fixture(scope="module")
def reports(report: LabelReport, tmp_path_factory: pytest.TempPathFactory) -> list[LabelReport]:
    """The same as a table, with a few of its rows as a test set; 120 texts; 120 pictures: each type
    applies to one.
    """
    data = report.data
    assert data.x is not None
    table = pd.DataFrame(data.x, columns=["a", "b", "c"]).assign(
        kind=data.given, one=1, gaps=np.nan
    )
    table.loc[:50, "gaps"] = table["a"]
    texts = pd.DataFrame(
        {"text": [f"{['good', 'bad', 'fair'][k]} film {i}" for i, k in enumerate(data.given)]}
    )
    folder = tmp_path_factory.mktemp("pictures")
    for i, k in enumerate(data.given.tolist()):
        (folder / f"class {k}").mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 60, (8, 8)) + 90 * k
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class {k}" / f"{i}.png")
    read = (
        read_rows(table, label="kind", test=table[::9]),
        read_rows(texts.assign(kind=data.given), label="kind", text="text", features="tfidf"),
        read_rows(folder, features="pixels"),
    )
    return [
        report,
        *(audit(rows, mode="fast", epochs=2, device="cpu", issues="all") for rows in read),
    ]


def find_type(reports: list[LabelReport], name: str) -> tuple[Issue, LabelReport]:
    return next(
        (issue, report) for report in reports for issue in report.issues if issue.name == name
    )


def test_a_report_has_one_of_each_type_that_applies_labels_first(
    reports: list[LabelReport],
) -> None:
    for report in reports:
        applying = [name for name in NAMES if ISSUES[name].applies(report.data)]  # type: ignore[attr-defined]
        assert [issue.name for issue in report.issues] == applying and applying[0] == "label"
    assert {issue.name for report in reports for issue in report.issues} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_mask_columns_and_reasons_have_one_entry_for_each_row(
    name: str, reports: list[LabelReport]
) -> None:
    issue, report = find_type(reports, name)
    data, rows = report.data, np.array([4, 77, 3])
    assert issue.mask.shape == (len(data),) and issue.mask.dtype == bool
    assert issue.mask.any() or name not in IN_REPORT
    columns, everything = issue.columns(data, rows), issue.columns(data, np.arange(len(data)))
    if issue.flag:
        assert issue.flag in columns and set(issue.badges) <= set(columns)
        np.testing.assert_array_equal(columns[issue.flag], issue.mask[rows])
    else:
        assert not columns and not issue.mask.any()  # about columns, classes or the whole
    for column, values in columns.items():
        assert list(map(str, values)) == [str(everything[column][i]) for i in rows]
    assert [type(reason) for reason in issue.explain(data, rows)] == [str] * 3
    assert issue.explain(data, rows[:0]) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_is_json_and_counts_audited_rows_only(
    name: str, reports: list[LabelReport]
) -> None:
    from dataclasses import replace

    issue, report = find_type(reports, name)
    summary = issue.summary(report.data)
    assert summary and json.loads(json.dumps(summary)) == summary
    assert not set(summary) & {"format", "rows", "skipped", "notes", "seconds"}
    assert isinstance(issue.headline(report.summary()), str) and "\n" not in issue.headline(
        report.summary()
    )
    helping = replace(report.data, row=np.full(len(report.data), -1))  # rows of a trusted table
    assert not re.search(r"\b0 rows", issue.headline(issue.summary(helping)))


@pytest.mark.parametrize("name", NAMES)
def test_the_remedy_is_a_sentence_and_documented(name: str) -> None:
    kind: Any = ISSUES[name]
    assert kind.remedy.endswith(".") and (kind.fixes == "" or kind.fixes.endswith("."))
    # docs/conf.py makes the table of remedies
    assert f"`{name}`" in TYPES.read_text("utf-8").partition("| found if |")[2]
    assert kind.flag == "" or f"`{kind.flag}`" in DOCS.read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_type_with_a_fix_says_what_is_to_be_done(
    name: str, reports: list[LabelReport], tmp_path: Path
) -> None:
    issue, report = find_type(reports, name)
    report.save(tmp_path)
    fix = type(issue).fix(read_audit(tmp_path))
    assert issue.fixes or not fix
    assert {*fix.left_out} <= {*report.data.row.tolist()}
    assert {*fix.becomes, *fix.becomes.values()} <= {*report.data.classes}


def test_findings_have_scores_and_pictures_that_can_be_drawn(reports: list[LabelReport]) -> None:
    findings = [one for report in reports for issue in report.issues for one in issue.findings]
    assert findings
    for one in findings:
        assert 0 <= one.score <= 1 and one.sentence[0].isupper() | (
            one.sentence[0] in "'0123456789"
        )
        assert one.sentence.endswith(".")
        if one.picture is not None:
            assert one.picture.title and one.picture.unit and len(one.picture.bars) >= 2
            assert {*one.picture.marked} <= {*range(len(one.picture.bars))}
            assert all(name != "" and value >= 0 for name, value in one.picture.bars)


def test_types_are_chosen_by_name() -> None:
    assert {kind.name for kind in chosen_types("all")} == {*NAMES}
    assert {kind.name for kind in chosen_types("imbalance")} == {*ALWAYS, "imbalance"}
    assert chosen_types("leakage, order") == chosen_types(["leakage", "order"])
    assert chosen_types() == chosen_types("all")
    with pytest.raises(
        ValueError, match="Unknown issue type 'imbalanced'. Did you mean 'imbalance'"
    ):
        chosen_types(["imbalanced"])


@pytest.fixture
def negative() -> Iterator[type[Issue]]:
    @register_issue("negative")
    @dataclass(frozen=True, eq=False)
    class Negative(Issue):
        """Rows whose first feature is negative: what CONTRIBUTING asks for and nothing else."""

        found: NDArray[np.bool_]
        flag = "is_negative"
        badges: ClassVar = {"is_negative": "below zero"}
        remedy = "Check the sign."

        @classmethod
        def find(cls, evidence: Any, labels: Any) -> Negative:
            return cls(evidence.data.x[:, 0] < 0)

        @property
        def mask(self) -> NDArray[np.bool_]:
            return self.found

    yield Negative
    del ISSUES._factories["negative"]


def test_a_new_type_reaches_table_summary_and_review_page(
    negative: type[Issue], tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    y = np.arange(60) % 2
    x = (6 * y[:, None] + random.normal(size=(60, 2)) - 3).astype(np.float32)
    report = audit(read_rows(x, labels=y), mode="fast", epochs=2, device="cpu")
    table = report.table()
    assert (
        tuple(table.columns[: len(COLUMNS)]) == tuple(COLUMNS)
        and table.columns[-1] == "is_negative"
    )
    np.testing.assert_array_equal(table["is_negative"], x[table["row"], 0] < 0)
    assert report.summary()["negative"] == {"rows": int((x[:, 0] < 0).sum())}
    assert (
        report.issues[-1].headline(report.summary())
        == f"negative: {(x[:, 0] < 0).sum()} rows. Check the sign."
    )
    report.save(tmp_path)
    marks = Issues(read_audit(tmp_path), everything=True).marks
    np.testing.assert_array_equal(marks["below zero"], table["is_negative"])
    assert badges()["is_negative"] == "below zero"


def test_an_audit_without_the_columns_of_a_later_type_is_read(
    report: LabelReport, tmp_path: Path
) -> None:
    report.save(tmp_path)

    @register_issue("later")
    class Later(Issue):
        badges: ClassVar = {"is_later": "later"}

    try:
        assert "later" not in Issues(read_audit(tmp_path)).marks
    finally:
        del ISSUES._factories["later"]
