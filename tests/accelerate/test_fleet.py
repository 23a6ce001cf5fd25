"""A fleet on the CPU: every run ends as it would alone, whoever else is in it, and however often it
is stopped.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import make_task
from lightning_fabric import Fabric
from test_resume import left_behind, same

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.data import get_dataset
from noiseproof.train import Diverged, Interrupted, Result, Settings, Task, prepare, train

EPOCHS, STEPS = 2, 5
PLAIN = Settings(model="mlp:hidden=[12]", epochs=EPOCHS, batch_size=24, optimizer="adam:lr=0.01")
TOO_FAST = Settings(model="mlp:hidden=[12]", epochs=EPOCHS, batch_size=24, optimizer="sgd:lr=1e30")

task = cache(make_task)  # 100 rows


@cache
def moons() -> Task:
    return prepare(get_dataset("two-moons:n=60,n_test=20"), "symmetric:rate=0.3", validation=0.1)


def jobs(out: Path | None = None) -> list[Job]:
    """No two alike: methods, models, seeds, data, lengths."""
    longer = Settings(model="mlp:hidden=[5,5]", epochs=3, batch_size=40)
    wanted: list[dict[str, Any]] = [
        {"task": task(), "method": "ce"},
        {"task": task(), "method": "sln-mo-lc:alpha=0.9,start=1", "seed": 4, "samples": True},
        {"task": moons(), "method": "gce:q=0.3", "settings": longer},
        {"task": task(), "method": "co-teaching", "seed": 1},
        {"task": moons(), "method": "sln", "settings": longer, "seed": 9},
    ]
    return [
        Job(**{"settings": PLAIN, "out": None if out is None else out / str(i), **options})
        for i, options in enumerate(wanted)
    ]


def cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def fly(jobs: Iterable[Job], **options: Any) -> list[Outcome]:
    return fit_many(jobs, fabric=cpu(), **options)


def alone(job: Job, out: Path | None = None) -> Result:
    return train(
        job.task,
        job.method,
        job.settings,
        seed=job.seed,
        fabric=cpu(),
        out=out,
        samples=job.samples,
    )


def essence(outcome: Outcome) -> dict[str, Any]:
    """A run's rows and weights."""
    assert isinstance(outcome, Result), outcome
    models = [
        dict(model.state_dict())
        for model in [model.plain for model in outcome.run.models] + outcome.models
    ]
    return {"rows": outcome.metrics, "models": models, "stopped": outcome.stopped}


@pytest.mark.parametrize("at_once", [None, 1, 2, 5])
def test_each_run_ends_as_it_would_alone(at_once: int | None) -> None:
    outcomes = fly(jobs(), at_once=at_once)
    assert len(outcomes) == 5
    for job, outcome in zip(jobs(), outcomes, strict=True):
        same(essence(outcome), essence(alone(job)))


def test_files_are_those_of_a_run_alone(tmp_path: Path) -> None:
    fly(jobs(tmp_path / "fleet"), at_once=2)
    for i, job in enumerate(jobs()):
        alone(job, tmp_path / "alone" / str(i))
        same(left_behind(tmp_path / "fleet" / str(i)), left_behind(tmp_path / "alone" / str(i)))


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_run_that_fails_leaves_the_others_alone(at_once: int) -> None:
    bad = [Job(task(), "ce", TOO_FAST), Job(task(), "no-such-method", PLAIN)]
    first, diverged, refused, *rest = fly([jobs()[0], *bad, *jobs()[1:]], at_once=at_once)
    assert isinstance(diverged, Diverged) and "learning rate too large" in str(diverged)
    assert isinstance(refused, ValueError) and "no-such-method" in str(refused)
    for job, outcome in zip(jobs(), [first, *rest], strict=True):
        same(essence(outcome), essence(alone(job)))


def test_a_folder_that_is_taken_fails_alone(tmp_path: Path) -> None:
    every = [replace(job, out=tmp_path / name) for job, name in zip(jobs(), "abbc", strict=False)]
    told: list[int] = []
    outcomes = fit_many(every, fabric=cpu(), finished=lambda number, outcome: told.append(number))
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [False, False, True, False]
    assert "Expected a different folder for each run" in str(outcomes[2]) and sorted(told) == [
        0,
        1,
        2,
        3,
    ]


def test_no_more_than_asked_for_are_under_way() -> None:
    """By the order of steps: a run that waits makes none, and those under way take turns."""
    turns: list[int] = []

    def watched(i: int) -> Job:
        def note(epoch: int, step: int, steps: int, row: object) -> None:
            if row is None:
                turns.append(i)

        return Job(task(), "ce", PLAIN, seed=i, progress=note)

    for at_once, groups in ((1, [[0], [1], [2]]), (2, [[0, 1], [2]]), (5, [[0, 1, 2]])):
        turns.clear()
        fly([watched(i) for i in range(3)], at_once=at_once)
        assert turns == [i for group in groups for _ in range(EPOCHS * STEPS) for i in group]


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_seconds_of_all_runs_are_no_more_than_passed(at_once: int) -> None:
    """Each has its share of the time that they train side by side."""
    began = time.perf_counter()
    outcomes = fly(jobs(), at_once=at_once)
    passed = time.perf_counter() - began
    seconds = [
        [row["seconds"] for row in outcome.metrics]
        for outcome in outcomes
        if isinstance(outcome, Result)
    ]
    assert len(seconds) == 5 and min(map(min, seconds)) > 0 and sum(map(sum, seconds)) <= passed


def test_finished_is_told_of_each_run_once() -> None:
    told: list[tuple[int, Outcome]] = []
    longer = Settings(model="mlp:hidden=[4]", epochs=4, batch_size=24)
    asked = [Job(task(), "ce", settings) for settings in (longer, TOO_FAST, PLAIN, PLAIN)]
    outcomes = fly(
        asked, at_once=3, finished=lambda number, outcome: told.append((number, outcome))
    )
    # in few steps, 10, 10 that began late, 20
    assert [number for number, _ in told] == [1, 2, 3, 0]
    assert all(outcomes[number] is outcome for number, outcome in told)
    assert [type(outcome) for outcome in outcomes] == [Result, Diverged, Result, Result]


def test_jobs_are_taken_as_there_is_room() -> None:
    """A generator's tasks need not be in memory together, and inputs at one address are not taken
    for others.
    """
    made: list[int] = []

    def lazily() -> Iterator[Job]:
        for i in range(4):
            made.append(i)
            # the task is nobody else's: freed when its run ends
            yield Job(task(), "ce", PLAIN, seed=i)

    seen: list[list[int]] = []
    outcomes = fly(lazily(), at_once=2, finished=lambda number, outcome: seen.append(list(made)))
    assert seen == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
    for i, outcome in enumerate(outcomes):
        same(essence(outcome), essence(alone(Job(task(), "ce", PLAIN, seed=i))))


class At:
    """Sends this process a signal, once, at the step of a run."""

    def __init__(self, epoch: int, step: int, *numbers: int) -> None:
        self.at, self.numbers, self.sent = (epoch, step), numbers, False

    def __call__(self, epoch: int, step: int, steps: int, row: object) -> None:
        if (epoch, step) == self.at and row is None and not self.sent:
            self.sent = True
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_stopped_fleet_goes_on_where_each_run_was(
    at_once: int, number: int, tmp_path: Path
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop = At(1, 2, number)
    asked = jobs(tmp_path / "fleet")
    asked[2] = Job(**{**vars(asked[2]), "progress": stop})
    told: list[int] = []
    with pytest.raises(Interrupted, match="Stopped after . of 5 runs. Resume to continue."):
        fly(asked, at_once=at_once, finished=lambda i, outcome: told.append(i))
    assert (
        stop.sent
        and (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    )
    begun = {int(path.name) for path in (tmp_path / "fleet").iterdir()}
    saved = {int(path.parent.name) for path in (tmp_path / "fleet").glob("*/checkpoints")}
    assert (
        saved == begun == set(told) == {1: {0, 1, 2}, 2: {0, 1, 2, 3}, 5: {0, 1, 2, 3, 4}}[at_once]
    )

    outcomes = fly(asked, at_once=at_once)
    for i, (job, outcome) in enumerate(zip(jobs(), outcomes, strict=True)):
        same(essence(outcome), essence(alone(job, tmp_path / "alone" / str(i))))
        same(left_behind(tmp_path / "fleet" / str(i)), left_behind(tmp_path / "alone" / str(i)))


def test_asked_twice_it_stops_at_once(tmp_path: Path) -> None:
    stop = At(0, 3, signal.SIGINT, signal.SIGINT)
    asked = [
        Job(task(), "ce", PLAIN, seed=i, out=tmp_path / str(i), progress=stop) for i in range(3)
    ]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fly(asked, at_once=2)
    assert signal.getsignal(signal.SIGINT) == before
    stop.sent = True
    # from the start: nothing had been saved
    for job, outcome in zip(asked, fly(asked, at_once=2), strict=True):
        same(essence(outcome), essence(alone(job)))


def test_finished_runs_are_not_trained_again_unless_asked_to_begin(tmp_path: Path) -> None:
    calls: list[int] = []
    asked = [
        Job(task(), "ce", PLAIN, seed=i, out=tmp_path / str(i), progress=lambda *_: calls.append(1))
        for i in range(2)
    ]
    first = fly(asked, at_once=2)
    count = len(calls)
    assert count == 2 * EPOCHS * (STEPS + 1)
    for outcome, again in zip(first, fly(asked, at_once=2), strict=True):
        same(essence(outcome), essence(again))
    assert len(calls) == count
    refused = fly(asked, at_once=2, resume=False)
    assert all(isinstance(outcome, FileExistsError) for outcome in refused) and len(calls) == count


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    fly(jobs(), at_once=3)
    assert torch.equal(state, torch.get_rng_state())


def test_no_jobs_no_outcomes() -> None:
    assert fly([]) == []


@pytest.mark.parametrize("at_once", [0, -1, 1.5])
def test_at_once_is_a_number_of_runs(at_once: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="at_once"):
        fly(jobs(), at_once=at_once)
