"""Figures drawn by matplotlib, for a page or a paper."""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from noiseproof.analysis.page.marks import (
    COLORS,
    GREY,
    GRIDS,
    SCALE,
    Style,
    Styles,
    is_number,
    palette,
    text,
    values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    from noiseproof.analysis.figures import Figure, Layer

LOOK: Any = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text stays text
    "image.cmap": SCALE,
}
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)))
MARKERS = ("o", "s", "D", "P", "^")
PER_ROW = 3  # panels side by side
FEW = 15  # points up to which a line has markers
CELLS = 150  # up to which a grid shows its numbers


@dataclass(frozen=True, eq=False)
class Mark:
    """The rows of a layer that are drawn as one: a line, a cloud of points, a grid."""

    layer: Layer
    rows: pd.DataFrame
    panel: int
    style: Style


def to_matplotlib(figure: Figure, styles: Styles | None = None) -> Canvas:
    """Return a figure for a paper: one column wide per panel, with readable fonts and no title.

    Args:
        figure: what to draw.
        styles: the colours of several figures (``marks.palette``), by default of this one.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    styles = palette([figure]) if styles is None else styles
    marks = list(_marks(figure, styles))
    titles = _panel_titles(figure)
    rows = math.ceil(len(titles) / PER_ROW)
    columns = math.ceil(len(titles) / rows)  # four panels are two by two
    span = _span(marks)
    with matplotlib.rc_context(LOOK):
        canvas = Canvas(figsize=(max(3.4 * columns, 4.2), 2.8 * rows))
        shared: Any = None  # the axes whose y axis the other panels have
        for n, title in enumerate(titles):
            inside = [one for one in marks if one.panel == n]
            surface = "surface" in {one.layer.kind for one in inside}
            ax: Any = canvas.add_subplot(
                rows, columns, n + 1, projection="3d" if surface else None, sharey=shared
            )
            if figure.share_y and not surface and shared is None:
                shared = ax
            panel = _Panel(ax, figure, inside, span)
            panel.draw()
            ax.set_title(_verbatim(title))
            ax.set_xlabel(_verbatim(figure.x_label))
            if n % columns == 0 or surface or not figure.share_y:
                ax.set_ylabel(_verbatim(figure.y_label))
            is_last = (n + 1) % columns == 0 or n + 1 == len(titles)
            if is_last:
                panel.explain(canvas)
        _add_legend(canvas, figure, marks, styles)
    return canvas


def to_svg(canvas: Canvas, name: str) -> bytes:
    """Return a drawn figure as SVG, the same every time; its ids are made of ``name``."""
    import matplotlib

    content = io.BytesIO()
    # Text stays text, so that characters which matplotlib's own font lacks are shown by the
    # reader's fonts.
    with (
        matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _panel_titles(figure: Figure) -> list[str]:
    """Return the title of each panel; a number has the name of its column before it."""
    if figure.panel is None:
        return [""]
    column = figure.data[figure.panel]
    prefix = f"{figure.panel.replace('_', ' ')} = " if is_number(column) else ""
    return [prefix + text(value) for value in values(column)] or [""]


def _marks(figure: Figure, styles: Styles) -> Iterator[Mark]:
    """Yield the marks of a figure, layer by layer."""
    data = figure.data.reset_index(drop=True)
    any_color = any(layer.color for layer in figure.layers)
    for number, layer in enumerate(figure.layers):
        color = None if layer.kind in GRIDS else layer.color
        columns = [name for name in dict.fromkeys((figure.panel, color, layer.dash)) if name]
        places = {name: {v: n for n, v in enumerate(values(data[name]))} for name in columns}
        groups = [data]
        if columns:
            keys = [data[name].map(places[name]).astype(float) for name in columns]
            groups = [rows for _, rows in data.groupby(keys)]  # in the order of the values
        for rows in groups:
            if rows[layer.z or layer.y].isna().all():
                continue
            first = rows.iloc[0]
            style = Style(GREY if any_color else COLORS[number % len(COLORS)], 0)
            if color:
                style = styles[color, text(first[color])]
            if layer.dash:
                style = style._replace(dash=places[layer.dash][first[layer.dash]])
            panel = places[figure.panel][first[figure.panel]] if figure.panel else 0
            yield Mark(layer, rows, panel, style._replace(dash=style.dash % len(LINES)))


def _span(marks: Sequence[Mark]) -> tuple[float, float]:
    """Return the smallest and largest value of all grids: colours mean the same in all panels."""
    grids = [one.rows[one.layer.z] for one in marks if one.layer.z]
    if not grids:
        return 0.0, 1.0
    low = min(float(values.min()) for values in grids)
    return low, max(low + 1e-9, *(float(values.max()) for values in grids))


def _add_legend(canvas: Canvas, figure: Figure, marks: Sequence[Mark], styles: Styles) -> None:
    """Explain colours first, then line styles, then layers; one mark needs no legend."""
    colors: dict[tuple[str, str], Line2D] = {}
    dashes: dict[tuple[str, str], Line2D] = {}
    layers: dict[str, Line2D] = {}
    for one in marks:
        layer = one.layer
        if layer.kind in GRIDS:
            continue
        first = one.rows.iloc[0]
        if layer.color:
            key = (layer.color, text(first[layer.color]))
            colors[key] = _handle(layer, styles[key], key[1])
        if layer.dash:
            key = (layer.dash, text(first[layer.dash]))
            style = one.style._replace(color="#777777") if layer.color else one.style
            dashes[key] = _handle(layer, style, key[1])
        if layer.label and not layer.color and not layer.dash:
            layers[layer.label] = _handle(layer, one.style, layer.label)
    handles = [*colors.values(), *dashes.values(), *layers.values()]
    has_grid = any(one.layer.kind in GRIDS for one in marks)
    if not handles or len(handles) + has_grid < 2:
        return
    width, height = canvas.get_size_inches()
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(width / (0.45 + 0.065 * longest))))
    canvas.set_size_inches(width, height + 0.19 * math.ceil(len(handles) / columns))
    canvas.legend(handles=handles, loc="outside upper center", ncols=columns)


def _handle(layer: Layer, style: Style, label: str) -> Line2D:
    """Return an entry of the legend."""
    from matplotlib.lines import Line2D

    look: Any = {"linestyle": LINES[style.dash % len(LINES)]}
    if layer.kind != "line":
        look = {"linestyle": "none", "marker": MARKERS[style.dash % len(MARKERS)]}
    return Line2D([], [], color=style.color, label=_verbatim(label), **look)


def _verbatim(label: str) -> str:
    return label.replace("$", r"\$")  # matplotlib takes it for mathematics


@dataclass
class _Panel:
    """The marks of one panel, with a method for each kind of layer."""

    ax: Any
    figure: Figure
    marks: Sequence[Mark]
    span: tuple[float, float]  # of the values of grids
    tops: Counter[Any] = field(default_factory=Counter)  # of the stack at each x
    image: Any = None  # a grid, which a colour bar explains

    def draw(self) -> None:
        draw = {"line": self.line, "points": self.points, "area": self.area, "bars": self.bars}
        for one in self.marks:
            if one.layer.kind in GRIDS:
                self.grid(one)
                continue
            x = self.places(one.rows[one.layer.x], "x")
            y = self.places(one.rows[one.layer.y], "y")
            draw[one.layer.kind](one, x, y)
        self.axes()

    def explain(self, canvas: Canvas) -> None:
        """Add a bar of the colours of a grid."""
        from matplotlib.ticker import MaxNLocator

        if self.image is None:
            return
        layer = next(one.layer for one in self.marks if one.layer.z)
        look: Any = {"shrink": 0.6, "pad": 0.15} if layer.kind == "surface" else {}
        bar = canvas.colorbar(self.image, ax=self.ax, ticks=MaxNLocator(8), **look)
        bar.set_label(_verbatim(layer.label or layer.z or ""))

    def names(self, along: str) -> list[str]:
        """Return the names on the axis ``along`` x or y; none on an axis of numbers."""
        columns = [one.rows[getattr(one.layer, along)] for one in self.marks]
        if all(map(is_number, columns)):
            return []
        return list(dict.fromkeys(text(value) for column in columns for value in values(column)))

    def places(self, column: Any, along: str) -> list[Any]:
        """Return the values of a column as coordinates: names are counted along their axis."""
        numbers = {name: n for n, name in enumerate(self.names(along))}
        return [numbers.get(text(value), value) for value in column]

    def line(self, one: Mark, x: list[Any], y: list[Any]) -> None:
        color = one.style.color
        (line,) = self.ax.plot(x, y, linestyle=LINES[one.style.dash], color=color)
        if len(x) <= FEW:
            line.set_marker(MARKERS[one.style.dash])
        if one.layer.low and one.layer.high:
            band = (one.rows[one.layer.low], one.rows[one.layer.high])
            self.ax.fill_between(x, *band, color=color, alpha=0.2, linewidth=0)

    def points(self, one: Mark, x: list[Any], y: list[Any]) -> None:
        color = one.style.color
        look: Any = {"c": color, "marker": MARKERS[one.style.dash], "alpha": 0.85}
        if self.image is not None:  # to stand out from the colours of the grid
            look |= {"edgecolors": "white", "linewidths": 0.4}
        self.ax.scatter(x, y, s=20 if len(x) < 50 else 8, **look)
        if one.layer.low:
            self.ax.errorbar(x, y, yerr=_error_bars(one), fmt="none", color=color, linewidth=1)

    def area(self, one: Mark, x: list[Any], y: list[Any]) -> None:
        floor = [0.0] * len(x)
        alpha = 0.25
        if self.figure.stack:
            floor = [self.tops[at] for at in x]
            alpha = 0.8
            self.tops.update(dict(zip(x, y, strict=True)))
        top = [low + height for low, height in zip(floor, y, strict=True)]
        self.ax.fill_between(x, floor, top, color=one.style.color, alpha=alpha, linewidth=0)
        self.ax.plot(x, top, linestyle=LINES[one.style.dash], color=one.style.color)

    def bars(self, one: Mark, x: list[Any], y: list[Any]) -> None:
        """Draw bars side by side."""
        bars = [other for other in self.marks if other.layer.kind == "bars"]
        width = 0.8 / len(bars)
        shift = (bars.index(one) - (len(bars) - 1) / 2) * width
        at = [place + shift for place in x]
        self.ax.bar(at, y, width, color=one.style.color, yerr=_error_bars(one))

    def grid(self, one: Mark) -> None:
        layer = one.layer
        rows = one.rows.dropna(subset=[layer.z])
        table = rows.pivot(index=layer.y, columns=layer.x, values=layer.z)
        table = table.loc[values(rows[layer.y]), values(rows[layer.x])]
        x = self.places(table.columns, "x")
        y = self.places(table.index, "y")
        z = table.to_numpy(dtype=float)
        low, high = self.span
        limits: Any = {"vmin": low, "vmax": high}
        if layer.kind == "surface":
            self.ax.set_zlim(low, high)
            self.ax.set_box_aspect(None, zoom=0.65)  # else its labels are cut off
            look: Any = {"cmap": SCALE, "linewidth": 0, **limits}
            self.image = self.ax.plot_surface(*np.meshgrid(x, y), z, **look)
            return
        self.ax.grid(False)
        if layer.kind == "contour":
            levels = np.linspace(low, high, 21)
            self.image = self.ax.contourf(x, y, z, levels=levels, **limits)
            self.ax.contour(x, y, z, levels=levels, colors="black", linewidths=0.3)
            return
        self.image = self.ax.pcolormesh(x, y, z, shading="nearest", rasterized=True, **limits)
        if z.size > CELLS:
            return
        for (row, column), value in np.ndenumerate(z):
            if math.isfinite(value):
                is_light = (value - low) / (high - low) > 0.6  # in the upper part of the scale
                look = {"color": "black" if is_light else "white", "fontsize": 6}
                at = (x[column], y[row])
                self.ax.text(*at, f"{value:.3g}", ha="center", va="center", **look)

    def axes(self) -> None:
        ax = self.ax
        if names := [_verbatim(name) for name in self.names("x")]:
            turn: Any = {}
            if max(map(len, names)) * len(names) > 40:  # they would overlap
                turn = {"rotation": 45, "ha": "right"}
            ax.set_xticks(range(len(names)), names, **turn)
        if names := [_verbatim(name) for name in self.names("y")]:
            ax.set_yticks(range(len(names)), names)
            if any(one.layer.kind == "heat" for one in self.marks) and not ax.yaxis_inverted():
                ax.invert_yaxis()  # a matrix is read from its top; a shared axis is inverted once
        if self.figure.log_x:
            ax.set_xscale("log")
        elif self.marks and all(one.rows[one.layer.x].dtype.kind in "iu" for one in self.marks):
            ax.xaxis.get_major_locator().set_params(integer=True)  # there is no epoch 2.5
        if self.figure.log_y:
            ax.set_yscale("log")
        if self.figure.equal:
            ax.set_aspect("equal", adjustable="datalim" if self.image is None else None)


def _error_bars(one: Mark) -> list[Any] | None:
    """Return the lengths of the error bars below and above."""
    if not one.layer.low or not one.layer.high:
        return None
    y = one.rows[one.layer.y]
    return [y - one.rows[one.layer.low], one.rows[one.layer.high] - y]
