"""Predictions of several models joined by how well they fit the given labels out of sample."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float32]
FLOOR = 1e-3  # of a probability: a few labels that a model excludes do not rule it out
PRIOR = 1.0  # rows that each model has beforehand
ROUNDS, TOLERANCE = 200, 1e-4
MAX_ROWS = 20_000  # that the weights are fitted to, drawn at random
# firmness of the weights of all questions, of each one, and of offsets
SHARED, OWN, OFFSET = 5.0, 20.0, 1.0


def mixture_weights(likelihoods: Any) -> NDArray[np.float64]:
    """Weights w ≥ 0 of M models, Σ w = 1, under which the labels of N rows are most likely.

    EM for Σ_n log Σ_m w_m·p_m(y_n | x_n) + Σ_m log w_m, which is concave; the second term, as one
    more row for each model, keeps weights of few rows from the corners.

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


def join(
    given: NDArray[np.int64], predictions: Mapping[str, Probs]
) -> tuple[Probs, dict[str, float]]:
    """The mixture of predictions (N, K) under which the given labels are most likely, and the
    weight of each.
    """
    rows = _some_rows(len(given))
    shares = mixture_weights(
        np.stack([probs[rows, given[rows]] for probs in predictions.values()], 1)
    )
    weights = dict(zip(predictions, shares.tolist(), strict=True))
    return mix(predictions, weights), weights


def mix(predictions: Mapping[str, Probs], weights: Mapping[str, float]) -> Probs:
    """The mixture Σ w·p / Σ w of predictions (N, K)."""
    mixed, total = (
        np.zeros_like(next(iter(predictions.values()))),
        sum(weights[name] for name in predictions),
    )
    for name, probs in predictions.items():
        mixed += np.float32(weights[name] / total) * probs
    return mixed


def join_answers(
    answers: NDArray[np.int64],
    predictions: Mapping[str, Probs],
    weights: NDArray[np.float64] | None = None,
) -> tuple[Probs, NDArray[np.float64]]:
    """Probabilities of yes (N, K) from those of M models, and the weights of these with the offset,
    (K, M + 1).

        p_k = σ(Σ_m w_km·logit p_mk + b_k)        w ≥ 0

    Weights and offsets, unless given, make the given answers most likely, with a penalty OWN/2·|w_k
    − w|² on the distance from weights that all questions share, which have one on that from equal
    weights: so rare labels have those of the others. Unlike a mixture, this is calibrated for each
    question, by which the judge tells noise from overlap.
    """
    logits = np.stack([_log_odds(p) for p in predictions.values()], -1)  # (N, K, M)
    if weights is None:
        rows = _some_rows(len(answers))
        z, yes = logits[rows].astype(np.float64), answers[rows].astype(np.float64)
        M = len(predictions)
        shared = _fit_weights(z.reshape(-1, M), yes.ravel(), np.full(M, 1 / M), SHARED)[:-1]
        weights = np.stack(
            [_fit_weights(z[:, k], yes[:, k], shared, OWN) for k in range(answers.shape[1])]
        )
    total = np.einsum("nkm,km->nk", logits, weights[:, :-1].astype(np.float32)) + weights[:, -1]
    return np.asarray(1 / (1 + np.exp(-total)), np.float32), weights


def mean_shares(names: Iterable[str], weights: NDArray[np.float64]) -> dict[str, float]:
    """The share of each model in the weights of `join_answers`, the mean over the questions."""
    own = weights[:, :-1]
    shares = (own / np.maximum(own.sum(1, keepdims=True), FLOOR)).mean(0)
    return dict(zip(names, shares.tolist(), strict=True))


def _fit_weights(
    z: NDArray[np.float64], yes: NDArray[np.float64], around: NDArray[np.float64], firmness: float
) -> NDArray[np.float64]:
    """Weights and the offset (M + 1,) of log odds (n, M) for answers (n,): penalised logistic
    regression.
    """
    from scipy.optimize import minimize  # its import takes half a second

    def loss(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        total, away = z @ at[:-1] + at[-1], at[:-1] - around
        slope = 1 / (1 + np.exp(-total)) - yes
        value = (
            np.logaddexp(0, total).sum()
            - yes @ total
            + (firmness * away @ away + OFFSET * at[-1] ** 2) / 2
        )
        return value, np.append(slope @ z + firmness * away, slope.sum() + OFFSET * at[-1])

    bounds = [(0, None)] * len(around) + [(None, None)]
    return np.asarray(
        minimize(loss, np.append(around, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x
    )


def _log_odds(p: Probs) -> Probs:
    p = np.clip(p, FLOOR, 1 - FLOOR)
    return np.asarray(np.log(p / (1 - p)), np.float32)


def _some_rows(number: int) -> NDArray[np.int64]:
    """Up to MAX_ROWS of ``number`` rows, in order."""
    rows = np.arange(number)
    return (
        rows
        if number <= MAX_ROWS
        else np.sort(np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False))
    )
