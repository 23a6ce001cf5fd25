"""The square of pairs in docs/strategies.md is what its rows give, and each pair is refused or
read as it says.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noiseproof.train import Settings, get_method, train

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import square

ROWS = json.loads(square.RESULTS.read_text("utf-8"))["rows"]
SAMPLE = [  # of cells, of all hooks
    ("sln", "noise-f"),
    ("noise-f", "small-loss"),
    ("noise-theta", "co-teaching"),
    ("momentum", "sigua"),
    ("class-balanced", "mixup"),
    ("early-stopping", "consistency"),
    ("target-memory", "mixup"),
    ("gce", "noise-f"),
    ("ln", "mixup"),
    ("nal", "exchanged-memory"),
    ("sop", "small-loss"),
    ("het", "sln"),
]


def line_of(row: dict[str, Any], name: str = "gaussians") -> str:
    K = square.SETS[name]
    return str(row["line"].replace("{K}", str(K)).replace("{T}", square.transition(K)))


def test_the_page_shows_the_rows() -> None:
    page = square.PAGE.read_text("utf-8")
    assert page == square.written(page, ROWS)
    assert [tuple(row[key] for key in ("kind", "row", "column", "line")) for row in ROWS] == [
        cell[:4] for cell in square.cells()
    ]


@pytest.mark.parametrize("name", [*square.STRATEGIES, *square.LOSSES])
def test_every_cell_is_refused_when_the_line_is_read_or_not_at_all(name: str) -> None:
    """As the table says, and for the kind of reason that it gives."""
    task = square.task("gaussians", 0)
    for row in (row for row in ROWS if row["row"] == name):
        if row["verdict"] != "refused":
            get_method(line_of(row), task, square.SETTINGS)
            continue
        with pytest.raises(ValueError) as refusal:
            get_method(line_of(row), task, square.SETTINGS)  # when the line is read
        assert square.reason(str(refusal.value)) == square.reason(row["reason"]), row


@pytest.mark.parametrize("cell", SAMPLE)
def test_cells_train(cell: tuple[str, str]) -> None:
    (row,) = (row for row in ROWS if (row["row"], row["column"]) == cell)
    settings: Settings = replace(square.SETTINGS, epochs=3)
    result = train(square.task("gaussians", 0), line_of(row), settings)
    assert math.isfinite(result.last["train_loss"]) and result.last["test_accuracy"] > 0.5
