"""What ``method="auto"`` rests on: the estimated noise beside the truth, and methods beside each other.

    python benchmarks/auto.py [--seeds 2] [--epochs 50] [--out FILE]

Four sets of vectors that are at hand without a download, two of them with few rows, one with fifty classes; accuracy is
on clean test labels after the last epoch, the mean over seeds. Methods are used as they come.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from timing import write_rows

from noiseproof.data import Dataset, from_arrays
from noiseproof.train import Diverged, Settings, prepare, train
from noiseproof.train.auto import choose_method, estimate_noise

METHODS = ("ce", "gce", "nce+agce", "sln-mo", "elr")
NOISES = ("none", "symmetric:rate=0.2", "symmetric:rate=0.4", "pairflip:rate=0.3")


def gaussians(num_classes: int, rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit normals around centres that are 1.3 times as far from the origin."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, num_classes, rows)
    return 1.3 * draw.normal(size=(num_classes, features))[y] + draw.normal(size=(rows, features)), y


def split(x: np.ndarray, y: np.ndarray) -> Dataset:
    x, test_x, y, test_y = train_test_split(x.astype(np.float32), y, test_size=0.3, random_state=0, stratify=y)
    return from_arrays(x, y, test=(test_x, test_y))


def accuracy(data: Dataset, noise: str, method: str, seed: int, epochs: int) -> float:
    settings = Settings(epochs=epochs)
    try:
        return train(prepare(data, noise, seed=seed), method, settings, seed=seed).last["test_accuracy"]
    except Diverged:
        return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "auto.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = {
        "wine": split(*load_wine(return_X_y=True)),
        "cancer": split(*load_breast_cancer(return_X_y=True)),
        "digits": split(*load_digits(return_X_y=True)),
        "gaussians": split(*gaussians(50, 2500, 20)),
    }
    rows: list[dict[str, object]] = []
    for name, data in sets.items():
        for noise in NOISES:
            tasks = [prepare(data, noise, seed=seed) for seed in range(options.seeds)]
            estimated = fmean(estimate_noise(task, seed=seed) or 0.0 for seed, task in enumerate(tasks))
            found = {
                method: round(
                    fmean(accuracy(data, noise, method, seed, options.epochs) for seed in range(options.seeds)), 4
                )
                for method in METHODS
            }
            rate = fmean(task.train.rate or 0.0 for task in tasks)
            chosen = choose_method(data.num_classes, len(data.train), estimated)
            row = {"data": name, "rows": len(data.train), "classes": data.num_classes, "noise": noise}
            row |= {"rate": round(rate, 4), "estimated": round(estimated, 4), "chosen": chosen, **found}
            print(row, flush=True)
            rows.append({**row, "seeds": options.seeds, "epochs": options.epochs})
    write_rows(Path(options.out), rows)


if __name__ == "__main__":
    main()
