"""Add results of `noiseproof bench run` to the reruns of the papers' tables, and write the tables of docs/results.md.

    python benchmarks/reruns.py RESULTS [RESULTS …] [--note "two side by side"]
    python benchmarks/reruns.py                     only docs/results.md

Every run in the folders RESULTS that belongs to a cell of a table, or to a file of benchmarks/sweeps that a diagnosis
names, goes into src/noiseproof/papers/reruns/PAPER.json, values of the latter into a file of the same name beside it;
what is there already stays. A new file of experiments first needs an entry in ``diagnoses``, without finding and seeds;
what they found is written by hand once they have run, and ``cells`` names those whose data and method they have.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, reduce
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
from noiseproof.bench.tables import ACCURACIES, Cell, PaperTable, Published, heading, list_tables, load_table, measured
from noiseproof.papers import PAPERS

ROOT = Path(__file__).parents[1]
RERUNS = ROOT / "src" / "noiseproof" / "papers" / "reruns"
PAGE = ROOT / "docs" / "results.md"
TEST = Cell("", "", "", Published(0.0, None, False, 2), {}, {})  # the test accuracy of the last epoch
Json = dict[str, Any]


# Rows


def add_results(content: Json, paper: str, results: Mapping[str, Json], note: str = "") -> list[str]:
    """Add to ``content``, the file of ``paper``, the runs of its cells and diagnoses in ``results``; name what grew."""
    rows = {row["key"]: row for row in content["rows"]}
    grown = []
    for key, runs in by_first_seed(results).items():
        for one in content["diagnoses"]:
            if key in sweep_keys(one["sweep"]):
                add_to_sweep(one, key, runs, note)
                grown.append(f"{runs[min(runs)]['experiment']['method']}, experiment of {one['sweep']}")
        if key not in cells_of(paper):
            continue
        table, cell, reported = cells_of(paper)[key]
        if key not in rows:
            rows[key] = {"precision": runs[min(runs)]["experiment"]["precision"], "key": key}
            content["rows"].append(rows[key])
        extend(rows[key], reported, runs, content["made_by"], note)
        grown.append(f"{table.id}, {cell.block}, {cell.row}, {cell.column}: {len(rows[key]['seeds'])} seeds")
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
            for precision in PRECISIONS:
                key = row_key(replace(part.experiment(0), precision=precision))
                cells.setdefault(key, (table, part, []))[2].append(part)
    return cells


def add_to_sweep(diagnosis: Json, key: str, runs: Mapping[int, Json], note: str) -> None:
    """Add runs of a diagnosis to the file beside its experiments, and their seeds to its entry.

    A row has what tells it from others; all else, such as the model, is in the file of experiments, by its key.
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


def extend(row: Json, cells: Iterable[Cell], runs: Mapping[int, Json], sessions: list[Json], note: str) -> None:
    """Add the seeds that ``row`` does not have, with what ``cells`` report of them, and their sessions."""
    old = dict.fromkeys(row.setdefault("seeds", []))
    values = {cell.metric: dict(zip(row["seeds"], row.get(cell.metric, []), strict=False)) for cell in cells}
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
            row["made_by"] = [*row.get("made_by", []), *([number] if number not in row.get("made_by", []) else [])]
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
    machine = {"gpu": made["gpu"]} if made["gpu"] else {"cpu": made["cpu"], "threads": made["threads"]}
    command = re.sub(r"^\S*/(?=noiseproof )", "", made["command"])
    session = {"commit": commit, **machine, "torch": versions["torch"], "python": versions["python"]}
    return session | {"command": command} | ({"note": note} if note else {})


def write(path: Path, content: Json) -> None:
    """One line for each entry, so that a change is a line."""
    parts = []
    for name, entries in content.items():
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
        parts.append(f'"{name}":[\n{lines}]')
    path.write_text("{" + ",\n".join(parts) + "}\n", "utf-8")


# The page

BLOCK = re.compile(r"(<!-- (counts|diagnoses|rerun: (\S+)(.*?)) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """``text`` with new tables between its marks and `<!-- end -->`.

    The marks are `<!-- counts -->`, `<!-- diagnoses -->`, `<!-- rerun: ID --only … -->`, and `<!-- rerun: rest -->` for
    the cells that no other mark shows.
    """
    marks = [found for found in BLOCK.finditer(text) if found[3] not in (None, "rest")]
    shown = {id(cell) for found in marks for cell in selected(found[3], found[4])[0].cells}

    def made(found: re.Match[str]) -> str:
        if found[3] is None:
            return counts() if found[2] == "counts" else diagnoses()
        return rest(shown) if found[3] == "rest" else reruns(*selected(found[3], found[4]))

    return BLOCK.sub(lambda found: f"{found[1]}\n{made(found)}\n{found[5]}", text)


def selected(table: str, options: str) -> tuple[PaperTable, str | None]:
    """The cells and the precision that the options of a mark choose."""
    given = re.findall(r"--(only|precision) (?:'([^']*)'|(\S+))", options)
    words = [quoted or plain for name, quoted, plain in given if name == "only"]
    return load_table(table).only(*words), next((plain for name, _, plain in given if name == "precision"), None)


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
    return "".join("| " + " | ".join(re.sub(r"([|*])", r"\\\1", cell) for cell in line) + " |\n" for line in lines)


def counts() -> str:
    """How many cells of each table were rerun, and how they compare."""
    found = count_all()
    rows = [(f"{PAPERS[load_table(id).paper]}, {load_table(id).number}", one) for id, one in found.items()]
    rows.append(("all", reduce(add, found.values())))
    head = ("table", "published", "can run", "rerun", "with the paper's seeds", "|z| ≤ 2", "others with an experiment")
    return markdown(head, ((name, *count_texts(one)) for name, one in rows))


def count_texts(one: Counts) -> Iterator[str]:
    yield from map(str, (one.published, one.runnable, one.rerun, one.with_all_seeds))
    yield f"{one.within} of {one.judged}" if one.judged else ""
    outside = one.judged - one.within
    yield f"{one.diagnosed} of {outside}" if outside else ""


def diagnoses() -> str:
    """The files of experiments on why cells differ, and what they found."""
    rows = []
    for one in (one for paper in PAPERS for one in load_reruns(paper).diagnoses):
        cells = (
            "; ".join(f"{id}, {' × '.join(words)}" for id, *words in one["cells"])
            .replace(",", ", ")
            .replace(",  ", ", ")
        )
        rows.append((f"`{Path(one['sweep']).name}`", cells, one["finding"] or "not run yet"))
    return markdown(("file", "cells", "found"), rows)


def reruns(table: PaperTable, precision: str | None = None, without: Container[int] = ()) -> str:
    """The cells that were rerun, each with its z, and whether an experiment looks into a large one."""
    compared = [one for one in rerun_cells(table, precision) if one.mean is not None and id(one.cell) not in without]
    blocks = len({one.cell.block for one in compared}) > 1
    rows = []
    for one in compared:
        cell, digits = one.cell, one.cell.published.digits
        spread = "" if one.spread is None else f" ± {one.spread:.{digits}f}"
        why = "" if one.z is None or abs(one.z) <= 2 else "yes" if find_diagnosis(table, cell) else "no"
        z = "" if one.z is None else f"{one.z:+.1f}".replace("-", "−")
        row = [cell.row, cell.column, f"{one.mean:.{digits}f}{spread}", str(cell.published), z, str(one.seeds), why]
        rows.append([cell.block] * blocks + row)
    head = [*["data"] * blocks, "method", "setting", "rerun", "published", "z", "seeds", "experiment on why"]
    c = count_cells(table, compared)
    seeds = f"{c.rerun} of {c.published} cells, {c.with_all_seeds} with the paper's seeds"
    return markdown(head, rows) + f"\n{seeds}; {c.within} of {c.judged} within |z| ≤ 2.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", help="Folders of results.")
    parser.add_argument("--note", default="", help="How the runs were made, for the session's entry.")
    given = parser.parse_args()
    results = {key: result for folder in given.results for key, result in read_results(folder).items()}
    for paper in PAPERS if results else ():
        path = RERUNS / f"{paper}.json"
        empty: Json = {"made_by": [], "rows": [], "diagnoses": []}
        content = json.loads(path.read_text("utf-8")) if path.exists() else empty
        if grown := add_results(content, paper, results, given.note):
            write(path, content)
            print("\n".join(grown))
    load_reruns.cache_clear()
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
