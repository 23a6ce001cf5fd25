"""Runs side by side on one GPU: seconds per model and epoch, everything included.

    python benchmarks/gpu.py [--only wrn,lenet,resnet,losses,ln] [--epochs 3]

The data are random images of the real sets' shapes and sizes. A row is the median over epochs and models of the wall
time of an epoch divided by the number of models; its epochs include augmentation, label noise, momentum model, record
and the pass over the test set. The first two epochs, in which kernels are chosen and graphs captured, don't count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # else streams share eight queues; read when CUDA starts

import torch
from lightning_fabric import Fabric
from timing import write_rows

from noiseproof.data import Dataset, Split
from noiseproof.train import Settings, Task, prepare
from noiseproof.train.fleet import Job, fit_many


def images(name: str, n: int, shape: tuple[int, int, int], classes: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def split(rows: int) -> Split:
        x = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8)
        return Split(x, torch.randint(0, classes, (rows,), generator=generator))

    return Dataset(name, tuple(map(str, range(classes))), split(n), split(10_000))


def side_by_side(task: Task, method: str, settings: Settings, models: int, precision: str) -> dict[str, object]:
    """Seconds per model-epoch of ``models`` runs."""
    ends: list[float] = []

    def note(epoch: int, step: int, steps: int, row: object) -> None:
        if row is not None and step == steps:
            ends.append(time.perf_counter())

    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    jobs = [Job(task, method, settings, seed=seed, progress=note) for seed in range(models)]
    torch.cuda.reset_peak_memory_stats()
    outcomes = fit_many(jobs, fabric=fabric, at_once=models)
    failed = [o for o in outcomes if isinstance(o, Exception)]
    if failed:
        raise failed[0]
    each = [(b - a) / models for a, b in zip(ends[models - 1 :: models], ends[2 * models - 1 :: models], strict=False)]
    return {
        "model": settings.model, "method": method, "models": models, "precision": precision,
        "compiled": settings.compile, "seconds_per_model_epoch": [round(v, 4) for v in each],
        "median_after_two": round(statistics.median(each[1:]), 4),
        "memory_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="wrn,lenet,resnet")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--models", default="1,8")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "gpu.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(0, "There is no GPU here: nothing was measured.\n")
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, object]] = []
    slow = "sgd:lr=0.001,momentum=0.9,weight_decay=5e-4"
    tasks = {
        "wrn": ("cifar10", 50_000, (3, 32, 32), 10, "wrn-28-2-sln", "sln-mo", 128),
        "lenet": ("mnist", 60_000, (1, 28, 28), 10, "lenet5", "ce", 256),
        "resnet": ("cifar100", 50_000, (3, 32, 32), 100, "resnet34", "ce", 128),
    }
    for key in options.only.split(","):
        name, n, shape, classes, model, method, batch = tasks[key]
        task = prepare(images(name, n, shape, classes), "symmetric:rate=0.4")
        for models in map(int, options.models.split(",")):
            settings = Settings(model, epochs=options.epochs, batch_size=batch, optimizer=slow, schedule="constant",
                                compile=options.compile)  # fmt: skip
            rows.append(side_by_side(task, method, settings, models, options.precision))
            print(rows[-1], flush=True)
            write_rows(Path(options.out), rows)


if __name__ == "__main__":
    main()
