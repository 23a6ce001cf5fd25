"""Noise that depends on the class alone: symmetric, asymmetric, any matrix.

Published rates follow different conventions. Which model and which ``count`` each source used:

    source                   symmetric              asymmetric                  CIFAR-100, asymmetric
    APL, ALFs, the curriculum paper on CIFAR  symmetric, equal       per-class                   asymmetric-blocks,
    draws Patrini                  symmetric, draws       draws                       asymmetric-blocks, draws
    Co-teaching              symmetric, draws       –                           pairflip
    LN (LN paper) on CIFAR        symmetric-all, draws   draws                       asymmetric-next
    LN (LN paper) on MNIST        symmetric-all, total   per-class                   –
    SLN (SLN paper)                symmetric, draws       draws                       asymmetric-next
    logit bias (bias paper)         symmetric-all, draws   –                           –
    NAL (NAL paper), DivideMix     symmetric-all, total   total: unmapped stay clean  asymmetric-blocks, total (NAL)
    ELR                      symmetric-all, total   per-class                   asymmetric-blocks, draws

Asymmetric on MNIST is ``asymmetric-mnist``, on CIFAR-10 ``asymmetric-cifar10``, for each of them. ALFs on MNIST draws
from the matrix, as Patrini. The curriculum paper says that it follows APL, ALFs and Patrini. The SLN paper's own labels
are in files (``file:path=…``) and look like draws; the bias paper does not say whether it draws or counts. The
transition matrix is that of a
single label, whatever the ``count``.

Order of draws: one number a row to select it, then, if symmetric, one number a row for its new class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.checks import check_count, check_transition
from noiseproof.noise.base import NOISES, Count, NoiseModel, NoisyLabels, check_rate, register, select, uniform

# The coarse class of each of CIFAR-100's fine classes, as in its `train` file.
CIFAR100_SUPERCLASS = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip


@register("none")
@dataclass(frozen=True)
class Clean(NoiseModel):
    """No noise: every label is given as it is."""

    nominal = 0.0

    def transition(self, num_classes: int) -> Tensor:
        return torch.eye(self._check_classes(num_classes), dtype=torch.float64)

    def draw(
        self, clean: Tensor, num_classes: int, generator: torch.Generator | None, features: Tensor | None
    ) -> NoisyLabels:
        return self._labels(clean.clone(), clean, num_classes)


@dataclass(frozen=True)
class ClasswiseNoise(NoiseModel):
    """Select a ``rate`` of the rows, by draws or by an exact ``count``, and give those another label."""

    rate: float
    count: Count = "draws"
    fewest_classes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_rate(self.rate, self.count)

    @abstractmethod
    def replace(self, clean: Tensor, num_classes: int, generator: torch.Generator | None) -> Tensor:
        """The label that each row gets if it is selected, (N,)."""

    def draw(
        self, clean: Tensor, num_classes: int, generator: torch.Generator | None, features: Tensor | None
    ) -> NoisyLabels:
        selected = select(clean, num_classes, self.rate, self.count, generator)
        given = torch.where(selected, self.replace(clean, num_classes, generator), clean)
        return self._labels(given, clean, num_classes)


@register("symmetric")
@dataclass(frozen=True)
class Symmetric(ClasswiseNoise):
    """Uniform over the *other* classes: T[i, i] = 1 − r, T[i, j] = r/(K−1); a rate r is r.

    >>> print(Symmetric(0.4, count="total").corrupt([0, 1, 2, 0, 1], generator=0))
    symmetric:rate=0.4,count=total: 2 of 5 labels flipped, realised rate 40.00 % (nominal 40 %)
    """

    def transition(self, num_classes: int) -> Tensor:
        T = torch.full((self._check_classes(num_classes),) * 2, self.rate / (num_classes - 1), dtype=torch.float64)
        return T.fill_diagonal_(1 - self.rate)

    def replace(self, clean: Tensor, num_classes: int, generator: torch.Generator | None) -> Tensor:
        return (clean + 1 + _integers(generator, len(clean), num_classes - 1)) % num_classes


@register("symmetric-all")
@dataclass(frozen=True)
class SymmetricAll(ClasswiseNoise):
    """Uniform over *all* classes, the true one too: T[i, j] = (1 − r)·[i = j] + r/K; a rate r is really r(K−1)/K."""

    def transition(self, num_classes: int) -> Tensor:
        T = torch.full((self._check_classes(num_classes),) * 2, self.rate / num_classes, dtype=torch.float64)
        T.diagonal().add_(1 - self.rate)
        return T

    def replace(self, clean: Tensor, num_classes: int, generator: torch.Generator | None) -> Tensor:
        return _integers(generator, len(clean), num_classes)


@dataclass(frozen=True)
class MappedNoise(ClasswiseNoise):
    """Each class has one class it is mistaken for: T = (1 − r)·I + r·[j = destination(i)]."""

    @abstractmethod
    def destination(self, num_classes: int) -> Tensor:
        """The class that a selected label of each class becomes, (K,); its own where the class stays clean."""

    def transition(self, num_classes: int) -> Tensor:
        T = torch.eye(self._check_classes(num_classes), dtype=torch.float64) * (1 - self.rate)
        T[torch.arange(num_classes), self.destination(num_classes)] += self.rate
        return T

    def replace(self, clean: Tensor, num_classes: int, generator: torch.Generator | None) -> Tensor:
        return self.destination(num_classes)[clean]


@register("asymmetric")
@dataclass(frozen=True)
class Asymmetric(MappedNoise):
    """Any map of classes, ``map={"7": 1, "5": 6, "6": 5}``; classes it does not name stay clean."""

    map: Mapping[Any, int] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.map, Mapping) or not self.map:
            raise ValueError(f'Expected `map` from classes to classes, as {{"7": 1}}, got {self.map!r}.')
        try:
            pairs = {int(str(key)): int(str(value)) for key, value in self.map.items()}  # str: 1.5 is no class
        except ValueError:
            raise ValueError(f"Expected `map` from class indices to class indices, got {self.map!r}.") from None
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
class TenClassNoise(MappedNoise):
    """A published map between ten classes."""

    pairs: ClassVar[Mapping[int, int]] = {}
    classes = 10

    def destination(self, num_classes: int) -> Tensor:
        return torch.tensor([self.pairs.get(c, c) for c in range(num_classes)])


@register("asymmetric-mnist")
@dataclass(frozen=True)
class AsymmetricMNIST(TenClassNoise):
    """Digits that look alike: 7 → 1, 2 → 7, 5 ↔ 6, 3 → 8 (LN paper; Patrini et al. 2017)."""

    pairs: ClassVar[Mapping[int, int]] = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}


@register("asymmetric-cifar10")
@dataclass(frozen=True)
class AsymmetricCIFAR10(TenClassNoise):
    """truck → automobile, bird → airplane, deer → horse, cat ↔ dog: half of the classes, so a rate r is really r/2."""

    pairs: ClassVar[Mapping[int, int]] = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}


@register("asymmetric-cifar10-no-truck")
@dataclass(frozen=True)
class AsymmetricCIFAR10NoTruck(TenClassNoise):
    """bird → airplane, deer → horse, cat ↔ dog: what the LN paper's text says (its code has truck → automobile too)."""

    pairs: ClassVar[Mapping[int, int]] = {2: 0, 4: 7, 3: 5, 5: 3}


@register("asymmetric-next")
@dataclass(frozen=True)
class AsymmetricNext(MappedNoise):
    """Each class becomes the next, i → i + 1 mod K: LN's and SLN's CIFAR-100, Co-teaching's "pairflip"."""

    def destination(self, num_classes: int) -> Tensor:
        return (torch.arange(num_classes) + 1) % num_classes


NOISES.register("pairflip")(AsymmetricNext)


@register("asymmetric-blocks")
@dataclass(frozen=True)
class AsymmetricBlocks(MappedNoise):
    """Each class becomes the next of its block of ``size`` labels: what released code runs as "within superclass".

    CIFAR-100's fine labels are alphabetical, so only 6 of these 100 flips stay inside the real superclass.
    """

    size: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("size", self.size, 2)

    def destination(self, num_classes: int) -> Tensor:
        if num_classes % self.size:
            raise ValueError(
                f"Expected the number of classes to be a multiple of {self.size}, got {num_classes}. Set `size`."
            )
        label = torch.arange(num_classes)
        return label - label % self.size + (label + 1) % self.size


@register("asymmetric-superclass")
@dataclass(frozen=True)
class AsymmetricSuperclass(MappedNoise):
    """CIFAR-100: each class becomes the next fine class of its *true* superclass, the last becomes the first."""

    classes = len(CIFAR100_SUPERCLASS)

    def destination(self, num_classes: int) -> Tensor:
        members: dict[int, list[int]] = {}
        for fine, coarse in enumerate(CIFAR100_SUPERCLASS):
            members.setdefault(coarse, []).append(fine)
        follower = {a: b for group in members.values() for a, b in zip(group, group[1:] + group[:1], strict=True)}
        return torch.tensor([follower[fine] for fine in range(num_classes)])


@register("matrix")
@dataclass(frozen=True, eq=False)
class Matrix(NoiseModel):
    """Any matrix T[i, j] = P(given j | true i): a tensor, nested lists, or a .npy or .csv file (no header line).

    Order of draws: one number a row, compared with the running sums of its class's row of T.

    >>> print(Matrix([[0.5, 0.5], [0, 1]]).corrupt([0, 0, 1, 1], generator=0))
    matrix:T=[[0.5, 0.5], [0, 1]]: 2 of 4 labels flipped, realised rate 50.00 % (no nominal rate)
    """

    T: Any

    def __post_init__(self) -> None:
        self._matrix  # noqa: B018 - refuse a bad matrix here, not at the first use

    @cached_property
    def _matrix(self) -> Tensor:
        T = self.T
        if isinstance(T, (str, Path)):
            T = _read_matrix(Path(T))
        try:
            with torch.device("cpu"):
                T = check_transition("T", T)
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
        self, clean: Tensor, num_classes: int, generator: torch.Generator | None, features: Tensor | None
    ) -> NoisyLabels:
        u = uniform(generator, len(clean))
        running = self._matrix.cumsum(1)
        running /= running[:, -1:].clone()  # ends at one exactly, above every u
        given = torch.empty_like(clean)
        rows = clean.argsort(stable=True)
        for label, own in enumerate(torch.split(rows, torch.bincount(clean, minlength=num_classes).tolist())):
            given[own] = torch.searchsorted(running[label], u[own], right=True)  # right: never a class of probability 0
        return self._labels(given, clean, num_classes)


def _integers(generator: torch.Generator | None, size: int, below: int) -> Tensor:
    """Uniform integers in 0 … below − 1; u·below < below in float64 too, because u ≤ 1 − 2⁻⁵³."""
    return (uniform(generator, size) * below).long()


def _read_matrix(path: Path) -> Any:
    if path.suffix not in (".npy", ".csv"):
        raise ValueError(f"Expected `T` in a .npy or .csv file, got {path}.")
    try:
        return np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
    except FileNotFoundError:
        raise FileNotFoundError(f"Expected the matrix `T` in {path}, which does not exist.") from None
    except Exception as error:  # a broken or hostile header can raise anything
        raise ValueError(f"Expected {path} to hold a square matrix of numbers and nothing else: {error}.") from None
