"""What pictures are seen by, where there is no pretrained backbone: patch features against pixels,
on CIFAR-10.

    python benchmarks/pictures.py [--data-dir FOLDER] [--threads 1]

Features are learned and fitted on 5 000 training images, accuracy is that of the next 1 000, with
their clean labels: of logistic regression, its penalty chosen among four on a fifth of the 5 000,
and of the 15 nearest neighbours by cosine. The images are others than those on which the scaling of
the features was chosen (the first 6 000).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from timing import write_rows

from noiseproof.data import get_dataset
from noiseproof.data.pictures import PatchFeatures, Pictures

FIRST, FIT, TEST = 10_000, 5_000, 1_000


PENALTIES = (0.003, 0.03, 0.3, 3)


def linear(x: np.ndarray, y: np.ndarray, C: float) -> LogisticRegression:
    return LogisticRegression(C=C, max_iter=300).fit(x, y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        data = get_dataset("cifar10", options.data_dir).train
    except FileNotFoundError as error:
        parser.exit(0, f"CIFAR-10 is not here: nothing was measured. {error}\n")
    rows_used = slice(FIRST, FIRST + FIT + TEST)
    images, y = data.x[rows_used], data.y[rows_used].numpy()
    assert isinstance(images, torch.Tensor)
    rows: list[dict[str, object]] = []
    for name in ("pixels, 128 main axes", "patches"):
        began = time.perf_counter()
        if name == "patches":
            x = PatchFeatures().fit(Pictures(images[:FIT])).encode(Pictures(images))
        else:
            pixels = images.flatten(1).numpy() / np.float32(255)
            x = PCA(128, random_state=0).fit(pixels[:FIT]).transform(pixels)
        seconds = time.perf_counter() - began
        part = FIT * 4 // 5
        penalty = max(
            PENALTIES, key=lambda C: linear(x[:part], y[:part], C).score(x[part:FIT], y[part:FIT])
        )
        score = linear(x[:FIT], y[:FIT], penalty).score(x[FIT:], y[FIT:])
        near = (
            KNeighborsClassifier(15, metric="cosine").fit(x[:FIT], y[:FIT]).score(x[FIT:], y[FIT:])
        )
        rows.append(
            {
                "features": name,
                "images": FIT,
                "logistic_regression": round(score, 3),
                "neighbours": round(near, 3),
                "ms_per_image": round(1e3 * seconds / len(images), 2),
            }
        )
        print(rows[-1], flush=True)
    write_rows(Path(__file__).parent / "results" / "pictures.json", rows)


if __name__ == "__main__":
    main()
