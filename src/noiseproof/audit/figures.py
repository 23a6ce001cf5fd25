"""Figures of an audit: tables with a description of how they are drawn, as in ``noiseproof.analysis``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from noiseproof.analysis import Figure
    from noiseproof.audit.report import LabelReport

BINS = 40  # of the histogram of qualities
MOST_CLASSES = 30  # that are readable side by side
STAGE = "Audit"


def quality(report: LabelReport) -> Figure:
    """The histogram of label quality, with the cut."""
    import pandas as pd

    from noiseproof.analysis import Figure, Layer
    from noiseproof.analysis.figures import histogram

    rows, labels = report.order, report.label_issues
    values, is_issue = labels.quality[rows], labels.is_issue[rows]
    bars = histogram(
        values, {"called wrong": is_issue, "others": ~is_issue}, np.linspace(0, 1, BINS + 1), "quality"
    )  # fmt: skip
    cut = min(1.0, float(labels.cut.max(initial=0)))
    most = max(1, int(bars["samples"].max()))
    line = pd.DataFrame({"quality": [cut, cut], "cut": [0.9, float(most)]})  # 0.9: a logarithmic axis has no zero
    bars["samples"] = bars["samples"].where(bars["samples"] > 0)
    return Figure(
        "quality", "Quality of the labels",
        "The farther left, the likelier a label is wrong; each class has its own cut, the highest one is drawn.", "",
        pd.concat([bars, line], ignore_index=True),
        (Layer("bars", "quality", "samples", color="labels"), Layer("line", "quality", "cut", label="highest cut")),
        "P(the given label is right)", "rows", log_y=True, stage=STAGE,
    )  # fmt: skip


def confusions(report: LabelReport) -> Figure:
    """How many labels of each class look like each other class."""
    import pandas as pd

    from noiseproof.analysis import Figure, Layer

    data, labels, K = report.data, report.label_issues, len(report.data.classes)
    rows = np.flatnonzero(labels.is_issue & (data.row >= 0))
    counts = np.bincount(data.given[rows] * K + labels.suggested[rows], minlength=K * K).reshape(K, K)
    by_class = counts.sum(0) + counts.sum(1)
    shown = np.sort(np.argsort(-by_class, kind="stable")[:MOST_CLASSES])
    given, suggested = np.repeat(shown, len(shown)), np.tile(shown, len(shown))
    names = [data.classes[k] for k in shown.tolist()]
    cells = pd.DataFrame({
        "given": pd.Categorical([data.classes[k] for k in given.tolist()], names),
        "suggested": pd.Categorical([data.classes[k] for k in suggested.tolist()], names),
        "labels": counts[given, suggested].astype(float),
    })  # fmt: skip
    left_out = f" {K - len(shown)} classes with fewer are left out." if K > len(shown) else ""
    return Figure(
        "confusions", "Labels called wrong, by pair of classes",
        f"A row of the matrix is a given label, a column the label it should have.{left_out}", "", cells,
        (Layer("heat", "suggested", "given", z="labels"),), "suggested label", "given label", stage=STAGE,
    )  # fmt: skip


def classes(report: LabelReport) -> Figure:
    """The share of wrong labels in each class."""
    import pandas as pd

    from noiseproof.analysis import Figure, Layer

    worst = sorted(report.summary()["classes"], key=lambda one: -one["noise_rate"])[:MOST_CLASSES]
    names = [one["name"] for one in worst]
    shares = {
        "estimated to be wrong": [one["noise_rate"] for one in worst],
        "called wrong": [one["issues"] / max(1, one["rows"]) for one in worst],
    }
    bars = pd.concat([
        pd.DataFrame({"labels": label, "class": pd.Categorical(names, names), "share": share})
        for label, share in shares.items()
    ], ignore_index=True)  # fmt: skip
    left_out = f" Of {len(report.data.classes)} classes, the worst {MOST_CLASSES} are shown."
    return Figure(
        "classes", "Wrong labels by class",
        "The classes whose labels need most work come first."
        + left_out * (len(report.data.classes) > MOST_CLASSES), "", bars,
        (Layer("bars", "class", "share", color="labels"),), "given label", "share of its rows", stage=STAGE,
    )  # fmt: skip


FIGURES: dict[str, Callable[[LabelReport], Figure]] = {
    "quality": quality, "confusions": confusions, "classes": classes,
}  # fmt: skip
