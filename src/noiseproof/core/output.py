"""What a model's head returns to a loss."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """The scores of a batch and whatever else a head, or a strategy, says about it.

    A tuple, because that is what DistributedDataParallel and mixed precision can look into.
    """

    logits: Tensor  # (B, K)
    root: Tensor | None = None  # (B, K): c in Σ^½ = c cᵀ + λI
    scale: Tensor | None = None  # (B, K) or (B, 1): standard deviations of the logits, positive
    factors: Tensor | None = None  # (B, K, R): V in u = μ + V ε_R + d ε_K
    attention: Tensor | None = None  # (B,): the logit of τ
    memory: Tensor | None = None  # (B, K): what earlier epochs predicted, which a strategy puts in
