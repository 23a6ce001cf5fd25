"""Add results of `noiseproof bench run` to the reruns of the papers' tables, and write the tables
of docs/results.md.

    python benchmarks/reruns.py RESULTS [RESULTS …] [--note "two side by side"]
    python benchmarks/reruns.py RESULTS --commit 4d74622 --command "noiseproof bench run …"
    python benchmarks/reruns.py RESULTS --as noise-f@ln
    python benchmarks/reruns.py                     only docs/results.md

Every run in the folders RESULTS that belongs to a cell of a table, or to a file of
benchmarks/sweeps that a diagnosis names, goes into src/noiseproof/papers/reruns/PAPER.json, values
of the latter into a file of the same name beside it; what is there already stays. A new file of
experiments first needs an entry in ``diagnoses``, without finding and seeds; what they found is
written by hand once they have run, and ``cells`` names those whose data and method they have.

``--commit`` is for results of a machine without git, which have none; results that name their
commit keep it. ``--command`` is for runs of a file that the repository does not have: a command
that makes the same runs. ``--as`` is for runs that are the training of a cell, whose table spells
their method in another way. Hours and memory are not entered: runs side by side share a machine,
and a paper's ran alone.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

from noiseproof.bench import load_experiments, read_results
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.reruns import (
    PRECISIONS,
    Counts,
    count_all,
    count_cells,
    find_diagnosis,
    load_reruns,
    rerun_cells,
    row_key,
)
from noiseproof.bench.sheets import heading
from noiseproof.bench.tables import (
    ACCURACIES,
    OF_THE_MACHINE,
    Cell,
    CellComparison,
    PaperTable,
    Published,
    list_tables,
    load_table,
    measured,
    summarise,
)
from noiseproof.papers import PAPERS

ROOT = Path(__file__).parents[1]
RERUNS = ROOT / "src" / "noiseproof" / "papers" / "reruns"
PAGE = ROOT / "docs" / "results.md"
# the test accuracy of the last epoch
TEST = Cell("", "", "", Published(0.0, None, False, 2), {}, {})
SAME = "the same training, written as "  # in the note of a session
FAR = "!"  # after a z of more than 2
FAR_UNEXAMINED = "!!"  # the same, where no experiment looks into why
Json = dict[str, Any]


# Results


def with_source(
    results: Mapping[str, Json], commit: str | None, command: str | None
) -> dict[str, Json]:
    """Return ``results`` with the commit that they lack, and with a command that the repository
    has.
    """
    return {key: _with_source(result, commit, command) for key, result in results.items()}


def _with_source(result: Json, commit: str | None, command: str | None) -> Json:
    made = result["provenance"]
    if commit and made["commit"]:
        raise ValueError(
            f"Expected results without a commit for --commit, got {made['commit']} in"
            f" {result['key']}."
        )
    given = {"commit": commit or made["commit"], "command": command or made["command"]}
    return {**result, "provenance": {**made, **given}}


def spelled_as(results: Mapping[str, Json], method: str) -> tuple[dict[str, Json], str]:
    """Return ``results`` with ``method`` as the name of their method, and a note on how it was
    written.
    """
    changed = {}
    for result in results.values():
        experiment = {**result["experiment"], "method": method}
        key = Experiment.from_dict(experiment).key
        changed[key] = {**result, "key": key, "experiment": experiment}
    written = dict.fromkeys(result["experiment"]["method"] for result in results.values())
    return changed, f"{SAME}{', '.join(written)}"


# Rows


def add_results(
    content: Json, paper: str, results: Mapping[str, Json], note: str = ""
) -> list[str]:
    """Add to ``content``, the file of ``paper``, the runs of its cells and diagnoses in
    ``results``; name what grew.
    """
    rows = {row["key"]: row for row in content["rows"]}
    grown = []
    for key, runs in by_first_seed(results).items():
        for one in content["diagnoses"]:
            if key in sweep_keys(one["sweep"]):
                add_to_sweep(one, key, runs, note)
                grown.append(
                    f"{runs[min(runs)]['experiment']['method']}, experiment of {one['sweep']}"
                )
        if key not in cells_of(paper):
            continue
        table, cell, reported = cells_of(paper)[key]
        if key not in rows:
            rows[key] = {"precision": runs[min(runs)]["experiment"]["precision"], "key": key}
            content["rows"].append(rows[key])
        extend(rows[key], reported, runs, content["made_by"], note)
        grown.append(
            f"{table.id}, {cell.block}, {cell.row}, {cell.column}: {len(rows[key]['seeds'])} seeds"
        )
    return grown


def by_first_seed(results: Mapping[str, Json]) -> dict[str, dict[int, Json]]:
    """Finished runs by the key of their row, and by seed."""
    runs: dict[str, dict[int, Json]] = {}
    for key, result in results.items():
        experiment = Experiment.from_dict(result["experiment"])
        if result["status"] == "done" and experiment.key == key:  # otherwise of other files or code
            runs.setdefault(row_key(experiment), {})[experiment.seed] = result
    return runs


@cache
def cells_of(paper: str) -> dict[str, tuple[PaperTable, Cell, list[Cell]]]:
    """The first cell of each row, by its key, and all cells that report its runs."""
    cells: dict[str, tuple[PaperTable, Cell, list[Cell]]] = {}
    for table in (load_table(id) for id in list_tables()):
        for part in table.parts if table.paper == paper else ():
            if part.metric in OF_THE_MACHINE:
                continue
            for precision in PRECISIONS:
                key = row_key(replace(part.experiment(0), precision=precision))
                cells.setdefault(key, (table, part, []))[2].append(part)
    return cells


def add_to_sweep(diagnosis: Json, key: str, runs: Mapping[int, Json], note: str) -> None:
    """Add runs of a diagnosis to the file beside its experiments, and their seeds to its entry.

    A row has what tells it from others; all else, such as the model, is in the file of experiments,
    by its key.
    """
    path = (ROOT / diagnosis["sweep"]).with_suffix(".json")
    content = json.loads(path.read_text("utf-8")) if path.exists() else {"made_by": [], "rows": []}
    row = next((row for row in content["rows"] if row["key"] == key), None)
    if row is None:
        run = runs[min(runs)]["experiment"]
        row = {name: run[name] for name in ("dataset", "noise", "method")}
        row |= {name: run["settings"][name] for name in ("optimizer", "schedule")}
        row |= {name: run[name] for name in ("rows", "precision") if run[name]} | {"key": key}
        content["rows"].append(row)
    extend(row, [TEST], runs, content["made_by"], note)
    write(path, content)
    diagnosis["seeds"][key] = row["seeds"]


@cache
def sweep_keys(path: str) -> set[str]:
    return {row_key(run) for run in load_experiments(ROOT / path, check_runs=False)}


def extend(
    row: Json, cells: Iterable[Cell], runs: Mapping[int, Json], sessions: list[Json], note: str
) -> None:
    """Add the seeds that ``row`` does not have, with what ``cells`` report of them, and their
    sessions.
    """
    old = dict.fromkeys(row.setdefault("seeds", []))
    values = {
        cell.metric: dict(zip(row["seeds"], row.get(cell.metric, []), strict=False))
        for cell in cells
    }
    for seed, result in runs.items():
        for cell in cells:
            value = measured(result, cell)
            if value is not None and values[cell.metric].get(seed) is None:
                values[cell.metric][seed] = round(value, 4)
        if seed not in old:
            session = describe(result, note)
            if session not in sessions:
                sessions.append(session)
            number = sessions.index(session)
            row["made_by"] = [
                *row.get("made_by", []),
                *([number] if number not in row.get("made_by", []) else []),
            ]
        old.setdefault(seed)
    row["seeds"] = sorted(old)
    if epochs := {cell.epoch for cell in cells if cell.metric in ACCURACIES} - {"last"}:
        (row["epoch"],) = epochs
    row |= {metric: [of.get(seed) for seed in row["seeds"]] for metric, of in values.items() if of}
    row["made_by"] = row.pop("made_by")  # last


def describe(result: Json, note: str) -> Json:
    """The session of a result: commit, hardware, versions, command."""
    made, versions = result["provenance"], result["provenance"]["versions"]
    commit = re.sub(r"^(\w{7})\w*", r"\1", made["commit"] or "unknown")
    machine = (
        {"gpu": made["gpu"]} if made["gpu"] else {"cpu": made["cpu"], "threads": made["threads"]}
    )
    command = re.sub(r"^\S*/(?=noiseproof )", "", made["command"])
    session = {
        "commit": commit,
        **machine,
        "torch": versions["torch"],
        "python": versions["python"],
    }
    return session | {"command": command} | ({"note": note} if note else {})


def write(path: Path, content: Json) -> None:
    """One line for each entry, so that a change is a line."""
    parts = []
    for name, entries in content.items():
        lines = ",\n".join(
            json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries
        )
        parts.append(f'"{name}":[\n{lines}]')
    path.write_text("{" + ",\n".join(parts) + "}\n", "utf-8")


# The page

BLOCK = re.compile(
    r"(?P<mark><!-- (?P<kind>counts|diagnoses|rerun|readings)(?:: (?P<table>\S+)(?P<options>.*?))?"
    r" -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def page(text: str) -> str:
    """``text`` with new tables between its marks and `<!-- end -->`.

    The marks are `<!-- counts -->`, `<!-- diagnoses -->`, `<!-- rerun: ID --only … -->` (with
    `--whole` it shows the cells that were not run, too), `<!-- readings: ID --only … --method M
    --without SEED -->`, which compares a row with another reading of it, and `<!-- rerun: rest -->`
    for the cells that no other mark shows.
    """
    marks = [Mark.of(found) for found in BLOCK.finditer(text)]
    shown = {
        id(cell)
        for mark in marks
        if mark.kind == "rerun" and mark.id != "rest"
        for cell in mark.table.cells
    }

    def made(mark: Mark) -> str:
        if mark.kind == "counts":
            return counts()
        if mark.kind == "diagnoses":
            return diagnoses()
        if mark.kind == "readings":
            return readings(mark.table, mark.options["method"], int(mark.options["without"]))
        if mark.id == "rest":
            return rest(shown)
        return reruns(mark.table, mark.options.get("precision"), whole="--whole" in mark.words)

    return BLOCK.sub(lambda found: f"{found['mark']}\n{made(Mark.of(found))}\n{found['end']}", text)


@dataclass(frozen=True)
class Mark:
    """A mark of the page: what is shown, of which table, with which options."""

    kind: str
    id: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, found: re.Match[str]) -> Mark:
        return cls(found["kind"], found["table"] or "", tuple(shlex.split(found["options"] or "")))

    @property
    def options(self) -> dict[str, str]:
        """The value of each option; the last of ``--only``, for all of which see ``table``."""
        return {
            name.removeprefix("--"): value
            for name, value in pairwise(self.words)
            if name.startswith("--")
        }

    @property
    def table(self) -> PaperTable:
        """The cells that it chooses."""
        return load_table(self.id).only(
            *(value for name, value in pairwise(self.words) if name == "--only")
        )


def rest(shown: set[int]) -> str:
    """Tables of the cells that are not ``shown``, each with its heading."""
    parts = []
    for table in (load_table(id) for id in list_tables()):
        if any(one.mean is not None and id(one.cell) not in shown for one in rerun_cells(table)):
            parts.append(f"**{heading(table)}**\n\n{reruns(table, without=shown)}")
    return "\n".join(parts)


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(columns), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(
        "| " + " | ".join(re.sub(r"([|*])", r"\\\1", cell) for cell in line) + " |\n"
        for line in lines
    )


def counts() -> str:
    """How many cells of each table were rerun, where any were, and how they compare."""
    found = count_all()
    rows = [
        (f"{PAPERS[load_table(id).paper]}, {load_table(id).number}", one)
        for id, one in found.items()
        if one.rerun
    ]
    rows.append(("all", reduce(add, found.values())))
    head = (
        "table",
        "published",
        "can run",
        "rerun",
        "with the paper's seeds",
        "|z| ≤ 2",
        "others with an experiment",
    )
    return markdown(head, ((name, *count_texts(one)) for name, one in rows))


def count_texts(one: Counts) -> Iterator[str]:
    yield from map(str, (one.published, one.runnable, one.rerun, one.with_all_seeds))
    yield f"{one.within} of {one.judged}" if one.judged else ""
    outside = one.judged - one.within
    yield f"{one.diagnosed} of {outside}" if outside else ""


def diagnoses() -> str:
    """The files of experiments on why cells differ, the tables of these cells, and what the
    experiments found.
    """
    rows = []
    for one in (one for paper in PAPERS for one in load_reruns(paper).diagnoses):
        tables = ", ".join(dict.fromkeys(f"`{id}`" for id, *_ in one["cells"]))
        rows.append((f"`{Path(one['sweep']).name}`", tables, one["finding"] or "not run yet"))
    return markdown(("file", "tables", "found"), rows)


def reruns(
    table: PaperTable,
    precision: str | None = None,
    without: Container[int] = (),
    *,
    whole: bool = False,
) -> str:
    """The cells that were rerun, methods by settings, each as rerun (published; z).

    ``whole`` shows the cells that were not, too.
    """
    compared = [one for one in rerun_cells(table, precision) if id(one.cell) not in without]
    done = [one for one in compared if one.mean is not None]
    shown = compared if whole else done
    has_blocks = len({one.cell.block for one in done}) > 1
    usual_seeds = Counter(one.seeds for one in done).most_common(1)[0][0]
    settings = list(dict.fromkeys(one.cell.column for one in shown))
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for one in shown:
        name = (one.cell.block, one.cell.row) if has_blocks else (one.cell.row,)
        rows.setdefault(name, {})[one.cell.column] = _cell(table, one, usual_seeds)
    head = ["data", "method", *settings] if has_blocks else ["method", *settings]
    lines = [
        [*name, *(cells.get(setting, "") for setting in settings)] for name, cells in rows.items()
    ]
    c = count_cells(table, done)
    within = f"{c.rerun} of {c.published} cells, {c.within} of {c.judged} within |z| ≤ 2"
    return markdown(head, lines) + f"\n{within}; n={usual_seeds} unless given.\n"


def _cell(table: PaperTable, one: CellComparison, usual_seeds: int) -> str:
    """A cell as rerun (published; z beyond 2), with its seeds where they are not the usual ones."""
    mean, z = _texts(one)
    parts = [_terse(one.cell.published)]
    if one.z is not None and abs(one.z) > 2:
        mark = FAR if find_diagnosis(table, one.cell) else FAR_UNEXAMINED
        parts.append(z + mark)
    if one.mean is not None and one.seeds != usual_seeds:
        parts.append(f"n={one.seeds}")
    return f"{mean} ({'; '.join(parts)})"


def _terse(number: Published) -> str:
    return str(number).replace(" ± ", "±")


def _texts(one: CellComparison) -> tuple[str, str]:
    """The mean with its spread, and z."""
    if one.mean is None:
        return "–", ""
    digits = one.cell.published.digits
    spread = "" if one.spread is None else f"±{one.spread:.{digits}f}"
    z = "" if one.z is None else f"{one.z:+.1f}".replace("-", "−")
    return f"{one.mean:.{digits}f}{spread}", z


def readings(table: PaperTable, method: str, without: int) -> str:
    """The cells as they are read, with and without a seed, and with another ``method``, whose runs
    a sweep has.
    """
    paper = load_reruns(table.paper)
    swept = {row["key"]: row for one in paper.diagnoses for row in _sweep_rows(one["sweep"])}
    many = len({cell.row for cell in table.cells}) > 1
    rows = []
    for cell in table.cells:
        read = by_seed(cell, paper.rows)
        other = by_seed(replace(cell, fields={**cell.fields, "method": method}), swept)
        some = {seed: value for seed, value in read.items() if seed != without}
        texts = [
            _texts(summarise(CellComparison(cell, values=tuple(of.values())), table))
            for of in (read, some, other)
        ]
        row = [cell.column, _terse(cell.published), *(text for pair in texts for text in pair)]
        rows.append([cell.row] * many + row)
    names = (table.cells[0].fields["method"], method)
    own, others = (f"`{name}`" for name in names)
    head = [
        *["method"] * many,
        "setting",
        "published",
        own,
        "z",
        f"without seed {without}",
        "z",
        others,
        "z",
    ]
    return markdown(head, rows)


@cache
def _sweep_rows(path: str) -> list[Json]:
    rows: list[Json] = json.loads((ROOT / path).with_suffix(".json").read_text("utf-8"))["rows"]
    return rows


def by_seed(cell: Cell, rows: Mapping[str, Json]) -> dict[int, float]:
    """The values of a cell by seed, from the row of its run in the first precision that has one."""
    keys = (row_key(replace(cell.experiment(0), precision=precision)) for precision in PRECISIONS)
    row = next((rows[key] for key in keys if key in rows), None)
    return {} if row is None else dict(zip(row["seeds"], row[cell.metric], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="*", help="Folders of results.")
    parser.add_argument(
        "--note", default="", help="How the runs were made, for the session's entry."
    )
    parser.add_argument(
        "--commit", help="Of results that have none, since their machine had no git."
    )
    parser.add_argument(
        "--command", help="One that makes these runs, where theirs names a file that is not here."
    )
    parser.add_argument(
        "--as", dest="method", metavar="METHOD", help="How a table writes the method of these runs."
    )
    given = parser.parse_args()
    results = {
        key: result for folder in given.results for key, result in read_results(folder).items()
    }
    results, note = with_source(results, given.commit, given.command), given.note
    if given.method and results:
        results, same = spelled_as(results, given.method)
        note = f"{note}; {same}" if note else same
    for paper in PAPERS if results else ():
        path = RERUNS / f"{paper}.json"
        empty: Json = {"made_by": [], "rows": [], "diagnoses": []}
        content = json.loads(path.read_text("utf-8")) if path.exists() else empty
        if grown := add_results(content, paper, results, note):
            write(path, content)
            print("\n".join(grown))
    load_reruns.cache_clear()
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
