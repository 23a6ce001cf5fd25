"""When a run is saved, how it is restored, and where it stops."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noiseproof.strategies import Run
from noiseproof.train.checkpoint import (
    BEST,
    SHARES,
    BadCheckpoint,
    check_states,
    latest,
    load_last_good,
    save,
    take_tensors,
    write_tensors,
)
from noiseproof.train.guard import DivergenceGuard, Interrupted, StopRequest
from noiseproof.train.job import DATA
from noiseproof.train.record import Record
from noiseproof.train.settings import Settings


@dataclass(eq=False)
class Checkpointer:
    """Saves the state of a run in its folder whenever that is due, and restores it."""

    folder: Path | None
    config: dict[str, Any]
    run: Run
    record: Record
    guard: DivergenceGuard
    settings: Settings

    def __post_init__(self) -> None:
        self.best = dict.fromkeys(BEST, -math.inf)
        self.is_first_step = True  # of this call
        self.saved_at = time.monotonic()
        # epoch and position of the last checkpoint of this call
        self.saved: tuple[int, int] | None = None

    def restore(self, resume: bool, name: str) -> int:
        """Load the last checkpoint, or begin a new run; ``name`` describes it in its folder.

        Returns the steps of the epoch done.
        """
        if self.folder is None:
            return 0
        is_first = self.run.processes.rank == 0
        path = latest(self.folder / "checkpoints")
        if path is None:
            if is_first:
                self._remove_leftovers(self.folder)
                self.record.describe({"name": name, **self.config})
            return 0
        if not resume:
            raise FileExistsError(
                f"Expected a new folder, got {self.folder} with the checkpoint {path.name}. "
                "Resume it, or choose another folder."
            )
        path, state = load_last_good(self.folder / "checkpoints", self.run)
        self._check_config(state["config"], path)
        load_optimizers(state, self.run)
        load_state(state, self.run, self.record)
        self.best = state["best"]
        self.record.start_epoch(state["seconds"])
        self.guard.restore()
        if is_first:  # again, as files may have been damaged since
            self.record.describe({"name": name, **self.config})
            self.record.write_metrics()
        position: int = state["position"]
        return position

    def _check_config(self, saved: dict[str, Any], path: Path) -> None:
        """Refuse to resume with other data, settings or code."""
        for key in self.config | saved:
            if self.config.get(key) != saved.get(key):
                same = "settings and code"
                if key in DATA:
                    same = f"{DATA[key][0]}, which changed since,"
                raise BadCheckpoint(
                    f"Expected {key}={saved.get(key)!r} to resume {path}, got"
                    f" {self.config.get(key)!r}. Resume with the same {same} or choose another"
                    " folder."
                )

    def _remove_leftovers(self, folder: Path) -> None:
        """Remove what another run left that had no checkpoint yet."""
        if (folder / "run.json").exists():
            weights = [f"{name}.safetensors" for name in BEST]
            for pattern in (*weights, "record.csv", "samples/epoch-*.safetensors"):
                for file in folder.glob(pattern):
                    file.unlink()

    def check_first_step(self) -> None:
        """Refuse a state that no file can hold after the first step, not after hours."""
        if self.folder is not None and self.is_first_step:
            check_states(self.run)
        self.is_first_step = False

    def end_step(self, position: int) -> None:
        """Save every ``checkpoint_steps`` steps; ``position`` steps of the epoch are done."""
        every = self.settings.checkpoint_steps
        if every is not None and self.run.step % every == 0:
            self.save(position)

    def end_epoch(self) -> None:
        """Save the best models by noisy and by clean validation, and a checkpoint where the last
        one is old.
        """
        run = self.run
        if self.folder is None:
            return
        for name, metric in BEST.items():
            accuracy = self.record.metrics[-1].get(metric, -math.inf)
            if accuracy > self.best[name]:
                self.best[name] = accuracy
                if run.processes.rank == 0 and not run.is_split:  # else it has only its share
                    tensors: dict[str, Tensor] = {}
                    take_tensors([m.state_dict() for m in run.evaluated], tensors, "models")
                    write_tensors(self.folder / f"{name}.safetensors", tensors)
        is_last = run.epoch == run.epochs or run.stopped is not None
        is_due = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
        if run.processes.world_size > 1:
            is_due = run.fabric.broadcast(is_due)
        if is_last or is_due:
            self.save(0)

    def save(self, position: int) -> None:
        """Write a checkpoint, ``position`` steps into the epoch.

        A run that has diverged raises instead.
        """
        run = self.run
        self.guard.observe_weights()
        self.guard.check()
        # due in the very step of a stop
        if self.folder is None or self.saved == (run.epoch, position):
            return
        state = {
            "config": self.config,
            "epoch": run.epoch,
            "position": position,
            "seconds": self.record.seconds,  # of that epoch
            "step": run.step,
            "stopped": run.stopped,
            "best": self.best,
            "models": [model.plain.state_dict() for model in run.models],
            "optimizers": [model.optimizer.state_dict()["state"] for model in run.models],
            "loss": run.loss.state_dict(),
            "strategies": [strategy.state_dict() for strategy in run.strategies],
            "record": self.record.state_dict(),
        }
        self.saved_at = time.monotonic()
        self.saved = (run.epoch, position)
        folder = self.folder / "checkpoints"
        rank = run.processes.rank
        if run.is_split:  # a checkpoint counts with the file of the first process, which comes last
            if rank:
                save(folder, run.step, {name: state[name] for name in SHARES}, rank)
            run.fabric.barrier()
        if rank == 0:
            save(folder, run.step, state)
        run.fabric.barrier()


def load_state(state: dict[str, Any], run: Run, record: Record) -> None:
    """Load the models, loss, strategies and record of a checkpoint."""
    for model, saved in zip(run.models, state["models"], strict=True):
        model.plain.load_state_dict(saved)
    run.loss.load_state_dict(state["loss"])
    for strategy, saved in zip(run.strategies, state["strategies"], strict=True):
        strategy.load_state_dict(saved)
    record.load_state_dict(state["record"])
    run.epoch = state["epoch"]
    run.step = state["step"]
    run.stopped = state["stopped"]


def load_optimizers(state: dict[str, Any], run: Run) -> None:
    """Load the state of the optimisers, in the memory layout of the weights, which on a GPU is not
    the layout of the file.
    """
    for model, saved in zip(run.models, state["optimizers"], strict=True):
        optimizer = model.optimizer
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
        for weight, values in optimizer.state.items():
            values |= {
                name: torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
                for name, value in values.items()
                if isinstance(value, Tensor) and value.shape == weight.shape
            }


@dataclass(eq=False)
class Stopper:
    """Ends a run where that is requested, or after ``last_step``."""

    run: Run
    checkpointer: Checkpointer
    stop: StopRequest
    last_step: float  # infinity: no limit

    def check_step(self, done: int, steps: int) -> None:
        """Stop after ``done`` of the epoch's ``steps``.

        Not before the first, whose hooks would be called again.
        """
        run = self.run
        is_last = done == steps and run.epoch + 1 == run.epochs
        # several processes can only stop together
        is_requested = self.stop.requested and run.processes.world_size == 1
        if done and (is_requested or (run.step >= self.last_step and not is_last)):
            self._stop(done, f"step {run.step} in epoch {run.epoch + 1}")

    def check_epoch(self) -> None:
        """Stop several processes together, if any of them should stop."""
        run = self.run
        if (
            run.processes.world_size > 1
            and run.epoch < run.epochs
            and run.processes.any(self.stop.requested)
        ):
            self._stop(0, f"epoch {run.epoch}")

    def _stop(self, position: int, where: str) -> None:
        self.checkpointer.save(position)
        has_folder = self.checkpointer.folder is not None
        remedy = "Resume to continue." if has_folder else "Nothing was saved: no folder was given."
        raise Interrupted(f"Stopped after {where} of {self.run.epochs}. {remedy}")
