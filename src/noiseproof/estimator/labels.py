"""Labels as users pass them to ``fit``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite
from torch import Tensor

from noiseproof.data.labels import TrainingLabels, soft_labels


def encode_labels(X: Any, y: Any, estimator: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and the class of each row as an integer, (N,); ``estimator`` is the name in messages."""
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
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


def _check_objects(y: NDArray[Any]) -> None:
    """Refuse missing labels and mixed types, for which NumPy's error names no row."""
    import pandas as pd

    if (gaps := pd.isna(y)).any():
        raise ValueError(f"Input y contains NaN or None, first in row {gaps.argmax()}. Drop these rows.")
    is_string = [isinstance(label, str) for label in y]
    if any(is_string) and not all(is_string):
        other = y[is_string.index(False)]
        raise ValueError(f"Expected labels of one type in y, got strings and {other!r}. Make all of them strings.")
