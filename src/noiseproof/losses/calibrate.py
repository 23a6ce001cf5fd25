"""Hyperparameters from the number of classes, without training (papers the bias paper and the curriculum paper).

At initialisation the logits are taken as independent N(0, σ²). A margin loss sees one random number of them,
L = log Σ_{i≠k} exp z_i, whose distribution is computed here on a grid to about 1e-8: nothing is sampled. Losses that
depend on the other classes too are averaged over a fixed sample.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, register
from noiseproof.losses.coupled import CR, Peer
from noiseproof.losses.remargin import Remargin
from noiseproof.losses.sums import as_loss, terms_of

if TYPE_CHECKING:
    from noiseproof.losses.verdict import Verdict

By = Literal["shift", "scale"]
Z = TypeVar("Z", float, Tensor)
DRAWS = 2**20  # logits of the sample that losses without an exact average are averaged over
_SIX = np.arange(-2, 4)
_LAGRANGE = np.linalg.inv(np.vander(_SIX))  # coefficients of the polynomials that are one at one of the six


class NoSolution(ValueError):
    """No admissible hyperparameter gives the requested error."""


def logit_bias(num_classes: int, C: float = 0.15, *, sigma: float = 1.0) -> float:
    """Bias ε of the labelled logit that makes its mean probability ``C`` in an untrained network.

    Solves ⟨exp(z_k + ε)/(exp(z_k + ε) + Σ_{i≠k} exp z_i)⟩ = C over all logits (bias paper, Eq. 4, which trains with the
    roundings 0.5 and 3.0, and with 5.2 at 1000). It is negative where C < 1/K.

    >>> [round(logit_bias(K), 4) for K in (10, 100, 1000)]
    [0.5246, 3.0341, 5.3576]
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    C = check_number("C", C, "(0, 1)", 0, 1, "It is a mean probability.")
    others = log_sum(K - 1, sigma)
    margin = combined(np.subtract, normal(sigma, others.step), others)

    def gap(epsilon: float) -> float:
        return margin.average(lambda delta: torch.sigmoid(delta + epsilon)) - C

    # It lies between the biases that bring the largest and the smallest margin to C. One more on either side keeps the
    # signs different where all margins are nearly the same.
    smallest, largest = margin.points[[0, -1]].tolist()
    log_odds = math.log(C / (1 - C))
    return _root(gap, log_odds - largest - 1, log_odds - smallest + 1)


def expected_margin(num_classes: int, *, sigma: float = 1.0, exact: bool = True) -> float:
    """Mean margin E[Δ_y] of an untrained network.

    ``exact=False`` is the approximation −log(K − 1) − σ²/2 + (e^{σ²} − 1)/(2(K − 1)) of curriculum paper, Eq. 4, which
    fails for few classes or large σ.
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    if exact:
        return -log_sum(K - 1, sigma).mean if K > 2 else 0.0
    return -math.log(K - 1) - sigma**2 / 2 + math.expm1(sigma**2) / (2 * (K - 1))


def average_error(loss: Loss | str, z: Z, num_classes: int, *, sigma: float = 1.0, draws: int = DRAWS) -> Z:
    """Mean gradient ⟨δ_k⟩(z) that the labelled logit gets where it is ``z`` and the others are N(0, σ²).

    ⟨δ_k⟩(z) = ⟨∂L/∂z_k⟩ over z_i, i ≠ k (bias paper, Eq. 3), which is −⟨w(z − log Σ_{i≠k} exp z_i)⟩ for a margin loss.
    Where it vanishes around z = 0, the loss doesn't learn. Other losses are averaged over a fixed sample of ``draws``
    logits (relative error about 1e-4, or 4e-4 of 2¹⁷); ``peer``, and ``cr`` without a prior, as in a batch with
    equally many labels of each class. ``z`` may be a tensor of any shape.

    >>> round(average_error("gce:q=0.7", 0.0, 100), 6)  # The bias paper prints −0.279
    -0.028234
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    loss, draws = as_loss(loss), check_count("draws", draws, 1)
    if isinstance(z, Tensor):
        errors = [average_error(loss, at, K, sigma=sigma, draws=draws) for at in z.flatten().tolist()]
        return torch.tensor(errors, dtype=torch.float64).reshape(z.shape)
    z = check_number("z", z, "(-inf, inf)")
    # The error of a sum is the sum of the errors, so only the terms that need a sample are sampled.
    return sum(scale * mean_error(term, z, K, sigma, draws) for scale, term in terms_of(loss))


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found: one loss, or a curve of equally good hyperparameters to choose from."""

    loss: Loss | None  # None where there is a curve: nothing is chosen silently
    params: dict[str, float]
    error: float  # ⟨δ_k⟩(0) at ``num_classes``, and without a ``note`` also at ``like`` classes
    num_classes: int
    like: int
    curve: tuple[dict[str, float], ...] = ()
    note: str = ""  # why it is not the solution, and what it is instead


def calibrate(
    loss: Loss | str,
    num_classes: int,
    like: int = 100,
    *,
    free: str | tuple[str, str] | None = None,
    grid: Sequence[float] | None = None,
    sigma: float = 1.0,
    check: bool = True,
) -> Calibration:
    """Hyperparameters for ``num_classes`` that keep the initial error a loss has with ``like`` classes.

    Solves ⟨δ_k⟩(0; θ', K') = ⟨δ_k⟩(0; θ, K) for the nearest θ' (bias paper, section 3.3 and appendix 4). If that does
    not learn by ``losses.verdict``, there is none, or it needs more steps than short trainings have and the given θ
    fewer, the result is the given θ where that learns, else the value that learns with the nearest error; ``note`` says
    why.

    Args:
        loss: the loss with the hyperparameters that work for ``like`` classes.
        free: the hyperparameter to change (``"q"``; in sums ``"agce.q"``), where there are several. Of a pair of names
            the first runs over ``grid``, the second is solved, and the result is a curve.
        grid: values of the pair's first name; by default 21 from a hundredth to a hundred times its value.
        sigma: standard deviation of the untrained network's logits.
        check: give only what learns; False for the solution of the equation alone.

    Raises:
        NoSolution: no admissible value learns (without ``check``, or solves the equation), with reason and remedy.

    >>> calibration = calibrate("gce:q=0.7", 1000)
    >>> round(calibration.params["q"], 4), round(calibration.error, 6)
    (0.4816, -0.028234)
    """
    loss = as_loss(loss)
    K, like, sigma = _check_classes(num_classes), _check_classes(like, "like"), _check_sigma(sigma)
    names = _free_names(loss, free)
    if len(names) != 2 and grid is not None:
        raise ValueError("Expected `grid` with a pair of free hyperparameters only.")

    @functools.cache  # the terms of a sum that stay as they are keep their identity
    def term_error(term: Loss, classes: int) -> float:
        return mean_error(term, 0.0, classes, sigma)

    def error(changed: Loss, classes: int = K) -> float:
        return sum(scale * term_error(term, classes) for scale, term in terms_of(changed))

    def solved() -> Calibration:
        if not names:
            raise NoSolution(f"`{loss}` has no real-valued hyperparameter to change.")
        target = error(loss, like)
        if target == 0:
            raise NoSolution(f"`{loss}` has no error at {like} classes to match: ⟨δ_k⟩(0) = 0.")
        if len(names) == 2:
            present = loss.hyperparameters[names[0]]
            default = [present * 10 ** (i / 5) if present else i / 10 for i in range(-10, 11)]
            curve = _curve(loss, names, default if grid is None else grid, error, target)
            return Calibration(None, {}, target, K, like, curve)
        params = {names[0]: _solve(loss, names[0], error, target)}
        return Calibration(_changed(loss, **params), params, target, K, like)

    if check:
        return _checked(loss, names, solved, error, Calibration(None, {}, math.nan, K, like), sigma)
    try:
        return solved()
    except NoSolution as reason:
        bias = logit_bias(K, sigma=sigma)
        advice = f" Use a logit bias instead: remargin with shift = logit_bias({K}) = {bias:.4f} makes the label's mean"
        raise NoSolution(f"{reason}{f'{advice} probability 0.15.' * (bias > 0)}") from None


def _checked(
    loss: Loss,
    names: Sequence[str],
    solved: Callable[[], Calibration],
    error: Callable[..., float],
    asked: Calibration,
    sigma: float,
) -> Calibration:
    """What ``solved`` gives where it learns by ``losses.verdict``, else ``loss`` or the nearest that does."""
    from noiseproof.losses.verdict import Weights, verdict  # which needs this module

    K, weights = asked.num_classes, Weights(asked.num_classes, None, sigma)

    def learns(candidate: Loss) -> bool:
        return verdict(candidate, weights).answer == "learns"

    try:
        found = solved()
        curve = tuple(point for point in found.curve if learns(_changed(loss, **point)))
        if curve:
            return replace(found, curve=curve)
        judged = verdict(found.loss or _changed(loss, **found.curve[0]), weights)
        verb = _fault(judged, verdict(loss, weights))
        if not verb:
            return found
        tried = f"`{found.loss}`" if found.loss else f"Each of the {len(found.curve)} pairs"
        why = f"{tried} has that average error and {verb.format(K)}: {judged.reason}."
    except NoSolution as reason:
        why = str(reason)
    if names and learns(loss):
        params = {name: loss.hyperparameters[name] for name in names}
        note = f"{why} `{loss}` learns {K} classes as it is."
        return replace(asked, loss=loss, params=params, error=error(loss), note=note)
    target = error(loss, asked.like) if names else 0.0
    if len(names) == 1 and target:
        nearest = _nearest(loss, names[0], lambda one: abs(error(one) - target), learns)
        if nearest is not None:
            params = {names[0]: nearest.hyperparameters[names[0]]}
            note = f"{why} This is the nearest that learns."
            return replace(asked, loss=nearest, params=params, error=error(nearest), note=note)
        why = f"{why} No other `{names[0]}` learns {K} classes."
    raise NoSolution(f"{why} {_advice(loss, K, sigma, learns)}")


def _fault(judged: Verdict, own: Verdict) -> str:
    """What a solution does wrong, of some number of classes; nothing where it may take the place of its loss."""
    if judged.answer != "learns":
        return "does not learn {} classes"
    is_slower = judged.is_long and own.answer == "learns" and own.slowness < judged.slowness
    return "learns {} classes more slowly" * is_slower


def _advice(loss: Loss, K: int, sigma: float, learns: Callable[[Loss], bool]) -> str:
    others: list[Loss] = [loss, Remargin(loss, shift=max(0.0, round(logit_bias(K, sigma=sigma), 4)))]
    if loss.kind == "margin" and K > 2:
        others.append(remargin_for(loss, K, by="scale", sigma=sigma))
    best = next((other for other in others if learns(other)), None)
    if best is None:
        return "Use another loss, such as gce."
    return f"`{best}` learns {K} classes{' as it is' * (best is loss)}."


def _nearest(loss: Loss, name: str, distance: Callable[[Loss], float], learns: Callable[[Loss], bool]) -> Loss | None:
    """The loss with the ``name`` of the smallest ``distance`` that ``learns``; None if no value tried does."""
    axis = _Axis(loss, name)
    points = sorted({axis.at(t) for t in axis.grid()})
    with np.errstate(invalid="ignore"):  # far out a loss may overflow
        distances = {value: distance(_changed(loss, **{name: value})) for value in points}
    finite = {value: gap for value, gap in distances.items() if math.isfinite(gap)}
    by_distance = sorted(finite, key=finite.__getitem__)
    first = next((value for value in by_distance if learns(_changed(loss, **{name: value}))), None)
    if first is None:
        return None
    place, best = points.index(first), first
    for beside in points[max(0, place - 1) : place + 2]:  # between the last that learns and a nearer one that does not
        bad = beside
        for _ in range(30 if finite.get(beside, math.inf) < finite[first] else 0):
            middle = (best + bad) / 2
            best, bad = (middle, bad) if learns(_changed(loss, **{name: middle})) else (best, middle)
    return _changed(loss, **{name: best})


class _Tau(Remargin):
    """Remargin by what takes |E[Δ]| of ``num_classes`` to τ."""

    source: ClassVar[str] = "curriculum paper, §5.1.1"
    by: ClassVar[By]

    def __init__(
        self, loss: Loss | str, num_classes: int, tau: float | None = None, sigma: float = 1.0, **options: Any
    ) -> None:
        size = -expected_margin(num_classes, sigma=sigma)
        tau = -expected_margin(10, sigma=sigma) if tau is None else check_number("tau", tau, "(0, inf)", 0)
        if self.by == "scale" and size == 0:
            raise ValueError("Expected `num_classes` of at least 3 to scale by τ/|E[Δ]|, got 2, where E[Δ] = 0.")
        move: dict[str, Any] = {self.by: size - tau if self.by == "shift" else tau / size}
        super().__init__(loss, **move, **options)
        self.num_classes, self.tau, self.sigma = int(num_classes), tau, float(sigma)


@register("tau-shift")
class TauShift(_Tau):
    """A loss shifted so that its mean margin at initialisation becomes −τ, by default that of 10 classes.

    l(σ(Δ + |E[Δ]| − τ)) with weight w(Δ + |E[Δ]| − τ) (curriculum paper, section 5.1.1; C.1.1 misprints it).

    >>> round(TauShift("mae", num_classes=100).shift, 4)
    2.4704
    """

    formula: ClassVar[str] = "l(σ(Δ + |E[Δ]| − τ))"
    by: ClassVar[By] = "shift"


@register("tau-scale")
class TauScale(_Tau):
    """A margin loss scaled so that its mean margin at initialisation becomes −τ, by default that of 10 classes.

    l(σ(αΔ))/α with α = τ/|E[Δ]|, so that the weight is w(αΔ) (curriculum paper, section 5.1.1).

    >>> round(TauScale("mae", num_classes=100).scale, 4)
    0.5143
    """

    formula: ClassVar[str] = "l(σ(αΔ))/α, α = τ/|E[Δ]|"
    by: ClassVar[By] = "scale"


def remargin_for(
    loss: Loss | str, num_classes: int, *, by: By = "shift", tau: float | None = None, sigma: float = 1.0
) -> Remargin:
    """The loss whose mean margin at initialisation is −τ (that of 10 classes): ``TauShift`` or ``TauScale``."""
    if by not in ("shift", "scale"):
        raise ValueError(f"Expected `by` to be 'shift' or 'scale', got {by!r}.")
    return (TauShift if by == "shift" else TauScale)(loss, num_classes, tau, sigma)


def _check_classes(value: object, name: str = "num_classes") -> int:
    return check_count(name, value, 2, "A classifier has at least two classes.")


def _check_sigma(value: object) -> float:
    sigma = check_number("sigma", value, "(0, 1e6]", 0, 1e6, remedy="It is the standard deviation of the logits.")
    return max(sigma, 1e-9)  # below, logits are equal to the last digit of every average


def _free_names(loss: Loss, free: str | tuple[str, str] | None) -> list[str]:
    """The hyperparameters to solve for; whole numbers and nested losses can't be."""
    known = [name for name, value in loss.hyperparameters.items() if isinstance(value, float)]
    listing = ", ".join(known) or "none"
    if not free and len(known) > 1:
        raise ValueError(f"`{loss}` has several hyperparameters. Choose which one, or which pair, is free: {listing}.")
    names = [free] if isinstance(free, str) else list(free or known)
    if len(names) > 2 or len(set(names) & set(known)) < len(names):
        raise ValueError(
            f"Expected `free` among the real hyperparameters of `{loss}` ({listing}), got "
            f"{', '.join(map(repr, names))}. Give one name or a pair of different names."
        )
    return names


def _changed(loss: Loss, **params: float) -> Loss:
    return loss.with_hyperparameters(**params).train(loss.training)


def _curve(
    loss: Loss, names: Sequence[str], grid: Sequence[float], error: Callable[[Loss], float], target: float
) -> tuple[dict[str, float], ...]:
    """The solutions of the second of two ``names`` for the values of the first in ``grid``."""
    first, second = names
    near, curve = loss, []
    for value in grid:
        try:
            near = _changed(near, **{first: value})
            near = _changed(near, **{second: _solve(near, second, error, target)})  # where the next one begins
        except ValueError:  # this point doesn't exist
            continue
        curve.append({name: near.hyperparameters[name] for name in names})
    if not curve:
        raise NoSolution(f"No pair of `{first}` and `{second}` tried for `{loss}` gives ⟨δ_k⟩(0) = {target:.6g}.")
    return tuple(curve)


class _Axis:
    """The values of one hyperparameter around its present one, at t = 0, as far as the loss admits them."""

    def __init__(self, loss: Loss, name: str) -> None:
        self.loss, self.name = loss, name
        self.start: float = loss.hyperparameters[name]
        # A term of a sum with a negative factor would be maximised.
        self.by_factor = self.start != 0 and (name.endswith(".factor") or not self.admits(-self.start))
        self.doublings = 8 if self.by_factor else 14

    def admits(self, value: float) -> bool:
        try:
            _changed(self.loss, **{self.name: value})
        except ValueError:
            return False
        return True

    def at(self, t: float) -> float:
        return self.start * math.exp(t) if self.by_factor else self.start + t * max(1.0, abs(self.start))

    def reach(self, inside: float, t: float) -> float:
        """``t``, or the end of the loss's range before it."""
        if self.admits(self.at(t)):
            return t
        for _ in range(60):
            middle = (inside + t) / 2
            inside, t = (middle, t) if self.admits(self.at(middle)) else (inside, middle)
        return inside

    def grid(self) -> list[float]:
        """Points that become sparse with their distance from the present value, up to the ends of the range."""
        steps = [0.1 * (2 ** (k / 2) - 1) for k in range(2 * self.doublings - 1)]
        return [self.reach(0.0, side * step) for side in (1, -1) for step in steps]


def _solve(loss: Loss, name: str, error: Callable[[Loss], float], target: float) -> float:
    """The value of ``name`` nearest to the present one where ``error`` is ``target``, of those that the loss admits."""
    axis = _Axis(loss, name)
    at = axis.at

    @functools.cache
    def gap(t: float) -> float:
        with np.errstate(invalid="ignore"):  # far out a loss may overflow; the search passes over what isn't finite
            return error(_changed(loss, **{name: at(t)})) - target

    if gap(0.0) == 0:
        return axis.start
    ends = {1: 0.0, -1: 0.0}  # how far the search got to either side
    for k in range(1, axis.doublings):
        for side, last in ends.items():
            t = axis.reach(last, side * 0.1 * (2**k - 1))
            if gap(t) * gap(0.0) <= 0:
                return at(_root(gap, last, t))
            if math.isfinite(gap(t)):
                ends[side] = t
    low, high = sorted(ends.values(), key=at)
    raise NoSolution(
        f"No `{name}` of `{loss}` gives ⟨δ_k⟩(0) = {target:.6g}: from {name} = {at(low):.6g} to {name} = "
        f"{at(high):.6g}, the ends of the range searched, it goes from {gap(low) + target:.6g} to "
        f"{gap(high) + target:.6g}."
    )


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of ``f`` between two points where its signs differ."""
    from scipy.optimize import brentq  # its import takes half a second

    return float(brentq(f, low, high, xtol=1e-14))


class Distribution(NamedTuple):
    """Quadrature weights at start, start + step, …; in numpy, since PyTorch's threads only cost time here."""

    start: float
    step: float
    weights: NDArray[np.float64]

    @property
    def points(self) -> NDArray[np.float64]:
        return self.start + np.arange(len(self.weights), dtype=np.float64) * self.step

    @property
    def mean(self) -> float:
        return float(self.weights @ self.points)

    def average(self, f: Callable[[Tensor], Tensor]) -> float:
        return float(self.weights @ f(torch.from_numpy(self.points)).detach().numpy())

    def finer(self, times: int) -> Distribution:
        """The same on a finer grid, by Fourier interpolation: the density is smooth and ends in zeros."""
        weights = np.fft.irfft(np.fft.rfft(self.weights), len(self.weights) * times)
        return Distribution(self.start, self.step / times, weights)


def normal(sigma: float, step: float) -> Distribution:
    """N(0, σ²) up to ±8.5σ, beyond which 2e-17 is left; the trapezoidal rule is exact to rounding for it."""
    reach = math.ceil(8.5 * sigma / step)
    weights = np.exp(-((np.arange(-reach, reach + 1) * (step / sigma)) ** 2) / 2)
    return Distribution(-reach * step, step, weights / weights.sum())


def combined(f: np.ufunc, a: Distribution, b: Distribution) -> Distribution:
    """The distribution of f(X, Y) for independent X and Y on grids of the same step.

    The mass of each pair is shared by the six points around f(x, y) so that its moments up to the fifth are kept.
    """
    mass, values = np.outer(a.weights, b.weights), f.outer(a.points, b.points)
    relevant = np.abs(mass) > 1e-18
    mass, values = mass[relevant], values[relevant]
    start = values.min() - 3 * a.step
    position = (values - start) / a.step
    floor = np.floor(position)
    fraction, index = position - floor, floor.astype(int)
    weights = np.zeros(int(index.max()) + 4)
    for i, coefficients in zip(_SIX, _LAGRANGE.T, strict=True):
        share = np.polyval(coefficients, fraction)  # not as a matrix product: BLAS' threads take longer
        weights += np.bincount(index + i, mass * share, len(weights))
    inside = np.flatnonzero(np.abs(weights) > 1e-17)
    weights = weights[inside[0] : inside[-1] + 1]
    return Distribution(float(start + inside[0] * a.step), a.step, weights / weights.sum())


@functools.lru_cache(maxsize=512)
def log_sum(count: int, sigma: float, times: int = 1) -> Distribution:
    """The distribution of log Σ exp z_i over ``count`` logits, by halves; on a grid ``times`` finer."""
    if times > 1:
        return log_sum(count, sigma).finer(times)
    if count == 1:
        return normal(sigma, max(min(sigma, 1.0) / 8, sigma / 40))  # fine for σ and for w(Δ), but 700 points at most
    a, b = log_sum(count // 2, sigma), log_sum(count - count // 2, sigma)
    step = min(a.step, b.step)
    total = combined(np.logaddexp, *(d.finer(2) if d.step > step else d for d in (a, b)))
    variance = total.weights @ (total.points - total.mean) ** 2
    return total.finer(2) if variance < (5 * step) ** 2 else total  # the sum of many logits varies little


def mean_error(loss: Loss, z: float, num_classes: int, sigma: float, draws: int = DRAWS) -> float:
    """⟨δ_k⟩(z) = ⟨∂L/∂z_k⟩ over z_i, i ≠ k (bias paper, Eq. 3), of a loss that is not a sum of others."""
    if loss.needs != frozenset({"logits"}):
        raise ValueError(f"Expected a loss of logits alone, got `{loss}`, which needs {', '.join(sorted(loss.needs))}.")
    if loss.kind != "margin":
        return _sampled(_of_rows(loss, num_classes), z, num_classes, sigma, draws)
    value = math.nan
    for times in (1, 8, 64, 512):  # the second settles it, except where the weight has a bend or a jump
        others = log_sum(num_classes - 1, sigma, times)
        before, value = value, -others.average(lambda rest: loss.sample_weight(z - rest))
        if abs(value - before) <= 1e-9 * abs(value):
            break
    return value


def _of_rows(loss: Loss, num_classes: int) -> Loss:
    """``loss`` of single rows, in a batch where every class is the label equally often if it depends on that."""
    if isinstance(loss, Peer):  # the mean over the batch of what it takes away
        loss = CR(loss=_of_rows(loss.loss, num_classes))
    if isinstance(loss, CR):
        prior = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64) if loss.prior is None else loss.prior
        loss = loss.with_hyperparameters(prior=prior, warmup=0)  # as it is after the warm-up
    if not loss.independent_rows:
        raise ValueError(f"Expected a loss that doesn't depend on the batch, got `{loss}`. Give its cr a `prior`.")
    return loss


def _controls(rest: Tensor, z: float) -> Tensor:
    """What the grid can average: L = log Σ_{i≠k} exp z_i, L², p and p², of which CE's and MAE's errors are made."""
    p = torch.sigmoid(z - rest)
    return torch.stack([rest, rest.square(), p, p.square()], 1)


def _sampled(loss: Loss, z: float, num_classes: int, sigma: float, draws: int) -> float:
    """⟨δ_k⟩(z) over antithetic pairs of the same draws each time, regressed on averages that are known exactly."""
    K, generator = num_classes, torch.Generator().manual_seed(0)
    others = log_sum(K - 1, sigma)
    known = others.weights @ _controls(torch.from_numpy(others.points), z).numpy()
    known = torch.from_numpy(np.append(known, (K - 1) * sigma**2))
    size = max(1, 2**17 // K)  # of a batch: 1 MiB
    triangle = torch.empty(0, 7, dtype=torch.float64)  # R of the QR decomposition of all rows so far
    for batch in range(max(math.ceil(64 / size), draws // (size * K))):
        drawn = torch.randn(size, K, generator=generator, dtype=torch.float64) * sigma
        label = (torch.arange(size)[:, None] + batch * size) % K  # (B, 1)
        for noise in (drawn, -drawn):  # (B, K)
            with torch.enable_grad():
                at = torch.full((size, 1), z, dtype=torch.float64, requires_grad=True)
                losses = loss.per_sample(Output(noise.scatter(1, label, at)), label[:, 0])
                (error,) = torch.autograd.grad(losses.sum(), at)
            rest = noise.scatter(1, label, -torch.inf).logsumexp(1)
            squares = noise.scatter(1, label, 0.0).square().sum(1, keepdim=True)
            control = torch.cat([_controls(rest, z), squares], 1) - known  # (B, 5)
            seen = torch.cat([torch.ones_like(error), control, error], 1)
            triangle = torch.linalg.qr(torch.cat([triangle, seen]), mode="r").R
    # The mean is the intercept. Where p is small the controls are all but collinear: QR keeps apart what moments, which
    # square the condition, would not, and directions as small as the grid's error are left out.
    norm = torch.linalg.vector_norm(triangle[:, :6], dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    inverse = torch.linalg.pinv(triangle[:, :6] / norm, rtol=1e-8)
    return float(inverse[0] @ triangle[:, 6] / norm[0])
