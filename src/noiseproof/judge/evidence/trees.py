"""Out-of-fold predictions of any scikit-learn classifier, and of decision trees, joined with
neighbours'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.arrays import Bools, Floats32, Ints
from noiseproof.core.cluster import NUMBER_WORK, map_jobs, threads_for
from noiseproof.core.messages import Progress
from noiseproof.data.tables import FeatureTable

Probs = Floats32
FORESTS = ("forest", "extra")
TREES = ("boosting", *FORESTS)  # scikit-learn's, which ``trees`` stands for
MANY_ROWS = 20_000  # beyond which forests take too long


def cross_fit(
    estimator: Any,
    x: Any,
    labels: Any,
    num_classes: int,
    folds: Any,
    *,
    sample_weight: Any = None,
    fitted: Any = None,
    progress: Progress | None = None,
) -> Probs:
    """Class probabilities (N, K) of each row, by clones of ``estimator`` fitted without the rows of
    its fold.

    As scikit-learn's ``cross_val_predict(method="predict_proba")``, but a class without rows in the
    other folds has probability 0 instead of a missing column. An estimator without a seed gets one,
    so that results repeat.

    Args:
        x: N rows: an array, a sparse matrix, a DataFrame or a list, whatever the estimator takes.
        labels: (N,) classes as integers from 0.
        folds: (N,); a row is predicted by the fit on all rows with another value.
        sample_weight: (N,), passed to ``fit``, in a pipeline to its last step.
        fitted: (N,) bool: the rows to fit to; the others are only predicted. By default all.

    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> x = [[0.0], [0.1], [5.0], [5.1]]
    >>> cross_fit(KNeighborsClassifier(1), x, [0, 0, 1, 1], 3, [0, 1, 0, 1]).tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    check_classifier(estimator)
    given = np.asarray(labels)
    fold = np.asarray(folds)
    fold_ids = np.unique(fold)
    if fold.shape != given.shape or len(fold_ids) < 2:
        raise ValueError(
            f"Expected `folds` of shape {given.shape} with two values or more, got {fold.shape}."
        )
    weights = None if sample_weight is None else np.asarray(sample_weight)
    is_fitted = (
        np.ones(len(given), dtype=bool) if fitted is None else np.asarray(fitted, dtype=bool)
    )
    probs = np.zeros((len(given), num_classes), np.float32)
    parts = map_jobs(
        _predict_fold, fold_ids, estimator, x, given, num_classes, fold, is_fitted, weights
    )
    for done, i in enumerate(fold_ids):
        if progress is not None:
            progress("fitting", done, len(fold_ids))
        probs[fold == i] = next(parts)
    if progress is not None:
        progress("fitting", len(fold_ids), len(fold_ids))
    return probs


def _predict_fold(
    i: Any,
    estimator: Any,
    x: Any,
    given: NDArray[Any],
    num_classes: int,
    fold: NDArray[Any],
    is_fitted: Bools,
    weights: NDArray[Any] | None,
) -> Probs:
    """Class probabilities of the rows of fold ``i``, (n, K), by a fit on the others."""
    rows = np.flatnonzero(fold == i)
    fitted_rows = np.flatnonzero((fold != i) & is_fitted)
    weight = None if weights is None else weights[fitted_rows]
    with threads_for(NUMBER_WORK * getattr(x, "size", len(given))):
        model = FittedClasses.fit(
            estimator, select_rows(x, fitted_rows), given[fitted_rows], weight
        )
        return model.predict_proba(select_rows(x, rows), num_classes)


class FittedClasses:
    """A fitted classifier that predicts all classes, also those that it was not fitted to."""

    def __init__(self, estimator: Any, classes: Ints) -> None:
        self.estimator = estimator
        self.classes = classes

    @classmethod
    def fit(
        cls, estimator: Any, x: Any, labels: NDArray[Any], sample_weight: Any = None
    ) -> FittedClasses:
        """Fit a clone; labels of a single class are predicted as they are."""
        classes = np.unique(labels)
        if len(classes) == 1:
            return cls(None, classes)
        # Classes without gaps: XGBoost refuses others.
        codes = labels if classes[-1] == len(classes) - 1 else np.searchsorted(classes, labels)
        options = {} if sample_weight is None else {weight_name(estimator): sample_weight}
        model = seeded(estimator).fit(x, codes, **options)
        return cls(model, classes[np.asarray(model.classes_).astype(np.int64)])

    def predict_proba(self, x: Any, num_classes: int) -> Probs:
        """(N, K)"""
        num_rows = x.shape[0] if hasattr(x, "shape") else len(x)
        probs = np.zeros((num_rows, num_classes), np.float32)
        probs[:, self.classes] = 1.0 if self.estimator is None else self.estimator.predict_proba(x)
        return probs


def check_classifier(estimator: Any) -> Any:
    """Return ``estimator``; refuse one without ``fit`` and ``predict_proba``, or a class instead of
    an object.
    """
    if isinstance(estimator, type):
        name = estimator.__name__
        raise TypeError(f"Expected an estimator, got the class {name}. Make one: {name}().")
    if not (
        hasattr(estimator, "fit")
        and hasattr(estimator, "predict_proba")
        and hasattr(estimator, "get_params")
    ):
        raise TypeError(
            f"Expected an estimator with fit and predict_proba, got {type(estimator).__name__}. A"
            " classifier without probabilities gets them from"
            " sklearn.calibration.CalibratedClassifierCV."
        )
    return estimator


def seeded(estimator: Any, seed: int = 0) -> Any:
    """A clone with ``seed`` in place of each ``random_state`` that is not set."""
    from sklearn.base import clone

    copy = clone(estimator)
    unset = [
        name
        for name, value in copy.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    ]
    return copy.set_params(**dict.fromkeys(unset, seed))


def select_rows(x: Any, rows: Ints) -> Any:
    """``rows`` of an array, a sparse matrix, a DataFrame or a list."""
    if hasattr(x, "iloc"):
        return x.iloc[rows]
    return x[rows] if hasattr(x, "shape") else [x[i] for i in rows.tolist()]


def weight_name(estimator: Any) -> str:
    """The name of ``sample_weight`` in ``fit``; a pipeline passes it to its last step."""
    prefix = ""
    while hasattr(estimator, "steps"):
        step, estimator = estimator.steps[-1]
        prefix += f"{step}__"
    return f"{prefix}sample_weight"


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
    """Predictions (N, K) of each kind of trees for the rows of each fold, from the rows of the
    others.

    Forests are left out beyond 20 000 rows; ``fast`` takes half of the rounds of boosting where
    these take long.
    """
    from noiseproof.models.trees import FAST_ROUNDS, MIN_ROUNDS, Kind, TreeClassifier

    if len(given) > MANY_ROWS:
        kinds = [kind for kind in kinds if kind not in FORESTS] or kinds
    probs = {}
    for kind in kinds:
        min_rounds = FAST_ROUNDS if fast else MIN_ROUNDS
        model = TreeClassifier(cast(Kind, kind), table.num_categories, seed % 2**31, min_rounds)
        probs[kind] = cross_fit(model, table.values, given, num_classes, folds, progress=progress)
    return probs
