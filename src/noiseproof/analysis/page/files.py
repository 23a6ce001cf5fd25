"""Figures as files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noiseproof.analysis.figures import Figure, MissingFigure
from noiseproof.analysis.page.drawing import to_matplotlib
from noiseproof.analysis.page.html import make_page, to_csv
from noiseproof.analysis.page.marks import Styles, palette
from noiseproof.core.tablefiles import safe_table

ENDINGS = (".html", ".png", ".pdf", ".csv")


def save(figures: Sequence[Figure | MissingFigure], path: str | Path, **page: Any) -> list[Path]:
    """Write figures in the format of the path's ending and return the files.

    .html is one page, with the options ``page`` of :func:`make_page`, and .pdf one file with a
    sheet per figure; .png and .csv are one file per figure, named after it if there are several.
    Figures without data are named on the page and left out elsewhere.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"Expected a file that ends in {', '.join(ENDINGS)}, got {path}.")
    if ending == ".html":
        return [_write(path, make_page(figures, **page).encode())]
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    if not drawn:
        message = "Expected a figure that has its data, got none"
        lacking = [
            f"{one.name} needs {one.needs}" for one in figures if isinstance(one, MissingFigure)
        ]
        if lacking:
            message += f": {'; '.join(lacking)}"
        raise ValueError(f"{message}.")
    styles = palette(drawn)
    if ending == ".pdf":
        return [_write(path, _pdf(drawn, styles))]
    written = []
    for figure in drawn:
        place = path
        if len(drawn) > 1:
            place = path.with_name(f"{path.stem}-{figure.name}{path.suffix}")
        if ending == ".csv":
            content = to_csv(safe_table(figure.data)).encode()
        else:
            content = _png(figure, styles)
        written.append(_write(place, content))
    return written


def _png(figure: Figure, styles: Styles) -> bytes:
    content = io.BytesIO()
    to_matplotlib(figure, styles).savefig(
        content, format="png", dpi=200, metadata={"Software": None}
    )
    return content.getvalue()


def _pdf(figures: Sequence[Figure], styles: Styles) -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages

    content = io.BytesIO()
    # no date: the same data, the same file
    with PdfPages(content, metadata={"CreationDate": None}) as sheets:
        for figure in figures:
            sheets.savefig(to_matplotlib(figure, styles))
    return content.getvalue()


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
