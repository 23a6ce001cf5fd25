"""Which rows an epoch sees, where that is not every row once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from noiseproof.core.checks import check_count
from noiseproof.data.base import derive_generator, shuffled


class ClassBalanced(Sampler[int]):
    """As many rows of each given class in every epoch, in random order.

    SLN paper, section 4.4, on Clothing1M: ``per_class=18976`` (its smallest class; the LN paper does the same).
    NAL paper, B.3: 2000 batches of 64 an epoch, ``total=2000 * 64``; a remainder goes to classes drawn at random.
    No row comes twice unless its class is too small; then all its rows come equally often, but for the last round.
    An epoch's rows depend on the seed and its number only.
    """

    def __init__(
        self, labels: Tensor, *, per_class: int | None = None, total: int | None = None, seed: int = 0
    ) -> None:
        if (per_class is None) == (total is None):
            raise ValueError(f"Expected either `per_class` or `total`, got {per_class!r} and {total!r}.")
        if len(labels) == 0:
            raise ValueError("Expected at least one label to draw rows by, got none.")
        by_class = torch.split(labels.argsort(stable=True), torch.bincount(labels).tolist())
        self.members = [rows for rows in by_class if len(rows)]  # classes without rows have no share
        each = len(self.members)
        self.total = each * check_count("per_class", per_class, 1) if total is None else check_count("total", total, 1)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.epoch).tolist())

    def draw(self, epoch: int) -> Tensor:
        """The rows of ``epoch``, (total,) int64."""
        generator = derive_generator(self.seed, epoch)
        share, rest = divmod(self.total, len(self.members))
        favoured = set(shuffled(len(self.members), generator)[:rest].tolist())
        parts = []
        for k, rows in enumerate(self.members):
            wanted = share + (k in favoured)
            rounds = -(-wanted // len(rows))
            parts.append(
                torch.cat([rows[shuffled(len(rows), generator)] for _ in range(rounds)] or [rows[:0]])[:wanted]
            )
        drawn = torch.cat(parts)
        return drawn[shuffled(len(drawn), generator)]
