"""Runs that stop before their end: on Ctrl-C, SIGTERM or ``max_steps``, after a whole step and with
a checkpoint.

A run whose loss or weights are not finite ends with the step, the likely cause and a way back.
"""

import math
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from noiseproof.strategies import Batch, Run, Step
from noiseproof.train.checkpoint import latest

CHECK_EVERY = 50  # steps after which several processes compare whether their losses are finite


class Diverged(RuntimeError):
    """Loss or weights are not finite."""


class DivergenceGuard:
    """Counts the steps up to the first loss that is not finite, on the device, and raises
    ``Diverged``.
    """

    def __init__(self, run: Run, folder: Path | None) -> None:
        self.run = run
        self.folder = folder
        # of all losses: once NaN, it stays NaN
        self.total = torch.zeros((), dtype=torch.float64, device=run.device)
        self.good_steps = torch.zeros((), dtype=torch.int64, device=run.device)

    def restore(self) -> None:
        """Count from the step of the run, which a checkpoint has set."""
        self.good_steps.fill_(self.run.step)

    def observe(self, batch: Batch, step: Step) -> None:
        """Count a step, without waiting for the device."""
        self.total += step.losses.sum()
        self.good_steps += self.total * 0 == 0

    def observe_weights(self) -> None:
        """Discount the last step where it left weights that are not finite, which only the next
        loss would show.
        """
        every = (v for model in self.run.models for v in model.plain.state_dict().values())
        # a process may have no share of a weight
        values = [v for v in every if v.is_floating_point() and v.numel()]
        bad = ~torch.isfinite(torch.stack(torch._foreach_norm(values, math.inf))).all()
        self.good_steps -= (bad & (self.good_steps == self.run.step)).to(self.good_steps.dtype)

    def check_step(self) -> None:
        """Check after every step on a CPU, where it is free; several processes now and then; a GPU
        not at all.
        """
        if self.run.processes.world_size == 1:
            is_due = self.run.device.type == "cpu"
        else:
            is_due = self.run.step % CHECK_EVERY == 0
        if is_due:
            self.check()

    def check(self) -> None:
        """Raise ``Diverged`` where a loss was not finite, with the likely cause."""
        good_steps = -int(self.run.processes.max(-self.good_steps))
        if good_steps == self.run.step:
            return
        lr = float(self.run.models[0].optimizer.param_groups[0]["lr"])
        noisy = [str(strategy) for strategy in self.run.strategies if strategy.sigma]
        causes = [
            f"a learning rate too large ({lr:g})",
            *(f"too much noise ({strategy})" for strategy in noisy),
        ]
        raise self.error(good_steps, f"Likely: {' or '.join(causes)}. Lower it, or clip gradients.")

    def error(self, good_steps: int, cause: str) -> Diverged:
        """Return the error of a run that diverged after ``good_steps``."""
        last = None if self.folder is None else latest(self.folder / "checkpoints")
        return Diverged(
            f"Loss or weights are not finite at step {good_steps + 1} (epoch {self.run.epoch + 1})."
            f" {cause} "
            + (f"The last good checkpoint is {last}." if last else "No checkpoint was saved.")
        )


class Interrupted(RuntimeError):
    """The run was stopped before its end; its checkpoint holds the whole state."""


@dataclass
class StopRequest:
    """Whether runs should stop."""

    requested: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request to stop.

    A second one raises KeyboardInterrupt.

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
    """End the runs of tracking services with the training, so that the next one of the process has
    its own.
    """
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
