"""Figures for a paper, by matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noiseproof.analysis.figure import Figure
from noiseproof.analysis.marks import (
    CELLS,
    FEW,
    GRIDS,
    VIRIDIS,
    Entry,
    Series,
    Style,
    grid,
    is_number,
    legend,
    panels,
    series,
    shape,
    text,
    values,
    z_range,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LOOK: Any = {
    "font.size": 9, "axes.labelsize": 9, "axes.titlesize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "axes.axisbelow": True, "lines.linewidth": 1.5, "lines.markersize": 3.5, "legend.frameon": False,
    "figure.constrained_layout.use": True, "pdf.fonttype": 42,  # 42: text stays text
}  # fmt: skip
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)))
MARKERS = ("o", "s", "D", "P", "^")


def to_matplotlib(figure: Figure, styles: Mapping[tuple[str, str], Style] | None = None) -> Canvas:
    """A figure for a paper: a column wide for each panel, fonts that stay readable there, no title.

    ``styles`` are the colours of several figures (``marks.palette``).
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    marks, names = series(figure, styles), panels(figure)
    rows, columns = shape(len(names))
    with matplotlib.rc_context(LOOK):
        canvas = Canvas(figsize=(max(3.4 * columns, 4.2), 2.8 * rows))
        first: Any = None
        for n, name in enumerate(names):
            here = [one for one in marks if one.panel == n]
            deep = any(one.layer.kind == "surface" for one in here)
            how: dict[str, Any] = {"projection": "3d"} if deep else {"sharey": first} if figure.share_y else {}
            ax = canvas.add_subplot(rows, columns, n + 1, **how)
            first = first or ax
            image = _draw(ax, figure, here, z_range(marks))
            ax.set_xlabel(_verbatim(figure.x_label))
            if deep or not figure.share_y or n % columns == 0:
                ax.set_ylabel(_verbatim(figure.y_label))
            ax.set_title(_verbatim(name))
            if image is not None and ((n + 1) % columns == 0 or n + 1 == len(names)):
                label = next(one.layer.label or one.layer.z or "" for one in marks if one.layer.z)
                how = {"shrink": 0.6, "pad": 0.15} if deep else {}
                canvas.colorbar(image, ax=ax, label=_verbatim(label), ticks=MaxNLocator(8), **how)
        _explain(canvas, legend(figure, styles))
    return canvas


def _explain(canvas: Canvas, entries: Sequence[Entry]) -> None:
    """The legend above all panels, and the height that it takes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [],
            color=entry.color.light if entry.color else "#777777",
            linestyle=LINES[entry.dash] if entry.line else "none",
            marker=None if entry.line else MARKERS[entry.dash],
            label=_verbatim(entry.value),
        )
        for entry in entries
    ]  # fmt: skip
    if handles:
        width, height = canvas.get_size_inches()
        longest = max(len(str(handle.get_label())) for handle in handles)
        ncols = max(1, min(len(handles), int(width / (0.45 + 0.065 * longest))))
        canvas.set_size_inches(width, height + 0.19 * math.ceil(len(handles) / ncols))
        canvas.legend(handles=handles, loc="outside upper center", ncols=ncols)


def _verbatim(label: str) -> str:
    return label.replace("$", r"\$")  # else mathematics, to matplotlib


def _draw(ax: Any, figure: Figure, marks: Sequence[Series], span: tuple[float, float] | None) -> Any:
    """The marks of one panel; returns what a colour bar explains."""
    places = {along: _places(marks, along) for along in "xy"}
    bars = [one for one in marks if one.layer.kind == "bars"]
    height: Counter[Any] = Counter()  # of the stack at each x
    image = None
    for one in marks:
        layer, rows, color = one.layer, one.rows, one.color.light
        if layer.kind in GRIDS:
            assert span is not None
            image = _draw_grid(ax, one, span, places)
            continue
        x = [places["x"].get(text(value), value) for value in rows[layer.x]]
        y = [places["y"].get(text(value), value) for value in rows[layer.y]]
        floor = [height[at] for at in x] if figure.stack else [0.0] * len(x)
        ends = (rows[layer.low], rows[layer.high]) if layer.low and layer.high else None
        spread = [rows[layer.y] - ends[0], ends[1] - rows[layer.y]] if ends else None
        if layer.kind == "line":
            ax.plot(x, y, LINES[one.dash], color=color, marker=MARKERS[one.dash] if len(x) <= FEW else None)
            if ends:
                ax.fill_between(x, *ends, color=color, alpha=0.2, linewidth=0)
        elif layer.kind == "points":
            size = 20 if len(x) < 50 else 8 if len(x) < 1000 else 3
            rim = {"edgecolors": "white", "linewidths": 0.4 if image is not None else 0.0}
            ax.scatter(x, y, s=size, c=color, marker=MARKERS[one.dash], alpha=0.85, **rim)
            if ends:
                ax.errorbar(x, y, yerr=spread, fmt="none", color=color, linewidth=1)
        elif layer.kind == "area":
            top = [low + more for low, more in zip(floor, y, strict=True)]
            ax.fill_between(x, floor, top, color=color, alpha=0.8 if figure.stack else 0.25, linewidth=0)
            ax.plot(x, top, LINES[one.dash], color=color)
        else:
            beside = bool(places["x"]) and not figure.stack
            width = _step(bars) * (0.8 if places["x"] else 1.0) / (len(bars) if beside else 1)
            shift = (bars.index(one) - (len(bars) - 1) / 2) * width if beside else 0.0
            see_through = 0.6 if not places["x"] and not figure.stack else 1.0
            ax.bar([at + shift for at in x], y, width, floor, color=color, alpha=see_through, yerr=spread)
        height.update(dict(zip(x, y, strict=True)))
    _name_places(ax, places, down=any(one.layer.kind == "heat" for one in marks))
    if figure.log_x:
        ax.set_xscale("log")
    elif marks and all(one.rows[one.layer.x].dtype.kind in "iu" for one in marks):
        ax.xaxis.get_major_locator().set_params(integer=True)  # there is no epoch 2.5
    if figure.log_y:
        ax.set_yscale("log")
    if figure.equal and image is None:
        ax.set_aspect("equal", adjustable="datalim")
    elif figure.equal:
        ax.set_aspect("equal")
    return image


def _places(marks: Sequence[Series], along: str) -> dict[str, int]:
    """Where names stand on an axis; nothing on an axis of numbers."""
    columns = [one.rows[getattr(one.layer, along)] for one in marks]
    if all(map(is_number, columns)):
        return {}
    return {name: n for n, name in enumerate(dict.fromkeys(text(v) for column in columns for v in values(column)))}


def _name_places(ax: Any, places: Mapping[str, Mapping[str, int]], *, down: bool) -> None:
    names = {along: list(map(_verbatim, of)) for along, of in places.items()}
    if places["x"]:
        crowded = max(map(len, names["x"])) * len(names["x"]) > 40
        ax.set_xticks(list(places["x"].values()), names["x"], **({"rotation": 45, "ha": "right"} if crowded else {}))
    if places["y"]:
        ax.set_yticks(list(places["y"].values()), names["y"])
        if down and not ax.yaxis_inverted():  # a matrix is read from its top; a shared axis turns once
            ax.invert_yaxis()


def _step(bars: Sequence[Series]) -> float:
    """How far apart bars stand."""
    if not all(is_number(one.rows[one.layer.x]) for one in bars):
        return 1.0
    at = sorted({float(value) for one in bars for value in one.rows[one.layer.x]})
    return min((after - before for before, after in pairwise(at)), default=1.0)


def _draw_grid(ax: Any, one: Series, span: tuple[float, float], places: Mapping[str, Mapping[str, int]]) -> Any:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    xs, ys, z = grid(one)
    x, y = ([places[along].get(text(v), v) for v in at] for along, at in (("x", xs), ("y", ys)))
    low, high = span
    look = {"cmap": LinearSegmentedColormap.from_list("noiseproof", VIRIDIS), "vmin": low, "vmax": high}
    if one.layer.kind == "surface":
        ax.set_zlim(*span)
        ax.set_box_aspect(None, zoom=0.65)  # else its labels are cut off
        return ax.plot_surface(*np.meshgrid(x, y), np.array(z), linewidth=0, **look)
    ax.grid(False)
    if one.layer.kind == "contour":
        levels = np.linspace(low, high, 21)
        image = ax.contourf(x, y, z, levels=levels, **look)
        ax.contour(x, y, z, levels=levels, colors="black", linewidths=0.3)
        return image
    image = ax.pcolormesh(x, y, z, shading="nearest", rasterized=True, **look)
    if len(xs) * len(ys) <= CELLS:
        for place, row in zip(y, z, strict=True):
            for at, value in zip(x, row, strict=True):
                if math.isfinite(value):
                    red, green, blue, _ = image.cmap(image.norm(value))
                    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
                    ax.text(at, place, f"{value:.3g}", ha="center", va="center", fontsize=6, color=ink)
    return image
