"""The files of a run: checkpoints, and all that is written whole or not at all.

A file is one safetensors file with everything that is no tensor as JSON in its header; never a
pickle.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from noiseproof.core import files
from noiseproof.core.files import Lock, describe_holder, last_holder
from noiseproof.strategies import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # its import takes a second, and audits do without it

FORMAT = "noiseproof-checkpoint-2"
SHARES = ("models", "optimizers")  # what each process has a share of, in FSDP
LOCK = ".lock"  # held by the process that trains in the folder
KEEP = 2  # the last good one and the one before it
# files of weights, by their metric
BEST = {"best": "validation_accuracy", "best_clean": "clean_validation_accuracy"}
_NAME = re.compile(r"step-(\d+)\.safetensors")
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)

log = logging.getLogger("noiseproof")


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used: truncated, of another program, or of another run."""


@contextmanager
def sole_writer(folder: Path | None, fabric: Fabric) -> Iterator[None]:
    """Hold the lock of the folder of a run; refuse one in which another process trains."""
    lock = None
    refusal = ""
    if folder is not None and fabric.is_global_zero:
        files.check_place(folder, folder=True)
        with _writing(folder / LOCK):
            lock = Lock(folder / LOCK)
        if not lock.held:
            refusal = (
                f"Expected a folder in which no other process trains, got {folder}, in which"
                f" {describe_holder(last_holder(folder / LOCK))} does. Wait for it, stop it, or"
                " choose another folder."
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


def save(folder: Path, step: int, state: dict[str, Any], share: int = 0) -> Path:
    """Write ``state``, a tree of tensors and plain values, as ``step-N.safetensors``: whole, or not
    at all.

    Other processes than the first write their ``share`` of the weights,
    ``step-N.share-1.safetensors``.
    """
    tensors: dict[str, Tensor] = {}
    tree = take_tensors(state, tensors)
    path = _share(folder / f"step-{step:09d}.safetensors", share)
    write_tensors(path, tensors, {"format": FORMAT, "tree": json.dumps(tree)})
    if share:
        return path
    for old in checkpoints(folder)[:-KEEP]:
        for file in (old, *folder.glob(f"{old.stem}.share-*.safetensors")):
            file.unlink(missing_ok=True)
    return path


def check_states(run: Run) -> None:
    """Refuse a strategy whose state no file can hold."""
    for strategy in run.strategies:
        try:
            json.dumps(take_tensors(strategy.state_dict(), {}))
        except TypeError as error:
            raise TypeError(
                f"Expected tensors and plain values in `state_dict` of the strategy `{strategy}`,"
                f" got: {error}."
            ) from None


def _share(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}.share-{rank}.safetensors") if rank else path


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read back what ``save`` wrote, onto ``device``; refuse anything else."""
    try:
        return _read(path, device)
    except UNREADABLE as error:
        raise BadCheckpoint(
            f"Expected a checkpoint of noiseproof in {path}, got: {error}. Use another one of the"
            " folder, or start a new run."
        ) from error


def load_last_good(folder: Path, run: Run) -> tuple[Path, dict[str, Any]]:
    """Return the last checkpoint that is whole, with its path; damaged ones after it get other
    names.
    """
    rank = run.processes.rank
    error: Exception = ValueError("no checkpoint")
    for path in reversed(checkpoints(folder)):
        damage: Exception | None = None
        state: dict[str, Any] = {}
        try:
            state = _read(path, run.device)
            if run.is_split and rank:
                state |= _read(_share(path, rank), run.device)
        except UNREADABLE as unreadable:
            damage = unreadable
        if run.is_split and run.processes.any(damage is not None):
            damage = damage or ValueError("a share of another process is damaged")
        if damage is None:
            return path, state
        error = damage
        if rank == 0:
            log.warning("%s is damaged and left out: %s", path, damage)
            with suppress(OSError):  # it is skipped the next time, too
                path.replace(path.with_suffix(".damaged"))
    raise BadCheckpoint(
        f"Expected a checkpoint of noiseproof in {folder}, got: {error}. There is no other one:"
        " start a new run."
    ) from error


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.safetensors"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match)]


def latest(folder: Path) -> Path | None:
    """Return the last checkpoint in ``folder``."""
    return next(reversed(checkpoints(folder)), None)


def write_tensors(
    path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None
) -> None:
    """Write a safetensors file with its checksum: whole and on the disk, or not at all."""
    with _writing(path):
        files.write_tensors(path, tensors, header)


def write_text(path: Path, text: str) -> None:
    """Write a small file: whole and on the disk, or not at all."""
    with _writing(path), files.replacing(path) as part:
        part.write_text(text, "utf-8")


def write_checked(path: Path, text: str) -> None:
    """Write a small file, and its checksum next to it: whole and on the disk, or not at all."""
    with _writing(path):
        files.write_checked(path, text)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_full = any(words in str(error) for words in ("No space left", "quota", "too large"))
        remedy = "Free some space" if is_full else "Make the folder writable"
        raise OSError(f"Expected to write {path}, got: {error}. {remedy} and resume.") from error


def to_json(value: Any) -> str:
    """Return plain values as readable JSON."""
    return json.dumps(value, indent=2, default=str) + "\n"


def _read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    tensors, header = files.read_tensors(path, device)
    if header.get("format") != FORMAT:
        raise ValueError(f"the format {header.get('format')!r} instead of {FORMAT!r}")
    tree: dict[str, Any] = _put_tensors(json.loads(header["tree"]), tensors)
    return tree


def take_tensors(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """Return ``value`` as JSON can hold it, its tensors moved to ``tensors`` under their dotted
    names.
    """
    if isinstance(value, Tensor):
        while name in tensors:  # {"a.b": …, "a": {"b": …}}
            name += "'"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if isinstance(value, dict):
        # Pairs: JSON would turn keys that are numbers into strings, and safetensors sorts its keys.
        items = [
            [key, take_tensors(v, tensors, f"{name}.{key}" if name else str(key))]
            for key, v in value.items()
        ]
        return {"$dict": items}
    if isinstance(value, (list, tuple)):
        return [take_tensors(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
    return value


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {key: _put_tensors(v, tensors) for key, v in value["$dict"]}
    if isinstance(value, list):
        return [_put_tensors(v, tensors) for v in value]
    return value
