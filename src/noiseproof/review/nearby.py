"""The rows of one class that are nearest to a row, and those that are typical of the class."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPICAL = 0.1  # share of a class, the best labels, among which the most central rows are typical
MARGIN = 16  # more rows than requested whose distance is computed again without cancellation


class Nearby:
    """Rows of the source by their features (N, D): exact search among the rows of one class."""

    def __init__(
        self, x: NDArray[np.float32], row: NDArray[np.int64], given: NDArray[np.int64], quality: NDArray[np.float64]
    ) -> None:
        order = np.argsort(given, kind="stable")  # rows of a class lie together: a search copies nothing
        self.x = np.ascontiguousarray((x - x.mean(0))[order], np.float32)  # less cancellation in ‖a‖² + ‖b‖² − 2ab
        self.square = np.einsum("nd,nd->n", self.x, self.x)
        self.row, self.given, self.quality = row[order], given[order], quality[order]
        self.position = {row: i for i, row in enumerate(self.row.tolist())}
        self.typical = lru_cache(maxsize=1024)(self._typical)

    def _part(self, label: int) -> slice:
        return slice(*np.searchsorted(self.given, [label, label + 1]).tolist())

    def nearest(self, row: int, label: int, count: int) -> list[tuple[int, float]]:
        """Return the ``count`` rows of a class nearest to ``row``, without itself, and their euclidean distances."""
        if (at := self.position.get(row)) is None:
            return []
        part = self._part(label)
        apart = self.square[part] - 2 * (self.x[part] @ self.x[at])  # (n,): squared distance less ‖x‖²
        if part.start <= at < part.stop:
            apart[at - part.start] = np.inf
        few = np.argsort(apart)[: count + MARGIN] if len(apart) <= count + MARGIN else (
            np.argpartition(apart, count + MARGIN)[: count + MARGIN]
        )  # fmt: skip
        few = few[np.isfinite(apart[few])]
        return self._by_distance(part.start + few, self.x[at])[:count]

    def _by_distance(self, at: NDArray[Any], center: NDArray[Any]) -> list[tuple[int, float]]:
        distance = np.linalg.norm(self.x[at].astype(np.float64) - center, axis=1)
        order = np.lexsort((self.row[at], distance))
        return [(int(self.row[at[i]]), float(distance[i])) for i in order.tolist()]

    def _typical(self, label: int) -> list[int]:
        """Return rows of a class, the most central first, of those with the best labels."""
        part = self._part(label)
        if part.start == part.stop:
            return []
        size = part.stop - part.start
        best = np.argsort(-self.quality[part], kind="stable")[: max(10, round(TYPICAL * size))] + part.start
        return [row for row, _ in self._by_distance(best, np.median(self.x[best].astype(np.float64), axis=0))[:10]]
