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
    """Read an idx file of unsigned bytes that must have ``shape``; at most one byte more is
    read.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">i4").tobytes()
    try:
        with cast(BinaryIO, opener(path, "rb")) as file:
            first_bytes = file.read(len(header))
            if first_bytes != header:
                raise ValueError(f"the header {first_bytes.hex()} instead of {header.hex()}")
            body = bytearray(file.read(math.prod(shape) + 1))
            if len(body) != math.prod(shape):
                raise ValueError(
                    f"{len(body)} bytes after the"
                    f" header{' or more' * (len(body) > math.prod(shape))}"
                )
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise ValueError(
            f"Expected an idx file of {' × '.join(map(str, shape))} bytes in {path}, got {error}. "
            "Delete the file and fetch it again."
        ) from error
    return torch.frombuffer(body, dtype=torch.uint8).reshape(shape)


def _read_split(folder: Path, prefix: str, count: int) -> Split:
    arrays = []
    for kind, shape in (("images", (count, 28, 28)), ("labels", (count,))):
        stems = [f"{prefix}-{kind}{dot}idx{len(shape)}-ubyte" for dot in "-."]
        files = [folder / f"{stem}{end}" for stem in stems for end in ("", ".gz")]
        path = next((file for file in files if file.exists()), None)
        if path is None:
            raise FileNotFoundError(
                f"Expected {stems[0]} or {stems[0]}.gz in {folder}. Fetch the missing file."
            )
        arrays.append(read_idx(path, shape))
    images, labels = arrays[0][:, None], arrays[1].long()
    check_labels(labels, 10)
    return Split(images, labels, clean=labels)


def _read(
    name: str, classes: tuple[str, ...], counts: tuple[int, ...], data_dir: PathLike | None
) -> Dataset:
    root = data_root(data_dir)
    # the data folder may be the folder of the dataset
    is_own_folder = any(root.glob("train-labels*"))
    folder = root if is_own_folder else find(name, data_dir)
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
    """70 000 articles of clothing, 28 × 28 (Xiao et al. 2017); Debian's dataset-fashion-mnist is
    found, too.
    """
    return _read("fashion-mnist", FASHION, (6000,) * 10, data_dir)
