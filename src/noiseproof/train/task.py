"""What a run trains and is evaluated on: noisy training rows, validation and test rows, and their
preprocessing.
"""

import os
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from noiseproof.core.grammar import parse_call
from noiseproof.data import Dataset, Inputs, NoisyData, Split, corrupt
from noiseproof.data.augment import (
    Compose,
    Normalise,
    Standardise,
    Transform,
    augmentation,
    strong_augmentation,
)
from noiseproof.data.base import derive_generator
from noiseproof.data.images import read_batches
from noiseproof.data.sources import PathLike, data_root
from noiseproof.noise import NoiseModel, get_noise

SAMPLE_ROWS = 10_000  # rows that normalisation is computed from
BLOCK = 2**22  # numbers that are converted to float64 at a time


@dataclass(frozen=True, eq=False)
class Task:
    """Noisy training rows, noisy rows held out to validate on, and clean validation and test
    rows.
    """

    train: NoisyData
    validation: NoisyData | None = None
    test: Split | None = None
    augment: Transform | None = None  # of training inputs; includes ``normalise``
    normalise: Transform | None = None  # of all other inputs
    dataset: str = ""
    noise: str = "none"
    notes: tuple[str, ...] = field(default=())
    # where the inputs are from, how prepared; plain values
    source: dict[str, Any] = field(default_factory=dict)
    clean_validation: Split | None = None  # to choose an epoch by; methods never see it
    strong: Transform | None = None  # of second views; None: ``augment``

    @cached_property  # may read a row from disk
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of the model."""
        x = next(read_batches(self.train.x, [torch.zeros(1, dtype=torch.int64)])).cpu()
        if self.normalise is not None:
            x = self.normalise.apply(x, torch.empty(1, 0))
        return tuple(x[0].shape)


def prepare(
    data: Dataset,
    noise: NoiseModel | str | None = None,
    *,
    seed: int = 0,
    validation: float = 0.0,
    paper: str | None = None,
    augment: bool = True,
    features: Tensor | None = None,
    foreign: Tensor | None = None,
    data_dir: PathLike | None = None,
) -> Task:
    """Corrupt the labels once, then hold out a share of the noisy rows for validation (the LN
    paper: 10 %).

    The dataset's own ``validation`` rows, whose labels are taken as correct, stay apart as
    ``clean_validation``.

    With ``paper``, inputs are prepared as in that paper; otherwise known image datasets are
    augmented as usual, other images only normalised (a flip may change the meaning of an image),
    and vectors standardised.

    >>> from noiseproof.data import get_dataset
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    >>> len(task.train), len(task.validation), len(task.test), task.input_shape
    (1293, 144, 360, (1, 8, 8))
    """
    model = get_noise(noise, data_root(data_dir)) if isinstance(noise, str) else noise
    noisy = corrupt(data, model, generator=seed, features=features, foreign=foreign)
    train = noisy
    held = None
    if validation:
        train, held = noisy.split(validation, generator=derive_generator(seed, 1))
    where = None if data_dir is None else os.path.abspath(data_dir)
    return make_task(
        data, train, held, noise=str(noise or "none"), paper=paper, augment=augment, data_dir=where
    )


def make_task(
    data: Dataset,
    train: NoisyData,
    held: NoisyData | None = None,
    *,
    noise: str = "none",
    paper: str | None = None,
    augment: bool = True,
    data_dir: str | None = None,
) -> Task:
    """Return the task of training on rows of ``data`` with given labels.

    It has the options of ``prepare``.
    """
    if not len(train):
        raise ValueError(
            f"Expected rows of {data.name} to train on, got none. Check the notes of the dataset."
        )
    for part, split in (
        ("training", data.train),
        ("validation", data.validation),
        ("test", data.test),
    ):
        if split is not None and (where := find_nonfinite(split.x)):
            raise ValueError(
                f"Expected finite {part} inputs, got NaN or infinity in {where}. Drop the row, or"
                " fill it in."
            )
    known = _known_augmentation(data.name, paper)
    normalise = known[1] if known else _normalisation(train.x)
    labels = zlib.crc32(data.train.y[train.index.cpu()].numpy().tobytes())  # before any noise
    return Task(
        train,
        held,
        data.test,
        clean_validation=data.validation,
        augment=(known[0] if known and augment else normalise),
        strong=strong_augmentation(data.name, paper) if augment else None,
        normalise=normalise,
        dataset=data.name,
        noise=noise,
        notes=data.notes,
        source={
            "spec": data.spec,
            "data_dir": data_dir,
            "paper": paper,
            "augment": augment,
            "labels": labels,
        },
    )


def _known_augmentation(dataset: str, paper: str | None) -> tuple[Compose, Compose] | None:
    try:
        return augmentation(dataset, paper), augmentation(dataset, paper, train=False)
    except ValueError:
        # else vectors, which no paper augments
        if paper is not None and _known_augmentation(dataset, None):
            raise
        return None


def find_nonfinite(x: Inputs) -> str | None:
    """Return the position of the first NaN or infinite number in ``x`` (N, …).

    It is None if there is none, or ``x`` is lazy.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    size = max(1, BLOCK // max(1, x[:1].numel()))
    for number, part in enumerate(torch.split(x, size)):
        positions = (~part.isfinite()).nonzero()
        if len(positions):
            row, *place = positions[0].tolist()
            what = "column" if len(place) == 1 else "place"
            return f"row {number * size + row}, {what} {', '.join(map(str, place))}"
    return None


def _normalisation(x: Inputs) -> Transform:
    """Return what gives each channel of images, or feature of vectors, zero mean and variance 1."""
    indices = torch.arange(0, len(x), max(1, len(x) // SAMPLE_ROWS))
    are_images = next(read_batches(x, [indices[:1]])).dim() == 4
    over: tuple[int, ...] = (0,)
    free = 0  # degrees of freedom that a variance loses
    if are_images:
        over = (0, 2, 3)
        free = 1
    count = 0
    mean = torch.empty(0)
    variance = torch.empty(0)
    for raw in read_batches(x, blocks(x, indices)):
        values = raw.double() / (255 if are_images and not raw.is_floating_point() else 1)
        m = values.mean(over)
        v = values.var(over, correction=free)
        n = values.numel() // m.numel()
        if count:  # moments of two blocks combined (Chan et al. 1983)
            difference = m - mean
            total = count + n
            squares = (
                variance * (count - free)
                + v * (n - free)
                + difference.square() * (count * n / total)
            )
            m = mean + difference * (n / total)
            v = squares / (total - free)
            n = total
        count = n
        mean = m
        variance = v
    deviation = variance.sqrt()
    if are_images:
        # constant channels stay
        return Normalise(tuple(mean.tolist()), tuple(deviation.clamp(min=1e-3).tolist()))
    # exactly 0 for constant float32 features
    return Standardise(mean, torch.where(deviation > 0, deviation, 1.0))


def blocks(x: Inputs, indices: Tensor) -> tuple[Tensor, ...]:
    """Return ``indices`` of rows of ``x`` in parts of at most ``BLOCK`` numbers, or of one row."""
    return torch.split(indices, max(1, BLOCK // next(read_batches(x, [indices[:1]])).numel()))


def noise_kind(noise: str) -> tuple[str, float | None]:
    """Return the kind and rate of a noise spec, as in the tables of the papers.

    >>> noise_kind("asymmetric-cifar10:rate=0.4"), noise_kind("none")
    (('asymmetric', 0.4), ('none', 0.0))
    """
    name, params = parse_call(noise)
    if name == "none":
        return "none", 0.0
    kinds = {
        "symmetric": "symmetric",
        "asymmetric": "asymmetric",
        "pairflip": "asymmetric",
        "chen": "instance",
        "xia": "instance",
        "open-set": "openset",
        "cifar": "human",
    }
    kind = next((kind for prefix, kind in kinds.items() if name.startswith(prefix)), name)
    return kind, params.get("rate")
