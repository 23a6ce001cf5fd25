"""`noiseproof analyze`: what a loss does before, during and after training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import names, option
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    echo,
    examples,
    plain,
    refusals,
    say,
    show,
    show_json,
    stage_progress,
    words,
)
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.analysis.before.forecast import Forecast
    from noiseproof.analysis.before.robustness import Robustness
    from noiseproof.analysis.before.untrained import Probe
    from noiseproof.analysis.figures import MissingFigure
    from noiseproof.train import Settings, Task

analyze_app = typer.Typer(
    help="See what a loss does before, during and after training.", no_args_is_help=True
)
app.add_typer(analyze_app, name="analyze", rich_help_panel=TRAINING)
SEED = 0  # of weights and batches
PROBE_STEPS = 200

Classes = Annotated[int | None, option("Number of classes, by default that of --data.", min=2)]
Data = Annotated[
    str | None,
    option("Dataset: one of `noiseproof data list`, or your own.", complete=names("datasets")),
]
Model = Annotated[
    str | None,
    option("Backbone whose margins on --data, untrained, are used.", complete=names("models")),
]
RunFolders = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, as `noiseproof train --out` writes them.", metavar="RUN…"
    ),
]


@analyze_app.command(
    "loss",
    epilog=examples(
        "analyze loss --losses mae,gce:q=0.7,ce --classes 100 --out losses.html",
        "analyze loss --losses 'nce + mae,agce:a=0.6,q=0.6' --data cifar100 --model resnet34 --out"
        " losses.pdf",
        "analyze loss --losses mae,ce --classes 10 --noise pairflip:rate=0.4 --json",
        "analyze loss --losses agce:a=0.6,q=0.6 --classes 1000 --over a,q --out agce.html",
    ),
)
@refusals()
def analyze_loss(
    losses: Annotated[
        str,
        option(
            "Losses separated by commas: mae,gce:q=0.7,10*nce + mae.",
            complete=names("losses", several=True),
        ),
    ],
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    noise: Annotated[
        str,
        option(
            "Noise model whose transition matrix the asymmetric condition is tested for.",
            complete=names("noises"),
        ),
    ] = "none",
    out: Annotated[str | None, option("File to draw to: .html, .png, .pdf or .csv.")] = None,
    over: Annotated[
        str | None,
        option("Two parameters (a,q) of a single loss: draw its average error over them."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw what losses do before training, and test which robustness condition each one meets.

    Weights over the margins of an untrained network, the average error of the labelled logit, and
    the logit bias; with --data, for your own model and labels.
    """
    from noiseproof.analysis.before.losses import Start, loss_figures
    from noiseproof.analysis.before.robustness import check_of_logits, robustness_of
    from noiseproof.analysis.before.untrained import initial_logits
    from noiseproof.analysis.page.files import save
    from noiseproof.core.files import check_place
    from noiseproof.core.grammar import split_specs
    from noiseproof.losses import get_loss
    from noiseproof.noise import get_noise

    specs = split_specs(losses)
    if out is not None:
        check_place(out, folder=False)
    elif over is not None:
        raise ValueError("Expected --out, a file for the map of --over, got none.")
    task, settings, K = _prepare(data, model, classes, data_dir)
    logits = labels = None
    if task is not None:
        logits, labels = initial_logits(task, "ce", settings, seed=SEED)
    transition = None if noise == "none" else get_noise(noise).transition(K)
    tested, others = robustness_of({spec: get_loss(spec) for spec in specs}, K, transition)
    if not tested and out is None:  # there is nothing to show
        check_of_logits(get_loss(specs[0]), K)
    for spec, why in others.items():
        say(
            f"not in the table, whose conditions are of one row's {K} logits alone: {spec}, which"
            f" {why}"
        )
    if out is not None:
        figures = loss_figures(Start(specs, K, logits, labels), over=words(over))
        for path in save(figures, out, title=f"Before training, {K} classes"):
            say(f"wrote {path}")
    if as_json:
        return show_json({spec: dataclasses.asdict(result) for spec, result in tested.items()})
    return _show_robustness(tested, None if transition is None else noise)


def _show_robustness(tested: Mapping[str, Robustness], noise: str | None) -> None:
    yes = {None: "", True: "yes", False: "no"}
    columns = ["loss", "symmetric", "Σ_y L", "its spread", "asymmetric up to r̃"]
    if noise is not None:
        columns.append(f"asymmetric for {noise}")
    rows = []
    for spec, result in tested.items():
        sums = (plain(result.total), plain(result.spread, ".2g"))
        ratio = plain(result.largest_ratio, ".4g")
        cells = (spec, yes[result.symmetric], *sums, ratio, yes[result.asymmetric])
        rows.append(cells[: len(columns)])
    if rows:
        show(columns, rows)


@analyze_app.command(
    "fit",
    epilog=examples(
        "analyze fit --loss mae --classes 400",
        "analyze fit --loss '10*nce + 0.1*agce:a=1.8,q=3' --classes 1000 --json",
        "analyze fit --loss gce:q=0.9 --data table:table=mine.csv,label=kind --probe",
        "analyze fit --loss mae --data cifar10 --data-dir /srv/data --model resnet32",
    ),
)
@refusals()
def analyze_fit(
    loss: Annotated[
        str,
        option(
            "Loss, sum of losses or method, whose loss is judged: gce:q=0.7, 10*nce + mae, nal, …",
            complete=names("methods", "losses"),
        ),
    ],
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    probe: Annotated[
        bool, option(f"Also train for {PROBE_STEPS} steps on --data, as well as ce.", "--probe")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Forecast before training whether a loss learns, partly learns or underfits, and which loss to
    use instead.

    This is about clean labels, not about robustness to wrong ones.
    """
    from noiseproof.analysis.before.forecast import forecast
    from noiseproof.analysis.before.untrained import initial_logits
    from noiseproof.analysis.before.untrained import probe as run_probe
    from noiseproof.core.margin import margin
    from noiseproof.train.methods import MethodContext, method_loss

    task, settings, K = _prepare(data, model, classes, data_dir)
    margins = probed = None
    if task is not None:
        judged = method_loss(loss, MethodContext.of(task, settings))
        margins = margin(*initial_logits(task, "ce", settings, seed=SEED))
    else:
        judged = method_loss(loss, MethodContext.of_classes(K))
    result = forecast(judged, K, margins=margins)
    if probe:
        if task is None:
            raise ValueError("Expected --data for --probe, got none.")
        probed = run_probe(task, loss, settings, steps=PROBE_STEPS, seed=SEED)
    if as_json:
        answer = dataclasses.asdict(result)
        if probed is not None:
            answer["probe"] = dataclasses.asdict(probed) | {"pace": probed.pace}
        return show_json(answer)
    return _show_forecast(loss, result, probed)


def _prepare(
    data: str | None, model: str | None, classes: int | None, data_dir: str | None
) -> tuple[Task | None, Settings, int]:
    from noiseproof.data import get_dataset
    from noiseproof.train import Settings, prepare

    settings = Settings(model=model or "auto")
    if data is None:
        if classes is None:
            raise ValueError("Expected --classes or --data, got neither.")
        if model is not None:
            raise ValueError("Expected --data for --model, got none.")
        return None, settings, classes
    task = prepare(get_dataset(data, data_dir), "none", seed=SEED, data_dir=data_dir)
    if classes not in (None, task.train.num_classes):
        raise ValueError(
            f"Expected --classes {task.train.num_classes}, the number of {data}, got {classes}."
        )
    return task, settings, task.train.num_classes


def _show_forecast(line: str, result: Forecast, probe: Probe | None) -> None:
    name = "" if result.loss.startswith(line.partition(":")[0]) else f"{line}: "
    echo(
        f"{name}{result.loss} with {result.num_classes} classes {result.answer}: {result.reason}.\n"
    )
    meanings = {
        "margin": "mean Δ of the labels before training (curriculum paper, Eq. 4)",
        "weight": "mean weight there; of simulated logits −⟨δ_k⟩(0) (bias paper, Eq. 3)",
        "maximum": "largest weight over all margins",
        "start": "weight over maximum",
        "left_behind": "weight of a margin that falls 3 below, over maximum",
        "learnt": "weight at Δ = 0, over maximum",
        "slowness": "time from there to Δ = 0, over cross entropy's",
    }
    rows = [
        (number.replace("_", " "), plain(getattr(result, number)), meaning)
        for number, meaning in meanings.items()
    ]
    show(("number", "value", "meaning"), rows)
    if result.terms:
        echo()
        columns = ("start", "left behind", "share at start", "share left behind", "share learnt")
        terms = []
        for term in result.terms:
            numbers = [plain(value, ".3g") for value in dataclasses.astuple(term)[2:]]
            terms.append((f"{plain(term.factor)}*{term.loss}", *numbers))
        show(("term", *columns), terms)
    if result.instead:
        echo()
        alternatives = [(other.loss, other.answer, other.why) for other in result.instead]
        show(("use instead", "forecast", "because it has"), alternatives)
    elif result.answer != "learns":
        echo("\nNo calibrated loss does better: use another loss, such as gce.")
    if probe is not None:
        echo()
        changes = []
        for quantity in ("margin", "accuracy", "weight", "classes"):
            first, last = getattr(probe, quantity)
            changes.append((quantity, plain(first, ".4g"), plain(last, ".4g")))
        show((f"{probe.steps} steps", "first tenth", "last tenth"), changes)
        echo(f"the margin rose by {probe.gain:.4g}, {probe.pace:.3g} times that of cross entropy")


@analyze_app.command(
    "page",
    epilog=examples(
        "analyze page runs/mine",
        "analyze page runs/ce runs/gce runs/sln --out compare.html",
        "analyze page runs/* --format pdf --only accuracy-curves,margins",
    ),
)
@refusals()
def analyze_page(
    runs: RunFolders,
    out: Annotated[str | None, option("File to write, by default page.html, page.pdf, …")] = None,
    form: Annotated[
        str | None,
        option(
            "html, pdf, png or csv, by default the ending of --out; png and csv are one file per"
            " figure.",
            "--format",
        ),
    ] = None,
    only: Annotated[
        str | None,
        option(
            "Names of figures separated by commas, by default all.",
            complete=names("figures", several=True),
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Draw all figures of runs: one page that needs no network, or figures for a paper.

    The page compares the curves, margins, predictions and features of the runs; figures whose data
    was not recorded say what records it. Loss landscapes need `noiseproof analyze landscape` first.
    """
    from noiseproof.analysis.figures import MissingFigure, collect
    from noiseproof.analysis.page.files import ENDINGS, save
    from noiseproof.analysis.runs import open_runs, page_title, runs_table
    from noiseproof.core.files import check_place

    path = check_place(out or f"page.{form or 'html'}", folder=False)
    if form is not None and f".{form}" not in ENDINGS:
        raise ValueError(f"Expected html, pdf, png or csv as format, got {form!r}.")
    if form is not None and path.suffix.lower() != f".{form}":
        raise ValueError(f"Expected a file that ends in .{form}, as of --format, got {out}.")
    opened = open_runs(runs, data_dir=data_dir)
    with stage_progress() as progress:
        figures = collect(
            opened,
            only=words(only),
            progress=lambda _, done, total: progress("figures", done, total),
        )
    written = save(figures, path, title=page_title(opened), runs=runs_table(opened))
    _note_missing([figure for figure in figures if isinstance(figure, MissingFigure)])
    for file in written:
        echo(file)


def _note_missing(figures: Sequence[MissingFigure]) -> None:
    """Print one line for all figures that lack the same."""
    causes: dict[str, list[str]] = {}
    for one in figures:
        causes.setdefault(one.needs, []).append(one.name)
    for needs, lacking in causes.items():
        verb = "needs" if len(lacking) == 1 else "need"
        say(f"not drawn: {', '.join(lacking)}, {verb} {needs}")


@analyze_app.command(
    "rows",
    epilog=examples("analyze rows runs/nal --out rows.csv", "analyze rows runs/ln --part test"),
)
@refusals()
def analyze_rows(
    run: Annotated[
        str, typer.Argument(help="Folder of a run, as `noiseproof train --out` writes it.")
    ],
    part: Annotated[str, option("train, validation or test.")] = "train",
    out: Annotated[str | None, option("File to write, by default rows.csv in the folder.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write what a trained model says of each row: prediction, margin, NAL's trust and targets,
    LN's variance.
    """
    from pathlib import Path

    from noiseproof.analysis.after.predictions import row_table
    from noiseproof.analysis.runs import open_run
    from noiseproof.core.files import check_place
    from noiseproof.core.tablefiles import safe_table

    path = check_place(out or Path(run, "rows.csv"), folder=False)
    table = row_table(open_run(run, data_dir=data_dir), part)  # type: ignore[arg-type]  # other words are refused
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_table(table).to_csv(path, index=False)
    echo(f"{path}: {counted(len(table), 'row')}, {', '.join(table.columns)}")


@analyze_app.command(
    "landscape",
    epilog=examples(
        "analyze landscape runs/ce runs/sln",
        "analyze landscape runs/ce --points 31 --out landscape.pdf",
        "analyze landscape runs/wrn --rows 10000 --accelerator cuda",
    ),
)
@refusals()
def analyze_landscape(
    runs: RunFolders,
    points: Annotated[
        int, option("Points along each of the two directions, an odd number.", min=3)
    ] = 21,
    rows: Annotated[int, option("Training rows to average the loss over.", min=1)] = 1000,
    out: Annotated[str | None, option("Also draw to this file: .html, .png, .pdf or .csv.")] = None,
    accelerator: Annotated[str, option("auto, cpu, cuda or mps.")] = "auto",
    data_dir: DataDir = None,
) -> None:
    """Compute the loss around trained models, and how sharp their minima are.

    Each landscape is written to its run's folder (landscape.csv, with its seed and rows), where
    `noiseproof analyze page` finds it; a page compares landscapes of one seed only.
    """
    from noiseproof.analysis.after.landscape import (
        check_spacing,
        keep_landscape,
        landscape_figures,
        run_landscape,
    )
    from noiseproof.analysis.page.files import save
    from noiseproof.analysis.runs import open_runs, page_title, runs_table
    from noiseproof.core.files import check_place

    check_spacing(points)  # before minutes are spent on it
    if out is not None:
        check_place(out, folder=False)
    opened = open_runs(runs, data_dir=data_dir)
    landscapes = {}
    cells = []
    for name, run in opened.items():
        with stage_progress() as progress:
            around = run_landscape(
                run,
                rows=rows,
                seed=SEED,
                accelerator=accelerator,
                points=points,
                progress=progress,
            )
        keep_landscape(run, around)
        landscapes[name] = around
        numbers = (around.centre, around.sharpness(), around.curvature)
        cells.append((name, *(plain(value, ".4g") for value in numbers)))
    if out is not None:
        figures = landscape_figures(landscapes)
        for path in save(figures, out, title=page_title(opened), runs=runs_table(opened)):
            say(f"wrote {path}")
    show(("run", "loss", "sharpness", "curvature"), cells)
