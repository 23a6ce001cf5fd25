"""The dry run: weights and memory counted by hand, steps exactly, and nothing of the real run
changed by it.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.data import NoisyData, get_dataset
from noiseproof.losses import get_loss
from noiseproof.strategies.memory import TargetMemory
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.train import Method, Settings, Task, prepare, train
from noiseproof.train.estimate import STEPS, Estimate, estimate

D, H, K, B = 64, 32, 10, 128
WEIGHTS = (D + 1) * H + (H + 1) * K
SETTINGS = Settings(
    model=f"mlp:hidden=[{H}]", epochs=7, batch_size=B, optimizer="sgd:lr=0.05,momentum=0.9"
)
ROWS, HELD, TEST = 1293, 144, 360


@pytest.fixture(scope="module")
def task() -> Task:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    assert (len(task.train), len(task.validation or ()), len(task.test or ())) == (ROWS, HELD, TEST)
    return task


def cpu(**options: Any) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, **options)


def estimated(
    task: Task, method: Method | str = "ce", settings: Settings = SETTINGS, **options: Any
) -> Estimate:
    return estimate(task, method, settings, fabric=cpu(**options))


def test_weights_and_memory_are_those_of_pencil_and_paper(task: Task) -> None:
    found = estimated(task)
    assert found.weights == WEIGHTS == 2410
    # For the backward pass: the batch, what ReLU let through, the log-probabilities and the labels;
    # and the one number that a weighted mean would be divided by.
    kept = 4 * B * D + 4 * B * H + 4 * B * K + 8 * B + 4
    assert found.memory == {
        "weights": 4 * WEIGHTS,
        "gradients": 4 * WEIGHTS,
        "optimizer": 4 * WEIGHTS,
        "method": 0,
        "activations": kept,
        "data": ROWS * (D + 8 + 8),  # a byte for a pixel, eight for a label and for a row's number
    }
    assert found.total_memory == sum(found.memory.values())


@pytest.mark.parametrize(
    "optimizer, size",
    [
        ("sgd:lr=0.05,momentum=0", 0),
        ("sgd:lr=0.05,momentum=0.9,nesterov=true", 4 * WEIGHTS),
        # two averages, and four tensors' counts of steps
        ("adam:lr=0.001", 2 * 4 * WEIGHTS + 4 * 4),
    ],
)
def test_the_optimiser_takes_what_it_remembers(task: Task, optimizer: str, size: int) -> None:
    assert (
        estimated(task, settings=replace(SETTINGS, optimizer=optimizer)).memory["optimizer"] == size
    )


def test_double_precision_doubles_all_but_labels(task: Task) -> None:
    single, double = estimated(task).memory, estimated(task, precision="64-true").memory
    assert all(double[name] == 2 * single[name] for name in ("weights", "gradients", "optimizer"))
    assert double["activations"] == 2 * (single["activations"] - 8 * B) + 8 * B
    assert double["data"] == single["data"]


def test_two_models_take_twice_the_memory(task: Task) -> None:
    one, two = estimated(task), estimated(task, "co-teaching")
    assert two.weights == 2 * WEIGHTS and two.steps == one.steps
    assert all(
        two.memory[name] == 2 * one.memory[name] for name in ("weights", "gradients", "optimizer")
    )


def test_what_strategies_keep_is_counted(task: Task) -> None:
    """A second set of weights, a row of K numbers for every sample."""
    method = Method(get_loss("elr"), strategies=(MomentumModel(0.9), TargetMemory()))
    assert estimated(task, method).memory["method"] == 4 * WEIGHTS + 4 * ROWS * K


@pytest.mark.parametrize(
    "options, steps",
    [
        ({}, 11 * 7),  # 1293 = 10·128 + 13
        ({"drop_last": True}, 10 * 7),
        ({"batch_size": "full"}, 7),
        ({"batch_size": 5000, "drop_last": True}, 7),
        ({"batch_size": 431, "drop_last": True}, 3 * 7),  # 1293 = 3·431
        ({"epochs": 1, "batch_size": "full"}, 1),  # fewer than are looked at
    ],
)
def test_steps_are_those_of_the_real_run(task: Task, options: dict[str, Any], steps: int) -> None:
    """Also of a method that chooses its rows."""
    few = replace(SETTINGS, model="mlp:hidden=[2]", batch_size=20)
    method = "ce & class-balanced:per_class=5"
    assert (
        estimated(task, method, few).steps
        == 3 * 7
        == train(task, method, few, fabric=cpu()).run.step
    )
    settings = replace(SETTINGS, model="mlp:hidden=[2]", **options)
    assert estimated(task, settings=settings).steps == steps
    assert train(task, "ce", settings, fabric=cpu()).run.step == steps


def test_what_the_run_would_refuse_is_not_estimated(task: Task) -> None:
    with pytest.raises(ValueError, match="Expected `start` of label-correction below the 3 epochs"):
        estimated(task, "ce & label-correction:start=4", replace(SETTINGS, epochs=3))


def test_time_counts_passes_over_validation_and_test_as_a_third(task: Task) -> None:
    for settings in (SETTINGS, replace(SETTINGS, batch_size="full"), replace(SETTINGS, epochs=100)):
        rows = settings.batch_rows(ROWS)
        whole, bare = (
            estimated(task, settings=settings),
            estimated(Task(task.train), settings=settings),
        )
        assert (
            bare.seconds == pytest.approx(bare.seconds_per_step * bare.steps) and bare.seconds > 0
        )
        passes = settings.epochs * (HELD + TEST) / rows / 3
        assert whole.seconds == pytest.approx(whole.seconds_per_step * (whole.steps + passes))


def test_it_trains_a_few_steps_and_no_more(task: Task) -> None:
    seen: list[int] = []

    class Count(MomentumModel):
        def __deepcopy__(self, memo: dict[int, Any]) -> Count:
            return self

        def after_step(self, run: Any) -> None:
            seen.append(run.step)

    estimated(task, Method(get_loss("ce"), strategies=(Count(),)))
    assert seen == list(range(STEPS))


def test_a_run_that_would_stop_early_is_estimated_all_the_same(task: Task) -> None:
    """One step an epoch, and early stopping's patience ends before the steps that are looked at."""
    settings = replace(SETTINGS, batch_size="full", optimizer="sgd:lr=1e-9,momentum=0")
    assert train(task, "ce & early-stopping:patience=1", settings, fabric=cpu()).stopped
    assert estimated(task, "ce & early-stopping:patience=1", settings).steps == 7


def test_nothing_is_left_behind(task: Task, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    method = Method(get_loss("elr"), strategies=(MomentumModel(0.9), TargetMemory()))
    before = copy.deepcopy([vars(strategy) for strategy in method.strategies])
    state, labels = torch.get_rng_state(), task.train.given.clone()
    estimated(task, method)
    assert [vars(strategy) for strategy in method.strategies] == before
    assert method.loss.reduction == "mean" and torch.equal(labels, task.train.given)
    assert torch.equal(state, torch.get_rng_state()) and list(tmp_path.iterdir()) == []


def test_rows_that_are_read_from_disk_take_no_memory(task: Task) -> None:
    read: list[int] = []

    class Rows:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> Tensor:
            read.append(i)
            return self.x[i]

        def subset(self, index: Tensor) -> Rows:
            return Rows(self.x[index])

    data = task.train
    lazy = replace(task, train=NoisyData(Rows(data.x), data.given, data.classes, data.index))  # type: ignore[arg-type]
    found = estimated(replace(lazy, validation=None, test=None))
    assert found.memory["data"] == ROWS * 16
    assert len(read) <= STEPS * B + 1  # one more to see its shape
