"""A report in a notebook: a few lines of text, a small page of HTML, and figures of matplotlib."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.analysis.page.shell import environment
from noiseproof.core.messages import Json, counted, plain, printable, quoted
from noiseproof.judge.issues.base import NEEDS_ACTION, list_findings

if TYPE_CHECKING:
    from noiseproof.audit.result import AuditResult

FEW = 5  # worst labels in the text
MANY = 10  # worst labels in the page
MAX_CLASSES = 20  # in the page
SNIPPET = 120  # characters of a row
THUMBNAIL = 64  # pixels of a picture
MAX_CELLS = 8  # columns of a table
NEXT = (
    'report.table() has every row, report.figure("quality") draws them, report.review() opens the'
    " review page."
)
BINS = 40  # of the histogram of qualities
MOST_CLASSES = 30  # that are readable side by side


def as_text(report: AuditResult) -> str:
    summary = report.summary()
    lines = [_headline(report, summary), summary["verdict"]]
    worst = worst_labels(report, FEW)
    if worst:
        lines.append("worst labels:")
        lines += [
            f"  {label['name']}: {quoted(label['given'])}, suggested {quoted(label['suggested'])} "
            f"(quality {label['quality']:.3f})"
            for label in worst
        ]
    if (more := summary["issues"] - len(worst)) > 0:
        lines.append(f"  and {more} more")
    return printable("\n".join([*lines, NEXT]))


def as_html(report: AuditResult) -> str:
    """The audit as HTML without scripts or requests: summary, noise rate by class, worst labels
    with their rows.
    """
    summary = report.summary()
    classes = sorted(summary["classes"], key=lambda one: -one["noise_rate"])
    worst = worst_labels(report, MANY)
    for label in worst:
        label |= _content(report, label["row"], label["id"])
    named = {name: plain(name) for name in report.data.classes}
    return (
        environment("noiseproof.audit")
        .get_template("report.html.j2")
        .render(
            headline=_headline(report, summary),
            summary=summary,
            classes=classes[:MAX_CLASSES],
            other_classes=max(0, len(classes) - MAX_CLASSES),
            worst=worst,
            named=named,
            next=NEXT,
            has_content=any(label["picture"] or label["text"] for label in worst),
            findings=[one for one in list_findings(summary) if one["score"] >= NEEDS_ACTION],
            highest=max((one["noise_rate"] for one in classes), default=0) or 1,
        )
    )


def worst_labels(report: AuditResult, most: int) -> list[Json]:
    data = report.data
    labels = report.label_issues
    rows = report.order
    rows = rows[labels.is_issue[rows]][:most]
    worst = []
    for at, why in zip(rows.tolist(), report.why(rows).tolist(), strict=True):
        row = int(data.row[at])
        id = str(data.names[at])
        worst.append(
            {
                "row": row,
                "id": id,
                "name": f"row {row}" if data.ids is None else f"row {row} ({id})",
                "given": data.classes[data.given[at]],
                "suggested": data.classes[labels.suggested[at]],
                "quality": float(labels.quality[at]),
                "why": why,
            }
        )
    return worst


def _headline(report: AuditResult, summary: Json) -> str:
    source = report.data.source.config.get("data")
    labels = report.data.labels
    name = f" of {Path(source).name}" if source else ""
    count = f"{len(labels.names)} classes"
    called = counted(summary["issues"], "label")
    if labels.are_sets:
        count = f"{len(labels.names)} labels"
        called = counted(summary["issues"], "row")
    return f"Audit{name}: {summary['rows']} rows, {count}, {called} called wrong"


def _content(report: AuditResult, row: int, id: str) -> dict[str, str]:
    """What a row is: a small picture, the beginning of its text or the cells of a small table; else
    nothing.
    """
    source = report.data.source
    with suppress(OSError, ImportError):  # pictures whose files are gone, or no PIL to draw them
        if (picture := source.picture(row, id, THUMBNAIL)) is not None:
            return {
                "picture": f"data:{picture[1]};base64,{base64.b64encode(picture[0]).decode()}",
                "text": "",
            }
    lines = source.describe(row, id).splitlines()
    if lines == [id] or (source.config.get("text") is None and len(lines) > MAX_CELLS):
        return {"picture": "", "text": ""}
    text = " · ".join(lines)
    return {"picture": "", "text": text if len(text) <= SNIPPET else f"{text[:SNIPPET]}…"}


def new_axes(title: str, x_label: str, y_label: str) -> Any:
    """Return the axes of a new figure of matplotlib."""
    from matplotlib.figure import Figure

    axes: Any = Figure(layout="constrained").subplots()
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return axes


def _verbatim(names: Iterable[str]) -> list[str]:
    return [name.replace("$", r"\$") for name in names]  # matplotlib takes it for mathematics


def quality(report: AuditResult) -> Any:
    labels = report.label_issues
    values = labels.quality[report.order]
    is_issue = labels.is_issue[report.order]
    axes = new_axes("Quality of the labels", "P(the given label is right)", "rows")
    axes.hist(
        [values[is_issue], values[~is_issue]],
        np.linspace(0, 1, BINS + 1),
        label=["called wrong", "others"],
        log=True,
    )
    cut = min(1.0, float(labels.cut.max(initial=0)))  # each class has its own
    axes.plot(np.full(2, cut), axes.get_ylim(), "k--", label="highest cut")
    axes.legend()
    return axes.figure


def confusions(report: AuditResult) -> Any:
    data = report.data
    labels = report.label_issues
    K = len(data.classes)
    rows = np.flatnonzero(labels.is_issue & (data.row >= 0))
    pair = data.given[rows] * K + labels.suggested[rows]
    counts = np.bincount(pair, minlength=K * K).reshape(K, K)
    by_class = counts.sum(0) + counts.sum(1)
    shown = np.sort(np.argsort(-by_class, kind="stable")[:MOST_CLASSES])
    names = _verbatim(data.classes[k] for k in shown.tolist())
    axes = new_axes("Labels called wrong, by pair of classes", "suggested label", "given label")
    grid = axes.pcolormesh(counts[np.ix_(shown, shown)].astype(float), cmap="Blues")
    axes.figure.colorbar(grid, label="labels")
    centres = np.arange(len(shown)) + 0.5
    axes.set_xticks(centres, names, rotation=90)
    axes.set_yticks(centres, names)
    axes.invert_yaxis()
    return axes.figure


def classes(report: AuditResult) -> Any:
    worst = sorted(report.summary()["classes"], key=lambda one: -one["noise_rate"])[:MOST_CLASSES]
    at = np.arange(len(worst))
    axes = new_axes("Wrong labels by class", "given label", "share of its rows")
    axes.bar(at - 0.2, [one["noise_rate"] for one in worst], 0.4, label="estimated to be wrong")
    called = [one["issues"] / max(1, one["rows"]) for one in worst]
    axes.bar(at + 0.2, called, 0.4, label="called wrong")
    axes.set_xticks(at, _verbatim(one["name"] for one in worst), rotation=90)
    axes.legend()
    return axes.figure


FIGURES: dict[str, Callable[[AuditResult], Any]] = {
    "quality": quality,
    "confusions": confusions,
    "classes": classes,
}
