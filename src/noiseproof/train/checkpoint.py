"""Checkpoints: when a run is saved, how it is restored, and the files.

A file is one safetensors file with everything that is no tensor as JSON in its header; never a pickle.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from noiseproof.core import files
from noiseproof.core.files import Lock, describe_holder, last_holder
from noiseproof.strategies import Run
from noiseproof.train.job import DATA
from noiseproof.train.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # its import takes a second, and audits do without it

    from noiseproof.train.guard import DivergenceGuard  # both use the functions below
    from noiseproof.train.record import Record

FORMAT = "noiseproof-checkpoint-2"
SHARES = ("models", "optimizers")  # what each process has a share of, in FSDP
LOCK = ".lock"  # held by the process that trains in the folder
KEEP = 2  # the last good one and the one before it
BEST = {"best": "validation_accuracy", "best_clean": "clean_validation_accuracy"}  # files of weights, by their metric
_NAME = re.compile(r"step-(\d+)\.safetensors")
_UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError)

log = logging.getLogger("noiseproof")


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used: truncated, of another program, or of another run."""


@contextmanager
def sole_writer(folder: Path | None, fabric: Fabric) -> Iterator[None]:
    """Hold the lock of the folder of a run; refuse one in which another process trains."""
    lock, refusal = None, ""
    if folder is not None and fabric.is_global_zero:
        files.check_place(folder, folder=True)
        with _writing(folder / LOCK):
            lock = Lock(folder / LOCK)
        if not lock.held:
            refusal = (
                f"Expected a folder in which no other process trains, got {folder}, in which "
                f"{describe_holder(last_holder(folder / LOCK))} does. Wait for it, stop it, or choose another folder."
            )
    if folder is not None and fabric.world_size > 1:
        refusal = fabric.broadcast(refusal)
    if refusal:
        raise BlockingIOError(refusal)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


class Checkpointer:
    """Saves the state of a run in its folder whenever that is due, and restores it."""

    def __init__(
        self,
        folder: Path | None,
        config: dict[str, Any],
        run: Run,
        record: Record,
        guard: DivergenceGuard,
        settings: Settings,
    ) -> None:
        self.folder, self.config = folder, config
        self.run, self.record, self.guard, self.settings = run, record, guard, settings
        self.best = dict.fromkeys(BEST, -math.inf)
        self.saved_at = time.monotonic()
        self.saved: tuple[int, int] | None = None  # epoch and position of the last checkpoint of this call
        self.is_first_step = True

    def restore(self, resume: bool, name: str) -> int:
        """Load the last checkpoint, or describe a new run of that ``name``; returns the steps of the epoch done."""
        is_first = self.run.processes.rank == 0
        path = None if self.folder is None else latest(self.folder / "checkpoints")
        if self.folder is None or path is None:
            if self.folder is not None and is_first:
                self._begin(self.folder, name)
            return 0
        if not resume:
            raise FileExistsError(
                f"Expected a new folder, got {self.folder} with the checkpoint {path.name}. "
                "Resume it, or choose another folder."
            )
        path, state = load_last_good(self.folder / "checkpoints", self.run)
        saved = state["config"]
        for key in self.config | saved:
            if self.config.get(key) != saved.get(key):
                same = f"{DATA[key]}, which changed since," if key in DATA else "settings and code"
                raise BadCheckpoint(
                    f"Expected {key}={saved.get(key)!r} to resume {path}, got {self.config.get(key)!r}. "
                    f"Resume with the same {same} or choose another folder."
                )
        load_optimizers(state, self.run)
        load_state(state, self.run, self.record)
        self.best = state["best"]
        self.record.start_epoch(state["seconds"])
        self.guard.restore()
        if is_first:
            self._mend(self.folder, name)
        position: int = state["position"]
        return position

    def _mend(self, folder: Path, name: str) -> None:
        """Write what is damaged in the folder again; the checkpoint and the task have all of it."""
        try:
            files.check_files(folder, "run.json", "record.csv")
            files.read_tensors(folder / "labels.safetensors")
        except _UNREADABLE as error:
            log.warning("Files in %s are damaged and are written again: %s", folder, error)
            self.record.describe({"name": name, **self.config})
            self.record.write_metrics()

    def _begin(self, folder: Path, name: str) -> None:
        """Describe a new run, without what another run left that had no checkpoint yet."""
        if (folder / "run.json").exists():
            weights = [f"{name}.safetensors" for name in BEST]
            for pattern in (*weights, "record.csv", "samples/epoch-*.safetensors"):
                for file in folder.glob(pattern):
                    file.unlink()
        self.record.describe({"name": name, **self.config})

    def check_first_step(self) -> None:
        """After the first step, raise an error for a state that no file can hold, not after hours of training."""
        if self.folder is not None and self.is_first_step:
            strategy_states(self.run)
        self.is_first_step = False

    def end_step(self, position: int) -> None:
        """Save every ``checkpoint_steps`` steps; ``position`` steps of the epoch are done."""
        if self.folder is None:
            return
        every = self.settings.checkpoint_steps
        if every is not None and self.run.step % every == 0:
            self.save(position)

    def end_epoch(self) -> None:
        """Save the best models by noisy and by clean validation, and a checkpoint where the last one is old."""
        run = self.run
        if self.folder is None:
            return
        for name, metric in BEST.items():
            accuracy = self.record.metrics[-1].get(metric, -math.inf)
            if accuracy > self.best[name]:
                self.best[name] = accuracy
                if run.processes.rank == 0 and not run.is_split:  # else it has only its share
                    self._write_models(self.folder / f"{name}.safetensors")
        is_last = run.epoch == run.epochs or run.stopped is not None
        is_due = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
        if run.processes.world_size > 1:
            is_due = run.fabric.broadcast(is_due)
        if is_last or is_due:
            self.save(0)

    def _write_models(self, path: Path) -> None:
        models = enumerate(self.run.evaluated)
        write_tensors(path, {f"models.{m}.{name}": value for m, model in models for name, value in _cpu_state(model)})

    def save(self, position: int) -> None:
        """Write a checkpoint, ``position`` steps into the epoch; a run that has diverged raises instead."""
        run = self.run
        self.guard.observe_weights()
        self.guard.check()
        if self.folder is None or self.saved == (run.epoch, position):  # due in the very step of a stop
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
            "strategies": strategy_states(run),
            "record": self.record.state_dict(),
        }
        self.saved_at, self.saved = time.monotonic(), (run.epoch, position)
        folder, rank = self.folder / "checkpoints", run.processes.rank
        if run.is_split:  # a checkpoint counts with the file of the first process, which comes last
            if rank:
                save(folder, run.step, {name: state[name] for name in SHARES}, rank)
            run.fabric.barrier()
        if rank == 0:
            save(folder, run.step, state)
        run.fabric.barrier()


def strategy_states(run: Run) -> list[dict[str, Any]]:
    """The ``state_dict`` of each strategy; refuses values that a checkpoint cannot hold."""
    states = [strategy.state_dict() for strategy in run.strategies]
    for strategy, state in zip(run.strategies, states, strict=True):
        try:
            json.dumps(state, default=lambda v: None if isinstance(v, Tensor) else json.JSONEncoder().default(v))
        except TypeError as error:
            raise TypeError(
                f"Expected tensors and plain values in `state_dict` of the strategy `{strategy}`, got: {error}."
            ) from None
    return states


def load_state(state: dict[str, Any], run: Run, record: Record) -> None:
    """Load the models, loss, strategies and record of a checkpoint."""
    for model, saved in zip(run.models, state["models"], strict=True):
        model.plain.load_state_dict(saved)
    run.loss.load_state_dict(state["loss"])
    for strategy, saved in zip(run.strategies, state["strategies"], strict=True):
        strategy.load_state_dict(saved)
    record.load_state_dict(state["record"])
    run.epoch, run.step, run.stopped = state["epoch"], state["step"], state["stopped"]


def load_optimizers(state: dict[str, Any], run: Run) -> None:
    """Load the state of the optimisers, in the memory layout of the weights, which on a GPU is not that of a file."""
    for model, saved in zip(run.models, state["optimizers"], strict=True):
        optimizer = model.optimizer
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
        for weight, values in optimizer.state.items():
            values |= {
                name: torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
                for name, value in values.items()
                if isinstance(value, Tensor) and value.shape == weight.shape
            }


def _cpu_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    copies = ((name, value.detach().cpu()) for name, value in model.state_dict().items())
    return ((name, value.clone(memory_format=torch.contiguous_format)) for name, value in copies)  # some may be tied


def save(folder: Path, step: int, state: dict[str, Any], share: int = 0) -> Path:
    """Write ``state``, a tree of tensors and plain values, as ``step-N.safetensors``: whole, or not at all.

    Other processes than the first write their ``share`` of the weights, ``step-N.share-1.safetensors``.
    """
    tensors: dict[str, Tensor] = {}
    tree = _take_tensors(state, tensors)
    path = _share(folder / f"step-{step:09d}.safetensors", share)
    try:
        write_tensors(path, tensors, {"format": FORMAT, "tree": json.dumps(tree)})
    except OSError as error:
        good = latest(folder)
        last = f"The last good checkpoint is {good}." if good else "There is no earlier checkpoint."
        raise OSError(f"{error} {last}") from error
    for old in checkpoints(folder)[:-KEEP] if not share else ():
        for file in (old, *folder.glob(f"{old.stem}.share-*.safetensors")):
            file.unlink(missing_ok=True)
    return path


def _share(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}.share-{rank}.safetensors") if rank else path


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read back what ``save`` wrote, onto ``device``; refuse anything else, naming the last good one beside it."""
    try:
        return _read(path, device)
    except _UNREADABLE as error:
        others = [other for other in checkpoints(path.parent) if other != path and _is_good(other)]
        remedy = f"The last good one is {others[-1]}." if others else "There is no other one: start a new run."
        raise BadCheckpoint(f"Expected a checkpoint of noiseproof in {path}, got: {error}. {remedy}") from error


def load_last_good(folder: Path, run: Run) -> tuple[Path, dict[str, Any]]:
    """The last checkpoint that is whole, with its path; later ones are damaged and get other names."""
    damaged: dict[Path, Exception] = {}
    rank = run.processes.rank
    for path in reversed(checkpoints(folder)):
        try:
            state = _read(path, run.device)
            if run.is_split and rank:
                state |= _read(_share(path, rank), run.device)
        except _UNREADABLE as error:
            damaged[path] = error
        if run.is_split and run.processes.any(path in damaged):
            damaged.setdefault(path, ValueError("a share of another process is damaged"))
        if path in damaged:
            continue
        for other, why in damaged.items() if rank == 0 else ():
            log.warning("%s is damaged (%s): the run goes on from the one before it, %s.", other, why, path.name)
            with suppress(OSError):  # it is skipped the next time, too
                other.replace(other.with_suffix(".damaged"))
        return path, state
    path, why = next(iter(damaged.items()))
    raise BadCheckpoint(
        f"Expected a checkpoint of noiseproof in {path}, got: {why}. There is no other one: start a new run."
    ) from why


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.safetensors"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match)]


def latest(folder: Path) -> Path | None:
    """The last checkpoint in ``folder``."""
    return checkpoints(folder)[-1] if checkpoints(folder) else None


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> None:
    """Write a safetensors file with its checksum: whole and on the disk, or not at all."""
    with _writing(path):
        files.write_tensors(path, tensors, header)


def write_text(path: Path, text: str) -> None:
    """Write a small file: whole and on the disk, or not at all."""
    with _writing(path), files.replacing(path) as part:
        part.write_text(text, "utf-8")


def write_checked(path: Path, text: str) -> None:
    """Write a small file, and its checksum beside it: whole and on the disk, or not at all."""
    with _writing(path):
        files.write_checked(path, text)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        is_full = any(words in str(error) for words in ("No space left", "quota", "too large"))
        remedy = "Free some space" if is_full else "Make the folder writable"
        raise OSError(f"Expected to write {path}, got: {error}. {remedy} and resume.") from error


def to_json(value: Any) -> str:
    """Plain values as readable JSON."""
    return json.dumps(value, indent=2, default=str) + "\n"


def _read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    tensors, header = files.read_tensors(path, device)
    if header.get("format") != FORMAT:
        raise ValueError(f"the format {header.get('format')!r} instead of {FORMAT!r}")
    tree: dict[str, Any] = _put_tensors(json.loads(header["tree"]), tensors)
    return tree


def _is_good(path: Path) -> bool:
    try:
        return bool(_read(path))
    except _UNREADABLE:
        return False


def _take_tensors(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """``value`` as JSON can hold it, its tensors moved to ``tensors`` under their dotted names."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a.b": …, "a": {"b": …}}
            name += "'"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if isinstance(value, dict):
        # Pairs: JSON would turn keys that are numbers into strings, and safetensors sorts its keys.
        items = [[key, _take_tensors(v, tensors, f"{name}.{key}" if name else str(key))] for key, v in value.items()]
        return {"$dict": items}
    if isinstance(value, (list, tuple)):
        return [_take_tensors(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
    return value


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {key: _put_tensors(v, tensors) for key, v in value["$dict"]}
    if isinstance(value, list):
        return [_put_tensors(v, tensors) for v in value]
    return value
