"""Training from the three annotators of CIFAR-10N: each label by itself, through `crowd-layer`, or
their consensus.

    python benchmarks/crowd_layer.py [--data DIR] [--out FILE]

2 000 photos with three labels each, tested on 1 000 others with their true labels; features of
EfficientNet-Lite0, which ImageNet taught, on the 128 main axes of both; a network with one hidden
layer. Rows of single labels are three times as many, so that they are trained for a third of the
epochs: all have the same number of steps. Accuracies are those after the last epoch. ``DIR`` as in
crowd.py.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from crowd import photo_features
from timing import write_rows

from noiseproof.audit import consensus
from noiseproof.data import from_arrays, get_dataset
from noiseproof.data.votes import Votes
from noiseproof.train import Settings, prepare, train

RESULTS = Path(__file__).parent / "results" / "crowd_layer.json"
SEEDS, EPOCHS, MODEL, PHOTOS = range(5), 60, "mlp:hidden=[256]", 2000


def measure(folder: Path) -> list[dict[str, Any]]:
    data = get_dataset("cifar10", data_dir=str(folder))
    x = photo_features(folder, data.train)
    truth, x = np.asarray(data.train.y)[: len(x)], (x - x.mean(0)) / x.std(0)
    human = torch.load(folder / "cifar-n" / "CIFAR-10_human.pt", weights_only=False)
    table = np.stack([human[f"random_label{k}"] for k in (1, 2, 3)], 1)[:PHOTOS].astype(np.int64)
    test, x, truth = (x[PHOTOS:], truth[PHOTOS:]), x[:PHOTOS], truth[:PHOTOS]
    votes, names = Votes.of_table(table), list(data.classes)
    path = Path(tempfile.mkdtemp(), "votes.npy")
    np.save(path, table)

    def task(labels: Any, noise: str | None = None) -> Any:
        return prepare(from_arrays(x, labels, classes=names, test=test), noise)

    combined = {
        method: consensus(votes, 10, method=method).label
        for method in ("majority", "dawid-skene", "pooled")
    }
    single = task(truth, f"file:path={path},annotators=all")
    runs: list[tuple[str, str, Any, int]] = [
        *((f"{name} of the three", "ce", task(label), EPOCHS) for name, label in combined.items()),
        ("shares of the three", "ce", task(votes.counts(10)), EPOCHS),
        ("each label", "ce", single, EPOCHS // 3),
        ("each label", "ce & crowd-layer", single, EPOCHS // 3),
        ("each label", "ce & crowd-layer:kind=matrix", single, EPOCHS // 3),
        ("majority of the three", "gce", task(combined["majority"]), EPOCHS),
        ("true labels", "ce", task(truth), EPOCHS),
    ]
    right = {
        f"{name} of the three": float((label == truth).mean()) for name, label in combined.items()
    }
    right |= {"each label": float((table == truth[:, None]).mean()), "true labels": 1.0}
    rows = []
    for seed in SEEDS:
        for labels, method, prepared, epochs in runs:
            settings = Settings(epochs=epochs, model=MODEL)
            accuracy = train(prepared, method, settings, seed=seed).metrics[-1]["test_accuracy"]
            rows.append(
                {
                    "data": "CIFAR-10N",
                    "labels": labels,
                    "right": right.get(labels),
                    "method": method,
                    "seed": seed,
                    "epochs": epochs,
                    "accuracy": round(accuracy, 4),
                }
            )
            print(*rows[-1].values(), sep="\t", flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("/tmp/noiseproof-data"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    write_rows(options.out, measure(options.data))
