"""What scikit-learn users expect of a classifier: scores, class weights, a validation set, a line
for each epoch.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.utils.class_weight import compute_sample_weight

from noiseproof.estimator import NoisyLabelClassifier

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["a", "b", "c"])[Y]
OPTIONS = {"method": "ce", "model": "mlp:hidden=[8]", "epochs": 20, "device": "cpu"}


def small(**options: object) -> NoisyLabelClassifier:
    return NoisyLabelClassifier(**(OPTIONS | options))  # type: ignore[arg-type]


def test_scores_of_several_classes() -> None:
    model = small().fit(X, NAMES)
    p, scores = model.predict_proba(X), model.decision_function(X)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(p))
    assert scores.shape == (150, 3) and (model.classes_[scores.argmax(1)] == model.predict(X)).all()


def test_scores_of_two_classes() -> None:
    x, y = X[50:], NAMES[50:]
    model = small().fit(x, y)
    p, scores = model.predict_proba(x), model.decision_function(x)
    np.testing.assert_allclose(scores, np.log(p[:, 1] / p[:, 0]), rtol=1e-6)
    assert ((scores > 0) == (model.predict(x) == "c")).all()
    assert roc_auc_score(y, scores) == roc_auc_score(y, p[:, 1])


def test_scores_of_several_labels_a_row() -> None:
    labels = np.stack([Y > 0, X[:, 0] > 6], 1).astype(int)
    model = small().fit(X, labels)
    assert ((model.decision_function(X) > 0) == model.predict(X)).all()


def test_class_weights_are_weights_of_rows() -> None:
    weight = {"a": 1.0, "b": 3.0, "c": 0.5}
    by_class = small(class_weight=weight).fit(X, NAMES)
    by_row = small().fit(X, NAMES, compute_sample_weight(weight, NAMES))
    assert (by_class.predict_proba(X) == by_row.predict_proba(X)).all()
    few = np.r_[0:50, 50:100:10, 100:150]
    balanced = small(class_weight="balanced").fit(X[few], NAMES[few], np.ones(len(few)))
    expected = small().fit(X[few], NAMES[few], compute_sample_weight("balanced", NAMES[few]))
    assert (balanced.predict_proba(X) == expected.predict_proba(X)).all()
    with pytest.raises(
        ValueError, match="Expected one label for each row with `class_weight`, got a matrix"
    ):
        small(class_weight="balanced").fit(X, np.eye(3)[Y])


def test_a_validation_set_is_measured_and_not_trained_on() -> None:
    plain, held = (
        small().fit(X[::2], NAMES[::2]),
        small().fit(X[::2], NAMES[::2], X_val=X[1::2], y_val=NAMES[1::2]),
    )
    assert (plain.predict_proba(X) == held.predict_proba(X)).all()
    accuracy = float((held.predict(X[1::2]) == NAMES[1::2]).mean())
    assert held.history_[-1]["validation_accuracy"] == pytest.approx(accuracy)
    assert "validation_accuracy" not in plain.history_[-1]
    stopped = small(method="ce & early-stopping:patience=1", epochs=200)
    stopped.fit(X[::2], NAMES[::2], X_val=X[1::2], y_val=NAMES[1::2])
    assert len(stopped.history_) < 200
    for options, given, message in (
        ({}, {"X_val": X}, "Expected both `X_val` and `y_val`, got one of them alone"),
        (
            {},
            {"X_val": X, "y_val": NAMES[:3]},
            r"Expected `y_val` of shape \(150,\), one label for each row, got \(3,\)",
        ),
        ({}, {"X_val": X[:2], "y_val": ["a", "z"]}, "Expected labels of `y` in `y_val`, got 'z'"),
        (
            {},
            {"X_val": X[:, :2], "y_val": NAMES},
            "Expected inputs as `X` in `X_val`. X has 2 features, but .* 4",
        ),
        (
            {"validation": 0.1},
            {"X_val": X, "y_val": NAMES},
            "Expected validation=0 .*got validation=0.1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            small(**options).fit(X, NAMES, **given)


def test_each_epoch_is_logged_on_request(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    small(epochs=3).fit(X, NAMES)
    assert caplog.records == []
    small(epochs=3, verbose=1, validation=0.2).fit(X, NAMES)
    lines = [record.getMessage() for record in caplog.records if record.name == "noiseproof"]
    assert [line.split(":")[0] for line in lines] == [
        "epoch 1 of 3",
        "epoch 2 of 3",
        "epoch 3 of 3",
    ]
    assert all("train loss" in line and "validation accuracy" in line for line in lines)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []  # as in a script that has set up nothing
    try:
        small(epochs=2, verbose=1).fit(X, NAMES)
    finally:
        root.handlers = handlers
    captured = capsys.readouterr()
    assert captured.err.count("epoch") == 2 and captured.out == ""
    assert logging.getLogger("noiseproof").handlers == []


@pytest.mark.parametrize("method", ["dividemix", "mixup", "sop+"])
def test_weights_beside_a_loss_that_they_do_not_reach_are_refused(method: str) -> None:
    line = "ce & mixup" if method == "mixup" else method
    with pytest.raises(
        ValueError,
        match="Expected a method with a loss for each row to multiply by `sample_weight`",
    ):
        small(method=line).fit(X, NAMES, np.ones(len(X)) + np.arange(len(X)) % 2)
