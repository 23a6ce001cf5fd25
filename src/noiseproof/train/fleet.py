"""Many runs side by side on one device: each is captured and replayed by itself, on a stream of its own.

A run's result does not depend on who else is in the fleet: it has its own weights, its own data order, its own
generators; only the device's time is shared.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data import Inputs
from noiseproof.train.loop import Interrupted, Result, asked_to_stop, own_stream, training
from noiseproof.train.loop import Job as Job
from noiseproof.train.task import Task

SPARE = 0.8  # of the memory that is free: passes over test sets take some, and fragments
MOST = 16  # more gain little (gpu.json: 16 WRNs take as long as twice 8), and all would be finished late
SETTLED = 12  # steps after which a run has its graphs and its memory

log = logging.getLogger("noiseproof")


Outcome = Result | Exception
Flight = tuple[Generator[None, None, Result], AbstractContextManager[object]]  # the steps of a run, and its stream
Finished = Callable[[int, Outcome], None]


def fit_many(
    jobs: Sequence[Job],
    *,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    resume: bool = True,
    finished: Finished | None = None,
) -> list[Outcome]:
    """Train all ``jobs``; each ends in a ``Result``, or in the error that took it out while the others went on.

    Args:
        fabric: the device and precision of all; by default a GPU where there is one.
        at_once: how many train side by side; by default as many as the GPU's memory holds by the measure of the first,
            16 at most, and one on a CPU.
        resume: go on from the last checkpoint of each job that has a folder.
        finished: told the number of a job and its outcome as soon as it is there.

    Raises:
        Interrupted: when asked to stop (Ctrl-C, SIGTERM); every run with a folder has saved a checkpoint.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import Settings, prepare
    >>> task, short = prepare(get_dataset("digits"), "symmetric:rate=0.4"), Settings(epochs=1, model="mlp:hidden=[8]")
    >>> outcomes = fit_many([Job(task, method, short, seed=seed) for method in ("ce", "gce") for seed in (0, 1)])
    >>> [outcome.last["epoch"] for outcome in outcomes]
    [1, 1, 1, 1]
    """
    if at_once is not None:
        check_count("at_once", at_once, 1)
    folders = [Path(job.out).resolve() for job in jobs if job.out is not None]
    if twice := {str(folder) for folder in folders if folders.count(folder) > 1}:
        raise ValueError(f"Expected a folder of its own for each run, got {', '.join(sorted(twice))} for several.")
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    fabric.launch()
    on_gpu = fabric.device.type == "cuda"
    limit = at_once or 1  # on a GPU the first one flies alone until its size is known
    shared: dict[int, Tensor] = {}
    outcomes: list[Outcome] = [Interrupted("This run was not begun.")] * len(jobs)
    waiting, flying = deque(enumerate(jobs)), deque[tuple[int, Flight]]()
    rounds, before = 0, torch.cuda.memory_reserved(fabric.device) if on_gpu else 0
    with asked_to_stop() as asked:
        while flying or (waiting and not asked):
            while waiting and len(flying) < limit and not asked:
                number, job = waiting.popleft()
                job = replace(job, task=_on(job.task, fabric.device, shared))
                steps = training(job, fabric, resume=resume, asked=asked)
                flying.append((number, (steps, own_stream(fabric))))
            for _ in range(len(flying)):
                number, (steps, stream) = flying.popleft()
                try:
                    with stream:
                        next(steps)
                    flying.append((number, (steps, stream)))
                    continue
                except StopIteration as done:
                    outcomes[number] = done.value
                except Exception as error:  # one run's trouble is its own
                    outcomes[number] = error
                if finished is not None:
                    finished(number, outcomes[number])
            rounds += 1
            if on_gpu and at_once is None and rounds == SETTLED:
                limit = _how_many(fabric.device, before)
                log.info("%d runs of this size fit side by side, %d are to do", limit, len(waiting) + len(flying))
    if asked:
        left = sum(isinstance(outcome, Interrupted) for outcome in outcomes)
        raise Interrupted(f"Stopped with {left} of {len(jobs)} runs to do. Resume to go on.")
    return outcomes


def _how_many(device: torch.device, before: int) -> int:
    """Runs as large as the first that the GPU's memory holds."""
    used = max(1, torch.cuda.memory_reserved(device) - before)
    free = torch.cuda.mem_get_info(device)[0] + used
    return max(1, min(MOST, int(SPARE * free / used)))


def _on(task: Task, device: torch.device, shared: dict[int, Tensor]) -> Task:
    """The task with its inputs on the device, once for all runs that share them."""

    def move(x: Inputs) -> Inputs:
        return shared.setdefault(id(x), x.to(device)) if isinstance(x, Tensor) else x

    return replace(
        task,
        train=replace(task.train, x=move(task.train.x)),
        validation=None if task.validation is None else replace(task.validation, x=move(task.validation.x)),
        test=None if task.test is None else replace(task.test, x=move(task.test.x)),
    )
