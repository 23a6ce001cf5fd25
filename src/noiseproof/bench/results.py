"""One file for each finished run, one lock for each run in training, shared by all drivers.

results/KEY.json            a finished or failed run
results/locks/KEY           held by the process that trains it
results/runs/KEY/           its record, and checkpoints while it is not finished
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from noiseproof.bench.experiment import RESULT_VERSION, Experiment
from noiseproof.core import files
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Result, Task
from noiseproof.train.checkpoint import BEST, write_text
from noiseproof.train.loop import EPOCHS

Json = dict[str, Any]
THREADS = 1  # of a run: another number may change the last digits of its result
_NAME = re.compile(r"[0-9a-f]{16}\.json")


def lock_run(folder: Path, key: str) -> files.Lock:
    """Take the right to train one experiment; ``held`` is False if another process has it."""
    return files.Lock(_lock_path(folder, key))


def _lock_path(folder: Path, key: str) -> Path:
    return folder / "locks" / key


def holder(folder: Path, key: str) -> Json | None:
    """Return the process and machine that train an experiment now; None if none does."""
    return files.holder(_lock_path(folder, key))


def result_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def read_result(folder: Path, key: str) -> Json | None:
    """Return the result of an experiment; None if there is none yet. All results are read here."""
    path = result_path(folder, key)
    try:
        result: Json = json.loads(path.read_bytes())
        checksum = result.pop("checksum")
        problem = ""
        if checksum != _checksum(result):
            problem = "a damaged or changed one"
        elif result["key"] != key:
            problem = f"that of {result['key']!r}"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise ValueError(f"Expected a result in {path}, got {problem}. Remove it to run it again.")
    return result


def _checksum(result: Json) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(result, sort_keys=True).encode())


def read_results(
    folder: str | Path, damaged: Callable[[ValueError], None] | None = None
) -> dict[str, Json]:
    """Return all results in ``folder`` by key, including failed ones (see ``status``).

    A damaged one is left out and passed to ``damaged``; without it, it is refused.
    """
    folder = files.check_place(folder, folder=True)
    results = dict[str, Json]()
    for name in sorted(path.name for path in folder.glob("*.json") if _NAME.fullmatch(path.name)):
        try:
            if (result := read_result(folder, name[:16])) is not None:
                results[name[:16]] = result
        except ValueError as error:
            if damaged is None:
                raise
            damaged(error)
    return results


def is_complete(folder: Path, experiment: Experiment) -> bool:
    """Return whether there is a result with all that ``experiment`` asks for; a failed one has all
    that there will be.
    """
    result = read_result(folder, experiment.key)
    if result is None or result["status"] == "failed":
        return result is not None
    run = folder / "runs" / experiment.key
    measured = result.get("measured") or {}
    has_samples = not experiment.samples or (run / "samples").is_dir()
    has_weights = not experiment.weights or (run / "checkpoints").is_dir()
    has_snr = not experiment.records_samples or "snr" in measured
    has_nll = "annotators" not in experiment.measures or "annotator_nll" in measured
    return has_samples and has_weights and has_snr and has_nll


def write_result(folder: Path, result: Json) -> None:
    """Write a result atomically, and remove what is not to be kept of a run that is done: weights,
    recorded samples.
    """
    text = json.dumps({**result, "checksum": _checksum(result)}, indent=1, ensure_ascii=False)
    write_text(result_path(folder, result["key"]), text + "\n")
    if result["status"] == "done":
        run = folder / "runs" / result["key"]
        experiment = result["experiment"]
        if not experiment.get("samples"):
            shutil.rmtree(run / "samples", ignore_errors=True)
        if not experiment.get("weights"):
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
            for name in BEST:
                (run / f"{name}.safetensors").unlink(missing_ok=True)


def measure(
    experiment: Experiment, outcome: Result, task: Task, folder: Path, data_dir: str | None
) -> Json:
    """Return the ``measures`` of a finished run by name, from ``folder`` of results; None for what
    could not be measured.

    ``sample-weights`` are ``alpha`` and ``snr`` of the curriculum paper at the end of training,
    over all epochs. ``annotators`` is ``annotator_nll`` of CIFAR-10N's three labels of each
    training row (LN paper, Table 4).
    """
    measured: Json = {}
    if experiment.records_samples:
        measured |= _sample_weights(folder / "runs" / experiment.key, len(outcome.metrics))
    if "annotators" in experiment.measures:
        # it needs pandas, which training does not
        from noiseproof.analysis.after.calibration import annotator_nll
        from noiseproof.analysis.after.predictions import cifar10n_annotations

        annotations = cifar10n_annotations(experiment.load(data_dir).train.y, data_dir)[
            task.train.index.cpu().numpy()
        ]
        log_probs = predict_log_probs(outcome.run, task.train.x)
        measured["annotator_nll"] = annotator_nll(
            annotations, log_probs.double().exp().cpu().numpy()
        )
    return measured


def _sample_weights(folder: Path, epochs: int) -> Json:
    from noiseproof.analysis.during.samples import sample_weights
    from noiseproof.analysis.runs import open_run

    run = open_run(folder)
    if len(run.sample_epochs) != epochs:  # it began without recording samples
        return {"alpha": None, "snr": None}
    last = sample_weights(run).iloc[-1]
    return {name: float(last[name]) for name in ("alpha", "snr")}


def make_result(
    experiment: Experiment,
    outcome: Result | Exception,
    rate: float | None,
    made_by: Json,
    measured: Json | None = None,
) -> Json:
    """Return the result of a run: metrics of the epochs of ``EPOCHS``, or its error; cost and
    provenance.

    ``measured`` is what its ``measures`` gave, ``samples`` the number of samples over which Het
    averages, which the LN paper does not state. ``seconds`` is the sum over epochs, also of
    interrupted sessions; for runs side by side, the share of each. ``peak_memory`` is the largest
    use of its process, or of the GPU with everything else on it, up to then.
    """
    result: Json = {
        "key": experiment.key,
        "version": RESULT_VERSION,
        "status": "failed",
        "error": f"{type(outcome).__name__}: {outcome}",
        "experiment": experiment.as_dict(),
        "rate": rate,
        "samples": None,
        "measured": measured or {},
        "epochs": None,
        "stopped": None,
        **dict.fromkeys(EPOCHS),
        "seconds": None,
    }
    if isinstance(outcome, Result):
        result |= {
            "status": "done",
            "error": None,
            "samples": outcome.run.loss.samples,
            "epochs": len(outcome.metrics),
            "stopped": outcome.stopped,
            **{name: getattr(outcome, name) for name in EPOCHS},
            "seconds": sum(row["seconds"] for row in outcome.metrics),
        }
    result |= {"peak_memory": _peak_memory(), "provenance": {**made_by, "finished": _now()}}
    plain: Json = json.loads(json.dumps(result), parse_constant=lambda _: None)  # JSON has no NaN
    return plain


def provenance(engine: str, command: str | None = None, accelerator: str = "auto") -> Json:
    """Return how a result was made: command, commit, hardware, threads, versions."""
    return {
        "command": " ".join(sys.argv) if command is None else command,
        "commit": _commit(),
        "engine": engine,
        "threads": THREADS,
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu(accelerator),
        "versions": {
            "noiseproof": _version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def gpu(accelerator: str = "auto") -> str | None:
    """Return the name of the GPU that runs use, if any."""
    return (
        torch.cuda.get_device_name() if accelerator != "cpu" and torch.cuda.is_available() else None
    )


def status(experiments: Iterable[Experiment], folder: str | Path) -> dict[Experiment, str]:
    """Return ``done``, ``failed``, ``running``, ``interrupted`` (it can resume) or ``to do``.

    Each run appears once, in its first spelling.
    """
    folder = files.check_place(folder, folder=True)
    states = dict[Experiment, str]()
    for experiment in once(experiments):
        if is_complete(folder, experiment):
            states[experiment] = str((read_result(folder, experiment.key) or {})["status"])
        elif holder(folder, experiment.key) is not None:
            states[experiment] = "running"
        else:
            started = (folder / "runs" / experiment.key / "checkpoints").is_dir()
            states[experiment] = "interrupted" if started else "to do"
    return states


def once(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return each run once, in its first spelling, with all that is asked of it."""
    by_key: dict[str, Experiment] = {}
    for experiment in experiments:
        first = by_key.setdefault(experiment.key, experiment)
        if (asked := _asked(first) | _asked(experiment)) != _asked(first):
            measures = " ".join(sorted(asked - {"samples", "weights"}))
            by_key[experiment.key] = replace(
                first, samples="samples" in asked, weights="weights" in asked, measures=measures
            )
    return list(by_key.values())


def _asked(experiment: Experiment) -> set[str]:
    flags = {name for name in ("samples", "weights") if getattr(experiment, name)}
    return flags | set(experiment.measures.split())


def _peak_memory() -> int:
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    if on_gpu or sys.platform == "win32":
        return on_gpu
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@functools.cache
def _commit() -> str | None:
    """Return the commit of this package's source, marked dirty where it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    is_tracked = [*git, "ls-files", "--error-unmatch", "../__init__.py"]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.run(is_tracked, check=True, capture_output=True)
        return subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(
        r"^model name\s*:\s*(.+)$", info.read_text() if info.exists() else "", re.MULTILINE
    )
    return names[0] if names else platform.machine()


def _version() -> str | None:
    try:
        return importlib.metadata.version("noiseproof")
    except importlib.metadata.PackageNotFoundError:  # not installed
        return None
