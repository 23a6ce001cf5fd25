"""`noiseproof bench`: experiments, the papers' tables, comparisons and searches."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
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
    Noise,
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
    option,
)
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    duration,
    echo,
    examples,
    headline,
    plain,
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
    from noiseproof.bench.search import SearchResult
    from noiseproof.bench.sheets import Sheet
    from noiseproof.bench.tables import PaperTable

bench_app = typer.Typer(
    help="Compare methods fairly: many runs, each made once.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench", rich_help_panel=TRAINING)
RESUMES = " The same command resumes."
# what JSON has of a search
SEARCHED = (
    "method",
    "validation",
    "errors",
    "pruned",
    "measured_on",
    "mean",
    "std",
    "accuracies",
    "failed",
    "results",
)
Left = Annotated[bool, option("Leave out runs whose results come with noiseproof.", "--left")]


@bench_app.command(
    "run",
    epilog=examples(
        "bench run sweep.toml",
        "bench run ln-table1 --only mnist --dry-run",
        "bench run ln-table1 --only mnist --seeds 2 --precision bf16 --left --at-once 16",
        "bench run sweep.toml --engine processes --workers 8",
        "bench run sweep.toml --engine ray --address auto",
    ),
)
@refusals()
@training_exits(then=RESUMES)
def bench_run(
    spec: Annotated[
        str,
        typer.Argument(
            help="A TOML file of [[experiment]] blocks, or a table of `bench table`.",
            autocompletion=names("tables"),
        ),
    ],
    results: ResultsDir = "results",
    only: Only = None,
    seeds: TableSeeds = None,
    precision: AllPrecision = None,
    epochs: AllEpochs = None,
    left: Left = False,
    dry_run: Annotated[bool, option("Show what would run and for how long.", "--dry-run")] = False,
    engine: Engine = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Workers = None,
    accelerator: Accelerator = "auto",
    at_once: Annotated[
        int | None,
        on_machine(
            "Runs at the same time in each process; by default one, or what a GPU holds (local).",
            min=1,
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
    # by default concurrent runs share eight queues
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    from noiseproof.bench import run_all
    from noiseproof.bench.engines import check_engine

    check_engine(engine, workers, address, gpus, at_once)  # in a dry run, too
    experiments = _experiments(
        spec, only, seeds, precision, epochs, left, data_dir, check_runs=True
    )
    if dry_run:
        return _show_plan(experiments, results, data_dir, accelerator, retry_failed, as_json)
    made = run_all(
        experiments,
        results,
        engine=engine,
        workers=workers,
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
    retry_failed: bool,
    as_json: bool,
) -> None:
    """List the runs to do, with an estimate from a few real steps of each kind of run."""
    from noiseproof.bench import status
    from noiseproof.bench.duration import expected_seconds
    from noiseproof.bench.sheets import HIDDEN, Sheet, distinguish

    ended = ("done",) if retry_failed else ("done", "failed")
    states = status(experiments, results)
    todo = [run for run, state in states.items() if state not in ended]
    expected = expected_seconds(
        todo,
        data_dir=data_dir,
        accelerator=accelerator,
        progress=_announce,
    )
    records = [{"key": run.key, "seconds": expected[run], **run.as_dict()} for run in todo]
    columns, values = distinguish(todo, "dataset", "noise", "method", hidden=HIDDEN)
    seconds_of = {kind: expected[run] for run, kind in zip(todo, values, strict=True)}
    rows = []
    for kind, count in Counter(values).items():
        seconds = seconds_of[kind]
        each = "diverges" if seconds is None else duration(seconds)
        rows.append((*kind, str(count), each))
    total = duration(sum(seconds or 0.0 for seconds in expected.values()))
    counts = Counter(states.values())
    ended_counts = ", ".join(f"{counts[state]} {state}" for state in ended)
    note = (
        f"{counted(len(todo), 'run')} to do, {ended_counts}; about {total} one after another on"
        " this machine"
    )
    sheet = Sheet("", (*columns, "runs", "a run"), rows, records, [note])
    return _print([sheet], "json" if as_json else "text")


def _say_damaged(error: ValueError) -> None:
    say(f"Left out: {error}")


def _announce(run: Experiment, number: int, total: int) -> None:
    echo(f"timing {number}/{total}: {run.dataset}, {run.settings.model}, {run.method}", err=True)


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
        "bench status sweep.toml --json",
        "bench status ln-table1 --only mnist --seeds 2 --precision bf16 --results mine",
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
    from noiseproof.bench import status
    from noiseproof.bench.results import holder
    from noiseproof.bench.sheets import HIDDEN, Sheet, counts_sheet, distinguish

    form = "json" if as_json else "text"
    if spec is None:
        _refuse_without_table(
            only=only, seeds=seeds, precision=precision, epochs=epochs, left=left, data_dir=data_dir
        )
        return _print([counts_sheet(results)], form)
    experiments = _experiments(spec, only, seeds, precision, epochs, left, data_dir)
    states = status(experiments, results)
    columns, values = distinguish(states, "dataset", "noise", "method", "seed", hidden=HIDDEN[2:])
    rows = []
    records = []
    for (run, state), rest in zip(states.items(), values, strict=True):
        process = holder(Path(results), run.key) if state == "running" else None
        where = ""
        if process:
            where = f", process {process['pid']} on {process['host']}"
        rows.append((run.key, state + where, *rest))
        records.append({"key": run.key, "status": state, "holder": process, **run.as_dict()})
    note = ", ".join(f"{n} {state}" for state, n in Counter(states.values()).items())
    return _print([Sheet("", ("key", "status", *columns), rows, records, [note])], form)


def _experiments(
    spec: str,
    only: Sequence[str] | None,
    seeds: int | None,
    precision: str | None,
    epochs: int | None,
    left: bool = False,
    data_dir: str | None = None,
    *,
    check_runs: bool = False,
) -> list[Experiment]:
    """Return the runs of a file or of a table; ``left`` leaves out those with a rerun.

    With ``check_runs`` all of them can start; runs of a table without data are left out.
    """
    from noiseproof.bench import check, load_experiments
    from noiseproof.bench.experiment import with_data
    from noiseproof.bench.reruns import runs_left, without_reruns
    from noiseproof.bench.tables import list_tables

    is_table = spec in list_tables()
    if is_table:
        table = _table_to_run(spec, only, epochs)
        chosen = range(seeds) if seeds else None
        experiments = runs_left(table, chosen, precision) if left else table.experiments(chosen)
    else:
        _check_file(spec, only, seeds, epochs)
        experiments = load_experiments(spec, data_dir=data_dir, check_runs=check_runs and not left)
    if precision:  # runs that differed only in this become one
        changed = (dataclasses.replace(run, precision=precision) for run in experiments)
        experiments = list(dict.fromkeys(changed))
    if left and not is_table:
        experiments = without_reruns(experiments)
    if left and not experiments:
        say("Nothing is left to run: the results of all these runs come with noiseproof.")
    elif check_runs and (is_table or left):
        experiments, without_data = with_data(experiments, data_dir)
        for dataset, message in without_data.items():
            say(f"Left out: the runs on {dataset}. {message}")
        check(experiments, data_dir)
    return experiments


def _table_to_run(id: str, only: Sequence[str] | None, epochs: int | None) -> PaperTable:
    """Return a table of which some cells can run."""
    from noiseproof.bench.tables import load_table

    table = load_table(id).only(*only or ()).with_epochs(epochs)
    if not table.parts:
        reasons = ", ".join(dict.fromkeys(cell.unavailable for cell in table.cells))
        raise ValueError(
            f"Expected cells of {table.id} that can run, got {len(table.cells)} that cannot:"
            f" {reasons}."
        )
    return table


def _check_file(
    spec: str, only: Sequence[str] | None, seeds: int | None, epochs: int | None
) -> None:
    """Refuse what is neither a table nor a file, and options of tables with a file."""
    import difflib

    from noiseproof.bench.tables import list_tables

    remedies = {
        "--only": only and "Leave it out.",
        "--seeds": seeds and f"Write `seed = {list(range(seeds))}` in the file.",
        "--epochs": epochs and f"Write `epochs = {epochs}` in the file.",
    }
    for name, remedy in remedies.items():
        if remedy:
            raise ValueError(
                f"Expected a table of `noiseproof bench table` for {name}, got {spec!r}. {remedy}"
            )
    path = Path(spec)
    if path.is_file():
        return
    near = difflib.get_close_matches(spec, list_tables(), n=3)
    remedy = f" Did you mean {' or '.join(near)}?" if near else near_file(path)
    raise ValueError(
        "Expected a file or a table of `noiseproof bench table`, got"
        f" {spec!r}, which is neither.{remedy}"
    )


@bench_app.command(
    "table",
    epilog=examples(
        "bench table",
        "bench table ln-table1 --only mnist",
        "bench table sln-table1 --only SLN,SLN-MO --only symmetric --format markdown",
        "bench table --worst 20 --format csv",
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
        option(
            "text, csv (with all digits), markdown or latex.",
            complete="text csv markdown latex",
        ),
    ] = "text",
    worst: Annotated[
        int | None,
        option("Of all tables, this number of reruns that differ most, by |z|.", min=1),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a table of the papers with our reruns and your results, or the ranking of a sweep of
    your own.

    z is the difference of the means in standard errors; asterisks mark what is bold in the paper.
    Without a table: how many cells of each were published, can run and were rerun, with all seeds
    of the paper, and how many agree.
    """
    from noiseproof.bench import read_results
    from noiseproof.bench.reruns import rerun_cells
    from noiseproof.bench.sheets import (
        DOCUMENTS,
        counts_sheet,
        paper_sheet,
        sweep_sheets,
        worst_sheet,
    )
    from noiseproof.bench.tables import compare_cells, list_tables, load_table

    if format not in ("text", "csv", *DOCUMENTS):
        known = ", ".join(("text", "csv", *DOCUMENTS))
        raise ValueError(f"Expected a --format of {known}, got {format!r}.")
    form = "json" if as_json else format
    if id is None:
        _refuse_without_table(only=only, seeds=seeds, precision=precision, epochs=epochs)
        return _print([worst_sheet(worst) if worst else counts_sheet(results)], form)
    if worst:
        raise ValueError(f"Expected no table with --worst, which is about all of them, got {id!r}.")
    is_sweep = id not in list_tables() and id.endswith(".toml")
    if is_sweep:
        sweep = _experiments(id, only, seeds, precision, epochs)
    else:
        table = load_table(id).only(*only or ())
    if not any(Path(results).glob("*.json")):
        say(f"There are no results of yours in {results}/. `noiseproof bench run` makes them.")
    known_results = read_results(results, _say_damaged)
    if is_sweep:
        return _print(sweep_sheets(sweep, known_results), form)
    chosen = range(seeds) if seeds else None
    yours = compare_cells(table.with_epochs(epochs), known_results, chosen, precision)
    # of what was published, whatever the epochs of yours
    return _print([paper_sheet(table, yours, rerun_cells(table, precision))], form)


def _refuse_without_table(**options: object) -> None:
    """Refuse ``options`` that choose among the cells of a table, where no table was named."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise ValueError(
            f"Expected a table with {' and '.join(given)}, got none. `noiseproof bench table`"
            " lists them."
        )


def _print(sheets: Sequence[Sheet], form: str) -> None:
    """Print tables as text, as json or csv for programs, or in a format of documents."""
    from noiseproof.bench.sheets import flat

    records = [record for sheet in sheets for record in sheet.records]
    if form == "json":
        return show_json(records)
    if form == "csv":
        return show_csv([flat(record) for record in records])
    for number, sheet in enumerate(sheets):
        if number:
            echo()
        if form != "text":
            echo(sheet.document(form), nl=False)
            continue
        if sheet.title:
            echo(sheet.title)
        show(sheet.columns, sheet.rows)
        for note in sheet.notes:
            echo(note)
    return None


@bench_app.command(
    "compare",
    epilog=examples(
        "bench compare --data my.csv --label kind",
        "bench compare --data my.csv --label kind --test checked.csv --methods ce,gce:q=0.5,sln-mo"
        " --seeds 10",
        "bench compare --data mails.csv --text body --label kind --epochs 20",
        "bench compare --data digits --noise symmetric:rate=0.4 --engine processes --workers 4",
    ),
)
@refusals(  # parameters of the dataset that a file becomes, by the options they come from
    {name: f"--{name}" for name in ("label", "test", "text", "missing")}
    | {"missing='impute'": "--missing impute", "split_table": "--label COLUMN"}
)
@training_exits(then=RESUMES)
def bench_compare(
    data: Annotated[
        str, option("A .csv, .tsv or .parquet file; without --label a dataset by name.")
    ],
    label: Annotated[str | None, option("The column of the labels.", complete=columns())] = None,
    text: Annotated[
        str | None, option("The column of texts, if the input is text.", complete=columns())
    ] = None,
    test: Annotated[str | None, option("A file to test on; default: a fifth of the rows.")] = None,
    missing: Annotated[
        str | None, option("refuse (default) or impute missing values of a table.")
    ] = None,
    noise: Noise = "none",
    methods: Annotated[
        str | None,
        option(
            "Methods, separated by commas; default: seven kinds.",
            complete=names("methods", several=True),
        ),
    ] = None,
    seeds: Annotated[int, option("Runs of each method.", min=1)] = 5,
    results: ResultsDir = "results",
    engine: Engine = "local",
    retry_failed: RetryFailed = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    model: Annotated[str, on_training("A backbone of `noiseproof models`.")] = "auto",
    epochs: Annotated[int, on_training("Passes over the data.", min=1)] = 100,
    workers: Workers = None,
) -> None:
    """Rank methods on your own data: accuracy after the last epoch with confidence intervals, time
    and memory.

    A tenth of the training rows is held out as noisy validation set, as in the papers. The same
    command resumes.
    """
    from noiseproof.bench.compare import DEFAULT_METHODS, compare_methods, split_table
    from noiseproof.bench.sheets import ranking_sheet
    from noiseproof.core.grammar import split_specs
    from noiseproof.train import Settings

    dataset = data
    notes: list[str] = []
    if label is not None:
        given = {"text": text, "missing": missing}
        options: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        dataset, notes = split_table(data, label, results, test=test, **options)
    elif test or text or missing or data.endswith((".csv", ".tsv", ".gz", ".parquet", ".pq")):
        raise ValueError(
            "Expected --label, the column of labels, with a file, --test, --text or --missing."
        )
    group = compare_methods(
        dataset,
        split_specs(methods) if methods else DEFAULT_METHODS,
        results_dir=results,
        noise=noise,
        seeds=seeds,
        settings=Settings(model=model, epochs=epochs),
        data_dir=data_dir,
        engine=engine,
        workers=workers,
        retry_failed=retry_failed,
        # by the name of the file, which is shorter than the spec of its dataset
        progress=lambda run, *rest: _show_progress(dataclasses.replace(run, dataset=data), *rest),
    )
    sheet = ranking_sheet(group, "", ["method"], [(place.method,) for place in group.places])
    notes += sheet.notes
    if as_json:
        return show_json(
            {"ranking": sheet.records, "notes": notes, "recommendation": group.recommendation}
        )
    return _print([dataclasses.replace(sheet, notes=notes)], "text")


@bench_app.command(
    "search",
    epilog=examples(
        "bench search 'gce:q=[0.1,0.3,0.5]' --noise symmetric:rate=0.4",
        "bench search 'ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1]' --dataset mnist --protocol ln",
        "bench search ln-table1 --only mnist --only 'symmetric 40 %' --precision bf16",
        "bench search 'sln:sigma=[0.1,0.2,0.5,1]' --dataset cifar10 --protocol sln --full",
        "bench search 'ln:tau=0.1..1,lam=log 0.1..10' --noise symmetric:rate=0.4 --trials 30",
    ),
)
@refusals()
@training_exits(then=RESUMES)
def bench_search(
    grids: Annotated[
        list[str],
        typer.Argument(
            metavar="GRID",
            help="Methods with lists of values, or with --trials ranges; ln or sln: all grids of"
            " that paper; a table of the papers: the grids of its cells, on their data.",
        ),
    ],
    only: Only = None,
    dataset: Annotated[
        str | None,
        option("Of `noiseproof data list`; default: digits.", complete=names("datasets")),
    ] = None,
    noise: Annotated[
        str | None,
        option("Noise to add to the training labels; default: none.", complete=names("noises")),
    ] = None,
    validation: Annotated[
        float, option("Share of the noisy rows to hold out and choose by.", min=0)
    ] = 0.1,
    full: Annotated[
        bool, option("Train the chosen point on all rows, as the SLN paper does.", "--full")
    ] = False,
    seeds: Annotated[
        int, option("Runs of the chosen point; the search uses the first seed.", min=1)
    ] = 5,
    trials: Annotated[int | None, option("Number of points, chosen by Optuna.", min=1)] = None,
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
) -> None:
    """Choose a method's parameters by the accuracy on held-out noisy rows with one seed; then train
    with all seeds.
    """
    from noiseproof.bench.search import make_grids, search_all

    given: dict[str, Any] = {"model": model, "epochs": epochs}
    runs = make_grids(
        grids,
        only=only or (),
        dataset=dataset,
        noise=noise,
        paper=protocol,
        validation=validation,
        precision=precision,
        **{name: value for name, value in given.items() if value is not None},
    )
    searches = search_all(
        runs,
        results,
        seeds=seeds,
        full=full,
        trials=trials,
        engine=engine,
        workers=workers,
        data_dir=data_dir,
        retry_failed=retry_failed,
        progress=_show_progress,
    )
    if as_json:
        return show_json([{name: getattr(one, name) for name in SEARCHED} for one in searches])
    several = len({run.without_method for run in runs}) > 1
    for run, one in zip(runs, searches, strict=True):
        if several:
            echo(f"{run.dataset}, {run.noise}:")
        _show_search(one)
    return None


def _show_search(search: SearchResult) -> None:
    rows = []
    for method, accuracy in sorted(search.validation.items(), key=lambda point: -(point[1] or 0)):
        rows.append((method, plain(accuracy, ".4f") or f"failed: {search.errors[method]}"))
    rows += [(method, "stopped early") for method in search.pruned]
    show(("method", "noisy validation"), rows)
    text = f"{search.method}: {search.measured_on} {search.mean:.4f}"
    if search.std is not None:
        text += f" ± {search.std:.4f} (standard deviation)"
    text += f", {counted(len(search.accuracies), 'seed')}"
    if search.failed:
        error = next((result["error"] for result in search.results if result["error"]), "")
        text += f", {counted(search.failed, 'run')} failed ({error})"
    echo(text)
