"""Noise that depends on the class only: symmetric, asymmetric, any matrix.

Published rates follow different conventions: docs/noise.md has the model and ``count`` of each
source. The transition matrix is of a single label, whatever the ``count``.

Order of draws: one number per row to select it, then, if symmetric, one number per row for its new
class.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from noiseproof.core.checks import check_transition, count, word
from noiseproof.core.random import uniform
from noiseproof.noise.base import (
    NOISES,
    Count,
    NoiseModel,
    rate_field,
    register,
    rows_by_class,
    select,
)

# The coarse class of each of CIFAR-100's fine classes, as in its `train` file.
_COARSE = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7
    6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10
    16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16
    12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""
CIFAR100_SUPERCLASS = tuple(map(int, _COARSE.split()))


def _next_within(groups: Sequence[int]) -> dict[int, int]:
    """Return the next member of each member's group, cyclically."""
    following = {}
    for member, group in enumerate(groups):
        others = [other for other, its_group in enumerate(groups) if its_group == group]
        place = others.index(member)
        following[member] = others[(place + 1) % len(others)]
    return following


@register("none")
@dataclass(frozen=True)
class Clean(NoiseModel):
    """No noise: the given labels are the clean ones."""

    nominal = 0.0

    def transition(self, num_classes: int) -> Tensor:
        return torch.eye(self._check_classes(num_classes), dtype=torch.float64)

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        return clean.clone()


@dataclass(frozen=True)
class ClasswiseNoise(NoiseModel):
    """Replace the labels of a share ``rate`` of the rows, selected by draws or by an exact
    ``count``.
    """

    rate: float = rate_field()
    count: Count = word(get_args(Count), "draws")
    min_classes = 2

    @abstractmethod
    def replace(self, clean: Tensor, num_classes: int, generator: Generator | None) -> Tensor:
        """Return the new label of each row, if it is selected, (N,)."""

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        selected = select(clean, num_classes, self.rate, self.count, generator)
        return torch.where(selected, self.replace(clean, num_classes, generator), clean)


@register("symmetric")
@dataclass(frozen=True)
class Symmetric(ClasswiseNoise):
    """Uniform over the *other* classes: T[i, i] = 1 − r, T[i, j] = r/(K−1); a rate r is r.

    >>> print(Symmetric(0.4, count="total").corrupt([0, 1, 2, 0, 1], generator=0))
    symmetric:rate=0.4,count=total: 2 of 5 labels flipped, realised rate 40.00 % (nominal 40 %)
    """

    def transition(self, num_classes: int) -> Tensor:
        T = torch.full(
            (self._check_classes(num_classes),) * 2,
            self.rate / (num_classes - 1),
            dtype=torch.float64,
        )
        return T.fill_diagonal_(1 - self.rate)

    def replace(self, clean: Tensor, num_classes: int, generator: Generator | None) -> Tensor:
        return (clean + 1 + _integers(generator, len(clean), num_classes - 1)) % num_classes


@register("symmetric-all")
@dataclass(frozen=True)
class SymmetricAll(ClasswiseNoise):
    """Uniform over *all* classes, the true one too: T[i, j] = (1 − r)·[i = j] + r/K; r(K−1)/K of
    labels are wrong.
    """

    def transition(self, num_classes: int) -> Tensor:
        T = torch.full(
            (self._check_classes(num_classes),) * 2, self.rate / num_classes, dtype=torch.float64
        )
        T.diagonal().add_(1 - self.rate)
        return T

    def replace(self, clean: Tensor, num_classes: int, generator: Generator | None) -> Tensor:
        return _integers(generator, len(clean), num_classes)


@dataclass(frozen=True)
class MappedNoise(ClasswiseNoise):
    """Each class is mistaken for one other class: T = (1 − r)·I + r·[j = destination(i)]."""

    @abstractmethod
    def destination(self, num_classes: int) -> Tensor:
        """Return the new class of the selected labels of each class, (K,).

        The same class if it stays clean.
        """

    def transition(self, num_classes: int) -> Tensor:
        T = torch.eye(self._check_classes(num_classes), dtype=torch.float64) * (1 - self.rate)
        T[torch.arange(num_classes), self.destination(num_classes)] += self.rate
        return T

    def replace(self, clean: Tensor, num_classes: int, generator: Generator | None) -> Tensor:
        return self.destination(num_classes)[clean]


@register("asymmetric")
@dataclass(frozen=True)
class Asymmetric(MappedNoise):
    """Any map of classes, ``map={"7": 1, "5": 6, "6": 5}``; other classes stay clean."""

    map: Mapping[Any, int] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.map, Mapping) or not self.map:
            raise ValueError(
                f'Expected `map` from classes to classes, as {{"7": 1}}, got {self.map!r}.'
            )
        try:
            # str: 1.5 is no class
            pairs = {int(str(key)): int(str(value)) for key, value in self.map.items()}
        except ValueError:
            raise ValueError(
                f"Expected `map` from class indices to class indices, got {self.map!r}."
            ) from None
        object.__setattr__(self, "map", pairs)

    def destination(self, num_classes: int) -> Tensor:
        named = {*self.map, *self.map.values()}
        if wrong := sorted(c for c in named if not 0 <= c < num_classes):
            raise ValueError(
                f"Expected `map` to name classes in 0 … {num_classes - 1}, got {wrong[0]}. "
                "Give num_classes where the data lacks samples of the last classes."
            )
        return torch.tensor([self.map.get(c, c) for c in range(num_classes)])


@dataclass(frozen=True)
class PublishedNoise(MappedNoise):
    """A published map between the classes of a dataset, ten unless a subclass has more."""

    pairs: ClassVar[Mapping[int, int]] = {}
    classes = 10

    def destination(self, num_classes: int) -> Tensor:
        return torch.tensor([self.pairs.get(c, c) for c in range(num_classes)])


@register("asymmetric-mnist")
@dataclass(frozen=True)
class AsymmetricMNIST(PublishedNoise):
    """Digits that look alike: 7 → 1, 2 → 7, 5 ↔ 6, 3 → 8 (LN paper; Patrini et al. 2017)."""

    pairs: ClassVar[Mapping[int, int]] = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}


@register("asymmetric-cifar10")
@dataclass(frozen=True)
class AsymmetricCIFAR10(PublishedNoise):
    """truck → automobile, bird → airplane, deer → horse, cat ↔ dog: half of the classes, so r/2 of
    labels are wrong.
    """

    pairs: ClassVar[Mapping[int, int]] = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}


@register("asymmetric-cifar10-no-truck")
@dataclass(frozen=True)
class AsymmetricCIFAR10NoTruck(PublishedNoise):
    """bird → airplane, deer → horse, cat ↔ dog: the text of the LN paper (its code has
    truck → automobile too).
    """

    pairs: ClassVar[Mapping[int, int]] = {2: 0, 4: 7, 3: 5, 5: 3}


@register("asymmetric-next")
@dataclass(frozen=True)
class AsymmetricNext(MappedNoise):
    """Each class becomes the next, i → i + 1 mod K: CIFAR-100 of LN and SLN, "pairflip" of
    Co-teaching.
    """

    def destination(self, num_classes: int) -> Tensor:
        return (torch.arange(num_classes) + 1) % num_classes


NOISES.register("pairflip", module=__name__)(AsymmetricNext)


@register("asymmetric-blocks")
@dataclass(frozen=True)
class AsymmetricBlocks(MappedNoise):
    """Each class becomes the next of its block of ``size`` labels: what released code calls "within
    superclass".

    CIFAR-100's fine labels are alphabetical, so only 6 of these 100 flips stay inside the real
    superclass.
    """

    size: int = count(2, 5)

    def destination(self, num_classes: int) -> Tensor:
        if num_classes % self.size:
            raise ValueError(
                f"Expected the number of classes to be a multiple of {self.size}, got"
                f" {num_classes}. Set `size`."
            )
        label = torch.arange(num_classes)
        return label - label % self.size + (label + 1) % self.size


@register("asymmetric-superclass")
@dataclass(frozen=True)
class AsymmetricSuperclass(PublishedNoise):
    """CIFAR-100: each class becomes the next fine class of its *true* superclass, the last becomes
    the first.
    """

    pairs: ClassVar[Mapping[int, int]] = _next_within(CIFAR100_SUPERCLASS)
    classes = len(CIFAR100_SUPERCLASS)


@register("matrix")
@dataclass(frozen=True, eq=False)
class Matrix(NoiseModel):
    """Any matrix T[i, j] = P(given j | true i): a tensor, nested lists, or a .npy or .csv file (no
    header line).

    Order of draws: one number per row, compared with the cumulative sums of its class's row of T.
    """

    T: Any

    def __post_init__(self) -> None:
        self._matrix  # noqa: B018 - check the matrix now, not at the first use

    @cached_property
    def _matrix(self) -> Tensor:
        T = self.T
        if isinstance(T, (str, Path)):
            T = _read_matrix(Path(T))
        try:
            with torch.device("cpu"):
                T = check_transition(T)
        except (TypeError, ValueError) as error:
            where = f"{self.T}: " if isinstance(self.T, (str, Path)) else ""
            raise ValueError(f"{where}{error}") from None
        return T / T.sum(1, keepdim=True)

    @property
    def classes(self) -> int:
        return self._matrix.shape[0]

    def transition(self, num_classes: int) -> Tensor:
        self._check_classes(num_classes)
        return self._matrix.clone()

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        u = uniform(generator, len(clean))
        running = self._matrix.cumsum(1)
        running /= running[:, -1:].clone()  # ends at one exactly, above every u
        given = torch.empty_like(clean)
        for label, rows in enumerate(rows_by_class(clean, num_classes)):
            # right: never a class of probability 0
            given[rows] = torch.searchsorted(running[label], u[rows], right=True)
        return given


def _integers(generator: Generator | None, size: int, below: int) -> Tensor:
    """Return uniform integers in 0 … below − 1; u·below < below in float64 too, because
    u ≤ 1 − 2⁻⁵³.
    """
    return (uniform(generator, size) * below).long()


def _read_matrix(path: Path) -> Any:
    if path.suffix not in (".npy", ".csv"):
        raise ValueError(f"Expected `T` in a .npy or .csv file, got {path}.")
    try:
        if path.suffix == ".csv":
            return np.loadtxt(path, delimiter=",", ndmin=2)
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Expected the matrix `T` in {path}, which does not exist."
        ) from None
    except Exception as error:  # a broken or hostile header can raise anything
        raise ValueError(
            f"Expected {path} to hold a square matrix of numbers and nothing else: {error}."
        ) from None
