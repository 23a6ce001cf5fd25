"""Which labels change, how many that is expected to mend and to spoil, when it is refused; where
reviewers differ.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from noiseproof.audit.decisions import (
    BadDecisions,
    Choice,
    Decision,
    Standing,
    find_decisions,
    resolve_merges,
)
from noiseproof.audit.exchange.base import read_decided_in
from noiseproof.audit.files import Audit, check_decisions
from noiseproof.audit.sample import read_population
from noiseproof.core.files import PathLike
from noiseproof.core.messages import counted
from noiseproof.judge.measure.calibrate import Calibrated, find_slips, recalibrate
from noiseproof.judge.measure.design import measured_answers
from noiseproof.judge.measure.estimate import Gain, gain
from noiseproof.judge.measure.interval import Agreement, Bounded, agreement

Basis = Literal["measured", "known labels", "assumed"]
FIRST = 50  # rows to measure where none was


class Refused(ValueError):
    """Labels that no one decided on are not changed: the gain is not clearly positive, or not
    known.
    """


@dataclass(frozen=True, eq=False)
class Plan:
    """The labels to change, and what changing the undecided ones is expected to do."""

    changes: dict[int, str]  # new labels by row, of decisions and of suggestions
    accepted: dict[int, str]  # suggestions for undecided rows
    gain: Gain | None  # of ``accepted``; None if there are none
    # of the gain: measured decisions, trusted rows or annotators, or the assumption of the audit
    basis: Basis
    measured: int = 0  # decisions of the designed sample
    reviewers: Agreement | None = None  # where rows were asked twice
    # rows whose decided change is left out: it is likelier a slip of the reviewer
    slips: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()  # rows that should not be in the dataset
    unclear: tuple[int, ...] = ()  # rows whose label no one can say
    # classes that are merged, and the ones they become
    becomes: Mapping[str, str] = field(default_factory=dict)
    new_classes: tuple[str, ...] = ()  # labels of ``changes`` that the audit does not have
    kept: tuple[int, ...] = ()  # rows whose given label somebody confirmed

    @property
    def decided(self) -> frozenset[int]:
        """Rows on whose label somebody decided."""
        return frozenset(self.changes.keys() - self.accepted.keys()).union(self.kept)

    @property
    def changes_data(self) -> bool:
        """Whether the corrected data is another than the given one."""
        return bool(self.changes or self.excluded or self.becomes)

    def as_dict(self) -> dict[str, Any] | None:
        """The gain as plain values."""
        if self.gain is None:
            return None
        return {"basis": self.basis, "labels": len(self.accepted), **asdict(self.gain)}

    def expected(self) -> str:
        """What the changes are expected to do, in one phrase."""
        decided = len(self.changes) - len(self.accepted)
        parts = []
        if decided or self.gain is None:
            parts.append(f"{counted(decided, 'label')} mended by decisions")
            if self.reviewers is not None:
                parts[0] += f" (single answers are wrong in {self.reviewers.error.as_share()})"
        if self.gain is not None:
            parts.append(self._expected_of_accepted(self.gain))
        return "; ".join(parts)

    def _expected_of_accepted(self, gain: Gain) -> str:
        by = {
            "measured": f"by {counted(gain.decisions, 'measured decision')} among them",
            "known labels": (
                "if the probabilities of the audit are right, which trusted rows or annotators"
                " support"
            ),
            "assumed": "if the probabilities of the audit are right",
        }
        rows = f"{counted(len(self.accepted), 'label')} that no one decided on"
        mended = gain.mended.as_count()
        spoiled = gain.spoiled.as_count()
        return f"of {rows}, {mended} mended, {spoiled} spoiled, {by[self.basis]}"

    def check(
        self, folder: PathLike, accept_all: str = "accept_all=True", yes: str = "yes=True"
    ) -> None:
        """Refuse a gain that is not clearly positive; ``accept_all`` and ``yes`` are the user's
        names of options.
        """
        if self.gain is None:
            return
        expected = self._expected_of_accepted(self.gain)
        more = self.measured + (FIRST if self.basis == "assumed" else max(self.gain.needed, 0))
        if self.basis == "assumed":
            among = "none"
            if self.measured:
                among = f"none of {self.measured} among the labels to change"
            raise Refused(
                f"Expected measured decisions for {accept_all}, got {among}: {expected}, which"
                f" nothing has measured yet. Measure it first, `noiseproof review {folder}"
                f" --measure {more}`, or override this with {yes}."
            )
        if self.gain.is_clear or (self.basis == "known labels" and self.gain.net.low > 0):
            return
        remedy = (
            f"Measure {counted(self.gain.needed, 'more row')} first, `noiseproof review {folder}"
            f" --measure {more}`"
        )
        if self.gain.needed <= 0:
            remedy = (
                "More decisions are not expected to change that: decide row by row, `noiseproof"
                f" review {folder}`"
            )
        raise Refused(
            f"Expected {accept_all} to mend clearly more labels than it spoils, got a gain of "
            f"{self.gain.net.as_count()}: {expected}. {remedy}, or override this with {yes}."
        )


def plan_corrections(
    audit: Audit,
    decisions: Mapping[int, Decision],
    answers: Sequence[Decision] = (),
    *,
    merges: Mapping[str, Decision] | None = None,
    accept_all: bool = False,
    yes: bool = False,
) -> Plan:
    """Return the labels to change by ``decisions``, and with ``accept_all`` by suggestions, with
    their expected gain.

    Suggestions are taken for undecided rows where they are more likely right than the given label,
    as the measured ones of ``answers`` recalibrate it; without any, only for issues. Decided
    changes that are likelier slips of the reviewer, by rows asked twice, are left out unless
    ``yes``.
    """
    merges = merges or {}
    check_decisions([*decisions.values(), *merges.values()], audit)
    decided = _decided(decisions)
    population = read_population(audit)
    calibrated = recalibrate(audit, population, answers)
    slips = set() if yes else find_slips(audit, answers, calibrated) & decided.keys()
    measured = sum(answer.names_label for answer in measured_answers(answers).values())
    rows = audit.issues["row"]
    passed = [row for row, one in decisions.items() if not one.names_label]
    better = calibrated.accepted & accept_all & ~rows.isin(passed).to_numpy()
    if not measured:
        better &= audit.issues["is_label_issue"].to_numpy()
    undecided = better & ~rows.isin(list(decisions)).to_numpy()
    suggested = audit.issues["suggested_label"]
    pairs = zip(rows[undecided].tolist(), suggested[undecided].tolist(), strict=True)
    accepted = dict(sorted(pairs))
    planned = sorted((accepted | decided).items())
    changes = {row: label for row, label in planned if row not in slips}
    basis: Basis = "known labels" if any((audit.summary.get("known") or {}).values()) else "assumed"
    expected = gain(population, answers, better) if accepted else None
    if expected is not None:
        basis = "measured"
    elif accepted:
        expected = expected_gain(calibrated, undecided)
    words = audit.words
    labels = [label for word in changes.values() for label in words.split(word)]
    return Plan(
        changes,
        accepted,
        expected,
        basis,
        measured,
        reviewers=agreement(answers, len(audit.classes)),
        slips=tuple(sorted(slips)),
        excluded=_rows_with("exclude", decisions),
        unclear=_rows_with("unclear", decisions),
        becomes=resolve_merges(merges),
        new_classes=tuple(label for label in dict.fromkeys(labels) if label not in words.names),
        kept=_kept(decisions, decided),
    )


def _kept(decisions: Mapping[int, Decision], decided: Mapping[int, str]) -> tuple[int, ...]:
    return tuple(row for row, one in decisions.items() if one.names_label and row not in decided)


def _rows_with(choice: Choice, decisions: Mapping[int, Decision]) -> tuple[int, ...]:
    return tuple(sorted(row for row, one in decisions.items() if one.decision == choice))


def _decided(decisions: Mapping[int, Decision]) -> dict[int, str]:
    decided: dict[int, str] = {}
    for row, decision in decisions.items():
        if decision.decision in ("accept", "other") and decision.label != decision.given_label:
            if not decision.label:
                raise BadDecisions(
                    f"Expected a label with the decision {decision.decision} on row {row}, got"
                    " none."
                )
            decided[row] = decision.label
    return decided


def expected_gain(calibrated: Calibrated, changed: Any) -> Gain:
    """The gain of taking the suggestions of the rows ``changed`` (N,), if the probabilities are
    right.

    Rows are independent then, so that the variances of single rows add up.
    """
    right = calibrated.suggestion[changed]
    given = 1 - calibrated.wrong[changed]
    count = float(len(right))

    def total(mean: Any, variance: Any, low: float) -> Bounded:
        value = float(mean.sum())
        spread = 1.96 * math.sqrt(float(variance.sum()))
        return Bounded(value, max(low, value - spread), min(count, value + spread))

    net = right - given
    return Gain(
        mended=total(right, right * (1 - right), 0.0),
        spoiled=total(given, given * (1 - given), 0.0),
        net=total(net, np.maximum(right + given - net**2, 0.0), -count),
        decisions=0,
        needed=FIRST,
    )


def corrections(
    audit: Audit,
    decisions: Mapping[int, Decision],
    answers: Sequence[Decision] | None = None,
    *,
    accept_all: bool = False,
    yes: bool = False,
) -> dict[int, str]:
    """Return the rows whose label changes, and their new labels.

    ``accept_all`` takes the suggestion for undecided rows, too, where it is more likely right than
    the given label. It is refused unless this clearly mends more labels than it spoils, by measured
    decisions or, without any, by an audit with trusted rows or annotators. Decided changes that are
    likelier slips of the reviewer are left out. ``yes`` overrides both.

    Args:
        answers: all answers of the review (``read_answers``), with second opinions; by default
            ``decisions``.
    """
    answers = list(decisions.values()) if answers is None else answers
    plan = plan_corrections(audit, decisions, answers, accept_all=accept_all, yes=yes)
    if not yes:
        plan.check(audit.folder)
    return plan.changes


def read_reviewed(
    folder: PathLike, decisions: PathLike | None, *, accept_all: bool = False
) -> Standing:
    """Return all that was decided on the audit in ``folder``; only ``accept_all`` goes without the
    file.

    ``decisions`` may also be what another tool exports (`noiseproof.audit.exchange`).
    """
    path = Path(decisions or find_decisions(folder))
    if path.exists():
        return read_decided_in(folder, decisions)
    if not accept_all or decisions is not None:
        raise FileNotFoundError(
            f"Expected decisions in {path}, found none. Run `noiseproof review {folder}`, or use"
            " --accept-all."
        )
    return Standing()


def differ(lines: Iterable[Decision]) -> bool:
    """Whether people disagree on a row, by the ``lines`` on it that stand, in the order of the
    file.

    Whoever decides on a row while others disagree settles it, until somebody disagrees with that. A
    skip is not an opinion.

    >>> ann = Decision(7, "b", "cat", "keep", "cat", "ann")
    >>> bob = Decision(7, "b", "cat", "accept", "dog", "bob")
    >>> differ([ann]), differ([ann, bob]), differ([ann, bob, bob])
    (False, True, False)
    """
    opinions: dict[str, tuple[str, str]] = {}  # of each reviewer
    is_conflict = False
    for line in lines:
        if line.decision in ("skip", "note"):  # which are no opinions
            continue
        if is_conflict:
            opinions = {}
        opinions[line.reviewer] = ("", line.label) if line.names_label else (line.decision, "")
        is_conflict = len({*opinions.values()}) > 1
    return is_conflict


def conflicts(standing: Standing) -> list[int]:
    """The rows on which people disagree, in ascending order."""
    return sorted(row for row in standing.decisions if differ(standing.lines(row)))


def read_conflicts(folder: PathLike, decisions: PathLike | None = None) -> list[int]:
    """The rows on which people disagree by a file of decisions, by default in the folder of the
    audit.
    """
    path = Path(decisions or find_decisions(folder))
    return conflicts(read_decided_in(folder, decisions)) if path.exists() else []


def independent_pair(lines: Iterable[Decision]) -> tuple[Decision, Decision] | None:
    """The two answers on a row that a second person was asked about: what was decided before, and
    their own.
    """
    lines = [line for line in lines if line.decision != "note"]
    for i, second in enumerate(lines):
        before = [line for line in lines[:i] if line.reviewer != second.reviewer]
        if second.asked == "repeat" and before:
            return before[-1], second
    return None
