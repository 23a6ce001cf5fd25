"""Out-of-fold predictions are scikit-learn's, and cover classes, groups and weights that
scikit-learn leaves out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from noiseproof.core.plugins import load_object
from noiseproof.judge.evidence.trees import cross_fit


def wine() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    x, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(x), y, np.random.default_rng(0).integers(4, size=len(y))


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(StandardScaler(with_mean=False), LogisticRegression()),
        RandomForestClassifier(20, random_state=3),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, pd.DataFrame, list])
def test_cross_fit_is_cross_val_predict_for_every_kind_of_rows(model: Any, kind: Any) -> None:
    x, y, folds = wine()
    expected = cross_val_predict(model, x, y, cv=PredefinedSplit(folds), method="predict_proba")
    np.testing.assert_allclose(cross_fit(model, kind(x), y, 3, folds), expected, atol=1e-5)


def test_groups_stay_together_as_in_scikit_learn() -> None:
    x, y, _ = wine()
    groups = np.random.default_rng(1).integers(30, size=len(y))
    split = GroupKFold(5)
    folds = np.empty(len(y), np.int64)
    for i, (_, rows) in enumerate(split.split(x, y, groups)):
        folds[rows] = i
    model = make_pipeline(StandardScaler(), LogisticRegression())
    expected = cross_val_predict(model, x, y, cv=split, groups=groups, method="predict_proba")
    np.testing.assert_allclose(cross_fit(model, x, y, 3, folds), expected, atol=1e-6)


def test_a_class_that_a_fit_did_not_see_has_probability_0() -> None:
    x, y, folds = wine()
    folds[y == 1] = 0  # predicted by a fit to classes 0 and 2
    y = y + (y == 2)  # class 2 has no rows at all: labels 0, 1, 3
    model = make_pipeline(StandardScaler(), LogisticRegression())
    probs = cross_fit(model, x, y, 4, folds)
    assert (probs[:, 2] == 0).all() and (probs[folds == 0, 1] == 0).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    fitted = model.fit(x[folds != 0], y[folds != 0])
    np.testing.assert_allclose(
        probs[folds == 0][:, [0, 3]], fitted.predict_proba(x[folds == 0]), atol=1e-6
    )


def test_a_single_class_in_the_other_folds_is_predicted() -> None:
    probs = cross_fit(
        LogisticRegression(), np.arange(8.0)[:, None], [0] * 4 + [1] * 4, 2, [0] * 4 + [1] * 4
    )
    assert probs.tolist() == [[0, 1]] * 4 + [[1, 0]] * 4


@pytest.mark.parametrize("is_pipeline", [False, True])
def test_weights_reach_the_fit(is_pipeline: bool) -> None:
    x, y, folds = wine()
    weight = np.random.default_rng(2).integers(0, 3, size=len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    for i in range(4):
        rows = repeated[folds[repeated] != i]
        expected = LogisticRegression(tol=1e-8).fit(x[rows], y[rows]).predict_proba(x[folds == i])
        model: Any = LogisticRegression(tol=1e-8)
        model = make_pipeline(make_pipeline(model)) if is_pipeline else model
        probs = cross_fit(model, x, y, 3, folds, sample_weight=weight)
        np.testing.assert_allclose(probs[folds == i], expected, atol=1e-4)


def test_a_column_transformer_gets_the_columns_by_name() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=80), "b": rng.choice(list("xyz"), 80)}, index=np.arange(80) + 7
    )
    y = (frame["b"] == "x").to_numpy(np.int64)
    encode = make_column_transformer((OneHotEncoder(), ["b"]), (StandardScaler(), ["a"]))
    probs = cross_fit(make_pipeline(encode, LogisticRegression()), frame, y, 2, np.arange(80) % 4)
    assert (probs.argmax(1) == y).all()


def test_results_repeat_without_a_seed_and_progress_counts_folds() -> None:
    x, y, folds = wine()
    calls: list[tuple[str, int, int | None]] = []
    first = cross_fit(
        RandomForestClassifier(5), x, y, 3, folds, progress=lambda *call: calls.append(call)
    )
    assert (first == cross_fit(RandomForestClassifier(5), x, y, 3, folds)).all()
    assert calls == [("fitting", i, 4) for i in range(5)]


def test_what_is_not_a_classifier_is_refused() -> None:
    x, y, folds = wine()
    with pytest.raises(TypeError, match="CalibratedClassifierCV"):
        cross_fit(LinearSVC(), x, y, 3, folds)
    with pytest.raises(TypeError, match=r"Make one: LogisticRegression\(\)"):
        cross_fit(LogisticRegression, x, y, 3, folds)
    with pytest.raises(ValueError, match="two values or more"):
        cross_fit(LogisticRegression(), x, y, 3, np.zeros(len(y)))


def test_objects_are_loaded_by_name(tmp_path: Any, monkeypatch: Any) -> None:
    assert isinstance(
        load_object("sklearn.ensemble:RandomForestClassifier"), RandomForestClassifier
    )
    tmp_path.joinpath("my_models_of_a_test.py").write_text(
        "from sklearn.linear_model import LogisticRegression\nmine = LogisticRegression(C=0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_object("my_models_of_a_test:mine").C == 0.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RandomForestClassifier", "module:name"),
        ("no_such_module:Model", "No module named"),
        ("sklearn.ensemble:Forest", "has no Forest"),
        ("sklearn.ensemble:VotingClassifier", "needs arguments"),
    ],
)
def test_names_of_no_object_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_object(name)
