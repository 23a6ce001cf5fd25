"""A training run, and the strategies that change it, as hooks at fixed points of the training
loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import InitVar, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_fields
from noiseproof.core.grammar import format_call
from noiseproof.core.output import Output
from noiseproof.core.registry import Registry, stored_parameters
from noiseproof.data import Inputs, NoisyData
from noiseproof.data.augment import Transform
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.losses.base import Targets
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.processes import Processes
from noiseproof.strategies.randomness import Randomness

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric


@dataclass(eq=False)
class TrainedModel:
    """One of the models of a run, in the forms that its uses need."""

    plain: nn.Module  # its weights, without a wrapper for several processes around it
    wrapped: nn.Module  # to train: ``run.forward(model.wrapped, x)``
    trained: nn.Module  # to evaluate with the same weights
    evaluated: nn.Module  # what predicts; a strategy may put another one here, as momentum does
    optimizer: torch.optim.Optimizer


@dataclass(eq=False, repr=False, kw_only=True)
class Run:
    """The state of a run. There is no clean label in it.

    ``random`` draws random numbers, ``processes`` exchanges values between processes, and
    ``strategies.sweeps`` has passes over the whole set.
    """

    fabric: Fabric
    data: NoisyData
    loss: Loss
    epochs: int
    seed: InitVar[int]
    augment: Transform | None = None
    strong: Transform | None = None  # of second views; None: ``augment``
    normalise: Transform | None = None
    workers: int = 0
    compiled: bool = False  # whether models and augmentation of a step go through torch.compile
    validates: bool = False  # whether metrics have an accuracy on held-out noisy labels

    def __post_init__(self, seed: int) -> None:
        assert self.data.clean is None, "clean labels stay with the record"
        self.device = self.fabric.device
        double = getattr(self.fabric._precision, "precision", "") == "64-true"
        self.dtype = torch.float64 if double else torch.float32
        self.processes = Processes(self.fabric)
        self.random = Randomness(seed, self.processes, self.dtype)
        self.strong = self.strong or self.augment
        parts = [part for part in self.loss.modules() if isinstance(part, Loss)]
        # and needs a seed each step
        self.loss_draws = any(type(part).set_step is not Loss.set_step for part in parts)
        self.models: list[TrainedModel] = []
        self.strategies: Sequence[Strategy] = ()  # all strategies of the method
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

    def add(
        self, plain: nn.Module, build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        """Add a model to train, and its optimiser."""
        if self.device.type == "cuda":
            plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Without Fabric's own wrapper, which rounds float64 outputs to float32; ``forward`` does
        # the rest of its work.
        wrapped: nn.Module = self.fabric.setup_module(plain)._forward_module
        optimizer = build(wrapped.parameters())
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
            # as a tensor, which a CUDA graph reads each time
            if self.random.step_generator is not None:
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
        """Return the output of ``model`` for ``x``: computed in the run's precision, returned in
        the data's.
        """
        with self.fabric.autocast():
            out: Output = model(x)
        return Output._make(v if v is None else v.to(self.dtype) for v in out)

    def losses(self, out: Output, target: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row of ``batch`` (b,).

        Rows that only fill up a share are not the others' peers.
        """
        if batch.counts is not None and not self.loss.independent_rows:
            fills = batch.counts == 0
            if target.dim() == 1:
                target = target.masked_fill(fills, self.loss.ignore_index)
            else:
                target = target.masked_fill(fills[:, None], 0)
        losses: Tensor = self.loss(out, target)
        return losses

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, with a gradient, in a step, which all of them make at
        once.
        """
        return self.processes.sum(values) if self.random.is_in_step else values

    def backward(self, losses: Tensor, batch: Batch) -> None:
        """Compute the gradient of the mean of ``losses`` (M, b) over all processes' rows, of each
        model by itself.
        """
        self.fabric.backward(self.mean(losses, batch))

    def mean(self, losses: Tensor, batch: Batch) -> Tensor:
        """Return the scalar that ``backward`` differentiates."""
        if batch.counts is not None:
            losses = losses * batch.counts
        # DDP averages over processes, each of which holds its share of the rows.
        return losses.sum() * (self.processes.world_size / batch.count)

    def check_whole(self, use: str) -> None:
        """Refuse weights of which each process has a share, where a strategy needs them whole."""
        if self.is_sharded:
            raise ValueError(
                f"Expected whole weights to {use}, got sharded ones. Train with DDP, not FSDP."
            )

    def stop(self, reason: str) -> None:
        """End the training after this epoch."""
        self.stopped = self.stopped or reason

    def make_batch(self, rows: Tensor, raw: Tensor | None = None) -> Batch:
        """Return the batch of this process: its share of the ``rows`` of a step, augmented.

        All processes have equally many rows: if they do not divide evenly, some rows fill up the
        last shares, and ``counts`` is 0 for them. ``raw`` are the inputs, where they are known.
        """
        count = len(rows)
        params = None
        if self.augment is not None and self.augment.columns:
            drawn = self.augment.draw(count, self.random.generator("augment", self.step))
            params = self.processes.share(drawn)
        index = self.processes.share(rows).to(self.device, non_blocking=True)
        counts = None
        if len(index) * self.processes.world_size > count:
            counts = (self.processes.places(count) < count).to(self.device, self.dtype)
        given = self.data.given[index]
        soft = None
        if self.data.multilabel or self.data.soft is not None:
            soft = self.labels(index)
        if raw is None:
            raw = self.data.x[index]  # type: ignore[index]
        return Batch(
            x=self.prepare(raw, self.augment, params),
            target=given if soft is None else soft,
            given=given,
            rows=index,
            all_rows=rows.to(self.device, non_blocking=True),
            counts=counts,
            count=count,
            soft=soft,
        )

    def labels(self, rows: Tensor) -> Tensor:
        """Return the labels of training ``rows`` as a loss takes them: given classes (b,), or real
        numbers (b, K).
        """
        labels = self.data.labels[rows]
        if labels.dim() == 2:
            return labels.to(self.dtype)
        return labels

    def fetch(
        self, x: Inputs, rows: Tensor, transform: Transform | None, params: Tensor | None = None
    ) -> Tensor:
        """Return the inputs ``rows`` of ``x`` on the device, transformed."""
        return self.prepare(next(read_batches(x, [rows])), transform, params)

    def prepare(
        self, x: Tensor, transform: Transform | None, params: Tensor | None = None
    ) -> Tensor:
        """Return raw inputs as the models take them."""
        x = x.to(self.device, non_blocking=True)
        if params is None:
            params = x.new_empty(len(x), 0, dtype=torch.float32)
        apply = _compiled() if self.compiled and self.random.is_in_step else _transformed
        return apply(x, transform, params, self.dtype)


def _transformed(
    x: Tensor, transform: Transform | None, params: Tensor, dtype: torch.dtype
) -> Tensor:
    if transform is not None:
        x = transform.apply(x, params)
    x = x.to(dtype)
    if x.is_cuda and x.dim() == 4:  # as convolutions of a GPU's tensor cores want it
        return x.contiguous(memory_format=torch.channels_last)
    return x


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_transformed, dynamic=False)


class Strategy:
    """One part of a method. Every hook defaults to "change nothing"; a subclass overrides those
    that it needs.

    The hooks are listed in the order in which the loop calls them. Whatever a strategy remembers
    between steps is named in ``remembers``, else a killed run cannot resume exactly. What cannot be
    trained together is in ``strategies.combine``.
    """

    name = ""
    models = 1  # how many are trained side by side
    adds: frozenset[str] = frozenset()  # the fields of Output that it fills
    makes: Targets = "classes"  # the most general targets that it gives to the loss
    multilabel = False  # whether it works where rows have several labels
    mixes = False  # whether it mixes inputs, so that the outputs of a step belong to no single row
    sigma = 0.0  # of the noise that it adds to targets or gradients
    max_norm: float | None = None  # of a step's gradient, unless the settings have one
    observes = False  # whether it leaves the training unchanged, so that a step may skip it
    # attributes that checkpoints hold: tensors and plain values
    remembers: ClassVar[tuple[str, ...]] = ()
    # whether its hooks inside a step only move tensors, as a CUDA graph requires
    capturable = False
    # whether one call of its hooks serves several runs that are stacked: see ``bind``
    joins = False

    def __post_init__(self) -> None:
        """Check the parameters of a strategy that is a dataclass."""
        check_fields(self)

    def setup(self, run: Run) -> None:
        """Check data and models, and allocate tables, before the first epoch.

        Where a checkpoint is loaded, it is loaded afterwards.
        """

    def bind(self, run: Run) -> None:
        """Refer to the models of ``run``.

        A copy of a strategy that ``joins`` is bound to the models of S stacked runs. That copy's
        ``targets`` gets the rows of all runs, treats each by itself and draws with
        ``run.random.normal`` or ``uniform``; its ``after_step`` finds weights (S, …), which it must
        not write. It overrides no other hook inside a step or at the ends of an epoch, and
        remembers nothing.
        """

    def start_epoch(self, run: Run) -> None:
        """Act before each epoch; passes over the whole set (``strategies.sweeps``) belong here."""

    def phase(self, run: Run) -> Hashable:
        """Return what the hooks inside a step branch on in this epoch; a change captures the step
        again.
        """
        return None

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        """Return the rows that this epoch trains on, in order."""
        return rows

    def targets(self, batch: Batch, run: Run) -> Batch:
        """Return the batch with other inputs or targets, before the forward pass."""
        return batch

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        """Return the outputs of the models, before the loss."""
        return outs

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        """Return the batch with other targets, after the forward pass."""
        return batch

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        """Return a factor for each row's loss, from the losses (M, b) of this step.

        None stands for one everywhere.
        """
        return None

    def penalties(
        self, losses: Tensor, outs: list[Output], batch: Batch, run: Run
    ) -> Tensor | None:
        """Return a term to add to each row's weighed loss (M, b), with a gradient.

        The record shows losses without it.
        """
        return None

    def step(self, batch: Batch, run: Run) -> Step | None:
        """Make forward, loss and backward in place of the loop; None leaves them to the loop.

        This is the escape hatch for methods that the other hooks cannot express.
        """
        return None

    def gradients(self, run: Run) -> None:
        """Change gradients after backward, before clipping and the optimiser's step."""

    def after_step(self, run: Run) -> None:
        """Act after the optimiser's step."""

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        """Act when the epoch's metrics are known; ``run.stop(reason)`` ends the training."""

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes named in ``remembers``.

        Override it where they are not tensors or plain values.
        """
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def ends(self) -> float:
        """The epoch from which its hooks up to ``penalties`` change nothing."""
        return math.inf

    def restarts(self, epoch: int) -> bool:
        """Return whether models go back to their first weights at the start of ``epoch``."""
        return False

    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Return whether the class overrides any of these hooks."""
        return any(getattr(cls, hook) is not getattr(Strategy, hook) for hook in hooks)

    def __str__(self) -> str:
        return format_call(self.name or type(self).__name__, self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that make this strategy, by name."""
        return stored_parameters(self, STRATEGIES.parameters(self.name)) if self.name else {}


STRATEGIES: Registry[Strategy] = Registry("strategy")
register = STRATEGIES.register_class


def get_strategy(spec: str, **params: Any) -> Strategy:
    """Build the strategy that ``spec`` names; keyword arguments are the same parameters.

    >>> from noiseproof.strategies import get_strategy
    >>> print(get_strategy("sln", sigma=0.5))
    sln:sigma=0.5,until=none,max_norm=1.0
    """
    name, values = STRATEGIES.parse(spec, params)
    return STRATEGIES.create(name, **values)
