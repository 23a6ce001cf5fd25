"""`noiseproof train` and `noiseproof demo`."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import re
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from noiseproof.cli.data import check_foreign
from noiseproof.cli.main import app
from noiseproof.cli.show import (
    AsJson,
    DataDir,
    duration,
    examples,
    on_machine,
    on_training,
    refusals,
    say,
    show,
    show_json,
    training_progress,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_fabric import Fabric
    from torch import Tensor

    from noiseproof.data import Dataset
    from noiseproof.demo import Step
    from noiseproof.train import Settings, Task

SHOWN = (
    "epoch", "test_accuracy", "test_accuracy_ensemble", "test_top5", "validation_accuracy", "train_accuracy",
    "train_accuracy_clean", "false_label_accuracy",
)  # fmt: skip
LONGEST = 200  # bytes of a folder's name; disks take 255


@app.command(
    epilog=examples(
        "train --noise symmetric:rate=0.4 --method gce",
        "train --dataset cifar10 --noise asymmetric-cifar10:rate=0.4 --method sln-mo-lc@sln --protocol sln",
        "train --dataset table:table=mine.csv,label=kind --method gce:q=0.7",
        "train --dataset cifar100 --method ce --devices 8 --nodes 4 --precision bf16",
        "train --dataset cifar10 --method ln --dry-run",
        "train --model mlp:hidden=[64] --epochs 20 --batch-size 64 --optimizer adam:lr=1e-3 --schedule cosine",
        "train --method sln-mo --seed 1 --validation 0.2 --clip 1 --samples --out runs/mine --log tensorboard --json",
        "train --method ce --out runs/mine --no-resume --checkpoint-steps 100 --threads 1 --accelerator cpu",
        "train --dataset cifar10 --data-dir /srv/data --noise open-set:rate=0.4 --foreign cifar100 --compile",
        "train --dataset folder:path=photos --method gce --workers 8 --devices 2 --strategy ddp",
    )
)
@refusals()
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
        bool, typer.Option("--samples", help="Record margin, weights and prediction of every sample.")
    ] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to csv, tensorboard, mlflow or wandb; may be given again.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    foreign: Annotated[str | None, typer.Option(help="The dataset whose images open-set noise puts in.")] = None,
    protocol: Annotated[
        str | None, on_training("As this paper trains on this dataset: ln, sln, bias, nal, curriculum.")
    ] = None,
    model: Annotated[str | None, on_training("A backbone of `noiseproof models`.")] = None,
    epochs: Annotated[int | None, on_training("Passes over the data.", min=1)] = None,
    batch_size: Annotated[str | None, on_training("Rows of a step, or full.")] = None,
    optimizer: Annotated[str | None, on_training("sgd:lr=0.05,momentum=0.9, adam:lr=1e-3, …")] = None,
    schedule: Annotated[str | None, on_training("constant, step:at=[0.5,0.75], exponential, cosine, linear.")] = None,
    clip: Annotated[float | None, on_training("Largest gradient norm.")] = None,
    validation: Annotated[float, on_training("Share of the noisy rows to hold out.", min=0)] = 0.1,
    accelerator: Annotated[str, on_machine("auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, on_machine("Processes on each machine.", min=1)] = 1,
    nodes: Annotated[int, on_machine("Machines.", min=1)] = 1,
    strategy: Annotated[str, on_machine("auto, ddp or fsdp (experimental).")] = "auto",
    precision: Annotated[str, on_machine("32, bf16 or 64.")] = "32",
    threads: Annotated[int | None, on_machine("Threads of each process, by default torch's choice.", min=1)] = None,
    compiled: Annotated[
        bool, on_machine("Train through torch.compile: a slow start, faster steps.", flag="--compile")
    ] = False,
    workers: Annotated[int, on_machine("Processes that read files.", min=0)] = 0,
    checkpoint_steps: Annotated[int | None, on_machine("Save every so many steps, too.", min=1)] = None,
) -> None:
    """Train a classifier on noisy labels by any method; a run that was stopped goes on when it is started again."""
    from pathlib import Path

    import torch

    from noiseproof.bench.experiment import foreign_images
    from noiseproof.data import get_dataset
    from noiseproof.train import Diverged, Interrupted, Settings, prepare, train
    from noiseproof.train.logs import describe, make_loggers
    from noiseproof.train.protocols import protocol as protocol_of
    from noiseproof.train.settings import make_fabric

    logging.basicConfig(format="noiseproof: %(message)s")
    logging.getLogger("noiseproof").setLevel(logging.INFO)  # what stays eager on a GPU, and why
    if threads:
        torch.set_num_threads(threads)
    check_foreign(foreign, noise)
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
    if folder is None and (samples or checkpoint_steps):
        what = "--samples" if samples else "--checkpoint-steps"
        raise ValueError(f"Expected a folder beside {what}, got --out none, where nothing is written. Leave one out.")
    fabric = make_fabric(precision, accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy)
    fabric.launch()
    try:
        predictions = _predictions(data, noise, settings, seed, fabric, folder, dry_run)
        task = prepare(
            data, noise, seed=seed, validation=validation, paper=protocol, features=predictions,
            foreign=foreign_images(foreign, data_dir), data_dir=data_dir,
        )  # fmt: skip
        if dry_run:
            return _show_estimate(task, method, settings, fabric, as_json)
        fabric.loggers.extend(loggers)  # only now: what went before is not the run
        describe(loggers, {"dataset": dataset, "noise": noise, "method": method, "seed": seed, **settings.as_dict()})
        with training_progress(settings.epochs, fabric.is_global_zero) as progress:
            result = train(
                task, method, settings, seed=seed, fabric=fabric, out=folder, resume=resume, samples=samples,
                progress=progress,
            )  # fmt: skip
    except Interrupted as stopped:
        say(f"{stopped}" + (f" The same command goes on from {folder}." if folder and not dry_run else ""))
        raise typer.Exit(130) from None
    except Diverged as error:
        say(error)
        raise typer.Exit(3) from None
    if not fabric.is_global_zero:
        return None
    if not result.new_steps:
        say(f"finished earlier: nothing was trained, this is the record in {folder}. Another --out trains anew.")
    found = {"last": result.last, "best by noisy validation": result.best, "oracle": result.oracle}
    if as_json:
        return show_json({
            "dataset": dataset, "noise": noise, "rate": task.train.rate, "method": method, "seed": seed,
            "folder": folder, "stopped": result.stopped, **{name.split()[0]: row for name, row in found.items()},
        })  # fmt: skip
    columns = [name for name in SHOWN if not math.isnan(result.last.get(name, math.nan))]
    rows = [
        (name, *(str(row[c]) if c == "epoch" else f"{row[c]:.4f}" for c in columns))
        for name, row in found.items()
        if row
    ]
    show(("", *(column.replace("_", " ") for column in columns)), rows)
    for line in (f"stopped early: {result.stopped}" * bool(result.stopped), f"record: {folder}" * bool(folder)):
        if line:
            typer.echo(line)
    return None


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
        say(f"not estimated: a training on clean labels, for the predictions that {noise} needs")
        return torch.full((len(data.train), data.num_classes), 1 / data.num_classes)
    say(f"training on clean labels first, for the predictions that {noise} needs")
    with training_progress(settings.epochs, fabric.is_global_zero) as progress:
        return averaged_predictions(
            data, settings, seed=seed, fabric=fabric, out=folder and folder / "clean", progress=progress
        )


def _show_estimate(task: Task, method: str, settings: Settings, fabric: Fabric, as_json: bool) -> None:
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
    """A name made of ``parts``; of one that is too long for a disk, the beginning and a hash of all of it."""
    name = "_".join(re.sub(r"[^\w.=+*-]+", "-", part) for part in parts)
    if len(name.encode()) <= LONGEST:
        return name
    return name.encode()[: LONGEST - 17].decode(errors="ignore") + "_" + hashlib.sha256(name.encode()).hexdigest()[:16]


@app.command(epilog=examples("demo", "demo --out story", "demo --seed 1 --epochs 30 --json"))
@refusals()
def demo(
    out: Annotated[
        str | None, typer.Option(help="New or empty folder for what it writes, by default runs/demo, runs/demo-2, ….")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the split, the wrong labels, the weights and the batches.")
    ] = 0,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of each training, at most.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Train on digits of which 40 % are mislabelled, audit the labels, correct them, and train again.

    It takes about a minute, needs no network, and leaves a page of the trainings, a page to review the issues, and the
    corrected table.
    """
    from itertools import count
    from pathlib import Path

    import torch

    from noiseproof.demo import demo

    # A second thread brings matrices of this size a third, and costs tenfold where its core is busy.
    torch.set_num_threads(1)
    names = (Path("runs", "demo" if n == 1 else f"demo-{n}") for n in count(1))
    found: dict[str, list[Any]] = {}
    busy = Console(stderr=True).status("working …") if sys.stderr.isatty() else nullcontext()
    with busy:
        for step in demo(out or next(name for name in names if not name.exists()), epochs=epochs, seed=seed):
            title, *lines = _tell(step)
            if not as_json:
                typer.echo("\n".join([*([title] if type(step).__name__ not in found else []), *lines]))
            found.setdefault(type(step).__name__, []).append(step)
    if as_json:
        show_json({name.lower(): [dataclasses.asdict(step) for step in steps] for name, steps in found.items()})


def _tell(step: Step) -> tuple[str, ...]:
    """A title for steps of this kind, and what is to say of this one."""
    from noiseproof.demo import Audited, Corrected, Trained, Written

    if isinstance(step, Trained):
        return (
            "train: digits of which 40 % bear a wrong label, accuracy on others with right ones",
            f"  {step.method:<12} {step.accuracy:.3f}, repeats {step.memorised:4.0%} of the wrong labels "
            f"({step.seconds:.1f} s)",
        )
    if isinstance(step, Audited):
        low, high = step.interval
        return (
            "audit: which labels are wrong?",
            f"  {step.issues} of {step.rows}, says the audit: about {step.noise_rate:.1%} ({low:.1%} to {high:.1%})",
            f"  {step.found} of them are indeed, of {step.wrong} wrong ones in all ({step.seconds:.1f} s)",
            f"  {step.folder}",
        )
    if isinstance(step, Written):
        return (
            "pages, to open in a browser",
            f"  {step.analysis}: what the methods did",
            f"  {step.review}: the issues, to decide on with the keyboard ({step.seconds:.1f} s)",
        )
    if isinstance(step, Corrected):
        return (
            "correct: labels that are likelier wrong than right, without a review",
            f"  {step.changed} labels changed: {step.wrong_before} wrong ones before, {step.wrong_after} now",
            f"  {step.path}",
        )
    return (
        "train again: accuracy before and after the correction",
        f"  {step.method:<12} {step.before:.3f} → {step.after:.3f}",
    )
