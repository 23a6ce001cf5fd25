"""Short representations: arrays by their type and shape, never number by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

LONGEST = 60  # characters of a value


class Brief:
    """A dataclass (with ``repr=False``) whose representation is one line: arrays by type and shape, no empty fields.

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass(repr=False)
    ... class Rows(Brief):
    ...     x: np.ndarray
    ...     ids: np.ndarray | None = None
    ...     rate: float = 0.25
    >>> Rows(np.zeros((500, 3), np.float32))
    Rows(x=float32 (500, 3), rate=0.25)
    """

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        shown = (f"{name}={brief(value)}" for name, value in values.items() if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"


def brief(value: Any) -> str:
    """A value in a few words: an array by its type and shape, a long collection by its length.

    >>> brief([0] * 1000), brief("a" * 100)[-3:]
    ('list of 1000', 'aa…')
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value)
    if len(text) <= LONGEST or isinstance(value, Brief):
        return text
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return f"{type(value).__name__} of {len(value)}"
    return f"{text[: LONGEST - 1]}…"
