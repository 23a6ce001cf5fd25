"""`noiseproof analyze`: what a loss does before, during and after training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import names
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    count_progress,
    echo,
    examples,
    plain,
    refusals,
    say,
    show,
    show_json,
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

Classes = Annotated[
    int | None, typer.Option(min=2, help="Number of classes, by default that of --data.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Dataset: one of `noiseproof data list`, or your own.",
        autocompletion=names("datasets"),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Backbone whose margins on --data, untrained, are used.",
        autocompletion=names("models"),
    ),
]
Sigma = Annotated[
    float | None, typer.Option(help="Standard deviation of simulated logits, by default 1.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of noise, weights and batches.")]
Losses = Annotated[
    str,
    typer.Option(
        "--losses",
        "--loss",
        help="Losses separated by commas: mae,gce:q=0.7,10*nce + mae.",
        autocompletion=names("losses", several=True),
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
        "analyze loss --losses mae,ce --classes 100 --sigma 0.5 --out losses.png",
        "analyze loss --losses mae,ce --data cifar10 --data-dir /srv/data --model resnet32"
        " --seed 1",
    ),
)
@refusals()
def analyze_loss(
    losses: Losses,
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    noise: Annotated[
        str,
        typer.Option(
            help="Noise model whose transition matrix the asymmetric condition is tested for.",
            autocompletion=names("noises"),
        ),
    ] = "none",
    out: Annotated[
        str | None, typer.Option(help="File to draw to: .html, .png, .pdf or .csv.")
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            help="Two parameters (a,q) of a single loss: draw its average error over them."
        ),
    ] = None,
    sigma: Sigma = None,
    seed: Seed = 0,
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
    if out is None and (over is not None or sigma is not None):
        option = (
            "the map of --over"
            if over is not None
            else f"figures, which alone depend on --sigma {sigma:g}"
        )
        raise ValueError(f"Expected --out, a file for {option}, got none.")
    task, settings, K = _prepare(data, model, "none", classes, seed, data_dir)
    logits, labels = (
        (None, None) if task is None else initial_logits(task, "ce", settings, seed=seed)
    )
    start = Start(specs, K, logits, labels, sigma=1.0 if sigma is None else sigma)
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
        figures = loss_figures(
            start, over=[name.strip() for name in over.split(",")] if over else ()
        )
        for path in save(figures, out, title=f"Before training, {K} classes"):
            say(f"wrote {path}")
    if as_json:
        return show_json({spec: dataclasses.asdict(result) for spec, result in tested.items()})
    return _show_robustness(tested, None if transition is None else noise)


def _show_robustness(tested: Mapping[str, Robustness], noise: str | None) -> None:
    def yes(holds: bool | None) -> str:
        return "" if holds is None else "yes" if holds else "no"

    rows = []
    for spec, result in tested.items():
        ratio = "" if result.largest_ratio is None else plain(result.largest_ratio, ".4g")
        cells = (
            spec,
            yes(result.symmetric),
            plain(result.total),
            plain(result.spread, ".2g"),
            ratio,
        )
        rows.append(cells if noise is None else (*cells, yes(result.asymmetric)))
    columns = ("loss", "symmetric", "Σ_y L", "its spread", "asymmetric up to r̃")
    if rows:
        show(columns if noise is None else (*columns, f"asymmetric for {noise}"), rows)


@analyze_app.command(
    "fit",
    epilog=examples(
        "analyze fit --loss mae --classes 400",
        "analyze fit --loss nal --classes 100",
        "analyze fit --loss '10*nce + 0.1*agce:a=1.8,q=3' --classes 1000 --json",
        "analyze fit --loss gce:q=0.9 --data table:table=mine.csv,label=kind --probe",
        "analyze fit --loss mae --classes 100 --sigma 0.5",
        "analyze fit --loss mae --data cifar10 --data-dir /srv/data --model resnet32",
        "analyze fit --loss mae --data digits --noise symmetric:rate=0.4 --probe --steps 100"
        " --seed 1",
    ),
)
@refusals()
def analyze_fit(
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            "--losses",
            help=(
                "Loss, sum of losses or method, whose loss is judged: gce:q=0.7, 10*nce + mae,"
                " nal, …"
            ),
            autocompletion=names("methods", "losses"),
        ),
    ],
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also train for --steps on --data, and ce beside it.")
    ] = False,
    steps: Annotated[int, typer.Option(min=2, help="Steps of --probe.")] = 200,
    noise: Annotated[
        str,
        typer.Option(help="Noise model for the labels of --data.", autocompletion=names("noises")),
    ] = "none",
    sigma: Sigma = None,
    seed: Seed = 0,
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
    from noiseproof.losses.base import terms_of
    from noiseproof.train.methods import MethodContext, method_loss

    task, settings, K = _prepare(data, model, noise, classes, seed, data_dir)
    judged = method_loss(
        loss, MethodContext.of(task, settings) if task else MethodContext.of_classes(K)
    )
    if (
        sigma is not None
        and data is not None
        and all(term.kind == "margin" for _, term in terms_of(judged))
    ):
        raise ValueError(
            f"Expected no --sigma beside --data for {loss}, a function of margins: those of the"
            f" model on {data} are used, none are simulated. Leave out --sigma {sigma:g}, or use"
            " --classes instead of --data."
        )
    if task is None and probe:
        raise ValueError("Expected --data for --probe, got none.")
    margins = None if task is None else margin(*initial_logits(task, "ce", settings, seed=seed))
    result = forecast(judged, K, margins=margins, sigma=1.0 if sigma is None else sigma)
    probed = (
        run_probe(task, loss, settings, steps=steps, seed=seed)
        if probe and task is not None
        else None
    )
    if as_json:
        extra = (
            {} if probed is None else {"probe": dataclasses.asdict(probed) | {"pace": probed.pace}}
        )
        return show_json(dataclasses.asdict(result) | extra)
    return _show_forecast(loss, result, probed)


def _prepare(
    data: str | None,
    model: str | None,
    noise: str,
    classes: int | None,
    seed: int,
    data_dir: str | None,
) -> tuple[Task | None, Settings, int]:
    from noiseproof.data import get_dataset
    from noiseproof.train import Settings, prepare

    settings = Settings(model=model or "auto")
    if data is None:
        if classes is None:
            raise ValueError("Expected --classes or --data, got neither.")
        if model is not None or noise != "none":
            raise ValueError(f"Expected --data for {'--model' if model else '--noise'}, got none.")
        return None, settings, classes
    task = prepare(get_dataset(data, data_dir), noise, seed=seed, data_dir=data_dir)
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
    rows = [
        (
            "margin",
            plain(result.margin),
            "mean Δ of the labels before training (curriculum paper, Eq. 4)",
        ),
        (
            "weight",
            plain(result.weight),
            "mean weight there; of simulated logits −⟨δ_k⟩(0) (bias paper, Eq. 3)",
        ),
        ("maximum", plain(result.maximum), "largest weight over all margins"),
        ("start", plain(result.start), "weight over maximum"),
        (
            "left behind",
            plain(result.left_behind),
            "weight of a margin that falls 3 below, over maximum",
        ),
        ("learnt", plain(result.learnt), "weight at Δ = 0, over maximum"),
        ("slowness", plain(result.slowness), "time from there to Δ = 0, over cross entropy's"),
    ]
    show(("number", "value", "meaning"), rows)
    if result.terms:
        echo()
        columns = (
            "term",
            "start",
            "left behind",
            "share at start",
            "share left behind",
            "share learnt",
        )
        numbers = [
            [plain(value, ".3g") for value in dataclasses.astuple(term)[2:]]
            for term in result.terms
        ]
        names = [f"{plain(term.factor)}*{term.loss}" for term in result.terms]
        show(columns, [(name, *row) for name, row in zip(names, numbers, strict=True)])
    if result.instead:
        echo()
        alternatives = [(other.loss, other.answer, other.why) for other in result.instead]
        show(("use instead", "forecast", "because it has"), alternatives)
    elif result.answer != "learns":
        echo("\nNo calibrated loss does better: use another loss, such as gce.")
    if probe is not None:
        echo()
        pairs = [
            (name, *getattr(probe, name)) for name in ("margin", "accuracy", "weight", "classes")
        ]
        show(
            (f"{probe.steps} steps", "first tenth", "last tenth"),
            [(name, plain(first, ".4g"), plain(last, ".4g")) for name, first, last in pairs],
        )
        echo(f"the margin rose by {probe.gain:.4g}, {probe.pace:.3g} times that of cross entropy")


# Trained runs

RunFolders = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, as `noiseproof train --out` writes them.", metavar="RUN…"
    ),
]


@analyze_app.command(
    "page",
    epilog=examples(
        "analyze page runs/mine",
        "analyze page runs/ce runs/gce runs/sln --out compare.html",
        "analyze page runs/* --format pdf --only accuracy-curves,margins",
        "analyze page runs/mine --data-dir /srv/data --json",
    ),
)
@refusals()
def analyze_page(
    runs: RunFolders,
    out: Annotated[
        str | None, typer.Option(help="File to write, by default page.html, page.pdf, …")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=(
                "html, pdf, png or csv, by default the ending of --out; png and csv are one file"
                " per figure."
            ),
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Names of figures separated by commas, by default all.",
            autocompletion=names("figures", several=True),
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
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
    names = [name.strip() for name in only.split(",")] if only else []
    with count_progress() as progress:
        figures = collect(opened, only=names, progress=progress)
    written = save(figures, path, title=page_title(opened), runs=runs_table(opened))
    missing = [figure for figure in figures if isinstance(figure, MissingFigure)]
    if as_json:
        drawn = [figure.name for figure in figures if not isinstance(figure, MissingFigure)]
        return show_json(
            {
                "files": written,
                "figures": drawn,
                "missing": {one.name: one.needs for one in missing},
            }
        )
    _note_missing(missing)
    for file in written:
        echo(file)
    return None


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
    epilog=examples(
        "analyze rows runs/nal --out rows.csv",
        "analyze rows runs/ln --part test --json",
        "analyze rows runs/nal --data-dir /srv/data",
    ),
)
@refusals()
def analyze_rows(
    run: Annotated[
        str, typer.Argument(help="Folder of a run, as `noiseproof train --out` writes it.")
    ],
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    out: Annotated[
        str | None, typer.Option(help="File to write, by default rows.csv in the folder.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
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
    if as_json:
        return show_json({"file": path, "rows": len(table), "columns": list(table.columns)})
    return echo(f"{path}: {counted(len(table), 'row')}, {', '.join(table.columns)}")


@analyze_app.command(
    "landscape",
    epilog=examples(
        "analyze landscape runs/ce runs/sln",
        "analyze landscape runs/ce --points 31 --span 0.5 --out landscape.pdf",
        "analyze landscape runs/wrn --rows 10000 --accelerator cuda --precision bf16",
        "analyze landscape runs/ce --seed 1 --threads 2 --data-dir /srv/data --json",
    ),
)
@refusals()
def analyze_landscape(
    runs: RunFolders,
    points: Annotated[
        int, typer.Option(min=3, help="Points along each of the two directions, an odd number.")
    ] = 21,
    span: Annotated[
        float,
        typer.Option(help="Largest distance each way; 1 changes each filter by its own norm."),
    ] = 1.0,
    rows: Annotated[
        int, typer.Option(min=1, help="Training rows to average the loss over.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and the directions.")] = 0,
    out: Annotated[
        str | None, typer.Option(help="Also draw to this file: .html, .png, .pdf or .csv.")
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="32 or bf16.")] = "32",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of threads, by default that of torch.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compute the loss around trained models, and how sharp their minima are.

    Each landscape is written to its run's folder (landscape.csv, with its seed, rows and
    criterion), where `noiseproof analyze page` finds it; a page compares landscapes of one seed
    only.
    """
    import torch

    from noiseproof.analysis.after.landscape import (
        check_spacing,
        keep_landscape,
        landscape_figures,
        run_landscape,
    )
    from noiseproof.analysis.page.files import save
    from noiseproof.analysis.runs import open_runs, page_title, runs_table
    from noiseproof.core.files import check_place

    if precision not in ("32", "bf16"):
        raise ValueError(f"Expected 32 or bf16 as precision, got {precision!r}.")
    check_spacing(points, span)  # before minutes are spent on it
    if out is not None:
        check_place(out, folder=False)
    if threads:
        torch.set_num_threads(threads)
    opened = open_runs(runs, data_dir=data_dir)
    landscapes, files = {}, {}
    for name, run in opened.items():
        with count_progress(name) as progress:
            landscapes[name] = run_landscape(
                run,
                rows=rows,
                seed=seed,
                accelerator=accelerator,
                points=points,
                span=span,
                precision=torch.bfloat16 if precision == "bf16" else None,
                progress=progress,
            )
        files[name] = keep_landscape(run, landscapes[name])
    if out is not None:
        for path in save(
            landscape_figures(landscapes), out, title=page_title(opened), runs=runs_table(opened)
        ):
            say(f"wrote {path}")
    numbers = {
        name: {
            "loss": around.centre,
            "sharpness": around.sharpness(),
            "curvature": around.curvature,
        }
        for name, around in landscapes.items()
    }
    if as_json:
        return show_json({name: of_run | {"file": files[name]} for name, of_run in numbers.items()})
    cells = [
        (name, *(plain(value, ".4g") for value in of_run.values()))
        for name, of_run in numbers.items()
    ]
    return show(("run", "loss", "sharpness", "curvature"), cells)
