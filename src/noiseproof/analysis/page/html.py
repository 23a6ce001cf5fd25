"""One offline HTML page of figures: interactive plots, how to read them, and their data."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from noiseproof.analysis.figures import Figure, MissingFigure
from noiseproof.analysis.page.marks import COLORS, GREY, Entry, Series, Styles, is_number, legend, palette, series, text
from noiseproof.analysis.page.plotly import to_plotly
from noiseproof.analysis.page.shell import pack, render
from noiseproof.papers import PAPERS, get_paper

LARGEST = 6_000_000  # bytes of a page
DIGITS = 6  # of the numbers on a page that is too large with all of them
STROKES = ("none", "6 4", "2 3", "7 3 2 3", "11 3")


def make_page(
    figures: Sequence[Figure | MissingFigure],
    *,
    title: str = "What the loss did",
    intro: str = "",
    runs: Sequence[Mapping[str, Any]] = (),
) -> str:
    """A page that needs no network, under 6 MB; the same figures give the same page, byte for byte.

    ``runs`` are the rows of the table at its top. If the page is too large, numbers keep six digits; if it still is,
    the largest figures are left out and named.
    """
    ids = [identifier(figure.name) for figure in figures]
    if repeated := {name for name in ids if [*ids, "content"].count(name) > 1}:  # content is an id of the shell
        raise ValueError(f"Expected figures with unique names, got several of {', '.join(sorted(repeated))}.")
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    styles = palette(drawn)
    code = _plotly()
    packed = {figure.name: _pack(figure, styles) for figure in drawn}
    limit = LARGEST - len(code[1]) - 500_000  # for everything else
    notes = {}
    if sum(map(len, packed.values())) > limit:
        packed = {figure.name: _pack(figure, styles, DIGITS) for figure in drawn}
        notes = dict.fromkeys(packed, f"Numbers are kept to {DIGITS} digits; --format csv has all of them.")
    while sum(map(len, packed.values())) > limit:
        del packed[max(packed, key=lambda name: len(packed[name]))]
    stages: dict[str, list[dict[str, Any]]] = {}
    for figure, name in zip(figures, ids, strict=True):
        item: dict[str, Any] = {"id": name, "title": figure.title, "paper": figure.paper, "missing": True}
        if isinstance(figure, MissingFigure):
            item["needs"] = _code(figure.needs)
        elif figure.name not in packed:
            item["needs"] = _code(f"a separate page (`--only {figure.name}`): with it this one is larger than 6 MB")
        else:
            item |= {
                "missing": False, "reading": figure.reading, "legend": [_swatch(e) for e in legend(figure, styles)],
                "packed": packed[figure.name], "height": 300, "note": notes.get(figure.name, ""),
            }  # fmt: skip
        stages.setdefault(figure.stage, []).append(item)
    mentioned = " ".join(figure.paper for figure in figures)
    cited = [name for name, words in PAPERS.items() if words in mentioned]
    return render(
        "page.html.j2",
        scripts=("page.js",),
        later=(code[0],),
        title=title,
        intro=intro,
        runs=_table(runs),
        stages=[{"name": name, "entries": items} for name, items in stages.items()],
        shared=_shared(drawn, styles),
        papers=[(PAPERS[name].removesuffix(" paper"), get_paper(name).citation) for name in cited],
        plotly=code[1],
    )


def _code(words: str) -> list[tuple[bool, str]]:
    """Text with `commands` in it as pairs (is a command, text); a command alone needs no backticks."""
    words = f"`{words}`" if words.startswith(("noiseproof ", "--")) else words
    return [(n % 2 == 1, part) for n, part in enumerate(words.split("`"))]


def identifier(name: str) -> str:
    """A name as an id and a file name.

    >>> identifier("loss weights: <b>")
    'loss-weights-b'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-").lower()


def to_csv(data: pd.DataFrame, digits: int | None = None) -> str:
    """A figure's data as CSV, with all digits or with ``digits`` of them."""
    return data.to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g" if digits else None)


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """plotly.js, as it is and packed."""
    from plotly.offline import get_plotlyjs

    code: str = get_plotlyjs()
    return code, pack(code)


def _pack(figure: Figure, styles: Styles, digits: int | None = None) -> str:
    """A figure's CSV and its plot, with names of columns in place of arrays, so that the data is stored once."""
    table = to_csv(figure.data, digits)
    header, *cells = csv.reader(io.StringIO(table))

    def where(one: Series) -> dict[str, str]:
        first = cells[one.rows.index[0]]
        return {column: first[header.index(column)] for column, _ in one.keys if column}

    def take(one: Series, column: str, minus: str | None = None) -> dict[str, Any]:
        return {"$column": column, "minus": minus, "where": where(one)}

    def take_grid(one: Series, along: str) -> dict[str, Any]:
        return {"$grid": along, "of": [one.layer.x, one.layer.y, one.layer.z], "where": where(one)}

    plot = to_plotly(figure, styles, take=take, take_grid=take_grid)
    plot["dark"] = {
        color.light: color.dark for color in sorted({style.color for style in styles.values()} | {*COLORS, GREY})
    }
    numbers = [column for column in header if is_number(figure.data[column])]
    content = {"csv": table, "numbers": numbers, "plot": plot}
    return pack(json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")))


def _shared(figures: Sequence[Figure], styles: Styles) -> list[tuple[str, list[dict[str, Any]]]]:
    """Switches, by column, for entries of a legend that other figures show too, if only in panels."""
    entries: dict[str, dict[str, Entry]] = {}
    uses: Counter[str] = Counter()  # number of figures
    for figure in figures:
        uses.update({column for one in series(figure, styles) for column, _ in one.keys})
        for entry in legend(figure, styles):
            if entry.column and not is_number(figure.data[entry.column]):
                entries.setdefault(entry.column, {}).setdefault(entry.value, entry)
    return [(column, [_swatch(e) for e in of.values()]) for column, of in entries.items() if uses[column] > 1]


def _swatch(entry: Entry) -> dict[str, Any]:
    color = entry.color or GREY
    return {
        "column": entry.column, "value": entry.value, "line": entry.line, "strokes": STROKES[entry.dash],
        "css": f"light-dark({color.light}, {color.dark})",
    }  # fmt: skip


def _table(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    columns = list(dict.fromkeys(name for run in runs for name in run))
    numbers = {name for name in columns if all(isinstance(run.get(name, 0), int | float) for run in runs)}
    return {
        "columns": [{"name": name.replace("_", " "), "number": name in numbers} for name in columns],
        "rows": [[text(run.get(name, "")) for name in columns] for run in runs],
    } if runs else None  # fmt: skip
