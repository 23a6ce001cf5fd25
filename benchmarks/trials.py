"""Many short trainings on several processes, one line of a file each, so that what is stopped
continues.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from noiseproof.train import Diverged, Settings, Task, train
from noiseproof.train.settings import make_fabric

Row = dict[str, Any]
J = TypeVar("J", bound=tuple[Any, ...])  # a NamedTuple: what is trained


def add_options(parser: ArgumentParser, out: str, seeds: str) -> None:
    parser.add_argument("--seeds", default=seeds)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(out), help="file of the runs, one line each"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")


def outcome(make_task: Callable[[], Task], method: str, settings: Settings, seed: int) -> Row:
    """One training on the CPU: its accuracies, or the reason why there are none, and CPU
    seconds.
    """
    torch.set_num_threads(1)
    began, row = time.process_time(), Row()
    try:
        fabric = make_fabric(accelerator="cpu", devices=1)
        last = train(make_task(), method, settings, seed=seed, fabric=fabric).last
        names = {"accuracy": "test_accuracy", "validation": "validation_accuracy"}
        row = {name: round(last[metric], 4) for name, metric in names.items() if metric in last}
    except Diverged as error:
        row = {"diverged": str(error)}
    except Exception as error:  # refused, or a mistake of ours: the reason tells
        row = {"refused": f"{type(error).__name__}: {error}"}
    return row | {"seconds": round(time.process_time() - began, 2)}


def read_runs(path: Path) -> list[Row]:
    """The runs of a file; a line that was cut off is left out."""
    rows = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def run_all(
    run: Callable[[J], Row], jobs: Sequence[J], path: Path, processes: int, seconds: float
) -> list[Row]:
    """The runs of the file, after those of ``jobs`` that it lacks were added; ends the program
    after ``seconds``.
    """
    fields = jobs[0]._fields  # type: ignore[attr-defined]
    done = read_runs(path)
    known = {tuple(row[field] for field in fields) for row in done}
    todo = [job for job in jobs if tuple(job) not in known]
    end = time.monotonic() + min(seconds, 1e6)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        multiprocessing.get_context("spawn").Pool(processes) as pool,
        path.open("a", encoding="utf-8") as file,
    ):
        results = pool.imap_unordered(run, todo)
        for count in range(1, len(todo) + 1):
            try:
                row = results.next(timeout=max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                stop(
                    f"{len(todo) - count + 1} of {len(jobs)} runs are left: the same command"
                    " continues"
                )
            done.append(row)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            if count % 100 == 0:
                print(f"{count} of {len(todo)}", file=sys.stderr, flush=True)
    return done


def stop(message: str) -> NoReturn:
    """End the program and its processes at once: a run takes SIGTERM as a wish to stop, for which a
    pool would wait.
    """
    print(message, file=sys.stderr, flush=True)
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(1)
