"""MNIST and Fashion-MNIST from their idx files, compressed or not."""

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.checks import check_labels
from noiseproof.data.base import Dataset, Split
from noiseproof.data.sources import (
    DATASETS,
    FILES,
    Download,
    OfficialFiles,
    PathLike,
    data_root,
    find,
)

FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read an idx file of unsigned bytes that must have ``shape``.

    At most one byte more is read, however much a damaged file unpacks to.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">i4").tobytes()
    size = len(header) + math.prod(shape)
    try:
        with cast(BinaryIO, opener(path, "rb")) as file:
            content = file.read(size + 1)
        if len(content) != size or not content.startswith(header):
            raise ValueError(f"{len(content)} bytes that begin with {content[:16].hex()}")
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise ValueError(
            f"Expected an idx file of {' × '.join(map(str, shape))} bytes in {path}, got {error}. "
            "Delete the file and fetch it again."
        ) from error
    array = np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)
    return torch.from_numpy(array.copy())


def _read_part(folder: Path, stem: str, shape: tuple[int, ...]) -> Tensor:
    for name in (stem, stem.replace("-idx", ".idx")):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.exists():
                return read_idx(path, shape)
    raise FileNotFoundError(f"Expected {stem} or {stem}.gz in {folder}. Fetch the missing file.")


def _read_split(folder: Path, prefix: str, count: int) -> Split:
    images = _read_part(folder, f"{prefix}-images-idx3-ubyte", (count, 28, 28))
    labels = _read_part(folder, f"{prefix}-labels-idx1-ubyte", (count,)).long()
    check_labels(labels, 10)
    return Split(images[:, None], labels, clean=labels)


def _read(
    name: str, classes: tuple[str, ...], counts: tuple[int, ...], data_dir: PathLike | None
) -> Dataset:
    folder = data_root(data_dir)
    if not any(folder.glob("train-labels*")):  # else the data folder is the dataset's own
        folder = find(name, data_dir)
    train = _read_split(folder, "train", 60_000)
    if torch.bincount(train.y, minlength=10).tolist() != list(counts):
        raise ValueError(
            f"Expected {name} in {folder}, got another dataset of the same format. Set `data_dir`"
            " to its folder."
        )
    return Dataset(name, classes, train, _read_split(folder, "t10k", 10_000))


def _downloads(base: str, folder: str, md5s: tuple[str, str, str, str]) -> tuple[Download, ...]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Download(f"{base}{stem}-ubyte.gz", md5, f"{folder}/raw/{stem}-ubyte.gz")
        for stem, md5 in zip(stems, md5s, strict=True)
    )


FILES["mnist"] = OfficialFiles(
    (("MNIST/raw", "MNIST", "mnist"),),
    _downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",  # LeCun's site refuses downloads
        "MNIST",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)
FILES["fashion-mnist"] = OfficialFiles(
    (("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "/usr/share/datasets/fashion-mnist"),),
    _downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "FashionMNIST",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)


@DATASETS.register("mnist")
def mnist(data_dir: PathLike | None = None) -> Dataset:
    """70 000 handwritten digits, 28 × 28 (LeCun et al. 1998)."""
    digits = tuple(str(digit) for digit in range(10))
    counts = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    return _read("mnist", digits, counts, data_dir)


@DATASETS.register("fashion-mnist")
def fashion_mnist(data_dir: PathLike | None = None) -> Dataset:
    """70 000 articles of clothing, 28 × 28 (Xiao et al. 2017).

    The files of Debian's dataset-fashion-mnist are found, too.
    """
    return _read("fashion-mnist", FASHION, (6000,) * 10, data_dir)
