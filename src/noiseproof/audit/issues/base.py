"""The contract of an issue type: which rows have it, why, and what to do about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.plugins import load_plugins
from noiseproof.core.registry import Registry

if TYPE_CHECKING:
    from noiseproof.audit.evidence.gather import AuditEvidence
    from noiseproof.audit.labels import LabelIssues
    from noiseproof.audit.sources.base import AuditData

MAX_LISTED = 1000  # rows or groups that summary.json lists


class Issue(ABC):
    """Rows with one kind of problem among the N rows of an audit.

    ``issues.csv`` gets the ``columns``, ``summary.json`` the ``summary``, the terminal the ``headline``, and the review
    page a badge for each row with a true value in the columns of ``badges``.
    """

    name: ClassVar[str]
    flag: ClassVar[str]  # column of issues.csv: whether a row has the issue
    badges: ClassVar[Mapping[str, str]] = {}  # columns of booleans, and their text on the review page
    remedy: ClassVar[str]  # what to do about such rows, one sentence

    @classmethod
    @abstractmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> Self:
        """Find the rows, from the evidence and the judgement of their labels."""

    @property
    @abstractmethod
    def mask(self) -> NDArray[np.bool_]:
        """Rows that have the issue, (N,)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self.mask.sum())} of {len(self.mask)} rows)"

    def columns(self, data: AuditData, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Columns of issues.csv for ``rows``."""
        return {self.flag: self.mask[rows]}

    def explain(self, data: AuditData, rows: NDArray[np.int64]) -> list[str]:
        """What it adds to the reason why the labels of ``rows`` are called wrong, "" for nothing."""
        return [""] * len(rows)

    def summary(self, data: AuditData) -> dict[str, Any]:
        """Entries of summary.json."""
        return {self.name: {"rows": int((self.mask & (data.row >= 0)).sum())}}

    def headline(self, summary: Mapping[str, Any]) -> str:
        """One line for the terminal, "" for none."""
        rows = summary.get(self.name, {}).get("rows", 0)
        return f"{self.name}: {rows} rows. {self.remedy}" if rows else ""

    def notes(self) -> list[str]:
        """Sentences for whoever reads the summary."""
        return []


ISSUES: Registry[Issue] = Registry("issue type")
register_issue = ISSUES.register_class


def issue_types() -> list[type[Issue]]:
    """All issue types, those of plug-ins last."""
    load_plugins()
    return [ISSUES[name] for name in ISSUES]  # type: ignore[misc]  # classes alone are registered


def find_issues(evidence: AuditEvidence, labels: LabelIssues) -> tuple[Issue, ...]:
    """Find the rows of every issue type."""
    return tuple(kind.find(evidence, labels) for kind in issue_types())


def badges() -> dict[str, str]:
    """Columns of issues.csv that are badges on the review page, with their text."""
    return {column: text for kind in issue_types() for column, text in kind.badges.items()}


def rounded(values: NDArray[np.float32] | None, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """A column of numbers for issues.csv; NaN where there are none."""
    exact = np.full(len(rows), np.nan) if values is None else values[rows].astype(np.float64)
    return np.asarray(np.round(exact, 6))
