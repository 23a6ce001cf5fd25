"""What cannot be trained together: one table of rules, applied before anything is built."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from noiseproof.losses import Loss
from noiseproof.losses.base import Targets, parts_of
from noiseproof.losses.correction import Backward, Corrected
from noiseproof.losses.coupled import CR, Peer
from noiseproof.losses.margin import CE
from noiseproof.strategies.run import STRATEGIES, Strategy

# hooks that change what a step learns from its rows
IN_STEP = ("targets", "outputs", "revise", "weights", "penalties")
OWN_STEPS = ("dividemix", "promix", "progressive-mixmatch", "gp")
PROGRESSIVE = ("progressive-stopping", "progressive-mixmatch")
BY_LOSS = ("small-loss", "co-teaching", "sigua")  # select rows by their losses
SELECTIONS = (*BY_LOSS, "sigua-bc", "prune")
MEMORIES = ("target-memory", "exchanged-memory")
# strategies that the square of pairs in docs/strategies.md leaves out
UNTESTED = ("crowd-layer", "freeze")
# parameters that name an epoch, which a run must reach
EPOCHS = {
    "nal": ("warmup",),
    "peer": ("warmup",),
    "cr": ("warmup",),
    "freeze": ("until",),
    "label-correction": ("start",),
    "estimated-targets": ("start",),
    "prune": ("start",),
    "small-loss": ("start",),
    "sigua": ("start",),
    "co-teaching": ("start",),
    "sigua-bc": ("warmup",),
    "estimate-transition": ("warmup",),
    "progressive-stopping": ("start",),
    "progressive-mixmatch": ("start",),
    "dividemix": ("warmup",),
    "promix": ("warmup", "guess_from"),
}


class Combination(NamedTuple):
    """A loss and strategies, and what is known of the run before it is built."""

    loss: Loss
    strategies: Sequence[Strategy]
    num_classes: int
    epochs: float  # infinity if unknown


class Rule(NamedTuple):
    """What the ``strategies`` of these names cannot be combined with."""

    strategies: tuple[str, ...]
    broken_by: Callable[[Any, Combination], object]  # what breaks the rule; None or False: nothing
    message: str


def _other_loss(strategy: Any, parts: Combination) -> bool:
    return type(parts.loss) is not CE or parts.loss.weight is not None


def _terms(loss: Loss, kinds: type[Loss] | tuple[type[Loss], ...]) -> Loss | None:
    return next((part for part in loss.modules() if isinstance(part, kinds)), None)


def _earlier_rows(strategy: Any, parts: Combination) -> Strategy | None:
    earlier = parts.strategies[: list(parts.strategies).index(strategy)]
    return next((other for other in earlier if other.overrides("rows")), None)


def _named(names: tuple[str, ...]) -> Callable[[Any, Combination], Strategy | None]:
    def find(strategy: Any, parts: Combination) -> Strategy | None:
        others = (other for other in parts.strategies if other is not strategy)
        return next((other for other in others if other.name in names), None)

    return find


def _mixing(strategy: Any, parts: Combination) -> Strategy | None:
    return next((other for other in parts.strategies if other.mixes), None)


def _active(strategy: Any, parts: Combination) -> list[Strategy]:
    """Return the other strategies that still act in the epochs of ``strategy``."""
    first = getattr(strategy, "warmup", getattr(strategy, "start", 0))
    return [other for other in parts.strategies if other is not strategy and other.ends > first]


def _skipped(strategy: Any, parts: Combination) -> Strategy | None:
    """Return a strategy whose hooks the steps of ``strategy`` pass by."""
    for other in _active(strategy, parts):
        if other.overrides(*IN_STEP, "step") and not other.observes:
            return other
    return None


def _changing(strategy: Any, parts: Combination) -> Strategy | None:
    """Return a strategy that changes the loss of a row or its gradient in the epochs of
    ``strategy``.
    """
    for other in _active(strategy, parts):
        if other.sigma or (other.overrides(*IN_STEP) and not other.observes):
            return other
    return None


def _noise_on_targets(strategy: Any, parts: Combination) -> Strategy | None:
    return next((other for other in _active(strategy, parts) if other.makes == "real"), None)


def _large_noise(strategy: Any, parts: Combination) -> Strategy | None:
    """Return a strategy whose noise is larger than a label.

    Rows of small loss have next to no gradient to hold against it.
    """
    largest = parts.num_classes**-0.5
    return next((other for other in _active(strategy, parts) if other.sigma > largest), None)


def _too_many_epochs(strategy: Any, parts: Combination) -> float | None:
    total: float = strategy.ends_of_stages[-1]
    return total if parts.epochs < total < float("inf") else None


RULES = (
    Rule(
        OWN_STEPS,
        _other_loss,
        "Expected the loss `ce` for {name}, whose own loss takes its place, got `{loss}`. Use ce"
        " without class weights, or another method.",
    ),
    Rule(
        ("sigua-bc",),  # the sign of a sum does not show the sign of the corrected term
        lambda strategy, parts: not isinstance(parts.loss, Backward),
        "Expected the loss `backward` for sigua-bc, got `{loss}`. Use sigua for others.",
    ),
    Rule(
        ("crowd-layer",),
        lambda strategy, parts: parts.loss.needs != {"logits"},
        "Expected a loss of logits alone for crowd-layer, got `{loss}`. Use ce.",
    ),
    Rule(
        ("sparse-noise",),
        lambda strategy, parts: "noise" not in parts.loss.needs,
        "Expected a loss that learns noise for {name}, got `{loss}`. Use (sop).",
    ),
    Rule(
        MEMORIES,
        lambda strategy, parts: not strategy.reweigh and "memory" not in parts.loss.needs,
        "Expected a loss that reads the memory of {name}, got `{loss}`. Use (elr).",
    ),
    Rule(
        ("estimate-transition",),
        lambda strategy, parts: _terms(parts.loss, Corrected) is None,
        "Expected the loss `forward` or `backward` to estimate T for, got `{loss}`. Use one of"
        " them.",
    ),
    Rule(
        ("estimate-transition",),
        lambda strategy, parts: _terms(parts.loss, (CR, Peer)),
        "Expected a loss whose predictions are probabilities of the given labels to estimate T"
        " from, got `{found}`, which makes them more certain. Give T to `forward` or `backward`, or"
        " leave it out.",
    ),
    Rule(
        ("class-balanced",),
        _earlier_rows,
        "Expected class-balanced before `{found}`, whose rows it replaces, got it after. Name it"
        " first.",
    ),
    Rule(
        ("gp", "momentum"),
        _named(("gp", "momentum")),
        "Expected one model to predict, got those of `{name}` and `{found}`. Leave one out.",
    ),
    Rule(
        PROGRESSIVE,
        _named(("freeze",)),
        "Expected weights that {name} can draw again, got `freeze`. Leave one out.",
    ),
    Rule(
        PROGRESSIVE,
        _named(SELECTIONS),
        "Expected no selection together with {name}, got `{found}`: layers that are drawn again"
        " would learn from only the rows that it keeps. Leave one out.",
    ),
    Rule(
        PROGRESSIVE,
        _too_many_epochs,
        "Expected `start`, `block_epochs` and `head_epochs` to end before the run, got {found}"
        " epochs. Lower them, or train longer.",
    ),
    Rule(
        ("consistency", "sparse-noise", "crowd-layer"),
        _mixing,
        "Expected inputs of single rows for {name}, got `{found}`, which mixes them. Leave one"
        " out.",
    ),
    Rule(
        ("prune",),
        _noise_on_targets,
        "Expected no noise on targets from the `start` of prune on, got `{found}`: it keeps the"
        " probabilities of right labels below `k` as well. End it there (until=…).",
    ),
    Rule(
        BY_LOSS,
        _large_noise,
        "Expected noise of at most the size of a label (`sigma` up to 1/√K) where {name} selects"
        " rows, which are learned too well to hold against more, got `{found}`. Lower it, or end it"
        " where {name} starts.",
    ),
    Rule(
        ("sigua-bc",),
        _changing,
        "Expected nothing together with sigua-bc that changes targets, outputs, losses or weights,"
        " or adds noise, got `{found}`: the sign of the corrected loss of the given label alone"
        " decides. Leave one out.",
    ),
    Rule(
        OWN_STEPS,
        _skipped,
        "Expected nothing that changes targets, outputs, losses or weights together with {name},"
        " which makes steps of its own, got `{found}`. Leave it out, or end it before (until=…).",
    ),
)


def check_together(parts: Combination) -> None:
    """Refuse a loss and strategies that cannot be trained together, before anything is built.

    A pair that was never tested runs, with a warning.
    """
    loss = parts.loss
    for position, strategy in enumerate(parts.strategies):
        named = [other for other in parts.strategies[:position] if strategy.name == other.name]
        if strategy.name and named:
            raise ValueError(
                f"Expected each strategy once, got `{named[0]}` and `{strategy}`. Leave one out."
            )
        if loss.multilabel and not strategy.multilabel:
            works = [name for name in STRATEGIES if getattr(STRATEGIES[name], "multilabel", False)]
            raise ValueError(
                f"Expected strategies for several labels per row, got `{strategy}`, which needs one"
                f" class per row. Leave it out, or use {', '.join(works)}."
            )
        check_targets(
            loss, strategy.makes, f"`{strategy}`", f"leave {strategy.name or 'the strategy'} out"
        )
    for part in (loss, *parts_of(loss)):
        _check_epochs(part, parts.epochs)
    for strategy in parts.strategies:
        for rule in RULES:
            found = strategy.name in rule.strategies and rule.broken_by(strategy, parts)
            if found:
                raise ValueError(rule.message.format(name=strategy.name, loss=loss, found=found))
        _check_epochs(strategy, parts.epochs)
    _warn_of_untested(parts.strategies)


def _check_epochs(part: Loss | Strategy, epochs: float) -> None:
    """Refuse an epoch after the last one, from which nothing would happen."""
    for name in EPOCHS.get(part.name, ()):
        epoch = getattr(part, name)
        if epoch and epoch >= epochs:
            raise ValueError(
                f"Expected `{name}` of {part.name} below the {epochs} epochs of the run (counted"
                f" from 0), got {epoch}. Lower `{name}`, or train longer."
            )


def _warn_of_untested(strategies: Sequence[Strategy]) -> None:
    named = [strategy for strategy in strategies if strategy.name]
    new = [strategy for strategy in named if strategy.name in UNTESTED]
    if new and len(named) > 1:
        warnings.warn(
            f"`{new[0]}` was not tested together with other strategies. Compare the run with one"
            " without them.",
            stacklevel=2,
        )


# how errors call targets, and the remedy for a loss that takes no more general ones
_TARGETS: dict[Targets, tuple[str, str]] = {
    "classes": (
        "one class per row, since a shift needs one labelled logit",
        "the loss without remargin",
    ),
    "probabilities": ("probabilities", "a loss that is linear in its target, such as ce"),
    "real": ("numbers, negative ones too", ""),
}


def check_targets(loss: Loss, made: Targets, user: str, otherwise: str) -> None:
    """Refuse a loss that does not take the targets ``made`` by ``user``."""
    kinds = get_args(Targets)
    if kinds.index(made) > kinds.index(loss.takes):
        makes, _ = _TARGETS[made]
        takes, remedy = _TARGETS[loss.takes]
        raise ValueError(
            f"Expected a loss whose targets may be {makes} for {user}, got `{loss}`, which takes"
            f" {takes}. Use {remedy}, or {otherwise}."
        )
