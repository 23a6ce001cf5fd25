"""A figure taken apart: its panels and series, with the colour and the line style of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from noiseproof.analysis.figure import Figure, Layer

if TYPE_CHECKING:
    import pandas as pd

GRIDS = ("heat", "contour", "surface")
PER_ROW = 3  # panels side by side
FEW = 15  # points of a line that get markers
CELLS = 150  # of a grid, up to which their numbers are written in


class Color(NamedTuple):
    """A colour on a light ground and its sibling on a dark one."""

    light: str
    dark: str


# The first six stay apart (CIELAB distance over 14) with red- or green-blind eyes, 3:1 or more against their ground.
COLORS = (
    Color("#0072b2", "#4ba3e3"), Color("#d55e00", "#f0803c"), Color("#009e73", "#2fc79a"),
    Color("#aa3377", "#e08ac4"), Color("#333333", "#e8e8e8"), Color("#9d72ff", "#f2cf4e"),
    Color("#3f97d6", "#9ad6f7"), Color("#b8860b", "#d9a648"), Color("#5a8f00", "#a6d854"),
    Color("#d6568f", "#f4a6bf"), Color("#8a6d5a", "#c2a892"), Color("#5b3fc4", "#b79cff"),
)  # fmt: skip
GREY = Color("#7b848c", "#8f98a0")  # of what lies behind: reference lines, distributions that others are read against
VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
DASHES = 5  # line styles and markers, after which they begin again


def blend(at: float) -> str:
    """The colour at ``at`` in [0, 1] of the scale for numbers.

    >>> blend(0.0), blend(1.0)
    ('#440154', '#fde725')
    """
    place = at * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in VIRIDIS[low : low + 2]]
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in zip(*ends, strict=True))


# For numbers (epochs, λ): the light end of the scale vanishes on a light ground, the dark end on a dark one.
SCALE = tuple(Color(blend(0.75 * step / 15), blend(0.3 + 0.7 * step / 15)) for step in range(16))


class Style(NamedTuple):
    color: Color
    turn: int  # which line style and marker help to tell it apart


@dataclass(frozen=True, eq=False)  # tables do not compare
class Series:
    """The rows of one layer that are one mark: a line, a cloud, a grid."""

    layer: Layer
    rows: pd.DataFrame
    panel: int
    keys: tuple[tuple[str, str], ...]  # what switches it off: (column, value); ("", label) for a layer
    name: str
    color: Color
    dash: int


@dataclass(frozen=True)
class Entry:
    """A line of a figure's legend."""

    column: str
    value: str
    color: Color | None  # None: a line style, in any colour
    dash: int
    line: bool


def is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"  # not bool: True and False are names


def text(value: object) -> str:
    """A value as a reader writes it.

    >>> text(0.5), text(10.0), text("mae")
    ('0.5', '10', 'mae')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(column: pd.Series[Any]) -> list[Any]:
    """The values of a column: numbers by size, categories in their order, names as they come."""
    present = column.dropna()
    if hasattr(present, "cat"):
        return [value for value in present.cat.categories if value in set(present)]
    found = list(dict.fromkeys(present.tolist()))
    return sorted(found) if is_number(column) else found


def palette(figures: Sequence[Figure]) -> dict[tuple[str, str], Style]:
    """A colour for every value of every colour column: the same value has the same colour in all figures."""
    found: dict[str, dict[Any, None]] = {}
    names, behind = set(), set()
    for figure in figures:
        for column in dict.fromkeys(layer.color for layer in figure.layers if layer.kind not in GRIDS and layer.color):
            found.setdefault(column, {}).update(dict.fromkeys(values(figure.data[column])))
            if not is_number(figure.data[column]):
                names.add(column)
            if _lies_behind(figure, column):
                behind.add(column)
    styles: dict[tuple[str, str], Style] = {}
    for column, seen in found.items():
        if column in names:
            colors = (GREY, *reversed(COLORS)) if column in behind else COLORS
            for n, value in enumerate(dict.fromkeys(map(text, seen))):
                styles[column, value] = Style(colors[n % len(colors)], n // 6)
        else:
            last = max(len(seen) - 1, 1)
            styles |= {(column, text(v)): Style(SCALE[round(15 * n / last)], 0) for n, v in enumerate(sorted(seen))}
    return styles


def _lies_behind(figure: Figure, column: str) -> bool:
    """Whether a column colours nothing but areas, before which something else is drawn in colours of its own."""
    own = {layer.kind for layer in figure.layers if layer.color == column}
    return own == {"area"} and any(layer.color not in (None, column) for layer in figure.layers)


def panels(figure: Figure) -> list[str]:
    """What stands above each panel; a number with what it is of."""
    if figure.panel is None:
        return [""]
    column = figure.data[figure.panel]
    prefix = f"{figure.panel.replace('_', ' ')} = " if is_number(column) else ""
    return [prefix + text(value) for value in values(column)] or [""]


def shape(count: int) -> tuple[int, int]:
    """Rows and columns of so many panels: four are two by two.

    >>> shape(1), shape(3), shape(4), shape(7)
    ((1, 1), (1, 3), (2, 2), (3, 3))
    """
    rows = -(-count // PER_ROW)
    return rows, -(-count // rows)


def series(figure: Figure, styles: Mapping[tuple[str, str], Style] | None = None) -> list[Series]:
    """Every mark of a figure, layer by layer; rows keep their places in the data as their index."""
    styles = palette([figure]) if styles is None else styles
    data = figure.data.reset_index(drop=True)
    places = [text(value) for value in values(data[figure.panel])] if figure.panel else []
    colorful = any(layer.color for layer in figure.layers)
    found = []
    for number, layer in enumerate(figure.layers):
        color = None if layer.kind in GRIDS else layer.color
        columns = list(dict.fromkeys(c for c in (figure.panel, color, layer.dash) if c is not None))
        dashes = [text(value) for value in values(data[layer.dash])] if layer.dash else []
        for rows in _groups(data, columns):
            if rows[layer.z or layer.y].isna().all():
                continue
            keys = {column: text(rows[column].iloc[0]) for column in columns}
            keys |= _shared_keys(rows, styles)
            plain = GREY if colorful else COLORS[number % len(COLORS)]
            style = styles[color, keys[color]] if color else Style(plain, 0)
            names = [keys[column] for column in dict.fromkeys((color, layer.dash)) if column]
            found.append(
                Series(
                    layer=layer,
                    rows=rows,
                    panel=places.index(keys[figure.panel]) if figure.panel else 0,
                    keys=(*keys.items(), *([("", layer.label)] if layer.label and not names else [])),
                    name=", ".join(names) or layer.label or "",
                    color=style.color,
                    dash=(dashes.index(keys[layer.dash]) if layer.dash else style.turn) % DASHES,
                )
            )
    return found


def _shared_keys(rows: pd.DataFrame, styles: Mapping[tuple[str, str], Style]) -> dict[str, str]:
    """What all these rows have in common of the columns that have colours, if only in other figures of a page."""
    columns = [column for column in dict.fromkeys(column for column, _ in styles) if column in rows]
    return {column: text(rows[column].iloc[0]) for column in columns if rows[column].nunique(dropna=False) == 1}


def _groups(data: pd.DataFrame, columns: list[str]) -> list[pd.DataFrame]:
    """Rows that agree in these columns, ordered by the columns' values; rows without a value belong nowhere."""
    if not columns:
        return [data] if len(data) else []
    ranks = {column: {value: n for n, value in enumerate(values(data[column]))} for column in columns}
    found = [rows for _, rows in data.groupby(columns, sort=False, observed=True)]
    return sorted(found, key=lambda rows: [ranks[column][rows[column].iloc[0]] for column in columns])


def legend(figure: Figure, styles: Mapping[tuple[str, str], Style] | None = None) -> list[Entry]:
    """Colours first, then line styles, then layers; nothing where there is only one thing to see."""
    entries: dict[tuple[str, str], Entry] = {}
    grids = 0
    for one in series(figure, styles):
        if one.layer.kind in GRIDS:
            grids = 1
            continue
        line = one.layer.kind == "line"
        keys, color, dash = dict(one.keys), one.layer.color, one.layer.dash
        if color:
            own = one.dash if dash in (None, color) else 0
            entries.setdefault((color, keys[color]), Entry(color, keys[color], one.color, own, line))
        if dash and dash != color:
            entries.setdefault(
                (dash, keys[dash]), Entry(dash, keys[dash], None if color else one.color, one.dash, line)
            )
        if "" in keys:
            entries.setdefault(("", keys[""]), Entry("", keys[""], one.color, one.dash, line))
    ordered = sorted(entries.values(), key=lambda entry: (not entry.column, entry.color is None))
    return ordered if len(ordered) + grids > 1 else []


def grid(one: Series) -> tuple[list[Any], list[Any], list[list[float]]]:
    """The columns, the rows and the values of a grid, with NaN where there is none."""
    assert one.layer.z is not None
    rows = one.rows.dropna(subset=[one.layer.z])
    xs, ys = values(rows[one.layer.x]), values(rows[one.layer.y])
    places = [{value: n for n, value in enumerate(along)} for along in (xs, ys)]
    z = [[math.nan] * len(xs) for _ in ys]
    for x, y, value in zip(rows[one.layer.x], rows[one.layer.y], rows[one.layer.z], strict=True):
        z[places[1][y]][places[0][x]] = float(value)
    return xs, ys, z


def z_range(marks: Sequence[Series]) -> tuple[float, float] | None:
    """The smallest and the largest value of all grids of a figure, which share one colour scale."""
    spans = [(one.rows[one.layer.z].min(), one.rows[one.layer.z].max()) for one in marks if one.layer.z]
    if not spans:
        return None
    low, high = float(min(low for low, _ in spans)), float(max(high for _, high in spans))
    return low, high if high > low else low + 1.0
