"""Shares of a stratified sample, with intervals that assume nothing but the random choice of the
rows.

Also how often reviewers err, from rows that were asked twice, and estimates without their errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.arrays import Floats
from noiseproof.judge.saved import Decision

# points on the border of a joint region; the range over it is exact to 1e-5 of its width
ANGLES = 720


@dataclass(frozen=True)
class Bounded:
    """A share or a count with its 95 % interval."""

    value: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> Bounded:
        """Return an increasing ``function`` of it."""
        return Bounded(function(self.value), function(self.low), function(self.high))

    def times(self, count: float) -> Bounded:
        """Return the count that this is the share of."""
        return self.map(lambda share: count * share)

    def as_count(self) -> str:
        """Return a count in words: ``12 (3 to 25)``."""
        return f"{self.value:.0f} ({self.low:.0f} to {self.high:.0f})"

    def as_share(self) -> str:
        """Return a share in words: ``3.4% (1.2% to 7.9%)``."""
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def stratified(hits: NDArray[Any], asked: NDArray[Any], sizes: NDArray[Any]) -> Bounded:
    """Return the share Σ_h N_h/N·k_h/n_h, from ``hits`` k_h among the ``asked`` n_h of the
    ``sizes`` N_h of strata, (H,) each.

    The interval is the hull of two: the bounds of each stratum combined as squares (MOVER; Zou and
    Donner 2008), and the exact interval of the effective number of rows (Korn and Graubard 1998).
    Either alone was too narrow in some of the simulations of ``benchmarks/decisions.py``. Bounds of
    a stratum are Jeffreys', drawn in by √((N − n)/(N − 1)) where most of it was asked. A stratum
    without answers has the bounds 0 and 1. Hits may be fractions: numbers in [0, 1] vary at most as
    much as yes or no with the same mean.

    >>> stratified(np.array([3.0]), np.array([60.0]), np.array([1000.0])).value
    0.05
    """
    is_known = sizes > 0
    asked = asked[is_known].astype(np.float64)
    hits = hits[is_known].astype(np.float64)
    sizes = sizes[is_known].astype(np.float64)
    weights = sizes / sizes.sum()
    pooled = hits.sum() / max(asked.sum(), 1.0)
    share = np.where(asked > 0, hits / np.maximum(asked, 1), pooled)
    # finite population correction
    left = np.sqrt(np.clip((sizes - asked) / np.maximum(sizes - 1, 1), 0, 1))
    lows, highs = jeffreys(hits, asked)
    value = float(weights @ share)
    low = value - float(np.linalg.norm(weights * left * (share - lows)))
    high = value + float(np.linalg.norm(weights * left * (highs - share)))
    n = _effective(hits, asked, weights, left)
    if not math.isinf(n):
        exact = exact_share(min(value * n, n), n)
        low = min(low, exact.low)
        high = max(high, exact.high)
    return Bounded(value, max(0.0, low), min(1.0, high))


def jeffreys(hits: Floats, asked: Floats) -> tuple[Floats, Floats]:
    """Return the bounds of shares with the prior Beta(½, ½); the lower one is 0 without hits, the
    upper one 1 where all are hits (Brown et al. 2001).
    """
    from scipy.special import betaincinv

    a = hits + 0.5
    b = asked - hits + 0.5
    low = np.where(hits > 0, betaincinv(a, b, 0.025), 0.0)
    return low, np.where(hits < asked, betaincinv(a, b, 0.975), 1.0)


def _effective(
    hits: Floats,
    asked: Floats,
    weights: Floats,
    left: Floats,
) -> float:
    """Return how many rows of a simple random sample would give the same variance."""
    # never 0 or 1, so that a stratum without hits has a variance
    share = (hits + 0.5) / (asked + 1)
    variance = float(np.sum(weights**2 * share * (1 - share) / np.maximum(asked, 1) * left**2))
    mean = float(weights @ share)
    return mean * (1 - mean) / variance if variance > 0 else math.inf


def exact_share(count: float, total: float) -> Bounded:
    """``count`` of ``total`` independent draws as a share, with its exact interval (Clopper &
    Pearson 1934).

    Both may be fractions: effective numbers of weighted draws.
    """
    from scipy.special import betaincinv

    low = float(betaincinv(count, total - count + 1, 0.025)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
    return Bounded(count / total, low, high)


@dataclass(frozen=True)
class Agreement:
    """How far two answers on the same rows agree."""

    rows: int  # with two answers
    same: float  # share of them with the same label
    kappa: float  # NaN where all answers are one class
    error: Bounded  # probability that one answer is wrong


def agreement(answers: Sequence[Decision], num_classes: int) -> Agreement | None:
    """Agreement of the first and the second answer on each row asked twice, of one or of two
    people; None without any.

    Cohen's kappa is (same − chance)/(1 − chance) with chance = Σ_k P(first k)·P(second k) (Cohen
    1960). The error e of one answer, and its interval, follow from the share that differs,

        P(differ) = 1 − (1 − e)² − e²/(K − 1),

    if both answers err independently, with the same probability, and take each of the K − 1 wrong
    classes equally often.
    """
    pairs = _pairs(answers)
    if not pairs:
        return None
    rows = len(pairs)
    same = sum(first == second for first, second in pairs)
    counts = [Counter(labels) for labels in zip(*pairs, strict=True)]
    chance = sum(counts[0][label] * counts[1][label] for label in counts[0]) / rows**2
    kappa = (same / rows - chance) / (1 - chance) if chance < 1 else math.nan
    differ = exact_share(rows - same, rows)
    error = differ.map(lambda share: _error_of(share, num_classes))
    return Agreement(rows, same / rows, kappa, error)


def _pairs(answers: Sequence[Decision]) -> list[tuple[str, str]]:
    """Return the labels of the first and of the second answer on each row with both; a changed
    answer counts as it is now.
    """
    first: dict[int, str] = {}
    second: dict[int, tuple[str, str]] = {}  # reviewer and label
    for answer in answers:
        if answer.asked != "repeat":
            first[answer.row] = answer.label
        elif second.setdefault(answer.row, (answer.reviewer, answer.label))[0] == answer.reviewer:
            second[answer.row] = answer.reviewer, answer.label
    # none was skipped
    return [(first[row], label) for row, (_, label) in second.items() if first.get(row) and label]


def _error_of(differ: float, num_classes: int) -> float:
    """Return the e at which two answers differ with this probability; at most (K − 1)/K, as for a
    guess.
    """
    guess = (num_classes - 1) / num_classes
    return guess * (1 - math.sqrt(max(0.0, 1 - differ / guess)))


def corrected(rate: Bounded, error: Bounded, num_classes: int) -> Bounded:
    """Return the share of wrong labels, from the share that reviewers with the error e call wrong.

    A right label is called wrong with probability e, and a wrong one right with e/(K − 1), so the
    measured share is m = r·(1 − e/(K − 1)) + (1 − r)·e, and

        r = (m − e)/(1 − e·K/(K − 1))

    (Rogan & Gladen 1978). This assumes what `agreement` does, and that e is the same for right and
    wrong labels. The interval is the range of r over the ellipse whose half-axes are the halves of
    both intervals; as both come partly from the same rows, it is rather too wide.

    >>> found = corrected(Bounded(0.145, 0.10, 0.20), Bounded(0.05, 0.02, 0.10), num_classes=2)
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (0.1056, 0.0335, 0.1705)
    """
    guess = (num_classes - 1) / num_classes
    if error.value >= guess:  # answers that are guesses
        return Bounded(rate.value, 0.0, 1.0)

    def right(measured: Any, wrong: Any) -> Floats:
        share = (measured - wrong) / np.maximum(1 - wrong / guess, 1e-12)
        return np.asarray(np.clip(share, 0, 1))

    angle = np.linspace(0, 2 * np.pi, ANGLES + 1)  # with the four ends of the axes
    r = right(_on_axis(rate, np.cos(angle)), _on_axis(error, np.sin(angle)))
    return Bounded(float(right(rate.value, error.value)), float(r.min()), float(r.max()))


def _on_axis(bounded: Bounded, side: Floats) -> Floats:
    """Return the value for 0, the upper end of the interval for 1, the lower one for −1."""
    half = np.where(side > 0, bounded.high - bounded.value, bounded.value - bounded.low)
    return np.asarray(bounded.value + side * half)
