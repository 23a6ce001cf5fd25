"""Runs stacked into one network: each learns what it would learn alone, up to the rounding of float64."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import make_task
from lightning_fabric import Fabric

from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Diverged, Interrupted, Method, Result, Settings, train
from noiseproof.train.fleet import Job, Outcome, fit_many

CNN = Settings(model="wrn-28-2:depth=10,width=1", epochs=2, batch_size=24, optimizer="sgd:lr=0.02,momentum=0.9", clip=9)
METHODS = [
    "ce", "gce:q=0.5", "sln-mo", "noise-f", "noise-theta", "forward:warmup=1", "elr", "sigua",
    "remargin:loss=mae,shift=2", "sln-mo-lc:start=1",
]  # fmt: skip


def double() -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def jobs(methods: list[str] = METHODS, settings: Settings = CNN, out: Path | None = None) -> list[Job]:
    task = make_task()
    return [
        Job(task, method, settings, seed, None if out is None else out / str(seed))
        for seed, method in enumerate(methods)
    ]


def fly(jobs: list[Job], **options: Any) -> list[Outcome]:
    return fit_many(jobs, fabric=double(), at_once=options.pop("at_once", len(jobs)), stack=True, **options)


def assert_as_alone(job: Job, outcome: Outcome) -> None:
    alone = train(job.task, job.method, job.settings, seed=job.seed, fabric=double())
    assert isinstance(outcome, Result), outcome
    pairs = zip([*alone.run.plain_models, *alone.models], [*outcome.run.plain_models, *outcome.models], strict=True)
    for a, b in pairs:
        for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
            torch.testing.assert_close(right, left, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    for one, other in zip(alone.rows, outcome.rows, strict=True):
        assert {k: v for k, v in other.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in one.items() if k != "seconds"}, rel=1e-7, nan_ok=True
        )


def stacks(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Sizes of the stacks that were made."""
    return [int(record.args[0]) for record in caplog.records if record.msg.endswith("into one network")]  # type: ignore[index,arg-type]


@pytest.fixture(autouse=True)
def listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "noiseproof")


def test_each_learns_what_it_would_alone(caplog: pytest.LogCaptureFixture) -> None:
    for job, outcome in zip(jobs(), fly(jobs()), strict=True):
        assert_as_alone(job, outcome)
    assert sorted(stacks(caplog)) == [2, 8]


def test_only_like_runs_are_stacked(caplog: pytest.LogCaptureFixture) -> None:
    mixed = [
        *jobs(["ce", "co-teaching", "ce & class-balanced:per_class=5", "dividemix:warmup=1", "ln"]),
        *jobs(["ce", "mae"], replace(CNN, model="mlp:hidden=[6]")),
        *jobs(["ce"], replace(CNN, batch_size=25)),
        *jobs(["gce"]),
    ]
    for job, outcome in zip(mixed, fly(mixed), strict=True):
        assert_as_alone(job, outcome)
    assert sorted(stacks(caplog)) == [2, 2]


def test_who_cannot_be_stacked_goes_alone(caplog: pytest.LogCaptureFixture) -> None:
    wide = replace(CNN, model="wrn-28-2:depth=10,width=3", epochs=1)
    for job, outcome in zip(jobs(["ce", "gce"], wide), fly(jobs(["ce", "gce"], wide)), strict=True):
        assert_as_alone(job, outcome)
    assert stacks(caplog) == [] and "channels fill a GPU by themselves" in caplog.text


def test_the_others_go_on_when_one_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """One diverges, one ends after its first epoch."""
    all_jobs = jobs(["ce", "gce", "sln", "ce"])
    all_jobs[1] = replace(all_jobs[1], settings=replace(CNN, optimizer="sgd:lr=1e308"))
    all_jobs[2] = replace(all_jobs[2], settings=replace(CNN, epochs=1))
    outcomes = fly(all_jobs)
    assert isinstance(outcomes[1], Diverged)
    for i in (0, 2, 3):
        assert_as_alone(all_jobs[i], outcomes[i])
    assert stacks(caplog)[0] == 4 and stacks(caplog)[-1] == 2


class Fails(Strategy):
    """Raises in the fourth step."""

    capturable = True
    name = ""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _maybe(self, hook: str, run: Run) -> None:
        if hook == self.hook and run.step == 3:
            raise ArithmeticError("It fails.")

    def targets(self, batch: Batch, run: Run) -> Batch:
        self._maybe("targets", run)
        return batch

    def after_step(self, run: Run) -> None:
        self._maybe("after_step", run)


def test_who_fails_in_a_step_fails_alone() -> None:
    all_jobs = jobs(["ce", "gce", "sln"])
    all_jobs[1] = replace(all_jobs[1], method=Method(get_loss("ce"), "linear", (Fails("targets"),)))
    outcomes = fly(all_jobs)
    assert isinstance(outcomes[1], ArithmeticError)
    for i in (0, 2):
        assert_as_alone(all_jobs[i], outcomes[i])


def test_no_step_is_made_twice() -> None:
    """Some have learned when one fails: rather none goes on than that one learns the same again."""
    all_jobs = jobs(["ce", "gce", "sln"])
    all_jobs[1] = replace(all_jobs[1], method=Method(get_loss("ce"), "linear", (Fails("after_step"),)))
    assert [type(outcome) for outcome in fly(all_jobs)] == [ArithmeticError] * 3


def test_an_interrupted_stack_goes_on_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    methods = ["ce", "sln-mo", "elr"]

    def stop(epoch: int, step: int, steps: int, row: object) -> None:
        if (epoch, step) == (1, 2) and row is None:
            os.kill(os.getpid(), signal.SIGTERM)

    first, *others = jobs(methods, out=tmp_path)
    with pytest.raises(Interrupted, match="Stopped after 0 of 3 runs"):
        fly([replace(first, progress=stop), *others])
    for job, outcome in zip(jobs(methods), fly(jobs(methods, out=tmp_path)), strict=True):
        assert_as_alone(job, outcome)


def test_finished_runs_own_their_weights() -> None:
    outcomes = fly(jobs(["ce", "gce"]))
    for outcome in outcomes:
        assert isinstance(outcome, Result)
        for value in outcome.models[0].parameters():
            assert value.untyped_storage().nbytes() == value.numel() * 8
