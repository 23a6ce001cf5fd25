"""The papers' tables: published cells, the runs that reproduce them, and the comparison of the
two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json, once
from noiseproof.core.grammar import split_specs
from noiseproof.core.registry import near_names
from noiseproof.papers import PAPERS, by_column, get_paper
from noiseproof.train.protocols import protocol
from noiseproof.train.settings import PRECISIONS

Statistic = Literal["std", "sem", "mean", "best", "single"]

# of an epoch: shares, printed in per cent
ACCURACIES = ("test_accuracy", "test_top5", "train_accuracy")
# of the curriculum paper's α_t: ‖∂L/∂z‖₁ = 2w of the mean over a batch of 128, times 10⁴
ALPHA_UNIT = 10_000 * 2 / 128
# what a cell needs
MEASURES = {"snr": "sample-weights", "α_t": "sample-weights", "annotator_nll": "annotators"}
OF_THE_MACHINE = ("hours", "memory")  # not judged
MEASURED = (*ACCURACIES, *MEASURES, *OF_THE_MACHINE)


@dataclass(frozen=True)
class Published:
    """A number as a paper prints it."""

    mean: float
    spread: float | None
    bold: bool
    digits: int  # after the point

    @classmethod
    def parse(cls, text: str) -> Published:
        """Read a cell.

        >>> Published.parse("**98.85±0.18**")
        Published(mean=98.85, spread=0.18, bold=True, digits=2)
        """
        match = re.fullmatch(r"(\*\*)?(-?\d+(?:\.(\d+))?)(?:±(\d+(?:\.\d+)?))?(\*\*)?", text)
        if match is None or match[1] != match[5]:
            raise ValueError(
                f"Expected a cell such as 98.85, 98.85±0.18 or **98.85±0.18**, got {text!r}."
            )
        spread = None if match[4] is None else float(match[4])
        return cls(float(match[2]), spread, match[1] is not None, len(match[3] or ""))

    def __str__(self) -> str:
        return format_number(self.mean, self.spread, self.digits)


def format_number(value: float, spread: float | None, digits: int) -> str:
    """Return a number with its spread as tables show it.

    >>> format_number(99.2, 0.141, 2)
    '99.20 ± 0.14'
    """
    if spread is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ± {spread:.{digits}f}"


@dataclass(frozen=True, eq=False)
class Cell:
    """One published number and the experiment that reproduces it."""

    block: str  # of rows, often of one dataset; may be empty
    row: str
    column: str
    published: Published
    fields: Mapping[str, Any]  # of its experiments, except seed and settings
    settings: Mapping[str, Any]  # where they differ from the protocol
    metric: str = ACCURACIES[0]
    epoch: str = "last"  # of a result: last, best_clean, …
    minus: Cell | None = None  # whose number is subtracted
    usual_epochs: int | None = None  # of the protocol, where its experiments have others
    unavailable: str = ""  # why it cannot run

    def experiment(self, seed: int) -> Experiment:
        """Return the run of this cell with ``seed``."""
        if self.unavailable:
            raise ValueError(
                f"Expected a cell that can run, got {self.row}, {self.column}: {self.unavailable}."
            )
        settings = replace(
            protocol(self.fields["paper"], self.fields["dataset"].partition(":")[0]),
            **self.settings,
        )
        return Experiment(
            **self.fields, seed=seed, settings=settings, measures=MEASURES.get(self.metric, "")
        )

    @property
    def epochs(self) -> int | None:
        """Epochs of its experiments; None if it cannot run."""
        return None if self.unavailable else self.experiment(0).settings.epochs

    @property
    def names(self) -> set[str]:
        """Names by which it can be selected."""
        dataset = self.fields["dataset"]
        method = self.fields["method"]
        names = [self.block, self.row, self.column, dataset, method]
        names += [dataset.partition(":")[0], method.partition(" & ")[0]]
        return {name.casefold() for name in names if name}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        published = self.published
        return {
            "block": self.block,
            "row": self.row,
            "column": self.column,
            **self.fields,
            "metric": self.metric,
            "published": published.mean,
            "published_spread": published.spread,
            "bold": published.bold,
            "unavailable": self.unavailable or None,
        }


@dataclass(frozen=True, eq=False)
class PaperTable:
    """A table of a paper, or some cells of it."""

    id: str
    paper: str
    number: str
    title: str
    statistic: Statistic  # what the paper reports of its runs
    runs: int
    cells: tuple[Cell, ...]
    note: str = ""

    def only(self, *words: str) -> PaperTable:
        """Return the cells that match every word: a name of a block, row, column, dataset or
        method; commas mean or.

        >>> len(load_table("ln-table1").only("mnist", "LN,GCE").cells)
        14
        """
        wanted = [{name.casefold() for name in split_specs(word)} for word in words]
        known = set[str]().union(*(cell.names for cell in self.cells))
        for name in sorted(set[str]().union(*wanted) - known):
            raise ValueError(
                f"Unknown name {name!r} in {self.id}. {near_names(name, sorted(known))}"
            )
        cells = tuple(cell for cell in self.cells if all(cell.names & names for names in wanted))
        if not cells:
            raise ValueError(
                f"Expected cells of {self.id} that match {' and '.join(words)}, got none."
            )
        return replace(self, cells=cells)

    def with_epochs(self, epochs: int | None) -> PaperTable:
        """Return the table with another number of epochs; None: the number of the protocols.

        Cells whose protocol has another number are not judged: what was published is not of such
        runs.
        """

        def change(cell: Cell) -> Cell:
            settings = {**cell.settings, "epochs": epochs}
            usual = None if cell.epochs == epochs else cell.epochs
            minus = cell.minus and change(cell.minus)
            return replace(cell, settings=settings, usual_epochs=usual, minus=minus)

        return self if epochs is None else replace(self, cells=tuple(map(change, self.cells)))

    @property
    def parts(self) -> list[Cell]:
        """The cells that can run, and those that they are differences from."""
        parts = []
        for cell in self.cells:
            if not cell.unavailable:
                parts.append(cell)
                if cell.minus:
                    parts.append(cell.minus)
        return parts

    def experiments(
        self,
        seeds: Iterable[int] | None = None,
        done: Callable[[Cell], Container[int]] = lambda cell: (),
    ) -> list[Experiment]:
        """Return every run of the table, once; by default with as many seeds as the paper has runs,
        without those ``done``.
        """
        chosen = range(self.runs) if seeds is None else list(seeds)
        parts = [(part, done(part)) for part in self.parts]
        return once(
            part.experiment(seed)
            for seed in chosen
            for part, without in parts
            if seed not in without
        )


# Reading


def list_tables() -> list[str]:
    """Return the ids of all tables.

    >>> list_tables()[:5]
    ['ln-table1', 'ln-table2', 'ln-table3', 'ln-table4', 'sln-table1']
    """
    return list(_tables())


def load_table(id: str) -> PaperTable:
    """Return a paper's table.

    >>> table = load_table("ln-table1")
    >>> table.paper, table.number, len(table.cells), str(table.cells[0].published)
    ('ln', 'Table 1', 189, '99.27 ± 0.07')
    >>> table.cells[1].experiment(seed=3).noise
    'symmetric-all:rate=0.2,count=total'
    """
    tables = _tables()
    if id not in tables:
        raise ValueError(f"Unknown table {id!r}. {near_names(id, sorted(tables))}")
    return tables[id]


@cache
def _tables() -> dict[str, PaperTable]:
    return {
        table["id"]: _table(paper, table) for paper in PAPERS for table in get_paper(paper).tables
    }


def _table(paper: str, content: Mapping[str, Any]) -> PaperTable:
    head = {name: content[name] for name in ("id", "number", "title", "statistic", "runs")}
    cells = [cell for block in content["block"] for cell in _cells(paper, content, block)]
    return PaperTable(**head, paper=paper, cells=tuple(cells), note=content.get("note", ""))


def _cells(paper: str, table: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[Cell]:
    columns = table["columns"]
    block = dict(block)
    rows = block.pop("rows")
    settings_of = block.pop("settings_of_row", {})
    unavailable = block.pop("unavailable_row", {})
    each = by_column(block, len(columns))
    for row, method, *texts in rows:
        cells: dict[str, Cell] = {}  # by column
        for j, (column, text) in enumerate(zip(columns, texts, strict=True)):
            if not text:  # not published, or lost from the text at hand
                continue
            values = {name: of_column[j] for name, of_column in each.items()}
            metric = values.get("metric", ACCURACIES[0])
            absent = "" if metric in MEASURED else f"a {metric} is chosen, not measured"
            cells[column] = Cell(
                block=values.get("name", ""),
                row=row,
                column=column,
                published=Published.parse(text),
                fields={
                    "dataset": values["dataset"],
                    "noise": values["noise"],
                    "method": method.replace("{kind}", values.get("kind", "")),
                    "validation": table.get("validation", 0.0),
                    "paper": values.get("paper", paper),
                    "noise_seed": None if table.get("noise_follows_seed") else 0,
                    "foreign": values.get("foreign") or None,
                    "rows": values.get("images"),
                },
                settings=values.get("settings", {}) | settings_of.get(row, {}),
                metric=metric,
                epoch=values.get("epoch", "last"),
                minus=cells[values["minus"]] if values.get("minus") else None,
                unavailable=values.get("unavailable") or unavailable.get(row) or absent,
            )
        yield from cells.values()


# Comparison with results


@dataclass(frozen=True, eq=False)
class CellComparison:
    """A cell and the runs that repeat it."""

    cell: Cell
    values: tuple[float, ...] = ()  # one for each seed that has run
    seeds: int = 0  # that have run; for a difference the smaller number of the two
    mean: float | None = None  # or the best of several, where that was published
    spread: float | None = None  # None for a single seed, or for the best of several
    z: float | None = None
    wanted: int = 0  # number of seeds
    failed: int = 0
    seconds: float | None = None  # of a run, on average
    samples: int | None = None  # that Het averages over
    precision: str | None = None  # None without runs
    # sessions of a rerun that the package has: commit, hardware, versions, command
    made_by: tuple[Json, ...] = ()

    @property
    def commits(self) -> list[str]:
        """Commits of its sessions, each once."""
        return list(dict.fromkeys(session["commit"] for session in self.made_by))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values of the runs, for JSON."""
        runs = dict(vars(self))
        del runs["cell"]
        return {"epochs": self.cell.epochs, **runs, "commits": " ".join(self.commits)}


def compare_cells(
    table: PaperTable,
    results: Mapping[str, Json],
    seeds: Iterable[int] | None = None,
    precision: str | None = None,
) -> list[CellComparison]:
    """Compare each cell with ``results`` (by key) in ``precision``, or in that with most seeds."""
    chosen = range(table.runs) if seeds is None else list(seeds)

    def find(cell: Cell, precision: str) -> CellComparison:
        keys = [replace(cell.experiment(seed), precision=precision).key for seed in chosen]
        existing = [results[key] for key in keys if key in results]
        done = [result for result in existing if result["status"] == "done"]
        values = [measured(result, cell) for result in done]
        return CellComparison(
            cell,
            values=tuple(value for value in values if value is not None),
            wanted=len(chosen),
            failed=len(existing) - len(done),
            seconds=fmean(result["seconds"] for result in done) if done else None,
            samples=next((result["samples"] for result in done if result.get("samples")), None),
            precision=precision if existing else None,
        )

    return compare(table, find, [precision] if precision else PRECISIONS)


def compare(
    table: PaperTable,
    find: Callable[[Cell, str], CellComparison],
    precisions: Iterable[str],
) -> list[CellComparison]:
    """Return each cell with the summary of its runs, in the precision that has most seeds.

    ``find`` returns the runs of a cell in a precision, without their summary.
    """

    def compared(cell: Cell, precision: str) -> CellComparison:
        if cell.unavailable:
            return CellComparison(cell)
        base = compared(cell.minus, precision) if cell.minus else None
        return summarise(find(cell, precision), table, base)

    def best(cell: Cell) -> CellComparison:
        each = [compared(cell, precision) for precision in precisions]
        return max(each, key=lambda one: (one.seeds, one.failed > 0))  # the first of equals

    return [best(cell) for cell in table.cells]


def measured(result: Json, cell: Cell) -> float | None:
    """Return what ``cell`` reports of a finished run, in the unit of the tables; None if it was not
    measured.
    """
    if cell.metric == "hours":
        return float(result["seconds"]) / 3600
    if cell.metric == "memory":
        return float(result["peak_memory"]) / 2**30
    measures = result.get("measured") or {}
    unit = 1.0
    if cell.metric == "α_t":
        value = measures.get("alpha")
        unit = ALPHA_UNIT
    elif cell.metric in MEASURES:
        value = measures.get(cell.metric)
    else:
        value = (result[cell.epoch] or {}).get(cell.metric)
        unit = 100.0
    return None if value is None else unit * value


def summarise(
    runs: CellComparison, table: PaperTable, base: CellComparison | None = None
) -> CellComparison:
    """Return ``runs`` of a cell with their summary by the statistic of the paper, which ``z_score``
    judges; less the mean of ``base``.
    """
    if base is not None:
        runs = replace(runs, failed=runs.failed + base.failed)
        if base.mean is None:
            return replace(runs, values=())
    if not runs.values:
        return runs
    mean, spread = _summary(runs.values, table.statistic)
    seeds = len(runs.values)
    if base is not None and base.mean is not None:
        seeds = min(seeds, base.seeds)
        return replace(runs, seeds=seeds, mean=mean - base.mean, spread=spread)
    z = None
    if runs.cell.metric not in OF_THE_MACHINE and runs.cell.usual_epochs is None:
        z = z_score(runs.values, runs.cell.published, table.statistic, table.runs)
    return replace(runs, seeds=seeds, mean=mean, spread=spread, z=z)


def _summary(values: Sequence[float], statistic: Statistic) -> tuple[float, float | None]:
    if statistic == "best":
        return max(values), None
    if len(values) == 1:
        return fmean(values), None
    spread = stdev(values)
    if statistic == "sem":
        spread /= math.sqrt(len(values))
    return fmean(values), spread


def z_score(
    values: Sequence[float], published: Published, statistic: Statistic, runs: int
) -> float | None:
    """Return the number of standard errors by which our mean exceeds the published one; None where
    none is published.

    z = (ours − published)/√(s²/n + s_p²/n_p); ``sem`` in a paper is √(s_p²/n_p). A single run has
    no s: the paper's s_p stands for it. Where both spreads are 0, the error is that of rounding to
    a unit u of the last published digit, u/√12.

    >>> # 1/√(2/2 + 4/4)
    >>> round(z_score([90.0, 92.0], Published.parse("90.0±2.0"), "std", runs=4), 4)
    0.7071
    >>> round(z_score([92.0], Published.parse("90.0±2.0"), "std", runs=4), 4)  # 2/√(4/1 + 4/4)
    0.8944
    """
    if not values or published.spread is None or statistic not in ("std", "sem"):
        return None
    theirs = published.spread**2  # squared standard error of their mean
    if statistic == "std":
        theirs /= runs
    variance = theirs * runs
    if len(values) > 1:
        variance = stdev(values) ** 2
    error = math.sqrt(variance / len(values) + theirs)
    rounding = 10**-published.digits / math.sqrt(12)
    return (fmean(values) - published.mean) / (error or rounding)
