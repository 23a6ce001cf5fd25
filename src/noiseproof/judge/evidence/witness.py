"""A witness that never saw the labels: what descriptions of the classes say of each row.

A model that was trained on the given labels repeats mistakes that follow a pattern. The similarity
of a row to a description of each class does not depend on them, so it can contradict such mistakes.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from noiseproof.core.arrays import Floats, Floats32, Ints

MOST_ROUNDS = 30  # of EM
SETTLED = 1e-3  # mean change of a probability in a round
# Given labels follow the mistakes that models learn, so they underrate a witness, and texts that
# mislead a model may mislead it, too (benchmarks/witness.py).
TRUST = 4.0
MOST_TRUST = 0.5


def consult_witness(pred_probs: Floats32, similarities: Floats32, labels: Ints) -> Floats32:
    """Join predictions with similarities to descriptions of the classes.

    With predictions p and the ratio r of `likelihood_ratios`, the result is proportional to p · rᵗ.
    The trust t is four times the weight b of r under which p^a · r^b predicts the given labels
    best, between 0 and 0.5: descriptions that add nothing to the predictions change nothing.

    Args:
        pred_probs: (N, K), out of sample.
        similarities: (N, K) of each row to the description of each class, on any scale.
        labels: (N,) the given labels.

    Returns:
        (N, K) probabilities.
    """
    log_p = np.log(np.maximum(pred_probs, 1e-12))
    log_ratio = likelihood_ratios(pred_probs, similarities)
    rows = np.arange(len(labels))

    def misfit(weights: Floats) -> float:
        joined = log_softmax(weights[0] * log_p + weights[1] * log_ratio, axis=1)
        return float(-joined[rows, labels].mean())

    _, gain = minimize(misfit, [1.0, 0.0], method="Nelder-Mead").x
    trust = np.clip(TRUST * gain, 0, MOST_TRUST)
    return np.asarray(softmax(log_p + trust * log_ratio, axis=1), np.float32)


def likelihood_ratios(pred_probs: Floats32, similarities: Floats32) -> Floats:
    """Return log P(class | similarities) − log P(class), (N, K), estimated without any label.

    As an annotator's confusions, it is estimated by EM, with similarities s and predictions p that
    are independent given the class: the class has probability q ∝ p · P(class | s) / P(class),
    and P(class | s) is a logistic regression on s whose targets are q, in the first round p.
    """
    tiny = np.finfo(np.float32).tiny
    centred = similarities - similarities.mean(0)
    standard = centred / np.maximum(centred.std(0), tiny)
    inputs = np.column_stack([standard, np.ones(len(standard))])  # (N, K + 1)
    weights = np.zeros((inputs.shape[1], pred_probs.shape[1]))
    joined = pred_probs.astype(np.float64)
    for _ in range(MOST_ROUNDS):
        weights = _regress(inputs, joined, weights)
        log_ratio = log_softmax(inputs @ weights, axis=1) - np.log(np.maximum(joined.mean(0), tiny))
        before = joined
        joined = pred_probs * np.exp(log_ratio)
        joined /= joined.sum(1, keepdims=True)
        if np.abs(joined - before).mean() < SETTLED:
            break
    return np.asarray(log_ratio)


def _regress(inputs: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the weights of a logistic regression with soft targets and a penalty of ½‖w‖²."""

    def value_and_gradient(flat: Floats) -> tuple[float, Floats]:
        w = flat.reshape(weights.shape)
        log_p = log_softmax(inputs @ w, axis=1)
        gradient = inputs.T @ (np.exp(log_p) - targets) + w
        return float(0.5 * (w * w).sum() - (targets * log_p).sum()), gradient.ravel()

    found = minimize(value_and_gradient, weights.ravel(), jac=True, method="L-BFGS-B")
    return np.asarray(found.x).reshape(weights.shape)
