"""One file per finished run, one lock per run under way: what several drivers, and the next sitting, agree by.

results/KEY.json            a finished or failed run
results/locks/KEY           held by whoever trains it now
results/runs/KEY/           its record, and checkpoints while it is not finished
"""

from __future__ import annotations

import fcntl
import functools
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof.bench.experiment import Experiment
from noiseproof.train import Result
from noiseproof.train.checkpoint import write_text

Json = dict[str, Any]
_NAME = re.compile(r"[0-9a-f]{16}\.json")


class Lock:
    """The right to train one experiment, which the system takes back from a process that dies, however it does.

    ``held`` says whether it was to be had. The file stays, and names its last holder for people.
    """

    def __init__(self, folder: Path, key: str) -> None:
        path = folder / "locks" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # as long as it is open it is held
        self.held = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self.release()
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}))
        self._file.flush()

    def release(self) -> None:
        self._file.close()
        self.held = False


def holder(folder: Path, key: str) -> Json | None:
    """Who trains an experiment now: process and machine."""
    try:
        with open(folder / "locks" / key, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file.read())
    except FileNotFoundError:
        pass
    return None


def _read_holder(text: str) -> Json:
    try:
        found: Json = json.loads(text)
        return found
    except ValueError:  # read while it was being written
        return {}


def result_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def read_result(folder: Path, key: str) -> Json | None:
    """The result of an experiment, None while there is none."""
    path = result_path(folder, key)
    try:
        found: Json = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # not written by ``write_result``, which leaves no half files
        raise ValueError(f"Expected a result in {path}, got no JSON: {error}. Remove it to run it again.") from None
    if not isinstance(found, dict) or not {"key", "status", "experiment", "provenance"} <= found.keys():
        raise ValueError(f"Expected a result in {path}, got other JSON. Remove it to run it again.")
    return found


def read_results(folder: str | Path) -> dict[str, Json]:
    """All results in ``folder`` by key, failed ones among them (``status``)."""
    names = sorted(path.name for path in Path(folder).glob("*.json") if _NAME.fullmatch(path.name))
    found = ((name[:16], read_result(Path(folder), name[:16])) for name in names)
    return {key: result for key, result in found if result is not None}


def write_result(folder: Path, result: Json) -> None:
    """Write a result, whole or not at all, and drop checkpoints and weights, which nobody needs any more."""
    write_text(result_path(folder, result["key"]), json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if result["status"] == "done":
        run = folder / "runs" / result["key"]
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        (run / "best.safetensors").unlink(missing_ok=True)


def make_result(experiment: Experiment, outcome: Result | Exception, rate: float | None, made_by: Json) -> Json:
    """What is kept of a run: its last, best and oracle's epochs, or why it failed; what it cost and how it was made.

    ``samples`` is how many Het averages over, which the LN paper does not say. ``seconds`` are those of all its epochs,
    over all sittings, and of runs side by side each one's share. ``peak_memory`` is the largest that its process, or
    the GPU
    with all that went on beside it, ever had until then.
    """
    found: Json = {"key": experiment.key, "version": experiment.version, "status": "done", "error": None}
    found |= {"experiment": experiment.as_dict(), "rate": rate, "samples": None}
    if isinstance(outcome, Result):
        found |= {"samples": outcome.run.loss.samples}
        found |= {"epochs": len(outcome.metrics), "stopped": outcome.stopped}
        found |= {"last": outcome.last, "best": outcome.best, "oracle": outcome.oracle}
        found |= {"seconds": sum(row["seconds"] for row in outcome.metrics)}
    else:
        found |= {"status": "failed", "error": f"{type(outcome).__name__}: {outcome}", "epochs": None, "stopped": None}
        found |= {"last": None, "best": None, "oracle": None, "seconds": None}
    found |= {"peak_memory": _peak_memory(), "provenance": {**made_by, "finished": _now()}}
    plain: Json = json.loads(json.dumps(found), parse_constant=lambda _: None)  # NaN is no JSON
    return plain


def provenance(engine: str, threads: int, command: str | None = None, accelerator: str = "auto") -> Json:
    """What a result needs to be believed: command, commit, hardware, threads, versions."""
    return {
        "command": " ".join(sys.argv) if command is None else command,
        "commit": _commit(),
        "engine": engine,
        "threads": threads,
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu(accelerator),
        "versions": {"noiseproof": _version(), "python": platform.python_version(), "torch": torch.__version__,
                     "numpy": np.__version__},
    }  # fmt: skip


def gpu(accelerator: str = "auto") -> str | None:
    """The name of the GPU that runs have, if they have one."""
    return torch.cuda.get_device_name() if accelerator != "cpu" and torch.cuda.is_available() else None


def status(experiments: Iterable[Experiment], folder: str | Path) -> dict[Experiment, str]:
    """``done``, ``failed``, ``running``, ``interrupted`` (it goes on where it stopped) or ``to do``.

    Each run once, as it was first written.
    """
    folder, found = Path(folder), {}
    for experiment in once(experiments):
        result = read_result(folder, experiment.key)
        if result is not None:
            found[experiment] = str(result["status"])
        elif holder(folder, experiment.key) is not None:
            found[experiment] = "running"
        else:
            begun = (folder / "runs" / experiment.key / "checkpoints").is_dir()
            found[experiment] = "interrupted" if begun else "to do"
    return found


def once(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Each run once, as it was first written."""
    found: dict[str, Experiment] = {}
    for experiment in experiments:
        found.setdefault(experiment.key, experiment)
    return list(found.values())


def _peak_memory() -> int:
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    unit = 1 if sys.platform == "darwin" else 1024
    return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@functools.cache
def _commit() -> str | None:
    """The commit that this package's source lies in, marked where it was changed since."""
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*here, "ls-files", "--error-unmatch", "../__init__.py"], check=True, capture_output=True)
        found = subprocess.run(
            [*here, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return names[0] if names else platform.machine()


def _version() -> str | None:
    try:
        return importlib.metadata.version("noiseproof")
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return None
