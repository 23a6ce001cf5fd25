"""Figures as plotly's JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from noiseproof.analysis.page import marks
from noiseproof.analysis.page.marks import GREY, GRIDS, VIRIDIS, Series, Styles, is_number, text

if TYPE_CHECKING:
    from noiseproof.analysis.figures import Figure

LEVELS = 20  # of a contour
DASH = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOL = ("circle", "square", "diamond", "cross", "triangle-up")

Take = Callable[..., Any]
Json = dict[str, Any]


def take(one: Series, column: str, minus: str | None = None) -> list[Any]:
    """A column of a series, minus another one; None for what is not finite."""
    if not is_number(one.rows[column]):
        return [escape(text(value)) for value in one.rows[column]]
    numbers = one.rows[column] if minus is None else one.rows[column] - one.rows[minus]
    return [value if math.isfinite(value) else None for value in numbers.tolist()]


def take_grid(one: Series, along: str) -> list[Any]:
    """The x, y or z of a grid."""
    xs, ys, z = marks.grid(one)
    if along == "z":
        return [[value if math.isfinite(value) else None for value in row] for row in z]
    return [escape(value) if isinstance(value, str) else value for value in (xs if along == "x" else ys)]


def escape(name: str) -> str:
    """Text that plotly shows verbatim: it takes <b> and <a> for markup.

    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_plotly(figure: Figure, styles: Styles | None = None, *, take: Take = take, take_grid: Take = take_grid) -> Json:
    """A figure as plotly's JSON: ``plotly.graph_objects.Figure(to_plotly(figure))``.

    ``styles`` are the colours of a page (``marks.palette``); ``take`` and ``take_grid`` return columns.
    """
    drawn = marks.series(figure, styles)
    span = marks.z_range(drawn)
    traces: list[Json] = []
    named: set[str] = set()
    for one in drawn:
        number = _suffix(one.panel)
        surface = one.layer.kind == "surface"
        place = {"scene": f"scene{number}"} if surface else {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        place |= {"meta": {"panel": one.panel, "keys": [list(key) for key in one.keys]}}  # type: ignore[dict-item]
        if span is not None and one.layer.kind in GRIDS:
            traces.append(_grid_trace(one, span, take_grid) | place)
            continue
        place |= {"name": escape(one.name), "legendgroup": escape(one.name)}
        traces += [place | trace for trace in _traces(figure, one, take)]
        traces[-1]["showlegend"] = bool(one.name) and one.name not in named
        named.add(one.name)
    return {"data": traces, "layout": _layout(figure, drawn, span, len(named) + (span is not None) > 1)}


def _suffix(panel: int) -> str:
    return str(panel + 1) if panel else ""


def _traces(figure: Figure, one: Series, take: Take) -> list[Json]:
    """A series as traces; the last one is in the legend."""
    layer, color = one.layer, one.color.light
    xy = {"x": take(one, layer.x), "y": take(one, layer.y)}
    line = {"color": color, "dash": DASH[one.dash], "width": 2}
    spread = {}
    if layer.low and layer.high and layer.kind in ("points", "bars"):
        sizes = {"array": take(one, layer.high, layer.y), "arrayminus": take(one, layer.y, layer.low)}
        ink = GREY.light if layer.kind == "bars" else color
        spread = {"error_y": {"type": "data", "symmetric": False, "thickness": 1.5, "color": ink, **sizes}}
    if layer.kind == "bars":
        overlaid = is_number(one.rows[layer.x]) and not figure.stack
        return [{"type": "bar", "marker": {"color": color}, "opacity": 0.6 if overlaid else 1.0, **xy, **spread}]
    if layer.kind == "points":
        size = 9 if len(one.rows) < 50 else 6 if len(one.rows) < 1000 else 4
        marker = {"color": color, "symbol": SYMBOL[one.dash], "size": size, "opacity": 0.85}
        if any(other.kind in GRIDS for other in figure.layers):
            marker["line"] = {"color": "white", "width": 0.8}  # to stand out from the colours of the grid
        return [{"type": "scatter", "mode": "markers", "marker": marker, **xy, **spread}]
    trace: Json = {"type": "scatter", "mode": "lines", "line": line, **xy}
    if layer.kind == "area":
        fill = {"stackgroup": str(one.panel)} if figure.stack else {"fill": "tozeroy"}
        return [trace | fill | {"fillcolor": f"{color}{'cc' if figure.stack else '40'}"}]
    if len(one.rows) <= marks.FEW:
        trace |= {"mode": "lines+markers", "marker": {"color": color, "symbol": SYMBOL[one.dash], "size": 7}}
    band = []
    if layer.low and layer.high:
        bare = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        band = [
            bare | {"x": take(one, layer.x), "y": take(one, layer.low)},
            bare | {"x": take(one, layer.x), "y": take(one, layer.high), "fill": "tonexty", "fillcolor": f"{color}33"},
        ]
    return [*band, trace]


def _grid_trace(one: Series, span: tuple[float, float], take_grid: Take) -> Json:
    kind = {"heat": "heatmap"}.get(one.layer.kind, one.layer.kind)
    trace = {"type": kind, "coloraxis": "coloraxis", **{along: take_grid(one, along) for along in "xyz"}}
    if kind == "contour":
        step = (span[1] - span[0]) / LEVELS or 1.0
        trace |= {
            "contours": {"start": span[0] + step, "end": span[1] - step / 2, "size": step},
            "line": {"width": 0.5},
        }
    if kind == "heatmap" and len(one.rows) <= marks.CELLS:
        trace["texttemplate"] = "%{z:.3~g}"
    return trace


def _layout(figure: Figure, drawn: Sequence[Series], span: tuple[float, float] | None, named: bool) -> Json:
    titles = marks.panels(figure)
    rows, columns = marks.shape(len(titles))
    bars_over = any(one.layer.kind == "bars" and is_number(one.rows[one.layer.x]) for one in drawn)
    layout: Json = {
        "grid": {"rows": rows, "columns": columns, "pattern": "independent", "xgap": 0.2, "ygap": 0.3},
        "height": 120 + 300 * rows,
        "barmode": "stack" if figure.stack else "overlay" if bars_over else "group",
        "bargap": 0.02 if bars_over else 0.2,
        "hovermode": "closest",
        "showlegend": named,
        "margin": {"l": 60, "r": 20, "t": 32, "b": 50},
        "annotations": [],
    }
    for panel, title in enumerate(titles):
        number, inside = _suffix(panel), [one for one in drawn if one.panel == panel]
        if any(one.layer.kind == "surface" for one in inside):
            domain = {"row": panel // columns, "column": panel % columns}
            layout[f"scene{number}"] = {"domain": domain, **_scene(figure, inside, span)}
            continue
        layout |= _axes(figure, inside, panel, panel % columns == 0)
        if title:
            at = {"xref": f"x{number} domain", "yref": f"y{number} domain", "x": 0.5, "y": 1, "yanchor": "bottom"}
            layout["annotations"].append({"text": escape(title), "showarrow": False, **at})
    if span is not None:
        steps = [[n / (len(VIRIDIS) - 1), color] for n, color in enumerate(VIRIDIS)]
        bar = {"title": {"text": escape(marks.z_label(drawn)), "side": "right"}, "thickness": 12}
        layout["legend"] = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}  # the colour bar has its usual place
        layout["coloraxis"] = {"cmin": span[0], "cmax": span[1], "colorscale": steps, "colorbar": bar}
    return layout


def _scene(figure: Figure, inside: Sequence[Series], span: tuple[float, float] | None) -> Json:
    labels = {"x": figure.x_label, "y": figure.y_label, "z": marks.z_label(inside)}
    scene: Json = {f"{a}axis": {"title": {"text": escape(t), "font": {"size": 11}}} for a, t in labels.items()}
    if span is not None and figure.share_y:
        scene["zaxis"]["range"] = list(span)  # steep and flat surfaces look so side by side
    return scene | {"camera": {"eye": {"x": 1.9, "y": 1.9, "z": 1.2}}}


def _axes(figure: Figure, inside: Sequence[Series], panel: int, first: bool) -> Json:
    """The two axes of a panel; ``first`` is the one at the left of a row."""
    number = _suffix(panel)
    x, y = _axis(inside, "x", figure.log_x), _axis(inside, "y", figure.log_y)
    x |= {"anchor": f"y{number}", "title": {"text": escape(figure.x_label), "standoff": 8}}
    y |= {"anchor": f"x{number}"}
    if first or not figure.share_y:
        y["title"] = {"text": escape(figure.y_label), "standoff": 8}
    if panel and figure.share_y and not figure.equal and y["type"] != "category":
        y["matches"] = "y"
    if figure.equal:
        x["constrain"] = "domain"
        y |= {"scaleanchor": f"x{number}", "constrain": "domain"}
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def _axis(inside: Sequence[Series], along: str, log: bool) -> Json:
    names = marks.axis_names(inside, along)
    if not names:
        return {"type": "log" if log else "linear", "exponentformat": "power"}
    axis: Json = {"type": "category", "categoryorder": "array", "categoryarray": list(map(escape, names))}
    if along == "y" and any(one.layer.kind == "heat" for one in inside):
        axis["autorange"] = "reversed"  # a matrix is read from its top
    return axis
