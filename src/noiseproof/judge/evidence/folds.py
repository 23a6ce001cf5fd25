"""Folds that keep groups of rows together."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from noiseproof.core.arrays import Bools, Floats, Ints, by_value
from noiseproof.core.checks import check_count
from noiseproof.data.base import derive_seed


def connected(n: int, edges: Ints) -> Ints:
    """The first row that each row is connected to by edges (2, E), (N,)."""
    links = coo_array((np.ones(edges.shape[1], dtype=bool), edges), (n, n))
    part = connected_components(links, directed=False)[1]
    return np.asarray(np.unique(part, return_index=True)[1][part])


def merge_groups(*groups: Ints | None) -> Ints:
    """Rows that belong together by any of several groupings (each (N,), −1: by none of it), as one
    grouping.
    """
    known = [group for group in groups if group is not None]
    edges = []
    for group in known:
        rows = np.flatnonzero(group >= 0)
        order = rows[np.argsort(group[rows], kind="stable")]
        joined = group[order[1:]] == group[order[:-1]]
        edges.append(np.stack([order[1:][joined], order[:-1][joined]]))
    return connected(len(known[0]), np.concatenate(edges, 1))


def make_folds(
    labels: Ints,
    *,
    folds: int = 5,
    groups: Ints | None = None,  # (N,)
    time: Floats | None = None,  # (N,)
    seed: int = 0,
) -> Ints:
    """The fold of each row, (N,): each class is spread evenly over the folds, each group lies in
    one of them.

    With ``time`` the folds are blocks of time of about the same size, so that a row is judged by
    models of earlier and later times. A group belongs to the time of its first row.
    """
    check_count("folds", folds, 2)
    n = len(labels)
    group = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    members = np.bincount(group)
    folds = min(folds, len(members))
    if folds < 2:
        raise ValueError(
            f"Expected rows of at least two groups, got {n} rows of one. Leave the group out."
        )
    if time is not None:
        began = np.full(len(members), np.inf)
        np.minimum.at(began, group, time)
        at = np.unique(began, return_inverse=True)[1]  # one number for all groups of one time
        rows = np.bincount(at, members).astype(np.int64)
        block = folds * (np.cumsum(rows) - rows) // n  # by the rows of earlier times
        return np.asarray(np.unique(block, return_inverse=True)[1][at[group]])
    # unlike any permutation that a user draws by the seed
    random = np.random.default_rng(derive_seed(seed, 2))
    fold = np.full(n, -1)
    counts = _place_groups(fold, labels, group, members, folds, random)
    single = np.flatnonzero(fold < 0)
    for rows in by_value(single[random.permutation(len(single))], labels):
        # The fold with the fewest rows of the class is next, and among equals the one with the
        # fewest rows.
        class_counts = counts[:, labels[rows[0]]]
        amounts = _level(class_counts, len(rows), counts.sum(1))
        fold[rows] = np.repeat(np.arange(folds), amounts)
        class_counts += amounts
    return fold


def _level(filled: Ints, amount: int, tie: Ints) -> Ints:
    """How much of ``amount`` to add to each of ``filled`` so that they become as equal as possible,
    (F,).
    """
    order = np.lexsort((tie, filled))
    level = np.sort(filled)
    room = level * np.arange(len(level)) - np.concatenate([[0], np.cumsum(level)[:-1]])
    raised = int((room <= amount).sum())
    total = amount + int(level[:raised].sum())
    height = np.zeros_like(filled)
    height[order[:raised]] = total // raised + (np.arange(raised) < total % raised)
    return np.asarray(np.maximum(height - filled, 0) * (height > 0))


def _place_groups(
    fold: Ints, labels: Ints, group: Ints, members: Ints, folds: int, random: np.random.Generator
) -> Ints:
    """Put the groups of several rows into folds, the largest first, and count the rows of each
    class, (F, K).
    """
    num_classes = int(labels.max(initial=0)) + 1
    counts = np.zeros((folds, num_classes), np.int64)
    parts = by_value(np.flatnonzero(members[group] > 1), group)
    sizes = np.array([len(part) for part in parts])
    usual = np.bincount(labels, minlength=num_classes) / folds
    fold_sizes = np.zeros(folds, np.int64)
    for i in np.lexsort((random.permutation(len(parts)), -sizes)):
        kinds, amounts = np.unique(labels[parts[i]], return_counts=True)
        # To the fold that lacks most of the group's classes, in shares of the rows it should have
        # at the end.
        fullness = (counts[:, kinds] / usual[kinds]) @ amounts + 1e-3 * fold_sizes / len(labels)
        best = int(fullness.argmin())
        fold[parts[i]] = best
        counts[best, kinds] += amounts
        fold_sizes[best] += sizes[i]
    return counts


def in_one_fold(labels: Ints, folds: Ints) -> Bools:
    """Rows whose class lies in one fold alone, (N,): no model that judges them has seen the
    class.
    """
    some_fold = np.zeros(int(labels.max()) + 1, folds.dtype)
    some_fold[labels] = folds
    has_others = np.bincount(labels, folds != some_fold[labels]) > 0
    return np.asarray(~has_others[labels])
