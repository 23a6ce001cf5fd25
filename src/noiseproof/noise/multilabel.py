"""Noise on rows with several labels: labels (N, K) are 0 or 1, and each of them may be wrong by
itself.

Order of draws: one number for each row and class, row by row; ``single-positive`` draws one for
each row.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from noiseproof.core.checks import check_number
from noiseproof.core.random import uniform
from noiseproof.noise.base import NoiseModel, register

Rates = float | Sequence[float]


class _Flips(NoiseModel):
    """Labels of a row are lost and others appear, each by itself, with the rates in the fields of a
    subclass: numbers, or lists with one for each class.
    """

    multilabel = True
    nominal = None  # the share of wrong labels depends on how many there are

    def __post_init__(self) -> None:
        for name, rates in vars(self).items():
            for rate in rates if isinstance(rates, Sequence) else [rates]:
                remedy = "It is a number, or a list with one for each class."
                check_number(name, rate, "[0, 1]", remedy)

    @property
    @abstractmethod
    def rates(self) -> tuple[Rates, Rates]:
        """Of labels that are lost, and of labels that appear."""

    @property
    def classes(self) -> int | None:
        lengths = {len(rates) for rates in self.rates if isinstance(rates, Sequence)}
        if len(lengths) > 1:
            raise ValueError(
                f"Expected as many rates in `missing` as in `added`, got {sorted(lengths)}."
            )
        return next(iter(lengths), None)

    def transition(self, num_classes: int) -> Tensor:
        self._check_classes(num_classes)
        missing, added = (
            torch.as_tensor(rates, dtype=torch.float64).expand(num_classes) for rates in self.rates
        )
        return torch.stack([1 - added, added, missing, 1 - missing], 1).view(num_classes, 2, 2)

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        T = self.transition(num_classes)
        flip = torch.where(clean == 1, T[:, 1, 0], T[:, 0, 1])  # (N, K)
        return torch.where(uniform(generator, *clean.shape) < flip, 1 - clean, clean)


@register("label-flips")
@dataclass(frozen=True)
class LabelFlips(_Flips):
    """Labels of a row are lost with probability ``missing`` and others appear with ``added``, each
    by itself.

    Rates are numbers, or lists with one for each class: T[k] = [[1 − added_k, added_k], [missing_k,
    1 − missing_k]].

    >>> noisy = LabelFlips(missing=1, added=[0, 1]).corrupt([[1, 0], [0, 0]], generator=0)
    >>> noisy.given.tolist()
    [[0, 1], [0, 1]]
    """

    missing: Rates = 0.0
    added: Rates = 0.0

    @property
    def rates(self) -> tuple[Rates, Rates]:
        return self.missing, self.added


@register("missing-labels")
@dataclass(frozen=True)
class MissingLabels(_Flips):
    """Each label of a row is lost with probability ``rate``, a number or one for each class; none
    is added.

    The labels that are left are right, and a class without one says nothing: positive and
    unlabelled data, selected completely at random (Elkan & Noto 2008).
    """

    rate: Rates

    @property
    def rates(self) -> tuple[Rates, Rates]:
        return self.rate, 0.0


@register("single-positive")
@dataclass(frozen=True)
class SinglePositive(NoiseModel):
    """One label of each row is left, drawn from its labels with equal chances (Cole et al.
    2021).
    """

    multilabel = True

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        # which of the labels, counted from 0
        chosen = (uniform(generator, len(clean)) * clean.sum(1)).floor()
        return ((clean.cumsum(1) == chosen[:, None] + 1) & (clean == 1)).long()
