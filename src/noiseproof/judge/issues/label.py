"""Labels that are wrong, with the label they should have, and why they are called wrong; also for
rows with several labels.

A reason is made of evidence for the verdict. Annotators or a model who disagree with it are named
after "although".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.arrays import Bools, Floats32, Ints
from noiseproof.core.messages import Json, quoted
from noiseproof.judge.interval import NEGLIGIBLE
from noiseproof.judge.issues.base import (
    AuditEvidence,
    Issue,
    LabelIssues,
    Rows,
    register_issue,
    rounded,
)

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.data.votes import Votes
    from noiseproof.judge.labelissues import LabelSetIssues

TRUSTED = "The label is trusted."
AGREES = "The evidence agrees with the label."
OUTWEIGHED = "The model prefers another label, but the rest of the evidence supports this one."
NOT_ENOUGH = "Another label is likelier, but not by enough to call this one wrong."
GENERAL = (AGREES, OUTWEIGHED, NOT_ENOUGH)  # of labels that are not called wrong
HALF = 50  # per cent
MOST = 75
MAX_REASONS = 3  # in a sentence
MAX_NAMES = 3
LARGEST_MATRIX = 200
MAX_PAIRS = 20
MAX_CLASSES = 3  # named in the verdict
MIN_WRONG = 2.0  # wrong rows of a class that is named, at least
NUMBERS = (
    "margin",
    "neighbour_agreement",
    "confidence",
    "suggested_confidence",
    "unlearned",
    "doubt",
)
MAX_NAMED = 5  # labels of a row in a sentence


def general_sentences(
    quality: NDArray[np.floating],
    suggestion_quality: NDArray[np.floating],
    is_predicted: Bools,
) -> NDArray[np.object_]:
    """Return sentences on labels that are not called wrong, (N,), by the probability of the given
    and of the suggested label.

    ``is_predicted`` says whether the model, without annotators and class confusions, predicts the
    given label.
    """
    is_unlikely = np.round(quality, 6) < np.round(suggestion_quality, 6)
    chosen = np.select([is_unlikely, is_predicted], [2, 0], 1)
    return np.asarray(np.array(GENERAL, dtype=object)[chosen])


@dataclass(frozen=True)
class RowEvidence:
    """What is known of a row whose label is called wrong; numbers are per cent, None where there is
    none.
    """

    given: str
    suggested: str
    confidence: int  # the model's, in the given label
    other: int  # and in the suggested one
    agreement: int | None = None  # of its neighbours
    unlearned: int | None = None  # epochs in which the given label was not predicted
    doubt: int | None = None  # noise that the model's head predicts
    # annotators of the given label, of the suggested one, and in all
    votes: tuple[int, int, int] | None = None
    # whether annotators of the suggested label outweigh annotators of the given one
    is_reliable: bool = False
    # of annotators of the given label, and of the suggested one
    names: tuple[Sequence[str], Sequence[str]] = ((), ())

    def sentence(self) -> str:
        """Return the reason, without a full stop."""
        given = quoted(self.given)
        suggested = quoted(self.suggested)
        reasons, doubts = self._from_annotators(given, suggested)
        it = "it" if reasons else "this"
        if self.other > self.confidence:
            reasons.append(
                f"{it} looks like {suggested} ({self.other} %) rather than {given}"
                f" ({self.confidence} %)"
            )
        elif self.confidence > self.other:
            doubts.append(f"it looks more like {given} ({self.confidence} %)")
        reasons += self._from_training(given)
        if not reasons:
            reasons = [f"the label is not certain: this may be {suggested} ({self.other} %)"]
        text = "; ".join(reasons[:MAX_REASONS])
        if doubts:
            text += f", although {' and '.join(doubts)}"
        for label in (self.given, self.suggested):  # a remark on spaces is made once
            first, name, rest = text.partition(quoted(label))
            text = first + name + rest.replace(quoted(label), repr(label))
        return text[0].upper() + text[1:]

    def _from_annotators(self, given: str, suggested: str) -> tuple[list[str], list[str]]:
        """Return what annotators say for the verdict, and against it."""
        if self.votes is None or not self.votes[2]:
            return [], []
        for_given, for_suggested, total = self.votes
        suggesting = _say(for_suggested, total, suggested, self.names[1])
        if for_suggested > for_given:
            return [suggesting], []
        if for_suggested and self.is_reliable:
            verb = "is" if for_suggested == 1 else "are"
            others = "the one who says" if for_given == 1 else "those who say"
            return [f"{suggesting} and {verb} more reliable than {others} {given}"], []
        if for_given:
            return [], [_say(for_given, total, given, self.names[0])]
        if total > 1:
            return [f"none of {total} annotators says {given}"], []
        return [f"the annotator does not say {given}"], []

    def _from_training(self, given: str) -> list[str]:
        """Return what neighbours and the training add, where they support the verdict."""
        parts = []
        if self.agreement == 0:
            parts.append(f"none of the most similar rows is labelled {given}")
        elif self.agreement is not None and self.agreement < HALF:
            parts.append(f"only {self.agreement} % of the most similar rows are labelled {given}")
        unlearned = self.unlearned or 0
        if self.other > self.confidence and unlearned >= HALF:
            took = "mostly took it for something else"
            if unlearned >= MOST:
                took = f"{'never' if unlearned == 100 else 'rarely'} took it for {given}"
            parts.append(f"while learning, the model {took}")
        if self.doubt is not None and self.doubt >= HALF:
            parts.append("rows like this are hard to label")
        return parts


def _say(count: int, total: int, label: str, names: Sequence[str] = ()) -> str:
    """Return how many annotators chose a label, and who.

    >>> _say(2, 3, "'dog'"), _say(3, 3, "'dog'"), _say(1, 1, "'dog'")
    ("2 of 3 annotators say 'dog'", "all 3 annotators say 'dog'", "the annotator says 'dog'")
    >>> _say(2, 3, "'dog'", ["ann", "bob"]), _say(4, 9, "'dog'", ["ann", "bob", "cid", "dan"])
    ("2 of 3 annotators say 'dog' (ann, bob)", "4 of 9 annotators say 'dog' (ann, bob, cid …)")
    """
    if names:
        who = ", ".join(names[:MAX_NAMES])
        if len(names) > MAX_NAMES:
            who += " …"
        return f"{_say(count, total, label)} ({who})"
    if count == total == 1:
        return f"the annotator says {label}"
    if count == total:
        return f"{'both' if total == 2 else f'all {total}'} annotators say {label}"
    return f"{count} of {total} annotators {'says' if count == 1 else 'say'} {label}"


def explain_issues(labels: LabelIssues, data: Rows, rows: Ints) -> list[str]:
    """Return why the labels of ``rows`` are called wrong."""
    names = np.array(data.classes, dtype=object)
    shares = (
        labels.confidence,
        labels.suggested_confidence,
        labels.neighbour_agreement,
        labels.unlearned,
        labels.doubt,
    )
    columns = [
        names[data.given[rows]].tolist(),
        names[labels.suggested[rows]].tolist(),
        *(_percent(values, rows) for values in shares),
    ]
    if data.labels.votes is not None:
        columns += _count_votes(labels, data, data.labels.votes, rows)
    return [RowEvidence(*values).sentence() for values in zip(*columns, strict=True)]


def _count_votes(labels: LabelIssues, data: Rows, annotators: Votes, rows: Ints) -> list[list[Any]]:
    """Return for each row how many annotators say the given and the suggested label and how many
    there are, whether the latter outweigh the former, and the names of both.
    """
    votes = annotators[rows]
    given = data.given[rows][votes.row]
    suggested = labels.suggested[rows][votes.row]
    outweighed = np.zeros(len(rows))
    if labels.judge is not None and labels.judge.annotators is not None:
        log_p = labels.judge.annotators.confusion.log().numpy()
        for_suggested = log_p[votes.annotator, suggested, votes.label]
        for_given = log_p[votes.annotator, given, votes.label]
        outweighed += np.bincount(votes.row, for_suggested - for_given, len(rows))
    names = np.array(votes.names, dtype=object)[votes.annotator]

    def named(says: Bools) -> list[list[str]]:
        ends = np.searchsorted(votes.row[says], np.arange(1, len(rows)))
        return [part.tolist() for part in np.split(names[says], ends)[: len(rows)]]

    who = [*zip(named(votes.label == given), named(votes.label == suggested), strict=True)]
    total = np.diff(votes.first).tolist()
    counts = [(len(a), len(b), n) for (a, b), n in zip(who, total, strict=True)]
    return [counts, (outweighed > 0).tolist(), who]


def _percent(values: Floats32 | None, rows: Ints) -> list[int | None]:
    """Return integer percentages of ``rows``, None where there is no number."""
    if values is None:
        return [None] * len(rows)
    return [round(100 * share) if np.isfinite(share) else None for share in values[rows].tolist()]


@register_issue("label")
@dataclass(frozen=True, eq=False, repr=False)
class WrongLabels(Issue):
    """Labels whose quality is below the cut of their class."""

    labels: LabelIssues

    assumption: ClassVar[str | None] = (
        "The share of wrong labels is estimated as in other data with real mistakes"
    )
    multilabel = True
    flag = "is_label_issue"
    remedy = (
        "Decide in `noiseproof review`: take the suggested label, keep the given one, or choose"
        " another."
    )

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> WrongLabels:
        from noiseproof.judge.labelissues import LabelSetIssues

        return WrongLabelSets(labels) if isinstance(labels, LabelSetIssues) else cls(labels)

    @property
    def mask(self) -> Bools:
        return self.labels.is_issue

    def columns(self, data: Rows, rows: Ints) -> Json:
        import pandas as pd

        classes = pd.Index(data.classes, dtype=object)

        def named(codes: Ints) -> pd.Categorical[str]:
            return pd.Categorical.from_codes(codes[rows], categories=classes)

        labels = self.labels
        columns = {
            self.flag: labels.is_issue[rows],
            "label_quality": rounded(labels.quality, rows),
            "given_label": named(data.given),
            "predicted_label": named(labels.predicted),
            "suggested_label": named(labels.suggested),
            "suggestion_quality": rounded(labels.suggestion_quality, rows),
            "model_quality": rounded(labels.quality, rows),
            "model_suggestion_quality": rounded(labels.suggestion_quality, rows),
            **{name: rounded(getattr(labels, name), rows) for name in NUMBERS},
        }
        if data.labels.votes is not None:
            columns["consensus_label"] = named(labels.consensus(data.given))
        return columns

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        return explain_issues(self.labels, data, rows)

    def summary(self, data: Rows) -> Json:
        labels = self.labels
        is_audited = data.row >= 0
        issues = self.mask & is_audited
        row_counts = np.bincount(data.given[is_audited], minlength=len(data.classes)).tolist()
        issue_counts = np.bincount(data.given[issues], minlength=len(data.classes)).tolist()
        classes = [
            {
                "name": name,
                "rows": row_counts[k],
                "issues": issue_counts[k],
                "cut": float(labels.cut[k]),
                "noise_rate": round(float(labels.class_rates[k]), 6),
            }
            for k, name in enumerate(data.classes)
        ]
        transition = None
        if len(classes) <= LARGEST_MATRIX:
            transition = np.round(labels.transition, 6).tolist()
        return {
            "issues": int(issues.sum()),
            **self._of_all(data, int(issues.sum()), int(is_audited.sum())),
            "classes": classes,
            "transition": transition,
            "worst_pairs": worst_pairs(
                data.classes, data.given[issues], labels.suggested[issues], labels.transition
            ),
        }

    def _of_all(self, data: Rows, issues: int, asked: int) -> Json:
        """Return the entries of a summary on all of the ``asked`` labels, of which ``issues`` are
        called wrong.
        """
        labels = self.labels
        low, high = labels.noise_interval
        verdicts = (self.verdict(issues, asked), self.class_verdict(data))
        return {
            "labels_look_fine": labels.looks_fine,
            "verdict": " ".join(filter(None, verdicts)),
            "assumption": self.assumption if labels.is_predictable else None,
            "noise_rate": {"estimate": labels.noise_rate, "low": low, "high": high},
            "false_positive_rate": labels.false_positive_rate,
        }

    def verdict(self, issues: int, rows: int) -> str:
        """Return what the model concludes about all labels, with the estimate of the noise rate,
        and classes that differ.
        """
        labels = self.labels
        rate = labels.noise_rate
        low, high = labels.noise_interval
        if not labels.is_predictable:
            return (
                "The labels are hardly predictable from the features, so none can be called wrong,"
                f" and the estimate of {rate:.1%} wrong ones means little: predictions match"
                f" {labels.hit_rate:.1%} of the labels, {labels.chance_rate:.1%} would match by"
                " chance. Check the columns, or give better features."
            )
        bounds = f"at least {low:.1%}, at most {high:.1%}"
        called = f"{issues} of {rows} are called issues"
        if labels.is_undecided:
            return (
                f"One training can't decide whether the labels are fine: about {rate:.1%} look"
                f" wrong ({bounds}); {called}."
            )
        if labels.looks_fine:
            alarms = f"; {called}, errors or false alarms" if issues else ""
            return (
                f"The labels look fine: about {rate:.1%} wrong ({bounds}){alarms} "
                f"(expected share of right labels called issues: {labels.false_positive_rate:.2%})."
            )
        if labels.may_be_fine:
            return (
                f"Probably about {rate:.1%} of the labels are wrong, as in other data like this"
                f" ({bounds}), but predictions alone can't show it: if nothing is wrong, overlap"
                f" between classes explains them all; {called}."
            )
        return f"About {rate:.1%} of the labels look wrong ({bounds}): {called}."

    def class_verdict(self, data: Rows) -> str:
        """Classes whose share of wrong labels is far above average, the worst first; empty if there
        are none.

        A class stands out with twice the rate of all labels, and with two wrong rows or more by
        that estimate.
        """
        return self._name_outstanding(
            np.bincount(data.given[data.row >= 0], minlength=len(data.classes)),
            [*map(repr, data.classes)],
            "of the {rows} rows labelled {name}, about {rate:.1%} look wrong",
            "of the rows that should be {name}, about {rate:.1%} have another label",
        )

    def _name_outstanding(self, given: Ints, names: Sequence[str], wrong: str, lost: str) -> str:
        """Sentences on classes (K,), ``given`` so often, whose labels are ``wrong`` or ``lost`` far
        above average.
        """
        labels = self.labels
        if not labels.is_predictable:
            return ""
        # rows that should have it
        true = given * (1 - labels.class_rates) / np.maximum(1 - labels.lost_rates, 1e-9)
        sentences = []
        for rates, counts, sentence in (
            (labels.class_rates, given, wrong),
            (labels.lost_rates, true, lost),
        ):
            stands_out = (
                (rates >= 2 * labels.noise_rate)
                & (rates > NEGLIGIBLE)
                & (rates * counts >= MIN_WRONG)
            )
            for k in np.flatnonzero(stands_out)[np.argsort(-rates[stands_out], kind="stable")][
                :MAX_CLASSES
            ]:
                sentences.append(sentence.format(rows=given[k], name=names[k], rate=rates[k]))
        text = "; ".join(sentences)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    def notes(self) -> list[str]:
        if self.labels.contradicted is None:
            return []
        return [
            f"Where neighbours agree most, they contradict {self.labels.contradicted:.1%} of the"
            " labels, more than a single training does: either the model has memorised wrong"
            " labels, which --thorough avoids, or the features are too weak. Use better ones"
            " then."
        ]


def worst_pairs(
    classes: Sequence[str], given: Ints, suggested: Ints, transition: Any
) -> list[Json]:
    """Return the pairs of labels of issues, by their numbers, that are most frequent."""
    counts = Counter(zip(given.tolist(), suggested.tolist(), strict=True))
    worst = sorted(counts, key=lambda pair: (-counts[pair], pair))[:MAX_PAIRS]
    return [
        {
            "given": classes[k],
            "suggested": classes[other],
            "issues": counts[k, other],
            "probability": None if transition is None else round(float(transition[other][k]), 6),
        }
        for k, other in worst
    ]


@dataclass(frozen=True, eq=False, repr=False)
class WrongLabelSets(WrongLabels):
    """Rows with a label too many or one too few."""

    labels: LabelSetIssues

    assumption = None

    def columns(self, data: Rows, rows: Ints) -> Json:
        joiner = data.labels.joiner
        changes = [self.labels.changes(row) for row in rows.tolist()]
        return super().columns(data, rows) | {
            "add_labels": [joiner.join(add) for add, _ in changes],
            "remove_labels": [joiner.join(remove) for _, remove in changes],
        }

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        return [self._sentence(row) for row in rows.tolist()]

    def _sentence(self, row: int) -> str:
        add, remove = self.labels.changes(row)
        parts = []
        if add:
            parts.append(f"lacks {self._listed(row, add)}")
        if remove:
            parts.append(f"has {self._listed(row, remove)} by mistake")
        return f"This probably {' and '.join(parts)}"

    def _listed(self, row: int, names: Sequence[str]) -> str:
        """Return labels with the predictions' probability that the row should have them."""
        probs = dict(zip(self.labels.names, self.labels.label_probs[row].tolist(), strict=True))
        shown = [f"{quoted(name)} ({round(100 * probs[name])} %)" for name in names[:MAX_NAMED]]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return ", ".join(shown) + more

    def summary(self, data: Rows) -> Json:
        labels = self.labels
        is_audited = data.row >= 0
        issues = labels.label_is_issue & is_audited[:, None]
        answers = labels.answers & is_audited[:, None]
        return {
            "issues": int((self.mask & is_audited).sum()),
            "label_issues": int(issues.sum()),
            **self._of_all(data, int(issues.sum()), int(is_audited.sum()) * len(labels.names)),
            "classes": [
                {
                    "name": name,
                    "rows": int(answers[:, k].sum()),
                    "issues": int((issues & answers)[:, k].sum()),
                    "missing": int((issues & ~answers)[:, k].sum()),
                    "cut": float(labels.cut[k, 1]),
                    "noise_rate": round(float(labels.class_rates[k]), 6),
                    "missing_rate": round(float(labels.lost_rates[k]), 6),
                }
                for k, name in enumerate(labels.names)
            ],
            "transition": None,
            "worst_pairs": [],
        }

    def class_verdict(self, data: Rows) -> str:
        return self._name_outstanding(
            self.labels.answers[data.row >= 0].sum(0),
            [*map(quoted, self.labels.names)],
            "of the {rows} rows with {name}, about {rate:.1%} should not have it",
            "of the rows that should have {name}, about {rate:.1%} lack it",
        )

    def notes(self) -> list[str]:
        return []
