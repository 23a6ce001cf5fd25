"""What a run will cost, from a few real steps of it."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from noiseproof.strategies import Run, Strategy
from noiseproof.train.job import Job
from noiseproof.train.loop import train, training
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

    def __init__(self, others: tuple[Strategy, ...]) -> None:
        self.others = others
        self.stamps: list[float] = []
        self.saved: dict[int, int] = {}  # by address: what autograd keeps for the backward pass
        self.weights_at: set[int] = set()  # their addresses: it keeps them, too, but they are there anyway
        self.activations = 0
        self.memory: dict[str, int] = {}
        self.parameters_in_all = 0
        self.num_rows = 0  # of an epoch

    def __deepcopy__(self, memo: dict[int, Any]) -> _Probe:
        self.others = copy.deepcopy(self.others, memo)  # the loop works on a copy of the method: on these very ones
        return self  # and this one must come back

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        values = (v for model in run.models for v in model.plain.state_dict().values())
        self.weights_at = {value.untyped_storage().data_ptr() for value in values}
        self.num_rows = self.num_rows or len(rows)
        return rows

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights_at:
            self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def gradients(self, run: Run) -> None:
        self.activations = max(self.activations, sum(self.saved.values()))
        self.saved.clear()

    def after_step(self, run: Run) -> None:
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)  # else only the launches are timed
        self.stamps.append(time.perf_counter())
        if len(self.stamps) < STEPS:
            return
        parameters = [p for model in run.models for p in model.plain.parameters()]
        self.parameters_in_all = sum(p.numel() for p in parameters)
        self.memory = {
            "weights": sum(_bytes(model.plain.state_dict()) for model in run.models),
            "gradients": _bytes(parameters),
            "optimizer": sum(_bytes(model.optimizer.state_dict()) for model in run.models),
            "method": sum(_bytes(strategy.state_dict()) for strategy in self.others),
            "activations": self.activations,
            "data": _bytes(vars(run.data)),
        }
        raise _Enough

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        run.stopped = None  # not before it has seen its steps


def estimate(task: Task, method: Method | str, settings: Settings, *, fabric: Fabric | None = None) -> Estimate:
    """Time and memory of a whole run from its first steps on this machine.

    A row that is only evaluated is taken to cost a third of one that is trained on (forward without backward). What
    strategies do between epochs is not timed, nor what they only begin to do later (after a warm-up, say).

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> expected = estimate(prepare(get_dataset("digits")), "ce", Settings(epochs=5, model="mlp:hidden=[16]"))
    >>> expected.weights, expected.steps
    (1210, 60)
    """
    method = get_method(method, task, settings) if isinstance(method, str) else method
    if settings.epochs < STEPS:  # what so few refuse, more would not
        next(training(Job(task, method, settings), fabric or Fabric(accelerator="auto", devices=1)), None)
    probe = _Probe(method.strategies)
    probed = replace(method, strategies=(*method.strategies, probe))
    enough = replace(settings, epochs=max(settings.epochs, STEPS))
    with suppress(_Enough), saved_tensors_hooks(probe.keep, lambda kept: kept):
        train(task, probed, enough, fabric=fabric)
    each = statistics.median(b - a for a, b in itertools.pairwise(probe.stamps[1:]))
    rows = settings.batch_rows(len(task.train))
    steps = max(1, probe.num_rows // rows) if settings.drop_last else -(-probe.num_rows // rows)
    judged = sum(len(part) for part in (task.validation, task.test) if part is not None)
    seconds = settings.epochs * each * (steps + judged / rows / 3)
    return Estimate(seconds, each, steps * settings.epochs, probe.memory, probe.parameters_in_all)


def _bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(map(_bytes, tree.values()))
    return sum(map(_bytes, tree)) if isinstance(tree, Iterable) and not isinstance(tree, str) else 0
