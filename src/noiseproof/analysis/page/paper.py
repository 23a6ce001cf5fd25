"""Figures drawn by matplotlib, for a page or a paper."""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noiseproof.analysis.page import marks
from noiseproof.analysis.page.marks import GRIDS, LegendEntry, Series, Styles, is_number, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from noiseproof.analysis.figures import Figure

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
}
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)))
MARKERS = ("o", "s", "D", "P", "^")
# from which on they are drawn as pixels: a smaller file than with a shape for each
FEW_POINTS = 1000


def to_matplotlib(figure: Figure, styles: Styles | None = None) -> Canvas:
    """Return a figure for a paper: one column wide per panel, with readable fonts and no title.

    Args:
        figure: what to draw.
        styles: the colours of several figures (``marks.palette``), by default of this one.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    drawn = marks.series(figure, styles)
    titles = marks.panels(figure)
    rows, columns = marks.shape(len(titles))
    with matplotlib.rc_context(LOOK):
        canvas = Canvas(figsize=(max(3.4 * columns, 4.2), 2.8 * rows))
        shared: Any = None  # whose y axis the other panels have
        for n, title in enumerate(titles):
            inside = [one for one in drawn if one.panel == n]
            surface = any(one.layer.kind == "surface" for one in inside)
            bar: Any = {"label": _verbatim(marks.z_label(drawn)), "ticks": MaxNLocator(8)}
            if surface:
                ax = canvas.add_subplot(rows, columns, n + 1, projection="3d")
                bar |= {"shrink": 0.6, "pad": 0.15}
            else:
                ax = canvas.add_subplot(rows, columns, n + 1, sharey=shared)
            if figure.share_y and shared is None:
                shared = ax
            image = _Panel(ax, figure, inside, marks.z_range(drawn)).draw()
            ax.set_title(_verbatim(title))
            ax.set_xlabel(_verbatim(figure.x_label))
            is_first = n % columns == 0
            is_last = (n + 1) % columns == 0 or n + 1 == len(titles)
            if is_first or surface or not figure.share_y:
                ax.set_ylabel(_verbatim(figure.y_label))
            if is_last and image is not None:
                canvas.colorbar(image, ax=ax, **bar)
        _add_legend(canvas, marks.legend(figure, styles))
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


def _add_legend(canvas: Canvas, entries: Sequence[LegendEntry]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for entry in entries:
        handle = Line2D([], [], color=entry.color or "#777777", label=_verbatim(entry.value))
        if entry.line:
            handle.set_linestyle(LINES[entry.dash])
        else:
            handle.set_linestyle("none")
            handle.set_marker(MARKERS[entry.dash])
        handles.append(handle)
    if handles:
        width, height = canvas.get_size_inches()
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), int(width / (0.45 + 0.065 * longest))))
        canvas.set_size_inches(width, height + 0.19 * math.ceil(len(handles) / columns))
        canvas.legend(handles=handles, loc="outside upper center", ncols=columns)


def _verbatim(label: str) -> str:
    return label.replace("$", r"\$")  # matplotlib takes it for mathematics


class _Panel:
    """The marks of one panel, with a method for each kind of layer."""

    def __init__(
        self, ax: Any, figure: Figure, drawn: Sequence[Series], span: tuple[float, float] | None
    ) -> None:
        self.ax = ax
        self.figure = figure
        self.drawn = drawn
        self.span = span  # of the values of grids
        self.names = {along: marks.axis_names(drawn, along) for along in "xy"}
        self.tops: Counter[Any] = Counter()  # of the stack at each x
        self.image: Any = None  # a grid, which a colour bar explains

    def draw(self) -> Any:
        """Draw all marks and axes; return what a colour bar explains."""
        draw = {"line": self.line, "points": self.points, "area": self.area, "bars": self.bars}
        for one in self.drawn:
            if one.layer.kind in GRIDS:
                self.grid(one)
                continue
            x = self.places(one.rows[one.layer.x], "x")
            y = self.places(one.rows[one.layer.y], "y")
            draw[one.layer.kind](one, x, y)
            self.tops.update(dict(zip(x, y, strict=True)))
        self.axes()
        return self.image

    def places(self, values: Any, along: str) -> list[Any]:
        """Return values as coordinates: names are counted along their axis."""
        numbers = {name: n for n, name in enumerate(self.names[along])}
        return [numbers.get(text(value), value) for value in values]

    def floor(self, x: list[Any]) -> list[float]:
        """Return where marks begin: at zero, or on top of the stack."""
        if not self.figure.stack:
            return [0.0] * len(x)
        return [self.tops[at] for at in x]

    def line(self, one: Series, x: list[Any], y: list[Any]) -> None:
        (line,) = self.ax.plot(x, y, LINES[one.dash], color=one.color)
        if len(x) <= marks.FEW:
            line.set_marker(MARKERS[one.dash])
        if one.layer.low and one.layer.high:
            low = one.rows[one.layer.low]
            high = one.rows[one.layer.high]
            self.ax.fill_between(x, low, high, color=one.color, alpha=0.2, linewidth=0)

    def points(self, one: Series, x: list[Any], y: list[Any]) -> None:
        look: Any = {"s": 20, "edgecolors": "white", "linewidths": 0.0}
        if len(x) >= 50:
            look["s"] = 8
        if len(x) >= FEW_POINTS:
            look |= {"s": 3, "rasterized": True}
        if self.image is not None:
            look["linewidths"] = 0.4  # to stand out from the colours of the grid
        self.ax.scatter(x, y, c=one.color, marker=MARKERS[one.dash], alpha=0.85, **look)
        if (spread := _spread(one)) is not None:
            self.ax.errorbar(x, y, yerr=spread, fmt="none", color=one.color, linewidth=1)

    def area(self, one: Series, x: list[Any], y: list[Any]) -> None:
        floor = self.floor(x)
        top = [low + height for low, height in zip(floor, y, strict=True)]
        alpha = 0.8 if self.figure.stack else 0.25
        self.ax.fill_between(x, floor, top, color=one.color, alpha=alpha, linewidth=0)
        self.ax.plot(x, top, LINES[one.dash], color=one.color)

    def bars(self, one: Series, x: list[Any], y: list[Any]) -> None:
        bars = [other for other in self.drawn if other.layer.kind == "bars"]
        width = _step(bars)
        shift = 0.0
        alpha = 0.6  # histograms lie on top of each other
        if self.names["x"]:
            width *= 0.8
            alpha = 1.0
            if not self.figure.stack:  # side by side
                width /= len(bars)
                shift = (bars.index(one) - (len(bars) - 1) / 2) * width
        elif self.figure.stack:
            alpha = 1.0
        places = [at + shift for at in x]
        self.ax.bar(
            places, y, width, self.floor(x), color=one.color, alpha=alpha, yerr=_spread(one)
        )

    def grid(self, one: Series) -> None:
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap

        assert self.span is not None
        low, high = self.span
        xs, ys, z = marks.grid(one)
        x = self.places(xs, "x")
        y = self.places(ys, "y")
        look: Any = {
            "cmap": LinearSegmentedColormap.from_list("noiseproof", marks.VIRIDIS),
            "vmin": low,
            "vmax": high,
        }
        if one.layer.kind == "surface":
            self.ax.set_zlim(low, high)
            self.ax.set_box_aspect(None, zoom=0.65)  # else its labels are cut off
            self.image = self.ax.plot_surface(*np.meshgrid(x, y), np.array(z), linewidth=0, **look)
            return
        self.ax.grid(False)
        if one.layer.kind == "contour":
            levels = np.linspace(low, high, 21)
            self.image = self.ax.contourf(x, y, z, levels=levels, **look)
            self.ax.contour(x, y, z, levels=levels, colors="black", linewidths=0.3)
            return
        self.image = self.ax.pcolormesh(x, y, z, shading="nearest", rasterized=True, **look)
        if len(xs) * len(ys) <= marks.CELLS:
            self.write_cells(x, y, z)

    def write_cells(self, x: list[Any], y: list[Any], z: list[list[float]]) -> None:
        """Write the numbers of a heat map into its cells, in black or white."""
        for place, row in zip(y, z, strict=True):
            for at, value in zip(x, row, strict=True):
                if math.isfinite(value):
                    red, green, blue, _ = self.image.cmap(self.image.norm(value))
                    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
                    ink = "black" if is_light else "white"
                    self.ax.text(
                        at, place, f"{value:.3g}", ha="center", va="center", fontsize=6, color=ink
                    )

    def axes(self) -> None:
        ax = self.ax
        names = {along: list(map(_verbatim, of)) for along, of in self.names.items()}
        if names["x"]:
            turn: Any = {}
            if max(map(len, names["x"])) * len(names["x"]) > 40:  # they would overlap
                turn = {"rotation": 45, "ha": "right"}
            ax.set_xticks(range(len(names["x"])), names["x"], **turn)
        if names["y"]:
            ax.set_yticks(range(len(names["y"])), names["y"])
            if any(one.layer.kind == "heat" for one in self.drawn) and not ax.yaxis_inverted():
                ax.invert_yaxis()  # a matrix is read from its top; a shared axis is inverted once
        if self.figure.log_x:
            ax.set_xscale("log")
        elif self.drawn and all(one.rows[one.layer.x].dtype.kind in "iu" for one in self.drawn):
            ax.xaxis.get_major_locator().set_params(integer=True)  # there is no epoch 2.5
        if self.figure.log_y:
            ax.set_yscale("log")
        if self.figure.equal and self.image is None:
            ax.set_aspect("equal", adjustable="datalim")
        elif self.figure.equal:
            ax.set_aspect("equal")


def _spread(one: Series) -> list[Any] | None:
    """Return the lengths of the error bars below and above."""
    if not one.layer.low or not one.layer.high:
        return None
    y = one.rows[one.layer.y]
    return [y - one.rows[one.layer.low], one.rows[one.layer.high] - y]


def _step(bars: Sequence[Series]) -> float:
    """Return the distance between neighbouring bars: one between names."""
    if not all(is_number(one.rows[one.layer.x]) for one in bars):
        return 1.0
    at = sorted({float(value) for one in bars for value in one.rows[one.layer.x]})
    return min((after - before for before, after in pairwise(at)), default=1.0)
