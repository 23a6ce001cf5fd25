"""Rows with several labels in the one training loop."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from noiseproof.data import Dataset, Split
from noiseproof.data.base import corrupt
from noiseproof.train import Interrupted, Settings, get_method, prepare, train
from noiseproof.train.export import Predictor

K = 3
g = torch.Generator().manual_seed(0)
X = torch.randn(120, 5, generator=g)
W = torch.randn(5, K, generator=g)
Y = (X @ W > 0.5).long()
DATA = Dataset("made", ("a", "b", "c"), Split(X[:80], Y[:80]), test=Split(X[80:], Y[80:]))
SETTINGS = Settings(
    "mlp:hidden=[8]", epochs=3, batch_size=16, optimizer="sgd:lr=0.1", schedule="constant"
)


def test_a_run_is_binary_cross_entropy_trained_by_hand() -> None:
    task = prepare(DATA)
    result = train(task, "ce", dataclasses.replace(SETTINGS, epochs=1, batch_size="full"))
    again = train(
        task,
        "ce",
        dataclasses.replace(SETTINGS, epochs=1, batch_size="full", optimizer="sgd:lr=1e-30"),
    )
    model, start = result.models[0], again.models[0]
    x = task.normalise.apply(X[:80], torch.empty(80, 0))
    loss = K * F.binary_cross_entropy_with_logits(start(x).logits, Y[:80].float())
    assert result.last["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    gradients = torch.autograd.grad(loss, list(start.parameters()))
    for trained, first, gradient in zip(
        model.parameters(), start.parameters(), gradients, strict=True
    ):
        torch.testing.assert_close(trained, first - 0.1 * gradient)


def test_metrics_count_labels_and_know_which_are_wrong() -> None:
    task = prepare(DATA, "label-flips:missing=0.3,added=0.1", seed=1, validation=0.25)
    assert task.train.clean is not None and task.train.given.shape == (60, K)
    assert task.train.rate == float((task.train.given != task.train.clean).double().mean())
    result = train(task, "gce", SETTINGS)
    predictor, last = Predictor.of(result), result.last
    with torch.no_grad():
        predicted = predictor(X[80:]) > 0.5
        held = predictor(task.validation.x) > 0.5
    right = predicted == (Y[80:] == 1)
    assert last["test_accuracy"] == pytest.approx(float(right.double().mean()))
    assert last["test_exact_match"] == pytest.approx(float(right.all(1).double().mean()))
    assert last["validation_accuracy"] == pytest.approx(
        float((held == (task.validation.given == 1)).double().mean())
    )
    assert last["validation_accuracy_clean"] == pytest.approx(
        float((held == (task.validation.clean == 1)).double().mean())
    )
    assert 0 <= last["false_label_accuracy"] <= 1 and "train_loss_flipped" in last


def test_the_network_learns_despite_missing_labels() -> None:
    x = torch.randn(600, 5, generator=g)
    data = Dataset("made", ("a", "b", "c"), Split(x, (x @ W > 0.5).long()), test=DATA.test)
    for method in (
        "ce",
        "gce:q=0.5",
        "asl:gamma_neg=1",
        "sln:sigma=0.2",
        "ce & momentum:alpha=0.9 & mixup",
    ):
        task = prepare(data, "missing-labels:rate=0.2", seed=2)
        result = train(task, method, dataclasses.replace(SETTINGS, epochs=15))
        assert result.last["test_accuracy"] > 0.85, method


@pytest.mark.parametrize("method", ["ce", "asl & mixup", "gce & momentum:alpha=0.9", "sln"])
def test_a_run_is_resumed_exactly(method: str, tmp_path: Path) -> None:
    task = prepare(DATA, "missing-labels:rate=0.3", seed=3)
    whole = train(task, method, SETTINGS, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(task, method, SETTINGS, out=tmp_path / "part", max_steps=7)
    part = train(task, method, SETTINGS, out=tmp_path / "part", resume=True)
    for one, other in zip(whole.models[0].parameters(), part.models[0].parameters(), strict=True):
        assert torch.equal(one, other)
    drop = ("seconds",)
    assert [{k: v for k, v in row.items() if k not in drop} for row in whole.metrics] == [
        {k: v for k, v in row.items() if k not in drop} for row in part.metrics
    ]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("elr", "Expected a loss of the label's probability alone for each label"),
        ("nce", "Expected a loss of the label's probability alone for each label"),
        ("ln", "Expected a loss of the label's probability alone for each label"),
        ("co-teaching", "Expected strategies for several labels per row, got `co-teaching"),
        ("dividemix", "which needs one class per row"),
        ("sln-mo-lc", "got `label-correction.*which needs one class per row"),
        ("ce & class-balanced", "which needs one class per row"),
        ("ce & estimated-targets:start=0", "which needs one class per row"),
    ],
)
def test_methods_that_need_one_class_a_row_are_refused(method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_method(method, prepare(DATA), SETTINGS)


def test_other_mismatches_are_refused() -> None:
    single = Dataset("made", ("a", "b", "c"), Split(X, Y.argmax(1)))
    with pytest.raises(ValueError, match="a loss of one label a row, as the data has, got `asl"):
        train(prepare(single), "asl", SETTINGS)
    with pytest.raises(ValueError, match="one label a row to record margins"):
        train(prepare(DATA), "ce", SETTINGS, samples=True)
    with pytest.raises(ValueError, match=r"labels of shape \(N,\) or \(N, 2\)"):
        Dataset("made", ("a", "b"), Split(X, Y))
    with pytest.raises(ValueError, match="labels in 0 … 1, got 2"):
        Dataset("made", ("a", "b", "c"), Split(X, 2 * Y))
    with pytest.raises(ValueError, match="one label .*in all parts"):
        Dataset("made", ("a", "b", "c"), Split(X, Y), test=Split(X, Y.argmax(1)))
    with pytest.raises(ValueError, match="`symmetric` is for one label "):
        corrupt(DATA, "symmetric:rate=0.4", generator=0)


def test_noise_is_added_once_and_the_truth_stays_with_the_record() -> None:
    noisy = corrupt(DATA, "missing-labels:rate=0.5", generator=0)
    assert torch.equal(noisy.clean, Y[:80]) and bool((noisy.given <= noisy.clean).all())
    kept: Any = noisy.subset(torch.tensor([3, 1]))
    assert torch.equal(kept.given, noisy.given[[3, 1]]) and kept.multilabel
