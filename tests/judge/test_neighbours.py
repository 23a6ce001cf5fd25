"""Neighbours are the nearest rows: against brute force, with duplicates, and by vote."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from noiseproof.core.cluster import fixed_threads
from noiseproof.core.messages import install_command
from noiseproof.judge.evidence import neighbours
from noiseproof.judge.evidence.neighbours import Neighbours, nearest, neighbour_votes


def blobs(n: int, dims: int, seed: int = 0) -> NDArray[np.float32]:
    """Points around ten centres, whose spread has but six dimensions, as real features have few."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(n, 6)) @ rng.normal(size=(6, dims))
    return (3 * rng.normal(size=(10, dims))[rng.integers(10, size=n)] + spread).astype(np.float32)


def brute_force(x: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    x = x.astype(np.float64)
    apart = np.stack([np.linalg.norm(x - row, axis=1) for row in x])
    np.fill_diagonal(apart, np.inf)
    index = np.argsort(apart, axis=1)[:, :k]
    return index, np.take_along_axis(apart, index, 1)


def test_exact_search_is_brute_force() -> None:
    x = blobs(300, 12)
    near = nearest(x, 7)
    index, distance = brute_force(x, 7)
    assert near.recall == 1.0
    assert (near.index == index).mean() > 0.999  # but for ties in float32
    np.testing.assert_allclose(near.distance, distance, rtol=1e-4, atol=1e-6)


def test_blocks_of_an_approximate_search_are_reported() -> None:
    pytest.importorskip("faiss")
    reported: list[tuple[int, int]] = []
    nearest(
        blobs(2**16 + 100, 2),
        1,
        exact=False,
        report=lambda done, total: reported.append((done, total)),
    )
    assert reported == [(2**16, 2**16 + 100), (2**16 + 100, 2**16 + 100)]


def test_approximate_search_finds_most_and_reports_how_many() -> None:
    pytest.importorskip("faiss")
    x = blobs(3000, 20)
    near = nearest(x, 10, exact=False, seed=1)
    index, distance = brute_force(x, 10)
    found = np.mean(
        [len(np.intersect1d(a, b)) / 10 for a, b in zip(near.index, index, strict=True)]
    )
    assert found > 0.9
    assert abs(near.recall - found) < 0.05  # measured on 256 rows
    assert (near.distance[:, 1:] >= near.distance[:, :-1]).all()
    # what stands in for a neighbour is hardly farther away
    assert np.median(near.distance / distance) < 1.05
    assert (near.index >= 0).all() and (near.index != np.arange(3000)[:, None]).all()
    assert all(len(set(row)) == 10 for row in near.index.tolist())
    true = np.linalg.norm(x[:, None].astype(np.float64) - x[near.index], axis=2)
    np.testing.assert_allclose(near.distance, true, rtol=1e-4, atol=1e-5)


def test_the_threads_of_faiss_are_restored() -> None:
    faiss, before = pytest.importorskip("faiss"), torch.get_num_threads()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    with fixed_threads(1):
        nearest(blobs(500, 4), 5, exact=False)
    restored = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    assert restored == 3 and torch.get_num_threads() == before


def test_most_neighbours_of_30_000_pictures_are_found() -> None:
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    # 1 797 of 8 × 8 pixels: mixed in pairs, they are 30 000
    digits = load_digits().data.astype(np.float32)
    pairs = random.integers(len(digits), size=(30_000, 2))
    share = random.uniform(0.5, 1, size=(30_000, 1))
    x = (share * digits[pairs[:, 0]] + (1 - share) * digits[pairs[:, 1]]).astype(np.float32)
    near = nearest(x, 25)
    sample = random.choice(30_000, 500, replace=False)
    search = NearestNeighbors(n_neighbors=26, algorithm="brute").fit(x.astype(np.float64))
    distance, index = search.kneighbors(x[sample].astype(np.float64))
    found = [
        len(np.intersect1d(a, b[1:])) / 25 for a, b in zip(near.index[sample], index, strict=True)
    ]
    assert np.mean(found) > 0.9 and abs(near.recall - np.mean(found)) < 0.02
    assert np.median(near.distance[sample, -1] / distance[:, -1]) < 1.01


def test_approximate_search_repeats_itself_by_its_seed_on_any_number_of_threads() -> None:
    pytest.importorskip("faiss")
    x, threads = blobs(30_000, 8), torch.get_num_threads()
    one = nearest(x, 5, seed=3)
    try:
        torch.set_num_threads(3)
        two = nearest(x, 5, seed=3)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(one.index, two.index)
    assert one.recall == two.recall < 1


def test_copies_of_few_rows_are_found_in_bounded_time() -> None:
    pytest.importorskip("faiss")
    x = np.repeat(blobs(30, 8), 1000, axis=0)  # fewer kinds of rows than lists
    near = nearest(x, 25)
    assert (near.distance == 0).all()
    assert (near.index // 1000 == np.arange(30_000)[:, None] // 1000).all()
    assert (near.index != np.arange(30_000)[:, None]).all()


def test_without_faiss_the_search_is_exact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = blobs(400, 6)
    expected = nearest(x, 5, exact=True)
    monkeypatch.setitem(sys.modules, "faiss", None)  # an import of it fails
    monkeypatch.setattr(neighbours, "EXACT", 100)
    quick = nearest(x, 5)
    assert not caplog.records
    monkeypatch.setattr(neighbours, "SLOW", 300)
    with caplog.at_level(logging.WARNING, "noiseproof"):
        slow = nearest(x, 5, exact=False)
    assert install_command("neighbours") in caplog.text
    for near in (quick, slow):
        np.testing.assert_array_equal(near.index, expected.index)
        np.testing.assert_array_equal(near.distance, expected.distance)
        assert near.recall == 1.0


def test_duplicates_are_exactly_nothing_apart() -> None:
    x = np.random.default_rng(0).normal(1000, 1, size=(50, 30)).astype(np.float32)
    x[7] = x[3]
    near = nearest(x, 1)
    assert near.index[7, 0] == 3 and near.distance[7, 0] == 0.0


@pytest.mark.parametrize("exact", [True, False])
def test_rows_apart_are_no_neighbours(exact: bool) -> None:
    if not exact:
        pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    x, group = random.normal(size=(400, 2)).astype(np.float32), random.integers(0, 8, 400)
    near = nearest(x, 5, exact=exact, apart=group)
    distance = np.linalg.norm(x[:, None] - x, axis=2)
    distance[group[:, None] == group] = np.inf
    assert (group[near.index] != group[:, None]).all()
    found = near.distance == pytest.approx(np.sort(distance, axis=1)[:, :5], abs=1e-5)
    assert found if exact else near.recall > 0.9
    # three rows are all that the others have
    few = nearest(x, 5, exact=exact, apart=np.arange(400) < 397)
    assert (few.index[:397, 3:] == np.arange(397)[:, None]).all() and np.isinf(
        few.distance[:397, 3:]
    ).all()
    assert (np.sort(few.index[:397, :3], axis=1) == [397, 398, 399]).all()


def test_groups_that_fill_whole_lists_are_searched_past() -> None:
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 1500)  # three clouds far apart, each a group
    x = (random.normal(size=(4500, 4)) + 50 * group[:, None]).astype(np.float32)
    shuffled = random.permutation(4500)
    near = nearest(x[shuffled], 5, exact=False, apart=group[shuffled])
    assert (
        np.isfinite(near.distance).all()
        and (group[shuffled][near.index] != group[shuffled][:, None]).all()
    )
    exact = nearest(x[shuffled], 5, exact=True, apart=group[shuffled])
    assert np.median(near.distance / exact.distance) < 1.05


def test_votes_by_hand() -> None:
    near = Neighbours(
        np.array([[1, 2], [0, 2], [0, 1]], dtype=np.int32), np.zeros((3, 2), dtype=np.float32), 1.0
    )
    votes, agreement = neighbour_votes([0, 0, 1], near, 2)
    # Row 0: one vote for 0, one for 1, and one for the distribution of all labels, (2/3, 1/3).
    np.testing.assert_allclose(votes, [[5 / 9, 4 / 9], [5 / 9, 4 / 9], [8 / 9, 1 / 9]], rtol=1e-6)
    np.testing.assert_allclose(agreement, [0.5, 0.5, 0.0])


def test_rows_of_one_group_do_not_vote_for_each_other() -> None:
    near = Neighbours(
        np.array([[1, 2], [0, 2], [0, 1]], dtype=np.int32), np.zeros((3, 2), dtype=np.float32), 1.0
    )
    votes, agreement = neighbour_votes([0, 0, 1], near, 2, apart=[5, 5, 6])
    # only row 2 has a vote
    np.testing.assert_allclose(votes[0], [2 / 3 / 2, (1 + 1 / 3) / 2], rtol=1e-6)
    assert agreement[0] == 0.0
    _, agreement = neighbour_votes([0, 0, 1], near, 2, apart=[5, 5, 5])
    assert np.isnan(agreement).all()


def test_soft_votes_of_one_hot_labels_are_votes() -> None:
    labels = np.random.default_rng(0).integers(4, size=60)
    near = nearest(blobs(60, 3), 5)
    hard, soft = (
        neighbour_votes(labels, near, 4)[0],
        neighbour_votes(np.eye(4, dtype=np.float32)[labels], near, 4)[0],
    )
    np.testing.assert_allclose(hard, soft, rtol=1e-5)


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (np.zeros((0, 3)), {}, "Expected `features` of shape"),
        (np.zeros(5), {}, "Expected `features` of shape"),
        (np.full((5, 2), np.nan), {}, "Expected finite `features`"),
        (np.zeros((5, 2)), {"k": 5}, "Expected `k` below the number of rows, 5"),
        (np.zeros((5, 2)), {"k": 0}, "of at least 1"),
    ],
)
def test_refusals(features: NDArray[np.float64], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest(features, **options)  # type: ignore[arg-type]
