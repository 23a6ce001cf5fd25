"""Runs made by hand, one step's batches of them, and the comparison of finished runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric

from noiseproof.data import NoisyData
from noiseproof.losses import Loss, get_loss
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Batch, Run
from noiseproof.train import Result, Task


def make_run(
    task: Task | NoisyData,
    loss: str | Loss = "ce",
    *,
    models: int = 1,
    model: str = "mlp:hidden=[8]",
    head: str = "linear",
    build: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    weight_scale: float = 1.0,
    precision: Any = "64-true",
    epoch: int = 0,
    batch_size: int = 64,
    **options: Any,
) -> Run:
    """A run as the loop makes it, with untrained ``models``; ``options`` are those of ``Run``."""
    data = task.train if isinstance(task, Task) else task
    loss = get_loss(loss) if isinstance(loss, str) else loss
    loss.reduction = "none"
    defaults = {
        "epochs": 100,
        "seed": 0,
        "normalise": task.normalise if isinstance(task, Task) else None,
    }
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    run = Run(fabric=fabric, data=replace(data, clean=None), loss=loss, **{**defaults, **options})
    run.epoch, run.batch_size = epoch, batch_size
    for m in range(models):
        plain = build_classifier(
            model,
            head,
            input_shape=data.x.shape[1:],  # type: ignore[union-attr]
            num_outputs=data.num_classes,
            generator=torch.Generator().manual_seed(m),
        )
        for parameter in plain.parameters():
            parameter.data *= weight_scale
        run.add(plain.to(run.dtype), build)
    return run


def make_batch(run: Run, rows: Any = None) -> Batch:
    """A step of one process on ``rows``, by default all of them."""
    rows = torch.arange(run.num_rows) if rows is None else torch.as_tensor(rows)
    given = run.data.given[rows]
    return Batch(
        run.fetch(run.data.x, rows, run.normalise), given, given, rows, rows, count=len(rows)
    )


def without_seconds(result: Result) -> list[dict[str, float]]:
    """The metrics of all epochs that do not depend on the machine's speed."""
    return [
        {key: value for key, value in metrics.items() if key != "seconds"}
        for metrics in result.metrics
    ]


def check_same(first: Result, second: Result) -> None:
    """Two runs have the same metrics, except for seconds, and the same weights, bit for bit."""
    assert without_seconds(first) == without_seconds(second)
    assert first.stopped == second.stopped
    for model, other in zip(first.models, second.models, strict=True):
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
