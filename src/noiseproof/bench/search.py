"""The papers' search: a method's own grid, one seed, noisy labels to choose by; then all seeds, and the last epoch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json
from noiseproof.core.checks import check_count
from noiseproof.core.registry import format_value, parse_value

_LIST = re.compile(r"=\s*(\[(?:[^][]|\[[^][]*\])*\])")

# What 000 (App. C; its NAN is our sln, and λ = 0.1 is MNIST's alone) and 001 (App. B.1, 300 epochs) search.
GRIDS: dict[str, dict[str, str]] = {
    "000": {
        "ls": "ls:alpha=[0.1,0.3,0.5,0.7,0.9]",
        "gce": "gce:q=[0.1,0.3,0.5,0.7,0.9]",
        "het-tau": "het-tau:tau=[0.1,0.5,1,10,20],samples=2000",
        "het-tau-full": "het-tau-full:tau=[0.1,0.5,1,10,20],rank=[1,2,4],samples=2000",
        "sln": "sln:sigma=[0.1,0.2,0.5,0.75,1]",
        "ln": "ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1]",
    },
    "001": {
        "ls": "ls:alpha=[0.2,0.5,0.8]",
        "tgce": "tgce:q=0.7,k=0.5,start=[0,50,100,150,200],every=10",
        "phuber": "phuber:tau=[2,5,10,30,50]",
        "sln": "sln:sigma=[0.1,0.2,0.5,1]",
    },
}


@dataclass(frozen=True)
class Found:
    """What a search chose, by what, and how it does with all seeds."""

    method: str
    validation: dict[str, float | None]  # noisy validation accuracy of every point of the grid; None where it failed
    accuracies: list[float]  # on test rows, one a seed that did not fail
    failed: int
    results: list[Json]  # of the chosen method, by seed

    @property
    def mean(self) -> float:
        return fmean(self.accuracies) if self.accuracies else math.nan

    @property
    def std(self) -> float | None:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None


def expand(spec: str) -> Iterator[str]:
    """The points of a grid: every list in ``spec`` stands for its values, several for their product.

    A value that is a list itself stands in one: ``gce:weight=[[1,2]]``.

    >>> list(expand("ln:tau=[0.1,1],lam=0.5 & momentum:alpha=[0.9,0.99]"))[1:3]
    ['ln:tau=0.1,lam=0.5 & momentum:alpha=0.99', 'ln:tau=1,lam=0.5 & momentum:alpha=0.9']
    """
    text, lists = _LIST.split(spec)[::2], [parse_value(found) for found in _LIST.findall(spec)]
    if [] in lists:
        raise ValueError(f"Expected values in every list of a grid, got none in {spec!r}.")
    for values in product(*lists):
        yield text[0] + "".join(f"={format_value(v)}{rest}" for v, rest in zip(values, text[1:], strict=True))


def search(grid: Experiment, results_dir: str | Path, *, seeds: int = 5, full: bool = False, **engine: Any) -> Found:
    """Find the best point of the grid that ``grid.method`` is, and train it with all seeds.

    Each point is trained with ``grid.seed`` alone; the one of the largest accuracy on the held-out noisy rows
    (``grid.validation``; the papers take 0.1) after the last epoch is chosen, the first of equals. Clean labels have no
    say. The seeds are ``grid.seed`` and those after it, so that the run that was chosen is the first of them (000);
    with ``full`` all of them are trained on all rows, the held-out ones too (001). ``engine`` are options of
    ``run_all``, which runs nothing twice.

    Raises:
        BadExperiment: before anything trains, if any point of the grid cannot.
    """
    check_count("seeds", seeds, 1)
    if not grid.validation:
        raise ValueError("Expected `validation` above 0, for rows to choose by, got 0. The papers hold out 0.1.")
    points = [replace(grid, method=method) for method in dict.fromkeys(expand(grid.method))]
    tried = run_all(points, results_dir, **engine)
    validation: dict[str, float | None] = {
        point.method: (tried[point.key]["last"] or {}).get("validation_accuracy") for point in points
    }
    ran = {method: accuracy for method, accuracy in validation.items() if accuracy is not None}
    if not ran:
        raise ValueError(f"Expected a point of {grid.method!r} that trains, got {tried[points[0].key]['error']}.")
    best = max(ran, key=ran.__getitem__)
    chosen = replace(grid, method=best, validation=0.0 if full else grid.validation)
    runs = [replace(chosen, seed=grid.seed + number) for number in range(seeds)]
    found = run_all(runs, results_dir, **engine)
    results = [found[run.key] for run in runs]
    measured = [(result["last"] or {}).get("test_accuracy") for result in results]
    accuracies = [accuracy for accuracy in measured if accuracy is not None]
    return Found(best, validation, accuracies, sum(result["last"] is None for result in results), results)
