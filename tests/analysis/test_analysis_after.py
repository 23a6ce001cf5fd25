"""After training: dissections, calibration and confusion by hand, features and boundaries of real
tiny runs.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mpmath import mp
from torch import Generator

from noiseproof.analysis import collect, to_matplotlib
from noiseproof.analysis.after import calibration, cost, features, predictions
from noiseproof.analysis.after.predictions import Predictions
from noiseproof.analysis.figures import Figure, MissingFigure
from noiseproof.analysis.runs import RunFolder, open_run
from noiseproof.data import get_dataset
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import get_strategy
from noiseproof.train import Settings, prepare, train

SHORT = Settings(epochs=3, model="mlp:hidden=[16]", optimizer="sgd:lr=0.05,momentum=0.9")
OF_PREDICTIONS = [
    "dissection",
    "label-probability",
    "confusion",
    "reliability",
    "calibration",
    "cost",
]
CIFAR_N = Path(os.environ.get("NOISEPROOF_DATA", "/none"), "cifar-n", "CIFAR-10_human.pt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    for name in ("ce", "selc:start=1", "sln-mo-lc:start=1"):
        train(task, name, SHORT, out=folder / name.partition(":")[0])
    return {name: open_run(folder / name) for name in ("ce", "selc", "sln-mo-lc")}


@pytest.fixture(scope="module")
def moons(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("moons")
    task = prepare(get_dataset("two-moons:n=200"), "symmetric:rate=0.2")
    train(task, "ce", Settings(epochs=3, model="mlp:hidden=[]"), out=folder)
    return open_run(folder)


def probabilities(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), rows)


# Which labels a model believes


@pytest.mark.parametrize("size", [1, 7, 20, 64, None])
def test_dissection_counts_as_a_loop_does(size: int | None) -> None:
    rng = np.random.default_rng(0)
    given, predicted, clean = rng.integers(0, 3, (3, 64))
    clean[::9] = -1  # no class: label and prediction are both wrong
    losses = rng.integers(0, 10, 64) / 10  # many ties
    table = predictions.dissection(given, predicted, losses, clean, size=size)
    size = size or 2  # 64 samples into at most 50 intervals
    order = sorted(range(64), key=lambda i: losses[i])  # stable
    expected = {}
    for start in range(0, 64, size):
        for i in order[start : start + size]:
            label, prediction = (
                "right" if v[i] == clean[i] else "wrong" for v in (given, predicted)
            )
            key = (start + min(size, 64 - start) / 2, f"label {label}, prediction {prediction}")
            expected[key] = expected.get(key, 0) + 1
    result = {
        (r["rank"], r["case"]): r["samples"] for r in table.to_dict("records") if r["samples"]
    }
    assert result == expected
    assert table["rank"].is_monotonic_increasing and len(table) == 4 * math.ceil(64 / size)


def test_density_of_label_probabilities() -> None:
    p = probabilities(1000, 4)
    labels, clean = np.random.default_rng(1).integers(0, 4, (2, 1000))
    table = predictions.label_probability(labels, p, clean)
    for name, member in (("right", labels == clean), ("wrong", labels != clean)):
        rows = table[table["labels"] == name]
        p_y = [p[i, labels[i]] for i in np.flatnonzero(member)]
        assert rows["samples"].tolist() == [
            sum(math.floor(v * 50) == b for v in p_y) for b in range(50)
        ]
        assert rows["density"].sum() / 50 == pytest.approx(1)
    everything = predictions.label_probability(labels, p)
    assert everything["samples"].tolist() == table.groupby("probability")["samples"].sum().tolist()


def test_confusion_figure_shows_labels_given_once_and_corrected_ones() -> None:
    clean, given = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    p = np.eye(2)[[0, 1, 1, 1]]
    two = {"ce": Predictions(given, p, clean), "nal": Predictions(given, p, clean, corrected=clean)}
    figure = predictions.confusion_figure(two)
    assert isinstance(figure, Figure)
    assert figure.data["labels"].unique().tolist() == [
        "given (75.0% right)",
        "predicted, ce (75.0% right)",
        "corrected, nal (100.0% right)",
    ]
    other = predictions.confusion_figure({**two, "ln": Predictions(clean, p, clean)})
    assert isinstance(other, Figure) and "given to ln (100.0% right)" in set(other.data["labels"])


# How sure it is


def test_calibration_of_a_made_up_model() -> None:
    # Six predictions 90 % sure, half of them right; four 60 % sure, all right.
    p = np.array([[0.9, 0.1]] * 6 + [[0.6, 0.4]] * 4)
    labels = np.array([0, 0, 0, 1, 1, 1] + [0] * 4)
    result = calibration.calibration(labels, p)
    assert result.ece == pytest.approx(0.6 * 0.4 + 0.4 * 0.4)
    with mp.workdps(30):
        nll = -(3 * mp.log("0.9") + 3 * mp.log("0.1") + 4 * mp.log("0.6")) / 10
    assert result.nll == pytest.approx(float(nll), rel=1e-14)
    assert result.brier == pytest.approx((3 * 2 * 0.1**2 + 3 * 2 * 0.9**2 + 4 * 2 * 0.4**2) / 10)
    assert (result.accuracy, result.confidence) == (pytest.approx(0.7), pytest.approx(0.78))


def test_ece_as_a_loop_over_bins_computes_it() -> None:
    p = probabilities(500, 3)
    labels = np.random.default_rng(2).integers(0, 3, 500)
    total = 0.0
    for b in range(15):
        member = [i for i in range(500) if b / 15 < p[i].max() <= (b + 1) / 15]
        if member:
            accuracy = sum(p[i].argmax() == labels[i] for i in member) / len(member)
            total += (
                len(member) / 500 * abs(accuracy - sum(p[i].max() for i in member) / len(member))
            )
    assert calibration.calibration(labels, p).ece == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("labels", "p", "message"),
    [
        ([0, 1], [[0.5, 0.5]], "of the same rows"),
        ([2], [[0.5, 0.5]], "labels in 0 … 1"),
        ([0], [[2.0, -1.0]], "sum to one.* Apply softmax"),
        ([0.5], [[0.5, 0.5]], "labels in 0 … 1"),
        ([], np.zeros((0, 2)), "at least one"),
    ],
)
def test_invalid_predictions_are_refused(
    labels: list[float], p: list[list[float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        calibration.calibration(labels, p)


@pytest.mark.parametrize(
    ("labels", "clean", "message"),
    [
        ([0, -1], [0, 1], "Expected labels in 0 … 1, got int64 from -1 to 0"),
        ([0, 5], [0, 1], "Expected labels in 0 … 1, got int64 from 0 to 5"),
        ([0, 1], [0, 2], "Expected clean labels in -1 … 1, got int64 from 0 to 2"),
        ([0, 1], [0, -2], "Expected clean labels in -1 … 1, got int64 from -2 to 0"),
        ([0.0, 1.0], [0, 1], "Expected labels in 0 … 1, got float64"),
        (
            [0, 1],
            [0],
            (
                r"Expected labels and clean \(N,\) of the same rows, at least one, got \(2,\) and"
                r" \(1,\)"
            ),
        ),
        ([], [], r"at least one, got \(0,\) and \(0,\)"),
    ],
)
def test_invalid_labels_are_refused(labels: list[float], clean: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predictions.confusion(labels, clean, ["a", "b"])


# Several annotators


def test_annotator_nll_is_the_mean_of_means() -> None:
    p = probabilities(40, 5)
    votes = np.random.default_rng(3).integers(-1, 5, (40, 3))
    votes[:, 0] = np.abs(votes[:, 0])
    means = []
    for i in range(40):
        given = [v for v in votes[i] if v >= 0]
        means.append(sum(-math.log(p[i, v]) for v in given) / len(given))
    assert calibration.annotator_nll(votes, p) == pytest.approx(sum(means) / 40, rel=1e-13)
    with pytest.raises(ValueError, match="row 1 has none"):
        calibration.annotator_nll([[0], [-1]], [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.skipif(
    not CIFAR_N.is_file(), reason="CIFAR-10N's file is not in $NOISEPROOF_DATA/cifar-n"
)
def test_annotators_of_cifar10n() -> None:
    from noiseproof.noise.human import read_columns

    clean = read_columns(CIFAR_N)["clean_label"]
    votes = predictions.cifar10n_annotations(clean, CIFAR_N.parent)
    assert votes.shape == (50_000, 3)
    wrong = (votes != np.asarray(clean)[:, None]).mean(0)
    assert wrong == pytest.approx([0.1723, 0.1812, 0.1764], abs=1e-4)
    assert calibration.annotator_nll(votes, np.full((50_000, 10), 0.1)) == pytest.approx(
        math.log(10)
    )
    sure = np.full((50_000, 10), 0.2 / 9)
    sure[np.arange(50_000), clean] = 0.8
    r = wrong.mean()
    assert calibration.annotator_nll(votes, sure) == pytest.approx(
        -(1 - r) * math.log(0.8) - r * math.log(0.2 / 9), rel=1e-12
    )


# What it cost, and what hyperparameters did


def test_sensitivity_is_mean_and_deviation_over_seeds() -> None:
    runs = pd.DataFrame(
        {
            "tau": [1, 1, 2, 2],
            "lam": [0.1, 0.1, 0.1, 0.5],
            "seed": [0, 1, 0, 0],
            "test_accuracy": [0.5, 0.7, 0.8, 0.9],
        }
    )
    table = cost.sensitivity(runs, ["tau", "lam"])
    assert table[["tau", "lam", "runs"]].values.tolist() == [[1, 0.1, 2], [2, 0.1, 1], [2, 0.5, 1]]
    assert table["mean"].tolist() == pytest.approx([0.6, 0.8, 0.9])
    assert table["std"][0] == pytest.approx(math.sqrt(0.02)) and math.isnan(table["std"][1])
    figure = cost.sensitivity_figure(
        {"tau, lam": runs.assign(method="ln"), "tau": runs.assign(method="ln")}
    )
    assert [layer.kind for layer in figure.layers] == ["line", "heat"]
    heat, band = (rows for _, rows in figure.data.groupby("parameters", sort=False))
    assert set(heat["parameters"]) == {"ln: tau, lam"} and heat["first"].tolist() == ["1", "2", "2"]
    assert heat["accuracy"].isna().all() and band["mean"].isna().all()
    assert band["value"].tolist() == [1, 2]
    assert band["low"].tolist() == pytest.approx([0.6 - math.sqrt(0.02), 0.85 - math.sqrt(0.005)])
    assert [ax.get_title() for ax in to_matplotlib(figure).axes[:2]] == ["ln: tau, lam", "tau"]


def test_which_parameters_vary() -> None:
    def varied(*methods: str) -> dict[str, Any]:
        return cost.varied(methods, methods).to_dict("list")

    assert varied("gce:q=0.3", "gce:q=0.7") == {"q": [0.3, 0.7]}
    assert varied("gce:q=0.3", "gce:q=0.3") == varied("mine", "mine") == {}
    assert varied("ce × momentum:alpha=0.9", "ce × momentum:alpha=0.99") == {"alpha": [0.9, 0.99]}
    assert varied("nce + mae:scale=1", "nce + 2*mae:scale=1") == {"factor": [1.0, 2.0]}
    assert varied("nal:floor=0 × targets:floor=0", "nal:floor=1 × targets:floor=1") == {
        "floor": [0, 1]
    }
    assert list(varied("nal:floor=0 × targets:floor=2", "nal:floor=1 × targets:floor=3")) == [
        "floor",
        "targets floor",
    ]
    assert varied("ce × sln:max_norm=none", "ce × sln:max_norm=2") == {"max_norm": ["none", "2"]}
    of_data = [
        "cr:beta=1,prior=[0.5,0.5]",
        "cr:beta=1,prior=[0.4,0.6]",
        "cr:beta=2,prior=[0.5,0.5]",
    ]
    sums = ["nce + mae:scale=1", "2.0*nce + mae:scale=1"]
    assert list(cost.varied(sums, ["nce + mae:scale=1", "2*nce + mae:scale=1"])) == ["factor"]
    # the prior follows from the labels of each seed
    table = cost.varied(of_data, ["cr", "cr", "cr:beta=2"])
    assert table.to_dict("list") == {"beta": [1, 1, 2]}
    assert varied("ce:t=none × sln:t=none", "ce:t=2 × sln:t=2") == {"t": ["none", "2"]}
    assert list(varied("ln:tau=2,lam=1", "ln:tau=4,lam=1", "ln:tau=2,lam=3")) == ["tau", "lam"]


# Runs


def test_predictions_of_a_run_are_those_that_its_record_counted(runs: dict[str, RunFolder]) -> None:
    for run in runs.values():
        result = predictions.predict(run, "test")
        last = run.rows.iloc[-1]
        assert (result.pred_probs.argmax(1) == result.labels).mean() == pytest.approx(
            last["test_accuracy"]
        )
        assert predictions.label_losses(result.labels, result.pred_probs).mean() == pytest.approx(
            last["test_loss"], rel=1e-5
        )
        of_training = predictions.predict(run, "train")
        assert np.array_equal(of_training.labels, run.given) and np.array_equal(
            of_training.clean, run.clean
        )
        assert len(predictions.predict(run, "validation").labels) == 144


def test_corrected_labels_are_the_targets_that_a_method_ended_with(
    runs: dict[str, RunFolder],
) -> None:
    assert predictions.predict(runs["ce"]).corrected is None
    memory = runs["selc"].result().strategies[0]
    assert np.array_equal(
        predictions.predict(runs["selc"]).corrected, memory.table[:, 0].argmax(1).numpy()
    )
    corrected = predictions.predict(runs["sln-mo-lc"]).corrected
    strategy = next(s for s in runs["sln-mo-lc"].result().strategies if hasattr(s, "kept"))
    given = torch.tensor(runs["sln-mo-lc"].given)
    by_hand = torch.where(
        (given == strategy.predicted) | (strategy.kept < 0.5), strategy.predicted, given
    )
    assert np.array_equal(corrected, by_hand.numpy())
    assert (corrected != runs["sln-mo-lc"].given).any()


def test_corrected_labels_of_soft_corrections() -> None:
    strategy = get_strategy("label-correction:start=0,soft=true")
    given = torch.tensor([0, 1])
    assert predictions.corrected_labels([strategy], given, 2) is None  # nothing corrected yet
    strategy.kept = torch.tensor([0.3, 0.3])
    strategy.predicted = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    # 0.3 + 0.7 · 0.1 < 0.7 · 0.9, 0.3 + 0.7 · 0.2 < 0.7 · 0.8
    assert predictions.corrected_labels([strategy], given, 2).tolist() == [1, 0]
    strategy.kept = torch.tensor([0.3, 0.5])
    assert predictions.corrected_labels([strategy], given, 2).tolist() == [1, 1]


def check_figure(figure: Figure) -> None:
    for layer in figure.layers:
        used = (
            layer.x,
            layer.y,
            layer.z,
            layer.color,
            layer.low,
            layer.high,
            layer.dash,
            figure.panel,
        )
        assert {name for name in used if name} <= set(figure.data), figure.name
    assert len(figure.data) and figure.reading.endswith(".") and figure.stage == "After training"


def test_runs_of_one_method_show_what_its_parameter_did(tmp_path: Path) -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    for q in ("0.3", "0.7"):
        train(task, f"gce:q={q}", SHORT, out=tmp_path / q)
    runs = {q: open_run(tmp_path / q) for q in ("0.3", "0.7")}
    (figure,) = collect(runs, only=["sensitivity"])
    assert isinstance(figure, Figure) and set(figure.data["parameters"]) == {"q"}
    assert figure.data["value"].tolist() == [0.3, 0.7]
    train(
        prepare(get_dataset("digits"), "symmetric:rate=0.2"),
        "gce:q=0.5",
        SHORT,
        out=tmp_path / "other",
    )
    train(task, "gce:q=0.5", replace(SHORT, epochs=SHORT.epochs + 1), out=tmp_path / "longer")
    for other in ("other", "longer"):
        (mixed,) = collect(
            {q: open_run(tmp_path / q) for q in ("0.3", other)}, only=["sensitivity"]
        )
        # what other noise or more epochs did is not what q did
        assert isinstance(mixed, MissingFigure)
        assert mixed.needs.startswith(
            "runs of one method and data, with test rows, that differ in one or two parameters"
        )


def test_a_run_out_of_reach_is_left_out_with_the_reason(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    data = get_dataset("digits")
    task = prepare(type(data)("mine", data.classes, data.train, data.test), "symmetric:rate=0.4")
    train(task, "ce", SHORT, out=tmp_path)
    own = open_run(tmp_path)
    both = collect({"ce": runs["ce"], "mine": own}, only=OF_PREDICTIONS)
    dissected = both[0]
    assert isinstance(dissected, Figure) and "Without mine: " in dissected.reading
    assert dissected.data["method"].unique().tolist() == ["ce"]
    alone = {figure.name: figure for figure in collect({"mine": own}, only=OF_PREDICTIONS)}
    assert (
        isinstance(alone["reliability"], MissingFigure)
        and "open_run(folder, task=…)" in alone["reliability"].needs
    )
    assert isinstance(alone["dissection"], MissingFigure) and isinstance(alone["cost"], Figure)
    assert alone["dissection"].needs == alone["reliability"].needs  # not its truth, which is known


# Features


def test_penultimate_features_are_what_the_head_sees() -> None:
    model = build_classifier(
        "cnn4", "linear", input_shape=(1, 8, 8), num_outputs=3, generator=Generator()
    )
    x = torch.randn(10, 1, 8, 8, generator=Generator())
    seen: list[torch.Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model.eval()(x)
    hook.remove()
    model.train()
    result = features.penultimate_features(model, x)
    torch.testing.assert_close(result, seen[0])
    # no statistics were changed
    assert model.training and not model.backbone.features[1].running_mean.any()


def test_tsne_keeps_clouds_together_and_is_the_same_twice() -> None:
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1, 2], 40)
    cloud = rng.normal(size=(120, 60)) + 20 * np.eye(60)[label]
    state = np.random.get_state()[1].copy()
    placed = features.tsne(cloud)
    assert np.array_equal(placed, features.tsne(cloud))
    assert np.array_equal(state, np.random.get_state()[1])
    distance = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    nearest = np.argsort(distance, 1)[:, 1]
    assert (label[nearest] == label).all()


# In the plane


def test_decision_boundary_of_a_linear_model_is_a_sigmoid(moons: RunFolder) -> None:
    table = features.decision_boundary(moons)
    grid, points = table[table["probability"].notna()], table[table["given"].notna()]
    assert (len(grid), len(points)) == (3600, 200)
    x = moons.task.train.x.double().numpy()
    linear = moons.models()[0].head.logits
    w, b = (v.detach().double().numpy() for v in (linear.weight, linear.bias))
    at = (grid[["x1", "x2"]].to_numpy() - x.mean(0)) / x.std(0)
    z = at @ (w[1] - w[0]) + b[1] - b[0]
    assert grid["probability"].to_numpy() == pytest.approx(1 / (1 + np.exp(-z)), abs=1e-5)
    assert points[["x1", "x2"]].to_numpy() == pytest.approx(x)
    assert points["given"].tolist() == [moons.classes[v] for v in moons.given]
    assert (points["label"] == "wrong").mean() == pytest.approx(moons.rate)
    low, high = grid[["x1", "x2"]].min(), grid[["x1", "x2"]].max()
    assert (low < x.min(0)).all() and (high > x.max(0)).all()
    figure = features.boundary_figure({"ce": table})
    assert isinstance(figure, Figure)
    check_figure(figure)


def test_only_points_in_the_plane_have_a_boundary(runs: dict[str, RunFolder]) -> None:
    with pytest.raises(
        ValueError, match="two classes of points in the plane, got 10 classes of digits"
    ):
        features.decision_boundary(runs["ce"])
    missing = features.boundary_figure({})
    assert isinstance(missing, MissingFigure) and "two-moons" in missing.needs
