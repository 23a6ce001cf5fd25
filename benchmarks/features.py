"""Which wrong labels are found with which features of texts and pictures: AP, F1 and CPU seconds.

    NOISEPROOF_DATA=… python benchmarks/features.py [--only photos] [--dev] [--table]

Pictures: 4 000 photos of CIFAR-10 with CIFAR-10N's three human labellings. Texts: sms, packages and
nouns of ``tablesets.py`` with 15 % of the labels replaced at random (seed 1). All are sets to
report on; ``--dev`` measures texts to choose on, fortunes and verbs, and is not written. Thorough
and fast, all else by default (seed 1). Seconds are CPU time on one thread: of the features, and of
the audit without them. The file is written after each row, and rows in it are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score
from tablesets import LabelledSet, load
from threadpoolctl import threadpool_limits
from timing import write_rows

from noiseproof.data.pictures import encode_pictures
from noiseproof.data.text import encode_texts
from noiseproof.judge.evidence.folds import make_folds
from noiseproof.judge.evidence.network import cross_validate, watch_training
from noiseproof.judge.labels import find_label_issues

Array = NDArray[Any]
OUT = Path(__file__).parent / "results" / "features.json"
SEED, RATE = 1, 0.15
PICTURES = ("efficientnet-lite0", "efficientnet-lite0:size=160", "patches")
TEXT = ("wordllama", "tfidf", "wordllama + 0.5*tfidf")
HUMAN = ("aggregate", "random1", "worst")
CELLS = [
    *(("cifar10n", human, name) for name in PICTURES for human in HUMAN),
    *((data, "", name) for data in ("sms", "packages", "nouns") for name in TEXT),
]
DEV = [(data, "", name) for data in ("fortunes", "verbs") for name in TEXT]


@cache
def labelled(name: str) -> LabelledSet:
    return load(name)


@cache
def features(data: str, name: str) -> tuple[Array, float]:
    """Features, and the CPU seconds that they took."""
    rows = labelled(data)
    began = time.process_time()
    if rows.images is not None:
        x, _ = encode_pictures(torch.from_numpy(rows.images), name, seed=SEED)
    else:
        x, _ = encode_texts(rows.frame[rows.text].tolist(), name, seed=SEED)
    return x, time.process_time() - began


def labels(data: str, human: str) -> tuple[Array, Array]:
    """True and given labels, (N,): those of people, or planted ones."""
    rows = labelled(data)
    names, y = np.unique(rows.frame[rows.label], return_inverse=True)
    if human:
        return y, np.searchsorted(names, rows.frame[human])
    random = np.random.default_rng(SEED)
    wrong = random.random(len(y)) < RATE
    return y, np.where(wrong, (y + random.integers(1, len(names), len(y))) % len(names), y)


def measure(data: str, human: str, name: str) -> dict[str, Any]:
    x, seconds = features(data, name)
    y, given = labels(data, human)
    wrong, K = given != y, int(y.max()) + 1
    row: dict[str, Any] = {
        "data": data,
        "noise": human or f"planted {RATE}",
        "features": name,
        "rows": len(y),
        "columns": x.shape[1],
        "wrong": round(float(wrong.mean()), 4),
        "feature_seconds": round(seconds, 1),
    }
    for mode in ("fast", "thorough"):
        began = time.process_time()
        if mode == "fast":
            evidence = watch_training(x, given, K, seed=SEED)
        else:
            evidence = cross_validate(x, given, K, make_folds(given, seed=SEED), seed=SEED)
        issues = find_label_issues(given, evidence=evidence)
        row[mode] = {
            "ap": round(float(average_precision_score(wrong, -issues.quality)), 4),
            "f1": round(float(f1_score(wrong, issues.is_issue)), 4),
            "rate": round(issues.noise_rate, 4),
            "seconds": round(time.process_time() - began, 2),
        }
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| data, noise | features | AP: fast, thorough | F1: fast, thorough | CPU s: features,"
        " fast, thorough |"
    ]
    lines.append("| --- " * 5 + "|")
    for row in rows:
        ap, f1, seconds = (
            ", ".join(f"{row[mode][key]:.{digits}f}" for mode in ("fast", "thorough"))
            for key, digits in (("ap", 3), ("f1", 3), ("seconds", 0))
        )
        about = f"| {row['data']}, {row['noise']} | {row['features']}"
        lines.append(f"{about} | {ap} | {f1} | {row['feature_seconds']:.0f}, {seconds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="one set")
    parser.add_argument(
        "--dev", action="store_true", help="the sets to choose on, which are not written"
    )
    parser.add_argument(
        "--table", action="store_true", help="only print the table of what is there"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = (
        json.loads(OUT.read_text())["rows"] if OUT.exists() and not options.dev else []
    )
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for cell in [] if options.table else DEV if options.dev else CELLS:
            done = [(row["data"], row["noise"], row["features"]) for row in rows]
            if (
                options.only in (None, cell[0])
                and (cell[0], cell[1] or f"planted {RATE}", cell[2]) not in done
            ):
                rows.append(measure(*cell))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
                if not options.dev:
                    write_rows(OUT, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
