"""CIFAR-10 and CIFAR-100, from the python or the binary files, in their folder or still in their archive."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.data.base import Dataset, Split
from noiseproof.data.sources import DATASETS, PLACES, PathLike, data_root, find
from noiseproof.noise.human import CIFAR10N, CIFAR100N, CIFARN
from noiseproof.noise.pickled import IntegerUnpickler

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
LARGEST_FILE = 200 * 2**20  # CIFAR-100's train file has 155 MB
AGAIN = "Delete it and fetch the dataset again."


def read_members(place: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of the files ``names``, from a folder or out of a .tar.gz of it; nothing is extracted."""
    blobs: dict[str, bytes] = {}
    try:
        if place.is_dir():
            blobs = {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
        else:
            wanted = {f"{folder}/{name}": name for name in names}
            with tarfile.open(place, "r|gz") as archive:
                for member in archive:
                    name = wanted.get(member.name.removeprefix("./"))
                    if name is not None and member.isreg() and member.size <= LARGEST_FILE:
                        file = archive.extractfile(member)
                        blobs[name] = file.read() if file else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"Expected a readable archive in {place}, got {error}. {AGAIN}") from error
    for name in names:
        if name not in blobs:
            raise FileNotFoundError(f"Expected the file {name} in {place}, found none. {AGAIN}")
    return blobs


def read_pickle(blob: bytes, path: Path, rows: int, keys: Sequence[str]) -> tuple[NDArray[np.uint8], list[Tensor]]:
    """Pixels (N, 3072) and the label lists ``keys`` of one python batch."""
    try:
        batch = IntegerUnpickler(blob, encoding="bytes").load()
        pixels: NDArray[np.uint8] = batch[b"data"].values
        labels = [torch.tensor(batch[key.encode()], dtype=torch.int64) for key in keys]
        shapes = [pixels.shape, *(tuple(column.shape) for column in labels)]
        if shapes != [(rows, PIXELS), *[(rows,)] * len(labels)] or pixels.dtype != np.uint8:
            raise ValueError(f"pixels of {pixels.dtype} and labels of shape {', '.join(map(str, shapes))}")
    # An unpickler may raise anything on bytes it does not understand.
    except Exception as error:
        raise ValueError(f"Expected a CIFAR python batch of {rows} images in {path}, got {error!r}. {AGAIN}") from error
    return pixels, labels


def read_binary(blob: bytes, path: Path, rows: int, labels: int) -> tuple[NDArray[np.uint8], list[Tensor]]:
    """Pixels (N, 3072) and labels of one binary batch: each row is its label bytes, then its pixels."""
    width = labels + PIXELS
    if len(blob) != rows * width:
        raise ValueError(f"Expected {rows} records of {width} bytes in {path}, got {len(blob)} bytes. {AGAIN}")
    records = np.frombuffer(blob, dtype=np.uint8).reshape(rows, width)
    return records[:, labels:], [torch.from_numpy(records[:, i].astype(np.int64)) for i in range(labels)]


def _split(batches: list[tuple[NDArray[np.uint8], list[Tensor]]], column: int) -> Split:
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = torch.cat([columns[column] for _, columns in batches])
    return Split(torch.from_numpy(pixels), labels, clean=labels)


def _folder(name: str, place: Path) -> tuple[str, bool]:
    """The folder that ``place`` is or holds as an archive, and whether its files are the binary ones."""
    python, binary, _, packed = PLACES[name][0]
    return (binary, True) if place.name in (binary, packed) else (python, False)


@DATASETS.register("cifar10")
def cifar10(data_dir: PathLike | None = None) -> Dataset:
    """60 000 photographs of 10 classes, 32 × 32 (Krizhevsky 2009)."""
    place = find("cifar10", data_dir)
    folder, binary = _folder("cifar10", place)
    end = ".bin" if binary else ""
    names = [f"data_batch_{i}{end}" for i in range(1, 6)] + [f"test_batch{end}"]
    blobs = read_members(place, folder, names)
    batches = [
        read_binary(blobs[name], place / name, 10_000, 1)
        if binary
        else read_pickle(blobs[name], place / name, 10_000, ["labels"])
        for name in names
    ]
    return Dataset("cifar10", CIFAR10_CLASSES, _split(batches[:5], 0), _split(batches[5:], 0))


@DATASETS.register("cifar100")
def cifar100(data_dir: PathLike | None = None, labels: str = "fine") -> Dataset:
    """60 000 photographs of 100 classes in 20 superclasses, 32 × 32; ``labels`` is ``fine`` or ``coarse``."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"Expected `labels` to be fine or coarse, got {labels!r}.")
    place = find("cifar100", data_dir)
    folder, binary = _folder("cifar100", place)
    end = ".bin" if binary else ""
    meta = f"{labels}_label_names.txt" if binary else "meta"
    blobs = read_members(place, folder, [f"train{end}", f"test{end}", meta])
    train, test = (
        read_binary(blobs[part + end], place / (part + end), rows, 2)
        if binary
        else read_pickle(blobs[part], place / part, rows, ["coarse_labels", "fine_labels"])
        for part, rows in (("train", 50_000), ("test", 10_000))
    )
    classes = _class_names(blobs[meta], place / meta, labels)
    column, count = (1, 100) if labels == "fine" else (0, 20)
    if len(classes) != count:
        raise ValueError(f"Expected {count} class names in {place / meta}, got {len(classes)}. {AGAIN}")
    return Dataset("cifar100", classes, _split([train], column), _split([test], column))


def _class_names(blob: bytes, path: Path, labels: str) -> tuple[str, ...]:
    if path.suffix == ".txt":
        return tuple(blob.decode("ascii", "replace").split())
    try:
        names = IntegerUnpickler(blob, encoding="bytes").load()[f"{labels}_label_names".encode()]
        return tuple(name.decode("ascii") for name in names)
    except Exception as error:
        raise ValueError(f"Expected the class names in {path}, got {error!r}. {AGAIN}") from error


@DATASETS.register("cifar10n")
def cifar10n(data_dir: PathLike | None = None, labels: str = "worst") -> Dataset:
    """CIFAR-10 with human labels: ``aggregate``, ``random1``, ``random2``, ``random3``, ``worst`` (Wei et al. 2022)."""
    return _human("cifar10n", cifar10(data_dir), CIFAR10N(labels, data_root(data_dir)))


@DATASETS.register("cifar100n")
def cifar100n(data_dir: PathLike | None = None, labels: str = "noisy") -> Dataset:
    """CIFAR-100 with human labels (Wei et al. 2022)."""
    return _human("cifar100n", cifar100(data_dir), CIFAR100N(labels, data_root(data_dir)))


def _human(name: str, data: Dataset, noise: CIFARN) -> Dataset:
    given = noise.corrupt(data.train.y).given
    return replace(data, name=name, train=replace(data.train, y=given, clean=data.train.y))
