"""What a method may do beside its loss: hooks at fixed points of the one training loop."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor

from noiseproof.core.grammar import format_call
from noiseproof.core.output import Output
from noiseproof.core.registry import Registry, stored_parameters
from noiseproof.losses.margin import CE
from noiseproof.strategies.batch import Batch as Batch
from noiseproof.strategies.batch import Step as Step
from noiseproof.strategies.run import Run

STRATEGIES: Registry[Strategy] = Registry("strategy")
register = STRATEGIES.register_class


def get_strategy(spec: str, **params: Any) -> Strategy:
    """Build the strategy that ``spec`` names; keyword arguments are the same parameters.

    >>> print(get_strategy("sln", sigma=0.5))
    sln:sigma=0.5,until=none
    """
    name, values = STRATEGIES.parse(spec, params)
    return STRATEGIES.create(name, **values)


_SAME = "the given one where it changes nothing"
_ANSWERS: dict[str, tuple[tuple[type, ...], str]] = {  # of hooks: their types, and in words
    "rows": ((Tensor,), "the numbers of the rows to train on, one at least"),
    "targets": ((Batch,), f"a Batch, {_SAME}"),
    "outputs": ((list,), f"a list of Output, {_SAME}"),
    "revise": ((Batch,), f"a Batch, {_SAME}"),
    "weights": ((Tensor, type(None)), "a factor for each of the `losses` in their shape {shape}, or None"),
    "step": ((Step, type(None)), "a Step or None"),
}


def answered(strategy: Strategy, hook: str, given: Any, *more: Any) -> Any:
    """What a strategy's ``hook`` says of ``given``; refused where the loop could not use it, without reading values."""
    got = getattr(strategy, hook)(given, *more)
    types, expected = _ANSWERS[hook]
    fits = isinstance(got, types)
    if fits and hook == "weights" and got is not None:
        fits = got.shape == given.shape
    elif fits and hook == "rows":
        fits = got.dim() == 1 and len(got) > 0 and got.dtype is not torch.bool
    if not fits:
        said = expected.format(shape=tuple(given.shape)) if hook == "weights" else expected
        found = f"{got.dtype} of shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
        who = strategy.name or type(strategy).__name__
        raise TypeError(f"Expected `{hook}` of the strategy {who!r} to return {said}, got {found}.")
    return got


class Strategy:
    """One part of a method. Every hook defaults to "change nothing"; a subclass writes those that it needs.

    The hooks are listed in the order in which the loop calls them. Whatever a strategy remembers between steps goes
    into ``state_dict``, else a killed run cannot resume exactly.
    """

    name: ClassVar[str] = ""
    models: ClassVar[int] = 1  # how many are trained side by side
    adds: ClassVar[frozenset[str]] = frozenset()  # the fields of Output that it fills
    validates: ClassVar[bool] = False  # whether it looks at the accuracy on held-out rows
    capturable: ClassVar[bool] = False  # whether its hooks inside a step only move tensors, so that a CUDA graph holds
    watches: ClassVar[bool] = False  # whether it changes nothing of the training, so that a step may pass it by
    mixes: ClassVar[bool] = False  # whether inputs are mixed, so that what models say in a step is of no single row

    def setup(self, run: Run) -> None:
        """Before the first epoch, and before a checkpoint is loaded: make what the size of the data decides."""

    def start_epoch(self, run: Run) -> None:
        """Before each epoch; whole-set passes (``run.sweep``) belong here."""

    def phase(self, run: Run) -> Hashable:
        """What hooks inside a step decide by in Python in this epoch; where it changes, a step is captured anew."""
        return None

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        """The rows that this epoch sees, in their order."""
        return rows

    def targets(self, batch: Batch, run: Run) -> Batch:
        """What the batch is trained towards, before the models see it."""
        return batch

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        """What the models said, before the loss sees it."""
        return outs

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        """The targets again, now that the models have spoken."""
        return batch

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        """A factor for each row's loss, from the losses (M, b) of this step; None is one everywhere."""
        return None

    def step(self, batch: Batch, run: Run) -> Step | None:
        """The escape hatch: forward, loss and backward of one's own; None leaves them to the loop."""
        return None

    def gradients(self, run: Run) -> None:
        """After backward, before clipping and the optimiser's step."""

    def after_step(self, run: Run) -> None:
        """After the optimiser's step."""

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        """After the epoch's metrics are known; ``run.stop(reason)`` ends the training."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""

    @property
    def ends(self) -> float:
        """The epoch from which its hooks up to ``weights`` change nothing."""
        return math.inf

    @classmethod
    def writes(cls, *hooks: str) -> bool:
        """Whether it has a version of its own of one of these hooks."""
        return any(getattr(cls, hook) is not getattr(Strategy, hook) for hook in hooks)

    def check_alone(self, epoch: int, run: Run) -> None:
        """Refuse strategies that its own ``step``, from ``epoch`` on, would pass by."""
        for other in run.strategies:
            unheard = other.writes("targets", "outputs", "revise", "weights", "step") and not other.watches
            if other is not self and unheard and other.ends > epoch:
                raise ValueError(
                    f"Expected nothing beside `{self.name}` that changes targets, outputs or weights of losses from "
                    f"epoch {epoch} on (counted from 0), where it makes steps of its own, got `{other}`. Leave it out"
                    + (f", or end it there (until={epoch})." if epoch and "until" in other.parameters else ".")
                )

    def check_cross_entropy(self, run: Run) -> None:
        """Refuse any other loss, which a strategy with a loss of its own would pass by."""
        if type(run.loss) is not CE or run.loss.weight is not None:
            raise ValueError(
                f"Expected the loss `ce` for {self.name}, whose own loss takes its place, got `{run.loss}`. Use ce "
                "without class weights, or another method."
            )

    def __str__(self) -> str:
        return format_call(self.name or type(self).__name__, self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that make this strategy, by name."""
        return stored_parameters(self, STRATEGIES.parameters(self.name)) if self.name else {}
