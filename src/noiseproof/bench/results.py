"""One file for each finished run, one lock for each run in training, shared by all drivers.

results/KEY.json            a finished or failed run
results/locks/KEY           held by the process that trains it
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
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof.bench.experiment import Experiment
from noiseproof.train import Result
from noiseproof.train.checkpoint import BEST, write_text
from noiseproof.train.loop import EPOCHS

Json = dict[str, Any]
_NAME = re.compile(r"[0-9a-f]{16}\.json")


class Lock:
    """The right to train one experiment, which the system releases when its process dies.

    ``held`` is False if another process has it. The file remains and names its last holder.
    """

    def __init__(self, folder: Path, key: str) -> None:
        path = folder / "locks" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # it is held while open
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
    """The process and machine that train an experiment now; None if none does."""
    with suppress(FileNotFoundError), open(folder / "locks" / key, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            with suppress(ValueError):  # read during a write
                content: Json = json.loads(text)
                return content
            return {}
    return None


def result_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def read_result(folder: Path, key: str) -> Json | None:
    """The result of an experiment; None if there is none yet."""
    path = result_path(folder, key)
    try:
        result: Json = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # not written by ``write_result``, whose files are complete
        raise ValueError(f"Expected a result in {path}, got no JSON: {error}. Remove it to run it again.") from None
    if not isinstance(result, dict) or not {"key", "status", "experiment", "provenance"} <= result.keys():
        raise ValueError(f"Expected a result in {path}, got other JSON. Remove it to run it again.")
    return result


def read_results(folder: str | Path) -> dict[str, Json]:
    """All results in ``folder`` by key, including failed ones (see ``status``)."""
    names = sorted(path.name for path in Path(folder).glob("*.json") if _NAME.fullmatch(path.name))
    results = {name[:16]: read_result(Path(folder), name[:16]) for name in names}
    return {key: result for key, result in results.items() if result is not None}


def write_result(folder: Path, result: Json) -> None:
    """Write a result atomically, and remove the checkpoints and weights of a run that is done."""
    write_text(result_path(folder, result["key"]), json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if result["status"] == "done":
        run = folder / "runs" / result["key"]
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        for name in BEST:
            (run / f"{name}.safetensors").unlink(missing_ok=True)


def make_result(experiment: Experiment, outcome: Result | Exception, rate: float | None, made_by: Json) -> Json:
    """The result of a run: metrics of its last, best, best_clean and oracle epochs, or its error; cost and provenance.

    ``samples`` is the number of samples over which Het averages, which the LN paper does not state. ``seconds`` is the
    sum over epochs, also of interrupted sessions; for runs side by side, the share of each. ``peak_memory`` is the
    largest use of its process, or of the GPU with everything else on it, up to then.
    """
    result: Json = {"key": experiment.key, "version": experiment.version, "status": "done", "error": None}
    result |= {"experiment": experiment.as_dict(), "rate": rate, "samples": None}
    if isinstance(outcome, Result):
        result |= {"samples": outcome.run.loss.samples}
        result |= {"epochs": len(outcome.metrics), "stopped": outcome.stopped}
        result |= {name: getattr(outcome, name) for name in EPOCHS}
        result |= {"seconds": sum(row["seconds"] for row in outcome.metrics)}
    else:
        result |= {"status": "failed", "error": f"{type(outcome).__name__}: {outcome}", "epochs": None, "stopped": None}
        result |= {**dict.fromkeys(EPOCHS), "seconds": None}
    result |= {"peak_memory": _peak_memory(), "provenance": {**made_by, "finished": _now()}}
    plain: Json = json.loads(json.dumps(result), parse_constant=lambda _: None)  # JSON has no NaN
    return plain


def provenance(engine: str, threads: int, command: str | None = None, accelerator: str = "auto") -> Json:
    """How a result was made: command, commit, hardware, threads, versions."""
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
    """The name of the GPU that runs use, if any."""
    return torch.cuda.get_device_name() if accelerator != "cpu" and torch.cuda.is_available() else None


def status(experiments: Iterable[Experiment], folder: str | Path) -> dict[Experiment, str]:
    """``done``, ``failed``, ``running``, ``interrupted`` (it can resume) or ``to do``.

    Each run appears once, in its first spelling.
    """
    folder, states = Path(folder), dict[Experiment, str]()
    for experiment in once(experiments):
        result = read_result(folder, experiment.key)
        if result is not None:
            states[experiment] = str(result["status"])
        elif holder(folder, experiment.key) is not None:
            states[experiment] = "running"
        else:
            started = (folder / "runs" / experiment.key / "checkpoints").is_dir()
            states[experiment] = "interrupted" if started else "to do"
    return states


def once(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Each run once, in its first spelling."""
    by_key: dict[str, Experiment] = {}
    for experiment in experiments:
        by_key.setdefault(experiment.key, experiment)
    return list(by_key.values())


def _peak_memory() -> int:
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    unit = 1 if sys.platform == "darwin" else 1024
    return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@functools.cache
def _commit() -> str | None:
    """The commit of this package's source, marked dirty where it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "../__init__.py"], check=True, capture_output=True)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return described.stdout.strip()
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
    except importlib.metadata.PackageNotFoundError:  # not installed
        return None
