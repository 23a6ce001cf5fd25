"""Cross entropy, GCE and Logistic-Normal on noisy MNIST as paper 000 trains them: its Table 1, published and ours.

    python benchmarks/mnist.py [--seeds 5] [--epochs 100] [--noises none,symmetric,asymmetric] [--data-dir DIR]

Protocol (000, appendix C; its released code where the text is silent): the first 50 000 images, LeNet-5, Adam with
learning rate 0.001, batches of 256, 100 epochs, a tenth of the noisy labels held out, pixels in [0, 1], the last epoch.
Symmetric noise draws from all classes, both kinds flip exact counts; a seed changes noise, weights and batches.
Hyperparameters are those of its Table 5 (``@000``). With fewer epochs or seeds the rows say so. The runs go side by
side on a GPU; every finished one is written at once, and a second call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # else streams share eight queues; read when CUDA starts


import torch
from timing import write_rows

from noiseproof.data import Dataset, Split, get_dataset
from noiseproof.train import Result, prepare
from noiseproof.train.fleet import Job, Outcome, fit_many
from noiseproof.train.protocols import protocol

# 000 Table 1: mean and standard deviation over five seeds.
PUBLISHED = {
    ("none", 0.0): {"ce": (99.27, 0.07), "gce": (99.22, 0.06), "ln": (99.38, 0.06)},
    ("symmetric", 0.2): {"ce": (88.41, 0.34), "gce": (98.85, 0.18), "ln": (98.53, 0.27)},
    ("symmetric", 0.4): {"ce": (70.67, 1.30), "gce": (98.60, 0.11), "ln": (97.21, 0.38)},
    ("symmetric", 0.6): {"ce": (51.04, 1.19), "gce": (97.45, 0.31), "ln": (90.93, 2.29)},
    ("asymmetric", 0.2): {"ce": (91.09, 0.79), "gce": (98.52, 0.31), "ln": (99.19, 0.10)},
    ("asymmetric", 0.3): {"ce": (86.31, 1.25), "gce": (86.36, 0.86), "ln": (99.01, 0.19)},
    ("asymmetric", 0.4): {"ce": (80.31, 1.81), "gce": (79.81, 1.46), "ln": (96.54, 1.20)},
}
SPECS = {
    "none": "none",
    "symmetric": "symmetric-all:rate={},count=total",
    "asymmetric": "asymmetric-mnist:rate={},count=per-class",
}


def first(data: Dataset, n: int) -> Dataset:
    train = data.train
    return replace(data, train=Split(train.x[:n], train.y[:n], clean=train.y[:n]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()  # without one, a short check: the whole takes a CPU half a day
    parser.add_argument("--seeds", type=int, default=5 if gpu else 1)
    parser.add_argument("--epochs", type=int, default=100 if gpu else 10)
    parser.add_argument("--at-once", type=int, help="runs side by side; fewer are finished sooner")
    parser.add_argument("--noises", default="none,symmetric,asymmetric")
    parser.add_argument("--rates", default="0.0,0.2,0.3,0.4,0.6" if gpu else "0.4")
    parser.add_argument("--methods", default="ce,gce,ln")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "mnist.json"))
    options = parser.parse_args()
    data = first(get_dataset("mnist", options.data_dir), options.images)
    settings = replace(protocol("000", "mnist"), epochs=options.epochs)
    journal = Path(options.out).with_suffix(".jsonl")
    done = {}
    if journal.exists():
        done = {tuple(key): value for key, value in map(json.loads, journal.read_text().splitlines())}
    jobs, keys = [], []
    for seed in range(options.seeds):
        for kind, rate in PUBLISHED:
            if kind not in options.noises.split(",") or str(rate) not in options.rates.split(","):
                continue
            noise = SPECS[kind].format(rate)
            task = prepare(data, noise, seed=seed, validation=0.1, paper="000")
            for method in options.methods.split(","):
                spec = method if method == "ce" else f"{method}@000:dataset=mnist,noise={kind},rate={rate}"
                key = (method, kind, rate, seed, options.epochs, options.images)
                if key not in done:
                    jobs.append(Job(task, spec, settings, seed=seed))
                    keys.append(key)

    def keep(number: int, outcome: Outcome) -> None:
        if isinstance(outcome, Result):
            done[keys[number]] = 100 * outcome.last["test_accuracy"]
            with journal.open("a") as file:
                file.write(json.dumps([keys[number], done[keys[number]]]) + "\n")
        print(keys[number], done.get(keys[number], outcome), flush=True)

    journal.parent.mkdir(parents=True, exist_ok=True)
    fit_many(jobs, at_once=options.at_once, finished=keep)
    rows: list[dict[str, object]] = []
    for (kind, rate), cells in PUBLISHED.items():
        for method, (mean, std) in cells.items():
            ours = [
                v
                for k, v in done.items()
                if k[:3] == (method, kind, rate) and k[4:] == (options.epochs, options.images)
            ]
            if not ours:
                continue
            row = {"method": method, "noise": kind, "rate": rate, "seeds": len(ours), "epochs": options.epochs,
                   "images": options.images, "ours": [round(v, 2) for v in ours],
                   "mean": round(statistics.mean(ours), 2), "published": [mean, std]}  # fmt: skip
            if len(ours) > 1:
                own = statistics.stdev(ours)
                row |= {
                    "std": round(own, 2),
                    "z": round((row["mean"] - mean) / (own**2 / len(ours) + std**2 / 5) ** 0.5, 2),
                }
            rows.append(row)
            print(row)
    write_rows(Path(options.out), rows)


if __name__ == "__main__":
    main()
