"""Shares of a stratified sample, with intervals that assume nothing but the random choice of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A share or a count with its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, count: float) -> Estimate:
        """The count that this is the share of."""
        return Estimate(count * self.value, count * self.low, count * self.high)

    def as_count(self) -> str:
        """A count in words: ``12 (3 to 25)``."""
        return f"{self.value:.0f} ({self.low:.0f} to {self.high:.0f})"

    def as_share(self) -> str:
        """A share in words: ``3.4% (1.2% to 7.9%)``."""
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def stratified(hits: NDArray[np.float64], asked: NDArray[np.float64], sizes: NDArray[np.float64]) -> Estimate:
    """The share Σ_h N_h/N·k_h/n_h, from ``hits`` k_h among the ``asked`` n_h of the ``sizes`` N_h of strata, (H,) each.

    The interval is the hull of two: the bounds of each stratum combined as squares (MOVER; Zou and Donner 2008), and
    the exact interval of the effective number of rows (Korn and Graubard 1998). Either alone was too narrow in some of
    the simulations of ``benchmarks/decisions.py``. Bounds of a stratum are Jeffreys', drawn in by
    √((N − n)/(N − 1)) where most of it was asked. A stratum without answers has the bounds 0 and 1. Hits may be
    fractions: numbers in [0, 1] vary at most as much as yes or no with the same mean.

    >>> stratified(np.array([3.0]), np.array([60.0]), np.array([1000.0])).value
    0.05
    """
    asked, sizes, hits = (values[sizes > 0].astype(np.float64) for values in (asked, sizes, hits))
    weights = sizes / sizes.sum()
    pooled = hits.sum() / max(asked.sum(), 1.0)
    share = np.where(asked > 0, hits / np.maximum(asked, 1), pooled)
    left = np.sqrt(np.clip((sizes - asked) / np.maximum(sizes - 1, 1), 0, 1))  # finite population correction
    lows, highs = jeffreys(hits, asked)
    value = float(weights @ share)
    below = math.sqrt(float(np.sum((weights * left * (share - lows)) ** 2)))
    above = math.sqrt(float(np.sum((weights * left * (highs - share)) ** 2)))
    n = _effective(hits, asked, weights, left)
    pooled_bounds = Estimate(value, value, value) if math.isinf(n) else exact_share(min(value * n, n), n)
    low, high = min(value - below, pooled_bounds.low), max(value + above, pooled_bounds.high)
    return Estimate(value, max(0.0, low), min(1.0, high))


def jeffreys(hits: NDArray[np.float64], asked: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The bounds of shares with the prior Beta(½, ½); 0 without hits, 1 with nothing else (Brown et al. 2001)."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    a, b = hits + 0.5, asked - hits + 0.5
    low = np.where(hits > 0, betaincinv(a, b, 0.025), 0.0)
    return low, np.where(hits < asked, betaincinv(a, b, 0.975), 1.0)


def _effective(
    hits: NDArray[np.float64], asked: NDArray[np.float64], weights: NDArray[np.float64], left: NDArray[np.float64]
) -> float:
    """How many rows of a simple random sample would give the same variance."""
    share = (hits + 0.5) / (asked + 1)  # never 0 or 1, so that a stratum without hits has a variance
    variance = float(np.sum(weights**2 * share * (1 - share) / np.maximum(asked, 1) * left**2))
    mean = float(weights @ share)
    return mean * (1 - mean) / variance if variance > 0 else math.inf


def exact_share(count: float, total: float) -> Estimate:
    """``count`` of ``total`` independent draws as a share, with its exact interval (Clopper & Pearson 1934).

    Both may be fractions: effective numbers of weighted draws.
    """
    from scipy.special import betaincinv

    if not 0 <= count <= total or total <= 0:
        raise ValueError(f"Expected `count` in 0 … `total` and `total` > 0, got {count} and {total}.")
    low = float(betaincinv(count, total - count + 1, 0.025)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
    return Estimate(count / total, low, high)
