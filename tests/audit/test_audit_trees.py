"""Trees judge tables out of fold, with gaps and categories; predictions are joined by what fits the
labels best.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from noiseproof.audit import audit, read_rows
from noiseproof.core.cluster import fixed_threads
from noiseproof.data.labelsets import Labels
from noiseproof.data.rows import Rows
from noiseproof.data.tables import FeatureTable
from noiseproof.judge.evidence.folds import make_folds
from noiseproof.judge.evidence.gather import default_model
from noiseproof.judge.evidence.join import FLOOR, PRIOR, join, mixture_weights
from noiseproof.judge.evidence.trees import TREES, cross_fit, fit_trees
from noiseproof.models.trees import FAST_ROUNDS, TreeClassifier, boosting_rounds

Array = NDArray[Any]


def shops(n: int = 400, seed: int = 0, rate: float = 0.1) -> tuple[pd.DataFrame, Array]:
    """A table whose label depends on a category and on a number with gaps, and which labels are
    wrong.
    """
    rng = np.random.default_rng(seed)
    town = rng.choice(["Aix", "Bonn", "Cork", "Derby"], n)
    area = rng.normal(size=n)
    true = np.where(np.isin(town, ["Aix", "Cork"]) == (area > 0), "open", "shut")
    wrong = rng.random(n) < rate
    given = np.where(wrong, np.where(true == "open", "shut", "open"), true)
    frame = pd.DataFrame(
        {"town": town, "area": np.where(rng.random(n) < 0.05, np.nan, area), "state": given}
    )
    return frame, wrong


# --- the join -------------------------------------------------------------------------------------


def objective(p: Array, w: Array) -> float:
    return float(np.log(np.clip(p, FLOOR, 1) @ w).sum() + PRIOR * np.log(w).sum())


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_the_best_of_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.beta(*rng.uniform(0.3, 3, (2, 3)), size=(60, 3))
    weights = mixture_weights(p)
    np.testing.assert_allclose(weights.sum(), 1)
    grid = [
        np.array([a, b, 40 - a - b]) / 40 for a, b in product(range(1, 39), repeat=2) if a + b < 40
    ]
    best = max(grid, key=lambda w: objective(p, w))
    assert objective(p, weights) >= objective(p, best) - 1e-3
    assert np.abs(weights - best).max() < 0.06


def test_a_model_that_guesses_has_no_weight_and_a_twin_shares_it() -> None:
    rng = np.random.default_rng(0)
    given = rng.integers(3, size=900)
    good = np.full((900, 3), 0.1, np.float32)
    good[np.arange(900), given] = 0.8
    guess = np.full((900, 3), 1 / 3, np.float32)
    probs, weights = join(given, {"good": good, "twin": good.copy(), "guess": guess})
    assert weights["guess"] < 0.01 and weights["good"] == pytest.approx(weights["twin"])
    np.testing.assert_allclose(probs, good, atol=0.01)


# --- trees ----------------------------------------------------------------------------------------


def test_boosting_is_scikit_learns_on_the_table_of_each_fold() -> None:
    frame, _ = shops()
    data = read_rows(frame, label="state")
    table = data.table
    assert table is not None and table.num_categories == (0, 4)
    np.testing.assert_array_equal(np.isnan(table.values[:, 0]), frame["area"].isna())
    folds = make_folds(data.given, folds=3)
    probs = fit_trees(table, data.given, 2, folds, ["boosting"])["boosting"]
    x = np.column_stack([frame["area"].to_numpy(np.float32), pd.Categorical(frame["town"]).codes])
    model = TreeClassifier("boosting", (0, 4)).fit(x, data.given).model_
    assert isinstance(model, HistGradientBoostingClassifier) and model.is_categorical_.tolist() == [
        False,
        True,
    ]
    for i in range(3):
        direct = HistGradientBoostingClassifier(**model.get_params()).fit(
            x[folds != i], data.given[folds != i]
        )
        np.testing.assert_allclose(
            probs[folds == i], direct.predict_proba(x[folds == i]), atol=1e-6
        )


def test_more_categories_than_histograms_hold_are_merged_the_rarest_first() -> None:
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.repeat(np.arange(254), 60), np.arange(254, 300)]).astype(np.float32)
    y = np.where(codes < 254, codes % 2, 1).astype(np.int64)
    order = rng.permutation(len(codes))
    x, y = codes[order, None], y[order]
    model = TreeClassifier("boosting", (300,)).fit(x, y)
    assert set(model.merges_[0][254:]) == {254} and sorted(model.merges_[0][:254]) == list(
        range(254)
    )
    assert (model.predict(x) == y).mean() > 0.9
    assert model.predict_proba([[np.nan], [299.0], [350.0]]).shape == (3, 2)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "catboost"])
def test_trees_of_other_packages_use_categories_and_gaps(kind: Any) -> None:
    pytest.importorskip(kind)
    frame, wrong = shops()
    data = read_rows(frame, label="state")
    assert data.table is not None
    probs = fit_trees(data.table, data.given, 2, make_folds(data.given, folds=4), [kind])[kind]
    assert ((probs.argmax(1) != data.given) == wrong).mean() > 0.9
    # As codes, Aix and Cork are not next to each other: the same trees without categories need more
    # splits.
    model = TreeClassifier(kind, data.table.num_categories).fit(data.table.values, data.given)
    again = TreeClassifier(kind, data.table.num_categories).fit(data.table.values, data.given)
    np.testing.assert_array_equal(
        model.predict_proba(data.table.values), again.predict_proba(data.table.values)
    )


@pytest.mark.parametrize(
    "kind, name", [("lightgbm", "n_jobs"), ("xgboost", "n_jobs"), ("catboost", "thread_count")]
)
def test_trees_of_other_packages_use_the_threads_of_the_audit(kind: Any, name: str) -> None:
    pytest.importorskip(kind, exc_type=ImportError)
    x = np.random.default_rng(0).normal(size=(21_000, 1))
    with fixed_threads(1):
        model = TreeClassifier(kind, (0,)).fit(x, x[:, 0] > 0).model_
    assert model.get_params()[name] == 1


def test_any_seed_is_one_of_trees() -> None:
    frame, _ = shops(60)
    table = read_rows(frame, label="state").table
    labels = (frame["state"] == "open").to_numpy().astype(np.int64)
    assert table is not None
    assert {*fit_trees(table, labels, 2, np.arange(60) % 2, TREES, seed=2**40)} == {*TREES}


def test_rounds_fall_with_rows_columns_and_classes() -> None:
    assert boosting_rounds(1000, 30, 2) == 400
    assert boosting_rounds(1000, 10, 26) < boosting_rounds(1000, 10, 10) < 400
    assert boosting_rounds(160_000, 20, 16) == 80


def test_a_column_of_many_words_goes_to_trees_alone() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(150)]
    column, noise = rng.choice(words, 6000), rng.normal(size=6000)
    frame = pd.DataFrame({"a": noise, "word": column, "name": [f"n{i}" for i in range(6000)]})
    frame["y"] = np.where(frame["word"].str[1:].astype(int) % 2 == 0, "even", "odd")
    data = read_rows(frame, label="y")
    assert data.x is not None and data.x.shape == (6000, 1)
    assert data.table is not None and data.table.num_categories == (0, 150)
    assert "Column 'word' holds 150 different words: only decision trees use it." in data.notes
    assert "Column 'name' holds 6000 different words and was left out." in data.notes
    probs = fit_trees(data.table, data.given, 2, make_folds(data.given, folds=2), ["boosting"])[
        "boosting"
    ]
    assert (probs.argmax(1) == data.given).mean() > 0.9
    with pytest.raises(
        ValueError, match="Neighbours need one of numbers, or of at most 100 different words"
    ):
        read_rows(frame[["word", "y"]], label="y")


# --- the audit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["thorough", "fast"])
def test_trees_alone_find_what_a_line_cannot(mode: Any) -> None:
    frame, wrong = shops()
    report = audit(read_rows(frame, label="state"), model="trees", mode=mode)
    issues = report.label_issues.is_issue
    assert (issues & wrong).sum() / issues.sum() > 0.8 and (
        issues & wrong
    ).sum() / wrong.sum() > 0.6
    models = {model["name"]: model["weight"] for model in report.summary()["models"]}
    assert set(models) == {*TREES, "neighbours"} and sum(models.values()) == pytest.approx(
        1, abs=1e-3
    )
    assert (
        report.config["model"] == "trees" and report.config["models"] == report.summary()["models"]
    )


def test_tables_are_judged_by_trees_and_networks_and_pictures_by_networks() -> None:
    frame, _ = shops(520)
    everything = {*TREES, "network", "linear", "neighbours"}
    for options, names in (
        ({}, everything),
        ({"mode": "fast"}, {*TREES, "neighbours"}),
        ({"mode": "fast", "model": "both"}, everything),
    ):
        report = audit(read_rows(frame, label="state"), epochs=1, **options)  # type: ignore[arg-type]
        assert {m["name"] for m in report.summary()["models"]} == names
    pixels = np.random.default_rng(0).integers(256, size=(60, 1, 8, 8), dtype=np.uint8)
    data = read_rows(pixels, labels=np.arange(60) % 2)
    assert data.table is None
    report = audit(data, epochs=1)
    assert {m["name"]: m["weight"] for m in report.summary()["models"]} == {
        "network": 0.4,
        "linear": 0.2,
        "neighbours": 0.4,
    }
    assert {m["name"] for m in audit(data, model="trees").summary()["models"]} == {
        *TREES,
        "neighbours",
    }


def test_an_estimator_in_a_pipeline_gets_the_columns_of_the_table() -> None:
    frame, wrong = shops()
    frame = frame.fillna({"area": 0.0})
    encode = make_column_transformer((OneHotEncoder(), ["town"]), (StandardScaler(), ["area"]))
    model = make_pipeline(encode, RandomForestClassifier(30, min_samples_leaf=3))
    data = read_rows(frame, label="state")
    report = audit(data, estimator=model)
    assert {m["name"] for m in report.summary()["models"]} == {"estimator", "neighbours"}
    assert report.config["estimator"] == repr(model)
    issues = report.label_issues.is_issue
    assert (issues & wrong).sum() / issues.sum() > 0.7
    folds = make_folds(data.given, seed=0, groups=None)
    assert cross_fit(model, frame[["town", "area"]], data.given, 2, folds).shape == (400, 2)


def test_any_other_estimator_gets_numbers() -> None:
    frame, _ = shops()  # words and gaps, which logistic regression does not take
    report = audit(read_rows(frame, label="state"), estimator=LogisticRegression())
    assert report.summary()["models"][0]["weight"] > 0
    both = audit(
        read_rows(frame, label="state"),
        estimator="sklearn.linear_model:LogisticRegression",
        model="trees",
    )
    assert {m["name"] for m in both.summary()["models"]} == {"estimator", *TREES, "neighbours"}
    assert both.config["estimator"] == "sklearn.linear_model:LogisticRegression"


def test_groups_are_kept_apart_from_trees() -> None:
    """Rows of one group share a number that tells their label: trees that saw the group would
    believe each label.
    """
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 10)
    labels = rng.integers(2, size=40)[group]
    frame = pd.DataFrame(
        {
            "code": rng.permutation(40)[group] + 0.5,
            "x": rng.normal(size=400),
            "g": group,
            "y": labels,
        }
    )
    report = audit(read_rows(frame, label="y", group="g"), model="trees")
    assert report.label_issues.hit_rate < 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "tree"}, "Unknown model 'tree'. Did you mean 'trees'"),
        (
            {"model": "nonsense"},
            "Unknown model 'nonsense'. There are: auto, trees, network, both, lightgbm,.* mlp",
        ),
        ({"method": "nonsense"}, "Unknown method 'nonsense'"),
        (
            {"estimator": "sklearn.svm:LinearSVC"},
            "Expected an estimator with fit and predict_proba, got LinearSVC",
        ),
    ],
)
def test_models_are_refused_before_data_is_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        audit("no such file", label="y", **options)


def test_options_of_networks_that_are_not_trained_are_noted() -> None:
    rows = read_rows(shops(60)[0], label="state")
    notes = audit(rows, mode="fast", method="gce", epochs=2).summary()["notes"]
    assert (
        "No network was trained, so `method` and `epochs` had no effect. The model both trains one."
        in notes
    )
    for options in ({"model": "network", "epochs": 2}, {"model": "trees"}):
        assert "had no effect" not in " ".join(
            audit(rows, mode="fast", **options).summary()["notes"]
        )


@pytest.mark.parametrize("mode", ["fast", "thorough"])
def test_constants_judge_no_labels(mode: Any) -> None:
    frame = pd.DataFrame({"a": 1.0, "b": "x", "y": ["p", "q"] * 30})
    with pytest.raises(ValueError, match="Expected columns that vary, got constants alone"):
        audit(frame, label="y", mode=mode)


def test_groups_of_one_class_each_are_judged_by_one_network() -> None:
    frame, _ = shops(60)
    frame["shop"] = frame["state"]
    with pytest.raises(ValueError, match="train one network on all rows: mode fast, model network"):
        audit(frame, label="state", group="shop", mode="fast")
    assert len(audit(frame, label="state", group="shop", mode="fast", model="network").data) == 60


def test_trees_of_many_rows_do_not_exclude_a_class_of_one_large_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # of which on folds of trees are thirds
    monkeypatch.setattr("noiseproof.judge.evidence.gather.MANY_ROWS", 50)
    time = np.arange(120)
    is_short = (time >= 44) & (time < 60)  # in two of five blocks of time, and in one of three
    labels = np.where(is_short, 2, time % 2)
    x = labels + 0.1 * np.random.default_rng(0).normal(size=120)
    report = audit(
        pd.DataFrame({"x": x, "t": time, "y": labels}), label="y", time="t", model="trees"
    )
    assert report.out_of_sample is not None and report.out_of_sample[is_short, 2].mean() > 0.7


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noiseproof.models.trees.find_spec", lambda name: None)
    frame, _ = shops(60)
    with pytest.raises(ModuleNotFoundError, match="pip install lightgbm"):
        audit(read_rows(frame, label="state"), model="lightgbm")
    with pytest.raises(TypeError, match="fit and predict_proba"):
        audit(read_rows(frame, label="state"), estimator=object())


def test_fast_trees_take_half_of_the_rounds_where_these_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        boosting_rounds(100_000, 50, 10) == 80
        and boosting_rounds(100_000, 50, 10, FAST_ROUNDS) == 40
    )
    assert boosting_rounds(1000, 30, 2) == boosting_rounds(1000, 30, 2, FAST_ROUNDS) == 400
    rounds: list[int] = []
    fit = HistGradientBoostingClassifier.fit
    monkeypatch.setattr(
        HistGradientBoostingClassifier,
        "fit",
        lambda *a, **k: rounds.append(a[0].max_iter) or fit(*a, **k),
    )
    monkeypatch.setattr("noiseproof.models.trees.FIT_SECONDS", 0.0)
    frame, _ = shops(200)
    for mode in ("fast", "thorough"):
        audit(read_rows(frame, label="state"), mode=mode, model="trees")
    assert rounds == [40] * 3 + [80] * 5


@pytest.mark.parametrize(
    ("rows", "columns", "classes", "expected"),
    [(1000, 30, 2, "trees"), (200_000, 20, 3, "trees"), (1_000_000, 50, 10, "network")],
)
def test_a_fast_audit_leaves_out_trees_that_take_minutes(
    rows: int, columns: int, classes: int, expected: str
) -> None:
    table = FeatureTable.of_numbers(np.broadcast_to(np.float32(0), (rows, columns)))
    names, given = tuple(map(str, range(classes))), np.zeros(rows, np.int64)
    data = Rows(Labels.of_classes(names, given), given, rows, table=table)
    assert default_model(data, "fast") == expected and default_model(data, "thorough") == "both"
