"""CIFAR-10 and CIFAR-100 from the official python files, with their own labels or human ones."""

import codecs
import io
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.arrays import Ints
from noiseproof.core.limits import check_members
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
from noiseproof.noise.human import CIFAR10N, CIFAR100N, CIFARN

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
FOLDERS = {10: "cifar-10-batches-py", 100: "cifar-100-python"}


def _register_files(classes: int, md5: str, human_md5: str) -> None:
    archive = f"cifar-{classes}-python.tar.gz"
    human = f"CIFAR-{classes}_human.pt"
    folder = FOLDERS[classes]
    images = Download(f"https://www.cs.toronto.edu/~kriz/{archive}", md5, archive, folder)
    labels = Download(
        f"https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/{human}",
        human_md5,
        f"cifar-n/{human}",
    )
    human_places = (f"cifar-n/{human}", human)
    FILES[f"cifar{classes}"] = OfficialFiles(((folder,),), (images,))
    FILES[f"cifar{classes}n"] = OfficialFiles(((folder,), human_places), (images, labels))


_register_files(10, "c58f30108f718f92721af3b95e74349a", "96644db5574813cae939af5f7f2a0aec")
_register_files(100, "eb9058c3a382ffc7106e4002c42a8d85", "a67b45c1d7992051865b5c755bd68bb1")
FILES["cifar10h"] = OfficialFiles(
    (("cifar10h-counts.npy", "cifar10h.npz"), (FOLDERS[10],)),
    request=(
        "Download data/cifar10h-counts.npy of https://github.com/jcpeterson/cifar-10h and put it"
        " next to the folder cifar-10-batches-py"
    ),
)


class BatchUnpickler(pickle.Unpickler):
    """Reads dicts, lists, words, numbers and arrays of bytes, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "multiarray._reconstruct": np.empty(0).__reduce__()[0],
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": _byte_dtype,
            "_codecs.encode": codecs.encode,
        }
        # numpy.core of NumPy 1, numpy._core of NumPy 2
        full_name = f"{module}.{name}".removeprefix("numpy.core.").removeprefix("numpy._core.")
        if full_name not in allowed:
            raise pickle.UnpicklingError(f"a call of {module}.{name}")
        return allowed[full_name]


def _byte_dtype(code: str | bytes, *_: object) -> np.dtype[Any]:
    """Return the type of bytes: an array of another one could claim to hold addresses."""
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"an array of {code!r}, not of bytes")
    return np.dtype("u1")


def _unpickle(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"Expected the file {path}, found none. {AGAIN}")
    return BatchUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()


def read_batch(path: Path, num_rows: int, key: str = "labels") -> tuple[NDArray[np.uint8], Ints]:
    """Read the pixels (N, 3072) and the labels (N,) under ``key`` of one python batch."""
    try:
        batch = _unpickle(path)
        pixels = batch[b"data"]
        labels = batch[key.encode()]
        # lists in lists may be small in a file and endless in memory
        if not all(type(label) is int for label in labels):
            raise ValueError("labels that are not integers")
        if pixels.shape != (num_rows, PIXELS) or len(labels) != num_rows:
            raise ValueError(f"pixels of shape {pixels.shape} and {len(labels)} labels")
        return pixels, np.array(labels, dtype=np.int64)
    except FileNotFoundError:
        raise
    except Exception as error:  # an unpickler may raise anything on damaged bytes
        raise ValueError(
            f"Expected a CIFAR python batch of {num_rows} images in {path}, got {error!r}. {AGAIN}"
        ) from error


def _read_split(paths: Sequence[Path], num_rows: int, key: str = "labels") -> Split:
    batches = [read_batch(path, num_rows, key) for path in paths]
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
    return Split(torch.from_numpy(pixels), labels, clean=labels)


@DATASETS.register("cifar10")
def cifar10(data_dir: PathLike | None = None) -> Dataset:
    """60 000 photographs of 10 classes, 32 × 32 (Krizhevsky 2009)."""
    folder = find("cifar10", data_dir)
    train = _read_split([folder / f"data_batch_{i}" for i in range(1, 6)], 10_000)
    return Dataset("cifar10", CIFAR10_CLASSES, train, _read_split([folder / "test_batch"], 10_000))


@DATASETS.register("cifar100")
def cifar100(data_dir: PathLike | None = None, labels: str = "fine") -> Dataset:
    """60 000 photographs of 100 classes; ``labels`` is ``fine`` or ``coarse`` (20 superclasses)."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"Expected `labels` to be fine or coarse, got {labels!r}.")
    folder = find("cifar100", data_dir)
    try:
        names = _unpickle(folder / "meta")[f"{labels}_label_names".encode()]
        classes = tuple(name.decode("ascii") for name in names)
    except FileNotFoundError:
        raise
    except Exception as error:  # as above
        raise ValueError(
            f"Expected the class names in {folder / 'meta'}, got {error!r}. {AGAIN}"
        ) from error
    train = _read_split([folder / "train"], 50_000, f"{labels}_labels")
    return Dataset(
        "cifar100", classes, train, _read_split([folder / "test"], 10_000, f"{labels}_labels")
    )


@DATASETS.register("cifar10n")
def cifar10n(data_dir: PathLike | None = None, labels: str = "worst") -> Dataset:
    """CIFAR-10 with human labels: ``aggregate``, ``random1``, …, ``worst`` (Wei et al. 2022)."""
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
    """CIFAR-10's test images with soft labels by about 51 people each (Peterson et al. 2019).

    The test images are the first 10 000 of CIFAR-10's training images.
    """
    soft = read_counts(find("cifar10h", data_dir))
    data = cifar10(data_dir)
    assert data.test is not None
    train = replace(data.test, y=soft.argmax(1), soft=soft)
    first = torch.arange(10_000)
    test = Split(take(data.train.x, first), data.train.y[first])
    return Dataset("cifar10h", data.classes, train, test)


def read_counts(path: Path) -> Tensor:
    """Read the shares of people's labels of each image, (10 000, 10)."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                check_members(archive, path, {"counts.npy"})
        content = np.load(path, allow_pickle=False)
        counts = content["counts"] if path.suffix == ".npz" else content
        soft = soft_labels(counts, "counts") if counts.shape == (10_000, 10) else None
        if soft is None:
            raise ValueError(f"{counts.dtype} of shape {counts.shape}")
    except Exception as error:  # a broken or hostile header can raise anything
        raise ValueError(
            f"Expected the counts (10000, 10) of CIFAR-10H in {path}, got {error!r}. {AGAIN}"
        ) from error
    return soft
