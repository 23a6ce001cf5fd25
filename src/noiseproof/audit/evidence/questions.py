"""Out-of-sample predictions for rows with several labels: each of K labels is a question with the answer yes or no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.evidence.estimators import cross_fit
from noiseproof.audit.evidence.folds import make_folds
from noiseproof.audit.evidence.join import join, mix
from noiseproof.audit.evidence.neighbours import Neighbours, neighbour_votes
from noiseproof.audit.evidence.network import (
    CORRECTED,
    LARGE,
    LINEAR,
    MODEL,
    Evidence,
    Trainer,
    prepare_inputs,
)
from noiseproof.audit.evidence.taught import Taught
from noiseproof.audit.evidence.trees import fit_trees
from noiseproof.audit.judge.answers import fit_answer_noise
from noiseproof.core.progress import Progress
from noiseproof.data.tables import FeatureTable

METHOD = "gce:q=0.5"  # robust, and a loss of the margin, which those of several labels are
Ints = NDArray[np.int64]
Probs = NDArray[np.float32]


def question_folds(answers: NDArray[np.bool_], **options: Any) -> Ints:
    """Folds (N,) that spread the rarest label of each row evenly; ``answers`` are (N, K)."""
    count = answers.sum(0)
    order = np.argsort(count, kind="stable")
    rarest = np.where(answers.any(1), order[answers[:, order].argmax(1)], answers.shape[1])
    return make_folds(rarest.astype(np.int64), **options)


def fit_question_trees(
    table: FeatureTable, answers: Ints, fold: Ints, kinds: Sequence[str], *, seed: int, fast: bool,
    progress: Progress | None,
) -> dict[str, Probs]:  # fmt: skip
    """Probabilities of yes (N, K) of each kind of trees, which are fitted to one question after the other."""
    columns = []
    for k in range(answers.shape[1]):
        columns.append(fit_trees(table, answers[:, k], 2, fold, kinds, seed=seed, fast=fast))
        if progress is not None:
            progress("trees", k + 1, answers.shape[1])
    return {name: np.stack([each[name][:, 1] for each in columns], 1) for name in columns[0]}


def fit_question_estimator(estimator: Any, x: Any, answers: Ints, fold: Ints, progress: Progress | None) -> Probs:
    """Probabilities of yes (N, K) of a user's classifier, which is fitted to one question after the other."""
    columns = []
    for k in range(answers.shape[1]):
        columns.append(cross_fit(estimator, x, answers[:, k], 2, fold)[:, 1])
        if progress is not None:
            progress("estimator", k + 1, answers.shape[1])
    return np.stack(columns, 1)


def question_evidence(
    x: Any,
    answers: Ints,
    fold: Ints,
    near: Neighbours,
    others: Mapping[str, Probs],
    *,
    network: str | None = "auto",
    method: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    taught: Taught | None = None,
) -> Evidence:
    """Evidence (N, K) in two rounds, as ``cross_validate`` has it for one label.

    One network with an output for each question is trained by the robust ``method``, a linear one by cross entropy,
    and neighbours vote; the posterior of each question (``judge/answers.py``) then makes soft labels, on which a
    network is trained and with which neighbours vote again. For each question the predictions are joined with those of
    ``others``, in the mixture under which its given labels are most likely; without others, by equal weights.
    ``taught`` has what models learn in place of ``answers``, as in ``cross_validate``.
    """
    inputs, given = prepare_inputs(x, answers, 2)
    K, has_second_round = answers.shape[1], answers.size <= LARGE
    number = torch.from_numpy(np.unique(fold, return_inverse=True)[1])
    runs = (int(number.max()) + 1) * (3 if has_second_round else 2)
    learned, own = (given, None) if taught is None else (torch.from_numpy(taught.labels), given.float())
    trainer = Trainer(inputs, given, K, epochs, seed, device, progress, runs, learned)
    model = MODEL if network == "auto" else network
    votes = neighbour_votes(learned.float(), near, K, apart=fold, given=own)[0]
    first: dict[str, Probs] = {**others, "neighbours": votes}
    dynamics = None
    if model is not None:
        robust, linear = trainer.train([(method or METHOD, model, number), ("ce", LINEAR, number)])
        first |= {"network": robust.pred_probs, "linear": linear.pred_probs}
        if not others and robust.dynamics is not None and linear.dynamics is not None:
            dynamics = np.asarray((robust.dynamics + linear.dynamics) / 2, dtype=np.float32)
    probs, weights = _combined(answers, first, others, taught)
    guess = guessed(answers, probs)  # before a row's own labels have some influence
    if has_second_round:
        soft = None if taught is None else taught.truth
        truth = torch.from_numpy(soft_answers(answers.astype(bool), probs)) if soft is None else soft
        second = {**first, f"neighbours{CORRECTED}": neighbour_votes(truth, near, K, apart=fold, given=own)[0]}
        if model is not None:
            second[f"network{CORRECTED}"] = trainer.train([("ce", model, number)], truth)[0].pred_probs
        probs, weights = _combined(answers, second, others, taught)
    agreement = np.where(answers == 1, votes, 1 - votes).astype(np.float32)
    mean = {name: float(np.mean([each[name] for each in weights])) for name in weights[0]}
    return Evidence(
        probs, inputs.flatten(1).numpy(), neighbour_agreement=agreement, dynamics=dynamics, guess=guess, weights=mean,
        label_weights=weights,
    )  # fmt: skip


def _combined(
    answers: Ints, predictions: Mapping[str, Probs], others: Mapping[str, Probs], taught: Taught | None
) -> tuple[Probs, Sequence[Mapping[str, float]]]:
    """The mixture of predictions (N, K), and the weights of each question."""
    K = answers.shape[1]
    if not others:
        equal = dict.fromkeys(predictions, 1 / len(predictions))
        return np.mean([*predictions.values()], 0).astype(np.float32), [equal] * K
    columns = [{name: both(probs[:, k]) for name, probs in predictions.items()} for k in range(K)]
    if taught is None:
        joined = [join(answers[:, k], column) for k, column in enumerate(columns)]
    else:
        joined = [(mix(each, w), dict(w)) for each, w in zip(columns, taught.label_weights, strict=True)]
    return np.stack([probs[:, 1] for probs, _ in joined], 1), [weights for _, weights in joined]


def both(p: Any) -> Probs:
    """The probabilities (N, 2) of no and yes, from those of yes (N,)."""
    return np.stack([1 - p, p], 1).astype(np.float32)


def soft_answers(answers: NDArray[np.bool_], probs: Probs) -> Probs:
    """P(true yes | x, given answer), (N, K)."""
    truth = answers.astype(np.float32)
    at = np.flatnonzero(answers.any(0) & ~answers.all(0))
    wrong = fit_answer_noise(answers[:, at], probs[:, at]).wrong(answers[:, at], probs[:, at])
    truth[:, at] = np.where(answers[:, at], 1 - wrong, wrong)
    return truth


def guessed(answers: Ints, probs: Probs) -> Ints:
    """Yes for as many rows as have the label, those of the highest probability, since no is likelier of a rare one."""
    guess = np.zeros_like(answers)
    for k, count in enumerate(answers.sum(0).tolist()):
        guess[np.argsort(-probs[:, k], kind="stable")[:count], k] = 1
    return guess
