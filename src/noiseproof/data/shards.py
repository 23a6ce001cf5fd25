"""WebDataset shards: tar files of ``KEY.jpg`` and ``KEY.cls``, read sequentially and split over a
cluster.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from noiseproof.core.checks import check_count
from noiseproof.core.limits import check_limit
from noiseproof.data.base import Split
from noiseproof.data.images import SUFFIXES, Fit, ImageFiles, decode
from noiseproof.data.sources import PathLike

AGAIN = "Copy the shard again, or remove it from the list."


def _files(path: Path) -> Iterator[tuple[str, str, IO[bytes]]]:
    """Key, suffix and content of every file: ``train/0012.jpg`` has the key ``train/0012``."""
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                check_limit("member_bytes", member.size, "bytes", member.name)
                name = PurePosixPath(member.name)
                stem, _, suffix = name.name.partition(".")
                yield str(name.with_name(stem)), f".{suffix.lower()}", file


def read_shard_labels(path: Path) -> list[int]:
    """Return the labels of a shard in order, without reading its images."""
    images = []
    labels = {}
    try:
        for key, suffix, file in _files(path):
            if suffix == ".cls":
                labels[key] = int(file.read())
            elif suffix in SUFFIXES:
                images.append(key)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise ValueError(
            f"Expected a tar shard of images and .cls labels in {path}, got {error}. {AGAIN}"
        ) from error
    if set(images) != set(labels) or len(images) != len(labels) or not images:
        raise ValueError(
            f"Expected one image and one .cls file for each key in {path}, "
            f"got {len(images)} images and {len(labels)} labels. {AGAIN}"
        )
    return [labels[key] for key in images]


class Shards(IterableDataset[tuple[Tensor, int, int]]):
    """Images, given labels and row numbers; each shard is read by one worker process of one
    machine.

    Rows are numbered across the shards in the order of ``paths``.

    Args:
        paths: of the shards.
        labels: replace the labels of the files, by noisy ones for example.
        size, fit: as in ``ImageFiles``.
        seed: shuffles shards and (within a buffer) samples by the epoch; by default they are in
            order.
        buffer: encoded samples that are shuffled.
        rank, world: the number of this machine, and of all.
    """

    def __init__(
        self,
        paths: Sequence[PathLike],
        *,
        labels: Tensor | None = None,
        size: int = 256,
        fit: Fit = "crop",
        seed: int | None = None,
        buffer: int = 1000,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.paths = [Path(path) for path in paths]
        if not 0 <= rank < world or len(self.paths) < world:
            raise ValueError(
                "Expected a rank below the number of machines, and a shard for each, "
                f"got rank {rank} of {world} and {len(self.paths)} shards. Write smaller shards."
            )
        found = [read_shard_labels(path) for path in self.paths]
        # row number of the first sample of each shard
        self.first = np.cumsum([0, *map(len, found)])
        if labels is None:
            labels = torch.tensor([label for part in found for label in part])
        self.labels = labels
        if len(self.labels) != self.first[-1]:
            raise ValueError(
                f"Expected {self.first[-1]} labels, one for each image, got {len(self.labels)}."
            )
        self.size = size
        self.fit: Fit = fit
        self.seed = seed
        self.buffer = check_count("buffer", buffer, 1)
        self.rank = rank
        self.world = world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the order of the next iteration depends on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        worker = get_worker_info()
        workers = worker.num_workers if worker else 1
        number = worker.id if worker else 0
        order = np.arange(len(self.paths))
        if self.seed is not None:  # the same order everywhere, so that each shard is read once
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        samples = self._read(order[self.rank :: self.world][number::workers].tolist())
        if self.seed is not None:
            samples = self._shuffle(samples, self.rank * workers + number)
        for blob, row, path in samples:
            image = decode(blob, self.size, self.fit, f"{path}, row {row}")
            yield image, int(self.labels[row]), row

    def _read(self, shards: Iterable[int]) -> Iterator[tuple[bytes, int, Path]]:
        for shard in shards:
            row = int(self.first[shard])
            path = self.paths[shard]
            for _, suffix, file in _files(path):
                if suffix in SUFFIXES:
                    yield file.read(), row, path
                    row += 1

    def _shuffle(
        self, samples: Iterator[tuple[bytes, int, Path]], reader: int
    ) -> Iterator[tuple[bytes, int, Path]]:
        """Samples in random order, drawn from a buffer of encoded ones."""
        random = np.random.default_rng([self.seed or 0, self.epoch, reader])
        pool: list[tuple[bytes, int, Path]] = []
        for sample in samples:
            pool.append(sample)
            if len(pool) >= self.buffer:
                yield pool.pop(int(random.integers(len(pool))))
        random.shuffle(pool)
        yield from pool


def write_shards(data: Split, folder: PathLike, *, per_shard: int = 10_000) -> list[Path]:
    """Pack image files and their labels into shards without decoding them; return the paths."""
    if not isinstance(data.x, ImageFiles):
        raise TypeError(f"Expected image files to pack, got {type(data.x).__name__}.")
    check_count("per_shard", per_shard, 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for start in range(0, len(data), per_shard):
        paths.append(Path(folder) / f"shard-{len(paths):06d}.tar")
        with tarfile.open(paths[-1], "w") as tar:
            for row in range(start, min(start + per_shard, len(data))):
                file = data.x.path(row)
                tar.add(file, f"{row:09d}{file.suffix}")
                label = tarfile.TarInfo(f"{row:09d}.cls")
                content = str(int(data.y[row])).encode()
                label.size = len(content)
                tar.addfile(label, io.BytesIO(content))
    return paths
