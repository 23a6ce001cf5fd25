"""scikit-learn's face: its own checks, labels and tables as users have them, weights, saving, and
what auto chooses.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from noiseproof.data import from_arrays, get_dataset
from noiseproof.estimator import NoisyLabelClassifier
from noiseproof.estimator.choice import best_method, held_out
from noiseproof.train import Interrupted, prepare
from noiseproof.train.auto import (
    _LENGTHS,
    _RIDGES,
    choose_method,
    estimate_noise,
    leave_one_out,
    squared_distances,
)
from noiseproof.train.task import blocks

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
SMALL: dict[str, Any] = {"epochs": 3, "model": "mlp:hidden=[8]", "method": "ce"}
LINEAR: dict[str, Any] = {
    "method": "ce",
    "model": "mlp:hidden=[]",
    "epochs": 1,
    "batch_size": "full",
    "schedule": "constant",
}


def small(**options: Any) -> NoisyLabelClassifier:
    return NoisyLabelClassifier(**{**SMALL, **options})


# Soft labels


def test_soft_labels_are_learned_as_distributions() -> None:
    """A linear model of a single constant feature can only learn the mean distribution."""
    g = np.random.default_rng(0)
    counts = g.multinomial(8, [0.5, 0.3, 0.2], size=300)
    model = small(model="mlp:hidden=[]", epochs=200, optimizer="sgd:lr=0.5", batch_size="full")
    p = model.fit(np.ones((300, 1)), counts).predict_proba([[1.0]])
    np.testing.assert_allclose(p[0], counts.sum(0) / counts.sum(), atol=1e-3)
    assert model.classes_.tolist() == [0, 1, 2]


def test_classes_of_soft_labels_are_the_columns_of_a_frame() -> None:
    soft = pd.DataFrame(np.eye(3)[Y] * 0.7 + 0.1, columns=["setosa", "versicolor", "virginica"])
    for method in ("ce", "ln", "auto"):
        model = small(method=method, epochs=20).fit(X, soft)
        assert (model.predict(X) == NAMES).mean() > 0.8, method
    assert set(model.held_out_accuracy_) == {"ce"}  # no trees, which take one label a row
    weight = np.where(Y == 2, 0.0, 1.0)
    assert set(small(epochs=20).fit(X, soft, weight).predict(X)) == {"setosa", "versicolor"}
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_one_hot_labels_are_warned_of_and_counts_are_not() -> None:
    with pytest.warns(UserWarning, match=r"single 1.*y.argmax\(axis=1\).*2 \* y"):
        assert small(epochs=1).fit(X, np.eye(3)[Y]).multilabel_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert small(epochs=1).fit(X, 2 * np.eye(3)[Y]).predict(X).shape == (150,)


def test_where_soft_labels_cannot_be_used_they_are_refused() -> None:
    soft = np.eye(3)[Y] * 0.7 + 0.1
    with pytest.raises(
        ValueError,
        match="for each row for the method trees, got several or soft",
    ):
        small(method="trees").fit(X, soft)
    with pytest.raises(ValueError, match="soft labels.*a shift needs one labelled logit"):
        small(method="mae*:shift=1").fit(X, soft)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        small().fit(X, soft[:-1])
    with pytest.raises(ValueError, match="got the sum 2 in row 0. Divide each row by its sum"):
        small().fit(X, 2 * soft)


# Variances


@pytest.mark.parametrize("method", ["ln", "ln-diagonal", "het"])
def test_uncertainty_is_the_variance_that_the_head_predicts(method: str, tmp_path: Path) -> None:
    model = small(method=method, epochs=5).fit(X, NAMES)
    variance = model.predict_uncertainty(X)
    assert variance.shape == (150,) and (variance > 0).all()
    frame = model.predict_frame(X[:4])
    assert list(frame.columns[:3]) == ["predicted_label", "confidence", "variance"]
    np.testing.assert_allclose(frame["variance"], variance[:4], rtol=1e-5)
    if method != "het":  # draws: it is pickled
        np.testing.assert_array_equal(
            NoisyLabelClassifier.load(model.save(tmp_path)).predict_uncertainty(X), variance
        )


def test_variance_is_larger_where_labels_are_noisy() -> None:
    """Half of one class is mislabelled, another class is clean (LN paper, section 3.1)."""
    g = np.random.default_rng(0)
    x = np.concatenate([g.normal(-2, 0.5, (300, 2)), g.normal(2, 0.5, (300, 2))])
    y = np.repeat([0, 1], 300)
    y[:300:2] = g.integers(1, 3, 150)
    variance = (
        NoisyLabelClassifier("ln", "mlp:hidden=[32]", epochs=60).fit(x, y).predict_uncertainty(x)
    )
    assert np.median(variance[:300]) > 1.5 * np.median(variance[300:])  # λ² = 1 at least


# scikit-learn's word


@pytest.mark.parametrize(
    "options",
    [{"method": "ce", "epochs": 10}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["short", "default"],
)
def test_it_passes_scikit_learns_checks(options: dict[str, Any]) -> None:
    weights = (
        "steps see minibatches, and constants of normalisation do not count rows by their weights"
    )
    rows = (
        "float32: a product rounds by the number and the order of its rows on some processors, see"
        " the next test"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            NoisyLabelClassifier(**options),
            on_fail=None,
            expected_failed_checks={
                "check_sample_weight_equivalence_on_dense_data": weights,
                "check_sample_weight_equivalence_on_sparse_data": weights,
                "check_methods_subset_invariance": rows,
                "check_methods_sample_order_invariance": rows,
            },
        )
    failed = [(one["check_name"], one["exception"]) for one in found if one["status"] == "failed"]
    assert failed == [] and sum(one["status"] == "passed" for one in found) > 50


def test_predictions_of_a_row_do_not_depend_on_the_others_beyond_rounding() -> None:
    model = small().fit(X, NAMES)
    for method in ("predict_proba", "decision_function"):
        together = getattr(model, method)(X[:20])
        alone = np.concatenate([getattr(model, method)(X[i : i + 1]) for i in range(20)])
        np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)
        order = np.random.default_rng(0).permutation(20)
        np.testing.assert_allclose(
            getattr(model, method)(X[:20][order]), together[order], rtol=1e-4, atol=1e-5
        )


def test_clone_search_pipeline_and_cross_validation() -> None:
    model = small(epochs=60)
    assert clone(model.fit(X, Y)).get_params() == model.get_params() and not hasattr(
        clone(model), "classes_"
    )
    search = GridSearchCV(model, {"method": ["ce", "gce:q=0.5"], "epochs": [1, 60]}, cv=2).fit(
        X, NAMES
    )
    assert search.best_params_["epochs"] == 60 and search.best_score_ > 0.9
    pipeline = make_pipeline(StandardScaler(), model).fit(X, NAMES)
    assert pipeline.score(X, NAMES) > 0.9
    assert cross_val_score(model, X, NAMES, cv=2, scoring="roc_auc_ovr").min() > 0.9


# Labels that are wrong


def test_it_sees_through_wrong_labels() -> None:
    x, y = load_digits(return_X_y=True)
    task = prepare(from_arrays(x[300:], y[300:]), "symmetric:rate=0.4", seed=0)
    given = task.train.given.numpy()
    trusting = NoisyLabelClassifier("ce", epochs=30).fit(x[300:], given)
    robust = NoisyLabelClassifier(epochs=30).fit(x[300:], given)
    assert robust.method_ == "elr" and robust.noise_rate_ == pytest.approx(
        task.train.rate, abs=0.03
    )
    assert trusting.score(x[:300], y[:300]) < 0.85 < 0.88 < robust.score(x[:300], y[:300])
    assert robust.held_out_accuracy_["elr"] > robust.held_out_accuracy_["ce"]
    clean = NoisyLabelClassifier(epochs=10, model="mlp:hidden=[64]").fit(x[:600], y[:600])
    assert (
        clean.method_ == "ce"
        and clean.noise_rate_ < 0.01
        and set(clean.held_out_accuracy_) == {"ce", "trees"}
    )


def test_auto_takes_another_method_only_if_it_is_ahead_by_more_than_chance() -> None:
    row = np.arange(1000)
    right = {"elr": row % 5 > 0, "ce": row % 5 > 0}
    assert best_method("elr", right) == "elr"  # a tie
    # 4 rows more and none less: 4/1000, twice its error √4/1000
    right["ce"] = right["elr"] | (row < 20)
    assert right["ce"].sum() == right["elr"].sum() + 4 and best_method("elr", right) == "ce"
    # 2 rows more and one less: 1/1000 with an error of √3/1000
    close = (right["elr"] | (row < 10)) & (row != 11)
    assert (
        close.sum() == right["elr"].sum() + 1
        and best_method("elr", {**right, "ce": close}) == "elr"
    )
    mixed = right["elr"] ^ (row < 10)  # 2 rows more, 8 less
    assert best_method("elr", {"elr": right["elr"], "ce": mixed}) == "elr"
    better = right["elr"] | (row < 100)
    assert (
        best_method("elr", {**right, "trees": better})
        == best_method("ce", {**right, "trees": better})
        == "trees"
    )
    only_first = (row < 20).astype(float)  # the rows by which ce is ahead count as nothing
    assert (
        best_method("elr", right, 1 - only_first) == "elr"
        and best_method("elr", right, only_first) == "ce"
    )


def test_one_fifth_is_held_out_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [500, 250, 50])
    held = held_out(labels, seed=3)
    assert (
        np.bincount(labels[held]).tolist() == [100, 50, 10]
        and (held == held_out(labels, seed=3)).all()
    )
    assert (
        not held_out(labels[:99], seed=3).any()
        and held_out(np.arange(50_000) % 3, seed=0).sum() == 5000
    )


def chessboard(rows: int) -> tuple[Any, Any]:
    """Labels that follow the squares of a board: easy for trees, hard for a small network."""
    x = np.random.default_rng(0).uniform(0, 6, (rows, 2))
    return x, np.array(["black", "white"])[x.astype(int).sum(1) % 2]


def test_trees_are_chosen_where_they_predict_better(tmp_path: Path) -> None:
    x, y = chessboard(3000)
    wrong = np.arange(2000) % 10 == 0
    given = np.where(wrong, np.where(y[:2000] == "black", "white", "black"), y[:2000])
    model = NoisyLabelClassifier(epochs=3, model="mlp:hidden=[8]").fit(x[:2000], given)
    scores = model.held_out_accuracy_
    assert (
        model.method_ == "trees" and scores["trees"] > 0.8 and set(scores) == {"ce", "elr", "trees"}
    )
    assert model.score(x[2000:], y[2000:]) > 0.9 and list(model.classes_) == ["black", "white"]
    called = model.trees_.label_issues_["is_label_issue"]
    f1 = 2 * (called & wrong).sum() / (called.sum() + wrong.sum())
    assert f1 > 0.76  # what the cut aims at
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    for use in (lambda: model.save(tmp_path), lambda: model.export(tmp_path / "net.onnx")):
        with pytest.raises(
            ValueError,
            match="a network to (save|export), got `trees`. Pickle the estimator instead",
        ):
            use()
    named = NoisyLabelClassifier("trees").fit(x[:2000], given)
    assert (named.predict_proba(x) == model.predict_proba(x)).all()
    model.set_params(method="ce").fit(x[:500], given[:500])  # nothing is left of the trees
    assert not hasattr(model, "trees_") and model.save(tmp_path)


@pytest.mark.parametrize(
    "num_classes, rows, noise, method",
    [
        (10, 40, None, "ce"),
        (10, 1000, 0.0299, "ce"),
        (10, 1000, 0.03, "elr"),
        (2, 50, 0.4, "elr"),
        (100, 50_000, 0.2, "elr"),
        (1000, 200_000, 0.2, "elr"),
        (1000, 200_001, 0.2, "gce+"),
        (100, 2_000_001, 0.2, "gce"),
        (10, 20_000_001, 0.2, "gce"),
        (1000, 10**7, 0.01, "ce"),
    ],
)
def test_what_auto_stands_for(
    num_classes: int, rows: int, noise: float | None, method: str
) -> None:
    assert choose_method(num_classes, rows, noise) == method


@pytest.mark.parametrize(
    "noise", ["none", "symmetric:rate=0.1", "symmetric:rate=0.4", "pairflip:rate=0.3"]
)
def test_the_estimated_noise_is_near_the_truth(noise: str) -> None:
    for data in (get_dataset("digits"), from_arrays(*load_wine(return_X_y=True))):
        task = prepare(data, noise, seed=1)
        estimate = estimate_noise(task, seed=0)
        assert (
            estimate == pytest.approx(task.train.rate or 0.0, abs=0.05)
            and estimate_noise(task, seed=0) == estimate
        )
    few = from_arrays(X[::4], Y[::4])  # 38 rows
    assert estimate_noise(prepare(few)) is None


def test_leaving_one_out_in_closed_form_is_what_leaving_one_out_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(25, 3, generator=generator).double(), torch.arange(25) % 3
    x[:, 0] += y
    squared = (x[:, None] - x[None]).square().sum(2)
    median = squared[squared > 0].median()
    target = F.one_hot(y, 3).double()
    centred = target - target.mean(0)
    fits = []
    for length in _LENGTHS:
        for ridge in _RIDGES:
            kernel = torch.exp(-squared / (2 * median * length**2))
            rows = []
            for i in range(25):
                rest = [j for j in range(25) if j != i]
                solved = torch.linalg.solve(
                    kernel[rest][:, rest] + ridge * torch.eye(24).double(), centred[rest]
                )
                rows.append(kernel[i, rest] @ solved + target.mean(0))
            fits.append(torch.stack(rows))
    best = min(fits, key=lambda fit: float((fit - target).square().mean()))
    torch.testing.assert_close(leave_one_out(squared_distances(x), y, 3), best)
    # all rows alike
    same = leave_one_out(torch.zeros(6, 6).double(), torch.tensor([0, 0, 0, 0, 1, 1]), 2)
    torch.testing.assert_close(same, torch.tensor([[4 / 6, 2 / 6]]).double().expand(6, 2))


@pytest.mark.parametrize(
    "shape, dtype",
    [((70, 3, 5, 5), torch.uint8), ((70, 3, 5, 5), torch.float32), ((70, 23), torch.float32)],
)
def test_large_inputs_are_looked_at_a_block_at_a_time(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants as those of all rows at once, distances by their definition."""
    x = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[:, 0] //= 2
    labels = torch.arange(70) % 3
    whole = prepare(from_arrays(x, labels), "symmetric:rate=0.2")
    for name in ("task", "auto"):
        monkeypatch.setattr(f"noiseproof.train.{name}.BLOCK", 1000)
    parts = prepare(from_arrays(x, labels), "symmetric:rate=0.2")
    sizes = [len(part) for part in blocks(x, torch.arange(70))]
    assert sum(sizes) == 70 and len(sizes) > 1 and max(sizes) * x[0].numel() <= 1000
    values = x.double().numpy() / (255 if dtype is torch.uint8 else 1)
    over, ddof = ((0, 2, 3), 1) if x.dim() == 4 else (0, 0)
    for task, close in ((whole, 1e-15), (parts, 1e-13)):
        assert task.normalise.mean == pytest.approx(values.mean(over), rel=close)  # type: ignore[union-attr]
        assert task.normalise.std == pytest.approx(values.std(over, ddof=ddof), rel=close)  # type: ignore[union-attr]
    flat = torch.as_tensor(values).flatten(1)
    torch.testing.assert_close(
        squared_distances(flat), (flat[:, None] - flat[None]).square().sum(2)
    )
    noise = estimate_noise(parts)
    if x.dim() == 2:  # what never changes is not divided by the rounding of its means
        still = torch.cat(
            [torch.linspace(0.1, 0.9, 20).expand(70, 20), torch.full((70, 1), 1e6)], 1
        )
        still[0, 20] += 0.0625
        std = prepare(from_arrays(still, labels)).normalise.std  # type: ignore[union-attr]
        assert (std[:20] == 1).all() and float(std[20]) == pytest.approx(
            0.0625 * 69**0.5 / 70, rel=1e-6
        )
    monkeypatch.undo()
    assert noise == estimate_noise(whole)


# Labels and inputs as users have them


@pytest.mark.parametrize(
    "y",
    [
        NAMES,
        NAMES.astype(object),
        pd.Series(NAMES, index=range(500, 650)),
        Y + 5,
        Y == 0,
    ],
    ids=lambda y: type(y).__name__,
)
def test_labels_come_back_as_they_went_in(y: Any, tmp_path: Path) -> None:
    model = small(epochs=10).fit(X, y)
    want = np.asarray(y)
    found = model.predict(X)
    assert (
        set(found) <= set(want)
        and (found == want).mean() > 0.6
        and found.dtype.kind == model.classes_.dtype.kind
    )
    again = NoisyLabelClassifier.load(model.save(tmp_path))
    assert again.classes_.dtype == model.classes_.dtype and (again.predict(X) == found).all()


@pytest.mark.parametrize(
    "x, y, message",
    [
        (X, None, "requires y"),
        (
            X,
            [["cat", "pet"], ["dog"]] * 75,
            "got lists. Use sklearn.preprocessing.MultiLabelBinarizer",
        ),
        (
            X,
            pd.Series([{"cat", "pet"}, {"dog"}] * 75),
            "got lists. Use sklearn.preprocessing.MultiLabelBinarizer",
        ),
        (X, np.zeros(150), "at least two classes"),
        (X, Y[:-1], "inconsistent"),
        (X, Y + 0.5, "continuous"),
        (X, np.where(Y == 0, np.nan, Y), "NaN"),
        (X, np.where(Y == 0, None, NAMES), "y contains NaN or None, first in row 0. Drop"),
        (X, np.where(Y == 0, np.nan, Y), "y contains NaN or None, first in row 0. Drop"),
        (
            X,
            pd.Series(NAMES, dtype="string").where(Y != 1),
            "y contains NaN or None, first in row ",
        ),
        (
            X,
            np.where(Y == 0, 7, NAMES.astype(object)),
            "labels of one type in y, got strings and 7",
        ),
        (X[:, 0], Y, "Expected 2D array"),
        (X[:, :, None], Y, "dim 3"),
        (np.where(X > 7, 1e300, X), Y, "infinity or a value too large"),
    ],
)
def test_refusals(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().fit(x, y)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "gcee"}, "Unknown method 'gcee'"),
        ({"model": "lenet5"}, "Expected inputs of shape"),
        ({"epochs": 0}, "Expected `epochs`"),
        ({"validation": 1.5}, "Expected `validation`"),
        (
            {"device": "gpu"},
            "^Expected `device` to be auto, cpu, cuda, cuda:1, … or mps, got 'gpu'",
        ),
        ({"device": "cpu:0"}, "^Expected `device` to be auto, cpu"),
        ({"random_state": -1}, "Expected `random_state` to be an integer of at least 0, got -1"),
        pytest.param(
            {"device": "cuda"},
            "can not run",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has one"),
        ),
    ],
)
@pytest.mark.usefixtures("any_accelerator")
def test_bad_parameters_are_refused_by_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options).fit(X, Y)
    with pytest.raises(NotFittedError):
        small(**options).predict(X)


def test_a_fit_that_fails_leaves_no_model_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        raise Interrupted("by Ctrl-C")

    for error in (ValueError, KeyboardInterrupt):
        model = small().fit(X, NAMES)
        if error is ValueError:
            model.set_params(method="gcee")
        else:
            monkeypatch.setattr("noiseproof.estimator.fitting.train", stopped)
        with pytest.raises(error):
            model.fit(X, Y)
        for use in (model.predict, model.predict_proba, model.predict_frame):
            with pytest.raises(NotFittedError):
                use(X)
        with pytest.raises(NotFittedError):
            model.save(tmp_path / "model")
    monkeypatch.undo()
    assert set(model.fit(X, Y).predict(X)) <= {0, 1, 2}


def test_tables_of_numbers_and_words(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    colour = generator.choice(["red", "green", "blue"], 200)
    frame = pd.DataFrame(
        {"size": generator.normal(size=200), "colour": colour, "new": generator.random(200) > 0.5}
    )
    frame.index += 1000
    y = np.where(colour == "red", "yes", "no")
    model = small(epochs=30).fit(frame, y)
    assert list(model.feature_names_in_) == ["size", "colour", "new"] and model.n_features_in_ == 3
    assert model.columns_ is not None
    assert model.columns_.names == ("size", "new", "colour=blue", "colour=green", "colour=red")
    assert model.score(frame, y) > 0.98
    table = model.predict_frame(frame)
    assert list(table.columns) == [
        "predicted_label",
        "confidence",
        "no",
        "yes",
    ] and table.index.equals(frame.index)
    assert (table["predicted_label"] == model.predict(frame)).all()
    assert np.allclose(table["confidence"], table[["no", "yes"]].max(axis=1)) and np.allclose(
        table[["no", "yes"]].sum(axis=1), 1
    )
    again = NoisyLabelClassifier.load(model.save(tmp_path))
    assert (again.predict_proba(frame) == model.predict_proba(frame)).all()
    unseen = frame.assign(colour="violet")  # none of the words of the training rows
    assert np.isfinite(model.predict_proba(unseen)).all()
    with pytest.raises(ValueError, match="Expected a DataFrame with the columns of fit"):
        model.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="[Ff]eature names"):
        model.predict(frame[["colour", "size", "new"]])
    gaps = model.fit(frame.assign(colour=frame["colour"].where(frame["size"] > 0)), y)
    assert (
        gaps.score(frame, y) > 0.9
        and np.isfinite(gaps.predict_proba(frame.assign(size=np.nan, colour=None))).all()
    )
    numbers = model.fit(frame[["size", "new"]], y)  # and nothing is left of the words
    assert numbers.columns_ is None and numbers.n_features_in_ == 2


@pytest.mark.parametrize("kind", ["array", "frame", "words"])
def test_times_within_minutes_are_told_apart(kind: str, tmp_path: Path) -> None:
    """float32 has one number for 128 seconds of Unix time."""
    generator = np.random.default_rng(0)
    seconds = generator.uniform(0, 300, 300)
    frame = pd.DataFrame({"t": 1.7e9 + seconds, "x": generator.normal(size=300)})
    frame = (
        frame.assign(colour=generator.choice(["red", "blue"], 300)) if kind == "words" else frame
    )
    x: Any = frame.to_numpy() if kind == "array" else frame
    y = np.sin(seconds / 40) > 0
    model = small(epochs=60).fit(x, y)
    assert model.score(x, y) > 0.9
    p = model.predict_proba(x)
    assert model.predict_proba(x[:7]) == pytest.approx(p[:7], abs=1e-6)
    for again in (
        NoisyLabelClassifier.load(model.save(tmp_path)),
        pickle.loads(pickle.dumps(model)),
    ):
        assert (again.predict_proba(x) == p).all()
    assert small().fit(X, Y).columns_ is None  # which needs none of this


def test_text_is_refused_with_the_remedy_which_works() -> None:
    words = np.random.default_rng(0).integers(0, 10**6, 200)
    good = np.arange(200) % 2 == 0
    frame = pd.DataFrame(
        {
            "n": good * 0.0,
            "text": [f"{'fine' if g else 'bad'} w{w}" for g, w in zip(good, words, strict=True)],
        }
    )
    with pytest.raises(
        ValueError, match="'text', which holds 200 different texts.*TfidfVectorizer"
    ):
        small().fit(frame, good)
    columns = ColumnTransformer(
        [("text", TfidfVectorizer(max_features=50), "text")], sparse_threshold=0
    )
    assert make_pipeline(columns, small(epochs=20)).fit(frame, good).score(frame, good) > 0.95


def test_missing_numbers_are_replaced_by_the_median(tmp_path: Path) -> None:
    gaps = np.random.default_rng(0).random(X.shape) < 0.1
    x = np.where(gaps, np.nan, X)
    model = small(epochs=20).fit(x, Y)
    filled = SimpleImputer(strategy="median").fit_transform(x)
    p = model.predict_proba(x)
    assert (small(epochs=20).fit(filled, Y).predict_proba(filled) == p).all() and model.score(
        X, Y
    ) > 0.8
    assert (NoisyLabelClassifier.load(model.save(tmp_path)).predict_proba(x) == p).all()
    assert (small(epochs=20).fit(pd.DataFrame(x), Y).predict_proba(pd.DataFrame(x)) == p).all()
    plain = small(epochs=20).fit(X, Y)  # without gaps in fit, the mean replaces them
    mean = np.where(gaps, X.mean(0), X)
    assert plain.predict_proba(x) == pytest.approx(plain.predict_proba(mean), abs=1e-6)


def test_sparse_matrices() -> None:
    x = np.where(X > 2, X, 0)
    dense = small().fit(x, Y).predict_proba(x)
    for kind in (sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array):
        model = small().fit(kind(x), Y)
        assert (model.predict_proba(kind(x)) == dense).all() and (
            model.predict_proba(x) == dense
        ).all()
        assert model.n_features_in_ == 4
    assert (small().fit(x, Y).predict_proba(sparse.csr_matrix(x)) == dense).all()
    with pytest.raises(ValueError, match="fitted to a sparse matrix. Pickle it instead"):
        model.save("nowhere")


def reviews(rows: int) -> tuple[list[str], Any]:
    draw = np.random.default_rng(0)
    good = np.arange(rows) % 2 == 0
    words = [["splendid", "lovely", "great"] if g else ["awful", "boring", "poor"] for g in good]
    texts = [
        f"a {draw.choice(w)} film about w{draw.integers(400)} and w{draw.integers(400)}"
        for w in words
    ]
    return texts, np.where(good, "good", "bad")


def test_truth_values_with_gaps_are_numbers() -> None:
    answers = np.where(Y[:60] > 0, True, False).astype(object)
    answers[:5] = None
    frame = pd.DataFrame({"answer": answers, "x": X[:60, 0]})
    numbers = frame.assign(answer=frame["answer"].astype(float))
    model = small(epochs=1).fit(frame, Y[:60])
    assert not model.columns_.categories and model.columns_.missing == "impute"
    same = small(epochs=1).fit(numbers, Y[:60])
    assert (model.predict_proba(frame) == same.predict_proba(numbers)).all()


def test_texts_go_in_directly(tmp_path: Path) -> None:
    texts, y = reviews(400)
    given = np.where(np.arange(300) % 10 == 0, np.roll(y[:300], 1), y[:300])
    model = NoisyLabelClassifier(epochs=20, features="tfidf").fit(texts[:300], given)
    assert model.score(texts[300:], y[300:]) > 0.95 and set(model.held_out_accuracy_) <= {
        "ce",
        "elr",
    }
    p = model.predict_proba(texts[300:])
    for same in (
        np.array(texts[300:]),
        np.array(texts[300:], dtype=object),
        pd.Series(texts[300:]),
        tuple(texts[300:]),
    ):
        assert (model.predict_proba(same) == p).all()
    assert (pickle.loads(pickle.dumps(model)).predict_proba(texts[300:]) == p).all()
    with pytest.raises(ValueError, match="fitted to texts. Pickle it instead"):
        model.save(tmp_path)
    with pytest.raises(ValueError, match="Expected texts as in fit, a list, got ndarray"):
        model.predict(np.ones((3, 4)))


def test_paths_of_pictures_go_in_directly(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = []
    for i in range(60):
        pixels = draw.integers(0, 80, (24, 24, 3), dtype=np.uint8)
        pixels[:, :, i % 2] += 150  # red or green
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    y = np.array(["red", "green"])[np.arange(60) % 2]
    model = small(epochs=20, features="patches").fit(paths[:40], y[:40])
    assert model.score(paths[40:], y[40:]) == 1
    assert (model.predict_proba([str(path) for path in paths]) == model.predict_proba(paths)).all()
    assert (
        small(epochs=20, features="patches").fit([str(path) for path in paths], y).score(paths, y)
        > 0.9
    )
    with pytest.raises(
        ValueError, match="Expected paths of picture files, found no file .*gone.png"
    ):
        model.predict([tmp_path / "gone.png"])


def test_images(tmp_path: Path) -> None:
    images = get_dataset("digits").train
    x, y = images.x.numpy(), images.y.numpy()  # uint8 (N, 1, 8, 8)
    model = small(model="cnn4", batch_size=256).fit(x, y)
    want = model.predict_proba(x[:50])
    assert model.n_features_in_ == 64 and want.shape == (50, 10)
    last = small(model="cnn4", batch_size=256).fit(x.transpose(0, 2, 3, 1), y)  # channels last
    assert (last.predict_proba(x[:50]) == want).all()
    assert (
        NoisyLabelClassifier.load(model.save(tmp_path)).predict_proba(torch.from_numpy(x[:50]))
        == want
    ).all()
    floats = small(model="cnn4", batch_size=256).fit(x / 255.0, y)
    assert np.allclose(floats.predict_proba(x[:50] / 255.0), want, atol=1e-3)
    for wrong in (x[:5] / 255.0, x[:5, :, :7]):
        with pytest.raises(ValueError, match="as in fit"):
            model.predict(wrong)
    with pytest.raises(ValueError, match="as in fit|features"):
        model.predict(x[:5].reshape(5, 64))


# Weights


def test_a_weighted_step_is_the_gradient_of_the_weighted_mean() -> None:
    weights = np.linspace(0.1, 3, 150)

    def line(lr: float, sample_weight: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        model = NoisyLabelClassifier(**LINEAR, optimizer=f"sgd:lr={lr},momentum=0").fit(
            X, Y, sample_weight
        )
        (network,) = model.predictor_.models
        return network.head.logits.weight.detach(), network.head.logits.bias.detach()  # type: ignore[union-attr, return-value]

    start = [value.double().requires_grad_() for value in line(1e-30)]
    x = torch.from_numpy((X - X.mean(0)) / X.std(0))
    losses = F.cross_entropy(F.linear(x, *start), torch.from_numpy(Y), reduction="none")
    (losses * torch.from_numpy(weights / weights.mean())).mean().backward()
    for value, before in zip(line(0.5, weights), start, strict=True):
        assert before.grad is not None
        torch.testing.assert_close(value.double(), before - 0.5 * before.grad, atol=1e-5, rtol=1e-5)


def test_weights_are_relative_and_a_weight_of_zero_is_no_row() -> None:
    generator = np.random.default_rng(0)
    weights = generator.integers(0, 3, 150).astype(float)
    p = small(method="auto").fit(X, Y, weights).predict_proba(X)
    assert (small(method="auto").fit(X, Y, 4 * weights).predict_proba(X) == p).all()
    keep = weights > 0
    assert (small(method="auto").fit(X[keep], Y[keep], weights[keep]).predict_proba(X) == p).all()
    plain = small().fit(X, Y).predict_proba(X)
    assert (small().fit(X, Y, np.full(150, 0.3)).predict_proba(X) == plain).all() and (
        plain != p
    ).any()
    held = small(validation=0.2).fit(X, Y, weights)  # its rows have their own weights, too
    assert "validation_accuracy" in held.history_[-1]


@pytest.mark.parametrize(
    "weights", [np.arange(150) - 1.0, np.ones(149), np.full(150, np.nan), np.zeros(150)]
)
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError):
        small().fit(X, Y, weights)


# Randomness


def test_seeds_decide_and_the_global_generators_stay_untouched() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    first, second, other = (small(random_state=s).fit(X, Y).predict_proba(X) for s in (1, 1, 2))
    assert (first == second).all() and (first != other).any()
    new = [
        small(random_state=np.random.default_rng(seed)).fit(X, Y).predict_proba(X)
        for seed in (3, 3, 4)
    ]
    assert (new[0] == new[1]).all() and (new[0] != new[2]).any()
    drawn = [
        small(random_state=np.random.RandomState(3)).fit(X, Y).predict_proba(X) for _ in range(2)
    ]
    assert (drawn[0] == drawn[1]).all()
    anew = [small(random_state=None).fit(X, Y).predict_proba(X) for _ in range(2)]
    assert (anew[0] != anew[1]).any()
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


# Saving


@pytest.mark.parametrize(
    "method",
    [
        "ln",
        "nal",
        "co-teaching",
        "het:samples=20",
        "mae*",
        "gp",
    ],
)
def test_pickling_and_saving_keep_every_prediction(method: str, tmp_path: Path) -> None:
    model = small(method=method, validation=0.1).fit(X, NAMES)
    p = model.predict_proba(X)
    assert (pickle.loads(pickle.dumps(model)).predict_proba(X) == p).all()
    if method == "gp":
        with pytest.raises(ValueError, match="Expected a network to save, got `gp`"):
            model.save(tmp_path)
        return
    again = NoisyLabelClassifier.load(model.save(tmp_path / "model"))
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "estimator.json",
        "weights.safetensors",
    ]
    assert (again.predict_proba(X) == p).all() and (again.predict(X) == model.predict(X)).all()
    assert again.get_params() == model.get_params() and again.method_ == method
    assert [row["train_loss"] for row in again.history_] == [
        row["train_loss"] for row in model.history_
    ]
    assert (NoisyLabelClassifier.load(again.save(tmp_path / "again")).predict_proba(X) == p).all()
    assert clone(again).fit(X, NAMES).predict_proba(X) == pytest.approx(p)


def test_classes_that_could_not_be_loaded_are_not_saved(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "2021-01-01", "2022-01-01"], dtype="datetime64[D]")[Y]
    with pytest.raises(ValueError, match="Expected strings or numbers as classes"):
        small().fit(X, days).save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def timm_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What timm would be asked to create."""
    timm, calls = ModuleType("timm"), []

    def create_model(name: str, **options: Any) -> torch.nn.Module:
        calls.append((name, options))
        model = torch.nn.Flatten()
        model.num_features = 4  # type: ignore[assignment]
        return model

    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    return calls


@pytest.mark.parametrize(
    "model",
    [
        "timm:hf-hub:stranger/bomb",
        "timm:name=hf-hub:stranger/bomb",
        "timm:https://stranger.example/bomb",
        'timm:resnet18,pretrained_cfg={"file": "/srv/bomb.pth"}',
        "timm:resnet18,checkpoint_path=/srv/bomb.pth",
    ],
)
def test_loading_refuses_models_from_hubs_and_files(
    model: str, timm_calls: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    small().fit(X, Y).save(tmp_path)
    edit(model=model)(tmp_path)
    with pytest.raises(
        ValueError, match="(?s)`save` wrote in .* a model that is built without files, got"
    ):
        NoisyLabelClassifier.load(tmp_path)
    assert timm_calls == []


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().fit(X, Y)
    folder = model.save(tmp_path)

    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("This is how pickles run code.")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, never)
    assert (NoisyLabelClassifier.load(folder).predict(X) == model.predict(X)).all()


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "estimator.json"
        said = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in said.items() if value != "gone"}))

    return change


def flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def truncate(name: str, and_say_so: bool = False) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()[:-100]
        (folder / name).write_bytes(content)
        if and_say_so:
            edit(weights=hashlib.sha256(content).hexdigest())(folder)

    return cut


def poison(folder: Path) -> None:
    """Weights that are no numbers, with their checksum."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "weights.safetensors")
    tensors["models.0.head.logits.bias"][0] = torch.nan
    save_file(tensors, folder / "weights.safetensors")
    edit(weights=hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest())(folder)


@pytest.mark.parametrize(
    "tamper, message",
    [
        (flip, "do not belong to estimator.json, or were changed"),
        (
            truncate("weights.safetensors", and_say_so=True),
            "safetensors|header|[Mm]etadata|incomplete",
        ),
        (truncate("estimator.json"), "Expecting|Unterminated|delimiter"),
        (poison, "weights that are not finite"),
        (edit(format="something"), "another format than 'noiseproof-estimator-1'"),
        (edit(model="mlp:hidden=[9]"), "size mismatch"),
        (edit(loss="eval"), "Unknown loss 'eval'"),
        (edit(classes={"dtype": "|O", "values": [["a"], ["b"], ["c"]]}), "classes of dtype"),
        (edit(attributes={}), "no 'n_features_in_'"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "No such file"),
    ],
)
def test_what_was_tampered_with_is_refused(
    tamper: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    tamper(small().fit(X, Y).save(tmp_path))
    with pytest.raises(
        ValueError, match=f"(?s)Expected an estimator that `save` wrote in .*({message})"
    ):
        NoisyLabelClassifier.load(tmp_path)
