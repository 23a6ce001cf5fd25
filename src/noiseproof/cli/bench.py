"""`noiseproof bench`: experiments, the papers' tables, comparisons and searches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import (
    Accelerator,
    AllEpochs,
    AllPrecision,
    Engine,
    Epochs,
    Model,
    Only,
    Protocol,
    ResultsDir,
    RetryFailed,
    TableSeeds,
    Workers,
    columns,
    names,
    on_machine,
    on_training,
)
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    duration,
    echo,
    examples,
    headline,
    refusals,
    say,
    show,
    show_csv,
    show_json,
    training_exits,
)
from noiseproof.core.messages import counted, near_file

if TYPE_CHECKING:
    from noiseproof.bench import Experiment
    from noiseproof.bench.ranking import Group, Place
    from noiseproof.bench.search import SearchResult
    from noiseproof.bench.tables import CellComparison, PaperTable

bench_app = typer.Typer(
    help="Compare methods fairly: many runs, each made once.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench", rich_help_panel=TRAINING)
RESUMES = " The same command resumes."
# what the runs of one entry may differ in
HIDDEN = ("seed", "noise_seed", "samples", "weights", "measures")
Spec = Annotated[
    str,
    typer.Argument(
        help="A TOML file of [[experiment]] blocks, or a table of `bench table`.",
        autocompletion=names("tables"),
    ),
]
Left = Annotated[
    bool, typer.Option("--left", help="Leave out runs whose results come with noiseproof.")
]


@bench_app.command(
    "run",
    epilog=examples(
        "bench run sweep.toml",
        "bench run ln-table1 --only mnist --dry-run",
        "bench run sweep.toml --engine processes --workers 8",
        "bench run sweep.toml --engine ray --address auto --gpus 0.25",
        "bench run ln-table1 --only mnist --seeds 2 --precision bf16 --accelerator cuda --data-dir"
        " /srv/data",
        "bench run sweep.toml --results mine --threads 2 --retry-failed --json",
        "bench run bias-table-a2 --only fashion-mnist --epochs 50 --dry-run",
        "bench run ln-table1 --only mnist --precision bf16 --left --engine processes --workers 3"
        " --at-once 16",
    ),
)
@refusals()
@training_exits(then=RESUMES)
def bench_run(
    spec: Spec,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: TableSeeds = None,
    precision: AllPrecision = None,
    epochs: AllEpochs = None,
    left: Left = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and for how long.")
    ] = False,
    engine: Engine = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Workers = None,
    threads: Annotated[
        int, on_machine("Threads of each run; another number may change its last digits.", min=1)
    ] = 1,
    accelerator: Accelerator = "auto",
    at_once: Annotated[
        int | None,
        on_machine(
            "Runs side by side in each process; by default one, or what a GPU holds (local).", min=1
        ),
    ] = None,
    address: Annotated[
        str | None, on_machine("Address of a Ray cluster, or auto; by default one is started.")
    ] = None,
    gpus: Annotated[
        float | None, on_machine("Share of a GPU for each run under Ray.", min=0)
    ] = None,
) -> None:
    """Run the experiments of a file or a table that have no result yet; interrupted runs resume."""
    # by default runs side by side share eight queues
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    from noiseproof.bench import run_all
    from noiseproof.bench.engines import check_engine

    check_engine(engine, workers, address, gpus, at_once)  # in a dry run, too
    experiments = _experiments(spec, only, seeds, data_dir, precision, epochs, left=left)
    if dry_run:
        return _show_plan(
            experiments, results, data_dir, accelerator, threads, retry_failed, as_json
        )
    made = run_all(
        experiments,
        results,
        engine=engine,
        workers=workers,
        threads=threads,
        accelerator=accelerator,
        at_once=at_once,
        data_dir=data_dir,
        retry_failed=retry_failed,
        address=address,
        gpus=gpus,
        progress=_show_progress,
        checked=True,
    )
    failed = sum(result["status"] == "failed" for result in made.values())
    if as_json:
        show_json(list(made.values()))
    else:
        echo(f"{counted(len(made) - failed, 'run')} done, {failed} failed, in {results}")
    if failed:
        raise typer.Exit(3)


@training_exits("Stopped. A dry run saves nothing.")
def _show_plan(
    experiments: Sequence[Experiment],
    results: str,
    data_dir: str | None,
    accelerator: str,
    threads: int,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """List the runs to do, with an estimate from a few real steps of each kind of run."""
    from noiseproof.bench import status
    from noiseproof.bench.duration import expected_seconds

    ended = ("done",) if retry_failed else ("done", "failed")
    states = status(experiments, results)
    todo = [run for run, state in states.items() if state not in ended]
    expected = expected_seconds(
        todo,
        data_dir=data_dir,
        accelerator=accelerator,
        threads=threads,
        progress=_announce,
    )
    if as_json:
        return show_json(
            [{"key": run.key, "seconds": expected[run], **run.as_dict()} for run in todo]
        )
    columns, values = _distinguish(todo, "dataset", "noise", "method", hidden=HIDDEN)
    kinds: dict[tuple[str, ...], list[float | None]] = {}
    for run, kind in zip(todo, values, strict=True):
        kinds.setdefault(kind, []).append(expected[run])
    rows = [
        (*kind, str(len(seconds)), "diverges" if seconds[0] is None else duration(seconds[0]))
        for kind, seconds in kinds.items()
    ]
    show((*columns, "runs", "a run"), rows)
    total = duration(sum(seconds or 0.0 for seconds in expected.values()))
    ended_counts = ", ".join(f"{list(states.values()).count(state)} {state}" for state in ended)
    return echo(
        f"{counted(len(todo), 'run')} to do, {ended_counts}; about {total} one after another on"
        " this machine"
    )


def _say_damaged(error: ValueError) -> None:
    say(f"Left out: {error}")


def _announce(run: Experiment, number: int, total: int) -> None:
    echo(f"timing {number}/{total}: {run.dataset}, {run.settings.model}, {run.method}", err=True)


def _distinguish(
    experiments: Iterable[Experiment], *columns: str, hidden: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Names and values of ``columns``, and of what else differs between experiments that agree in
    these.
    """
    flat = [
        fields.pop("settings") | fields
        for fields in (experiment.as_dict() for experiment in experiments)
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in flat:
        groups.setdefault(tuple(one[name] for name in columns), []).append(one)
    differ = {
        name
        for group in groups.values()
        for name in group[0]
        if len({repr(one[name]) for one in group}) > 1
    }
    names = [*columns, *sorted(differ.difference(columns, hidden))]
    return names, [tuple(str(one[name]) for name in names) for one in flat]


def _show_progress(
    experiment: Experiment, result: Mapping[str, Any], done: int, total: int
) -> None:
    what = f"{experiment.dataset}, {experiment.noise}, {experiment.method}, seed {experiment.seed}"
    outcome = result["error"] or f"{headline(result['last'])}, {duration(result['seconds'])}"
    echo(f"{done}/{total} {result['key']} {what}: {outcome}", err=True)


@bench_app.command(
    "status",
    epilog=examples(
        "bench status",
        "bench status sweep.toml",
        "bench status sweep.toml --json",
        "bench status ln-table1 --only mnist --seeds 2 --precision bf16 --results mine --data-dir"
        " /srv/data",
        "bench status bias-table-a2 --epochs 50",
        "bench status bias-table-a2 --precision bf16 --left",
    ),
)
@refusals()
def bench_status(
    spec: Annotated[
        str | None,
        typer.Argument(
            help="As in `bench run`; without one the tables are listed.",
            autocompletion=names("tables"),
        ),
    ] = None,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: TableSeeds = None,
    precision: AllPrecision = None,
    epochs: AllEpochs = None,
    left: Left = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show which experiments of a file or a table are done, failed, running, interrupted, or to do.

    Without one: how many cells of each table were rerun, and how many runs are left for `bench run
    TABLE --left`.
    """
    from collections import Counter

    from noiseproof.bench import status
    from noiseproof.bench.reruns import count_cells, rerun_cells
    from noiseproof.bench.results import holder
    from noiseproof.bench.tables import list_tables, load_table

    if spec is None:
        _need_table(
            only=only, seeds=seeds, precision=precision, epochs=epochs, left=left, data_dir=data_dir
        )
        return _show_left(results, as_json)
    states = status(
        _experiments(spec, only, seeds, data_dir, precision, epochs, check_runs=False, left=left),
        results,
    )
    running = {
        e: holder(Path(results), e.key) or {} for e, state in states.items() if state == "running"
    }
    if as_json:
        return show_json(
            [
                {"key": e.key, "status": state, "holder": running.get(e), **e.as_dict()}
                for e, state in states.items()
            ]
        )
    by = {e: f"running, process {one['pid']} on {one['host']}" for e, one in running.items() if one}
    columns, values = _distinguish(states, "dataset", "noise", "method", "seed", hidden=HIDDEN[2:])
    rows = [
        (e.key, by.get(e, state), *rest)
        for (e, state), rest in zip(states.items(), values, strict=True)
    ]
    show(("key", "status", *columns), rows)
    echo(", ".join(f"{count} {state}" for state, count in Counter(states.values()).items()))
    if spec in list_tables():
        table = load_table(spec).only(*only or ()).with_epochs(epochs)
        cells = count_cells(table, rerun_cells(table, precision))
        of_runs = f" with {counted(epochs, 'epoch')}" if epochs else ""
        echo(
            f"Reruns that noiseproof has (`bench table {spec}`){of_runs}: {cells.rerun} of"
            f" {cells.runnable} cells that can run, {cells.with_all_seeds} with all seeds of the"
            " paper" + "; --left leaves their runs out" * (cells.rerun > 0 and not left)
        )
    return None


def _show_left(results: str, as_json: bool) -> None:
    from noiseproof.bench import status
    from noiseproof.bench.reruns import count_all, runs_left
    from noiseproof.bench.tables import load_table

    names = ("published", "runnable", "rerun", "with_all_seeds")
    lines: list[dict[str, Any]] = []
    for id, counts in count_all().items():
        states = list(status(runs_left(load_table(id)), results).values())
        left = len(states) - states.count("done") - states.count("failed")
        lines.append({"id": id, **{name: getattr(counts, name) for name in names}, "left": left})
    if as_json:
        return show_json(lines)
    return show(
        ("id", "cells", "can run", "rerun", "with all seeds", "runs left"),
        [[*map(str, one.values())] for one in lines],
    )


def _experiments(
    spec: str,
    only: Sequence[str] | None,
    seeds: int | None,
    data_dir: str | None,
    precision: str | None,
    epochs: int | None = None,
    check_runs: bool = True,
    left: bool = False,
) -> list[Experiment]:
    import difflib

    from noiseproof.bench import check, load_experiments
    from noiseproof.bench.reruns import without_reruns
    from noiseproof.bench.tables import list_tables, load_table

    if spec in list_tables():
        table = load_table(spec).only(*only or ()).with_epochs(epochs)
        experiments = _runs_of(table, seeds, data_dir, precision, check_runs, left)
    else:
        if (near := difflib.get_close_matches(spec, list_tables(), n=3)) and not Path(
            spec
        ).exists():
            raise ValueError(
                f"Expected a file or a table, got {spec!r}. Did you mean {' or '.join(near)}?"
            )
        in_file = {
            "--seeds": seeds and f"seed = {list(range(seeds))}",
            "--epochs": epochs and f"epochs = {epochs}",
        }
        for option, line in {"--only": "" if only else None, **in_file}.items():
            if line is not None:
                remedy = f" Write `{line}` in the file." if line else " Leave it out."
                raise ValueError(
                    f"Expected a table of `noiseproof bench table` for {option}, got"
                    f" {spec!r}.{remedy}"
                )
        if not Path(spec).is_file():
            raise ValueError(
                f"Expected a file or a table of `noiseproof bench table`, got {spec!r}, which is"
                f" neither.{near_file(Path(spec))}"
            )
        experiments = load_experiments(spec, data_dir=data_dir, check_runs=check_runs and not left)
    if precision:  # runs that differed only in this become one
        experiments = list(
            dict.fromkeys(dataclasses.replace(e, precision=precision) for e in experiments)
        )
    if left and spec not in list_tables():
        experiments = without_reruns(experiments)
        if check_runs:
            check(experiments, data_dir)
    if left and not experiments:
        say("Nothing is left to run: the results of all these runs come with noiseproof.")
    return experiments


def _runs_of(
    table: PaperTable,
    seeds: int | None,
    data_dir: str | None,
    precision: str | None,
    check_runs: bool,
    left: bool,
) -> list[Experiment]:
    """The runs of a table that can be made here; with ``left`` those without a rerun, in
    ``precision`` or in any.
    """
    from noiseproof.bench import check
    from noiseproof.bench.experiment import with_data
    from noiseproof.bench.reruns import runs_left

    if not table.parts:
        reasons = ", ".join(dict.fromkeys(cell.unavailable for cell in table.cells))
        raise ValueError(
            f"Expected cells of {table.id} that can run, got {len(table.cells)} that cannot:"
            f" {reasons}."
        )
    chosen = range(seeds) if seeds else None
    experiments = runs_left(table, chosen, precision) if left else table.experiments(chosen)
    if experiments and check_runs:
        experiments, without_data = with_data(experiments, data_dir)
        for dataset, message in without_data.items():
            say(f"Left out: the runs on {dataset}. {message}")
        check(experiments, data_dir)
    return experiments


@bench_app.command(
    "table",
    epilog=examples(
        "bench table",
        "bench table ln-table1 --only mnist",
        "bench table sln-table1 --only SLN,SLN-MO --only symmetric --format markdown",
        "bench table ln-table1 --results mine --seeds 2 --precision bf16 --json",
        "bench table --worst 20 --format csv",
        "bench table bias-table-a2 --only fashion-mnist --epochs 50",
        "bench table sweep.toml --results mine",
    ),
)
@refusals()
def bench_table(
    id: Annotated[
        str | None,
        typer.Argument(
            help="A table of the papers, or a TOML file; without one the tables are listed.",
            autocompletion=names("tables"),
        ),
    ] = None,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: TableSeeds = None,
    precision: AllPrecision = None,
    epochs: AllEpochs = None,
    format: Annotated[
        str,
        typer.Option(
            help="text, csv (with all digits), markdown, latex or html.",
            autocompletion=names(more=("text", "csv", "markdown", "latex", "html")),
        ),
    ] = "text",
    worst: Annotated[
        int | None,
        typer.Option(min=1, help="Of all tables, this number of reruns that differ most, by |z|."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a table of the papers with our reruns and your results beside it, or the ranking of a
    sweep of your own.

    z is the difference of the means in standard errors; asterisks mark what is bold in the paper.
    Without a table: how many cells of each were published, can run and were rerun, with all seeds
    of the paper, and how many agree.
    """
    from noiseproof.bench.tables import FORMATS, list_tables, load_table

    if format not in ("text", "csv", *FORMATS):
        raise ValueError(f"Expected a --format of text, csv, {', '.join(FORMATS)}, got {format!r}.")
    if id is None:
        _need_table(
            results=results != "results", only=only, seeds=seeds, precision=precision, epochs=epochs
        )
        return _show_worst(worst, format, as_json) if worst else _show_counts(format, as_json)
    if worst:
        raise ValueError(
            f"Expected no table beside --worst, which is about all of them, got {id!r}."
        )
    if id not in list_tables() and id.endswith(".toml"):
        sweep = _experiments(id, only, seeds, None, precision, epochs, check_runs=False)
        return _show_sweep(sweep, results, format, as_json)
    table = load_table(id).only(*only or ())
    return _show_paper_table(
        table, results, range(seeds) if seeds else None, precision, epochs, format, as_json
    )


def _show_paper_table(
    table: PaperTable,
    results: str,
    seeds: Iterable[int] | None,
    precision: str | None,
    epochs: int | None,
    format: str,
    as_json: bool,
) -> None:
    from noiseproof.bench import read_results
    from noiseproof.bench.reruns import explain, rerun_cells
    from noiseproof.bench.tables import (
        compare_cells,
        heading,
        lines,
        notes,
        render,
    )

    if not Path(results).exists():
        say(f"There are no results of yours in {results}/: published numbers and reruns are shown.")
    found = read_results(results, _say_damaged)
    yours = compare_cells(table.with_epochs(epochs), found, seeds, precision)
    reruns = rerun_cells(table, precision)  # of what was published, whatever the epochs of yours
    if as_json or format == "csv":
        records = [
            _record(table, *pair, flat=not as_json) for pair in zip(yours, reruns, strict=True)
        ]
        return show_json(records) if as_json else show_csv(records)
    if format != "text":
        return echo(render(table, yours, reruns, format), nl=False)
    columns, rows = lines(yours, reruns)
    echo(heading(table))
    show(columns, rows)
    return echo("\n".join([*notes(table, yours, reruns), *explain(table, reruns)]))


def _need_table(**options: object) -> None:
    if given := [f"--{name.replace('_', '-')}" for name, value in options.items() if value]:
        raise ValueError(
            f"Expected a table beside {' and '.join(given)}, got none. `noiseproof bench table`"
            " lists them."
        )


def _show_worst(count: int, format: str, as_json: bool) -> None:
    from noiseproof.bench.reruns import find_diagnosis, largest_differences
    from noiseproof.bench.tables import CellComparison, lines

    found = [
        (table, CellComparison(rerun.cell), rerun) for table, rerun in largest_differences(count)
    ]
    if as_json or format == "csv":
        return (show_json if as_json else show_csv)(
            [_record(*one, flat=not as_json) for one in found]
        )
    columns, rows = lines([own for _, own, _ in found], [rerun for *_, rerun in found])
    why = [(find_diagnosis(table, own.cell) or {}).get("sweep", "") for table, own, _ in found]
    head = ("table", *columns, "experiment on why")
    rows = [
        (table.id, *row, sweep) for (table, *_), row, sweep in zip(found, rows, why, strict=True)
    ]
    return (
        show(head, rows)
        if format == "text"
        else _export(format, "The largest differences", head, rows, left=4)
    )


def _record(
    table: PaperTable, own: CellComparison, rerun: CellComparison, flat: bool
) -> dict[str, Any]:
    """A cell for programs: with all that is known of its runs, or ``flat`` for CSV."""
    from noiseproof.bench.reruns import find_diagnosis

    why = find_diagnosis(table, rerun.cell) or {}
    runs: dict[str, Any] = {"rerun": rerun.as_dict(), "yours": own.as_dict()}
    if flat:
        names = ("mean", "spread", "z", "seeds", "failed", "precision", "epochs")
        runs = {f"{whose}_{name}": one[name] for whose, one in runs.items() for name in names}
        runs["rerun_commits"] = " ".join(rerun.commits)
    of_table = {"table": table.id, "statistic": table.statistic}
    return {
        **of_table,
        **own.cell.as_dict(),
        **runs,
        "diagnosis": why.get("finding"),
        "experiment": why.get("sweep"),
    }


def _show_counts(format: str, as_json: bool) -> None:
    from functools import reduce
    from operator import add

    from noiseproof.bench.reruns import count_all
    from noiseproof.bench.tables import load_table

    counts = count_all()
    tables = {id: load_table(id) for id in counts}
    if as_json or format == "csv":
        return (show_json if as_json else show_csv)(
            [
                {
                    "id": id,
                    "paper": t.paper,
                    "table": t.number,
                    "title": t.title,
                    "runs": t.runs,
                    **vars(counts[id]),
                }
                for id, t in tables.items()
            ]
        )
    rows = [(id, tables[id].title, one) for id, one in counts.items()]
    rows.append(("all", "", reduce(add, counts.values())))
    head = ("id", "what it shows", "cells", "can run", "rerun", "with all seeds", "|z| ≤ 2")
    texts = [
        (
            id,
            title,
            *map(
                str,
                (c.published, c.runnable, c.rerun, c.with_all_seeds, f"{c.within} of {c.judged}"),
            ),
        )
        for id, title, c in rows
    ]
    return (
        show(head, texts)
        if format == "text"
        else _export(format, "The papers' tables", head, texts, left=2)
    )


def _export(
    format: str,
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Sequence[str] = (),
    left: int = 1,
) -> None:
    from noiseproof.bench.tables import document

    echo(document(format, title, head, rows, notes, texts=left))


def _show_sweep(
    experiments: Sequence[Experiment], results: str, format: str, as_json: bool
) -> None:
    from noiseproof.bench import read_results
    from noiseproof.bench.ranking import NOTE, data_of, summarise_sweep

    if not any(Path(results).glob("*.json")):
        say(f"There are no results in {results}/. Make them with `noiseproof bench run`.")
    groups = summarise_sweep(experiments, read_results(results, _say_damaged))
    if as_json:
        return show_json([dataclasses.asdict(group) for group in groups])
    if format == "csv":
        return _show_sweep_csv(groups)
    columns, texts = _distinguish(
        (data_of(g.entries[0].run) for g in groups), "dataset", "noise", hidden=HIDDEN
    )
    for group, data in zip(groups, texts, strict=True):
        title = ", ".join(f"{name} {text}" for name, text in zip(columns, data, strict=True))
        names, values = _distinguish(
            (entry.run for entry in group.entries), "method", hidden=HIDDEN
        )
        rows = [
            (
                *value,
                _mean(entry.place.mean, entry.std),
                _p(entry.place.p),
                _seeds(entry.place, entry.wanted),
            )
            for entry, value in zip(group.entries, values, strict=True)
        ]
        head = (*names, group.metric.replace("_", " "), "p against the first", "seeds")
        if format == "text":
            echo(title)
            show(head, rows)
            echo(group.recommendation + "\n")
        else:
            _export(format, title, head, rows, [group.recommendation, NOTE], left=len(names))
    return echo(NOTE) if format == "text" else None


def _show_sweep_csv(groups: Sequence[Group]) -> None:
    entries = [(group.metric, entry) for group in groups for entry in group.entries]
    names, values = _distinguish(
        (entry.run for _, entry in entries), "dataset", "noise", "method", hidden=HIDDEN
    )
    show_csv(
        [
            {
                **dict(zip(names, value, strict=True)),
                "metric": metric,
                "mean": entry.place.mean,
                "std": entry.std,
                "p": entry.place.p,
                "seeds": entry.place.seeds,
                "failed": entry.place.failed,
                "wanted": entry.wanted,
            }
            for (metric, entry), value in zip(entries, values, strict=True)
        ]
    )


def _mean(mean: float | None, std: float | None) -> str:
    return "" if mean is None else f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")


def _p(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _seeds(place: Place, wanted: int) -> str:
    return f"{place.seeds}/{wanted}" + f", {place.failed} failed" * (place.failed > 0)


@bench_app.command(
    "compare",
    epilog=examples(
        "bench compare --data my.csv --label kind",
        "bench compare --data my.csv --label kind --test checked.csv --methods ce,gce:q=0.5,sln-mo"
        " --seeds 10",
        "bench compare --data mails.csv --text body --label kind --epochs 20",
        "bench compare --data digits --noise symmetric:rate=0.4 --retry-failed --json",
        "bench compare --data my.csv --label kind --missing impute --model mlp:hidden=[64]"
        " --results mine",
        "bench compare --data mnist --data-dir /srv/data --engine processes --workers 4"
        " --accelerator cpu",
    ),
)
@refusals(  # a table's spec is made of these
    {name: f"--{name}" for name in ("label", "test", "text", "missing")}
    | {"missing='impute'": "--missing impute", "split_table": "--label COLUMN"}
)
@training_exits(then=RESUMES)
def bench_compare(
    data: Annotated[
        str, typer.Option(help="A .csv, .tsv or .parquet file; without --label a dataset by name.")
    ],
    label: Annotated[
        str | None, typer.Option(help="The column of the labels.", autocompletion=columns())
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="The column of texts, if the input is text.", autocompletion=columns()),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="A file to test on; default: a fifth of the rows.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="refuse (default) or impute missing values of a table.")
    ] = None,
    noise: Annotated[
        str,
        typer.Option(help="Noise to add to the training labels.", autocompletion=names("noises")),
    ] = "none",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; default: seven kinds.",
            autocompletion=names("methods", several=True),
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    results: ResultsDir = "results",
    engine: Engine = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    model: Annotated[str, on_training("A backbone of `noiseproof models`.")] = "auto",
    epochs: Annotated[int, on_training("Passes over the data.", min=1)] = 100,
    workers: Workers = None,
    accelerator: Accelerator = "auto",
) -> None:
    """Rank methods on your own data: accuracy after the last epoch with confidence intervals, time
    and memory.

    A tenth of the training rows is held out as noisy validation set, as in the papers. The same
    command resumes.
    """
    from noiseproof.bench.compare import DEFAULT_METHODS, compare_methods, split_table
    from noiseproof.core.grammar import split_specs
    from noiseproof.train import Settings

    if text is not None and missing is not None:
        raise ValueError(
            "Expected no --missing beside --text, since it is about columns of a table. Leave it"
            " out."
        )
    dataset, notes = data, list[str]()
    if label is not None:
        options: dict[str, Any] = (
            {"text": text} if text is not None else {"missing": missing or "refuse"}
        )
        dataset, notes = split_table(data, label, results, test=test, **options)
    elif test or text or missing or data.endswith((".csv", ".tsv", ".gz", ".parquet", ".pq")):
        raise ValueError(
            "Expected --label, the column of labels, beside a file, --test, --text or --missing."
        )
    ranking = compare_methods(
        dataset,
        split_specs(methods) if methods else DEFAULT_METHODS,
        results_dir=results,
        noise=noise,
        seeds=seeds,
        settings=Settings(model=model, epochs=epochs),
        data_dir=data_dir,
        accelerator=accelerator,
        engine=engine,
        workers=workers,
        retry_failed=retry_failed,
        progress=lambda run, *rest: _show_progress(dataclasses.replace(run, dataset=data), *rest),
    )
    notes += ranking.notes
    if as_json:
        places = [dataclasses.asdict(place) for place in ranking.places]
        return show_json(
            {"ranking": places, "notes": notes, "recommendation": ranking.recommendation}
        )
    show(
        ("method", "accuracy", "95 %", "p against the first", "seeds", "s a run", "MB"),
        [_place_row(place) for place in ranking.places],
    )
    return echo("\n".join([*notes, ranking.recommendation]))


def _place_row(place: Place) -> tuple[str, ...]:
    return (
        place.method,
        "failed" if place.mean is None else f"{place.mean:.4f}",
        "" if place.margin is None else f"± {place.margin:.4f}",
        _p(place.p),
        f"{place.seeds}/{place.seeds + place.failed}",
        "" if place.seconds is None else f"{place.seconds:.1f}",
        "" if place.memory is None else f"{place.memory / 1e6:.1f}",
    )


@bench_app.command(
    "search",
    epilog=examples(
        "bench search 'gce:q=[0.1,0.3,0.5]' --noise symmetric:rate=0.4",
        "bench search 'ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1]' --dataset mnist --protocol ln",
        "bench search ln-table1 --only mnist --only 'symmetric 40 %' --precision bf16",
        "bench search ln --noise symmetric:rate=0.4",
        "bench search 'sln:sigma=[0.1,0.2,0.5,1]' --dataset cifar10 --protocol sln --full",
        "bench search 'ln:tau=0.1..1,lam=log 0.1..10' --noise symmetric:rate=0.4 --trials 30",
        "bench search 'gce:q=[0.3,0.7]' --model mlp:hidden=[64] --epochs 20 --validation 0.2"
        " --seeds 5 --json",
        "bench search 'gce:q=[0.3,0.7]' --dataset mnist --data-dir /srv/data --results mine"
        " --accelerator cpu",
        "bench search 'gce:q=[0.3,0.7]' --engine processes --workers 4 --retry-failed",
    ),
)
@refusals()
@training_exits(then=RESUMES)
def bench_search(
    grids: Annotated[
        list[str],
        typer.Argument(
            metavar="GRID",
            help=(
                "Methods with lists of values, or with --trials ranges; ln or sln: all grids of"
                " that paper; "
                "a table of the papers: the grids of its cells, on their data."
            ),
        ),
    ],
    only: Only = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Of `noiseproof data list`; default: digits.", autocompletion=names("datasets")
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Noise to add to the training labels; default: none.",
            autocompletion=names("noises"),
        ),
    ] = None,
    validation: Annotated[
        float, typer.Option(min=0, help="Share of the noisy rows to hold out and choose by.")
    ] = 0.1,
    full: Annotated[
        bool,
        typer.Option("--full", help="Train the chosen point on all rows, as the SLN paper does."),
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of the chosen point; the search uses the first seed.")
    ] = 5,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of points, chosen by Optuna.")
    ] = None,
    results: ResultsDir = "results",
    engine: Engine = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    protocol: Protocol = None,
    model: Model = None,
    epochs: Epochs = None,
    precision: Annotated[str, on_training("32, bf16 or 64.")] = "32",
    workers: Workers = None,
    accelerator: Accelerator = "auto",
) -> None:
    """Choose a method's parameters by the accuracy on held-out noisy rows with one seed; then train
    with all seeds.
    """
    from noiseproof.bench.search import make_grids, search_all

    given = {
        name: value
        for name, value in {"model": model, "epochs": epochs}.items()
        if value is not None
    }
    runs = make_grids(
        grids,
        only=only or (),
        dataset=dataset,
        noise=noise,
        paper=protocol,
        validation=validation,
        precision=precision,
        **given,
    )
    searches = search_all(
        runs,
        results,
        seeds=seeds,
        full=full,
        trials=trials,
        engine=engine,
        workers=workers,
        accelerator=accelerator,
        data_dir=data_dir,
        retry_failed=retry_failed,
        progress=_show_progress,
    )
    if as_json:
        return show_json(
            [{**dataclasses.asdict(one), "mean": one.mean, "std": one.std} for one in searches]
        )
    several = len({run.without_method for run in runs}) > 1
    for run, one in zip(runs, searches, strict=True):
        if several:
            echo(f"{run.dataset}, {run.noise}:")
        _show_search(one)
    return None


def _show_search(search: SearchResult) -> None:
    points = sorted(search.validation.items(), key=lambda point: -(point[1] or 0))
    rows = [(m, f"failed: {search.errors[m]}" if a is None else f"{a:.4f}") for m, a in points]
    show(
        ("method", "noisy validation"),
        rows + [(method, "stopped early") for method in search.pruned],
    )
    spread = "" if search.std is None else f" ± {search.std:.4f} (standard deviation)"
    error = next((result["error"] for result in search.results if result["error"]), "")
    failed = f", {counted(search.failed, 'run')} failed ({error})" * (search.failed > 0)
    accuracy = (
        f"{search.measured_on} {search.mean:.4f}{spread},"
        f" {counted(len(search.accuracies), 'seed')}{failed}"
    )
    echo(f"{search.method}: {accuracy}")
