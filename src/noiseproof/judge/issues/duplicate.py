"""Rows that are nearly the same as others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noiseproof.core.arrays import Bools, Ints, by_value
from noiseproof.core.messages import Json, counted
from noiseproof.judge.issues.base import (
    MAX_LISTED,
    AuditEvidence,
    Fix,
    Issue,
    LabelIssues,
    Rows,
    register_issue,
)
from noiseproof.judge.saved import Decision, SavedAudit

if TYPE_CHECKING:
    from noiseproof.judge.evidence.neighbours import Duplicates


@register_issue("near-duplicate")
@dataclass(frozen=True, eq=False, repr=False)
class NearDuplicates(Issue):
    """Groups of rows that are nearly the same."""

    duplicates: Duplicates

    multilabel = True
    flag = "is_near_duplicate"
    badges: ClassVar = {
        "is_near_duplicate": "near-duplicate",
        "duplicate_conflict": "labels conflict",
    }
    remedy = "Keep one row of each group, and decide which label is right where they conflict."
    fixes = (
        "Leaves out all but the first row, or the decided one, of each group whose labels agree."
    )

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> NearDuplicates:
        return cls(evidence.surroundings.duplicates)

    @property
    def mask(self) -> Bools:
        return self.duplicates.is_duplicate

    def columns(self, data: Rows, rows: Ints) -> Json:
        import pandas as pd

        group = pd.array(self.duplicates.group[rows], dtype="Int64")
        group[~self.mask[rows]] = pd.NA
        return {
            self.flag: self.mask[rows],
            "duplicate_group": group,
            "duplicate_conflict": self.duplicates.conflict[rows],
        }

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        return [
            "a near-duplicate has another label" if c else ""
            for c in self.duplicates.conflict[rows].tolist()
        ]

    @classmethod
    def fix(cls, audit: SavedAudit) -> Fix:
        is_true = audit.issues[[cls.flag, "duplicate_conflict"]].astype(str) == "True"
        groups = audit.issues.loc[
            is_true[cls.flag] & ~is_true["duplicate_conflict"], ["row", "duplicate_group"]
        ]
        kept = {
            row
            for _, rows in groups.groupby("duplicate_group")["row"]
            for row in _kept(rows, audit.decided)
        }
        return Fix(left_out=frozenset({*groups["row"].tolist()} - kept))

    def summary(self, data: Rows) -> Json:
        group = np.where(data.row >= 0, self.duplicates.group, -1)
        rows = np.flatnonzero((group >= 0) & self.duplicates.conflict)
        parts = by_value(rows, group)
        conflicts = [
            {
                "group": int(group[part[0]]),
                "rows": data.row[part].tolist(),
                "labels": [data.classes[k] for k in data.given[part].tolist()],
            }
            for part in parts[:MAX_LISTED]
        ]
        counts = {"groups": len(np.unique(group[group >= 0])), "rows": int((group >= 0).sum())}
        return {"near_duplicates": {**counts, "conflicting": len(parts), "conflicts": conflicts}}

    @classmethod
    def about_rows(cls, summary: Mapping[str, Any]) -> str:
        counts = summary.get("near_duplicates", {"rows": 0})
        if not counts["rows"]:
            return ""
        groups = counted(counts["groups"], "group")
        return f"{counts['rows']} rows in {groups}, {counts['conflicting']} with different labels."


def _kept(group: Iterable[int], decided: Mapping[int, Decision]) -> set[int]:
    """Return the rows of a group to keep: the first with each label that was decided on, else the
    first not excluded.
    """
    rows = sorted(group)
    by_label = {
        decided[row].label: row
        for row in reversed(rows)
        if row in decided and decided[row].names_label
    }
    others = [row for row in rows if row not in decided or decided[row].decision != "exclude"]
    return {*by_label.values()} or {*(others or rows)[:1]}
