"""Overhead of the driver: experiments whose training takes no time, on the local engine.

    python benchmarks/bench.py [--experiments 1000] [--out FILE]

Everything but the training is real: experiments are read from TOML and checked, data is loaded and
corrupted, locks are taken, results written to the disk, and a second call finds nothing left to do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from timing import write_rows

from noiseproof.accelerate import Job, Outcome
from noiseproof.bench import load_experiments, run_all
from noiseproof.data import get_dataset
from noiseproof.train import Settings, prepare, train

SPEC = """
[[experiment]]
dataset = "digits"
noise = ["symmetric:rate=0.2", "symmetric:rate=0.4"]
method = ["ce", "gce", "sln", "ln", "mae"]
model = "mlp:hidden=[8]"
epochs = 1
validation = 0.1
seed = {seeds}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "bench.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained = train(
        prepare(get_dataset("digits")), "ce", Settings(epochs=1, model="mlp:hidden=[8]")
    )

    def fit(
        jobs: Iterable[Job], *, finished: Callable[[int, Outcome], None], **others: object
    ) -> list[Outcome]:
        number = -1
        for number, _ in enumerate(jobs):  # made as they are asked for, each with its task
            finished(number, trained)
        return [trained] * (number + 1)

    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        experiments = load_experiments(SPEC.format(seeds=list(range(options.experiments // 10))))
        seconds["read and check"] = time.perf_counter() - start
        for what in ("run", "run again"):
            start = time.perf_counter()
            results = run_all(experiments, folder, checked=True, fit=fit)
            seconds[what] = time.perf_counter() - start
            assert len(results) == len(experiments)
    rows: list[dict[str, object]] = [
        {"what": what, "experiments": len(experiments), "seconds": round(value, 3)}
        for what, value in seconds.items()
    ]
    for row in rows:
        print(row)
    write_rows(Path(options.out), rows)


if __name__ == "__main__":
    main()
