"""What fits of a ``NoisyLabelClassifier`` need besides the training loop: rows, weights, trees, a
log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.estimator.inputs import Bools, Floats
from noiseproof.estimator.robust import RobustClassifier
from noiseproof.strategies.base import check_scores
from noiseproof.strategies.row_tables import SampleWeights
from noiseproof.train import Method, Settings, Task, get_method
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    from noiseproof.train.job import EpochProgress

# rows of a class with which trees stop early: a tenth of four fifths must have all classes
MIN_STOPPING = 20


@dataclass(frozen=True)
class FitRows:
    """Inputs, labels and weights of the same rows; weights have a mean of one, None if they are
    equal.
    """

    x: Tensor
    labels: Tensor  # (N,)
    weights: Tensor | None  # (N,)
    soft: Tensor | None = None  # (N, K)

    def where(self, mask: Tensor) -> FitRows:
        optional = (
            None if column is None else column[mask] for column in (self.weights, self.soft)
        )
        return FitRows(self.x[mask], self.labels[mask], *optional)

    def numpy_weights(self) -> Floats | None:
        return None if self.weights is None else self.weights.numpy()


def positive_weights(x: Tensor, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
    """Rows of positive weight, and their weights with a mean of one, or None if all are the
    same.
    """
    if sample_weight is None:
        return torch.ones(len(x), dtype=torch.bool), None
    given = _check_sample_weight(
        sample_weight, x.numpy(), dtype=np.float64, ensure_non_negative=True
    )
    table = torch.from_numpy(np.array(given))
    keep = table > 0
    if bool((table[keep] == table.max()).all()):
        return keep, None
    return keep, table[keep] / table[keep].mean()


def weighted_method(name: str, task: Task, settings: Settings, weights: Tensor | None) -> Method:
    """The method ``name``, which multiplies the loss of each row by its weight."""
    method = get_method(name, task, settings)
    check_scores(method.loss, "NoisyLabelClassifier")
    if weights is None:
        return method
    for strategy in method.strategies:
        if strategy.overrides("step", "penalties") or strategy.mixes:
            raise ValueError(
                "Expected a method with a loss for each row to multiply by `sample_weight`, got"
                f" {name!r}: `{strategy}` adds others. Leave the weights out, or choose another"
                " method."
            )
    return Method(
        method.loss, method.head, (*method.strategies, SampleWeights(weights[task.train.index]))
    )


def boosted_trees(labels: Tensor, seed: int) -> Any:
    """The trees of the method ``trees``.

    They stop early on a tenth of the rows, before they fit wrong labels.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    counts = torch.bincount(labels)
    can_stop = int(counts[counts > 0].min()) >= MIN_STOPPING
    return HistGradientBoostingClassifier(early_stopping=can_stop, random_state=seed % 2**31)


def fit_trees(rows: FitRows, seed: int) -> RobustClassifier:
    """Fit the trees of the method ``trees`` to repaired labels."""
    model = RobustClassifier(boosted_trees(rows.labels, seed), random_state=seed % 2**31)
    return model.fit(rows.x.flatten(1).numpy(), rows.labels.numpy(), rows.numpy_weights())


def right_by_trees(fitted: FitRows, held: FitRows, worth: float, seed: int) -> Bools:
    """Which held-out rows trees predict as given, (H,).

    Labels are repaired only if trees reach an accuracy of ``worth`` without it.
    """
    x = held.x.numpy()
    labels = held.labels.numpy()
    plain = boosted_trees(fitted.labels, seed)
    with threads_for(NUMBER_WORK * fitted.x.numel()):
        plain.fit(fitted.x.numpy(), fitted.labels.numpy(), fitted.numpy_weights())
        is_right: Bools = plain.predict(x) == labels
    if float(np.average(is_right, weights=held.numpy_weights())) < worth:
        return is_right
    return np.asarray(fit_trees(fitted, seed).predict(x) == labels)


def fabric_for(name: str) -> Fabric:
    """Lightning Fabric with the parameter ``device`` of an estimator."""
    if name == "auto":
        return make_fabric(accelerator="auto", devices=1)
    if not re.fullmatch(r"cpu|(cuda|mps)(:\d+)?", str(name), re.ASCII):
        raise ValueError(
            f"Expected `device` to be auto, cpu, cuda, cuda:1, … or mps, got {name!r}."
        )
    device = torch.device(name)
    return make_fabric(
        accelerator=device.type, devices=1 if device.index is None else [device.index]
    )


@contextmanager
def logged_epochs(verbose: int, epochs: int) -> Iterator[EpochProgress | None]:
    """Log the metrics of each epoch, if ``verbose``; to stderr if the logger has no handler."""
    if not verbose:
        yield None
        return
    logger = logging.getLogger("noiseproof")
    handler = logging.StreamHandler()
    level = logger.level
    is_bare = not logger.hasHandlers()
    if is_bare:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def log(epoch: int, done: int, steps: int, metrics: dict[str, float] | None) -> None:
        if metrics is not None:
            shown = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
            values = (
                f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in shown if name in metrics
            )
            logger.info("epoch %d of %d: %s", epoch + 1, epochs, ", ".join(values))

    try:
        yield log
    finally:
        logger.setLevel(level)
        if is_bare:
            logger.removeHandler(handler)
