"""A ranking of methods, or of a sweep, over seeds, with tests of the differences and a
recommendation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json, once
from noiseproof.train import Settings

LEVEL = 0.05  # of significance
# standard errors of a difference: from these on, p is above LEVEL because seeds are few or tests
# many
CLEAR = 1.96
NOTE = (
    "± is the standard deviation over seeds, p that of paired t tests over seeds, with Holm's"
    " correction."
)
SAME = 1e-12  # accuracies that differ by less are equal up to rounding


@dataclass(frozen=True)
class Place:
    """A method in a ranking; None where its runs do not allow a value."""

    method: str
    mean: float | None = None  # accuracy over the seeds that did not fail
    margin: float | None = None  # half of the 95 % confidence interval of the mean
    # the difference to the best in standard errors over seeds; None for the best itself
    t: float | None = None
    p: float | None = None  # of t, adjusted by Holm's rule
    seeds: int = 0
    shared: int = 0  # seeds in common with the best, which the test compares; 0 for the best itself
    failed: int = 0
    seconds: float | None = None  # of a run, on average
    memory: int | None = None  # bytes that its tensors take


@dataclass(frozen=True)
class Ranking:
    """Methods, best first, with notes and a recommendation in one sentence."""

    places: list[Place]
    notes: list[str]
    recommendation: str


def rank(accuracies: Mapping[str, Sequence[float]], rows: int | None = None) -> list[Place]:
    """Methods by their mean accuracy, with t intervals over seeds and paired t tests against the
    best one.

    ``accuracies`` has one number for each seed, in the same order for all methods; NaN where a run
    failed. Methods with failed runs come after those without. For n differences d over seeds, t =
    d̄·√n/s has n − 1 degrees of freedom (with five seeds Wilcoxon's test cannot go below p = 1/16).
    An accuracy on ``rows`` test rows is rounded to 1/rows, which has the deviation 1/(rows·√12),
    and √2 times that in a difference: s is at least this, since seeds that agree on few rows need
    not agree on others. Without ``rows`` and with all d equal, t is undefined, and p = 2¹⁻ⁿ is that
    of the sign test. Holm's rule corrects for the number of tests, not for having chosen the best
    by the same runs.

    >>> best, other = rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]})
    >>> best.method, round(best.mean, 3), round(best.margin, 4), round(other.p, 4)
    ('gce', 0.91, 0.0248, 0.0033)
    """
    lengths = sorted({len(values) for values in accuracies.values()})
    if len(lengths) != 1 or not lengths[0]:
        raise ValueError(
            f"Expected one accuracy for each method and seed, got {lengths or 'no'} seeds."
        )
    places = []
    rounding = 0.0 if rows is None else 1 / (rows * math.sqrt(12))
    for method, values in accuracies.items():
        done = [value for value in values if not math.isnan(value)]
        mean = fmean(done) if done else None
        places.append(
            Place(
                method,
                mean,
                _margin(done, rounding),
                seeds=len(done),
                failed=len(values) - len(done),
            )
        )
    places.sort(
        key=lambda place: (place.failed > 0, math.inf if place.mean is None else -place.mean)
    )
    best, *others = places
    pairs = {
        other.method: zip(accuracies[best.method], accuracies[other.method], strict=True)
        for other in others
    }
    differences = {
        method: [a - b for a, b in pair if not math.isnan(a - b)] for method, pair in pairs.items()
    }
    t = {
        method: _paired_t(d, math.sqrt(2) * rounding)
        for method, d in differences.items()
        if len(d) > 1
    }
    p = _holm({method: _p_value(value, len(differences[method])) for method, value in t.items()})
    shared = {method: len(d) for method, d in differences.items()}
    return [
        best,
        *(
            replace(o, t=t.get(o.method), p=p.get(o.method), shared=shared[o.method])
            for o in others
        ),
    ]


def _margin(values: Sequence[float], least: float) -> float | None:
    from scipy.special import stdtrit  # installed with scikit-learn

    if len(values) < 2:
        return None
    return float(stdtrit(len(values) - 1, 0.975)) * _error(values, least)


def _error(values: Sequence[float], least: float) -> float:
    """Standard error of the mean, from a deviation of at least ``least``."""
    return max(stdev(values), least) / math.sqrt(len(values))


def _paired_t(d: Sequence[float], least: float) -> float:
    """The mean difference over seeds in standard errors."""
    mean = abs(fmean(d))
    error = _error(d, least)
    if error >= SAME:
        return mean / error
    return math.inf if mean >= SAME else 0.0


def _p_value(t: float, seeds: int) -> float:
    from scipy.special import stdtr

    if math.isinf(t):
        return 2.0 ** (1 - seeds)
    return 2 * float(stdtr(seeds - 1, -t))


def _holm(tests: Mapping[str, float]) -> dict[str, float]:
    """p-values by Holm's rule: the smallest times their number, the next times one less, none below
    the one before.
    """
    adjusted = {}
    least = 0.0
    for number, (p, name) in enumerate(sorted((p, name) for name, p in tests.items())):
        adjusted[name] = least = max(least, min(1.0, p * (len(tests) - number)))
    return adjusted


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n, which has a width even where the share is 0 or 1.

    >>> low, high = wilson(1.0, 30)
    >>> round(low, 3), round(high, 3)
    (0.886, 1.0)
    """
    z = 1.959963984540054
    middle = share + z * z / (2 * n)
    shrink = 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, (middle - half) / shrink), min(1.0, (middle + half) / shrink)


def recommend(places: Sequence[Place]) -> str:
    """One sentence on which method to use, or on why the runs do not decide.

    >>> recommend(rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]}))
    'Use gce: with 0.910 it is ahead of all others, and by more than chance explains (p ≤ 0.004...'
    >>> recommend(rank({"ce": [0.90, 0.93, 0.90], "gce": [0.90, 0.91, 0.93]}))
    'No clear winner: gce is ahead with 0.913, but 3 seeds cannot tell it from ce.'
    """
    best, *others = places
    if best.mean is None:
        return "Nothing to recommend: every run failed."
    if not others:
        return f"Nothing to recommend: only {best.method} was run, with {best.mean:.3f}."
    # they have failed runs
    above = [place for place in others if (place.mean or 0) > best.mean + SAME]
    level = [
        place for place in others if place.mean is not None and abs(place.mean - best.mean) <= SAME
    ]
    names = " and ".join([f"{best.method}{_failures(best)}", *(place.method for place in level)])
    verb = "are level" if level else "is ahead"
    group = " of those that never failed" if above else ""
    lead = f"{names} {verb} with {best.mean:.3f}{group}"
    below = [place for place in others if place not in above]
    if any(place.p is not None for place in below):
        return _tested(best, below, level, lead, group)
    reason = "without two seeds in common nobody can tell better from luckier"
    if above:
        reason = f"{_names(above)} did better in the runs that did not fail"
    return f"Nothing is settled: {lead}, but {reason}."


def _tested(
    best: Place, below: Sequence[Place], level: Sequence[Place], lead: str, group: str
) -> str:
    """The recommendation where there are tests against the best."""
    tested = [p for p in below if p.p is not None]
    untested = [p for p in below if p.p is None]
    seeds = min(place.shared for place in tested)
    except_for = f"; too few seeds to judge {_names(untested)}" if untested else ""
    rivals = [place for place in tested if (place.p or 0.0) >= LEVEL]
    if rivals:
        near = [place for place in rivals if (place.t or 0.0) < CLEAR]
        but = _undecided(seeds, near, [place for place in rivals if place not in near], level)
        return f"No clear winner: {lead}{but}{_quickest([best, *near])}{except_for}."
    p = max(0.001, math.ceil(1000 * max(place.p or 0.0 for place in tested)) / 1000)
    if not group:
        group = f" of {_names(tested)}" if untested else " of all others"
    return (
        f"Use {best.method}{_failures(best)}: with {best.mean:.3f} it is ahead{group}, and by more"
        f" than chance explains (p ≤ {p:.3f} over {seeds} seeds){except_for}."
    )


def _undecided(
    seeds: int, near: Sequence[Place], far: Sequence[Place], level: Sequence[Place]
) -> str:
    """From which methods the best cannot be told, and from which only because seeds are few."""
    it = "them" if level else "it"
    others = [place for place in near if place not in level]
    reasons = []
    if far:
        reasons.append(f"are too few to tell {it} from {_names(far)} (run more)")
    if others:
        reasons.append(f"cannot tell {it} from {_names(others)}")
    if not reasons:
        return ""
    return f", but {seeds} seeds {' and '.join(reasons)}"


def _failures(place: Place) -> str:
    if not place.failed:
        return ""
    return f" (though {place.failed} of its runs failed)"


def _quickest(tied: Sequence[Place]) -> str:
    """Which of the methods in a tie take the least time, if they differ by more than 10 %."""
    timed = {place: place.seconds for place in tied if place.seconds is not None}
    limit = 1.1 * min(timed.values(), default=0.0)
    quick = [place for place, seconds in timed.items() if seconds <= limit]
    if not 0 < len(quick) < len(timed):
        return ""
    return f"; the quickest of these: {_names(quick)}"


def _names(places: Sequence[Place]) -> str:
    return ", ".join(place.method for place in places)


# A sweep


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seeds, and their place among those on the same data."""

    run: Experiment  # the first of them
    # without values where nothing was compared; ``p`` is against the first of its group
    place: Place
    std: float | None  # of the accuracies over seeds
    wanted: int  # number of runs
    values: list[Json]  # seed, noise_seed and value of each that has ended; NaN if it failed


@dataclass(frozen=True)
class Group:
    """Entries with the same data, best first, and a recommendation in one sentence."""

    entries: list[Entry]
    recommendation: str
    metric: str  # by which they are ranked


def summarise_sweep(experiments: Iterable[Experiment], results: Mapping[str, Json]) -> list[Group]:
    """Rank what was run on the same data by the accuracy after the last epoch, on test rows where
    there are any.

    Entries are compared by the seeds that all of them have finished, so that the tests are paired;
    a failed run counts against its entry, one that has not run yet against none.
    """
    groups: dict[Experiment, dict[Experiment, list[Experiment]]] = {}
    for run in once(experiments):
        entry = replace(run, seed=0, noise_seed=None if run.noise_seed is None else 0)
        groups.setdefault(data_of(entry), {}).setdefault(entry, []).append(run)
    return [_rank_group(list(entries.values()), results) for entries in groups.values()]


def data_of(run: Experiment) -> Experiment:
    """Equal for runs that are ranked together."""
    return replace(run, method="ce", settings=Settings())


def _rank_group(entries: list[list[Experiment]], results: Mapping[str, Json]) -> Group:
    metric = _metric([results[run.key] for runs in entries for run in runs if run.key in results])
    accuracies = [_accuracies(runs, results, metric) for runs in entries]
    started = {str(i): values for i, values in enumerate(accuracies) if values}
    seeds = sorted(set.intersection(*map(set, started.values()))) if started else []
    ranked = []
    if seeds:
        ranked = rank({i: [values[seed] for seed in seeds] for i, values in started.items()})
    places = {int(place.method): place for place in ranked}
    order = [*places, *(i for i in range(len(entries)) if i not in places)]
    listed = [_entry(entries[i], places.get(i), accuracies[i], seeds) for i in order]
    named = [entry.place for entry in listed[: len(places)]]
    if not named:
        return Group(listed, "Nothing to compare yet: no seed was run by all.", metric)
    recommendation = recommend(named)
    missing = ", ".join(dict.fromkeys(entry.run.method for entry in listed[len(places) :]))
    if missing:
        recommendation += f" Not compared, since not run yet: {missing}."
    return Group(listed, recommendation, metric)


def _entry(
    runs: list[Experiment],
    place: Place | None,
    accuracies: Mapping[tuple[int, int], float],
    seeds: Iterable[tuple[int, int]],
) -> Entry:
    finite = []
    if place is not None:
        finite = [accuracies[seed] for seed in seeds if not math.isnan(accuracies[seed])]
    std = stdev(finite) if len(finite) > 1 else None
    named = replace(place or Place(""), method=runs[0].method)
    values = [
        {"seed": s, "noise_seed": noise, "value": value} for (s, noise), value in accuracies.items()
    ]
    return Entry(runs[0], named, std, len(runs), values)


def _metric(done: Iterable[Json]) -> str:
    measured = {name for result in done for name in result["last"] or ()}
    return next(
        (name for name in ("test_accuracy", "validation_accuracy") if name in measured), "accuracy"
    )


def _accuracies(
    runs: Iterable[Experiment], results: Mapping[str, Json], metric: str
) -> dict[tuple[int, int], float]:
    ended = {
        (run.seed, run.seed_of_noise): results[run.key]["last"] or {}
        for run in runs
        if run.key in results
    }
    return {
        seeds: math.nan if (value := last.get(metric)) is None else value
        for seeds, last in ended.items()
    }
