"""Labels as users have them (words, numbers with holes, dates) into classes 0 … K−1, with what is odd about them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?", re.ASCII)  # 01 and 1e5 are words
_NO_CLASS = (complex, np.complexfloating, timedelta, np.timedelta64, list, tuple, dict, set, np.ndarray)


def some(items: Sequence[Any], most: int = 5) -> str:
    """The first few of ``items`` in words."""
    return ", ".join(map(repr, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


def read_labels(values: Any, name: str = "y") -> NDArray[Any]:
    """One label a row, int64 or str objects, dates in ISO 8601; refuses what is missing or names no class."""
    return _numbered(_as_written(values, name), name)


def _as_written(values: Any, name: str) -> NDArray[Any]:
    """Labels as ``read_labels`` gives them, but for numerals in words, which stay words."""
    try:
        labels = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except ValueError:  # rows of different lengths
        raise ValueError(f"Expected one label a row in `{name}`, got lists of labels.") from None
    if labels.dtype.kind == "U" and isinstance(values, (list, tuple)):
        labels = np.array(values, dtype=object)  # beside words NumPy makes the word "nan" of a missing value
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        hint = " For one-hot rows use argmax(axis=1)." if labels.ndim == 2 else ""
        raise ValueError(f"Expected one label a row in `{name}`, got shape {labels.shape}.{hint}")
    if isinstance(values, np.ma.MaskedArray):  # whose mask NumPy drops
        _refuse_rows(np.ma.getmaskarray(values).ravel(), name)
    if labels.dtype.kind == "f":
        return _whole_numbers(labels, name)
    if np.can_cast(labels.dtype, np.int64) and labels.dtype.kind in "iu":
        return labels.astype(np.int64)
    if labels.dtype.kind == "M":  # of which `tolist` would make nanoseconds since 1970
        _refuse_rows(np.isnat(labels), name)
        return np.datetime_as_string(labels, unit="auto").astype(object)  # 2020-01-01 in whatever unit
    odd = str(labels.dtype) if labels.dtype.kind in "cmV" else _first_odd(labels)
    if odd is not None:
        raise ValueError(
            f"Expected words, whole numbers or dates as labels in `{name}`, got {odd}. Write each class as one word."
        )
    words = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in labels.tolist()]
    _refuse_rows(np.array([not str(value).strip() or _is_missing(value) for value in words], dtype=bool), name)
    return np.array([str(value) for value in words], dtype=object)


def _numbered(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """int64 of words that are all numerals, as a CSV file has them: 2 before 10, and 1.0 is 1; else the words."""
    if labels.dtype != object or not all(map(NUMBER.fullmatch, labels)):
        return labels
    if any("." in word for word in labels):
        return _whole_numbers(labels.astype(np.float64), name)
    return labels.astype(np.int64)


def _first_odd(labels: NDArray[Any]) -> str | None:
    """The type of the first object that is no label but a quantity, or holds several."""
    if labels.dtype.kind != "O":
        return None
    return next((type(value).__name__ for value in labels if isinstance(value, _NO_CLASS)), None)


def _is_missing(value: Any) -> bool:
    """None, a float NaN, and pandas' NA and NaT, which are known without pandas."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _whole_numbers(labels: NDArray[Any], name: str) -> NDArray[np.int64]:
    _refuse_rows(np.isnan(labels), name)
    _refuse_rows(np.isinf(labels), name, "infinite numbers")
    odd = labels[(labels != np.rint(labels)) | (np.abs(labels) > 2**53)]
    if len(odd):
        raise ValueError(
            f"Expected classes in `{name}`, got real numbers such as {odd[0]}. Cut them into classes first."
        )
    return labels.astype(np.int64)


def _refuse_rows(odd: NDArray[np.bool_], name: str, what: str = "none") -> None:
    if len(rows := np.flatnonzero(odd)):
        raise ValueError(
            f"Expected a label in every row of `{name}`, got {what} in {len(rows)} of {len(odd)} rows, "
            f"the first of them {some(rows.tolist())}. Drop those rows or label them."
        )


def encode_labels(
    values: Any, classes: Sequence[str] | None = None, *, positions: bool = False, name: str = "y"
) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers (N,) and class names: those found, sorted (numbers as numbers), or ``classes``.

    With ``positions``, whole numbers are positions in ``classes``, unless they came as words and numbers are among the
    ``classes``; otherwise each label is looked up by its name.

    >>> encode_labels(["dog", "cat", "dog"])
    (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    labels = _as_written(values, name)
    known = None if classes is None else tuple(map(str, classes))
    in_words = isinstance(next(iter(values), None), (str, bytes))
    # What some rows bear must not decide, since other parts bear others: "2" is the class "2", wherever it stands, and
    # numerals may be words where the classes were found.
    if known is None or (positions and not (in_words and any(map(NUMBER.fullmatch, known)))):
        labels = _numbered(labels, name)
    found = sorted(set(labels.tolist()))
    classes = tuple(map(str, found)) if known is None else known
    if len(set(classes)) < len(classes):
        raise ValueError(f"Expected each of the {len(classes)} `classes` once, got {some(list(classes))}.")
    by_number = positions and labels.dtype != object
    number = find_words(map(str, found), [str(k) for k in range(len(classes))] if by_number else classes)
    if unknown := [word for word, k in number.items() if k is None]:
        among = f"the positions 0 … {len(classes) - 1} in `classes`" if by_number else some(classes)
        raise ValueError(
            f"Expected labels of `{name}` among {among}, got {some(unknown)}. "
            "Correct these labels, drop their rows, or name all classes with `classes`."
        )
    return torch.tensor([number[str(label)] for label in labels.tolist()], dtype=torch.int64), classes


def find_words(words: Iterable[str], known: Sequence[str]) -> dict[str, int | None]:
    """Where each word stands among ``known``: as it is written, else as the only one of its value; None: nowhere.

    What reads a file makes the number 2 of 02 and 2.0, and True of TRUE, unless other words stand in the column.

    >>> find_words(["1", "True", "02", "other"], known=["01", "TRUE", "2", "02"])
    {'1': 0, 'True': 1, '02': 3, 'other': None}
    """
    places = {word: k for k, word in enumerate(known)}
    values: dict[float | str | None, int | None] = {None: None}
    for k, word in enumerate(known):
        value = _value(word)
        values[value] = None if value in values else k
    return {word: places.get(word, values.get(_value(word))) for word in words}


def _value(word: str) -> float | str | None:
    """The number or the truth value that a word may be read as; None of another word."""
    if word.lower() in ("true", "false"):
        return word.lower()
    try:
        return float(word) if "_" not in word else None
    except ValueError:
        return None


def _alike(classes: Sequence[str], plain: Callable[[str], str]) -> list[list[str]]:
    """The classes that are the same once they are ``plain``."""
    same: dict[str, list[str]] = {}
    for c in classes:
        same.setdefault(plain(c), []).append(c)
    return [names for names in same.values() if len(names) > 1]


def describe_labels(y: Tensor, classes: tuple[str, ...], name: str = "y") -> list[str]:
    """What is odd about the labels of a training set; refuses one that no classifier can learn from."""
    counts = torch.bincount(y, minlength=len(classes))
    present = counts.nonzero().flatten().tolist()
    if len(present) < 2:
        only = f"every label is {classes[present[0]]!r}" if present else "there are no rows"
        raise ValueError(f"Expected at least two classes in `{name}`, {only}. There is nothing to tell apart.")
    notes = []
    if all(map(NUMBER.fullmatch, classes)) and "." not in "".join(classes):
        numbers = [int(c) for c in classes]
        if sorted(numbers) != list(range(len(classes))):
            notes.append(
                f"The labels {some(numbers)} do not count from 0 without holes: they were renumbered "
                f"0 … {len(classes) - 1} in this order, `classes` keeps the originals."
            )
    if absent := [classes[k] for k in (counts == 0).nonzero().flatten().tolist()]:
        notes.append(f"{len(absent)} of {len(classes)} classes have no training example: {some(absent)}.")
    if single := [classes[k] for k in (counts == 1).nonzero().flatten().tolist()]:
        notes.append(
            f"{len(single)} of {len(classes)} classes have a single training example: {some(single)}. "
            "Nothing can be held out or audited in them"
            + ("; is this column an identifier rather than a label?" if len(single) > len(y) / 2 else ".")
        )
    if alike := _alike(classes, lambda c: " ".join(c.split()).casefold()):
        notes.append(f"Some classes differ in case or spaces only: {some(alike)}. Are they one?")
    if alike := _alike(classes, lambda c: unicodedata.normalize("NFC", c)):
        spelled = some(alike).encode("ascii", "backslashreplace").decode()  # else nobody would see what differs
        notes.append(
            f"Some classes look the same and are made of different characters: {spelled}. Are they one? "
            'unicodedata.normalize("NFC", word) makes one of them.'
        )
    if len(classes) > 1000:
        per_class = len(y) / len(classes)
        notes.append(f"There are {len(classes)} classes with {per_class:.1f} training examples each on average.")
    return notes
