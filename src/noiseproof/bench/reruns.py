"""What was rerun: results of the papers' cells, and experiments on why some differ, as files of the
package.

papers/reruns/PAPER.json has ``made_by`` (commit, hardware, versions and command of each session),
``rows`` (a cell's values, one for each of ``seeds``; ``made_by`` lists the sessions they are from)
and ``diagnoses`` (cells, as a table and words of --only; a file of experiments; what they found;
the seeds of their runs, whose values are in a file of the same name in benchmarks/sweeps). A row
belongs to every cell whose run has its ``key`` (``row_key``), so that tables which share runs share
rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from noiseproof.bench.experiment import OUTSIDE_KEY, Experiment
from noiseproof.bench.results import Json
from noiseproof.bench.tables import (
    ACCURACIES,
    OF_THE_MACHINE,
    Cell,
    CellComparison,
    PaperTable,
    compare,
    list_tables,
    load_table,
)
from noiseproof.papers import PAPERS

PRECISIONS = ("bf16", "32", "64")  # the one of most reruns first
DIGITS = 8  # of a key that a row has, enough for all that there are


@dataclass(frozen=True, eq=False)
class Reruns:
    """The reruns of a paper."""

    made_by: Sequence[Json]
    rows: Mapping[str, Json]  # by key
    diagnoses: Sequence[Json]


def row_key(run: Experiment) -> str:
    """Return the key of the row that has ``run``: the first digits of that with seed 0."""
    return replace(run, seed=0).key[:DIGITS]


@cache
def load_reruns(paper: str) -> Reruns:
    """Return the file of a paper; empty where nothing of it was rerun.

    >>> len(load_reruns("ln").rows), len(load_reruns("nal").rows)
    (79, 0)
    """
    file = files("noiseproof.papers") / "reruns" / f"{paper}.json"
    if not file.is_file():
        return Reruns([], {}, [])
    content = json.loads(file.read_text("utf-8"))
    rows = {row["key"]: row for row in content["rows"]}
    return Reruns(content["made_by"], rows, content["diagnoses"])


def rerun_cells(table: PaperTable, precision: str | None = None) -> list[CellComparison]:
    """Return each cell with its rerun, in ``precision`` or in that with most seeds; without values
    where there is none.

    >>> table = load_table("ln-table1").only("mnist", "LN", "symmetric 40 %")
    >>> (cell,) = rerun_cells(table)
    >>> round(cell.mean, 2), round(cell.z, 1), cell.seeds, cell.precision
    (97.93, 3.7, 5, 'bf16')
    """
    reruns = load_reruns(table.paper)

    def find(cell: Cell, precision: str) -> CellComparison:
        row = _row_of(cell, reruns, precision)
        if row is None:
            return CellComparison(cell, wanted=table.runs)
        return CellComparison(
            cell,
            values=tuple(value for value in row[cell.metric] if value is not None),
            wanted=table.runs,
            samples=row.get("samples"),
            precision=precision,
            made_by=tuple(reruns.made_by[number] for number in row["made_by"]),
        )

    return compare(table, find, _precisions(precision))


def _precisions(precision: str | None) -> Sequence[str]:
    return (precision,) if precision else PRECISIONS


def runs_left(
    table: PaperTable, seeds: Iterable[int] | None = None, precision: str | None = None
) -> list[Experiment]:
    """Return the runs of ``table`` that a cell lacks a rerun of, in ``precision`` or in any.

    >>> cell = load_table("ln-table1").only("mnist", "LN", "symmetric 40 %")
    >>> [run.seed for run in runs_left(cell, seeds=range(7))]
    [5, 6]
    """
    reruns = load_reruns(table.paper)

    def seeds_done(cell: Cell) -> set[int]:
        # hours of another machine are not missed
        metric = "seeds" if cell.metric in OF_THE_MACHINE else cell.metric
        done: set[int] = set()
        for one in _precisions(precision):
            if row := _row_of(replace(cell, metric=metric), reruns, one):
                values = zip(row["seeds"], row[metric], strict=True)
                done.update(seed for seed, value in values if value is not None)
        return done

    return table.experiments(seeds, seeds_done)


def without_reruns(runs: Iterable[Experiment]) -> list[Experiment]:
    """Return the ``runs``, such as a file of benchmarks/sweeps, whose results do not come with
    noiseproof, or which keep or measure more than the results.
    """
    done: set[tuple[str, int]] = set()
    for file in map(load_reruns, PAPERS):
        for key, row in file.rows.items():
            done.update((key, seed) for seed in row["seeds"])
        for diagnosis in file.diagnoses:
            for key, seeds in diagnosis["seeds"].items():
                done.update((key, seed) for seed in seeds)

    def is_left(run: Experiment) -> bool:
        asks_more = any(getattr(run, name) for name in OUTSIDE_KEY)
        return asks_more or (row_key(run), run.seed) not in done

    return list(filter(is_left, runs))


def _row_of(cell: Cell, reruns: Reruns, precision: str) -> Json | None:
    """Return the row that has what ``cell`` reports of its runs in a precision."""
    row = reruns.rows.get(row_key(replace(cell.experiment(0), precision=precision)), {})
    other_epoch = cell.metric in ACCURACIES and row.get("epoch", "last") != cell.epoch
    return None if cell.metric not in row or other_epoch else row


def find_diagnosis(table: PaperTable, cell: Cell) -> Json | None:
    """Return what an experiment on ``cell`` says about why it differs; None if there is none, or it
    has not run.
    """
    for one in load_reruns(table.paper).diagnoses:
        named = (load_table(id).only(*words).cells for id, *words in one["cells"] if id == table.id)
        if one["finding"] and any(cell in cells for cells in named):
            return one
    return None


def explain(table: PaperTable, reruns: Sequence[CellComparison]) -> list[str]:
    """Return lines on the cells with |z| > 2: what experiments on them found, and for which there
    is none.
    """
    outside = [one.cell for one in reruns if one.z is not None and abs(one.z) > 2]
    found = {id(cell): find_diagnosis(table, cell) for cell in outside}
    findings = dict.fromkeys(f"{one['finding']} ({one['sweep']})" for one in found.values() if one)
    undiagnosed: dict[str, list[str]] = {}  # columns of each row
    for cell in outside:
        if found[id(cell)] is None:
            undiagnosed.setdefault(f"{cell.block} {cell.row}".strip(), []).append(cell.column)
    lines = list(findings)
    if undiagnosed:
        cells = "; ".join(f"{row}: {', '.join(columns)}" for row, columns in undiagnosed.items())
        lines.append(f"|z| > 2 without an experiment on why: {cells}.")
    return lines


def largest_differences(count: int) -> list[tuple[PaperTable, CellComparison]]:
    """Return the reruns with the largest |z| of all tables, each with its table.

    >>> [(table.id, one.cell.row, round(one.z)) for table, one in largest_differences(2)]
    [('bias-table-a3', 'symCE', 31), ('bias-table-a3', 'symCE', 23)]
    """
    tables = [load_table(id) for id in list_tables()]
    judged = [(table, one) for table in tables for one in rerun_cells(table) if one.z is not None]
    return sorted(judged, key=lambda pair: -abs(pair[1].z or 0.0))[:count]


@dataclass(frozen=True)
class Counts:
    """How many cells of a table were published, can run, were rerun, with how many seeds, and how
    they compare.
    """

    published: int
    runnable: int
    rerun: int
    with_all_seeds: int  # as many as the paper
    judged: int  # have a z
    within: int  # |z| ≤ 2
    diagnosed: int  # |z| > 2, and there is an experiment on it

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def count_cells(table: PaperTable, reruns: Sequence[CellComparison] | None = None) -> Counts:
    """Return counts of the cells of ``table``, from ``reruns`` where they are known already.

    >>> counts = count_cells(load_table("ln-table1").only("mnist"))
    >>> counts.published, counts.runnable, counts.rerun, counts.within
    (63, 63, 61, 56)
    """
    reruns = rerun_cells(table) if reruns is None else reruns
    done = [one for one in reruns if one.mean is not None]
    judged = [one for one in done if one.z is not None]
    outside = [one for one in judged if abs(one.z or 0.0) > 2]
    return Counts(
        published=len(table.cells),
        runnable=sum(not cell.unavailable for cell in table.cells),
        rerun=len(done),
        with_all_seeds=sum(one.seeds >= table.runs for one in done),
        judged=len(judged),
        within=len(judged) - len(outside),
        diagnosed=sum(find_diagnosis(table, one.cell) is not None for one in outside),
    )


def count_all() -> dict[str, Counts]:
    """Return ``count_cells`` of every table, by its id."""
    return {id: count_cells(load_table(id)) for id in list_tables()}
