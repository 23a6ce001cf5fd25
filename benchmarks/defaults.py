"""Every method at its defaults on fifteen sets: which diverge, and how accurate they are beside
cross entropy.

    python benchmarks/defaults.py --pack data/defaults     # on a machine that has the sets: write
    them, 5 minutes python benchmarks/defaults.py --data data/defaults [--seeds 0,1,2] [--processes
    12] [--out FILE] [--seconds 500] python benchmarks/defaults.py --sets rare --seeds 10   # a set
    of ``DEV``, on which constants were chosen python benchmarks/defaults.py --table
    # write the table of docs/methods.md from the results

Sets have 2 to 200 classes and 100 to 50 000 training rows: tables, texts and photos as pretrained
features, digits as images, and Gaussian classes. Labels are clean, 20 % and 40 % wrong at random,
or those that people gave (CIFAR-10N, CIFAR-100N). Constants of methods were chosen with accuracies
on the sets of ``CHOSEN_ON`` in view, or on those of ``DEV`` and ``CLOTHES``, which are not in the
table; the others only report. A seed draws the split into training and test rows, the noise and the
run. Model, optimiser and all else are what ``noiseproof train`` does by default, other than the
epochs. Runs are written to benchmarks/results once all are there; ``auto.py`` and docs/methods.md
compare them. Real sets are those of ``tablesets.py``, which says where they come from.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from timing import write_rows
from trials import Row, add_options, outcome, run_all

from noiseproof.data import Dataset, from_arrays, from_table, get_dataset
from noiseproof.train import Settings, Task, prepare
from noiseproof.train.methods import METHODS

RESULTS = Path(__file__).parent / "results" / "defaults.json"
RANDOM = ("none", "symmetric:rate=0.2", "symmetric:rate=0.4")


class Set(NamedTuple):
    """How many rows a set trains on, for how many epochs, with which noise, and at most how many
    are for the test.
    """

    rows: int
    epochs: int
    noises: tuple[str, ...] = RANDOM
    test: int = 2000


SETS = {  # those that take less time first
    "hundred": Set(100, 100),
    "wine": Set(120, 100),
    "breast_cancer": Set(400, 60),
    "german": Set(700, 50),
    "sms": Set(1500, 25),
    "digits": Set(1200, 40),
    "phoneme": Set(2000, 20),
    "adult": Set(2000, 20),
    "mammography": Set(2000, 20),
    "cifar10n": Set(2000, 20, (*RANDOM, "random1", "worst")),
    "classes100": Set(2000, 20),
    "cifar100n": Set(3000, 15, ("none", "noisy")),
    "classes200": Set(6000, 6),
    "mnist": Set(1000, 20, ("none", "symmetric:rate=0.4")),
    "rows50k": Set(50_000, 3, ("none", "symmetric:rate=0.4")),
}
CHOSEN_ON = ("wine", "breast_cancer", "digits", "classes100")
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
MANY = ("classes100", "classes200", "cifar100n")
FEW = tuple(name for name in SETS if name not in (*MANY, "mnist"))
# of the table: sets and labels of a mean
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "clean": (FEW, ("none",)),
    "20 %": (FEW, ("symmetric:rate=0.2",)),
    "40 %": (FEW, ("symmetric:rate=0.4",)),
    "people": (tuple(SETS), ("random1", "worst", "noisy")),
    "many classes, clean": (MANY, ("none",)),
    "many, 40 %": (MANY, ("symmetric:rate=0.4", "noisy")),
}
MOST_MISSES = 4  # of a method in the table; _methods/index.md has all
MADE = {
    "hundred": (3, 8, 1.0),
    "classes100": (100, 32, 1.0),
    "classes200": (200, 40, 0.9),
    "rows50k": (10, 12, 1.1),
}


# shares of classes, clusters of each, features, …
DEV: dict[str, tuple[Set, list[float], int, int, float, int]] = {
    "rare": (Set(2000, 20), [0.97, 0.03], 2, 6, 1.2, 101),
    "quarter": (Set(1500, 25), [0.75, 0.25], 3, 10, 0.45, 102),
    "curved": (Set(2000, 20), [0.65, 0.35], 6, 4, 1.3, 103),
    "mixed5": (Set(1500, 25), [0.5, 0.3, 0.12, 0.05, 0.03], 2, 10, 0.8, 104),
    "ten": (Set(1200, 40), [0.1] * 10, 2, 20, 0.8, 105),
    "many": (Set(4500, 7), [1 / 150] * 150, 1, 36, 0.9, 106),
    "many50": (Set(1500, 25), [1 / 50] * 50, 1, 30, 0.9, 107),
    "small": (Set(150, 100), [0.4, 0.35, 0.25], 1, 8, 0.8, 108),
    "bent": (Set(2000, 20), [0.7, 0.3], 6, 4, 2.2, 112),
    "pair": (Set(400, 60), [0.63, 0.37], 1, 30, 0.5, 111),
    "tenth": (Set(1500, 25), [0.87, 0.13], 3, 64, 0.5, 110),
    "overlap": (Set(3000, 15), [1 / 100] * 100, 2, 64, 0.45, 109),
}
# Fashion-MNIST as images, and as numbers
CLOTHES = {"clothes": Set(1000, 20, test=500), "pixels": Set(2000, 20)}


class Job(NamedTuple):
    method: str
    set: str
    noise: str
    seed: int


def gaussians(
    classes: int, features: int, spread: float, rows: int, *, seed: int
) -> dict[str, NDArray[Any]]:
    """Unit normals around centres that are normal, too, with a standard deviation of ``spread``."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, classes, rows)
    centres = spread * draw.normal(size=(classes, features))
    return {"x": (centres[y] + draw.normal(size=(rows, features))).astype(np.float32), "y": y}


def clusters(
    shares: Sequence[float], each: int, features: int, spread: float, rows: int, *, seed: int
) -> dict[str, NDArray[Any]]:
    """As ``gaussians``, of classes with these shares and ``each`` centres."""
    draw = np.random.default_rng(seed)
    y = draw.choice(len(shares), rows, p=np.array(shares) / sum(shares))
    centres = spread * draw.normal(size=(len(shares), each, features))
    noise_free = centres[y, draw.integers(0, each, rows)]
    return {"x": (noise_free + draw.normal(size=(rows, features))).astype(np.float32), "y": y}


def packed(name: str) -> dict[str, NDArray[Any]]:
    """A set of ``tablesets.py`` as numbers: ``x``, ``y`` and people's labels by their name."""
    import tablesets

    from noiseproof.data.pictures import encode_pictures
    from noiseproof.data.text import encode_texts

    data = tablesets.load(name)
    classes, y = np.unique(data.frame[data.label], return_inverse=True)
    arrays: dict[str, NDArray[Any]] = {"y": y}
    arrays |= {human: np.searchsorted(classes, data.frame[human]) for human in data.human}
    if data.images is not None and data.human:  # photos; other pictures are trained on as they are
        arrays["x"] = encode_pictures(torch.from_numpy(data.images))[0].astype(np.float16)
    elif data.images is not None:
        arrays["x"] = data.images
    elif data.text is not None:
        arrays["x"] = encode_texts(data.frame[data.text].tolist())[0].astype(np.float16)
    else:
        table = from_table(data.frame, label=data.label, missing="impute")
        arrays["x"] = np.asarray(table.train.x, np.float32)
    return arrays


def pack(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        if name not in MADE and not (folder / f"{name}.npz").exists():
            np.savez_compressed(folder / f"{name}.npz", **packed(name))
            print(f"{name}: {(folder / f'{name}.npz').stat().st_size / 1e6:.1f} MB", flush=True)


@cache
def arrays_of(name: str, folder: str) -> dict[str, NDArray[Any]]:
    if name in MADE:
        return gaussians(*MADE[name], SETS[name].rows + SETS[name].test, seed=len(name))
    if name in CLOTHES:
        images = get_dataset("fashion-mnist").test
        x = images.x.numpy()
        return {
            "x": x if name == "clothes" else x.reshape(len(x), -1) / np.float32(255),
            "y": images.y.numpy(),
        }
    if name in DEV:
        size, *shape, seed = DEV[name]
        return clusters(*shape, size.rows + size.test, seed=seed)
    with np.load(Path(folder) / f"{name}.npz") as file:
        return {key: file[key] for key in file}


def set_of(name: str) -> Set:
    return DEV[name][0] if name in DEV else (SETS | CLOTHES)[name]


@cache
def split(name: str, seed: int, folder: str) -> tuple[Dataset, NDArray[np.int64]]:
    """The set, and which rows are for training."""
    from sklearn.model_selection import train_test_split

    arrays = arrays_of(name, folder)
    x = arrays["x"] if arrays["x"].dtype == np.uint8 else arrays["x"].astype(np.float32)
    y, rows = arrays["y"], np.arange(len(arrays["y"]))
    size = set_of(name)
    train, test = train_test_split(rows, train_size=size.rows, random_state=seed, stratify=y)
    test = test[: size.test]
    classes = [str(label) for label in range(int(y.max()) + 1)]
    return from_arrays(x[train], y[train], classes=classes, test=(x[test], y[test])), train


@cache
def task(name: str, noise: str, seed: int, folder: str) -> Task:
    data, rows = split(name, seed, folder)
    arrays = arrays_of(name, folder)
    with TemporaryDirectory() as scratch:
        if noise in arrays:  # labels by people
            np.save(Path(scratch) / "labels.npy", arrays[noise][rows])
            noise = f"file:path={scratch}/labels.npy"
        return prepare(data, noise, seed=seed, validation=0.1)


def run(job: Job, folder: str) -> Row:
    settings = Settings(epochs=set_of(job.set).epochs)
    return job._asdict() | outcome(
        lambda: task(job.set, job.noise, job.seed, folder), job.method, settings, job.seed
    )


def with_gains(rows: Sequence[Row]) -> pd.DataFrame:
    """The runs, each with what it gains over ``ce`` on the same labels with the same seed."""
    runs = pd.DataFrame([row for row in rows if "accuracy" in row])
    runs = runs.merge(
        runs[runs["method"] == "ce"], on=["set", "noise", "seed"], suffixes=("", "_of_ce")
    )
    runs["gain"] = runs["accuracy"] - runs["accuracy_of_ce"]
    return runs


def table(rows: Sequence[Row]) -> str:
    """Methods that seldom miss the bars against ``ce``, those that gain most over all columns
    first.
    """
    runs = with_gains(rows)
    digits = runs[runs["set"] == "digits"].groupby("method")[["seconds", "seconds_of_ce"]].sum()
    missed = misses(runs)
    lines: dict[str, tuple[float, str]] = {}
    for method, own in runs[runs["method"].map(missed) <= MOST_MISSES].groupby("method"):
        by_set = {
            title: (
                own[own["set"].isin(sets) & own["noise"].isin(noises)].groupby("set")["gain"].mean()
            )
            for title, (sets, noises) in COLUMNS.items()
        }
        means = [gains.mean() for gains in by_set.values()]
        time = digits["seconds"][method] / digits["seconds_of_ce"][method]
        cells = [f"`{method}`", *(f"{mean:+.3f}" for mean in means), f"{time:.1f}"]
        cells.append(str(missed[method]))
        lines[str(method)] = sum(means), f"| {' | '.join(cells)} |"
    titles = ["method", *COLUMNS, "time", "misses"]
    body = [line for _, line in sorted(lines.values(), reverse=True)]
    return "\n".join([f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", *body])


def misses(runs: pd.DataFrame) -> pd.Series[int]:
    """How often each method misses the bars, against ``ce`` on the same labels."""
    gains = runs.groupby(["method", "noise", "set"])["gain"].agg(["mean", "sem"]).reset_index()
    is_clean = gains["noise"] == "none"
    is_judged_noise = ~gains["noise"].isin(["none", "symmetric:rate=0.2"])
    below = (is_clean & (gains["mean"] < -0.03)) | (
        is_judged_noise & (gains["mean"] < -2 * gains["sem"])
    )
    return gains[below].groupby("method").size().reindex(METHODS, fill_value=0)


def write_tables() -> None:
    """Write the table between its marks in docs/methods.md."""
    rows, page = json.loads(RESULTS.read_text("utf-8"))["rows"], PAGE.read_text("utf-8")
    before, rest = page.split("<!-- defaults -->\n")
    made = f"<!-- defaults -->\n\n{table(rows)}\n\n"
    PAGE.write_text(f"{before}{made}{rest[rest.index('<!-- end -->') :]}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data/defaults"), help="folder that --pack wrote"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="write the sets to this folder, and stop"
    )
    parser.add_argument(
        "--table", action="store_true", help="write the table of docs/methods.md, and stop"
    )
    parser.add_argument(
        "--methods", default=",".join(METHODS), help="names or specs, separated by commas"
    )
    parser.add_argument("--sets", default=",".join(SETS), help="names, separated by commas")
    add_options(parser, "runs/defaults.jsonl", "0,1,2")
    options = parser.parse_args()
    if options.pack:
        pack(options.pack)
        return
    if options.table:
        write_tables()
        return
    names = options.sets.split(",")
    known = {*MADE, *DEV, *CLOTHES}
    if missing := [
        name for name in names if name not in known and not (options.data / f"{name}.npz").exists()
    ]:
        sys.exit(
            f"No {', '.join(missing)} in {options.data}: write the sets with --pack, or leave them"
            " out by --sets."
        )
    jobs = [
        Job(method, name, noise, int(seed))
        for seed in options.seeds.split(",")
        for name in names
        for noise in set_of(name).noises
        for method in re.split(r",(?!\w+=)", options.methods)  # not at the commas inside a spec
    ]
    rows = run_all(
        partial(run, folder=str(options.data)),
        jobs,
        options.out,
        options.processes,
        options.seconds,
    )
    if len(jobs) == sum(len(each.noises) for each in SETS.values()) * len(METHODS) * len(
        options.seeds.split(",")
    ):
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
