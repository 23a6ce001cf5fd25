"""Labels that rows with several of them should not have, and those that they lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.issues.label import WrongLabels
from noiseproof.core.messages import quoted

if TYPE_CHECKING:
    from noiseproof.audit.labelsets import LabelSetIssues
    from noiseproof.audit.sources.base import AuditData

MAX_NAMED = 5  # labels in a sentence


@dataclass(frozen=True, eq=False, repr=False)
class WrongLabelSets(WrongLabels):
    """Rows with a label too many or one too few."""

    labels: LabelSetIssues

    def columns(self, data: AuditData, rows: NDArray[np.int64]) -> dict[str, Any]:
        assert data.sets is not None
        joiner = data.sets.joiner
        add, remove = zip(*(self.labels.changes(row) for row in rows.tolist()), strict=True) if len(rows) else ((), ())
        return super().columns(data, rows) | {
            "add_labels": [joiner.join(names) for names in add],
            "remove_labels": [joiner.join(names) for names in remove],
        }

    def explain(self, data: AuditData, rows: NDArray[np.int64]) -> list[str]:
        return [self._sentence(row) for row in rows.tolist()]

    def _sentence(self, row: int) -> str:
        labels = self.labels
        parts = []
        for names, verb in zip(labels.changes(row), ("lacks", "has"), strict=True):
            shown = [f"{quoted(name)} ({self._percent(row, name)} %)" for name in names[:MAX_NAMED]]
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            if names:
                parts.append(f"{verb} {', '.join(shown)}{more}{' by mistake' if verb == 'has' else ''}")
        return f"This probably {' and '.join(parts)}"

    def _percent(self, row: int, name: str) -> int:
        """The predictions' probability that the row should have the label."""
        return round(100 * float(self.labels.label_probs[row, self.labels.names.index(name)]))

    def summary(self, data: AuditData) -> dict[str, Any]:
        labels, is_audited = self.labels, data.row >= 0
        issues = labels.label_is_issue & is_audited[:, None]
        answers = labels.answers & is_audited[:, None]
        return {
            "issues": int((self.mask & is_audited).sum()), "label_issues": int(issues.sum()),
            **self._of_all(data, int(issues.sum()), int(is_audited.sum()) * len(labels.names)),
            "classes": [
                {
                    "name": name, "rows": int(answers[:, k].sum()), "issues": int((issues & answers)[:, k].sum()),
                    "missing": int((issues & ~answers)[:, k].sum()), "cut": float(labels.cut[k, 1]),
                    "noise_rate": round(float(labels.class_rates[k]), 6),
                    "missing_rate": round(float(labels.lost_rates[k]), 6),
                }
                for k, name in enumerate(labels.names)
            ],
            "transition": None,
            "worst_pairs": [],
        }  # fmt: skip

    def class_verdict(self, data: AuditData) -> str:
        """Labels of which far more than of all are wrong or missing, the worst first; empty if there are none."""
        return self._name_outstanding(
            self.labels.answers[data.row >= 0].sum(0), [*map(quoted, self.labels.names)],
            "of the {rows} rows with {name}, about {rate:.1%} should not have it",
            "of the rows that should have {name}, about {rate:.1%} lack it",
        )  # fmt: skip

    def notes(self) -> list[str]:
        return []
