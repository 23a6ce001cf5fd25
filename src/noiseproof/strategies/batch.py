"""The rows that a step trains on, and what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.output import Output


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of a step that this process trains on; it has no clean label, so no method can
    cheat.
    """

    x: Tensor  # (b, …): augmented and normalised
    target: Tensor  # (b,) classes, (b, K) real numbers, or (M, b, K) where each model has its own
    given: Tensor  # (b,): the given labels; (b, K) where a row has several
    rows: Tensor  # (b,): row numbers in the training set
    all_rows: Tensor  # (count,): the rows of all processes, each once
    # (b,): 0 for a row that only fills up this process's share; None: all count
    counts: Tensor | None = None
    count: int = 0  # rows of the step over all processes, which the loss is divided by
    # (b, K): the given labels as real numbers, where they are not single classes
    soft: Tensor | None = None
    # (M, b): the factors of the losses, known to ``penalties``; None: one everywhere
    weights: Tensor | None = None

    @property
    def label(self) -> Tensor:
        """The given labels as a loss takes them, (b,) or (b, K): the target before any strategy
        changes it.
        """
        return self.given if self.soft is None else self.soft

    def soft_target(self, num_classes: int, like: Tensor) -> Tensor:
        """Return the target as real numbers (b, K), of the dtype of ``like``."""
        if self.target.dim() > 1:
            return self.target
        return F.one_hot(self.target, num_classes).to(like.dtype)

    def with_target(self, target: Tensor) -> Batch:
        """Return the same rows with another target."""
        return replace(self, target=target)


@dataclass(frozen=True, eq=False)
class Step:
    """The outputs of M models in a step, their losses and weights (M, b), for the record."""

    outs: Sequence[Output]
    losses: Tensor
    weights: Tensor | None
