"""Executors: the loop cannot tell one from another, and training knows no other than Eager."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from killed_run import make_task
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core import lazy
from noiseproof.train import Interrupted, Result, Settings, executor, train
from noiseproof.train.checkpoint import checkpoints, load
from noiseproof.train.executor import Eager, make_executor
from noiseproof.train.guard import StopRequest
from noiseproof.train.job import Job, build
from noiseproof.train.loop import training
from noiseproof.train.step import Stepper

SETTINGS = Settings(
    model="mlp:hidden=[6]", epochs=2, batch_size=24, optimizer="sgd:lr=0.1,momentum=0.9"
)
STEPS = 5


def cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


class Hesitant(Eager):
    """Waits before every step, twice before the first."""

    closed = False

    def steps(self, parts: Sequence[Tensor], start: int) -> Iterator[int]:
        yield start
        steps = super().steps(parts, start)
        for position in range(start, len(parts)):
            yield position
            yield next(steps)

    def close(self) -> None:
        self.closed = True


def test_a_run_that_waits_ends_as_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Hesitant] = []
    calls: list[tuple[int, int]] = []

    def make(stepper: Stepper) -> Hesitant:
        made.append(Hesitant(stepper))
        return made[-1]

    def progress(epoch: int, step: int, steps: int, metrics: object) -> None:
        if metrics is None:
            calls.append((epoch, step))

    eager = train(make_task(), "sln-mo", SETTINGS, fabric=cpu())
    monkeypatch.setattr(executor, "provided", lambda role: SimpleNamespace(make_executor=make))
    waited = train(make_task(), "sln-mo", SETTINGS, fabric=cpu(), progress=progress)
    for one, other in zip(
        eager.models[0].state_dict().values(), waited.models[0].state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert calls == [(epoch, step) for epoch in range(2) for step in range(1, STEPS + 1)]
    assert len(made) == 1 and made[0].closed


@pytest.mark.parametrize("turns, step", [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_a_run_that_waits_stops_after_the_last_step_made(
    turns: int, step: int, tmp_path: Path
) -> None:
    """The turns are: wait, wait, step 1, wait, step 2, … Before its first step it does not stop."""
    stop = StopRequest()
    steps = training(
        Job(make_task(), "ce", SETTINGS, out=tmp_path), cpu(), stop=stop, make_executor=Hesitant
    )
    for _ in range(turns):
        next(steps)
    stop.requested = True
    with pytest.raises(Interrupted, match=f"Stopped after step {step} in epoch 1 of 2"):
        for _ in steps:
            pass
    assert [load(path)["position"] for path in checkpoints(tmp_path / "checkpoints")] == [step]


def stepper() -> Stepper:
    _, run, _ = build(Job(make_task(), "ce", SETTINGS), cpu())
    return Stepper(run, None, ())


@pytest.mark.parametrize("accelerate", [None, SimpleNamespace(make_executor=lambda stepper: None)])
def test_without_another_one_steps_are_eager(
    accelerate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(make_executor(stepper())) is Eager  # on a CPU
    monkeypatch.setattr(executor, "provided", lambda role: accelerate)
    assert type(make_executor(stepper())) is Eager


def test_training_finds_the_executors_of_accelerate_without_importing_it() -> None:
    code = (
        "import sys, noiseproof.train.loop\n"
        "assert not any(name.startswith('noiseproof.accelerate') for name in sys.modules)\n"
        "from noiseproof.core.lazy import provided\n"
        "assert provided('executors').__name__ == 'noiseproof.accelerate.graphs'\n"
        "assert 'triton' not in sys.modules and 'noiseproof.accelerate.fleet' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_role_that_nobody_fills_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_PROVIDERS", {})
    monkeypatch.setattr(lazy, "_LOADED", {})
    assert lazy.provided("executors") is None
    lazy.provide(executors="json")
    assert lazy.provided("executors").loads("1") == 1


def test_a_run_without_steps_left_is_a_result() -> None:
    steps = training(Job(make_task(), "ce", SETTINGS), cpu())
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert isinstance(ended.value.value, Result)
