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
import reprlib
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
import xxhash

from noiseproof.bench.experiment import OUTSIDE_KEY, RESULT_VERSION, Experiment, code_and_data
from noiseproof.core import files
from noiseproof.core.messages import counted
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Result, Task
from noiseproof.train.checkpoint import BEST, write_text
from noiseproof.train.loop import EPOCHS

Json = dict[str, Any]
STATUSES = ("done", "failed")
_NAME = re.compile(r"[0-9a-f]{16}\.json")
_NEEDED = {"key", "version", "status", "experiment", "provenance", "last"}
_KINDS: dict[str, tuple[type, ...]] = {
    "key": (str,),
    "status": (str,),
    "checksum": (str, NoneType),
    "experiment": (dict,),
    "provenance": (dict,),
    "version": (int,),
    "error": (str, NoneType),
    "stopped": (str, NoneType),
    **dict.fromkeys((*EPOCHS, "measured"), (dict, NoneType)),
    **dict.fromkeys(
        ("rate", "samples", "epochs", "seconds", "peak_memory"), (int, float, NoneType)
    ),
}


def lock_run(folder: Path, key: str) -> files.Lock:
    """Take the right to train one experiment; ``held`` is False if another process has it."""
    return files.Lock(_lock_path(folder, key))


def _lock_path(folder: Path, key: str) -> Path:
    return folder / "locks" / key


def holder(folder: Path, key: str) -> Json | None:
    """The process and machine that train an experiment now; None if none does."""
    return files.holder(_lock_path(folder, key))


def result_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def read_result(folder: Path, key: str) -> Json | None:
    """The result of an experiment; None if there is none yet. All reading of results is here."""
    path = result_path(folder, key)
    try:
        result = json.loads(path.read_bytes(), parse_constant=_no_constant)
        problem = _problem(result, key)
    except FileNotFoundError:
        return None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not written by ``write_result``, whose files are complete
        problem = f"no JSON: {error}"
    if problem:
        raise ValueError(f"Expected a result in {path}, got {problem}. Remove it to run it again.")
    checked: Json = result
    if checked.pop("checksum", None) not in (None, _checksum(checked)):
        raise ValueError(
            f"Expected a result in {path} as it was written, got a damaged or changed one. Remove"
            " it to run it again, or remove its `checksum` to have it read as it is."
        )
    return checked


def _problem(result: Any, key: str) -> str:
    """What is wrong with a result, in words; "" if nothing is."""
    if not isinstance(result, dict) or not _NEEDED <= result.keys():
        return "other JSON"
    if result["key"] != key:
        return f"that of {reprlib.repr(result['key'])}"
    if result["status"] not in STATUSES:
        return f"the status {reprlib.repr(result['status'])}"
    if unknown := next(iter(result.keys() - _KINDS), None):
        return f"the field {reprlib.repr(unknown)}, which no result has"
    if wrong := next(
        (name for name, kinds in _KINDS.items() if not isinstance(result.get(name), kinds)), None
    ):
        return f"{wrong} {reprlib.repr(result.get(wrong))}"
    epochs = {name: result.get(name) or {} for name in (*EPOCHS, "measured")}
    for name, metric in ((name, metric) for name, metrics in epochs.items() for metric in metrics):
        if not isinstance(epochs[name][metric], (int, float, NoneType)):
            return f"{reprlib.repr(metric)} of {name} {reprlib.repr(epochs[name][metric])}"
    if result["status"] == "done" and (result["last"] is None or result.get("seconds") is None):
        return "a run that is done without its last epoch, or without its seconds"
    if not isinstance(result["experiment"].get("dataset"), str) or not isinstance(
        result["experiment"].get("settings"), dict
    ):
        return f"the experiment {reprlib.repr(result['experiment'])}"
    return ""


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _checksum(result: Json) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(result, sort_keys=True).encode())


def read_results(
    folder: str | Path, damaged: Callable[[ValueError], None] | None = None
) -> dict[str, Json]:
    """All results in ``folder`` by key, including failed ones (see ``status``).

    A damaged one is left out and told to ``damaged``; without it, it is refused.
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
    """Whether there is a result with all that ``experiment`` asks for; a failed one has all that
    there will be.
    """
    result = read_result(folder, experiment.key)
    if result is None or result["status"] == "failed":
        return result is not None
    run = folder / "runs" / experiment.key
    measured = result.get("measured") or {}
    asks = [
        not experiment.samples or (run / "samples").is_dir(),
        not experiment.weights or (run / "checkpoints").is_dir(),
        not experiment.records_samples or "snr" in measured,
        "annotators" not in experiment.measures or "annotator_nll" in measured,
    ]
    return all(asks)


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
    """The ``measures`` of a finished run by name, from ``folder`` of results; None for what could
    not be measured.

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
    """The result of a run: metrics of the epochs of ``EPOCHS``, or its error; cost and provenance.

    ``measured`` is what its ``measures`` gave, ``samples`` the number of samples over which Het
    averages, which the LN paper does not state. ``seconds`` is the sum over epochs, also of
    interrupted sessions; for runs side by side, the share of each. ``peak_memory`` is the largest
    use of its process, or of the GPU with everything else on it, up to then.
    """
    result: Json = {
        "key": experiment.key,
        "version": RESULT_VERSION,
        "status": "done",
        "error": None,
    }
    result |= {
        "experiment": experiment.as_dict(),
        "rate": rate,
        "samples": None,
        "measured": measured or {},
    }
    if isinstance(outcome, Result):
        result |= {"samples": outcome.run.loss.samples}
        result |= {"epochs": len(outcome.metrics), "stopped": outcome.stopped}
        result |= {name: getattr(outcome, name) for name in EPOCHS}
        result |= {"seconds": sum(row["seconds"] for row in outcome.metrics)}
    else:
        result |= {
            "status": "failed",
            "error": f"{type(outcome).__name__}: {outcome}",
            "epochs": None,
            "stopped": None,
        }
        result |= {**dict.fromkeys(EPOCHS), "seconds": None}
    result |= {"peak_memory": _peak_memory(), "provenance": {**made_by, "finished": _now()}}
    plain: Json = json.loads(json.dumps(result), parse_constant=lambda _: None)  # JSON has no NaN
    return plain


def provenance(
    engine: str, threads: int, command: str | None = None, accelerator: str = "auto"
) -> Json:
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
        "versions": {
            "noiseproof": _version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def gpu(accelerator: str = "auto") -> str | None:
    """The name of the GPU that runs use, if any."""
    return (
        torch.cuda.get_device_name() if accelerator != "cpu" and torch.cuda.is_available() else None
    )


def status(experiments: Iterable[Experiment], folder: str | Path) -> dict[Experiment, str]:
    """``done``, ``failed``, ``running``, ``interrupted`` (it can resume) or ``to do``.

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


def earlier_results(experiments: Iterable[Experiment], results: Mapping[str, Json]) -> list[str]:
    """A line on results that do not count, since they are of the same runs with other plug-ins,
    data or noiseproof.
    """
    others: dict[str, list[Json]] = {}
    for result in results.values():
        others.setdefault(_spelled(result["experiment"]), []).append(result)
    counts = Counter[str]()
    for run in once(experiments):
        if run.key not in results and (earlier := others.get(_spelled(run.as_dict()))):
            is_older = any(one["version"] != RESULT_VERSION for one in earlier)
            changed = code_and_data(run) + ["noiseproof"] * is_older
            counts[" or ".join(dict.fromkeys(changed)) or "version"] += len(earlier)
    return [
        f"{counted(count, 'result')} of an earlier {what} {'is' if count == 1 else 'are'} not"
        " counted."
        for what, count in counts.items()
    ]


def _spelled(experiment: Json) -> str:
    return json.dumps(
        {name: value for name, value in experiment.items() if name not in OUTSIDE_KEY},
        sort_keys=True,
    )


def once(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Each run once, in its first spelling, with all that is asked of it."""
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
    """The commit of this package's source, marked dirty where it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", "../__init__.py"], check=True, capture_output=True
        )
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
        )
        return described.stdout.strip()
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
