"""`noiseproof analyze`: what a loss does before training, during it and after it."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import app
from noiseproof.cli.show import AsJson, DataDir, examples, plain, refusals, say, show, show_json

if TYPE_CHECKING:
    from torch import Tensor

    from noiseproof.analysis.verdict import Probe, Verdict
    from noiseproof.core.progress import Progress
    from noiseproof.train import Settings, Task

analyze_app = typer.Typer(help="See what a loss does: before training, during it, and after it.", no_args_is_help=True)
app.add_typer(analyze_app, name="analyze")

Classes = Annotated[int | None, typer.Option(min=2, help="The number of classes; that of --data by default.")]
Data = Annotated[str | None, typer.Option(help="A dataset of `noiseproof data list`, or your own: its labels count.")]
Model = Annotated[str | None, typer.Option(help="A backbone, untrained, whose margins on --data count.")]
Sigma = Annotated[float | None, typer.Option(help="Standard deviation of simulated logits, by default 1.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of noise, weights and batches.")]


@analyze_app.command(
    "loss",
    epilog=examples(
        "analyze loss --losses mae,gce:q=0.7,ce --classes 100 --out losses.html",
        "analyze loss --losses 'nce + mae,agce:a=0.6,q=0.6' --data cifar100 --model resnet34 --out losses.pdf",
        "analyze loss --losses mae,ce --classes 10 --noise pairflip:rate=0.4 --json",
        "analyze loss --losses agce:a=0.6,q=0.6 --classes 1000 --over a,q --out agce.html",
        "analyze loss --losses mae,ce --classes 100 --sigma 0.5 --out losses.png",
        "analyze loss --losses mae,ce --data cifar10 --data-dir /srv/data --model resnet32 --seed 1",
    ),
)
@refusals()
def analyze_loss(
    losses: Annotated[str, typer.Option(help="Losses with commas between them: mae,gce:q=0.7,10*nce + mae.")],
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    noise: Annotated[str, typer.Option(help="Noise whose transition the asymmetric condition is tested for.")] = "none",
    out: Annotated[str | None, typer.Option(help="A file to draw to: .html, .png, .pdf or .csv.")] = None,
    over: Annotated[
        str | None, typer.Option(help="Two parameters (a,q) of a single loss to map its average error over.")
    ] = None,
    sigma: Sigma = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw what losses do before training, and say which robustness condition each one meets.

    Weights over the margins of an untrained network, the average error of the labelled logit, and the logit bias;
    with --data, of a model and labels of your own.
    """
    from noiseproof.analysis.initialization import (
        check_of_logits,
        error_map_figure,
        initial_logits,
        loss_figures,
        more_than_logits,
        robustness,
    )
    from noiseproof.analysis.plots import save
    from noiseproof.core.grammar import split_specs
    from noiseproof.losses import get_loss
    from noiseproof.noise import get_noise

    if over is not None and out is None:
        raise ValueError("Expected --out, a file to draw the map of --over to, got none.")
    if sigma is not None and out is None:
        raise ValueError(f"Expected --out, a file to draw to, since --sigma {sigma:g} changes figures alone, got none.")
    sigma = 1.0 if sigma is None else sigma
    task, settings, K = _own(data, model, "none", classes, seed, data_dir)
    specs = split_specs(losses)
    logits, labels = (None, None) if task is None else initial_logits(task, "ce", settings, seed=seed)
    transition = None if noise == "none" else get_noise(noise).transition(K)
    made = {spec: get_loss(spec) for spec in specs}
    left_out = {spec: why for spec, loss in made.items() if (why := more_than_logits(loss, K))}
    if len(left_out) == len(made) and out is None:  # there is nothing to show
        check_of_logits(made[specs[0]], K)
    for spec, why in left_out.items():
        say(f"not in the table, whose conditions are of one row's {K} logits alone: {spec}, which {why}")
    found = {spec: robustness(loss, K, transition) for spec, loss in made.items() if spec not in left_out}
    if out is not None:
        title = f"Before training, {K} classes"
        figures = loss_figures(specs, K, logits=logits, labels=labels, sigma=sigma)
        if over is not None:
            names = [name.strip() for name in over.split(",")]
            if len(specs) != 1 or len(names) != 2:
                raise ValueError(f"Expected one loss and two of its parameters to map, got {losses} and {over}.")
            figures.append(error_map_figure(specs[0], K, (names[0], names[1]), sigma=sigma))
        for path in save(figures, out, **({"title": title} if out.endswith(".html") else {})):
            say(f"wrote {path}")
    if as_json:
        return show_json({spec: dataclasses.asdict(one) for spec, one in found.items()})
    if not found:
        return None
    rows = [
        (
            spec,
            "yes" if one.symmetric else "no",
            plain(one.total),
            plain(one.spread, ".2g"),
            "" if one.largest_ratio is None else plain(one.largest_ratio, ".4g"),
            *(() if transition is None else ("" if one.asymmetric is None else "yes" if one.asymmetric else "no",)),
        )
        for spec, one in found.items()
    ]
    condition = () if transition is None else (f"asymmetric for {noise}",)
    return show(("loss", "symmetric", "Σ_y L", "its spread", "asymmetric up to r̃", *condition), rows)


@analyze_app.command(
    "fit",
    epilog=examples(
        "analyze fit --loss mae --classes 400",
        "analyze fit --loss '10*nce + 0.1*agce:a=1.8,q=3' --classes 1000 --json",
        "analyze fit --loss gce:q=0.9 --data table:table=mine.csv,label=kind --probe",
        "analyze fit --loss mae --classes 100 --sigma 0.5",
        "analyze fit --loss mae --data cifar10 --data-dir /srv/data --model resnet32",
        "analyze fit --loss mae --data digits --noise symmetric:rate=0.4 --probe --steps 100 --seed 1",
    ),
)
@refusals()
def analyze_fit(
    loss: Annotated[str, typer.Option(help="A loss or a sum of losses: mae, gce:q=0.7, 10*nce + mae, …")],
    classes: Classes = None,
    data: Data = None,
    model: Model = None,
    probe: Annotated[bool, typer.Option("--probe", help="Also train for --steps on --data, beside ce.")] = False,
    steps: Annotated[int, typer.Option(min=2, help="Steps of --probe.")] = 200,
    noise: Annotated[str, typer.Option(help="Noise to put on the labels of --data.")] = "none",
    sigma: Sigma = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say before training whether a loss learns, partly learns or underfits, and which loss to use instead."""
    from noiseproof.analysis.initialization import initial_logits
    from noiseproof.analysis.verdict import probe as run_probe
    from noiseproof.analysis.verdict import verdict
    from noiseproof.core.margin import margin
    from noiseproof.losses import get_loss
    from noiseproof.losses.base import terms_of

    if sigma is not None and data is not None and all(term.kind == "margin" for _, term in terms_of(get_loss(loss))):
        raise ValueError(
            f"Expected no --sigma beside --data for {loss}, which looks at margins alone: those of the model on {data} "
            f"count, none are simulated. Leave out --sigma {sigma:g}, or give --classes instead of --data."
        )
    task, settings, K = _own(data, model, noise, classes, seed, data_dir)
    margins: Tensor | None = None
    if task is not None:
        margins = margin(*initial_logits(task, "ce", settings, seed=seed))
    elif probe:
        raise ValueError("Expected --data to probe on, got none.")
    found = verdict(loss, K, margins=margins, sigma=1.0 if sigma is None else sigma)
    tried = run_probe(task, loss, settings, steps=steps, seed=seed) if probe and task is not None else None
    if as_json:
        extra = {} if tried is None else {"probe": dataclasses.asdict(tried) | {"pace": tried.pace}}
        return show_json(dataclasses.asdict(found) | extra)
    return _show_verdict(found, tried)


def _own(
    data: str | None, model: str | None, noise: str, classes: int | None, seed: int, data_dir: str | None
) -> tuple[Task | None, Settings, int]:
    """The task of a dataset, the settings of a model, and the number of classes."""
    from noiseproof.data import get_dataset
    from noiseproof.train import Settings, prepare

    settings = Settings(model=model or "auto")
    if data is None:
        if classes is None:
            raise ValueError("Expected --classes or --data, got neither.")
        if model is not None or noise != "none":
            raise ValueError(f"Expected --data for {'a model to look at' if model else '--noise'}, got none.")
        return None, settings, classes
    task = prepare(get_dataset(data, data_dir), noise, seed=seed, data_dir=data_dir)
    if classes not in (None, task.train.num_classes):
        raise ValueError(f"Expected --classes {task.train.num_classes}, which {data} has, got {classes}.")
    return task, settings, task.train.num_classes


def _show_verdict(found: Verdict, probe: Probe | None) -> None:
    typer.echo(f"{found.loss} with {found.num_classes} classes {found.answer}: {found.reason}.\n")
    rows = [
        ("margin", plain(found.margin), "mean Δ of the labels before training (curriculum paper, Eq. 4)"),
        ("weight", plain(found.weight), "mean weight there; of simulated logits −⟨δ_k⟩(0) (bias paper, Eq. 3)"),
        ("maximum", plain(found.maximum), "largest weight over all margins"),
        ("start", plain(found.start), "weight over maximum"),
        ("left behind", plain(found.left_behind), "weight of a margin that falls 3 below, over maximum"),
        ("learnt", plain(found.learnt), "weight at Δ = 0, over maximum"),
        ("slowness", plain(found.slowness), "time from there to Δ = 0, over cross entropy's"),
    ]
    show(("number", "value", "meaning"), rows)
    if found.terms:
        typer.echo()
        columns = ("term", "start", "left behind", "share at start", "share left behind", "share learnt")
        cells = [
            [f"{plain(term.factor)}*{term.loss}", *(plain(value, ".3g") for value in dataclasses.astuple(term)[2:])]
            for term in found.terms
        ]
        show(columns, cells)
    if found.answer != "learns":
        typer.echo()
        if not found.instead:
            typer.echo("No calibrated loss does better: take another loss, such as gce.")
        else:
            show(
                ("use instead", "verdict", "because it has"),
                [(other.loss, other.answer, other.why) for other in found.instead],
            )
    if probe is not None:
        typer.echo()
        pairs = [(name, *getattr(probe, name)) for name in ("margin", "accuracy", "weight", "classes")]
        show(
            (f"{probe.steps} steps", "first tenth", "last tenth"),
            [(n, plain(a, ".4g"), plain(b, ".4g")) for n, a, b in pairs],
        )
        typer.echo(f"the margin rose by {probe.gain:.4g}, {probe.pace:.3g} times what cross entropy reached")


# What runs did

RunFolders = Annotated[
    list[str], typer.Argument(help="Folders of runs: what `noiseproof train --out` wrote.", metavar="RUN…")
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
    out: Annotated[str | None, typer.Option(help="The file to write, by default page.html, page.pdf, …")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="html, pdf, png or csv, by default as --out ends; png and csv: many files."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Names of figures with commas between them, by default all.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Draw everything that can be seen of runs: one page that needs no network, or figures for a paper.

    The page has the runs' curves, margins, predictions and features beside each other; figures whose data was not
    recorded say what records it. Loss landscapes are drawn once `noiseproof analyze landscape` has made them.
    """
    from pathlib import Path

    from noiseproof.analysis.figure import Missing
    from noiseproof.analysis.figures import collect, page_title, runs_table
    from noiseproof.analysis.plots import ENDINGS, save
    from noiseproof.analysis.runs import open_runs

    path = Path(out or f"page.{form or 'html'}")
    if form is not None and f".{form}" not in ENDINGS:
        raise ValueError(f"Expected html, pdf, png or csv as format, got {form!r}.")
    if form is not None and path.suffix.lower() != f".{form}":
        raise ValueError(f"Expected a file that ends in .{form}, as --format says, got {out}.")
    opened = open_runs(runs, data_dir=data_dir)
    names = [name.strip() for name in only.split(",")] if only else []
    with counting() as progress:
        figures = collect(opened, only=names, progress=progress)
    about = {"title": page_title(opened), "runs": runs_table(opened)} if path.suffix.lower() == ".html" else {}
    written = save(figures, path, **about)
    missing = {figure.name: figure.needs for figure in figures if isinstance(figure, Missing)}
    if as_json:
        return show_json(
            {"files": written, "figures": [f.name for f in figures if f.name not in missing], "missing": missing}
        )
    for name, needs in missing.items():
        say(f"not drawn: {name}, needs {needs}")
    for file in written:
        typer.echo(file)
    return None


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
    points: Annotated[int, typer.Option(min=3, help="Points along each of the two directions, an odd number.")] = 21,
    span: Annotated[float, typer.Option(help="How far to go each way; 1 changes each filter by its own length.")] = 1.0,
    rows: Annotated[int, typer.Option(min=1, help="Training rows whose loss is averaged.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and the directions.")] = 0,
    out: Annotated[str | None, typer.Option(help="Also draw to this file: .html, .png, .pdf or .csv.")] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="32 or bf16.")] = "32",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads, by default torch's choice.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compute the loss around trained models, and say how sharp their minima are.

    Each landscape is kept in its run's folder (landscape.csv, with its seed, rows and criterion), where `noiseproof
    analyze page` finds it; a page compares landscapes of one seed only.
    """
    import torch

    from noiseproof.analysis.figures import keep_landscape, page_title, runs_table
    from noiseproof.analysis.landscape import RADIUS, landscape_figures, run_landscape
    from noiseproof.analysis.plots import save
    from noiseproof.analysis.runs import open_runs

    if precision not in ("32", "bf16"):
        raise ValueError(f"Expected 32 or bf16 as precision, got {precision!r}.")
    if (apart := span / (points // 2)) > RADIUS * (1 + 1e-9):  # before minutes are spent on it
        few = f"Use --points {2 * math.ceil(span / RADIUS) + 1}, or a smaller --span."
        raise ValueError(f"Expected points at most {RADIUS:g} apart, to tell how sharp it is, got {apart:g}. {few}")
    if threads:
        torch.set_num_threads(threads)
    opened = open_runs(runs, data_dir=data_dir)
    found, kept = {}, {}
    for name, run in opened.items():
        with counting(name) as progress:
            found[name] = run_landscape(
                run, rows=rows, seed=seed, accelerator=accelerator, points=points, span=span,
                precision=torch.bfloat16 if precision == "bf16" else None, progress=progress,
            )  # fmt: skip
        kept[name] = keep_landscape(run, found[name])
    if out is not None:
        about = {"title": page_title(opened), "runs": runs_table(opened)} if out.endswith(".html") else {}
        for path in save(landscape_figures(found), out, **about):
            say(f"wrote {path}")
    if as_json:
        return show_json({
            name: {"loss": one.centre, "sharpness": one.sharpness(), "curvature": one.curvature, "file": kept[name]}
            for name, one in found.items()
        })  # fmt: skip
    cells = [
        (n, plain(o.centre, ".4g"), plain(o.sharpness(), ".4g"), plain(o.curvature, ".4g")) for n, o in found.items()
    ]
    return show(("run", "loss", "sharpness", "curvature"), cells)


@contextmanager
def counting(label: str = "") -> Iterator[Progress]:
    """Says how much is done: a bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bars:
            bar = bars.add_task(label)
            yield lambda stage, done, total: bars.update(bar, completed=done, total=total, description=label or stage)
        return
    said = time.monotonic()

    def line(stage: str, done: int, total: int | None) -> None:
        nonlocal said
        if (now := time.monotonic()) - said > 5:
            said = now
            typer.echo(f"{label or stage} {done}/{total}", err=True)

    yield line
