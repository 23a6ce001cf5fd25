"""Classes that are one, spelled differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.audit.issues.base import NEEDS_ACTION, Bars, Finding, Fix, FoundIssue, register_issue
from noiseproof.audit.sets import split_set
from noiseproof.audit.spellings import find_spellings, set_spellings_of, spellings_of
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.audit.evidence.gather import AuditEvidence
    from noiseproof.audit.files import Audit
    from noiseproof.audit.labels import LabelIssues


@register_issue("spelling")
class SpellingVariants(FoundIssue):
    """Pairs of classes that differ by case, spaces or one letter (`find_spellings`).

    The score is 0.9, and 0.4 where both are about as frequent: they may be two classes.
    """

    multilabel = True
    remedy = "Answer the question on the review page, or merge them: a letter more may be another class."
    fixes = "Merges the spellings into the more frequent one."

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> SpellingVariants:
        data = evidence.data
        if data.sets is None:
            names, counts = data.classes, np.bincount(data.given[data.row >= 0], minlength=len(data.classes))
        else:
            names, counts = data.sets.names, data.answers[data.row >= 0].sum(0)
        what = "class" if data.sets is None else "label"
        pairs = find_spellings(dict(zip(names, counts.tolist(), strict=True)))
        return cls.of(data, [
            Finding(
                f"{what} {pair.spelling!r}", 0.9 if 0 < 2 * pair.rows <= pair.label_rows else 0.8 * NEEDS_ACTION,
                f"{pair.spelling!r} ({counted(pair.rows, 'row')}) is probably {pair.label!r} "
                f"({counted(pair.label_rows, 'row')}), spelled differently.",
                Bars("rows by spelling", [(pair.label, pair.label_rows), (pair.spelling, pair.rows)], "rows", (1,)),
            )
            for pair in pairs
        ])  # fmt: skip

    @classmethod
    def fix(cls, audit: Audit) -> Fix:
        multi = audit.config.get("multi_label")
        pairs = set_spellings_of(audit) if multi else spellings_of(audit)
        becomes = {pair.spelling: pair.label for pair in pairs}
        for spelling, label in becomes.items():  # a typo of a spelling becomes what that becomes
            while label in becomes:
                label = becomes[label]
            becomes[spelling] = label
        labels = becomes if multi else {}
        if multi:
            chosen = (one.label for one in audit.decided.values() if one.names_label)  # sets that no row may have yet
            becomes = _merged_sets([*audit.classes, *chosen], multi, becomes)
        return Fix(becomes=becomes, labels=labels)


def _merged_sets(words: Sequence[str], multi: Mapping[str, Any], becomes: Mapping[str, str]) -> dict[str, str]:
    """The words of sets that have a label spelled differently, and what they become."""
    merged = {}
    for word in words:
        labels = split_set(word, multi["separator"])
        if not becomes.keys().isdisjoint(labels):
            merged[word] = multi["joiner"].join(dict.fromkeys(becomes.get(label, label) for label in labels))
    return merged
