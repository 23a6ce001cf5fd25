"""What a trained model says of labelled rows: which labels it believes, which it memorised, how sure it is.

Functions take arrays (``labels``, ``pred_probs``, …) and return tables; those called ``…_figure`` take the
:class:`Predictions` of one run or several, by name; ``prediction_figures`` makes them all of runs' folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from noiseproof.analysis.figure import Figure, Layer, Missing
from noiseproof.core.checks import check_count
from noiseproof.core.grammar import parse_call
from noiseproof.core.probs import check_probabilities
from noiseproof.data.base import derive_generator, shuffled, take
from noiseproof.noise.human import CIFAR10N
from noiseproof.strategies import predict_log_probs

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.analysis.runs import Part, RunFolder
    from noiseproof.strategies import Strategy

Array: TypeAlias = NDArray[Any]

INTERVALS = 50  # of the dissection: 1000 samples each on CIFAR, as in the SLN paper
STAGE = "After training"
KNOWS_TRUTH = "a dataset whose clean labels are known, such as one with synthetic noise"


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for labelled rows."""

    labels: Array  # (N,): as given
    pred_probs: Array  # (N, K)
    clean: Array | None = None  # (N,): −1 for a row of no class
    corrected: Array | None = None  # (N,): the labels that the method ended with, where it changes them
    classes: tuple[str, ...] = ()
    rows: Array | None = None  # (N,): where they are in their set

    def __post_init__(self) -> None:
        _check(self.labels, self.pred_probs)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes' names, numbers where there are none."""
        return self.classes or tuple(str(k) for k in range(self.pred_probs.shape[1]))


def _check(labels: ArrayLike, pred_probs: ArrayLike) -> tuple[Array, Array]:
    y, p = np.asarray(labels), np.asarray(pred_probs, dtype=np.float64)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(p):
        raise ValueError(
            f"Expected labels (N,) and pred_probs (N, K) of the same rows, at least one, got {y.shape} and {p.shape}."
        )
    _check_classes("labels", y, p.shape[1])
    check_probabilities("pred_probs", p)
    return y, p


def _check_classes(name: str, y: Array, num_classes: int, lowest: int = 0) -> None:
    if y.dtype.kind not in "iu" or y.min() < lowest or y.max() >= num_classes:
        raise ValueError(f"Expected {name} in {lowest} … {num_classes - 1}, got {y.dtype} from {y.min()} to {y.max()}.")


def _of_the_same_rows(**columns: ArrayLike) -> list[Array]:
    """The columns as arrays, refused unless they have one number a row."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    shapes = [array.shape for array in arrays.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        got = " and ".join(map(str, shapes))
        raise ValueError(f"Expected {' and '.join(arrays)} (N,) of the same rows, at least one, got {got}.")
    return list(arrays.values())


def label_losses(labels: ArrayLike, pred_probs: ArrayLike) -> Array:
    """−log p_y of each row, (N,)."""
    y, p = _check(labels, pred_probs)
    with np.errstate(divide="ignore"):  # probability zero: an infinite loss
        losses: Array = -np.log(p[np.arange(len(y)), y])
    return losses


# Which labels a model believes

CASES = {  # label right?, prediction right?
    (True, True): "label right, prediction right",
    (True, False): "label right, prediction wrong",
    (False, True): "label wrong, prediction right",
    (False, False): "label wrong, prediction wrong",
}


def dissection(
    labels: ArrayLike, predicted: ArrayLike, losses: ArrayLike, clean: ArrayLike, *, size: int | None = None
) -> pd.DataFrame:
    """Samples in ascending order of loss, ``size`` to an interval, counted by the four cases (SLN paper, Fig. 4).

    ``rank`` is the number of samples before an interval's middle. By default 50 intervals.

    >>> dissection([0, 1, 1, 0], [0, 1, 0, 1], losses=[0.1, 0.2, 3, 4], clean=[0, 1, 0, 0], size=2)["samples"].tolist()
    [2, 0, 0, 0, 0, 1, 1, 0]
    """
    import pandas as pd

    y, prediction, loss, truth = _of_the_same_rows(labels=labels, predicted=predicted, losses=losses, clean=clean)
    size = check_count("size", size, 1) if size is not None else max(1, -(-len(y) // INTERVALS))
    order = np.argsort(loss, kind="stable")
    right_label, right_prediction = (y == truth)[order], (prediction == truth)[order]
    interval = np.arange(len(y)) // size
    last = int(interval[-1])
    middle = np.minimum(np.arange(last + 1) * size + size / 2, (np.arange(last + 1) * size + len(y)) / 2)
    rows = []
    for (label, prediction_), case in CASES.items():
        member = (right_label == label) & (right_prediction == prediction_)
        rows.append(
            pd.DataFrame({"rank": middle, "case": case, "samples": np.bincount(interval[member], minlength=last + 1)})
        )
    table = pd.concat(rows)
    return table.sort_values("rank", kind="stable", ignore_index=True)


def dissection_figure(runs: Mapping[str, Predictions]) -> Figure | Missing:
    """Samples by rank of their loss, in four cases (SLN paper, Fig. 4)."""
    title = "Which samples have small losses"
    known = {name: p for name, p in runs.items() if p.clean is not None}
    if not known:
        return Missing("dissection", title, "SLN paper, Figs. 4, 9", KNOWS_TRUTH, STAGE)
    tables = {}
    for name, p in known.items():
        assert p.clean is not None
        table = dissection(p.labels, p.pred_probs.argmax(1), label_losses(p.labels, p.pred_probs), p.clean)
        table["share"] = table["samples"] / table.groupby("rank")["samples"].transform("sum")
        tables[name] = table
    return Figure(
        "dissection",
        title,
        "From the smallest loss to the largest: wrong labels among the small losses were memorised; wrong labels with "
        "right predictions are what label correction can mend.",
        "SLN paper, Figs. 4, 9",
        stacked(tables),
        (Layer("area", "rank", "share", color="case"),),
        "samples in ascending order of loss",
        "share of samples",
        panel="method",
        stack=True,
        stage=STAGE,
    )


def histogram(values: Array, groups: Mapping[str, Array], edges: Array, name: str) -> pd.DataFrame:
    """Counts and densities of ``values`` (N,) in each group (N,) of rows, what is not finite left out.

    Returns ``labels`` (the group), ``name`` (the middle of a bin), ``low``, ``high``, ``samples`` and ``density``,
    whose integral is one in each group.

    >>> table = histogram(np.array([0.1, 0.2, 0.7]), {"all": np.full(3, True)}, np.array([0.0, 0.5, 1.0]), "x")
    >>> table[["x", "samples", "density"]].round(3).values.tolist()
    [[0.25, 2.0, 1.333], [0.75, 1.0, 0.667]]
    """
    import pandas as pd

    tables = []
    for group, member in groups.items():
        found = values[member & np.isfinite(values)]
        counts = np.histogram(found, edges)[0]
        middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
        density = counts / (max(1, counts.sum()) * widths)
        columns = {"labels": group, name: middles, "low": edges[:-1], "high": edges[1:]}
        tables.append(pd.DataFrame({**columns, "samples": counts, "density": density}))
    return pd.concat(tables, ignore_index=True)


def label_probability(
    labels: ArrayLike, pred_probs: ArrayLike, clean: ArrayLike | None = None, *, bins: int = 50
) -> pd.DataFrame:
    """Density of p_y, the probability of the given label, of right and of wrong labels apart (SLN paper, Fig. 3).

    >>> table = label_probability([0, 1], [[0.9, 0.1], [0.6, 0.4]], clean=[0, 0], bins=2)
    >>> table[table["density"] > 0][["labels", "probability", "density"]].values.tolist()
    [['right', 0.75, 2.0], ['wrong', 0.25, 2.0]]
    """
    y, p = _check(labels, pred_probs)
    p_y = np.clip(p[np.arange(len(y)), y], 0, 1)
    edges = np.linspace(0, 1, check_count("bins", bins, 1) + 1)
    groups = {"all": np.ones(len(y), bool)}
    if clean is not None:
        y, truth = _of_the_same_rows(labels=y, clean=clean)
        groups = {"right": y == truth, "wrong": y != truth}
    return histogram(p_y, groups, edges, "probability").drop(columns=["low", "high"])


def label_probability_figure(runs: Mapping[str, Predictions], *, bins: int = 50) -> Figure:
    """Density of the probability of the given label (SLN paper, Fig. 3)."""
    return Figure(
        "label-probability",
        "How sure the model is of the given labels",
        "Robust training keeps the probabilities of wrong labels away from one, and moves those of right labels "
        "little.",
        "SLN paper, Fig. 3",
        stacked({name: label_probability(p.labels, p.pred_probs, p.clean, bins=bins) for name, p in runs.items()}),
        (Layer("line", "probability", "density", color="method", dash="labels"),),
        "predicted probability of the given label",
        "density of samples",
        stage=STAGE,
    )


def confusion(labels: ArrayLike, clean: ArrayLike, classes: Sequence[str]) -> pd.DataFrame:
    """How many rows of a clean class bear a label, and their share of the class (NAL paper, Figs. 1-6).

    Rows of no class (−1) are left out.

    >>> confusion([0, 1, 1], clean=[0, 0, 1], classes=["a", "b"])["share"].tolist()
    [0.5, 0.5, 0.0, 1.0]
    """
    import pandas as pd

    (y, truth), K = _of_the_same_rows(labels=labels, clean=clean), len(classes)
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


def confusion_figure(runs: Mapping[str, Predictions]) -> Figure | Missing:
    """Given, and corrected or predicted labels against clean ones (NAL paper, Figs. 1-6)."""
    title = "Labels against the truth"
    tables: dict[str, pd.DataFrame] = {}
    seen: list[Array] = []
    for name, p in runs.items():
        if p.clean is None:
            continue
        kind, better = ("predicted", p.pred_probs.argmax(1)) if p.corrected is None else ("corrected", p.corrected)
        found = {f"{kind}, {name}": better}
        if not any(np.array_equal(p.labels, other) for other in seen):  # runs mostly share their data
            found = {f"given to {name}" if seen else "given": p.labels} | found
            seen.append(p.labels)
        for what, labels in found.items():
            right = np.mean(labels == p.clean)
            tables[f"{what} ({right:.1%} right)"] = confusion(labels, p.clean, p.names)
    if not tables:
        return Missing("confusion", title, "NAL paper, Figs. 1-6", KNOWS_TRUTH, STAGE)
    return Figure(
        "confusion",
        title,
        "The brighter the diagonal, the more labels of a class are right; what lights up beside it is what the class "
        "is mistaken for.",
        "NAL paper, Figs. 1-6",
        stacked(tables, "labels"),
        (Layer("heat", "label", "clean", z="percent", label="% of the class"),),
        "label",
        "clean class",
        panel="labels",
        stage=STAGE,
    )


# How sure it is


@dataclass(frozen=True)
class Calibration:
    """How far predicted probabilities can be taken at their word."""

    ece: float  # Σ_b share_b · |accuracy_b − confidence_b|
    nll: float  # mean of −log p_y
    brier: float  # mean of Σ_k (p_k − 1[k = y])²
    accuracy: float
    confidence: float  # mean of max_k p_k


def reliability(labels: ArrayLike, pred_probs: ArrayLike, *, bins: int = 15) -> pd.DataFrame:
    """Accuracy and mean confidence of the samples in bins (low, high] of confidence, all equally wide.

    >>> table = reliability([0, 0, 1], [[0.9, 0.1], [0.9, 0.1], [0.7, 0.3]], bins=2)
    >>> table[["high", "samples", "confidence", "accuracy"]].round(3).values.tolist()
    [[0.5, 0.0, nan, nan], [1.0, 3.0, 0.833, 0.667]]
    """
    import pandas as pd

    y, p = _check(labels, pred_probs)
    bins = check_count("bins", bins, 1)
    confidence, hit = np.clip(p.max(1), 0, 1), p.argmax(1) == y
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    samples = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0/0: a bin without samples
        columns = {
            "low": edges[:-1],
            "high": edges[1:],
            "middle": (edges[:-1] + edges[1:]) / 2,
            "samples": samples,
            "confidence": np.bincount(place, confidence, bins) / samples,
            "accuracy": np.bincount(place, hit, bins) / samples,
        }
    return pd.DataFrame(columns)


def calibration(labels: ArrayLike, pred_probs: ArrayLike, *, bins: int = 15) -> Calibration:
    """Expected calibration error over ``bins`` bins (Guo et al. 2017), NLL and Brier score against ``labels``.

    >>> found = calibration([0, 0, 1], [[0.9, 0.1], [0.9, 0.1], [0.7, 0.3]], bins=2)
    >>> round(found.ece, 4), round(found.nll, 4), round(found.brier, 4)  # 5/6 sure, 2/3 right
    (0.1667, 0.4716, 0.34)
    """
    y, p = _check(labels, pred_probs)
    table = reliability(y, p, bins=bins).dropna()
    gaps = table["samples"] / len(y) * (table["accuracy"] - table["confidence"]).abs()
    return Calibration(
        ece=float(gaps.sum()),
        nll=float(label_losses(y, p).mean()),
        brier=float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()),
        accuracy=float((p.argmax(1) == y).mean()),
        confidence=float(p.max(1).mean()),
    )


def reliability_figure(runs: Mapping[str, Predictions], *, bins: int = 15) -> Figure:
    """Accuracy against confidence; put in predictions of rows that the model was not trained on."""
    return Figure(
        "reliability",
        "Reliability diagram",
        "Below the diagonal a model is surer than it is right, above it less sure.",
        "LN paper, App. G.2",
        stacked({name: reliability(p.labels, p.pred_probs, bins=bins) for name, p in runs.items()}),
        (
            Layer("line", "middle", "middle", label="as right as sure"),
            Layer("line", "confidence", "accuracy", color="method"),
        ),
        "confidence",
        "accuracy",
        stage=STAGE,
    )


def calibration_figure(runs: Mapping[str, Predictions], *, bins: int = 15) -> Figure:
    """Expected calibration error, NLL and Brier score of each run; put in predictions of rows not trained on."""
    import pandas as pd

    rows = []
    for name, p in runs.items():
        found = calibration(p.labels, p.pred_probs, bins=bins)
        values = {f"ECE, {bins} bins": found.ece, "NLL": found.nll, "Brier score": found.brier}
        rows += [{"method": name, "metric": metric, "value": value} for metric, value in values.items()]
    return Figure(
        "calibration",
        "Calibration",
        "The lower, the better the predicted probabilities can be taken at their word.",
        "LN paper, App. G.2",
        pd.DataFrame(rows),
        (Layer("bars", "metric", "value", color="method"),),
        "",
        "",
        panel="metric",
        share_y=False,
        stage=STAGE,
    )


# Several annotators


def annotator_nll(annotations: ArrayLike, pred_probs: ArrayLike) -> float:
    """Mean over rows of the mean of −log p(y) over the labels of a row (LN paper, App. G.2, Eq. 29 and Table 4).

    ``annotations`` are (N, A), −1 where an annotator did not label a row.

    >>> round(annotator_nll([[0, 0, 1], [1, -1, 1]], [[0.5, 0.5], [0.2, 0.8]]), 4)
    0.4581
    """
    votes, p = np.asarray(annotations), np.asarray(pred_probs, dtype=np.float64)
    if votes.ndim != 2 or votes.shape[:1] != p.shape[:1]:
        raise ValueError(
            f"Expected annotations (N, A) of the rows of pred_probs (N, K), got {votes.shape} and {p.shape}."
        )
    given = votes >= 0
    if not given.any(1).all():
        raise ValueError(f"Expected a label in every row, row {int((~given.any(1)).argmax())} has none. Drop it.")
    row, annotator = given.nonzero()
    losses = np.zeros(votes.shape)
    losses[row, annotator] = label_losses(votes[row, annotator], p[row])
    return float((losses.sum(1) / given.sum(1)).mean())


def cifar10n_annotations(clean: ArrayLike, folder: str | Path | None = None) -> Array:
    """The three labels that people gave to each of CIFAR-10's training images, (50000, 3), from the official file.

    ``clean`` are the images' own labels: the file must be of the same images in the same order.
    """
    truth = torch.as_tensor(np.asarray(clean))
    columns = [CIFAR10N(f"random{n}", folder).corrupt(truth, generator=0, num_classes=10).given for n in (1, 2, 3)]
    return torch.stack(columns, 1).numpy()


ANNOTATOR_NLL = {"het-τ-Σ": 1.66, "ce": 1.60, "gce": 1.58, "nan": 1.54, "ln": 1.18}  # LN paper, Table 4, no noise added


def annotator_figure(nll: Mapping[str, float], published: Mapping[str, float] = ANNOTATOR_NLL) -> Figure | Missing:
    """Multi-annotator NLL of each run on CIFAR-10's training set, beside the published ones (LN paper, Table 4)."""
    import pandas as pd

    title = "What three annotators would say"
    if not nll:
        return Missing(
            "annotators", title, "LN paper, Table 4", "a run on CIFAR-10, and CIFAR-10N's labels beside it", STAGE
        )
    sources = {"measured": nll, "published": published}
    rows = [{"numbers": source, "method": m, "nll": value} for source, of in sources.items() for m, value in of.items()]
    return Figure(
        "annotators",
        title,
        "The lower, the better the predicted distribution covers the labels that different people give to an image; "
        "the published models were trained on CIFAR-10's own labels.",
        "LN paper, Table 4",
        pd.DataFrame(rows),
        (Layer("bars", "method", "nll", color="numbers"),),
        "",
        "mean NLL of the annotators' labels",
        stage=STAGE,
    )


# What it cost, and what hyperparameters did


def costs(records: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of training, with the record's own passes, and the last epoch's test accuracy, of each run's record.

    >>> import pandas as pd
    >>> costs({"ce": pd.DataFrame({"seconds": [3.0, 2.0], "test_accuracy": [0.5, 0.7]})}).values.tolist()
    [['ce', 2, 5.0, 0.7]]
    """
    import pandas as pd

    rows = []
    for name, record in records.items():
        _check_columns(record, ["seconds", "test_accuracy"])
        accuracy = float(record["test_accuracy"].iloc[-1])
        seconds = float(record["seconds"].sum())
        rows.append({"method": name, "epochs": len(record), "seconds": seconds, "accuracy": accuracy})
    return pd.DataFrame(rows)


def cost_figure(runs: pd.DataFrame) -> Figure:
    """Accuracy against training time (SLN paper, Fig. 8): a table with ``method``, ``seconds`` and ``accuracy``."""
    _check_columns(runs, ["method", "seconds", "accuracy"])
    return Figure(
        "cost",
        "Accuracy against training time",
        "The nearer to the upper left corner, the more accuracy for the time; compare only runs of the same machine.",
        "SLN paper, Fig. 8",
        runs,
        (Layer("points", "seconds", "accuracy", color="method"),),
        "seconds of training",
        "test accuracy of the last epoch",
        log_x=bool(runs["seconds"].max() > 10 * runs["seconds"].min()),
        stage=STAGE,
    )


def sensitivity(runs: pd.DataFrame, by: Sequence[str], metric: str = "test_accuracy") -> pd.DataFrame:
    """Mean, standard deviation (over seeds, n − 1) and number of runs of each combination of the columns ``by``."""
    _check_columns(runs, [*by, metric])
    groups = runs.groupby(list(by), sort=True)[metric]
    table = groups.agg(mean="mean", std="std", runs="count").reset_index()
    table["low"], table["high"] = table["mean"] - table["std"].fillna(0), table["mean"] + table["std"].fillna(0)
    return table


def sensitivity_figure(runs: pd.DataFrame, by: Sequence[str], metric: str = "test_accuracy") -> Figure:
    """``metric`` over one hyperparameter, as a band (SLN paper, Fig. 6), or over two, as a heat map (LN paper, Figs. 5,
    8)."""
    if len(by) not in (1, 2):
        raise ValueError(f"Expected one or two hyperparameters to look at, got {list(by)}.")
    table, words = sensitivity(runs, by, metric), metric.replace("_", " ")
    if len(by) == 1:
        layer, y_label = Layer("line", by[0], "mean", low="low", high="high"), words
    else:
        table = table.astype(dict.fromkeys(by, str))  # values that were tried, not a scale
        layer, y_label = Layer("heat", by[0], by[1], z="mean", label=words), by[1]
    return Figure(
        "sensitivity-" + "-".join(by),
        f"Sensitivity to {' and '.join(by)}",
        f"Mean {words} over seeds: where it changes little around the best value, the method needs little tuning.",
        "SLN paper, Fig. 6" if len(by) == 1 else "LN paper, Figs. 5, 8",
        table,
        (layer,),
        by[0],
        y_label,
        stage=STAGE,
    )


def varied(specs: Sequence[str]) -> pd.DataFrame | None:
    """The parameters in which specs of one method differ, a column each; None where they differ in more than that.

    >>> varied(["ln:tau=2,lam=0.5", "ln:tau=4,lam=0.5"]).to_dict("list")
    {'tau': [2, 4]}
    """
    import pandas as pd

    calls = []
    for spec in specs:
        if "&" in spec or "+" in spec:  # more than one call
            return None
        calls.append(parse_call(spec))
    table = pd.DataFrame([params for _, params in calls])
    if len({name for name, _ in calls}) != 1 or table.isna().any(axis=None):
        return None
    table = table[[name for name in table if table[name].astype(str).nunique() > 1]]
    return None if table.empty else table


# Runs


def predict(
    run: RunFolder, part: Part = "train", *, rows: int | None = None, seed: int = 0, accelerator: str = "auto"
) -> Predictions:
    """What a run's models, at its end, say of a part of its data, not augmented; of ``rows`` drawn with ``seed``."""
    given, clean = part_labels(run, part)
    result = run.result(accelerator)
    corrected = corrected_labels(result.strategies, given) if part == "train" else None
    chosen = shuffled(len(given), derive_generator(seed, 0))[:rows].sort().values
    p = predict_log_probs(result.run, take(run.inputs(part), chosen)).double().exp().cpu().numpy()
    index = chosen.numpy()
    clean, corrected = (None if labels is None else labels[index] for labels in (clean, corrected))
    return Predictions(given[index], p, clean, corrected, run.classes, index)


def part_labels(run: RunFolder, part: Part) -> tuple[Array, Array | None]:
    """Given and, where they are known, clean labels of a part of a run's data."""
    run.inputs(part)  # refuses where there is none
    data = getattr(run.task, part)
    given, clean = (data.y, data.y) if part == "test" else (data.given, data.clean)
    return given.cpu().numpy(), None if clean is None else clean.cpu().numpy()


def corrected_labels(strategies: Sequence[Strategy], given: ArrayLike) -> Array | None:
    """The largest class of each target that strategies have made of ``given`` labels; None where none did."""
    from noiseproof.strategies.correction import LabelCorrection
    from noiseproof.strategies.memory import EstimatedTargets

    y = np.asarray(given)
    for strategy in strategies:
        if isinstance(strategy, EstimatedTargets):
            labels: Array = strategy.table.mean(1).argmax(1).cpu().numpy()
            return labels
        if isinstance(strategy, LabelCorrection) and strategy.kept is not None and strategy.predicted is not None:
            kept, predicted = strategy.kept.double().cpu().numpy()[:, None], strategy.predicted.cpu().numpy()
            K = predicted.shape[1] if predicted.ndim == 2 else max(int(predicted.max()), int(y.max())) + 1
            soft = predicted if predicted.ndim == 2 else np.eye(K)[predicted]
            return np.asarray((kept * np.eye(K)[y] + (1 - kept) * soft).argmax(1))
    return None


def prediction_figures(
    runs: Mapping[str, RunFolder], *, rows: int | None = None, accelerator: str = "auto"
) -> list[Figure | Missing]:
    """Every figure of this module that runs' folders can make: a pass over their training rows, one over their test's.

    ``rows`` looks at so many rows of each, drawn at random. A run whose data or weights are out of reach is left out,
    with the reason in the figures' readings.
    """
    found, why = _within_reach(runs)
    options: dict[str, Any] = {"rows": rows, "accelerator": accelerator}
    train = {name: predict(run, "train", **options) for name, run in found.items()}
    test = {name: predict(run, "test", **options) for name, run in found.items() if run.task.test is not None}
    votes = {name: said for name, run in found.items() if (said := _annotations(run)) is not None}
    nll = {name: annotator_nll(said[train[name].rows], train[name].pred_probs) for name, said in votes.items()}
    needs = f"a run whose data and weights can be read.{why}" if why else "a dataset with test rows"
    unsure = Missing(
        "label-probability", "How sure the model is of the given labels", "SLN paper, Fig. 3", needs, STAGE
    )
    unread = Missing("reliability", "Reliability diagram", "LN paper, App. G.2", needs, STAGE)
    figures: list[Figure | Missing] = [
        dissection_figure(train),
        label_probability_figure(train) if train else unsure,
        confusion_figure(train),
        *([reliability_figure(test), calibration_figure(test)] if test else [unread]),
        annotator_figure(nll),
    ]
    if found:
        figures = [replace(f, reading=f.reading + why) if isinstance(f, Figure) else f for f in figures]
    else:
        figures = [replace(f, needs=needs) if isinstance(f, Missing) else f for f in figures[:-1]] + figures[-1:]
    if records := {name: run.rows for name, run in runs.items() if "test_accuracy" in run.rows}:
        figures.append(cost_figure(costs(records)))
        parameters = varied([runs[name].name for name in records])
        alike = len({runs[name].alike("method", "name") for name in records}) == 1
        if alike and parameters is not None and len(parameters.columns) <= 2:
            accuracy = [record["test_accuracy"].iloc[-1] for record in records.values()]
            figures.append(sensitivity_figure(parameters.assign(test_accuracy=accuracy), parameters.columns.tolist()))
    return figures


def _within_reach(runs: Mapping[str, RunFolder]) -> tuple[dict[str, RunFolder], str]:
    """The runs whose data and weights can be read, and a sentence on each of the others."""
    found, why = {}, ""
    for name, run in runs.items():
        try:
            run.models()
            found[name] = run
        except (ValueError, OSError) as error:
            why += f" Without {name}: {error}"
    return found, why


def _annotations(run: RunFolder) -> Array | None:
    """What CIFAR-10N's annotators said of a run's training rows; None where it was not trained on CIFAR-10."""
    if not run.dataset.startswith("cifar10") or run.num_classes != 10 or run.clean is None:
        return None
    parts = [run.labels[name] for name in ("index", "validation.index") if name in run.labels]
    truths = [run.labels[name] for name in ("clean", "validation.clean") if name in run.labels]
    rows, truth = torch.cat(parts), torch.cat(truths)
    if not torch.equal(rows.sort().values, torch.arange(50_000)) or bool((truth < 0).any()):
        return None  # not all images, or not only they
    try:
        votes = cifar10n_annotations(torch.empty_like(truth).scatter(0, rows, truth), run.data_root)
        return np.asarray(votes[run.labels["index"].numpy()])
    except (ValueError, OSError):  # the labels are not there
        return None


def stacked(tables: Mapping[str, pd.DataFrame] | Mapping[int, pd.DataFrame], column: str = "method") -> pd.DataFrame:
    """Tables of several runs as one, with their names in ``column``."""
    import pandas as pd

    return pd.concat(tables, names=[column]).reset_index(level=0).reset_index(drop=True)


def _check_columns(table: pd.DataFrame, needed: Sequence[str]) -> None:
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(f"Expected the columns {', '.join(needed)}, {', '.join(absent)} not among {list(table)}.")
