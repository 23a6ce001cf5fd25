"""Classes that are one, spelled differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from noiseproof.audit.issues.base import NEEDS_ACTION, Bars, Finding, Fix, FoundIssue, register_issue
from noiseproof.audit.spellings import find_spellings, spellings_of

if TYPE_CHECKING:
    from noiseproof.audit.evidence.gather import AuditEvidence
    from noiseproof.audit.files import Audit
    from noiseproof.audit.labels import LabelIssues


@register_issue("spelling")
class SpellingVariants(FoundIssue):
    """Pairs of classes that differ by case, spaces or one letter (`find_spellings`).

    The score is 0.9, and 0.4 where both are about as frequent: they may be two classes.
    """

    remedy = "Answer the question on the review page: a letter more may be another class."
    fixes = "Merges the spellings into the more frequent one."

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> SpellingVariants:
        data = evidence.data
        counts = np.bincount(data.given[data.row >= 0], minlength=len(data.classes)).tolist()
        pairs = find_spellings(dict(zip(data.classes, counts, strict=True)))
        return cls.of(data, [
            Finding(
                f"class {pair.spelling!r}", 0.9 if 0 < 2 * pair.rows <= pair.label_rows else 0.8 * NEEDS_ACTION,
                f"{pair.spelling!r} ({pair.rows} rows) is probably {pair.label!r} ({pair.label_rows} rows), "
                "spelled differently.",
                Bars("rows by spelling", [(pair.label, pair.label_rows), (pair.spelling, pair.rows)], "rows", (1,)),
            )
            for pair in pairs
        ])  # fmt: skip

    @classmethod
    def fix(cls, audit: Audit) -> Fix:
        becomes = {pair.spelling: pair.label for pair in spellings_of(audit)}
        for spelling, label in becomes.items():  # a typo of a spelling becomes what that becomes
            while label in becomes:
                label = becomes[label]
            becomes[spelling] = label
        return Fix(becomes=becomes)
