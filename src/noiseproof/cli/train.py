"""`noiseproof train` and `noiseproof demo`."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from noiseproof.cli import options
from noiseproof.cli.data import check_foreign
from noiseproof.cli.main import TRAINING, YOUR_DATA, app
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    duration,
    echo,
    examples,
    refusals,
    say,
    show,
    show_json,
    training_exits,
    training_progress,
)
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.loggers.logger import Logger
    from torch import Tensor

    from noiseproof.data import Dataset
    from noiseproof.demo import Step
    from noiseproof.train import Result, Settings, Task

SHOWN = (
    "epoch",
    "test_accuracy",
    "test_accuracy_ensemble",
    "test_top5",
    "validation_accuracy",
    "clean_validation_accuracy",
    "train_accuracy",
    "train_accuracy_clean",
    "false_label_accuracy",
)
LONGEST = 200  # bytes of a folder's name; disks take 255


@app.command(
    epilog=examples(
        "train --noise symmetric:rate=0.4 --method gce",
        "train --dataset cifar10 --noise asymmetric-cifar10:rate=0.4 --method sln-mo-lc@sln"
        " --protocol sln",
        "train --dataset table:table=mine.csv,label=kind --method gce:q=0.7",
        "train --dataset cifar100 --method ce --devices 8 --nodes 4 --precision bf16",
        "train --dataset cifar10 --method ln --dry-run",
        "train --model mlp:hidden=[64] --epochs 20 --batch-size 64 --optimizer adam:lr=1e-3"
        " --schedule cosine",
        "train --method sln-mo --seed 1 --validation 0.2 --clip 1 --samples --out runs/mine --log"
        " tensorboard --json",
        "train --method ce --out runs/mine --no-resume --checkpoint-steps 100 --threads 1"
        " --accelerator cpu",
        "train --dataset cifar10 --data-dir /srv/data --noise open-set:rate=0.4 --foreign cifar100"
        " --compile",
        "train --dataset folder:path=photos --method gce --workers 8 --devices 2 --strategy ddp",
        "train --dataset folder:path=photos --model efficientnet-lite0 --finetune probe"
        " --method gce",
    ),
    rich_help_panel=TRAINING,
)
@refusals()
def train(
    dataset: options.Dataset = "digits",
    noise: options.Noise = "none",
    method: options.Method = "ce",
    seed: options.Seed = 0,
    out: options.Out = None,
    resume: options.Resume = True,
    samples: options.Samples = False,
    log: options.Log = None,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    foreign: options.Foreign = None,
    protocol: options.Protocol = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    optimizer: options.Optimizer = None,
    schedule: options.Schedule = None,
    clip: options.Clip = None,
    finetune: options.Finetune = None,
    validation: options.Validation = 0.1,
    accelerator: options.AnyAccelerator = "auto",
    devices: options.Devices = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32",
    threads: options.Threads = None,
    compiled: options.Compile = False,
    workers: options.Readers = 0,
    checkpoint_steps: options.CheckpointSteps = None,
) -> None:
    """Train a classifier on noisy labels by any method; a run that was stopped resumes when it is
    started again.
    """
    from noiseproof.core.cluster import fixed_threads
    from noiseproof.data import get_dataset
    from noiseproof.train.settings import make_fabric

    _prepare_process()
    check_foreign(foreign, noise)
    data = get_dataset(dataset, data_dir)
    _describe(data)
    settings = _settings(
        protocol,
        data.name,
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        schedule=schedule,
        clip=clip,
        workers=workers,
        checkpoint_steps=checkpoint_steps,
        compile=compiled,
    )
    method = _finetuned(method, finetune, settings)
    run = {"dataset": dataset, "noise": noise, "method": method, "seed": seed}
    chosen = {
        **_changed(settings),
        "validation": validation,
        "precision": precision,
        "paper": protocol,
    }
    folder = _folder(
        out, run, chosen, {"--samples": samples, "--checkpoint-steps": checkpoint_steps}
    )
    loggers = _loggers(log or (), folder)
    fabric = make_fabric(
        precision, accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy
    )
    fabric.launch()
    resumes = f" The same command resumes from {folder}." if folder and not dry_run else ""
    with fixed_threads(threads), training_exits(then=resumes):
        make_task = partial(_task, data, noise, seed, validation, protocol, foreign, data_dir)
        predictions = _predictions(
            data, noise, method, settings, seed, fabric, folder, dry_run, make_task
        )
        task = make_task(predictions)
        if dry_run:
            return _show_estimate(task, method, settings, fabric, as_json)
        result = _train(task, run, settings, fabric, loggers, folder, resume, samples)
    return (
        _show_result(result, run, task.train.rate, folder, as_json)
        if fabric.is_global_zero
        else None
    )


def _describe(data: Dataset) -> None:
    """Say what was left out or filled in, and whether test rows are among the training rows."""
    from noiseproof.data.base import find_copies

    for note in data.notes:
        say(note)
    copies, beyond_chance = find_copies(data)
    if beyond_chance:
        say(f"{copies}: their accuracy is not that of new rows.")


def _prepare_process() -> None:
    import lightning_fabric  # noqa: F401  # its messages would get our prefix if it were imported later

    logging.basicConfig(format="noiseproof: %(message)s")
    logging.getLogger("noiseproof").setLevel(logging.INFO)  # what stays eager on a GPU, and why


def _settings(paper: str | None, dataset: str, *, batch_size: str | None, **given: Any) -> Settings:
    """Return the protocol of ``paper``, or the defaults, updated by the options that are given."""
    from noiseproof.train import Settings
    from noiseproof.train.protocols import protocol

    given["batch_size"] = int(batch_size) if batch_size and batch_size.isdigit() else batch_size
    base = protocol(paper, dataset) if paper else Settings()
    return dataclasses.replace(
        base, **{name: value for name, value in given.items() if value is not None}
    )


def _finetuned(method: str, finetune: str | None, settings: Settings) -> str:
    """Return the method with the strategy that ``--finetune`` names; a third of the epochs are
    those of the head.
    """
    from noiseproof.core.checks import check_word

    if finetune is None:
        return method
    check_word("--finetune", finetune, ("probe", "frozen", "whole"))
    name, _, options = settings.model.partition(":")
    has_weights = (
        name == "efficientnet-lite0"
        or "pretrained=true" in options
        or "checkpoint_path=" in options
    )
    if not has_weights:
        raise ValueError(
            f"Expected a pretrained --model for --finetune, got {settings.model}. Choose"
            " efficientnet-lite0, or timm:NAME,pretrained=true."
        )
    if finetune == "whole":
        return method
    return (
        f"{method} & freeze"
        if finetune == "frozen"
        else f"{method} & freeze:until={max(1, settings.epochs // 3)}"
    )


def _changed(settings: Settings) -> dict[str, Any]:
    default = type(settings)().as_dict()
    return {name: value for name, value in settings.as_dict().items() if value != default[name]}


def _folder(
    out: str | None,
    run: Mapping[str, Any],
    chosen: Mapping[str, Any],
    need_one: Mapping[str, object],
) -> Path | None:
    """Return the folder of a run: --out, or one in runs/ named by the run and what it was
    ``chosen`` to be.

    None for ``--out none``.
    """
    if out == "none":
        for option in (option for option, given in need_one.items() if given):
            raise ValueError(
                f"Expected a folder beside {option}, got --out none, which writes no files. Leave"
                " one out."
            )
        return None
    usual = {"validation": 0.1, "precision": "32", "paper": None}
    parts = [f"{key}={value}" for key, value in chosen.items() if value != usual.get(key)]
    name = _file_name(run["dataset"], run["noise"], run["method"], f"seed{run['seed']}", *parts)
    return Path(out or Path("runs", name))


def _loggers(names: Sequence[str], folder: Path | None) -> list[Logger]:
    from noiseproof.train.logs import make_loggers

    loggers = make_loggers(names, folder or Path())
    if loggers and folder is None:
        raise ValueError(f"Expected a folder to log to {', '.join(names)} in, got --out none.")
    return loggers


def _task(
    data: Dataset,
    noise: str,
    seed: int,
    validation: float,
    paper: str | None,
    foreign: str | None,
    data_dir: str | None,
    predictions: Tensor | None,
) -> Task:
    from noiseproof.bench.experiment import foreign_images
    from noiseproof.train import prepare

    return prepare(
        data,
        noise,
        seed=seed,
        validation=validation,
        paper=paper,
        features=predictions,
        foreign=foreign_images(foreign, data_dir),
        data_dir=data_dir,
    )


def _train(
    task: Task,
    run: Mapping[str, Any],
    settings: Settings,
    fabric: Fabric,
    loggers: Sequence[Logger],
    folder: Path | None,
    resume: bool,
    samples: bool,
) -> Result:
    from noiseproof.train import train
    from noiseproof.train.logs import describe

    fabric.loggers.extend(loggers)  # only now: what went before is not the run
    describe(loggers, {**run, **settings.as_dict()})
    with training_progress(settings.epochs, fabric.is_global_zero) as progress:
        return train(
            task,
            run["method"],
            settings,
            seed=run["seed"],
            fabric=fabric,
            out=folder,
            resume=resume,
            samples=samples,
            progress=progress,
        )


def _show_result(
    result: Result, run: Mapping[str, Any], rate: float | None, folder: Path | None, as_json: bool
) -> None:
    from noiseproof.train.loop import EPOCHS

    if not result.new_steps:
        say(
            f"finished earlier: nothing was trained, this is the record in {folder}. Choose another"
            " --out to train."
        )
    if as_json:
        epochs = {name: getattr(result, name) for name in EPOCHS}
        return show_json(
            {**run, "rate": rate, "folder": folder, "stopped": result.stopped, **epochs}
        )
    # else always 1
    said = [name for name in SHOWN if name != "test_top5" or result.run.num_classes > 5]
    columns = [name for name in said if not math.isnan(result.last.get(name, math.nan))]
    rows = [
        (words, *(str(metrics[c]) if c == "epoch" else f"{metrics[c]:.4f}" for c in columns))
        for words, metrics in ((words, getattr(result, name)) for name, words in EPOCHS.items())
        if metrics
    ]
    show(("", *(column.replace("_", " ") for column in columns)), rows)
    for line in (
        f"stopped early: {result.stopped}" * bool(result.stopped),
        f"record: {folder}" * bool(folder),
    ):
        if line:
            echo(line)
    return None


def _predictions(
    data: Dataset,
    noise: str,
    method: str,
    settings: Settings,
    seed: int,
    fabric: Fabric,
    folder: Path | None,
    dry_run: bool,
    make_task: Callable[[Tensor], Task],
) -> Tensor | None:
    """Return predictions of a model trained on clean labels, for noise that needs them; 1/K in a
    dry run.
    """
    import torch

    from noiseproof.noise import get_noise
    from noiseproof.train import get_method
    from noiseproof.train.instance import averaged_predictions

    if get_noise(noise).needs != "predictions":
        return None
    uniform = torch.full((len(data.train), data.num_classes), 1 / data.num_classes)
    if dry_run:
        say(f"not estimated: a training on clean labels, for the predictions that {noise} needs")
        return uniform
    # what would be refused is not worth a training
    get_method(method, make_task(uniform), settings)
    say(f"training on clean labels first, for the predictions that {noise} needs")
    with training_progress(settings.epochs, fabric.is_global_zero) as progress:
        return averaged_predictions(
            data,
            settings,
            seed=seed,
            fabric=fabric,
            out=folder and folder / "clean",
            progress=progress,
        )


def _show_estimate(
    task: Task, method: str, settings: Settings, fabric: Fabric, as_json: bool
) -> None:
    from noiseproof.train.estimate import estimate

    expected = estimate(task, method, settings, fabric=fabric)
    if not fabric.is_global_zero:
        return None
    if as_json:
        return show_json({**dataclasses.asdict(expected), "total_memory": expected.total_memory})
    rows = [
        ("time", duration(expected.seconds)),
        ("steps", f"{expected.steps:,} of {expected.seconds_per_step * 1e3:.3g} ms"),
        ("weights", f"{expected.weights:,}"),
        *((f"memory, {name}", f"{size / 1e6:,.1f} MB") for name, size in expected.memory.items()),
        ("memory, all", f"{expected.total_memory / 1e6:,.1f} MB"),
    ]
    return show(("estimate", "from a few steps"), rows)


def _file_name(*parts: str) -> str:
    """Join ``parts`` to a file name; if it is too long for a disk, to its beginning and a hash of
    all of it.
    """
    name = "_".join(re.sub(r"[^\w.=+*-]+", "-", part) for part in parts)
    if len(name.encode()) <= LONGEST:
        return name
    return (
        name.encode()[: LONGEST - 17].decode(errors="ignore")
        + "_"
        + hashlib.sha256(name.encode()).hexdigest()[:16]
    )


@app.command(
    epilog=examples("demo", "demo --out story --no-browser", "demo --seed 1 --epochs 30 --json"),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def demo(
    out: Annotated[
        str | None,
        typer.Option(
            help="New or empty folder for what it writes, by default runs/demo, runs/demo-2, …."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed of the split, the wrong labels, the weights and the batches."
        ),
    ] = 0,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of each training, at most.")] = 60,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser", help="Open the page to review, where there is a screen."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Train on digits of which 40 % are mislabelled, audit, measure and correct the labels, and
    train again.

    It takes about a minute, needs no network, and leaves a page of the trainings, a page to review
    the issues, and the corrected table. Last, it audits the digits with their original labels.
    """
    import webbrowser
    from itertools import count

    import torch

    from noiseproof.demo import demo

    # A second thread brings matrices of this size a third, and costs tenfold where its core is
    # busy.
    torch.set_num_threads(1)
    names = (Path("runs", "demo" if n == 1 else f"demo-{n}") for n in count(1))
    steps: dict[str, list[Any]] = {}
    busy = Console(stderr=True).status("working …") if sys.stderr.isatty() else nullcontext()
    with busy:
        for step in demo(
            out or next(name for name in names if not name.exists()), epochs=epochs, seed=seed
        ):
            title, *lines = _demo_lines(step)
            if not as_json:
                echo("\n".join([*([title] if type(step).__name__ not in steps else []), *lines]))
            steps.setdefault(type(step).__name__, []).append(step)
    if as_json:
        show_json(
            {
                name.lower(): [dataclasses.asdict(step) for step in kind]
                for name, kind in steps.items()
            }
        )
        return
    command = f"noiseproof review {steps['Audited'][0].folder}"
    echo(
        "next\n"
        f"  {command:<40}     decide on these labels in the browser\n"
        "  noiseproof audit YOUR.csv --label COLUMN     the same with your data;"
        " noiseproof audit -h: texts, pictures, arrays"
    )
    has_screen = sys.platform in ("win32", "darwin") or bool(
        {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    )
    if browser and sys.stdout.isatty() and has_screen:
        webbrowser.open(steps["Written"][0].review.absolute().as_uri())


def _demo_lines(step: Step) -> tuple[str, ...]:
    """Return a title for steps of this kind, and the lines that describe this one."""
    from noiseproof.demo import Audited, Reviewed, Trained, Written

    if isinstance(step, Trained):
        return (
            "train: digits, 40 % of the training labels wrong; accuracy on clean test labels",
            (
                f"  {step.method:<12} {step.accuracy:.3f}, repeats {step.memorised:4.0%} of the"
                f" wrong labels ({step.seconds:.1f} s)"
            ),
        )
    if isinstance(step, Audited):
        low, high = step.interval
        return (
            "audit: which labels are wrong?",
            (
                f"  {step.issues} of {step.rows} called wrong, rate {step.noise_rate:.1%}"
                f" ({low:.1%} to {high:.1%})"
            ),
            (
                f"  {step.found} of these are wrong, of {step.wrong} wrong labels in all"
                f" ({step.seconds:.1f} s)"
            ),
            f"  {step.folder}",
        )
    if isinstance(step, Reviewed):
        return (
            (
                "measure: a reviewer who knows the truth decides on a random sample of"
                f" {step.decisions} digits"
            ),
            (
                f"  {step.rate.as_share()} of the labels are wrong: an interval that holds for any"
                " kind of errors"
            ),
            (
                f"  {step.issues} called wrong now, {step.found} of these are wrong"
                f" ({step.seconds:.1f} s)"
            ),
        )
    if isinstance(step, Written):
        return (
            "pages, to open in a browser",
            f"  {step.analysis}: what the methods did",
            f"  {step.review}: the issues, to decide on with the keyboard ({step.seconds:.1f} s)",
        )
    return _correction_lines(step)


def _correction_lines(step: Step) -> tuple[str, ...]:
    from noiseproof.demo import Applied, Doubted, Mended

    if isinstance(step, Applied):
        return (
            (
                "correct: apply the decisions, and suggestions that are more likely right than the"
                " given label"
            ),
            *(f"  expected: {part}" for part in step.expected.split("; ")),
            (
                f"  {counted(step.changed, 'label')} changed: {step.wrong_before} wrong before,"
                f" {step.wrong_after} now"
            ),
            f"  {step.path}",
        )
    if isinstance(step, Doubted):
        return (
            "real doubts: the same digits with their original labels",
            (
                f"  {step.issues} of {step.rows} called wrong; the most doubtful ones"
                f" ({step.seconds:.1f} s):"
            ),
            *(
                f"  row {row} is labelled {given} and looks like {other}"
                for row, given, other in step.worst
            ),
            f"  {step.page}",
        )
    assert isinstance(step, Mended)
    return (
        "train again: accuracy before and after the correction",
        f"  {step.method:<12} {step.before:.3f} → {step.after:.3f}",
    )
