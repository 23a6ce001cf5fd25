"""The names of the datasets, and where their official files are looked for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from noiseproof.core.grammar import format_call
from noiseproof.core.registry import Registry
from noiseproof.data.base import Dataset

DATASETS: Registry[Dataset] = Registry("dataset", returns=Dataset)

PathLike = str | os.PathLike[str]

# Where each dataset's files may be: relative to the data folder, the name of that folder itself, or absolute. One place
# of each group must be there.
_CIFAR10 = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
_CIFAR100 = ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz")
PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "mnist": (("MNIST/raw", "MNIST", "mnist"),),
    "fashion-mnist": (("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "/usr/share/datasets/fashion-mnist"),),
    "cifar10": (_CIFAR10,),
    "cifar100": (_CIFAR100,),
    "cifar10n": (_CIFAR10, ("cifar-n/CIFAR-10_human.pt", "CIFAR-10_human.pt")),
    "cifar100n": (_CIFAR100, ("cifar-n/CIFAR-100_human.pt", "CIFAR-100_human.pt")),
    "animal10n": (("ANIMAL-10N", "animal10n", "Animal-10N", "animal-10n"),),
    "clothing1m": (("clothing1M", "Clothing1M", "clothing1m"),),
    "webvision": (("webvision", "WebVision", "webvision1.0"),),
}
MARKS = {"webvision": "info"}  # what the folder must hold, since others bear its name


def data_root(data_dir: PathLike | None = None) -> Path:
    """The folder of the official files: ``data_dir``, else ``$NOISEPROOF_DATA``, else ``~/.cache/noiseproof``."""
    return Path(data_dir or os.environ.get("NOISEPROOF_DATA") or "~/.cache/noiseproof").expanduser()


def find(name: str, data_dir: PathLike | None, group: int = 0, remedy: str = "") -> Path:
    """The first place of a group of ``name``'s that exists."""
    root, places = data_root(data_dir), PLACES[name][group]
    for place in places:
        path = root if place == root.name else root / place
        if (path / MARKS.get(name, "")).exists():
            return path
    raise FileNotFoundError(
        f"Expected the files of {name} in {' or '.join(places)} under {root}, found none of them. "
        + (remedy or f"Run `noiseproof data fetch {name}`, or set data_dir or NOISEPROOF_DATA to where they are.")
    )


def get_dataset(spec: str = "digits", data_dir: PathLike | None = None, **options: Any) -> Dataset:
    """Load a dataset by its name and options.

    >>> data = get_dataset("two-moons:n=100")
    >>> data.train.x.shape, data.classes
    (torch.Size([100, 2]), ('upper', 'lower'))
    """
    name, params = DATASETS.parse(spec, options)
    is_plain = all(isinstance(value, str | int | float | list | None) for value in params.values())
    written = format_call(name, params) if is_plain else ""
    if data_dir is not None and "data_dir" in DATASETS.parameters(name):
        params["data_dir"] = data_dir
    return replace(DATASETS.create(name, **params), spec=written)
