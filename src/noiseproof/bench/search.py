"""Search of hyperparameters as in the papers: a grid, one seed, chosen on noisy labels; then all
seeds.

With Optuna, TPE chooses the points, also from ranges, and poor runs are stopped early.
"""

import importlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment, check
from noiseproof.bench.ranking import accuracy, metric_of
from noiseproof.bench.results import Json, holder, read_result
from noiseproof.bench.tables import PaperTable, list_tables, load_table
from noiseproof.core.checks import check_count
from noiseproof.core.grammar import NUMBER, format_value, parse_value
from noiseproof.core.messages import install_command
from noiseproof.data import get_dataset
from noiseproof.data.base import derive_seed
from noiseproof.papers import PAPERS, get_paper
from noiseproof.train import Interrupted, Settings
from noiseproof.train.protocols import protocol
from noiseproof.train.record import Metrics

_RANGE = rf"(?:log\s*)?{NUMBER}\.\.{NUMBER}"
_FREE = re.compile(rf"=\s*(\[(?:[^][]|\[[^][]*\])*\]|{_RANGE})")


@dataclass(frozen=True)
class SearchResult:
    """The points of a grid, and the results of the chosen one with all seeds."""

    points: dict[str, Json]  # results by method, without points that were stopped early
    pruned: tuple[str, ...] = ()  # points that were stopped early
    method: str = ""  # the chosen point
    results: list[Json] = field(default_factory=list)  # of the chosen point, by seed

    @property
    def validation(self) -> dict[str, float | None]:
        """The noisy validation accuracy of every point; None where it failed."""
        return {method: _noisy_accuracy(result) for method, result in self.points.items()}

    @property
    def errors(self) -> dict[str, str]:
        """Why points failed."""
        return {
            method: str(result.get("error") or "no accuracy on the held-out rows")
            for method, result in self.points.items()
            if _noisy_accuracy(result) is None
        }

    @property
    def accuracies(self) -> list[float]:
        """One for each seed that did not fail."""
        values = (accuracy(result, metric_of(self.results)) for result in self.results)
        return [value for value in values if not math.isnan(value)]

    @property
    def failed(self) -> int:
        return sum(result["last"] is None for result in self.results)

    @property
    def measured_on(self) -> str:
        """The rows of ``accuracies``: noisy validation where the dataset has no test part."""
        of_test = metric_of(self.results) == "test_accuracy"
        return "test" if of_test else "noisy validation"

    @property
    def mean(self) -> float:
        return fmean(self.accuracies) if self.accuracies else math.nan

    @property
    def std(self) -> float | None:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def best(self, grid: Experiment) -> str:
        """Return the point with the largest accuracy; refuses a grid of which all points failed."""
        accuracies = {
            method: value for method, value in self.validation.items() if value is not None
        }
        if not accuracies:
            reason = next(iter(self.errors.values()), "none")
            raise ValueError(f"Expected a point of {grid.method!r} that trains, got {reason}.")
        return max(accuracies, key=accuracies.__getitem__)


def _noisy_accuracy(result: Json) -> float | None:
    value: float | None = (result.get("last") or {}).get("validation_accuracy")
    return value


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, integers if both are; ``log``: uniform in the logarithm."""

    low: float
    high: float
    log: bool = False


def free_parts(spec: str) -> tuple[list[str], list[list[Any] | Range]]:
    """Return the text around the free values of ``spec``, and their choices: lists of values, or
    ranges.

    >>> free_parts("sln:sigma=log 0.01..1,until=[10,20]")
    (['sln:sigma', ',until', ''], [Range(low=0.01, high=1, log=True), [10, 20]])
    """
    parts = _FREE.split(spec)
    return parts[::2], [_choices(text, spec) for text in parts[1::2]]


def _choices(text: str, spec: str) -> list[Any] | Range:
    if text.startswith("["):
        values: list[Any] = parse_value(text)
        if not values:
            raise ValueError(f"Expected values in every list of a grid, got none in {spec!r}.")
        return values
    low, high = (parse_value(end) for end in text.removeprefix("log").split(".."))
    log = text.startswith("log")
    if not low < high or (log and low <= 0):
        raise ValueError(
            f"Expected a range from low to high{' above 0' * log}, got {text!r} in {spec!r}."
        )
    return Range(low, high, log)


def _write(text: Sequence[str], values: Sequence[Any]) -> str:
    return text[0] + "".join(
        f"={format_value(v)}{rest}" for v, rest in zip(values, text[1:], strict=True)
    )


def expand(spec: str) -> Iterator[str]:
    """Return the points of a grid: every list in ``spec`` stands for its values, several for their
    product.

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
            "Give a number of `trials`, for Optuna to choose them."
        )
    return choices


def table_grids(table: PaperTable) -> list[Experiment]:
    """Return the cells whose parameters their paper searched, each as its grid, with the cell's
    rows, noise and protocol.

    >>> from noiseproof.bench.tables import load_table
    >>> cells = load_table("ln-table1").only("mnist", "symmetric 40 %", "CE,GCE,LS")
    >>> [grid.method for grid in table_grids(cells)]
    ['gce:q=[0.1,0.3,0.5,0.7,0.9]', 'ls:alpha=[0.1,0.3,0.5,0.7,0.9]']
    """
    grids = [(run, get_paper(table.paper).grids(run.dataset)) for run in table.experiments([0])]
    names = [run.method.partition("@")[0] for run, _ in grids]
    return [
        replace(run, method=of[name])
        for (run, of), name in zip(grids, names, strict=True)
        if name in of
    ]


def make_grids(
    specs: Sequence[str],
    *,
    only: Sequence[str] = (),
    dataset: str | None = None,
    noise: str | None = None,
    paper: str | None = None,
    validation: float = 0.1,
    precision: str = "32",
    **settings: Any,
) -> list[Experiment]:
    """Return the grids that ``specs`` name: methods with lists or ranges, papers (all that they
    search), tables (their cells).

    ``only`` selects cells of tables, which have data and protocol of their own; ``dataset``
    (digits), ``noise`` (none) and ``paper``, whose protocol is used, are for the other grids.
    ``settings`` override the protocols.
    """
    tables = set(list_tables())
    chosen = {"dataset": dataset, "noise": noise, "protocol": paper}
    if set(specs) <= tables and (
        given := [f"--{key}" for key, value in chosen.items() if value is not None]
    ):
        raise ValueError(
            f"Expected no {' or '.join(given)}, since a table's cells have their own. Leave it out."
        )
    if only and not tables & set(specs):
        raise ValueError(
            f"Expected a table of `noiseproof bench table` for --only, got {', '.join(specs)}."
        )
    dataset = dataset or "digits"
    base = protocol(paper, dataset.partition(":")[0]) if paper else Settings()
    common: dict[str, Any] = {"validation": validation, "paper": paper, "precision": precision}
    grids: list[Experiment] = []
    for spec in specs:
        if spec not in tables:
            methods = (get_paper(spec).grids(dataset) if spec in PAPERS else {}) or {spec: spec}
            run = Experiment(dataset, noise or "none", settings=replace(base, **settings), **common)
            grids += [replace(run, method=method) for method in methods.values()]
        elif cells := table_grids(load_table(spec).only(*only)):
            for cell in cells:
                held_out = cell.validation or validation
                changed = replace(cell.settings, **settings)
                grids.append(
                    replace(cell, settings=changed, validation=held_out, precision=precision)
                )
        else:
            raise ValueError(
                f"Expected cells of {spec} whose parameters the paper searched, got none."
            )
    return grids


def search_all(
    grids: Sequence[Experiment],
    results_dir: str | Path,
    *,
    seeds: int = 5,
    full: bool = False,
    trials: int | None = None,
    **engine: Any,
) -> list[SearchResult]:
    """Find the best point of each grid (its ``method``) and train it with all seeds.

    Each point is trained with the grid's ``seed``. The point with the largest accuracy on the
    held-out noisy rows (``validation``; 0.1 in the papers) after the last epoch is chosen, the
    first of equals; clean labels are not used. The seeds are the grid's and those after it, so that
    the chosen run is the first of them (LN paper); with ``full`` all are trained on all rows,
    including the held-out ones (SLN paper). ``engine`` are options of ``run_all``, which runs
    nothing twice: it gets the points of all grids at once, then all seeds of the chosen points.

    With ``trials``, Optuna's TPE chooses that many points of each grid, from ranges
    (``gce:q=0.1..0.9``, ``sln:sigma=log 0.01..1``) as well as lists, and its median rule stops,
    from a third of the epochs on, runs that are worse than half of the others were by then.
    ``results_dir/search.journal`` keeps the trials: a search that was stopped or killed continues
    with the same points, and several processes with the same call share the work.

    For a dataset without a test part the accuracy on the held-out noisy rows is reported.

    Raises:
        BadExperiment: before anything trains, if a point of a grid cannot run.
    """
    check_count("seeds", seeds, 1)
    _check_data(grids, full, engine.get("data_dir"))
    folder = Path(results_dir).absolute()
    if trials is None:
        tried = _try_all(grids, results_dir, engine)
    else:
        check_count("trials", trials, 1)
        tried = [_sample(grid, folder, trials, engine) for grid in grids]
    runs = []
    for grid, points in zip(grids, tried, strict=True):
        best = replace(grid, method=points.best(grid), validation=0.0 if full else grid.validation)
        runs.append([replace(best, seed=grid.seed + number).pinned() for number in range(seeds)])
    results = run_all([run for of_grid in runs for run in of_grid], results_dir, **engine)
    return [
        replace(points, method=of[0].method, results=[results[run.key] for run in of])
        for of, points in zip(runs, tried, strict=True)
    ]


def _check_data(grids: Sequence[Experiment], full: bool, data_dir: str | Path | None) -> None:
    if not all(grid.validation for grid in grids):
        raise ValueError(
            "Expected `validation` above 0, for rows to choose by, got 0. The papers hold out 0.1."
        )
    for dataset in dict.fromkeys(grid.dataset for grid in grids) if full else ():
        if get_dataset(dataset, data_dir).test is None:
            raise ValueError(
                "Expected a dataset with a test part for `full`, which holds no rows out, got"
                f" {dataset!r}. Leave `full` out, or give it test rows."
            )


def _try_all(
    grids: Sequence[Experiment], results_dir: str | Path, engine: dict[str, Any]
) -> list[SearchResult]:
    points = [
        [replace(grid, method=method).pinned() for method in dict.fromkeys(expand(grid.method))]
        for grid in grids
    ]
    results = run_all([point for of_grid in points for point in of_grid], results_dir, **engine)
    return [
        SearchResult({point.method: results[point.key] for point in of_grid}) for of_grid in points
    ]


# Optuna's choice of points


class Pruned(Interrupted):
    """A run was stopped early because it is worse than others; like an interrupted one it has no
    result.
    """


def _sample(grid: Experiment, folder: Path, trials: int, engine: dict[str, Any]) -> SearchResult:
    if engine.get("engine", "local") != "local":
        raise ValueError(
            f"Expected the engine local with `trials`, got {engine['engine']!r}: each point"
            " follows from the results before it. Start the same search several times, on one"
            " results folder, to have it in parallel."
        )
    text, free = free_parts(grid.method)
    if not free:
        raise ValueError(f"Expected a list or a range in {grid.method!r} to search, got none.")
    check(
        (replace(grid, method=_write(text, corner)) for corner in _corners(free)),
        engine.get("data_dir"),
    )
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError(
            f"Expected optuna for `trials`. Run `{install_command('optuna')}`."
        ) from error
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return _run_trials(optuna, grid, folder, trials, engine)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _corners(free: Sequence[list[Any] | Range]) -> Iterator[list[Any]]:
    """Return every value, or end of a range, with the first value of the others."""
    ends = [[part.low, part.high] if isinstance(part, Range) else part for part in free]
    for place, values in enumerate(ends):
        for value in values:
            yield [value if i == place else others[0] for i, others in enumerate(ends)]


def _run_trials(
    optuna: Any, grid: Experiment, folder: Path, trials: int, engine: dict[str, Any]
) -> SearchResult:
    folder.mkdir(parents=True, exist_ok=True)
    journal = importlib.import_module("optuna.storages.journal")
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(
            journal.JournalFileBackend(str(folder / "search.journal"))
        ),
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
        abandoned = [
            t
            for t in open_
            if holder(folder, replace(grid, method=t.user_attrs["method"]).key) is None
        ]
        if not abandoned and len(known) < trials:
            # A seed for each trial, so that a search that was stopped continues as if it had not
            # been.
            study.sampler = optuna.samplers.TPESampler(
                seed=derive_seed(grid.seed, len(known)) % 2**32
            )
            trial = study.ask()
            trial.set_user_attr(
                "method", _write(text, [_suggest(trial, i, part) for i, part in enumerate(free)])
            )
        elif open_:  # its driver was killed; or, at the end, still trains it, and is waited for
            trial = optuna.trial.Trial(study, (abandoned or open_)[0]._trial_id)
        else:
            break
        point = replace(grid, method=trial.user_attrs["method"]).pinned()
        try:
            value = _noisy_accuracy(_run(trial, point, folder, trials, engine))
        except Pruned:
            study.tell(trial.number, state=state.PRUNED, skip_if_finished=True)
        else:
            outcome = {"state": state.FAIL} if value is None else {"values": value}
            study.tell(trial.number, **outcome, skip_if_finished=True)
    ended = [t.user_attrs["method"] for t in known if t.state in (state.COMPLETE, state.FAIL)]
    results = {m: read_result(folder, replace(grid, method=m).key) or {} for m in ended}
    return SearchResult(
        results, tuple(t.user_attrs["method"] for t in known if t.state == state.PRUNED)
    )


def _suggest(trial: Any, number: int, choices: list[Any] | Range) -> Any:
    name = str(number)
    if not isinstance(choices, Range):
        # in their order: lists of numbers are sorted
        return choices[trial.suggest_int(name, 0, len(choices) - 1)]
    if isinstance(choices.low, int) and isinstance(choices.high, int):
        return trial.suggest_int(name, choices.low, choices.high, log=choices.log)
    short = float(f"{trial.suggest_float(name, choices.low, choices.high, log=choices.log):.4g}")
    return min(max(short, choices.low), choices.high)  # rounding may pass an end


def _run(trial: Any, point: Experiment, folder: Path, trials: int, engine: dict[str, Any]) -> Json:
    fit = engine.get("fit", fit_many)
    report = engine.get("progress")
    # epochs that the trial reported before it was interrupted
    reported = set(trial.study.trials[trial.number].intermediate_values)

    def report_epoch(epoch: int, step: int, steps: int, row: Metrics | None) -> None:
        if row is not None and epoch + 1 < point.settings.epochs and epoch not in reported:
            # This driver may have waited for another, which has stopped the trial by now.
            stopped = trial.study.get_trials(deepcopy=False)[trial.number].state.is_finished()
            if not stopped:
                trial.report(row["validation_accuracy"], epoch)
            if stopped or trial.should_prune():
                raise Pruned(
                    f"{point.method} was stopped after epoch {epoch + 1} of"
                    f" {point.settings.epochs}."
                )

    def fit_or_prune(jobs: Sequence[Job], **options: Any) -> Sequence[Outcome]:
        outcomes: Sequence[Outcome] = fit(
            [replace(job, progress=report_epoch) for job in jobs], **options
        )
        for outcome in outcomes:
            if isinstance(outcome, Pruned):
                raise outcome
        return outcomes

    def progress(experiment: Experiment, result: Json, done: int, total: int) -> None:
        if report is not None:
            report(experiment, result, trial.number + 1, trials)

    options = {**engine, "fit": fit_or_prune, "progress": progress, "checked": True}
    return run_all([point], folder, **options)[point.key]
