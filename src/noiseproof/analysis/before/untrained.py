"""Untrained models on the user's data: their first logits, and what a few real steps do to them."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Method, Settings, Task, get_method, train
from noiseproof.train.record import pull

ROWS = 2048  # enough for a distribution of margins


class _Complete(Exception):
    """A recorder has what it needs."""


class _Recorder(Strategy):
    """Records what a run does at its start, then ends it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # the loop trains a copy of the method; the caller reads this one

    def record(self, task: Task, method: Method, settings: Settings, seed: int) -> None:
        """Train until the recorder has what it needs."""
        watched = replace(method, strategies=(*copy.deepcopy(method.strategies), self))
        with suppress(_Complete):
            train(task, watched, settings, seed=seed)


class _FirstLogits(_Recorder):
    """Records the logits of the untrained model for the first training rows."""

    def __init__(self, rows: int) -> None:
        self.num_rows = rows
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        parts = torch.split(rows[: self.num_rows], run.batch_size)
        with torch.no_grad(), run.random.eager_step():
            # As in training: without batch statistics, logits of an untrained network have another
            # scale.
            for part in parts:
                batch = run.make_batch(part, next(read_batches(run.data.x, [part])))
                out = run.forward(run.models[0].wrapped, batch.x)
                self.logits.append(run.loss.scores(out).cpu())
                self.labels.append(batch.given.cpu())
        raise _Complete


def initial_logits(
    task: Task,
    method: Method | str = "ce",
    settings: Settings | None = None,
    *,
    seed: int = 0,
    rows: int = ROWS,
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) and labels (N,) of the first training rows, as ``train`` with the same
    arguments starts.
    """
    settings = settings or Settings()
    method = get_method(method, task, settings) if isinstance(method, str) else method
    first = _FirstLogits(check_count("rows", rows, 1))
    first.record(task, method, settings, seed)
    return torch.cat(first.logits), torch.cat(first.labels)


# A few real steps


@dataclass(frozen=True)
class Probe:
    """What a few real steps change for the labels of their batches; pairs are means over the first
    and last tenth.
    """

    method: str
    steps: int
    margin: tuple[float, float]  # mean Δ of the given labels
    accuracy: tuple[float, float]  # share of given labels that are predicted
    weight: tuple[float, float]  # mean ½‖∂L/∂z‖₁
    classes: tuple[int, int]  # number of classes among the predictions
    gain: float  # of the mean margin
    gain_of_ce: float  # of cross entropy in the same steps

    @property
    def pace(self) -> float:
        """The gain over the gain of cross entropy."""
        return self.gain / self.gain_of_ce if self.gain_of_ce else float("nan")


class _Steps(_Recorder):
    """Records margins, accuracy and weights of the first ``steps``; later rows are left out."""

    observes = True

    def __init__(self, steps: int, epochs: int) -> None:
        self.steps = steps
        self.epochs = epochs
        self.metrics: list[Tensor] = []  # margin, accuracy, weight of each step
        self.predicted: list[Tensor] = []

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        if run.epoch == self.epochs:
            raise _Complete
        return rows[: (self.steps - run.step) * run.batch_size]

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        scores = run.loss.scores(outs[0]).detach()
        given = batch.given
        predicted = scores.argmax(1)
        of_step = [
            margin(scores, given),
            (predicted == given).to(scores.dtype),
            pull(run.loss, outs[0], given),
        ]
        self.metrics.append(torch.stack([value.mean() for value in of_step]))
        self.predicted.append(predicted)
        return None

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        run.stopped = None  # not before all steps are recorded


def probe(
    task: Task,
    method: Method | Loss | str,
    settings: Settings | None = None,
    *,
    steps: int = 200,
    seed: int = 0,
) -> Probe:
    """Train for a few steps on the user's data, then cross entropy from the same weights on the
    same batches.

    The learning rate stays as in the first epoch. Of a method with two models the first is
    recorded.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> short = probe(
    ...     prepare(get_dataset("digits")), "mae", Settings(model="mlp:hidden=[16]"), steps=20
    ... )
    >>> short.steps, short.pace < 1
    (20, True)
    """
    settings = settings or Settings()
    steps = check_count("steps", steps, 2)
    if not isinstance(method, Method):
        method = Method(method) if isinstance(method, Loss) else get_method(method, task, settings)
    settings = replace(settings, schedule="constant", drop_last=False)
    recorded = _record_steps(task, method, settings, steps, seed)
    taken = len(recorded.metrics)  # a method may leave rows out, and take fewer steps
    if not taken:
        raise ValueError(f"Expected a method that leaves its steps to the loop, got {method}.")
    reference = _record_steps(task, get_method("ce", task, settings), settings, taken, seed)
    margins, accuracy, weight = _first_and_last(recorded)
    of_ce = _first_and_last(reference)[0]
    tenth = max(1, taken // 10)
    parts = (recorded.predicted[:tenth], recorded.predicted[-tenth:])
    first, last = (int((torch.bincount(torch.cat(part)) > 0).sum()) for part in parts)
    gains = margins[1] - margins[0], of_ce[1] - of_ce[0]
    return Probe(str(method), taken, margins, accuracy, weight, (first, last), *gains)


def _record_steps(task: Task, method: Method, settings: Settings, steps: int, seed: int) -> _Steps:
    steps_per_epoch = -(-len(task.train) // settings.batch_rows(len(task.train)))
    recorder = _Steps(steps, -(-steps // steps_per_epoch))
    # No fewer epochs than the user's, which a method may need for what it does later.
    settings = replace(settings, epochs=max(settings.epochs, recorder.epochs))
    recorder.record(replace(task, validation=None, test=None), method, settings, seed)
    return recorder


def _first_and_last(recorded: _Steps) -> list[tuple[float, float]]:
    tenth = max(1, len(recorded.metrics) // 10)
    columns = torch.stack(recorded.metrics).cpu().double().T  # (3, steps)
    return [(float(column[:tenth].mean()), float(column[-tenth:].mean())) for column in columns]
