"""The named datasets that live in official files, or need none: facts of the real files, and what
is refused.
"""

import gzip
import inspect
import os
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from noiseproof.data import DATASETS, Dataset, get_dataset
from noiseproof.data.research.cifar import CIFAR10_CLASSES, PIXELS, read_batch, read_counts
from noiseproof.data.research.idx import read_idx
from noiseproof.data.sources import FILES, data_root, find
from noiseproof.noise.classwise import CIFAR100_SUPERCLASS

REAL = Path(os.environ.get("NOISEPROOF_DATA", "/tmp/noiseproof-data"))


def needs(place: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (REAL / place).exists(), reason=f"the official files are not here: {REAL / place}"
    )


@pytest.fixture(scope="module")
def cifar10() -> Dataset:
    return get_dataset("cifar10", REAL)


@pytest.fixture(scope="module")
def cifar100() -> Dataset:
    return get_dataset("cifar100", REAL)


# Every dataset that registers a name

# a user's own data
OWN = {name for name in DATASETS if inspect.Parameter.empty in DATASETS.parameters(name).values()}
GENERATED = [name for name in DATASETS if name not in FILES and name not in OWN]


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_has_a_summary_and_a_way_to_get_it(name: str) -> None:
    summary = (inspect.getdoc(DATASETS[name]) or "").partition("\n\n")[0]
    assert summary.endswith(".") and inspect.signature(DATASETS[name]).return_annotation in (
        Dataset,
        "Dataset",
    )
    assert ("data_dir" in DATASETS.parameters(name)) == (name in FILES)
    assert not (name in FILES and name in OWN)


@pytest.mark.parametrize("name", FILES)
def test_what_is_downloaded_is_found(name: str, tmp_path: Path) -> None:
    files = FILES[name]
    assert bool(files.downloads) != bool(files.request) and (
        not files.request or "https://" in files.request
    )
    for item in files.downloads:
        assert item.url.startswith(("https://", "http://")) and re.fullmatch(
            r"[0-9a-f]{32}", item.md5
        )
        place = tmp_path / (item.folder or item.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    for group in range(len(files.places) if files.downloads else 0):
        assert find(name, tmp_path, group).is_relative_to(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_there_are_named_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FILES[name]
    if any(Path(place).is_absolute() and Path(place).exists() for place in files.places[0]):
        pytest.skip("an installed package has the files")
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    assert data_root() == tmp_path and data_root("/x") == Path("/x")
    remedy = files.request or f"noiseproof data fetch {name.removesuffix('n')}"
    with pytest.raises(
        FileNotFoundError, match=f"{files.places[0][0]}.*{tmp_path}.*{re.escape(remedy)}"
    ):
        get_dataset(name)
    with pytest.raises(FileNotFoundError, match="under /nowhere"):
        get_dataset(f"{name}:data_dir=/nowhere")


@pytest.mark.parametrize("name", GENERATED)
def test_sets_without_files_depend_on_the_seed_alone(name: str) -> None:
    np.random.seed(3)
    torch.manual_seed(3)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()
    first, again, other = (
        get_dataset(name),
        get_dataset(name, seed=0),
        get_dataset(f"{name}:seed=1"),
    )
    assert np.random.get_state()[1].tolist() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.test.y, again.test.y)
    assert not torch.equal(first.train.x, other.train.x)
    assert first.train.clean is first.train.y


def test_moons_and_circles_have_their_shapes() -> None:
    moons = get_dataset("two-moons:n=400,spread=0")
    x, y = moons.train.x, moons.train.y
    # the upper arc is around 0, the lower one around (1, ½)
    centre = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[y]
    torch.testing.assert_close((x - centre).norm(dim=1), torch.ones(400), atol=1e-5, rtol=0)
    assert bool((x[y == 0, 1] >= -1e-6).all()) and bool((x[y == 1, 1] <= 0.5 + 1e-6).all())
    circles = get_dataset("circles:n=400,spread=0,factor=0.3")
    radius = torch.tensor([1.0, 0.3])[circles.train.y]
    torch.testing.assert_close(circles.train.x.norm(dim=1), radius, atol=1e-5, rtol=0)
    assert torch.bincount(circles.train.y).tolist() == [200, 200]


def test_digits_are_the_default_and_bundled() -> None:
    data = get_dataset()
    assert data.name == "digits" and len(data.classes) == 10
    assert data.train.x.dtype is torch.uint8 and data.train.x.shape == (1437, 1, 8, 8)
    assert len(data.test) == 360
    every = torch.cat([data.train.y, data.test.y])
    assert torch.bincount(every).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int(data.train.x.max()) == 255 and len(data.train.x.unique()) == 17


def test_names_are_registered_and_unknown_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {
        "two-moons",
        "circles",
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "cifar10n",
        "cifar100n",
    }
    assert named | {"animal10n", "clothing1m", "webvision", "folder", "table", "text"} <= set(
        DATASETS
    )
    (tmp_path / "my.csv").write_text("a,y\n1,x\n")
    with pytest.raises(
        ValueError,
        match=f"got the file {tmp_path}/my.csv. Use table:table={tmp_path}/my.csv,label=",
    ):
        get_dataset(str(tmp_path / "my.csv"))
    (tmp_path / "digits").write_text("")
    monkeypatch.chdir(tmp_path)
    assert get_dataset("digits").spec == "digits"  # whatever lies in this folder
    with pytest.raises(ValueError, match="Unknown dataset 'cifar'. Did you mean"):
        get_dataset("cifar")
    with pytest.raises(
        TypeError, match="Expected the parameters of the dataset 'digits': test, seed; got 'size'"
    ):
        get_dataset("digits:size=3")


# MNIST and Fashion-MNIST


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


@needs("MNIST/raw")
def test_mnist_is_the_real_one() -> None:
    data = get_dataset("mnist", REAL)
    assert data.train.x.shape == (60_000, 1, 28, 28) and data.test.x.shape == (10_000, 1, 28, 28)
    assert data.train.x.dtype is torch.uint8
    assert data.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.y[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(data.train.y).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    pixels = data.train.x.double() / 255
    # the 0.1307, 0.3081 of every tutorial
    assert float(pixels.mean()) == pytest.approx(0.1306604762738429, abs=1e-9)
    assert float(pixels.std(correction=0)) == pytest.approx(0.3081078038564622, abs=1e-9)


DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(
    not DEBIAN.exists(), reason=f"Debian's dataset-fashion-mnist is not installed: {DEBIAN}"
)
def test_fashion_mnist_is_the_real_one(tmp_path: Path) -> None:
    data = get_dataset("fashion-mnist", tmp_path)  # found where Debian puts it
    assert data.train.x.shape == (60_000, 1, 28, 28) and data.test.x.shape == (10_000, 1, 28, 28)
    assert data.train.y[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert data.test.y[:5].tolist() == [9, 2, 1, 1, 6]
    assert [data.classes[k] for k in data.test.y[:5].tolist()][:2] == ["ankle boot", "pullover"]
    assert torch.bincount(data.train.y).tolist() == [6000] * 10
    pixels = data.train.x.double() / 255
    assert float(pixels.mean()) == pytest.approx(0.28604, abs=1e-5)  # the published 0.2860, 0.3530
    assert float(pixels.std(correction=0)) == pytest.approx(0.35302, abs=1e-5)


@pytest.fixture(scope="module")
def fashion_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in Fashion-MNIST's format and label counts, as Debian packs them (.gz)."""
    folder = tmp_path_factory.mktemp("data") / "fashion-mnist"
    folder.mkdir()
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        labels = np.arange(count) % 10
        images = np.broadcast_to(labels[:, None, None], (count, 28, 28))
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", images),
            (f"{prefix}-labels-idx1-ubyte", labels),
        ):
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), 1))
    return folder


@pytest.mark.parametrize("inside", [False, True], ids=["data folder", "its own folder"])
def test_fashion_mnist_reads_compressed_files(fashion_like: Path, inside: bool) -> None:
    data = get_dataset("fashion-mnist", fashion_like if inside else fashion_like.parent)
    assert data.classes[9] == "ankle boot"
    assert torch.equal(data.train.x[:, 0, 5, 7].long(), data.train.y)
    assert torch.bincount(data.test.y).tolist() == [1000] * 10


def test_fashion_mnist_is_not_taken_for_mnist(fashion_like: Path) -> None:
    with pytest.raises(
        ValueError,
        match=f"Expected mnist in {fashion_like}, got another dataset of the same format",
    ):
        get_dataset("mnist", fashion_like)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "other shape", "not idx"])
def test_damaged_idx_files_are_named(tmp_path: Path, damage: str, compressed: bool) -> None:
    blob = idx(np.arange(30).reshape(5, 6))
    blob = {
        "truncated": blob[:-3],
        "longer": blob + b"x",
        "empty": b"",
        "other shape": idx(np.zeros((6, 6))),
        "not idx": b"<html>404</html>" * 9,
    }[damage]
    path = tmp_path / ("a-idx2-ubyte" + ".gz" * compressed)
    path.write_bytes(gzip.compress(blob) if compressed else blob)
    with pytest.raises(
        ValueError, match=f"Expected an idx file of 5 × 6 bytes in {path}, got .*fetch it again"
    ):
        read_idx(path, (5, 6))


# CIFAR


@needs("cifar-10-batches-py")
def test_cifar10_is_the_real_one(cifar10: Dataset) -> None:
    assert cifar10.train.x.shape == (50_000, 3, 32, 32) and cifar10.test.x.shape == (
        10_000,
        3,
        32,
        32,
    )
    assert cifar10.train.x.dtype is torch.uint8
    assert torch.bincount(cifar10.train.y).tolist() == [5000] * 10
    assert torch.bincount(cifar10.test.y).tolist() == [1000] * 10
    assert cifar10.train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert cifar10.test.y[:5].tolist() == [3, 8, 8, 0, 6]
    assert cifar10.train.x[0, 0, 0, :4].tolist() == [59, 43, 50, 68]
    mean = cifar10.train.x.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    meta = pickle.loads((REAL / "cifar-10-batches-py/batches.meta").read_bytes(), encoding="ascii")
    assert list(cifar10.classes) == meta["label_names"]


@needs("cifar-100-python")
def test_cifar100_is_the_real_one(cifar100: Dataset) -> None:
    assert cifar100.train.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(cifar100.train.y).tolist() == [500] * 100
    assert torch.bincount(cifar100.test.y).tolist() == [100] * 100
    assert cifar100.train.y[:5].tolist() == [19, 29, 0, 11, 1]
    assert cifar100.classes[0] == "apple" and cifar100.classes[99] == "worm"
    mean = cifar100.train.x.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.50707516, 0.48654887, 0.44091784], abs=1e-8)


@needs("cifar-100-python")
def test_cifar100_coarse_labels_are_a_function_of_the_fine_ones(cifar100: Dataset) -> None:
    coarse = get_dataset("cifar100:labels=coarse", REAL)
    assert coarse.classes[:2] == ("aquatic_mammals", "fish") and coarse.num_classes == 20
    superclass = torch.full((100,), -1)
    superclass[cifar100.train.y] = coarse.train.y
    assert torch.equal(superclass[cifar100.train.y], coarse.train.y)
    assert torch.equal(superclass[cifar100.test.y], coarse.test.y)
    assert torch.bincount(superclass).tolist() == [5] * 20
    assert tuple(superclass.tolist()) == CIFAR100_SUPERCLASS  # the table that superclass noise uses
    with pytest.raises(ValueError, match="Expected `labels` to be fine or coarse"):
        get_dataset("cifar100:labels=medium", REAL)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    touched = tmp_path / "touched"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Hostile(touched)}, protocol))
    with pytest.raises(ValueError, match=r"of 10000 images in .*, got .*a call of \w+.system"):
        read_batch(path, 10_000)
    assert not touched.exists()


def batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A pickle as the official files have it; protocol 3 writes bytes as bytes."""
    return pickle.dumps({b"data": pixels, b"labels": labels}, 3).replace(
        b"cnumpy._core.multi", b"cnumpy.core.multi"
    )


WHOLE = batch(np.arange(3 * PIXELS, dtype=np.uint8).reshape(3, PIXELS), [0, 1, 2])
DAMAGED = {
    "truncated": (WHOLE[:-40], "pickle data was truncated"),
    "empty": (b"", "EOFError"),
    "text": (b"<html>404</html>", "invalid load key"),
    "fewer images": (batch(np.zeros((2, PIXELS), np.uint8), [0, 1, 2]), r"shape \(2, 3072\)"),
    "fewer labels": (batch(np.zeros((3, PIXELS), np.uint8), [0, 1]), "and 2 labels"),
    "floats": (batch(np.zeros((3, PIXELS), np.float16), [0, 1, 2]), "an array of 'f2', not of"),
    "no dict": (pickle.dumps([1, 2], 3), "TypeError"),
    "no labels": (WHOLE.replace(b"labels", b"lablls"), "KeyError"),
    "a call": (b"cnumpy\nfromfile\n(S'1'\ntR.", "a call of numpy.fromfile"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_cifar_pickles_are_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(WHOLE)
    pixels, labels = read_batch(path, 3)
    assert pixels.tobytes() == np.arange(3 * PIXELS, dtype=np.uint8).tobytes()
    assert labels.tolist() == [0, 1, 2]
    content, reason = DAMAGED[damage]
    path.write_bytes(content)
    message = f"CIFAR python batch of 3 images in {path}, got .*({reason}).*fetch the dataset again"
    with pytest.raises(ValueError, match=message):
        read_batch(path, 3)


class Forged:
    """A byte array whose flags claim that it holds references to objects: NumPy's own unpickling
    crashes on such.
    """

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> object:
        return (
            np.empty(0).__reduce__()[0],
            (np.ndarray, (0,), b"b"),
            (1, (1, PIXELS), Flags(self.code), False, bytes(PIXELS)),
        )


class Flags(Forged):
    def __reduce__(self) -> object:
        return np.dtype, (self.code, False, True), (3, "|", None, None, None, -1, -1, 63)


def test_forged_arrays_are_plain_bytes_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(batch(Forged("u1"), [0]))  # type: ignore[arg-type]
    pixels, _ = read_batch(path, 1)
    assert pixels.dtype == np.uint8 and not pixels.any()
    path.write_bytes(batch(Forged("O"), [0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an array of 'O', not of bytes"):
        read_batch(path, 1)


@needs("cifar-10-batches-py")
def test_a_real_batch_that_was_cut_or_is_missing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(
        (REAL / "cifar-10-batches-py/data_batch_1").read_bytes()[:20_000_000]
    )
    with pytest.raises(ValueError, match=f"in {folder / 'data_batch_1'}, got .*was truncated"):
        get_dataset("cifar10", tmp_path)
    (folder / "data_batch_1").unlink()
    with pytest.raises(FileNotFoundError, match="Expected the file .*data_batch_1, found none"):
        get_dataset("cifar10", tmp_path)


# Human labels


@needs("cifar-n/CIFAR-10_human.pt")
def test_cifar10n_gives_human_labels_and_keeps_the_truth(cifar10: Dataset) -> None:
    for labels, rate in (("aggregate", 0.0901), ("random1", 0.1723), ("worst", 0.4021)):
        data = get_dataset(f"cifar10n:labels={labels}", REAL)
        assert torch.equal(data.train.clean, cifar10.train.y)
        assert float((data.train.y != data.train.clean).double().mean()) == pytest.approx(
            rate, abs=5e-5
        )
    assert data.classes == CIFAR10_CLASSES and data.name == "cifar10n"
    assert torch.equal(data.test.y, cifar10.test.y)
    with pytest.raises(ValueError, match="aggregate, random1"):
        get_dataset("cifar10n:labels=worse", REAL)


@needs("cifar10h.npz")
def test_cifar10h_has_the_shares_of_peoples_labels_of_the_test_images(cifar10: Dataset) -> None:
    data, file = get_dataset("cifar10h", REAL), np.load(REAL / "cifar10h.npz")
    assert data.name == "cifar10h" and data.classes == CIFAR10_CLASSES and len(data.test) == 10_000
    assert torch.equal(data.train.x, cifar10.test.x) and torch.equal(
        data.train.clean, cifar10.test.y
    )
    np.testing.assert_allclose(data.train.soft, file["probs"], atol=1e-6)
    assert float((data.train.y == data.train.clean).double().mean()) == pytest.approx(
        0.9921, abs=5e-5
    )
    assert torch.equal(data.test.x[7], cifar10.train.x[7])


def test_counts_of_cifar10h_are_read_from_the_official_file_and_damaged_ones_are_named(
    tmp_path: Path,
) -> None:
    counts = np.tile(np.arange(10), (10_000, 1))
    np.save(tmp_path / "cifar10h-counts.npy", counts)
    assert read_counts(tmp_path / "cifar10h-counts.npy")[0].tolist() == pytest.approx(
        (counts[0] / 45).tolist()
    )
    np.save(tmp_path / "other.npy", counts[:3])
    (tmp_path / "cut.npz").write_bytes(b"PK")
    for name, reason in (("other.npy", r"int64 of shape \(3, 10\)"), ("cut.npz", "BadZipFile")):
        with pytest.raises(
            ValueError, match=f"counts .10000, 10. of CIFAR-10H in .*{name}, got .*{reason}"
        ):
            read_counts(tmp_path / name)


@needs("cifar-n/CIFAR-100_human.pt")
def test_cifar100n_gives_human_labels_and_keeps_the_truth(cifar100: Dataset) -> None:
    data = get_dataset("cifar100n", REAL)
    assert torch.equal(data.train.clean, cifar100.train.y)
    assert float((data.train.y != data.train.clean).double().mean()) == pytest.approx(
        0.4020, abs=5e-5
    )
