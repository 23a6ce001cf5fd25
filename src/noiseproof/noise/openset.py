"""Open-set noise: images that show none of the classes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.noise.base import (
    Count,
    NoiseModel,
    NoisyLabels,
    as_generator,
    check_rate,
    register,
    select,
    uniform,
)


@dataclass(frozen=True, eq=False, repr=False)
class OpenSetLabels(NoisyLabels):
    """The labels, all as they were, and the rows whose images another data set replaces (clean label −1)."""

    rows: Tensor = field(kw_only=True)  # (M,) int64, ascending
    seed: int = field(kw_only=True)  # of the choice of foreign images
    pool: int | None = field(kw_only=True)

    def foreign(self, available: int) -> Tensor:
        """Which of ``available`` foreign images stand in ``rows``, (M,) int64, none twice."""
        pool = available if self.pool is None else self.pool
        if not len(self.rows) <= pool <= available:
            wanted = len(self.rows) if self.pool is None else max(self.pool, len(self.rows))
            raise ValueError(
                f"Expected at least {wanted} foreign images, got {min(pool, available)}. "
                "Use a larger data set, or lower `pool` or `rate`."
            )
        return uniform(as_generator(self.seed), pool).argsort(stable=True)[: len(self.rows)]

    def apply(self, images: Tensor, foreign_images: Tensor) -> Tensor:
        """``images`` (N, …) with foreign ones in ``rows``; the argument is left as it is."""
        if len(images) != len(self.given):
            raise ValueError(f"Expected {len(self.given)} images, one for each label, got {len(images)}.")
        if images.shape[1:] != foreign_images.shape[1:] or images.dtype != foreign_images.dtype:
            raise ValueError(
                f"Expected foreign images as the others, {images.dtype} {tuple(images.shape[1:])}, "
                f"got {foreign_images.dtype} {tuple(foreign_images.shape[1:])}. Resize or convert them first."
            )
        mixed = images.clone()
        mixed[self.rows] = foreign_images[self.foreign(len(foreign_images))].to(images.device)
        return mixed


@register("open-set")
@dataclass(frozen=True)
class OpenSet(NoiseModel):
    """Replace a rate of the images by another data set's, keeping their labels (the SLN paper: 40 % of CIFAR-10).

    Order of draws: one number a row to select it, one number that seeds the choice of the foreign images.

    >>> noisy = OpenSet(0.5).corrupt([0, 1, 0, 1], generator=0)
    >>> noisy.given, noisy.clean
    (tensor([0, 1, 0, 1]), tensor([ 0, -1, -1,  1]))
    >>> noisy.apply(torch.zeros(4, 1), torch.ones(3, 1)).flatten()
    tensor([0., 1., 1., 0.])

    Args:
        rate: share of the images to replace.
        count: how they are selected; the SLN paper replaces a ``total``.
        pool: take the foreign images from the first ``pool`` of the other data set; by default from all of them.
    """

    rate: float
    count: Count = "total"
    pool: int | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate, self.count)
        if self.pool is not None:
            check_count("pool", self.pool, 1)

    def draw(
        self, clean: Tensor, num_classes: int, generator: torch.Generator | None, features: Tensor | None
    ) -> OpenSetLabels:
        rows = select(clean, num_classes, self.rate, self.count, generator).nonzero().squeeze(1)
        seed = int(uniform(generator, 1) * 2**32)
        truth = clean.index_fill(0, rows, -1)
        return OpenSetLabels(clean, truth, num_classes, str(self), self.rate, rows=rows, seed=seed, pool=self.pool)
