"""Checks of arguments, with errors that name what was expected, what came, and the remedy."""

import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, field, fields
from numbers import Real
from typing import Any

import torch
from torch import Tensor


def check_number(name: str, value: object, interval: str, remedy: str = "") -> float:
    """Return ``value`` as a float inside ``interval``, written as in mathematics: ``"(0, 1]"``."""
    low, high = map(float, interval[1:-1].split(","))
    inside = False
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        above = number >= low if interval.startswith("[") else number > low
        below = number <= high if interval.endswith("]") else number < high
        inside = above and below and math.isfinite(number)
    if not inside:
        message = f"Expected `{name}` in {interval}, got {value!r}."
        if remedy and not isinstance(value, list):  # it is about a number
            message = f"{message} {remedy}"
        raise ValueError(message)
    return number


MOST_SEEDS = 2**63  # the range of files and generators


def check_seed(name: str, value: object) -> int:
    """Return ``value`` as a seed of random numbers, an integer in [0, 2**63)."""
    seed = check_count(name, value, 0)
    if seed >= MOST_SEEDS:
        raise ValueError(f"Expected `{name}` below 2**63, got {value!r}. Take a smaller one.")
    return seed


def check_count(name: str, value: object, at_least: int | None = None, remedy: str = "") -> int:
    is_integer = (
        isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    )
    if not is_integer or (at_least is not None and float(value) < at_least):  # type: ignore[arg-type]
        bound = "" if at_least is None else f" of at least {at_least}"
        message = f"Expected `{name}` to be an integer{bound}, got {value!r}. {remedy}"
        raise ValueError(message.rstrip())
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"Expected `{name}` to be true or false, got {value!r}.")
    return value


def check_word(name: str, value: Any, words: Collection[str]) -> Any:
    if value not in words:
        raise ValueError(f"Expected `{name}` to be one of {', '.join(words)}, got {value!r}.")
    return value


# Fields of dataclasses: each says once what a parameter may be


def check_fields(thing: Any) -> None:
    """Check and convert the fields of a dataclass that the functions below have made."""
    for one in fields(thing):
        if check := one.metadata.get("check"):
            object.__setattr__(thing, one.name, check(one.name, getattr(thing, one.name)))


def number(interval: str, default: Any = MISSING, remedy: str = "", optional: bool = False) -> Any:
    """A field for a number inside ``interval``, or None if it is optional or None by default."""
    return _field_with_check(check_number, default, optional, interval, remedy)


def count(at_least: int, default: Any = MISSING, remedy: str = "", optional: bool = False) -> Any:
    """A field for an integer, or None if it is optional or None by default."""
    return _field_with_check(check_count, default, optional, at_least, remedy)


def flag(default: bool) -> Any:
    """A field for true or false."""
    return _field_with_check(check_flag, default, False)


def word(words: Collection[str], default: str | None) -> Any:
    """A field for one of the ``words``, or None if it is None by default."""
    return _field_with_check(check_word, default, False, words)


def _field_with_check(check: Callable[..., Any], default: Any, optional: bool, *limits: Any) -> Any:
    """Return a dataclass field whose value ``check_fields`` passes to ``check``, with ``limits``.

    None is not checked if it is optional or the default.
    """

    def check_value(name: str, value: Any) -> Any:
        if value is None and (optional or default is None):
            return None
        return check(name, value, *limits)

    return field(default=default, metadata={"check": check_value})


def check_tensor(name: str, value: object, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``value`` as a tensor, from anything that holds numbers."""
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"Expected `{name}` to hold numbers, got {type(value).__name__} {value!r}."
        ) from None


def check_logits_and_target(logits: Tensor, target: Tensor, implied: int = 0) -> None:
    """Check shapes and dtypes of a loss's inputs, without reading values, so that no device is
    synchronised.

    ``implied`` classes have no column in ``logits``.
    """
    if logits.dim() != 2:
        raise ValueError(f"Expected logits of shape (B, K), got {tuple(logits.shape)}.")
    if logits.shape[1] + implied < 2:
        raise ValueError(
            f"Expected logits of at least two classes, got shape {tuple(logits.shape)}. "
            "For one score per sample, pass logits (B, 2) made of it and zero."
        )
    if not logits.is_floating_point():
        raise TypeError(f"Expected floating-point logits, got {logits.dtype}.")
    if target.dim() == 1:
        if target.dtype is not torch.int64:
            raise TypeError(
                "Expected class indices of dtype torch.int64 in a target of shape (B,), got"
                f" {target.dtype}. Use target.long(), or a target of shape (B, K) for real-valued"
                " labels."
            )
    elif target.dim() == 2:
        if not target.is_floating_point():
            raise TypeError(
                f"Expected a floating-point target of shape (B, K), got {target.dtype}. "
                "Use target.float(), or class indices of shape (B,)."
            )
        if target.shape[1] != logits.shape[1] + implied:
            expected = (logits.shape[0], logits.shape[1] + implied)
            raise ValueError(f"Expected a target of shape {expected}, got {tuple(target.shape)}.")
    else:
        raise ValueError(f"Expected a target of shape (B,) or (B, K), got {tuple(target.shape)}.")
    if target.shape[0] != logits.shape[0]:
        raise ValueError(
            f"Expected {logits.shape[0]} targets, one for each row of logits, got"
            f" {target.shape[0]}."
        )


def check_labels(target: Tensor, num_classes: int, ignore_index: int | None = None) -> None:
    """Check that labels are in 0 … K−1; reads the values, so call it where data is loaded, not
    inside a step.
    """
    wrong = (target < 0) | (target >= num_classes)
    if ignore_index is not None:
        wrong &= target != ignore_index
    if bool(wrong.any()):
        where = int(wrong.nonzero()[0])
        raise ValueError(
            f"Expected labels in 0 … {num_classes - 1}, got {int(target[where])} at position"
            f" {where}. Count the classes of your data, or mark rows to skip with ignore_index."
        )


def check_transition(matrix: object) -> Tensor:
    """Return the matrix ``T`` as a float64 row-stochastic tensor: T[i, j] = P(given j | true i)."""
    T = check_tensor("T", matrix, torch.float64).detach().cpu()
    if T.dim() != 2 or T.shape[0] != T.shape[1] or T.shape[0] < 2:
        raise ValueError(
            f"Expected `T` to be a square matrix of at least 2 classes, got shape {tuple(T.shape)}."
        )
    if not bool(torch.isfinite(T).all()) or bool((T < 0).any()):
        raise ValueError(
            "Expected `T` to hold probabilities, got entries that are negative or not finite."
        )
    sums = T.sum(1)
    worst = int((sums - 1).abs().argmax())
    if abs(float(sums[worst]) - 1) > 1e-6:
        raise ValueError(
            f"Expected the rows of `T` to sum to one, row {worst} sums to"
            f" {float(sums[worst]):.6g}. T[i, j] is P(given j | true i): transpose it if its"
            " columns sum to one, or divide rows by their sum."
        )
    return T
