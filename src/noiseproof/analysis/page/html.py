"""One offline HTML page of figures: drawn, with a sentence on how to read each, and their data."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from noiseproof.analysis.figures import Figure, MissingFigure
from noiseproof.analysis.page.drawing import to_matplotlib, to_svg
from noiseproof.analysis.page.marks import Styles, is_number, palette, text
from noiseproof.analysis.page.shell import render
from noiseproof.papers import PAPERS, get_paper

PIXELS = 120  # of the page, for an inch of a figure


def make_page(
    figures: Sequence[Figure | MissingFigure],
    *,
    title: str = "What the loss did",
    runs: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return a page that needs no network; the same figures give the same page, byte for byte.

    Args:
        figures: in the order of the page.
        title: of the page.
        runs: rows of the table at its top, each a value by column.
    """
    styles = palette([figure for figure in figures if isinstance(figure, Figure)])
    stages: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        entry = {"id": identifier(figure.name), "title": figure.title, "paper": figure.paper}
        if isinstance(figure, MissingFigure):
            content = {"needs": _code(figure.needs), "picture": None}
        else:
            content = _drawn(figure, styles)
        stages.setdefault(figure.stage, []).append(entry | content)
    mentioned = " ".join(figure.paper for figure in figures)
    cited = [name for name, words in PAPERS.items() if words in mentioned]
    return render(
        "page.html.j2",
        scripts=(),
        title=title,
        runs=_table(runs),
        stages=[{"name": name, "entries": entries} for name, entries in stages.items()],
        papers=[(PAPERS[name].removesuffix(" paper"), get_paper(name).citation) for name in cited],
    )


def _drawn(figure: Figure, styles: Styles) -> dict[str, Any]:
    """Return how to read a figure, its picture with the width in pixels, and its data."""
    canvas = to_matplotlib(figure, styles)
    width = round(PIXELS * canvas.get_size_inches()[0])
    picture = {"source": _embed(to_svg(canvas, figure.name), "image/svg+xml"), "width": width}
    data = _embed(to_csv(figure.data).encode(), "text/csv")
    return {"reading": figure.reading, "picture": picture, "data": data}


def _embed(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _code(words: str) -> list[tuple[bool, str]]:
    """Return text with `commands` in it as pairs (is a command, text); a command alone needs no
    backticks.
    """
    words = f"`{words}`" if words.startswith(("noiseproof ", "--")) else words
    return [(n % 2 == 1, part) for n, part in enumerate(words.split("`"))]


def identifier(name: str) -> str:
    """Return a name as an id and a file name.

    >>> identifier("loss weights: <b>")
    'loss-weights-b'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-").lower()


def to_csv(data: pd.DataFrame) -> str:
    """Return a figure's data as CSV, with all digits."""
    return data.to_csv(index=False, lineterminator="\n")


def _table(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not runs:
        return None
    table = pd.DataFrame(runs)
    names = [str(name) for name in table]
    columns = [{"name": name.replace("_", " "), "number": is_number(table[name])} for name in names]
    rows = [[text(run.get(name, "")) for name in names] for run in runs]
    return {"columns": columns, "rows": rows}
