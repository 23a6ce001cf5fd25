"""Which accuracies are better, and which only luckier: a ranking over seeds, and what to make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

LEVEL = 0.05  # a difference that chance alone makes more often than that counts as none
SAME = 1e-12  # accuracies that differ by less are equal but for the rounding of floating point


@dataclass(frozen=True)
class Place:
    """A method in a ranking; what its runs cannot say is None."""

    method: str
    mean: float | None = None  # accuracy over the seeds that did not fail
    margin: float | None = None  # half of the 95 % confidence interval of the mean
    p: float | None = None  # of its distance to the best, by Holm's rule for several tests; None of the best itself
    seeds: int = 0
    shared: int = 0  # seeds that it has in common with the best, which the test looks at; none of the best itself
    failed: int = 0
    seconds: float | None = None  # of a run, on average
    memory: int | None = None  # bytes that its tensors take


@dataclass(frozen=True)
class Ranking:
    """The methods, best first; what a reader must know; and one sentence on what to use."""

    places: list[Place]
    notes: list[str]
    recommendation: str


def rank(accuracies: Mapping[str, Sequence[float]], rows: int | None = None) -> list[Place]:
    """Methods by their mean accuracy, with t intervals over seeds and paired t tests against the best one.

    ``accuracies`` has one number for each seed, in the same order for all methods; NaN where a run failed. Methods that
    failed at times come after those that never did. Of n differences d over seeds the test looks at t = d̄·√n/s with
    n − 1 degrees of freedom (of five seeds Wilcoxon's could at best say p = 1/16). An accuracy on ``rows`` test rows
    is rounded to 1/rows, which alone has the deviation 1/(rows·√12), and a difference of two √2 times that: no s is
    taken to be below, since seeds that agree on few rows do not show that they always will. Where ``rows`` is not given
    and all d are equal, t has no meaning, and p = 2¹⁻ⁿ is the sign test's. Holm's rule makes the p of several tests as
    large as they would be if each were the only one; that the best was found by the same runs it ignores.

    >>> best, other = rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]})
    >>> best.method, round(best.mean, 3), round(best.margin, 4), round(other.p, 4)
    ('gce', 0.91, 0.0248, 0.0033)
    """
    lengths = sorted({len(values) for values in accuracies.values()})
    if len(lengths) != 1 or not lengths[0]:
        raise ValueError(f"Expected one accuracy for each method and seed, got {lengths or 'no'} seeds.")
    places, rounding = [], 0.0 if rows is None else 1 / (rows * math.sqrt(12))
    for method, values in accuracies.items():
        found = [value for value in values if not math.isnan(value)]
        mean = fmean(found) if found else None
        places.append(Place(method, mean, _margin(found, rounding), seeds=len(found), failed=len(values) - len(found)))
    places.sort(key=lambda place: (place.failed > 0, math.inf if place.mean is None else -place.mean))
    best, *others = places
    first, least = accuracies[best.method], math.sqrt(2) * rounding
    pairs = {other.method: zip(first, accuracies[other.method], strict=True) for other in others}
    apart = {method: [a - b for a, b in both if not math.isnan(a - b)] for method, both in pairs.items()}
    against = {method: _paired_p(d, least) for method, d in apart.items()}
    adjusted = _holm({method: p for method, p in against.items() if p is not None})
    return [best, *(replace(one, p=adjusted.get(one.method), shared=len(apart[one.method])) for one in others)]


def _margin(values: Sequence[float], least: float) -> float | None:
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scikit-learn brings it

    return float(stdtrit(len(values) - 1, 0.975)) * _error(values, least) if len(values) > 1 else None


def _error(values: Sequence[float], least: float) -> float:
    """Of their mean, by a deviation of at ``least`` so much."""
    return max(stdev(values), least) / math.sqrt(len(values))


def _paired_p(d: Sequence[float], least: float) -> float | None:
    """Two-sided p of the mean of differences over seeds; None of fewer than two."""
    from scipy.special import stdtr

    if len(d) < 2:
        return None
    mean, error = fmean(d), _error(d, least)
    if error < SAME:
        return 1.0 if abs(mean) < SAME else 2.0 ** (1 - len(d))
    return 2 * float(stdtr(len(d) - 1, -abs(mean) / error))


def _holm(tests: Mapping[str, float]) -> dict[str, float]:
    """p of several tests, the smallest times their number, the next times one less, none below the one before."""
    adjusted, least = {}, 0.0
    for number, (p, name) in enumerate(sorted((p, name) for name, p in tests.items())):
        adjusted[name] = least = max(least, min(1.0, p * (len(tests) - number)))
    return adjusted


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n, which has a width even where all or none were right.

    >>> low, high = wilson(1.0, 30)
    >>> round(low, 3), round(high, 3)
    (0.886, 1.0)
    """
    z = 1.959963984540054
    middle, shrink = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, (middle - half) / shrink), min(1.0, (middle + half) / shrink)


def recommend(places: Sequence[Place]) -> str:
    """One sentence on what to use, which calls a tie a tie.

    >>> recommend(rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]}))
    'Use gce: with 0.910 it is ahead of all others, and by more than chance explains (p ≤ 0.004 over 3 seeds).'
    >>> recommend(rank({"ce": [0.90, 0.93, 0.90], "gce": [0.90, 0.91, 0.93]}))
    'No clear winner: gce is ahead with 0.913, but 3 seeds cannot tell it from ce.'
    """
    best, *others = places
    if best.mean is None:
        return "Nothing to recommend: every run failed."
    if not others:
        return f"Nothing to recommend: only {best.method} was run, with {best.mean:.3f}."
    higher = [place for place in others if place.mean is not None and place.mean > best.mean + SAME]
    those = " of those that never failed" * bool(higher)  # a method that fails at times is none to rely on
    but = f" (though {best.failed} of its runs failed)" * (best.failed > 0)
    equal = [place for place in others if place.mean is not None and abs(place.mean - best.mean) <= SAME]
    names = f"{best.method}{but}" + "".join(f" and {place.method}" for place in equal)
    ahead = f"{names} {'are level' if equal else 'is ahead'} with {best.mean:.3f}{those}"
    others = [place for place in others if place not in higher]
    tested = [place for place in others if place.p is not None]
    if not tested and higher:
        return f"Nothing is settled: {ahead}, but {_names(higher)} did better in the runs that did not fail."
    if not tested:
        return f"Nothing is settled: {ahead}, but without two seeds in common nobody can tell better from luckier."
    shared = min(place.shared for place in tested)
    untested = [place for place in others if place.p is None]
    except_for = f"; too few seeds to judge {_names(untested)}" * bool(untested)
    rivals = [place for place in tested if place.p is not None and place.p >= LEVEL]
    if rivals:
        tied = [place for place in (best, *rivals) if place.seconds is not None]
        limit = 1.1 * min((place.seconds or 0.0 for place in tied), default=0.0)  # clocks are no better than that
        quick = [place for place in tied if (place.seconds or 0.0) <= limit]
        cheap = f"; the quickest of these: {_names(quick)}" * (0 < len(quick) < len(tied))
        near = [place for place in rivals if place not in equal]
        cannot = f", but {shared} seeds cannot tell {'them' if equal else 'it'} from {_names(near)}" * bool(near)
        return f"No clear winner: {ahead}{cannot}{cheap}{except_for}."
    p = max(0.001, math.ceil(1000 * max(place.p or 0.0 for place in tested)) / 1000)
    those = those or (f" of {_names(tested)}" if untested else " of all others")
    return (
        f"Use {best.method}{but}: with {best.mean:.3f} it is ahead{those}, and by more than chance explains "
        f"(p ≤ {p:.3f} over {shared} seeds){except_for}."
    )


def _names(places: Sequence[Place]) -> str:
    return ", ".join(place.method for place in places)
