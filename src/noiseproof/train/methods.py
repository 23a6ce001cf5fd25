"""Named methods: each a loss, a head and strategies; ``METHOD@PAPER`` has a paper's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

from noiseproof.core.registry import Registry
from noiseproof.losses import Loss, get_loss
from noiseproof.strategies import Strategy
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task


@dataclass(frozen=True, eq=False)
class Method:
    """Loss × head × strategies."""

    loss: Loss
    head: str = "linear"
    strategies: tuple[Strategy, ...] = ()

    @property
    def models(self) -> int:
        """How many models are trained side by side."""
        return max([1, *(strategy.models for strategy in self.strategies)])

    @property
    def adds(self) -> frozenset[str]:
        """The fields of ``Output`` that strategies fill."""
        return frozenset().union(*(strategy.adds for strategy in self.strategies))

    def __str__(self) -> str:
        parts = [str(self.loss), *([] if self.head == "linear" else [self.head]), *map(str, self.strategies)]
        return " × ".join(parts)


METHODS: Registry[Method] = Registry("method")


def get_method(spec: str, task: Task, settings: Settings) -> Method:
    """Build the method that ``spec`` names for this task."""
    return Method(get_loss(spec))
