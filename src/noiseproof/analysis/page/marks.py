"""The marks of a figure: its panels, series and legend, with the colour and line style of each
series.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.analysis.figures import Figure, Layer

GRIDS = ("heat", "contour", "surface")
PER_ROW = 3  # panels side by side
FEW = 15  # points up to which a line has markers
CELLS = 150  # up to which a grid shows its numbers


# The first six differ (CIELAB distance over 14) for red- and green-blind readers; contrast with
# white is 3:1 or more.
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#aa3377",
    "#333333",
    "#9d72ff",
    "#3f97d6",
    "#b8860b",
    "#5a8f00",
    "#d6568f",
    "#8a6d5a",
    "#5b3fc4",
)
GREY = "#7b848c"  # of reference lines, and of distributions behind other marks
VIRIDIS = (
    "#440154",
    "#472d7b",
    "#3b528b",
    "#2c728e",
    "#21918c",
    "#28ae80",
    "#5ec962",
    "#addc30",
    "#fde725",
)
DASHES = 5  # number of line styles and of markers


def blend(at: float) -> str:
    """The colour at ``at`` in [0, 1] of the colour scale.

    >>> blend(0.0), blend(1.0)
    ('#440154', '#fde725')
    """
    place = at * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in VIRIDIS[low : low + 2]]
    return "#" + "".join(
        f"{round(a + (b - a) * (place - low)):02x}" for a, b in zip(*ends, strict=True)
    )


# Of numbers (epochs, λ), without the end of the scale that is invisible on white.
SCALE = tuple(blend(0.75 * step / 15) for step in range(16))


class Style(NamedTuple):
    color: str
    dash: int  # line style and marker, for values that share a colour


Styles = Mapping[tuple[str, str], Style]  # by column and value


@dataclass(frozen=True, eq=False)  # tables do not compare
class Series:
    """The rows of one layer that are one mark: a line, a cloud of points, a grid."""

    layer: Layer
    rows: pd.DataFrame
    panel: int
    keys: dict[str, str]  # its value in each column that forms series, and its label under ""
    color: str
    dash: int


@dataclass(frozen=True)
class LegendEntry:
    """A line of a legend."""

    column: str
    value: str
    color: str | None  # None: a line style in any colour
    dash: int
    line: bool


def is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"  # not bool: True and False are names


def text(value: object) -> str:
    """A value as text.

    >>> text(0.5), text(10.0), text("mae")
    ('0.5', '10', 'mae')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(column: pd.Series[Any]) -> list[Any]:
    """The distinct values of a column: numbers sorted, categories in their order, others as they
    occur.
    """
    present = column.dropna()
    if hasattr(present, "cat"):
        return [value for value in present.cat.categories if value in set(present)]
    distinct = list(dict.fromkeys(present.tolist()))
    return sorted(distinct) if is_number(column) else distinct


def palette(figures: Sequence[Figure]) -> dict[tuple[str, str], Style]:
    """A colour for every value of every colour column, the same in all figures."""
    columns: dict[str, dict[Any, None]] = {}
    names = set()
    behind = set()
    for figure in figures:
        for column in dict.fromkeys(
            layer.color for layer in figure.layers if layer.kind not in GRIDS and layer.color
        ):
            columns.setdefault(column, {}).update(dict.fromkeys(values(figure.data[column])))
            if not is_number(figure.data[column]):
                names.add(column)
            if _lies_behind(figure, column):
                behind.add(column)
    styles: dict[tuple[str, str], Style] = {}
    for column, distinct in columns.items():
        if column in names:
            colors = (GREY, *reversed(COLORS)) if column in behind else COLORS
            for n, value in enumerate(dict.fromkeys(map(text, distinct))):
                styles[column, value] = Style(colors[n % len(colors)], n // 6)
        else:
            last = max(len(distinct) - 1, 1)
            styles |= {
                (column, text(v)): Style(SCALE[round(15 * n / last)], 0)
                for n, v in enumerate(sorted(distinct))
            }
    return styles


def _lies_behind(figure: Figure, column: str) -> bool:
    """Whether a column colours only areas, behind marks that another column colours."""
    kinds = {layer.kind for layer in figure.layers if layer.color == column}
    return kinds == {"area"} and any(layer.color not in (None, column) for layer in figure.layers)


def panels(figure: Figure) -> list[str]:
    """The title of each panel; a number has the name of its column before it."""
    if figure.panel is None:
        return [""]
    column = figure.data[figure.panel]
    prefix = f"{figure.panel.replace('_', ' ')} = " if is_number(column) else ""
    return [prefix + text(value) for value in values(column)] or [""]


def shape(count: int) -> tuple[int, int]:
    """Rows and columns of ``count`` panels: four are two by two.

    >>> shape(1), shape(3), shape(4), shape(7)
    ((1, 1), (1, 3), (2, 2), (3, 3))
    """
    rows = -(-count // PER_ROW)
    return rows, -(-count // rows)


def series(figure: Figure, styles: Styles | None = None) -> list[Series]:
    """All marks of a figure, layer by layer; the index of their rows is the position in the
    data.
    """
    styles = palette([figure]) if styles is None else styles
    colorful = any(layer.color for layer in figure.layers)
    plain = [
        GREY if colorful else COLORS[number % len(COLORS)] for number in range(len(figure.layers))
    ]
    layers = zip(figure.layers, plain, strict=True)
    return [one for layer, color in layers for one in _layer_series(figure, layer, color, styles)]


def _layer_series(figure: Figure, layer: Layer, plain: str, styles: Styles) -> Iterator[Series]:
    data = figure.data.reset_index(drop=True)
    color = layer.color
    if layer.kind in GRIDS:
        color = None
    columns = [column for column in dict.fromkeys((figure.panel, color, layer.dash)) if column]
    panels = _places(data, figure.panel)
    dashes = _places(data, layer.dash)
    for rows in _groups(data, columns):
        if rows[layer.z or layer.y].isna().all():
            continue
        keys = {column: text(rows[column].iloc[0]) for column in columns}
        style = Style(plain, 0)
        if color:
            style = styles[color, keys[color]]
        dash = style.dash
        if layer.dash:
            dash = dashes[keys[layer.dash]]
        panel = panels[keys[figure.panel]] if figure.panel else 0
        if layer.label and not color and not layer.dash:
            keys[""] = layer.label
        yield Series(layer, rows, panel, keys, style.color, dash % DASHES)


def _places(data: pd.DataFrame, column: str | None) -> dict[str, int]:
    """Return the place of each value of a column, in the order of ``values``."""
    if not column:
        return {}
    return {text(value): place for place, value in enumerate(values(data[column]))}


def _groups(data: pd.DataFrame, columns: list[str]) -> list[pd.DataFrame]:
    """Rows with equal values in these columns, ordered by the values; rows without a value are left
    out.
    """
    if not columns:
        return [data] if len(data) else []
    ranks = {
        column: {value: n for n, value in enumerate(values(data[column]))} for column in columns
    }
    groups = [rows for _, rows in data.groupby(columns, sort=False, observed=True)]
    return sorted(
        groups, key=lambda rows: [ranks[column][rows[column].iloc[0]] for column in columns]
    )


def legend(figure: Figure, styles: Styles | None = None) -> list[LegendEntry]:
    """Return colours first, then line styles, then layers; nothing if there is only one mark."""
    entries: dict[tuple[str, str], LegendEntry] = {}
    has_grid = False
    for one in series(figure, styles):
        if one.layer.kind in GRIDS:
            has_grid = True
            continue
        line = one.layer.kind == "line"
        color = one.layer.color
        dash = one.layer.dash
        if color:
            style = one.dash if dash in (None, color) else 0
            value = one.keys[color]
            entries.setdefault((color, value), LegendEntry(color, value, one.color, style, line))
        if dash and dash != color:
            value = one.keys[dash]
            entries.setdefault(
                (dash, value),
                LegendEntry(dash, value, None if color else one.color, one.dash, line),
            )
        if "" in one.keys:
            label = one.keys[""]
            entries.setdefault(("", label), LegendEntry("", label, one.color, one.dash, line))
    ordered = sorted(entries.values(), key=lambda entry: (not entry.column, entry.color is None))
    return ordered if len(ordered) + has_grid > 1 else []


def axis_names(marks: Sequence[Series], along: str) -> list[str]:
    """The names on the axis ``along`` x or y of a panel; empty for an axis of numbers."""
    columns = [one.rows[getattr(one.layer, along)] for one in marks]
    if all(map(is_number, columns)):
        return []
    return list(dict.fromkeys(text(value) for column in columns for value in values(column)))


def grid(one: Series) -> tuple[list[Any], list[Any], list[list[float]]]:
    """The x, the y and the values of a grid; missing values are NaN."""
    assert one.layer.z is not None
    rows = one.rows.dropna(subset=[one.layer.z])
    xs = values(rows[one.layer.x])
    ys = values(rows[one.layer.y])
    places = [{value: n for n, value in enumerate(along)} for along in (xs, ys)]
    z = [[math.nan] * len(xs) for _ in ys]
    for x, y, value in zip(rows[one.layer.x], rows[one.layer.y], rows[one.layer.z], strict=True):
        z[places[1][y]][places[0][x]] = float(value)
    return xs, ys, z


def z_range(marks: Sequence[Series]) -> tuple[float, float] | None:
    """The smallest and the largest value of all grids of a figure, which share one colour scale."""
    spans = [
        (one.rows[one.layer.z].min(), one.rows[one.layer.z].max()) for one in marks if one.layer.z
    ]
    if not spans:
        return None
    low = float(min(low for low, _ in spans))
    high = float(max(high for _, high in spans))
    return low, high if high > low else low + 1.0


def z_label(marks: Sequence[Series]) -> str:
    """What the colours of the grids of a figure mean."""
    return next((one.layer.label or one.layer.z for one in marks if one.layer.z), "")
