"""What a head returns and a loss takes."""

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """Logits of a batch, with what else a head or a strategy adds.

    A tuple, because DistributedDataParallel and mixed precision traverse tuples.
    """

    logits: Tensor  # (B, K)
    root: Tensor | None = None  # (B, K): c in Σ^½ = c cᵀ + λI
    scale: Tensor | None = None  # (B, K) or (B, 1): standard deviations of the logits, positive
    factors: Tensor | None = None  # (B, K, R): V in u = μ + V ε_R + d ε_K
    attention: Tensor | None = None  # (B,): the logit of τ
    memory: Tensor | None = None  # (B, K): predictions of earlier epochs, which a strategy adds
    # (B, 2, K): u² ⊙ y and v² ⊙ (1 − y), the noise of each label, which a strategy learns
    noise: Tensor | None = None


FROM_STRATEGIES = frozenset({"memory", "noise"})  # fields that no head gives
