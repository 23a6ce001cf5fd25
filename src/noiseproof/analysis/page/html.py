"""One offline HTML page of figures: drawn, with a sentence on how to read each, and their data."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from noiseproof.analysis.figures import Figure, MissingFigure
from noiseproof.analysis.page.marks import Styles, palette, text
from noiseproof.analysis.page.paper import to_matplotlib, to_svg
from noiseproof.analysis.page.shell import pack, render
from noiseproof.papers import PAPERS, get_paper

LARGEST = 6_000_000  # bytes of a page
PIXELS = 120  # of the page, for an inch of a figure


def make_page(
    figures: Sequence[Figure | MissingFigure],
    *,
    title: str = "What the loss did",
    intro: str = "",
    runs: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return a page that needs no network; the same figures give the same page, byte for byte.

    A page over 6 MB leaves out the data of the largest figures, and says so.

    Args:
        figures: in the order of the page.
        title: of the page.
        intro: a paragraph at its top.
        runs: rows of the table below it, each a value by column.
    """
    ids = [identifier(figure.name) for figure in figures]
    # content is an id of the shell
    repeated = {name for name in ids if [*ids, "content"].count(name) > 1}
    if repeated:
        raise ValueError(
            f"Expected figures with unique names, got several of {', '.join(sorted(repeated))}."
        )
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    styles = palette(drawn)
    pictures = {figure.name: _picture(figure, styles) for figure in drawn}
    data = {figure.name: pack(to_csv(figure.data)) for figure in drawn}
    left = LARGEST - 100_000 - sum(len(picture["source"]) for picture in pictures.values())
    while data and sum(map(len, data.values())) > left:
        del data[max(data, key=lambda name: len(data[name]))]
    stages: dict[str, list[dict[str, Any]]] = {}
    for figure, name in zip(figures, ids, strict=True):
        item: dict[str, Any] = {
            "id": name,
            "title": figure.title,
            "paper": figure.paper,
            "picture": None,
        }
        if isinstance(figure, MissingFigure):
            item["needs"] = _code(figure.needs)
        else:
            item["reading"] = figure.reading
            item["picture"] = pictures[figure.name]
            item["data"] = data.get(figure.name)
        stages.setdefault(figure.stage, []).append(item)
    mentioned = " ".join(figure.paper for figure in figures)
    cited = [name for name, words in PAPERS.items() if words in mentioned]
    return render(
        "page.html.j2",
        scripts=("page.js",),
        title=title,
        intro=intro,
        runs=_table(runs),
        stages=[{"name": name, "entries": items} for name, items in stages.items()],
        papers=[(PAPERS[name].removesuffix(" paper"), get_paper(name).citation) for name in cited],
    )


def _picture(figure: Figure, styles: Styles) -> dict[str, Any]:
    """Return the source of a figure's picture, and its width in pixels."""
    canvas = to_matplotlib(figure, styles)
    content = base64.b64encode(to_svg(canvas, figure.name)).decode()
    width = canvas.get_size_inches()[0]
    return {"source": f"data:image/svg+xml;base64,{content}", "width": round(PIXELS * width)}


def _code(words: str) -> list[tuple[bool, str]]:
    """Text with `commands` in it as pairs (is a command, text); a command alone needs no
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
    columns = list(dict.fromkeys(name for run in runs for name in run))
    numbers = {
        name for name in columns if all(isinstance(run.get(name, 0), int | float) for run in runs)
    }
    return {
        "columns": [
            {"name": name.replace("_", " "), "number": name in numbers} for name in columns
        ],
        "rows": [[text(run.get(name, "")) for name in columns] for run in runs],
    }
