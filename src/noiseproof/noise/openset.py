"""Open-set noise: images that show none of the classes."""

from dataclasses import dataclass, field
from typing import get_args

from torch import Generator, Tensor

from noiseproof.core import checks
from noiseproof.core.random import as_generator, uniform
from noiseproof.noise.base import (
    Count,
    NoiseModel,
    NoisyLabels,
    rate_field,
    register,
    select,
)


@dataclass(frozen=True, eq=False, repr=False)
class OpenSetLabels(NoisyLabels):
    """The unchanged labels, and the rows whose images are replaced by another dataset's (clean
    label −1).
    """

    rows: Tensor = field(kw_only=True)  # (M,) int64, ascending
    seed: int = field(kw_only=True)  # of the choice of foreign images
    pool: int | None = field(kw_only=True)

    def foreign(self, available: int) -> Tensor:
        """Return the numbers of the foreign images in ``rows``, out of ``available``, (M,) int64,
        without repetition.
        """
        pool = available if self.pool is None else self.pool
        if not len(self.rows) <= pool <= available:
            required = max(self.pool or 0, len(self.rows))
            raise ValueError(
                f"Expected at least {required} foreign images, got {min(pool, available)}. "
                "Use a larger data set, or lower `pool` or `rate`."
            )
        return uniform(as_generator(self.seed), pool).argsort(stable=True)[: len(self.rows)]

    def apply(self, images: Tensor, foreign_images: Tensor) -> Tensor:
        """Return a copy of ``images`` (N, …) with foreign ones in ``rows``."""
        if len(images) != len(self.given):
            raise ValueError(
                f"Expected {len(self.given)} images, one for each label, got {len(images)}."
            )
        if images.shape[1:] != foreign_images.shape[1:] or images.dtype != foreign_images.dtype:
            raise ValueError(
                f"Expected foreign images like the others, {images.dtype}"
                f" {tuple(images.shape[1:])}, got {foreign_images.dtype}"
                f" {tuple(foreign_images.shape[1:])}. Resize or convert them first."
            )
        mixed = images.clone()
        mixed[self.rows] = foreign_images[self.foreign(len(foreign_images))].to(images.device)
        return mixed


@register("open-set")
@dataclass(frozen=True)
class OpenSet(NoiseModel):
    """Replace a share of the images by another dataset's, and keep their labels (SLN paper: 40 % of
    CIFAR-10).

    Order of draws: one number per row to select it, one number that seeds the choice of the foreign
    images.

    Args:
        rate: share of the images to replace.
        count: how they are selected; ``total`` in the SLN paper.
        pool: use only the first ``pool`` images of the other dataset; by default all of them.

    >>> noisy = OpenSet(0.5).corrupt([0, 1, 0, 1], generator=0)
    >>> noisy.given, noisy.clean
    (tensor([0, 1, 0, 1]), tensor([ 0, -1, -1,  1]))
    """

    rate: float = rate_field()
    count: Count = checks.word(get_args(Count), "total")
    pool: int | None = checks.count(1, None)

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> OpenSetLabels:
        rows = select(clean, num_classes, self.rate, self.count, generator).nonzero().squeeze(1)
        seed = int(uniform(generator, 1) * 2**32)
        truth = clean.index_fill(0, rows, -1)
        return OpenSetLabels(
            clean, truth, num_classes, str(self), self.rate, rows=rows, seed=seed, pool=self.pool
        )
