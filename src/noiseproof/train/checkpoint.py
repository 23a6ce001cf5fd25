"""Checkpoints: one safetensors file each, with everything that is no tensor as JSON in its header; never a pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from noiseproof.core.files import replacing

FORMAT = "noiseproof-checkpoint-1"
KEEP = 2  # the last good one and the one before it
_NAME = re.compile(r"step-(\d+)\.safetensors")


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used: truncated, foreign, or of another run."""


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state``, a tree of tensors and plain values, as ``step-N.safetensors``: whole, or not at all."""
    tensors: dict[str, Tensor] = {}
    tree = _take_tensors(state, tensors)
    path = folder / f"step-{step:09d}.safetensors"
    try:
        write_tensors(path, tensors, {"format": FORMAT, "tree": json.dumps(tree)})
    except OSError as error:
        good = latest(folder)
        last = f"The last good checkpoint is {good}." if good else "There is no earlier checkpoint."
        raise OSError(f"{error} {last}") from error
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read back what ``save`` wrote, onto ``device``; refuse anything else, naming the last good one beside it."""
    try:
        return _read(path, device)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        others = [other for other in checkpoints(path.parent) if other != path and _is_good(other)]
        remedy = f"The last good one is {others[-1]}." if others else "There is no other one: start anew."
        raise BadCheckpoint(f"Expected a checkpoint of noiseproof in {path}, got: {error}. {remedy}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("*.safetensors") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest(folder: Path) -> Path | None:
    """The last checkpoint in ``folder``."""
    return checkpoints(folder)[-1] if checkpoints(folder) else None


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> None:
    """Write a safetensors file: whole and on the disk, or not at all."""
    with _replacing(path) as part:
        save_file(tensors, part, header)


def write_text(path: Path, text: str) -> None:
    """Write a small file: whole and on the disk, or not at all."""
    with _replacing(path) as part:
        part.write_text(text, "utf-8")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    try:
        with replacing(path) as part:
            yield part
    except (OSError, SafetensorError) as error:
        raise OSError(f"Expected to write {path}, got: {error}. Free some space and resume.") from error


def to_json(value: Any) -> str:
    """Plain values as readable JSON."""
    return json.dumps(value, indent=2, default=str) + "\n"


def _read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    with safe_open(path, "pt", str(device)) as file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise ValueError(f"the format {header.get('format')!r} instead of {FORMAT!r}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tree: dict[str, Any] = _put_tensors(json.loads(header["tree"]), tensors)
    return tree


def _is_good(path: Path) -> bool:
    try:
        return bool(_read(path))
    except (OSError, SafetensorError, ValueError, KeyError):
        return False


def _take_tensors(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """``value`` as JSON can hold it, its tensors moved to ``tensors`` under their dotted names."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a.b": …, "a": {"b": …}}
            name += "'"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if isinstance(value, dict):
        # Pairs: JSON would make words of keys that are numbers, and safetensors has an order of its own.
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
