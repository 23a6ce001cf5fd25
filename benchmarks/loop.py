"""What the training loop costs beside a bare PyTorch loop: LeNet-5, batches of 256, the same data
and model.

    python benchmarks/loop.py [--quick] [--threads 1]

By turns in one process, each trains two epochs over images that lie in memory; the second one
counts. The bare loop is what one writes by hand: index, normalise, forward, cross entropy,
backward, step. Ours adds the record (losses and accuracies of right and of wrong labels apart),
hooks, a look for NaN, and random numbers that survive a resume. Neither evaluates. A row is the
median ratio within a round with its p20 and p80.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import against, quantiles, write_rows
from torch import Tensor

from noiseproof.data import Dataset, Split
from noiseproof.models.classifier import build_classifier
from noiseproof.train import Settings, Task, prepare, train

BATCH, BAR = 256, 1.05


def bare(x: Tensor, y: Tensor, epochs: int) -> float:
    """Seconds of the last epoch of a loop written by hand."""
    generator = torch.Generator().manual_seed(0)
    model = build_classifier(
        "lenet5", "linear", input_shape=x.shape[1:], num_outputs=10, generator=generator
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        start = time.perf_counter()
        for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH):
            images = x[rows].float().div_(255).sub_(0.5).div_(0.25)
            optimizer.zero_grad()
            F.cross_entropy(model(images).logits, y[rows]).backward()
            optimizer.step()
    return time.perf_counter() - start


def ours(task: Task, epochs: int) -> float:
    """Seconds of the last epoch of the library's loop."""
    settings = Settings(
        "lenet5", epochs=epochs, batch_size=BATCH, optimizer="sgd:lr=0.05,momentum=0.9"
    )
    return train(task, "ce", settings).last["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    n = 256 * (8 if options.quick else 24)
    x = torch.randint(0, 256, (n, 1, 28, 28), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (n,), generator=generator)
    task = prepare(Dataset("noise", tuple("0123456789"), Split(x, y)), "symmetric:rate=0.4")
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    for turn in range(5 if options.quick else 21):
        for name in sorted(seconds, reverse=bool(turn % 2)):
            seconds[name].append(bare(x, y, 2) if name == "bare" else ours(task, 2))
    low, middle, high = against(seconds, "bare")["ours"]
    steps = n // BATCH
    rows: list[dict[str, object]] = [
        {
            "task": f"LeNet-5, batch {BATCH}, {steps} steps an epoch",
            "bare_ms_per_step": round(1e3 * quantiles(seconds["bare"])[1] / steps, 3),
            "ours_ms_per_step": round(1e3 * quantiles(seconds["ours"])[1] / steps, 3),
            "ratio": [round(v, 3) for v in (low, middle, high)],
            "bar": BAR,
        }
    ]
    print(*rows, sep="\n")
    if not options.quick:
        write_rows(Path(__file__).parent / "results" / "loop.json", rows)


if __name__ == "__main__":
    main()
