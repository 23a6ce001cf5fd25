"""What a run will take."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from noiseproof.strategies import Run, Strategy
from noiseproof.train.loop import train
from noiseproof.train.methods import Method, get_method
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

STEPS = 6  # the first two warm up


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes that a run will take."""

    seconds: float
    seconds_per_step: float
    steps: int
    memory: dict[str, int]  # bytes by purpose
    weights: int

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())


class _Done(Exception):
    pass


class _Probe(Strategy):
    """Measures time and memory of the first steps, then ends the run."""

    def __init__(self, others: tuple[Strategy, ...]) -> None:
        self.others = others
        self.stamps: list[float] = []
        self.saved: dict[int, int] = {}  # bytes by address, of tensors saved for the backward pass
        self.weight_addresses: set[int] = set()  # weights are saved, too, but need no more memory
        self.activations = 0
        self.memory: dict[str, int] = {}
        self.num_parameters = 0
        self.num_rows = 0  # of an epoch

    def __deepcopy__(self, memo: dict[int, Any]) -> _Probe:
        self.others = copy.deepcopy(self.others, memo)  # the loop trains a copy of the method
        return self  # not copied: it returns the measurements

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        values = (v for model in run.models for v in model.plain.state_dict().values())
        self.weight_addresses = {value.untyped_storage().data_ptr() for value in values}
        self.num_rows = self.num_rows or len(rows)
        return rows

    def count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weight_addresses:
            self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def gradients(self, run: Run) -> None:
        self.activations = max(self.activations, sum(self.saved.values()))
        self.saved.clear()

    def after_step(self, run: Run) -> None:
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)  # otherwise only the kernel launches are timed
        self.stamps.append(time.perf_counter())
        if len(self.stamps) < STEPS:
            return
        parameters = [p for model in run.models for p in model.plain.parameters()]
        self.num_parameters = sum(p.numel() for p in parameters)
        self.memory = {
            "weights": sum(_bytes(model.plain.state_dict()) for model in run.models),
            "gradients": _bytes(parameters),
            "optimizer": sum(_bytes(model.optimizer.state_dict()) for model in run.models),
            "method": sum(_bytes(strategy.state_dict()) for strategy in self.others),
            "activations": self.activations,
            "data": _bytes(vars(run.data)),
        }
        raise _Done

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        run.stopped = None  # continue until all steps are measured


def estimate(
    task: Task, method: Method | str, settings: Settings, *, fabric: Fabric | None = None
) -> Estimate:
    """Return the time and memory of a run, from its first steps on this machine.

    Evaluating a row is assumed to cost a third of training on it; work of strategies between epochs
    is not included.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> expected = estimate(
    ...     prepare(get_dataset("digits")), "ce", Settings(epochs=5, model="mlp:hidden=[16]")
    ... )
    >>> expected.weights, expected.steps
    (1210, 60)
    """
    method = get_method(method, task, settings) if isinstance(method, str) else method
    method.check(task.train.num_classes, settings.epochs)  # which a longer run would not refuse
    probe = _Probe(method.strategies)
    probed = replace(method, strategies=(*method.strategies, probe))
    longer = replace(settings, epochs=max(settings.epochs, STEPS))
    with suppress(_Done), saved_tensors_hooks(probe.count, lambda tensor: tensor):
        train(task, probed, longer, fabric=fabric)
    step_seconds = statistics.median(b - a for a, b in itertools.pairwise(probe.stamps[1:]))
    batch_rows = settings.batch_rows(len(task.train))
    steps = math.ceil(probe.num_rows / batch_rows)
    if settings.drop_last:
        steps = max(1, probe.num_rows // batch_rows)
    parts = (task.validation, task.clean_validation, task.test)
    evaluated = sum(len(part) for part in parts if part is not None)
    seconds = settings.epochs * step_seconds * (steps + evaluated / batch_rows / 3)
    return Estimate(
        seconds, step_seconds, steps * settings.epochs, probe.memory, probe.num_parameters
    )


def _bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(map(_bytes, tree.values()))
    if isinstance(tree, Iterable) and not isinstance(tree, str):
        return sum(map(_bytes, tree))
    return 0
