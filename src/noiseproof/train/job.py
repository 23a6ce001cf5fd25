"""A run to be made, its parts, and the values that a resumed run must agree with, as plain JSON."""

from __future__ import annotations

import copy
import math
import os
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from noiseproof.core.checks import check_seed
from noiseproof.core.plugins import plugin_digests
from noiseproof.data.augment import Transform
from noiseproof.data.base import Inputs
from noiseproof.data.images import ImageFiles
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Run
from noiseproof.train.methods import Method, get_method
from noiseproof.train.record import Metrics, Record
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Receives epoch, step, steps of the epoch; after the last step also the metrics of the epoch.
EpochProgress = Callable[[int, int, int, Metrics | None], None]
DATA = {  # the digests of a run: in words, and of which fields of which part of a task they are
    "labels": ("training labels", "train", ["given"]),
    "inputs": ("training inputs", "train", ["x"]),
    "soft_labels": ("soft labels", "train", ["soft"]),
    "annotators": ("annotators of the training labels", "train", ["annotator"]),
    "clean_labels": ("true labels", "train", ["clean"]),
    "validation_data": ("validation data", "validation", ["x", "given", "clean", "soft"]),
    "clean_validation_data": ("clean validation data", "clean_validation", ["x", "y", "soft"]),
    "test_data": ("test data", "test", ["x", "y", "soft"]),
}


@dataclass(frozen=True, eq=False)
class Job:
    """One run to be made; ``train`` describes its parts."""

    task: Task
    method: Method | str = "ce"
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    out: str | Path | None = None
    samples: bool = False
    progress: EpochProgress | None = None

    @property
    def folder(self) -> Path | None:
        return None if self.out is None else Path(self.out)


def build(
    job: Job, fabric: Fabric, clock: Callable[[], float] = time.perf_counter
) -> tuple[Method, Run, Record]:
    """Return models and optimisers before the first step, with the strategies set up."""
    task = job.task
    settings = job.settings
    # Strategies have state: a method that is used twice starts afresh.
    if isinstance(job.method, str):
        method = get_method(job.method, task, settings)
    else:
        method = copy.deepcopy(job.method)
        method.check(task.train.num_classes, settings.epochs)
        method.check_labels(task.train)
    loss = method.loss.to(fabric.device)
    loss.reduction = "none"
    if loss.multilabel and job.samples:
        raise ValueError(
            "Expected one label a row to record margins of samples, got several. Leave `samples`"
            " out."
        )
    run = Run(
        fabric=fabric,
        data=replace(task.train.to(fabric.device), clean=None),
        loss=loss,
        epochs=settings.epochs,
        seed=check_seed("seed", job.seed),
        augment=task.augment,
        strong=task.strong,
        normalise=task.normalise,
        workers=settings.workers,
        compiled=settings.compile,
        validates=task.validation is not None,
    )
    make_optimizer = settings.make_optimizer()
    model, head, input_shape, num_outputs = architecture(job, method)
    for m in range(method.models):
        generator = run.random.generator("init", m, device="cpu")
        plain = build_classifier(
            model,
            head,
            input_shape=input_shape,
            num_outputs=num_outputs,
            generator=generator,
            starts=loss.starts,
        )
        run.add(plain, make_optimizer)
    loss.set_shares(run.data.shares, run.total if run.processes.world_size > 1 else None)
    run.batch_size = settings.batch_rows(run.num_rows)
    run.strategies = method.strategies
    for strategy in method.strategies:
        strategy.setup(run)
    record = Record(task, run, samples=job.samples, folder=job.folder, clock=clock)
    _check_batch_size(run)
    return method, run, record


def _check_batch_size(run: Run) -> None:
    fewest = run.processes.world_size + 1
    if run.batch_size < fewest and needs_two_rows(run):
        raise ValueError(
            f"Expected at least {fewest} rows per step, since the model's batch normalisation"
            f" cannot learn from one alone, got {run.batch_size} of {run.num_rows}. Raise the"
            " batch size, or choose a model without it."
        )


def architecture(job: Job, method: Method) -> tuple[str, str, tuple[int, ...], int]:
    """Return what a network is built from: backbone, head, the shape of an input and the number of
    outputs.
    """
    num_outputs = method.loss.num_outputs(job.task.train.num_classes)
    return job.settings.model_for(job.task), method.head, job.task.input_shape, num_outputs


def step_work(job: Job, run: Run) -> int:
    """Return the most multiplications that a step of all models may take: a convolution acts on
    each pixel.
    """
    pixels = math.prod(job.task.input_shape[1:])
    weights = [p for model in run.models for p in model.plain.parameters()]
    return run.batch_size * sum(p.numel() * (pixels if p.dim() == 4 else 1) for p in weights)


def needs_two_rows(run: Run) -> bool:
    """Return whether models cannot train on one row, as batch normalisation of single numbers
    cannot.
    """
    has_norms = any(isinstance(layer, _BatchNorm) for layer in run.models[0].plain.modules())
    if run.is_sharded or not has_norms:
        return False
    model = copy.deepcopy(run.models[0].plain).train()
    x = run.fetch(run.data.x, torch.zeros(1, dtype=torch.int64), run.normalise)
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng([run.device] if run.device.type == "cuda" else []),
        ):
            run.forward(model, x)
    except ValueError:  # PyTorch's "Expected more than 1 value per channel"
        return True
    return False


def run_config(job: Job, method: Method, run: Run) -> dict[str, Any]:
    """Return the method, data, preparation, settings, and a digest of registered code that is not
    noiseproof's.
    """
    task = job.task
    config = {
        "method": str(method),
        "seed": run.random.seed,
        "dataset": task.dataset,
        "noise": task.noise,
        "rows": run.num_rows,
        **(data_digests(task) if job.folder is not None else {}),
        "input_shape": list(task.input_shape),
        "augment": _describe(task.augment),
        "normalise": _describe(task.normalise),
        "precision": str(run.fabric._precision.precision),
        **job.settings.as_dict(),
    }
    if task.strong is not None:
        config["strong"] = _describe(task.strong)
    if run.is_split:
        config["processes"] = run.processes.world_size  # each has a share of the weights
    if code := plugin_digests(f"{job.method} {[*config.values()]}"):
        config["code"] = code  # a run that began with other formulas must not be resumed
    return config


def data_digests(task: Task) -> dict[str, str]:
    """Return digests of all data of a run, by their names in ``DATA``."""
    digests = {}
    for name, (_, part, names) in DATA.items():
        data = getattr(task, part)
        digests[name] = digest(*(getattr(data, each) for each in names if data is not None))
    return digests


def digest(*parts: Inputs | None) -> str:
    """Return the XXH3 of all numbers, shapes and types, and of the names and content of image
    files.

    Other lazy inputs count with their length.
    """
    total = xxhash.xxh3_128()
    for part in parts:
        if isinstance(part, Tensor):
            total.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            total.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, ImageFiles):
            total.update(f"{part.size} {part.fit} ".encode())
            for path in map(part.path, range(len(part))):
                total.update(os.fsencode(path.relative_to(part.root)) + b"\0")
                total.update(path.read_bytes())
        else:
            total.update(f"{None if part is None else len(part)} ".encode())
    return total.hexdigest()


def _describe(transform: Transform | None) -> str:
    """Return the transform and its parameters to six digits, without addresses: equal on every
    machine.
    """

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            value = value.flatten().tolist()
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text, value))}]"
        if is_dataclass(value):
            # not what it keeps
            shown = (text(getattr(value, field.name)) for field in fields(value) if field.repr)
            return f"{type(value).__name__}({', '.join(shown)})"
        if isinstance(value, float):
            return f"{value:.6g}"
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    description = text(transform)
    if len(description) < 200:
        return description
    return f"{description[:200]}… {zlib.crc32(description.encode()):08x}"
