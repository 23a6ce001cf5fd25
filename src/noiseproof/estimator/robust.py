"""A meta-estimator around any classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter

from noiseproof.core.arrays import Array, Bools, Floats, Floats32, Ints
from noiseproof.core.checks import check_count
from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.core.messages import preview
from noiseproof.data.frames import as_frame, is_foreign_table
from noiseproof.estimator.inputs import RandomState, draw_seed
from noiseproof.estimator.targets import encode_labels
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
        n_features_in_, feature_names_in_: as in ``estimator_``.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> x, y = load_wine(return_X_y=True)
    >>> wrong = y.copy()
    >>> wrong[::5] = (wrong[::5] + 1) % 3
    >>> model = RobustClassifier(RandomForestClassifier(random_state=0)).fit(x, wrong)
    >>> round(model.noise_rate_, 1), bool((model.predict(x) == y).mean() > 0.95)
    (0.2, True)
    """

    classes_: Array
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
        """Fit to rows in any form that the estimator takes, and one label for each.

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
        targets = encode_labels(X, y, "RobustClassifier")
        weight = None
        if self.repair == "reweigh":
            _check_weights(inner, "repair='reweigh'")
        rows = np.arange(len(targets.codes))
        x = X
        if sample_weight is not None:
            _check_weights(inner, "weights")
            weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
            rows = np.flatnonzero(weight)
            weight = weight[rows]
            x = select_rows(X, rows)
        present, labels = np.unique(targets.codes[rows], return_inverse=True)
        _check_rows(labels)
        with _words_named(X, inner):
            judged, fitted, fit_options = self._repaired(inner, x, labels, weight, seed)
        with threads_for(NUMBER_WORK * getattr(x, "size", len(labels))):
            self.estimator_ = clone(inner).fit(select_rows(x, fitted), **fit_options)
        self.classes_ = targets.classes[present]
        self.noise_rate_ = judged.noise_rate
        self.label_issues_ = self._frame(judged, rows, targets.classes[targets.codes], X)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def _repaired(
        self, inner: Any, x: Any, given: Ints, weight: Floats | None, seed: int
    ) -> tuple[_Judgement, Ints, dict[str, Any]]:
        """Judge the given labels by models of the labels as they are repaired so far, and repair
        them again.

        Returns:
            The judgement, the rows to fit to, and the options of the fit: their labels and weights.
        """
        num_classes = int(given.max()) + 1
        labels = given
        weights = weight
        keep = np.ones(len(given), dtype=bool)
        for number in range(self.rounds):
            folds = make_folds(given, folds=self.folds, seed=seed + number)
            probs = cross_fit(
                inner, x, labels, num_classes, folds, sample_weight=weights, fitted=keep
            )
            judged = _judge(given, probs, folds, seed)
            # every class keeps as many rows as there are folds, if it has them
            is_trusted = ~judged.is_issue | _best(given, judged.quality, self.folds)
            if self.repair == "drop":
                keep = is_trusted
            elif self.repair == "correct":
                labels = np.where(is_trusted, given, judged.suggested)
            else:
                weights = np.maximum(np.nan_to_num(judged.quality, nan=1.0), MIN_WEIGHT)
                weights = weights if weight is None else weights * weight
        rows = np.flatnonzero(keep)
        options: dict[str, Any] = {"y": labels[rows]}
        if weights is not None:
            options[weight_name(inner)] = weights[rows]
        return judged, rows, options

    def _frame(self, judged: _Judgement, rows: Ints, given: Array, X: Any) -> pd.DataFrame:
        """One row for each row of X, also for those that were not judged."""
        import pandas as pd

        quality = np.full(len(given), np.nan)
        is_issue = np.zeros(len(given), dtype=bool)
        suggested = given.copy()
        quality[rows] = judged.quality
        is_issue[rows] = judged.is_issue
        suggested[rows] = self.classes_[judged.suggested]
        columns = {
            "is_label_issue": is_issue,
            "quality": quality,
            "given_label": given,
            "suggested_label": suggested,
        }
        return pd.DataFrame(columns, index=X.index if hasattr(X, "iloc") else None)

    def predict(self, X: Any) -> Array:
        """The predicted label of each row, (N,)."""
        numbers = self._ask("predict", X).ravel()  # first: it checks that the estimator is fitted
        labels: Array = self.classes_[numbers.astype(np.int64)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (N, K), in the order of ``classes_``."""
        return self._ask("predict_proba", X)

    @available_if(_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """The log probability of each class, (N, K)."""
        return self._ask("predict_log_proba", X)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """The scores of ``estimator_``, (N, K), or (N,) of two classes."""
        return self._ask("decision_function", X)

    def _ask(self, name: str, X: Any) -> Array:
        """What the method ``name`` of the fitted estimator returns."""
        check_is_fitted(self, "estimator_")
        return np.asarray(getattr(self.estimator_, name)(X))

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


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The judgement on N labels."""

    quality: Floats  # (N,) the probability that the label is right; NaN if no model can judge it
    is_issue: Bools  # (N,)
    suggested: Ints  # (N,)
    noise_rate: float


def _judge(labels: Ints, probs: Floats32, folds: Ints, seed: int) -> _Judgement:
    # no model that predicts the others has seen their class
    rows = np.flatnonzero(~in_one_fold(labels, folds))
    issues = find_label_issues(labels[rows], probs[rows], seed=seed)
    quality = np.full(len(labels), np.nan)
    quality[rows] = issues.quality
    is_issue = np.zeros(len(labels), dtype=bool)
    is_issue[rows] = issues.is_issue
    if not issues.is_predictable:
        # Where predictions match labels no better than by chance, the audit calls none wrong. A fit
        # needs no proof.
        is_issue = quality < EVEN
    suggested = labels.copy()
    suggested[rows] = issues.suggested
    return _Judgement(quality, is_issue, suggested, issues.noise_rate)


def _best(labels: Ints, quality: Floats, count: int) -> Bools:
    """The ``count`` rows of each class whose labels are most likely right, (N,)."""
    # class by class, the best labels first
    order = np.lexsort((-np.nan_to_num(quality, nan=1.0), labels))
    ordered = labels[order]
    is_best = np.zeros(len(order), dtype=bool)
    is_best[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) < count
    return is_best


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
    if len(labels) == 1:
        raise ValueError(
            "Expected rows to cross-fit, got n_samples = 1. Fit the estimator without"
            " RobustClassifier."
        )
    counts = np.bincount(labels)
    if len(counts) < 2:
        raise ValueError(
            f"Expected rows of at least two classes, got {len(counts)} class. Check `y`."
        )
    num_judged = int((counts > 1).sum())
    if num_judged < 2:
        raise ValueError(
            "Expected two rows or more of at least two classes, so that models of some rows can"
            f" judge the others, got {num_judged} such class. Fit the estimator without"
            " RobustClassifier."
        )


def _check_weights(inner: Any, what: str) -> None:
    while hasattr(inner, "steps"):
        inner = inner.steps[-1][1]
    if not has_fit_parameter(inner, "sample_weight"):
        raise ValueError(
            f"Expected an estimator whose fit takes sample_weight for {what}, got"
            f" {type(inner).__name__}. Use repair='drop' or 'correct', without weights."
        )
