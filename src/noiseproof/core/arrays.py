"""Short names for the types of NumPy arrays, and choices of rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]


def evenly(rows: Ints, most: int) -> Ints:
    """At most ``most`` of the row numbers (n,), evenly spread."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def by_value(rows: Ints, values: Ints) -> list[Ints]:
    """Row numbers (n,) in parts of equal ``values`` (N,), in the order of these.

    >>> [part.tolist() for part in by_value(np.array([0, 1, 3]), np.array([7, 2, 2, 7]))]
    [[1], [0, 3]]
    """
    if not len(rows):
        return []
    rows = rows[np.argsort(values[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(values[rows])) + 1)
