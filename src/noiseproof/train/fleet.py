"""Many runs side by side on one device: those of one shape as one stacked network, the others each on its own stream.

A run's result does not depend on who else is in the fleet: it has its own weights, its own data order, its own
generators; only the device's time is shared. A stack computes the same with kernels of its own, so it rounds otherwise.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from weakref import ReferenceType, ref

import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data import Inputs
from noiseproof.train.graphs import SEATS, Seating
from noiseproof.train.loop import Interrupted, Result, asked_to_stop, own_stream, training
from noiseproof.train.loop import Job as Job
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

SPARE = 0.8  # of the memory that is free: passes over test sets take some, and fragments
MOST = 32  # four stacks of eight: more gain little, and all would be finished late
SETTLED = 12  # steps after which a run has its graphs and its memory

log = logging.getLogger("noiseproof")


Outcome = Result | Exception
Flight = tuple[Generator[None, None, Result], torch.cuda.Stream | None]  # the steps of a run, and its stream
Finished = Callable[[int, Outcome], None]
Shared = dict[int, tuple[ReferenceType[Tensor], ReferenceType[Tensor]]]  # by id: inputs, and where they went


def fit_many(
    jobs: Iterable[Job],
    *,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    stack: bool | None = None,
    resume: bool = True,
    finished: Finished | None = None,
) -> list[Outcome]:
    """Train all ``jobs``; each ends in a ``Result``, or in the error that took it out while the others went on.

    Args:
        jobs: taken one by one, as there is room, so that a generator of many need not hold all their data.
        fabric: the device and precision of all; by default a GPU where there is one.
        at_once: how many train side by side; by default as many as the GPU's memory holds by the measure of the first
            steps of the first, 32 at most, and one on a CPU.
        stack: whether runs of one shape (backbone, head, rows, batch size) train as one network, which is faster on a
            GPU and equal up to rounding; by default on a GPU in bfloat16, where that was measured, unless deterministic
            algorithms are asked for. Methods that train two models or have steps of their own go by themselves.
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
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    fabric.launch()
    on_gpu = fabric.device.type == "cuda"
    if stack is None:
        exact = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
        stack = on_gpu and fabric._precision.precision == "bf16-mixed" and not exact
    seating = Seating() if stack else None
    shared: Shared = {}
    outcomes: list[Outcome] = []
    clock = _SharedClock()
    folders: set[Path] = set()
    source: Iterator[tuple[int, Job]] = enumerate(jobs)
    flying = deque[tuple[int, Flight]]()
    limit, more = at_once or 1, True  # as far as we know
    here = torch.cuda.current_stream(fabric.device) if on_gpu else None  # put back at the end: runs set their own
    with asked_to_stop() as asked, torch.cuda.stream(here):
        if on_gpu and at_once is None and (first := next(source, None)) is not None:
            limit = _how_many(replace(first[1], task=_on(first[1].task, fabric.device, shared)), fabric)
            source = chain([first], source)
        while flying or (more and not asked):
            # Of runs that are stacked a whole stack sets out at a time, as those before have ended.
            least = min(SEATS, limit) if seating is not None and seating.has_stacked else 1
            room = limit - len(flying)
            for _ in range(room if room >= least and more and not asked else 0):
                if (found := next(source, None)) is None:
                    more = False
                    break
                number, job = found
                folder = None if job.out is None else Path(job.out).resolve()
                if folder in folders:
                    twice = ValueError(f"Expected a folder of its own for each run, got {folder} for several.")
                    outcomes.append(twice)
                    if finished is not None:
                        finished(number, twice)
                    continue
                if folder is not None:
                    folders.add(folder)
                outcomes.append(Interrupted("This run was not finished."))
                job = replace(job, task=_on(job.task, fabric.device, shared))
                steps = training(job, fabric, resume=resume, asked=asked, seating=seating, clock=clock)
                flying.append((number, (steps, own_stream(fabric))))
            clock.share(len(flying))
            for _ in range(len(flying)):
                number, (steps, stream) = flying.popleft()
                if stream is not None:
                    torch.cuda.set_stream(stream)
                try:
                    next(steps)
                    flying.append((number, (steps, stream)))
                    continue
                except StopIteration as done:
                    outcomes[number] = done.value
                except Exception as error:  # one run's trouble is its own
                    outcomes[number] = error
                if finished is not None:
                    finished(number, outcomes[number])
    if asked:
        ended = sum(not isinstance(outcome, Interrupted) for outcome in outcomes)
        of_all = f" of {len(jobs)}" if isinstance(jobs, Sized) else ""
        raise Interrupted(f"Stopped after {ended}{of_all} runs. Resume to go on.")
    return outcomes


class _SharedClock:
    """A run's seconds of a machine that several share: with n of them they pass n times as slowly as on the wall."""

    def __init__(self) -> None:
        self.runs, self.at, self.passed = 1, time.perf_counter(), 0.0

    def __call__(self) -> float:
        now = time.perf_counter()
        self.passed, self.at = self.passed + (now - self.at) / self.runs, now
        return self.passed

    def share(self, runs: int) -> None:
        """So many from now on."""
        self()
        self.runs = max(1, runs)


def _how_many(job: Job, fabric: Fabric) -> int:
    """Runs as large as this one that the GPU's memory holds, by a few steps of it that leave nothing behind."""
    before = torch.cuda.memory_reserved(fabric.device)
    settings = replace(job.settings or Settings(), compile=False)
    steps = training(replace(job, settings=settings, out=None, samples=False, progress=None), fabric)
    with torch.cuda.stream(own_stream(fabric)), suppress(Exception):  # which it will meet again
        for _ in range(SETTLED):
            next(steps)
    used = max(1, torch.cuda.memory_reserved(fabric.device) - before)
    steps.close()
    free = torch.cuda.mem_get_info(fabric.device)[0] + used
    fit = max(1, min(MOST, int(SPARE * free / used)))
    log.info("up to %d runs of this size train side by side", fit)
    return fit


def _on(task: Task, device: torch.device, shared: Shared) -> Task:
    """The task with its inputs on the device, once for all runs that share them, for as long as one does."""

    def move(x: Inputs) -> Inputs:
        if not isinstance(x, Tensor):
            return x
        if id(x) in shared:
            source, there = (reference() for reference in shared[id(x)])
            if source is x and there is not None:  # else another lay at that address once
                return there
        there = x.to(device)
        shared[id(x)] = ref(x), ref(there)
        return there

    return replace(
        task,
        train=replace(task.train, x=move(task.train.x)),
        validation=None if task.validation is None else replace(task.validation, x=move(task.validation.x)),
        test=None if task.test is None else replace(task.test, x=move(task.test.x)),
    )
