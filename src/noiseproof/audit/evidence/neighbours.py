"""Nearest neighbours: exact for few rows, by random trees and neighbours of neighbours for many; votes and outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.checks import check_count

VOTERS = 25  # neighbours that vote on a label
EXACT = 20_000  # rows up to which all pairs are compared
TREES, LEAF = 8, 256  # of an approximate search, which compares each row with TREES × LEAF others first
ROUNDS, LINKS = 3, 12  # then, ROUNDS times, with the LINKS nearest neighbours of its LINKS nearest neighbours
MIN_OUTLIER = 1.5  # score of an outlier
BLOCK = 2**20  # numbers of an intermediate result, so that it stays in the cache
RECALL_ROWS = 256  # rows that the recall is measured on


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest other rows of each of N rows, nearest first."""

    index: NDArray[np.int32]  # (N, k)
    distance: NDArray[np.float32]  # (N, k)
    recall: float  # share of the true neighbours that were found, measured on a sample; 1 where exact


def nearest(
    features: Any,
    k: int = 10,
    *,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    exact: bool | None = None,
    seed: int = 0,
    apart: Any = None,
) -> Neighbours:
    """The ``k`` nearest other rows of ``features`` (N, F) by euclidean distance, or by 1 − cosine.

    ``exact`` compares all pairs, O(N²F): by default up to 20 000 rows. Else each row is compared with the rows of its
    leaf in a few trees, which halve the rows along the line through two of them (random projection trees; Dasgupta and
    Freund 2008), and then with its neighbours' neighbours (Dong et al. 2011): O(N·log N·F). Rows of the same value in
    ``apart`` (N,) are not neighbours; a row with fewer than ``k`` others is its own neighbour at an infinite distance.

    >>> near = nearest([[0.0], [1.0], [3.0]], k=1)
    >>> near.index.tolist(), near.distance.tolist(), near.recall
    ([[1], [0], [1]], [[1.0], [1.0], [2.0]], 1.0)
    """
    if metric not in ("euclidean", "cosine"):
        raise ValueError(f"Expected `metric` to be euclidean or cosine, got {metric!r}.")
    x = torch.as_tensor(np.asarray(features, dtype=np.float32))
    if x.dim() != 2 or 0 in x.shape:
        raise ValueError(f"Expected `features` of shape (N, F), none of them 0, got {tuple(x.shape)}. Flatten images.")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("Expected finite `features`, got NaN or infinite ones. Drop these rows or fill them in.")
    k = check_count("k", k, 1)
    if k >= len(x):
        raise ValueError(f"Expected `k` below the number of rows, {len(x)}, got {k}.")
    if metric == "cosine":
        x = torch.nn.functional.normalize(x, dim=1)
    x = x - x.mean(0)  # less cancellation in ‖a‖² + ‖b‖² − 2ab
    if exact is None:
        exact = len(x) <= EXACT
    rows = torch.arange(len(x))
    group = None if apart is None else torch.from_numpy(np.unique(np.asarray(apart), return_inverse=True)[1])
    if exact:
        index, recall = _search_all(x, rows, k, group), 1.0
        distance = _distances(x, rows, index)
    else:
        index, distance = _search_trees(x, k, torch.Generator().manual_seed(seed), rows if group is None else group)
        recall = _recall(x, index, torch.Generator().manual_seed(seed), group)
    distance.masked_fill_(index == rows[:, None], math.inf)
    distance, order = distance.sort(dim=1, stable=True)
    index = index.gather(1, order)
    if metric == "cosine":
        distance = distance.square() / 2
    return Neighbours(index.to(torch.int32).numpy(), distance.numpy(), recall)


def _search_all(x: Tensor, rows: Tensor, k: int, group: Tensor | None) -> Tensor:
    """The nearest of all rows of other groups to ``rows``, (n, k); the row itself where there are too few."""
    square = x.square().sum(1)
    parts = []
    for part in torch.split(rows, max(1, BLOCK // len(x))):
        apart = torch.addmm(square, x[part], x.T, alpha=-2)  # (n, N): squared distance less the row's own square
        if group is None:  # masking all pairs would take a quarter of the time
            apart[torch.arange(len(part)), part] = math.inf
        else:
            apart.masked_fill_(group[part, None] == group, math.inf)
        far, nearest_rows = apart.topk(k, 1, largest=False)
        parts.append(torch.where(far == math.inf, part[:, None], nearest_rows))
    return torch.cat(parts)


def _distances(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """Distances of ``rows`` to the rows ``index`` (n, m), from differences, so that duplicates are exactly 0 apart."""
    out = torch.empty(index.shape, dtype=x.dtype)
    step = max(1, BLOCK // (index.shape[1] * x.shape[1]))
    for i in range(0, len(index), step):
        apart = x[index[i : i + step]] - x[rows[i : i + step], None]
        torch.linalg.vector_norm(apart, dim=2, out=out[i : i + step])
    return out


def _search_trees(x: Tensor, k: int, generator: torch.Generator, group: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest rows among those of a row's leaves, then among its neighbours' neighbours: index, distance (N, k)."""
    index = torch.full((len(x), k), -1)
    distance = torch.full((len(x), k), math.inf)
    for _ in range(TREES):
        leaves = _leaves(x, max(LEAF, 2 * k), generator)  # (leaves, size)
        step = max(1, BLOCK // (leaves.shape[1] * max(leaves.shape[1], x.shape[1])))
        for part in torch.split(leaves, step):
            points, absent = x[part.clamp(min=0)], part < 0  # (b, size, F)
            square = points.square().sum(2)
            apart = torch.baddbmm(square[:, None], points, points.mT, alpha=-2) + square[..., None]
            groups = group[part.clamp(min=0)]
            apart.masked_fill_(absent[:, None] | (groups[:, None] == groups[..., None]), math.inf)
            near, place = apart.topk(min(k, part.shape[1] - 1), 2, largest=False)  # (b, size, k)
            candidates = part[:, None].expand_as(apart).gather(2, place)
            present = ~absent
            _merge(index, distance, part[present], candidates[present], near[present].clamp(min=0).sqrt())
    for _ in range(ROUNDS):
        links = index[:, : min(LINKS, k)].clone()
        step = max(1, BLOCK // (links.shape[1] ** 2 * x.shape[1]))
        for rows in torch.split(torch.arange(len(x)), step):
            candidates = links[links[rows].clamp(min=0)].flatten(1)  # (b, m²)
            near = _distances(x, rows, candidates.clamp(min=0))
            near.masked_fill_((group[candidates] == group[rows, None]) | (candidates < 0), math.inf)
            _merge(index, distance, rows, candidates, near)
    return torch.where(distance == math.inf, torch.arange(len(x))[:, None], index), distance


def _merge(index: Tensor, distance: Tensor, rows: Tensor, candidates: Tensor, near: Tensor) -> None:
    """Merge ``candidates`` (b, m) and their distances ``near`` into the neighbours of ``rows``, without duplicates."""
    merged = torch.cat([index[rows], candidates], 1)
    far = torch.cat([distance[rows], near], 1)
    merged, order = merged.sort(dim=1, stable=True)
    far = far.gather(1, order)
    far[:, 1:].masked_fill_(merged[:, 1:] == merged[:, :-1], math.inf)
    far, place = far.topk(index.shape[1], 1, largest=False)
    index[rows], distance[rows] = merged.gather(1, place), far


def _leaves(x: Tensor, leaf: int, generator: torch.Generator) -> Tensor:
    """All rows in leaves of one size of at most ``leaf``, (leaves, size), filled up with −1."""
    depth = math.ceil(math.log2(max(1.0, len(x) / leaf)))
    size = -(-len(x) // 2**depth)
    nodes = torch.full((1, size * 2**depth), -1)
    nodes[0, : len(x)] = torch.rand(len(x), generator=generator).argsort()
    for _ in range(depth):
        n, width = nodes.shape
        ends = torch.randint(width, (n, 2), generator=generator)
        line = x[nodes.gather(1, ends).clamp(min=0)]  # (n, 2, F)
        along = torch.empty(nodes.shape)
        flat, projection = nodes.view(-1), along.view(-1)
        direction = line[:, 0] - line[:, 1]
        step = max(1, BLOCK // x.shape[1])
        for i in range(0, len(flat), step):
            axis = direction[torch.arange(i, min(i + step, len(flat))) // width]
            projection[i : i + step] = torch.linalg.vecdot(x[flat[i : i + step].clamp(min=0)], axis)
        along.masked_fill_(nodes < 0, math.inf)
        nodes = nodes.gather(1, along.argsort(1)).view(2 * n, -1)
    return nodes


def _recall(x: Tensor, index: Tensor, generator: torch.Generator, group: Tensor | None) -> float:
    rows = torch.rand(len(x), generator=generator).argsort()[:RECALL_ROWS]
    true = _search_all(x, rows, index.shape[1], group)
    return float((true[:, :, None] == index[rows][:, None]).any(2).double().mean())


def neighbour_votes(
    labels: Any, neighbours: Neighbours, num_classes: int, *, apart: Any = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Class probabilities by votes of the neighbours (N, K), and the share of these with the row's own label (N,).

    With n_k of m votes for class k, p_k = (n_k + π_k)/(m + 1), where π is the distribution of all labels, so that no
    probability is zero. ``labels`` are classes (N,) or distributions (N, K). Rows of the same value in ``apart`` (N,),
    such as a fold or a group of near-duplicates, do not vote for each other; without any voter the share is NaN.
    """
    given = torch.as_tensor(np.asarray(labels))
    index = torch.from_numpy(neighbours.index)
    N, k = index.shape
    allowed = torch.ones(N, k, dtype=torch.float32)
    if apart is not None:
        group = torch.as_tensor(np.asarray(apart))
        allowed = (group[index.long()] != group[:, None]).to(torch.float32)
    votes = torch.zeros(N, num_classes)
    soft = given.dim() == 2
    for j in range(k):
        voter = index[:, j].long()
        if soft:
            votes.addcmul_(given[voter].to(torch.float32), allowed[:, j, None])
        else:
            votes.scatter_add_(1, given[voter, None], allowed[:, j, None])
    count = allowed.sum(1)
    if soft:
        prior, agreement = given.to(torch.float32).mean(0), torch.full((N,), math.nan)
    else:
        prior = torch.bincount(given, minlength=num_classes) / N
        agreement = votes.gather(1, given[:, None])[:, 0] / count  # 0/0 is NaN
    votes.add_(prior).div_((count + 1)[:, None])
    return votes.numpy(), agreement.numpy()


def outlier_scores(
    neighbours: Neighbours, is_duplicate: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], float]:
    """How far each row is from its neighbours over how far those are from theirs, (N,), and the cut.

    1 is usual, in dense and sparse regions. The cut is five robust deviations of the logarithm above the median (which
    one row in three million of a normal distribution exceeds), and at least 1.5. A row with a copy or a near-duplicate
    (N,) is not far from every other one: its score is 1 at most.
    """
    mean = neighbours.distance.mean(1, dtype=np.float64)
    around = mean[neighbours.index].mean(1)
    tiny = np.finfo(np.float32).tiny
    score = (mean + tiny) / (around + tiny)
    logs = np.log(np.maximum(score, 1e-6))
    middle = np.median(logs)
    cut = max(MIN_OUTLIER, float(np.exp(middle + 5 * 1.4826 * np.median(np.abs(logs - middle)))))
    alike = neighbours.distance[:, 0] == 0 if is_duplicate is None else is_duplicate | (neighbours.distance[:, 0] == 0)
    return np.where(alike, np.minimum(score, 1), score).astype(np.float32), cut
