"""`noiseproof train`."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from noiseproof.cli.data import check_foreign
from noiseproof.cli.main import TRAINING, app
from noiseproof.cli.options import (
    Dataset,
    Epochs,
    Foreign,
    Method,
    Model,
    Noise,
    Protocol,
    Seed,
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
    refusals,
    say,
    show,
    show_json,
    training_exits,
    training_progress,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.loggers.logger import Logger
    from torch import Tensor

    from noiseproof import data as datasets
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
USUAL = {"validation": 0.1, "precision": "32", "paper": None}
LONGEST = 200  # bytes of a folder's name; disks take 255


@app.command(
    epilog=examples(
        "train --noise symmetric:rate=0.4 --method gce",
        "train --dataset cifar10 --noise asymmetric-cifar10:rate=0.4 --method sln-mo-lc@sln"
        " --protocol sln",
        "train --dataset table:table=mine.csv,label=kind --method gce:q=0.7",
        "train --dataset folder:path=photos --model efficientnet-lite0 --finetune probe"
        " --method gce",
        "train --dataset cifar100 --method ce --devices 8 --nodes 4 --precision bf16",
        "train --model mlp:hidden=[64] --epochs 20 --batch-size 64 --optimizer adam:lr=1e-3"
        " --schedule cosine",
        "train --dataset cifar10 --method ln --dry-run",
    ),
    rich_help_panel=TRAINING,
)
@refusals()
def train(
    dataset: Dataset = "digits",
    noise: Noise = "none",
    method: Method = "ce",
    seed: Seed = 0,
    out: Annotated[
        str | None,
        option("Folder of record and checkpoints, by default one in runs/; none: no files."),
    ] = None,
    resume: Annotated[bool, option("Continue an earlier run in that folder.")] = True,
    samples: Annotated[
        bool, option("Record margin, weights and prediction of every sample.", "--samples")
    ] = False,
    log: Annotated[
        list[str] | None,
        option(
            "Also log to csv, tensorboard, mlflow or wandb; repeatable.",
            complete="csv tensorboard mlflow wandb",
        ),
    ] = None,
    dry_run: Annotated[bool, option("Only estimate time and memory.", "--dry-run")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    foreign: Foreign = None,
    protocol: Protocol = None,
    model: Model = None,
    epochs: Epochs = None,
    batch_size: Annotated[str | None, on_training("Rows of a step, or full.")] = None,
    optimizer: Annotated[
        str | None, on_training("sgd:lr=0.05,momentum=0.9, adam:lr=1e-3, …")
    ] = None,
    schedule: Annotated[
        str | None, on_training("constant, step:at=[0.5,0.75], exponential, cosine, linear.")
    ] = None,
    clip: Annotated[
        float | None,
        on_training("Largest gradient norm; 0 for any. By default 5 for ln, any for others."),
    ] = None,
    finetune: Annotated[
        str | None,
        on_training(
            "Of a pretrained --model: frozen trains its head alone, probe the head and then all,"
            " whole all."
        ),
    ] = None,
    validation: Annotated[float, on_training("Share of the noisy rows to hold out.", min=0)] = 0.1,
    accelerator: Annotated[
        str, on_machine("auto, cpu, cuda or mps.", complete="auto cpu cuda mps")
    ] = "auto",
    devices: Annotated[int, on_machine("Processes on each machine.", min=1)] = 1,
    nodes: Annotated[int, on_machine("Number of machines.", min=1)] = 1,
    strategy: Annotated[str, on_machine("auto, ddp or fsdp (experimental).")] = "auto",
    precision: Annotated[str, on_machine("32, bf16 or 64.", complete="32 bf16 64")] = "32",
    threads: Annotated[
        int | None,
        on_machine("Threads of each process, by default as many as a step occupies.", min=1),
    ] = None,
    workers: Annotated[int, on_machine("Processes that read files.", min=0)] = 0,
    checkpoint_steps: Annotated[
        int | None, on_machine("Also save after this number of steps.", min=1)
    ] = None,
) -> None:
    """Train a classifier on noisy labels by any method; a run that was stopped resumes when it is
    started again.
    """
    from noiseproof.bench.experiment import foreign_images
    from noiseproof.core.cluster import fixed_threads
    from noiseproof.data import get_dataset
    from noiseproof.train import prepare
    from noiseproof.train.logs import make_loggers
    from noiseproof.train.settings import make_fabric

    _prepare_process()
    check_foreign(foreign, noise)
    data = get_dataset(dataset, data_dir)
    _describe(data)
    options = {
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "schedule": schedule,
        "clip": clip,
        "workers": workers,
        "checkpoint_steps": checkpoint_steps,
    }
    settings = _settings(protocol, data.name, options)
    method = _finetuned(method, finetune, settings)
    run = {"dataset": dataset, "noise": noise, "method": method, "seed": seed}
    chosen = {"validation": validation, "precision": precision, "paper": protocol}
    needs_folder = {"--samples": samples, "--checkpoint-steps": checkpoint_steps, "--log": log}
    folder = _folder(out, run, {**_changed(settings), **chosen}, needs_folder)
    loggers = make_loggers(log or (), folder or Path())
    fabric = make_fabric(
        precision, accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy
    )
    fabric.launch()

    def make_task(predictions: Tensor | None) -> Task:
        return prepare(
            data,
            noise,
            seed=seed,
            validation=validation,
            paper=protocol,
            features=predictions,  # what noise by instance depends on
            foreign=foreign_images(foreign, data_dir),
            data_dir=data_dir,
        )

    resumes = f" The same command resumes from {folder}." if folder and not dry_run else ""
    with fixed_threads(threads), training_exits(then=resumes):
        predictions = _predictions(
            data, noise, method, settings, seed, fabric, folder, dry_run, make_task
        )
        task = make_task(predictions)
        if dry_run:
            return _show_estimate(task, method, settings, fabric, as_json)
        result = _train(task, run, settings, fabric, loggers, folder, resume, samples)
    if fabric.is_global_zero:
        _show_result(result, run, task.train.rate, folder, as_json)


def _prepare_process() -> None:
    import lightning_fabric  # noqa: F401  # its messages would get our prefix if it were imported later

    logging.basicConfig(format="noiseproof: %(message)s")
    logging.getLogger("noiseproof").setLevel(logging.INFO)  # what stays eager on a GPU, and why


def _describe(data: datasets.Dataset) -> None:
    """Say what was left out or filled in, and whether test rows are among the training rows."""
    from noiseproof.data.base import find_copies

    for note in data.notes:
        say(note)
    copies, beyond_chance = find_copies(data)
    if beyond_chance:
        say(f"{copies}: their accuracy is not that of new rows.")


def _settings(paper: str | None, dataset: str, options: Mapping[str, Any]) -> Settings:
    """Return the protocol of ``paper``, or the defaults, updated by the options that are given."""
    from noiseproof.train import Settings
    from noiseproof.train.protocols import protocol

    given = {name: value for name, value in options.items() if value is not None}
    if str(given.get("batch_size")).isdigit():
        given["batch_size"] = int(given["batch_size"])
    base = protocol(paper, dataset) if paper else Settings()
    return dataclasses.replace(base, **given)


def _finetuned(method: str, finetune: str | None, settings: Settings) -> str:
    """Return the method with the strategy that ``--finetune`` names; its head trains alone for a
    third of the epochs.
    """
    from noiseproof.core.checks import check_word

    if finetune is None:
        return method
    check_word("--finetune", finetune, ("probe", "frozen", "whole"))
    name, _, options = settings.model.partition(":")
    is_pretrained = "pretrained=true" in options or "checkpoint_path=" in options
    if name != "efficientnet-lite0" and not is_pretrained:
        raise ValueError(
            f"Expected a pretrained --model for --finetune, got {settings.model}. Choose"
            " efficientnet-lite0, or timm:NAME,pretrained=true."
        )
    if finetune == "whole":
        return method
    if finetune == "frozen":
        return f"{method} & freeze"
    return f"{method} & freeze:until={max(1, settings.epochs // 3)}"


def _changed(settings: Settings) -> dict[str, Any]:
    default = type(settings)().as_dict()
    return {name: value for name, value in settings.as_dict().items() if value != default[name]}


def _folder(
    out: str | None,
    run: Mapping[str, Any],
    chosen: Mapping[str, Any],
    needs_folder: Mapping[str, object],
) -> Path | None:
    """Return the folder of a run: --out, or one in runs/ named by the run and what it was
    ``chosen`` to be.

    None for ``--out none``.
    """
    if out == "none":
        for option, given in needs_folder.items():
            if given:
                raise ValueError(
                    f"Expected a folder for {option}, got --out none, which writes no files."
                    " Leave one out."
                )
        return None
    parts = [f"{key}={value}" for key, value in chosen.items() if value != USUAL.get(key)]
    name = _file_name(run["dataset"], run["noise"], run["method"], f"seed{run['seed']}", *parts)
    return Path(out or Path("runs", name))


def _file_name(*parts: str) -> str:
    """Join ``parts`` to a file name; if it is too long for a disk, to its beginning and a hash of
    all of it.
    """
    name = "_".join(re.sub(r"[^\w.=+*-]+", "-", part) for part in parts)
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name.encode()[: LONGEST - 17].decode(errors="ignore") + "_" + digest


def _predictions(
    data: datasets.Dataset,
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


def _show_estimate(
    task: Task, method: str, settings: Settings, fabric: Fabric, as_json: bool
) -> None:
    from noiseproof.train.estimate import estimate

    expected = estimate(task, method, settings, fabric=fabric)
    if not fabric.is_global_zero:
        return None
    if as_json:
        return show_json({**dataclasses.asdict(expected), "total_memory": expected.total_memory})
    memory = {**expected.memory, "all": expected.total_memory}
    rows = [
        ("time", duration(expected.seconds)),
        ("steps", f"{expected.steps:,} of {expected.seconds_per_step * 1e3:.3g} ms"),
        ("weights", f"{expected.weights:,}"),
        *((f"memory, {name}", f"{size / 1e6:,.1f} MB") for name, size in memory.items()),
    ]
    return show(("estimate", "from a few steps"), rows)


def _show_result(
    result: Result, run: Mapping[str, Any], rate: float | None, folder: Path | None, as_json: bool
) -> None:
    from noiseproof.train.loop import EPOCHS

    if not result.new_steps:
        say(
            f"finished earlier: nothing was trained, this is the record in {folder}. Choose another"
            " --out to train."
        )
    epochs = {name: getattr(result, name) for name in EPOCHS}
    if as_json:
        about = {"rate": rate, "folder": folder, "stopped": result.stopped}
        return show_json({**run, **about, **epochs})
    columns = [name for name in SHOWN if not math.isnan(result.last.get(name, math.nan))]
    if result.run.num_classes <= 5 and "test_top5" in columns:
        columns.remove("test_top5")  # it is always 1
    rows = []
    for name, metrics in epochs.items():
        if metrics:
            numbers = (f"{metrics[c]:.4f}" for c in columns if c != "epoch")
            rows.append((EPOCHS[name], str(metrics["epoch"]), *numbers))
    show(("", *(column.replace("_", " ") for column in columns)), rows)
    if result.stopped:
        echo(f"stopped early: {result.stopped}")
    if folder:
        echo(f"record: {folder}")
    return None
