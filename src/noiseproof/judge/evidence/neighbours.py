"""Nearest neighbours: exact for few rows, by inverted lists (FAISS) for many; votes, outliers and
near-duplicates.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.arrays import Bools, Floats, Floats32, Ints
from noiseproof.core.checks import check_count
from noiseproof.core.cluster import map_jobs
from noiseproof.core.messages import Brief, install_command
from noiseproof.judge.evidence.folds import connected, in_one_fold

log = logging.getLogger("noiseproof")
VOTERS = 25  # neighbours that vote on a label
EXACT = 20_000  # rows up to which all pairs are compared
SLOW = 50_000  # rows from which on comparing all pairs takes more than some ten seconds
TARGET = 0.92  # recall that an approximate search aims at
SAMPLE = 256  # rows on which it is measured
# rows that an approximate search compares with each row at most, whatever its recall
MAX_COMPARED = 12_288
MIN_OUTLIER = 1.5  # score of an outlier
BLOCK = 2**20  # numbers of an intermediate result, so that it stays in the cache
CHANCE = 1e-3  # how often chance alone may bring two rows as close as a near-duplicate
CLOSEST = 0.1  # and never farther than this share of the distance to the last neighbour


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours(Brief):
    """The k nearest other rows of each of N rows, nearest first."""

    index: NDArray[np.int32]  # (N, k)
    distance: Floats32  # (N, k)
    # share of the true neighbours that were found, measured on a sample; 1 where exact
    recall: float


def nearest(
    features: Any,
    k: int = 10,
    *,
    exact: bool | None = None,
    seed: int = 0,
    apart: Any = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Neighbours:
    """Find the ``k`` nearest other rows of each row by euclidean distance.

    FAISS compares each row with the lists around the nearest of about N^¾/8 centroids (Jégou, Douze
    and Schmid 2011), as many as a recall of 0.92 takes on a sample.

    Args:
        features: (N, F).
        exact: compare all pairs, O(N²F): by default up to 20 000 rows, and where FAISS is not
            installed.
        apart: (N,): rows of the same value are not neighbours. A row with fewer than ``k`` others
            is its own neighbour at an infinite distance.
        report: called after each block with the number of rows searched, and of all rows.

    Returns:
        The neighbours, nearest first.

    >>> near = nearest([[0.0], [1.0], [3.0]], k=1)
    >>> near.index.tolist(), near.distance.tolist(), near.recall
    ([[1], [0], [1]], [[1.0], [1.0], [2.0]], 1.0)
    """
    x = torch.as_tensor(np.asarray(features, dtype=np.float32))
    if x.dim() != 2 or 0 in x.shape:
        raise ValueError(
            f"Expected `features` of shape (N, F), none of them 0, got {tuple(x.shape)}. Flatten"
            " images."
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            "Expected finite `features`, got NaN or infinite ones. Drop these rows or fill them in."
        )
    k = check_count("k", k, 1)
    if k >= len(x):
        raise ValueError(f"Expected `k` below the number of rows, {len(x)}, got {k}.")
    x = x - x.mean(0)  # less cancellation in ‖a‖² + ‖b‖² − 2ab
    group = None
    if apart is not None:
        group = torch.from_numpy(np.unique(np.asarray(apart), return_inverse=True)[1])
    if exact is None:
        exact = len(x) <= EXACT
    faiss = None if exact else _import_faiss(len(x))
    if faiss is not None:
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            return _Lists(faiss, x, group, k, seed).search_all(report)
        finally:
            faiss.omp_set_num_threads(threads)
    return Neighbours(*_compare_all(x, torch.arange(len(x)), k, group), 1.0)


def _import_faiss(num_rows: int) -> Any:
    """FAISS, or None where it is not installed, with a warning where that is slow."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        if num_rows > SLOW:
            log.warning(
                "Comparing all pairs of %d rows to find neighbours, which takes about %d min on two"
                " cores. `%s` for a faster search, by FAISS.",
                num_rows,
                max(1, round((num_rows / 1e6) ** 2 * 45)),
                install_command("neighbours"),
            )
        return None


def _compare_all(
    x: Tensor, rows: Tensor, k: int, group: Tensor | None
) -> tuple[NDArray[np.int32], Floats32]:
    """Return the nearest of all rows of other groups to ``rows``, and their distances, (n, k); the
    row itself where there are too few.
    """
    square = x.square().sum(1)
    # Few rows of a large matrix at once would read all of it again and again.
    step = max(1, BLOCK // len(x), min(16, 32 * BLOCK // len(x)))
    # Results among the blocks would split up the memory that these leave: 1.4 GiB for 20 000 rows.
    index = torch.empty(len(rows), k, dtype=torch.int64)
    block = torch.empty(min(step, len(rows)), len(x))
    for i in range(0, len(rows), step):
        part = rows[i : i + step]
        apart = block[: len(part)]  # (n, N): squared distance less the row's own square
        torch.addmm(square, x[part], x.T, alpha=-2, out=apart)
        if group is None:  # masking all pairs would take a quarter of the time
            apart[torch.arange(len(part)), part] = math.inf
        else:
            apart.masked_fill_(group[part, None] == group, math.inf)
        far, nearest_rows = apart.topk(k, 1, largest=False)
        index[i : i + step] = torch.where(far == math.inf, part[:, None], nearest_rows)
    distance, order = _distances(x, rows, index).sort(dim=1, stable=True)
    return index.gather(1, order).to(torch.int32).numpy(), distance.numpy()


def _distances(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """Return the distances of ``rows`` to the rows ``index`` (n, m); infinite to itself.

    They are computed from differences, so that duplicates are exactly 0 apart.
    """
    out = torch.empty(index.shape, dtype=x.dtype)
    step = max(1, BLOCK // (index.shape[1] * x.shape[1]))
    for i in range(0, len(index), step):
        apart = x[index[i : i + step]] - x[rows[i : i + step], None]
        torch.linalg.vector_norm(apart, dim=2, out=out[i : i + step])
    return out.masked_fill_(index == rows[:, None], math.inf)


class _Lists:
    """Rows in lists around centroids (``IndexIVFFlat`` of FAISS), to find the ``k`` nearest ones of
    other groups.

    Inside, rows are numbered in the order of their groups, so that each group is a range of
    numbers.
    """

    def __init__(self, faiss: Any, x: Tensor, group: Tensor | None, k: int, seed: int) -> None:
        N, F = x.shape
        self.faiss = faiss
        self.k = k
        self.row: Tensor | None = None  # (N,): number → row
        self.x = x.contiguous()
        if group is None:
            self.group = torch.arange(N)
        else:
            self.row = group.argsort(stable=True)
            self.x = x[self.row]
            self.group = group[self.row]
        sizes = torch.bincount(self.group)
        self.largest = int(sizes.max())
        # (N,): the range of numbers of the row's group
        self.end = sizes.cumsum(0)[self.group].numpy()
        self.start = self.end - sizes[self.group].numpy()
        # (N,): neighbours that a row can have
        self.enough = np.minimum(k, N - (self.end - self.start))
        self.num_lists: int = max(1, round(N**0.75 / 8))
        self.index = faiss.IndexIVFFlat(faiss.IndexFlatL2(F), F, self.num_lists)
        clustering = self.index.cp
        clustering.seed = seed % 2**31
        clustering.niter = 6
        clustering.min_points_per_centroid = 1
        clustering.max_points_per_centroid = 32
        self.index.train(self.x.numpy())
        self.index.add(self.x.numpy())
        order = torch.rand(N, generator=torch.Generator().manual_seed(seed)).argsort()
        # On the first sample the number of lists is chosen, on the second the recall is measured.
        self.samples = order[: 2 * min(SAMPLE, N // 2)].chunk(2)
        self.lists = self._enough_lists()

    def _enough_lists(self) -> int:
        """Return the number of lists to compare a row with."""
        sample = self.samples[0]
        farthest = self._farthest(sample)
        lists = 4
        while lists < self.num_lists and lists * len(self.x) < MAX_COMPARED * self.num_lists:
            if _share(self.search(sample.numpy(), lists)[1], farthest) >= TARGET:
                break
            lists += max(1, lists // 5)
        return min(lists, self.num_lists)

    def _farthest(self, rows: Tensor) -> Floats32:
        """Return the distance of the k-th true neighbour of ``rows``, (n, 1); infinite where there
        are fewer.
        """
        group = None if self.row is None else self.group
        return _compare_all(self.x, rows, self.k, group)[1][:, -1:]

    def search_all(self, report: Callable[[int, int], None]) -> Neighbours:
        """Find the nearest rows of all rows."""
        N = len(self.x)
        index = np.empty((N, self.k), np.int32)
        distance = np.empty((N, self.k), np.float32)
        inverted = self.index.invlists
        # Rows of one list are compared with much the same lists, which stay in the cache: that
        # saves a third.
        in_lists = []
        for i in range(self.num_lists):
            if size := inverted.list_size(i):
                in_lists.append(self.faiss.rev_swig_ptr(inverted.get_ids(i), size))
        parts = np.split(np.concatenate(in_lists), range(2**16, N, 2**16))
        searched = 0
        for part, near in zip(parts, map_jobs(_search_part, parts, self), strict=True):
            index[part], distance[part] = near
            searched += len(part)
            report(searched, N)
        self._search_wider(index, distance)
        sample = self.samples[1]
        recall = _share(distance[sample.numpy()], self._farthest(sample))
        if self.row is not None:  # rows were put in the order of their groups: the given one again
            number = self.row.argsort().numpy()
            index = self.row.numpy().astype(np.int32)[index[number]]
            distance = distance[number]
        return Neighbours(index, distance, recall)

    def search(
        self, rows: Ints, lists: int, others: Any = None
    ) -> tuple[NDArray[np.int32], Floats32]:
        """Find the nearest (of ``others``) in some lists to ``rows``; the row itself where there
        are too few, (n, k).
        """
        # The lists of common values are long: so the number of rows is limited, too.
        limit = 0
        own = 0
        if others is None:
            own = min(self.largest, 3 * self.k)  # the row, and rows of its group
            if lists < self.num_lists:
                limit = MAX_COMPARED
        options = self.faiss.SearchParametersIVF(nprobe=lists, max_codes=limit, sel=others)
        vectors = self.x[torch.from_numpy(rows)].numpy()
        square, index = self.index.search(vectors, self.k + own, params=options)
        is_own = ((index >= self.start[rows, None]) & (index < self.end[rows, None])) | (index < 0)
        index = np.where(is_own, rows[:, None], index).astype(np.int32)
        distance = np.where(is_own, np.float32(np.inf), np.sqrt(square))
        first = np.argsort(is_own, axis=1, kind="stable")[:, : self.k]
        return np.take_along_axis(index, first, 1), np.take_along_axis(distance, first, 1)

    def _search_wider(self, index: NDArray[np.int32], distance: Floats32) -> None:
        """Search in more lists, and only in other groups, for rows with too few neighbours."""
        rows = np.flatnonzero(np.isfinite(distance).sum(1) < self.enough)
        if not len(rows):
            return
        for part in np.split(rows, np.flatnonzero(np.diff(self.start[rows])) + 1):
            group = self.faiss.IDSelectorRange(int(self.start[part[0]]), int(self.end[part[0]]))
            others = self.faiss.IDSelectorNot(group)
            lists = self.lists
            while len(part):
                index[part], distance[part] = self.search(part, lists, others)
                part = part[np.isfinite(distance[part]).sum(1) < self.enough[part]]
                if lists >= self.num_lists:
                    break
                lists = min(4 * lists, self.num_lists)


def _search_part(rows: Ints, index: _Lists) -> tuple[NDArray[np.int32], Floats32]:
    return index.search(rows, index.lists)


def _share(distance: Floats32, farthest: Floats32) -> float:
    """Return the share of neighbours (n, k) that are not farther away than the ``farthest`` true
    one (n, 1): copies tie.
    """
    return float((distance <= farthest * np.float32(1 + 1e-5)).mean())


def neighbour_votes(
    labels: Any, neighbours: Neighbours, num_classes: int, *, apart: Any = None, given: Any = None
) -> tuple[Floats32, Floats32]:
    """Class probabilities by votes of the neighbours (N, K), and the share of these with the row's
    own label (N,).

    With n_k of m votes for class k, p_k = (n_k + π_k)/(m + 1), where π is the distribution of all
    labels. ``labels`` are classes (N,) or distributions (N, K). Rows of the same value in ``apart``
    (N,), such as a fold, do not vote for each other; without any voter the share is NaN. The row's
    own label and π are taken from ``given`` (N,), by default ``labels``.
    """
    voted = torch.as_tensor(np.asarray(labels))
    index = torch.from_numpy(neighbours.index)
    N, k = index.shape
    allowed = torch.ones(N, k, dtype=torch.float32)
    if apart is not None:
        group = torch.as_tensor(np.asarray(apart))
        allowed = (group[index.long()] != group[:, None]).to(torch.float32)
    votes = torch.zeros(N, num_classes)
    for j in range(k):
        voter = index[:, j].long()
        if voted.dim() == 2:
            votes.addcmul_(voted[voter].to(torch.float32), allowed[:, j, None])
        else:
            votes.scatter_add_(1, voted[voter, None], allowed[:, j, None])
    count = allowed.sum(1)
    own = voted if given is None else torch.as_tensor(np.asarray(given))
    if own.dim() == 2:
        prior = own.to(torch.float32).mean(0)
        agreement = torch.full((N,), math.nan)
    else:
        prior = torch.bincount(own, minlength=num_classes) / N
        agreement = votes.gather(1, own[:, None])[:, 0] / count  # 0/0 is NaN
    votes.add_(prior).div_((count + 1)[:, None])
    return votes.numpy(), agreement.numpy()


def outlier_scores(neighbours: Neighbours, is_duplicate: Bools) -> tuple[Floats32, float]:
    """Return how far each row is from its neighbours over how far these are from theirs, (N,), and
    the cut.

    The cut is five robust deviations of the logarithm above the median, and at least 1.5. A row
    with a copy or a near-duplicate (N,) is not far from every other one: its score is 1 at most.
    """
    mean = neighbours.distance.mean(1, dtype=np.float64)
    around = mean[neighbours.index].mean(1)
    tiny = np.finfo(np.float32).tiny
    score = (mean + tiny) / (around + tiny)
    logs = np.log(np.maximum(score, 1e-6))
    middle = np.median(logs)
    cut = max(MIN_OUTLIER, float(np.exp(middle + 5 * 1.4826 * np.median(np.abs(logs - middle)))))
    alike = is_duplicate | (neighbours.distance[:, 0] == 0)
    return np.where(alike, np.minimum(score, 1), score).astype(np.float32), cut


@dataclass(frozen=True, eq=False, repr=False)
class Duplicates(Brief):
    """Rows that are nearly the same as others."""

    group: Ints  # (N,): equal for rows that are nearly the same; −1 for a unique row
    conflict: Bools  # (N,): the labels of its group differ
    common: int  # rows with frequent inputs, of which equality means nothing

    @property
    def is_duplicate(self) -> Bools:
        """(N,)"""
        return self.group >= 0


def same_rows(x: Floats32, unlike: Ints | None = None) -> Ints:
    """The first row that equals each row, also in ``unlike`` (N,) if given, (N,): by digests."""
    kinds = np.zeros(len(x), np.int64) if unlike is None else unlike
    rows = np.ascontiguousarray(x + np.float32(0))  # −0 becomes 0
    digests = (
        blake2b(row, digest_size=8, salt=kind.tobytes()).digest()
        for row, kind in zip(rows, kinds, strict=True)
    )
    keys = np.frombuffer(b"".join(digests), np.uint64)
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return np.asarray(first[number])


def find_duplicates(
    x: Floats32,
    labels: Ints,
    neighbours: Neighbours | None = None,
    unlike: Ints | None = None,
) -> Duplicates:
    """Equal rows, and rows closer to each other than by chance.

    Where rows are spread evenly around a row in m dimensions, (d₁/d_k)^m ~ Beta(1, k−1) for its
    nearest and k-th nearest distance. The median over all rows gives m, and a neighbour is a
    near-duplicate below the distance that one row in a thousand has by chance, at most d_k/10. More
    than 20 equal rows, if they are more than a hundredth of all, are a common value and not
    duplicates: two people may give the same answers to five questions. Rows of different values in
    ``unlike`` (N,), such as numbers of texts, are never duplicates.
    """
    first = same_rows(x, unlike)
    n = len(x)
    common = np.bincount(first)[first] > max(20, n // 100)
    edges = [np.stack([np.arange(n), first])[:, (first != np.arange(n)) & ~common]]
    if neighbours is not None and neighbours.index.shape[1] > 1:
        near = _near(neighbours, common)
        edges.append(near if unlike is None else near[:, unlike[near[0]] == unlike[near[1]]])
    group = connected(n, np.concatenate(edges, 1))
    counts = np.bincount(group, minlength=n)
    alone = (counts[group] == 1) | common
    # labels in the place of folds: the group has several
    conflict = ~in_one_fold(group, labels) & ~alone
    group = np.where(alone, -1, group)
    numbers = np.unique(group[~alone])
    return Duplicates(
        np.where(alone, -1, np.searchsorted(numbers, group)), conflict, int(common.sum())
    )


def near_limit(neighbours: Neighbours, chance: float = CHANCE) -> Floats:
    """The distance below which another row is a near-duplicate of each row, (N,); 0 where there is
    none.
    """
    k = min(10, neighbours.distance.shape[1])
    distance = neighbours.distance[:, :k].astype(np.float64)  # nearest first
    near = distance[:, 0]
    far = distance[:, -1]
    usual = (near > 0) & (far > near)
    if not usual.any():
        return np.zeros(len(far))
    median = np.log(1 - 0.5 ** (1 / (k - 1)))  # of log (d₁/d_k)^m
    dimension = median / np.median(np.log(near[usual] / far[usual]))
    ratio = min(CLOSEST, (chance / (k - 1)) ** (1 / dimension))
    # Of more than k copies even the k-th neighbour is one, so the median distance sets a limit as
    # well.
    return np.asarray(np.maximum(ratio * far, ratio * CLOSEST * np.median(far[usual])))


def _near(neighbours: Neighbours, common: Bools) -> Ints:
    """Pairs (2, E) of rows that are closer than by chance."""
    distance = neighbours.distance.astype(np.float64)
    limit = near_limit(neighbours)
    if not limit.any():
        return np.empty((2, 0), np.int64)
    i, j = np.nonzero((distance <= limit[:, None]) & ~common[:, None])
    pairs = np.stack([i, neighbours.index[i, j].astype(np.int64)])
    return pairs[:, ~common[pairs[1]]]
