"""A run to be made, and its parts: method, models, optimisers and record."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from noiseproof.core.checks import check_seed
from noiseproof.core.output import Output
from noiseproof.heads import Head
from noiseproof.losses import Loss
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Run
from noiseproof.strategies.base import check_targets
from noiseproof.train.methods import Method, get_method
from noiseproof.train.record import Metrics, Record
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

# Receives epoch, step, steps of the epoch; after the last step also the metrics of the epoch.
EpochProgress = Callable[[int, int, int, Metrics | None], None]


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


def build(job: Job, fabric: Fabric, clock: Callable[[], float] = time.perf_counter) -> tuple[Method, Run, Record]:
    """Models and optimisers before the first step, with the strategies set up."""
    task, settings = job.task, job.settings
    # Strategies have state: a method that is used twice starts afresh.
    method = get_method(job.method, task, settings) if isinstance(job.method, str) else copy.deepcopy(job.method)
    method.check()
    loss = method.loss.to(fabric.device)
    loss.reduction = "none"
    if loss.multilabel != task.train.multilabel:
        expected = "several labels" if task.train.multilabel else "one label"
        raise ValueError(f"Expected a loss of {expected} a row, as the data has, got `{loss}`.")
    if loss.multilabel and job.samples:
        raise ValueError("Expected one label a row to record margins of samples, got several. Leave `samples` out.")
    if task.train.soft is not None:
        check_targets(loss, "probabilities", "soft labels (N, K)", "Give single labels")
    run = Run(
        fabric=fabric,
        data=replace(task.train.to(fabric.device), clean=None),
        loss=loss,
        epochs=settings.epochs,
        seed=check_seed("seed", job.seed),
        augment=task.augment,
        normalise=task.normalise,
        workers=settings.workers,
        compiled=settings.compile,
    )
    make_optimizer = settings.make_optimizer()
    model, head, input_shape, num_outputs = architecture(job, method)
    for m in range(method.models):
        generator = run.random.generator("init", m, device="cpu")
        plain = build_classifier(
            model, head, input_shape=input_shape, num_outputs=num_outputs, generator=generator, starts=loss.starts
        )
        if not m:
            _check_shapes(loss, plain.head, backbone_features=plain.backbone.num_features, adds=method.adds)
        run.add(plain, make_optimizer)
    run.strategies = method.strategies
    for strategy in method.strategies:
        if strategy.validates and task.validation is None:
            raise ValueError(
                f"Expected noisy labels held out for {strategy.name}, got none. Hold out a share (validation=0.1)."
            )
        strategy.setup(run)
    record = Record(task, run, samples=job.samples, folder=job.folder, clock=clock)
    run.batch_size = settings.batch_rows(run.num_rows)
    fewest = run.processes.world_size + 1
    if run.batch_size < fewest and needs_two_rows(run):
        raise ValueError(
            f"Expected at least {fewest} rows a step, since the model's batch normalisation cannot learn from one "
            f"alone, got {run.batch_size} of {run.num_rows}. Raise the batch size, or choose a model without it."
        )
    return method, run, record


def _check_shapes(loss: Loss, head: Head, *, backbone_features: int, adds: frozenset[str]) -> None:
    """Refuse a loss that does not take what the head gives, such as one scale where it needs one for each class."""
    if missing := loss.needs - head.gives - adds:
        raise ValueError(f"Expected a head that gives {', '.join(sorted(missing))} for `{loss}`, got {head}.")
    with torch.no_grad():
        out: Output = copy.deepcopy(head).eval()(torch.zeros(2, backbone_features))
        zeros = torch.zeros_like(out.logits)
        fields = {"memory": zeros, "noise": torch.stack([zeros, zeros], 1)}
        out = out._replace(**{name: fields[name] for name in adds})
        copy.deepcopy(loss).cpu().eval()(out, zeros if loss.multilabel else torch.zeros(2, dtype=torch.int64))


def architecture(job: Job, method: Method) -> tuple[str, str, tuple[int, ...], int]:
    """What a network is built from: backbone, head, the shape of an input and the number of outputs."""
    num_outputs = method.loss.num_outputs(job.task.train.num_classes)
    return job.settings.model_for(job.task), method.head, job.task.input_shape, num_outputs


def step_work(job: Job, run: Run) -> int:
    """Multiplications of a step of all models, at most: those of a convolution act on each pixel."""
    pixels = math.prod(job.task.input_shape[1:])
    weights = [p for model in run.models for p in model.plain.parameters()]
    return run.batch_size * sum(p.numel() * (pixels if p.dim() == 4 else 1) for p in weights)


def needs_two_rows(run: Run) -> bool:
    """Whether models cannot train on one row, as batch normalisation of single numbers cannot."""
    has_norms = any(isinstance(layer, _BatchNorm) for layer in run.models[0].plain.modules())
    if run.is_sharded or not has_norms:
        return False
    model = copy.deepcopy(run.models[0].plain).train()
    x = run.fetch(run.data.x, torch.zeros(1, dtype=torch.int64), run.normalise)
    try:
        with torch.no_grad(), torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
            run.forward(model, x)
    except ValueError:  # PyTorch's "Expected more than 1 value per channel"
        return True
    return False
