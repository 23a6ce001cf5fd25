"""The papers' search: a method's own grid, one seed, noisy labels to choose by; then all seeds, and the last epoch.

Where Optuna is installed, its TPE can look for points instead, in ranges too, and end early what begins badly.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment, check
from noiseproof.bench.results import Json, holder, read_result
from noiseproof.bench.tables import PaperTable
from noiseproof.core.checks import check_count
from noiseproof.core.grammar import NUMBER, format_value, parse_value
from noiseproof.data import get_dataset
from noiseproof.data.base import derive_seed
from noiseproof.papers import get_paper
from noiseproof.train import Interrupted
from noiseproof.train.record import Metrics

_RANGE = rf"(?:log\s*)?{NUMBER}\.\.{NUMBER}"
_FREE = re.compile(rf"=\s*(\[(?:[^][]|\[[^][]*\])*\]|{_RANGE})")


@dataclass(frozen=True)
class Found:
    """What a search chose, by what, and how it does with all seeds."""

    method: str
    validation: dict[str, float | None]  # noisy validation accuracy of every point of the grid; None where it failed
    errors: dict[str, str]  # why, of those that did
    accuracies: list[float]  # one a seed that did not fail
    failed: int
    results: list[Json]  # of the chosen method, by seed
    pruned: tuple[str, ...] = ()  # points that began badly and were given up
    measured_on: str = "test"  # the rows of ``accuracies``: noisy validation where the dataset has no test part

    @property
    def mean(self) -> float:
        return fmean(self.accuracies) if self.accuracies else math.nan

    @property
    def std(self) -> float | None:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None


@dataclass(frozen=True)
class Range:
    """Numbers between two, whole ones if both are; ``log``: evenly by their logarithms."""

    low: float
    high: float
    log: bool = False


def free_parts(spec: str) -> tuple[list[str], list[list[Any] | Range]]:
    """The text around what is free in ``spec``, and what may stand there: lists of values, or ranges.

    >>> free_parts("sln:sigma=log 0.01..1,until=[10,20]")
    (['sln:sigma', ',until', ''], [Range(low=0.01, high=1, log=True), [10, 20]])
    """
    parts = _FREE.split(spec)
    return parts[::2], [_choices(found, spec) for found in parts[1::2]]


def _choices(text: str, spec: str) -> list[Any] | Range:
    if text.startswith("["):
        values: list[Any] = parse_value(text)
        if not values:
            raise ValueError(f"Expected values in every list of a grid, got none in {spec!r}.")
        return values
    low, high = (parse_value(end) for end in text.removeprefix("log").split(".."))
    found = Range(low, high, text.startswith("log"))
    if not low < high or (found.log and low <= 0):
        raise ValueError(f"Expected a range from low to high{' above 0' * found.log}, got {text!r} in {spec!r}.")
    return found


def _write(text: Sequence[str], values: Sequence[Any]) -> str:
    return text[0] + "".join(f"={format_value(v)}{rest}" for v, rest in zip(values, text[1:], strict=True))


def expand(spec: str) -> Iterator[str]:
    """The points of a grid: every list in ``spec`` stands for its values, several for their product.

    A value that is a list itself stands in one: ``gce:weight=[[1,2]]``.

    >>> list(expand("ln:tau=[0.1,1],lam=0.5 & momentum:alpha=[0.9,0.99]"))[1:3]
    ['ln:tau=0.1,lam=0.5 & momentum:alpha=0.99', 'ln:tau=1,lam=0.5 & momentum:alpha=0.9']
    """
    text, free = free_parts(spec)
    for values in product(*map(_listed, free)):
        yield _write(text, values)


def _listed(choices: list[Any] | Range) -> list[Any]:
    if isinstance(choices, Range):
        raise ValueError(
            f"Expected lists of values in a grid, got the range {choices.low}..{choices.high}. "
            "Say how many `trials` to make, for Optuna to choose them."
        )
    return choices


def table_grids(table: PaperTable) -> list[Experiment]:
    """The cells whose parameters their paper searched, each as its grid, with the cell's rows, noise and protocol.

    >>> from noiseproof.bench.tables import load_table
    >>> [grid.method for grid in table_grids(load_table("ln-table1").only("mnist", "symmetric 40 %", "CE,GCE,LS"))]
    ['gce:q=[0.1,0.3,0.5,0.7,0.9]', 'ls:alpha=[0.1,0.3,0.5,0.7,0.9]']
    """
    runs = table.experiments([0])
    named = [(run, get_paper(table.paper).grids(run.dataset).get(run.method.partition("@")[0])) for run in runs]
    return [replace(run, method=grid) for run, grid in named if grid is not None]


def search(grid: Experiment, results_dir: str | Path, **options: Any) -> Found:
    """Find the best point of the grid that ``grid.method`` is, and train it with all seeds: ``search_all`` of one."""
    return search_all([grid], results_dir, **options)[0]


def search_all(
    grids: Sequence[Experiment],
    results_dir: str | Path,
    *,
    seeds: int = 5,
    full: bool = False,
    trials: int | None = None,
    **engine: Any,
) -> list[Found]:
    """Find the best point of each grid (its ``method``), and train those with all seeds.

    Each point is trained with the grid's ``seed`` alone; the one of the largest accuracy on the held-out noisy rows
    (``validation``; the papers take 0.1) after the last epoch is chosen, the first of equals. Clean labels have no say.
    The seeds are the grid's and those after it, so that the run that was chosen is the first of them (LN paper); with
    ``full`` all of them are trained on all rows, the held-out ones too (SLN paper). ``engine`` are options of
    ``run_all``, which runs nothing twice, and gets the points of all grids at once, then all seeds of what was chosen.

    With ``trials``, Optuna's TPE chooses that many points of each grid, of ranges (``gce:q=0.1..0.9``,
    ``sln:sigma=log 0.01..1``) as well as of lists, and its median rule gives up, from a third of the epochs on, what is
    worse than half of the others were by then. What was tried is kept in ``results_dir/search.journal``: a search that
    was stopped or killed goes on and tries the same points, and several processes that make one call share the work.

    A dataset without a test part has the accuracy on the held-out noisy rows reported, of which ``full`` leaves none.

    Raises:
        BadExperiment: before anything trains, if any point of a grid cannot.
    """
    check_count("seeds", seeds, 1)
    if not all(grid.validation for grid in grids):
        raise ValueError("Expected `validation` above 0, for rows to choose by, got 0. The papers hold out 0.1.")
    for dataset in dict.fromkeys(grid.dataset for grid in grids) if full else ():
        if get_dataset(dataset, engine.get("data_dir")).test is None:
            raise ValueError(
                f"Expected a dataset with a test part beside `full`, which holds no rows out, got {dataset!r}. "
                "Leave `full` out, or give it test rows."
            )
    folder = Path(results_dir).absolute()
    tried: list[tuple[dict[str, float | None], tuple[str, ...]]]
    if trials is None:
        points = [
            [replace(grid, method=method).pinned() for method in dict.fromkeys(expand(grid.method))] for grid in grids
        ]
        found = run_all([point for each in points for point in each], results_dir, **engine)
        tried = [({point.method: _noisy_accuracy(found[point.key]) for point in each}, ()) for each in points]
    else:
        check_count("trials", trials, 1)
        tried = [_sample(grid, folder, trials, engine) for grid in grids]
    runs, errors = [], []
    for grid, (validation, _) in zip(grids, tried, strict=True):
        ran = {method: accuracy for method, accuracy in validation.items() if accuracy is not None}
        failed = [method for method in validation if method not in ran]
        errors.append({method: _error(replace(grid, method=method), folder) for method in failed})
        if not ran:
            raise ValueError(f"Expected a point of {grid.method!r} that trains, got {next(iter(errors[-1].values()))}.")
        best = max(ran, key=ran.__getitem__)
        chosen = replace(grid, method=best, validation=0.0 if full else grid.validation)
        runs.append([replace(chosen, seed=grid.seed + number).pinned() for number in range(seeds)])
    done = run_all([run for each in runs for run in each], results_dir, **engine)
    return [
        _found([done[run.key] for run in each], each[0].method, validation, why, pruned)
        for each, (validation, pruned), why in zip(runs, tried, errors, strict=True)
    ]


def _found(
    results: list[Json], method: str, validation: dict[str, float | None], errors: dict[str, str],
    pruned: tuple[str, ...],
) -> Found:  # fmt: skip
    done = [result["last"] for result in results if result["last"] is not None]
    tested = all("test_accuracy" in last for last in done)
    measured = [last["test_accuracy" if tested else "validation_accuracy"] for last in done]
    accuracies = [accuracy for accuracy in measured if accuracy is not None]
    on = "test" if tested else "noisy validation"
    return Found(method, validation, errors, accuracies, len(results) - len(done), results, pruned, on)


def _error(point: Experiment, folder: Path) -> str:
    result = read_result(folder, point.key) or {}
    return str(result.get("error") or "no accuracy on the held-out rows")


def _noisy_accuracy(result: Json) -> float | None:
    found: float | None = (result["last"] or {}).get("validation_accuracy")
    return found


# Optuna's choice of points


class Pruned(Interrupted):
    """A run that was given up because it began badly: no result, like one that was interrupted."""


def _sample(
    grid: Experiment, folder: Path, trials: int, engine: dict[str, Any]
) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """Noisy validation accuracy of every point that was tried to its end (None: it failed), and those given up."""
    if engine.get("engine", "local") != "local":
        raise ValueError(
            f"Expected the engine local beside `trials`, got {engine['engine']!r}: each point follows from the results "
            "before it. Start the same search several times, on one results folder, to have it in parallel."
        )
    text, free = free_parts(grid.method)
    if not free:
        raise ValueError(f"Expected a list or a range in {grid.method!r} to search, got none.")
    check((replace(grid, method=_write(text, corner)) for corner in _corners(free)), engine.get("data_dir"))
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError("Expected optuna for `trials`. Run `pip install 'noiseproof[optuna]'`.") from error
    loudness = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return _tried(optuna, grid, folder, trials, engine)
    finally:
        optuna.logging.set_verbosity(loudness)


def _corners(free: Sequence[list[Any] | Range]) -> Iterator[list[Any]]:
    """Every value, or end of a range, beside the others' first."""
    ends = [[part.low, part.high] if isinstance(part, Range) else part for part in free]
    for place, values in enumerate(ends):
        for value in values:
            yield [value if i == place else others[0] for i, others in enumerate(ends)]


def _tried(
    optuna: Any, grid: Experiment, folder: Path, trials: int, engine: dict[str, Any]
) -> tuple[dict[str, float | None], tuple[str, ...]]:
    folder.mkdir(parents=True, exist_ok=True)
    journal = importlib.import_module("optuna.storages.journal")
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "search.journal"))),
        study_name=grid.key,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_warmup_steps=grid.settings.epochs // 3),
    )
    text, free = free_parts(grid.method)
    state = optuna.trial.TrialState
    while True:
        known = study.get_trials(deepcopy=False)
        open_ = [t for t in known if t.state == state.RUNNING and "method" in t.user_attrs]
        free_to_take = [t for t in open_ if holder(folder, replace(grid, method=t.user_attrs["method"]).key) is None]
        if not free_to_take and len(known) < trials:
            # A seed for each trial, so that a search that was stopped goes on as if it had not been.
            study.sampler = optuna.samplers.TPESampler(seed=derive_seed(grid.seed, len(known)) % 2**32)
            trial = study.ask()
            trial.set_user_attr("method", _write(text, [_suggest(trial, i, part) for i, part in enumerate(free)]))
        elif open_:  # whose driver was killed; or, at the end, is still at it, and is waited for
            trial = optuna.trial.Trial(study, (free_to_take or open_)[0]._trial_id)
        else:
            break
        point = replace(grid, method=trial.user_attrs["method"]).pinned()
        try:
            value = _noisy_accuracy(_run(trial, point, folder, trials, engine))
        except Pruned:
            study.tell(trial.number, state=state.PRUNED, skip_if_finished=True)
        else:
            how = {"state": state.FAIL} if value is None else {"values": value}
            study.tell(trial.number, **how, skip_if_finished=True)
    done = [t for t in known if t.state in (state.COMPLETE, state.FAIL)]
    values = {t.user_attrs["method"]: t.value if t.state == state.COMPLETE else None for t in done}
    return values, tuple(t.user_attrs["method"] for t in known if t.state == state.PRUNED)


def _suggest(trial: Any, number: int, choices: list[Any] | Range) -> Any:
    name = str(number)
    if not isinstance(choices, Range):
        return choices[trial.suggest_int(name, 0, len(choices) - 1)]  # in their order: lists of numbers are sorted
    if isinstance(choices.low, int) and isinstance(choices.high, int):
        return trial.suggest_int(name, choices.low, choices.high, log=choices.log)
    short = float(f"{trial.suggest_float(name, choices.low, choices.high, log=choices.log):.4g}")
    return min(max(short, choices.low), choices.high)  # rounded, it may be beyond an end


def _run(trial: Any, point: Experiment, folder: Path, trials: int, engine: dict[str, Any]) -> Json:
    fit, told = engine.get("fit", fit_many), engine.get("progress")
    reported = set(trial.study.trials[trial.number].intermediate_values)  # before it was interrupted

    def watch(epoch: int, step: int, steps: int, row: Metrics | None) -> None:
        if row is not None and epoch + 1 < point.settings.epochs and epoch not in reported:
            # Another driver that was at it may have given it up, and left it to this one, which waited.
            given_up = trial.study.get_trials(deepcopy=False)[trial.number].state.is_finished()
            if not given_up:
                trial.report(row["validation_accuracy"], epoch)
            if given_up or trial.should_prune():
                raise Pruned(f"{point.method} was given up after epoch {epoch + 1} of {point.settings.epochs}.")

    def watched(jobs: Sequence[Job], **options: Any) -> Sequence[Outcome]:
        outcomes: Sequence[Outcome] = fit([replace(job, progress=watch) for job in jobs], **options)
        for outcome in outcomes:
            if isinstance(outcome, Pruned):
                raise outcome
        return outcomes

    def progress(experiment: Experiment, result: Json, done: int, total: int) -> None:
        if told is not None:
            told(experiment, result, trial.number + 1, trials)

    options = {**engine, "fit": watched, "progress": progress, "checked": True}
    return run_all([point], folder, **options)[point.key]
