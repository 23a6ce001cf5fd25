"""What a figure is: tidy data, how its columns are drawn, and one sentence on how to read it.

Functions of this package return data as tables and figures made of them; ``plots`` draws a figure, in a browser or on
paper, and ``page`` gathers many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["line", "points", "bars", "area", "heat", "contour", "surface"]


@dataclass(frozen=True)
class Layer:
    """Columns of a figure's data as marks; each value of ``color`` is a series that can be switched off.

    Series whose ``y`` (or ``z``) is empty throughout are left out: each layer of a table may have columns of its own.
    """

    kind: Kind
    x: str
    y: str
    color: str | None = None
    z: str | None = None  # what heat, contour and surface show
    low: str | None = None  # a band around y
    high: str | None = None
    dash: str | None = None  # a column whose values get line styles of their own
    label: str | None = None  # what a layer without color is called in the legend


@dataclass(frozen=True, eq=False)  # tables do not compare
class Figure:
    """Something to look at, with the data it was drawn from."""

    name: str  # fixed, unique on a page: "loss-weights"
    title: str
    reading: str  # one sentence: what to see in it
    paper: str  # which figures it answers to: "curriculum paper, Figs. 2, 5-8"
    data: pd.DataFrame  # tidy: one row a mark
    layers: tuple[Layer, ...]
    x_label: str
    y_label: str
    panel: str | None = None  # a column whose values get a panel each, side by side
    log_x: bool = False
    log_y: bool = False
    share_y: bool = True  # between panels
    stack: bool = False  # bars or areas of one panel on top of each other
    equal: bool = False  # one unit is as long upward as sideways
    stage: str = ""  # the part of a page that it belongs to: "During training"


@dataclass(frozen=True)
class Missing:
    """A figure whose data was not recorded."""

    name: str
    title: str
    paper: str
    needs: str  # what records it: "noiseproof train --samples"
    stage: str = ""
