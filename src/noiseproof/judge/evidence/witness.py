"""A witness that never saw the labels: what descriptions of the classes say of each row.

A model that was trained on the given labels repeats mistakes that follow a pattern. The similarity
of a row to a description of each class does not depend on them, so it can contradict such mistakes.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

MOST_ROUNDS = 30  # of EM
SETTLED = 1e-3  # mean change of a probability in a round


def consult_witness(
    pred_probs: NDArray[np.float32], similarities: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Join predictions with similarities to descriptions of the classes, by Bayes' rule.

    The witness's reliability is estimated as an annotator's is, by EM, so that a description that
    says nothing of its class changes nothing. With predictions p and similarities s, which are
    independent given the class, the result q is proportional to p · P(class | s) / P(class);
    P(class | s) is a logistic regression on s whose targets are q, in the first round p.

    Args:
        pred_probs: (N, K), out of sample.
        similarities: (N, K) of each row to the description of each class, on any scale.

    Returns:
        (N, K) probabilities.
    """
    tiny = np.finfo(np.float32).tiny
    centred = similarities - similarities.mean(0)
    standard = centred / np.maximum(centred.std(0), tiny)
    inputs = np.column_stack([standard, np.ones(len(standard))])  # (N, K + 1)
    weights = np.zeros((inputs.shape[1], pred_probs.shape[1]))
    joined = pred_probs.astype(np.float64)
    for _ in range(MOST_ROUNDS):
        weights = _regress(inputs, joined, weights)
        log_odds = log_softmax(inputs @ weights, axis=1) - np.log(np.maximum(joined.mean(0), tiny))
        before = joined
        joined = pred_probs * np.exp(log_odds)
        joined /= joined.sum(1, keepdims=True)
        if np.abs(joined - before).mean() < SETTLED:
            break
    return joined.astype(np.float32)


def _regress(
    inputs: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weights of a logistic regression with soft targets and a penalty of ½‖w‖²."""

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        w = flat.reshape(weights.shape)
        log_p = log_softmax(inputs @ w, axis=1)
        gradient = inputs.T @ (np.exp(log_p) - targets) + w
        return float(0.5 * (w * w).sum() - (targets * log_p).sum()), gradient.ravel()

    found = minimize(value_and_gradient, weights.ravel(), jac=True, method="L-BFGS-B")
    return np.asarray(found.x).reshape(weights.shape)
