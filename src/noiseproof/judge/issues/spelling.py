"""Classes that are one, spelled differently: other spaces or another case, or a letter more, less
or wrong.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from noiseproof.core.messages import counted
from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    Fix,
    FoundIssue,
    LabelIssues,
    register_issue,
)
from noiseproof.judge.saved import SavedAudit

# that both spellings have at least, where one letter differs: cat and bat are two classes
LETTERS = 4
RARE = 10  # a typo has at most a tenth of the rows of what was meant


class Spelling(NamedTuple):
    """A class that is probably another one, spelled differently."""

    spelling: str
    label: str  # the more frequent one
    rows: int  # of the spelling
    label_rows: int


def find_spellings(counts: Mapping[str, int]) -> list[Spelling]:
    """Pairs of classes that are probably one, by their names and numbers of rows; the most frequent
    ones first.

    >>> find_spellings({"Gentoo": 119, "Gentoo ": 3, "Gentooo": 1, "cat": 50, "bat": 2})
    [Spelling(spelling='Gentoo ', label='Gentoo', rows=3, label_rows=119), \
Spelling(spelling='Gentooo', label='Gentoo', rows=1, label_rows=119)]
    """
    by_form: dict[str, list[str]] = defaultdict(list)
    for name in sorted(counts, key=lambda name: (-counts[name], name != _form(name), name)):
        by_form[_form(name).casefold()].append(name)
    pairs = [(other, names[0]) for names in by_form.values() for other in names[1:]]
    total = {form: sum(counts[name] for name in names) for form, names in by_form.items()}
    meant: dict[str, str] = {}  # form of a typo → the most frequent form next to it
    for rare, frequent in sorted(_neighbours(total), key=lambda pair: -total[pair[1]]):
        if RARE * total[rare] <= total[frequent]:
            meant.setdefault(rare, frequent)
    pairs += [(by_form[rare][0], by_form[frequent][0]) for rare, frequent in meant.items()]
    found = [Spelling(rare, name, counts[rare], counts[name]) for rare, name in pairs]
    return sorted(found, key=lambda pair: (-pair.label_rows, pair.label, -pair.rows, pair.spelling))


def spellings_of(audit: SavedAudit) -> list[Spelling]:
    """Pairs of labels of an audit that are probably one, by its audited rows."""
    words = audit.words
    given = audit.issues["given_label"].tolist()
    rows = Counter(label for word in given for label in words.split(word))
    return find_spellings({name: rows[name] for name in words.names})


def class_spellings(audit: SavedAudit) -> list[Spelling]:
    """Pairs of words of an audit that are probably one class; sets of labels are none."""
    return [] if audit.words.separator else spellings_of(audit)


def _form(name: str) -> str:
    """Return a name without what is hardly seen: composed characters, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def _neighbours(forms: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of forms that differ by one letter, in both directions.

    Two of them are the same, or one of them is the other, once each has lost one letter or none.
    Looking these up takes time in proportion to the number of classes.
    """
    shared: dict[str, list[str]] = defaultdict(list)
    for form in forms:
        if sum(map(str.isalpha, form)) >= LETTERS:
            for shorter in {
                form,
                *(form[:i] + form[i + 1 :] for i, sign in enumerate(form) if sign.isalpha()),
            }:
                shared[shorter].append(form)
    pairs = {
        pair
        for group in shared.values()
        for pair in combinations(group, 2)
        if _by_one_letter(*pair)
    }
    return sorted([*pairs, *((two, one) for one, two in pairs)])


def _by_one_letter(one: str, two: str) -> bool:
    """Return whether a letter is inserted, left out or replaced, and nothing else."""
    begin = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    shorter, longer = sorted((one[begin:], two[begin:]), key=len)
    if len(shorter) == len(longer):
        return shorter[1:] == longer[1:] and shorter[:1].isalpha() and longer[:1].isalpha()
    return longer[1:] == shorter and longer[0].isalpha()


@register_issue("spelling")
class SpellingVariants(FoundIssue):
    """Pairs of classes that differ by case, spaces or one letter (`find_spellings`).

    The score is 0.9, and 0.4 where both are about as frequent: they may be two classes.
    """

    multilabel = True
    remedy = (
        "Answer the question on the review page, or merge them: a letter more may be another class."
    )
    fixes = "Merges the spellings into the more frequent one."

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        audited = data.labels[data.row >= 0]
        what = "label" if audited.are_sets else "class"
        pairs = find_spellings(dict(zip(audited.names, audited.counts.tolist(), strict=True)))
        for spelling, label, rows, label_rows in pairs:
            is_rare = 0 < 2 * rows <= label_rows
            yield Finding(
                f"{what} {spelling!r}",
                0.9 if is_rare else 0.8 * NEEDS_ACTION,
                f"{spelling!r} ({counted(rows, 'row')}) is probably {label!r}"
                f" ({counted(label_rows, 'row')}), spelled differently.",
                Bars("rows by spelling", [(label, label_rows), (spelling, rows)], "rows", (1,)),
            )

    @classmethod
    def fix(cls, audit: SavedAudit) -> Fix:
        becomes = {pair.spelling: pair.label for pair in spellings_of(audit)}
        for spelling, label in becomes.items():  # a typo of a spelling becomes what that becomes
            while label in becomes:
                label = becomes[label]
            becomes[spelling] = label
        words = audit.words
        # sets that no row may have yet
        chosen = (one.label for one in audit.decided.values() if one.names_label)
        merged = {}
        for word in (*audit.classes, *chosen):
            labels = words.split(word)
            if not becomes.keys().isdisjoint(labels):
                merged[word] = words.join(
                    dict.fromkeys(becomes.get(label, label) for label in labels)
                )
        return Fix(becomes=merged, labels=becomes)
