"""Rows of a batch: their shapes and targets, which of them count, and how classes weigh."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_labels
from noiseproof.core.output import Output
from noiseproof.core.tensors import readable


def value_dtype(logits: Tensor) -> torch.dtype:
    """Return the type of a loss of ``logits``: cross entropy's, which is float32 under autocast."""
    none = torch.empty(0, dtype=torch.int64, device=logits.device)
    return F.cross_entropy(logits[:0], none, reduction="none").dtype


def countable(target: Tensor, ignore_index: int) -> Tensor:
    """Return class indices with ignored rows pointed at class 0, so that they can index."""
    return torch.where(target == ignore_index, 0, target)


def one_hot(target: Tensor, like: Tensor, ignore_index: int) -> Tensor:
    """Return class indices (B,) as probabilities (B, K), as ``like``; real-valued targets as they
    are.
    """
    if target.dim() == 2:
        return target
    return torch.zeros_like(like).scatter(1, countable(target, ignore_index)[:, None], 1)


def field_of(out: Output, name: str, *shapes: tuple[int, ...], remedy: str) -> Tensor:
    """Return a field of ``out``, which must have one of ``shapes``."""
    field: Tensor | None = getattr(out, name)
    if field is None or field.shape not in shapes:
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        actual = "none" if field is None else f"shape {tuple(field.shape)}"
        raise ValueError(
            f"Expected an output with `{name}` of shape {expected}, got {actual}. {remedy}"
        )
    return field


def check_not_negative(name: str, target: Tensor, expected: str = "no negative entries") -> None:
    """Refuse real-valued targets of the loss ``name`` that are no probabilities.

    Only where reading them costs nothing.
    """
    if target.dim() == 2 and readable(target) and bool((target < 0).any()):
        raise ValueError(
            f"Expected {expected} in the target of {name}, got {float(target.min()):.4g}."
            " Use ce for targets with label noise added."
        )


def places_as_rows(
    logits: Tensor, target: Tensor, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return logits (B, K, …) as (B·…, K), with their targets (B, …) or (B, K, …) and weights (B,
    …).
    """
    shape = tuple(logits.shape)
    places = (shape[0], *shape[2:])
    if tuple(target.shape) not in (places, shape):
        raise ValueError(
            f"Expected logits of shape (B, K), got {shape}: as (B, K, …), they need a target of"
            f" shape {places} or {shape}, got {tuple(target.shape)}."
        )
    if sample_weight is not None:
        if tuple(sample_weight.shape) != places:
            raise ValueError(
                f"Expected logits of shape (B, K), got {shape}: as (B, K, …), they need a"
                f" `sample_weight` of shape {places}, got {tuple(sample_weight.shape)}."
            )
        sample_weight = sample_weight.flatten()
    is_real = target.dim() == logits.dim()
    target = target.movedim(1, -1).flatten(0, -2) if is_real else target.flatten()
    return logits.movedim(1, -1).flatten(0, -2), target, sample_weight


def all_count(labels: Tensor, num_classes: int, ignore_index: int) -> bool:
    """Return whether all labels are known to count; checks them where reading costs nothing."""
    if not labels.numel() or not readable(labels):
        return False
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= num_classes:
        check_labels(labels, num_classes, ignore_index)
    return not low <= ignore_index <= high


def over_classes(value: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return Σ_k t_k·w_k·L(z, k) of losses (B, K), weighted as in ``torch.nn.CrossEntropyLoss``."""
    return ((target if weight is None else target * weight) * value).sum(1)


def weigh_rows(value: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return losses (B,) of real-valued targets times the class weights.

    ``Loss._reduce`` multiplies the losses of class indices.
    """
    if target.dim() == 1 or weight is None:
        return value
    return over_classes(value[:, None], target, weight)
