"""A minute's proof on bundled data: what wrong labels do to a classifier, and what each method does about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from noiseproof.data import get_dataset
from noiseproof.train import Settings, prepare, train

NOISES = ("symmetric:rate=0.4", "asymmetric-mnist:rate=0.4")
METHODS = (
    "ce", "ls", "gce", "tgce", "mae*", "nce+agce", "agce", "bitemp", "forward", "sln", "sln-mo", "sln-mo-lc", "ln",
    "nal", "co-teaching", "dividemix",
)  # fmt: skip
SETTINGS = Settings(model="mlp:hidden=[256,256]", epochs=60, optimizer="sgd:lr=0.05,momentum=0.9,nesterov=true")


@dataclass(frozen=True)
class Row:
    """One method's result under one noise, in its last epoch; accuracy is on clean test labels."""

    noise: str
    method: str
    accuracy: float
    memorised: float  # share of the wrong training labels that the model repeats
    seconds: float


def demo(
    methods: Iterable[str] = METHODS, noises: Iterable[str] = NOISES, *, epochs: int = SETTINGS.epochs, seed: int = 0
) -> Iterator[Row]:
    """Train a small network on scikit-learn's digits with each method, under each noise; every fifth digit is a test.

    Each method gets the same wrong labels, the same initial weights and the same batches, and is used as it comes: its
    hyperparameters follow from the number of classes and epochs. Some of these defaults were settled while looking at
    results on digits, so this shows what methods do, and is no fair contest.
    """
    methods = tuple(methods)
    for noise in noises:
        task = prepare(get_dataset("digits", seed=seed), noise, seed=seed)
        for method in methods:
            rows = train(task, method, Settings(**{**vars(SETTINGS), "epochs": epochs}), seed=seed).rows
            last = rows[-1]
            seconds = sum(row["seconds"] for row in rows)
            yield Row(noise, method, last["test_accuracy"], last["false_label_accuracy"], seconds)
