"""How often the forecast before training agrees with published results: thresholds, and cells they
were not set on.

    python benchmarks/forecast.py

A cell's outcome is its accuracy without added noise over that of cross entropy beside it: from 0.9
it learns, from 0.5 partly, else it underfits. Thresholds are the geometric means of the two
neighbours that they must keep apart among the cells of curriculum paper, Table 2 and bias paper,
Table 3; bias paper, Table 2 is held out, and so are curriculum paper, Tables 3 and 4. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from timing import write_rows

from noiseproof.analysis.before.forecast import Forecast, forecast
from noiseproof.bench.tables import load_table
from noiseproof.data import NoisyData
from noiseproof.losses import Loss
from noiseproof.losses.verdict import LEARNS, PARTLY, SLOW, Answer
from noiseproof.train import Settings, Task, get_method

SET_ON = {"curriculum-table2": "test", "bias-table3": "top 1"}
HELD_OUT = {"bias-table2": "0 %", "curriculum-table3": "clean", "curriculum-table4": ""}
NUMBERS = ("weight", "start", "left_behind", "slowness")
CLASSES = {"cifar10": 10, "fashion-mnist": 10, "cifar100": 100, "webvision": 1000}


@dataclass(frozen=True)
class Cell:
    """A published cell, its outcome, and the forecast for its loss."""

    table: str
    block: str
    row: str
    accuracy: float
    share: float  # of cross entropy's accuracy
    forecast: Forecast

    @property
    def outcome(self) -> Answer:
        return "learns" if self.share >= 0.9 else "partly" if self.share >= 0.5 else "underfits"


def loss_of(method: str, dataset: str, num_classes: int) -> Loss:
    """The loss of a table's method on this dataset."""
    labels = torch.arange(num_classes)
    data = NoisyData(
        x=torch.zeros(num_classes, 1),
        given=labels,
        classes=tuple(map(str, labels.tolist())),
        index=labels,
    )
    return get_method(method, Task(data, dataset=dataset.partition(":")[0]), Settings()).loss


@cache
def _forecast(spec: str, num_classes: int) -> Forecast:
    return forecast(spec, num_classes, alternatives=False)


def read_cells(table: str, column: str) -> list[Cell]:
    """The cells of a table's column; with an empty name of all columns, each of which is a number
    of classes.
    """
    published = [cell for cell in load_table(table).cells if not column or cell.column == column]
    reference: dict[Any, float] = {}
    for cell in published:
        if cell.row.rstrip(" ‡") == "CE":
            reference |= dict.fromkeys(
                [(cell.block, cell.column), cell.column], cell.published.mean
            )
    cells = []
    for cell in published:
        classes = (
            CLASSES[cell.fields["dataset"].partition(":")[0]]
            if column
            else int(cell.column.split()[0])
        )
        loss = loss_of(cell.fields["method"], cell.fields["dataset"], classes)
        share = cell.published.mean / reference.get(
            (cell.block, cell.column), reference[cell.column]
        )
        block = cell.block or f"WebVision, {classes} classes"
        cells.append(
            Cell(table, block, cell.row, cell.published.mean, share, _forecast(str(loss), classes))
        )
    return cells


def thresholds(cells: list[Cell]) -> tuple[float, float, float]:
    """LEARNS, PARTLY and SLOW: between the nearest cells with different outcomes."""
    fast = [cell for cell in cells if cell.forecast.slowness <= SLOW]
    behind = {
        answer: [c.forecast.left_behind for c in fast if c.outcome == answer]
        for answer in ("learns", "partly", "underfits")
    }
    slow = [cell.forecast.slowness for cell in cells if cell.forecast.slowness > SLOW]
    learns = math.sqrt(min(behind["learns"]) * max(behind["partly"]))
    partly = math.sqrt(min(behind["partly"]) * max(behind["underfits"]))
    return learns, partly, math.sqrt(max(cell.forecast.slowness for cell in fast) * min(slow))


def by_one_number(rows: list[dict[str, Any]], number: str) -> dict[str, int]:
    """The number of cells of each table that one number gets right, with its best thresholds on the
    tables SET_ON.
    """
    of_set = [row for row in rows if row["set_on"]]
    values = sorted({row[number] for row in of_set})
    cuts = [0.0, *(math.sqrt(low * high) for low, high in pairwise(values)), math.inf]

    def agrees(row: dict[str, Any], partly: float, learns: float) -> bool:
        value = row[number]
        return bool(
            row["outcome"]
            == ("learns" if value >= learns else "partly" if value >= partly else "underfits")
        )

    best = max(
        ((partly, learns) for partly in cuts for learns in cuts if partly <= learns),
        key=lambda pair: sum(agrees(row, *pair) for row in of_set),
    )
    return dict(Counter(row["table"] for row in rows if agrees(row, *best)))


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    rows = []
    for tables in (SET_ON, HELD_OUT):
        cells = [cell for table, column in tables.items() for cell in read_cells(table, column)]
        if tables is SET_ON:
            print(
                "thresholds: LEARNS {:.4f}, PARTLY {:.4f}, SLOW {:.0f}".format(*thresholds(cells))
            )
            print(f"in use:     LEARNS {LEARNS:.4f}, PARTLY {PARTLY:.4f}, SLOW {SLOW:.0f}")
        for cell in cells:
            rows.append(
                {
                    "table": cell.table,
                    "set_on": tables is SET_ON,
                    "block": cell.block,
                    "row": cell.row,
                    "loss": cell.forecast.loss,
                    "classes": cell.forecast.num_classes,
                    "accuracy": cell.accuracy,
                    "share_of_ce": round(cell.share, 3),
                    "outcome": cell.outcome,
                    "forecast": cell.forecast.answer,
                    **{name: float(f"{getattr(cell.forecast, name):.4g}") for name in NUMBERS},
                }
            )
        for table in tables:
            of_table = [cell for cell in cells if cell.table == table]
            agree = Counter(cell.outcome == cell.forecast.answer for cell in of_table)[True]
            learn = Counter(cell.outcome == "learns" for cell in of_table)[True]
            held_out = "" if tables is SET_ON else ", held out"
            print(f"{table}: {agree} of {len(of_table)} agree{held_out}; {learn} learn")
            for cell in of_table:
                if cell.outcome != cell.forecast.answer:
                    print(
                        f"  {cell.block}, {cell.row}: {cell.share:.2f} of CE,"
                        f" {cell.forecast.answer}"
                    )
    for number in ("weight", "start"):
        print(f"by {number} alone: {by_one_number(rows, number)} agree")
    write_rows(Path(__file__).parent / "results" / "forecast.json", rows)


if __name__ == "__main__":
    main()
