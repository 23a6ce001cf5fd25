"""What a run will cost, from a few real steps of it."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train.loop import train
from noiseproof.train.methods import Method, get_method
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

STEPS = 6  # the first two warm up


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes that a run will take, and what they are made of."""

    seconds: float
    seconds_per_step: float
    steps: int
    memory: dict[str, int]  # bytes by purpose
    weights: int

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())


class _Enough(Exception):
    pass


class _Probe(Strategy):
    """Takes the time and counts the bytes of the first steps, then ends the run."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.saved: dict[int, int] = {}  # by address: what autograd keeps for the backward pass
        self.activations = 0
        self.memory: dict[str, int] = {}
        self.parameters_in_all = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _Probe:
        return self  # the loop works on a copy of the method, and this one must come back

    def targets(self, batch: Batch, run: Run) -> Batch:
        self.saved.clear()
        return batch

    def keep(self, tensor: Tensor) -> Tensor:
        self.saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def gradients(self, run: Run) -> None:
        self.activations = max(self.activations, sum(self.saved.values()))

    def after_step(self, run: Run) -> None:
        self.stamps.append(time.perf_counter())
        if len(self.stamps) < STEPS:
            return
        parameters = [p for model in run.plain_models for p in model.parameters()]
        kept = [run.plain_models, run.evaluated] if run.evaluated != run.plain_models else [run.plain_models]
        self.parameters_in_all = sum(p.numel() for p in parameters)
        self.memory = {
            "weights": sum(_bytes(model.state_dict()) for group in kept for model in group),
            "gradients": sum(p.numel() * p.element_size() for p in parameters),
            "optimizer": sum(_bytes(optimizer.state_dict()) for optimizer in run.optimizers),
            "activations": self.activations,
            "data": _bytes(vars(run.data)),
        }
        raise _Enough


def estimate(task: Task, method: Method | str, settings: Settings, *, fabric: Fabric | None = None) -> Estimate:
    """Time and memory of a whole run from its first steps on this machine.

    A row that is only evaluated is taken to cost a third of one that is trained on (forward without backward).
    """
    probe = _Probe()
    method = get_method(method, task, settings) if isinstance(method, str) else method
    probed = replace(method, strategies=(*method.strategies, probe))
    enough = replace(settings, epochs=max(settings.epochs, STEPS))
    with suppress(_Enough), saved_tensors_hooks(probe.keep, lambda kept: kept):
        train(task, probed, enough, fabric=fabric)
    each = statistics.median(b - a for a, b in itertools.pairwise(probe.stamps[1:]))
    rows = settings.batch_rows(len(task.train))
    steps = -(-len(task.train) // rows)
    judged = sum(len(part) for part in (task.validation, task.test) if part is not None)
    seconds = settings.epochs * each * (steps + judged / rows / 3)
    return Estimate(seconds, each, steps * settings.epochs, probe.memory, probe.parameters_in_all)


def _bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(map(_bytes, tree.values()))
    return sum(map(_bytes, tree)) if isinstance(tree, Iterable) and not isinstance(tree, str) else 0
