"""Open-set noise: images that show none of the classes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.noise.base import Count, NoiseModel, NoisyLabels, check_rate, register, select, uniform


@dataclass(frozen=True, eq=False, repr=False)
class OpenSetLabels(NoisyLabels):
    """The labels, all as they were, and which image of another data set stands in which row (clean label −1)."""

    rows: Tensor = field(kw_only=True)  # (M,) int64, ascending
    foreign: Tensor = field(kw_only=True)  # (M,) int64: row of the other data set, none twice

    def apply(self, images: Tensor, foreign_images: Tensor) -> Tensor:
        """``images`` (N, …) with ``foreign_images[foreign]`` in ``rows``; the argument is left as it is."""
        if len(images) != len(self.given):
            raise ValueError(f"Expected {len(self.given)} images, one for each label, got {len(images)}.")
        if images.shape[1:] != foreign_images.shape[1:] or images.dtype != foreign_images.dtype:
            raise ValueError(
                f"Expected foreign images as the others, {images.dtype} {tuple(images.shape[1:])}, "
                f"got {foreign_images.dtype} {tuple(foreign_images.shape[1:])}. Resize or convert them first."
            )
        if len(self.foreign) and int(self.foreign.max()) >= len(foreign_images):
            raise ValueError(
                f"Expected more than {int(self.foreign.max())} foreign images, got {len(foreign_images)}. "
                "Set the `pool` of the noise model to their number."
            )
        mixed = images.clone()
        mixed[self.rows] = foreign_images[self.foreign].to(images.device)
        return mixed


@register("open-set")
@dataclass(frozen=True)
class OpenSet(NoiseModel):
    """Replace a rate of the images by another data set's, keeping their labels (paper 001: 40 % of CIFAR-10).

    Order of draws: one number a row to select it, one number for each image of the ``pool`` to order them.

    >>> noisy = OpenSet(0.5, pool=3).corrupt([0, 1, 0, 1], generator=0)
    >>> noisy.given, noisy.clean
    (tensor([0, 1, 0, 1]), tensor([ 0, -1, -1,  1]))
    >>> noisy.apply(torch.zeros(4, 1), torch.ones(3, 1)).flatten()
    tensor([0., 1., 1., 0.])

    Args:
        rate: share of the images to replace.
        count: how they are selected; paper 001 replaces a ``total``.
        pool: number of images in the other data set (CIFAR-100's training set by default).
    """

    rate: float
    count: Count = "total"
    pool: int = 50_000

    def __post_init__(self) -> None:
        check_rate(self.rate, self.count)
        check_count("pool", self.pool, 1)

    def draw(
        self, clean: Tensor, num_classes: int, generator: torch.Generator | None, features: Tensor | None
    ) -> OpenSetLabels:
        rows = select(clean, num_classes, self.rate, self.count, generator).nonzero().squeeze(1)
        if len(rows) > self.pool:
            raise ValueError(
                f"Expected a `pool` of at least {len(rows)} images to replace as many, got {self.pool}. "
                "Lower the rate or use a larger data set."
            )
        foreign = uniform(generator, self.pool).argsort(stable=True)[: len(rows)]
        truth = clean.index_fill(0, rows, -1)
        return OpenSetLabels(clean, truth, num_classes, str(self), self.rate, rows=rows, foreign=foreign)
