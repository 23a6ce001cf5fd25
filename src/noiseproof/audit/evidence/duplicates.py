"""Rows that are the same, or nearly so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.evidence.folds import connected, in_one_fold
from noiseproof.audit.evidence.neighbours import Neighbours
from noiseproof.core.messages import Brief

Ints = NDArray[np.int64]
CHANCE = 1e-3  # how often chance alone may bring two rows as close as a near-duplicate
CLOSEST = 0.1  # and never farther than this share of the distance to the last neighbour


@dataclass(frozen=True, eq=False, repr=False)
class Duplicates(Brief):
    """Rows that are nearly the same as others."""

    group: Ints  # (N,): equal for rows that are nearly the same; −1 for a unique row
    conflict: NDArray[np.bool_]  # (N,): the labels of its group differ
    common: int  # rows with frequent inputs, of which equality means nothing

    @property
    def is_duplicate(self) -> NDArray[np.bool_]:
        """(N,)"""
        return self.group >= 0

    def subset(self, keep: NDArray[np.bool_]) -> Duplicates:
        """The groups without some rows."""
        return Duplicates(self.group[keep], self.conflict[keep], self.common)


def same_rows(x: NDArray[np.float32]) -> Ints:
    """The first row that equals each row, (N,): by hashes, verified bit by bit."""
    n = len(x)
    bits = np.ascontiguousarray(x + np.float32(0)).view(np.uint32)  # + 0: −0 becomes 0
    weights = np.random.default_rng(0).integers(0, 2**63, bits.shape[1], dtype=np.uint64) * 2 + 1
    hashes = np.zeros(n, np.uint64)
    for column, weight in zip(bits.T, weights, strict=True):  # no (N, D) array of 64 bits
        hashes = (hashes ^ column) * weight
        hashes ^= hashes >> np.uint64(29)
    order = np.argsort(hashes, kind="stable")
    same = np.concatenate([[False], hashes[order[1:]] == hashes[order[:-1]]])
    pairs = np.flatnonzero(same)
    same[pairs] = (bits[order[pairs]] == bits[order[pairs - 1]]).all(1)
    start = np.maximum.accumulate(np.where(same, 0, np.arange(n)))  # of each run of equal rows
    first = np.empty(n, np.int64)
    first[order] = order[start]
    return first


def find_duplicates(x: NDArray[np.float32], labels: Ints, neighbours: Neighbours | None = None) -> Duplicates:
    """Equal rows, and rows closer to each other than by chance.

    Where rows are spread evenly around a row in m dimensions, (d₁/d_k)^m ~ Beta(1, k−1) for its nearest and k-th
    nearest distance. The median over all rows gives m, and a neighbour is a near-duplicate below the distance that
    one row in a thousand has by chance, at most d_k/10. More than 20 equal rows, if they are more than a hundredth of
    all, are a common value and not duplicates: two people may give the same answers to five questions.
    """
    first = same_rows(x)
    n = len(x)
    _, sizes = np.unique(first, return_counts=True)
    most = max(20, n // 100)
    size = np.zeros(n, np.int64)
    size[np.unique(first)] = sizes
    common = size[first] > most
    edges = [np.stack([np.arange(n), first])[:, (first != np.arange(n)) & ~common]]
    if neighbours is not None and neighbours.index.shape[1] > 1:
        edges.append(_near(neighbours, common))
    group = connected(n, np.concatenate(edges, 1))
    counts = np.bincount(group, minlength=n)
    alone = (counts[group] == 1) | common
    conflict = ~in_one_fold(group, labels) & ~alone  # labels in the place of folds: the group has several
    group = np.where(alone, -1, group)
    numbers = np.unique(group[~alone])
    return Duplicates(np.where(alone, -1, np.searchsorted(numbers, group)), conflict, int(common.sum()))


def near_limit(neighbours: Neighbours, chance: float = CHANCE) -> NDArray[np.float64]:
    """The distance below which another row is a near-duplicate of each row, (N,); 0 where none can be told."""
    k = min(10, neighbours.distance.shape[1])
    distance = neighbours.distance[:, :k].astype(np.float64)  # nearest first
    far, near = distance[:, -1], distance[:, 0]
    usual = (near > 0) & (far > near)
    if not usual.any():
        return np.zeros(len(far))
    median = np.log(1 - 0.5 ** (1 / (k - 1)))  # of log (d₁/d_k)^m
    dimension = median / np.median(np.log(near[usual] / far[usual]))
    ratio = min(CLOSEST, (chance / (k - 1)) ** (1 / dimension))
    # Of more than k copies even the k-th neighbour is one, so the median distance sets a limit as well.
    return np.asarray(np.maximum(ratio * far, ratio * CLOSEST * np.median(far[usual])))


def _near(neighbours: Neighbours, common: NDArray[np.bool_]) -> Ints:
    """Pairs (2, E) of rows that are closer than by chance."""
    distance, limit = neighbours.distance.astype(np.float64), near_limit(neighbours)
    if not limit.any():
        return np.empty((2, 0), np.int64)
    i, j = np.nonzero((distance <= limit[:, None]) & ~common[:, None])
    pairs = np.stack([i, neighbours.index[i, j].astype(np.int64)])
    return pairs[:, ~common[pairs[1]]]
