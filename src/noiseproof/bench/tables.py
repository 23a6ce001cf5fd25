"""The papers' tables: what they published, the runs that repeat it, and how far ours are from theirs."""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal

from noiseproof.bench.experiment import Experiment
from noiseproof.core.grammar import split_specs
from noiseproof.core.registry import near_names
from noiseproof.papers import PAPERS, get_paper, spread
from noiseproof.train.protocols import protocol

Statistic = Literal["std", "sem", "mean", "best", "single"]
Result = Mapping[str, Any]  # as `noiseproof.bench.results` keeps it

MEANING: dict[Statistic, str] = {
    "std": "± is the standard deviation, published over {runs} runs, ours over our seeds.",
    "sem": "± is the error of the mean, published of {runs} runs, ours of our seeds.",
    "mean": "Published is the mean of {runs} runs without a spread, so there is no z; our ± is the standard deviation.",
    "best": "Published is the best of {runs} runs, ours the best of our seeds, so there is no z.",
    "single": "Published is one run, so there is no z; our ± is the standard deviation over seeds.",
}
MEASURED = ("test_accuracy", "test_top5", "train_accuracy")  # of a result's last epoch: shares, printed as per cent


@dataclass(frozen=True)
class Published:
    """A number as a paper prints it."""

    mean: float
    spread: float | None
    bold: bool
    digits: int  # after the point

    @classmethod
    def parse(cls, text: str) -> Published:
        """
        >>> Published.parse("**98.85±0.18**")
        Published(mean=98.85, spread=0.18, bold=True, digits=2)
        """
        found = re.fullmatch(r"(\*\*)?(-?\d+(?:\.(\d+))?)(?:±(\d+(?:\.\d+)?))?(\*\*)?", text)
        if found is None or found[1] != found[5]:
            raise ValueError(f"Expected a cell such as 98.85, 98.85±0.18 or **98.85±0.18**, got {text!r}.")
        spread = None if found[4] is None else float(found[4])
        return cls(float(found[2]), spread, found[1] is not None, len(found[3] or ""))

    def __str__(self) -> str:
        return _number(self.mean, self.spread, self.digits)


@dataclass(frozen=True, eq=False)
class Cell:
    """One published number and the experiment that repeats it."""

    block: str  # of rows, often those of a dataset; may be empty
    row: str
    column: str
    published: Published
    what: Mapping[str, Any]  # fields of its experiments, but for seed and settings
    settings: Mapping[str, Any]  # that differ from the paper's protocol
    metric: str = MEASURED[0]
    minus: Cell | None = None  # whose number is taken off
    unavailable: str = ""  # why it cannot run

    def experiment(self, seed: int) -> Experiment:
        """The run of this cell with ``seed``."""
        if self.unavailable:
            raise ValueError(f"Expected a cell that can run, got {self.row}, {self.column}: {self.unavailable}.")
        settings = replace(protocol(self.what["paper"], self.what["dataset"]), **self.settings)
        return Experiment(**self.what, seed=seed, settings=settings)

    @property
    def names(self) -> set[str]:
        """What it can be selected by."""
        named = (self.block, self.row, self.column, self.what["dataset"], self.what["method"])
        return {name.casefold() for name in named if name}


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper, or some cells of it."""

    id: str
    paper: str
    number: str
    title: str
    statistic: Statistic  # what the paper reports of its runs
    runs: int
    cells: tuple[Cell, ...]
    note: str = ""

    def only(self, *words: str) -> Table:
        """The cells that go by one name of each word: a block, row, column, dataset or method; commas mean or.

        >>> len(load_table("ln-table1").only("mnist", "LN,GCE").cells)
        14
        """
        wanted = [{name.casefold() for name in split_specs(word)} for word in words]
        known = set[str]().union(*(cell.names for cell in self.cells))
        for name in sorted(set[str]().union(*wanted) - known):
            raise ValueError(f"Unknown name {name!r} in {self.id}. {near_names(name, sorted(known))}")
        cells = tuple(cell for cell in self.cells if all(cell.names & names for names in wanted))
        if not cells:
            raise ValueError(f"Expected cells of {self.id} that go by {' and by '.join(words)} at once, got none.")
        return replace(self, cells=cells)

    def experiments(self, seeds: Iterable[int] | None = None) -> list[Experiment]:
        """Every run that the table needs, once; by default as many seeds as the paper has runs."""
        chosen = range(self.runs) if seeds is None else list(seeds)
        can = [one for cell in self.cells if not cell.unavailable for one in (cell, cell.minus) if one is not None]
        return list(dict.fromkeys(cell.experiment(seed) for seed in chosen for cell in can))


# Files


def list_tables() -> list[str]:
    """The ids of all tables.

    >>> list_tables()[:5]
    ['ln-table1', 'ln-table2', 'ln-table3', 'ln-table4', 'sln-table1']
    """
    return list(_tables())


def load_table(id: str) -> Table:
    """A paper's table.

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
def _tables() -> dict[str, Table]:
    return {table["id"]: _table(paper, table) for paper in PAPERS for table in get_paper(paper).tables}


def _table(paper: str, said: Mapping[str, Any]) -> Table:
    head = {name: said[name] for name in ("id", "number", "title", "statistic", "runs")}
    cells = tuple(cell for block in said["block"] for cell in _cells(paper, said, block))
    return Table(**head, paper=paper, cells=cells, note=said.get("note", ""))


def _cells(paper: str, table: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[Cell]:
    columns = table["columns"]
    of_rows = {name: block.get(name, {}) for name in ("settings_of_row", "unavailable_row")}
    each = spread({name: value for name, value in block.items() if name not in ("rows", *of_rows)}, len(columns))
    for row, method, *texts in block["rows"]:
        made: dict[str, Cell] = {}  # by column
        for j, (column, text) in enumerate(zip(columns, texts, strict=True)):
            if not text:  # not published, or lost from the text that we have
                continue
            said = {name: values[j] for name, values in each.items()}
            metric = said.get("metric", MEASURED[0])
            absent = "" if metric in MEASURED else f"a result has no {metric}"
            made[column] = Cell(
                block=said.get("name", ""),
                row=row,
                column=column,
                published=Published.parse(text),
                what={
                    "dataset": said["dataset"],
                    "noise": said["noise"],
                    "method": method.replace("{kind}", said.get("kind", "")),
                    "validation": table.get("validation", 0.0),
                    "paper": said.get("paper", paper),
                    "noise_seed": None if table.get("noise_follows_seed") else 0,
                    "foreign": said.get("foreign") or None,
                    "rows": said.get("images"),
                },
                settings=said.get("settings", {}) | of_rows["settings_of_row"].get(row, {}),
                metric=metric,
                minus=made[said["minus"]] if said.get("minus") else None,
                unavailable=said.get("unavailable") or of_rows["unavailable_row"].get(row) or absent,
            )
        yield from made.values()


# Ours beside theirs


@dataclass(frozen=True, eq=False)
class Comparison:
    """A cell and what our runs say of it."""

    cell: Cell
    values: tuple[float, ...] = ()  # one for each seed that has run
    seeds: int = 0  # that have run; of a difference the fewer of the two
    ours: float | None = None
    spread: float | None = None  # None of a single seed, or of the best of several
    z: float | None = None
    wanted: int = 0  # seeds
    failed: int = 0
    seconds: float | None = None  # of a run, on average
    samples: int | None = None  # that Het averages over

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for programs."""
        cell, published = self.cell, self.cell.published
        return {
            "block": cell.block, "row": cell.row, "column": cell.column, **cell.what, "metric": cell.metric,
            "published": published.mean, "published_spread": published.spread, "bold": published.bold,
            "ours": self.ours, "spread": self.spread, "z": self.z, "values": self.values, "seeds": self.seeds,
            "failed": self.failed, "seconds": self.seconds, "samples": self.samples,
            "unavailable": cell.unavailable or None,
        }  # fmt: skip


def compare(
    table: Table, results: Mapping[str, Result], seeds: Iterable[int] | None = None, precision: str = "32"
) -> list[Comparison]:
    """What ``results``, by the experiments' keys, say of each cell, by the paper's own statistic.

    Differences are judged by ``z_score``. One seed is reported and not judged.
    """
    chosen = range(table.runs) if seeds is None else list(seeds)
    return [_compare(cell, table, results, chosen, precision) for cell in table.cells]


def _compare(
    cell: Cell, table: Table, results: Mapping[str, Result], seeds: Sequence[int], precision: str
) -> Comparison:
    if cell.unavailable:
        return Comparison(cell)
    keys = [replace(cell.experiment(seed), precision=precision).key for seed in seeds]
    found = [results[key] for key in keys if key in results]
    done = [result for result in found if result["status"] == "done"]
    base = _compare(cell.minus, table, results, seeds, precision) if cell.minus else None
    failed = len(found) - len(done) + (base.failed if base else 0)
    one = Comparison(cell, wanted=len(seeds), failed=failed)
    measured = [result["last"].get(cell.metric) for result in done]
    values = tuple(100 * value for value in measured if value is not None)
    taken_off = base.ours if base else 0.0
    if not values or taken_off is None:
        return one
    ours, spread = _summary(values, table.statistic)
    return replace(
        one,
        values=values,
        seeds=min(len(values), base.seeds) if base else len(values),
        ours=ours - taken_off,
        spread=spread,
        z=None if cell.minus else z_score(values, cell.published, table.statistic, table.runs),
        seconds=fmean(result["seconds"] for result in done),
        samples=next((result["samples"] for result in done if result.get("samples")), None),
    )


def _summary(values: Sequence[float], statistic: Statistic) -> tuple[float, float | None]:
    if statistic == "best":
        return max(values), None
    deviation = stdev(values) if len(values) > 1 else None
    return fmean(values), deviation if statistic != "sem" or deviation is None else deviation / math.sqrt(len(values))


def z_score(values: Sequence[float], published: Published, statistic: Statistic, runs: int) -> float | None:
    """How many standard errors our mean is above the published one; None where a spread is missing.

    z = (ours − published)/√(s²/n + s_p²/n_p), squared errors of the two means; ``sem`` in a paper is √(s_p²/n_p).
    Where both spreads are 0, the error is that of rounding what is published to a unit u of its last digit, u/√12.

    >>> z_score([90.0, 92.0], Published.parse("90.0±2.0"), "std", runs=4)  # 1/√(2/2 + 4/4)
    0.7071067811865475
    """
    if len(values) < 2 or published.spread is None or statistic not in ("std", "sem"):
        return None
    theirs = published.spread**2 / (runs if statistic == "std" else 1)
    error = math.sqrt(stdev(values) ** 2 / len(values) + theirs)
    return (fmean(values) - published.mean) / (error or 10**-published.digits / math.sqrt(12))


# How it is shown

COLUMNS = ("", "method", "setting", "ours", "published", "z", "seeds", "min a run")
PUBLISHED = COLUMNS.index("published")
Rows = list[tuple[str, ...]]


def lines(
    compared: Sequence[Comparison], escape: Callable[[str], str] = str, bold: Callable[[str], str] = str
) -> tuple[tuple[str, ...], Rows]:
    """Column heads, and a line for each cell; without a column for blocks where they have no names.

    ``bold`` is done to what the paper has in bold, after ``escape``, which is done to every text.
    """
    rows = [[escape(text) for text in _line(one)] for one in compared]
    for one, row in zip(compared, rows, strict=True):
        row[PUBLISHED] = bold(row[PUBLISHED]) if one.cell.published.bold else row[PUBLISHED]
    first = 0 if any(row[0] for row in rows) else 1
    return COLUMNS[first:], [tuple(row[first:]) for row in rows]


def _line(one: Comparison) -> tuple[str, ...]:
    cell = one.cell
    head = (cell.block, cell.row, cell.column)
    if cell.unavailable:
        return (*head, "cannot run", str(cell.published), "", "", "")
    ours = "not run" if one.ours is None else _number(one.ours, one.spread, cell.published.digits)
    return (
        *head,
        ours + f", {one.failed} failed" * (one.failed > 0),
        str(cell.published),
        "" if one.z is None else f"{one.z:+.2f}",
        f"{one.seeds}/{one.wanted}",
        "" if one.seconds is None else f"{one.seconds / 60:.1f}",
    )


def _number(value: float, spread: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def heading(table: Table) -> str:
    """Which table of which paper."""
    return f"{PAPERS[table.paper]}, {table.number}: {table.title}"


def notes(table: Table, compared: Sequence[Comparison]) -> list[str]:
    """What a reader must know: how many cells have run, why others cannot, what ± is, where the paper is silent."""
    why = Counter(one.cell.unavailable for one in compared if one.cell.unavailable)
    ran = sum(one.ours is not None for one in compared)
    said = [f"{len(compared)} cells: {ran} ran, {len(compared) - ran - why.total()} not run, {why.total()} cannot run."]
    said += [f"Cannot run ({count}): {reason}." for reason, count in why.items()]
    if samples := sorted({one.samples for one in compared if one.samples is not None}):
        said.append(f"Het averages over {', '.join(map(str, samples))} samples.")
    return [*said, MEANING[table.statistic].format(runs=table.runs), *([table.note] if table.note else [])]


def render(table: Table, compared: Sequence[Comparison], format: str) -> str:
    """The comparison as Markdown, LaTeX or HTML; what the paper has in bold is bold.

    >>> table = load_table("curriculum-table4").only("MAE scale", "50 classes")
    >>> print(render(table, compare(table, {}), "markdown").split("\\n\\n")[1])
    | method | setting | ours | published | z | seeds | min a run |
    | :-- | :-- | --: | --: | --: | --: | --: |
    | MAE scale | 50 classes | cannot run | **66.72** |  |  |  |
    """
    if format not in FORMATS:
        raise ValueError(f"Expected one of {', '.join(FORMATS)} as format, got {format!r}.")
    escape, bold, assemble = FORMATS[format]
    columns, rows = lines(compared, escape, bold)
    title, said = escape(heading(table)), [escape(note) for note in notes(table, compared)]
    sides = ["left" if column in COLUMNS[:3] else "right" for column in columns]
    return assemble(title, columns, sides, rows, said)


Assemble = Callable[[str, Sequence[str], Sequence[str], Sequence[Sequence[str]], Sequence[str]], str]


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<>])", r"\\\1", text)


def _markdown(
    title: str, columns: Sequence[str], sides: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    marks = [":--" if side == "left" else "--:" for side in sides]
    table = "\n".join("| " + " | ".join(row) + " |" for row in (columns, marks, *rows))
    return "\n\n".join([f"### {title}", table, *notes]) + "\n"


ONE_PAGE = 40  # rows; a longer table goes on over the next page
_LATEX = str.maketrans({
    **{mark: f"\\{mark}" for mark in "&%$#_{}"}, "\\": r"\textbackslash{}", "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}", "±": r"$\pm$", "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "α": r"$\alpha$",
    "ε": r"$\epsilon$", "λ": r"$\lambda$", "τ": r"$\tau$", "Σ": r"$\Sigma$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",  # which the usual fonts print as ¡, ¿ and —
})  # fmt: skip


def _latex(
    title: str, columns: Sequence[str], sides: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    head, *body = [" & ".join(row) + r" \\" for row in (columns, *rows)]
    form = "".join(side[0] for side in sides)
    if len(rows) > ONE_PAGE:
        return "\n".join([
            r"% needs \usepackage{longtable}", rf"\begin{{longtable}}{{{form}}}", rf"\caption{{{title}}} \\",
            r"\hline", head, r"\hline", r"\endhead", *body, r"\hline", r"\end{longtable}",
            r"{\footnotesize", *notes, r"\par}", "",
        ])  # fmt: skip
    return "\n".join([
        r"\begin{table}", rf"\caption{{{title}}}", rf"\begin{{tabular}}{{{form}}}",
        r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", r"\par\footnotesize", *notes,
        r"\end{table}", "",
    ])  # fmt: skip


def _html(
    title: str, columns: Sequence[str], sides: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(
            f'<{tag} style="text-align: {side}">{cell}</{tag}>' for cell, side in zip(cells, sides, strict=True)
        ) + "</tr>"  # fmt: skip

    return "\n".join([
        "<table>", f"<caption>{title}</caption>", "<thead>", line(columns, "th"), "</thead>", "<tbody>",
        *(line(row, "td") for row in rows), "</tbody>", "</table>", *(f"<p>{note}</p>" for note in notes), "",
    ])  # fmt: skip


FORMATS: dict[str, tuple[Callable[[str], str], Callable[[str], str], Assemble]] = {
    "markdown": (_escape_markdown, "**{}**".format, _markdown),
    "latex": (lambda text: text.translate(_LATEX), r"\textbf{{{}}}".format, _latex),
    "html": (html.escape, "<b>{}</b>".format, _html),
}
