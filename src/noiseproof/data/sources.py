"""The names of the datasets, and where their official files are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noiseproof.core.registry import Registry, parse_call
from noiseproof.data.base import Dataset

DATASETS: Registry[Dataset] = Registry("dataset")

PathLike = str | os.PathLike[str]


def data_root(data_dir: PathLike | None = None) -> Path:
    """The folder of the official files: ``data_dir``, else ``$NOISEPROOF_DATA``, else ``~/.cache/noiseproof``."""
    return Path(data_dir or os.environ.get("NOISEPROOF_DATA") or "~/.cache/noiseproof").expanduser()


def find(name: str, data_dir: PathLike | None, places: Iterable[str], contains: str = "", remedy: str = "") -> Path:
    """The first of ``places`` under the data folder that exists (and holds the file ``contains``).

    A place is a path relative to the data folder, the name of the data folder itself, or an absolute path.
    """
    root, places = data_root(data_dir), list(places)
    for place in places:
        path = root if place == root.name else root / place
        if (path / contains).exists():
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
    name, params = parse_call(spec)
    params |= options
    if data_dir is not None and "data_dir" in DATASETS.parameters(name):
        params["data_dir"] = data_dir
    return DATASETS.create(name, **params)
