"""NoisyLabelClassifier with several labels a row, as scikit-learn has it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.multiclass import type_of_target

from noiseproof import NoisyLabelClassifier
from noiseproof.estimator.targets import read_targets

X, Y = make_multilabel_classification(300, n_features=12, n_classes=4, random_state=1)


def small(method: str = "auto", **options: Any) -> NoisyLabelClassifier:
    return NoisyLabelClassifier(
        method, **{"model": "mlp:hidden=[16]", "epochs": 10, "device": "cpu", **options}
    )


def test_fit_and_predict_a_matrix() -> None:
    model = small(epochs=30).fit(X[:200], Y[:200])
    predicted, p = model.predict(X[200:]), model.predict_proba(X[200:])
    assert model.multilabel_ and model.method_ == "ce" and model.classes_.tolist() == [0, 1, 2, 3]
    assert (
        predicted.shape == p.shape == (100, 4)
        and type_of_target(predicted) == "multilabel-indicator"
    )
    assert (predicted == (p > 0.5)).all() and not np.allclose(p.sum(1), 1)
    assert f1_score(Y[200:], predicted, average="micro") > 0.65
    assert model.score(X[200:], Y[200:]) == accuracy_score(Y[200:], predicted)
    assert {"train_loss", "train_accuracy"} <= set(model.history_[-1])


def test_matrices_of_any_kind_are_the_same_labels() -> None:
    want = small().fit(X, Y).predict_proba(X)
    frame = pd.DataFrame(Y, columns=["a", "b", "c", "d"])
    for labels in (Y.astype(bool), Y.astype(float), Y.tolist(), csr_matrix(Y), frame):
        model = small().fit(X, labels)
        assert np.array_equal(model.predict_proba(X), want)
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    table = model.predict_frame(pd.DataFrame(X, index=range(5, 305)))
    assert (
        table.columns.tolist() == ["a", "b", "c", "d"]
        and table.index[0] == 5
        and np.array_equal(table, want)
    )


def test_targets_are_plain_arrays() -> None:
    assert type(read_targets(X, Y.view(np.matrix)).codes) is np.ndarray


@pytest.mark.parametrize(
    "method", ["asl", "gce:q=0.5 & momentum:alpha=0.9", "sln", "ce & early-stopping"]
)
def test_saved_and_pickled(method: str, tmp_path: Path) -> None:
    model = small(method, validation=0.2).fit(X, Y)
    want = model.predict_proba(X)
    for again in (
        NoisyLabelClassifier.load(model.save(tmp_path / "model")),
        pickle.loads(pickle.dumps(model)),
    ):
        assert again.multilabel_ and np.array_equal(again.predict_proba(X), want)
        assert np.array_equal(again.predict(X), model.predict(X))


def test_sample_weights_leave_rows_out() -> None:
    weight = (np.arange(300) < 200).astype(float)
    assert np.array_equal(
        small().fit(X, Y, weight).predict(X), small().fit(X[:200], Y[:200]).predict(X)
    )
    assert small().fit(X, Y, np.linspace(0.5, 1.5, 300)).predict(X).shape == (300, 4)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"one label for each row for the method trees, got several.*MultiOutputClassifier",
    ):
        small("trees").fit(X, Y)
    for method in ("elr", "dividemix"):
        with pytest.raises(ValueError, match="for each label of a row|needs one class per row"):
            small(method).fit(X, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        small().fit(X, Y[:-1])
    with pytest.raises(
        ValueError, match="a head predicts a variance|whose head predicts a variance"
    ):
        small().fit(X, Y).predict_uncertainty(X)
