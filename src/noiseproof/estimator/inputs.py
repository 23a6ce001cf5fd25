"""Inputs that are no arrays of numbers: texts, paths of pictures and sparse matrices, as features (N, F)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.data.features import Extractor
from noiseproof.data.images import SUFFIXES
from noiseproof.data.pictures import Pictures, picture_extractor
from noiseproof.data.sparse import SparseAxes
from noiseproof.data.tables import Columns, moments, shifted_columns
from noiseproof.data.text import text_extractor


class EncodedInputs(ABC):
    """Inputs as features; ``fit_encode`` learns from those of ``fit`` how."""

    kind: ClassVar[str]
    has_one_scale = True  # whether features differ in scale because they differ in importance

    @abstractmethod
    def fit_features(self, rows: Any, seed: int) -> NDArray[Any]: ...  # (N, F)

    @abstractmethod
    def features(self, rows: Any) -> NDArray[Any]: ...  # (N, F)

    def fit_encode(self, rows: Any, seed: int) -> Tensor:
        x = self.fit_features(rows, seed)
        self.mean, self.spread = x.mean(0), max(float(x.std(0).max(initial=0.0)), 1e-9)
        return self._scaled(x)

    def encode(self, rows: Any) -> Tensor:
        return self._scaled(self.features(rows))

    def _scaled(self, x: NDArray[Any]) -> Tensor:
        """Features in units of the widest one: units of each one's own would blow up the least important ones."""
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
    is_words = isinstance(X, (list, tuple)) or getattr(getattr(X, "dtype", None), "kind", "O") in "OUST"
    rows = list(X) if is_words else []
    return rows if rows and all(isinstance(row, (str, os.PathLike)) for row in rows) else None


def are_paths(words: list[Any]) -> bool:
    """Whether rows are paths of pictures: all of type Path, or the first is the name of an existing picture file."""
    if all(isinstance(word, os.PathLike) for word in words):
        return True
    first = words[0]
    return Path(first).suffix.lower() in SUFFIXES and len(first) < 4096 and "\n" not in first and Path(first).is_file()


def _pictures(paths: Any) -> Pictures:
    if absent := [path for path in paths if not Path(path).is_file()]:
        raise ValueError(f"Expected paths of picture files, found no file {str(absent[0])!r} ({len(absent)} missing).")
    return Pictures([Path(path) for path in paths])


def number_columns(array: NDArray[Any], names: Any) -> Columns | None:
    """How numbers (N, D) are encoded if some are missing, or too far from zero for float32; else None."""
    missing = np.isnan(array)
    if not missing.any():
        return shifted_columns(array, names)
    fill = np.nanmedian(np.where(missing.all(0), 0.0, array), axis=0)
    mean, std = moments(np.where(missing, fill, array))
    column_names = tuple(map(str, range(len(fill)) if names is None else names))
    medians, means, stds = (torch.from_numpy(np.asarray(values, np.float64)) for values in (fill, mean, std))
    return Columns(column_names, medians, {}, "impute", means, stds)
