"""A training run as its strategies see it: noisy data, models, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.data import Inputs, NoisyData
from noiseproof.data.augment import Transform
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.processes import Processes
from noiseproof.strategies.randomness import Randomness

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

    from noiseproof.strategies.base import Strategy


@dataclass(eq=False)
class TrainedModel:
    """One of the models of a run, in the forms that its uses need."""

    plain: nn.Module  # its weights, without a wrapper for several processes around it
    wrapped: nn.Module  # to train: ``run.forward(model.wrapped, x)``
    trained: nn.Module  # to evaluate with the same weights
    evaluated: nn.Module  # what predicts; a strategy may put another one here, as momentum does
    optimizer: torch.optim.Optimizer


class Run:
    """The state of a run. There is no clean label in it.

    ``random`` draws random numbers, ``processes`` exchanges values between processes, and ``strategies.sweeps`` has
    passes over the whole set.
    """

    def __init__(
        self,
        *,
        fabric: Fabric,
        data: NoisyData,
        loss: Loss,
        epochs: int,
        seed: int,
        augment: Transform | None = None,
        strong: Transform | None = None,
        normalise: Transform | None = None,
        workers: int = 0,
        compiled: bool = False,
    ) -> None:
        assert data.clean is None, "clean labels stay with the record"
        self.fabric = fabric
        self.device = fabric.device
        double = getattr(fabric._precision, "precision", "") == "64-true"
        self.dtype = torch.float64 if double else torch.float32
        self.processes = Processes(fabric)
        self.random = Randomness(seed, self.processes, self.dtype)
        self.data = data
        self.augment = augment
        self.strong = strong or augment  # of second views
        self.normalise = normalise
        self.workers = workers
        self.compiled = compiled  # whether models and augmentation of a step go through torch.compile
        self.loss = loss
        parts = [part for part in loss.modules() if isinstance(part, Loss)]
        self.loss_draws = any(type(part).set_step is not Loss.set_step for part in parts)  # and needs a seed each step
        self.models: list[TrainedModel] = []
        self.strategies: Sequence[Strategy] = ()  # all strategies of the method
        self.epochs = epochs
        self.epoch = 0  # counted from 0
        self.batch_size = 0  # rows of a full step over all processes
        self.count = 0  # rows of the current step over all processes
        self.stopped: str | None = None  # why the run ends early

    @property
    def step(self) -> int:
        """The number of the current step, over all epochs."""
        return self.random.step

    @step.setter
    def step(self, step: int) -> None:
        self.random.step = step

    @property
    def num_classes(self) -> int:
        return self.data.num_classes

    @property
    def num_rows(self) -> int:
        return len(self.data)

    @property
    def is_sharded(self) -> bool:
        """Whether no process holds all weights."""
        return "FSDP" in type(self.fabric.strategy).__name__

    @property
    def is_split(self) -> bool:
        """Whether several processes have a share of the weights each."""
        return self.is_sharded and self.processes.world_size > 1

    @property
    def evaluated(self) -> list[nn.Module]:
        """The modules that predict."""
        return [model.evaluated for model in self.models]

    def add(self, plain: nn.Module, build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """Add a model to train, and its optimiser."""
        if self.device.type == "cuda":
            plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Without Fabric's own wrapper, which rounds float64 outputs to float32; ``forward`` does the rest of its work.
        wrapped: nn.Module = self.fabric.setup_module(plain)._forward_module
        optimizer = build(wrapped.parameters())
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
            if self.random.step_generator is not None:  # as a tensor, which a CUDA graph reads anew
                group["lr"] = torch.tensor(group["lr"], device=self.device)
        optimizer = self.fabric.setup_optimizers(optimizer)  # type: ignore[assignment]
        trained = wrapped if self.is_sharded else plain  # sharded weights only the wrapper can run
        if self.compiled:
            wrapped = torch.compile(wrapped, dynamic=False)  # type: ignore[assignment]
        self.models.append(TrainedModel(plain, wrapped, trained, trained, optimizer))

    def set_learning_rate(self, factor: float) -> None:
        """Set all learning rates to ``factor`` times their first value."""
        for model in self.models:
            for group in model.optimizer.param_groups:
                rate = group["initial_lr"] * factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def forward(self, model: nn.Module, x: Tensor) -> Output:
        """The output of ``model`` for ``x``: computed in the run's precision, returned in that of the data."""
        with self.fabric.autocast():
            out: Output = model(x)
        return Output._make(v if v is None else v.to(self.dtype) for v in out)

    def losses(self, out: Output, target: Tensor, batch: Batch) -> Tensor:
        """The loss of each row of ``batch`` (b,); rows that only fill up a share are not the others' peers."""
        if batch.counts is not None and not self.loss.independent_rows:
            fills = batch.counts == 0
            ignored = (fills, self.loss.ignore_index) if target.dim() == 1 else (fills[:, None], 0)
            target = target.masked_fill(*ignored)
        losses: Tensor = self.loss(out, target)
        return losses

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, with a gradient, in a step, which all of them make at once."""
        return self.processes.sum(values) if self.random.is_in_step else values

    def backward(self, losses: Tensor, batch: Batch) -> None:
        """The gradient of the mean of ``losses`` (M, b) over all processes' rows, of each model by itself."""
        self.fabric.backward(self.mean(losses, batch))

    def mean(self, losses: Tensor, batch: Batch) -> Tensor:
        """The scalar that ``backward`` differentiates."""
        if batch.counts is not None:
            losses = losses * batch.counts
        # DDP averages over processes, each of which holds its share of the rows.
        return losses.sum() * (self.processes.world_size / batch.count)

    def stop(self, reason: str) -> None:
        """End the training after this epoch."""
        self.stopped = self.stopped or reason

    def make_batch(self, rows: Tensor, raw: Tensor | None = None) -> Batch:
        """This process's share of ``rows``, augmented; rows that don't count fill shares up to one length."""
        count, world_size = len(rows), self.processes.world_size
        several = world_size > 1
        place = self.processes.places(count) if several else torch.empty(0)
        params = None
        if self.augment is not None and self.augment.columns:
            drawn = self.augment.draw(count, self.random.generator("augment", self.step))
            params = drawn[(place % count).to(drawn.device)] if several else drawn
        index = (rows[place % count] if several else rows).to(self.device, non_blocking=True)
        given = self.data.given[index]
        soft = self.labels(index) if self.data.multilabel or self.data.soft is not None else None
        return Batch(
            x=self.prepare(self.data.x[index] if raw is None else raw, self.augment, params),  # type: ignore[index]
            target=given if soft is None else soft,
            given=given,
            rows=index,
            all_rows=rows.to(self.device, non_blocking=True),
            counts=(place < count).to(self.device, self.dtype) if len(index) * world_size > count else None,
            count=count,
            soft=soft,
        )

    def labels(self, rows: Tensor) -> Tensor:
        """The labels of training ``rows`` as a loss takes them: given classes (b,), or real numbers (b, K)."""
        labels = self.data.labels[rows]
        return labels if labels.dim() == 1 else labels.to(self.dtype)

    def fetch(self, x: Inputs, rows: Tensor, transform: Transform | None, params: Tensor | None = None) -> Tensor:
        """The inputs ``rows`` of ``x`` on the device, transformed."""
        return self.prepare(next(read_batches(x, [rows])), transform, params)

    def prepare(self, x: Tensor, transform: Transform | None, params: Tensor | None = None) -> Tensor:
        """Raw inputs as the models take them."""
        x = x.to(self.device, non_blocking=True)
        params = x.new_empty(len(x), 0, dtype=torch.float32) if params is None else params
        apply = _compiled() if self.compiled and self.random.is_in_step else _transformed
        return apply(x, transform, params, self.dtype)


def _transformed(x: Tensor, transform: Transform | None, params: Tensor, dtype: torch.dtype) -> Tensor:
    x = (x if transform is None else transform.apply(x, params)).to(dtype)
    # Convolutions of a GPU's tensor cores want the channels last.
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_transformed, dynamic=False)
