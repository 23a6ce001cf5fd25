"""Hyperparameters from the number of classes, without training (bias and curriculum papers)."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from noiseproof.core.checks import check_number, check_word
from noiseproof.losses.base import Loss, register, terms_of
from noiseproof.losses.initial import (
    check_classes,
    check_sigma,
    expected_margin,
    find_root,
    logit_bias,
    mean_error,
)
from noiseproof.losses.remargin import Remargin
from noiseproof.losses.sums import as_loss
from noiseproof.losses.verdict import MeanWeights, verdict

By = Literal["shift", "scale"]


class NoSolution(ValueError):
    """No admissible hyperparameter gives the requested error."""


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found: one loss, or a curve of equally good hyperparameters to choose
    from.
    """

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
    """Find hyperparameters for ``num_classes`` that keep the initial error of a loss with ``like``
    classes.

    Solves ⟨δ_k⟩(0; θ', K') = ⟨δ_k⟩(0; θ, K) for the nearest θ' (bias paper, section 3.3 and
    appendix 4). If that does not learn by ``losses.verdict``, there is none, or it needs more steps
    than short trainings have and the given θ fewer, the result is the given θ where that learns,
    else the value that learns with the nearest error; ``note`` says why.

    Args:
        loss: the loss with the hyperparameters that work for ``like`` classes.
        free: the hyperparameter to change (``"q"``; in sums ``"agce.q"``), where there are several.
            Of a pair of names the first runs over ``grid``, the second is solved, and the result is
            a curve.
        grid: values of the pair's first name; by default 21 from a hundredth to a hundred times its
            value.
        sigma: standard deviation of the untrained network's logits.
        check: give only what learns; False for the solution of the equation alone.

    Raises:
        NoSolution: no admissible value learns (without ``check``, or solves the equation), with
            reason and remedy.

    >>> calibration = calibrate("gce:q=0.7", 1000)
    >>> round(calibration.params["q"], 4), round(calibration.error, 6)
    (0.4816, -0.028234)
    """
    loss = as_loss(loss)
    search = _Search(
        loss, check_classes(num_classes), check_classes(like, "like"), check_sigma(sigma)
    )
    names = _free_names(loss, free)
    if len(names) != 2 and grid is not None:
        raise ValueError("Expected `grid` with a pair of free hyperparameters only.")
    return (_learning if check else _solved)(search, names, grid)


class _Search:
    """A loss, and what its error and its verdict are with other hyperparameters.

    The error to keep is the one that the loss has with ``like`` classes; the hyperparameters are
    for ``num_classes`` classes. ``sigma`` is the standard deviation of the logits at the start.
    """

    def __init__(self, loss: Loss, num_classes: int, like: int, sigma: float) -> None:
        self.loss = loss
        self.num_classes = num_classes
        self.like = like
        self.sigma = sigma
        self.weights = MeanWeights(num_classes, None, sigma)
        # Losses are hashed as objects. A sum with other hyperparameters keeps the objects of the
        # terms that did not change, so their errors are computed once.
        self.term_error = functools.cache(mean_error)

    def error(self, loss: Loss, num_classes: int | None = None) -> float:
        """Return ⟨δ_k⟩(0), at ``num_classes`` if no others are given."""
        K = num_classes or self.num_classes
        terms = terms_of(loss)
        return sum(scale * self.term_error(term, 0.0, K, self.sigma) for scale, term in terms)

    def target(self) -> float:
        """Return the error to keep."""
        return self.error(self.loss, self.like)

    def learns(self, loss: Loss) -> bool:
        return verdict(loss, self.weights).answer == "learns"

    def result(self, loss: Loss | None, names: Sequence[str], **more: Any) -> Calibration:
        params = {} if loss is None else {name: loss.hyperparameters[name] for name in names}
        error = self.target() if loss is None else self.error(loss)
        known = {"error": error, "num_classes": self.num_classes, "like": self.like}
        return Calibration(loss, params, **{**known, **more})


def _solved(search: _Search, names: Sequence[str], grid: Sequence[float] | None) -> Calibration:
    """Return the solution of the equation, or a curve of them."""
    loss = search.loss
    if not names:
        raise NoSolution(f"`{loss}` has no real-valued hyperparameter to change.")
    target = search.target()
    if target == 0:
        raise NoSolution(f"`{loss}` has no error at {search.like} classes to match: ⟨δ_k⟩(0) = 0.")
    if len(names) == 1:
        found = _changed(loss, **{names[0]: _solve(search, loss, names[0], target)})
        return search.result(found, names, error=target)
    if grid is None:
        present = loss.hyperparameters[names[0]]
        grid = [present * 10 ** (i / 5) if present else i / 10 for i in range(-10, 11)]
    return search.result(None, names, curve=_curve(search, names, grid, target))


def _learning(search: _Search, names: Sequence[str], grid: Sequence[float] | None) -> Calibration:
    """Return the solution where it learns by ``losses.verdict``, else the loss as it is or the
    nearest value that does.
    """
    loss = search.loss
    K = search.num_classes
    try:
        found = _solved(search, names, grid)
        curve = tuple(point for point in found.curve if search.learns(_changed(loss, **point)))
        if curve:
            return replace(found, curve=curve)
        solution = found.loss or _changed(loss, **found.curve[0])
        judged = verdict(solution, search.weights)
        own = verdict(loss, search.weights)
        is_slower = own.answer == "learns" and own.slowness < judged.slowness
        if judged.answer != "learns":
            fault = f"does not learn {K} classes"
        elif judged.is_long and is_slower:
            fault = f"learns {K} classes more slowly"
        else:
            return found
        tried = f"`{found.loss}`" if found.loss else f"Each of the {len(found.curve)} pairs"
        why = f"{tried} has that average error and {fault}: {judged.reason}."
    except NoSolution as reason:
        why = str(reason)
    if names and search.learns(loss):
        return search.result(loss, names, note=f"{why} `{loss}` learns {K} classes as it is.")
    if len(names) == 1 and search.target():
        nearest = _nearest(search, names[0])
        if nearest is not None:
            return search.result(nearest, names, note=f"{why} This is the nearest that learns.")
        why = f"{why} No other `{names[0]}` learns {K} classes."
    raise NoSolution(f"{why} {_advice(search)}")


def _advice(search: _Search) -> str:
    loss = search.loss
    K = search.num_classes
    bias = round(logit_bias(K, sigma=search.sigma), 4)
    others: list[Loss] = [loss, Remargin(loss, shift=max(0.0, bias))]
    if loss.kind == "margin" and K > 2:
        others.append(remargin_for(loss, K, by="scale", sigma=search.sigma))
    best = next((other for other in others if search.learns(other)), None)
    if best is None:
        return "Use another loss, such as gce."
    if best is loss:
        return f"`{best}` learns {K} classes as it is."
    return f"`{best}` learns {K} classes."


def _nearest(search: _Search, name: str) -> Loss | None:
    """Return the loss that learns with the error nearest to the target, by another value of
    ``name``.

    It is None if no value tried learns.
    """
    loss = search.loss
    target = search.target()
    axis = _Axis(loss, name)
    points = sorted({axis.at(t) for t in axis.grid()})
    with np.errstate(invalid="ignore"):  # far out a loss may overflow
        gaps = {x: abs(search.error(_changed(loss, **{name: x})) - target) for x in points}
    gaps = {value: gap if math.isfinite(gap) else math.inf for value, gap in gaps.items()}

    def learns(value: float) -> bool:
        return search.learns(_changed(loss, **{name: value}))

    by_gap = sorted((value for value in points if gaps[value] < math.inf), key=gaps.__getitem__)
    first = next(filter(learns, by_gap), None)
    if first is None:
        return None
    best = first
    place = points.index(first)
    for bad in points[max(0, place - 1) : place + 2]:
        if gaps[bad] >= gaps[first]:
            continue
        # the nearest lies between one that learns and one that does not
        best = _furthest(learns, best, bad, 30)
    return _changed(loss, **{name: best})


def _furthest(
    holds: Callable[[float], bool], inside: float, outside: float, halvings: int
) -> float:
    """Return the furthest number from ``inside`` to ``outside`` for which a condition holds."""
    for _ in range(halvings):
        middle = (inside + outside) / 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


class _Tau(Remargin):
    """Remargin by what takes |E[Δ]| of ``num_classes`` to τ."""

    source = "curriculum paper, §5.1.1"
    by: ClassVar[By]

    def __init__(
        self,
        loss: Loss | str,
        num_classes: int,
        tau: float | None = None,
        sigma: float = 1.0,
        **options: Any,
    ) -> None:
        size = -expected_margin(num_classes, sigma=sigma)  # |E[Δ]|, taken to τ
        if tau is None:  # as for ten classes
            tau = -expected_margin(10, sigma=sigma)
        tau = check_number("tau", tau, "(0, inf)")
        if self.by == "shift":
            super().__init__(loss, shift=size - tau, **options)
        elif size == 0:
            raise ValueError(
                "Expected `num_classes` of at least 3 to scale by τ/|E[Δ]|, got 2, where E[Δ] = 0."
            )
        else:
            super().__init__(loss, scale=tau / size, **options)
        self.num_classes = int(num_classes)
        self.tau = tau
        self.sigma = float(sigma)


@register("tau-shift")
class TauShift(_Tau):
    """A loss shifted so that its mean margin at initialisation becomes −τ, by default the margin of
    10 classes.

    l(σ(Δ + |E[Δ]| − τ)) with weight w(Δ + |E[Δ]| − τ) (curriculum paper, section 5.1.1; C.1.1
    misprints it).

    >>> round(TauShift("mae", num_classes=100).shift, 4)
    2.4704
    """

    formula = "l(σ(Δ + |E[Δ]| − τ))"
    by = "shift"


@register("tau-scale")
class TauScale(_Tau):
    """A margin loss scaled so that its mean margin at initialisation becomes −τ, by default the
    margin of 10 classes.

    l(σ(αΔ))/α with α = τ/|E[Δ]|, so that the weight is w(αΔ) (curriculum paper, section 5.1.1).

    >>> round(TauScale("mae", num_classes=100).scale, 4)
    0.5143
    """

    formula = "l(σ(αΔ))/α, α = τ/|E[Δ]|"
    by = "scale"


def remargin_for(
    loss: Loss | str,
    num_classes: int,
    *,
    by: By = "shift",
    tau: float | None = None,
    sigma: float = 1.0,
) -> Remargin:
    """Return the loss whose mean margin at initialisation is −τ, by default as of 10 classes.

    It is ``TauShift`` or ``TauScale``.
    """
    check_word("by", by, get_args(By))
    return (TauShift if by == "shift" else TauScale)(loss, num_classes, tau, sigma)


def _free_names(loss: Loss, free: str | tuple[str, str] | None) -> list[str]:
    """Return the hyperparameters to solve for; whole numbers and nested losses can't be."""
    known = [name for name, value in loss.hyperparameters.items() if isinstance(value, float)]
    listing = ", ".join(known) or "none"
    if not free and len(known) > 1:
        raise ValueError(
            f"`{loss}` has several hyperparameters. Choose which one, or which pair, is free:"
            f" {listing}."
        )
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
    search: _Search, names: Sequence[str], grid: Sequence[float], target: float
) -> tuple[dict[str, float], ...]:
    """Return the solutions of the second of two ``names`` for values ``grid`` of the first."""
    first, second = names
    near = search.loss
    curve = []
    for value in grid:
        try:
            near = _changed(near, **{first: value})
            # where the next one begins
            near = _changed(near, **{second: _solve(search, near, second, target)})
        except ValueError:  # this point doesn't exist
            continue
        curve.append({name: near.hyperparameters[name] for name in names})
    if not curve:
        raise NoSolution(
            f"No pair of `{first}` and `{second}` tried for `{search.loss}` gives ⟨δ_k⟩(0) ="
            f" {target:.6g}."
        )
    return tuple(curve)


class _Axis:
    """The values of one hyperparameter around its present one, at t = 0, as far as the loss admits
    them.
    """

    def __init__(self, loss: Loss, name: str) -> None:
        self.loss = loss
        self.name = name
        self.start: float = loss.hyperparameters[name]
        # A term of a sum with a negative factor would be maximised.
        self.by_factor = self.start != 0 and (
            name.endswith(".factor") or not self.admits(-self.start)
        )
        self.doublings = 8 if self.by_factor else 14

    def admits(self, value: float) -> bool:
        try:
            _changed(self.loss, **{self.name: value})
        except ValueError:
            return False
        return True

    def at(self, t: float) -> float:
        if self.by_factor:
            return self.start * math.exp(t)
        return self.start + t * max(1.0, abs(self.start))

    def reach(self, inside: float, t: float) -> float:
        """Return ``t``, or the end of the loss's range before it."""
        if self.admits(self.at(t)):
            return t
        return _furthest(lambda between: self.admits(self.at(between)), inside, t, 60)

    def grid(self) -> list[float]:
        """Return points that become sparse with their distance from the present value, up to the
        ends of the range.
        """
        steps = [0.1 * (2 ** (k / 2) - 1) for k in range(2 * self.doublings - 1)]
        return [self.reach(0.0, side * step) for side in (1, -1) for step in steps]


def _solve(search: _Search, loss: Loss, name: str, target: float) -> float:
    """Return the value of ``name`` nearest to the present one where ``error`` is ``target``, of
    those that the loss admits.
    """
    axis = _Axis(loss, name)
    at = axis.at

    @functools.cache
    def gap(t: float) -> float:
        # far out a loss may overflow; the search passes over what isn't finite
        with np.errstate(invalid="ignore"):
            return search.error(_changed(loss, **{name: at(t)})) - target

    if gap(0.0) == 0:
        return axis.start
    ends = {1: 0.0, -1: 0.0}  # how far the search got to either side
    for k in range(1, axis.doublings):
        for side, last in ends.items():
            t = axis.reach(last, side * 0.1 * (2**k - 1))
            if gap(t) * gap(0.0) <= 0:
                return at(find_root(gap, last, t))
            if math.isfinite(gap(t)):
                ends[side] = t
    low, high = sorted(ends.values(), key=at)
    raise NoSolution(
        f"No `{name}` of `{loss}` gives ⟨δ_k⟩(0) = {target:.6g}: from {name} = {at(low):.6g} to"
        f" {name} = {at(high):.6g}, the ends of the range searched, it goes from"
        f" {gap(low) + target:.6g} to {gap(high) + target:.6g}."
    )
