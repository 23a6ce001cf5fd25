"""Synthetic label noise: rates, matrices, counts, reproducibility, refusals."""

import hashlib
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from noiseproof.noise import NoiseModel, get_noise
from noiseproof.noise.base import select
from noiseproof.noise.classwise import CIFAR100_SUPERCLASS

CIFAR10 = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
MNIST = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}
T3 = [[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]

# One spec for each random, class-conditional model, with its number of classes and its matrix in
# words of its own.
CLASSWISE = {
    "none": (3, lambda i, j: float(i == j)),
    "symmetric:rate=0.4": (10, lambda i, j: 0.6 if i == j else 0.4 / 9),
    "symmetric:rate=0.3,count=total": (4, lambda i, j: 0.7 if i == j else 0.1),
    "symmetric-all:rate=0.5": (10, lambda i, j: 0.55 if i == j else 0.05),
    "symmetric-all:rate=0.8,count=per-class": (4, lambda i, j: 0.4 if i == j else 0.2),
    "asymmetric-mnist:rate=0.4": (10, lambda i, j: mapped(MNIST, 0.4, i, j)),
    "asymmetric-cifar10:rate=0.4": (10, lambda i, j: mapped(CIFAR10, 0.4, i, j)),
    "asymmetric-cifar10:rate=0.4,count=total": (10, lambda i, j: mapped(CIFAR10, 0.4, i, j)),
    "asymmetric-cifar10-no-truck:rate=0.2": (
        10,
        lambda i, j: mapped({2: 0, 4: 7, 3: 5, 5: 3}, 0.2, i, j),
    ),
    "asymmetric-next:rate=0.3": (7, lambda i, j: 0.7 if i == j else 0.3 * (j == (i + 1) % 7)),
    "pairflip:rate=0.45": (5, lambda i, j: 0.55 if i == j else 0.45 * (j == (i + 1) % 5)),
    "asymmetric-blocks:rate=0.4": (
        10,
        lambda i, j: (
            mapped({4: 0, 9: 5}, 0.4, i, j) if i in (4, 9) else mapped({i: i + 1}, 0.4, i, j)
        ),
    ),
    'asymmetric:rate=0.25,map={"0": 2, "2": 0}': (3, lambda i, j: mapped({0: 2, 2: 0}, 0.25, i, j)),
    "matrix:T=[[0.7, 0.2, 0.1], [0, 1, 0], [0.5, 0, 0.5]]": (3, lambda i, j: T3[i][j]),
}
OTHERS = (
    "asymmetric-superclass",
    "chen",
    "xia",
    "open-set",
    "cifar10n",
    "cifar100n",
    "file",
    "label-flips",
    "missing-labels",
    "single-positive",
)


def mapped(pairs: dict[int, int], rate: float, i: int, j: int) -> float:
    if i not in pairs:
        return float(i == j)
    return 1 - rate if i == j else rate * (j == pairs[i])


def labels_of(num_classes: int, size: int) -> torch.Tensor:
    """Labels in a fixed order with classes of different sizes: class c is 1 + c/K times as likely
    as class 0.
    """
    weights = 1 + np.arange(num_classes) / num_classes
    return torch.from_numpy(
        np.random.RandomState(7).choice(num_classes, size, p=weights / weights.sum())
    )


class Uniforms:
    """The stream that models draw from, made by NumPy's mt19937: 53 low bits of two 32-bit
    numbers.
    """

    def __init__(self, seed: int) -> None:
        self.state = np.random.RandomState(seed)

    def __call__(self, *shape: int) -> np.ndarray:
        words = self.state.randint(0, 2**32, size=(math.prod(shape), 2), dtype=np.uint32).astype(
            np.uint64
        )
        return (
            (((words[:, 0] << np.uint64(32)) | words[:, 1]) & np.uint64(2**53 - 1)) * 2.0**-53
        ).reshape(shape)


def sha(labels: torch.Tensor) -> str:
    return hashlib.sha256(labels.numpy().astype("<i8").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("spec", CLASSWISE)
def test_transition_matrix_is_exact_and_realised(spec: str) -> None:
    num_classes, entry = CLASSWISE[spec]
    noise = get_noise(spec)
    expected = torch.tensor(
        [[entry(i, j) for j in range(num_classes)] for i in range(num_classes)], dtype=torch.float64
    )
    T = noise.transition(num_classes)
    assert T.dtype is torch.float64
    torch.testing.assert_close(T, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(
        T.sum(1), torch.ones(num_classes, dtype=torch.float64), rtol=0, atol=1e-15
    )

    clean = labels_of(num_classes, 40_000)
    noisy = noise.corrupt(clean, generator=1, num_classes=num_classes)
    assert torch.equal(noisy.clean, clean)
    for label in range(num_classes):
        counts = np.bincount(noisy.given[clean == label], minlength=num_classes)
        possible = expected[label].numpy() > 0
        assert counts[~possible].sum() == 0
        if possible.sum() > 1:
            _, p_value = stats.chisquare(
                counts[possible], counts.sum() * expected[label].numpy()[possible]
            )
            assert p_value > 1e-4
    torch.testing.assert_close(noisy.transition(), expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_rates_lie_in_binomial_bounds(rate: float, num_classes: int) -> None:
    clean = labels_of(num_classes, 50_000)
    for name, real in (
        ("symmetric", rate),
        ("symmetric-all", rate * (num_classes - 1) / num_classes),
    ):
        noisy = get_noise(name, rate=rate).corrupt(clean, generator=3, num_classes=num_classes)
        low, high = stats.binom.interval(1 - 1e-6, 50_000, real)
        flipped = int(noisy.is_flipped.sum())
        assert low <= flipped <= high
        assert noisy.rate == flipped / 50_000
        assert noisy.nominal == rate


@pytest.mark.parametrize("rate", [0.0, 0.29, 0.4, 0.999, 1.0])
def test_exact_counts_are_exact(rate: float) -> None:
    clean = labels_of(10, 10_000)
    sizes = torch.bincount(clean, minlength=10)
    wanted = torch.tensor([math.floor(rate * n + 1e-9) for n in sizes.tolist()])
    total = get_noise("symmetric", rate=rate, count="total").corrupt(clean, generator=0)
    assert int(total.is_flipped.sum()) == round(rate * 10_000)
    each = get_noise("symmetric", rate=rate, count="per-class").corrupt(clean, generator=0)
    assert torch.equal(torch.bincount(clean[each.is_flipped], minlength=10), wanted)
    one = get_noise("asymmetric-mnist", rate=rate, count="per-class").corrupt(clean, generator=0)
    expected = torch.where(torch.tensor([c in MNIST for c in range(10)]), wanted, 0)
    assert torch.equal(torch.bincount(clean[one.is_flipped], minlength=10), expected)


def test_equal_count_is_apl_and_needs_enough_of_each_class() -> None:
    clean = labels_of(10, 10_000)
    noisy = get_noise("symmetric:rate=0.4,count=equal").corrupt(clean, generator=0)
    assert torch.bincount(clean[noisy.is_flipped]).tolist() == [400] * 10
    with pytest.raises(
        ValueError,
        match=r"Expected 1000 rows or more of each class, class 0 has \d+. Use `count='per-",
    ):
        get_noise("symmetric:rate=1,count=equal").corrupt(clean, generator=0)


def test_dividemix_asymmetric_count_leaves_unmapped_classes_clean() -> None:
    clean = torch.arange(10_000) % 10
    noisy = get_noise("asymmetric-cifar10:rate=0.4,count=total").corrupt(clean, generator=0)
    selected = select(clean, 10, 0.4, "total", torch.Generator().manual_seed(0))
    assert int(selected.sum()) == 4000
    has_map = torch.tensor([c in CIFAR10 for c in range(10)])[clean]
    assert torch.equal(noisy.is_flipped, selected & has_map)
    assert 1900 < int(noisy.is_flipped.sum()) < 2100


def test_a_higher_rate_keeps_the_flips_of_a_lower_one() -> None:
    clean = labels_of(10, 5_000)
    for count in ("draws", "total", "per-class"):
        few, many = (
            get_noise("symmetric", rate=r, count=count).corrupt(clean, generator=5)
            for r in (0.2, 0.5)
        )
        assert bool((few.is_flipped <= many.is_flipped).all())
        assert torch.equal(few.given[few.is_flipped], many.given[few.is_flipped])


def test_maps_apply_to_the_original_labels() -> None:
    clean = torch.arange(10).repeat(100)
    for spec, pairs in (("asymmetric-mnist:rate=1", MNIST), ("asymmetric-cifar10:rate=1", CIFAR10)):
        noisy = get_noise(spec).corrupt(clean, generator=0)
        assert noisy.given.tolist() == [pairs.get(c, c) for c in clean.tolist()]


def test_blocks_and_superclass_of_cifar100() -> None:
    clean = torch.arange(100)
    coarse = torch.tensor(CIFAR100_SUPERCLASS)
    assert torch.bincount(coarse).tolist() == [5] * 20
    inside = get_noise("asymmetric-superclass:rate=1").corrupt(clean, generator=0).given
    assert torch.equal(coarse[inside], coarse)
    assert sorted(inside.tolist()) == list(range(100))  # a permutation …
    five_times = clean
    for step in range(5):
        assert bool((five_times != clean).all()) or step == 0
        five_times = inside[five_times]
    assert torch.equal(five_times, clean)  # … of cycles of five
    # aquatic mammals: beaver 4, dolphin 30, otter 55, seal 72, whale 95
    assert [int(inside[c]) for c in (4, 30, 55, 72, 95)] == [30, 55, 72, 95, 4]
    blocks = get_noise("asymmetric-blocks:rate=1").corrupt(clean, generator=0).given
    assert blocks[:10].tolist() == [1, 2, 3, 4, 0, 6, 7, 8, 9, 5]
    # what released code calls "within superclass"
    assert int((coarse[blocks] == coarse).sum()) == 6


def test_matrix_from_files(tmp_path: Path) -> None:
    np.save(tmp_path / "T.npy", T3)
    np.savetxt(tmp_path / "T.csv", T3, delimiter=",")
    clean = labels_of(3, 500)
    expected = get_noise("matrix", T=torch.tensor(T3)).corrupt(clean, generator=0).given
    for name in ("T.npy", "T.csv"):
        noise = get_noise(f"matrix:T={tmp_path / name}")
        torch.testing.assert_close(noise.transition(3), torch.tensor(T3, dtype=torch.float64))
        assert torch.equal(noise.corrupt(clean, generator=0).given, expected)
        assert str(get_noise(str(noise))) == str(noise)


GOLDEN = {
    "symmetric:rate=0.4": "fad3d66358988fe2",
    "symmetric:rate=0.4,count=total": "a9fd19bcf74f924a",
    "symmetric-all:rate=0.4": "a0d09b26e6844f05",
    "symmetric-all:rate=0.4,count=per-class": "4f3997d2f3be0a7a",
    "asymmetric-cifar10:rate=0.4": "ff98aabc511dd84a",
    "asymmetric-mnist:rate=0.4,count=per-class": "2351aedec327b807",
    "asymmetric-next:rate=0.4,count=equal": "c239fd0544306092",
    "xia:rate=0.4": "5566c05dea9257d6",
    "xia:rate=0.4,scale=0.01": "f43ade0b91bfb407",
    "open-set:rate=0.4": "780b99afff731d85",
}


@pytest.mark.parametrize("spec", GOLDEN)
def test_a_seed_gives_the_same_labels_on_any_machine(spec: str) -> None:
    clean = torch.arange(5_000) % 10
    pixels = (torch.arange(5_000 * 12).view(5_000, 12) * 2_654_435_761 % 2**32 // 2**24).to(
        torch.uint8
    )
    noisy = get_noise(spec).corrupt(clean, generator=20_240_607, features=pixels)
    drawn = (
        torch.cat([noisy.clean, noisy.foreign(3_000)])
        if spec.startswith("open-set")
        else noisy.given
    )
    assert sha(drawn) == GOLDEN[spec]


def test_draws_are_those_of_mersenne_twister() -> None:
    """An independent generator (NumPy's) and a loop in plain Python give the same labels."""
    clean = labels_of(7, 300)
    u = Uniforms(11)
    select_u, class_u = u(300), u(300)
    others = [[(y + k) % 7 for k in range(1, 7)] for y in range(7)]
    for rate in (0.1, 0.7):
        expected = [
            others[y][int(b * 6)] if a < rate else y
            for y, a, b in zip(clean.tolist(), select_u, class_u, strict=True)
        ]
        assert (
            get_noise("symmetric", rate=rate).corrupt(clean, generator=11).given.tolist()
            == expected
        )
    u = Uniforms(11)
    rows, seed = np.argsort(u(300), kind="stable")[:120], int(u(1)[0] * 2**32)
    noisy = get_noise("open-set:rate=0.4").corrupt(clean, generator=11)
    assert noisy.rows.tolist() == sorted(rows)
    assert (
        noisy.foreign(200).tolist() == np.argsort(Uniforms(seed)(200), kind="stable")[:120].tolist()
    )


@pytest.mark.parametrize("spec", [*CLASSWISE, "xia:rate=0.4", "open-set:rate=0.4,pool=99"])
def test_global_generators_and_arguments_stay_untouched(spec: str) -> None:
    noise = get_noise(spec)
    clean = torch.arange(90) % 3
    before = clean.clone()
    x = torch.ones(90, 2)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    noisy = noise.corrupt(clean, generator=0, features=x, num_classes=CLASSWISE.get(spec, (3,))[0])
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(states[0], after[0]) and states[1:] == after[1:]
    assert torch.equal(clean, before)
    noisy.given.fill_(0)
    # nothing is shared
    assert torch.equal(clean, before) and not torch.equal(noisy.clean, noisy.given)
    assert noisy.clean.dtype is noisy.given.dtype is torch.int64
    assert noisy.is_flipped.dtype is torch.bool


@pytest.mark.parametrize(
    "spec",
    [
        *CLASSWISE,
        "asymmetric-superclass:rate=0.1",
        "chen:rate=0.4",
        "xia:rate=0.2,sd=0",
        "open-set:rate=0.4",
        "cifar10n:which=worst,folder=(a, b)",
        "cifar100n",
        'file:path=x.csv,given=["a", "b"],annotators=vote',
    ],
)
def test_specs_round_trip(spec: str) -> None:
    noise = get_noise(spec)
    again = get_noise(str(noise))
    assert str(again) == str(noise)
    assert isinstance(again, NoiseModel)
    if not spec.startswith("matrix"):
        assert again == noise


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=60),
    st.floats(0, 1),
    st.sampled_from(["draws", "total", "per-class"]),
    st.sampled_from(["symmetric", "symmetric-all", "asymmetric-next", "asymmetric-blocks"]),
    st.integers(0, 2**32),
)
def test_any_labels_and_rate(
    labels: list[int], rate: float, count: str, name: str, seed: int
) -> None:
    size = {"size": 3} if name.endswith("blocks") else {}
    noisy = get_noise(name, rate=rate, count=count, **size).corrupt(
        labels, generator=seed, num_classes=12
    )
    assert noisy.clean.tolist() == labels
    assert 0 <= int(noisy.given.min()) <= int(noisy.given.max()) < 12
    flipped = int(noisy.is_flipped.sum())
    if rate == 0:
        assert flipped == 0
    if count == "total" and name != "symmetric-all":
        assert flipped == int(rate * len(labels) + 1e-9)


# --- instance-dependent -------------------------------------------------------------------------


def test_chen_against_the_algorithm_in_plain_python() -> None:
    probs = torch.rand(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs /= probs.sum(1, keepdim=True)
    clean = labels_of(5, 200)
    rival = [
        max((j for j in range(5) if j != y), key=lambda j: p[j])
        for y, p in zip(clean.tolist(), probs, strict=True)
    ]
    doubt = [float(p[j]) for p, j in zip(probs, rival, strict=True)]
    for rate in (0.0, 0.29, 0.4, 1.0):
        chosen = sorted(range(200), key=lambda i: -doubt[i])[: int(rate * 200 + 1e-9)]
        expected = clean.tolist()
        for i in chosen:
            expected[i] = rival[i]
        noisy = get_noise("chen", rate=rate).corrupt(clean, features=probs)
        assert noisy.given.tolist() == expected
        assert int(noisy.is_flipped.sum()) == len(chosen)
        assert torch.equal(
            noisy.given, get_noise("chen", rate=rate).corrupt(clean, features=probs.numpy()).given
        )


def test_chen_breaks_ties_by_class_and_row() -> None:
    noisy = get_noise("chen:rate=0.5").corrupt([0, 1, 2, 0], features=torch.full((4, 3), 1 / 3))
    assert noisy.given.tolist() == [1, 0, 2, 0]
    # no doubt at all, and still all flip
    sure = get_noise("chen:rate=1").corrupt([0, 1, 2], features=torch.eye(3))
    assert sure.given.tolist() == [1, 0, 0]


@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0])
def test_xia_against_the_algorithm_in_plain_numpy(scale: float) -> None:
    """Same stream from NumPy's generator, scipy's truncated normal, a loop over the samples."""
    size, d, num_classes, rate = 400, 6, 4, 0.35
    x = np.random.RandomState(0).randint(0, 256, (size, 2, 3)).astype(np.uint8)
    # class 2 has no sample
    clean = torch.from_numpy(np.random.RandomState(1).choice([0, 1, 3], size))
    u = Uniforms(6)
    flip = stats.truncnorm.ppf(u(size), -rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    W = stats.norm.ppf(u(num_classes, d, num_classes))
    choice = u(size)
    expected = []
    for i, y in enumerate(clean.tolist()):
        scores = scale * (x[i].reshape(-1).astype(float) @ W[y])
        scores[y] = -np.inf
        weights = np.exp(scores - scores.max())
        p = flip[i] * weights / weights.sum()
        p[y] = 1 - flip[i]
        expected.append(int(np.searchsorted(np.cumsum(p), choice[i] * p.sum(), side="right")))
    noisy = get_noise("xia", rate=rate, scale=scale).corrupt(clean, generator=6, features=x)
    assert noisy.given.tolist() == expected
    assert 0 < noisy.rate < 1


def test_xia_rates() -> None:
    clean = torch.arange(40_000) % 10
    x = torch.rand(40_000, 5, generator=torch.Generator().manual_seed(0))
    for rate in (0.0, 0.2, 0.4, 1.0):
        mean = stats.truncnorm.mean(-rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
        noisy = get_noise("xia", rate=rate).corrupt(clean, generator=0, features=x)
        low, high = stats.binom.interval(1 - 1e-6, 40_000, mean)
        assert low <= int(noisy.is_flipped.sum()) <= high
    fixed = get_noise("xia:rate=1,sd=0").corrupt(clean, generator=0, features=x)
    assert fixed.rate == 1.0
    assert get_noise("xia:rate=0,sd=0").corrupt(clean, generator=0, features=x).rate == 0.0


def test_xia_raw_pixels_give_one_wrong_class_for_each_image_and_small_scales_many() -> None:
    """Copies of one image: raw pixels send all flips to one class, scale 0 spreads them evenly."""
    image = torch.arange(3_072) * 2_654_435_761 % 2**32 // 2**24
    x = image.to(torch.uint8).expand(5_000, -1)
    clean = torch.zeros(5_000, dtype=torch.int64)
    raw = get_noise("xia:rate=0.4").corrupt(clean, generator=0, features=x, num_classes=10)
    assert len(raw.given[raw.is_flipped].unique()) == 1
    even = get_noise("xia:rate=0.4,scale=0").corrupt(clean, generator=0, features=x, num_classes=10)
    counts = torch.bincount(even.given[even.is_flipped], minlength=10)[1:]
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


# --- open-set -----------------------------------------------------------------------------------


def test_open_set_replaces_images_and_keeps_labels() -> None:
    clean = labels_of(10, 1_000)
    noisy = get_noise("open-set:rate=0.4").corrupt(clean, generator=0)
    assert torch.equal(noisy.given, clean)
    assert len(noisy.rows) == 400
    assert torch.equal(noisy.clean, clean.index_fill(0, noisy.rows, -1))
    images = torch.zeros(1_000, 2, 2, dtype=torch.int16)
    foreign = torch.arange(1, 701, dtype=torch.int16)[:, None, None].expand(-1, 2, 2)
    mixed = noisy.apply(images, foreign)
    assert not images.any()
    assert torch.equal(mixed[noisy.rows], foreign[noisy.foreign(700)])
    assert len(mixed[noisy.rows].unique()) == 400  # none twice
    assert torch.equal(mixed[:, 0, 0] > 0, noisy.is_flipped)
    assert torch.equal(noisy.transition(), torch.eye(10, dtype=torch.float64))
    assert "400 of 1000 labels flipped, realised rate 40.00 % (nominal 40 %)" in str(noisy)


def test_open_set_refusals() -> None:
    zeros = torch.zeros(100, dtype=torch.int64)
    noisy = get_noise("open-set:rate=0.5").corrupt(zeros, generator=0)
    images = torch.zeros(100, 3)
    with pytest.raises(ValueError, match="Expected 100 images, one for each label, got 99"):
        noisy.apply(images[:99], torch.zeros(50, 3))
    with pytest.raises(ValueError, match="Resize or convert them first"):
        noisy.apply(images, torch.zeros(50, 4))
    with pytest.raises(
        ValueError, match="Expected at least 50 foreign images, got 49. Use a larger data set"
    ):
        noisy.apply(images, torch.zeros(49, 3))
    with pytest.raises(ValueError, match="Expected at least 60 foreign images, got 55"):
        get_noise("open-set:rate=0.5,pool=60").corrupt(zeros, generator=0).foreign(55)
    with pytest.raises(ValueError, match="Expected at least 50 foreign images, got 40"):
        get_noise("open-set:rate=0.5,pool=40").corrupt(zeros, generator=0).foreign(90)
    with pytest.raises(TypeError, match="no transition matrix"):
        get_noise("open-set:rate=0.6").transition(10)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "labels", "options", "error", "message"),
    [
        ("symmetric:rate=0.4", [], {}, ValueError, "Expected at least one label"),
        (
            "symmetric:rate=0.4",
            [[0, 1]],
            {},
            ValueError,
            r"Expected `labels` of shape \(N,\), got \(1, 2\)",
        ),
        (
            "symmetric:rate=0.4",
            [0.0, 1.0],
            {},
            TypeError,
            "Expected integer `labels`, got torch.float64",
        ),
        (
            "symmetric:rate=0.4",
            [True, False],
            {},
            TypeError,
            "Expected integer `labels`, got torch.bool",
        ),
        (
            "symmetric:rate=0.4",
            ["cat", "dog"],
            {},
            TypeError,
            "Encode the classes as integers from 0",
        ),
        (
            "symmetric:rate=0.4",
            np.array(["cat"]),
            {},
            TypeError,
            "Encode the classes as integers from 0",
        ),
        (
            "symmetric:rate=0.4",
            [0, -1],
            {},
            ValueError,
            "Expected labels in 0 … 0, got -1 at position 1|at least 2",
        ),
        (
            "symmetric:rate=0.4",
            [0, 1, -1],
            {},
            ValueError,
            "Expected labels in 0 … 1, got -1 at position 2",
        ),
        (
            "symmetric:rate=0.4",
            [0, 3],
            {"num_classes": 3},
            ValueError,
            "Expected labels in 0 … 2, got 3 at position 1",
        ),
        (
            "symmetric:rate=0.4",
            [0, 0],
            {},
            ValueError,
            "`num_classes` to be an integer of at least 2, got 1.*`none`",
        ),
        (
            "symmetric:rate=0.4",
            [0, 1],
            {"num_classes": 2.5},
            ValueError,
            "`num_classes` to be an integer",
        ),
        (
            "symmetric:rate=0.4",
            [0, 1],
            {"generator": None},
            TypeError,
            "or an integer seed, got None. Use corrupt",
        ),
        (
            "symmetric:rate=0.4",
            [0, 1],
            {"generator": "0"},
            TypeError,
            "Expected a torch.Generator or an integer seed",
        ),
        (
            "symmetric:rate=0.4",
            [0, 1],
            {"generator": True},
            TypeError,
            "Expected a torch.Generator or an integer seed",
        ),
        (
            "asymmetric-cifar10:rate=0.4",
            [0, 1],
            {"num_classes": 9},
            ValueError,
            "is made for 10 classes, got 9",
        ),
        (
            "asymmetric-superclass:rate=0.4",
            [0],
            {"num_classes": 10},
            ValueError,
            "is made for 100 classes, got 10",
        ),
        ("asymmetric-blocks:rate=0.4", [0, 6], {}, ValueError, "multiple of 5, got 7. Set `size`"),
        (
            'asymmetric:rate=0.4,map={"0": 5}',
            [0, 1],
            {},
            ValueError,
            "classes in 0 … 1, got 5. Give num_classes",
        ),
        ('asymmetric:rate=0.4,map={"-1": 0}', [0, 1], {}, ValueError, "classes in 0 … 1, got -1"),
        (
            "matrix:T=[[0.5, 0.5], [0, 1]]",
            [0, 2],
            {},
            ValueError,
            "Expected labels in 0 … 1, got 2 at position 1",
        ),
        (
            "matrix:T=[[0.5, 0.5], [0, 1]]",
            [0],
            {"num_classes": 3},
            ValueError,
            "made for 2 classes, got 3",
        ),
        (
            "chen:rate=0.4",
            [0, 1],
            {},
            ValueError,
            "Expected `features`, because `chen` depends on .* predictions",
        ),
        (
            "chen:rate=0.4",
            [0],
            {"features": [[torch.nan, 1.0]]},
            ValueError,
            "other numbers in row 0.* Apply softmax",
        ),
        (
            "chen:rate=0.4",
            [0, 1],
            {"features": [[0.5, 0.5], [3, -2.0]]},
            ValueError,
            "other numbers in row 1.* Apply softmax",
        ),
        (
            "chen:rate=0.4",
            [0, 1],
            {"features": [[0.5, 0.5]]},
            ValueError,
            r"shape \(2, …\), one row a label",
        ),
        (
            "chen:rate=0.4",
            [0],
            {"features": [[0.5, 0.5]], "num_classes": 3},
            ValueError,
            r"shape \(N, 3\)",
        ),
        (
            "chen:rate=0.4",
            [0, 2],
            {"features": [[0.5, 0.5]] * 2},
            ValueError,
            "Expected labels in 0 … 1, got 2",
        ),
        (
            "xia:rate=0.4",
            [0, 1],
            {},
            ValueError,
            "Expected `features`, because `xia` depends on each sample's inputs",
        ),
        (
            "xia:rate=0.4",
            [0, 1],
            {"features": [[1.0], [torch.inf]]},
            ValueError,
            "row 1 has NaN, infinite or too",
        ),
        (
            "xia:rate=0.4,scale=1e200",
            [0, 1],
            {"features": [[1.0], [1e200]]},
            ValueError,
            "infinite or too large ones",
        ),
    ],
)
def test_bad_input_is_refused_by_name(spec, labels, options, error, message) -> None:
    with pytest.raises(error, match=message):
        get_noise(spec).corrupt(labels, **{"generator": 0, **options})


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            "symmetric:rate=1.1",
            ValueError,
            r"Expected `rate` in \[0, 1\], got 1.1. A rate of 40 % is 0.4",
        ),
        ("symmetric-all:rate=-0.1", ValueError, r"Expected `rate` in \[0, 1\]"),
        ("asymmetric-mnist:rate=40", ValueError, "A rate of 40 % is 0.4"),
        ("xia:rate=2", ValueError, "Expected `rate`"),
        ("xia:rate=0.2,sd=-1", ValueError, "Expected `sd`"),
        ("chen:rate=none", ValueError, "Expected `rate`"),
        ("open-set:rate=0.4,pool=0", ValueError, "Expected `pool`"),
        (
            "symmetric:rate=0.4,count=exact",
            ValueError,
            "Expected `count` to be one of draws, total, per-class, equal",
        ),
        ("symmetric", TypeError, "'rate' is missing"),
        ("0.4", ValueError, "got 0.4. Write symmetric:rate=0.4."),
        (40, ValueError, "got 40. Write symmetric:rate=0.4."),
        ("symmetric:rate=[0.2,0.4]", ValueError, r"got \[0.2, 0.4\].$"),
        (
            "symetric:rate=0.4",
            ValueError,
            "Unknown noise model 'symetric'. Did you mean 'symmetric'",
        ),
        ("asymmetric:rate=0.4,map={}", ValueError, "Expected `map`"),
        ('asymmetric:rate=0.4,map={"a": 1}', ValueError, "class indices"),
        ('asymmetric:rate=0.4,map={"0": 1.5}', ValueError, "class indices"),
        ("asymmetric:rate=0.4,map=mnist", ValueError, "Expected `map` from classes to classes"),
        ("matrix:T=[[0.5, 0.4], [0, 1]]", ValueError, "row 0 sums to 0.9"),
        ("matrix:T=[[1.5, -0.5], [0, 1]]", ValueError, "negative or not finite"),
        ("matrix:T=[[0.5, 0.5]]", ValueError, "square matrix"),
        ("matrix:T=nowhere.npy", FileNotFoundError, "nowhere.npy, which does not exist"),
        ("matrix:T=nowhere.txt", ValueError, "a .npy or .csv file, got nowhere.txt"),
        ("asymmetric-blocks:rate=0.4,size=1", ValueError, "Expected `size`"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, error, message) -> None:
    with pytest.raises(error, match=message):
        get_noise(spec)


def test_bad_matrix_files_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("a,b\n0.5,0.5\n")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "columns.npy", np.array([[0.5, 0.0], [0.6, 1.0]]))
    for name in ("words.csv", "object.npy", "columns.npy"):
        with pytest.raises(ValueError, match=name):
            get_noise("matrix", T=tmp_path / name)
