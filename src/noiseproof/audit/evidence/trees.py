"""Out-of-fold predictions of decision trees, and of other classifiers without networks, joined with neighbours'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.evidence.estimators import cross_fit
from noiseproof.audit.evidence.join import join, mix
from noiseproof.audit.evidence.neighbours import Neighbours, neighbour_votes
from noiseproof.audit.evidence.network import CORRECTED, LARGE, Evidence, soft_labels
from noiseproof.audit.evidence.taught import Taught
from noiseproof.core.messages import Progress
from noiseproof.data.tables import FeatureTable

Ints = NDArray[np.int64]
Probs = NDArray[np.float32]
TREES = ("boosting", "forest", "extra")  # scikit-learn's, which ``trees`` stands for
MANY_ROWS = 20_000  # beyond which forests take too long


def fit_trees(
    table: FeatureTable,
    given: Ints,
    num_classes: int,
    folds: Ints,
    kinds: Sequence[str],
    *,
    seed: int = 0,
    fast: bool = False,
    progress: Progress | None = None,
) -> dict[str, Probs]:
    """Predictions (N, K) of each kind of trees for the rows of each fold, from those of the others.

    Forests are left out beyond 20 000 rows; ``fast`` takes half of the rounds of boosting where these take long.
    """
    from noiseproof.models.trees import FAST_ROUNDS, MIN_ROUNDS, Kind, TreeClassifier

    if len(given) > MANY_ROWS:
        kinds = [kind for kind in kinds if kind not in TREES[1:]] or kinds
    probs = {}
    for kind in kinds:
        min_rounds = FAST_ROUNDS if fast else MIN_ROUNDS
        model = TreeClassifier(cast(Kind, kind), table.num_categories, seed % 2**31, min_rounds)
        probs[kind] = cross_fit(model, table.values, given, num_classes, folds, progress=progress)
    return probs


def join_with_neighbours(
    x: Any,
    given: Ints,
    num_classes: int,
    folds: Ints,
    near: Neighbours,
    others: Mapping[str, Probs],
    taught: Taught | None = None,
) -> Evidence:
    """Predictions of ``others`` and of neighbours, in the mixture under which the given labels are most likely.

    Neighbours vote by the given labels, and once more by the soft labels of the first mixture; by those that are
    ``taught``, where there are any, in the mixture that comes with them.
    """

    def vote(labels: Any) -> tuple[Probs, Probs]:
        return neighbour_votes(labels, near, num_classes, apart=folds, given=None if taught is None else given)

    def combine(predictions: Mapping[str, Probs]) -> tuple[Probs, Mapping[str, float]]:
        return join(given, predictions) if taught is None else (mix(predictions, taught.weights), taught.weights)

    votes, agreement = vote(given if taught is None else taught.labels)
    predictions = {**others, "neighbours": votes}
    probs, weights = combine(predictions)
    guess = probs.argmax(1)
    if probs.size <= LARGE:
        truth = soft_labels(torch.from_numpy(given), torch.from_numpy(probs)) if taught is None else taught.truth
        predictions[f"neighbours{CORRECTED}"] = vote(truth)[0]
        probs, weights = combine(predictions)
    return Evidence(probs, np.asarray(x), neighbour_agreement=agreement, guess=guess, weights=weights)
