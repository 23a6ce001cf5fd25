"""Early stopping and estimated transition matrices, against references and through whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handmade_run import check_same, without_seconds
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core.messages import counted
from noiseproof.data import get_dataset
from noiseproof.losses import Loss, get_loss
from noiseproof.losses.correction import Backward, Forward
from noiseproof.strategies import Run, Strategy
from noiseproof.strategies.early_stopping import EarlyStopping
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.strategies.transition import EstimateTransition, invertible
from noiseproof.train import Interrupted, Method, Result, Settings, Task, prepare, train

K = 10
SETTINGS = Settings(epochs=4, model="mlp:hidden=[16]", batch_size=300, schedule="constant")


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)


def fit(
    task: Task,
    loss: str | Loss,
    *strategies: Strategy,
    settings: Settings = SETTINGS,
    **options: Any,
) -> Result:
    if isinstance(loss, str):
        loss = get_loss(loss, T=torch.eye(K)) if loss in ("forward", "backward") else get_loss(loss)
    fabric = Fabric(accelerator="cpu", devices=1)
    return train(task, Method(loss, strategies=strategies), settings, fabric=fabric, **options)


# --- Early stopping ------------------------------------------------------------------------------
class Stub:
    """A run that only notes why it ends."""

    def __init__(self, *strategies: Strategy) -> None:
        self.stopped: str | None = None
        self.strategies, self.epoch = strategies, 0

    def stop(self, reason: str) -> None:
        self.stopped = reason


@pytest.mark.parametrize(
    "accuracies, patience, ends",
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 1, None),
        ([0.5, 0.4, 0.6, 0.6, 0.5, 0.7], 2, 4),  # an equal one is no better
        ([0.5, 0.4, 0.3, 0.2], 3, 3),
        ([0.5, 0.4, 0.3, 0.6, 0.5, 0.5], 3, None),  # a better one starts the count anew
        ([0.5, 0.5], 1, 1),
    ],
)
def test_patience(accuracies: list[float], patience: int, ends: int | None) -> None:
    strategy, run = EarlyStopping(patience), Stub()
    stopped = []
    for accuracy in accuracies:
        strategy.end_epoch({"validation_accuracy": accuracy}, run)  # type: ignore[arg-type]
        stopped.append(run.stopped is not None)
        again = EarlyStopping(patience)
        again.load_state_dict(strategy.state_dict())
        strategy = again
    assert stopped == [ends is not None and epoch >= ends for epoch in range(len(accuracies))]
    if ends is not None:
        assert f"{max(accuracies[: ends + 1]):.4f} in {counted(patience, 'epoch')}" in str(
            run.stopped
        )


def test_patience_begins_anew_where_the_training_does() -> None:
    """The best accuracy before a restart is one of weights that are no more."""
    accuracies = [0.9, 0.8, 0.1, 0.2, 0.3, 0.3, 0.3]
    for restart, ends in ((True, 6), (False, 2)):
        run, strategy = Stub(EstimateTransition(2, restart=restart)), EarlyStopping(2)
        stopped = []
        for run.epoch, accuracy in enumerate(accuracies):
            strategy.end_epoch({"validation_accuracy": accuracy}, run)  # type: ignore[arg-type]
            stopped.append(run.stopped is not None)
        assert stopped.index(True) == ends


def test_a_run_stops_early_and_resumes_to_the_same_end(task: Task, tmp_path: Path) -> None:
    settings = Settings(epochs=60, model="mlp:hidden=[64]", batch_size=300)
    whole = fit(task, "ce", EarlyStopping(2), settings=settings)
    accuracies = [row["validation_accuracy"] for row in whole.metrics]
    best = int(np.argmax(accuracies))
    assert len(whole.metrics) == best + 1 + 2 < 60 and "noisy validation accuracy" in str(
        whole.stopped
    )
    with pytest.raises(Interrupted):
        fit(
            task,
            "ce",
            EarlyStopping(2),
            settings=settings,
            out=tmp_path,
            max_steps=5 * (len(whole.metrics) - 1) + 2,
        )
    for _ in range(2):  # the second time it stays stopped
        check_same(
            fit(task, "ce", EarlyStopping(2), settings=settings, out=tmp_path, resume=True), whole
        )


def test_early_stopping_needs_held_out_labels() -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    with pytest.raises(
        ValueError, match="noisy labels held out for early-stopping, got none. Hold out"
    ):
        fit(task, "ce", EarlyStopping())
    with pytest.raises(ValueError, match="`patience` to be an integer of at least 1"):
        EarlyStopping(0)


# --- An estimated transition matrix --------------------------------------------------------------
def anchors(probs: np.ndarray, percentile: float | None) -> np.ndarray:
    """Patrini et al. 2017, Eq. 12: row i is the prediction where that of class i is largest,
    outliers left out.
    """
    T = np.empty((K, K))
    for i in range(K):
        column = probs[:, i].copy()
        if percentile is not None:
            column[column >= np.percentile(column, percentile, method="higher")] = 0
        T[i] = probs[np.argmax(column)]
    return T / T.sum(1, keepdims=True)


def predicted(result: Result) -> np.ndarray:
    run = result.run
    x = run.prepare(torch.as_tensor(run.data.x), run.normalise)
    with torch.no_grad():
        return result.models[0].eval()(x).logits.double().softmax(1).numpy()


@pytest.mark.parametrize("percentile", [97.0, None])
def test_estimate_is_that_of_the_warmed_up_model(task: Task, percentile: float | None) -> None:
    warm = fit(task, "forward", settings=Settings(**{**SETTINGS.as_dict(), "epochs": 3}))
    result = fit(task, "forward", EstimateTransition(warmup=3, percentile=percentile))
    loss = result.run.loss
    assert isinstance(loss, Forward)
    np.testing.assert_allclose(loss.T, anchors(predicted(warm), percentile), atol=1e-6)
    assert without_seconds(result)[:3] == without_seconds(warm)  # up to then, nothing is corrected
    assert result.metrics[3]["train_loss"] != fit(task, "forward").metrics[3]["train_loss"]


def test_a_class_that_few_rows_are_predicted_of_is_close_to_the_identity(task: Task) -> None:
    warm = fit(task, "forward", settings=Settings(**{**SETTINGS.as_dict(), "epochs": 3}))
    loss = fit(task, "forward", EstimateTransition(warmup=3, right=20)).run.loss
    assert isinstance(loss, Forward)
    p, given = predicted(warm), warm.run.data.given.numpy()
    want = anchors(p, 97.0)
    for k in range(K):
        rows = sum(1 for row, y in zip(p, given, strict=True) if y == k == row.argmax())
        want[k] = (rows * want[k] + 20 * np.eye(K)[k]) / (rows + 20)
    np.testing.assert_allclose(loss.T, want, atol=1e-6)


def test_warm_up_is_cross_entropy_whatever_matrix_the_loss_came_with(task: Task) -> None:
    pairs = 0.7 * torch.eye(K) + 0.3 * torch.eye(K).roll(1, 1)
    plain = fit(task, "ce")
    for name in ("forward", "backward"):
        result = fit(task, get_loss(name, T=pairs), EstimateTransition(warmup=3))
        for row, want in zip(result.metrics[:3], plain.metrics, strict=False):
            assert row["train_loss"] == pytest.approx(want["train_loss"], rel=1e-4)
            assert row["test_accuracy"] == pytest.approx(want["test_accuracy"], abs=0.01)


def test_a_good_model_estimates_the_true_matrix(task: Task) -> None:
    settings = Settings(epochs=30, model="mlp:hidden=[64]")
    result = fit(task, "forward", EstimateTransition(warmup=15), settings=settings)
    T = result.run.loss.T
    assert isinstance(T, Tensor)
    truth = 0.6 * torch.eye(K) + 0.4 / 9 * (1 - torch.eye(K))
    assert float((T - truth).abs().mean()) < 0.03  # the identity is off by 0.08
    assert result.last["test_accuracy"] > 0.9


class Watch(Strategy):
    """Notes weights and optimisers as an epoch starts."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Tensor], list[Tensor], int]] = []

    def start_epoch(self, run: Run) -> None:
        weights, averages = (
            [value.clone() for model in models for value in model.state_dict().values()]
            for models in ([model.plain for model in run.models], run.evaluated)
        )
        self.seen.append(
            (weights, averages, sum(len(model.optimizer.state) for model in run.models))
        )

    def __deepcopy__(self, memo: Any) -> Watch:
        return self


@pytest.mark.parametrize("restart", [False, True])
def test_restart(task: Task, restart: bool) -> None:
    watch = Watch()
    fit(task, "forward", MomentumModel(0.9), EstimateTransition(warmup=2, restart=restart), watch)
    first, _, second, third = watch.seen

    def equal(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert equal(second[0], first[0]) == equal(second[1], first[0]) == restart
    assert [n for _, _, n in (first, second, third)] == [
        0,
        0 if restart else len(first[0]),
        len(first[0]),
    ]
    assert not equal(third[0], first[0])


RUNS = [
    ("forward", EstimateTransition(warmup=1)),
    ("forward", EstimateTransition(warmup=2, percentile=None, restart=True)),
    ("backward", EstimateTransition(warmup=2)),
    ("backward", EstimateTransition(warmup=1, restart=True)),
]


# --- What the losses do with it ------------------------------------------------------------------
def test_condition_numbers_of_real_noise() -> None:
    """What the docstring says of noise that can be learned from: symmetric of 80 %, pairs of 45 %,
    ten classes.
    """
    eye = torch.eye(K, dtype=torch.float64)
    symmetric = 0.2 * eye + 0.8 / 9 * (1 - eye)
    pairs = 0.55 * eye + 0.45 * eye.roll(1, 1)
    for T, want in ((symmetric, 9.0), (pairs, 10.0)):
        assert float(torch.linalg.cond(T)) == pytest.approx(want)
        assert torch.equal(invertible(T), T)


def test_a_singular_estimate_moves_towards_the_identity() -> None:
    probs = np.random.default_rng(0).dirichlet(np.ones(K), K)
    probs[3] = probs[7]  # two classes with one anchor
    T = torch.from_numpy(probs)
    with pytest.raises(ValueError, match="invertible"):
        Backward(T)
    found = invertible(T)
    share = float(((found - T) / (torch.eye(K) - T)).mean())
    assert share == pytest.approx(round(share, 2)) and 0 < share < 0.2
    torch.testing.assert_close(found, (1 - share) * T + share * torch.eye(K))
    less = (1 - share + 0.01) * T + (share - 0.01) * torch.eye(K)
    assert np.linalg.cond(found.numpy()) <= 100 < np.linalg.cond(less.numpy())
    Backward(found)


def test_a_model_that_knows_nothing_leaves_backward_invertible(task: Task) -> None:
    settings = Settings(
        epochs=2, model="mlp:hidden=[4]", batch_size="full", optimizer="sgd:lr=1e-6"
    )
    result = fit(task, "backward", EstimateTransition(1), settings=settings)
    loss = result.run.loss
    assert isinstance(loss, Backward)
    assert np.linalg.cond(loss.T.numpy()) <= 100
    np.testing.assert_allclose(loss.inverse @ loss.T, np.eye(K), atol=1e-12)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_set_transition(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, K, generator=generator)
    target = torch.arange(8)
    first = torch.eye(K, dtype=torch.float64)
    T = 0.7 * first + 0.3 * first.roll(1, 1)
    loss = get_loss(name, T=first)
    assert isinstance(loss, Forward | Backward)
    loss.set_transition(T)
    want = get_loss(name, T=T)
    assert torch.equal(loss(logits, target), want(logits, target)) and str(loss) == str(want)
    # whoever gave it keeps it as it was
    assert torch.equal(first, torch.eye(K, dtype=torch.float64))
    other = get_loss(name, T=first)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(logits, target), want(logits, target))
    with pytest.raises(ValueError, match="`T` of 10 classes, got 3"):
        loss.set_transition(torch.eye(3))
    with pytest.raises(ValueError, match="rows of `T` to sum to one"):
        loss.set_transition(2 * T)
    if name == "backward":
        with pytest.raises(ValueError, match="invertible"):
            loss.set_transition(torch.full((K, K), 1 / K))
    assert torch.equal(loss(logits, target), want(logits, target))  # a refused one changes nothing
