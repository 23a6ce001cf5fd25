"""The momentum model: an average of the trained model's weights over its past (SLN paper, section
4.1).
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_number, number
from noiseproof.strategies.run import Run, Strategy, register


@register("momentum")
@dataclass(eq=False)
class MomentumModel(Strategy):
    """θ′ ← α·θ′ + (1 − α)·θ after every step; θ′ predicts in place of θ (SLN paper, section 4.1:
    α = 0.999).

    By default α is the paper's, or less in a run of fewer than 20 000 steps: it averages over a
    twentieth of them. Batch statistics are averaged with the weights; integers, such as counts of
    batches, are not.
    """

    capturable = True
    joins = True
    multilabel = True

    alpha: float | None = number("[0, 1]", None)

    def setup(self, run: Run) -> None:
        run.check_whole("average")
        for model in run.models:
            model.evaluated = copy.deepcopy(model.plain).requires_grad_(False)
        if self.alpha is None:
            self.alpha = default_alpha(run.epochs * math.ceil(run.num_rows / run.batch_size))
        self.bind(run)

    def bind(self, run: Run) -> None:
        self.averages = run.evaluated
        self._averages = [v for average in self.averages for v in _floating(average)]
        self._current = [v for model in run.models for v in _floating(model.plain)]

    def after_step(self, run: Run) -> None:
        assert self.alpha is not None
        _move(self._averages, self._current, self.alpha)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": [average.state_dict() for average in self.averages]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.load_state_dict(saved)


def default_alpha(steps: int, most: float = 0.999) -> float:
    """Return the α that averages over a twentieth of the ``steps`` of a run, ``most`` at most.

    >>> default_alpha(500), default_alpha(50_000)
    (0.96, 0.999)
    """
    return min(most, max(0.0, round(1 - 20 / steps, 4)))


def update_average(average: nn.Module, model: nn.Module, alpha: float = 0.999) -> None:
    """Update θ′ ← α·θ′ + (1 − α)·θ, for each step of your own training loop.

    ``average`` starts as a copy of ``model``.

    >>> model, average = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(1.0), average.weight.fill_(0.0)
    >>> update_average(average, model, alpha=0.75)
    >>> average.weight.item()
    0.25
    """
    _move(_floating(average), _floating(model), check_number("alpha", alpha, "[0, 1]"))


@torch.no_grad()
def _move(averages: list[Tensor], current: list[Tensor], alpha: float) -> None:
    torch._foreach_lerp_(averages, current, 1 - alpha)


def _floating(model: nn.Module) -> list[Tensor]:
    # The parameters themselves: a stack of runs may move their values to other memory.
    return [
        value for value in model.state_dict(keep_vars=True).values() if value.is_floating_point()
    ]
