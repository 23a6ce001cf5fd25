"""The one training loop.

Every method is a loss, a head and strategies that it calls at fixed points.

rows of the epoch → batch → targets → models → outputs → revise → losses (M, b) → weights →
penalties → backward → gradients → clip → optimiser's step → after_step
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_count
from noiseproof.core.cluster import threads_for
from noiseproof.core.tensors import new_stream, until_done
from noiseproof.data.base import shuffled
from noiseproof.strategies import Run, Strategy
from noiseproof.train.checkpoint import latest, load, sole_writer
from noiseproof.train.checkpointer import Checkpointer, Stopper, load_state
from noiseproof.train.executor import Executor, make_executor
from noiseproof.train.guard import DivergenceGuard, StopRequest, ending_runs, stop_on_signals
from noiseproof.train.job import (
    EpochProgress,
    Job,
    architecture,
    build,
    needs_two_rows,
    run_config,
    step_work,
)
from noiseproof.train.methods import Method
from noiseproof.train.record import VISIBLE, Metrics, best_epoch
from noiseproof.train.schedule import Factor
from noiseproof.train.settings import Settings, make_fabric
from noiseproof.train.step import AT_ONCE, Stepper, call_hook
from noiseproof.train.task import Task

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

EPOCHS = {  # of a result, by their property: how they were chosen
    "last": "last",
    "best": "best by noisy validation",
    "best_clean": "best by clean validation",
    "best_true": "best by true labels of held-out rows",  # which are unknown in practice
    "oracle": "oracle",
}


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run. The last epoch, the best by noisy or clean validation and the oracle's are
    different things.
    """

    metrics: list[Metrics]  # of each epoch
    run: Run
    strategies: tuple[Strategy, ...] = ()  # of the method, with their state
    stopped: str | None = None  # why it ended before its last epoch, if it did
    new_steps: int = 0  # made by this call: 0 if the run in its folder was finished

    @property
    def last(self) -> Metrics:
        """The last epoch, which the papers report."""
        return self.metrics[-1]

    @property
    def best(self) -> Metrics | None:
        """The epoch that a user would choose: the best accuracy on noisy validation labels."""
        return best_epoch(self.metrics, "validation_accuracy")

    @property
    def best_clean(self) -> Metrics | None:
        """The epoch of the best accuracy on the dataset's own validation rows, whose labels are
        taken as correct.
        """
        return best_epoch(self.metrics, "clean_validation_accuracy")

    @property
    def best_true(self) -> Metrics | None:
        """The epoch of the best accuracy on the true labels of held-out rows, which are unknown
        in practice.
        """
        return best_epoch(self.metrics, "validation_accuracy_clean")

    @property
    def oracle(self) -> Metrics | None:
        """The epoch of the best test accuracy, which is unknown in practice."""
        return best_epoch(self.metrics, "test_accuracy")

    @property
    def models(self) -> list[nn.Module]:
        """The models that predict, two for methods that train two."""
        return self.run.evaluated


def train(
    task: Task,
    method: Method | str = "ce",
    settings: Settings | None = None,
    *,
    seed: int = 0,
    fabric: Fabric | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: bool = False,
    progress: EpochProgress | None = None,
    max_steps: int | None = None,
) -> Result:
    """Train ``method`` on ``task``.

    With ``out``, the folder for record and checkpoints, a run can be resumed exactly.

    Args:
        seed: of weights, batches, augmentation and the draws of the method; the noise has the seed
            of the task.
        fabric: device, precision, number of processes; by default the CPU, or a GPU where there is
            one.
        resume: continue from the last checkpoint in ``out``; start a new run if there is none.
        samples: record margin, weight and prediction of every sample in every epoch.
        max_steps: stop with a checkpoint after this number of steps.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> result = train(
    ...     task, "gce:q=0.7 & momentum:alpha=0.9", Settings(epochs=2, model="mlp:hidden=[16]")
    ... )
    >>> # no rows were held out to choose an epoch by
    >>> [row["epoch"] for row in result.metrics], result.best
    ([1, 2], None)
    """
    if max_steps is not None:
        check_count("max_steps", max_steps, 1)
    fabric = fabric or make_fabric(accelerator="auto", devices=1)
    job = Job(task, method, settings or Settings(), seed, out, samples, progress)
    with (
        ending_runs(fabric.loggers),
        stop_on_signals() as stop,
        torch.cuda.stream(new_stream(fabric.device)),
    ):
        steps = training(
            job, fabric, resume=resume, max_steps=max_steps, stop=stop, limit_threads=threads_for
        )
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                result: Result = finished.value
                return result


def training(
    job: Job,
    fabric: Fabric,
    *,
    resume: bool = False,
    max_steps: int | None = None,
    stop: StopRequest | None = None,
    make_executor: Callable[[Stepper], Executor] = make_executor,
    clock: Callable[[], float] = time.perf_counter,
    limit_threads: Callable[[float], AbstractContextManager[object]] = nullcontext,
) -> Generator[None, None, Result]:
    """``train`` one step at a time, so that several runs can take turns.

    ``clock`` counts the seconds of the record.

    ``limit_threads`` gets the work of a step; runs that take turns share the threads of their
    process.
    """
    fabric.launch()
    method, run, record = build(job, fabric, clock)
    with sole_writer(job.folder, fabric):
        settings = job.settings
        report = job.progress or (lambda *_: None)
        guard = DivergenceGuard(run, job.folder)
        checkpointer = Checkpointer(
            job.folder, run_config(job, method, run), run, record, guard, settings
        )
        done = checkpointer.restore(resume, str(job.method))  # steps of the current epoch
        last_step = math.inf if max_steps is None else run.step + max_steps
        stopper = Stopper(run, checkpointer, stop or StopRequest(), last_step)
        first_step = run.step
        schedule = settings.make_schedule()
        pause_every = 1 if max_steps is not None else settings.checkpoint_steps or AT_ONCE
        observers = (record.observe, guard.observe)
        clip = settings.clip_for(run.loss, run.strategies, job.task)
        stepper = Stepper(run, clip, observers, architecture(job, method), pause_every)

        with (
            limit_threads(step_work(job, run)),
            closing(make_executor(stepper)) as executor,
        ):
            while run.epoch < run.epochs and not run.stopped:
                if not done:
                    record.start_epoch()
                _set_epoch(run, schedule, call_hooks=not done)
                parts = _split(_rows_of_epoch(run), run, settings.drop_last)
                for position in executor.steps(parts, done):
                    if position > done:  # otherwise the run waits for others
                        done = position
                        guard.check_step()
                        checkpointer.check_first_step()
                        report(run.epoch, done, len(parts), None)
                        checkpointer.end_step(done)
                    stopper.check_step(done, len(parts))
                    yield
                done = 0
                guard.observe_weights()
                measured = record.measure()
                # other runs go on while a GPU still computes the steps of this one
                yield from until_done(run.device)
                guard.check()
                metrics = record.end_epoch(measured)
                _end_epoch(run, metrics)
                checkpointer.end_epoch()
                report(run.epoch - 1, len(parts), len(parts), metrics)
                stopper.check_epoch()
        if fabric.device.type == "cuda":
            torch.cuda.synchronize(fabric.device)  # the result may be read on any stream
        return Result(record.metrics, run, method.strategies, run.stopped, run.step - first_step)


def _set_epoch(run: Run, schedule: Factor, call_hooks: bool) -> None:
    """Set what depends on the epoch.

    The hooks of an epoch that is resumed have been called before.
    """
    run.loss.set_epoch(run.epoch)
    run.set_learning_rate(schedule(run.epoch, run.epochs))
    if call_hooks:
        for strategy in run.strategies:
            strategy.start_epoch(run)


def _rows_of_epoch(run: Run) -> Tensor:
    rows = shuffled(
        run.num_rows,
        run.random.generator("order", run.epoch, device="cpu"),
        device=run.data.index.device,
    )
    for strategy in run.strategies:
        rows = call_hook(strategy, "rows", rows, run)
    return rows


def _split(rows: Tensor, run: Run, drop_last: bool) -> tuple[Tensor, ...]:
    """Return the rows of each step, ``run.batch_size`` of them, fewer in the last one."""
    full = run.batch_size
    parts = torch.split(rows, full)
    last = len(parts[-1])
    if drop_last and len(parts) > 1 and last < full:
        return parts[:-1]
    if len(parts) > 1 and last <= run.processes.world_size and needs_two_rows(run):
        # Added to the first step, which is then the largest: a captured one makes room for no more
        # rows later.
        return torch.split(rows, [full + last, *[full] * (len(parts) - 2)])
    return parts


def _end_epoch(run: Run, metrics: Metrics) -> None:
    run.fabric.log_dict({k: v for k, v in metrics.items() if not math.isnan(v)}, step=run.epoch + 1)
    for strategy in run.strategies:
        strategy.end_epoch({name: metrics[name] for name in VISIBLE if name in metrics}, run)
    run.epoch += 1


def reopen(
    task: Task, method: Method, settings: Settings, *, seed: int, fabric: Fabric, folder: str | Path
) -> Result:
    """Return the run in ``folder`` as its last checkpoint has it, for analysis."""
    path = latest(Path(folder, "checkpoints"))
    if path is None:
        raise FileNotFoundError(
            f"Expected a checkpoint in {folder}, got none. "
            "Benchmarks keep theirs with `weights = true` only, in their file."
        )
    fabric.launch()
    method, run, record = build(Job(task, method, settings, seed), fabric)
    load_state(load(path, run.device), run, record)
    return Result(record.metrics, run, method.strategies, run.stopped)
