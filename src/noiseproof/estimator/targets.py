"""The labels that users pass to ``fit``: classes, several labels for each row, distributions."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite
from torch import Tensor

from noiseproof.core.arrays import Array, Ints
from noiseproof.data.labels import TrainingLabels


@dataclass(frozen=True, eq=False)
class Targets:
    """The classes, and the labels of N rows in numbers."""

    classes: Array  # (K,)
    codes: Ints  # (N,): the class of each row; with several labels for each row (N, K), 0 or 1
    soft: Tensor | None = None  # (N, K): distributions, of which ``codes`` are the modes


def read_targets(X: Any, y: Any) -> Targets:
    """Read one label for each row, several labels or soft labels.

    As in scikit-learn, every matrix of zeros and ones is one of several labels; with a single 1 in
    every row it is warned of. The classes of a matrix are the columns of a table, or their numbers.
    """
    matrix = _matrix(y)
    if matrix is None:
        return encode_labels(X, y, "NoisyLabelClassifier")
    check_consistent_length(X, matrix)
    classes = np.asarray(getattr(y, "columns", range(matrix.shape[1])))
    if not np.isin(matrix, (0, 1)).all():
        labels = TrainingLabels(matrix, classes.tolist())
        return Targets(classes, labels.y.numpy(), labels.soft)
    if (matrix.sum(1) == 1).all():
        warnings.warn(
            "Every row of `y` has a single 1, and is learned as several labels, of which none"
            " may be predicted. For one label in each row use y.argmax(axis=1), for soft labels"
            " counts other than 1, such as 2 * y.",
            stacklevel=3,
        )
    return Targets(classes, matrix.astype(np.int64))


def _matrix(y: Any) -> Array | None:
    """The numbers (N, K) of several labels for each row, or of soft labels; None for others."""
    if y is None or getattr(y, "ndim", 2) != 2:
        return None
    matrix = y
    try:
        if issparse(y):
            matrix = y.toarray()
        elif not isinstance(y, np.ma.MaskedArray):
            matrix = np.asarray(y)
    except ValueError:  # rows of different lengths
        return None
    has_columns = matrix.ndim == 2 and matrix.shape[1] > 1 and len(matrix) > 0
    return matrix if has_columns and matrix.dtype.kind in "biuf" else None


def encode_labels(X: Any, y: Any, estimator: str) -> Targets:
    """Encode one label for each row by the sorted classes; messages name the ``estimator``."""
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
    is_column = isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) == "object"
    # NumPy's and scikit-learn's errors about lists of names have no remedy
    for row in y if is_column else ():
        if isinstance(row, list | tuple | set | frozenset) and len(row) != 1:
            raise ValueError(
                "Expected one label in each row of y, or for several a matrix of zeros and ones,"
                " got lists. Use sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y)."
            )
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"Expected one label in each row of y for {estimator}, got shape {shape}. Use"
            " y.argmax(axis=1); NoisyLabelClassifier takes several labels, 0 or 1, and soft labels,"
            " probabilities or counts."
        )
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    if y.dtype.kind in "Of":
        _check_objects(y)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    return Targets(classes, codes.astype(np.int64))


def _check_objects(y: Array) -> None:
    """Refuse missing labels and mixed types, for which NumPy's error names no row."""
    import pandas as pd

    gaps = pd.isna(y)
    if gaps.any():
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
