"""What a model's head returns to a loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Output:
    """The scores of a batch and whatever else a head predicts for it."""

    logits: Tensor  # (B, K)
    root: Tensor | None = None  # (B, K): c in Σ^½ = c cᵀ + λI
    attention: Tensor | None = None  # (B,): τ
