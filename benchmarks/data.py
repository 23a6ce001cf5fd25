"""Augmentation of the whole batch on the device against the papers' way: PIL on each image in
DataLoader workers.

    python benchmarks/data.py [--quick] [--threads 2] [--device cuda]

One contender is one epoch in random order over CIFAR-shaped images, batches of 128, all on the same
two cores in the same run: the baseline has a worker process on each, the whole batch by default one
thread of one process (a second one is a gain on a quiet machine only, since its threads wait for
each other). The baseline's transformations are imported from the tests, where their results are
proved equal. A row is the median number of images per second with its p20 and p80 over rounds;
``speedup`` is the median of the ratio within a round.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from timing import interleave, quantiles, write_rows
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from noiseproof.data.augment import (
    ColorJitter,
    Compose,
    Flip,
    Normalise,
    PadCrop,
    Rotate,
    Transform,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "data"))

BATCH, WORKERS = 128, 2
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
JITTER = (0.4, 0.4, 0.4, 0.2)
TASKS: dict[str, Transform] = {
    "crop + flip + normalise": Compose([PadCrop(4), Flip(), Normalise(MEAN, STD)]),
    "crop + flip + rotate + normalise": Compose(
        [PadCrop(4), Flip(), Rotate(15), Normalise(MEAN, STD)]
    ),
    "crop + flip + jitter + normalise": Compose(
        [PadCrop(4), Flip(), ColorJitter(*JITTER), Normalise(MEAN, STD)]
    ),
}
BARS = {"crop + flip + normalise": 10.0}


class PapersDataset(Dataset[tuple[Tensor, int]]):
    """One image at a time, random numbers from torch's global generator as torchvision draws
    them.
    """

    def __init__(self, images: np.ndarray, task: str) -> None:
        import test_augment as reference

        self.images, self.task, self.pil = images, task, reference  # (N, H, W, C)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[index])
        top, left = (int(torch.randint(0, 9, (1,))) for _ in range(2))
        image = self.pil.pil_crop_flip(image, 4, top, left, bool(torch.rand(1) < 0.5))
        if "rotate" in self.task:
            angle = float(torch.empty(1).uniform_(-15, 15))
            image = image.rotate(angle, Image.Resampling.BILINEAR)
        if "jitter" in self.task:
            order = torch.randperm(4).tolist()
            amounts = [float(torch.empty(1).uniform_(-most, most)) for most in JITTER]
            image = self.pil.pil_jitter(image, order, [1 + a for a in amounts[:3]], amounts[3])
        return self.pil.pil_normalise(image, MEAN, STD), 0


def loader_epoch(images: np.ndarray, task: str) -> Callable[[], None]:
    loader = DataLoader(PapersDataset(images, task), BATCH, shuffle=True, num_workers=WORKERS)

    def epoch() -> None:
        for _batch in loader:
            pass

    return epoch


def batched_epoch(images: Tensor, augment: Transform) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)

    def epoch() -> None:
        order = torch.randperm(len(images), generator=generator).to(images.device)
        for index in order.split(BATCH):
            # lives until the next one, as in training
            _batch = augment(images.index_select(0, index), generator)
        if images.is_cuda:
            torch.cuda.synchronize()

    return epoch


def measure(task: str, count: int, rounds: int, device: str) -> list[dict[str, object]]:
    load = round(os.getloadavg()[0], 2)
    images = torch.randint(
        0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    baseline, ours = f"PIL + DataLoader(num_workers={WORKERS})", "whole batch"
    contenders = {
        baseline: loader_epoch(images.permute(0, 2, 3, 1).contiguous().numpy(), task),
        ours: batched_epoch(images.to(device), TASKS[task]),
    }
    seconds = interleave(contenders, rounds=rounds, calls=1)
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        p20, median, p80 = quantiles([count / t for t in times])
        row = {
            "task": task,
            "pipeline": name,
            "device": device if name == ours else "cpu",
            "images": count,
        }
        row |= {"cores": WORKERS, "load_before": load, "pillow": PIL.__version__}
        row |= {"images_per_s": round(median), "p20": round(p20), "p80": round(p80)}
        if name == ours:
            low, ratio, high = quantiles(
                [b / t for b, t in zip(seconds[baseline], times, strict=True)]
            )
            bar = BARS.get(task)
            row |= {
                "speedup": round(ratio, 1),
                "speedup_p20": round(low, 1),
                "speedup_p80": round(high, 1),
            }
            row |= {"bar": bar, "verdict": "" if bar is None else "ok" if ratio >= bar else "under"}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the images, three rounds, nothing written"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of the whole-batch pipeline"
    )
    parser.add_argument(
        "--device", default="cpu", help="where the images live for the whole-batch pipeline"
    )
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # workers inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:WORKERS])
    torch.set_num_threads(args.threads)
    # A training step frees larger tensors than a batch, and from the first one on glibc keeps freed
    # memory. Without one of 16 MB here, giving memory back and forth would cost the whole batch
    # almost as much as the work itself.
    torch.zeros(1 << 22)
    rows = []
    for task in TASKS:
        count = 50_000 if task in BARS else 20_000
        for row in measure(
            task, count // 5 if args.quick else count, 3 if args.quick else 5, args.device
        ):
            rows.append(row)
            speedup = (
                f"  {row['speedup']}x [{row['speedup_p20']}, {row['speedup_p80']}]"
                if "speedup" in row
                else ""
            )
            print(
                f"{row['task']:34}{row['pipeline']:33}{row['device']:5}{row['images_per_s']:>9}"
                f" images/s [{row['p20']}, {row['p80']}]{speedup}",
                flush=True,
            )
    if not args.quick:
        name = "data.json" if args.device == "cpu" else f"data-{args.device}.json"
        write_rows(Path(__file__).parent / "results" / name, rows)


if __name__ == "__main__":
    main()
