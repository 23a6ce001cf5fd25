"""Labels that several annotators gave to the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noiseproof.core.arrays import Array, Floats, Ints
from noiseproof.core.messages import Brief


@dataclass(frozen=True, eq=False, repr=False)
class Votes(Brief):
    """V labels that A annotators gave to N rows, sorted by row; memory is that of the labels, not
    of N × A.

    >>> votes = Votes.of_table([[0, 1, 1], [-1, 2, -1]], names=["ann", "bob", "cid"])
    >>> len(votes), votes.row, votes.annotator, votes.label
    (2, array([0, 0, 0, 1]), array([0, 1, 2, 1]), array([0, 1, 1, 2]))
    """

    row: Ints  # (V,)
    annotator: Ints  # (V,)
    label: Ints  # (V,)
    num_rows: int
    names: tuple[str, ...]  # (A,)

    def __post_init__(self) -> None:
        if len(self.row) and (
            np.any(np.diff(self.row) < 0) or self.row[0] < 0 or self.row[-1] >= self.num_rows
        ):
            raise ValueError(
                f"Expected votes sorted by row, rows from 0 to {self.num_rows - 1}, got others."
            )

    @classmethod
    def of_table(cls, table: Any, names: Sequence[str] | None = None) -> Votes:
        """Of a table (N, A) of class numbers, −1 where an annotator gave none; ``names`` are by
        default 0, 1, …
        """
        labels = np.asarray(table)
        if (
            labels.ndim != 2
            or labels.dtype.kind not in "iu"
            or {"annotator", "label"} <= {*getattr(table, "columns", ())}
        ):
            raise ValueError(
                "Expected a table (N, A) of class numbers, a column for each annotator, -1 where"
                f" one gave none, got {labels.dtype} of shape {labels.shape}. Lines of row,"
                " annotator and label are `annotations` of `noiseproof.audit.read_rows`, whose"
                " `annotators` are votes."
            )
        row, annotator = (labels >= 0).nonzero()
        if names is None:
            names = tuple(map(str, range(labels.shape[1])))
        votes = labels[row, annotator].astype(np.int64)
        return cls(row, annotator, votes, len(labels), tuple(map(str, names)))

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: Array) -> Votes:
        """The votes on some rows, a mask (N,) or row numbers (n,), in their order."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        first = self.first[rows]
        count = np.diff(self.first)[rows]
        ends = np.cumsum(count)
        at = np.arange(count.sum()) + np.repeat(first - ends + count, count)
        return Votes(
            np.repeat(np.arange(len(rows)), count),
            self.annotator[at],
            self.label[at],
            len(rows),
            self.names,
        )

    @property
    def first(self) -> Ints:
        """Where the votes on each row begin, (N + 1,)."""
        return np.searchsorted(self.row, np.arange(self.num_rows + 1))

    @property
    def per_row(self) -> float:
        """Votes on a row that has any, on average."""
        return len(self.row) / max(int((np.diff(self.first) > 0).sum()), 1)

    def counts(self, num_classes: int) -> Floats:
        """How many annotators gave each label to each row, (N, K): soft labels for any method."""
        cells = np.bincount(
            self.row * num_classes + self.label, minlength=self.num_rows * num_classes
        )
        return cells.reshape(self.num_rows, num_classes).astype(np.float64)

    def table(self) -> Ints:
        """The label of each annotator for each row, (N, A), −1 for none."""
        labels = np.full((self.num_rows, len(self.names)), -1)
        labels[self.row, self.annotator] = self.label
        return labels
