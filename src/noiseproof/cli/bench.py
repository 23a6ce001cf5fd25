"""`noiseproof bench`: experiments, the papers' tables, comparisons and searches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import app
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    duration,
    examples,
    headline,
    on_machine,
    on_training,
    refusals,
    say,
    show,
    show_json,
)

if TYPE_CHECKING:
    from noiseproof.bench import Experiment

bench_app = typer.Typer(help="Compare methods fairly: many runs, each made once.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
Spec = Annotated[str, typer.Argument(help="A TOML file of [[experiment]] blocks, or a table of `bench table`.")]
ResultsDir = Annotated[str, typer.Option("--results", help="Folder of the results, one file a run.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Cells of a table that go by this name (dataset, method, …); again: and; a comma: or."),
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds of a table's cells, by default as the paper has.")]
Precision = Annotated[str | None, typer.Option(help="32, bf16 or 64: of all runs, in place of what a file says.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Begin those anew that failed.")]


@contextmanager
def interruptions() -> Iterator[None]:
    """Runs that were asked to stop end in one line on stderr and exit code 130."""
    from noiseproof.train import Interrupted

    try:
        yield
    except Interrupted as stopped:
        say(f"{stopped} The same command goes on.")
        raise typer.Exit(130) from None


@bench_app.command(
    "run",
    epilog=examples(
        "bench run sweep.toml",
        "bench run ln-table1 --only mnist --dry-run",
        "bench run sweep.toml --engine processes --workers 8",
        "bench run sweep.toml --engine ray --address auto --gpus 0.25",
        "bench run ln-table1 --only mnist --seeds 2 --precision bf16 --accelerator cuda --data-dir /srv/data",
        "bench run sweep.toml --results mine --threads 2 --retry-failed --json",
    ),
)
@refusals()
@interruptions()
def bench_run(
    spec: Spec,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    precision: Precision = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and for how long, and stop.")] = False,
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Annotated[int | None, on_machine("Processes at once, by default as many as have room.", min=1)] = None,
    threads: Annotated[int, on_machine("Threads of each run; another number may change its last digits.", min=1)] = 1,
    accelerator: Annotated[str, on_machine("auto, cpu or cuda.")] = "auto",
    address: Annotated[str | None, on_machine("Of a Ray cluster, or auto; by default one is started.")] = None,
    gpus: Annotated[float | None, on_machine("What a run has of a GPU under Ray.", min=0)] = None,
) -> None:
    """Run what has no result yet of a file or a table; what was interrupted goes on where it stopped."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # else runs side by side share eight queues
    from noiseproof.bench import run_all
    from noiseproof.bench.engines import check_engine

    check_engine(engine, workers, address, gpus)  # also of a dry run
    experiments = _experiments(spec, only, seeds, data_dir, precision)
    if dry_run:
        return _show_forecast(experiments, results, data_dir, accelerator, threads, retry_failed, as_json)
    found = run_all(
        experiments, results, engine=engine, workers=workers, threads=threads, accelerator=accelerator,
        data_dir=data_dir, retry_failed=retry_failed, address=address, gpus=gpus, progress=_tell, checked=True,
    )  # fmt: skip
    failed = sum(result["status"] == "failed" for result in found.values())
    if as_json:
        show_json(list(found.values()))
    else:
        typer.echo(f"{len(found) - failed} runs done, {failed} failed, in {results}")
    if failed:
        raise typer.Exit(3)


def _show_forecast(
    experiments: Sequence[Experiment],
    results: str,
    data_dir: str | None,
    accelerator: str,
    threads: int,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """What is to do, and how long it will take by a few real steps of each kind of run."""
    from noiseproof.bench import read_results, status
    from noiseproof.bench.forecast import forecast

    ended = ("done",) if retry_failed else ("done", "failed")
    states = status(experiments, results)
    todo = [run for run, state in states.items() if state not in ended]
    expected = forecast(todo, read_results(results), data_dir=data_dir, accelerator=accelerator, threads=threads)
    if as_json:
        return show_json([{"key": run.key, "seconds": expected[run], **run.as_dict()} for run in todo])
    columns, told = _told_apart(todo, "dataset", "noise", "method", hidden=("seed", "noise_seed"))
    kinds: dict[tuple[str, ...], list[float | None]] = {}
    for run, kind in zip(todo, told, strict=True):
        kinds.setdefault(kind, []).append(expected[run])
    rows = [
        (*kind, str(len(seconds)), "diverges" if seconds[0] is None else duration(seconds[0]))
        for kind, seconds in kinds.items()
    ]
    show((*columns, "runs", "a run"), rows)
    total = duration(sum(seconds or 0.0 for seconds in expected.values()))
    have = ", ".join(f"{list(states.values()).count(state)} {state}" for state in ended)
    return typer.echo(f"{len(todo)} runs to do, {have}; about {total} one after another on this machine")


def _told_apart(
    experiments: Iterable[Experiment], *columns: str, hidden: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Names and values of ``columns``, and of whatever else tells experiments apart that agree in these."""
    flat = [own.pop("settings") | own for own in (experiment.as_dict() for experiment in experiments)]
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in flat:
        alike.setdefault(tuple(one[name] for name in columns), []).append(one)
    differ = {name for each in alike.values() for name in each[0] if len({repr(one[name]) for one in each}) > 1}
    names = [*columns, *sorted(differ.difference(columns, hidden))]
    return names, [tuple(str(one[name]) for name in names) for one in flat]


def _tell(experiment: Experiment, result: Mapping[str, Any], done: int, total: int) -> None:
    what = f"{experiment.dataset}, {experiment.noise}, {experiment.method}, seed {experiment.seed}"
    found = result["error"] or f"{headline(result['last'])}, {duration(result['seconds'])}"
    typer.echo(f"{done}/{total} {result['key']} {what}: {found}", err=True)


@bench_app.command(
    "status",
    epilog=examples(
        "bench status sweep.toml",
        "bench status sweep.toml --json",
        "bench status ln-table1 --only mnist --seeds 2 --precision bf16 --results mine --data-dir /srv/data",
    ),
)
@refusals()
def bench_status(
    spec: Spec,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    precision: Precision = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say which experiments of a file or a table are done, failed, running, interrupted, or still to do."""
    from collections import Counter

    from noiseproof.bench import status
    from noiseproof.bench.results import holder

    found = status(_experiments(spec, only, seeds, data_dir, precision), results)
    running = {e: holder(Path(results), e.key) or {} for e, state in found.items() if state == "running"}
    if as_json:
        return show_json([
            {"key": e.key, "status": state, "holder": running.get(e), **e.as_dict()} for e, state in found.items()
        ])  # fmt: skip
    by = {e: f"running, process {one['pid']} on {one['host']}" for e, one in running.items() if one}
    columns, told = _told_apart(found, "dataset", "noise", "method", "seed")
    rows = [(e.key, by.get(e, state), *what) for (e, state), what in zip(found.items(), told, strict=True)]
    show(("key", "status", *columns), rows)
    return typer.echo(", ".join(f"{count} {state}" for state, count in Counter(found.values()).items()))


def _experiments(
    spec: str, only: Sequence[str] | None, seeds: int | None, data_dir: str | None, precision: str | None
) -> list[Experiment]:
    """The experiments of a file, or those that a table of the papers needs."""
    import difflib

    from noiseproof.bench import check, load_experiments
    from noiseproof.bench.tables import list_tables, load_table

    if spec not in list_tables():
        if only or seeds:
            raise ValueError(f"Expected a table of `noiseproof bench table` for --only and --seeds, got {spec!r}.")
        if (near := difflib.get_close_matches(spec, list_tables(), n=3)) and not Path(spec).exists():
            raise ValueError(f"Expected a file or a table, found no {spec!r}. Did you mean {' or '.join(near)}?")
        experiments = load_experiments(spec, data_dir=data_dir)
    else:
        table = load_table(spec).only(*only or ())
        experiments = table.experiments(range(seeds) if seeds else None)
        if not experiments:
            why = ", ".join(dict.fromkeys(cell.unavailable for cell in table.cells))
            raise ValueError(f"Expected cells of {spec} that can run, got {len(table.cells)} that cannot: {why}.")
        check(experiments, data_dir)
    if precision:  # runs that differed in nothing else are one now
        experiments = list(dict.fromkeys(dataclasses.replace(e, precision=precision) for e in experiments))
    return experiments


@bench_app.command(
    "table",
    epilog=examples(
        "bench table",
        "bench table ln-table1 --only mnist",
        "bench table sln-table1 --only SLN,SLN-MO --only symmetric --format markdown",
        "bench table ln-table1 --results mine --seeds 2 --precision bf16 --json",
    ),
)
@refusals()
def bench_table(
    id: Annotated[str | None, typer.Argument(help="A table of the papers; without one they are listed.")] = None,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    precision: Precision = None,
    format: Annotated[str, typer.Option(help="text, markdown, latex or html.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Show a table of the papers, ours beside what they published; `bench run ID` makes the runs.

    z is the difference of the means in standard errors; what the paper has in bold is between asterisks.
    """
    from noiseproof.bench import read_results
    from noiseproof.bench.tables import FORMATS, compare_cells, heading, lines, list_tables, load_table, notes, render

    if id is None:
        tables = [load_table(name) for name in list_tables()]
        listed = [(t.id, t.paper, t.number, t.title, str(len(t.cells)), str(len(t.experiments()))) for t in tables]
        head = ("id", "paper", "table", "what it shows", "cells", "runs")
        return show_json([dict(zip(head, row, strict=True)) for row in listed]) if as_json else show(head, listed)
    if format not in ("text", *FORMATS):
        raise ValueError(f"Expected a --format of text, {', '.join(FORMATS)}, got {format!r}.")
    table = load_table(id).only(*only or ())
    if not Path(results).is_dir():
        say(f"There is no folder {results} of results: what the paper published stands alone.")
    compared = compare_cells(table, read_results(results), range(seeds) if seeds else None, precision or "32")
    if as_json:
        return show_json([one.as_dict() for one in compared])
    if format != "text":
        return typer.echo(render(table, compared, format), nl=False)
    columns, rows = lines(compared, bold="*{}*".format)
    typer.echo(heading(table))
    show(columns, rows)
    return typer.echo("\n".join(notes(table, compared)))


@bench_app.command(
    "compare",
    epilog=examples(
        "bench compare --data my.csv --label kind",
        "bench compare --data my.csv --label kind --test checked.csv --methods ce,gce:q=0.5,sln-mo --seeds 10",
        "bench compare --data mails.csv --text body --label kind --epochs 20",
        "bench compare --data digits --noise symmetric:rate=0.4 --retry-failed --json",
        "bench compare --data my.csv --label kind --missing impute --model mlp:hidden=[64] --results mine",
        "bench compare --data mnist --data-dir /srv/data --engine processes --workers 4 --accelerator cpu",
    ),
)
@refusals()
@interruptions()
def bench_compare(
    data: Annotated[str, typer.Option(help="A .csv, .tsv or .parquet file; without --label a dataset by name.")],
    label: Annotated[str | None, typer.Option(help="The column of the labels.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of texts, where the input is one.")] = None,
    test: Annotated[str | None, typer.Option(help="A file to test on, else a fifth of the rows is held out.")] = None,
    missing: Annotated[str | None, typer.Option(help="refuse (else) or impute missing values of a table.")] = None,
    noise: Annotated[str, typer.Option(help="Noise to put on the training labels, which may have their own.")] = "none",
    methods: Annotated[str | None, typer.Option(help="Methods between commas, by default seven of all kinds.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    results: ResultsDir = "results",
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    model: Annotated[str, on_training("A backbone of `noiseproof models`.")] = "auto",
    epochs: Annotated[int, on_training("Passes over the data.", min=1)] = 100,
    workers: Annotated[int | None, on_machine("Processes at once, by default as many as have room.", min=1)] = None,
    accelerator: Annotated[str, on_machine("auto, cpu or cuda.")] = "auto",
) -> None:
    """Rank methods on your own data: accuracy after the last epoch, what chance makes of it, time and memory.

    A tenth of the training rows is held out as noisy validation set, as in the papers. Run again, it goes on.
    """
    from noiseproof.bench.compare import METHODS, compare, own_table
    from noiseproof.core.grammar import split_specs
    from noiseproof.train import Settings

    notes: list[str] = []
    dataset = data
    if text is not None and missing is not None:
        raise ValueError("Expected no --missing beside --text, since it is about columns of a table. Leave it out.")
    if label is not None:
        options: dict[str, Any] = {"text": text} if text is not None else {"missing": missing or "refuse"}
        dataset, notes = own_table(data, label, results, test=test, **options)
    elif test or text or missing or data.endswith((".csv", ".tsv", ".gz", ".parquet", ".pq")):
        raise ValueError("Expected --label, the column of labels, beside a file, --test, --text or --missing.")
    found = compare(
        dataset, split_specs(methods) if methods else METHODS, results_dir=results, noise=noise, seeds=seeds,
        settings=Settings(model=model, epochs=epochs), data_dir=data_dir, accelerator=accelerator, engine=engine,
        workers=workers, retry_failed=retry_failed,
        progress=lambda run, *rest: _tell(dataclasses.replace(run, dataset=data), *rest),
    )  # fmt: skip
    notes += found.notes
    if as_json:
        places = [dataclasses.asdict(place) for place in found.places]
        return show_json({"ranking": places, "notes": notes, "recommendation": found.recommendation})
    rows = [
        (
            place.method,
            "failed" if place.mean is None else f"{place.mean:.4f}",
            "" if place.margin is None else f"± {place.margin:.4f}",
            "" if place.p is None else "< 0.001" if place.p < 0.001 else f"{place.p:.3f}",
            f"{place.seeds}/{place.seeds + place.failed}",
            "" if place.seconds is None else f"{place.seconds:.1f}",
            "" if place.memory is None else f"{place.memory / 1e6:.1f}",
        )
        for place in found.places
    ]
    show(("method", "accuracy", "95 %", "p against the first", "seeds", "s a run", "MB"), rows)
    return typer.echo("\n".join([*notes, found.recommendation]))


@bench_app.command(
    "search",
    epilog=examples(
        "bench search 'gce:q=[0.1,0.3,0.5]' --noise symmetric:rate=0.4",
        "bench search 'ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1]' --dataset mnist --protocol ln",
        "bench search ln-table1 --only mnist --only 'symmetric 40 %' --precision bf16",
        "bench search ln --noise symmetric:rate=0.4",
        "bench search 'sln:sigma=[0.1,0.2,0.5,1]' --dataset cifar10 --protocol sln --full",
        "bench search 'ln:tau=0.1..1,lam=log 0.1..10' --noise symmetric:rate=0.4 --trials 30",
        "bench search 'gce:q=[0.3,0.7]' --model mlp:hidden=[64] --epochs 20 --validation 0.2 --seeds 5 --json",
        "bench search 'gce:q=[0.3,0.7]' --dataset mnist --data-dir /srv/data --results mine --accelerator cpu",
        "bench search 'gce:q=[0.3,0.7]' --engine processes --workers 4 --retry-failed",
    ),
)
@refusals()
@interruptions()
def bench_search(
    grids: Annotated[
        list[str],
        typer.Argument(
            metavar="GRID",
            help="Methods with lists of values, or with --trials ranges, to search; ln or sln: all of that paper; "
            "a table of the papers: those of its cells, on their own data.",
        ),
    ],
    only: Only = None,
    dataset: Annotated[str | None, typer.Option(help="Of `noiseproof data list`, or your own, else digits.")] = None,
    noise: Annotated[str | None, typer.Option(help="Noise to put on the training labels, else none.")] = None,
    validation: Annotated[float, typer.Option(min=0, help="Share of the noisy rows to choose by.")] = 0.1,
    full: Annotated[
        bool, typer.Option("--full", help="Train what was chosen on all rows, as the SLN paper does.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what was chosen; the search has the first seed.")] = 5,
    trials: Annotated[int | None, typer.Option(min=1, help="Points that Optuna chooses, in place of all.")] = None,
    results: ResultsDir = "results",
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    protocol: Annotated[
        str | None, on_training("As this paper trains on this dataset: ln, sln, bias, nal, curriculum.")
    ] = None,
    model: Annotated[str | None, on_training("A backbone of `noiseproof models`.")] = None,
    epochs: Annotated[int | None, on_training("Passes over the data.", min=1)] = None,
    precision: Annotated[str, on_training("32, bf16 or 64.")] = "32",
    workers: Annotated[int | None, on_machine("Processes at once, by default as many as have room.", min=1)] = None,
    accelerator: Annotated[str, on_machine("auto, cpu or cuda.")] = "auto",
) -> None:
    """Choose a method's parameters by its accuracy on noisy rows held out, with one seed; then train with all seeds."""
    from noiseproof.bench import Experiment
    from noiseproof.bench.search import search_all, table_grids
    from noiseproof.bench.tables import list_tables, load_table
    from noiseproof.papers import PAPERS, get_paper
    from noiseproof.train import Settings
    from noiseproof.train.protocols import protocol as protocol_of

    said = {name: value for name, value in {"model": model, "epochs": epochs}.items() if value is not None}
    tables = list_tables()
    given = [f"--{k}" for k, v in {"dataset": dataset, "noise": noise, "protocol": protocol}.items() if v is not None]
    if given and set(grids) <= set(tables):
        raise ValueError(f"Expected no {' or '.join(given)}, since a table's cells have their own. Leave it out.")
    dataset, noise = dataset or "digits", noise or "none"
    settings = protocol_of(protocol, dataset.partition(":")[0]) if protocol else Settings()
    settings = dataclasses.replace(settings, **said)  # type: ignore[arg-type]
    shared: dict[str, Any] = {"settings": settings, "validation": validation, "paper": protocol, "precision": precision}
    if only and not set(grids) & set(tables):
        raise ValueError(f"Expected a table of `noiseproof bench table` for --only, got {', '.join(grids)}.")
    runs: list[Experiment] = []
    for grid in grids:
        if grid not in tables:
            methods = (get_paper(grid).grids(dataset) if grid in PAPERS else {}) or {grid: grid}
            runs += [Experiment(dataset, noise, method, **shared) for method in methods.values()]
        elif cells := table_grids(load_table(grid).only(*only or ())):
            for cell in cells:
                own = dataclasses.replace(cell.settings, **said)  # type: ignore[arg-type]
                held_out = cell.validation or validation
                runs.append(dataclasses.replace(cell, settings=own, validation=held_out, precision=precision))
        else:
            raise ValueError(f"Expected cells of {grid} whose parameters the paper searched, got none.")
    searches = search_all(
        runs, results,
        seeds=seeds, full=full, trials=trials, engine=engine, workers=workers, accelerator=accelerator,
        data_dir=data_dir, retry_failed=retry_failed, progress=_tell,
    )  # fmt: skip
    if as_json:
        show_json([{**dataclasses.asdict(found), "mean": found.mean, "std": found.std} for found in searches])
        return
    several = len({run.without_method for run in runs}) > 1
    for run, found in zip(runs, searches, strict=True):
        if several:
            typer.echo(f"{run.dataset}, {run.noise}:")
        points = sorted(found.validation.items(), key=lambda point: -(point[1] or 0))
        rows = [(m, f"failed: {found.errors[m]}" if a is None else f"{a:.4f}") for m, a in points]
        show(("method", "noisy validation"), rows + [(method, "given up") for method in found.pruned])
        spread = "" if found.std is None else f" ± {found.std:.4f} (standard deviation)"
        why = next((result["error"] for result in found.results if result["error"]), "")
        failed = f", {found.failed} runs failed ({why})" * (found.failed > 0)
        typer.echo(
            f"{found.method}: {found.measured_on} {found.mean:.4f}{spread}, {len(found.accuracies)} seeds{failed}"
        )
