"""Folds, near-duplicates and outliers against brute force and counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noiseproof.judge.evidence.folds import connected, in_one_fold, make_folds, merge_groups
from noiseproof.judge.evidence.neighbours import (
    Neighbours,
    find_duplicates,
    outlier_scores,
    same_rows,
)


def brute_force(x: np.ndarray, k: int = 10) -> Neighbours:
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    index = np.argsort(distance, axis=1, kind="stable")[:, :k]
    near = np.take_along_axis(distance, index, 1)
    return Neighbours(index.astype(np.int32), near.astype(np.float32), 1.0)


# --- near-duplicates ------------------------------------------------------------------------------


def test_equal_rows_are_found_bit_by_bit() -> None:
    x = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)
    x[17], x[150], x[60] = x[3], x[3], x[59]
    x[80], x[81] = 0.0, -0.0  # the same number
    expected = np.arange(200)
    expected[[17, 150]], expected[60], expected[81] = 3, 59, 80
    np.testing.assert_array_equal(same_rows(x), expected)
    x[150, 6] = np.nextafter(x[150, 6], np.float32(9))
    assert same_rows(x)[150] == 150


def test_near_copies_and_their_conflicts() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(500, 8)).astype(np.float32)
    x[10] = x[20] + 1e-3 * random.normal(size=8)
    x[30] = x[40]
    labels = np.zeros(500, np.int64)
    labels[10] = 1
    found = find_duplicates(x, labels, brute_force(x))
    assert np.flatnonzero(found.is_duplicate).tolist() == [10, 20, 30, 40]
    assert found.group[10] == found.group[20] != found.group[30] == found.group[40]
    assert sorted(set(found.group.tolist())) == [-1, 0, 1]
    assert np.flatnonzero(found.conflict).tolist() == [10, 20]
    exact = find_duplicates(x, labels)  # without neighbours only equal rows are known
    assert np.flatnonzero(exact.is_duplicate).tolist() == [30, 40] and not exact.conflict.any()


@pytest.mark.parametrize("dimension", [1, 2, 5, 20])
def test_chance_makes_few_duplicates_in_any_dimension(dimension: int) -> None:
    x = np.random.default_rng(dimension).normal(size=(1000, dimension)).astype(np.float32)
    found = find_duplicates(x, np.zeros(1000, np.int64), brute_force(x))
    assert found.is_duplicate.sum() <= 8  # one in a thousand rows meets its twin by chance


def test_more_copies_than_neighbours_are_still_one_group() -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(600, 6)).astype(np.float32)
    x[:15] = x[0] + 1e-4 * random.normal(size=(15, 6))
    found = find_duplicates(x, np.zeros(600, np.int64), brute_force(x))
    assert len(set(found.group[:15].tolist())) == 1 and found.group[0] >= 0
    assert not found.is_duplicate[15:].any()


def test_common_values_are_no_duplicates() -> None:
    x = np.random.default_rng(3).integers(0, 2, (4000, 2)).astype(np.float32)  # four kinds of rows
    found = find_duplicates(x, np.arange(4000) % 2)
    assert not found.is_duplicate.any() and not found.conflict.any() and found.common == 4000


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_connected_rows_are_those_of_a_walk(n: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(a % n, b % n) for a, b in pairs]
    expected = list(range(n))  # the slow way: relabel until nothing changes
    for _ in range(n):
        for a, b in pairs:
            expected[a] = expected[b] = min(expected[a], expected[b])
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    assert connected(n, edges).tolist() == expected


def test_groupings_are_merged_by_chains() -> None:
    people = np.array([0, 0, 1, 2, 3, 3])
    copies = np.array([-1, 7, 7, -1, -1, -1])
    assert merge_groups(people, copies).tolist() == [0, 0, 0, 3, 4, 4]
    assert merge_groups(None, copies).tolist() == [0, 1, 1, 3, 4, 5]


# --- outliers -------------------------------------------------------------------------------------


def test_a_row_far_from_all_others_stands_out_wherever_the_data_is_dense() -> None:
    random = np.random.default_rng(4)
    dense, sparse = random.normal(0, 1, (300, 4)), random.normal(200, 20, (300, 4))
    x = np.concatenate([dense, sparse, [[5, 5, 5, 5]]]).astype(np.float32)
    near = brute_force(x)
    score, cut = outlier_scores(near, np.zeros(len(x), bool))
    mean = near.distance.mean(1)
    np.testing.assert_allclose(score, mean / mean[near.index].mean(1), rtol=1e-4)
    assert score[-1] > cut >= 1.5
    assert (score[:-1] > cut).mean() < 0.01
    # nearer to its neighbours than a usual row of the sparse half is
    assert mean[-1] < np.median(mean[300:600])


def test_equal_rows_have_no_distance_to_divide_by() -> None:
    x = np.zeros((30, 2), np.float32)
    score, cut = outlier_scores(brute_force(x), np.zeros(30, bool))
    np.testing.assert_array_equal(score, 1)
    assert cut == 1.5


def test_a_row_that_has_a_copy_is_no_outlier() -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(300, 3)).astype(np.float32)
    x[:3] = [[40, 0, 0], [40, 0, 0], [0, 40, 0]]  # a pair far from all others, and a loner
    x[3:5] = [[0, 0, 40], [0, 0, 40.01]]  # all but the same
    near = brute_force(x)
    score, cut = outlier_scores(
        near, find_duplicates(x, np.zeros(300, np.int64), near).is_duplicate
    )
    assert score[2] > cut and (score[[0, 1, 3, 4]] <= 1).all()
    assert (outlier_scores(near, np.zeros(len(x), bool))[0][[0, 1]] <= 1).all()
    common = np.repeat(np.eye(4, dtype=np.float32), [100, 100, 3, 1], axis=0)
    score, cut = outlier_scores(brute_force(common), np.zeros(len(common), bool))
    assert (score[:-1] <= 1).all() and score[-1] > cut


# --- folds ----------------------------------------------------------------------------------------


@given(
    st.integers(2, 5),
    st.integers(0, 3),
    st.lists(st.integers(0, 4), min_size=10, max_size=80),
    st.booleans(),
)
def test_folds_are_stratified_and_keep_groups(
    folds: int, seed: int, labels: list[int], grouped: bool
) -> None:
    y = np.array(labels)
    groups = np.random.default_rng(seed).integers(0, len(y) // 2, len(y)) if grouped else None
    fold = make_folds(y, folds=folds, groups=groups, seed=seed)
    assert set(fold.tolist()) <= set(range(folds)) and len(fold) == len(y)
    if groups is not None:
        assert all(len(set(fold[groups == g].tolist())) == 1 for g in set(groups.tolist()))
        return
    for k in set(labels):
        counts = np.bincount(fold[y == k], minlength=folds)
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1


def test_groups_leave_classes_level() -> None:
    random = np.random.default_rng(5)
    y, groups = random.integers(0, 4, 3000), random.integers(0, 600, 3000)
    fold = make_folds(y, groups=groups)
    counts = np.stack([np.bincount(y[fold == f], minlength=4) for f in range(5)])
    expected = np.bincount(y) / 5
    assert (np.abs(counts - expected) / expected).max() < 0.05


def test_singles_level_what_groups_left_uneven() -> None:
    y = np.array([0] * 6 + [0] * 9)
    groups = np.array([0] * 6 + list(range(1, 10)))
    fold = make_folds(y, folds=3, groups=groups)
    assert np.bincount(fold[:6]).max() == 6
    assert sorted(np.bincount(fold).tolist()) == [4, 5, 6]


def test_folds_depend_on_the_seed_alone() -> None:
    y = np.arange(100) % 3
    assert (
        make_folds(y, seed=1).tolist()
        == make_folds(y, seed=1).tolist()
        != make_folds(y, seed=2).tolist()
    )


def test_folds_of_time_are_blocks() -> None:
    random = np.random.default_rng(6)
    time = random.permutation(100).astype(float)
    fold = make_folds(np.zeros(100, np.int64), folds=4, time=time)
    for f in range(4):
        assert sorted(time[fold == f].tolist()) == list(range(25 * f, 25 * f + 25))
    groups = np.arange(100) // 2
    fold = make_folds(np.zeros(100, np.int64), folds=4, time=time, groups=groups)
    first = time.reshape(-1, 2).min(1)
    assert (fold[0::2] == fold[1::2]).all()
    order = np.argsort(first)
    assert (np.diff(fold[0::2][order]) >= 0).all()  # later groups are never in an earlier block
    assert np.bincount(fold).tolist() == [26, 24, 26, 24]


def test_rows_of_one_time_are_in_one_block() -> None:
    day = np.repeat(np.arange(7.0), 60)[np.random.default_rng(0).permutation(420)]
    fold = make_folds(np.zeros(420, np.int64), folds=5, time=day)
    # one fold for each day, or it would be no array
    of_day = np.array([np.unique(fold[day == d]) for d in range(7)])
    assert of_day[:, 0].tolist() == [0, 0, 1, 2, 2, 3, 4]
    assert not make_folds(np.zeros(9, np.int64), folds=3, time=np.ones(9)).any()
    groups = np.array([0, 0, 1, 1, 2, 2])  # a group is of the time of its first row
    assert make_folds(
        np.zeros(6, np.int64), folds=3, groups=groups, time=np.array([1.0, 5, 1, 2, 3, 3])
    ).tolist() == [0, 0, 0, 0, 1, 1]


def test_folds_need_two_groups() -> None:
    with pytest.raises(ValueError, match="Expected rows of at least two groups, got 5 rows of one"):
        make_folds(np.zeros(5, np.int64), groups=np.zeros(5, np.int64))
    assert make_folds(np.array([0, 1, 0]), folds=5).max() == 2  # no more folds than groups


def test_classes_that_no_other_fold_has() -> None:
    labels, folds = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0])
    assert in_one_fold(labels, folds).tolist() == [False, False, True, True, True]
