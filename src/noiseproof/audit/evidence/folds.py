"""Which rows are the same, which are like no other, and folds that keep together what belongs together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.evidence.neighbours import Neighbours
from noiseproof.core.checks import check_count
from noiseproof.data.base import derive_seed

Ints = NDArray[np.int64]
CHANCE, CLOSEST = 1e-3, 0.1  # how often chance alone may bring two rows so near; never farther than a tenth
LEAST_OUTLIER = 1.5


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Rows that are all but the same."""

    group: Ints  # (N,) equal for rows that are; −1 for a row like no other
    conflict: NDArray[np.bool_]  # (N,) rows of its group bear different labels
    common: int  # rows whose inputs are so frequent that being equal means nothing

    @property
    def is_duplicate(self) -> NDArray[np.bool_]:
        """(N,)"""
        return self.group >= 0

    def subset(self, keep: NDArray[np.bool_]) -> Duplicates:
        """What is left of the groups in some of the rows."""
        return Duplicates(self.group[keep], self.conflict[keep], self.common)


def same_rows(x: NDArray[np.float32]) -> Ints:
    """The first row that equals each row, (N,): by a hash of its bits, then bit by bit."""
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
    start = np.maximum.accumulate(np.where(same, 0, np.arange(n)))  # where each run of equal rows begins
    first = np.empty(n, np.int64)
    first[order] = order[start]
    return first


def find_duplicates(x: NDArray[np.float32], labels: Ints, neighbours: Neighbours | None = None) -> Duplicates:
    """Equal rows, and rows nearer to each other than chance would bring them.

    Where rows are spread evenly around a row in m dimensions, (d₁/d_k)^m ~ Beta(1, k−1) for its nearest and k-th
    nearest distance. The median over all rows gives m, and a neighbour counts as a near-duplicate below the distance
    that chance undercuts in one row of a thousand, at most d_k/10. More than 20 equal rows, and more than a hundredth
    of all, are a common value and no duplicates: two people with the same answers to five questions are not one.
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
    conflict = ~in_one_fold(group, labels) & ~alone  # labels in the place of folds: its rows bear several
    group = np.where(alone, -1, group)
    numbers = np.unique(group[~alone])
    return Duplicates(np.where(alone, -1, np.searchsorted(numbers, group)), conflict, int(common.sum()))


def _near(neighbours: Neighbours, common: NDArray[np.bool_]) -> Ints:
    """Pairs (2, E) of rows that chance did not bring together."""
    distance = neighbours.distance.astype(np.float64)  # (N, k), nearest first
    k = distance.shape[1]
    far, near = distance[:, -1], distance[:, 0]
    usual = (near > 0) & (far > near)
    if not usual.any():
        return np.empty((2, 0), np.int64)
    median = np.log(1 - 0.5 ** (1 / (k - 1)))  # of log (d₁/d_k)^m
    dimension = median / np.median(np.log(near[usual] / far[usual]))
    ratio = min(CLOSEST, (CHANCE / (k - 1)) ** (1 / dimension))
    # Among more copies than neighbours are looked for, even the k-th is a copy: the data's own scale finds them.
    limit = np.maximum(ratio * far, ratio * CLOSEST * np.median(far[usual]))
    i, j = np.nonzero((distance <= limit[:, None]) & ~common[:, None])
    pairs = np.stack([i, neighbours.index[i, j].astype(np.int64)])
    return pairs[:, ~common[pairs[1]]]


def connected(n: int, edges: Ints) -> Ints:
    """The first row that each row is joined to by a chain of edges (2, E), (N,)."""
    root = np.arange(n)
    while True:
        ends = root[edges]
        if (ends[0] == ends[1]).all():
            return root
        np.minimum.at(root, ends.max(0), ends.min(0))  # the larger root of an edge hangs from the smaller one
        while (root[root] != root).any():
            root = root[root]


def outlier_scores(
    neighbours: Neighbours, is_duplicate: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], float]:
    """How far each row is from its neighbours over how far those are from theirs, (N,), and the cut.

    1 is usual, wherever the data is dense or sparse. The cut lies five robust deviations of the logarithm above the
    median (where a bell curve has one row in three million), and at 1.5 or above. A row that has a copy, or is called a
    near-duplicate (N,), is not far from every other one: its score is 1 at most.
    """
    mean = neighbours.distance.mean(1, dtype=np.float64)
    around = mean[neighbours.index].mean(1)
    tiny = np.finfo(np.float32).tiny
    score = (mean + tiny) / (around + tiny)
    logs = np.log(np.maximum(score, 1e-6))
    middle = np.median(logs)
    cut = max(LEAST_OUTLIER, float(np.exp(middle + 5 * 1.4826 * np.median(np.abs(logs - middle)))))
    alike = neighbours.distance[:, 0] == 0 if is_duplicate is None else is_duplicate | (neighbours.distance[:, 0] == 0)
    return np.where(alike, np.minimum(score, 1), score).astype(np.float32), cut


def merge_groups(*groups: Ints | None) -> Ints | None:
    """Rows that belong together by any of several groupings (each (N,), −1: by none of it), as one grouping."""
    known = [group for group in groups if group is not None]
    if not known:
        return None
    n, edges = len(known[0]), []
    for group in known:
        rows = np.flatnonzero(group >= 0)
        order = rows[np.argsort(group[rows], kind="stable")]
        joined = group[order[1:]] == group[order[:-1]]
        edges.append(np.stack([order[1:][joined], order[:-1][joined]]))
    return connected(n, np.concatenate(edges, 1))


def make_folds(
    labels: Ints,
    *,
    folds: int = 5,
    groups: Ints | None = None,  # (N,)
    time: NDArray[np.float64] | None = None,  # (N,)
    seed: int = 0,
) -> Ints:
    """The fold of each row, (N,): each class spread evenly over the folds, each group whole in one of them.

    With ``time`` the folds are blocks of time instead, of about as many rows: a row is judged by models of other times,
    earlier and later, never by its contemporaries. A group belongs to the time of its first row.
    """
    check_count("folds", folds, 2)
    n = len(labels)
    group = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    members = np.bincount(group)
    folds = min(folds, len(members))
    if folds < 2:
        raise ValueError(f"Expected rows of at least two groups, got {n} rows of one. Leave the group out.")
    if time is not None:
        began = np.full(len(members), np.inf)
        np.minimum.at(began, group, time)
        at = np.unique(began, return_inverse=True)[1]  # one number for all that is of one time
        rows = np.bincount(at, members).astype(np.int64)
        block = folds * (np.cumsum(rows) - rows) // n  # by the rows of earlier times
        return np.asarray(np.unique(block, return_inverse=True)[1][at[group]])
    random = np.random.default_rng(derive_seed(seed, 2))  # no permutation that the seed's user may have drawn, too
    fold = np.full(n, -1)
    counts = _place_groups(fold, labels, group, members, folds, random)
    single = np.flatnonzero(fold < 0)
    single = single[random.permutation(len(single))]
    single = single[np.argsort(labels[single], kind="stable")]
    for rows in np.split(single, np.flatnonzero(np.diff(labels[single])) + 1) if len(single) else ():
        # The fold with the fewest rows of the class is next, and among equals the one with the fewest rows.
        own, whole = counts[:, labels[rows[0]]], counts.sum(1)
        goal = _level(own, len(rows), whole)
        fold[rows] = np.repeat(np.arange(folds), goal)
        own += goal
    return fold


def _level(filled: Ints, amount: int, tie: Ints) -> Ints:
    """How much of ``amount`` to pour into each vessel so that all stand as level as can be, (F,)."""
    order = np.lexsort((tie, filled))
    level = np.sort(filled)
    room = level * np.arange(len(level)) - np.concatenate([[0], np.cumsum(level)[:-1]])  # to raise the lower ones to it
    vessels = int((room <= amount).sum())
    total = amount + int(level[:vessels].sum())
    height = np.zeros_like(filled)
    height[order[:vessels]] = total // vessels + (np.arange(vessels) < total % vessels)
    return np.asarray(np.maximum(height - filled, 0) * (height > 0))


def _place_groups(
    fold: Ints, labels: Ints, group: Ints, members: Ints, folds: int, random: np.random.Generator
) -> Ints:
    """Put the groups of several rows into folds, the largest first, and count (F, K) what lies where."""
    num_classes = int(labels.max(initial=0)) + 1
    counts = np.zeros((folds, num_classes), np.int64)
    rows = np.flatnonzero(members[group] > 1)
    if not len(rows):
        return counts
    rows = rows[np.argsort(group[rows], kind="stable")]
    parts = np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1)
    sizes = np.array([len(part) for part in parts])
    usual = np.bincount(labels, minlength=num_classes) / folds
    whole = np.zeros(folds, np.int64)
    for i in np.lexsort((random.permutation(len(parts)), -sizes)):
        kinds, amounts = np.unique(labels[parts[i]], return_counts=True)
        # To the fold that lacks most of what the group brings, in shares of what it should have at the end.
        fullness = (counts[:, kinds] / usual[kinds]) @ amounts + 1e-3 * whole / len(labels)
        best = int(fullness.argmin())
        fold[parts[i]] = best
        counts[best, kinds] += amounts
        whole[best] += sizes[i]
    return counts


def in_one_fold(labels: Ints, folds: Ints) -> NDArray[np.bool_]:
    """Rows whose class lies in one fold alone, (N,): a model that judges them never saw their class."""
    low, high = np.full(int(labels.max()) + 1, np.iinfo(np.int64).max), np.full(int(labels.max()) + 1, -1)
    np.minimum.at(low, labels, folds)
    np.maximum.at(high, labels, folds)
    return np.asarray((low == high)[labels])
