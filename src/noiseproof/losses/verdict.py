"""Whether a loss learns a given number of classes, from its weights before training.

Two things keep a loss from learning, and both show in its mean weight w̄ over the margins of an untrained network:

* Labels that fall behind are given up: ``left_behind``, w̄ at a margin FALL below the start over the maximum of the
  whole sum, is next to nothing.
* The whole loss is too weak: ``slowness``, how many times longer than with cross entropy a margin takes from its start
  to zero if dΔ/dt = w̄(Δ), the integral of 1/w̄, is large.

The thresholds lie between the cells of curriculum paper, Table 2 and bias paper, Table 3 that learn and those that
don't (``benchmarks/forecast.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from noiseproof.losses.base import Loss
from noiseproof.losses.calibrate import average_error, expected_margin
from noiseproof.losses.spec import as_loss
from noiseproof.losses.sums import terms_of

Answer = Literal["learns", "partly", "underfits"]

FALL = 3.0  # how far a margin falls behind its start, in logits
LEARNS, PARTLY = 0.0077, 0.0031  # ``left_behind`` from which a loss learns, and from which it learns partly
SLOW = 114.0  # ``slowness`` up to which it learns
RANK: dict[Answer, int] = {"learns": 0, "partly": 1, "underfits": 2}


@dataclass(frozen=True)
class Verdict:
    """The answer, the reason, and the two numbers that decide."""

    answer: Answer
    reason: str
    maximum: float  # of w over all margins; of w̄ for losses that depend on the other classes
    left_behind: float  # w̄ at the start − FALL, over the maximum
    slowness: float  # time from the start to Δ = 0 over that of cross entropy


class Weights:
    """w̄ of losses as a function of how far all margins have moved from their start."""

    def __init__(self, num_classes: int, margins: Tensor | None, sigma: float) -> None:
        self.num_classes, self.sigma = num_classes, sigma
        self.margins = None if margins is None else margins.detach().cpu().double()
        expected = expected_margin(num_classes, sigma=sigma)
        self.start = expected if self.margins is None else float(self.margins.mean())
        self.offset = self.start - expected  # of z_k
        self.way = max(-self.start, 0.0)  # from the start to Δ = 0
        self.cache: dict[tuple[Loss, float], float] = {}  # averages over a sample are slow

    def __call__(self, loss: Loss, moved: float) -> float:
        if self.margins is not None and loss.kind == "margin":
            return float(loss.sample_weight(self.margins + moved).detach().mean())
        if (loss, moved) not in self.cache:
            error = average_error(loss, self.offset + moved, self.num_classes, sigma=self.sigma)
            self.cache[loss, moved] = -error
        return self.cache[loss, moved]

    def of(self, loss: Loss) -> Callable[[float], float]:
        terms = terms_of(loss)
        return lambda moved: sum(scale * self(term, moved) for scale, term in terms)


def verdict(loss: Loss, weights: Weights) -> Verdict:
    """Whether ``loss`` learns from the margins of ``weights``."""
    total, way = weights.of(loss), weights.way
    maximum = largest_weight(loss, total, way)
    left_behind = ratio(total(-FALL), maximum)
    slowness = _duration(total, way) / _duration(weights.of(as_loss("ce")), way)
    thresholds = max(getattr(term, "thresholds", (LEARNS, PARTLY)) for _, term in terms_of(loss))
    return Verdict(*_answer(left_behind, slowness, *thresholds), maximum, left_behind, slowness)


def largest_weight(loss: Loss, weight: Callable[[float], float], way: float) -> float:
    """Largest weight over all margins; of an average, over a grid, refined by the parabola at its best point."""
    if loss.kind == "margin":
        return loss.max_weight
    grid = np.arange(-8.0, way + 8.0)
    values = [weight(float(moved)) for moved in grid]
    best = int(np.argmax(values))
    if not 0 < best < len(grid) - 1:
        return values[best]
    left, middle, right = values[best - 1 : best + 2]
    bend = left - 2 * middle + right
    return max(middle, weight(float(grid[best] + (left - right) / (2 * bend)))) if bend < 0 else middle


def _duration(weight: Callable[[float], float], way: float) -> float:
    """∫ 1/w̄ from the start to Δ = 0, by Gauss-Legendre quadrature; infinite if the weight isn't positive."""
    nodes, shares = np.polynomial.legendre.leggauss(10)
    span = max(way, 1.0)  # with two classes margins start at zero: integrate over one unit instead
    rates = [weight(float(span * (node + 1) / 2)) for node in nodes]
    if min(rates) <= 0:
        return math.inf
    return float(span / 2 * sum(share / rate for share, rate in zip(shares, rates, strict=True)))


def _answer(left_behind: float, slowness: float, learns: float, partly: float) -> tuple[Answer, str]:
    if slowness > SLOW:
        return "underfits", f"it is {slowness:.0f} times slower than cross entropy at the same learning rate"
    share = f"a label that falls {FALL:g} behind keeps {left_behind:.2%} of the largest weight"
    if not left_behind >= partly:  # also NaN, of a loss without any weight
        return "underfits", f"{share}, too little to return"
    if left_behind < learns:
        return "partly", f"{share}, too little for many to return"
    return "learns", f"{share}, and it is {slowness:.3g} times slower than cross entropy"


def ratio(part: float, total: float) -> float:
    return part / total if total else math.nan
