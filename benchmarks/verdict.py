"""Whether losses with a head learn as ``analyze fit`` says before training: LN, NAL and Het, 10 to
200 classes.

    python benchmarks/verdict.py --data data/defaults [--processes 2] [--out FILE]

Clean labels, or 30 % wrong at random; 15 epochs, all else by default. A loss learns from 0.9 of the
accuracy that cross entropy has on the same labels and seed, partly from 0.5. Thresholds of these
losses were set on Gaussian classes (``SET_ON``). LN's formula was changed once after a look at
``SEEN``: digits, photos of CIFAR-100 as pretrained features (``defaults.py --pack``, 30 classes or
all) and 200 other Gaussian classes. ``FRESH``, sets of ``defaults.DEV`` with two clusters a class,
other spreads and numbers of features, had no part in anything, and are run with two seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from defaults import DEV, arrays_of, gaussians
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from timing import write_rows
from trials import Row, add_options, outcome, run_all

from noiseproof.analysis.before.forecast import forecast
from noiseproof.data import from_arrays
from noiseproof.train import Settings, Task, prepare

RESULTS = Path(__file__).parent / "results" / "verdict.json"
SET_ON = {"gaussians10": 10, "gaussians30": 30, "gaussians60": 60, "gaussians100": 100}
SEEN = {"digits": 10, "photos30": 30, "photos100": 100, "classes200": 200}
FRESH = {name: len(DEV[name][1]) for name in ("ten", "many50", "overlap", "many")}
PARTS = {"set here": (SET_ON, [0]), "seen": (SEEN, [0]), "fresh": (FRESH, [1, 2])}  # sets and seeds
NOISES = ("none", "symmetric:rate=0.3")
LOSSES = {
    "ln": [f"ln:lam={lam},start={start}" for lam in (0.25, 1) for start in (0.1, 0.3, 1)],
    "nal": [f"(nal:lam={lam})" for lam in (0.1, 0.5, 2, 10)],
    "het": [f"(het:tau={tau},samples=10)" for tau in (1, 10, 50)],
}


class Job(NamedTuple):
    loss: str
    set: str
    noise: str
    seed: int


def arrays(name: str, folder: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if name in SET_ON:
        made = gaussians(SET_ON[name], 32, 1.0, 30 * SET_ON[name] + 1500, seed=SET_ON[name])
        return made["x"], made["y"]
    if not name.startswith("photos"):
        known = arrays_of(name, folder)
        return known["x"][:6000], known["y"][:6000]
    photos = arrays_of("cifar100n", folder)
    few = photos["y"] < SEEN[name]
    return photos["x"][few].astype(np.float32), photos["y"][few]


@cache
def task(name: str, noise: str, seed: int, folder: str) -> Task:
    x, y = arrays(name, folder)
    x, test_x, y, test_y = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
    return prepare(from_arrays(x, y, test=(test_x, test_y)), noise, seed=seed)


def run(job: Job, folder: str) -> Row:
    settings = Settings(epochs=15)
    return job._asdict() | outcome(
        lambda: task(job.set, job.noise, job.seed, folder), job.loss, settings, job.seed
    )


def judged(row: Row, ce: float, num_classes: int) -> Row:
    """A run beside the forecast."""
    share = row.get("accuracy", 0.0) / ce
    result = forecast(row["loss"].strip("()"), num_classes, alternatives=False)
    return {
        **{name: row[name] for name in Job._fields},
        "set_on": row["set"] in SET_ON,
        "accuracy": row.get("accuracy"),
        "share_of_ce": round(share, 3),
        "outcome": "learns" if share >= 0.9 else "partly" if share >= 0.5 else "underfits",
        "forecast": result.answer,
        "left_behind": float(f"{result.left_behind:.4g}"),
        "slowness": float(f"{result.slowness:.4g}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/defaults"),
        help="folder that defaults.py --pack wrote",
    )
    add_options(parser, "runs/verdict.jsonl", "")
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas")
    options = parser.parse_args()
    losses = ["ce", *(loss for family in LOSSES.values() for loss in family)]
    parts = {name: PARTS[name] for name in options.parts.split(",")}
    given = [int(seed) for seed in options.seeds.split(",") if seed]  # else those of each part
    jobs = [
        Job(*job)
        for sets, seeds in parts.values()
        for job in product(losses, sets, NOISES, given or seeds)
    ]
    done = run_all(
        partial(run, folder=str(options.data)),
        jobs,
        options.out,
        options.processes,
        options.seconds,
    )
    ce = {
        (row["set"], row["noise"], row["seed"]): row["accuracy"]
        for row in done
        if row["loss"] == "ce"
    }
    classes = {name: count for sets, _ in PARTS.values() for name, count in sets.items()}
    others = [row for row in done if row["loss"] != "ce"]
    rows = [
        judged(row, ce[row["set"], row["noise"], row["seed"]], classes[row["set"]])
        for row in others
    ]
    for family, (part, (sets, _)) in product(LOSSES, parts.items()):
        of_part = [
            row for row in rows if row["loss"].strip("(").startswith(family) and row["set"] in sets
        ]
        agree = [row for row in of_part if row["outcome"] == row["forecast"]]
        opposite = [
            row for row in of_part if {row["outcome"], row["forecast"]} == {"learns", "underfits"}
        ]
        answer, most = Counter(row["outcome"] for row in of_part).most_common(1)[0]
        print(
            f"{family}, {part}: {len(agree)} of {len(of_part)} agree, {len(opposite)} opposite;"
            f" '{answer}' has {most}"
        )
        for row in (row for row in of_part if row not in agree):
            where = ", ".join(row[name] for name in ("set", "noise", "loss"))
            print(f"  {where}: {row['share_of_ce']} of CE, forecast {row['forecast']}")
    if len(parts) == len(PARTS):
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
