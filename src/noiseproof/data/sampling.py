"""Sampling of the rows of an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from noiseproof.core.checks import check_count
from noiseproof.data.base import derive_generator, shuffled


class ClassBalanced(Sampler[int]):
    """The same number of rows of each given class in every epoch, in an order that depends on the seed and the epoch.

    SLN paper, section 4.4, on Clothing1M: ``per_class=18976`` (its smallest class; the LN paper does the same). NAL
    paper, B.3: 2000 batches of 64 an epoch, ``total=2000 * 64``; a remainder goes to random classes. Rows repeat only
    in classes that are too small.
    """

    def __init__(
        self, labels: Tensor, *, per_class: int | None = None, total: int | None = None, seed: int = 0
    ) -> None:
        if (per_class is None) == (total is None):
            raise ValueError(f"Expected either `per_class` or `total`, got {per_class!r} and {total!r}.")
        if len(labels) == 0:
            raise ValueError("Expected at least one label to draw rows by, got none.")
        by_class = torch.split(labels.argsort(stable=True), torch.bincount(labels).tolist())
        self.members = [indices for indices in by_class if len(indices)]  # of the classes that have rows
        if total is None:
            total = len(self.members) * check_count("per_class", per_class, 1)
        self.total = check_count("total", total, 1)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.epoch).tolist())

    def draw(self, epoch: int) -> Tensor:
        """The row numbers of ``epoch``, (total,) int64."""
        generator = derive_generator(self.seed, epoch)
        share, remainder = divmod(self.total, len(self.members))
        gets_one_more = set(shuffled(len(self.members), generator)[:remainder].tolist())
        parts = []
        for k, members in enumerate(self.members):
            count = share + (k in gets_one_more)
            rounds = [members[shuffled(len(members), generator)] for _ in range(-(-count // len(members)))]
            parts.append(torch.cat([members[:0], *rounds])[:count])
        drawn = torch.cat(parts)
        return drawn[shuffled(len(drawn), generator)]
