"""Whether labels are predictable from the features, and the interval of the noise rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noiseproof.judge.prior import most_certain
from noiseproof.judge.rate import NoiseRate

NEGLIGIBLE = 0.01  # share of wrong labels up to which labels look fine
# by which predictions should match more labels than by chance; of many rows 3σ are enough
SKILL = 0.1
THREE_SIGMA = 0.00135  # probability of as much or more by chance


@dataclass(frozen=True)
class Predictability:
    """How often predictions match the labels, and how often predictions of the same frequencies do
    by chance.
    """

    hit_rate: float
    chance_rate: float
    is_predictable: bool


@dataclass(frozen=True)
class Share:
    """A share of n rows and 1.96 standard errors, at least one row's worth."""

    value: float
    error: float

    @classmethod
    def of(cls, value: float, n: int) -> Share:
        return cls(value, 1.96 * math.sqrt(max(value * (1 - value), 1 / n) / n))


@dataclass(frozen=True, eq=False)
class Guesses:
    """Classes predicted for n rows without their labels, or with as little influence of them as
    possible.
    """

    labels: NDArray[np.int64]  # (n,): the given ones
    guess: NDArray[np.int64]  # (n,)
    # (n,): of neighbours, where models have seen the labels
    confidence: NDArray[np.float32] | None = None

    def predictability(self, num_classes: int) -> Predictability:
        """Whether guesses match more labels than by chance, Σ_k P(given k)·P(guessed k): overall,
        or those of a class.

        A rare class that is guessed rightly hardly shows among all rows. Of g guesses of a class,
        which a share f of the labels has, a share h > f or more is right by chance with probability
        exp(−g·KL(h‖f)) at most (Chernoff 1952).
        """
        n = len(self.guess)
        guesses, labels, hits = (
            np.bincount(codes, minlength=num_classes)
            for codes in (self.guess, self.labels, self.guess[self.guess == self.labels])
        )
        hit_rate, chance = float(hits.sum() / n), float(guesses @ labels) / n**2
        sigma = math.sqrt(chance * (1 - chance) / n)
        improbable = np.max(guesses * _divergence(hits / np.maximum(guesses, 1), labels / n))
        is_predictable = hit_rate - chance > min(3 * sigma, SKILL) or improbable > math.log(
            num_classes / THREE_SIGMA
        )
        return Predictability(hit_rate, chance, bool(is_predictable))

    def confident_contradiction(self) -> Share | None:
        """Share of labels that differ from the guess in the more confident half of each guessed
        class.

        There classes overlap least: of clean labels it contradicts few even where neighbours are
        weak.
        """
        if self.confidence is None:
            return None
        half = most_certain(self.guess, self.confidence, 0.5)
        return Share.of(float((self.labels[half] != self.guess[half]).mean()), len(half))


@dataclass(frozen=True)
class RateInterval:
    """Where the noise rate lies."""

    low: float
    high: float
    # share of labels that confident neighbours contradict, if that raised `high`
    contradicted: float | None


def rate_interval(rate: NoiseRate, num_rows: int, contradiction: Share | None) -> RateInterval:
    """The bounds of ``rate`` ± 1.96 standard errors; the ``contradiction`` of neighbours may raise
    the upper one.
    """
    error = Share.of(rate.estimate, num_rows).error
    high, contradicted = rate.high + error, None
    if contradiction is not None and contradiction.value - contradiction.error > high + NEGLIGIBLE:
        # Models that saw the labels may have memorised them.
        contradicted, high = contradiction.value, contradiction.value + contradiction.error
    return RateInterval(max(0.0, rate.low - error), min(1.0, high), contradicted)


def _divergence(share: NDArray[np.float64], chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(share‖chance) of yes or no, (K,); 0 where the share is not above chance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        yes, no = share * np.log(share / chance), (1 - share) * np.log((1 - share) / (1 - chance))
    return np.where((share > chance) & (chance > 0), yes + np.where(share < 1, no, 0), 0)
