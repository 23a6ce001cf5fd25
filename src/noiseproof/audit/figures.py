"""A report in a notebook: a few lines of text, a small page of HTML, and figures as in
``noiseproof.analysis``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.analysis.page.shell import environment
from noiseproof.core.messages import counted, plain, printable, quoted
from noiseproof.judge.issues.base import NEEDS_ACTION, list_findings

if TYPE_CHECKING:
    from noiseproof.analysis import Figure
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
STAGE = "Audit"


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
    more = summary["issues"] - len(worst)
    return printable("\n".join([*lines, *([f"  and {more} more"] if more > 0 else []), NEXT]))


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


def worst_labels(report: AuditResult, most: int) -> list[dict[str, Any]]:
    data = report.data
    labels = report.label_issues
    rows = report.order
    rows = rows[labels.is_issue[rows]][:most]
    has_ids = data.ids is not None
    columns = (rows, data.row[rows], data.names[rows], labels.quality[rows], report.why(rows))
    return [
        {
            "row": row,
            "id": str(id),
            "name": f"row {row} ({id})" if has_ids else f"row {row}",
            "given": data.classes[data.given[at]],
            "suggested": data.classes[labels.suggested[at]],
            "quality": quality,
            "why": why,
        }
        for at, row, id, quality, why in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _headline(report: AuditResult, summary: dict[str, Any]) -> str:
    source = report.data.source.config.get("data")
    labels = report.data.labels
    kind, called = "classes", counted(summary["issues"], "label")
    if labels.are_sets:
        kind, called = "labels", counted(summary["issues"], "row")
    count = f"{len(labels.names)} {kind}"
    called = f"{called} called wrong"
    name = f" of {Path(source).name}" if source else ""
    return f"Audit{name}: {summary['rows']} rows, {count}, {called}"


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


def quality(report: AuditResult) -> Figure:
    import pandas as pd

    from noiseproof.analysis import Figure, Layer
    from noiseproof.analysis.figures import histogram

    rows = report.order
    labels = report.label_issues
    values = labels.quality[rows]
    is_issue = labels.is_issue[rows]
    bars = histogram(
        values,
        {"called wrong": is_issue, "others": ~is_issue},
        np.linspace(0, 1, BINS + 1),
        "quality",
    )
    cut = min(1.0, float(labels.cut.max(initial=0)))
    most = max(1, int(bars["samples"].max()))
    # 0.9: a logarithmic axis has no zero
    line = pd.DataFrame({"quality": [cut, cut], "cut": [0.9, float(most)]})
    bars["samples"] = bars["samples"].where(bars["samples"] > 0)
    return Figure(
        "quality",
        "Quality of the labels",
        "The farther left, the likelier a label is wrong; each class has its own cut, the highest"
        " one is drawn.",
        "",
        pd.concat([bars, line], ignore_index=True),
        (
            Layer("bars", "quality", "samples", color="labels"),
            Layer("line", "quality", "cut", label="highest cut"),
        ),
        "P(the given label is right)",
        "rows",
        log_y=True,
        stage=STAGE,
    )


def confusions(report: AuditResult) -> Figure:
    import pandas as pd

    from noiseproof.analysis import Figure, Layer

    data = report.data
    labels = report.label_issues
    K = len(report.data.classes)
    rows = np.flatnonzero(labels.is_issue & (data.row >= 0))
    counts = np.bincount(data.given[rows] * K + labels.suggested[rows], minlength=K * K).reshape(
        K, K
    )
    by_class = counts.sum(0) + counts.sum(1)
    shown = np.sort(np.argsort(-by_class, kind="stable")[:MOST_CLASSES])
    given = np.repeat(shown, len(shown))
    suggested = np.tile(shown, len(shown))
    names = [data.classes[k] for k in shown.tolist()]
    cells = pd.DataFrame(
        {
            "given": pd.Categorical([data.classes[k] for k in given.tolist()], names),
            "suggested": pd.Categorical([data.classes[k] for k in suggested.tolist()], names),
            "labels": counts[given, suggested].astype(float),
        }
    )
    left_out = f" {K - len(shown)} classes with fewer are left out." if K > len(shown) else ""
    return Figure(
        "confusions",
        "Labels called wrong, by pair of classes",
        f"A row of the matrix is a given label, a column the label it should have.{left_out}",
        "",
        cells,
        (Layer("heat", "suggested", "given", z="labels"),),
        "suggested label",
        "given label",
        stage=STAGE,
    )


def classes(report: AuditResult) -> Figure:
    import pandas as pd

    from noiseproof.analysis import Figure, Layer

    worst = sorted(report.summary()["classes"], key=lambda one: -one["noise_rate"])[:MOST_CLASSES]
    names = [one["name"] for one in worst]
    shares = {
        "estimated to be wrong": [one["noise_rate"] for one in worst],
        "called wrong": [one["issues"] / max(1, one["rows"]) for one in worst],
    }
    bars = pd.concat(
        [
            pd.DataFrame({"labels": label, "class": pd.Categorical(names, names), "share": share})
            for label, share in shares.items()
        ],
        ignore_index=True,
    )
    left_out = f" Of {len(report.data.classes)} classes, the worst {MOST_CLASSES} are shown."
    return Figure(
        "classes",
        "Wrong labels by class",
        "The classes whose labels need most work come first."
        + left_out * (len(report.data.classes) > MOST_CLASSES),
        "",
        bars,
        (Layer("bars", "class", "share", color="labels"),),
        "given label",
        "share of its rows",
        stage=STAGE,
    )


FIGURES: dict[str, Callable[[AuditResult], Figure]] = {
    "quality": quality,
    "confusions": confusions,
    "classes": classes,
}
