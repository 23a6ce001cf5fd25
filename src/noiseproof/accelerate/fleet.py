"""Many runs side by side on one device: those of one shape as one stacked network, the others each
on its own stream.

The result of a run does not depend on the other runs of the fleet: it has its own weights, data
order and generators, and shares only the time of the device. A stack computes the same by other
kernels, which round differently.
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
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from noiseproof.accelerate.stacks import StackPool
from noiseproof.core.checks import check_count
from noiseproof.core.tensors import new_stream
from noiseproof.data import Inputs
from noiseproof.train.executor import make_executor
from noiseproof.train.guard import Interrupted, StopRequest, stop_on_signals
from noiseproof.train.job import Job
from noiseproof.train.loop import Result, training
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

# of the free memory, for training: passes over test sets take some, and fragmentation
MEMORY_SHARE = 0.8
MAX_RUNS = 32  # four stacks of eight: more gain little, and all would end late
SETTLED = 12  # steps after which a run has its graphs and its memory

log = logging.getLogger("noiseproof")

Outcome = Result | Exception
Finished = Callable[[int, Outcome], None]


def fit_many(
    jobs: Iterable[Job],
    *,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    stack: bool | None = None,
    resume: bool = True,
    finished: Finished | None = None,
) -> list[Outcome]:
    """Train all ``jobs``; each ends in a ``Result``, or in its error while the others go on.

    Args:
        jobs: taken one by one, as there is room, so that a generator of many need not hold all
            their data.
        fabric: the device and precision of all; by default a GPU where there is one.
        at_once: how many train side by side; by default as many as the GPU's memory holds, measured
            on the first steps of the first, 32 at most, and one on a CPU.
        stack: whether runs of one shape (backbone, head, rows, batch size) train as one network,
            which is faster on a GPU and equal up to rounding; by default on a GPU in bfloat16,
            where that was measured, unless deterministic algorithms are required. Methods that
            train two models or define their own step are not stacked.
        resume: continue from the last checkpoint of each job that has a folder.
        finished: called with the number of a job and its outcome as soon as it ends.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; every run with a folder has saved a checkpoint.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import Settings, prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> short = Settings(epochs=1, model="mlp:hidden=[8]")
    >>> jobs = [Job(task, method, short) for method in ("ce", "gce")]
    >>> [outcome.last["epoch"] for outcome in fit_many(jobs)]
    [1, 1]
    """
    if at_once is not None:
        check_count("at_once", at_once, 1)
    fabric = fabric or make_fabric(accelerator="auto", devices=1)
    fabric.launch()
    on_gpu = fabric.device.type == "cuda"
    if stack is None:
        exact = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
        stack = on_gpu and fabric._precision.precision == "bf16-mixed" and not exact
    # restored at the end: runs set theirs
    current = torch.cuda.current_stream(fabric.device) if on_gpu else None
    with stop_on_signals() as stop, torch.cuda.stream(current):
        fleet = _Fleet(
            fabric,
            stop,
            StackPool(stop) if stack else None,
            resume,
            finished or (lambda *outcome: None),
        )
        source: Iterator[tuple[int, Job]] = enumerate(jobs)
        limit = at_once or 1
        if on_gpu and at_once is None and (first := next(source, None)) is not None:
            limit = _count_fitting(fleet.on_device(first[1]), fabric)
            source = chain([first], source)
        fleet.train(source, limit)
    if stop.requested:
        ended = sum(not isinstance(outcome, Interrupted) for outcome in fleet.outcomes)
        of_all = f" of {len(jobs)}" if isinstance(jobs, Sized) else ""
        raise Interrupted(f"Stopped after {ended}{of_all} runs. Resume to continue.")
    return fleet.outcomes


class _Fleet:
    """Runs under way, resumed in turn."""

    def __init__(
        self,
        fabric: Fabric,
        stop: StopRequest,
        pool: StackPool | None,
        resume: bool,
        finished: Finished,
    ) -> None:
        self.fabric = fabric
        self.stop = stop
        self.pool = pool
        self.resume = resume
        self.finished = finished
        self.clock = _SharedClock()
        self.outcomes: list[Outcome] = []
        self.running = deque[tuple[int, Generator[None, None, Result], torch.cuda.Stream | None]]()
        self.folders: set[Path] = set()
        # by id: source, copy
        self.inputs: dict[int, tuple[ReferenceType[Tensor], ReferenceType[Tensor]]] = {}

    def train(self, source: Iterator[tuple[int, Job]], limit: int) -> None:
        """Start the jobs of ``source``, ``limit`` at a time, and resume all in turn until the last
        has ended.
        """
        has_more = True
        while self.running or (has_more and not self.stop.requested):
            # Runs that are stacked start a stack at a time, once there is room for it.
            fewest = 1 if self.pool is None else min(self.pool.stack_size, limit)
            room = limit - len(self.running)
            for _ in range(room if room >= fewest and has_more and not self.stop.requested else 0):
                numbered = next(source, None)
                if numbered is None:
                    has_more = False
                    break
                self._start(*numbered)
            self.clock.share(len(self.running))
            for _ in range(len(self.running)):
                self._resume_first()

    def _start(self, number: int, job: Job) -> None:
        folder = None if job.folder is None else job.folder.resolve()
        if folder in self.folders:
            error = ValueError(
                f"Expected a different folder for each run, got {folder} for several."
            )
            self.outcomes.append(error)
            self.finished(number, error)
            return
        if folder is not None:
            self.folders.add(folder)
        self.outcomes.append(Interrupted("This run was not finished."))
        make = make_executor if self.pool is None else self.pool.make_executor
        job = self.on_device(job)
        steps = training(
            job,
            self.fabric,
            resume=self.resume,
            stop=self.stop,
            make_executor=make,
            clock=self.clock,
        )
        self.running.append((number, steps, new_stream(self.fabric.device)))

    def _resume_first(self) -> None:
        """Make a step of the first run, or wait for the others of its stack; it is the last one
        then.
        """
        number, steps, stream = self.running.popleft()
        if stream is not None:
            torch.cuda.set_stream(stream)
        try:
            next(steps)
        except StopIteration as ended:
            self.outcomes[number] = ended.value
        except Exception as error:  # of this run alone
            self.outcomes[number] = error
        else:
            self.running.append((number, steps, stream))
            return
        self.finished(number, self.outcomes[number])

    def on_device(self, job: Job) -> Job:
        """The job with its inputs on the device, copied once for all runs that share them."""
        task = job.task
        names = ("train", "validation", "clean_validation", "test")
        parts = {name: getattr(task, name) for name in names}
        moved: Any = {
            name: replace(part, x=self._move(part.x))
            for name, part in parts.items()
            if part is not None
        }
        return replace(job, task=replace(task, **moved))

    def _move(self, x: Inputs) -> Inputs:
        if not isinstance(x, Tensor):
            return x
        if id(x) in self.inputs:
            source, copy = (reference() for reference in self.inputs[id(x)])
            if source is x and copy is not None:  # else another tensor had that id
                return copy
        copy = x.to(self.fabric.device)
        self.inputs[id(x)] = ref(x), ref(copy)
        return copy


class _SharedClock:
    """Seconds of a run on a machine that n runs share: they pass n times as slowly as on the
    wall.
    """

    def __init__(self) -> None:
        self.runs = 1
        self.at = time.perf_counter()
        self.passed = 0.0

    def __call__(self) -> float:
        now = time.perf_counter()
        self.passed = self.passed + (now - self.at) / self.runs
        self.at = now
        return self.passed

    def share(self, runs: int) -> None:
        """Divide the time from this moment on among ``runs``."""
        self()
        self.runs = max(1, runs)


def _count_fitting(job: Job, fabric: Fabric) -> int:
    """How many runs of this size the GPU's memory holds, measured on a few steps that leave nothing
    behind.
    """
    before = torch.cuda.memory_reserved(fabric.device)
    settings = replace(job.settings, compile=False)
    job = replace(job, settings=settings, out=None, samples=False, progress=None)
    steps = training(job, fabric, max_steps=SETTLED + 1)
    # the run itself will raise it
    with torch.cuda.stream(new_stream(fabric.device)), suppress(Exception):
        for _ in range(SETTLED):
            next(steps)
    used = max(1, torch.cuda.memory_reserved(fabric.device) - before)
    steps.close()
    free = torch.cuda.mem_get_info(fabric.device)[0] + used
    fitting = max(1, min(MAX_RUNS, int(MEMORY_SHARE * free / used)))
    log.info("up to %d runs of this size train side by side", fitting)
    return fitting
