"""The base class of noise models, and the labels they return.

A seed gives the same labels on any machine (``core.random``).
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from noiseproof.core.checks import check_count, check_fields, check_labels, number
from noiseproof.core.grammar import NUMBER, format_call
from noiseproof.core.random import as_generator, uniform
from noiseproof.core.registry import Registry

Count = Literal["draws", "total", "per-class", "equal"]
NOISES: Registry[NoiseModel] = Registry("noise model")
C = TypeVar("C")


def rate_field() -> Any:
    """Return the field of a rate of wrong labels."""
    return number("[0, 1]", remedy="A rate of 40 % is 0.4.")


def register(name: str) -> Callable[[type[C]], type[C]]:
    """Class decorator: add a noise model, a dataclass of its parameters, under ``name``."""

    def add(cls: type[C]) -> type[C]:
        if not dataclasses.is_dataclass(cls):
            raise TypeError(
                f"Expected the noise model {name!r} to be a dataclass of its parameters, got a"
                f" plain class. Write @dataclass(frozen=True) between @register and {cls.__name__}."
            )
        return NOISES.register_class(name)(cls)

    return add


def get_noise(spec: str, data_dir: str | Path | None = None, **params: Any) -> NoiseModel:
    """Build a noise model from its spec; keyword arguments are the same parameters.

    ``data_dir`` is the folder of official files, unless the spec names another.

    >>> get_noise("symmetric:rate=0.4") == get_noise("symmetric", rate=0.4)
    True
    >>> noise = get_noise('asymmetric:rate=0.4,map={"5": 6}')
    >>> print(noise.corrupt([5, 6, 5, 7], generator=3))
    asymmetric:rate=0.4,map={"5": 6}: 1 of 4 labels flipped, realised rate 25.00 % (nominal 40 %)
    """
    if re.fullmatch(NUMBER, str(spec).strip()):
        rate = float(spec) / 100 if 1 < float(spec) <= 100 else float(spec)
        raise ValueError(
            f"Expected a noise model with its rate, got {spec}. Write symmetric:rate={rate:g}."
        )
    name, values = NOISES.parse(spec, params)
    if data_dir is not None and "folder" in NOISES.parameters(name):
        values.setdefault("folder", data_dir)
    return NOISES.create(name, **values)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NoisyLabels:
    """The labels that a noise model returns, and the clean labels."""

    given: Tensor  # (N,) int64; of rows with several labels (N, K), 0 or 1
    clean: Tensor  # the same; −1 where the image shows none of the classes
    num_classes: int
    noise: str  # the spec of the model
    nominal: float | None = None  # the requested rate, in the convention of the model
    # (N,) int64: the row of the data for each label; None: label i belongs to row i
    index: Tensor | None = None
    annotator: Tensor | None = None  # (N,) int64: who gave each label, where several did

    @property
    def is_flipped(self) -> Tensor:
        """Whether the given label differs from the clean one, bool, of the shape of ``given``."""
        return self.given != self.clean

    @property
    def rate(self) -> float:
        """The realised rate: the share of labels that are wrong."""
        return float(self.is_flipped.double().mean())

    def transition(self) -> Tensor:
        """Return the empirical matrix: T[i, j] = share of class i with label j.

        The identity for absent classes.

        Rows with several labels have one for each class, (K, 2, 2).
        """
        if self.given.dim() == 2:
            columns = zip(self.given.T, self.clean.T, strict=True)
            return torch.stack(
                [NoisyLabels(given, clean, 2, self.noise).transition() for given, clean in columns]
            )
        known = self.clean >= 0
        pairs = self.clean[known] * self.num_classes + self.given[known]
        counts = (
            torch.bincount(pairs, minlength=self.num_classes**2).view(self.num_classes, -1).double()
        )
        absent = counts.sum(1) == 0
        counts.diagonal()[absent] = 1
        return counts / counts.sum(1, keepdim=True)

    def __repr__(self) -> str:
        noise = self.noise if len(self.noise) <= 80 else f"{self.noise[:79]}…"
        nominal = "no nominal rate" if self.nominal is None else f"nominal {100 * self.nominal:g} %"
        flipped = int(self.is_flipped.sum())
        total = self.given.numel()
        return (
            f"{noise}: {flipped} of {total} labels flipped, realised rate {100 * self.rate:.2f} %"
            f" ({nominal})"
        )


class NoiseModel(ABC):
    """A model of label noise. A subclass is a dataclass of its parameters and implements
    ``draw``.
    """

    name = ""
    # what ``features`` must contain
    needs: ClassVar[Literal["inputs", "predictions"] | None] = None
    min_classes = 1
    multilabel = False  # whether it is for rows with several labels, (N, K)

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_fields(self)

    @property
    def classes(self) -> int | None:
        """The number of classes this model is made for; None: any."""
        return None

    @property
    def nominal(self) -> float | None:
        """The requested rate, if there is one."""
        rate: float | None = getattr(self, "rate", None)
        return rate

    @abstractmethod
    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor | NoisyLabels:
        """Return the labels for ``clean`` (N,) int64 in 0 … K−1, on the CPU.

        ``NoisyLabels`` if rows change as well.

        Models that are ``multilabel`` get and return (N, K) int64, 0 or 1.
        """

    def transition(self, num_classes: int) -> Tensor:
        """Return T[i, j] = P(given j | true i), (K, K) float64; rows sum to one."""
        raise TypeError(
            f"`{self.name}` has no transition matrix: its labels depend on more than the class. "
            "Use corrupt(…).transition() for the empirical matrix of a corruption."
        )

    def corrupt(
        self,
        labels: Any,
        *,
        generator: torch.Generator | int | None = None,
        features: Any = None,
        num_classes: int | None = None,
    ) -> NoisyLabels:
        """Corrupt the full vector of clean ``labels`` once.

        Args:
            labels: true classes, (N,) integers from 0; classes may have no sample. Of several
                labels per row, (N, K), 1 for each of them.
            generator: a ``torch.Generator`` on the CPU, or a seed; models that draw nothing need
                none.
            features: (N, …), for models that depend on each sample (see ``needs``); others ignore
                it.
            num_classes: by default that of the model or of the predictions, else the largest label
                plus one.
        """
        clean = _as_labels(labels, self.name, self.multilabel)
        if features is not None:
            features = (
                features if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features))
            )
            if features.dim() < 2 or len(features) != len(clean):
                raise ValueError(
                    f"Expected `features` of shape ({len(clean)}, …), one row a label, got"
                    f" {tuple(features.shape)}."
                )
        elif self.needs is not None:
            remedy = (
                f"`noiseproof train --noise {self}` computes them first, as does "
                "noiseproof.train.instance.averaged_predictions in Python."
                if self.needs == "predictions"
                else "Pass a tensor of them; inputs that are read from files have none."
            )
            raise ValueError(
                f"Expected `features`, because `{self.name}` depends on each sample's {self.needs},"
                f" got none. {remedy}"
            )
        if clean.dim() == 2:
            num_classes = clean.shape[1]
        if num_classes is None:
            predicted = features.shape[1] if self.needs == "predictions" else None
            num_classes = self.classes or predicted or max(int(clean.max()) + 1, 1)
        num_classes = self._check_classes(num_classes)
        check_labels(clean.flatten(), 2 if clean.dim() == 2 else num_classes)
        source = None if generator is None else as_generator(generator)
        with torch.device("cpu"):  # whatever torch.set_default_device is
            given = self.draw(clean, num_classes, source, features)
        return given if isinstance(given, NoisyLabels) else self._labels(given, clean, num_classes)

    def __str__(self) -> str:
        """Return the spec of this model: ``get_noise(str(noise))`` builds it again."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [(field, getattr(self, field.name)) for field in fields]
        changed = {
            f.name: v for f, v in values if f.default is dataclasses.MISSING or v != f.default
        }
        return format_call(self.name, changed)

    def _check_classes(self, num_classes: int) -> int:
        num_classes = check_count(
            "num_classes",
            num_classes,
            self.min_classes,
            "A label of a single class cannot be wrong: use `none`.",
        )
        if self.classes not in (None, num_classes):
            raise ValueError(
                f"`{self.name}` is made for {self.classes} classes, got {num_classes}."
            )
        return num_classes

    def _labels(
        self, given: Tensor, clean: Tensor, num_classes: int, index: Tensor | None = None
    ) -> NoisyLabels:
        return NoisyLabels(given, clean, num_classes, str(self), self.nominal, index)


def select(
    labels: Tensor, num_classes: int, rate: float, count: Count, generator: Generator | None
) -> Tensor:
    """Return the rows to corrupt, (N,) bool, from one uniform number u per row.

    A higher rate selects a superset.

    ``"draws"``: each row with probability r, u < r. The others select the rows with the smallest u:
    ``"total"`` ⌊rN⌋ of all rows, ``"per-class"`` ⌊rN_c⌋ of each class, ``"equal"`` ⌊⌊rN⌋/K⌋ of each
    class, whatever its size.
    """
    u = uniform(generator, len(labels))
    if count == "draws":
        return u < rate
    group = torch.zeros_like(labels) if count == "total" else labels
    sizes = torch.bincount(group, minlength=1 if count == "total" else num_classes)
    if count == "equal":
        targets = torch.full_like(sizes, rounded_floor(rate * len(labels)) // num_classes)
        if bool((targets > sizes).any()):
            small = int((targets > sizes).nonzero()[0])
            raise ValueError(
                f"Expected {int(targets[0])} rows or more of each class, class {small} has"
                f" {int(sizes[small])}. Use `count='per-class'` for classes of different sizes."
            )
    else:
        targets = torch.tensor([rounded_floor(rate * size) for size in sizes.tolist()])
    by_u = u.argsort(stable=True)
    order = by_u[group[by_u].argsort(stable=True)]  # group by group, within each by u
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[group[order]]
    selected = torch.empty_like(labels, dtype=torch.bool)
    selected[order] = rank < targets[group[order]]
    return selected


def rounded_floor(number: float) -> int:
    """Return ⌊number⌋, where 0.29·100, which is 28.99… in floating point, counts as 29."""
    return int(number + 1e-9)


def rows_by_class(labels: Tensor, num_classes: int) -> tuple[Tensor, ...]:
    """Return the row numbers of each class, in ascending order."""
    return torch.split(
        labels.argsort(stable=True), torch.bincount(labels, minlength=num_classes).tolist()
    )


def _as_labels(labels: Any, noise: str, multilabel: bool) -> Tensor:
    """Return the labels as int64 on the CPU, (N,), or (N, K) of rows with several labels."""
    remedy = "Encode the classes as integers from 0."
    shape = "(N, K), 0 or 1" if multilabel else "(N,)"
    try:
        tensor = labels if isinstance(labels, Tensor) else torch.from_numpy(np.array(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"Expected `labels` to be integers of shape {shape}, got {type(labels).__name__}:"
            f" {error}. {remedy}"
        ) from None
    if tensor.numel() == 0:
        raise ValueError(f"Expected at least one label, got shape {tuple(tensor.shape)}.")
    if tensor.dim() != 1 + multilabel:
        kind = "several labels" if multilabel else "one label"
        raise ValueError(
            f"Expected `labels` of shape {shape}, got {tuple(tensor.shape)}. `{noise}` is for"
            f" {kind} per row."
        )
    if tensor.dtype is torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"Expected integer `labels`, got {tensor.dtype}. {remedy}")
    return tensor.detach().to("cpu", torch.int64, copy=True)
