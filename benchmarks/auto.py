"""What ``method="auto"`` rests on: how much a choice gains over cross entropy on a set that had no
part in it.

    python benchmarks/auto.py       # from benchmarks/results/defaults.json, the runs of defaults.py

For each set left out, the choice is made on all others: either one method for all, or one beside
``ce``, of which the one with the higher accuracy on held-out rows, by their given labels, is taken
(as the estimator does); once of all methods, once of those that take at most 1.5 times as long as
``ce`` on digits. ``ce or elr`` is what ``auto`` does. Gains are means over the noises and seeds of
a set. Gaussian processes and Het, which take several times as long, are left out, and so are
methods whose defaults were given the rate of the noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from timing import write_rows

FOLDER = Path(__file__).parent / "results"
DEAR = ("gp", "het", "het-tau", "het-tau-full")
KNOW_THE_RATE = ("co-teaching", "sln-co-teaching", "sigua", "sln-sigua", "promix")
QUICK = 1.5  # times as long as ``ce``
Cell = tuple[str, str, int]  # set, noise, seed
Runs = dict[Cell, dict[str, dict[str, Any]]]


def read_cells() -> Runs:
    """The runs of each cell by method; cells that few methods have are left out."""
    cells: Runs = {}
    for row in json.loads((FOLDER / "defaults.json").read_text("utf-8"))["rows"]:
        if "accuracy" in row and row["method"] not in (*DEAR, *KNOW_THE_RATE):
            cells.setdefault((row["set"], row["noise"], row["seed"]), {})[row["method"]] = row
    most = max(map(len, cells.values()))
    return {cell: runs for cell, runs in cells.items() if len(runs) == most}


def gains(cells: Runs, group: tuple[str, ...]) -> dict[str, float]:
    """By set, the gain over ``ce`` of the method of the group with the highest held-out
    accuracy.
    """
    by_set: dict[str, list[float]] = {}
    for (name, *_), runs in cells.items():
        chosen = max(group, key=lambda method: runs[method]["validation"])
        by_set.setdefault(name, []).append(runs[chosen]["accuracy"] - runs["ce"]["accuracy"])
    return {name: fmean(values) for name, values in by_set.items()}


def cost(cells: Runs, method: str) -> float:
    """Its time over that of ``ce``."""
    digits = [runs for (name, *_), runs in cells.items() if name == "digits"]
    return fmean(runs[method]["seconds"] for runs in digits) / fmean(
        runs["ce"]["seconds"] for runs in digits
    )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    cells = read_cells()
    methods = [method for method in next(iter(cells.values())) if method != "ce"]
    quick = [method for method in methods if cost(cells, method) <= QUICK]
    rules = {
        "one method": [(method,) for method in methods],
        "ce or one": [("ce", method) for method in methods],
        "ce or a quick one": [("ce", method) for method in quick],
    }
    by_group = {group: gains(cells, group) for groups in rules.values() for group in groups}
    rows = []
    for rule, groups in {**rules, "ce or elr": [("ce", "elr")]}.items():
        for left_out in sorted(by_group["ce", "elr"]):
            others = {
                group: [gain for name, gain in by_group[group].items() if name != left_out]
                for group in groups
            }
            best = max(groups, key=lambda group: fmean(others[group]))
            gain = round(by_group[best][left_out], 4)
            rows.append(
                {"rule": rule, "left out": left_out, "chosen on the others": best[-1], "gain": gain}
            )
        of_rule = [row for row in rows if row["rule"] == rule]
        worst = min(of_rule, key=lambda row: row["gain"])
        chosen = sorted({row["chosen on the others"] for row in of_rule})
        mean = fmean(row["gain"] for row in of_rule)
        print(
            f"{rule}: {mean:+.3f} over {len(of_rule)} sets, worst {worst['left out']}"
            f" {worst['gain']:+.3f}; {chosen}"
        )
    print(f"{len(cells)} cells, {len(methods) + 1} methods")
    write_rows(FOLDER / "auto.json", rows)


if __name__ == "__main__":
    main()
