"""Figures as plotly's JSON, and as files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.analysis.figure import Figure, Missing
from noiseproof.analysis.marks import (
    CELLS,
    FEW,
    GREY,
    GRIDS,
    VIRIDIS,
    Series,
    Style,
    grid,
    is_number,
    palette,
    panels,
    series,
    shape,
    text,
    values,
    z_range,
)
from noiseproof.analysis.paper import to_matplotlib

__all__ = ["save", "to_csv", "to_matplotlib", "to_plotly"]

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".html", ".png", ".pdf", ".csv")
LEVELS = 20  # of a contour
DASH = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOL = ("circle", "square", "diamond", "cross", "triangle-up")

Take = Callable[..., Any]


def to_csv(data: pd.DataFrame, digits: int | None = None) -> str:
    """A figure's data as CSV, whole or to so many digits."""
    return data.to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g" if digits else None)


def save(figures: Sequence[Figure | Missing], path: str | Path, **page: Any) -> list[Path]:
    """Write figures as the path's ending says and return what was written.

    .html is one page, .pdf one file with a sheet for each figure; .png and .csv are a file for each, named after the
    figure where there are several. Figures that miss their data are told of on the page and left out elsewhere.
    """
    from noiseproof.analysis.page import make_page

    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"Expected a file that ends in {', '.join(ENDINGS)}, got {path}.")
    if path.suffix.lower() == ".html":
        return [_write(path, make_page(figures, **page).encode())]
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    if not drawn:
        needs = "; ".join(
            f"{missing.name} needs {missing.needs}" for missing in figures if isinstance(missing, Missing)
        )
        raise ValueError(f"Expected a figure that has its data, got none{': ' + needs if needs else ''}.")
    styles = palette(drawn)
    if path.suffix.lower() == ".pdf":
        return [_write(path, _pdf(drawn, styles))]
    written = []
    for figure in drawn:
        own = path if len(drawn) == 1 else path.with_name(f"{path.stem}-{figure.name}{path.suffix}")
        if path.suffix.lower() == ".csv":
            written.append(_write(own, to_csv(figure.data).encode()))
        else:
            content = io.BytesIO()
            to_matplotlib(figure, styles).savefig(content, format="png", dpi=200, metadata={"Software": None})
            written.append(_write(own, content.getvalue()))
    return written


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _pdf(figures: Sequence[Figure], styles: Mapping[tuple[str, str], Style]) -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages

    content = io.BytesIO()
    with PdfPages(content, metadata={"CreationDate": None}) as sheets:  # no date: the same data, the same file
        for figure in figures:
            sheets.savefig(to_matplotlib(figure, styles))
    return content.getvalue()


def take(one: Series, column: str, minus: str | None = None) -> list[Any]:
    """A column of a series, less another one; None where there is no number."""
    if not is_number(one.rows[column]):
        return [escape(text(value)) for value in one.rows[column]]
    found = one.rows[column] if minus is None else one.rows[column] - one.rows[minus]
    return [value if math.isfinite(value) else None for value in found.tolist()]


def take_grid(one: Series, along: str) -> list[Any]:
    """The x, y or z of a grid."""
    xs, ys, z = grid(one)
    if along == "z":
        return [[value if math.isfinite(value) else None for value in row] for row in z]
    return [escape(value) if isinstance(value, str) else value for value in (xs if along == "x" else ys)]


def escape(name: str) -> str:
    """Text that plotly shows as it is: to it, <b> and <a> are markup.

    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_plotly(
    figure: Figure,
    styles: Mapping[tuple[str, str], Style] | None = None,
    *,
    take: Take = take,
    take_grid: Take = take_grid,
) -> dict[str, Any]:
    """A figure as plotly's JSON: ``plotly.graph_objects.Figure(to_plotly(figure))``.

    ``styles`` are the colours of a whole page (``marks.palette``); ``take`` and ``take_grid`` fetch columns.
    """
    marks = series(figure, styles)
    span = z_range(marks)
    traces: list[dict[str, Any]] = []
    named: set[str] = set()
    for one in marks:
        place = _place(one)
        group = {
            "name": escape(one.name),
            "legendgroup": escape(one.name),
            "meta": {"panel": one.panel, "keys": [list(key) for key in one.keys]},
        }
        if one.layer.kind in GRIDS:
            assert span is not None
            traces.append(_grid_trace(one, span, take_grid) | place | {"meta": group["meta"]})
            continue
        shown = bool(one.name) and one.name not in named
        named.add(one.name)
        traces += [place | group | trace for trace in _traces(figure, one, take)]
        traces[-1]["showlegend"] = shown
    return {"data": traces, "layout": _layout(figure, marks, span, len(named) + (span is not None) > 1)}


def _place(one: Series) -> dict[str, str]:
    number = str(one.panel + 1) if one.panel else ""
    deep = one.layer.kind == "surface"
    return {"scene": f"scene{number}"} if deep else {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def _traces(figure: Figure, one: Series, take: Take) -> list[dict[str, Any]]:
    """A series as traces, the one that speaks for it last."""
    layer, color = one.layer, one.color.light
    xy = {"x": take(one, layer.x), "y": take(one, layer.y)}
    line = {"color": color, "dash": DASH[one.dash], "width": 2}
    spread = {}
    if layer.low and layer.high and layer.kind in ("points", "bars"):
        sizes = {"array": take(one, layer.high, layer.y), "arrayminus": take(one, layer.y, layer.low)}
        ink = GREY.light if layer.kind == "bars" else color
        spread = {"error_y": {"type": "data", "symmetric": False, "thickness": 1.5, "color": ink, **sizes}}
    if layer.kind == "bars":
        over = is_number(one.rows[layer.x]) and not figure.stack
        return [{"type": "bar", "marker": {"color": color}, "opacity": 0.6 if over else 1.0, **xy, **spread}]
    if layer.kind == "points":
        size = 9 if len(one.rows) < 50 else 6 if len(one.rows) < 1000 else 4
        marker = {"color": color, "symbol": SYMBOL[one.dash], "size": size, "opacity": 0.85}
        if any(other.kind in GRIDS for other in figure.layers):
            marker["line"] = {"color": "white", "width": 0.8}  # else lost on the grid's colours
        return [{"type": "scatter", "mode": "markers", "marker": marker, **xy, **spread}]
    trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "line": line, **xy}
    if layer.kind == "area":
        fill = {"stackgroup": str(one.panel)} if figure.stack else {"fill": "tozeroy"}
        return [trace | fill | {"fillcolor": f"{color}{'cc' if figure.stack else '40'}"}]
    if len(one.rows) <= FEW:
        trace |= {"mode": "lines+markers", "marker": {"color": color, "symbol": SYMBOL[one.dash], "size": 7}}
    band = []
    if layer.low and layer.high:
        bare = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        band = [
            bare | {"x": take(one, layer.x), "y": take(one, layer.low)},
            bare | {"x": take(one, layer.x), "y": take(one, layer.high), "fill": "tonexty", "fillcolor": f"{color}33"},
        ]
    return [*band, trace]


def _grid_trace(one: Series, span: tuple[float, float], take_grid: Take) -> dict[str, Any]:
    kind = {"heat": "heatmap"}.get(one.layer.kind, one.layer.kind)
    trace = {"type": kind, "coloraxis": "coloraxis", **{along: take_grid(one, along) for along in "xyz"}}
    if kind == "contour":
        step = (span[1] - span[0]) / LEVELS or 1.0
        trace |= {
            "contours": {"start": span[0] + step, "end": span[1] - step / 2, "size": step},
            "line": {"width": 0.5},
        }
    if kind == "heatmap" and len(one.rows) <= CELLS:
        trace["texttemplate"] = "%{z:.3~g}"
    return trace


def _layout(figure: Figure, marks: Sequence[Series], span: tuple[float, float] | None, named: bool) -> dict[str, Any]:
    names = panels(figure)
    rows, columns = shape(len(names))
    bars_over = any(s.layer.kind == "bars" and is_number(s.rows[s.layer.x]) for s in marks)
    layout: dict[str, Any] = {
        "grid": {"rows": rows, "columns": columns, "pattern": "independent", "xgap": 0.2, "ygap": 0.3},
        "height": 120 + 300 * rows,
        "barmode": "stack" if figure.stack else "overlay" if bars_over else "group",
        "bargap": 0.02 if bars_over else 0.2,
        "hovermode": "closest",
        "showlegend": named,
        "margin": {"l": 60, "r": 20, "t": 32, "b": 50},
        "annotations": [],
    }
    flat = {"x": figure.x_label, "y": figure.y_label}
    for n, name in enumerate(names):
        number = str(n + 1) if n else ""
        here = [one for one in marks if one.panel == n]
        if any(one.layer.kind == "surface" for one in here):
            deep = {"z": next(one.layer.label or one.layer.z or "" for one in here if one.layer.kind == "surface")}
            small = {"font": {"size": 11}}
            titles: dict[str, Any] = {
                f"{along}axis": {"title": {"text": escape(t), **small}} for along, t in (flat | deep).items()
            }
            if span is not None and figure.share_y:
                titles["zaxis"]["range"] = list(span)  # steep and flat ones look it side by side
            place = {"domain": {"row": n // columns, "column": n % columns}}
            layout[f"scene{number}"] = place | titles | {"camera": {"eye": {"x": 1.9, "y": 1.9, "z": 1.2}}}
            continue
        for along, log in (("x", figure.log_x), ("y", figure.log_y)):
            layout[f"{along}axis{number}"] = _axis(here, along, log) | {
                "anchor": f"{'y' if along == 'x' else 'x'}{number}",
                "title": {"text": escape(flat[along]), "standoff": 8},
            }
        below = layout[f"yaxis{number}"]
        if n and figure.share_y and not figure.equal and below["type"] != "category":
            below["matches"] = "y"
        if n % columns and figure.share_y:
            del below["title"]
        if figure.equal:
            below |= {"scaleanchor": f"x{number}", "constrain": "domain"}
            layout[f"xaxis{number}"]["constrain"] = "domain"
        if name:
            at = {"xref": f"x{number} domain", "yref": f"y{number} domain", "x": 0.5, "y": 1, "yanchor": "bottom"}
            layout["annotations"].append({"text": escape(name), "showarrow": False, **at})
    if span is not None:
        label = next(one.layer.label or one.layer.z or "" for one in marks if one.layer.z)
        steps = [[n / (len(VIRIDIS) - 1), color] for n, color in enumerate(VIRIDIS)]
        bar = {"title": {"text": escape(label), "side": "right"}, "thickness": 12}
        layout["legend"] = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}  # the colour bar has its usual place
        layout["coloraxis"] = {"cmin": span[0], "cmax": span[1], "colorscale": steps, "colorbar": bar}
    return layout


def _axis(marks: Sequence[Series], along: str, log: bool) -> dict[str, Any]:
    columns = [one.rows[getattr(one.layer, along)] for one in marks]
    if not columns or all(map(is_number, columns)):
        return {"type": "log" if log else "linear", "exponentformat": "power"}
    names = list(dict.fromkeys(escape(text(value)) for column in columns for value in values(column)))
    down = along == "y" and any(one.layer.kind == "heat" for one in marks)  # a matrix is read from its top
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names,
        **({"autorange": "reversed"} if down else {}),
    }
