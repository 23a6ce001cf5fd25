"""Labels as users pass them to ``fit``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse  # type: ignore[import-untyped]
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite
from torch import Tensor

from noiseproof.data.labels import TrainingLabels, soft_labels


def encode_labels(X: Any, y: Any, estimator: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and the class of each row as an integer, (N,); ``estimator`` is the name in messages."""
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
    _check_not_lists(y)
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    if y.dtype == object:
        _check_objects(y)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    return classes, codes.astype(np.int64)


def encode_soft_labels(X: Any, y: Any, estimator: str) -> tuple[NDArray[Any], NDArray[np.int64], Tensor | None]:
    """As ``encode_labels``, and the distributions (N, K) of soft labels, whose classes are columns and their order."""
    if y is None or soft_labels(y) is None:
        return *encode_labels(X, y, estimator), None
    check_consistent_length(X, y)
    labels = TrainingLabels(y)
    names = getattr(y, "columns", None)
    classes = np.arange(len(labels.classes)) if names is None else np.asarray(names)
    return classes, labels.y.numpy(), labels.soft


def encode_indicators(X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """The classes and the labels (N, K) of rows with several of them, 0 or 1; None for other labels.

    As in scikit-learn, every matrix of zeros and ones is one. The classes are the columns of a table, or their numbers.
    """
    if y is None or getattr(y, "ndim", 2) != 2:
        return None
    try:
        matrix = y.toarray() if issparse(y) else np.asarray(y)
    except ValueError:  # rows of different lengths
        return None
    if matrix.ndim != 2 or matrix.shape[1] < 2 or matrix.dtype.kind not in "biuf" or not np.isin(matrix, (0, 1)).all():
        return None
    check_consistent_length(X, matrix)
    names = getattr(y, "columns", None)
    return np.arange(matrix.shape[1]) if names is None else np.asarray(names), matrix.astype(np.int64)


def _check_not_lists(y: Any) -> None:
    """Refuse rows that are lists of names, for which NumPy's and scikit-learn's errors name no remedy."""
    rows = y if isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) == "object" else ()
    if any(isinstance(row, list | tuple | set | frozenset) and len(row) != 1 for row in rows):
        raise ValueError(
            "Expected one label a row in y, or for several a matrix of zeros and ones, got lists. Use "
            "sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y)."
        )


def _check_objects(y: NDArray[Any]) -> None:
    """Refuse missing labels and mixed types, for which NumPy's error names no row."""
    import pandas as pd

    if (gaps := pd.isna(y)).any():
        raise ValueError(f"Input y contains NaN or None, first in row {gaps.argmax()}. Drop these rows.")
    is_string = [isinstance(label, str) for label in y]
    if any(is_string) and not all(is_string):
        other = y[is_string.index(False)]
        raise ValueError(f"Expected labels of one type in y, got strings and {other!r}. Make all of them strings.")
