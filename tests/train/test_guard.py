"""The guard finds the first step that is not finite, whenever it looks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from killed_run import make_task
from lightning_fabric import Fabric

from noiseproof.strategies import Batch, Run, Step
from noiseproof.train import Diverged, Settings
from noiseproof.train.checkpoint import save
from noiseproof.train.guard import DivergenceGuard
from noiseproof.train.job import Job, build


@pytest.fixture
def run() -> Run:
    settings = Settings(model="mlp:hidden=[4]", epochs=2, optimizer="sgd:lr=0.5")
    return build(
        Job(make_task(), "sln:sigma=0.25", settings), Fabric(accelerator="cpu", devices=1)
    )[1]


def make_steps(guard: DivergenceGuard, *losses: float) -> None:
    batch = Batch(*[torch.empty(0)] * 5)
    for loss in losses:
        guard.observe(batch, Step([], torch.tensor([[1.0, loss]]), None))
        guard.run.step += 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_bad_step_is_named_however_late_the_check(run: Run, bad: float) -> None:
    guard = DivergenceGuard(run, None)
    make_steps(guard, 0.5, 2.0)
    guard.check()
    make_steps(guard, bad, 1.0, -bad)
    with pytest.raises(
        Diverged,
        match=r"at step 3 \(epoch 1\).*learning rate too large \(0.5\) or too much noise \(sln",
    ):
        guard.check_step()


def test_weights_that_are_not_finite_discount_the_step_that_left_them(run: Run) -> None:
    guard = DivergenceGuard(run, None)
    make_steps(guard, 0.5, 2.0)
    guard.observe_weights()
    guard.check()
    next(run.models[0].plain.parameters()).data.view(-1)[0] = float("inf")
    guard.observe_weights()
    guard.observe_weights()  # twice is once
    with pytest.raises(Diverged, match="at step 2 .*No checkpoint was saved"):
        guard.check()


def test_a_restored_run_counts_on(run: Run, tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 7, {"step": 7})
    guard = DivergenceGuard(run, tmp_path)
    run.step = 7
    guard.restore()
    guard.check()
    make_steps(guard, 1.0, float("nan"))
    with pytest.raises(Diverged, match=f"at step 9 .*The last good checkpoint is {path}"):
        guard.check()
