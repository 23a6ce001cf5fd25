"""The audit as a whole: pairs of classes that are confused, qualities of the labels, noise by class, and progress."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import Audit
from noiseproof.audit.issues.base import issue_types, list_findings
from noiseproof.review.context import AnnotatorFiles, Labels
from noiseproof.review.queue import rounded

BINS = 40  # of the histogram of qualities
EXAMPLES = 6  # rows to look at of each finding


class Overview:
    """The counts of one audit; only those of decisions change."""

    def __init__(self, audit: Audit, labels: Labels, annotators: AnnotatorFiles | None = None) -> None:
        self.labels, self.noise_rate = labels, audit.summary.get("noise_rate")
        K = len(labels.classes)
        self.issue = np.flatnonzero(labels.is_issue)  # positions
        pairs = labels.given[self.issue] * K + labels.suggested[self.issue]
        self.pairs, self.pair, issues = np.unique(pairs, return_inverse=True, return_counts=True)
        self.matrix = {
            "given": (self.pairs // K).tolist(), "suggested": (self.pairs % K).tolist(), "issues": issues.tolist(),
        }  # fmt: skip
        rows = np.bincount(labels.given, minlength=K)
        wrong = np.bincount(labels.given, np.nan_to_num(1 - labels.quality), K) / np.maximum(rows, 1)
        self.classes = {
            "rows": rows.tolist(),
            "issues": np.bincount(labels.given[self.issue], minlength=K).tolist(),
            "noise_rate": [rounded(rate) for rate in wrong.tolist()],
            "cut": _cuts(audit),
        }
        self.findings = [one | {"examples": _examples(audit, labels, one)} for one in list_findings(audit.summary)]
        self.annotators = (annotators or AnnotatorFiles(audit)).describe()
        self.histogram = {"rows": self._histogram(slice(None)), "issues": self._histogram(self.issue)}

    def _histogram(self, at: Any) -> list[list[int]]:
        """Return the number of labels of each class in each bin of quality, (K, BINS)."""
        K, quality, given = len(self.labels.classes), self.labels.quality[at], self.labels.given[at]
        is_known = np.isfinite(quality)
        bins = np.clip((quality[is_known] * BINS).astype(np.int64), 0, BINS - 1)
        return np.bincount(given[is_known] * BINS + bins, minlength=K * BINS).reshape(K, BINS).tolist()

    def describe(self) -> dict[str, Any]:
        """Return the counts that no decision changes."""
        return {
            "matrix": self.matrix, "classes": self.classes, "histogram": self.histogram, "noise_rate": self.noise_rate,
            "findings": self.findings, "annotators": self.annotators,
        }  # fmt: skip

    def show(self, decided_rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return all counts, given the numbers of the rows that are decided."""
        is_decided = np.zeros(len(self.labels.row), dtype=bool)
        is_decided[self.labels.at[decided_rows]] = True
        decided = is_decided[self.issue]
        by_pair = np.bincount(self.pair[decided], minlength=len(self.pairs)).tolist()
        by_class = np.bincount(self.labels.given[self.issue[decided]], minlength=len(self.labels.classes)).tolist()
        return self.describe() | {
            "matrix": self.matrix | {"decided": by_pair}, "classes": self.classes | {"decided": by_class},
        }  # fmt: skip


def _examples(audit: Audit, labels: Labels, finding: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows that a finding is about, near-duplicates of each other together and conflicting ones first."""
    at = labels.at[[row for row in finding["rows"][:EXAMPLES] if row < len(labels.at)]]
    flags = {kind.name: kind.flag for kind in issue_types()}
    if (flag := flags[finding["type"]]) in audit.issues and not len(finding["rows"]):
        is_true = audit.issues[[flag, "duplicate_conflict"]].astype(str) == "True"
        at = np.flatnonzero(is_true[flag])
        at = at[np.lexsort((labels.row[at], labels.group[at], ~is_true["duplicate_conflict"].to_numpy()[at]))]
    return [
        {"row": int(labels.row[i]), "id": labels.id[i], "label": labels.classes[labels.given[i]]}
        for i in at[at >= 0][:EXAMPLES].tolist()
    ]


def _cuts(audit: Audit) -> list[float | None]:
    """Return the quality below which a label of each class is called wrong, None where it is not known."""
    cuts = {part["name"]: part["cut"] for part in audit.summary.get("classes", [])}
    return [cuts.get(name) for name in audit.classes]
