"""What a run is: the values that a resumed run must agree with, as plain JSON."""

from __future__ import annotations

import re
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from noiseproof.core.plugins import plugin_digests
from noiseproof.data.augment import Transform
from noiseproof.data.base import Inputs
from noiseproof.strategies import Run
from noiseproof.train.job import Job
from noiseproof.train.methods import Method


def run_config(job: Job, method: Method, run: Run) -> dict[str, Any]:
    """Method, data, preparation, settings, and a digest of registered code that is not noiseproof's."""
    task, has_folder = job.task, job.out is not None
    soft = task.train.soft
    config = {"method": str(method), "seed": run.random.seed, "dataset": task.dataset, "noise": task.noise,
              "rows": run.num_rows, "labels": zlib.crc32(task.train.given.cpu().numpy().tobytes()),
              "inputs": checksum(task.train.x) if has_folder else None, "input_shape": list(task.input_shape),
              "augment": _describe(task.augment), "normalise": _describe(task.normalise),
              "precision": str(run.fabric._precision.precision), **job.settings.as_dict()}  # fmt: skip
    if soft is not None:
        config["soft_labels"] = zlib.crc32(soft.cpu().numpy().tobytes())
    if code := plugin_digests(f"{job.method} {[*config.values()]}"):
        config["code"] = code  # a run that began with other formulas must not be resumed
    return config


def checksum(x: Inputs) -> int | None:
    """A checksum of a thousand rows spread over ``x``, which is quick and tells other data apart; None of files."""
    if not isinstance(x, Tensor):
        return None
    rows = x[:: max(1, len(x) // 1000)].cpu().reshape(-1)
    return zlib.crc32(rows.contiguous().view(torch.uint8).numpy().tobytes())


def _describe(transform: Transform | None) -> str:
    """The transform and its parameters to six digits, without addresses: equal on every machine."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            value = value.flatten().tolist()
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text, value))}]"
        if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(text(getattr(value, field.name)) for field in fields(value))})"
        return f"{value:.6g}" if isinstance(value, float) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    description = text(transform)
    if len(description) < 200:
        return description
    return f"{description[:200]}… {zlib.crc32(description.encode()):08x}"
