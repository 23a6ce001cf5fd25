"""Strategies: what a method does beside its loss, as hooks at fixed points of the training loop."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from noiseproof.core.checks import check_reached
from noiseproof.core.grammar import format_call
from noiseproof.core.output import Output
from noiseproof.core.registry import Registry, stored_parameters
from noiseproof.losses import Loss
from noiseproof.losses.base import Targets
from noiseproof.losses.margin import CE
from noiseproof.strategies.batch import Batch as Batch
from noiseproof.strategies.batch import Step as Step
from noiseproof.strategies.run import Run

STRATEGIES: Registry[Strategy] = Registry("strategy")
register = STRATEGIES.register_class


def get_strategy(spec: str, **params: Any) -> Strategy:
    """Build the strategy that ``spec`` names; keyword arguments are the same parameters.

    >>> print(get_strategy("sln", sigma=0.5))
    sln:sigma=0.5,until=none,max_norm=1.0
    """
    name, values = STRATEGIES.parse(spec, params)
    return STRATEGIES.create(name, **values)


_UNCHANGED = "the given one where it changes nothing"
_RETURNS: dict[str, tuple[tuple[type, ...], str]] = {  # types that each hook may return, and their description
    "rows": ((Tensor,), "the numbers of the rows to train on, one at least"),
    "targets": ((Batch,), f"a Batch, {_UNCHANGED}"),
    "outputs": ((list,), f"a list of Output, {_UNCHANGED}"),
    "revise": ((Batch,), f"a Batch, {_UNCHANGED}"),
    "weights": ((Tensor, type(None)), "a factor for each of the `losses` in their shape {shape}, or None"),
    "penalties": ((Tensor, type(None)), "a term for each of the `losses` in their shape {shape}, or None"),
    "step": ((Step, type(None)), "a Step or None"),
}


def call_hook(strategy: Strategy, hook: str, value: Any, *context: Any) -> Any:
    """The result of a strategy's ``hook``, refused where the loop cannot use it, without reading tensors' values."""
    result = getattr(strategy, hook)(value, *context)
    types, expected = _RETURNS[hook]
    fits, is_of_losses = isinstance(result, types), hook in ("weights", "penalties")
    if fits and is_of_losses and result is not None:
        fits = result.shape == value.shape
    elif fits and hook == "rows":
        fits = result.dim() == 1 and len(result) > 0 and result.dtype is not torch.bool
    if not fits:
        expected = expected.format(shape=tuple(value.shape)) if is_of_losses else expected
        is_tensor = isinstance(result, Tensor)
        actual = f"{result.dtype} of shape {tuple(result.shape)}" if is_tensor else type(result).__name__
        name = strategy.name or type(strategy).__name__
        raise TypeError(f"Expected `{hook}` of the strategy {name!r} to return {expected}, got {actual}.")
    return result


def check_scores(loss: Loss, user: str) -> None:
    """Refuse a loss with scores of classes that no label has, since ``user`` needs one score for each class."""
    if loss.extra_scores:
        raise ValueError(
            f"Expected a score for each class for {user}, got one more of the dummy class (predict=released). "
            "Use predict=classes."
        )


_TARGETS: dict[Targets, tuple[str, str]] = {  # how errors call them, and the remedy for a loss that takes no others
    "classes": ("one class a row, since a shift needs one labelled logit", "the loss without remargin"),
    "probabilities": ("probabilities", "a loss that is linear in its target, such as ce"),
    "real": ("numbers, negative ones too", ""),
}


@dataclass(frozen=True, eq=False)
class Plan:
    """What is known of a run before anything is built; a ``Run`` has the same fields."""

    loss: Loss
    strategies: Sequence[Strategy]
    num_classes: int
    epochs: float = math.inf  # if unknown


def check_together(plan: Plan) -> None:
    """Refuse a loss and strategies that cannot be trained together, before anything is built."""
    loss, strategies = plan.loss, plan.strategies
    for position, strategy in enumerate(strategies):
        for other in strategies[:position]:
            if strategy.name and strategy.name == other.name:
                raise ValueError(f"Expected each strategy once, got `{other}` and `{strategy}`. Leave one out.")
            if strategy.predicts and other.predicts:
                raise ValueError(
                    f"Expected one model to predict, got those of `{other}` and `{strategy}`. Leave one out."
                )
        if loss.multilabel and not strategy.multilabel:
            works = [name for name in STRATEGIES if getattr(STRATEGIES[name], "multilabel", False)]
            raise ValueError(
                f"Expected strategies for several labels a row, got `{strategy}`, which needs one class a row. Leave "
                f"it out, or use {', '.join(works)}."
            )
        check_targets(loss, strategy.makes, f"`{strategy}`", f"leave {strategy.name or 'the strategy'} out")
    loss.check(plan.epochs)
    for strategy in strategies:
        strategy.check(plan)


def check_targets(loss: Loss, made: Targets, user: str, otherwise: str) -> None:
    """Refuse a loss that does not take the targets ``made`` by ``user``."""
    kinds = get_args(Targets)
    if kinds.index(made) > kinds.index(loss.takes):
        (makes, _), (takes, remedy) = _TARGETS[made], _TARGETS[loss.takes]
        raise ValueError(
            f"Expected a loss whose targets may be {makes} for {user}, got `{loss}`, which takes {takes}. "
            f"Use {remedy}, or {otherwise[0].lower()}{otherwise[1:]}."
        )


class Strategy:
    """One part of a method. Every hook defaults to "change nothing"; a subclass overrides those that it needs.

    The hooks are listed in the order in which the loop calls them. Whatever a strategy remembers between steps is named
    in ``remembers``, else a killed run cannot resume exactly.
    """

    name: ClassVar[str] = ""
    models: ClassVar[int] = 1  # how many are trained side by side
    adds: ClassVar[frozenset[str]] = frozenset()  # the fields of Output that it fills
    validates: ClassVar[bool] = False  # whether it needs the accuracy on held-out rows
    max_norm: float | None = None  # of a step's gradient, unless the settings have one
    capturable: ClassVar[bool] = False  # whether its hooks inside a step only move tensors, as a CUDA graph requires
    joins: ClassVar[bool] = False  # whether one call of its hooks serves several runs that are stacked: see ``bind``
    observes: ClassVar[bool] = False  # whether it leaves the training unchanged, so that a step may skip it
    mixes: ClassVar[bool] = False  # whether it mixes inputs, so that the outputs of a step belong to no single row
    remembers: ClassVar[tuple[str, ...]] = ()  # attributes that checkpoints hold: tensors and plain values
    predicts: ClassVar[bool] = False  # whether a model of its own predicts in place of the trained ones
    makes: Targets = "classes"  # the most general targets that it gives to the loss
    multilabel: ClassVar[bool] = False  # whether it works where rows have several labels
    perturbs: ClassVar[bool] = False  # whether it adds noise of size ``sigma`` to targets or gradients

    def check(self, plan: Plan) -> None:
        """Refuse a loss, other strategies or a number of epochs that it cannot work with, when a line is read."""

    def setup(self, run: Run) -> None:
        """Before the first epoch, and before a checkpoint is loaded: check data and models, and allocate tables."""

    def bind(self, run: Run) -> None:
        """Refer to the models of ``run``; a copy of a strategy that ``joins`` is bound to those of S stacked runs.

        That copy's ``targets`` gets the rows of all runs, treats each by itself and draws with ``run.random.normal`` or
        ``uniform``; its ``after_step`` finds weights (S, …), which it must not write. It overrides no other hook inside
        a step or at the ends of an epoch, and remembers nothing.
        """

    def start_epoch(self, run: Run) -> None:
        """Before each epoch; passes over the whole set (``strategies.sweeps``) belong here."""

    def phase(self, run: Run) -> Hashable:
        """What the hooks inside a step branch on in this epoch; a change captures the step anew."""
        return None

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        """The rows that this epoch trains on, in order."""
        return rows

    def targets(self, batch: Batch, run: Run) -> Batch:
        """The batch with other inputs or targets, before the forward pass."""
        return batch

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        """The outputs of the models, before the loss."""
        return outs

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        """The batch with other targets, after the forward pass."""
        return batch

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        """A factor for each row's loss, from the losses (M, b) of this step; None is one everywhere."""
        return None

    def penalties(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        """A term to add to each row's weighed loss (M, b), with a gradient; the record shows losses without it."""
        return None

    def step(self, batch: Batch, run: Run) -> Step | None:
        """The escape hatch: its own forward, loss and backward; None leaves them to the loop."""
        return None

    def gradients(self, run: Run) -> None:
        """After backward, before clipping and the optimiser's step."""

    def after_step(self, run: Run) -> None:
        """After the optimiser's step."""

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        """After the epoch's metrics are known; ``run.stop(reason)`` ends the training."""

    def state_dict(self) -> dict[str, Any]:
        """The attributes named in ``remembers``; override it where they are not tensors or plain values."""
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
        """Whether it sets the models back to their first weights at the start of ``epoch``."""
        return False

    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Whether the class overrides any of these hooks."""
        return any(getattr(cls, hook) is not getattr(Strategy, hook) for hook in hooks)

    def check_reached(self, parameter: str, plan: Plan | Run) -> None:
        """Refuse a ``parameter`` that names an epoch after the last one."""
        check_reached(self.name or type(self).__name__, parameter, getattr(self, parameter), plan.epochs)

    def check_sole_step(self, epoch: float, plan: Plan | Run) -> None:
        """Refuse other strategies whose hooks its own ``step``, from ``epoch`` on, would skip."""
        for other in plan.strategies:
            hooks = "targets", "outputs", "revise", "weights", "penalties", "step"
            skipped = other.overrides(*hooks) and not other.observes
            if other is not self and skipped and other.ends > epoch:
                raise ValueError(
                    f"Expected nothing beside `{self.name}` that changes targets, outputs, losses or weights from "
                    f"epoch {epoch} on (counted from 0), where it makes steps of its own, got `{other}`. Leave it out"
                    + (f", or end it there (until={epoch})." if epoch and "until" in other.parameters else ".")
                )

    def check_unmixed(self, why: str, plan: Plan | Run) -> None:
        """Refuse a strategy that mixes inputs."""
        for other in plan.strategies:
            if other.mixes:
                raise ValueError(
                    f"Expected inputs of single rows for {self.name}, {why}, got `{other}`, which mixes them. Leave "
                    "one out."
                )

    def check_cross_entropy(self, plan: Plan | Run) -> None:
        """Refuse any other loss than cross entropy, which the strategy's own loss would replace."""
        if type(plan.loss) is not CE or plan.loss.weight is not None:
            raise ValueError(
                f"Expected the loss `ce` for {self.name}, whose own loss takes its place, got `{plan.loss}`. Use ce "
                "without class weights, or another method."
            )

    def __str__(self) -> str:
        return format_call(self.name or type(self).__name__, self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that make this strategy, by name."""
        return stored_parameters(self, STRATEGIES.parameters(self.name)) if self.name else {}
