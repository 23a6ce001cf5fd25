"""Labels that rows with several of them should not have, and those that they lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.issues.label import MAX_CLASSES, MIN_WRONG, WrongLabels
from noiseproof.audit.judge.interval import NEGLIGIBLE
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
        low, high = labels.noise_interval
        verdict = self.verdict(int(issues.sum()), int(is_audited.sum()) * len(labels.names))
        return {
            "issues": int((self.mask & is_audited).sum()), "label_issues": int(issues.sum()),
            "labels_look_fine": labels.looks_fine,
            "verdict": " ".join(filter(None, (verdict, self.class_verdict(data)))),
            "assumption": None,
            "noise_rate": {"estimate": labels.noise_rate, "low": low, "high": high},
            "false_positive_rate": labels.false_positive_rate,
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
        labels = self.labels
        if not labels.is_predictable:
            return ""
        given = labels.answers[data.row >= 0].sum(0)
        true = given * (1 - labels.class_rates) / np.maximum(1 - labels.lost_rates, 1e-9)
        sentences = []
        for rates, counts, sentence in (
            (labels.class_rates, given, "of the {rows} rows with {name}, about {rate:.1%} should not have it"),
            (labels.lost_rates, true, "of the rows that should have {name}, about {rate:.1%} lack it"),
        ):
            stands_out = (rates >= 2 * labels.noise_rate) & (rates > NEGLIGIBLE) & (rates * counts >= MIN_WRONG)
            for k in np.flatnonzero(stands_out)[np.argsort(-rates[stands_out], kind="stable")][:MAX_CLASSES]:
                sentences.append(sentence.format(rows=given[k], name=quoted(labels.names[k]), rate=rates[k]))
        text = "; ".join(sentences)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    def notes(self) -> list[str]:
        return []
