"""The map: rows of an audit in the plane, by their features or, without any, by predictions."""

import base64
import hashlib
import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import Audit, cache_beside
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources.base import AuditData, NoRows
from noiseproof.core.files import file_digest
from noiseproof.data.features import digest, keep_array, read_array
from noiseproof.review.context import Context, Labels, Prepared

MOST = 50_000  # rows on a map, so that a browser draws it at once
FITTED = 20_000  # rows that the principal components are fitted to
COMPONENTS = 50  # principal components that UMAP starts from
# percent of the rows at either end of an axis; beyond half the width of the others they are at the
# edge
EDGE = 0.5
BYTES = 14  # of a row in an answer
STEPS = 2**16 - 1  # of a coordinate
FORMAT = "1"  # of kept maps: a new one computes them again


def principal_axes(
    x: NDArray[np.floating[Any]], count: int, *, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the mean (D,) and the first principal axes (D, ``count``) of ``x`` (N, D), or of a
    sample of many rows.

    The largest entry of each axis is positive. Axes that ``x`` lacks are zero.

    >>> mean, axes = principal_axes(np.array([[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]]), 1)
    >>> mean.tolist(), axes[:, 0].round(3).tolist()
    ([2.0, 1.0], [0.894, 0.447])
    """
    from scipy.linalg import eigh

    if len(x) > FITTED:
        x = x[np.sort(np.random.default_rng(seed).choice(len(x), FITTED, replace=False))]
    mean = x.mean(0, dtype=np.float64)
    scatter = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), 4096):  # float64 without a copy of all
        part = x[start : start + 4096] - mean
        scatter += part.T @ part
    D = len(scatter)
    axes = eigh(scatter, subset_by_index=[max(D - count, 0), D - 1])[1][:, ::-1]  # (D, count)
    axes = axes * np.where(np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0) < 0, -1, 1)
    return mean, np.pad(axes, ((0, 0), (0, count - axes.shape[1])))


def log_ratios(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return log p − mean log p of each row (N, K) (Aitchison 1982), with p at least 0.001."""
    logs = np.log(np.maximum(probabilities, 1e-3))
    return np.asarray(logs - logs.mean(1, keepdims=True), np.float32)


def project(
    x: NDArray[np.float32], shown: NDArray[np.int64], method: str, *, seed: int = 0
) -> NDArray[np.float32]:
    """Return the rows ``shown`` of features ``x`` (N, D) in the plane, (n, 2), by ``PCA`` or
    ``UMAP``.
    """
    if method == "PCA" or x.shape[1] > COMPONENTS:
        mean, axes = principal_axes(x, 2 if method == "PCA" else COMPONENTS, seed=seed)
        points = np.asarray((x[shown] - mean) @ axes, np.float32)
    else:
        points = x[shown]
    if method == "UMAP":
        umap = importlib.import_module("umap").UMAP(
            n_neighbors=min(15, len(points) - 1), random_state=seed, n_jobs=1
        )
        points = np.asarray(umap.fit_transform(points), np.float32)
    return points


def choose_method(count: int) -> str:
    return "UMAP" if count > COMPONENTS and umap_version() else "PCA"


def umap_version() -> str:
    """Return the version of umap-learn, empty where it is not installed; any folder may be called
    umap.
    """
    try:
        return importlib.metadata.version("umap-learn")
    except importlib.metadata.PackageNotFoundError:
        return ""


def choose_rows(labels: Labels, *, most: int = MOST, seed: int = 0) -> NDArray[np.int64]:
    """Return the positions of the rows on a map: the worst labels first, then a sample of the
    others.
    """
    issues, others = np.flatnonzero(labels.is_issue)[:most], np.flatnonzero(~labels.is_issue)
    sample = np.random.default_rng(seed).permutation(len(others))[: most - len(issues)]
    return np.concatenate([issues, others[np.sort(sample)]])


def to_steps(points: NDArray[np.float32]) -> tuple[NDArray[np.uint16], int]:
    """Return points (n, 2) as whole numbers, both axes to one scale, and how many far ones were
    moved to the edge.
    """
    low, high = np.percentile(points, [EDGE, 100 - EDGE], axis=0)
    wide = (high - low) / 2
    low, high = np.maximum(low - wide, points.min(0)), np.minimum(high + wide, points.max(0))
    beyond = int(((points < low) | (points > high)).any(1).sum())
    scale = STEPS / max(float((high - low).max()), 1e-30)
    return ((np.clip(points, low, high) - low) * scale).round().astype(np.uint16), beyond


class Projection(Prepared):
    """The map of one audit, kept beside it."""

    def __init__(self, audit: Audit, context: Context, *, most: int = MOST) -> None:
        self.audit, self.context, self.most, self.seed = (
            audit,
            context,
            most,
            int(audit.config["seed"]),
        )
        super().__init__()
        self.map: dict[str, Any] | None = None

    def show(self) -> dict[str, Any]:
        self.start()
        return {"pending": True} if self.map is None else {"pending": False, **self.map}

    def show_now(self) -> dict[str, Any]:
        self.start().join()
        return self.show()

    def _prepare(self) -> None:
        try:
            self.map = self.compute()
        except (
            Exception
        ) as error:  # readers raise many kinds of errors, and the review goes on without
            self.map = {"note": f"There is no map: {error}"}

    def compute(self) -> dict[str, Any]:
        """Return the map: row numbers, given labels and coordinates as base64, the labels called
        wrong first.
        """
        labels = self.context.labels
        shown = choose_rows(labels, most=self.most, seed=self.seed)
        if len(shown) < 3:
            raise ValueError("there are fewer than three rows.")
        method = choose_method(len(shown))
        points = self._points(shown, method)
        is_known = np.isfinite(points).all(1)  # a row may have gone from the data
        shown = shown[is_known]
        steps, beyond = to_steps(points[is_known])
        columns: dict[str, NDArray[Any]] = {
            "row": labels.row[shown].astype(np.uint32),
            "given": labels.given[shown].astype(np.uint16),
            "x": steps[:, 0],
            "y": steps[:, 1],
        }
        return {
            "method": method,
            "by": "predictions" if self._has_predictions_only() else "features",
            "rows": len(labels.row),
            "issues": int(labels.is_issue[shown].sum()),
            "beyond": beyond,
            **{name: _base64(values) for name, values in columns.items()},
        }

    def _has_predictions_only(self) -> bool:
        config = self.audit.config
        return config["data"] is None and bool(config["pred_probs"]) and not config["embeddings"]

    def _points(self, shown: NDArray[np.int64], method: str) -> NDArray[np.float32]:
        """Return the rows in the plane, (n, 2), from the folder beside the audit if they are in
        it.
        """
        version = umap_version() if method == "UMAP" else ""
        rows = self.context.labels.row[shown]
        parts: list[str | bytes] = [
            FORMAT,
            method,
            version,
            str(self.seed),
            self.audit.key,
            rows.tobytes(),
        ]
        key = digest([*parts, *fingerprint(self.audit, self.context.data)])
        path = cache_beside(self.audit.folder) / f"map-{key[:16]}.safetensors"
        points = read_array(path, key)
        if points is None:
            x, row = self._features()
            at = np.full(len(self.context.labels.at), -1)
            at[row] = np.arange(len(row))
            has_features = at[rows] >= 0
            points = np.full((len(rows), 2), np.nan, np.float32)
            points[has_features] = project(x, at[rows[has_features]], method, seed=self.seed)
            keep_array(path, key, points)
        return points

    def _features(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the features (N, D) of audited rows, and their row numbers."""
        self.context.start().join()
        if (nearby := self.context.nearby) is not None:
            return nearby.x, nearby.row
        if self.context.note is not None:
            raise ValueError(self.context.note.partition(": ")[2])
        data = self.context.data
        if data is None:
            data = read_again(self.audit.config, cache_beside(self.audit.folder))
        if data.pred_probs is None:
            rows = self.context.rows
            raise ValueError(
                rows.note if isinstance(rows, NoRows) else "the rows have no features."
            )
        keep = np.flatnonzero((data.row >= 0) & (self.context.labels.at[data.row] >= 0))
        return log_ratios(data.pred_probs[keep]), data.row[keep]


def fingerprint(audit: Audit, data: AuditData | None) -> list[str]:
    """Return digests of what a map is computed from: features in memory, else files, or the times
    of pictures.
    """
    if data is not None:
        arrays = [array for array in (data.x, data.pred_probs) if array is not None]
        return [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() for array in arrays]
    config, digests = audit.config, []
    for name in ("data", "labels", "embeddings", "pred_probs"):
        path = Path(config[name] or "")
        if path.is_file():
            digests.append(file_digest(path))
        elif config[name]:
            digests += [str(config["features"]), *_times(path, audit.issues["id"].tolist())]
    return digests


def _times(folder: Path, names: list[str]) -> list[str]:
    """Return times and sizes of the files in a folder: to read all pictures takes too long."""
    stats = [path.stat() if (path := folder / name).is_file() else None for name in names]
    return [f"{stat.st_mtime_ns} {stat.st_size}" if stat is not None else "" for stat in stats]


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()
