"""The values of a figure's columns, and the colour and line style of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.analysis.figures import Figure

GRIDS = ("heat", "contour", "surface")
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
SCALE = "viridis"  # matplotlib's colours of the numbers of grids


class Style(NamedTuple):
    color: str
    dash: int  # line style and marker, for values that share a colour


Styles = Mapping[tuple[str, str], Style]  # by column and value


def is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"  # not bool: True and False are names


def text(value: object) -> str:
    """Return a value as text.

    >>> text(0.5), text(10.0), text("mae")
    ('0.5', '10', 'mae')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(column: pd.Series[Any]) -> list[Any]:
    """Return the distinct values of a column: numbers sorted, categories in their order, others as
    they occur.
    """
    present = column.dropna()
    if hasattr(present, "cat"):
        return list(present.cat.remove_unused_categories().cat.categories)
    distinct = list(dict.fromkeys(present.tolist()))
    return sorted(distinct) if is_number(column) else distinct


def palette(figures: Sequence[Figure]) -> dict[tuple[str, str], Style]:
    """Return a colour for every value of every colour column, the same in all figures."""
    columns: dict[str, dict[str, None]] = {}
    behind = set()  # columns that colour only areas, behind marks that another column colours
    for figure in figures:
        colored = [layer for layer in figure.layers if layer.color and layer.kind not in GRIDS]
        for layer in colored:
            assert layer.color is not None
            shown = map(text, values(figure.data[layer.color]))
            columns.setdefault(layer.color, {}).update(dict.fromkeys(shown))
            if layer.kind == "area" and any(one.color != layer.color for one in colored):
                behind.add(layer.color)
    styles = {}
    for column, names in columns.items():
        colors = (GREY, *reversed(COLORS)) if column in behind else COLORS
        for n, name in enumerate(names):
            styles[column, name] = Style(colors[n % len(colors)], n // 6)
    return styles
