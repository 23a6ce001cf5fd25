"""Predictions of several models joined by how well they fit the given labels out of sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float32]
FLOOR = 1e-3  # of a probability: a few labels that a model excludes do not rule it out
PRIOR = 1.0  # rows that each model has beforehand
ROUNDS, TOLERANCE = 200, 1e-4
MAX_ROWS = 20_000  # that the weights are fitted to, drawn at random


def mixture_weights(likelihoods: Any) -> NDArray[np.float64]:
    """Weights w ≥ 0 of M models, Σ w = 1, under which the labels of N rows are most likely.

    EM for Σ_n log Σ_m w_m·p_m(y_n | x_n) + Σ_m log w_m, which is concave; the second term, as one more row for each
    model, keeps weights of few rows from the corners.

    Args:
        likelihoods: (N, M), the probability that each model gives to the label of each row.

    >>> mixture_weights([[0.9, 0.1], [0.8, 0.3], [0.7, 0.6]]).round(2).tolist()
    [0.71, 0.29]
    """
    p = np.clip(np.asarray(likelihoods, np.float64), FLOOR, 1)
    weights = np.full(p.shape[1], 1 / p.shape[1])
    for _ in range(ROUNDS):
        shares = p * weights
        shares /= shares.sum(1, keepdims=True)
        new = (shares.sum(0) + PRIOR) / (len(p) + PRIOR * len(weights))
        change, weights = np.abs(new - weights).max(), new
        if change < TOLERANCE:
            break
    return weights


def join(given: NDArray[np.int64], predictions: Mapping[str, Probs]) -> tuple[Probs, dict[str, float]]:
    """The mixture of predictions (N, K) under which the given labels are most likely, and the weight of each."""
    rows = np.arange(len(given))
    if len(rows) > MAX_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False))
    shares = mixture_weights(np.stack([probs[rows, given[rows]] for probs in predictions.values()], 1))
    weights = dict(zip(predictions, shares.tolist(), strict=True))
    return mix(predictions, weights), weights


def mix(predictions: Mapping[str, Probs], weights: Mapping[str, float]) -> Probs:
    """The mixture Σ w·p / Σ w of predictions (N, K)."""
    mixed, total = np.zeros_like(next(iter(predictions.values()))), sum(weights[name] for name in predictions)
    for name, probs in predictions.items():
        mixed += np.float32(weights[name] / total) * probs
    return mixed
