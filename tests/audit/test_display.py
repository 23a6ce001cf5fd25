"""What a notebook shows of an audit: short text, safe HTML, and figures with the right numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import LabelReport, audit, read_audit, read_rows
from noiseproof.judge.evidence.network import Evidence

NAUGHTY = '<b>&"'
CLASSES = (NAUGHTY, "dog", "cat")
WRONG = (3, 40, 77)


@pytest.fixture(scope="module")
def report() -> LabelReport:
    """150 rows of three classes with three wrong labels; the texts and one class contain markup."""
    truth = np.repeat([0, 1, 2], 50)
    labels = truth.copy()
    labels[list(WRONG)] = [1, 2, 0]
    probs = np.where(truth[:, None] == np.arange(3), 0.9, 0.05)
    texts = [f"<script>alert({i})</script> & more" for i in range(150)]
    return audit(texts, labels=np.array(CLASSES)[labels], pred_probs=probs, classes=CLASSES)


@dataclass
class Page(HTMLParser):
    """The elements of a page, and its tables cell by cell."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.caption = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag != "img":
            self.open.append(tag)
        if tag == "table":
            self.caption = ""
        elif tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag  # every element is closed in order

    def handle_data(self, data: str) -> None:
        if "caption" in self.open:
            self.caption += data
        elif {"td", "th"} & {*self.open}:
            self.tables[self.caption][-1][-1] += data
        self.text += data


def parse(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


# --- text -----------------------------------------------------------------------------------------


def test_the_text_of_a_report_is_short_and_names_the_worst_labels(report: LabelReport) -> None:
    lines = repr(report).splitlines()
    assert str(report) == repr(report)
    assert lines[0] == "Audit: 150 rows, 3 classes, 3 labels called wrong"
    assert lines[1] == report.summary()["verdict"]
    assert lines[2] == "worst labels:"
    worst = [
        re.fullmatch(r"  row (\d+): (.*), suggested (.*) \(quality 0\.\d{3}\)", line)
        for line in lines[3:6]
    ]
    assert {int(match[1]): (match[2], match[3]) for match in worst if match} == {
        3: ("'dog'", f"'{NAUGHTY}'"),
        40: ("'cat'", f"'{NAUGHTY}'"),
        77: (f"'{NAUGHTY}'", "'dog'"),
    }
    assert len(lines) == 7 and "report.review()" in lines[6]


def test_the_parts_of_a_report_are_one_line_each(report: LabelReport, tmp_path: Path) -> None:
    assert (
        repr(report.label_issues) == "LabelIssues(150 labels of 3 classes, 3 issues, about"
        f" {report.label_issues.noise_rate:.1%} wrong)"
    )
    assert repr(report.data).startswith("AuditData(text, 150 rows, 3 classes")
    assert repr(report.issues[0]) == "WrongLabels(3 of 150 rows)"
    report.save(tmp_path / "audit")
    assert (
        repr(read_audit(tmp_path / "audit"))
        == f"Audit('{tmp_path}/audit', 150 rows, 3 classes, 3 issues)"
    )
    evidence = Evidence(np.zeros((1000, 3), np.float32), unlearned=np.zeros(1000, np.float32))
    assert (
        repr(evidence)
        == "Evidence(pred_probs=float32 (1000, 3), unlearned=float32 (1000,), weights={})"
    )


def test_the_text_of_labels_without_issues_and_of_ids() -> None:
    labels = np.repeat(["a", "b"], 30)
    probs = np.where(labels[:, None] == ["a", "b"], 0.95, 0.05)
    fine = audit(labels=labels, pred_probs=probs)
    assert "worst labels" not in repr(fine) and len(repr(fine).splitlines()) == 3
    assert "Worst labels" not in fine._repr_html_()
    frame = pd.DataFrame({"key": [f"k{i}" for i in range(60)], "y": ["b", *labels[1:]]})
    assert "row 0 (k0): 'b', suggested 'a'" in repr(
        audit(frame, label="y", id="key", pred_probs=probs)
    )


# --- HTML -----------------------------------------------------------------------------------------


def test_the_html_has_the_numbers_of_the_summary_and_no_markup_of_the_data(
    report: LabelReport,
) -> None:
    html = report._repr_html_()
    page = parse(html)
    tags = {tag for tag, _ in page.tags}
    assert tags <= {
        "div",
        "style",
        "p",
        "strong",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "code",
    }
    # nothing is requested
    assert "url(" not in html and "http" not in html and "@import" not in html
    assert "<script" not in html and "&lt;b&gt;&amp;&#34;" in html
    assert report.summary()["verdict"] in page.text
    worst = page.tables["Worst labels, 3 of 3"]
    assert worst[0] == ["row", "content", "given", "suggested", "quality", "why"]
    table = report.table().head(3)
    assert [row[:4] + row[5:] for row in worst[1:]] == [
        [f"row {row}", f"<script>alert({row})</script> & more", given, suggested, why]
        for row, given, suggested, why in zip(
            table["row"], table["given_label"], table["suggested_label"], table["why"], strict=True
        )
    ]
    by_class = page.tables["Estimated share of wrong labels by class"][1:]
    rates = {one["name"]: one for one in report.summary()["classes"]}
    assert {row[0] for row in by_class} == {*CLASSES}
    for name, rows, issues, rate, _ in by_class:
        assert (int(rows), int(issues)) == (rates[name]["rows"], rates[name]["issues"])
        assert rate == f"{100 * rates[name]['noise_rate']:.1f} %"
    shown = [float(row[3].split()[0]) for row in by_class]
    assert shown == sorted(shown, reverse=True)


def test_pictures_are_inside_the_html_and_large_tables_are_not() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(["dark", "light"], 40)
    pictures = random.integers(0, 100, (80, 8, 8)).astype(np.uint8) + 100 * (labels == "light")[
        :, None, None
    ].astype(np.uint8)
    probs = np.where(labels[:, None] == ["dark", "light"], 0.95, 0.05)
    wrong = labels.copy()
    wrong[5] = "light"
    (image,) = (
        attributes
        for tag, attributes in parse(
            audit(pictures, labels=wrong, pred_probs=probs)._repr_html_()
        ).tags
        if tag == "img"
    )
    assert image["alt"] == "row 5" and (image["src"] or "").startswith("data:image/")
    wide = pd.DataFrame(pictures.reshape(80, 64)).add_prefix("size").assign(y=wrong)
    page = parse(audit(wide, label="y", pred_probs=probs)._repr_html_())
    assert page.tables["Worst labels, 1 of 1"][0] == ["row", "given", "suggested", "quality", "why"]
    narrow = wide[["size0", "size1", "y"]]
    page = parse(audit(narrow, label="y", pred_probs=probs)._repr_html_())
    assert (
        page.tables["Worst labels, 1 of 1"][1][1]
        == f"size0: {pictures[5, 0, 0]} · size1: {pictures[5, 0, 1]}"
    )


def test_many_classes_are_cut_short_with_a_count() -> None:
    labels = np.repeat(np.arange(25), 4)
    probs = np.where(labels[:, None] == np.arange(25), 0.9, 0.1 / 24)
    labels[0] = 7
    page = parse(audit(labels=labels, pred_probs=probs)._repr_html_())
    assert len(page.tables["Estimated share of wrong labels by class"]) == 1 + 20
    assert "5 other classes have lower rates." in page.text


def test_ipython_displays_the_html(report: LabelReport) -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    data, _ = formatters.DisplayFormatter().format(report)
    assert data["text/html"] == report._repr_html_() and data["text/plain"] == repr(report)


# --- figures --------------------------------------------------------------------------------------


def test_the_figures_have_the_audits_numbers(report: LabelReport) -> None:
    table = report.table()
    quality = report.figure("quality").axes[0]
    edges = np.linspace(0, 1, 41)
    is_issue = table["is_label_issue"]
    expected = [
        np.histogram(table.loc[rows, "label_quality"], edges)[0] for rows in (is_issue, ~is_issue)
    ]
    assert [counts.sum() for counts in expected] == [3, 147]
    heights = np.nan_to_num([bar.get_height() for bar in quality.patches])
    np.testing.assert_array_equal(heights.reshape(2, 40), expected)
    cut, top = quality.lines[0].get_data()
    assert set(cut[np.isfinite(top)]) == {float(report.label_issues.cut.max())}

    confusions = report.figure("confusions").axes[0]
    for labels in (confusions.get_xticklabels(), confusions.get_yticklabels()):
        assert tuple(label.get_text() for label in labels) == CLASSES
    pairs = table[is_issue].groupby(["given_label", "suggested_label"], observed=False).size()
    shown = confusions.collections[0].get_array()
    np.testing.assert_array_equal(shown, [[pairs.get((g, s), 0) for s in CLASSES] for g in CLASSES])

    classes = report.figure("classes").axes[0]
    at = [label.get_text() for label in classes.get_xticklabels()]
    estimated, called = np.array([bar.get_height() for bar in classes.patches]).reshape(2, -1)
    of_class = {one["name"]: one for one in report.summary()["classes"]}
    assert dict(zip(at, estimated, strict=True)) == {
        name: one["noise_rate"] for name, one in of_class.items()
    }
    assert dict(zip(at, called, strict=True)) == {
        k: one["issues"] / one["rows"] for k, one in of_class.items()
    }
    with pytest.raises(
        ValueError, match="Expected a figure of quality, confusions, classes, got 'map'"
    ):
        report.figure("map")


@pytest.mark.parametrize("kind", ["frame", "texts", "array"])
def test_rows_in_memory_are_shown(kind: str) -> None:
    labels = np.repeat(["a", "b"], 10)
    data: Any = {
        "frame": pd.DataFrame({"n": range(20), 7: labels}),
        "texts": [f"text {i}" for i in range(20)],
        "array": np.arange(40.0).reshape(20, 2),
    }[kind]
    labelled: dict[str, Any] = {"label": 7} if kind == "frame" else {"labels": labels}
    source = read_rows(data, pred_probs=np.full((20, 2), 0.5), **labelled).source
    shown = {
        "frame": {"fields": [["n", "3"]]},
        "texts": {"text": "text 3", "fields": []},
        "array": {"fields": [["0", "6"], ["1", "7"]]},
    }
    assert source.show(3, "3") == shown[kind]
