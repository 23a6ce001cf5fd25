"""Whether a loss learns a given number of classes (``losses.verdict``), by its terms, and what to
use instead.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from noiseproof.analysis.before.robustness import check_of_logits
from noiseproof.core.checks import check_count
from noiseproof.core.messages import counted
from noiseproof.losses import Loss, NoSolution, Remargin, calibrate, remargin_for
from noiseproof.losses.attention import NoiseAttention
from noiseproof.losses.base import WeightedSum, terms_of
from noiseproof.losses.initial import expected_margin, logit_bias
from noiseproof.losses.verdict import (
    FALL,
    LEARNS,
    RANK,
    Answer,
    MeanWeights,
    largest_weight,
    ratio,
    root_excess,
    settled,
    verdict,
)
from noiseproof.train.methods import MethodContext, method_loss

# λ of NAL that are tried, its paper's 0.5 and 10 among them
ATTENTION = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


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
    """The answer and its numbers; weights are means over labels, relative ones are divided by
    ``maximum``.
    """

    loss: str
    num_classes: int
    answer: Answer
    margin: float  # E[Δ] at the start
    weight: float  # w̄ there: −⟨δ_k⟩(0) of bias paper, Eq. 3 for simulated logits
    maximum: float  # of w over all margins; of w̄ for losses that depend on the other classes
    start: float  # weight/maximum
    left_behind: float  # w̄ at margin − FALL, over the maximum
    learnt: float  # w̄ at Δ = 0, over the maximum
    slowness: float  # time from the start to Δ = 0 over the time of cross entropy
    reason: str
    terms: tuple[Term, ...] = ()
    instead: tuple[Alternative, ...] = ()  # the best first


def forecast(
    loss: Loss | str,
    num_classes: int,
    *,
    margins: Tensor | None = None,
    alternatives: bool = True,
) -> Forecast:
    """Forecast whether ``loss`` learns ``num_classes`` classes.

    Args:
        loss: a loss, or a line that trains (``nal``, ``het-tau``, ``10*nce + mae``): its loss, with
            the defaults of the method for that many classes, is judged. ``Forecast.loss`` names it.
        margins: Δ of the labels (N,) in an untrained model; by default of N(0, 1) logits.
            Losses that depend on the other classes use only their mean, and average over simulated
            other classes.
        alternatives: if the loss does not learn, look for calibrated losses that do.

    >>> mae = forecast("mae", 400)
    >>> mae.answer, round(mae.weight, 6), mae.instead[0].loss
    ('underfits', 0.001522, 'tau-scale:loss=(mae:scale=1.0),num_classes=400,tau=2.62,sigma=1.0')
    """
    check_count("num_classes", num_classes, 2)
    given = (
        method_loss(loss, MethodContext.of_classes(num_classes)) if isinstance(loss, str) else loss
    )
    loss = settled(given, num_classes)
    check_of_logits(loss, num_classes, given)
    if margins is not None and (margins.dim() != 1 or not len(margins)):
        raise ValueError(f"Expected `margins` (N,), got {tuple(margins.shape)}.")
    weights = MeanWeights(num_classes, margins, 1.0)
    result = _forecast(loss, weights, given)
    if (excess := root_excess(given, num_classes)) > 1 and result.answer == "learns":
        reason = (
            f"its root starts {excess:.2g} times too long and explains labels as noise before the"
            " mean learns"
        )
        return replace(result, answer="partly", reason=reason, instead=_shorter(given, weights))
    if result.answer == "learns":
        return result
    if loss is not given:
        return replace(result, instead=_attentive(given, weights))
    return replace(result, instead=_alternatives(loss, result, weights)) if alternatives else result


def _forecast(loss: Loss, weights: MeanWeights, given: Loss) -> Forecast:
    """Return the forecast of ``loss``, with the names of ``given``, of which it is ``settled``."""
    judged = verdict(loss, weights)
    total = weights.of(loss)
    distance = weights.distance
    start = total(0.0)
    behind = total(-FALL)
    learnt = total(distance)
    terms = []
    pairs = list(zip(terms_of(given), terms_of(loss), strict=True))
    for (factor, named), (scale, term) in pairs if len(pairs) > 1 else ():
        weight = weights.of(term)
        largest = largest_weight(term, weight, distance)
        terms.append(
            Term(
                str(named),
                factor,
                start=ratio(weight(0.0), largest),
                left_behind=ratio(weight(-FALL), largest),
                share=ratio(scale * weight(0.0), start),
                share_left_behind=ratio(scale * weight(-FALL), behind),
                share_learnt=ratio(scale * weight(distance), learnt),
            )
        )
    return Forecast(
        loss=str(given),
        num_classes=weights.num_classes,
        answer=judged.answer,
        margin=weights.start,
        weight=start,
        maximum=judged.maximum,
        start=ratio(start, judged.maximum),
        left_behind=judged.left_behind,
        learnt=ratio(learnt, judged.maximum),
        slowness=judged.slowness,
        reason=judged.reason + _after_warmup(given),
        terms=tuple(terms),
    )


def _after_warmup(loss: Loss) -> str:
    """Return what the answer is not about: the first epochs of NAL, which are cross entropy."""
    warmup = max(
        (part.warmup or 0 for part in loss.modules() if isinstance(part, NoiseAttention)), default=0
    )
    return f"; judged as it is after its warm-up of {counted(warmup, 'epoch')}" if warmup else ""


def _shorter(loss: Loss, weights: MeanWeights) -> tuple[Alternative, ...]:
    """Return the same loss with a shorter root, LN's default."""
    name = "start" if "start" in loss.hyperparameters else "ln.start"
    if name not in loss.hyperparameters:
        return ()
    why = "a root that starts at a tenth of the model's own start"
    return (_judged(loss.with_hyperparameters(**{name: 0.1}), weights, why),)


def _judged(loss: Loss, weights: MeanWeights, why: str) -> Alternative:
    judged = verdict(settled(loss, weights.num_classes), weights)
    return Alternative(str(loss), judged.answer, judged.left_behind, judged.slowness, why)


def _attentive(loss: Loss, weights: MeanWeights) -> tuple[Alternative, ...]:
    """Return NAL with the smallest λ of a grid that learns."""
    if not isinstance(loss, NoiseAttention):
        return ()
    why = "a λ that makes turning away from a label cost more"
    for lam in ATTENTION:
        other = _judged(loss.with_hyperparameters(lam=lam), weights, why)
        if other.answer == "learns":
            return (other,)
    return ()


def _alternatives(loss: Loss, result: Forecast, weights: MeanWeights) -> tuple[Alternative, ...]:
    """Return calibrated losses with a better forecast, the best first."""
    better = []
    for why, candidate in _candidates(loss, result, weights.num_classes):
        judged = verdict(candidate, weights)
        numbers = judged.answer, judged.left_behind, judged.slowness
        if RANK[judged.answer] < RANK[result.answer]:
            better.append(Alternative(str(candidate), *numbers, why))
    return tuple(sorted(better, key=lambda alternative: RANK[alternative.answer]))


def _candidates(loss: Loss, result: Forecast, K: int) -> Iterator[tuple[str, Loss]]:
    if result.left_behind >= LEARNS:  # only slow
        strong = WeightedSum(
            [(_round(scale / result.maximum), term) for scale, term in terms_of(loss)]
        )
        yield "the same loss with unit maximum weight (curriculum paper, §5)", strong
    with suppress(NoSolution, ValueError):  # no hyperparameter, or several
        like = 10 if K <= 100 else 100
        solution = calibrate(loss, K, like, check=False).params
        params = {name: _round(value) for name, value in solution.items()}
        yield (
            f"the average error that it has with {like} classes (bias paper, §3.3)",
            loss.with_hyperparameters(**params),
        )
    if loss.kind == "margin" and K > 2:
        tau = round(-expected_margin(10), 2)
        scaled = remargin_for(loss, K, by="scale", tau=tau)
        yield "margins scaled to start as with 10 classes (curriculum paper, §5.1.1)", scaled
    with suppress(ValueError):  # no shift is that large
        shifted = Remargin(loss, shift=max(0.0, round(logit_bias(K), 2)))
        yield (
            "a logit bias with which the label's mean probability is 0.15 (bias paper, Eq. 4)",
            shifted,
        )


def _round(value: float) -> float:
    """Round to three digits, which a user can type."""
    return float(f"{value:.3g}")
