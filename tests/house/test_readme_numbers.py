"""The numbers of the README that come from files: the table beside cleanlab, measured at commit 8d04c94."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
KINDS = {
    "at random": ("symmetric",),
    "to the next class": ("asymmetric-next",),
    "dependent on the features (`xia`)": ("xia",),
    "where a model is uncertain (`chen`)": ("chen",),
    "human (CIFAR-10N)": ("aggregate", "random1", "worst"),
}
SCORERS = ("self-confidence", "adjusted", "margin")


def table(rows: list[dict[str, Any]]) -> str:
    """Means over sets, rates and seeds; of cleanlab's scorers the best for each set and noise."""
    lines = []
    for kind, names in KINDS.items():
        own = [row for row in rows if row["noise"].partition(":")[0] in names]
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in own:
            cells.setdefault((row["data"], row["noise"]), []).append(row)
        found = []
        for who in ("cleanlab_lr", "cleanlab_same"):
            best = [
                max(fmean(row[who]["scores"][name]["ap"] for row in cell) for name in SCORERS)
                for cell in cells.values()
            ]
            found.append((fmean(best), fmean(row[who]["f1"] for row in own)))
        found += [tuple(fmean(row[who][name] for row in own) for name in ("ap", "f1")) for who in ("fast", "thorough")]
        numbers = " | ".join(f"{ap:.2f}, {f1:.2f}" for ap, f1 in found)
        lines.append(f"| {kind} | {len(own)} | {numbers} |")
    return "\n".join(lines)


def test_the_table_beside_cleanlab_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/results/audit-features.json").read_text("utf-8"))["rows"]
    expected = table(rows)
    assert expected in (ROOT / "README.md").read_text("utf-8"), f"README.md should have:\n{expected}"
    assert sum(int(line.split("|")[2]) for line in expected.splitlines()) == len(rows)
