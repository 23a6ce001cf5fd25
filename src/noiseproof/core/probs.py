"""Class probabilities (N, K): checked, and compared with labels."""

from typing import Any

import torch
from torch import Tensor

BLOCK = 2**22  # probabilities that are copied at a time


def check_probabilities(
    name: str,
    values: Any,
    num_classes: int | None = None,
    *,
    tolerance: float = 1e-3,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return ``values`` as probabilities (N, K) on the CPU, whose rows sum to one within
    ``tolerance``.
    """
    probs = torch.as_tensor(values, dtype=dtype).detach().cpu()
    is_table = probs.dim() == 2 and len(probs) > 0
    columns = probs.shape[1] if is_table else 0
    is_fitting = columns == num_classes if num_classes else columns >= 2
    if not is_fitting:
        shape = "(N, K) with at least two classes" if num_classes is None else f"(N, {num_classes})"
        raise ValueError(
            f"Expected `{name}` of shape {shape}, got {tuple(probs.shape)}. "
            "For one probability p per row, pass the columns 1 − p and p."
        )
    total = probs.sum(1)
    wrong = ~(torch.isfinite(total) & (probs >= 0).all(1) & ((total - 1).abs() < tolerance))
    if bool(wrong.any()):
        raise ValueError(
            f"Expected probabilities in `{name}`, with rows that sum to one, got other numbers in"
            f" row {int(wrong.nonzero()[0])} ({int(wrong.sum())} of {len(probs)} rows). Apply"
            " softmax to logits."
        )
    return probs


def mean_label_probability(labels: Tensor, probs: Tensor) -> Tensor:
    """Mean of p_k over the rows with label k, (K,) float64; infinite for a class without rows."""
    count = torch.bincount(labels, minlength=probs.shape[1]).double()
    label_probs = probs.gather(1, labels[:, None])[:, 0].double()
    total = torch.zeros_like(count).index_add_(0, labels, label_probs)
    return torch.where(count > 0, total / count, torch.inf)


def confident_counts(
    labels: Tensor, probs: Tensor, threshold: Tensor, *, relative: bool = False
) -> Tensor:
    """C[i, j], the number of rows with label j that are confidently of class i, (K, K) (Northcutt
    et al. 2021).

    A row is confidently of the likeliest class i with p_i ≥ ``threshold``_i, or of none. If
    ``relative``, every row counts, for the class with the largest p_i/threshold_i.
    """
    K = probs.shape[1]
    pairs = torch.zeros(K * K, dtype=torch.float64)
    step = max(1, BLOCK // K)
    for start in range(0, len(probs), step):
        p = probs[start : start + step].double()
        y = labels[start : start + step]
        p = p / threshold if relative else torch.where(p < threshold, -1.0, p)
        value, likeliest = p.max(1)
        confident = value >= 0
        pairs += torch.bincount(likeliest[confident] * K + y[confident], minlength=K * K)
    return pairs.view(K, K)
