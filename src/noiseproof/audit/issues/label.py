"""Labels that are wrong, with the label they should have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.issues.base import Issue, register_issue, rounded
from noiseproof.audit.judge.interval import NEGLIGIBLE
from noiseproof.audit.reasons import explain_issues

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.audit.evidence.gather import AuditEvidence
    from noiseproof.audit.labels import LabelIssues
    from noiseproof.audit.sources.base import AuditData

LARGEST_MATRIX, MAX_PAIRS = 200, 20
MAX_CLASSES, MIN_WRONG = 3, 2.0  # named in the verdict, and their wrong rows at least
ASSUMPTION = "Assumes that mistakes depend on the class only"


@register_issue("label")
@dataclass(frozen=True, eq=False, repr=False)
class WrongLabels(Issue):
    """Labels whose quality is below the cut of their class."""

    labels: LabelIssues

    multilabel = True
    flag = "is_label_issue"
    remedy = "Decide in `noiseproof review`: take the suggested label, keep the given one, or choose another."

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> WrongLabels:
        from noiseproof.audit.issues.labelset import WrongLabelSets
        from noiseproof.audit.labelsets import LabelSetIssues

        return WrongLabelSets(labels) if isinstance(labels, LabelSetIssues) else cls(labels)

    @property
    def mask(self) -> NDArray[np.bool_]:
        return self.labels.is_issue

    def columns(self, data: AuditData, rows: NDArray[np.int64]) -> dict[str, Any]:
        import pandas as pd

        classes = pd.Index(data.classes, dtype=object)

        def named(codes: NDArray[np.int64]) -> pd.Categorical[str]:
            return pd.Categorical.from_codes(codes[rows], categories=classes)

        labels, voted = self.labels, {}
        if data.annotators is not None:
            voted["consensus_label"] = named(labels.consensus(data.given))
        numbers = ("margin", "neighbour_agreement", "confidence", "suggested_confidence", "unlearned", "doubt")
        return {
            self.flag: labels.is_issue[rows], "label_quality": rounded(labels.quality, rows),
            "given_label": named(data.given), "predicted_label": named(labels.predicted),
            "suggested_label": named(labels.suggested),
            "suggestion_quality": rounded(labels.suggestion_quality, rows),
            "model_quality": rounded(labels.quality, rows),
            "model_suggestion_quality": rounded(labels.suggestion_quality, rows),
            **{name: rounded(getattr(labels, name), rows) for name in numbers}, **voted,
        }  # fmt: skip

    def explain(self, data: AuditData, rows: NDArray[np.int64]) -> list[str]:
        return explain_issues(self.labels, data, rows)

    def summary(self, data: AuditData) -> dict[str, Any]:
        labels, K = self.labels, len(data.classes)
        is_audited = data.row >= 0
        issues = self.mask & is_audited
        low, high = labels.noise_interval
        verdict = self.verdict(int(issues.sum()), int(is_audited.sum()))
        row_counts, issue_counts = (
            np.bincount(data.given[mask], minlength=K).tolist() for mask in (is_audited, issues)
        )
        return {
            "issues": int(issues.sum()), "labels_look_fine": labels.looks_fine,
            "verdict": " ".join(filter(None, (verdict, self.class_verdict(data)))),
            "assumption": ASSUMPTION if labels.is_predictable else None,
            "noise_rate": {"estimate": labels.noise_rate, "low": low, "high": high},
            "false_positive_rate": labels.false_positive_rate,
            "classes": [
                {
                    "name": name, "rows": row_counts[k], "issues": issue_counts[k], "cut": float(labels.cut[k]),
                    "noise_rate": round(float(labels.class_rates[k]), 6),
                }
                for k, name in enumerate(data.classes)
            ],
            "transition": np.round(labels.transition, 6).tolist() if K <= LARGEST_MATRIX else None,
            "worst_pairs": self._worst_pairs(data, issues),
        }  # fmt: skip

    def verdict(self, issues: int, rows: int) -> str:
        """What the model concludes about all labels, with the estimate of the noise rate, and classes that differ."""
        labels, rate, (low, high) = self.labels, self.labels.noise_rate, self.labels.noise_interval
        if not labels.is_predictable:
            return (
                "The labels are hardly predictable from the features, so none can be called wrong, and the estimate of "
                f"{rate:.1%} wrong ones means little: predictions match {labels.hit_rate:.1%} of the labels, "
                f"{labels.chance_rate:.1%} would match by chance. Check the columns, or give better features."
            )
        by_model = f"range by the model {low:.1%} to {high:.1%}"
        called = f"{issues} of {rows} are called issues"
        if labels.is_undecided:
            return (
                f"One training can't decide whether the labels are fine: about {rate:.1%} look wrong ({by_model}); "
                f"{called}."
            )
        if labels.looks_fine:
            alarms = f"; {called}, errors or false alarms" if issues else ""
            return (
                f"The labels look fine: about {rate:.1%} wrong ({by_model}){alarms} "
                f"(expected share of right labels called issues: {labels.false_positive_rate:.2%})."
            )
        if labels.may_be_fine:
            return (
                f"About {rate:.1%} of the labels look wrong, but overlap between classes may explain most of them "
                f"({by_model}); {called}."
            )
        return f"About {rate:.1%} of the labels look wrong ({by_model}): {called}."

    def class_verdict(self, data: AuditData) -> str:
        """Classes whose share of wrong labels is far above that of all, the worst first; empty if there are none.

        A class stands out with twice the rate of all labels, and with two wrong rows or more by that estimate.
        """
        labels = self.labels
        if not labels.is_predictable:
            return ""
        rows = np.bincount(data.given[data.row >= 0], minlength=len(data.classes))
        right = rows * (1 - labels.class_rates)
        true = right / np.maximum(labels.transition.diagonal(), 1e-9)  # rows that should have the label of a class
        sentences = []
        for rates, counts, sentence in (
            (labels.class_rates, rows, "of the {rows} rows labelled {name!r}, about {rate:.1%} look wrong"),
            (labels.lost_rates, true, "of the rows that should be {name!r}, about {rate:.1%} have another label"),
        ):
            stands_out = (rates >= 2 * labels.noise_rate) & (rates > NEGLIGIBLE) & (rates * counts >= MIN_WRONG)
            for k in np.flatnonzero(stands_out)[np.argsort(-rates[stands_out], kind="stable")][:MAX_CLASSES]:
                sentences.append(sentence.format(rows=rows[k], name=data.classes[k], rate=rates[k]))
        text = "; ".join(sentences)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    def notes(self) -> list[str]:
        if self.labels.contradicted is None:
            return []
        return [
            f"Where neighbours agree most, they contradict {self.labels.contradicted:.1%} of the labels, more than one "
            "training does: either the model has memorised wrong labels, which --thorough avoids, or the features are "
            "too weak. Use better ones then."
        ]

    def _worst_pairs(self, data: AuditData, issues: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """The most frequent corrections."""
        classes, K = data.classes, len(data.classes)
        pairs, counts = np.unique(data.given[issues] * K + self.labels.suggested[issues], return_counts=True)
        worst = np.lexsort((pairs, -counts))[:MAX_PAIRS]
        return [
            {
                "given": classes[pair // K], "suggested": classes[pair % K], "issues": count,
                "probability": round(float(self.labels.transition[pair % K, pair // K]), 6),
            }
            for pair, count in zip(pairs[worst].tolist(), counts[worst].tolist(), strict=True)
        ]  # fmt: skip
