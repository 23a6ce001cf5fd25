"""The cost of a point of a loss landscape against a loop written by hand, and the time of a
landscape.

    python benchmarks/landscape.py [--quick] [--threads 1] [--device cpu|cuda]

On a CPU LeNet-5 and 1 000 images of 28×28, on a GPU WRN-28-2 and 10 000 images of 32×32, in float32
and bfloat16. The loop by hand writes θ + α·d₁ + β·d₂ into the model and runs the same batches;
``vmap`` runs the three points of a row at once, in batches a quarter as large. A row is the median
ratio of time over the loop by hand within a round, with its p20 and p80, and the seconds of one
landscape of 21×21 points. On a CPU the ratios are of CPU time, which other processes change little.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import against, quantiles, write_rows
from torch import Tensor, nn
from torch.func import functional_call, vmap

from noiseproof.analysis.after.landscape import BATCH, filter_normalised_direction, landscape
from noiseproof.models.classifier import build_classifier

POINTS = 21
TASKS = {
    "cpu": ("lenet5", (1, 28, 28), 1_000, [None]),
    "cuda": ("wrn-28-2", (3, 32, 32), 10_000, [None, torch.bfloat16]),
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@torch.no_grad()
def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, points: int, size: int, precision: torch.dtype | None
) -> Tensor:
    """A landscape whose points are written into the model; its weights are restored at the end."""
    generator = seeded()
    directions = [filter_normalised_direction(model, generator) for _ in range(2)]
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = torch.zeros(points, points, device=y.device)
    # Without its cache, which would use the rounded weights of the first point for all.
    autocast = (
        nullcontext()
        if precision is None
        else torch.autocast(y.device.type, precision, cache_enabled=False)
    )
    with autocast:
        for i, alpha in enumerate(torch.linspace(-1, 1, points).tolist()):
            for j, beta in enumerate(torch.linspace(-1, 1, points).tolist()):
                for name, p in model.named_parameters():
                    p.copy_(
                        weights[name] + alpha * directions[0][name] + beta * directions[1][name]
                    )
                for a, b in zip(x.split(size), y.split(size), strict=True):
                    losses[i, j] += F.cross_entropy(model(a).logits.float(), b, reduction="sum")
    for name, p in model.named_parameters():
        p.copy_(weights[name])
    return losses.cpu() / len(y)


@torch.no_grad()
def all_at_once(
    model: nn.Module, x: Tensor, y: Tensor, points: int, size: int, precision: torch.dtype | None
) -> Tensor:
    """A landscape of which each row is one call of ``vmap``."""
    generator = seeded()
    first, second = (filter_normalised_direction(model, generator) for _ in range(2))
    steps = torch.linspace(-1, 1, points, device=y.device)
    losses = torch.zeros(points, points, device=y.device)
    autocast = nullcontext() if precision is None else torch.autocast(y.device.type, precision)
    with autocast:
        for i, alpha in enumerate(steps.tolist()):
            row = {
                name: (
                    p.detach() + alpha * first[name] + steps.view(-1, *[1] * p.dim()) * second[name]
                )
                for name, p in model.named_parameters()
            }  # (points, …)
            for a, b in zip(x.split(size), y.split(size), strict=True):
                # (points, B, K)
                logits = vmap(lambda weights, a=a: functional_call(model, weights, (a,)).logits)(
                    row
                )
                each = F.cross_entropy(
                    logits.float().flatten(0, 1), b.repeat(points), reduction="none"
                )
                losses[i] += each.view(points, -1).sum(1)
    return losses.cpu() / len(y)


def measure(device: str, precision: torch.dtype | None, quick: bool) -> dict[str, object]:
    name, shape, n, _ = TASKS[device]
    generator = seeded()
    model = (
        build_classifier(name, "linear", input_shape=shape, num_outputs=10, generator=generator)
        .to(device)
        .eval()
    )
    x = torch.randn(n, *shape, generator=generator).to(device)
    y = torch.randint(0, 10, (n,), generator=generator).to(device)
    if device == "cuda":
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )
    size, few = BATCH.get(device, 2048), 3

    def ours(points: int = few) -> Tensor:
        autocast = nullcontext() if precision is None else torch.autocast(device, precision)
        with autocast:
            return landscape(model, x, y, generator=seeded(), points=points).losses

    contenders = {"by_hand": lambda: by_hand(model, x, y, few, size, precision), "ours": ours}
    if device == "cpu":  # CUDA's batch normalisation cannot go through vmap (torch 2.11)
        contenders["vmap"] = lambda: all_at_once(model, x, y, few, size // 4, precision)
    for other in contenders.values():  # all compute the same
        torch.testing.assert_close(
            other().double(), ours(), rtol=2e-2 if precision else 1e-4, atol=1e-2
        )
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    for turn in range(3 if quick else 7):
        for key in sorted(contenders, reverse=bool(turn % 2)):
            start = clock()
            contenders[key]()  # its losses are on the CPU: no synchronisation is needed
            seconds[key].append(clock() - start)
    ratios = against(seconds, "by_hand")
    row: dict[str, object] = {
        "task": (
            f"{name}, {n} images, batches of {size},"
            f" {str(precision or torch.float32).removeprefix('torch.')}"
        ),
        "ms_per_point": {
            key: round(1e3 * quantiles(s)[1] / few**2, 2) for key, s in seconds.items()
        },
        **{
            f"{key}_ratio": [round(v, 3) for v in ratio]
            for key, ratio in ratios.items()
            if key != "by_hand"
        },
    }
    if not quick:
        start, busy = time.perf_counter(), time.process_time()
        ours(POINTS)
        row[f"seconds_{POINTS}x{POINTS}"] = round(time.perf_counter() - start, 1)
        row["cpu_seconds"] = round(time.process_time() - busy, 1)  # without other processes
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=list(TASKS), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(0, "No GPU: nothing measured.\n")
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True
    rows = []
    for precision in TASKS[options.device][3]:
        rows.append(measure(options.device, precision, options.quick))
        print(rows[-1], flush=True)
    if not options.quick:
        name = "landscape.json" if options.device == "cpu" else "landscape-gpu.json"
        write_rows(Path(__file__).parent / "results" / name, rows)


if __name__ == "__main__":
    main()
