"""Numbers of README and docs that come from files: the comparison with cleanlab, how many cells
were rerun.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import reduce
from operator import add
from pathlib import Path
from statistics import fmean
from typing import Any

from noiseproof.bench.reruns import count_all
from noiseproof.bench.tables import list_tables, load_table

ROOT = Path(__file__).parents[2]
KINDS = {
    "at random, 8 %": ("symmetric",),
    "to the next class, 15 %": ("asymmetric-next",),
    "dependent on the features, 15 % (`xia`)": ("xia",),
    "where a model is uncertain, 10 % (`chen`)": ("chen",),
    "human (CIFAR-10N, RTE)": ("aggregate", "random1", "worst", "vote"),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Means over sets of the means over seeds; of cleanlab's two models the better one for each set
    and kind.
    """
    scores: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if "f1" in row:
            by_name = scores.setdefault((row["data"], row["noise"]), {})
            by_name.setdefault(row["who"], []).append((row["ap"], row["f1"]))
    lines = []
    for kind, names in KINDS.items():
        cells = [
            by_name for (_, noise), by_name in scores.items() if noise.partition(":")[0] in names
        ]
        numbers = []
        for who in (("cleanlab-lr", "cleanlab-hgb"), ("fast",), ("thorough",)):
            best = [
                [
                    max(fmean(score[i] for score in cell[name]) for name in who if name in cell)
                    for i in (0, 1)
                ]
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
    cells = {(row["data"], row["noise"]) for row in rows if "f1" in row}
    assert sum(int(line.split("|")[2]) for line in expected.splitlines()) == len(cells)


def real_table(rows: list[dict[str, Any]]) -> tuple[str, int]:
    """Means over the sets of each kind of mistakes, and on how many sets with real ones we are
    ahead in F1.
    """
    by_set: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["data"], {})[row["who"]] = row
    kinds: dict[str, list[tuple[float, ...]]] = {}
    for name, by_who in by_set.items():
        ours = by_who.get("thorough") or by_who.get("judge")
        theirs = max(
            (by_who[who] for who in by_who if who.startswith("cleanlab")),
            key=lambda r: r.get("f1", -1),
            default=None,
        )
        if ours is None or theirs is None or "f1" not in ours:
            continue
        kind = name.partition(" ")[2]
        kind = "real" if kind in ("", "vote", "aggregate", "random1", "worst", "noisy") else kind
        plain = by_who["self"]["ap"]
        numbers = (
            ours["f1"],
            theirs["f1"],
            ours["best"],
            ours["ap"],
            plain,
            theirs["ap"],
            ours["holds"],
        )
        kinds.setdefault(kind, []).append(numbers)
    lines = []
    for kind, sets in sorted(kinds.items(), key=lambda item: (item[0] != "real", item[0])):
        shown = " | ".join(f"{fmean(column):.3f}" for column in zip(*sets, strict=True))
        lines.append(f"| {kind} | {len(sets)} | {shown} |")
    return "\n".join(lines), sum(ours > theirs for ours, theirs, *_ in kinds["real"])


def test_the_figures_of_real_mistakes_are_what_was_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/results/real.json").read_text("utf-8"))["rows"]
    expected, ahead = real_table(rows)
    for page in ("docs/real.md", "docs/comparison.md"):
        assert expected in (ROOT / page).read_text("utf-8"), f"{page} should have:\n{expected}"
    ours, theirs, best = (f"{float(cell):.2f}" for cell in expected.splitlines()[0].split("|")[3:6])
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert (
        f"have F1 {ours}, cleanlab's {theirs}, the best possible cut of the ranking {best}"
        in readme
    )
    assert f"it is ahead on {ahead} of them" in readme
    at_random = next(line for line in expected.splitlines() if "symmetric:rate=0.08" in line)
    _, sets, *numbers = at_random.strip("| ").split(" | ")
    f1, their_f1, _, ap, _, their_ap, _ = (f"{float(number):.2f}" for number in numbers)
    short = f"(average precision {ap} to {their_ap}, F1 {f1} to {their_f1};"
    assert f"On {sets} datasets" in readme and short in readme, f"README.md should have: {short}"


def test_the_pages_say_how_many_published_numbers_are_rerun() -> None:
    counts = reduce(add, count_all().values())
    cells = [cell for id in list_tables() for cell in load_table(id).cells]
    runnable = [cell for cell in cells if not cell.unavailable]
    datasets = Counter(cell.fields["dataset"].partition(":")[0] for cell in runnable)
    limits, index, changelog = (
        " ".join((ROOT / name).read_text("utf-8").split())
        for name in ("docs/limits.md", "docs/index.md", "CHANGELOG.md")
    )
    rerun = f"{counts.rerun} have been rerun, {counts.within} of {counts.judged} with"
    assert f"Of {counts.published} published numbers in the papers' tables, {rerun}" in limits
    assert f"{counts.published - counts.runnable} cannot be rerun" in limits
    assert (
        f"{datasets['clothing1m'] + datasets['webvision']} need Clothing1M or WebVision" in limits
    )
    assert f"{counts.published} published numbers, {counts.rerun} of them rerun" in index
    assert f"{counts.published} published numbers, of which {counts.rerun} are rerun" in changelog
