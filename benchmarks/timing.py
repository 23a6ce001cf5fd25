"""Interleaved timing: every contender in random order in every round, so that a busy machine
troubles all alike.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one number a round."""
    order, seconds = list(contenders), {name: [] for name in contenders}
    shuffle = random.Random(0).shuffle
    for contender in contenders.values():
        contender()
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            contender = contenders[name]
            contender()  # brings code and data back into the caches after the previous contender
            start = time.perf_counter()
            for _ in range(calls):
                contender()
            seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """p20, median and p80."""
    cuts = statistics.quantiles(values, n=5, method="inclusive")
    return cuts[0], statistics.median(values), cuts[3]


def against(
    seconds: Mapping[str, list[float]], baseline: str
) -> dict[str, tuple[float, float, float]]:
    """p20, median and p80 of each contender's time over the baseline's in the same round."""
    return {
        name: quantiles([t / b for t, b in zip(times, seconds[baseline], strict=True)])
        for name, times in seconds.items()
    }


def provenance() -> dict[str, object]:
    """What a row needs to be believed: command, hardware, versions, threads, load."""
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "command": " ".join(
            ["python", *(os.path.relpath(a) if os.path.exists(a) else a for a in sys.argv)]
        ),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write_rows(
    path: Path, rows: list[dict[str, object]], made_by: dict[str, object] | None = None
) -> None:
    """Results as one JSON file: provenance once, by default that of this run, then the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    # a run that is stopped while it writes leaves the last rows
    partial = path.with_name(path.name + ".partial")
    made = json.dumps(made_by or provenance(), ensure_ascii=False)
    partial.write_text(f'{{"made_by": {made},\n "rows": [\n{lines}\n]}}\n')
    partial.replace(path)
