"""Rows to judge: labels, features and all else that is known of them, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from noiseproof.core.arrays import Array, Bools, Floats, Floats32, Ints
from noiseproof.core.messages import Brief
from noiseproof.data.labelsets import Labels
from noiseproof.data.tables import FeatureTable

COLUMNS = (
    "labels",
    "row",
    "x",
    "table",
    "pred_probs",
    "similarities",
    "ids",
    "texts",
    "groups",
    "time",
    "trusted",
    "decided",
)


@dataclass(frozen=True, eq=False, repr=False)
class Skipped(Brief):
    """Rows of the source that can't be audited, and why."""

    reason: str
    rows: Ints


@dataclass(frozen=True, eq=False, repr=False)
class OtherRows(Brief):
    """The rows of a test set, with which audited rows are compared."""

    x: Floats32  # (T, D) features of the same kind as in the audit
    labels: Labels  # of T rows, by the names of the audit
    frame: Any = None  # their columns as in the source, where it is a table
    unlike: Ints | None = None  # (T,) as the audit's own


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """N rows with their labels and everything known about them; ``row`` −1 marks trusted rows from
    another file.
    """

    labels: Labels
    row: Ints  # (N,) number in the source
    source_rows: int
    x: Floats32 | None = None  # (N, D) features for networks and neighbours
    table: FeatureTable | None = None  # the same for decision trees
    pred_probs: Floats32 | None = None  # (N, K) of another model
    similarities: Floats32 | None = None  # (N, K) to descriptions of the classes
    ids: Array | None = None  # (N,) str
    texts: Array | None = None  # (N,) str, of rows that are texts
    groups: Ints | None = None  # (N,)
    time: Floats | None = None  # (N,)
    trusted: Bools | None = None  # (N,)
    # (N,): the number of the word that a reviewer decided on, −1 for none
    decided: Ints | None = None
    test: OtherRows | None = None
    has_order: bool = True  # whether the order of the rows may mean something
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # spent on reading

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, keep: Array, reason: str | None = None) -> Self:
        """Return the rows where ``keep`` is true; the others are listed as skipped for
        ``reason``.
        """
        if keep.all():
            return self
        columns = {name: getattr(self, name) for name in COLUMNS}
        arrays = {name: value[keep] for name, value in columns.items() if value is not None}
        dropped = self.row[~keep]
        skipped = (Skipped(reason, dropped[dropped >= 0]),) if reason else ()
        return replace(self, **arrays, skipped=(*self.skipped, *skipped))

    def without(self, unusable: Sequence[tuple[str, Bools]]) -> Self:
        """Return the rows outside all masks; the others are listed as skipped for the first reason
        that holds.
        """
        skipped = []
        drop = np.zeros(len(self), dtype=bool)
        for reason, mask in unusable:
            rows = self.row[mask & ~drop]
            if len(rows):
                skipped.append(Skipped(reason, rows[rows >= 0]))
            drop |= mask
        return replace(self.subset(~drop), skipped=(*self.skipped, *skipped))

    @property
    def classes(self) -> tuple[str, ...]:
        """The words of labels, (C,)."""
        return self.labels.words

    @property
    def given(self) -> Ints:
        """The number of each row's word, (N,)."""
        return self.labels.codes

    def unlike(self) -> Ints | None:
        """Numbers (N,) that differ between rows that are not duplicates, whatever their features;
        None for none.
        """
        table = self.table
        if table is None or table.fitted is None or table.frame is None:
            return None
        return table.fitted.unlike(table.frame)

    @property
    def names(self) -> Array:
        """The id of each row, (N,): its number in the source if it has none."""
        return self.row.astype(str).astype(object) if self.ids is None else self.ids
