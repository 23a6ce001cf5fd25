"""Runs that stop before their end, after a whole step and with a checkpoint: on Ctrl-C, SIGTERM or ``max_steps``."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from noiseproof.strategies import Run
from noiseproof.train.checkpoint import Checkpointer


class Interrupted(RuntimeError):
    """The run was stopped before its end; its checkpoint holds the whole state."""


@dataclass
class StopRequest:
    """Whether runs should stop."""

    requested: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one raises KeyboardInterrupt.

    Only the main thread can receive signals: in any other the request is never made.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: Any) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_runs(loggers: Iterable[Any]) -> Iterator[None]:
    """End the runs of tracking services with the training, so that the next one of the process has its own."""
    status = "failed"
    try:
        yield
        status = "success"
    except (Interrupted, KeyboardInterrupt):
        status = "interrupted"
        raise
    finally:
        for logger in loggers:
            if getattr(logger, "is_service", False):
                logger.finalize(status)


class Stopper:
    """Ends a run where that is requested, or after ``max_steps``."""

    def __init__(self, run: Run, checkpointer: Checkpointer, stop: StopRequest, max_steps: int | None) -> None:
        self.run, self.checkpointer, self.stop = run, checkpointer, stop
        self.last_step = math.inf if max_steps is None else run.step + max_steps

    def check_step(self, done: int, steps: int) -> None:
        """Stop after ``done`` of the epoch's ``steps``; not before the first, whose hooks would be called again."""
        run = self.run
        is_last = done == steps and run.epoch + 1 == run.epochs
        is_requested = self.stop.requested and run.processes.world_size == 1  # several processes can only stop together
        if done and (is_requested or (run.step >= self.last_step and not is_last)):
            self._stop(done, f"step {run.step} in epoch {run.epoch + 1}")

    def check_epoch(self) -> None:
        """Stop several processes together, if any of them should stop."""
        run = self.run
        if run.processes.world_size > 1 and run.epoch < run.epochs and run.processes.any(self.stop.requested):
            self._stop(0, f"epoch {run.epoch}")

    def _stop(self, position: int, where: str) -> None:
        self.checkpointer.save(position)
        has_folder = self.checkpointer.folder is not None
        remedy = "Resume to continue." if has_folder else "Nothing was saved: no folder was given."
        raise Interrupted(f"Stopped after {where} of {self.run.epochs}. {remedy}")
