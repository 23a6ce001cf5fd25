"""The command line: reads arguments, calls the library, shows what it returns. The only module that prints."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from noiseproof import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_fabric import Fabric
    from torch import Tensor

    from noiseproof.bench import Experiment
    from noiseproof.core.registry import Registry
    from noiseproof.data import Dataset
    from noiseproof.noise import NoisyLabels
    from noiseproof.train import Settings, Task
    from noiseproof.train.loop import Progress

# Modules that need torch are imported where they are used: help and completion must not wait for it.

app = typer.Typer(
    help="Train classifiers on labels that can't be trusted, and find out which labels are wrong.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

data_app = typer.Typer(help="List, download and look at datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", help="Folder of the official files; else $NOISEPROOF_DATA, else ~/.cache/noiseproof."),
]

FEW_CLASSES, TINY_MATRIX = 20, 10  # more classes than that fill no screen usefully; --json has them all


PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}
SHOWN = (
    "epoch", "test_accuracy", "test_accuracy_ensemble", "test_top5", "validation_accuracy", "train_accuracy",
    "train_accuracy_clean", "false_label_accuracy",
)  # fmt: skip


def _training(text: str, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Training", **options)


def _machine(text: str, flag: str | None = None, **options: Any) -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Machine", **options)


def _examples(*commands: str) -> str:
    return "Examples:\n\n" + "\n".join(f"- `noiseproof {command}`" for command in commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noiseproof {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe that knows no Δ gets a ?, not a traceback


@contextmanager
def _refusals() -> Iterator[None]:
    """What the library refuses ends in one line on stderr and exit code 2."""
    try:
        yield
    except BrokenPipeError:  # the reader went away, which is no refusal
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        _say(error)
        raise typer.Exit(2) from None


def _say(what: object) -> None:
    """One line on stderr, however many processes say it."""
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        typer.echo(f"noiseproof: {' '.join(str(what).split())}", err=True)


@app.command(epilog=_examples("losses", "losses --presets", "losses --json | jq '.[].name'"))
@_refusals()
def losses(
    presets: Annotated[bool, typer.Option("--presets", help="List the papers' own settings instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every loss with its parameters, formula, paper and equation.

    p is the probability of the label. `NAME:key=value,…` sets parameters, `2*a + b` adds losses, `NAME@PAPER` is a
    paper's own setting.
    """
    from noiseproof.losses import LOSSES, describe
    from noiseproof.losses.presets import PRESETS

    if presets:
        if as_json:
            return _show_json([{"preset": f"{a}@{b}", "holds_for": holds, "loss": c} for a, b, holds, c in PRESETS])
        rows = [(f"{loss}@{paper}", _pairs(holds), spec) for loss, paper, holds, spec in PRESETS]
        return _show(("preset", "holds for", "loss"), rows)
    described = [describe(name) for name in sorted(LOSSES)]
    if as_json:
        return _show_json(described)
    cells = [[loss["name"], _pairs(loss["parameters"]), loss["formula"], loss["source"]] for loss in described]
    return _show(("name", "parameters", "formula", "source"), cells)


@app.command(
    epilog=_examples(
        "calibrate gce --classes 1000",
        "calibrate agce:a=0.6,q=0.6 --classes 1000 --free a,q",
        "calibrate '10*nce + 0.1*agce:a=1.8,q=3' --classes 1000 --free agce.q --json",
    )
)
@_refusals()
def calibrate(
    loss: Annotated[str, typer.Argument(help="The loss as it works for --like classes: gce, agce:a=0.6,q=0.6, …")],
    classes: Annotated[int, typer.Option(help="The number of classes to calibrate for.")],
    like: Annotated[int, typer.Option(help="The number of classes that the loss is known to work for.")] = 100,
    free: Annotated[
        str | None, typer.Option(help="The parameter to solve for (q), or a pair to get the curve of (a,q).")
    ] = None,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the untrained network's logits.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Compute a loss's parameters for another number of classes, without training.

    They give an untrained network the same average error as before (paper 002, section 3.3).
    """
    from noiseproof.losses import get_loss
    from noiseproof.losses.calibrate import calibrate, expected_margin, logit_bias

    before = get_loss(loss)
    names: Any = tuple(name.strip() for name in free.split(",")) if free else None
    found = calibrate(before, classes, like, free=names[0] if names and len(names) == 1 else names, sigma=sigma)
    bias, margin = logit_bias(classes, sigma=sigma), expected_margin(classes, sigma=sigma)
    if as_json:
        return _show_json({
            "loss": found.loss and str(found.loss), "params": found.params, "curve": found.curve, "classes": classes,
            "like": {"loss": str(before), "classes": like}, "sigma": sigma, "average_error": found.error,
            "logit_bias": bias, "expected_margin": margin,
        })  # fmt: skip
    rows = [
        *((k, _text(v), f"{_text(before.hyperparameters[k])} at {like} classes") for k, v in found.params.items()),
        ("average error", _text(found.error), f"⟨δ_k⟩(0), the same as {before} at {like} classes (002 Eq. 3)"),
        ("logit bias", _text(bias), "ε for any loss: the label's mean probability is 0.15 (002 Eq. 4)"),
        ("expected margin", _text(margin), "E[Δ_y] before training, exact (004 Eq. 4)"),
    ]
    _show((f"at {classes} classes", "value", "meaning"), rows)
    if found.curve:
        typer.echo()
        _show(list(found.curve[0]), [[_text(value) for value in point.values()] for point in found.curve])
    return None


@app.command(epilog=_examples("noises", "noises --json | jq '.[].name'"))
@_refusals()
def noises(as_json: AsJson = False) -> None:
    """List every noise model with its parameters.

    `NAME:key=value,…` sets parameters; `noiseproof data show digits --noise symmetric:rate=0.4` shows what comes of it.
    """
    from noiseproof.noise import NOISES

    _list(NOISES, as_json)


def _list(registry: Registry[Any], as_json: bool) -> None:
    described = [_describe(registry, name) for name in sorted(registry)]
    if as_json:
        return _show_json(described)
    rows = [(thing["name"], _signature(thing), thing["summary"]) for thing in described]
    return _show(("name", "parameters", "what it does"), rows)


@app.command(epilog=_examples("models", "models --classes 100 --json"))
@_refusals()
def models(
    classes: Annotated[int, typer.Option(min=2, help="Classes of the linear head that the weights include.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List every backbone with its number of weights, its features and its parameters."""
    import torch

    from noiseproof.models import MODELS

    described = [_describe(MODELS, name) for name in sorted(MODELS)]
    for model in described:
        model |= {"classes": classes, "weights": None, "features": None}
        if not model["required"]:
            with torch.device("meta"):  # shapes alone: nothing is allocated or drawn
                backbone = MODELS.create(model["name"])
            model["features"] = backbone.num_features
            model["weights"] = sum(p.numel() for p in backbone.parameters()) + (backbone.num_features + 1) * classes
    if as_json:
        return _show_json(described)
    rows = [
        (
            model["name"],
            f"{model['weights']:,}" if model["weights"] else "",
            str(model["features"] or ""),
            _signature(model),
            model["summary"],
        )
        for model in described
    ]
    return _show(("name", f"weights, {classes} classes", "features", "parameters", "what it is"), rows)


@data_app.command("list", epilog=_examples("data list", "data list --data-dir /srv/data --json"))
@_refusals()
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every dataset: what it is, whether its files are here, where they are looked for, how to get them."""
    from noiseproof.data import DATASETS
    from noiseproof.data.fetch import ASK, DOWNLOADS
    from noiseproof.data.sources import PLACES, data_root

    described = []
    for name in DATASETS:
        data = _describe(DATASETS, name)
        data["parameters"].pop("data_dir", None)
        found = None if data["required"] else _found(name, data_dir)
        get = f"noiseproof data fetch {name}" if name in DOWNLOADS else ASK.get(name, "")
        if data["required"]:
            get = f"your own: {name}:{','.join(f'{key}=…' for key in data['required'])}"
        described.append(
            {**data, "here": found is not None, "found": found, "places": PLACES.get(name, ()), "get": get}
        )
    if as_json:
        return _show_json({"data_dir": data_root(data_dir), "datasets": described})
    rows = []
    for data in described:
        here = "" if data["required"] else "yes" if data["here"] else "no"
        places = "; and ".join(" or ".join(group) for group in data["places"])
        where = ", ".join(data["found"] or ()) or places or "needs no files" * (not data["required"])
        rows.append((data["name"], here, data["summary"], where, data["get"]))
    typer.echo(f"data folder: {data_root(data_dir)}")
    return _show(("name", "here", "what it is", "found in, or looked for in", "how to get it"), rows)


def _found(name: str, data_dir: str | None) -> list[str] | None:
    """Where the files of a dataset are, none if it needs none; None if some are missing or a download broke off."""
    from noiseproof.data.sources import PLACES, find

    try:
        found = [find(name, data_dir, group) for group in range(len(PLACES.get(name, ())))]
    except FileNotFoundError:
        return None
    for files in (list(path.iterdir()) for path in found if path.is_dir()):
        if not files or any(file.suffix == ".part" for file in files):
            return None
    return [str(path) for path in found]


@data_app.command("fetch", epilog=_examples("data fetch mnist", "data fetch cifar10n --data-dir /srv/data"))
@_refusals()
def data_fetch(
    name: Annotated[str, typer.Argument(help="A dataset of `noiseproof data list`.")],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None, typer.Option(help="Address of a folder with the official files, for machines behind a wall.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset from its official source, check it and unpack it; go on where an earlier try stopped."""
    from noiseproof.data.fetch import DOWNLOADS, fetch
    from noiseproof.data.sources import data_root

    parts = [data_root(data_dir) / f"{item.path}.part" for item in DOWNLOADS.get(name, ())]
    for part in filter(lambda part: part.exists(), parts):
        typer.echo(f"noiseproof: going on with {part} after {part.stat().st_size / 1e6:.1f} MB", err=True)
    try:
        with _progress() as progress:
            files = fetch(name, data_dir, progress=progress, base_url=mirror)
    except KeyboardInterrupt:
        kept = " and ".join(str(part) for part in parts if part.exists())
        typer.echo(
            "noiseproof: interrupted. " + (f"What came so far is kept in {kept}. " if kept else "")
            + "Run the same command again to go on from there.",
            err=True,
        )  # fmt: skip
        raise typer.Exit(130) from None
    if as_json:
        return _show_json({"name": name, "files": files})
    for file in files:
        typer.echo(str(file))
    return None


@data_app.command(
    "show",
    epilog=_examples(
        "data show digits --noise symmetric:rate=0.4",
        "data show cifar10 --noise asymmetric-cifar10:rate=0.4 --seed 1 --json",
        "data show cifar10 --noise open-set:rate=0.4 --foreign cifar100",
        "data show table:table=mine.csv,label=kind",
    ),
)
@_refusals()
def data_show(
    spec: Annotated[str, typer.Argument(help="The dataset: digits, cifar10n:labels=worst, folder:path=photos, …")],
    data_dir: DataDir = None,
    noise: Annotated[
        str | None, typer.Option(help="Noise to put on the training labels: symmetric:rate=0.4, …")
    ] = None,
    foreign: Annotated[str | None, typer.Option(help="The dataset whose images open-set noise puts in.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show a dataset: sizes, shapes, classes, what is odd about it; with noise, what really became of the labels."""
    from noiseproof.data import corrupt, get_dataset
    from noiseproof.data.sources import data_root
    from noiseproof.noise import NoisyLabels, get_noise

    data = get_dataset(spec, data_dir)
    model = get_noise(noise or "none", data_root(data_dir))
    given = corrupt(data, model, generator=seed, foreign=_foreign(foreign, data_dir))
    labels = None
    if given.clean is not None and (noise or given.rate):  # or the labels came with noise of their own
        labels = NoisyLabels(
            given.given, given.clean, data.num_classes, noise or data.name, model.nominal if noise else None
        )
    parts: list[dict[str, Any]] = [
        {"part": part, "rows": len(split), "shape": list(split.x[0].shape), "dtype": str(split.x[0].dtype)[6:]}
        for part in ("train", "validation", "test", "trusted")
        if (split := getattr(data, part)) is not None
    ]
    classes = _classes(data.classes, given.given, labels)
    if as_json:
        summary = labels and {
            "noise": labels.noise, "seed": seed, "rate": labels.rate, "nominal": labels.nominal,
            "flipped": int(labels.is_flipped.sum()), "transition": labels.transition().tolist(),
        }  # fmt: skip
        return _show_json(
            {"name": data.name, "parts": parts, "classes": classes, "notes": data.notes, "noise": summary}
        )
    rows = [(p["part"], str(p["rows"]), " × ".join(map(str, p["shape"])), p["dtype"]) for p in parts]
    _show((data.name, "rows", "shape", "dtype"), rows)
    for note in data.notes:
        typer.echo(f"note: {note}")
    if labels is not None:
        typer.echo(f"\n{labels}")
    typer.echo()
    counted = sorted(row["rows"] for row in classes if row["class"] in data.classes)
    if len(classes) > FEW_CLASSES:
        rates = [row["rate"] for row in classes if row.get("rate") is not None]
        typer.echo(f"{data.num_classes} classes of {counted[0]} to {counted[-1]} training rows; --json lists them")
        if rates:
            typer.echo(f"share of wrong labels by class: {min(rates):.3f} to {max(rates):.3f}")
        return None
    columns = list(classes[0])
    _show(columns, [["" if row[c] is None else _text(row[c], ".3f") for c in columns] for row in classes])
    if labels is not None and data.num_classes <= TINY_MATRIX:
        typer.echo("\ntransition: share of each true class (row) given each label (column)")
        matrix = labels.transition().tolist()
        _show(
            ("", *data.classes), [(c, *(f"{t:.3f}" for t in row)) for c, row in zip(data.classes, matrix, strict=True)]
        )
    return None


def _classes(names: Sequence[str], given: Any, labels: NoisyLabels | None) -> list[dict[str, Any]]:
    """One row a class: the training rows that bear it, or, where the truth is known, those that are it and go wrong."""
    import torch

    counts = torch.bincount(given, minlength=len(names)).tolist()
    if labels is None:
        return [{"class": name, "rows": count} for name, count in zip(names, counts, strict=True)]
    rows: list[dict[str, Any]] = []
    for k, name in [*enumerate(names), (-1, "(no class)")]:
        own = labels.given[labels.clean == k]
        if k < 0 and not len(own):  # images of no class come from open-set noise alone
            continue
        wrong = own[own != k]
        most = int(torch.bincount(wrong).argmax()) if len(wrong) else None
        rows.append({
            "class": name, "rows": len(own), "wrong": len(wrong),
            "rate": len(wrong) / len(own) if len(own) else None,
            "mostly given as": None if most is None else names[most],
        })  # fmt: skip
    return rows


@app.command(epilog=_examples("methods", "methods --json | jq '.[].name'"))
@_refusals()
def methods(as_json: AsJson = False) -> None:
    """List every named method: what it is made of, and its parameters.

    Any loss or sum of losses is a method too; `METHOD@PAPER` has a paper's hyperparameters for the data at hand, and
    `METHOD & STRATEGY` adds a strategy.
    """
    from noiseproof.train import METHODS

    _list(METHODS, as_json)


@app.command(epilog=_examples("strategies", "strategies --json | jq '.[].name'"))
@_refusals()
def strategies(as_json: AsJson = False) -> None:
    """List every strategy, which `METHOD & STRATEGY:key=value` adds to a method, with its parameters."""
    from noiseproof.strategies import STRATEGIES

    _list(STRATEGIES, as_json)


@app.command(
    epilog=_examples(
        "train --noise symmetric:rate=0.4 --method gce",
        "train --dataset cifar10 --noise asymmetric-cifar10:rate=0.4 --method sln-mo-lc@001 --protocol 001",
        "train --dataset table:table=mine.csv,label=kind --method gce:q=0.7",
        "train --dataset cifar100 --method ce --devices 8 --nodes 4 --precision bf16",
        "train --dataset cifar10 --method ln --dry-run",
    )
)
@_refusals()
def train(
    dataset: Annotated[str, typer.Option(help="A dataset of `noiseproof data list`, or your own.")] = "digits",
    noise: Annotated[str, typer.Option(help="Noise to put on the training labels: symmetric:rate=0.4, …")] = "none",
    method: Annotated[str, typer.Option(help="A method of `noiseproof methods`, or any loss.")] = "ce",
    seed: Annotated[int, typer.Option(min=0, help="Seed of noise, held-out rows, weights, batches and method.")] = 0,
    out: Annotated[
        str | None, typer.Option(help="Folder of record and checkpoints, by default one in runs/; none: no files.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run in that folder stopped.")] = True,
    samples: Annotated[
        bool, typer.Option("--samples", help="Record margin, weight and prediction of every sample.")
    ] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to csv, tensorboard, mlflow or wandb; may be given again.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    foreign: Annotated[str | None, typer.Option(help="The dataset whose images open-set noise puts in.")] = None,
    protocol: Annotated[str | None, _training("As this paper (000 … 004) trains on this dataset.")] = None,
    model: Annotated[str | None, _training("A backbone of `noiseproof models`.")] = None,
    epochs: Annotated[int | None, _training("Passes over the data.", min=1)] = None,
    batch_size: Annotated[str | None, _training("Rows of a step, or full.")] = None,
    optimizer: Annotated[str | None, _training("sgd:lr=0.05,momentum=0.9, adam:lr=1e-3, …")] = None,
    schedule: Annotated[str | None, _training("constant, step:at=[0.5,0.75], exponential, cosine, linear.")] = None,
    clip: Annotated[float | None, _training("Largest gradient norm.")] = None,
    validation: Annotated[float, _training("Share of the noisy rows to hold out.", min=0)] = 0.1,
    accelerator: Annotated[str, _machine("auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, _machine("Processes on each machine.", min=1)] = 1,
    nodes: Annotated[int, _machine("Machines.", min=1)] = 1,
    strategy: Annotated[str, _machine("auto, ddp or fsdp (experimental).")] = "auto",
    precision: Annotated[str, _machine("32, bf16 or 64.")] = "32",
    threads: Annotated[int | None, _machine("Threads of each process, by default torch's choice.", min=1)] = None,
    compiled: Annotated[
        bool, _machine("Train through torch.compile: a slow start, faster steps.", flag="--compile")
    ] = False,
    workers: Annotated[int, _machine("Processes that read files.", min=0)] = 0,
    checkpoint_steps: Annotated[int | None, _machine("Save every so many steps, too.", min=1)] = None,
) -> None:
    """Train a classifier on noisy labels by any method; a run that was stopped goes on when it is started again."""
    from pathlib import Path

    import torch

    from noiseproof.data import get_dataset
    from noiseproof.train import Diverged, Interrupted, Settings, prepare, train
    from noiseproof.train.logs import describe, make_loggers
    from noiseproof.train.protocols import protocol as protocol_of

    logging.basicConfig(format="noiseproof: %(message)s")
    logging.getLogger("noiseproof").setLevel(logging.INFO)  # what stays eager on a GPU, and why
    if threads:
        torch.set_num_threads(threads)
    data = get_dataset(dataset, data_dir)
    given: dict[str, Any] = {
        "model": model, "epochs": epochs, "optimizer": optimizer, "schedule": schedule, "clip": clip,
        "batch_size": int(batch_size) if batch_size and batch_size.isdigit() else batch_size,
        "workers": workers, "checkpoint_steps": checkpoint_steps, "compile": compiled,
    }  # fmt: skip
    settings = dataclasses.replace(
        protocol_of(protocol, data.name) if protocol else Settings(),
        **{name: value for name, value in given.items() if value is not None},
    )
    folder = Path(out or Path("runs", _file_name(dataset, noise, method, f"seed{seed}"))) if out != "none" else None
    loggers = make_loggers(log or (), folder or Path())
    if loggers and folder is None:
        raise ValueError(f"Expected a folder to log to {', '.join(log or ())} in, got --out none.")
    fabric = _fabric(precision, accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy)
    fabric.launch()
    try:
        predictions = _predictions(data, noise, settings, seed, fabric, folder, dry_run)
        task = prepare(
            data, noise, seed=seed, validation=validation, paper=protocol, features=predictions,
            foreign=_foreign(foreign, data_dir), data_dir=data_dir,
        )  # fmt: skip
        if dry_run:
            return _show_estimate(task, method, settings, fabric, as_json)
        fabric.loggers.extend(loggers)  # only now: what went before is not the run
        describe(loggers, {"dataset": dataset, "noise": noise, "method": method, "seed": seed, **settings.as_dict()})
        with _training_progress(settings.epochs, fabric.is_global_zero) as progress:
            result = train(
                task, method, settings, seed=seed, fabric=fabric, out=folder, resume=resume, samples=samples,
                progress=progress,
            )  # fmt: skip
    except Interrupted as stopped:
        _say(f"{stopped}" + (f" The same command goes on from {folder}." if folder and not dry_run else ""))
        raise typer.Exit(130) from None
    except Diverged as error:
        _say(error)
        raise typer.Exit(3) from None
    if not fabric.is_global_zero:
        return None
    found = {"last": result.last, "best by noisy validation": result.best, "oracle": result.oracle}
    if as_json:
        return _show_json({
            "dataset": dataset, "noise": noise, "rate": task.train.rate, "method": method, "seed": seed,
            "folder": folder, "stopped": result.stopped, **{name.split()[0]: row for name, row in found.items()},
        })  # fmt: skip
    columns = [name for name in SHOWN if not math.isnan(result.last.get(name, math.nan))]
    rows = [
        (name, *(str(row[c]) if c == "epoch" else f"{row[c]:.4f}" for c in columns))
        for name, row in found.items()
        if row
    ]
    _show(("", *(column.replace("_", " ") for column in columns)), rows)
    for line in (f"stopped early: {result.stopped}" * bool(result.stopped), f"record: {folder}" * bool(folder)):
        if line:
            typer.echo(line)
    return None


def _fabric(precision: str, **machine: Any) -> Fabric:
    """Lightning Fabric for these devices."""
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if precision not in PRECISIONS:
        raise ValueError(f"Expected one of {', '.join(PRECISIONS)} as precision, got {precision!r}.")
    try:
        return Fabric(precision=PRECISIONS[precision], **machine)  # type: ignore[arg-type]  # a word like any other
    except (RuntimeError, MisconfigurationException) as error:  # devices that this machine does not have
        raise ValueError(str(error)) from error


def _predictions(
    data: Dataset, noise: str, settings: Settings, seed: int, fabric: Fabric, folder: Path | None, dry_run: bool
) -> Tensor | None:
    """What a model trained on clean labels says, for noise that needs it; for a dry run, which needs none, 1/K."""
    import torch

    from noiseproof.noise import get_noise
    from noiseproof.train.instance import averaged_predictions

    if get_noise(noise).needs != "predictions":
        return None
    if dry_run:
        _say(f"not estimated: a training on clean labels, for the predictions that {noise} needs")
        return torch.full((len(data.train), data.num_classes), 1 / data.num_classes)
    _say(f"training on clean labels first, for the predictions that {noise} needs")
    with _training_progress(settings.epochs, fabric.is_global_zero) as progress:
        return averaged_predictions(
            data, settings, seed=seed, fabric=fabric, out=folder and folder / "clean", progress=progress
        )


def _foreign(spec: str | None, data_dir: str | None) -> Tensor | None:
    """The images of another dataset, for open-set noise."""
    import torch

    from noiseproof.data import get_dataset

    images = get_dataset(spec, data_dir).train.x if spec else None
    if images is not None and not isinstance(images, torch.Tensor):
        raise ValueError(f"Expected images in memory in {spec!r}, got files. Use a dataset such as cifar100.")
    return images


def _show_estimate(task: Task, method: str, settings: Settings, fabric: Fabric, as_json: bool) -> None:
    from noiseproof.train.estimate import estimate

    expected = estimate(task, method, settings, fabric=fabric)
    if not fabric.is_global_zero:
        return None
    if as_json:
        return _show_json({**dataclasses.asdict(expected), "total_memory": expected.total_memory})
    rows = [
        ("time", _duration(expected.seconds)),
        ("steps", f"{expected.steps:,} of {expected.seconds_per_step * 1e3:.3g} ms"),
        ("weights", f"{expected.weights:,}"),
        *((f"memory, {name}", f"{size / 1e6:,.1f} MB") for name, size in expected.memory.items()),
        ("memory, all", f"{expected.total_memory / 1e6:,.1f} MB"),
    ]
    return _show(("estimate", "from a few steps"), rows)


def _file_name(*parts: str) -> str:
    return "_".join(re.sub(r"[^\w.=+*-]+", "-", part) for part in parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _training_progress(epochs: int, shown: bool) -> Iterator[Progress | None]:
    """Says how far a training is: a bar with the time that is left on a terminal, else a line now and then."""
    if not shown:
        yield None
        return
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[metrics]}"), console=Console(stderr=True)) as bars:
            bar = bars.add_task("", total=epochs, epoch=f"0/{epochs}", metrics="")

            def move(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
                bars.update(bar, completed=epoch + step / steps, epoch=f"{epoch + 1}/{epochs}")
                if row is not None:
                    bars.update(bar, metrics=_headline(row))

            yield move
        return
    began, said, first = time.monotonic(), -math.inf, -1

    def say(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
        nonlocal said, first
        first, now = epoch if first < 0 else first, time.monotonic()
        if row is not None and (now - said > 2 or epoch + 1 == epochs):
            said = now
            left = (now - began) / (epoch + 1 - first) * (epochs - epoch - 1)
            typer.echo(f"epoch {epoch + 1}/{epochs}: {_headline(row)}, {_duration(left)} left", err=True)

    yield say


def _headline(row: Mapping[str, float]) -> str:
    names = {"train_loss": "loss", "validation_accuracy": "noisy validation", "test_accuracy": "test"}
    return ", ".join(f"{text} {row[name]:.3f}" for name, text in names.items() if name in row)


@app.command(epilog=_examples("demo", "demo --seed 1 --json"))
@_refusals()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the split, the wrong labels, the weights and the batches.")] = 0,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of each method.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Train on handwritten digits of which 40 % are mislabelled, at random or for a look-alike; rank the methods."""
    import torch

    from noiseproof.demo import demo

    # A second thread brings matrices of this size a third, and costs tenfold where its core is busy.
    torch.set_num_threads(1)
    rows = []
    busy = Console(stderr=True).status("training …") if sys.stderr.isatty() else nullcontext()
    with busy as status:
        for row in demo(epochs=epochs, seed=seed):
            rows.append(row)
            if status is not None:
                status.update(f"{row.noise}: {row.method} {row.accuracy:.3f} …")
    if as_json:
        return _show_json([dataclasses.asdict(row) for row in rows])
    for noise in dict.fromkeys(row.noise for row in rows):
        typer.echo(f"\n{noise}")
        ranked = sorted((row for row in rows if row.noise == noise), key=lambda row: -row.accuracy)
        cells = [(row.method, f"{row.accuracy:.3f}", f"{row.memorised:.3f}", f"{row.seconds:.1f}") for row in ranked]
        _show(("method", "test accuracy", "wrong labels repeated", "seconds"), cells)
    return None


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Says how far a download is: a bar on a terminal, a line for every tenth in a pipe or a log."""
    if sys.stderr.isatty():
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
            tasks: dict[str, Any] = {}

            def move(file: str, done: int, total: int | None) -> None:
                if file not in tasks:
                    tasks[file] = bars.add_task(file)
                bars.update(tasks[file], completed=done, total=total)

            yield move
        return
    said: dict[str, int] = {}

    def say(file: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else done // 10**7
        if said.get(file) != tenth:
            said[file] = tenth
            typer.echo(f"{file}: {done / 1e6:.1f}" + (f" of {total / 1e6:.1f}" if total else "") + " MB", err=True)

    yield say


def _describe(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Name, first sentence and parameters of a registered thing; those without a default are ``required``."""
    factory = registry[name]
    text = inspect.getdoc(getattr(factory, "func", factory)) or ""  # func: of a partial, whose own text is Python's
    parameters = registry.parameters(name)
    return {
        "name": name,
        "summary": " ".join(text.partition("\n\n")[0].split()).replace("``", ""),
        "parameters": {key: value for key, value in parameters.items() if value is not inspect.Parameter.empty},
        "required": [key for key, value in parameters.items() if value is inspect.Parameter.empty],
    }


def _signature(described: Mapping[str, Any]) -> str:
    from noiseproof.core.registry import format_value

    defaults = (f"{key}={format_value(value)}" for key, value in described["parameters"].items())
    return ", ".join([*described["required"], *defaults])


def _show_json(value: Any) -> None:
    text = json.dumps(value, default=str)
    typer.echo(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2))  # NaN is no JSON


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, aligned plain columns in a pipe."""
    if sys.stdout.isatty():
        table = Table(*columns)
        for row in rows:
            table.add_row(*map(Text, row))  # Text: brackets in a cell are no markup
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(key if value is None else f"{key}={_text(value)}" for key, value in values.items())


def _text(value: Any, digits: str = ".6g") -> str:
    return f"{value:{digits}}" if isinstance(value, float) else str(value)


bench_app = typer.Typer(help="Compare methods fairly: many runs, each made once.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Spec = Annotated[str, typer.Argument(help="A TOML file of [[experiment]] blocks, or a table of `bench table`.")]
ResultsDir = Annotated[str, typer.Option("--results", help="Folder of the results, one file a run.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Cells of a table that go by this name (dataset, method, …); again: and; a comma: or."),
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds of a table's cells, by default as the paper has.")]


@bench_app.command(
    "run",
    epilog=_examples(
        "bench run sweep.toml",
        "bench run ln-table1 --only mnist",
        "bench run sweep.toml --engine processes --workers 8",
        "bench run sweep.toml --engine ray --address auto --gpus 0.25",
    ),
)
@_refusals()
def bench_run(
    spec: Spec,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Begin those anew that failed.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    workers: Annotated[int | None, _machine("Processes at once, by default as many as have room.", min=1)] = None,
    threads: Annotated[int, _machine("Threads of each run; another number may change its last digits.", min=1)] = 1,
    accelerator: Annotated[str, _machine("auto, cpu or cuda.")] = "auto",
    address: Annotated[str | None, _machine("Of a Ray cluster, or auto; by default one is started.")] = None,
    gpus: Annotated[float | None, _machine("What a run has of a GPU under Ray.", min=0)] = None,
) -> None:
    """Run what has no result yet of a file or a table; what was interrupted goes on where it stopped."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # else runs side by side share eight queues
    from noiseproof.bench import run_all
    from noiseproof.train import Interrupted

    experiments = _experiments(spec, only, seeds, data_dir)
    try:
        found = run_all(
            experiments, results, engine=engine, workers=workers, threads=threads, accelerator=accelerator,
            data_dir=data_dir, retry_failed=retry_failed, address=address, gpus=gpus, progress=_tell, checked=True,
        )  # fmt: skip
    except Interrupted as stopped:
        _say(f"{stopped} The same command goes on.")
        raise typer.Exit(130) from None
    if as_json:
        return _show_json(list(found.values()))
    failed = sum(result["status"] == "failed" for result in found.values())
    return typer.echo(f"{len(found) - failed} runs done, {failed} failed, in {results}")


def _tell(experiment: Experiment, result: Mapping[str, Any], done: int, total: int) -> None:
    what = f"{experiment.dataset}, {experiment.noise}, {experiment.method}, seed {experiment.seed}"
    found = result["error"] or f"{_headline(result['last'])}, {_duration(result['seconds'])}"
    typer.echo(f"{done}/{total} {result['key']} {what}: {found}", err=True)


@bench_app.command("status", epilog=_examples("bench status sweep.toml", "bench status sweep.toml --json"))
@_refusals()
def bench_status(
    spec: Spec,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say which experiments of a file or a table are done, failed, running, interrupted, or still to do."""
    from collections import Counter

    from noiseproof.bench import status

    found = status(_experiments(spec, only, seeds, data_dir), results)
    if as_json:
        return _show_json([{"key": e.key, "status": state, **e.as_dict()} for e, state in found.items()])
    rows = [(e.key, state, e.dataset, e.noise, e.method, str(e.seed)) for e, state in found.items()]
    _show(("key", "status", "dataset", "noise", "method", "seed"), rows)
    return typer.echo(", ".join(f"{count} {state}" for state, count in Counter(found.values()).items()))


def _experiments(spec: str, only: Sequence[str] | None, seeds: int | None, data_dir: str | None) -> list[Experiment]:
    """The experiments of a file, or those that a table of the papers needs."""
    from noiseproof.bench import check, load_experiments
    from noiseproof.bench.tables import list_tables, load_table

    if spec not in list_tables():
        if only or seeds:
            raise ValueError(f"Expected a table of `noiseproof bench table` for --only and --seeds, got {spec!r}.")
        return load_experiments(spec, data_dir=data_dir)
    experiments = load_table(spec).only(*only or ()).experiments(range(seeds) if seeds else None)
    check(experiments, data_dir)
    return experiments


@bench_app.command(
    "table",
    epilog=_examples(
        "bench table",
        "bench table ln-table1 --only mnist",
        "bench table sln-table1 --only SLN,SLN-MO --only symmetric --format markdown",
    ),
)
@_refusals()
def bench_table(
    id: Annotated[str | None, typer.Argument(help="A table of the papers; without one they are listed.")] = None,
    results: ResultsDir = "results",
    only: Only = None,
    seeds: Seeds = None,
    format: Annotated[str, typer.Option(help="text, markdown, latex or html.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Show a table of the papers, ours beside what they published; `bench run ID` makes the runs.

    z is the difference of the means in standard errors; what the paper has in bold is between asterisks.
    """
    from noiseproof.bench import read_results
    from noiseproof.bench.tables import compare, heading, lines, list_tables, load_table, notes, render

    if id is None:
        tables = [load_table(name) for name in list_tables()]
        listed = [(t.id, t.paper, t.number, t.title, str(len(t.cells)), str(len(t.experiments()))) for t in tables]
        head = ("id", "paper", "table", "what it shows", "cells", "runs")
        return _show_json([dict(zip(head, row, strict=True)) for row in listed]) if as_json else _show(head, listed)
    table = load_table(id).only(*only or ())
    compared = compare(table, read_results(results), range(seeds) if seeds else None)
    if as_json:
        return _show_json([one.as_dict() for one in compared])
    if format != "text":
        return typer.echo(render(table, compared, format), nl=False)  # type: ignore[arg-type]  # it refuses others
    columns, rows = lines(compared, bold="*{}*".format)
    typer.echo(heading(table))
    _show(columns, rows)
    return typer.echo("\n".join(notes(table, compared)))


@bench_app.command(
    "compare",
    epilog=_examples(
        "bench compare --data my.csv --label kind",
        "bench compare --data my.csv --label kind --test checked.csv --methods ce,gce:q=0.5,sln-mo --seeds 10",
        "bench compare --data mails.csv --text body --label kind --epochs 20",
        "bench compare --data digits --noise symmetric:rate=0.4 --json",
    ),
)
@_refusals()
def bench_compare(
    data: Annotated[str, typer.Option(help="A .csv, .tsv or .parquet file; without --label a dataset by name.")],
    label: Annotated[str | None, typer.Option(help="The column of the labels.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of texts, where the input is one.")] = None,
    test: Annotated[str | None, typer.Option(help="A file to test on, else a fifth of the rows is held out.")] = None,
    missing: Annotated[str, typer.Option(help="refuse or impute missing values of a table.")] = "refuse",
    noise: Annotated[str, typer.Option(help="Noise to put on the training labels, which may have their own.")] = "none",
    methods: Annotated[str | None, typer.Option(help="Methods between commas, by default seven of all kinds.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    results: ResultsDir = "results",
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    data_dir: DataDir = None,
    as_json: AsJson = False,
    model: Annotated[str, _training("A backbone of `noiseproof models`.")] = "auto",
    epochs: Annotated[int, _training("Passes over the data.", min=1)] = 100,
    workers: Annotated[int | None, _machine("Processes at once, by default as many as have room.", min=1)] = None,
    accelerator: Annotated[str, _machine("auto, cpu or cuda.")] = "auto",
) -> None:
    """Rank methods on your own data: accuracy after the last epoch, what chance makes of it, time and memory.

    A tenth of the training rows is held out as noisy validation set, as in the papers. Run again, it goes on.
    """
    from noiseproof.bench.compare import METHODS, compare, own_table
    from noiseproof.train import Interrupted, Settings

    notes: list[str] = []
    dataset = data
    if label is not None:
        options: dict[str, Any] = {"text": text} if text is not None else {"missing": missing}
        dataset, notes = own_table(data, label, results, test=test, **options)
    elif test or text:
        raise ValueError("Expected --label, the column of the labels, beside --test and --text, got none.")
    try:
        found = compare(
            dataset, _method_list(methods) if methods else METHODS, results_dir=results, noise=noise, seeds=seeds,
            settings=Settings(model=model, epochs=epochs), data_dir=data_dir, accelerator=accelerator, engine=engine,
            workers=workers, progress=lambda run, *rest: _tell(dataclasses.replace(run, dataset=data), *rest),
        )  # fmt: skip
    except Interrupted as stopped:
        _say(f"{stopped} The same command goes on.")
        raise typer.Exit(130) from None
    notes += found.notes
    if as_json:
        places = [dataclasses.asdict(place) for place in found.places]
        return _show_json({"ranking": places, "notes": notes, "recommendation": found.recommendation})
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
    _show(("method", "accuracy", "95 %", "p against the first", "seeds", "s a run", "MB"), rows)
    return typer.echo("\n".join([*notes, found.recommendation]))


def _method_list(text: str) -> list[str]:
    """Specs between commas; one before ``key=value`` belongs to the spec."""
    from noiseproof.core.registry import split_outside_brackets

    specs: list[str] = []
    for part in split_outside_brackets(text, ","):
        if specs and re.match(r"\s*\w+\s*=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return specs


@bench_app.command(
    "search",
    epilog=_examples(
        "bench search 'gce:q=[0.1,0.3,0.5]' --noise symmetric:rate=0.4",
        "bench search 'ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1]' --dataset mnist --protocol 000",
        "bench search 'sln:sigma=[0.1,0.2,0.5,1]' --dataset cifar10 --protocol 001 --full",
    ),
)
@_refusals()
def bench_search(
    grid: Annotated[str, typer.Argument(help="A method with lists of values, whose product is searched.")],
    dataset: Annotated[str, typer.Option(help="A dataset of `noiseproof data list`, or your own.")] = "digits",
    noise: Annotated[str, typer.Option(help="Noise to put on the training labels.")] = "none",
    validation: Annotated[float, typer.Option(min=0, help="Share of the noisy rows to choose by.")] = 0.1,
    full: Annotated[bool, typer.Option("--full", help="Train what was chosen on all rows, as 001 does.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what was chosen; the search has the first seed.")] = 5,
    results: ResultsDir = "results",
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    data_dir: DataDir = None,
    as_json: AsJson = False,
    protocol: Annotated[str | None, _training("As this paper (000 … 004) trains on this dataset.")] = None,
    model: Annotated[str | None, _training("A backbone of `noiseproof models`.")] = None,
    epochs: Annotated[int | None, _training("Passes over the data.", min=1)] = None,
    workers: Annotated[int | None, _machine("Processes at once, by default as many as have room.", min=1)] = None,
    accelerator: Annotated[str, _machine("auto, cpu or cuda.")] = "auto",
) -> None:
    """Choose a method's parameters by its accuracy on noisy rows held out, with one seed; then train with all seeds."""
    from noiseproof.bench import Experiment
    from noiseproof.bench.search import search
    from noiseproof.train import Interrupted, Settings
    from noiseproof.train.protocols import protocol as protocol_of

    said: dict[str, Any] = {"model": model, "epochs": epochs}
    settings = protocol_of(protocol, dataset.partition(":")[0]) if protocol else Settings()
    settings = dataclasses.replace(settings, **{name: value for name, value in said.items() if value is not None})
    try:
        found = search(
            Experiment(dataset, noise, grid, settings=settings, validation=validation, paper=protocol), results,
            seeds=seeds, full=full, engine=engine, workers=workers, accelerator=accelerator, data_dir=data_dir,
            progress=_tell,
        )  # fmt: skip
    except Interrupted as stopped:
        _say(f"{stopped} The same command goes on.")
        raise typer.Exit(130) from None
    if as_json:
        return _show_json({**dataclasses.asdict(found), "mean": found.mean, "std": found.std})
    points = sorted(found.validation.items(), key=lambda point: -(point[1] or 0))
    _show(("method", "noisy validation"), [(m, "failed" if a is None else f"{a:.4f}") for m, a in points])
    spread = "" if found.std is None else f" ± {found.std:.4f} (standard deviation)"
    failed = f", {found.failed} runs failed" * (found.failed > 0)
    return typer.echo(f"{found.method}: test {found.mean:.4f}{spread}, {len(found.accuracies)} seeds{failed}")
