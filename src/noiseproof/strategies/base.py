"""Strategies by name, calls of their hooks, and refusals of what cannot be trained together."""

from typing import Any, get_args

import torch
from torch import Tensor

from noiseproof.losses import Loss
from noiseproof.losses.base import Targets
from noiseproof.losses.margin import CE
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.run import STRATEGIES, Plan, Run, Strategy, register

__all__ = [
    "STRATEGIES",
    "Batch",
    "Plan",
    "Run",
    "Step",
    "Strategy",
    "call_hook",
    "check_cross_entropy",
    "check_sole_step",
    "check_targets",
    "check_together",
    "check_unmixed",
    "get_strategy",
    "register",
]


def get_strategy(spec: str, **params: Any) -> Strategy:
    """Build the strategy that ``spec`` names; keyword arguments are the same parameters.

    >>> print(get_strategy("sln", sigma=0.5))
    sln:sigma=0.5,until=none,max_norm=1.0
    """
    name, values = STRATEGIES.parse(spec, params)
    return STRATEGIES.create(name, **values)


_UNCHANGED = "the given one where it changes nothing"
# types that each hook may return, and their description
_RETURNS: dict[str, tuple[tuple[type, ...], str]] = {
    "rows": ((Tensor,), "the numbers of the rows to train on, one at least"),
    "targets": ((Batch,), f"a Batch, {_UNCHANGED}"),
    "outputs": ((list,), f"a list of Output, {_UNCHANGED}"),
    "revise": ((Batch,), f"a Batch, {_UNCHANGED}"),
    "weights": (
        (Tensor, type(None)),
        "a factor for each of the `losses` in their shape {shape}, or None",
    ),
    "penalties": (
        (Tensor, type(None)),
        "a term for each of the `losses` in their shape {shape}, or None",
    ),
    "step": ((Step, type(None)), "a Step or None"),
}


def call_hook(strategy: Strategy, hook: str, value: Any, *context: Any) -> Any:
    """The result of a strategy's ``hook``, refused where the loop cannot use it, without reading
    tensors' values.
    """
    result = getattr(strategy, hook)(value, *context)
    types, expected = _RETURNS[hook]
    fits = isinstance(result, types)
    is_of_losses = hook in ("weights", "penalties")
    if fits and is_of_losses and result is not None:
        fits = result.shape == value.shape
    elif fits and hook == "rows":
        fits = result.dim() == 1 and len(result) > 0 and result.dtype is not torch.bool
    if not fits:
        expected = expected.format(shape=tuple(value.shape)) if is_of_losses else expected
        is_tensor = isinstance(result, Tensor)
        actual = (
            f"{result.dtype} of shape {tuple(result.shape)}" if is_tensor else type(result).__name__
        )
        name = strategy.name or type(strategy).__name__
        raise TypeError(
            f"Expected `{hook}` of the strategy {name!r} to return {expected}, got {actual}."
        )
    return result


# how errors call them, and the remedy for a loss that takes no others
_TARGETS: dict[Targets, tuple[str, str]] = {
    "classes": (
        "one class a row, since a shift needs one labelled logit",
        "the loss without remargin",
    ),
    "probabilities": ("probabilities", "a loss that is linear in its target, such as ce"),
    "real": ("numbers, negative ones too", ""),
}


def check_together(plan: Plan) -> None:
    """Refuse a loss and strategies that cannot be trained together, before anything is built."""
    loss = plan.loss
    strategies = plan.strategies
    for position, strategy in enumerate(strategies):
        for other in strategies[:position]:
            if strategy.name and strategy.name == other.name:
                raise ValueError(
                    f"Expected each strategy once, got `{other}` and `{strategy}`. Leave one out."
                )
            if strategy.predicts and other.predicts:
                raise ValueError(
                    f"Expected one model to predict, got those of `{other}` and `{strategy}`. Leave"
                    " one out."
                )
        if loss.multilabel and not strategy.multilabel:
            works = [name for name in STRATEGIES if getattr(STRATEGIES[name], "multilabel", False)]
            raise ValueError(
                f"Expected strategies for several labels a row, got `{strategy}`, which needs one"
                f" class a row. Leave it out, or use {', '.join(works)}."
            )
        check_targets(
            loss, strategy.makes, f"`{strategy}`", f"leave {strategy.name or 'the strategy'} out"
        )
    loss.check(plan.epochs)
    for strategy in strategies:
        strategy.check(plan)


def check_targets(loss: Loss, made: Targets, user: str, otherwise: str) -> None:
    """Refuse a loss that does not take the targets ``made`` by ``user``."""
    kinds = get_args(Targets)
    if kinds.index(made) > kinds.index(loss.takes):
        makes, _ = _TARGETS[made]
        takes, remedy = _TARGETS[loss.takes]
        raise ValueError(
            f"Expected a loss whose targets may be {makes} for {user}, got `{loss}`, which takes"
            f" {takes}. Use {remedy}, or {otherwise[0].lower()}{otherwise[1:]}."
        )


def check_sole_step(strategy: Strategy, epoch: float, plan: Plan | Run) -> None:
    """Refuse other strategies whose hooks the ``step`` of ``strategy``, from ``epoch`` on, would
    skip.
    """
    for other in plan.strategies:
        hooks = "targets", "outputs", "revise", "weights", "penalties", "step"
        skipped = other.overrides(*hooks) and not other.observes
        if other is not strategy and skipped and other.ends > epoch:
            raise ValueError(
                f"Expected nothing beside `{strategy.name}` that changes targets, outputs, losses"
                f" or weights from epoch {epoch} on (counted from 0), where it makes steps of its"
                f" own, got `{other}`. Leave it out"
                + (
                    f", or end it there (until={epoch})."
                    if epoch and "until" in other.parameters
                    else "."
                )
            )


def check_unmixed(strategy: Strategy, why: str, plan: Plan | Run) -> None:
    """Refuse a strategy that mixes inputs."""
    for other in plan.strategies:
        if other.mixes:
            raise ValueError(
                f"Expected inputs of single rows for {strategy.name}, {why}, got `{other}`, which"
                " mixes them. Leave one out."
            )


def check_cross_entropy(strategy: Strategy, plan: Plan | Run) -> None:
    """Refuse any other loss than cross entropy, which the loss of ``strategy`` would replace."""
    if type(plan.loss) is not CE or plan.loss.weight is not None:
        raise ValueError(
            f"Expected the loss `ce` for {strategy.name}, whose own loss takes its place, got"
            f" `{plan.loss}`. Use ce without class weights, or another method."
        )
