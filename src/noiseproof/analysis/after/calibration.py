"""How far predicted probabilities can be trusted: reliability, calibration error, the labels of
several annotators.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from noiseproof.analysis.after.predictions import (
    Predictions,
    check_predictions,
    heldout_predictions,
    label_losses,
)
from noiseproof.analysis.figures import Layer, figure, stack
from noiseproof.core.checks import check_count

BINS = 15  # of confidence, as in Guo et al. (2017)


@dataclass(frozen=True)
class CalibrationScores:
    """Scores of predicted probabilities against labels."""

    ece: float  # Σ_b share_b · |accuracy_b − confidence_b|
    nll: float  # mean of −log p_y
    brier: float  # mean of Σ_k (p_k − 1[k = y])²
    accuracy: float
    confidence: float  # mean of max_k p_k


def reliability(labels: ArrayLike, pred_probs: ArrayLike, *, bins: int = BINS) -> pd.DataFrame:
    """Return accuracy and mean confidence of the samples in bins (low, high] of confidence, of
    equal width.
    """
    y, p = check_predictions(labels, pred_probs)
    bins = check_count("bins", bins, 1)
    confidence = np.clip(p.max(1), 0, 1)
    hit = p.argmax(1) == y
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


def calibration(labels: ArrayLike, pred_probs: ArrayLike, *, bins: int = BINS) -> CalibrationScores:
    """Return the expected calibration error over ``bins`` bins (Guo et al. 2017), NLL and Brier
    score against ``labels``.

    >>> scores = calibration([0, 0, 1], [[0.9, 0.1], [0.9, 0.1], [0.7, 0.3]], bins=2)
    >>> round(scores.ece, 4), round(scores.nll, 4), round(scores.brier, 4)  # 5/6 sure, 2/3 right
    (0.1667, 0.4716, 0.34)
    """
    y, p = check_predictions(labels, pred_probs)
    table = reliability(y, p, bins=bins).dropna()
    gaps = table["samples"] / len(y) * (table["accuracy"] - table["confidence"]).abs()
    return CalibrationScores(
        ece=float(gaps.sum()),
        nll=float(label_losses(y, p).mean()),
        brier=float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()),
        accuracy=float((p.argmax(1) == y).mean()),
        confidence=float(p.max(1).mean()),
    )


@figure(
    "reliability",
    "Reliability diagram",
    Layer("line", "middle", "middle", label="as right as sure"),
    Layer("line", "confidence", "accuracy", color="method"),
    subject=heldout_predictions,
    reading="Below the diagonal a model is overconfident, above it underconfident.",
    paper="LN paper, App. G.2",
    axes=("confidence", "accuracy"),
)
def reliability_figure(runs: Mapping[str, Predictions]) -> pd.DataFrame:
    return stack({name: reliability(p.labels, p.pred_probs) for name, p in runs.items()})


@figure(
    "calibration",
    "Calibration",
    Layer("bars", "metric", "value", color="method"),
    subject=heldout_predictions,
    reading="The lower, the better the predicted probabilities match how often they are right.",
    paper="LN paper, App. G.2",
    panel="metric",
    share_y=False,
)
def calibration_figure(runs: Mapping[str, Predictions]) -> pd.DataFrame:
    rows: list[tuple[str, str, float]] = []
    for name, p in runs.items():
        scores = calibration(p.labels, p.pred_probs)
        rows.append((name, f"ECE, {BINS} bins", scores.ece))
        rows.append((name, "NLL", scores.nll))
        rows.append((name, "Brier score", scores.brier))
    return pd.DataFrame(rows, columns=["method", "metric", "value"])


def annotator_nll(annotations: ArrayLike, pred_probs: ArrayLike) -> float:
    """Return the mean over rows of the mean of −log p(y) over the labels of a row (LN paper, App.
    G.2, Eq. 29 and Table 4).

    ``annotations`` are (N, A), −1 where an annotator did not label a row.
    """
    votes = np.asarray(annotations)
    p = np.asarray(pred_probs, dtype=np.float64)
    if votes.ndim != 2 or votes.shape[:1] != p.shape[:1]:
        raise ValueError(
            f"Expected annotations (N, A) of the rows of pred_probs (N, K), got {votes.shape} and"
            f" {p.shape}."
        )
    given = votes >= 0
    if not given.any(1).all():
        raise ValueError(
            f"Expected a label in every row, row {int((~given.any(1)).argmax())} has none. Drop it."
        )
    row, annotator = given.nonzero()
    losses = np.zeros(votes.shape)
    losses[row, annotator] = label_losses(votes[row, annotator], p[row])
    return float((losses.sum(1) / given.sum(1)).mean())
