"""What the measured decisions say about all labels of an audit, without any assumption about the
noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.judge.measure.design import Design, is_wrong, measured_answers
from noiseproof.judge.measure.interval import Agreement, Bounded, agreement, corrected, stratified
from noiseproof.judge.saved import Decision, SavedAudit

ENOUGH = 10  # decisions on rows of a class, from which on its rate is reported
ENOUGH_ACCEPTED = 8  # measured rows that the rule of --accept-all would change
SEEN = 2  # times that a confusion must have been seen


@dataclass(frozen=True, eq=False)
class Measurement:
    """What the measured decisions say about all labels of an audit."""

    decisions: int  # measured rows that were decided
    skipped: int
    rate: Bounded
    classes: dict[str, Bounded]  # of given classes with enough decisions
    pairs: dict[tuple[str, str], Bounded]  # (given, true): share of the rows of `given`
    precision: Bounded | None  # of what is called wrong
    wrong_left: Bounded  # wrong labels still in the data once decisions are applied
    to_halve: int  # further decisions until the interval of the rate is half as wide
    reviewers: Agreement | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for summary.json."""
        plain = asdict(replace(self, classes={}, pairs={}))
        noise_rate = plain.pop("rate")
        plain["classes"] = [{"name": name, **asdict(one)} for name, one in self.classes.items()]
        plain["pairs"] = [
            {"given": given, "true": true, **asdict(one)}
            for (given, true), one in self.pairs.items()
        ]
        return {"noise_rate": noise_rate, **plain}


@dataclass(frozen=True)
class Gain:
    """What accepting the suggestions for undecided rows does, by the measured rows that the same
    rule would change.
    """

    mended: Bounded
    spoiled: Bounded
    net: Bounded
    decisions: int  # measured rows that the rule would change
    # further decisions after which `net` is expected to be clearly positive; 0 if it is, −1 if
    # never
    needed: int

    @property
    def is_clear(self) -> bool:
        """Return whether more labels are mended than spoiled, by enough decisions: the same ones
        also chose the rule.
        """
        return self.net.low > 0 and self.decisions >= ENOUGH_ACCEPTED


@dataclass(frozen=True, eq=False)
class Population:
    """The rows of an audit, in the order of its issues, with what estimates need of them."""

    classes: tuple[str, ...]
    position: Mapping[int, int]  # of a row of the source
    strata: Ints  # (N,)
    given: Ints  # (N,)
    suggested: Ints  # (N,)
    is_issue: Bools  # (N,)

    @classmethod
    def of(cls, audit: SavedAudit, design: Design) -> Population:
        rows = audit.issues["row"].to_numpy()
        return cls(
            audit.classes,
            {row: i for i, row in enumerate(rows.tolist())},
            design.strata[rows].astype(np.int64),
            audit.class_numbers("given_label"),
            audit.class_numbers("suggested_label"),
            audit.issues["is_label_issue"].to_numpy(bool),
        )

    def estimate(self, sample: Sample, value: Floats, domain: Bools | None = None) -> Bounded:
        """Return the mean of a ``value`` in [0, 1] of the sample (n,) over all rows, or over those
        of a ``domain`` (N,).
        """
        if domain is None:
            domain = np.ones(len(self.strata), dtype=bool)
        asked = domain[sample.at]
        count = int(self.strata.max()) + 1
        strata = self.strata[sample.at][asked]
        return stratified(
            np.bincount(strata, weights=value[asked], minlength=count),
            np.bincount(strata, minlength=count),
            np.bincount(self.strata[domain], minlength=count),
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """The measured rows that were decided."""

    at: Ints  # (n,) positions in the population
    wrong: Floats  # (n,) 1 where the given label is wrong
    label: Ints  # (n,) the decided class, −1 for a class that the audit does not have
    suggested: Floats  # (n,) 1 where the suggestion is right
    skipped: int

    @classmethod
    def of(cls, population: Population, answers: Sequence[Decision]) -> Sample:
        asked = measured_answers(answers).values()
        decided = [answer for answer in asked if answer.names_label]
        number = {name: k for k, name in enumerate(population.classes)}
        at = np.array([population.position[answer.row] for answer in decided], dtype=np.int64)
        label = np.array([number.get(answer.label, -1) for answer in decided], dtype=np.int64)
        wrong = np.array([is_wrong(answer) for answer in decided], dtype=np.float64)
        # Not what was accepted: an audit again may suggest another label.
        suggested = (label == population.suggested[at]).astype(np.float64)
        return cls(at, wrong, label, suggested, len(asked) - len(decided))

    def __len__(self) -> int:
        return len(self.at)


def measure(population: Population | None, answers: Sequence[Decision]) -> Measurement | None:
    """Return what the measured ``answers`` say about all labels; None without any.

    Rows that were answered twice say how often a person errs, and correct the rates for it.
    """
    if population is None or not (sample := Sample.of(population, answers)):
        return None
    # second opinions on other rows, chosen from the list, represent no others
    measured = measured_answers(answers)
    people = agreement(
        [answer for answer in answers if answer.row in measured], len(population.classes)
    )

    def right(rate: Bounded) -> Bounded:
        return rate if people is None else corrected(rate, people.error, len(population.classes))

    rate = right(population.estimate(sample, sample.wrong))
    precision = None
    if population.is_issue[sample.at].any():
        precision = right(population.estimate(sample, sample.wrong, population.is_issue))
    classes, pairs = _by_class(population, sample, right)
    total = rate.times(len(population.given))
    fixed = len({answer.row for answer in answers if is_wrong(answer)})
    left = total.map(lambda count: max(0.0, count - fixed))
    to_halve = min(3 * len(sample), len(population.given) - len(sample))  # the width falls as 1/√n
    return Measurement(
        len(sample), sample.skipped, rate, classes, pairs, precision, left, to_halve, people
    )


def _by_class(
    population: Population, sample: Sample, right: Callable[[Bounded], Bounded]
) -> tuple[dict[str, Bounded], dict[tuple[str, str], Bounded]]:
    """Rates of the given classes with enough decisions, and of confusions that were seen more than
    once.
    """
    classes = {}
    pairs = {}
    given = population.given[sample.at]
    for k, name in enumerate(population.classes):
        if (given == k).sum() < ENOUGH:
            continue
        domain = population.given == k
        classes[name] = right(population.estimate(sample, sample.wrong, domain))
        true, counts = np.unique(
            sample.label[(given == k) & (sample.wrong > 0)], return_counts=True
        )
        for t in true[(counts >= SEEN) & (true >= 0)].tolist():
            is_pair = (sample.label == t).astype(np.float64)
            pairs[name, population.classes[t]] = population.estimate(sample, is_pair, domain)
    return classes, pairs


def gain(
    population: Population | None, answers: Sequence[Decision], accepted: Bools
) -> Gain | None:
    """Return what suggestions do to the undecided ones of the ``accepted`` rows (N,), in the order
    of the issues.

    Measured rows that the same rule accepts stand for the undecided ones. None without any.
    """
    if population is None or not accepted[(sample := Sample.of(population, answers)).at].any():
        return None
    decided = {answer.row for answer in answers if answer.names_label}
    undecided = accepted & ~np.isin(list(population.position), list(decided))
    count = int(undecided.sum())
    spoils = 1 - sample.wrong
    mended = population.estimate(sample, sample.suggested, accepted).times(count)
    spoiled = population.estimate(sample, spoils, accepted).times(count)
    # In [0, 1], with ½ where the given and the suggested label are both wrong.
    balance = population.estimate(sample, (1 + sample.suggested - spoils) / 2, accepted)
    net = balance.map(lambda share: (2 * share - 1) * count)
    among = int(accepted[sample.at].sum())
    return Gain(mended, spoiled, net, among, _needed(net, among, len(sample)))


def _needed(net: Bounded, accepted: int, decisions: int) -> int:
    """Further decisions, in tens, until the gain is clear; the width of the interval falls as
    1/√n.
    """
    if net.value <= 0:
        return -1
    factor = max(((net.value - net.low) / net.value) ** 2, ENOUGH_ACCEPTED / accepted)
    return 10 * math.ceil(decisions * max(factor - 1, 0) / 10)
