"""Will this loss learn with so many classes? An answer before training, the numbers behind it, and a loss that will.

Two things keep a loss from learning, and both are seen in its mean weight w̄ over the margins of an untrained network:

* Labels that fall behind are given up. While the first labels are learnt the margins of the others fall; where a loss
  then weighs them next to nothing beside its maximum, they never return. ``left_behind`` is w̄ at a margin FALL below
  the start, over the maximum. It is of the whole sum: a term that keeps its weight there, as NCE does, helps a sum by
  as much as it weighs in it.
* The whole loss is too weak. ``slowness`` is how many times longer than cross entropy, at the same learning rate, a
  margin takes from its start to zero where dΔ/dt = w̄(Δ): the integral of 1/w̄, so that it counts how the weight decays
  as Δ grows.

The thresholds lie between the cells of curriculum paper, Table 2 and bias paper, Table 3 that learn and those that
don't (``benchmarks/verdict.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from noiseproof.analysis.initialization import check_of_logits
from noiseproof.core.checks import check_count
from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.losses import Loss, NoSolution, Remargin, calibrate, remargin_for
from noiseproof.losses.base import WeightedSum, terms_of
from noiseproof.losses.calibrate import average_error, expected_margin, logit_bias
from noiseproof.losses.spec import as_loss
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Method, Settings, Task, get_method, train
from noiseproof.train.record import pull

Answer = Literal["learns", "partly", "underfits"]

FALL = 3.0  # how far below its start a label's margin is looked at, in logits
LEARNS, PARTLY = 0.0077, 0.0031  # ``left_behind`` from which a loss learns, and from which it does partly
SLOW = 114.0  # ``slowness`` up to which it learns
RANK: dict[Answer, int] = {"learns": 0, "partly": 1, "underfits": 2}


@dataclass(frozen=True)
class Term:
    """One additive term of a loss: its own weight over its own maximum, and its share of the whole."""

    loss: str
    factor: float
    start: float  # over the term's own maximum
    left_behind: float  # over the term's own maximum
    share: float  # of the sum's weight at the start
    share_left_behind: float
    share_learnt: float  # where the margin is zero


@dataclass(frozen=True)
class Alternative:
    """A loss to use instead, with what the verdict says of it."""

    loss: str
    answer: Answer
    left_behind: float
    slowness: float
    why: str


@dataclass(frozen=True)
class Verdict:
    """The answer and what it rests on; weights are means over labels, relative ones are over ``maximum``."""

    loss: str
    num_classes: int
    answer: Answer
    margin: float  # E[Δ] at the start
    weight: float  # w̄ there: −⟨δ_k⟩(0) of bias paper, Eq. 3 for simulated logits
    maximum: float  # of w over all margins; of w̄ for losses that look at other classes too
    start: float  # weight/maximum
    left_behind: float  # w̄ at margin − FALL, over the maximum
    learnt: float  # w̄ at Δ = 0, over the maximum
    slowness: float  # time from the start to Δ = 0 over that of cross entropy
    reason: str
    terms: tuple[Term, ...] = ()
    instead: tuple[Alternative, ...] = ()  # the first is the one to try


def verdict(
    loss: Loss | str,
    num_classes: int,
    *,
    margins: Tensor | None = None,
    sigma: float = 1.0,
    alternatives: bool = True,
) -> Verdict:
    """Say whether ``loss`` learns ``num_classes`` classes.

    Args:
        margins: Δ of the labels (N,) in the user's own untrained model; else those of N(0, σ²) logits. Losses that look
            at other classes too take only their mean from it, and average over simulated other classes.
        alternatives: where it doesn't learn, look for calibrated losses that do.

    >>> found = verdict("mae", 400)
    >>> found.answer, round(found.weight, 6), found.instead[0].loss
    ('underfits', 0.001522, 'tau-scale:loss=(mae:scale=1.0),num_classes=400,tau=2.62,sigma=1.0')
    >>> verdict("ce", 400).answer
    'learns'
    """
    whole = as_loss(loss)
    check_of_logits(whole, check_count("num_classes", num_classes, 2))
    if margins is not None and (margins.dim() != 1 or not len(margins)):
        raise ValueError(f"Expected `margins` (N,), got {tuple(margins.shape)}.")
    weights = _Weights(num_classes, margins, sigma)
    found = _judge(whole, weights)
    fine = found.answer == "learns" or not alternatives
    return found if fine else replace(found, instead=_better(whole, found, weights))


class _Weights:
    """w̄ of losses as functions of how far all margins have moved from their start."""

    def __init__(self, num_classes: int, margins: Tensor | None, sigma: float) -> None:
        self.num_classes, self.sigma = num_classes, sigma
        self.margins = None if margins is None else margins.detach().cpu().double()
        expected = expected_margin(num_classes, sigma=sigma)
        self.start = expected if self.margins is None else float(self.margins.mean())
        self.offset = self.start - expected  # of z_k
        self.known: dict[tuple[Loss, float], float] = {}  # losses that average over a sample take their time

    def __call__(self, loss: Loss, moved: float) -> float:
        if self.margins is not None and loss.kind == "margin":
            return float(loss.sample_weight(self.margins + moved).detach().mean())
        if (loss, moved) not in self.known:
            error = average_error(loss, self.offset + moved, self.num_classes, sigma=self.sigma)
            self.known[loss, moved] = -error
        return self.known[loss, moved]

    def of(self, loss: Loss) -> Callable[[float], float]:
        terms = terms_of(loss)
        return lambda moved: sum(scale * self(term, moved) for scale, term in terms)


def _judge(loss: Loss, weights: _Weights) -> Verdict:
    total = weights.of(loss)
    way = max(-weights.start, 0.0)  # from the start to Δ = 0
    start, behind, learnt = total(0.0), total(-FALL), total(way)
    maximum = _largest(loss, total, way)
    slowness = _duration(total, way) / _duration(weights.of(as_loss("ce")), way)
    answer, reason = _answer(_ratio(behind, maximum), slowness)
    terms = []
    for scale, term in terms_of(loss) if len(terms_of(loss)) > 1 else ():
        own = weights.of(term)
        largest = _largest(term, own, way)
        terms.append(
            Term(
                loss=str(term),
                factor=scale,
                start=_ratio(own(0.0), largest),
                left_behind=_ratio(own(-FALL), largest),
                share=_ratio(scale * own(0.0), start),
                share_left_behind=_ratio(scale * own(-FALL), behind),
                share_learnt=_ratio(scale * own(way), learnt),
            )
        )
    return Verdict(
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
    """Largest weight: of all margins, or where it is an average, of a grid and between its best points."""
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
    """∫ 1/w̄ from the start to Δ = 0, by Gauss-Legendre quadrature; infinite where the weight isn't positive."""
    nodes, shares = np.polynomial.legendre.leggauss(10)
    span = max(way, 1.0)  # with two classes margins start at zero: over a unit of margin instead
    rates = [weight(float(span * (node + 1) / 2)) for node in nodes]
    if min(rates) <= 0:
        return math.inf
    return float(span / 2 * sum(share / rate for share, rate in zip(shares, rates, strict=True)))


def _answer(left_behind: float, slowness: float) -> tuple[Answer, str]:
    if slowness > SLOW:
        return "underfits", f"it is {slowness:.0f} times slower than cross entropy at the same learning rate"
    share = f"a label that falls {FALL:g} behind keeps {left_behind:.2%} of the largest weight"
    if not left_behind >= PARTLY:  # or no number, where there is no weight at all
        return "underfits", f"{share}, too little to return"
    if left_behind < LEARNS:
        return "partly", f"{share}, too little for many to return"
    return "learns", f"{share}, and it is {slowness:.3g} times slower than cross entropy"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _better(loss: Loss, found: Verdict, weights: _Weights) -> tuple[Alternative, ...]:
    """Calibrated losses of which the verdict is better, the best first."""
    K, sigma = weights.num_classes, weights.sigma
    candidates: list[tuple[str, Loss]] = []
    if found.left_behind >= LEARNS:  # only slow
        strong = WeightedSum([(_round(scale / found.maximum), term) for scale, term in terms_of(loss)])
        candidates.append(("the same loss with unit maximum weight (curriculum paper, §5)", strong))
    with suppress(NoSolution, ValueError):  # no hyperparameter, or several
        like = 10 if K <= 100 else 100
        same = calibrate(loss, K, like, sigma=sigma)
        params = {name: _round(value) for name, value in same.params.items()}
        why = f"the average error that it has with {like} classes (bias paper, §3.3)"
        candidates.append((why, loss.with_hyperparameters(**params)))
    if loss.kind == "margin" and K > 2:
        tau = round(-expected_margin(10, sigma=sigma), 2)
        scaled = remargin_for(loss, K, by="scale", tau=tau, sigma=sigma)
        candidates.append(("margins scaled to start as those of 10 classes do (curriculum paper, §5.1.1)", scaled))
    with suppress(ValueError):  # no shift is that large
        shifted = Remargin(loss, shift=round(logit_bias(K, sigma=sigma), 2))
        candidates.append(("a logit bias with which the label's mean probability is 0.15 (bias paper, Eq. 4)", shifted))
    better = []
    for why, candidate in candidates:
        other = _judge(candidate, weights)
        if RANK[other.answer] < RANK[found.answer]:
            better.append(Alternative(other.loss, other.answer, other.left_behind, other.slowness, why))
    return tuple(sorted(better, key=lambda one: RANK[one.answer]))


def _round(value: float) -> float:
    """To three digits, which a user can type."""
    return float(f"{value:.3g}")


# 200 real steps


@dataclass(frozen=True)
class Probe:
    """What a few real steps did to the labels of the batches they saw; each pair is of the first and the last tenth."""

    method: str
    steps: int
    margin: tuple[float, float]  # mean Δ of the given labels
    accuracy: tuple[float, float]  # share of given labels that are predicted
    weight: tuple[float, float]  # mean ½‖∂L/∂z‖₁
    classes: tuple[int, int]  # how many different classes are predicted
    gain: float  # of the mean margin
    gain_of_ce: float  # of cross entropy's in the same steps

    @property
    def pace(self) -> float:
        """The gain over that of cross entropy."""
        return _ratio(self.gain, self.gain_of_ce)


class _Watch(Strategy):
    """Notes what each of the first ``steps`` does; an epoch ends where they are used up."""

    observes = True

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.seen: list[Tensor] = []  # margin, accuracy, weight of each step
        self.predicted: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Watch:
        return self  # the loop works on a copy of the method, and this one must come back

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        return rows[: (self.steps - run.step) * run.batch_size]

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        scores, given = run.loss.scores(outs[0]).detach(), batch.given
        guess = scores.argmax(1)
        of_step = [margin(scores, given), (guess == given).to(scores.dtype), pull(run.loss, outs[0], given)]
        self.seen.append(torch.stack([value.mean() for value in of_step]))
        self.predicted.append(guess)
        return None

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        run.stopped = None  # not before it has seen its steps


def probe(
    task: Task, method: Method | Loss | str, settings: Settings | None = None, *, steps: int = 200, seed: int = 0
) -> Probe:
    """Train for a few steps on the user's data, then cross entropy from the same weights on the same batches.

    The learning rate stays as it is in the first epoch. A method that trains two models is judged by the first.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> found = probe(prepare(get_dataset("digits")), "mae", Settings(model="mlp:hidden=[16]"), steps=20)
    >>> found.steps, found.pace < 1
    (20, True)
    """
    settings = settings or Settings()
    steps = check_count("steps", steps, 2)
    each = -(-len(task.train) // settings.batch_rows(len(task.train)))
    settings = replace(settings, epochs=-(-steps // each), schedule="constant", drop_last=False)

    def watch(what: Method | Loss | str, steps: int) -> tuple[str, int, list[tuple[float, float]], tuple[int, int]]:
        made = get_method(what, task, settings) if isinstance(what, str) else what
        made = Method(made) if isinstance(made, Loss) else made
        seen = _Watch(steps)
        train(
            replace(task, validation=None, test=None),
            replace(made, strategies=(*made.strategies, seen)),
            settings,
            seed=seed,
        )
        if not seen.seen:
            raise ValueError(f"Expected a method that leaves its steps to the loop, got {made}.")
        tenth = max(1, len(seen.seen) // 10)
        columns = torch.stack(seen.seen).cpu().double().T  # (3, steps)
        first_last = [(float(c[:tenth].mean()), float(c[-tenth:].mean())) for c in columns]
        classes = [
            int((torch.bincount(torch.cat(part)) > 0).sum())
            for part in (seen.predicted[:tenth], seen.predicted[-tenth:])
        ]
        return str(made), len(seen.seen), first_last, (classes[0], classes[1])

    name, taken, (margins, accuracy, weight), classes = watch(method, steps)
    _, _, (of_ce, *_), _ = watch("ce", taken)  # a method may leave rows out, and take fewer steps
    gain, gain_of_ce = margins[1] - margins[0], of_ce[1] - of_ce[0]
    return Probe(name, taken, margins, accuracy, weight, classes, gain, gain_of_ce)
