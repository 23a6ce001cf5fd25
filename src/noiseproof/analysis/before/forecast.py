"""Whether a loss learns a given number of classes: an answer before training, its numbers, and a loss that learns.

Two things keep a loss from learning, and both show in its mean weight w̄ over the margins of an untrained network:

* Labels that fall behind are given up. While the first labels are learnt the margins of the others fall; if the loss
  then gives them next to no weight compared with its maximum, they never return. ``left_behind`` is w̄ at a margin FALL
  below the start, over the maximum of the whole sum: a term that keeps its weight there, as NCE does, helps a sum in
  proportion to its own weight in it.
* The whole loss is too weak. ``slowness`` is how many times longer than with cross entropy, at the same learning rate,
  a margin takes from its start to zero if dΔ/dt = w̄(Δ): the integral of 1/w̄, which accounts for how the weight decays
  as Δ grows.

The thresholds lie between the cells of curriculum paper, Table 2 and bias paper, Table 3 that learn and those that
don't (``benchmarks/forecast.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from noiseproof.analysis.before.robustness import check_of_logits
from noiseproof.core.checks import check_count
from noiseproof.losses import Loss, NoSolution, Remargin, calibrate, remargin_for
from noiseproof.losses.calibrate import average_error, expected_margin, logit_bias
from noiseproof.losses.spec import as_loss
from noiseproof.losses.sums import WeightedSum, terms_of

Answer = Literal["learns", "partly", "underfits"]

FALL = 3.0  # how far a margin falls behind its start, in logits
LEARNS, PARTLY = 0.0077, 0.0031  # ``left_behind`` from which a loss learns, and from which it learns partly
SLOW = 114.0  # ``slowness`` up to which it learns
RANK: dict[Answer, int] = {"learns": 0, "partly": 1, "underfits": 2}


@dataclass(frozen=True)
class Term:
    """One additive term of a loss: its weight over its own maximum, and its share of the sum."""

    loss: str
    factor: float
    start: float  # over the term's maximum
    left_behind: float  # over the term's maximum
    share: float  # of the sum's weight at the start
    share_left_behind: float
    share_learnt: float  # at a margin of zero


@dataclass(frozen=True)
class Alternative:
    """A loss to use instead, with its forecast."""

    loss: str
    answer: Answer
    left_behind: float
    slowness: float
    why: str


@dataclass(frozen=True)
class Forecast:
    """The answer and its numbers; weights are means over labels, relative ones are divided by ``maximum``."""

    loss: str
    num_classes: int
    answer: Answer
    margin: float  # E[Δ] at the start
    weight: float  # w̄ there: −⟨δ_k⟩(0) of bias paper, Eq. 3 for simulated logits
    maximum: float  # of w over all margins; of w̄ for losses that depend on the other classes
    start: float  # weight/maximum
    left_behind: float  # w̄ at margin − FALL, over the maximum
    learnt: float  # w̄ at Δ = 0, over the maximum
    slowness: float  # time from the start to Δ = 0 over that of cross entropy
    reason: str
    terms: tuple[Term, ...] = ()
    instead: tuple[Alternative, ...] = ()  # the best first


def forecast(
    loss: Loss | str,
    num_classes: int,
    *,
    margins: Tensor | None = None,
    sigma: float = 1.0,
    alternatives: bool = True,
) -> Forecast:
    """Forecast whether ``loss`` learns ``num_classes`` classes.

    Args:
        margins: Δ of the labels (N,) in an untrained model; by default those of N(0, σ²) logits. Losses that depend on
            the other classes use only their mean, and average over simulated other classes.
        alternatives: if the loss does not learn, look for calibrated losses that do.

    >>> mae = forecast("mae", 400)
    >>> mae.answer, round(mae.weight, 6), mae.instead[0].loss
    ('underfits', 0.001522, 'tau-scale:loss=(mae:scale=1.0),num_classes=400,tau=2.62,sigma=1.0')
    >>> forecast("ce", 400).answer
    'learns'
    """
    loss = as_loss(loss)
    check_of_logits(loss, check_count("num_classes", num_classes, 2))
    if margins is not None and (margins.dim() != 1 or not len(margins)):
        raise ValueError(f"Expected `margins` (N,), got {tuple(margins.shape)}.")
    weights = _Weights(num_classes, margins, sigma)
    result = _forecast(loss, weights)
    complete = result.answer == "learns" or not alternatives
    return result if complete else replace(result, instead=_alternatives(loss, result, weights))


class _Weights:
    """w̄ of losses as a function of how far all margins have moved from their start."""

    def __init__(self, num_classes: int, margins: Tensor | None, sigma: float) -> None:
        self.num_classes, self.sigma = num_classes, sigma
        self.margins = None if margins is None else margins.detach().cpu().double()
        expected = expected_margin(num_classes, sigma=sigma)
        self.start = expected if self.margins is None else float(self.margins.mean())
        self.offset = self.start - expected  # of z_k
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


def _forecast(loss: Loss, weights: _Weights) -> Forecast:
    total = weights.of(loss)
    way = max(-weights.start, 0.0)  # from the start to Δ = 0
    start, behind, learnt = total(0.0), total(-FALL), total(way)
    maximum = _largest(loss, total, way)
    slowness = _duration(total, way) / _duration(weights.of(as_loss("ce")), way)
    answer, reason = _answer(_ratio(behind, maximum), slowness)
    terms = []
    for scale, term in terms_of(loss) if len(terms_of(loss)) > 1 else ():
        weight = weights.of(term)
        at_start, at_behind, at_zero = weight(0.0), weight(-FALL), weight(way)
        largest = _largest(term, weight, way)
        over_largest = _ratio(at_start, largest), _ratio(at_behind, largest)
        shares = [
            _ratio(scale * part, whole) for part, whole in ((at_start, start), (at_behind, behind), (at_zero, learnt))
        ]
        terms.append(Term(str(term), scale, *over_largest, *shares))
    return Forecast(
        loss=str(loss),
        num_classes=weights.num_classes,
        answer=answer,
        margin=weights.start,
        weight=start,
        maximum=maximum,
        start=_ratio(start, maximum),
        left_behind=_ratio(behind, maximum),
        learnt=_ratio(learnt, maximum),
        slowness=slowness,
        reason=reason,
        terms=tuple(terms),
    )


def _largest(loss: Loss, weight: Callable[[float], float], way: float) -> float:
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


def _answer(left_behind: float, slowness: float) -> tuple[Answer, str]:
    if slowness > SLOW:
        return "underfits", f"it is {slowness:.0f} times slower than cross entropy at the same learning rate"
    share = f"a label that falls {FALL:g} behind keeps {left_behind:.2%} of the largest weight"
    if not left_behind >= PARTLY:  # also NaN, of a loss without any weight
        return "underfits", f"{share}, too little to return"
    if left_behind < LEARNS:
        return "partly", f"{share}, too little for many to return"
    return "learns", f"{share}, and it is {slowness:.3g} times slower than cross entropy"


def _ratio(part: float, total: float) -> float:
    return part / total if total else math.nan


def _alternatives(loss: Loss, result: Forecast, weights: _Weights) -> tuple[Alternative, ...]:
    """Calibrated losses with a better forecast, the best first."""
    better = []
    for why, candidate in _candidates(loss, result, weights.num_classes, weights.sigma):
        other = _forecast(candidate, weights)
        if RANK[other.answer] < RANK[result.answer]:
            better.append(Alternative(other.loss, other.answer, other.left_behind, other.slowness, why))
    return tuple(sorted(better, key=lambda alternative: RANK[alternative.answer]))


def _candidates(loss: Loss, result: Forecast, K: int, sigma: float) -> Iterator[tuple[str, Loss]]:
    if result.left_behind >= LEARNS:  # only slow
        strong = WeightedSum([(_round(scale / result.maximum), term) for scale, term in terms_of(loss)])
        yield "the same loss with unit maximum weight (curriculum paper, §5)", strong
    with suppress(NoSolution, ValueError):  # no hyperparameter, or several
        like = 10 if K <= 100 else 100
        params = {name: _round(value) for name, value in calibrate(loss, K, like, sigma=sigma).params.items()}
        yield (
            f"the average error that it has with {like} classes (bias paper, §3.3)",
            loss.with_hyperparameters(**params),
        )
    if loss.kind == "margin" and K > 2:
        tau = round(-expected_margin(10, sigma=sigma), 2)
        scaled = remargin_for(loss, K, by="scale", tau=tau, sigma=sigma)
        yield "margins scaled to start as those of 10 classes do (curriculum paper, §5.1.1)", scaled
    with suppress(ValueError):  # no shift is that large
        shifted = Remargin(loss, shift=round(logit_bias(K, sigma=sigma), 2))
        yield "a logit bias with which the label's mean probability is 0.15 (bias paper, Eq. 4)", shifted


def _round(value: float) -> float:
    """To three digits, which a user can type."""
    return float(f"{value:.3g}")
