"""Whether a loss learns a given number of classes, from its weights before training.

Two things keep a loss from learning, and both show in its mean weight w̄ over the margins of an
untrained network:

* Labels that fall behind are given up: ``left_behind``, w̄ at a margin FALL below the start over
  the maximum of the whole sum, is next to nothing.
* The whole loss is too weak: ``slowness``, how many times longer than with cross entropy a margin
  takes from its start to zero if dΔ/dt = w̄(Δ), the integral of 1/w̄, is large.

The thresholds lie between the cells of curriculum paper, Table 2 and bias paper, Table 3 that learn
and those that don't (``benchmarks/forecast.py``).

Losses of a head count as losses of the margin alone: the covariance of LN and the attention of NAL
are taken at their best value for the margin, the noise of Het where its head starts. Margins are
taken of the scores, logits over the temperature τ: weights have the factor 1/τ².
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.margin import LabelProb
from noiseproof.losses.attention import NoiseAttention
from noiseproof.losses.base import Loss, MarginLoss, WeightedSum, terms_of
from noiseproof.losses.gaussian import LN
from noiseproof.losses.het import Het
from noiseproof.losses.initial import average_error, expected_margin
from noiseproof.losses.margin import CE
from noiseproof.losses.sums import as_loss

Answer = Literal["learns", "partly", "underfits"]

FALL = 3.0  # how far a margin falls behind its start, in logits
LEARNS = 0.0077
PARTLY = 0.0031  # ``left_behind`` from which a loss learns, and from which it learns partly
SLOW = 114.0  # ``slowness`` up to which it learns
LONG = 10.0  # ``slowness`` from which the answer says that it depends on the length of the training
RANK: dict[Answer, int] = {"learns": 0, "partly": 1, "underfits": 2}
# K·start² up to which LN's mean learns first: 60 classes from the model's own start do, 100 do not
ROOT = 77.0
HET_SCALE = math.log(2) + 1e-3  # the standard deviation with which the head of Het starts


@dataclass(frozen=True)
class Verdict:
    """The answer, the reason, and the two numbers that decide."""

    answer: Answer
    reason: str
    maximum: float  # of w over all margins; of w̄ for losses that depend on the other classes
    left_behind: float  # w̄ at the start − FALL, over the maximum
    slowness: float  # time from the start to Δ = 0 over the time of cross entropy

    @property
    def is_long(self) -> bool:
        """Whether short trainings do not have the steps it takes."""
        return self.slowness >= LONG


class MeanWeights:
    """w̄ of losses as a function of how far all margins have moved from their start."""

    def __init__(self, num_classes: int, margins: Tensor | None, sigma: float) -> None:
        self.num_classes = num_classes
        self.sigma = sigma
        self.margins = None if margins is None else margins.detach().cpu().double()
        expected = expected_margin(num_classes, sigma=sigma)
        self.start = expected if self.margins is None else float(self.margins.mean())
        self.offset = self.start - expected  # of z_k
        self.distance = max(-self.start, 0.0)  # from the start to Δ = 0
        self.cache: dict[tuple[Loss, float], float] = {}  # averages over a sample are slow

    def __call__(self, loss: Loss, moved: float) -> float:
        """Return w̄ of a single loss, after all margins have ``moved`` so far from their start."""
        if self.margins is not None and loss.kind == "margin":
            return float(loss.sample_weight(self.margins + moved).detach().mean())
        if (loss, moved) not in self.cache:
            error = average_error(loss, self.offset + moved, self.num_classes, sigma=self.sigma)
            self.cache[loss, moved] = -error
        return self.cache[loss, moved]

    def of(self, loss: Loss) -> Callable[[float], float]:
        """Return w̄ of a loss, which may be a sum, as a function of how far margins have moved."""
        terms = terms_of(loss)
        return lambda moved: sum(scale * self(term, moved) for scale, term in terms)


def verdict(loss: Loss, weights: MeanWeights) -> Verdict:
    """Judge whether ``loss`` learns from the margins of ``weights``."""
    weight_at = weights.of(loss)
    distance = weights.distance
    maximum = largest_weight(loss, weight_at, distance)
    left_behind = ratio(weight_at(-FALL), maximum)
    slowness = _duration(weight_at, distance) / _duration(weights.of(as_loss("ce")), distance)
    # A sum is judged by the term with the highest thresholds: pairs compare by their first number.
    learns, partly = max(
        getattr(term, "thresholds", (LEARNS, PARTLY)) for _, term in terms_of(loss)
    )
    answer, reason = _answer(left_behind, slowness, learns, partly)
    return Verdict(answer, reason, maximum, left_behind, slowness)


def largest_weight(loss: Loss, weight_at: Callable[[float], float], distance: float) -> float:
    """Return the largest weight over all margins.

    For an average, the search is over a grid, refined by the parabola at its best point. The grid
    goes from 8 below the start to 8 above zero, which is ``distance`` above the start.
    """
    if loss.kind == "margin":
        return loss.max_weight
    grid = np.arange(-8.0, distance + 8.0)
    values = [weight_at(float(moved)) for moved in grid]
    best = int(np.argmax(values))
    if not 0 < best < len(grid) - 1:
        return values[best]
    left, middle, right = values[best - 1 : best + 2]
    bend = left - 2 * middle + right
    if bend >= 0:
        return middle
    return max(middle, weight_at(float(grid[best] + (left - right) / (2 * bend))))


def _duration(weight_at: Callable[[float], float], distance: float) -> float:
    """Integrate 1/w̄ from the start to Δ = 0, by Gauss-Legendre quadrature.

    The result is infinite if the weight isn't positive.
    """
    from scipy.integrate import fixed_quad  # its import takes half a second

    def time(moved: NDArray[np.float64]) -> NDArray[np.float64]:
        rates = np.array([weight_at(float(at)) for at in moved])
        times: NDArray[np.float64] = np.where(rates > 0, 1 / np.maximum(rates, 1e-300), math.inf)
        return times

    # with two classes margins start at zero: integrate over one unit instead
    span = max(distance, 1.0)
    return float(fixed_quad(time, 0, span, n=10)[0])


def _answer(
    left_behind: float, slowness: float, learns: float, partly: float
) -> tuple[Answer, str]:
    if slowness > SLOW:
        return (
            "underfits",
            f"it is {slowness:.0f} times slower than cross entropy at the same learning rate",
        )
    share = f"a label that falls {FALL:g} behind keeps {left_behind:.2%} of the largest weight"
    if not left_behind >= partly:  # also NaN, of a loss without any weight
        return "underfits", f"{share}, too little to return"
    if left_behind < learns:
        return "partly", f"{share}, too little for many to return"
    reason = (
        f"{share}, and it takes {slowness:.3g} times the steps of cross entropy at the same"
        " learning rate"
    )
    if slowness >= LONG:
        reason += ", which short trainings do not have"
    return "learns", reason


def ratio(part: float, total: float) -> float:
    return part / total if total else math.nan


class SettledNormal(MarginLoss):
    """LN at its best covariance, the other logits at their start: the weight is r/(τ·max(r² + s²,
    λ²)).

    r = τ(C − z) is the residual of the label at the score z = Δ + log(K − 1), and
    s² = (K − 1)·start² the squares of the other classes (LN paper, Eqs. 7-8 and B.4); with one
    standard deviation for all K logits its square is shared by K.
    """

    def __init__(self, loss: LN, num_classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.loss = loss
        self.num_classes = num_classes
        self.tau = loss.tau
        self.lam = loss.lam
        self.covariance = loss.covariance
        self.K = num_classes
        self.aim = loss.label_logit(num_classes)
        self.others = (num_classes - 1) * loss.start**2

    def value(self, y: LabelProb) -> Tensor:
        residual = self.aim - self.tau * (y.margin + math.log(self.K - 1))
        if self.covariance == "identity":
            return residual.square() / 2 / self.tau**2
        square = residual.square() + (0.0 if self.covariance == "diagonal" else self.others)
        share = self.K if self.covariance == "isotropic" else 1
        variance = square / share / self.lam**2
        return (
            share * torch.where(variance <= 1, variance / 2, 0.5 + variance.log() / 2) / self.tau**2
        )


class SettledAttention(MarginLoss):
    """NAL at its best attention τ = min(1, λ/((1 + λ)(1 − p))): the weight is λp up to
    p = 1/(1 + λ), then 1 − p.

    Attention is predicted from the features, so that labels which fall behind return from less than
    elsewhere.
    """

    # of ``left_behind``: between Gaussian classes that learn, partly and not
    thresholds = 0.0034, 0.0023

    def __init__(self, lam: float, **options: Any) -> None:
        super().__init__(**options)
        self.lam = lam

    def value(self, y: LabelProb) -> Tensor:
        attended = math.log1p(self.lam) - self.lam * math.log(self.lam / (1 + self.lam))
        # − λ log τ of the label that the attention turns from
        ignored = attended + self.lam * F.logsigmoid(-y.margin)
        return torch.where(y.p >= 1 / (1 + self.lam), y.nll, ignored)


def settled(loss: Loss, num_classes: int) -> Loss:
    """Return a loss of the margin alone in place of a loss that comes with a head.

    Sums are replaced term by term; a loss without a head is returned itself.
    """

    def replacement(term: Loss) -> tuple[float, Loss]:
        """Return a factor and the loss that it multiplies: 1 and ``term`` itself if it can stay."""
        if isinstance(term, LN):
            return 1.0, SettledNormal(term, num_classes)
        # the softmax averaged over noise is about one of this temperature (MacKay 1992)
        if isinstance(term, Het):
            return 1 / (term.tau**2 + math.pi / 8 * HET_SCALE**2), CE()
        if isinstance(term, NoiseAttention) and term.lam > 0 and term.beta == 0:
            return 1.0, SettledAttention(term.lam)
        return 1.0, term

    terms = terms_of(loss)
    changed = []
    for scale, term in terms:
        factor, inner = replacement(term)
        changed.append((scale * factor, inner))
    if all(inner is term for (_, term), (_, inner) in zip(terms, changed, strict=True)):
        return loss
    return WeightedSum(changed)


def root_excess(loss: Loss, num_classes: int) -> float:
    """Return K·start² of LN's root over ``ROOT``.

    Above 1 the root is so long at first that it explains every label as noise.
    """
    roots = [part for _, part in terms_of(loss) if isinstance(part, LN) and "root" in part.needs]
    return max((num_classes * part.start**2 for part in roots), default=0.0) / ROOT
