"""A meta-estimator around any classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter

from noiseproof.core.checks import check_count
from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.core.messages import preview
from noiseproof.data.frames import as_frame, is_foreign_table
from noiseproof.estimator.inputs import Bools, Floats, Ints, RandomState, draw_seed, encode_labels
from noiseproof.judge.evidence.folds import in_one_fold, make_folds
from noiseproof.judge.evidence.trees import (
    check_classifier,
    cross_fit,
    seeded,
    select_rows,
    weight_name,
)
from noiseproof.judge.labels import find_label_issues

if TYPE_CHECKING:
    import pandas as pd

Repair = Literal["drop", "reweigh", "correct"]
EVEN = 0.5  # quality at which a label is as likely right as wrong
MIN_WEIGHT = 1e-3  # of a row by its quality: with 0, some estimators count no rows of a class


def _has(name: str) -> Any:
    """Whether the inner estimator has the method ``name``, fitted or not."""
    return lambda self: hasattr(getattr(self, "estimator_", self._inner()), name)


class RobustClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains any scikit-learn classifier in spite of wrong labels: find them, repair them, fit on
    the rest.

    Clones of the estimator predict every row from the other folds,
    ``noiseproof.audit.find_label_issues`` compares these predictions with the given labels, and the
    estimator is fitted once more, to the repaired labels.

    Args:
        estimator: a classifier with ``fit`` and ``predict_proba``, or a pipeline that ends in one;
            by default ``HistGradientBoostingClassifier()``.
        repair: ``drop`` leaves out rows whose label is an issue, ``reweigh`` weighs each row by the
            probability that its label is right, ``correct`` gives an issue the suggested label.
        rounds: how often labels are judged; from the second time on by models fitted to the labels
            repaired before.
        folds: of the cross-fit.
        random_state: a seed for the folds, and for what in the estimator has none; a
            ``RandomState`` or ``Generator`` to draw it from, or None for another one each time.

    Attributes:
        classes_: the labels, sorted.
        estimator_: the fitted estimator; it predicts positions in ``classes_``.
        label_issues_: a DataFrame with the columns is_label_issue, quality (the probability that
            the given label is right), given_label and suggested_label, one row for each row of
            ``X``. Rows of weight 0, and the only row of a class, are not judged: their quality is
            NaN.
        noise_rate_: the estimated share of wrong labels.
        n_features_in_, feature_names_in_: as those of ``estimator_``.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> x, y = load_wine(return_X_y=True)
    >>> wrong = y.copy()
    >>> wrong[::5] = (wrong[::5] + 1) % 3
    >>> model = RobustClassifier(RandomForestClassifier(random_state=0)).fit(x, wrong)
    >>> round(model.noise_rate_, 1), bool((model.predict(x) == y).mean() > 0.95)
    (0.2, True)
    """

    classes_: NDArray[Any]
    label_issues_: pd.DataFrame
    noise_rate_: float

    def __init__(
        self,
        estimator: Any = None,
        *,
        repair: Repair = "drop",
        rounds: int = 2,
        folds: int = 5,
        random_state: RandomState = 0,
    ) -> None:
        self.estimator = estimator
        self.repair = repair
        self.rounds = rounds
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows in any form that the estimator takes, and one label a row.

        ``sample_weight`` is passed on to the estimator; a row of weight 0 is left out.
        """
        # if this fit fails, the last estimator must not predict the new classes
        self.__dict__.pop("estimator_", None)
        if self.repair not in get_args(Repair):
            raise ValueError(
                f"Expected `repair` to be {', '.join(get_args(Repair))}, got {self.repair!r}."
            )
        check_count("rounds", self.rounds, 1)
        check_count("folds", self.folds, 2)
        seed = draw_seed(self.random_state)
        inner = seeded(check_classifier(self._inner()), seed % 2**31)
        (X,) = indexable(X)
        classes, codes = encode_labels(X, y, "RobustClassifier")
        weight = None
        if self.repair == "reweigh":
            _check_weights(inner, "repair='reweigh'")
        if sample_weight is not None:
            _check_weights(inner, "weights")
            weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        rows = np.arange(len(codes)) if weight is None else np.flatnonzero(weight)
        present, labels = np.unique(codes[rows], return_inverse=True)
        _check_rows(labels)
        x = X if len(rows) == len(codes) else select_rows(X, rows)
        with _words_named(X, inner):
            judged, repaired = self._rounds(
                inner, x, labels, None if weight is None else weight[rows], seed
            )
        with threads_for(NUMBER_WORK * getattr(x, "size", len(labels))):
            self.estimator_ = repaired.fit(inner, x)
        self.classes_ = classes[present]
        self.noise_rate_ = judged.noise_rate
        self.label_issues_ = _frame(
            judged, rows, classes[codes], self.classes_, X.index if hasattr(X, "iloc") else None
        )
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The predicted label of each row, (N,)."""
        check_is_fitted(self, "estimator_")
        labels: NDArray[Any] = self.classes_[
            np.asarray(self.estimator_.predict(X)).ravel().astype(np.int64)
        ]
        return labels

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The probability of each class, (N, K), in the order of ``classes_``."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict_proba(X))

    @available_if(_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """The log probability of each class, (N, K)."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict_log_proba(X))

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> NDArray[Any]:
        """The scores of ``estimator_``, (N, K), or (N,) of two classes."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.decision_function(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._inner())
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags or tags.classifier_tags
        tags.classifier_tags.multi_label = False
        return tags

    def _inner(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier()

    def _rounds(
        self, inner: Any, x: Any, labels: Ints, weight: Floats | None, seed: int
    ) -> tuple[_Judgement, _Repaired]:
        """Judge the given labels by models of the labels as they are repaired so far, and repair
        them again.
        """
        num_classes = int(labels.max()) + 1
        repaired = _Repaired(labels, weight, np.ones(len(labels), dtype=bool))
        for number in range(self.rounds):
            folds = make_folds(labels, folds=self.folds, seed=seed + number)
            judged = _Judgement.of(
                labels, repaired.cross_fit(inner, x, folds, num_classes), folds, seed
            )
            repaired = _repair(self.repair, judged, weight, self.folds)
        return judged, repaired


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The judgement on N labels; a label that no model can judge has the quality 1."""

    labels: Ints  # (N,) classes from 0
    quality: Floats  # (N,) the probability that the label is right
    is_issue: Bools  # (N,)
    suggested: Ints  # (N,)
    can_judge: Bools  # (N,)
    noise_rate: float

    @classmethod
    def of(cls, labels: Ints, probs: NDArray[np.float32], folds: Ints, seed: int) -> _Judgement:
        # no model that predicts the others has seen their class
        judged = np.flatnonzero(~in_one_fold(labels, folds))
        issues = find_label_issues(labels[judged], probs[judged], seed=seed)
        # Where predictions match labels no better than by chance, the audit calls none wrong. A fit
        # needs no proof.
        likely_wrong = issues.is_issue if issues.is_predictable else issues.quality < EVEN
        quality = np.ones(len(labels))
        is_issue = np.zeros(len(labels), dtype=bool)
        suggested = labels.copy()
        quality[judged] = issues.quality
        is_issue[judged] = likely_wrong
        suggested[judged] = issues.suggested
        can_judge = np.zeros(len(labels), dtype=bool)
        can_judge[judged] = True
        return cls(labels, quality, is_issue, suggested, can_judge, issues.noise_rate)

    def best(self, count: int) -> Bools:
        """The ``count`` rows of each class whose labels are most likely right, (N,)."""
        order = np.lexsort((-self.quality, self.labels))  # class by class, the best labels first
        ordered = self.labels[order]
        is_best = np.zeros(len(order), dtype=bool)
        is_best[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) < count
        return is_best


@dataclass(frozen=True, eq=False)
class _Repaired:
    """What the estimator is fitted to."""

    labels: Ints  # (N,)
    weight: Floats | None  # (N,)
    keep: Bools  # (N,)

    def cross_fit(self, inner: Any, x: Any, folds: Ints, num_classes: int) -> NDArray[np.float32]:
        """Out-of-fold probabilities (N, K) of all rows, by models fitted to those that are kept."""
        return cross_fit(
            inner, x, self.labels, num_classes, folds, sample_weight=self.weight, fitted=self.keep
        )

    def fit(self, inner: Any, x: Any) -> Any:
        rows = np.flatnonzero(self.keep)
        options = {} if self.weight is None else {weight_name(inner): self.weight[rows]}
        return clone(inner).fit(
            x if self.keep.all() else select_rows(x, rows), self.labels[rows], **options
        )


def _repair(repair: Repair, judged: _Judgement, weight: Floats | None, at_least: int) -> _Repaired:
    """Labels to fit to; every class keeps ``at_least`` this many of its rows, if it has them."""
    labels = judged.labels
    all_rows = np.ones(len(judged.labels), dtype=bool)
    if repair == "reweigh":
        quality = np.maximum(judged.quality, MIN_WEIGHT)
        return _Repaired(labels, quality if weight is None else quality * weight, all_rows)
    keep = judged.best(at_least) | ~judged.is_issue
    if repair == "correct":
        return _Repaired(np.where(keep, labels, judged.suggested), weight, all_rows)
    return _Repaired(labels, weight, keep)


@contextmanager
def _words_named(X: Any, inner: Any) -> Iterator[None]:
    """Say which columns of a table are words where an estimator needs numbers."""
    try:
        yield
    except ValueError as error:
        if "could not convert string" not in str(error) or not (
            hasattr(X, "columns") or is_foreign_table(X)
        ):
            raise
        frame = as_frame(X)
        words = [name for name in frame.columns if frame[name].dtype.kind not in "biufMm"]
        raise ValueError(
            f"Expected numbers in all columns for {type(inner).__name__}, got words in"
            f" {preview(words)}. Encode them in a pipeline,"
            " `make_pipeline(make_column_transformer((OneHotEncoder(handle_unknown='ignore'),"
            " columns), remainder='passthrough'), estimator)`, or use NoisyLabelClassifier, which"
            " encodes them by itself."
        ) from error


def _check_rows(labels: Ints) -> None:
    counts = np.bincount(labels)
    if len(labels) == 1:
        raise ValueError(
            "Expected rows to cross-fit, got n_samples = 1. Fit the estimator without"
            " RobustClassifier."
        )
    if len(counts) < 2:
        raise ValueError(
            f"Expected rows of at least two classes, got {len(counts)} class. Check `y`."
        )
    if (counts > 1).sum() < 2:
        raise ValueError(
            "Expected two rows or more of at least two classes, so that models of some rows can"
            f" judge the others, got {int((counts > 1).sum())} such class. Fit the estimator"
            " without RobustClassifier."
        )


def _check_weights(inner: Any, what: str) -> None:
    while hasattr(inner, "steps"):
        inner = inner.steps[-1][1]
    if not has_fit_parameter(inner, "sample_weight"):
        raise ValueError(
            f"Expected an estimator whose fit takes sample_weight for {what}, got"
            f" {type(inner).__name__}. Use repair='drop' or 'correct', without weights."
        )


def _frame(
    judged: _Judgement, rows: Ints, given: NDArray[Any], classes: NDArray[Any], index: Any
) -> pd.DataFrame:
    """One row for each row of X, also for those that were not judged."""
    import pandas as pd

    quality = np.full(len(given), np.nan)
    is_issue = np.zeros(len(given), dtype=bool)
    suggested = given.copy()
    quality[rows] = np.where(judged.can_judge, judged.quality, np.nan)
    is_issue[rows] = judged.is_issue
    suggested[rows] = classes[judged.suggested]
    columns = {
        "is_label_issue": is_issue,
        "quality": quality,
        "given_label": given,
        "suggested_label": suggested,
    }
    return pd.DataFrame(columns, index=index)
