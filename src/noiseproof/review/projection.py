"""The map: rows of an audit in the plane, by their features or, without any, by predictions."""

import base64
import importlib
import importlib.metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import Audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources.base import NoRows
from noiseproof.core.arrays import Array, Floats32, Ints
from noiseproof.core.messages import Json
from noiseproof.review.context import Context, Prepared
from noiseproof.review.issues import Issues

MOST = 50_000  # rows on a map, so that a browser draws it at once
FITTED = 20_000  # rows that the principal components are fitted to
COMPONENTS = 50  # principal components that UMAP starts from
# percent of the rows at either end of an axis; beyond half the width of the others they are at the
# edge
EDGE = 0.5
BYTES = 14  # of a row in an answer
STEPS = 2**16 - 1  # of a coordinate


def log_ratios(probabilities: NDArray[np.floating[Any]]) -> Floats32:
    """Return log p − mean log p of each row (N, K) (Aitchison 1982), with p at least 0.001."""
    logs = np.log(np.maximum(probabilities, 1e-3))
    return np.asarray(logs - logs.mean(1, keepdims=True), np.float32)


def project(x: Floats32, shown: Ints, method: str, *, seed: int = 0) -> Floats32:
    """Return the rows ``shown`` of features ``x`` (N, D) in the plane, (n, 2), by ``PCA`` or
    ``UMAP``.
    """
    from sklearn.decomposition import PCA

    points = x[shown]
    count = 2 if method == "PCA" else COMPONENTS
    if method == "PCA" or x.shape[1] > COMPONENTS:
        sample = x
        if len(x) > FITTED:
            sample = x[np.random.default_rng(seed).choice(len(x), FITTED, replace=False)]
        axes = PCA(min(count, *sample.shape), random_state=seed).fit(sample.astype(np.float64))
        points = axes.transform(points)
        points = np.pad(points, ((0, 0), (0, count - points.shape[1])))
    if method == "UMAP":
        umap = importlib.import_module("umap").UMAP(
            n_neighbors=min(15, len(points) - 1), random_state=seed, n_jobs=1
        )
        points = umap.fit_transform(points)
    return np.asarray(points, np.float32)


def umap_version() -> str:
    """Return the version of umap-learn, empty where it is not installed; any folder may be called
    umap.
    """
    try:
        return importlib.metadata.version("umap-learn")
    except importlib.metadata.PackageNotFoundError:
        return ""


def choose_rows(issues: Issues, *, most: int = MOST, seed: int = 0) -> Ints:
    """Return the positions of the rows on a map: the worst labels first, then a sample of the
    others.
    """
    worst = np.flatnonzero(issues.is_issue)[:most]
    others = np.flatnonzero(~issues.is_issue)
    sample = np.random.default_rng(seed).permutation(len(others))[: most - len(worst)]
    return np.concatenate([worst, others[np.sort(sample)]])


def to_steps(points: Floats32) -> tuple[NDArray[np.uint16], int]:
    """Return points (n, 2) as whole numbers, both axes to one scale, and how many far ones were
    moved to the edge.
    """
    low, high = np.percentile(points, [EDGE, 100 - EDGE], axis=0)
    margin = (high - low) / 2
    low = np.maximum(low - margin, points.min(0))
    high = np.minimum(high + margin, points.max(0))
    inside = np.clip(points, low, high)
    beyond = int((points != inside).any(1).sum())
    scale = STEPS / max(float((high - low).max()), 1e-30)
    return ((inside - low) * scale).round().astype(np.uint16), beyond


class Projection(Prepared):
    """The map of one audit."""

    def __init__(self, audit: Audit, context: Context, *, most: int = MOST) -> None:
        super().__init__()
        self.audit = audit
        self.context = context
        self.most = most
        self.seed = int(audit.config["seed"])
        self.map: Json | None = None

    def show(self) -> Json:
        self.start()
        return {"pending": True} if self.map is None else {"pending": False, **self.map}

    def _prepare(self) -> None:
        try:
            self.map = self.compute()
        # readers raise many kinds of errors, and the review goes on without
        except Exception as error:
            self.map = {"note": f"There is no map: {error}"}

    def compute(self) -> Json:
        """Return the map: row numbers, given labels and coordinates as base64, the labels called
        wrong first.
        """
        issues = self.context.issues
        shown = choose_rows(issues, most=self.most, seed=self.seed)
        if len(shown) < 3:
            raise ValueError("there are fewer than three rows.")
        method = "UMAP" if len(shown) > COMPONENTS and umap_version() else "PCA"
        points = self._points(issues.row[shown], method)
        is_known = np.isfinite(points).all(1)  # a row may have gone from the data
        shown = shown[is_known]
        steps, beyond = to_steps(points[is_known])
        config = self.audit.config
        by = "features"
        if config["data"] is None and config["pred_probs"] and not config["embeddings"]:
            by = "predictions"
        return {
            "method": method,
            "by": by,
            "rows": len(issues),
            "issues": int(issues.is_issue[shown].sum()),
            "beyond": beyond,
            "row": _base64(issues.row[shown].astype("<u4")),
            "given": _base64(issues.given[shown].astype("<u2")),
            "x": _base64(steps[:, 0].astype("<u2")),
            "y": _base64(steps[:, 1].astype("<u2")),
        }

    def _points(self, rows: Ints, method: str) -> Floats32:
        """Return the rows in the plane, (n, 2)."""
        x, row = self._features()
        at = np.full(len(self.context.issues.at), -1)
        at[row] = np.arange(len(row))
        has_features = at[rows] >= 0
        points = np.full((len(rows), 2), np.nan, np.float32)
        points[has_features] = project(x, at[rows[has_features]], method, seed=self.seed)
        return points

    def _features(self) -> tuple[Floats32, Ints]:
        """Return the features (N, D) of audited rows, and their row numbers."""
        self.context.start().join()
        if self.context.nearby is not None:
            return self.context.nearby.x, self.context.nearby.row
        if self.context.fault is not None:
            raise ValueError(self.context.fault)
        data = self.context.data
        if data is None:
            data = read_again(self.audit)
        if data.pred_probs is None:
            rows = self.context.rows
            raise ValueError(
                rows.note if isinstance(rows, NoRows) else "the rows have no features."
            )
        keep = self.context.issues.audited(data.row)
        return log_ratios(data.pred_probs[keep]), data.row[keep]


def _base64(values: Array) -> str:
    return base64.b64encode(values.tobytes()).decode()
