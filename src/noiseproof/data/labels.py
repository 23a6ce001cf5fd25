"""Labels of users (words, numbers with gaps, dates) as classes 0 … K−1, with notes on what is
unusual.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.arrays import Array, Bools, Ints
from noiseproof.core.messages import preview

NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?", re.ASCII)  # 01 and 1e5 are words
NO_CLASS = (complex, timedelta, np.timedelta64, list, tuple, dict, set, np.ndarray)


def read_labels(values: Any, name: str = "y") -> Array:
    """Return one label for each row, int64 or str objects, dates in ISO 8601; missing labels and
    quantities are refused.
    """
    return _numbered(_as_written(values, name), name)


def _as_written(values: Any, name: str) -> Array:
    """As ``read_labels``, but numerals that are words stay words."""
    labels = _one_column(values, name)
    if labels.dtype.kind == "f":
        return _whole_numbers(labels, name)
    if np.can_cast(labels.dtype, np.int64) and labels.dtype.kind in "iu":
        return labels.astype(np.int64)
    if labels.dtype.kind == "M":  # `tolist` would return nanoseconds since 1970
        _refuse_rows(np.isnat(labels), name)
        return np.datetime_as_string(labels, unit="auto").astype(object)  # 2020-01-01 in any unit
    kinds = [type(value).__name__ for value in labels.flat if isinstance(value, NO_CLASS)]
    if labels.dtype.kind in "cmV":
        kinds = [str(labels.dtype)]
    if kinds:
        raise ValueError(
            f"Expected words, whole numbers or dates as labels in `{name}`, got {kinds[0]}. Write"
            " each class as one word."
        )
    words = list(map(_word, labels.tolist()))
    _refuse_rows(np.array([not word.strip() for word in words], dtype=bool), name)
    return np.array(words, dtype=object)


def as_array(values: Any) -> Array:
    """Return arrays, tensors, lists and columns as an array of NumPy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _one_column(values: Any, name: str) -> Array:
    try:
        labels = as_array(values)
    except ValueError:  # rows of different lengths
        raise ValueError(f"Expected one label per row in `{name}`, got lists of labels.") from None
    if labels.dtype.kind == "U" and isinstance(values, (list, tuple)):
        # among words, NumPy turns a missing value into the word "nan"
        labels = np.array(values, dtype=object)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        hint = "Give one word or number per row"
        if labels.ndim == 2:
            hint = "For one-hot rows use argmax(axis=1), or 0 and 1 for several labels per row"
        raise ValueError(
            f"Expected one label per row in `{name}`, got shape {labels.shape}. {hint}."
        )
    if isinstance(values, np.ma.MaskedArray):  # np.asarray drops the mask
        _refuse_rows(np.ma.getmaskarray(values).ravel(), name)
    return labels


def _numbered(labels: Array, name: str) -> Array:
    """Words that are all numerals as int64, so that 2 sorts before 10 and 1.0 is 1; else the
    words.
    """
    if labels.dtype != object or not all(map(NUMBER.fullmatch, labels)):
        return labels
    if any("." in word for word in labels):
        return _whole_numbers(labels.astype(np.float64), name)
    return labels.astype(np.int64)


def _word(value: Any) -> str:
    if is_gap(value):
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def is_gap(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT (recognised without importing pandas)."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, (float, np.floating)) and value != value)
    )


def _whole_numbers(labels: Array, name: str) -> Ints:
    _refuse_rows(np.isnan(labels), name)
    _refuse_rows(np.isinf(labels), name, "infinite numbers")
    real = labels[(labels != np.rint(labels)) | (np.abs(labels) > 2**53)]
    if len(real):
        raise ValueError(
            f"Expected classes in `{name}`, got real numbers such as {real[0]}. Bin them into"
            " classes."
        )
    return labels.astype(np.int64)


def _refuse_rows(refused: Bools, name: str, what: str = "none") -> None:
    if len(row_numbers := np.flatnonzero(refused)):
        raise ValueError(
            f"Expected a label in every row of `{name}`, got {what} in {len(row_numbers)} of"
            f" {len(refused)} rows, the first of them {preview(row_numbers.tolist())}. Drop those"
            " rows or label them."
        )


def encode_labels(
    values: Any, classes: Sequence[str] | None = None, *, positions: bool = False, name: str = "y"
) -> tuple[Tensor, tuple[str, ...]]:
    """Return class numbers (N,) and class names: the labels, sorted (numbers as numbers), or
    ``classes``.

    With ``positions``, whole numbers are positions in ``classes``, unless they are written as words
    and some of the ``classes`` are numbers; otherwise each label is looked up by its name.
    """
    labels = _as_written(values, name)
    if classes is None:
        labels = _numbered(labels, name)
        distinct, codes = np.unique(labels, return_inverse=True)
        return torch.from_numpy(codes.astype(np.int64)), tuple(map(str, distinct))
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise ValueError(
            f"Expected each of the {len(names)} `classes` once, got {preview(list(names))}."
        )
    are_words = isinstance(next(iter(values), None), (str, bytes))
    # Independent of the other labels, which differ between parts of the data: "2" is the class "2"
    # in each of them.
    if positions and not (are_words and any(map(NUMBER.fullmatch, names))):
        labels = _numbered(labels, name)
    targets: Sequence[str] = names
    expected = preview(names)
    if positions and labels.dtype != object:
        targets = [str(k) for k in range(len(names))]
        expected = f"the positions 0 … {len(names) - 1} in `classes`"
    words = list(map(str, labels.tolist()))
    number = find_words({*words}, targets)
    if unknown := sorted({*words} - {*number}):
        raise ValueError(
            f"Expected labels of `{name}` among {expected}, got {preview(unknown)}. "
            "Correct these labels, drop their rows, or name all classes with `classes`."
        )
    return torch.tensor([number[word] for word in words], dtype=torch.int64), names


def soft_labels(values: Any, name: str = "y") -> Tensor | None:
    """Rows of probabilities or counts as distributions (N, K) float32; None where there is one
    label a row.
    """
    try:
        rows = as_array(values)
    except ValueError:  # rows of different lengths, which `read_labels` refuses
        return None
    if rows.ndim != 2 or rows.shape[1] < 2 or rows.dtype.kind not in "biuf" or not len(rows):
        return None
    rows = rows.astype(np.float64)
    if isinstance(values, np.ma.MaskedArray):  # np.asarray drops the mask
        rows[np.ma.getmaskarray(values)] = np.nan
    total = rows.sum(1)
    refused = ~np.isfinite(total) | (rows < 0).any(1) | (total == 0)
    if len(row_numbers := np.flatnonzero(refused)):
        first = row_numbers[0]
        raise ValueError(
            f"Expected probabilities or counts in every row of `{name}`, got"
            f" {preview(rows[first].tolist())} in row {first}; {len(row_numbers)} of {len(rows)}"
            " rows are negative, missing or zero everywhere. Drop those rows or label them."
        )
    are_counts = bool((rows == np.rint(rows)).all())
    if not are_counts and len(row_numbers := np.flatnonzero(np.abs(total - 1) > 1e-3)):
        raise ValueError(
            f"Expected rows of probabilities that sum to one, or of whole counts, in `{name}`, got"
            f" the sum {total[row_numbers[0]]:.6g} in row {row_numbers[0]}. Divide each row by its"
            " sum."
        )
    return torch.from_numpy(rows / total[:, None]).float()


def names_of_columns(
    values: Any, classes: Sequence[str] | None, count: int, name: str
) -> tuple[str, ...]:
    """The names of the ``count`` columns of a matrix: ``classes``, its own names, or their
    numbers.
    """
    columns: Any = classes
    if columns is None:
        columns = getattr(values, "columns", range(count))
    names = tuple(str(column).strip() for column in columns)
    if not len({*names}) == len(names) == count:
        raise ValueError(
            f"Expected a name for each of the {count} columns of `{name}`, each once, got"
            f" {len(names)}: {preview(names)}. Name the columns by `classes`; spaces around names"
            " do not count."
        )
    return names


class TrainingLabels:
    """Encoded labels ``y`` of a training set and its ``classes``, by which other parts are encoded.

    Rows of probabilities or counts are kept as ``soft``; their ``y`` is the most probable class,
    the first of several.
    """

    def __init__(self, values: Any, classes: Sequence[str] | None = None, name: str = "y") -> None:
        self.positions = classes is not None
        self.soft = soft_labels(values, name)
        if self.soft is None:
            self.y, self.classes = encode_labels(
                values, classes, positions=self.positions, name=name
            )
            return
        self.y = self.soft.argmax(1)
        self.classes = names_of_columns(values, classes, self.soft.shape[1], name)

    def encode(self, values: Any, name: str) -> tuple[Tensor, Tensor | None]:
        """Class numbers (N,) of another part, and the distributions (N, K) if it has soft
        labels.
        """
        soft = soft_labels(values, name)
        if soft is None:
            return encode_labels(values, self.classes, positions=self.positions, name=name)[0], None
        if soft.shape[1] != len(self.classes):
            raise ValueError(
                f"Expected {len(self.classes)} columns in `{name}`, as in training, got"
                f" {soft.shape[1]}."
            )
        return soft.argmax(1), soft

    def describe(self, name: str = "y") -> list[str]:
        if self.soft is None:
            return describe_labels(self.y, self.classes, name)
        is_mode = self.soft == self.soft.amax(1, keepdim=True)
        ties = int((is_mode.sum(1) > 1).sum())
        if not ties:
            return []
        return [
            f"{ties} of {len(self.y)} soft labels in `{name}` have several most probable classes:"
            " accuracy and margins take the first of them as the given label."
        ]


def find_words(words: Iterable[str], known: Sequence[str]) -> dict[str, int]:
    """The position in ``known`` of each word that is there: the same word, else the only word of
    the same value.

    pandas reads 02 and 2.0 as the number 2, and TRUE as True, unless there are other words in the
    column.

    >>> find_words(["1", "True", "02", "other"], known=["01", "TRUE", "2", "02"])
    {'1': 0, 'True': 1, '02': 3}
    """
    positions = {word: k for k, word in enumerate(known)}
    values: dict[float | str | None, int | None] = {None: None}
    for k, word in enumerate(known):
        value = _value(word)
        values[value] = None if value in values else k
    found = {word: positions.get(word, values.get(_value(word))) for word in words}
    return {word: k for word, k in found.items() if k is not None}


def _value(word: str) -> float | str | None:
    """The number or the truth value that a word may be read as; None for other words."""
    if word.lower() in ("true", "false"):
        return word.lower()
    try:
        return float(word) if "_" not in word else None
    except ValueError:
        return None


def _alike(classes: Sequence[str], normalise: Callable[[str], str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for c in classes:
        groups.setdefault(normalise(c), []).append(c)
    return [names for names in groups.values() if len(names) > 1]


def describe_labels(y: Tensor, classes: tuple[str, ...], name: str = "y") -> list[str]:
    """Notes on what is unusual about the labels of a training set; a single class is refused."""
    counts = torch.bincount(y, minlength=len(classes))
    present = counts.nonzero().flatten().tolist()
    if len(present) < 2:
        only = "there are no rows"
        if present:
            only = f"every label is {classes[present[0]]!r}"
        raise ValueError(
            f"Expected at least two classes in `{name}`, {only}. There is nothing to classify."
        )
    notes = []
    are_numbers = all(map(NUMBER.fullmatch, classes)) and "." not in "".join(classes)
    if are_numbers and set(classes) != {str(k) for k in range(len(classes))}:
        notes.append(
            f"The labels {preview([int(c) for c in classes])} do not count from 0 without gaps:"
            f" they were renumbered 0 … {len(classes) - 1} in this order; `classes` has the"
            " originals."
        )
    if absent := [classes[k] for k in (counts == 0).nonzero().flatten().tolist()]:
        notes.append(
            f"{len(absent)} of {len(classes)} classes have no training example: {preview(absent)}."
        )
    if single := [classes[k] for k in (counts == 1).nonzero().flatten().tolist()]:
        end = "."
        if len(single) > len(y) / 2:
            end = "; is this column an identifier rather than a label?"
        notes.append(
            f"{len(single)} of {len(classes)} classes have a single training example:"
            f" {preview(single)}. Nothing can be held out or audited in them{end}"
        )
    if alike := _alike(classes, lambda c: " ".join(c.split()).casefold()):
        notes.append(f"Some classes differ in case or spaces only: {preview(alike)}. Are they one?")
    if alike := _alike(classes, lambda c: unicodedata.normalize("NFC", c)):
        spelled = preview(alike).encode("ascii", "backslashreplace").decode()  # shows what differs
        notes.append(
            f"Some classes look the same and are made of different characters: {spelled}. Are they"
            ' one? unicodedata.normalize("NFC", word) makes one of them.'
        )
    return notes
