"""Functions fit on a screen, and the training loop reads from top to bottom."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
assert spec is not None and spec.loader is not None
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)
FUNCTIONS = house.functions(ROOT / "src")


def test_every_function_fits_on_a_screen() -> None:
    assert not [one for one in FUNCTIONS if one.lines > 60 or one.complexity > 20]


def test_the_loop_reads_from_top_to_bottom() -> None:
    (loop,) = (one for one in FUNCTIONS if one.place == "train/loop.py: training")
    assert loop.lines <= 60 and loop.complexity <= 12


def test_measures_of_a_small_package(tmp_path: Path) -> None:
    module = tmp_path / "noiseproof" / "data" / "rows.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from noiseproof.core.checks import check\n\n\n"
        "def count(rows):\n"
        '    """One line."""\n'
        "    if rows and check(rows):\n"
        "        return sum(1 for row in rows if row)\n"
        "    return 0\n"
    )
    # if, and, for, if of the comprehension
    assert house.functions(tmp_path) == [("data/rows.py: count", 3, 5)]
