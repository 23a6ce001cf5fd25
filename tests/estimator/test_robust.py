"""The meta-estimator: scikit-learn's own checks, what each repair fits to, and inputs of every
kind.
"""

from __future__ import annotations

import pickle
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import noiseproof
from noiseproof.estimator import RobustClassifier
from noiseproof.judge.evidence.folds import make_folds
from noiseproof.judge.labels import find_label_issues

X, Y = load_wine(return_X_y=True)
NAMES = np.array(["barolo", "grignolino", "barbera"])[Y]
WRONG = np.arange(len(Y)) % 5 == 2
GIVEN = np.where(WRONG, (Y + 1) % 3, Y)


class Memory(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts by Gaussian naive Bayes, and remembers what it was fitted to."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        self.x_, self.y_, self.weight_ = X, y, sample_weight
        self.bayes_ = GaussianNB().fit(X, y, sample_weight)
        self.classes_, self.n_features_in_ = self.bayes_.classes_, self.bayes_.n_features_in_
        return self

    def predict_proba(self, X: Any) -> Any:
        return self.bayes_.predict_proba(X)

    def predict(self, X: Any) -> Any:
        return self.bayes_.predict(X)


def expected_failures(estimator: RobustClassifier) -> dict[str, str]:
    reason = "a row of weight two is in one fold, two copies of it may be in two"
    return {
        f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in ("dense", "sparse")
    }


@parametrize_with_checks(
    [
        RobustClassifier(LogisticRegression(), rounds=1),
        RobustClassifier(make_pipeline(StandardScaler(), GaussianNB()), repair="reweigh"),
        RobustClassifier(DecisionTreeClassifier(max_depth=4), repair="correct"),
        RobustClassifier(HistGradientBoostingClassifier(max_iter=5), folds=3),
    ],
    expected_failed_checks=expected_failures,
)
def test_it_passes_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


# What is fitted


def test_labels_are_judged_by_predictions_from_other_folds() -> None:
    """One round is find_label_issues on what scikit-learn's cross_val_predict gives for the same
    folds.
    """
    model = RobustClassifier(GaussianNB(), rounds=1, random_state=3).fit(X, GIVEN)
    folds = make_folds(GIVEN, folds=5, seed=3)
    splits = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(5)]
    probs = cross_val_predict(GaussianNB(), X, GIVEN, cv=splits, method="predict_proba")
    issues = find_label_issues(GIVEN, probs.astype(np.float32), seed=3)
    frame = model.label_issues_
    assert list(frame.columns) == ["is_label_issue", "quality", "given_label", "suggested_label"]
    assert (frame["is_label_issue"] == issues.is_issue).all() and np.allclose(
        frame["quality"], issues.quality
    )
    assert (frame["given_label"] == GIVEN).all() and (
        frame["suggested_label"] == issues.suggested
    ).all()
    assert model.noise_rate_ == pytest.approx(issues.noise_rate)
    assert (frame["is_label_issue"] == WRONG).mean() > 0.9
    assert (frame["suggested_label"][WRONG] == Y[WRONG]).mean() > 0.95


def test_dropped_rows_are_not_fitted() -> None:
    model = RobustClassifier(Memory(), repair="drop").fit(X, GIVEN)
    kept = ~model.label_issues_["is_label_issue"].to_numpy()
    assert 0 < kept.sum() < len(X)
    assert (model.estimator_.x_ == X[kept]).all() and (model.estimator_.y_ == GIVEN[kept]).all()
    assert model.estimator_.weight_ is None


def test_reweighed_rows_count_by_their_quality() -> None:
    weights = np.linspace(0.5, 2, len(X))
    model = RobustClassifier(Memory(), repair="reweigh").fit(X, GIVEN, weights)
    quality = model.label_issues_["quality"].to_numpy()
    assert model.estimator_.weight_ == pytest.approx(weights * np.maximum(quality, 1e-3))
    assert (model.estimator_.y_ == GIVEN).all() and len(model.estimator_.x_) == len(X)


def test_corrected_rows_have_the_suggested_label() -> None:
    model = RobustClassifier(Memory(), repair="correct").fit(
        X, np.where(WRONG, np.roll(NAMES, 60), NAMES)
    )
    frame = model.label_issues_
    expected = np.where(frame["is_label_issue"], frame["suggested_label"], frame["given_label"])
    assert (model.classes_[model.estimator_.y_] == expected).all() and (
        expected == NAMES
    ).mean() > 0.95


def test_a_second_round_judges_by_models_of_the_repaired_labels() -> None:
    first = RobustClassifier(GaussianNB(), rounds=1).fit(X, GIVEN)
    second = RobustClassifier(GaussianNB(), rounds=2).fit(X, GIVEN)
    kept = ~first.label_issues_["is_label_issue"].to_numpy()
    folds, probs = make_folds(GIVEN, folds=5, seed=1), np.zeros((len(X), 3))
    for k in range(5):
        fitted = (folds != k) & kept
        probs[folds == k] = GaussianNB().fit(X[fitted], GIVEN[fitted]).predict_proba(X[folds == k])
    issues = find_label_issues(GIVEN, probs.astype(np.float32))
    assert np.allclose(second.label_issues_["quality"], issues.quality)


def test_labels_that_are_not_predictable_are_dropped_if_more_likely_wrong_than_right() -> None:
    """An audit calls none of them wrong, but a fit gains without them."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(300, 3)), draw.integers(0, 2, 300)
    model = RobustClassifier(Memory(), rounds=1).fit(x, y)
    folds, probs = make_folds(y, folds=5, seed=0), np.zeros((300, 2))
    for k in range(5):
        probs[folds == k] = (
            GaussianNB().fit(x[folds != k], y[folds != k]).predict_proba(x[folds == k])
        )
    issues = find_label_issues(y, probs.astype(np.float32))
    assert not issues.is_predictable and not issues.is_issue.any()
    likely_wrong = issues.quality < 0.5
    assert (model.label_issues_["is_label_issue"] == likely_wrong).all()
    assert len(model.estimator_.y_) == 300 - likely_wrong.sum()


@pytest.mark.parametrize("repair", ["drop", "correct", "reweigh"])
def test_no_class_is_lost(repair: Any) -> None:
    """Rows of a class that lies in the midst of another, all of which look wrong."""
    draw = np.random.default_rng(0)
    x = np.concatenate(
        [
            draw.normal(size=(300, 2)),
            draw.normal(6, 1, size=(300, 2)),
            draw.normal(size=(7, 2)),
            [[9, 9]],
        ]
    )
    y = np.repeat(["a", "b", "rare", "single"], [300, 300, 7, 1])
    model = RobustClassifier(Memory(), repair=repair).fit(x, y)
    assert list(model.classes_) == ["a", "b", "rare", "single"]
    fitted = np.bincount(model.estimator_.y_, minlength=4)
    assert fitted[2] >= 5 and fitted[3] >= 1
    assert model.predict_proba(x).shape == (608, 4)
    assert (
        np.isnan(model.label_issues_["quality"].iloc[-1])
        and not model.label_issues_["is_label_issue"].iloc[-1]
    )


def test_noise_costs_less_accuracy() -> None:
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    given = np.where(
        draw.random(1200) < 0.4, (y[:1200] + draw.integers(1, 10, 1200)) % 10, y[:1200]
    )
    plain = KNeighborsClassifier(3).fit(x[:1200], given).score(x[1200:], y[1200:])
    robust = RobustClassifier(KNeighborsClassifier(3)).fit(x[:1200], given)
    assert plain < 0.8 < 0.94 < robust.score(x[1200:], y[1200:])
    assert robust.noise_rate_ == pytest.approx((given != y[:1200]).mean(), abs=0.03)


# Inputs and tools of every kind


def test_pipelines_searches_clones_and_pickles() -> None:
    model = RobustClassifier(RandomForestClassifier(10, random_state=0), folds=3)
    assert clone(model).get_params() == model.get_params() or str(clone(model)) == str(model)
    search = GridSearchCV(model, {"estimator__max_depth": [1, 8], "repair": ["drop"]}, cv=2).fit(
        X, NAMES
    )
    assert (
        search.best_params_["estimator__max_depth"] == 8
        and search.best_estimator_.estimator_.max_depth == 8
    )
    assert (
        cross_val_score(
            make_pipeline(StandardScaler(), model), X, NAMES, cv=2, scoring="roc_auc_ovr"
        ).min()
        > 0.9
    )
    fitted = model.fit(X, NAMES)
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(X) == fitted.predict_proba(X)).all() and again.label_issues_.equals(
        fitted.label_issues_
    )
    assert noiseproof.RobustClassifier is RobustClassifier


def test_results_repeat_and_depend_on_the_seed() -> None:
    def probabilities(random_state: Any) -> Any:
        forest = RobustClassifier(RandomForestClassifier(5), rounds=1, random_state=random_state)
        return forest.fit(X, GIVEN).predict_proba(X)

    assert (probabilities(1) == probabilities(1)).all()
    assert (probabilities(1) != probabilities(2)).any()
    for make in (np.random.RandomState, np.random.default_rng):
        assert (probabilities(make(3)) == probabilities(make(3))).all()
    assert (probabilities(None) != probabilities(None)).any()


def test_tables_with_words_and_gaps() -> None:
    draw = np.random.default_rng(0)
    colour = draw.choice(["red", "green", "blue"], 400)
    frame = pd.DataFrame({"size": draw.normal(size=400), "colour": pd.Categorical(colour)})
    frame.loc[::7, "size"] = np.nan
    frame.index += 1000
    y = np.where(colour == "red", "yes", "no")
    given = np.where(np.arange(400) % 6 == 0, np.where(y == "yes", "no", "yes"), y)
    model = RobustClassifier(
        HistGradientBoostingClassifier(max_iter=20, categorical_features="from_dtype")
    )
    model.fit(frame, given)
    assert model.score(frame, y) == 1 and list(model.feature_names_in_) == ["size", "colour"]
    assert model.n_features_in_ == 2 and model.label_issues_.index.equals(frame.index)
    assert (model.label_issues_["is_label_issue"] == (given != y)).all()


def test_texts_and_sparse_matrices() -> None:
    draw = np.random.default_rng(0)
    good = np.arange(300) % 2 == 0
    texts = [
        f"{'fine' if g else 'poor'} film number {n}"
        for g, n in zip(good, draw.integers(0, 99, 300), strict=True)
    ]
    given = np.where(np.arange(300) % 6 == 0, ~good, good)
    model = RobustClassifier(make_pipeline(TfidfVectorizer(), LogisticRegression())).fit(
        texts, given
    )
    assert model.score(texts, good) > 0.94  # all wrong labels are of one class
    matrix = TfidfVectorizer().fit_transform(texts)
    dense = RobustClassifier(LogisticRegression()).fit(matrix.toarray(), given)
    for kind in (sparse.csr_matrix, sparse.coo_matrix, sparse.csr_array):
        model = RobustClassifier(LogisticRegression()).fit(kind(matrix), given)
        assert np.allclose(
            model.predict_proba(matrix), dense.predict_proba(matrix.toarray()), atol=1e-3
        )


def test_a_weight_of_zero_is_no_row() -> None:
    weights = (np.arange(len(X)) % 4 > 0).astype(float)
    keep = weights > 0
    model = RobustClassifier(GaussianNB()).fit(X, GIVEN, weights)
    without = RobustClassifier(GaussianNB()).fit(X[keep], GIVEN[keep], weights[keep])
    assert (model.predict_proba(X) == without.predict_proba(X)).all()
    frame = model.label_issues_
    assert len(frame) == len(X) and frame["quality"].isna().equals(pd.Series(~keep))
    assert not frame["is_label_issue"][~keep].any()


@pytest.mark.parametrize(
    "options, y, message",
    [
        ({}, None, "requires y"),
        ({}, np.zeros(len(X)), "at least two classes, got 1 class"),
        (
            {},
            np.where(np.arange(len(X)) == 0, "odd", "even"),
            "Expected two rows or more of at least two classes",
        ),
        ({}, np.where(Y == 0, None, NAMES), "y contains NaN or None, first in row 0"),
        ({"repair": "fix"}, Y, "Expected `repair` to be drop, reweigh, correct, got 'fix'"),
        ({"folds": 1}, Y, "Expected `folds`"),
        ({"rounds": 0}, Y, "Expected `rounds`"),
        ({"random_state": -1}, Y, "Expected `random_state`"),
        (
            {"estimator": KNeighborsClassifier(), "repair": "reweigh"},
            Y,
            "takes sample_weight for repair='reweigh'",
        ),
    ],
)
def test_refusals(options: dict[str, Any], y: Any, message: str) -> None:
    model = RobustClassifier(**{"estimator": GaussianNB(), **options})
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_estimators_without_probabilities_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        TypeError, match="fit and predict_proba, got LinearSVC.*CalibratedClassifierCV"
    ):
        RobustClassifier(LinearSVC()).fit(X, Y)
    with pytest.raises(TypeError, match=r"got the class GaussianNB. Make one: GaussianNB\(\)"):
        RobustClassifier(GaussianNB).fit(X, Y)
    with pytest.raises(
        ValueError, match="takes sample_weight for weights, got KNeighborsClassifier"
    ):
        RobustClassifier(KNeighborsClassifier()).fit(X, Y, np.arange(len(X)))
    assert RobustClassifier(KNeighborsClassifier()).fit(X, GIVEN).score(X, Y) > 0.7
    assert not hasattr(RobustClassifier(GaussianNB()), "decision_function")
    scores = (
        RobustClassifier(make_pipeline(StandardScaler(), LogisticRegression()))
        .fit(X, GIVEN)
        .decision_function(X)
    )
    assert scores.shape == (len(X), 3)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_words_are_named_where_an_estimator_needs_numbers(library: str) -> None:
    module = pytest.importorskip(library)
    table = module.DataFrame({"size": np.arange(40.0), "colour": ["red", "blue"] * 20})
    labels = ["a", "b"] * 20
    with pytest.raises(
        ValueError, match="Expected numbers in all columns .*, got words in 'colour'. Encode them"
    ):
        RobustClassifier().fit(table, labels)
    encoder = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    model = RobustClassifier(make_pipeline(encoder, LogisticRegression())).fit(table, labels)
    assert (model.predict(table) == labels).mean() > 0.9
