"""Classes with too few rows."""

import numpy as np

from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    register_issue,
)

RARE = 0.1  # share of an even one below which a class is rare
FEW = 10  # rows below which a class is rare, whatever its share: two for each of five folds
MOST_BARS = 20


@register_issue("imbalance")
class RareClasses(FoundIssue):
    """Classes with less than a tenth of an even share of the rows, N / (10 K), or fewer than ten
    rows.

    The score is 1 − 0.5·(rows / the number below which a class is rare), and 0.4 where predictions
    find at least half of the class in spite of that.
    """

    remedy = "Collect more rows of these classes, merge them with others, or judge models by class."

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        is_audited = data.row >= 0
        K = len(data.classes)
        given = data.given[is_audited]
        counts = np.bincount(given, minlength=K)
        found = np.bincount(given[labels.predicted[is_audited] == given], minlength=K)
        present = np.flatnonzero(counts)
        even = len(given) / max(1, len(present))
        limit = max(RARE * even, FEW)
        # from the smallest class on, so that rare classes have the first bars
        shown = present[np.argsort(counts[present], kind="stable")][:MOST_BARS]
        num_rare = int((counts[shown] < limit).sum())
        is_complete = len(shown) == len(present)
        bars = Bars(
            "rows of each class" if is_complete else f"rows of the {MOST_BARS} smallest classes",
            [(data.classes[k], int(counts[k])) for k in shown.tolist()],
            "rows",
            range(num_rare),
        )
        for k in present[counts[present] < limit].tolist():
            is_learned = 2 * found[k] >= counts[k]
            yield Finding(
                f"class {data.classes[k]!r}",
                0.8 * NEEDS_ACTION if is_learned else 1 - 0.5 * counts[k] / limit,
                f"Class {data.classes[k]!r} has {counts[k]} of {len(given)} rows, where an even"
                f" share is {even:.0f}; predictions find {found[k]} of them.",
                bars,
            )
