"""What every source of data returns: inputs, labels, names of the classes and notes; the rows of an
epoch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from xxhash import xxh3_128_digest

from noiseproof.core.checks import check_count, check_labels, check_number
from noiseproof.core.random import as_generator
from noiseproof.core.random import derive_generator as derive_generator
from noiseproof.core.random import derive_seed as derive_seed
from noiseproof.core.random import derive_seeds as derive_seeds
from noiseproof.core.random import shuffled as shuffled
from noiseproof.noise import NoiseModel, OpenSetLabels, get_noise


class LazyInputs(Protocol):
    """Inputs that are read on access, so that a dataset larger than memory can be used like a
    tensor.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Tensor: ...

    def subset(self, index: Tensor) -> Self: ...


class Encoder(Protocol):
    """Encodes new rows of a user's data in the same way as the training rows."""

    def encode(self, rows: Any) -> Tensor: ...


Inputs: TypeAlias = Tensor | LazyInputs


def take(x: Inputs, index: Tensor) -> Inputs:
    """The rows ``index`` of ``x``, in that order."""
    return x[index] if isinstance(x, Tensor) else x.subset(index)


def _check_lengths(x: Inputs, columns: dict[str, Any]) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != len(x):
            raise ValueError(
                f"Expected one `{name}` for each of the {len(x)} rows of x, got {len(column)}."
            )


def _check_given(given: Tensor, num_classes: int) -> None:
    """Refuse labels unless they are classes (N,), or 0 and 1 (N, K) where rows have several."""
    num_values = num_classes
    if given.dim() == 2:
        if given.shape[1] != num_classes:
            raise ValueError(
                f"Expected labels of shape (N,) or (N, {num_classes}), got {tuple(given.shape)}."
            )
        num_values = 2
    check_labels(given.flatten(), num_values)


def _check_width(soft: Tensor | None, num_classes: int) -> None:
    if soft is not None and soft.shape[1:] != (num_classes,):
        raise ValueError(
            f"Expected soft labels of shape (N, {num_classes}), got {tuple(soft.shape)}."
        )


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a dataset: inputs and the labels that came with them."""

    x: Inputs  # (N, …): a tensor (images: uint8 (N, C, H, W)) or lazy inputs
    # (N,) int64, of soft labels the most probable class; or several labels (N, K), 0 or 1
    y: Tensor
    clean: Tensor | None = None  # like y: the true labels where they are known
    raw: Sequence[str] | None = None  # how to show each row to a person: its text, its file name
    # (N, K) float32: the distribution of each label, where it is not a single class
    soft: Tensor | None = None

    def __post_init__(self) -> None:
        columns = {"label": self.y, "clean label": self.clean, "raw": self.raw}
        _check_lengths(self.x, columns | {"soft label": self.soft})
        if self.y.dtype is not torch.int64:
            raise TypeError(
                f"Expected labels of dtype torch.int64, got {self.y.dtype}. Use y.long()."
            )

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        return self.x[i], self.y[i], i


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset; the labels of ``train`` may be noisy."""

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split | None = None
    validation: Split | None = None
    trusted: Split | None = None  # a small clean set that a method may train on
    encoder: Encoder | None = None
    notes: tuple[str, ...] = ()  # what a user should know about the data, one sentence each
    spec: str = ""  # from which ``get_dataset`` loads it again

    def __post_init__(self) -> None:
        for split in (self.train, self.test, self.validation, self.trusted):
            if split is not None:
                _check_given(split.y, len(self.classes))
                if split.y.dim() != self.train.y.dim():
                    raise ValueError(
                        "Expected one label per row in all parts of a dataset, or several in all of"
                        " them."
                    )
                _check_width(split.soft, len(self.classes))

    @property
    def num_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, eq=False)
class NoisyData:
    """A training set with fixed given labels; indexing never returns a clean label."""

    x: Inputs  # (N, …)
    given: Tensor  # (N,) int64: the labels to train on; where a row has several, (N, K), 0 or 1
    classes: tuple[str, ...]
    index: Tensor  # (N,) int64: the row number of each row in the source
    clean: Tensor | None = None  # like given: the true labels if known, −1 for inputs of no class
    raw: Sequence[str] | None = None
    # (N, K) float32: distributions to train on, in which ``given`` is a most probable class
    soft: Tensor | None = None
    annotator: Tensor | None = None  # (N,) int64: who gave each label, where several did

    def __post_init__(self) -> None:
        names = ("index", "clean", "raw", "soft", "annotator")
        columns = {name: getattr(self, name) for name in names}
        _check_lengths(self.x, {"label": self.given} | columns)
        _check_given(self.given, len(self.classes))
        _check_width(self.soft, len(self.classes))

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        """Input, given label and row number, for a ``DataLoader``."""
        return self.x[i], self.given[i], i

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def multilabel(self) -> bool:
        """Whether rows have several labels."""
        return self.given.dim() == 2

    @property
    def labels(self) -> Tensor:
        """The labels to train on: distributions (N, K) where there are any, else the given ones."""
        return self.given if self.soft is None else self.soft

    @property
    def shares(self) -> Tensor:
        """The share of each class in the labels to train on, (K,) float64; with several labels a
        row, of the rows.
        """
        labels = self.labels.cpu()
        if labels.dim() == 1:
            counts = torch.bincount(labels, minlength=self.num_classes)
        else:
            counts = labels.double().sum(0)
        return counts.double() / len(self)

    @property
    def is_flipped(self) -> Tensor | None:
        """Whether the given label differs from the clean one, bool like ``given``; None if the
        truth is unknown.
        """
        return None if self.clean is None else self.given != self.clean

    @property
    def rate(self) -> float | None:
        """The realised noise rate; None if the truth is unknown."""
        return None if self.is_flipped is None else float(self.is_flipped.double().mean())

    def subset(self, index: Tensor) -> NoisyData:
        """The rows ``index``, with their row numbers in the source."""
        raw = None if self.raw is None else [self.raw[i] for i in index.tolist()]
        columns = {name: column[index] for name, column in self._columns().items()}
        return replace(self, x=take(self.x, index), raw=raw, **columns)

    def to(self, device: torch.device | str) -> NoisyData:
        """The same data on ``device``; images stay uint8, lazy inputs stay on disk."""
        x = self.x.to(device) if isinstance(self.x, Tensor) else self.x
        columns = {name: column.to(device) for name, column in self._columns().items()}
        return replace(self, x=x, **columns)

    def _columns(self) -> dict[str, Any]:
        """The columns of labels and row numbers that there are."""
        names = ("given", "index", "clean", "soft", "annotator")
        columns = {name: getattr(self, name) for name in names}
        return {name: column for name, column in columns.items() if column is not None}

    def split(
        self, validation: float, *, generator: torch.Generator | int
    ) -> tuple[NoisyData, NoisyData]:
        """A random split into training and noisy validation part (the LN paper validates on 10 % of
        the noisy labels).

        Rows with the same ``index``, the labels of several annotators for one sample, go to the
        same part.
        """
        _, first, inverse = np.unique(
            self.index.cpu().numpy(), return_index=True, return_inverse=True
        )
        # in order of first occurrence
        samples, sample_of_row = np.unique(first[inverse], return_inverse=True)
        num_held = round(len(samples) * check_number("validation", validation, "(0, 1)"))
        if not 0 < num_held < len(samples):
            raise ValueError(
                f"Expected rows in both parts, got {num_held} of {len(samples)} samples to"
                " validate on."
            )
        # Not from the random numbers that flipped the labels: with one seed for both, only flips
        # would be held out.
        key = int(torch.randint(2**62, (), generator=as_generator(generator)))
        is_held = torch.zeros(len(samples), dtype=torch.bool)
        is_held[shuffled(len(samples), derive_generator(key))[:num_held]] = True
        is_held = is_held[torch.from_numpy(sample_of_row)]
        return self.subset((~is_held).nonzero().flatten()), self.subset(is_held.nonzero().flatten())


def corrupt(
    data: Dataset,
    noise: NoiseModel | str | None = None,
    *,
    generator: torch.Generator | int | None = None,
    features: Tensor | None = None,
    foreign: Tensor | None = None,
) -> NoisyData:
    """The training set with its own labels, or with the labels of a noise model, which is applied
    once.

    The clean labels come from the source if it has any, else they are what noise was added to.
    ``features`` are the input of instance-dependent noise (by default x), ``foreign`` the images of
    another dataset that open-set noise inserts. Where noise flips the most probable class of a soft
    label, the two exchange their probabilities.
    """
    split = data.train
    plain = NoisyData(
        split.x, split.y, data.classes, torch.arange(len(split)), split.clean, split.raw, split.soft
    )
    if noise is None or str(noise) == "none":
        return plain
    model = get_noise(noise) if isinstance(noise, str) else noise
    if features is None and isinstance(split.x, Tensor) and model.needs == "inputs":
        features = split.x
    noisy = model.corrupt(
        split.y, generator=generator, features=features, num_classes=data.num_classes
    )
    if isinstance(noisy, OpenSetLabels):
        if foreign is None:
            raise ValueError(
                f"Expected `foreign` images, with which {model} replaces images of {data.name}, got"
                " none. Take images of another dataset, such as cifar100."
            )
        if not isinstance(split.x, Tensor):
            raise ValueError(
                f"Expected images in memory, some of which {model} replaces with `foreign` ones,"
                f" got files in {data.name}. Use a dataset such as cifar10."
            )
        plain = replace(plain, x=noisy.apply(split.x, foreign))
    # several annotators repeat a row
    rows = plain if noisy.index is None else plain.subset(noisy.index)
    clean = noisy.clean
    if rows.clean is not None:  # the labels were noisy before, such as human ones
        clean = torch.where(clean == rows.given, rows.clean, clean)
    soft = None if rows.soft is None else _exchanged(rows.soft, rows.given, noisy.given)
    return replace(rows, given=noisy.given, clean=clean, soft=soft, annotator=noisy.annotator)


def _exchanged(soft: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Distributions (N, K) with the probabilities of the classes ``a`` and ``b``, (N,) each,
    exchanged.
    """
    first = soft.gather(1, a[:, None])
    second = soft.gather(1, b[:, None])
    return soft.scatter(1, a[:, None], second).scatter(1, b[:, None], first)


class ClassBalanced(Sampler[int]):
    """The same number of rows of each given class in every epoch, in an order that depends on the
    seed and the epoch.

    SLN paper, section 4.4, on Clothing1M: ``per_class=18976`` (its smallest class; the LN paper
    does the same). NAL paper, B.3: 2000 batches of 64 an epoch, ``total=2000 * 64``; a remainder
    goes to random classes. Rows repeat only in classes that are too small.
    """

    def __init__(
        self,
        labels: Tensor,
        *,
        per_class: int | None = None,
        total: int | None = None,
        seed: int = 0,
    ) -> None:
        if (per_class is None) == (total is None):
            raise ValueError(
                f"Expected either `per_class` or `total`, got {per_class!r} and {total!r}."
            )
        if len(labels) == 0:
            raise ValueError("Expected at least one label to draw rows by, got none.")
        by_class = torch.split(labels.argsort(stable=True), torch.bincount(labels).tolist())
        # of the classes that have rows
        self.members = [indices for indices in by_class if len(indices)]
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
            num_rounds = -(-count // len(members))
            rounds = [members[shuffled(len(members), generator)] for _ in range(num_rounds)]
            parts.append(torch.cat([members[:0], *rounds])[:count])
        drawn = torch.cat(parts)
        return drawn[shuffled(len(drawn), generator)]


def find_copies(data: Dataset) -> tuple[str, bool]:
    """Return how many test rows equal training rows, in words, and whether these are more than by
    chance.

    By chance a test row has a copy as often as a training row equals another; four standard errors,
    and one row, or one in a hundred, are allowed beyond that. Inputs that are read from files or
    are sparse are not compared.
    """
    hashes = []
    for split in (data.train, data.test):
        x = None if split is None else split.x
        if not isinstance(x, Tensor) or x.is_sparse or x.dim() < 2 or x.dtype is torch.bfloat16:
            return "", False
        rows = x.detach().cpu().flatten(1).contiguous().numpy()
        hashes.append([xxh3_128_digest(row) for row in rows])
    train, test = hashes
    counts = Counter(train)
    copies = sum(row in counts for row in test)
    if not copies:
        return "", False
    repeats = sum(count for count in counts.values() if count > 1) / len(train)
    of_test = len(test) * repeats * (1 - repeats)  # the variance if `repeats` were exact
    # It is counted among the training rows, where equal rows come at least in pairs: the count
    # grows in steps of two, which doubles its variance. len(test) * repeats inherits
    # len(test)² · 2 · repeats · (1 − repeats) / len(train), the second summand.
    variance = of_test * (1 + 2 * len(test) / len(train))
    chance = len(test) * repeats + 4 * math.sqrt(variance) + max(1, len(test) / 100)
    is_beyond_chance = copies > chance
    more = "more" if is_beyond_chance else "no more"
    words = (
        f"{copies} of the {len(test)} test rows equal training rows in all but the label, {more}"
        f" than chance gives where {repeats:.1%} of the training rows equal others"
    )
    return words, is_beyond_chance
