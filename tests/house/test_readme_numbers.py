"""Numbers of README and docs that come from files: the table beside cleanlab."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
KINDS = {
    "at random, 8 %": ("symmetric",),
    "to the next class, 15 %": ("asymmetric-next",),
    "dependent on the features, 15 % (`xia`)": ("xia",),
    "where a model is uncertain, 10 % (`chen`)": ("chen",),
    "human (CIFAR-10N, RTE)": ("aggregate", "random1", "worst", "vote"),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Means over sets of the means over seeds; of cleanlab's two models the better one for each set and kind."""
    scores: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if "f1" in row:
            by_name = scores.setdefault((row["data"], row["noise"]), {})
            by_name.setdefault(row["who"], []).append((row["ap"], row["f1"]))
    lines = []
    for kind, names in KINDS.items():
        cells = [by_name for (_, noise), by_name in scores.items() if noise.partition(":")[0] in names]
        numbers = []
        for who in (("cleanlab-lr", "cleanlab-hgb"), ("fast",), ("thorough",)):
            best = [
                [max(fmean(score[i] for score in cell[name]) for name in who if name in cell) for i in (0, 1)]
                for cell in cells
            ]
            numbers.append(", ".join(f"{fmean(column):.2f}" for column in zip(*best, strict=True)))
        lines.append(f"| {kind} | {len(cells)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def test_the_table_beside_cleanlab_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/results/audit.json").read_text("utf-8"))["rows"]
    expected = table(rows)
    page = (ROOT / "docs/comparison.md").read_text("utf-8")
    assert expected in page, f"docs/comparison.md should have:\n{expected}"
    (theirs, _, ours) = (cell.strip().split(", ") for cell in expected.splitlines()[0].strip("| ").split(" | ")[2:])
    short = f"(average precision {ours[0]} to {theirs[0]}, F1 {ours[1]} to {theirs[1]};"
    assert short in " ".join((ROOT / "README.md").read_text("utf-8").split()), f"README.md should have: {short}"
    cells = {(row["data"], row["noise"]) for row in rows if "f1" in row}
    assert sum(int(line.split("|")[2]) for line in expected.splitlines()) == len(cells)
