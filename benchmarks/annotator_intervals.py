"""How often the intervals of annotators' quality cover the truth, in simulated crowds.

    python benchmarks/annotator_intervals.py          # seeds 2000 to 2029
    python benchmarks/annotator_intervals.py --dev    # seeds 100 to 115, on which settings were chosen

The truth is the mean probability of a right label on the rows that an annotator labelled, which the simulation of
``tests/helpers/crowds.py`` knows. Annotators with five labels or more count, and by themselves those with more than
forty, whose intervals are narrow. ``known`` has the intervals of a crowd whose confusions are taken as known.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tablesets import ROOT
from timing import write_rows

from noiseproof.audit.crowd import quality
from noiseproof.audit.crowd.confusion import VotedRows, fit_annotators

sys.path.append(str(ROOT / "tests" / "helpers"))
from crowds import simulate

OUT = Path(__file__).parent / "results" / "annotator_intervals.json"
MANY = 40  # labels
CROWDS: dict[str, dict[str, Any]] = {
    "3 classes, 2 labels a row": {"classes": 3, "per_row": 2},
    "2 classes, 3 labels a row": {"classes": 2, "per_row": 3},
    "3 classes, 3 labels a row": {"classes": 3, "per_row": 3},
    "5 classes, 3 labels a row, 100 annotators": {"classes": 5, "per_row": 3, "rows": 1000, "annotators": 100},
    "4 classes, 3 labels a row, 5 annotators": {"classes": 4, "per_row": 3, "annotators": 5, "mean": 0.8},
    "3 classes, 5 labels a row": {"classes": 3, "per_row": 5},
    "2 classes, 10 labels a row": {"classes": 2, "per_row": 10},
}


def known(rows: VotedRows) -> tuple[NDArray[Any], NDArray[Any]]:
    """Intervals under the fitted confusions of all others."""
    below = quality._density(rows, fit_annotators(rows)).cumsum(1)
    low, high = (quality._quantile(below, q) for q in (0.025, 0.975))
    return low, high


def drawn(rows: VotedRows) -> tuple[NDArray[Any], NDArray[Any]]:
    found = quality.measure_quality(rows, fit_annotators(rows))
    return found.low, found.high


def measure(crowd: str, seeds: range) -> list[dict[str, Any]]:
    results = []
    for how in (known, drawn):
        cases, seconds = [], 0.0
        for seed in seeds:
            one, classes = simulate(seed, **CROWDS[crowd]), CROWDS[crowd]["classes"]
            began = time.perf_counter()
            low, high = how(VotedRows(one.votes, classes))
            seconds += time.perf_counter() - began
            for a in range(len(low)):
                rows = one.votes.row[one.votes.annotator == a]
                if len(rows) >= quality.FEW:
                    true = one.confusion[a, one.truth[rows], one.truth[rows]].mean()
                    cases.append((len(rows), low[a] <= true <= high[a], high[a] - low[a]))
        for least in (quality.FEW, MANY + 1):
            _, covers, width = np.array([case for case in cases if case[0] >= least], dtype=float).T
            error = float(np.sqrt(covers.mean() * (1 - covers.mean()) / len(covers)))
            results.append({
                "crowd": crowd, "confusions": how.__name__, "labels": f"{least} or more", "intervals": len(covers),
                "covered": round(float(covers.mean()), 4), "standard_error": round(error, 4),
                "width": round(float(width.mean()), 3), "seconds": round(seconds / len(seeds), 3),
                "seeds": f"{seeds.start} to {seeds.stop - 1}",
            })  # fmt: skip
            print(*results[-1].values(), sep="\t", flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for crowd in CROWDS for row in measure(crowd, range(100, 116) if options.dev else range(2000, 2030))]
    if not options.dev:
        write_rows(OUT, rows)
