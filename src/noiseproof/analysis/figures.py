"""What a figure is, and all figures of a set of runs.

A figure is a tidy table, a description of how its columns are drawn, and one sentence on how to
read it: a function that returns the table in a module of ``before``, ``during`` or ``after``,
decorated with :func:`figure`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noiseproof.analysis.runs import RunFolder, Runs, open_runs, seeds_of
from noiseproof.core.checks import check_word
from noiseproof.core.messages import Progress
from noiseproof.core.registry import near_names

T = TypeVar("T")
Kind = Literal["line", "points", "bars", "area", "heat", "contour", "surface"]
READABLE = "a run whose data and weights can be read"
STAGES = {"before": "Before training", "during": "During training", "after": "After training"}
MODULES = (  # in the order of a page
    "before.losses",
    "before.logistic_normal",
    "before.nce",
    "during.curves",
    "during.samples",
    "during.variants",
    "after.predictions",
    "after.calibration",
    "after.cost",
    "after.features",
    "after.landscape",
)


@dataclass(frozen=True)
class Layer:
    """Columns of a figure's data as marks; each value of ``color`` is a series that can be switched
    off.

    Series whose ``y`` (or ``z``) is empty throughout are left out, so layers may use different
    columns of one table.
    """

    kind: Kind
    x: str
    y: str
    color: str | None = None
    z: str | None = None  # what heat, contour and surface show
    low: str | None = None  # a band around y
    high: str | None = None
    dash: str | None = None  # a column; each value gets a line style
    label: str | None = None  # name in the legend of a layer without color


@dataclass(frozen=True, eq=False)  # tables do not compare
class Figure:
    """A table and how to draw it."""

    name: str  # unique on a page: "loss-weights"
    title: str
    reading: str  # one sentence: what to look for
    paper: str  # the figures it reproduces: "curriculum paper, Figs. 2, 5-8"
    data: pd.DataFrame  # tidy: one row per mark
    layers: tuple[Layer, ...]
    x_label: str
    y_label: str
    panel: str | None = None  # a column; each value gets a panel
    log_x: bool = False
    log_y: bool = False
    share_y: bool = True  # between panels
    stack: bool = False  # areas of one panel on top of each other
    equal: bool = False  # one unit has the same length on both axes
    stage: str = ""  # section of a page: "During training"


@dataclass(frozen=True)
class MissingFigure:
    """A figure whose data was not recorded."""

    name: str
    title: str
    paper: str
    needs: str  # what records it: "noiseproof train --samples", and what runs lack
    stage: str = ""


class Needs(Exception):
    """Raised by a figure's function when its data was not recorded; says what records it."""


class Subjects(dict[str, T]):
    """What figures are made of, by run; ``note`` is a sentence for the reader on runs that are left
    out.
    """

    def __init__(self, subjects: Mapping[str, T], note: str = "") -> None:
        super().__init__(subjects)
        self.note = note


@dataclass(frozen=True, eq=False)
class FigureMaker(Generic[T]):
    """A registered figure: called with its subject, it returns the figure, or None where there is
    nothing to show.
    """

    make: Callable[[T], pd.DataFrame | None]
    subject: Callable[[Runs], T]  # what ``make`` takes, from runs
    fields: dict[str, Any]  # of the figure

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    def __call__(self, subject: T) -> Figure | MissingFigure | None:
        try:
            data = self.make(subject)
        except Needs as needs:
            return self.missing(needs)
        if data is None:
            return None
        reading = self.fields["reading"] + getattr(subject, "note", "")
        return Figure(**self.fields | {"reading": reading}, data=data)

    def missing(self, needs: Needs) -> MissingFigure:
        """Return the figure without its data."""
        about = {key: self.fields[key] for key in ("title", "paper", "stage")}
        return MissingFigure(self.name, needs=str(needs), **about)


def figure(
    name: str,
    title: str,
    *layers: Layer,
    subject: Callable[[Runs], T],
    axes: tuple[str, str] = ("", ""),
    **fields: Any,
) -> Callable[[Callable[[T], pd.DataFrame | None]], FigureMaker[T]]:
    """Make a figure of a function that returns its table.

    The function may return None for no figure, or raise :class:`Needs`.

    Args:
        name: unique among all figures.
        subject: computes the argument of the function from runs; figures with the same one share
            its result.
        axes: the labels of the x and the y axis.
        fields: of :class:`Figure`.
    """

    def register(make: Callable[[T], pd.DataFrame | None]) -> FigureMaker[T]:
        stage = STAGES.get(
            make.__module__.removeprefix("noiseproof.analysis.").partition(".")[0], ""
        )
        labels = {"x_label": axes[0], "y_label": axes[1]}
        about = {"name": name, "title": title, "layers": layers, "stage": stage}
        options = about | labels | fields
        Figure(**options, data=pd.DataFrame())  # refuses unknown fields
        return FigureMaker(make, subject, options)

    return register


@cache
def figure_makers() -> tuple[FigureMaker[Any], ...]:
    """Return all registered figures, in the order of a page."""
    modules = [import_module(f"noiseproof.analysis.{name}") for name in MODULES]
    makers = [(module, value) for module in modules for value in vars(module).values()]
    return tuple(
        m
        for module, m in makers
        if isinstance(m, FigureMaker) and m.make.__module__ == module.__name__
    )


def collect(
    runs: Runs | Sequence[str | Path],
    *,
    only: Sequence[str] = (),
    stage: str | None = None,
    progress: Progress | None = None,
) -> list[Figure | MissingFigure]:
    """Return all figures of a set of runs; a figure without data says what records it.

    Args:
        runs: folders of runs, or the result of ``open_runs``.
        only: names of figures.
        stage: ``before``, ``during`` or ``after`` training, by default all of them.
        progress: called with the name of the next figure, how many are done, and how many there
            are.
    """
    opened = runs if isinstance(runs, Mapping) else open_runs(runs)
    if not opened:
        raise ValueError("Expected the folder of at least one run, got none.")
    makers = [maker for maker in figure_makers() if maker.name in _chosen(only)]
    if stage is not None:
        section = STAGES[check_word("stage", stage, STAGES)]
        makers = [maker for maker in makers if maker.fields["stage"] == section]
    subjects: dict[Any, Any] = {}
    figures = []
    for number, maker in enumerate(makers):
        if progress is not None:
            progress(maker.name, number, len(makers))
        drawn = _make(maker, opened, subjects)
        if drawn is not None:
            figures.append(drawn)
    if progress is not None:
        progress("", len(makers), len(makers))
    return figures


def _chosen(only: Sequence[str]) -> Sequence[str]:
    known = [maker.name for maker in figure_makers()]
    for name in only:
        if name not in known:
            raise ValueError(f"Unknown figure {name!r}. {near_names(name, known)}")
    return only or known


def _make(
    maker: FigureMaker[Any], runs: Runs, subjects: dict[Any, Any]
) -> Figure | MissingFigure | None:
    """Return the figure of ``runs``; ``subjects`` has those so far, or why there is none."""
    if maker.subject not in subjects:
        try:
            subjects[maker.subject] = maker.subject(runs)
        except Needs as needs:
            subjects[maker.subject] = needs
    subject = subjects[maker.subject]
    return maker.missing(subject) if isinstance(subject, Needs) else maker(subject)


# Shared by figures


def all_runs(runs: Runs) -> Runs:
    """Return the subject of figures that show every run."""
    return runs


def first_seeds(runs: Runs) -> Subjects[RunFolder]:
    """Return the subject of figures that show samples: of runs that differ only in their seed, the
    one with the smallest.
    """
    groups = seeds_of(runs)
    note = ""
    if any(len(group) > 1 for group in groups.values()):
        note = " Of several seeds only the smallest is shown."
    return Subjects(
        {name: min(group, key=lambda run: run.seed) for name, group in groups.items()}, note
    )


def each(runs: Runs, make: Callable[[RunFolder], T], *, needs: str = "") -> Subjects[T]:
    """Return ``make(run)`` of every run that has the data for it; the note names the others and
    what they lack.

    If no run has it and ``needs`` says what does, raises :class:`Needs` with both.
    """
    made: dict[str, T] = {}
    causes: dict[str, list[str]] = {}  # in a sweep most runs lack the same
    for name, run in runs.items():
        try:
            made[name] = make(run)
        except (ValueError, OSError) as error:
            causes.setdefault(str(error).replace(str(run.folder), "its folder"), []).append(name)
    lacking = ""
    for why, names in causes.items():
        who = " and ".join(names) if len(names) < 4 else f"{len(names)} of {len(runs)} runs"
        lacking += f" Without {who}: {why}"
    if needs and not made:
        raise Needs(f"{needs}.{lacking}")
    return Subjects(made, lacking)


def stack(
    tables: Mapping[Any, pd.DataFrame], column: str = "method", *, needs: str = ""
) -> pd.DataFrame:
    """Return the tables as one, with their names in ``column``; raise :class:`Needs` if there are
    none.
    """
    if not tables:
        raise Needs(needs)
    table: pd.DataFrame = (
        pd.concat(tables, names=[column]).reset_index(level=0).reset_index(drop=True)
    )
    return table


def histogram(
    values: NDArray[Any], groups: Mapping[str, NDArray[Any]], edges: NDArray[Any], name: str
) -> pd.DataFrame:
    """Return counts and densities of the finite ``values`` (N,) in each group (N,) of rows.

    Returns ``labels`` (the group), ``name`` (the middle of a bin), ``low``, ``high``, ``samples``
    and ``density``, whose integral is one in each group.
    """
    tables = []
    middles = (edges[:-1] + edges[1:]) / 2
    widths = np.diff(edges)
    for group, member in groups.items():
        counts = np.histogram(values[member & np.isfinite(values)], edges)[0]
        columns = {
            "labels": group,
            name: middles,
            "low": edges[:-1],
            "high": edges[1:],
            "samples": counts,
        }
        tables.append(pd.DataFrame(columns | {"density": counts / (max(1, counts.sum()) * widths)}))
    return pd.concat(tables, ignore_index=True)
