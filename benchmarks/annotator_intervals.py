"""How often the intervals of annotators' quality cover the truth, in simulated crowds.

    python benchmarks/annotator_intervals.py          # seeds 2000 to 2029
    python benchmarks/annotator_intervals.py --dev    # seeds 100 to 115, on which settings were
    chosen

The truth is the mean probability of a right label on the rows that an annotator labelled, which the
simulation of ``tests/helpers/crowds.py`` knows. Annotators with five labels or more count, and by
themselves those with more than forty, whose intervals are narrow.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tablesets import ROOT
from timing import write_rows

from noiseproof.judge.crowd.confusion import VotedRows, fit_annotators
from noiseproof.judge.crowd.quality import FEW, measure_quality

sys.path.append(str(ROOT / "tests" / "helpers"))
from crowds import simulate

OUT = Path(__file__).parent / "results" / "annotator_intervals.json"
MANY = 40  # labels
CROWDS: dict[str, dict[str, Any]] = {
    "3 classes, 2 labels a row": {"classes": 3, "per_row": 2},
    "2 classes, 3 labels a row": {"classes": 2, "per_row": 3},
    "3 classes, 3 labels a row": {"classes": 3, "per_row": 3},
    "5 classes, 3 labels a row, 100 annotators": {
        "classes": 5,
        "per_row": 3,
        "rows": 1000,
        "annotators": 100,
    },
    "4 classes, 3 labels a row, 5 annotators": {
        "classes": 4,
        "per_row": 3,
        "annotators": 5,
        "mean": 0.8,
    },
    "3 classes, 5 labels a row": {"classes": 3, "per_row": 5},
    "2 classes, 10 labels a row": {"classes": 2, "per_row": 10},
}


def measure(crowd: str, seeds: range) -> list[dict[str, Any]]:
    cases, seconds, results = [], 0.0, []
    for seed in seeds:
        one = simulate(seed, **CROWDS[crowd])
        began = time.perf_counter()
        rows = VotedRows(one.votes, CROWDS[crowd]["classes"])
        quality = measure_quality(rows, fit_annotators(rows))
        seconds += time.perf_counter() - began
        for a, (low, high) in enumerate(zip(quality.low, quality.high, strict=True)):
            labelled = one.votes.row[one.votes.annotator == a]
            if len(labelled) >= FEW:
                true = one.confusion[a, one.truth[labelled], one.truth[labelled]].mean()
                cases.append((len(labelled), low <= true <= high, high - low))
    for least in (FEW, MANY + 1):
        _, covers, width = np.array([case for case in cases if case[0] >= least], dtype=float).T
        error = float(np.sqrt(covers.mean() * (1 - covers.mean()) / len(covers)))
        results.append(
            {
                "crowd": crowd,
                "labels": f"{least} or more",
                "intervals": len(covers),
                "covered": round(float(covers.mean()), 4),
                "standard_error": round(error, 4),
                "width": round(float(width.mean()), 3),
                "seconds": round(seconds / len(seeds), 3),
                "seeds": f"{seeds.start} to {seeds.stop - 1}",
            }
        )
        print(*results[-1].values(), sep="\t", flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row
        for crowd in CROWDS
        for row in measure(crowd, range(100, 116) if options.dev else range(2000, 2030))
    ]
    if not options.dev:
        write_rows(OUT, rows)
