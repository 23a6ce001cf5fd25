"""Predictions for labelled rows: which labels a model agrees with, which it memorised, how they
compare with the truth.

Functions take arrays (``labels``, ``pred_probs``, …), which may come from any library, and return
tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from noiseproof.analysis.figures import (
    READABLE,
    Layer,
    Needs,
    Subjects,
    each,
    figure,
    histogram,
    stack,
)
from noiseproof.analysis.runs import ALL, RIGHT, WRONG, Array, Part, RunFolder, Runs
from noiseproof.core.checks import check_count
from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.core.probs import check_probabilities
from noiseproof.data.base import derive_generator, shuffled, take
from noiseproof.noise.human import CIFAR10N
from noiseproof.strategies import Strategy, per_row, predict_log_probs
from noiseproof.strategies.correction import LabelCorrection, mixed
from noiseproof.strategies.memory import EstimatedTargets
from noiseproof.strategies.sweeps import log_probs

INTERVALS = 50  # of the dissection: 1000 samples each on CIFAR, as in the SLN paper
KNOWN_TRUTH = "a dataset whose clean labels are known, such as one with synthetic noise"


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for labelled rows."""

    labels: Array  # (N,): as given
    pred_probs: Array  # (N, K)
    clean: Array | None = None  # (N,): −1 for a row of no class
    corrected: Array | None = None  # (N,): the method's final labels, if it changes them
    classes: tuple[str, ...] = ()
    rows: Array | None = None  # (N,): their places in the dataset

    def __post_init__(self) -> None:
        check_predictions(self.labels, self.pred_probs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, by default their numbers."""
        return self.classes or tuple(str(k) for k in range(self.pred_probs.shape[1]))


def check_predictions(labels: ArrayLike, pred_probs: ArrayLike) -> tuple[Array, Array]:
    """Return ``labels`` (N,) and ``pred_probs`` (N, K) as arrays, refused unless they are classes
    and probabilities.
    """
    y = np.asarray(labels)
    p = np.asarray(pred_probs, dtype=np.float64)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(p):
        raise ValueError(
            "Expected labels (N,) and pred_probs (N, K) of the same rows, at least one, got"
            f" {y.shape} and {p.shape}."
        )
    _check_classes("labels", y, p.shape[1])
    check_probabilities("pred_probs", p)
    return y, p


def _check_classes(name: str, y: Array, num_classes: int, lowest: int = 0) -> None:
    if y.dtype.kind not in "iu" or y.min() < lowest or y.max() >= num_classes:
        raise ValueError(
            f"Expected {name} in {lowest} … {num_classes - 1}, got {y.dtype} from {y.min()} to"
            f" {y.max()}."
        )


def _same_rows(**columns: ArrayLike) -> list[Array]:
    """Return the columns as arrays, refused unless they have one number per row."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    shapes = [array.shape for array in arrays.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        listed = " and ".join(map(str, shapes))
        raise ValueError(
            f"Expected {' and '.join(arrays)} (N,) of the same rows, at least one, got {listed}."
        )
    return list(arrays.values())


def label_losses(labels: ArrayLike, pred_probs: ArrayLike) -> Array:
    """Return −log p_y of each row, (N,)."""
    y, p = check_predictions(labels, pred_probs)
    with np.errstate(divide="ignore"):  # probability zero: the loss is infinite
        losses: Array = -np.log(p[np.arange(len(y)), y])
    return losses


# Predictions of runs


def predict(run: RunFolder, part: Part = "train", *, rows: int | None = None) -> Predictions:
    """Return predictions of a run's final models for a part of its data, not augmented; of
    ``rows`` rows, drawn at random, if that is given.
    """
    given, clean = part_labels(run, part)
    result = run.result("auto")
    corrected = None
    if part == "train":
        labels = run.task.train.labels.cpu()
        corrected = corrected_labels(result.strategies, labels, run.num_classes)
    chosen = shuffled(len(given), derive_generator(0, 0))[:rows].sort().values
    p = predict_log_probs(result.run, take(run.inputs(part), chosen)).double().exp().cpu().numpy()
    index = chosen.numpy()

    def chosen_rows(column: Array | None) -> Array | None:
        return None if column is None else column[index]

    return Predictions(
        labels=given[index],
        pred_probs=p,
        clean=chosen_rows(clean),
        corrected=chosen_rows(corrected),
        classes=run.classes,
        rows=index,
    )


def training_predictions(runs: Runs) -> Subjects[Predictions]:
    """Return the predictions of runs for their training rows."""
    return each(runs, lambda run: predict(run, "train"), needs=READABLE)


def heldout_predictions(runs: Runs) -> Subjects[Predictions]:
    """Return the predictions of runs for their test rows."""
    tested = {name: run for name, run in runs.items() if "test_accuracy" in run.rows}
    if not tested:
        raise Needs("a dataset with test rows")
    return each(tested, lambda run: predict(run, "test"), needs=READABLE)


def part_labels(run: RunFolder, part: Part) -> tuple[Array, Array | None]:
    """Return the given and, if they are known, the clean labels of a part of a run's data."""
    run.inputs(part)  # refuses a part without rows
    data = getattr(run.task, part)
    if part == "test":
        labels = data.y.cpu().numpy()
        return labels, labels
    clean = None if data.clean is None else data.clean.cpu().numpy()
    return data.given.cpu().numpy(), clean


def corrected_labels(
    strategies: Sequence[Strategy], given: Tensor, num_classes: int
) -> Array | None:
    """Return the most probable class of each target that strategies made of the given labels; None
    if they changed none.

    ``given`` are classes (N,) or distributions (N, K).
    """
    for strategy in strategies:
        targets = None
        if isinstance(strategy, EstimatedTargets):
            targets = strategy.table.mean(1)
        elif isinstance(strategy, LabelCorrection) and strategy.kept is not None:
            assert strategy.predicted is not None
            labels = F.one_hot(given, num_classes) if given.dim() == 1 else given
            targets = mixed(strategy.kept.double().cpu(), labels, strategy.predicted.cpu())
        if targets is not None:
            return targets.argmax(1).cpu().numpy()
    return None


def cifar10n_annotations(clean: ArrayLike, folder: str | Path | None = None) -> Array:
    """Return the three human labels of each of CIFAR-10's training images, (50000, 3), from the
    official file.

    ``clean`` are the labels of CIFAR-10, which check that the file has the same images in the same
    order.
    """
    truth = torch.as_tensor(np.asarray(clean))
    columns = [
        CIFAR10N(f"random{n}", folder).corrupt(truth, generator=0, num_classes=10).given
        for n in (1, 2, 3)
    ]
    return torch.stack(columns, 1).numpy()


# Labels against predictions and the truth

CASES = (
    "label right, prediction right",
    "label right, prediction wrong",
    "label wrong, prediction right",
    "label wrong, prediction wrong",
)


def dissection(
    labels: ArrayLike,
    predicted: ArrayLike,
    losses: ArrayLike,
    clean: ArrayLike,
    *,
    size: int | None = None,
) -> pd.DataFrame:
    """Return the samples in ascending order of loss, ``size`` to an interval, counted by the four
    cases (SLN paper, Fig. 4).

    ``rank`` is the number of samples before the middle of an interval. There are 50 intervals by
    default.

    >>> losses = [0.1, 0.2, 3, 4]
    >>> table = dissection([0, 1, 1, 0], [0, 1, 0, 1], losses=losses, clean=[0, 1, 0, 0], size=2)
    >>> table["samples"].tolist()
    [2, 0, 0, 0, 0, 1, 1, 0]
    """
    y, prediction, loss, truth = _same_rows(
        labels=labels, predicted=predicted, losses=losses, clean=clean
    )
    size = max(1, -(-len(y) // INTERVALS)) if size is None else check_count("size", size, 1)
    order = np.argsort(loss, kind="stable")
    case = 2 * (y != truth) + (prediction != truth)
    starts = np.arange(0, len(y), size)
    middles = (starts + np.minimum(starts + size, len(y))) / 2
    interval = np.arange(len(y)) // size
    columns = {
        "rank": np.repeat(middles, len(CASES)),
        "case": np.tile(np.array(CASES, object), len(starts)),
        "samples": np.bincount(4 * interval + case[order], minlength=4 * len(starts)),
    }
    return pd.DataFrame(columns)


@figure(
    "dissection",
    "Which samples have small losses",
    Layer("area", "rank", "share", color="case"),
    subject=training_predictions,
    reading=(
        "From the smallest loss to the largest: wrong labels among the small losses were memorised;"
        " wrong labels with right predictions are those that label correction can repair."
    ),
    paper="SLN paper, Figs. 4, 9",
    axes=("samples in ascending order of loss", "share of samples"),
    panel="method",
    stack=True,
)
def dissection_figure(runs: Mapping[str, Predictions]) -> pd.DataFrame:
    tables = {}
    for name, p in runs.items():
        if p.clean is not None:
            table = dissection(
                p.labels, p.pred_probs.argmax(1), label_losses(p.labels, p.pred_probs), p.clean
            )
            table["share"] = table["samples"] / table.groupby("rank")["samples"].transform("sum")
            tables[name] = table
    return stack(tables, needs=KNOWN_TRUTH)


def label_probability(
    labels: ArrayLike, pred_probs: ArrayLike, clean: ArrayLike | None = None
) -> pd.DataFrame:
    """Return the density of p_y, the probability of the given label, separately for right and wrong
    labels (SLN paper, Fig. 3).
    """
    y, p = check_predictions(labels, pred_probs)
    p_y = np.clip(p[np.arange(len(y)), y], 0, 1)
    edges = np.linspace(0, 1, 51)
    groups = {ALL: np.ones(len(y), bool)}
    if clean is not None:
        y, truth = _same_rows(labels=y, clean=clean)
        groups = {RIGHT: y == truth, WRONG: y != truth}
    return histogram(p_y, groups, edges, "probability").drop(columns=["low", "high"])


@figure(
    "label-probability",
    "How sure the model is of the given labels",
    Layer("line", "probability", "density", color="method", dash="labels"),
    subject=training_predictions,
    reading=(
        "Robust training keeps the probabilities of wrong labels away from one, and changes"
        " the probabilities of right labels little."
    ),
    paper="SLN paper, Fig. 3",
    axes=("predicted probability of the given label", "density of samples"),
)
def label_probability_figure(runs: Mapping[str, Predictions]) -> pd.DataFrame:
    return stack(
        {name: label_probability(p.labels, p.pred_probs, p.clean) for name, p in runs.items()}
    )


def confusion(labels: ArrayLike, clean: ArrayLike, classes: Sequence[str]) -> pd.DataFrame:
    """Return the number of rows of a clean class with each label, and their share of the class (NAL
    paper, Figs. 1-6).

    Rows of no class (−1) are left out.
    """
    y, truth = _same_rows(labels=labels, clean=clean)
    K = len(classes)
    _check_classes("labels", y, K)
    _check_classes("clean labels", truth, K, lowest=-1)
    known = truth >= 0
    counts = np.bincount(truth[known] * K + y[known], minlength=K * K).reshape(K, K)
    share = counts / np.maximum(1, counts.sum(1, keepdims=True))
    return pd.DataFrame(
        {
            "clean": np.repeat(np.array(classes, object), K),
            "label": np.tile(np.array(classes, object), K),
            "samples": counts.ravel(),
            "share": share.ravel(),
            "percent": np.rint(100 * share).ravel(),  # what a cell has room for
        }
    )


@figure(
    "confusion",
    "Labels against the truth",
    Layer("heat", "label", "clean", z="percent", label="% of the class"),
    subject=training_predictions,
    reading=(
        "The brighter the diagonal, the more labels of a class are right; other bright cells"
        " are the classes that it is mistaken for."
    ),
    paper="NAL paper, Figs. 1-6",
    axes=("label", "clean class"),
    panel="labels",
)
def confusion_figure(runs: Mapping[str, Predictions]) -> pd.DataFrame:
    tables: dict[str, pd.DataFrame] = {}
    shown: list[Array] = []
    for name, p in runs.items():
        if p.clean is None:
            continue
        columns: dict[str, Array] = {}
        # most runs share their labels
        if not any(np.array_equal(p.labels, other) for other in shown):
            title = f"given to {name}" if shown else "given"
            columns[title] = p.labels
            shown.append(p.labels)
        if p.corrected is None:
            columns[f"predicted, {name}"] = p.pred_probs.argmax(1)
        else:
            columns[f"corrected, {name}"] = p.corrected
        for title, labels in columns.items():
            right = np.mean(labels == p.clean)
            tables[f"{title} ({right:.1%} right)"] = confusion(labels, p.clean, p.names)
    return stack(tables, "labels", needs=KNOWN_TRUTH)


def row_table(run: RunFolder, part: Part = "train") -> pd.DataFrame:
    """Return a table of the rows of a part at the last checkpoint, not augmented, with averages
    over two models.

    ``row`` is the number in the dataset, ``given_label`` and ``clean_label`` (if known) are names
    of classes, then ``predicted_label``, its probability ``confidence``, the ``margin`` Δ of the
    given label, and of some methods:

    - ``trust``: NAL's attention τ, the share of a label that the prediction has to explain.
    - ``variance``: the mean variance of the logits that the head of LN or Het predicts.
    - ``target_label``: the label that the method corrected a training label to, and
      ``target_CLASS``, the probabilities of the targets that NAL and SELC estimate.
    """
    given, clean = part_labels(run, part)
    result = run.result()
    loss = result.run.loss
    y = torch.from_numpy(given).to(result.run.device)

    def compute(rows: Tensor, outs: list[Output]) -> Tensor:  # (b, K + 3)
        p = log_probs(loss, outs).double().exp()
        margins = [margin(loss.scores(out), y[rows]) for out in outs]
        trust = [out.attention.sigmoid() for out in outs if out.attention is not None]
        variances = [v.mean(1) for out in outs if (v := loss.variance(out)) is not None]
        missing = [torch.full_like(p[:, 0], torch.nan)]
        means = [
            torch.stack(values or missing).double().mean(0)
            for values in (margins, trust, variances)
        ]
        return torch.cat([p, torch.stack(means, 1)], 1)

    values = per_row(result.run, compute, run.inputs(part)).cpu().numpy()
    p = values[:, :-3]
    names = np.array([*run.classes, ""], dtype=object)  # "": none of the classes
    index = {"train": "index", "validation": "validation.index"}.get(part, "")
    columns = {
        "row": run.labels[index].numpy() if index in run.labels else np.arange(len(given)),
        "given_label": names[given],
    }
    if clean is not None and part != "test":
        columns["clean_label"] = names[clean]
    # LN's dummy class has no name
    columns["predicted_label"] = names[np.minimum(p.argmax(1), run.num_classes)]
    columns["confidence"] = p.max(1)
    for name, column in zip(("margin", "trust", "variance"), values[:, -3:].T, strict=True):
        if name == "margin" or np.isfinite(column).any():
            columns[name] = column
    if part == "train":
        labels = run.task.train.labels.cpu()
        corrected = corrected_labels(result.strategies, labels, run.num_classes)
        if corrected is not None:
            columns["target_label"] = names[corrected]
        for strategy in result.strategies:
            if isinstance(strategy, EstimatedTargets):
                targets = strategy.table.mean(1).cpu().numpy().T
                columns |= {f"target_{k}": of for k, of in zip(run.classes, targets, strict=True)}
    return pd.DataFrame(columns)
