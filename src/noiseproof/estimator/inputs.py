"""The inputs that users pass to ``fit`` and ``predict`` as tensors, and seeds."""

import math
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from sklearn.utils.validation import assert_all_finite, validate_data
from torch import Tensor

from noiseproof.core.arrays import Array
from noiseproof.core.checks import check_count
from noiseproof.data.arrays import SparseAxes, check_features
from noiseproof.data.augment import Standardise
from noiseproof.data.features import Extractor
from noiseproof.data.frames import as_frame, is_foreign_table, library_of
from noiseproof.data.images import SUFFIXES
from noiseproof.data.pictures import Pictures, picture_extractor
from noiseproof.data.tables import fit_columns, is_numeric, number_columns
from noiseproof.data.text import text_extractor

RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def draw_seed(random_state: RandomState) -> int:
    """Return the seed itself, one drawn from a generator, or another one each time for None."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    return check_count("random_state", random_state, 0, "It is a seed.")


class EncodedInputs:
    """Texts, paths of pictures or a sparse matrix as the features of the audit.

    The features are scaled together, in units of the widest one: they differ in scale because they
    differ in importance. Only the columns of a narrow sparse matrix stay as they are.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # texts, paths of pictures or a sparse matrix
        self.has_one_scale = True

    def fit_encode(self, rows: Any, features: str, seed: int) -> Tensor:
        """Learn the encoding by the name of ``features`` from rows, and encode them."""
        rows = self._plain(rows)
        if self.kind == "a sparse matrix":
            self.encoder: SparseAxes | Extractor = SparseAxes(rows, seed=seed)
            self.has_one_scale = self.encoder.project is not None
            x = self.encoder.encode(rows)
        elif self.kind == "texts":
            self.encoder = text_extractor(features)
            x = self.encoder.fit_encode(rows, seed=seed)
        else:
            self.encoder = picture_extractor(features, rows)
            x = self.encoder.fit_encode(rows, seed=seed)
        self.mean = x.mean(0)
        self.spread = max(float(x.std(0).max(initial=0.0)), 1e-9)
        return self._scaled(x)

    def encode(self, rows: Any) -> Tensor:
        """Encode further rows, (N, F) float32."""
        return self._scaled(self.encoder.encode(self._plain(rows)))

    def _plain(self, rows: Any) -> Any:
        """The rows as the encoder takes them."""
        if self.kind == "a sparse matrix":
            return rows
        if self.kind == "texts":
            return list(map(str, rows))
        absent = [path for path in rows if not Path(path).is_file()]
        if absent:
            raise ValueError(
                f"Expected paths of picture files, found no file {str(absent[0])!r} ({len(absent)}"
                " missing)."
            )
        return Pictures(rows)

    def _scaled(self, x: Array) -> Tensor:
        if self.has_one_scale:
            x = (x - self.mean) / self.spread
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def encode_inputs(estimator: Any, X: Any, *, reset: bool, seed: int = 0) -> Tensor:
    """Return inputs as float32 (N, D), or images (N, C, H, W) as bytes or float32.

    Args:
        estimator: a ``NoisyLabelClassifier``.
        X: inputs of any kind that it takes.
        reset: whether to learn the encoding from ``X`` and store it in the estimator, as in fit.
        seed: of a learned encoding.
    """
    if library_of(X) in ("polars", "pyarrow") and is_foreign_table(X):
        X = as_frame(X)
    words = as_words(X)
    if reset:
        estimator.columns_ = estimator.encoder_ = None
        for name in ("n_features_in_", "feature_names_in_"):
            estimator.__dict__.pop(name, None)
        if words is not None:
            kind = "paths of pictures" if are_paths(words) else "texts"
            estimator.encoder_ = EncodedInputs(kind)
        elif issparse(X):
            estimator.encoder_ = EncodedInputs("a sparse matrix")
    encoder = estimator.encoder_
    columns = estimator.columns_
    if encoder is not None:
        x = _features(estimator, X, words, reset, seed)
    elif getattr(X, "ndim", 2) == 4:
        x, _ = check_features(X, "X")
        if reset:
            estimator.n_features_in_ = math.prod(x.shape[1:])
    elif (reset and has_words(X)) or (columns is not None and columns.categories):
        x = _encode_table(estimator, X, reset)
    else:
        x = _encode_numbers(estimator, X, reset)
    shape_dtype = tuple(x.shape[1:]), x.dtype
    if reset:
        estimator._input = shape_dtype
    elif shape_dtype != estimator._input:
        shape, dtype = estimator._input
        raise ValueError(
            f"Expected inputs of shape {shape} and {dtype} as in fit, got shape"
            f" {tuple(x.shape[1:])} and {x.dtype}."
        )
    return x


def _features(estimator: Any, X: Any, words: list[Any] | None, reset: bool, seed: int) -> Tensor:
    encoder = estimator.encoder_
    rows: Any = words
    if encoder.kind == "a sparse matrix":
        dtypes = [np.float64, np.float32]
        rows = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=dtypes)
        rows = csr_matrix(rows)
    if rows is None:
        raise ValueError(f"Expected {encoder.kind} as in fit, a list, got {type(X).__name__}.")
    encoded: Tensor
    if reset:
        encoded = encoder.fit_encode(rows, estimator.features, seed)
    else:
        encoded = encoder.encode(rows)
    return encoded


def _encode_table(estimator: Any, X: Any, reset: bool) -> Tensor:
    """A DataFrame with categorical columns, one-hot."""
    if not hasattr(X, "columns"):
        raise ValueError(f"Expected a DataFrame with the columns of fit, got {type(X).__name__}.")
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    frame = X.set_axis([str(c) for c in X.columns], axis=1)
    if reset:
        try:
            names = list(frame.columns)
            estimator.columns_, _ = fit_columns(frame, names, "impute", requested=True)
        except ValueError as error:
            remedy = "For text, put a TfidfVectorizer before (ColumnTransformer)."
            raise ValueError(f"{error} {remedy}") from None
    encoded: Tensor = estimator.columns_.encode(frame)
    return encoded


def _encode_numbers(estimator: Any, X: Any, reset: bool) -> Tensor:
    """Numbers as float32, with gaps filled, and less the mean where float32 is too coarse."""
    if issparse(X):
        X = X.toarray()
    dtypes = [np.float64, np.float32]
    array = validate_data(estimator, X, reset=reset, dtype=dtypes, ensure_all_finite="allow-nan")
    with np.errstate(over="ignore"):  # infinite numbers are refused below
        assert_all_finite(array.astype(np.float32), input_name="X", allow_nan=True)
    missing = np.isnan(array)
    if reset:
        names = getattr(estimator, "feature_names_in_", None)
        estimator.columns_ = number_columns(array, names)
    columns = estimator.columns_
    if columns is not None:
        array = np.where(missing, columns.fill.numpy(), array) - columns.shift.numpy()
    elif missing.any() and hasattr(estimator, "predictor_"):  # trees take NaN
        normalise = estimator.predictor_.normalise
        if isinstance(normalise, Standardise):  # the mean, as no number was missing in fit
            array = np.where(missing, normalise.mean.numpy(), array)
    return torch.from_numpy(np.require(array, np.float32, ["C_CONTIGUOUS", "WRITEABLE"]))


def as_words(X: Any) -> list[Any] | None:
    """Return texts or paths, one for each row, as a list; None for other inputs."""
    if isinstance(X, (str, bytes)) or getattr(X, "ndim", 1) != 1 or not hasattr(X, "__len__"):
        return None
    kind = getattr(getattr(X, "dtype", None), "kind", "O")
    if not isinstance(X, (list, tuple)) and kind not in "OUST":
        return None
    rows = list(X)
    return rows if rows and all(isinstance(row, (str, os.PathLike)) for row in rows) else None


def are_paths(words: list[Any]) -> bool:
    """Return whether rows are paths of pictures.

    They are if all are of type Path, or the first is the name of an existing picture file.
    """
    if all(isinstance(word, os.PathLike) for word in words):
        return True
    first = Path(words[0])
    is_short = len(str(first)) < 4096 and "\n" not in str(first)
    return is_short and first.suffix.lower() in SUFFIXES and first.is_file()


def has_words(X: Any) -> bool:
    """Return whether the inputs are a DataFrame with columns of other than numbers and truth
    values.
    """
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        return False
    from pandas.api.types import infer_dtype

    columns = (X.iloc[:, i] for i in range(X.shape[1]))
    # truth values with gaps are objects
    return not all(is_numeric(column) or infer_dtype(column) == "boolean" for column in columns)
