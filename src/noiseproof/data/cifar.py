"""CIFAR-10 and CIFAR-100, with human labels or their own: python or binary files, in a folder or an
archive.
"""

import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.limits import check_limit, check_members
from noiseproof.data.base import Dataset, Split, take
from noiseproof.data.labels import soft_labels
from noiseproof.data.sources import (
    DATASETS,
    FILES,
    Download,
    OfficialFiles,
    PathLike,
    data_root,
    find,
)
from noiseproof.noise.human import CIFAR10N, CIFAR100N, CIFARN, PICKLED_ARRAYS

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PIXELS = 3 * 32 * 32
AGAIN = "Delete it and fetch the dataset again."
Batch = tuple[NDArray[np.uint8], list[Tensor]]  # pixels (N, 3072), label columns (N,)


_PLACES = {
    10: (
        "cifar-10-batches-py",
        "cifar-10-batches-bin",
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
    ),
    100: (
        "cifar-100-python",
        "cifar-100-binary",
        "cifar-100-python.tar.gz",
        "cifar-100-binary.tar.gz",
    ),
}


def _register_files(classes: int, md5: str, human_md5: str) -> None:
    folder, _, archive, _ = places = _PLACES[classes]
    images = Download(f"https://www.cs.toronto.edu/~kriz/{archive}", md5, archive, folder)
    human = f"CIFAR-{classes}_human.pt"
    url = f"https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/{human}"
    labels = Download(url, human_md5, f"cifar-n/{human}")
    FILES[f"cifar{classes}"] = OfficialFiles((places,), (images,))
    FILES[f"cifar{classes}n"] = OfficialFiles(
        (places, (f"cifar-n/{human}", human)), (images, labels)
    )


_register_files(10, "c58f30108f718f92721af3b95e74349a", "96644db5574813cae939af5f7f2a0aec")
_register_files(100, "eb9058c3a382ffc7106e4002c42a8d85", "a67b45c1d7992051865b5c755bd68bb1")
FILES["cifar10h"] = OfficialFiles(
    (("cifar10h-counts.npy", "cifar10h.npz"), _PLACES[10]),
    request=(
        "Download data/cifar10h-counts.npy of https://github.com/jcpeterson/cifar-10h and put it"
        " beside the folder cifar-10-batches-py"
    ),
)


def read_members(place: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of the files ``names`` in a folder or in a .tar.gz of it; nothing is
    extracted.
    """
    blobs: dict[str, bytes] = {}
    try:
        if place.is_dir():
            blobs = {
                name: (place / name).read_bytes() for name in names if (place / name).is_file()
            }
        else:
            wanted = {f"{folder}/{name}": name for name in names}
            with tarfile.open(place, "r|gz") as archive:
                for member in archive:
                    name = wanted.get(member.name.removeprefix("./"))
                    if name is not None and member.isreg():
                        check_limit(
                            "member_bytes", member.size, "bytes", f"{member.name} of {place}"
                        )
                        file = archive.extractfile(member)
                        blobs[name] = file.read() if file else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"Expected a readable archive in {place}, got {error}. {AGAIN}") from error
    for name in names:
        if name not in blobs:
            raise FileNotFoundError(f"Expected the file {name} in {place}, found none. {AGAIN}")
    return blobs


class IntegerUnpickler(pickle.Unpickler):
    """Reads dicts, lists, words, numbers and arrays of integers, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in PICKLED_ARRAYS:
            raise pickle.UnpicklingError(f"a call of {module}.{name}")
        return PICKLED_ARRAYS[f"{module}.{name}"]


def _unpickle(blob: bytes) -> Any:
    return IntegerUnpickler(io.BytesIO(blob), encoding="bytes").load()


def read_pickle(blob: bytes, path: Path, rows: int, keys: Sequence[str]) -> Batch:
    """Pixels (N, 3072) and the label lists ``keys`` of one python batch."""
    try:
        batch = _unpickle(blob)
        pixels: NDArray[np.uint8] = batch[b"data"]
        labels = [_plain_integers(batch[key.encode()]) for key in keys]
        shapes = [pixels.shape, *(tuple(column.shape) for column in labels)]
        if shapes != [(rows, PIXELS), *[(rows,)] * len(labels)] or pixels.dtype != np.uint8:
            raise ValueError(
                f"pixels of {pixels.dtype} and labels of shape {', '.join(map(str, shapes))}"
            )
    except Exception as error:  # an unpickler may raise anything on damaged bytes
        raise ValueError(
            f"Expected a CIFAR python batch of {rows} images in {path}, got {error!r}. {AGAIN}"
        ) from error
    return pixels, labels


def _plain_integers(values: Any) -> Tensor:
    """A list of integers as a tensor; lists in lists may be small in a file and endless in
    memory.
    """
    if not isinstance(values, list) or any(isinstance(value, (list, dict)) for value in values):
        raise ValueError("labels that are no list of integers")
    return torch.tensor(values, dtype=torch.int64)


def read_binary(blob: bytes, path: Path, rows: int, labels: int) -> Batch:
    """Pixels (N, 3072) and labels of one binary batch: each row is its label bytes, then its
    pixels.
    """
    width = labels + PIXELS
    if len(blob) != rows * width:
        raise ValueError(
            f"Expected {rows} records of {width} bytes in {path}, got {len(blob)} bytes. {AGAIN}"
        )
    records = np.frombuffer(blob, dtype=np.uint8).reshape(rows, width)
    return records[:, labels:], [
        torch.from_numpy(records[:, i].astype(np.int64)) for i in range(labels)
    ]


def read_batch(blob: bytes, path: Path, rows: int, keys: Sequence[str]) -> Batch:
    """Pixels and label columns of one batch, whose file is binary if its name ends in .bin."""
    if path.suffix == ".bin":
        return read_binary(blob, path, rows, len(keys))
    return read_pickle(blob, path, rows, keys)


def _split(batches: Sequence[Batch], column: int) -> Split:
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = torch.cat([columns[column] for _, columns in batches])
    return Split(torch.from_numpy(pixels), labels, clean=labels)


def _locate(name: str, data_dir: PathLike | None) -> tuple[Path, str, str]:
    """The folder or archive, the name of the folder in the archive, and the suffix of its files."""
    place = find(name, data_dir)
    python, binary, _, binary_archive = FILES[name].places[0]
    return (
        (place, binary, ".bin") if place.name in (binary, binary_archive) else (place, python, "")
    )


@DATASETS.register("cifar10")
def cifar10(data_dir: PathLike | None = None) -> Dataset:
    """60 000 photographs of 10 classes, 32 × 32 (Krizhevsky 2009)."""
    place, folder, suffix = _locate("cifar10", data_dir)
    names = [f"data_batch_{i}{suffix}" for i in range(1, 6)] + [f"test_batch{suffix}"]
    blobs = read_members(place, folder, names)
    batches = [read_batch(blobs[name], place / name, 10_000, ["labels"]) for name in names]
    return Dataset("cifar10", CIFAR10_CLASSES, _split(batches[:5], 0), _split(batches[5:], 0))


@DATASETS.register("cifar100")
def cifar100(data_dir: PathLike | None = None, labels: str = "fine") -> Dataset:
    """60 000 photographs of 100 classes in 20 superclasses, 32 × 32; ``labels`` is ``fine`` or
    ``coarse``.
    """
    if labels not in ("fine", "coarse"):
        raise ValueError(f"Expected `labels` to be fine or coarse, got {labels!r}.")
    place, folder, suffix = _locate("cifar100", data_dir)
    meta = f"{labels}_label_names.txt" if suffix else "meta"
    rows = {f"train{suffix}": 50_000, f"test{suffix}": 10_000}
    blobs = read_members(place, folder, [*rows, meta])
    keys = ["coarse_labels", "fine_labels"]
    train, test = (
        read_batch(blobs[name], place / name, count, keys) for name, count in rows.items()
    )
    classes = _class_names(blobs[meta], place / meta, labels)
    column, num_classes = (1, 100) if labels == "fine" else (0, 20)
    if len(classes) != num_classes:
        raise ValueError(
            f"Expected {num_classes} class names in {place / meta}, got {len(classes)}. {AGAIN}"
        )
    return Dataset("cifar100", classes, _split([train], column), _split([test], column))


def _class_names(blob: bytes, path: Path, labels: str) -> tuple[str, ...]:
    if path.suffix == ".txt":
        return tuple(blob.decode("ascii", "replace").split())
    try:
        names = _unpickle(blob)[f"{labels}_label_names".encode()]
        return tuple(name.decode("ascii") for name in names)
    except Exception as error:
        raise ValueError(f"Expected the class names in {path}, got {error!r}. {AGAIN}") from error


@DATASETS.register("cifar10n")
def cifar10n(data_dir: PathLike | None = None, labels: str = "worst") -> Dataset:
    """CIFAR-10 with human labels: ``aggregate``, ``random1``, ``random2``, ``random3``, ``worst``
    (Wei et al. 2022).
    """
    return _human("cifar10n", cifar10(data_dir), CIFAR10N(labels, data_root(data_dir)))


@DATASETS.register("cifar100n")
def cifar100n(data_dir: PathLike | None = None, labels: str = "noisy") -> Dataset:
    """CIFAR-100 with human labels (Wei et al. 2022)."""
    return _human("cifar100n", cifar100(data_dir), CIFAR100N(labels, data_root(data_dir)))


def _human(name: str, data: Dataset, noise: CIFARN) -> Dataset:
    given = noise.corrupt(data.train.y).given
    return replace(data, name=name, train=replace(data.train, y=given, clean=data.train.y))


@DATASETS.register("cifar10h")
def cifar10h(data_dir: PathLike | None = None) -> Dataset:
    """CIFAR-10's test images, each with the labels of about 51 people (Peterson et al. 2019), as
    soft labels.

    The test images are the first 10 000 of CIFAR-10's training images.
    """
    path = find("cifar10h", data_dir)
    soft = _read_counts(path)
    data = cifar10(data_dir)
    assert data.test is not None
    train, first = replace(data.test, y=soft.argmax(1), soft=soft), torch.arange(10_000)
    return Dataset(
        "cifar10h", data.classes, train, Split(take(data.train.x, first), data.train.y[first])
    )


def _read_counts(path: Path) -> Tensor:
    """The shares of the labels of each image, (10 000, 10)."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                check_members(archive, path, {"counts.npy"})
            counts = np.load(path, allow_pickle=False)["counts"]
        else:
            counts = np.load(path, mmap_mode="r", allow_pickle=False)
        soft = soft_labels(counts, "counts") if counts.shape == (10_000, 10) else None
        if soft is None:
            raise ValueError(f"{counts.dtype} of shape {counts.shape}")
    except Exception as error:  # a broken or hostile header can raise anything
        raise ValueError(
            f"Expected the counts (10000, 10) of CIFAR-10H in {path}, got {error!r}. {AGAIN}"
        ) from error
    return soft
