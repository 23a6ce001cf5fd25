"""Rows that are far from every other row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from noiseproof.core.arrays import Bools, Floats32, Ints
from noiseproof.core.messages import Json, counted
from noiseproof.judge.issues.base import (
    AuditEvidence,
    Issue,
    LabelIssues,
    Rows,
    register_issue,
    rounded,
)


@register_issue("outlier")
@dataclass(frozen=True, eq=False, repr=False)
class Outliers(Issue):
    """Rows much farther from their neighbours than these are from theirs."""

    scores: Floats32  # (N,): 1 is usual; NaN without features
    cut: float | None

    multilabel = True
    flag = "is_outlier"
    badges: ClassVar = {"is_outlier": "outlier"}
    remedy = "Look for a broken or foreign input, and drop the row if it is one."

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> Outliers:
        return cls(evidence.surroundings.outlier_scores, evidence.surroundings.outlier_cut)

    @property
    def mask(self) -> Bools:
        return np.asarray(self.scores > (np.inf if self.cut is None else self.cut))

    def columns(self, data: Rows, rows: Ints) -> Json:
        return {self.flag: self.mask[rows], "outlier_score": rounded(self.scores, rows)}

    def summary(self, data: Rows) -> Json:
        return {"outliers": {"rows": int((self.mask & (data.row >= 0)).sum()), "cut": self.cut}}

    @classmethod
    def about_rows(cls, summary: Mapping[str, Any]) -> str:
        rows = summary.get("outliers", {}).get("rows", 0)
        return f"{counted(rows, 'row')} far from every other row." if rows else ""
