"""Hyperparameters from the number of classes, without training (papers 002 and 004).

At initialisation the logits are taken as independent N(0, σ²). A margin loss then sees one random number,
L = log Σ_{i≠k} exp z_i, whose distribution is computed here on a grid to about 1e-8: nothing is sampled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, WeightedSum, register
from noiseproof.losses.remargin import Remargin
from noiseproof.losses.spec import as_loss

Array = NDArray[np.float64]


class NoSolution(ValueError):
    """No admissible hyperparameter gives the error asked for."""


def logit_bias(num_classes: int, C: float = 0.15, *, sigma: float = 1.0) -> float:
    """Bias ε of the labelled logit that makes its mean probability ``C`` in an untrained network.

    Solves ⟨exp(z_k + ε)/(exp(z_k + ε) + Σ_{i≠k} exp z_i)⟩ = C, averaged over all logits, z_k included (paper 002,
    Eq. 4). It is negative where C < 1/K. Paper 002 trains with the roundings 0.5 and 3.0, and with 5.2 at 1000.

    >>> [round(logit_bias(K), 4) for K in (10, 100, 1000)]
    [0.5246, 3.0341, 5.3576]
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    C = check_number("C", C, "(0, 1)", 0, 1, "It is a mean probability.")
    margin = _margin(K, sigma)

    def gap(epsilon: float) -> float:
        return margin.average(lambda delta: torch.sigmoid(delta + epsilon)) - C

    low = high = math.log(C / (1 - C)) - margin.mean()
    reach = 1.0
    while gap(low) > 0:
        low, reach = low - reach, 2 * reach
    while gap(high) < 0:
        high, reach = high + reach, 2 * reach
    return _root(gap, (low, gap(low)), (high, gap(high)), tolerance=1e-14 * C)


def expected_margin(num_classes: int, *, sigma: float = 1.0, exact: bool = True) -> float:
    """Mean margin E[Δ_y] of an untrained network.

    Exact for N(0, σ²) logits; ``exact=False`` is the approximation −log(K − 1) − σ²/2 + (e^{σ²} − 1)/(2(K − 1)) of
    paper 004, Eq. 4, which fails for few classes or large σ.

    >>> round(expected_margin(100), 5), round(expected_margin(100, exact=False), 5)
    (-5.08666, -5.08644)
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    if exact:
        return -_log_sum(K - 1, sigma).mean() if K > 2 else 0.0
    return -math.log(K - 1) - sigma**2 / 2 + math.expm1(sigma**2) / (2 * (K - 1))


@overload
def average_error(loss: Loss | str, z: float, num_classes: int, *, sigma: float = 1.0) -> float: ...
@overload
def average_error(loss: Loss | str, z: Tensor, num_classes: int, *, sigma: float = 1.0) -> Tensor: ...
def average_error(loss: Loss | str, z: float | Tensor, num_classes: int, *, sigma: float = 1.0) -> float | Tensor:
    """Mean gradient ⟨δ_k⟩(z) that the labelled logit gets where it is ``z`` and the others are N(0, σ²).

    ⟨δ_k⟩(z) = ⟨∂L/∂z_k⟩ over z_i, i ≠ k (paper 002, Eq. 3), which is −⟨w(z − log Σ_{i≠k} exp z_i)⟩ for a margin loss.
    Where it vanishes around z = 0, the loss doesn't learn. Other losses are averaged over a fixed sample of logits
    (relative error about 1e-4), the label taking each class in turn. ``z`` may be a tensor of any shape.

    >>> round(average_error("gce:q=0.7", 0.0, 100), 6)  # paper 002 prints −0.279
    -0.028234
    >>> average_error("mae:scale=2", torch.tensor([0.0, 3.0, 6.0]), 100)
    tensor([-0.0123, -0.1971, -0.4079], dtype=torch.float64)
    """
    K, sigma = _check_classes(num_classes), _check_sigma(sigma)
    terms = [(scale, _average(term, K, sigma)) for scale, term in _terms(as_loss(loss))]
    if not isinstance(z, Tensor):
        z = check_number("z", z, "(-inf, inf)")
        return sum(scale * error(z) for scale, error in terms)
    errors = [sum(scale * error(at) for scale, error in terms) for at in z.detach().double().flatten().tolist()]
    return torch.tensor(errors, dtype=torch.float64).reshape(z.shape)


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found: one loss, or a curve of equally good hyperparameters to choose from."""

    loss: Loss | None  # None where there is a curve: nothing is chosen silently
    params: dict[str, float]
    error: float  # ⟨δ_k⟩(0), the same at both numbers of classes
    num_classes: int
    like: int
    curve: tuple[dict[str, float], ...] = field(default=())


def calibrate(
    loss: Loss | str,
    num_classes: int,
    like: int = 100,
    *,
    free: str | tuple[str, str] | None = None,
    grid: Sequence[float] | None = None,
    sigma: float = 1.0,
) -> Calibration:
    """Hyperparameters for ``num_classes`` that keep the initial error a loss has with ``like`` classes.

    Solves ⟨δ_k⟩(0; θ', K') = ⟨δ_k⟩(0; θ, K) for θ' (paper 002, section 3.3 and appendix 4), the solution nearest to θ
    where there are several.

    Args:
        loss: the loss with the hyperparameters that work for ``like`` classes.
        num_classes: the number of classes to find hyperparameters for.
        like: the number of classes of which they are known to work.
        free: the hyperparameter to change (``"q"``; in sums ``"agce.q"``), where there are several. Of a pair of names
            the first runs over ``grid``, the second is solved, and the result is a curve.
        grid: values of the pair's first name; by default 21 from a hundredth to a hundred times its value.
        sigma: standard deviation of the untrained network's logits.

    Raises:
        NoSolution: no admissible value does it; says what the ends of the range give, and the remedy.

    >>> found = calibrate("gce:q=0.7", 1000)
    >>> round(found.params["q"], 4), round(found.error, 6)
    (0.4816, -0.028234)
    """
    loss = as_loss(loss)
    K, like, sigma = _check_classes(num_classes), _check_classes(like, "like"), _check_sigma(sigma)
    remedy = (
        f"Use a logit bias instead: remargin with shift = logit_bias({K}) = {logit_bias(K, sigma=sigma):.4f} "
        "makes the label's mean probability 0.15."
    )
    names = _free_names(loss, free, remedy)

    @functools.cache  # the terms of a sum that stay as they are keep their identity
    def term_error(term: Loss, classes: int) -> float:
        return _average(term, classes, sigma)(0.0)

    def error(changed: Loss, classes: int = K) -> float:
        return sum(scale * term_error(term, classes) for scale, term in _terms(changed))

    target = error(loss, like)
    if target == 0:
        raise NoSolution(f"`{loss}` has no error at {like} classes to match: ⟨δ_k⟩(0) = 0. {remedy}")
    if len(names) == 1:
        if grid is not None:
            raise ValueError("Expected `grid` with a pair of free hyperparameters only.")
        params = {names[0]: _solve(loss, names[0], error, target, remedy)}
        return Calibration(loss.with_hyperparameters(**params).train(loss.training), params, target, K, like)

    first, second = names
    near, curve = loss, []
    for value in _around(loss.hyperparameters[first]) if grid is None else grid:
        try:
            near = near.with_hyperparameters(**{first: value}).train(loss.training)
            solved = _solve(near, second, error, target, remedy)
        except ValueError:  # this point doesn't exist
            continue
        curve.append({first: float(value), second: solved})
        near = near.with_hyperparameters(**{second: solved})  # where the next one begins
    if not curve:
        raise NoSolution(
            f"No pair of `{first}` and `{second}` tried for `{loss}` gives ⟨δ_k⟩(0) = {target:.6g}. {remedy}"
        )
    return Calibration(None, {}, target, K, like, tuple(curve))


@register("tau-shift")
class TauShift(Remargin):
    """A loss shifted so that its mean margin at initialisation becomes −τ, whatever the number of classes.

    l(σ(Δ + |E[Δ]| − τ)) with weight w(Δ + |E[Δ]| − τ) (paper 004, section 5.1.1; C.1.1 misprints it). τ is |E[Δ]| of
    10 classes by default.

    >>> round(TauShift("mae", num_classes=100).shift, 4)
    2.4704
    """

    formula: ClassVar[str] = "l(σ(Δ + |E[Δ]| − τ))"
    source: ClassVar[str] = "004 §5.1.1"

    def __init__(
        self, loss: Loss | str, num_classes: int, tau: float | None = None, sigma: float = 1.0, **options: Any
    ) -> None:
        size = abs(expected_margin(num_classes, sigma=sigma))
        tau = _tau(tau, sigma)
        super().__init__(loss, shift=size - tau, **options)
        self.num_classes, self.tau, self.sigma = int(num_classes), tau, float(sigma)


@register("tau-scale")
class TauScale(Remargin):
    """A margin loss scaled so that its mean margin at initialisation becomes −τ, whatever the number of classes.

    l(σ(αΔ))/α with α = τ/|E[Δ]|, so that the weight is w(αΔ) (paper 004, section 5.1.1). τ is |E[Δ]| of 10 classes by
    default.

    >>> round(TauScale("mae", num_classes=100).scale, 4)
    0.5143
    """

    formula: ClassVar[str] = "l(σ(αΔ))/α, α = τ/|E[Δ]|"
    source: ClassVar[str] = "004 §5.1.1"

    def __init__(
        self, loss: Loss | str, num_classes: int, tau: float | None = None, sigma: float = 1.0, **options: Any
    ) -> None:
        size = abs(expected_margin(num_classes, sigma=sigma))
        if size == 0:
            raise ValueError("Expected `num_classes` of at least 3 to scale by τ/|E[Δ]|, got 2, where E[Δ] = 0.")
        tau = _tau(tau, sigma)
        super().__init__(loss, scale=tau / size, **options)
        self.num_classes, self.tau, self.sigma = int(num_classes), tau, float(sigma)


def remargin_for(
    loss: Loss | str,
    num_classes: int,
    *,
    by: Literal["shift", "scale"] = "shift",
    tau: float | None = None,
    sigma: float = 1.0,
) -> Remargin:
    """The loss whose mean margin at initialisation is −τ: shifted by |E[Δ]| − τ, or scaled by τ/|E[Δ]|.

    Paper 004, section 5.1.1; τ is |E[Δ]| of 10 classes by default, which makes many classes start like ten.

    >>> print(remargin_for("mae", 100, by="scale", tau=2.6))
    tau-scale:loss=(mae:scale=1.0),num_classes=100,tau=2.6,sigma=1.0
    """
    if by not in ("shift", "scale"):
        raise ValueError(f"Expected `by` to be 'shift' or 'scale', got {by!r}.")
    return (TauShift if by == "shift" else TauScale)(loss, num_classes, tau, sigma)


def _tau(tau: float | None, sigma: float) -> float:
    return -expected_margin(10, sigma=sigma) if tau is None else check_number("tau", tau, "(0, inf)", 0)


def _check_classes(value: object, name: str = "num_classes") -> int:
    return check_count(name, value, 2, "A classifier has at least two classes.")


def _check_sigma(value: object) -> float:
    return check_number("sigma", value, "(0, inf)", 0, remedy="It is the standard deviation of the logits.")


# The distribution of the margin ---------------------------------------------------------------------------------


class _Grid(NamedTuple):
    """A distribution as quadrature weights at step·(start, start + 1, …).

    In numpy: on matrices this small, PyTorch's threads cost more than they bring.
    """

    start: int
    step: float
    weights: Array

    @property
    def stop(self) -> int:
        return self.start + len(self.weights)

    @property
    def points(self) -> Array:
        return np.arange(self.start, self.stop, dtype=np.float64) * self.step

    def average(self, f: Callable[[Tensor], Tensor]) -> float:
        return float((self.weights * f(torch.from_numpy(self.points)).detach().numpy()).sum())

    def mean(self) -> float:
        return float((self.weights * self.points).sum())

    def std(self) -> float:
        return math.sqrt((self.weights * (self.points - self.mean()) ** 2).sum())


def _normal(sigma: float, step: float) -> _Grid:
    """N(0, σ²) up to ±8.5σ, beyond which 2e-17 is left; the trapezoidal rule is exact to rounding for it."""
    reach = math.ceil(8.5 * sigma / step)
    weights = np.exp(-((np.arange(-reach, reach + 1) * (step / sigma)) ** 2) / 2)
    return _Grid(-reach, step, weights / weights.sum())


def _halved(grid: _Grid) -> _Grid:
    """The same distribution at half the step, by six-point interpolation."""
    weights = np.zeros(2 * len(grid.weights) + 9)
    weights[5:-5:2] = grid.weights / 2
    weights[::2] = np.convolve(grid.weights, np.array([3, -25, 150, 150, -25, 3]) / 512)
    return _Grid(2 * grid.start - 5, grid.step / 2, weights)


def _log_add(a: _Grid, b: _Grid) -> _Grid:
    """The distribution of log(e^X + e^Y) for independent X and Y."""
    while a.step > b.step:
        a = _halved(a)
    while b.step > a.step:
        b = _halved(b)
    parts = [_raised(large, small, least) for large, small, least in ((a, b, 0), (b, a, 1)) if large.stop > small.start]
    start, stop = min(part.start for part in parts), max(part.stop for part in parts)
    weights = np.sum([np.pad(part.weights, (part.start - start, stop - part.stop)) for part in parts], axis=0)
    kept = np.flatnonzero(np.abs(weights) > 1e-18)
    return _Grid(start + int(kept[0]), a.step, weights[kept[0] : kept[-1] + 1])


def _raised(large: _Grid, small: _Grid, least: int) -> _Grid:
    """The part of log(e^X + e^Y) where X is at least so many steps above Y.

    It is x + log1p(e^{−(x − y)}): all pairs of points with the same difference move by the same shift. The moved mass
    is laid on six neighbouring points so that its moments up to the fifth are kept.
    """
    nearest = max(least, large.start - small.stop + 1)
    furthest = min(large.stop - 1 - small.start, math.ceil(37 / large.step))  # log1p(e^−37) is nothing
    difference = np.arange(nearest, max(nearest, furthest) + 1)  # (D,)
    below = np.arange(large.start, large.stop)[:, None] - difference - small.start  # (N, D): index of y
    inside = (below >= 0) & (below < len(small.weights))
    pairs = np.where(inside, small.weights[below.clip(0, len(small.weights) - 1)], 0.0)
    pairs[:, -1] = np.append(small.weights.cumsum(), 0.0)[below[:, -1].clip(-1, len(small.weights) - 1)]  # and further
    pairs *= large.weights[:, None]

    shift = np.log1p(np.exp(difference * -large.step)) / large.step  # in steps, decreasing
    whole = np.floor(shift).astype(int)
    first = int(whole[-1]) - 2
    target = np.arange(len(pairs))[:, None] + (whole - first)  # (N, D)
    size = len(pairs) + int(whole[0]) - first + 3
    weights = np.zeros(size)
    for i in _SIX:  # Lagrange's polynomials
        share = math.prod((shift - whole - j) / (i - j) for j in _SIX if j != i)  # (D,)
        weights += np.bincount((target + i).ravel(), (pairs * share).ravel(), size)
    return _Grid(large.start + first, large.step, weights)


_SIX = range(-2, 4)


@functools.lru_cache(maxsize=512)
def _log_sum(count: int, sigma: float) -> _Grid:
    """The distribution of log Σ exp z_i over ``count`` logits."""
    if count == 1:
        return _normal(sigma, min(sigma, 1.0) / 10)
    total = _log_add(_log_sum(count // 2, sigma), _log_sum(count - count // 2, sigma))
    return _halved(total) if total.std() < 5 * total.step else total  # the sum of many logits varies little


@functools.lru_cache(maxsize=512)
def _finer(count: int, sigma: float, halvings: int) -> _Grid:
    return _halved(_finer(count, sigma, halvings - 1)) if halvings else _log_sum(count, sigma)


@functools.lru_cache(maxsize=32)
def _margin(num_classes: int, sigma: float) -> _Grid:
    """The distribution of Δ = z_k − log Σ_{i≠k} exp z_i."""
    others = _log_sum(num_classes - 1, sigma)
    label = _normal(sigma, others.step)
    weights = np.convolve(label.weights, others.weights[::-1])
    return _Grid(label.start - others.stop + 1, others.step, weights)


# The average error ------------------------------------------------------------------------------------------------


def _terms(loss: Loss) -> list[tuple[float, Loss]]:
    """The error of a sum is the sum of the errors, so only the terms that need a sample are sampled."""
    return loss.terms if isinstance(loss, WeightedSum) else [(1.0, loss)]


def _average(loss: Loss, num_classes: int, sigma: float) -> Callable[[float], float]:
    """⟨δ_k⟩ of one loss as a function of z."""
    if loss.needs != frozenset({"logits"}):
        raise ValueError(f"Expected a loss of logits alone, got `{loss}`, which needs {', '.join(sorted(loss.needs))}.")
    if getattr(loss, "generator", None) is not None:  # peer draws: its mean over all pairs is what it averages to
        loss = loss.with_hyperparameters(generator=None)
    if loss.kind != "margin":
        return lambda z: _sampled_error(loss, z, num_classes, sigma)
    return lambda z: -_converged(num_classes - 1, sigma, lambda rest: loss.sample_weight(z - rest))


def _converged(count: int, sigma: float, f: Callable[[Tensor], Tensor]) -> float:
    """⟨f(log Σ exp z_i)⟩: weights are smooth, so that the first halving settles it, except where one has a jump."""
    value = _log_sum(count, sigma).average(f)
    for halvings in range(1, 10):
        before, value = value, _finer(count, sigma, halvings).average(f)
        if abs(value - before) <= 1e-10 * abs(value):
            break
    return value


def _controls(rest: Tensor, z: float) -> Tensor:
    """Functions of L = log Σ_{i≠k} exp z_i that the grid can average: L, L², the errors of cross entropy and MAE."""
    error = -torch.sigmoid(rest - z)
    return torch.stack([rest, rest.square(), error, error * torch.sigmoid(z - rest)], 1)


def _sampled_error(loss: Loss, z: float, num_classes: int, sigma: float) -> float:
    """⟨δ_k⟩(z) over antithetic pairs of the same draws each time, regressed on averages that are known exactly."""
    K, generator = num_classes, torch.Generator().manual_seed(0)
    rows = max(1, 2**19 // K)  # at a time: about 4 MiB for each tensor of the graph
    if K <= 1024:  # every class is the label equally often: peer and cr look at the labels' shares in the batch
        rows = max(1, rows // K) * K
    errors, controls = [], []
    for chunk in range(max(1, 64 // rows, 2**20 // (rows * K))):
        draws = torch.randn(rows, K, generator=generator, dtype=torch.float64) * sigma
        label = (torch.arange(rows)[:, None] + chunk * rows) % K  # (B, 1)
        for noise in (draws, -draws):  # (B, K)
            with torch.enable_grad():
                at = torch.full((rows, 1), z, dtype=torch.float64, requires_grad=True)
                losses = loss.per_sample(Output(noise.scatter(1, label, at)), label[:, 0])
                errors.append(torch.autograd.grad(losses.sum(), at)[0][:, 0])
            rest = noise.scatter(1, label, -torch.inf).logsumexp(1)
            squares = noise.scatter(1, label, 0.0).square().sum(1, keepdim=True)
            controls.append(torch.cat([_controls(rest, z), squares], 1))  # (B, 5)
    grid = _log_sum(K - 1, sigma)
    known = torch.from_numpy(
        np.append(grid.weights @ _controls(torch.from_numpy(grid.points), z).numpy(), (K - 1) * sigma**2)
    )
    error, control = torch.cat(errors), torch.cat(controls)
    centre, size = control.mean(0), control.std(0).clamp_min(torch.finfo(torch.float64).tiny)
    control = (control - centre) / size
    covariance, correlation = control.T @ (error - error.mean()) / len(error), control.T @ control / len(error)
    # Where p is small the controls are all but collinear: directions they don't tell apart are left out.
    slope = torch.linalg.pinv(correlation, rtol=1e-8, hermitian=True) @ covariance
    return float(error.mean() - (centre - known) / size @ slope)


# Solving for hyperparameters ----------------------------------------------------------------------------------------


def _free_names(loss: Loss, free: str | tuple[str, str] | None, remedy: str) -> tuple[str, ...]:
    """The hyperparameters to solve for; whole numbers and nested losses can't be."""
    known = [name for name, value in loss.hyperparameters.items() if isinstance(value, float)]
    listing = ", ".join(known) or "none"
    if free is None:
        if not known:
            raise NoSolution(f"`{loss}` has no real-valued hyperparameter to change. {remedy}")
        if len(known) > 1:
            raise ValueError(f"`{loss}` has several hyperparameters. Say which one, or which pair, is free: {listing}.")
        return (known[0],)
    names = (free,) if isinstance(free, str) else tuple(free)
    if len(names) not in (1, 2) or len(set(names)) != len(names):
        raise ValueError(f"Expected `free` to be one name or a pair of different names, got {free!r}.")
    for name in names:
        if name not in known:
            raise ValueError(f"Expected `free` among the real hyperparameters of `{loss}` ({listing}), got {name!r}.")
    return names


def _around(value: float) -> list[float]:
    """21 values from a hundredth to a hundred times ``value``; from −1 to 1 around zero."""
    return [value * 10 ** (i / 5) if value else i / 10 for i in range(-10, 11)]


def _solve(loss: Loss, name: str, error: Callable[[Loss], float], target: float, remedy: str) -> float:
    """The value of ``name`` nearest to the present one where ``error`` is ``target``.

    The range is what the loss itself admits. It is searched outward from the present value in growing steps, of its
    logarithm where its sign must not change.
    """
    start: float = loss.hyperparameters[name]

    def build(value: float) -> Loss | None:
        try:
            return loss.with_hyperparameters(**{name: value}).train(loss.training)
        except ValueError:
            return None

    # A term of a sum with a negative factor would be maximised.
    by_factor = start != 0 and (name.endswith(".factor") or build(-start) is None)
    unit = max(1.0, abs(start))

    def at(t: float) -> float:
        return start * math.exp(t) if by_factor else start + t * unit

    def gap(t: float) -> float:
        changed = build(at(t))
        return math.nan if changed is None else error(changed) - target

    here = error(loss) - target
    if here == 0:
        return start
    ends = {1: (0.0, here), -1: (0.0, here)}  # how far the search got to either side
    directions = [1, -1]
    for k in range(1, 8 if by_factor else 14):
        for side in tuple(directions):
            last, t = ends[side], side * 0.1 * (2**k - 1)
            if build(at(t)) is None:
                directions.remove(side)
                t = _last_admitted(lambda t: build(at(t)) is not None, last[0], t)
            found = gap(t)
            if found * here <= 0:
                return at(_root(gap, last, (t, found), tolerance=1e-12 * abs(target)))
            if math.isfinite(found):
                ends[side] = t, found
    (low, below), (high, above) = sorted((at(t), found + target) for t, found in ends.values())
    raise NoSolution(
        f"No `{name}` of `{loss}` gives ⟨δ_k⟩(0) = {target:.6g}: from {name} = {low:.6g} to {name} = {high:.6g}, the "
        f"ends of the range searched, it goes from {below:.6g} to {above:.6g}. {remedy}"
    )


def _last_admitted(admitted: Callable[[float], bool], inside: float, outside: float) -> float:
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if admitted(middle) else (inside, middle)
    return inside


Point = tuple[float, float]  # x, f(x)


def _root(f: Callable[[float], float], one: Point, other: Point, *, tolerance: float) -> float:
    """Root of ``f`` between two points where its signs differ: false position, Illinois' variant."""
    (low, f_low), (high, f_high) = one, other
    x = low if abs(f_low) < abs(f_high) else high
    for _ in range(200):
        if f_low == f_high or abs(high - low) <= 1e-15 * abs(high + low):
            break
        x = high - f_high * (high - low) / (f_high - f_low)
        f_x = f(x)
        if abs(f_x) <= tolerance:
            break
        if f_x * f_high < 0:
            low, f_low = high, f_high
        else:
            f_low /= 2  # the same end again: pull the line towards the other
        high, f_high = x, f_x
    return x
