"""A ranking of methods, or of a sweep, over seeds, with tests of the differences and a
recommendation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json, once
from noiseproof.core.messages import counted
from noiseproof.train import Settings

LEVEL = 0.05  # of significance
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
    std: float | None = None  # over the seeds
    margin: float | None = None  # half of the 95 % confidence interval of the mean
    # the difference to the best in standard errors over seeds; None for the best itself
    t: float | None = None
    p: float | None = None  # of t, adjusted by Holm's rule
    seeds: int = 0
    shared: int = 0  # seeds in common with the best, which the test compares; 0 for the best itself
    failed: int = 0
    seconds: float | None = None  # of a run, on average
    memory: int | None = None  # bytes that its tensors take


def rank(accuracies: Mapping[str, Sequence[float]], rows: int | None = None) -> list[Place]:
    """Rank methods by mean accuracy, with t intervals over seeds and paired t tests against the
    best one.

    For n differences d over seeds, t = d̄·√n/s has n − 1 degrees of freedom (with five seeds
    Wilcoxon's test cannot go below p = 1/16). An accuracy on ``rows`` test rows is rounded to
    1/rows, which has the deviation 1/(rows·√12), and √2 times that in a difference: s is at least
    this, since seeds that agree on few rows need not agree on others. Without ``rows`` and with
    all d equal, t is undefined, and p = 2¹⁻ⁿ is that of the sign test. Holm's rule corrects for
    the number of tests, not for having chosen the best by the same runs.

    Args:
        accuracies: of each method, one number for each seed in the same order; NaN for a failed
            run. Methods with failed runs come after those without.
        rows: number of test rows.

    >>> best, other = rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]})
    >>> best.method, round(best.mean, 3), round(best.margin, 4), round(other.p, 4)
    ('gce', 0.91, 0.0248, 0.0033)
    """
    lengths = sorted({len(values) for values in accuracies.values()})
    if len(lengths) != 1 or not lengths[0]:
        raise ValueError(
            f"Expected one accuracy for each method and seed, got {lengths or 'no'} seeds."
        )
    rounding = 0.0 if rows is None else 1 / (rows * math.sqrt(12))
    places = [_place(method, values, rounding) for method, values in accuracies.items()]
    places.sort(
        key=lambda place: (place.failed > 0, math.inf if place.mean is None else -place.mean)
    )
    best, *others = places
    compared = []
    for other in others:
        pairs = zip(accuracies[best.method], accuracies[other.method], strict=True)
        differences = [a - b for a, b in pairs if not math.isnan(a - b)]
        shared = len(differences)
        if shared > 1:
            t = _paired_t(differences, math.sqrt(2) * rounding)
            other = replace(other, t=t, p=_p_value(t, shared))
        compared.append(replace(other, shared=shared))
    return [best, *_holm(compared)]


def _place(method: str, values: Sequence[float], rounding: float) -> Place:
    from scipy import stats

    done = [value for value in values if not math.isnan(value)]
    place = Place(method, seeds=len(done), failed=len(values) - len(done))
    if not done:
        return place
    if len(done) == 1:
        return replace(place, mean=done[0])
    margin = float(stats.t.ppf(0.975, len(done) - 1)) * _error(done, rounding)
    return replace(place, mean=fmean(done), std=stdev(done), margin=margin)


def _error(values: Sequence[float], least: float) -> float:
    """Return the standard error of the mean, from a deviation of at least ``least``."""
    return max(stdev(values), least) / math.sqrt(len(values))


def _paired_t(differences: Sequence[float], least: float) -> float:
    """Return the mean difference over seeds in standard errors."""
    mean = abs(fmean(differences))
    error = _error(differences, least)
    if error >= SAME:
        return mean / error
    return math.inf if mean >= SAME else 0.0


def _p_value(t: float, seeds: int) -> float:
    from scipy import stats

    if math.isinf(t):
        return 2.0 ** (1 - seeds)
    return 2 * float(stats.t.sf(t, seeds - 1))


def _holm(places: Sequence[Place]) -> list[Place]:
    """Return the places with p adjusted by Holm's rule: the smallest times the number of tests, the
    next times one less, none below the one before.
    """
    tested = sorted((place.p, place.method) for place in places if place.p is not None)
    factors = np.arange(len(tested), 0, -1)
    raised = np.maximum.accumulate([p for p, _ in tested] * factors).clip(max=1.0)
    adjusted = {name: float(p) for (_, name), p in zip(tested, raised, strict=True)}
    return [replace(place, p=adjusted.get(place.method)) for place in places]


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of n, which has a width even where it is 0 or 1.

    >>> low, high = wilson(1.0, 30)
    >>> round(low, 3), round(high, 3)
    (0.886, 1.0)
    """
    from scipy import stats

    interval = stats.binomtest(round(share * n), n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def recommend(places: Sequence[Place]) -> str:
    """Return one sentence on which method to use, or on why the runs do not decide.

    >>> recommend(rank({"ce": [0.80, 0.82, 0.81], "gce": [0.90, 0.91, 0.92]}))
    'Use gce: with 0.910 it is ahead of all others, and by more than chance explains (p ≤ 0.004...'
    >>> recommend(rank({"ce": [0.90, 0.93, 0.90], "gce": [0.90, 0.91, 0.93]}))
    'No clear winner: gce comes first with 0.913, but over 3 seeds ce may be as good.'
    """
    best, *others = places
    if best.mean is None:
        return "Nothing to recommend: every run failed."
    if not others:
        return f"Nothing to recommend: only {best.method} was run, with {best.mean:.3f}."
    name = _names([best])
    tested = [place for place in others if place.p is not None]
    untested = [place for place in others if place.p is None]
    if not tested:
        return (
            f"Nothing is settled: {name} comes first with {best.mean:.3f}, but without two seeds in"
            " common chance cannot be excluded."
        )
    seeds = min(place.shared for place in tested)
    # a method with failed runs may have the larger mean
    rivals = [place for place in tested if (place.p or 0) >= LEVEL or (place.mean or 0) > best.mean]
    except_for = f"; too few seeds to judge {_names(untested)}" if untested else ""
    if rivals:
        return (
            f"No clear winner: {name} comes first with {best.mean:.3f}, but over {seeds} seeds"
            f" {_names(rivals)} may be as good{_quickest([best, *rivals])}{except_for}."
        )
    p = max(0.001, math.ceil(1000 * max(place.p or 0.0 for place in tested)) / 1000)
    behind = _names(tested) if untested else "all others"
    return (
        f"Use {name}: with {best.mean:.3f} it is ahead of {behind}, and by more than chance"
        f" explains (p ≤ {p:.3f} over {seeds} seeds){except_for}."
    )


def _quickest(tied: Sequence[Place]) -> str:
    """Return the methods in a tie that take the least time, if they differ by more than 10 %."""
    timed = {place: place.seconds for place in tied if place.seconds is not None}
    limit = 1.1 * min(timed.values(), default=0.0)
    quick = [place for place, seconds in timed.items() if seconds <= limit]
    if len(quick) == len(timed):
        return ""
    return f"; the quickest of these: {_names(quick)}"


def _names(places: Sequence[Place]) -> str:
    failures = [f" ({place.failed} failed)" if place.failed else "" for place in places]
    return ", ".join(place.method + more for place, more in zip(places, failures, strict=True))


# A sweep


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seeds, and their place among those on the same data."""

    run: Experiment  # the first of them
    # without values where nothing was compared; ``p`` is against the first of its group
    place: Place
    wanted: int  # number of runs
    values: list[Json]  # seed, noise_seed and value of each that has ended; NaN if it failed
    errors: list[str]  # of those that failed


@dataclass(frozen=True)
class Group:
    """Entries with the same data, best first, with notes and a recommendation in one sentence."""

    entries: list[Entry]
    recommendation: str
    metric: str  # by which they are ranked
    notes: list[str]

    @property
    def places(self) -> list[Place]:
        return [entry.place for entry in self.entries]


def summarise_sweep(
    experiments: Iterable[Experiment], results: Mapping[str, Json], rows: int | None = None
) -> list[Group]:
    """Rank what was run on the same data by the accuracy after the last epoch, on test rows where
    there are any.

    Entries are compared by the seeds that all of them have finished, so that the tests are paired;
    a failed run counts against its entry, one that has not run yet against none. ``rows`` is the
    number of test rows, for ``rank``.
    """
    groups: dict[Experiment, dict[Experiment, list[Experiment]]] = {}
    for run in once(experiments):
        entry = replace(run, seed=0, noise_seed=None if run.noise_seed is None else 0)
        groups.setdefault(data_of(entry), {}).setdefault(entry, []).append(run)
    return [_rank_group(list(entries.values()), results, rows) for entries in groups.values()]


def data_of(run: Experiment) -> Experiment:
    """Return what is equal for runs that are ranked together."""
    return replace(run, method="ce", settings=Settings())


def _rank_group(
    runs: list[list[Experiment]], results: Mapping[str, Json], rows: int | None
) -> Group:
    metric = metric_of(results[run.key] for of in runs for run in of if run.key in results)
    entries = [_entry(of_entry, results, metric) for of_entry in runs]
    failures = [
        f"{counted(len(entry.errors), 'run')} of {entry.run.method} failed: {entry.errors[0]}"
        for entry in entries
        if entry.errors
    ]
    ranked, others = _ranked(entries, rows)
    if not ranked:
        nothing = "Nothing to compare yet: no seed was run by all."
        return Group(entries, nothing, metric, failures)
    recommendation = recommend([entry.place for entry in ranked])
    if missing := dict.fromkeys(entry.run.method for entry in others):
        recommendation += f" Not compared, since not run yet: {', '.join(missing)}."
    notes = [] if rows is None else _other_rows(ranked[0].place, rows)
    return Group(ranked + others, recommendation, metric, notes + failures)


def _entry(runs: list[Experiment], results: Mapping[str, Json], metric: str) -> Entry:
    ended = {run: results[run.key] for run in runs if run.key in results}
    values = [
        {"seed": run.seed, "noise_seed": run.seed_of_noise, "value": accuracy(result, metric)}
        for run, result in ended.items()
    ]
    errors = [result["error"] for result in ended.values() if result["error"]]
    seconds = [result["seconds"] for result in ended.values() if result["seconds"] is not None]
    place = Place(runs[0].method, seconds=fmean(seconds) if seconds else None)
    return Entry(runs[0], place, len(runs), values, errors)


def _ranked(entries: list[Entry], rows: int | None) -> tuple[list[Entry], list[Entry]]:
    """Return the entries that have run, by the seeds that all of them have, best first; and the
    others.
    """
    values = {
        str(i): {(one["seed"], one["noise_seed"]): one["value"] for one in entry.values}
        for i, entry in enumerate(entries)
        if entry.values
    }
    seeds = sorted(set.intersection(*map(set, values.values()))) if values else []
    if not seeds:
        return [], entries
    ranked = []
    for place in rank({i: [of[seed] for seed in seeds] for i, of in values.items()}, rows):
        entry = entries[int(place.method)]
        place = replace(place, method=entry.run.method, seconds=entry.place.seconds)
        ranked.append(replace(entry, place=place))
    return ranked, [entry for entry in entries if not entry.values]


def _other_rows(best: Place, rows: int) -> list[str]:
    """Return the uncertainty from the choice of test rows, which the intervals leave out."""
    if best.mean is None:
        return []
    low, high = wilson(best.mean, rows)
    return [
        f"± and p measure chance in training: {counted(best.seeds, 'seed')}, the same {rows} test"
        f" rows. On other rows of their kind the {best.mean:.3f} of {best.method} may be"
        f" {low:.3f} to {high:.3f} (Wilson's 95 % interval)."
    ]


def metric_of(results: Iterable[Json]) -> str:
    """Return the metric of the test rows, or of held-out rows where none were tested on."""
    measured = {name for result in results for name in result["last"] or ()}
    if "validation_accuracy" in measured and "test_accuracy" not in measured:
        return "validation_accuracy"
    return "test_accuracy"


def accuracy(result: Json, metric: str) -> float:
    """Return the metric of the last epoch; NaN for a failed run."""
    value = (result["last"] or {}).get(metric)
    return math.nan if value is None else float(value)
