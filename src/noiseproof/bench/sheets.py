"""Tables as they are shown: the papers' tables, the largest differences, the ranking of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from pathlib import Path

import pandas as pd

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.ranking import NOTE, Entry, Group, data_of, summarise_sweep
from noiseproof.bench.reruns import (
    Counts,
    count_all,
    count_cells,
    explain,
    find_diagnosis,
    largest_differences,
    runs_left,
)
from noiseproof.bench.results import Json, status
from noiseproof.bench.tables import (
    Cell,
    CellComparison,
    PaperTable,
    Statistic,
    format_number,
    load_table,
)
from noiseproof.core.messages import counted
from noiseproof.papers import PAPERS

MEANING: dict[Statistic, str] = {
    "std": (
        "± is the standard deviation, published over {runs} runs, otherwise over the seeds; z of"
        " one seed takes the published one for it."
    ),
    "sem": (
        "± is the standard error of the mean, published over {runs} runs, otherwise over the seeds;"
        " z of one seed takes the published deviation of a run for it."
    ),
    "mean": (
        "Published is the mean of {runs} runs without a spread, so there is no z; other ± are"
        " standard deviations."
    ),
    "best": (
        "Published is the best of {runs} runs, and so are the others, of their seeds; there is"
        " no z."
    ),
    "single": "Published is one run, so there is no z; other ± are standard deviations over seeds.",
}
# columns of the comparison of cells
CELL = ("", "method", "setting", "published")
RERUN = ("rerun", "z", "seeds", "commit")
YOURS = ("yours", "your z", "your seeds", "min a run")
# what the runs of one entry may differ in
HIDDEN = ("seed", "noise_seed", "samples", "weights", "measures")
# characters with a meaning in a document, and those that its usual fonts lack
MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in r"\|*_`<>"})
LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "±": r"$\pm$",
        "−": "$-$",
        "≤": r"$\leq$",
        "†": r"$\dagger$",
        "‡": r"$\ddagger$",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "∂": r"$\partial$",
        "‖": r"$\|$",
        "₁": r"$_1$",
        "⁴": r"$^4$",
        "ε": r"$\epsilon$",
        "λ": r"$\lambda$",
        "τ": r"$\tau$",
        "Σ": r"$\Sigma$",
        # which the usual fonts print as ¡, ¿ and —
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }
)
DOCUMENTS = ("markdown", "latex")


@dataclass(frozen=True)
class Sheet:
    """A table of texts, and the same with all values for programs.

    Args:
        rows: cells as text; ``*…*`` is bold in a document.
        records: the rows for programs, as in JSON.
        notes: paragraphs below the table.
        texts: number of first columns that are aligned left in a document; the others are numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Json]
    notes: Sequence[str] = ()
    texts: int = 1

    def document(self, format: str) -> str:
        """Return the table as ``markdown`` or ``latex``.

        >>> sheet = Sheet("Two", ["method", "published"], [["MAE", "*66.72*"]], [])
        >>> sheet.document("markdown").splitlines()[2:]
        ['| method | published |', '| :-- | --: |', '| MAE | **66.72** |']
        """
        numbers = len(self.columns) - self.texts
        if format == "markdown":
            head, *rows = self._cells(MARKDOWN, "**{}**")
            marks = [":--"] * self.texts + ["--:"] * numbers
            table = "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))
            title, *notes = (text.translate(MARKDOWN) for text in (self.title, *self.notes))
            return "\n\n".join([f"### {title}", table, *notes]) + "\n"
        head, *rows = self._cells(LATEX, r"\textbf{{{}}}")
        title, *notes = (text.translate(LATEX) for text in (self.title, *self.notes))
        lines = [
            r"% needs \usepackage{longtable}",
            rf"\begin{{longtable}}{{{'l' * self.texts + 'r' * numbers}}}",
            rf"\caption{{{title}}} \\",
            r"\hline",
            " & ".join(head) + r" \\",
            r"\hline",
            r"\endhead",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\hline",
            r"\end{longtable}",
            r"{\footnotesize",
            *notes,
            r"\par}",
        ]
        return "\n".join(lines) + "\n"

    def _cells(self, special: Mapping[int, str], bold: str) -> list[list[str]]:
        """Return the names of the columns and the rows, for a document."""

        def cell(text: str) -> str:
            if text.startswith("*") and text.endswith("*"):
                return bold.format(text[1:-1].translate(special))
            return text.translate(special)

        return [[cell(text) for text in row] for row in (self.columns, *self.rows)]


def flat(record: Json) -> Json:
    """Return a record for CSV: without lists, the values of its parts named by both.

    >>> flat({"table": "ln-table1", "rerun": {"mean": 99.2, "values": [99.1, 99.3]}})
    {'table': 'ln-table1', 'rerun_mean': 99.2}
    """
    values: Json = {}
    for name, value in record.items():
        if isinstance(value, dict):
            values |= {f"{name}_{part}": cell for part, cell in flat(value).items()}
        elif not isinstance(value, (list, tuple)):
            values[name] = value
    return values


# The papers' tables


def paper_sheet(
    table: PaperTable, yours: Sequence[CellComparison], reruns: Sequence[CellComparison]
) -> Sheet:
    """Return a comparison of your results and of the package's reruns with the published cells."""
    columns, rows = lines(yours, reruns)
    records = [_record(table, *pair) for pair in zip(yours, reruns, strict=True)]
    texts = len(set(columns) & set(CELL[:3]))
    below = [*notes(table, yours, reruns), *explain(table, reruns)]
    return Sheet(heading(table), columns, rows, records, below, texts)


def worst_sheet(count: int) -> Sheet:
    """Return the reruns of all tables that differ most from what was published."""
    worst = largest_differences(count)
    reruns = [rerun for _, rerun in worst]
    columns, cells = lines([CellComparison(one.cell) for one in reruns], reruns)
    records = [_record(table, CellComparison(one.cell), one) for table, one in worst]
    rows = [
        (record["table"], *texts, record["experiment"] or "")
        for record, texts in zip(records, cells, strict=True)
    ]
    head = ("table", *columns, "experiment on why")
    return Sheet("The largest differences", head, rows, records, texts=4)


def _record(table: PaperTable, own: CellComparison, rerun: CellComparison) -> Json:
    why = find_diagnosis(table, rerun.cell) or {}
    return {
        "table": table.id,
        "statistic": table.statistic,
        **own.cell.as_dict(),
        "rerun": rerun.as_dict(),
        "yours": own.as_dict(),
        "diagnosis": why.get("finding"),
        "experiment": why.get("sweep"),
    }


def lines(
    yours: Sequence[CellComparison], reruns: Sequence[CellComparison]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return column names and a row for each cell, with asterisks around what the paper prints in
    bold.

    The columns of blocks and of your runs are left out where there are none.
    """
    columns: tuple[str, ...] = (*CELL, *RERUN)
    any_yours = any(one.values or one.failed for one in yours)
    if any_yours:
        columns += YOURS
    rows: list[tuple[str, ...]] = []
    for own, rerun in zip(yours, reruns, strict=True):
        cell = own.cell
        mark = "*" if cell.published.bold else ""
        published = f"{mark}{cell.published}{mark}"
        your_texts = _your_texts(own) if any_yours else ()
        names = (cell.block, cell.row, cell.column)
        rows.append((*names, published, *_rerun_texts(rerun), *your_texts))
    if any(row[0] for row in rows):
        return columns, rows
    return columns[1:], [row[1:] for row in rows]


def _rerun_texts(one: CellComparison) -> tuple[str, ...]:
    if one.mean is None:
        return ("cannot run" if one.cell.unavailable else "not rerun", "", "", "")
    first, *others = one.commits
    more = f" +{len(others)}" if others else ""
    return (*_texts(one), first + more)


def _your_texts(one: CellComparison) -> tuple[str, ...]:
    if one.cell.unavailable:
        return ("", "", "", "")
    mean, z, seeds = _texts(one)
    if one.failed:
        mean += f", {one.failed} failed"
    return (mean, z, seeds, _format(one.seconds and one.seconds / 60, ".1f"))


def _texts(one: CellComparison) -> tuple[str, str, str]:
    seeds = f"{one.seeds}/{one.wanted}"
    if one.mean is None:
        return "not run", "", seeds
    mean = format_number(one.mean, one.spread, one.cell.published.digits)
    return mean, _format(one.z, "+.2f"), seeds


def heading(table: PaperTable) -> str:
    """Return paper, number and title."""
    return f"{PAPERS[table.paper]}, {table.number}: {table.title}"


def notes(
    table: PaperTable, yours: Sequence[CellComparison], reruns: Sequence[CellComparison]
) -> list[str]:
    """Return the lines below a table: how many cells have run, where and by which code, why others
    cannot, what ± is.
    """
    counts = count_cells(table, reruns)
    ran = [one for one in yours if one.mean is not None]
    precisions = sorted({one.precision or "" for one in ran})
    precision = f", precision {' and '.join(precisions)}" if ran else ""
    texts = [
        f"{counted(counts.published, 'cell')}: {counts.rerun} rerun, {counts.with_all_seeds} of"
        f" them with the paper's {table.runs} seeds; {counts.within} of {counts.judged} within"
        f" |z| ≤ 2; {counts.published - counts.runnable} cannot run."
        f" You ran {len(ran)}{precision}."
    ]
    reasons = Counter(cell.unavailable for cell in table.cells if cell.unavailable)
    texts += [f"Cannot run ({count}): {reason}." for reason, count in reasons.items()]
    texts += _sessions([one for one in reruns if one.mean is not None])
    texts += _epochs_note([one.cell for one in ran])
    if samples := sorted({one.samples for one in (*yours, *reruns) if one.samples is not None}):
        texts.append(f"Het averages over {', '.join(map(str, samples))} samples.")
    texts.append(MEANING[table.statistic].format(runs=table.runs))
    if table.note:
        texts.append(table.note)
    return texts


def _sessions(reruns: Sequence[CellComparison]) -> list[str]:
    """Return hardware, precision and commits of the reruns, a line for each machine."""
    commits: dict[str, dict[str, None]] = {}
    for one in reruns:
        for session in one.made_by:
            place = session.get("gpu") or session["cpu"]
            machine = f"{place}, torch {session['torch']}, precision {one.precision}"
            commits.setdefault(machine, {})[session["commit"]] = None
    return [
        f"Reruns: {machine}, commits {', '.join(of_machine)}."
        for machine, of_machine in commits.items()
    ]


def _epochs_note(ran: Sequence[Cell]) -> list[str]:
    changed = [cell for cell in ran if cell.usual_epochs]
    if not changed:
        return []
    usual = " or ".join(map(str, sorted({cell.usual_epochs or 0 for cell in changed})))
    epochs = counted(changed[0].epochs or 0, "epoch")
    return [f"Yours: {epochs} in place of the protocol's {usual}, so no z."]


def counts_sheet(results_dir: str | Path) -> Sheet:
    """Return for each table how many cells can run and were rerun, how many agree, and how many
    runs are left.
    """
    counts = count_all()
    records = []
    for id, one in counts.items():
        table = load_table(id)
        states = Counter(status(runs_left(table), results_dir).values())
        left = states.total() - states["done"] - states["failed"]
        about = {"paper": table.paper, "table": table.number, "title": table.title}
        records.append({"id": id, **about, "runs": table.runs, **vars(one), "left": left})
    rows = [
        (one["id"], one["title"], *_count_texts(counts[one["id"]], one["left"])) for one in records
    ]
    left = sum(one["left"] for one in records)
    rows.append(("all", "", *_count_texts(reduce(add, counts.values()), left)))
    cells = ("cells", "can run", "rerun", "with all seeds", "|z| ≤ 2", "runs left")
    return Sheet("The papers' tables", ("id", "what it shows", *cells), rows, records, texts=2)


def _count_texts(one: Counts, left: int) -> tuple[str, ...]:
    cells = (one.published, one.runnable, one.rerun, one.with_all_seeds)
    return (*map(str, cells), f"{one.within} of {one.judged}", str(left))


# Sweeps


def sweep_sheets(experiments: Iterable[Experiment], results: Mapping[str, Json]) -> list[Sheet]:
    """Return the ranking of what was run on the same data, a sheet for each data."""
    groups = summarise_sweep(experiments, results)
    of_data, values = distinguish(
        (data_of(group.entries[0].run) for group in groups), "dataset", "noise", hidden=HIDDEN
    )
    runs = [entry.run for group in groups for entry in group.entries]
    names, named = distinguish(runs, *of_data, "method", hidden=HIDDEN)
    entries = iter(named)
    sheets = []
    for group, of_group in zip(groups, values, strict=True):
        title = ", ".join(f"{name} {text}" for name, text in zip(of_data, of_group, strict=True))
        texts = [next(entries) for _ in group.entries]
        sheets.append(ranking_sheet(group, title, names, texts, len(of_data)))
    return sheets


def ranking_sheet(
    group: Group, title: str, names: list[str], named: list[tuple[str, ...]], skipped: int = 0
) -> Sheet:
    """Return the ranking of a group, whose entries are ``named`` by what differs between them.

    The first ``skipped`` of the ``names`` are of their data, which ``title`` has.
    """
    rows = []
    records = []
    for entry, texts in zip(group.entries, named, strict=True):
        rows.append([*texts[skipped:], *_entry_texts(entry)])
        record: Json = dict(zip(names, texts, strict=True)) | asdict(entry.place)
        record |= {"metric": group.metric, "wanted": entry.wanted, "values": entry.values}
        records.append(record | {"recommendation": group.recommendation})
    head = [*names[skipped:], group.metric.replace("_", " "), "95 %", "p against the first"]
    head += ["seeds", "s a run"]
    if any(place.memory for place in group.places):
        head.append("MB")
    rows = [row[: len(head)] for row in rows]
    below = [*group.notes, NOTE, group.recommendation]
    return Sheet(title, head, rows, records, below, len(names) - skipped)


def _entry_texts(entry: Entry) -> list[str]:
    place = entry.place
    mean = _format(place.mean, ".4f")
    if place.std is not None:
        mean += f" ± {place.std:.4f}"
    seeds = f"{place.seeds}/{entry.wanted}"
    if place.failed:
        seeds += f", {place.failed} failed"
    p = _format(place.p, ".3f")
    if place.p is not None and place.p < 0.001:
        p = "< 0.001"
    margin = "" if place.margin is None else f"± {place.margin:.4f}"
    megabytes = _format(place.memory and place.memory / 1e6, ".1f")
    return [mean, margin, p, seeds, _format(place.seconds, ".1f"), megabytes]


def _format(value: float | None, digits: str) -> str:
    return "" if value is None else f"{value:{digits}}"


def distinguish(
    experiments: Iterable[Experiment], *columns: str, hidden: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return names and values of ``columns``, and of what else differs between experiments that
    agree in these.
    """
    records = []
    for experiment in experiments:
        fields = experiment.as_dict()
        fields |= fields.pop("settings")
        records.append({name: str(value) for name, value in fields.items()})
    if not records:
        return list(columns), []
    frame = pd.DataFrame(records)
    differs = frame.groupby(list(columns)).nunique().gt(1).any()
    names = [*columns, *sorted(set(differs.index[differs]).difference(hidden))]
    return names, list(frame[names].itertuples(index=False, name=None))
