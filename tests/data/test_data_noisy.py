"""From a source to labels that are given once: nothing that trains can see the truth."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from noiseproof.data import Dataset, NoisyData, Split, corrupt, get_dataset
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.noise import get_noise

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def dataset(n: int = 200, clean: bool = True) -> Dataset:
    y = torch.arange(n) % 4
    x = torch.arange(n * 3, dtype=torch.float32).reshape(n, 3)
    raw = [f"row {i}" for i in range(n)]
    return Dataset("toy", ("a", "b", "c", "d"), Split(x, y, clean=y if clean else None, raw=raw))


def test_the_labels_are_those_of_the_noise_model() -> None:
    data = dataset()
    noisy = corrupt(data, "symmetric:rate=0.5", generator=3)
    reference = get_noise("symmetric:rate=0.5").corrupt(data.train.y, generator=3, num_classes=4)
    assert torch.equal(noisy.given, reference.given) and torch.equal(noisy.clean, data.train.y)
    assert noisy.rate == reference.rate and torch.equal(noisy.is_flipped, reference.is_flipped)
    assert (
        noisy.x is data.train.x
        and noisy.index.tolist() == list(range(200))
        and noisy.num_classes == 4
    )
    seeded = corrupt(
        data, get_noise("symmetric:rate=0.5"), generator=torch.Generator().manual_seed(3)
    )
    assert torch.equal(seeded.given, noisy.given)


@pytest.mark.parametrize("noise", [None, "none"])
def test_without_noise_the_truth_is_what_the_source_knows(noise: str | None) -> None:
    known, unknown = corrupt(dataset(), noise), corrupt(dataset(clean=False), noise)
    assert known.rate == 0.0 and torch.equal(known.given, dataset().train.y)
    assert unknown.rate is None and unknown.clean is None and unknown.is_flipped is None


def test_noise_on_noisy_labels_keeps_the_real_truth() -> None:
    base = dataset()
    human = dataclasses.replace(base.train, y=(base.train.y + 1) % 4)
    noisy = corrupt(dataclasses.replace(base, train=human), "symmetric:rate=0.5", generator=0)
    assert torch.equal(noisy.clean, base.train.y) and noisy.rate > 0.5
    assert not torch.equal(noisy.given, human.y)


def test_open_set_noise_replaces_images() -> None:
    data = dataset()
    foreign = -torch.ones(90, 3)
    noisy = corrupt(data, "open-set:rate=0.25,pool=90", generator=0, foreign=foreign)
    replaced = noisy.clean == -1
    assert int(replaced.sum()) == 50 and noisy.rate == 0.25
    assert bool((noisy.x[replaced] == -1).all()) and torch.equal(
        noisy.x[~replaced], data.train.x[~replaced]
    )
    assert torch.equal(noisy.given, data.train.y)
    with pytest.raises(
        ValueError,
        match="Expected `foreign` images, with which open-set.* got none. Take images of another",
    ):
        corrupt(data, "open-set:rate=0.25,pool=90", generator=0)
    on_disk = dataclasses.replace(data, train=dataclasses.replace(data.train, x=list(data.train.x)))
    with pytest.raises(ValueError, match="Expected images in memory, .* got files in toy"):
        corrupt(on_disk, "open-set:rate=0.25,pool=90", generator=0, foreign=foreign)


def test_noise_that_looks_at_the_inputs_gets_them() -> None:
    digits = get_dataset("digits")
    noisy = corrupt(digits, "xia:rate=0.3", generator=0)
    reference = get_noise("xia:rate=0.3").corrupt(
        digits.train.y, generator=0, features=digits.train.x
    )
    assert torch.equal(noisy.given, reference.given) and 0.2 < noisy.rate < 0.4
    with pytest.raises(ValueError, match="Expected `features`"):
        corrupt(digits, "chen:rate=0.3", generator=0)


def test_several_annotators_repeat_the_rows(tmp_path: object) -> None:
    data = dataset(4)
    path = f"{tmp_path}/labels.npy"
    np.save(path, np.array([[0, 1], [1, -1], [2, 2], [0, 3]]))
    noisy = corrupt(data, get_noise("file", path=path, annotators="all"))
    assert noisy.index.tolist() == [0, 0, 1, 2, 2, 3, 3] and noisy.given.tolist() == [
        0,
        1,
        1,
        2,
        2,
        0,
        3,
    ]
    assert torch.equal(noisy.x, data.train.x[noisy.index]) and torch.equal(
        noisy.clean, data.train.y[noisy.index]
    )
    assert noisy.raw == ["row 0", "row 0", "row 1", "row 2", "row 2", "row 3", "row 3"]


def test_no_way_of_reading_shows_the_truth() -> None:
    noisy = corrupt(get_dataset("digits"), "symmetric:rate=0.5", generator=0)
    assert noisy.x.dtype is torch.uint8
    for workers in (0, 2):
        loader = DataLoader(
            noisy,
            100,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator(),
        )
        for _ in range(2):  # the workers persist
            batches = list(loader)
            assert {len(batch) for batch in batches} == {3}
            x, given, rows = (torch.cat(parts) for parts in zip(*batches, strict=True))
            assert sorted(rows.tolist()) == list(range(len(noisy)))
            assert torch.equal(x, noisy.x[rows]) and torch.equal(given, noisy.given[rows])
    assert torch.equal(torch.stack([given for _, given, _ in noisy]), noisy.given)
    assert {len(row) for row in noisy} == {3}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_images_live_on_the_device_as_bytes(device: str) -> None:
    noisy = corrupt(get_dataset("digits"), "symmetric:rate=0.5", generator=0)
    there = noisy.to(device)
    assert (
        there.x.dtype is torch.uint8
        and torch.equal(there.x.cpu(), noisy.x)
        and there.rate == noisy.rate
    )
    train, held = there.split(0.1, generator=3)
    for part, same in zip((train, held), noisy.split(0.1, generator=3), strict=True):
        assert {column.device.type for column in (part.x, part.given, part.index, part.clean)} == {
            device
        }
        assert torch.equal(part.x.cpu(), same.x) and torch.equal(part.index.cpu(), same.index)


def test_the_seed_of_the_noise_may_be_the_seed_of_the_split() -> None:
    """The same random numbers for both would hold out flipped rows only."""
    noisy = corrupt(get_dataset("two-moons:n=20000"), "symmetric:rate=0.4", generator=0)
    for generator in (0, torch.Generator().manual_seed(0)):
        train, held = noisy.split(0.1, generator=generator)
        assert (
            abs(held.rate - 0.4) < 4 * (0.4 * 0.6 / 2000) ** 0.5 and abs(train.rate - 0.4) < 0.015
        )


def test_splits_are_disjoint_whole_and_seeded() -> None:
    noisy = corrupt(dataset(), "symmetric:rate=0.5", generator=0)
    before = torch.get_rng_state()
    train, held = noisy.split(0.1, generator=torch.Generator().manual_seed(1))
    again, _ = noisy.split(0.1, generator=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert (len(train), len(held)) == (180, 20) and torch.equal(train.index, again.index)
    assert sorted([*train.index.tolist(), *held.index.tolist()]) == list(range(200))
    for part in (train, held):
        assert torch.equal(part.given, noisy.given[part.index]) and torch.equal(
            part.x, noisy.x[part.index]
        )
        assert torch.equal(part.clean, noisy.clean[part.index])
        assert part.raw == [f"row {i}" for i in part.index.tolist()]
    assert held.subset(torch.tensor([1])).index.tolist() == [int(held.index[1])]
    assert held.index.tolist() != noisy.split(0.1, generator=2)[1].index.tolist()
    with pytest.raises(ValueError, match=r"Expected `validation` in \(0, 1\)"):
        noisy.split(1.0, generator=0)
    with pytest.raises(ValueError, match="Expected rows in both parts, got 0 of 4 samples"):
        corrupt(dataset(4)).split(0.1, generator=0)


def test_labels_of_one_sample_go_to_one_part(tmp_path: Path) -> None:
    votes = np.random.default_rng(0).integers(4, size=(200, 3))
    np.save(tmp_path / "votes.npy", votes)
    noisy = corrupt(dataset(), f"file:path={tmp_path / 'votes.npy'},annotators=all")
    train, held = noisy.split(0.1, generator=1)
    assert (len(train), len(held)) == (540, 60)
    assert not set(train.index.tolist()) & set(held.index.tolist())
    for part in (train, held):
        assert part.given.tolist() == votes[part.index.unique().numpy()].ravel().tolist()
    mixed = noisy.subset(shuffled(600, derive_generator(0)))  # wherever the rows of a sample stand
    train, held = mixed.split(0.1, generator=1)
    assert len(held) == 60 and not set(train.index.tolist()) & set(held.index.tolist())
    with pytest.raises(ValueError, match="Expected rows in both parts, got 0 of 4 samples"):
        corrupt(dataset(4)).subset(torch.arange(4).repeat(10)).split(0.1, generator=0)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    with pytest.raises(ValueError, match="Expected one `label` for each of the 3 rows of x, got 2"):
        Split(x, y[:2])
    with pytest.raises(TypeError, match="Expected labels of dtype torch.int64, got torch.float32"):
        Split(x, y.float())
    with pytest.raises(ValueError, match="Expected one `clean` for each of the 3 rows"):
        NoisyData(x, y, ("a", "b"), torch.arange(3), clean=y[1:])
    with pytest.raises(ValueError, match="Expected labels in 0 … 1, got 3 at position 0"):
        NoisyData(x, y + 3, ("a", "b"), torch.arange(3))
    with pytest.raises(ValueError, match="Expected labels in 0 … 1, got 2 at position 1"):
        Dataset("toy", ("a", "b"), Split(x, y), test=Split(x, torch.tensor([0, 2, 1])))
