"""The registry of datasets, and where the official files of each are found or downloaded from."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noiseproof.core.files import PATHS as PATHS
from noiseproof.core.files import PathLike as PathLike
from noiseproof.core.grammar import format_call
from noiseproof.core.registry import Registry
from noiseproof.data.base import Dataset


@dataclass(frozen=True)
class Download:
    """One official file: its address, checksum and path in the data folder, and the folder that it
    unpacks to.
    """

    url: str
    md5: str
    path: str
    folder: str | None = None


@dataclass(frozen=True)
class OfficialFiles:
    """Where the official files of a dataset may be, and how to get them.

    Each group of ``places`` lists alternatives, of which one must exist: a path below the data
    folder, the name of the data folder itself, or an absolute path.
    """

    places: tuple[tuple[str, ...], ...]
    downloads: tuple[Download, ...] = ()
    # how to get files that can't be downloaded automatically; ends in the name of their folder
    request: str = ""
    marker: str = ""  # what a place must contain, where folders of other things have the same name


DATASETS: Registry[Dataset] = Registry("dataset", returns=Dataset)
FILES: dict[str, OfficialFiles] = {}  # by dataset; those without files have no entry


def data_root(data_dir: PathLike | None = None) -> Path:
    """The folder of the official files: ``data_dir``, else ``$NOISEPROOF_DATA``, else
    ``~/.cache/noiseproof``.
    """
    return Path(data_dir or os.environ.get("NOISEPROOF_DATA") or "~/.cache/noiseproof").expanduser()


def find(name: str, data_dir: PathLike | None, group: int = 0) -> Path:
    """The first existing place of a group of the official files of ``name``."""
    root = data_root(data_dir)
    files = FILES[name]
    if root.is_file():
        raise FileNotFoundError(
            f"Expected `data_dir` or NOISEPROOF_DATA to be the folder with the files of {name}, got"
            f" the file {root}."
        )
    for place in files.places[group]:
        path = root if place == root.name else root / place
        if (path / files.marker).exists():
            return path
    get = how_to_get(name)
    if not files.request:
        get = f"Run {get}, or set `data_dir` or NOISEPROOF_DATA to where they are"
    raise FileNotFoundError(
        f"Expected the files of {name} in {' or '.join(files.places[group])} under {root}, found"
        f" none of them. {get}."
    )


def how_to_get(name: str) -> str:
    """The command that downloads a dataset, or how to ask for it."""
    return FILES[name].request or f"`noiseproof data fetch {name}`"


def get_dataset(spec: str = "digits", data_dir: PathLike | None = None, **options: Any) -> Dataset:
    """Load a dataset by its name and options.

    >>> data = get_dataset("two-moons:n=100")
    >>> data.train.x.shape, data.classes
    (torch.Size([100, 2]), ('upper', 'lower'))
    """
    if spec not in DATASETS and Path(spec).is_file():
        raise ValueError(
            f"Expected a dataset, got the file {spec}. Use table:table={spec},label=COLUMN."
        )
    name, params = DATASETS.parse(spec, options)
    is_plain = all(isinstance(value, str | int | float | list | None) for value in params.values())
    plain_spec = format_call(name, params) if is_plain else ""
    if data_dir is not None and "data_dir" in DATASETS.parameters(name):
        params["data_dir"] = data_dir
    return replace(DATASETS.create(name, **params), spec=plain_spec)
