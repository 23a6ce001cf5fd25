"""Labels that are wrong, with the label they should have, and why they are called wrong; also of
several a row.

A reason is made of evidence for the verdict. Annotators or a model who disagree with it are named
after "although".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.messages import quoted
from noiseproof.judge.interval import NEGLIGIBLE
from noiseproof.judge.issues.base import Issue, register_issue, rounded

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.data.rows import Rows
    from noiseproof.judge.evidence.gather import AuditEvidence
    from noiseproof.judge.labelissues import LabelIssues, LabelSetIssues

TRUSTED = "The label is trusted."
AGREES = "The evidence agrees with the label."
OUTWEIGHED = "The model prefers another label, but the rest of the evidence supports this one."
NOT_ENOUGH = "Another label is likelier, but not by enough to call this one wrong."
GENERAL = (AGREES, OUTWEIGHED, NOT_ENOUGH)  # of labels that are not called wrong
HALF, MOST = 50, 75  # per cent
MAX_REASONS, MAX_NAMES = 3, 3  # in a sentence
LARGEST_MATRIX, MAX_PAIRS = 200, 20
MAX_CLASSES, MIN_WRONG = 3, 2.0  # named in the verdict, and their wrong rows at least
MAX_NAMED = 5  # labels of a row in a sentence
ASSUMPTION = "The share of wrong labels is estimated as in other data with real mistakes"


def general_sentences(
    quality: NDArray[np.floating],
    suggestion_quality: NDArray[np.floating],
    is_predicted: NDArray[np.bool_],
) -> NDArray[np.object_]:
    """Of labels that are not called wrong, (N,), by the probability of the given and of the
    suggested label.

    ``is_predicted`` says whether the model, without annotators and class confusions, predicts the
    given label.
    """
    is_unlikely = np.round(quality, 6) < np.round(suggestion_quality, 6)
    sentences: NDArray[np.object_] = np.array(GENERAL, dtype=object)[
        np.select([is_unlikely, is_predicted], [2, 0], 1)
    ]
    return sentences


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
    # whether annotators of the suggested label outweigh those of the given one
    is_reliable: bool = False
    # of annotators of the given label, and of the suggested one
    names: tuple[Sequence[str], Sequence[str]] = ((), ())

    def sentence(self) -> str:
        """The reason, without a full stop."""
        reasons, doubts = self._from_annotators()
        for part, against in (
            self._from_model(is_first=not reasons),
            *((part, "") for part in self._from_training()),
        ):
            reasons += [part] if part else []
            doubts += [against] if against else []
        if not reasons:
            reasons = [f"the label is not certain: this may be {self._suggested} ({self.other} %)"]
        text = "; ".join(reasons[:MAX_REASONS]) + (
            f", although {' and '.join(doubts)}" if doubts else ""
        )
        for label in (self.given, self.suggested):  # a remark on spaces is made once
            first, name, rest = text.partition(quoted(label))
            text = first + name + rest.replace(quoted(label), repr(label))
        return text[0].upper() + text[1:]

    @property
    def _given(self) -> str:
        return quoted(self.given)

    @property
    def _suggested(self) -> str:
        return quoted(self.suggested)

    def _from_annotators(self) -> tuple[list[str], list[str]]:
        """What annotators say for the verdict, and against it."""
        if self.votes is None or not self.votes[2]:
            return [], []
        for_given, for_suggested, total = self.votes
        suggesting = _say(for_suggested, total, self._suggested, self.names[1])
        if for_suggested > for_given:
            return [suggesting], []
        if for_suggested and self.is_reliable:
            verb = "is" if for_suggested == 1 else "are"
            others = (
                f"the one who says {self._given}"
                if for_given == 1
                else f"those who say {self._given}"
            )
            return [f"{suggesting} and {verb} more reliable than {others}"], []
        if not for_given:
            return [
                (
                    f"none of {total} annotators says {self._given}"
                    if total > 1
                    else f"the annotator does not say {self._given}"
                )
            ], []
        return [], [_say(for_given, total, self._given, self.names[0])]

    def _from_model(self, *, is_first: bool) -> tuple[str, str]:
        """What the model says for the verdict, or against it."""
        it = "this" if is_first else "it"
        if self.other > self.confidence:
            return (
                (
                    f"{it} looks like {self._suggested} ({self.other} %) rather than {self._given}"
                    f" ({self.confidence} %)"
                ),
                "",
            )
        return (
            "",
            (
                f"it looks more like {self._given} ({self.confidence} %)"
                if self.confidence > self.other
                else ""
            ),
        )

    def _from_training(self) -> Sequence[str]:
        """What neighbours and the training add, where they support the verdict."""
        parts = []
        if self.agreement is not None and self.agreement < HALF:
            share = (
                f"only {self.agreement} % of the most similar rows are"
                if self.agreement
                else ("none of the most similar rows is")
            )
            parts.append(f"{share} labelled {self._given}")
        if self.other > self.confidence and self.unlearned is not None and self.unlearned >= HALF:
            rarely = f"{'never' if self.unlearned == 100 else 'rarely'} took it for {self._given}"
            parts.append(
                "while learning, the model"
                f" {rarely if self.unlearned >= MOST else 'mostly took it for something else'}"
            )
        if self.doubt is not None and self.doubt >= HALF:
            parts.append("rows like this are hard to label")
        return parts


def _say(count: int, total: int, label: str, names: Sequence[str] = ()) -> str:
    """How many annotators chose a label, and who.

    >>> _say(2, 3, "'dog'"), _say(3, 3, "'dog'"), _say(1, 1, "'dog'")
    ("2 of 3 annotators say 'dog'", "all 3 annotators say 'dog'", "the annotator says 'dog'")
    >>> _say(2, 3, "'dog'", ["ann", "bob"]), _say(4, 9, "'dog'", ["ann", "bob", "cid", "dan"])
    ("2 of 3 annotators say 'dog' (ann, bob)", "4 of 9 annotators say 'dog' (ann, bob, cid …)")
    """
    if names:
        who = ", ".join(names[:MAX_NAMES]) + " …" * (len(names) > MAX_NAMES)
        return f"{_say(count, total, label)} ({who})"
    if count == total == 1:
        return f"the annotator says {label}"
    if count == total:
        return f"{'both' if total == 2 else f'all {total}'} annotators say {label}"
    return f"{count} of {total} annotators {'says' if count == 1 else 'say'} {label}"


def explain_issues(labels: LabelIssues, data: Rows, rows: NDArray[np.int64]) -> list[str]:
    names = np.array(data.classes, dtype=object)
    shares = (
        labels.confidence,
        labels.suggested_confidence,
        labels.neighbour_agreement,
        labels.unlearned,
        labels.doubt,
    )
    columns = (
        names[data.given[rows]].tolist(),
        names[labels.suggested[rows]].tolist(),
        *(_percent(values, rows) for values in shares),
        *_count_votes(labels, data, rows),
    )
    return [RowEvidence(*values).sentence() for values in zip(*columns, strict=True)]


def _count_votes(
    labels: LabelIssues, data: Rows, rows: NDArray[np.int64]
) -> tuple[list[tuple[int, int, int] | None], list[bool], list[tuple[list[str], list[str]]]]:
    """Annotators of the given and of the suggested label and in all; whether the former are
    outweighed; their names.
    """
    who: list[tuple[list[str], list[str]]] = [([], []) for _ in rows]
    if data.labels.votes is None:
        return [None] * len(rows), [False] * len(rows), who
    votes, given, suggested = data.labels.votes[rows], data.given[rows], labels.suggested[rows]
    for_given, for_suggested = votes.label == given[votes.row], votes.label == suggested[votes.row]
    counts = [
        np.bincount(votes.row[mask], minlength=len(rows))
        for mask in (for_given, for_suggested, slice(None))
    ]
    for mask, which in ((for_given, 0), (for_suggested, 1)):
        for row, annotator in zip(
            votes.row[mask].tolist(), votes.annotator[mask].tolist(), strict=True
        ):
            who[row][which].append(votes.names[annotator])
    outweighed = np.zeros(len(rows))
    if labels.judge is not None and labels.judge.annotators is not None:
        log_p = labels.judge.annotators.confusion.log().numpy()
        evidence = log_p[votes.annotator, suggested[votes.row], votes.label]
        evidence -= log_p[votes.annotator, given[votes.row], votes.label]
        np.add.at(outweighed, votes.row, evidence)
    return [(a, b, c) for a, b, c in np.stack(counts, 1).tolist()], (outweighed > 0).tolist(), who


def _percent(values: NDArray[np.float32] | None, rows: NDArray[np.int64]) -> list[int | None]:
    """Integer percentages of ``rows``, None where there is no number."""
    if values is None:
        return [None] * len(rows)
    shares = values[rows]
    is_known = np.isfinite(shares)
    percents = np.rint(100 * np.where(is_known, shares, 0)).astype(int).tolist()
    return [
        percent if known else None
        for percent, known in zip(percents, is_known.tolist(), strict=True)
    ]


@register_issue("label")
@dataclass(frozen=True, eq=False, repr=False)
class WrongLabels(Issue):
    """Labels whose quality is below the cut of their class."""

    labels: LabelIssues

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
    def mask(self) -> NDArray[np.bool_]:
        return self.labels.is_issue

    def columns(self, data: Rows, rows: NDArray[np.int64]) -> dict[str, Any]:
        import pandas as pd

        classes = pd.Index(data.classes, dtype=object)

        def named(codes: NDArray[np.int64]) -> pd.Categorical[str]:
            return pd.Categorical.from_codes(codes[rows], categories=classes)

        labels, voted = self.labels, {}
        if data.labels.votes is not None:
            voted["consensus_label"] = named(labels.consensus(data.given))
        numbers = (
            "margin",
            "neighbour_agreement",
            "confidence",
            "suggested_confidence",
            "unlearned",
            "doubt",
        )
        return {
            self.flag: labels.is_issue[rows],
            "label_quality": rounded(labels.quality, rows),
            "given_label": named(data.given),
            "predicted_label": named(labels.predicted),
            "suggested_label": named(labels.suggested),
            "suggestion_quality": rounded(labels.suggestion_quality, rows),
            "model_quality": rounded(labels.quality, rows),
            "model_suggestion_quality": rounded(labels.suggestion_quality, rows),
            **{name: rounded(getattr(labels, name), rows) for name in numbers},
            **voted,
        }

    def explain(self, data: Rows, rows: NDArray[np.int64]) -> list[str]:
        return explain_issues(self.labels, data, rows)

    def summary(self, data: Rows) -> dict[str, Any]:
        labels, K = self.labels, len(data.classes)
        is_audited = data.row >= 0
        issues = self.mask & is_audited
        row_counts, issue_counts = (
            np.bincount(data.given[mask], minlength=K).tolist() for mask in (is_audited, issues)
        )
        return {
            "issues": int(issues.sum()),
            **self._of_all(data, int(issues.sum()), int(is_audited.sum())),
            "classes": [
                {
                    "name": name,
                    "rows": row_counts[k],
                    "issues": issue_counts[k],
                    "cut": float(labels.cut[k]),
                    "noise_rate": round(float(labels.class_rates[k]), 6),
                }
                for k, name in enumerate(data.classes)
            ],
            "transition": np.round(labels.transition, 6).tolist() if K <= LARGEST_MATRIX else None,
            "worst_pairs": self._worst_pairs(data, issues),
        }

    def _of_all(self, data: Rows, issues: int, asked: int) -> dict[str, Any]:
        """The entries of a summary on all of the ``asked`` labels, of which ``issues`` are called
        wrong.
        """
        labels, (low, high) = self.labels, self.labels.noise_interval
        return {
            "labels_look_fine": labels.looks_fine,
            "verdict": " ".join(
                filter(None, (self.verdict(issues, asked), self.class_verdict(data)))
            ),
            "assumption": ASSUMPTION
            if labels.is_predictable and not data.labels.are_sets
            else None,
            "noise_rate": {"estimate": labels.noise_rate, "low": low, "high": high},
            "false_positive_rate": labels.false_positive_rate,
        }

    def verdict(self, issues: int, rows: int) -> str:
        """What the model concludes about all labels, with the estimate of the noise rate, and
        classes that differ.
        """
        labels, rate, (low, high) = self.labels, self.labels.noise_rate, self.labels.noise_interval
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
        """Classes whose share of wrong labels is far above that of all, the worst first; empty if
        there are none.

        A class stands out with twice the rate of all labels, and with two wrong rows or more by
        that estimate.
        """
        return self._name_outstanding(
            np.bincount(data.given[data.row >= 0], minlength=len(data.classes)),
            [*map(repr, data.classes)],
            "of the {rows} rows labelled {name}, about {rate:.1%} look wrong",
            "of the rows that should be {name}, about {rate:.1%} have another label",
        )

    def _name_outstanding(
        self, given: NDArray[np.int64], names: Sequence[str], wrong: str, lost: str
    ) -> str:
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
            " labels, more than one training does: either the model has memorised wrong labels,"
            " which --thorough avoids, or the features are too weak. Use better ones then."
        ]

    def _worst_pairs(self, data: Rows, issues: NDArray[np.bool_]) -> list[dict[str, Any]]:
        classes, K = data.classes, len(data.classes)
        pairs, counts = np.unique(
            data.given[issues] * K + self.labels.suggested[issues], return_counts=True
        )
        worst = np.lexsort((pairs, -counts))[:MAX_PAIRS]
        return [
            {
                "given": classes[pair // K],
                "suggested": classes[pair % K],
                "issues": count,
                "probability": round(float(self.labels.transition[pair % K, pair // K]), 6),
            }
            for pair, count in zip(pairs[worst].tolist(), counts[worst].tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False, repr=False)
class WrongLabelSets(WrongLabels):
    """Rows with a label too many or one too few."""

    labels: LabelSetIssues

    def columns(self, data: Rows, rows: NDArray[np.int64]) -> dict[str, Any]:
        joiner = data.labels.joiner
        add, remove = (
            zip(*(self.labels.changes(row) for row in rows.tolist()), strict=True)
            if len(rows)
            else ((), ())
        )
        return super().columns(data, rows) | {
            "add_labels": [joiner.join(names) for names in add],
            "remove_labels": [joiner.join(names) for names in remove],
        }

    def explain(self, data: Rows, rows: NDArray[np.int64]) -> list[str]:
        return [self._sentence(row) for row in rows.tolist()]

    def _sentence(self, row: int) -> str:
        labels = self.labels
        parts = []
        for names, verb in zip(labels.changes(row), ("lacks", "has"), strict=True):
            shown = [f"{quoted(name)} ({self._percent(row, name)} %)" for name in names[:MAX_NAMED]]
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            if names:
                parts.append(
                    f"{verb} {', '.join(shown)}{more}{' by mistake' if verb == 'has' else ''}"
                )
        return f"This probably {' and '.join(parts)}"

    def _percent(self, row: int, name: str) -> int:
        """The predictions' probability that the row should have the label."""
        return round(100 * float(self.labels.label_probs[row, self.labels.names.index(name)]))

    def summary(self, data: Rows) -> dict[str, Any]:
        labels, is_audited = self.labels, data.row >= 0
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
