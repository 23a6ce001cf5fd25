"""A sweep of your own in one table: mean and deviation over seeds, ranked, with tests of the differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import stdev

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.ranking import Place, rank, recommend
from noiseproof.bench.results import Json, once
from noiseproof.train import Settings


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seeds, and their place among those on the same data."""

    run: Experiment  # the first of them
    place: Place  # without values where nothing was compared; ``p`` is against the first of its group
    std: float | None  # of the accuracies over seeds
    wanted: int  # number of runs


@dataclass(frozen=True)
class Group:
    """Entries with the same data, best first, and a recommendation in one sentence."""

    entries: list[Entry]
    recommendation: str
    metric: str  # by which they are ranked


def summarise_sweep(experiments: Iterable[Experiment], results: Mapping[str, Json]) -> list[Group]:
    """Rank what was run on the same data by the accuracy after the last epoch, on test rows where there are any.

    Entries are compared by the seeds that all of them have finished, so that the tests are paired; a failed run counts
    against its entry, one that has not run yet against none.
    """
    groups: dict[Experiment, dict[Experiment, list[Experiment]]] = {}
    for run in once(experiments):
        entry = replace(run, seed=0, noise_seed=None if run.noise_seed is None else 0)
        groups.setdefault(_data(entry), {}).setdefault(entry, []).append(run)
    return [_rank_group(list(entries.values()), results) for entries in groups.values()]


def _data(run: Experiment) -> Experiment:
    return replace(run, method="ce", settings=Settings())


def _rank_group(entries: list[list[Experiment]], results: Mapping[str, Json]) -> Group:
    metric = _metric([results[run.key] for runs in entries for run in runs if run.key in results])
    accuracies = [_accuracies(runs, results, metric) for runs in entries]
    started = {str(i): values for i, values in enumerate(accuracies) if values}
    seeds = sorted(set.intersection(*map(set, started.values()))) if started else []
    ranked = rank({i: [values[seed] for seed in seeds] for i, values in started.items()}) if seeds else []
    places = {int(place.method): place for place in ranked}
    order = [*places, *(i for i in range(len(entries)) if i not in places)]
    listed = [_entry(entries[i], places.get(i), accuracies[i], seeds) for i in order]
    named = [entry.place for entry in listed[: len(places)]]
    return Group(listed, recommend(named) if named else "Nothing to compare yet: no seed was run by all.", metric)


def _entry(
    runs: list[Experiment],
    place: Place | None,
    accuracies: Mapping[tuple[int, int], float],
    seeds: Iterable[tuple[int, int]],
) -> Entry:
    finite = [accuracies[seed] for seed in seeds if not math.isnan(accuracies[seed])] if place else []
    named = replace(place or Place(""), method=runs[0].method)
    return Entry(runs[0], named, stdev(finite) if len(finite) > 1 else None, len(runs))


def _metric(done: Iterable[Json]) -> str:
    tested = any("test_accuracy" in (result["last"] or {}) for result in done)
    return "test_accuracy" if tested else "validation_accuracy"


def _accuracies(runs: Iterable[Experiment], results: Mapping[str, Json], metric: str) -> dict[tuple[int, int], float]:
    """The accuracy of each run that has ended, by its seeds; NaN where it failed."""
    ended = {(run.seed, run.seed_of_noise): results[run.key]["last"] or {} for run in runs if run.key in results}
    return {seeds: math.nan if (value := last.get(metric)) is None else value for seeds, last in ended.items()}
