"""Noise on rows with several labels: which labels change, how many, and that seeds give the same
ones everywhere.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from noiseproof.noise import get_noise

N, K = 20_000, 3
CLEAN = torch.from_numpy((np.random.RandomState(1).rand(N, K) < [0.1, 0.5, 0.8]).astype(np.int64))


def uniforms(seed: int, n: int) -> np.ndarray:
    """The documented stream, by NumPy's mt19937: 53 low bits of two 32-bit numbers."""
    words = np.random.RandomState(seed).randint(0, 2**32, 2 * n, dtype=np.uint64).reshape(n, 2)
    return ((words[:, 0] << np.uint64(32) | words[:, 1]) & np.uint64(2**53 - 1)).astype(
        np.float64
    ) / 2**53


@pytest.mark.parametrize(
    ("spec", "missing", "added"),
    [
        ("missing-labels:rate=0.3", [0.3] * 3, [0.0] * 3),
        ("missing-labels:rate=[0.1,0.5,0]", [0.1, 0.5, 0.0], [0.0] * 3),
        ("label-flips:missing=0.2,added=0.05", [0.2] * 3, [0.05] * 3),
        ("label-flips:missing=[0.2,0,1],added=[0,0.4,0.1]", [0.2, 0.0, 1.0], [0.0, 0.4, 0.1]),
    ],
)
def test_rates_of_each_class(spec: str, missing: list[float], added: list[float]) -> None:
    noise = get_noise(spec)
    noisy = noise.corrupt(CLEAN, generator=5)
    assert noisy.given.shape == (N, K) and noisy.given.dtype == torch.int64
    T = noise.transition(K)
    torch.testing.assert_close(T.sum(2), torch.ones(K, 2, dtype=torch.float64))
    for k in range(K):
        for true, rate in ((1, missing[k]), (0, added[k])):
            assert float(T[k, true, 1 - true]) == rate
            rows = CLEAN[:, k] == true
            flipped = int((noisy.given[rows, k] != true).sum())
            assert (
                stats.binomtest(flipped, int(rows.sum()), rate).pvalue > 1e-4
                if 0 < rate < 1
                else (flipped == rate * int(rows.sum()))
            )
    assert noisy.rate == float((noisy.given != CLEAN).double().mean())
    torch.testing.assert_close(noisy.transition(), T, atol=0.02, rtol=0)
    assert str(get_noise(str(noise))) == str(noise)


def test_flips_follow_the_documented_stream() -> None:
    given = (
        get_noise("label-flips:missing=0.4,added=0.1")
        .corrupt(CLEAN[:50], generator=3)
        .given.numpy()
    )
    u, clean = uniforms(3, 50 * K).reshape(50, K), CLEAN[:50].numpy()
    assert (given == np.where(u < np.where(clean == 1, 0.4, 0.1), 1 - clean, clean)).all()


def test_flips_of_two_classes_are_independent() -> None:
    flipped = (
        get_noise("label-flips:missing=0.3,added=0.3")
        .corrupt(CLEAN, generator=2)
        .is_flipped.numpy()
    )
    table = np.histogram2d(flipped[:, 0], flipped[:, 1], bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_one_label_is_left_with_equal_chances() -> None:
    noisy = get_noise("single-positive").corrupt(CLEAN, generator=4)
    kept = noisy.given
    assert (kept <= CLEAN).all()
    assert torch.equal(kept.sum(1), CLEAN.sum(1).clamp(max=1))
    rows = CLEAN.sum(1) == 3
    assert stats.chisquare(kept[rows].sum(0).numpy()).pvalue > 1e-4
    single = CLEAN.sum(1) == 1
    assert torch.equal(kept[single], CLEAN[single])
    with pytest.raises(TypeError, match="single-positive` has no transition matrix"):
        get_noise("single-positive").transition(3)


def test_refusals() -> None:
    noise = get_noise("missing-labels:rate=0.3")
    with pytest.raises(
        ValueError,
        match=r"shape \(N, K\), 0 or 1, got \(3,\). `missing-labels` is for several labels",
    ):
        noise.corrupt([0, 1, 2], generator=0)
    with pytest.raises(
        ValueError, match=r"shape \(N,\), got \(2, 2\). `symmetric` is for one label per row"
    ):
        get_noise("symmetric:rate=0.4").corrupt([[0, 1], [1, 1]], generator=0)
    with pytest.raises(ValueError, match="labels in 0 … 1, got 2"):
        noise.corrupt([[0, 2]], generator=0)
    with pytest.raises(ValueError, match=r"Expected `rate` in \[0, 1\], got 1.5"):
        get_noise("missing-labels:rate=[0.1,1.5]")
    with pytest.raises(ValueError, match="made for 2 classes, got 3"):
        get_noise("missing-labels:rate=[0.1,0.5]").corrupt(CLEAN, generator=0)
    with pytest.raises(ValueError, match="as many rates in `missing` as in `added`"):
        get_noise("label-flips:missing=[0.1,0.5],added=[0.1]").corrupt(CLEAN, generator=0)
