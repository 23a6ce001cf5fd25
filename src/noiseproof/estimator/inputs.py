"""What users pass to ``fit``: texts, pictures and sparse matrices as features (N, F), labels,
seeds.
"""

import os
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data.arrays import SparseAxes
from noiseproof.data.features import Extractor
from noiseproof.data.images import SUFFIXES
from noiseproof.data.labels import TrainingLabels, soft_labels
from noiseproof.data.pictures import Pictures, picture_extractor
from noiseproof.data.tables import Columns, moments, shifted_columns
from noiseproof.data.text import text_extractor

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


class EncodedInputs(ABC):
    """Inputs as features; ``fit_encode`` learns the encoding from the inputs of ``fit``."""

    kind: ClassVar[str]
    has_one_scale = True  # whether features differ in scale because they differ in importance

    @abstractmethod
    def fit_features(self, rows: Any, seed: int) -> NDArray[Any]: ...  # (N, F)

    @abstractmethod
    def features(self, rows: Any) -> NDArray[Any]: ...  # (N, F)

    def fit_encode(self, rows: Any, seed: int) -> Tensor:
        x = self.fit_features(rows, seed)
        self.mean = x.mean(0)
        self.spread = max(float(x.std(0).max(initial=0.0)), 1e-9)
        return self._scaled(x)

    def encode(self, rows: Any) -> Tensor:
        return self._scaled(self.features(rows))

    def _scaled(self, x: NDArray[Any]) -> Tensor:
        """Features in units of the widest one: units of each one's own would blow up the least
        important ones.
        """
        scaled = (x - self.mean) / self.spread if self.has_one_scale else x
        return torch.from_numpy(np.ascontiguousarray(scaled, dtype=np.float32))


class TextInputs(EncodedInputs):
    """Texts by the features of the audit."""

    kind = "texts"

    def __init__(self, features: str) -> None:
        self.extractor: Extractor = text_extractor(features)

    def fit_features(self, rows: Any, seed: int) -> NDArray[Any]:
        return self.extractor.fit_encode(list(map(str, rows)), seed=seed)

    def features(self, rows: Any) -> NDArray[Any]:
        return self.extractor.encode(list(map(str, rows)))


class PictureInputs(EncodedInputs):
    """Paths of picture files by the features of the audit."""

    kind = "paths of pictures"

    def __init__(self, features: str) -> None:
        self.name = features

    def fit_features(self, rows: Any, seed: int) -> NDArray[Any]:
        pictures = _pictures(rows)
        self.extractor = picture_extractor(self.name, pictures)
        return self.extractor.fit_encode(pictures, seed=seed)

    def features(self, rows: Any) -> NDArray[Any]:
        return self.extractor.encode(_pictures(rows))


class SparseInputs(EncodedInputs):
    """A sparse matrix as a dense one, of more than 256 columns on its main axes."""

    kind = "a sparse matrix"

    def fit_features(self, rows: Any, seed: int) -> NDArray[Any]:
        self.axes = SparseAxes(rows, seed=seed)
        self.has_one_scale = self.axes.project is not None
        return self.features(rows)

    def features(self, rows: Any) -> NDArray[Any]:
        return self.axes.encode(rows)


def as_words(X: Any) -> list[Any] | None:
    """Texts or paths, one a row, as a list; None for other inputs."""
    if isinstance(X, (str, bytes)) or getattr(X, "ndim", 1) != 1 or not hasattr(X, "__len__"):
        return None
    is_words = (
        isinstance(X, (list, tuple)) or getattr(getattr(X, "dtype", None), "kind", "O") in "OUST"
    )
    rows = list(X) if is_words else []
    return rows if rows and all(isinstance(row, (str, os.PathLike)) for row in rows) else None


def are_paths(words: list[Any]) -> bool:
    """Whether rows are paths of pictures: all of type Path, or the first is the name of an existing
    picture file.
    """
    if all(isinstance(word, os.PathLike) for word in words):
        return True
    first = words[0]
    return (
        Path(first).suffix.lower() in SUFFIXES
        and len(first) < 4096
        and "\n" not in first
        and Path(first).is_file()
    )


def _pictures(paths: Any) -> Pictures:
    if absent := [path for path in paths if not Path(path).is_file()]:
        raise ValueError(
            f"Expected paths of picture files, found no file {str(absent[0])!r} ({len(absent)}"
            " missing)."
        )
    return Pictures([Path(path) for path in paths])


def number_columns(array: NDArray[Any], names: Any) -> Columns | None:
    """How numbers (N, D) are encoded if some are missing, or too far from zero for float32.

    It is None otherwise.
    """
    missing = np.isnan(array)
    if not missing.any():
        return shifted_columns(array, names)
    fill = np.nanmedian(np.where(missing.all(0), 0.0, array), axis=0)
    mean, std = moments(np.where(missing, fill, array))
    column_names = tuple(map(str, range(len(fill)) if names is None else names))
    medians, means, stds = (
        torch.from_numpy(np.asarray(values, np.float64)) for values in (fill, mean, std)
    )
    return Columns(column_names, medians, {}, "impute", means, stds)


def encode_labels(X: Any, y: Any, estimator: str) -> tuple[NDArray[Any], Ints]:
    """The classes, sorted, and the class of each row as an integer, (N,).

    ``estimator`` is the name in messages.
    """
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
    _check_not_lists(y)
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] > 1:
        remedy = (
            "NoisyLabelClassifier takes several labels a row, 0 or 1, and soft labels,"
            " probabilities or counts"
        )
        raise ValueError(
            f"Expected one label a row in y for {estimator}, got shape {shape}. Use"
            f" y.argmax(axis=1); {remedy}."
        )
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    if y.dtype.kind in "Of":
        _check_objects(y)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    return classes, codes.astype(np.int64)


def encode_soft_labels(X: Any, y: Any, estimator: str) -> tuple[NDArray[Any], Ints, Tensor | None]:
    """As ``encode_labels``, and the distributions (N, K) of soft labels, whose classes are columns
    and their order.
    """
    if y is None or soft_labels(y) is None:
        return *encode_labels(X, y, estimator), None
    check_consistent_length(X, y)
    labels = TrainingLabels(y)
    names = getattr(y, "columns", None)
    classes = np.arange(len(labels.classes)) if names is None else np.asarray(names)
    return classes, labels.y.numpy(), labels.soft


def encode_indicators(X: Any, y: Any) -> tuple[NDArray[Any], Ints] | None:
    """The classes and the labels (N, K) of rows with several of them, 0 or 1.

    It is None for other labels.

    As in scikit-learn, every matrix of zeros and ones is one; with a single 1 in every row it is
    warned of. The classes are the columns of a table, or their numbers.
    """
    if y is None or getattr(y, "ndim", 2) != 2:
        return None
    try:
        matrix = y.toarray() if issparse(y) else np.asarray(y)
    except ValueError:  # rows of different lengths
        return None
    if (
        matrix.ndim != 2
        or matrix.shape[1] < 2
        or matrix.dtype.kind not in "biuf"
        or not np.isin(matrix, (0, 1)).all()
    ):
        return None
    check_consistent_length(X, matrix)
    if (matrix.sum(1) == 1).all():
        warnings.warn(
            "Every row of `y` has a single 1, and is learned as several labels a row, of which none"
            " may be predicted. For one label a row use y.argmax(axis=1), for soft labels counts"
            " other than 1, such as 2 * y.",
            stacklevel=3,
        )
    names = getattr(y, "columns", None)
    return np.arange(matrix.shape[1]) if names is None else np.asarray(names), matrix.astype(
        np.int64
    )


def _check_not_lists(y: Any) -> None:
    """Refuse rows that are lists of names, for which NumPy's and scikit-learn's errors name no
    remedy.
    """
    rows = y if isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) == "object" else ()
    if any(isinstance(row, list | tuple | set | frozenset) and len(row) != 1 for row in rows):
        raise ValueError(
            "Expected one label a row in y, or for several a matrix of zeros and ones, got lists."
            " Use sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y)."
        )


def _check_objects(y: NDArray[Any]) -> None:
    """Refuse missing labels and mixed types, for which NumPy's error names no row."""
    import pandas as pd

    if (gaps := pd.isna(y)).any():
        raise ValueError(
            f"Input y contains NaN or None, first in row {gaps.argmax()}. Drop these rows."
        )
    is_string = [isinstance(label, str) for label in y]
    if any(is_string) and not all(is_string):
        other = y[is_string.index(False)]
        raise ValueError(
            f"Expected labels of one type in y, got strings and {other!r}. Make all of them"
            " strings."
        )


RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def draw_seed(random_state: RandomState) -> int:
    """The seed itself, one drawn from a ``RandomState`` or ``Generator``, or another one each time
    for None.
    """
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0]) % 2**31
    return check_count("random_state", random_state, 0, "It is a seed.")
