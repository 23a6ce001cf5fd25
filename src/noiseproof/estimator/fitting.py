"""The fits of a ``NoisyLabelClassifier``: rows, weights, networks, trees, and a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from noiseproof.core.arrays import Bools, Floats
from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.data import Dataset, NoisyData, Split
from noiseproof.estimator.choice import best_method, held_out
from noiseproof.estimator.robust import RobustClassifier
from noiseproof.strategies.row_tables import SampleWeights
from noiseproof.train import Interrupted, Method, Result, Settings, Task, get_method, prepare, train
from noiseproof.train.auto import choose_method, estimate_noise
from noiseproof.train.export import Predictor
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    from noiseproof.train.job import EpochProgress

# rows of a class with which trees stop early: a tenth of four fifths must have all classes
MIN_STOPPING = 20
NEAR = 0.05  # accuracy by which trees may be behind for their labels to be repaired
ROWS = 4096  # of a forward pass


@dataclass(frozen=True)
class FitRows:
    """Inputs, labels and weights of the same rows."""

    x: Tensor
    labels: Tensor  # (N,), or (N, K) with several labels for each row
    weights: Tensor | None = None  # (N,) with a mean of one; None if all are equal
    soft: Tensor | None = None  # (N, K)

    def where(self, mask: Tensor) -> FitRows:
        weights = None if self.weights is None else self.weights[mask]
        soft = None if self.soft is None else self.soft[mask]
        return FitRows(self.x[mask], self.labels[mask], weights, soft)

    def numpy_weights(self) -> Floats | None:
        return None if self.weights is None else self.weights.numpy()

    def weighted(self, sample_weight: Any) -> FitRows:
        """Return the rows of positive weight, with weights of a mean of one."""
        if sample_weight is None:
            return self
        x = self.x.numpy()
        given = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        table = torch.from_numpy(np.array(given))
        keep = table > 0
        rows = self.where(keep)
        weights = table[keep]
        if bool((weights == table.max()).all()):
            return rows
        return replace(rows, weights=weights / weights.mean())


@dataclass(frozen=True)
class Fits:
    """How networks are fitted: the same settings for all methods that ``auto`` compares."""

    settings: Settings
    seed: int
    num_classes: int
    device: str
    is_scaled: bool  # whether features have a common scale, which is kept

    def task(self, rows: FitRows, validation: float) -> Task:
        data = Dataset(
            "arrays",
            tuple(map(str, range(self.num_classes))),
            Split(rows.x, rows.labels, soft=rows.soft),
        )
        task = prepare(data, seed=self.seed, validation=validation)
        return replace(task, normalise=None, augment=None) if self.is_scaled else task

    def train(
        self,
        name: str,
        rows: FitRows,
        validation: float = 0.0,
        held: FitRows | None = None,
        progress: EpochProgress | None = None,
    ) -> tuple[Result, Method, Task]:
        """Train the method ``name``, which multiplies the loss of each row by its weight."""
        task = self.task(rows, validation)
        if held is not None:
            index = len(rows.x) + torch.arange(len(held.x))  # numbers of no other row
            data = NoisyData(held.x, held.labels, task.train.classes, index)
            task = replace(task, validation=data)
        method = weighted_method(name, task, self.settings, rows.weights)
        fabric = fabric_for(self.device)
        try:
            result = train(
                task, method, self.settings, seed=self.seed, fabric=fabric, progress=progress
            )
        except Interrupted:  # else a search over parameters would count Ctrl-C as a failed fit
            raise KeyboardInterrupt from None
        return result, method, task

    def choose(
        self, rows: FitRows, validation: float, with_trees: bool
    ) -> tuple[str, float | None, dict[str, float]]:
        """Choose what ``auto`` stands for by the accuracy of candidates on held-out rows.

        Returns:
            The name of the method, the estimated share of wrong labels, and the accuracy of each
            candidate.
        """
        task = self.task(rows, validation)
        noise = estimate_noise(task, seed=self.seed)
        preferred = choose_method(self.num_classes, len(task.train), noise)
        held = torch.from_numpy(held_out(rows.labels.numpy(), self.seed))
        if not bool(held.any()):
            return preferred, noise, {}
        fitted = rows.where(~held)
        held_rows = rows.where(held)
        weights = held_rows.numpy_weights()
        is_right = {}
        accuracy = {}
        for name in dict.fromkeys((preferred, "ce")):
            result, _, _ = self.train(name, fitted)
            p, _ = network_outputs(Predictor.of(result), held_rows.x, self.device)
            is_right[name] = p.argmax(1) == held_rows.labels.numpy()
            accuracy[name] = float(np.average(is_right[name], weights=weights))
        if with_trees:
            worth = max(accuracy.values()) - NEAR
            is_right["trees"] = right_by_trees(fitted, held_rows, worth, self.seed)
            accuracy["trees"] = float(np.average(is_right["trees"], weights=weights))
        return best_method(preferred, is_right, weights), noise, accuracy


@torch.no_grad()
def network_outputs(predictor: Predictor, x: Tensor, device: str) -> tuple[Floats, Floats | None]:
    """Return probabilities (N, K), and the variance (N,) where the head predicts one."""
    where = fabric_for(device).device
    predictor = predictor.to(where)
    parts = [part.to(where) for part in torch.split(x, ROWS)]
    if not predictor.has_variance:
        return torch.cat([predictor(part) for part in parts]).double().cpu().numpy(), None
    outputs = [predictor.with_variance(part) for part in parts]
    p = torch.cat([p for p, _ in outputs])
    variance = torch.cat([variance for _, variance in outputs])
    return p.double().cpu().numpy(), variance.double().cpu().numpy()


def weighted_method(name: str, task: Task, settings: Settings, weights: Tensor | None) -> Method:
    """Return the method ``name``, which multiplies the loss of each row by its weight."""
    method = get_method(name, task, settings)
    if weights is None:
        return method
    for strategy in method.strategies:
        if strategy.overrides("step", "penalties") or strategy.mixes:
            raise ValueError(
                "Expected a method with a loss for each row to multiply by `sample_weight`, got"
                f" {name!r}: `{strategy}` adds others. Leave the weights out, or choose another"
                " method."
            )
    weighing = SampleWeights(weights[task.train.index])
    return Method(method.loss, method.head, (*method.strategies, weighing))


def boosted_trees(labels: Tensor, seed: int) -> HistGradientBoostingClassifier:
    """Return the trees of the method ``trees``.

    They stop early on a tenth of the rows, before they fit wrong labels.
    """
    counts = torch.bincount(labels)
    can_stop = int(counts[counts > 0].min()) >= MIN_STOPPING
    return HistGradientBoostingClassifier(early_stopping=can_stop, random_state=seed % 2**31)


def fit_trees(rows: FitRows, seed: int) -> RobustClassifier:
    """Fit the trees of the method ``trees`` to repaired labels."""
    model = RobustClassifier(boosted_trees(rows.labels, seed), random_state=seed % 2**31)
    return model.fit(rows.x.flatten(1).numpy(), rows.labels.numpy(), rows.numpy_weights())


def right_by_trees(fitted: FitRows, held: FitRows, worth: float, seed: int) -> Bools:
    """Return which held-out rows trees predict as given, (H,).

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
    """Return Lightning Fabric with the parameter ``device`` of an estimator."""
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
    if not logger.hasHandlers():
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def log(epoch: int, done: int, steps: int, metrics: dict[str, float] | None) -> None:
        shown = [
            f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in (metrics or {}).items()
            if re.fullmatch("(train|validation)_(loss|accuracy)", name)
        ]
        if metrics is not None:
            logger.info("epoch %d of %d: %s", epoch + 1, epochs, ", ".join(shown))

    try:
        yield log
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
