"""Out-of-sample predictions for rows with several labels: each of K labels is a question with the
answer yes or no.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from noiseproof.core.arrays import Bools, Floats32, Ints
from noiseproof.core.cluster import map_jobs
from noiseproof.core.messages import Progress
from noiseproof.data.tables import FeatureTable
from noiseproof.judge.evidence.folds import make_folds
from noiseproof.judge.evidence.join import join_answers, mean_shares
from noiseproof.judge.evidence.neighbours import Neighbours, neighbour_votes
from noiseproof.judge.evidence.network import (
    LINEAR,
    MODEL,
    Evidence,
    Taught,
    Trainer,
    find_neighbours,
    prepare_inputs,
)
from noiseproof.judge.evidence.trees import FORESTS, MANY_ROWS, TREES, cross_fit, fit_trees

METHOD = "gce:q=0.5"  # robust, and a loss of the margin, as several labels need
NUM_TREES = 100  # of a forest
MOST_VALUES = 5e7  # of answers that the trees of a forest keep, about
Probs = Floats32


def question_folds(answers: Bools, **options: Any) -> Ints:
    """Folds (N,) that spread the rarest label of each row evenly; ``answers`` are (N, K)."""
    count = answers.sum(0)
    order = np.argsort(count, kind="stable")
    rarest = np.where(answers.any(1), order[answers[:, order].argmax(1)], answers.shape[1])
    return make_folds(rarest.astype(np.int64), **options)


def fit_question_trees(
    table: FeatureTable,
    answers: Ints,
    num_labels: int,
    fold: Ints,
    kinds: Sequence[str],
    *,
    seed: int,
    fast: bool,
    progress: Progress | None,
) -> dict[str, Probs]:
    """Probabilities of yes (N, K) of each kind of trees.

    Of scikit-learn's, forests are fitted to all questions at once, up to 20 000 rows; beyond, where
    they take too long, boosting takes their place. It and other libraries' trees are fitted to one
    question after the other.
    """
    if kinds == TREES and len(answers) <= MANY_ROWS:
        fold_ids = np.unique(fold)
        forests = {}
        for done, kind in enumerate(FORESTS, start=1):
            shared = (kind, table.values, answers, fold, seed % 2**31)
            parts = map_jobs(_predict_fold, fold_ids, *shared)
            forests[kind] = np.zeros(answers.shape, np.float32)
            for i, part in zip(fold_ids, parts, strict=True):
                forests[kind][fold == i] = part
            if progress is not None:
                progress("trees", done, len(FORESTS))
        return forests
    kinds = [kind for kind in kinds if kind not in FORESTS]
    columns = []
    for k in range(num_labels):
        columns.append(fit_trees(table, answers[:, k], 2, fold, kinds, seed=seed, fast=fast))
        if progress is not None:
            progress("trees", k + 1, num_labels)
    return {name: np.stack([each[name][:, 1] for each in columns], 1) for name in columns[0]}


def _predict_fold(i: Any, kind: str, x: Any, answers: Ints, fold: Ints, seed: int) -> Probs:
    """Probabilities of yes of the rows of fold ``i``, (n, K), by a forest of the others: the mean
    answer of leaves.
    """
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

    forest = {"forest": RandomForestRegressor, "extra": ExtraTreesRegressor}[kind]
    num_trees = int(np.clip(MOST_VALUES / answers.size, 10, NUM_TREES))
    model = forest(num_trees, min_samples_leaf=2, max_features="sqrt", random_state=seed)
    targets = answers[:, 0] if answers.shape[1] == 1 else answers
    probs = model.fit(x[fold != i], targets[fold != i]).predict(x[fold == i])
    return np.asarray(probs, np.float32).reshape(-1, answers.shape[1])


def fit_question_estimator(
    estimator: Any, x: Any, answers: Ints, num_labels: int, fold: Ints, progress: Progress | None
) -> Probs:
    """Probabilities of yes (N, K) of a user's classifier, which is fitted to one question after the
    other.
    """
    columns = []
    for k in range(num_labels):
        columns.append(cross_fit(estimator, x, answers[:, k], 2, fold)[:, 1])
        if progress is not None:
            progress("estimator", k + 1, num_labels)
    return np.stack(columns, 1)


def question_evidence(
    x: Any,
    answers: Ints,
    num_labels: int,
    fold: Any,
    *,
    method: str = METHOD,
    model: str | None = "auto",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
    neighbours: Neighbours | None = None,
    others: Mapping[str, Probs] | None = None,
    taught: Taught | None = None,
) -> Evidence:
    """Evidence (N, K) of a network, a linear one, neighbours and ``others``, joined for each
    question.

    The network has an output for each question and is trained by the robust ``method``, the linear
    one by cross entropy. There is no second round: its models predict what is true, and hide the
    share of missing labels from ``judge/answers.py``. ``taught`` has what models learn in place of
    ``answers``, and the weights of the join.
    """
    inputs, given = prepare_inputs(x, answers, 2)
    learned = given if taught is None else torch.from_numpy(taught.labels)
    own = None if taught is None else given.float()
    near = neighbours or find_neighbours(inputs, seed)
    votes = neighbour_votes(learned.float(), near, num_labels, apart=fold, given=own)[0]
    predictions: dict[str, Probs] = {**(others or {}), "neighbours": votes}
    if model is not None:
        number = torch.from_numpy(np.unique(fold, return_inverse=True)[1])
        trainer = Trainer(
            inputs,
            given,
            num_labels,
            epochs,
            seed,
            device,
            progress,
            2 * (int(number.max()) + 1),
            learned,
        )
        model = MODEL if model == "auto" else model
        robust, linear = trainer.train([(method, model, number), ("ce", LINEAR, number)])
        predictions |= {"network": robust.pred_probs, "linear": linear.pred_probs}
    known_weights = None if taught is None else taught.undecided.label_weights
    probs, weights = join_answers(answers, predictions, known_weights)
    agreement = np.where(answers == 1, votes, 1 - votes).astype(np.float32)
    return Evidence(
        probs,
        neighbour_agreement=agreement,
        guess=guessed(answers, probs),
        weights=mean_shares(predictions, weights),
        label_weights=weights,
    )


def both(p: Any) -> Probs:
    """The probabilities (N, 2) of no and yes, from the probability of yes (N,)."""
    return np.stack([1 - p, p], 1).astype(np.float32)


def guessed(answers: Ints, probs: Probs) -> Ints:
    """Yes for as many rows as have the label, those rows with the highest probability: of a rare
    label, no is likelier everywhere.
    """
    guess = np.zeros_like(answers)
    for k, count in enumerate(answers.sum(0).tolist()):
        guess[np.argsort(-probs[:, k], kind="stable")[:count], k] = 1
    return guess
