"""Labels of a source, read with gaps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from noiseproof.core.arrays import Bools, Ints
from noiseproof.data.labels import encode_labels, read_labels


def is_missing(values: Any) -> Bools:
    """Return where there is no value, (N,): None, NaN, or only spaces."""
    import pandas as pd

    column = values if isinstance(values, pd.Series) else pd.Series(values)
    absent = column.isna()
    if column.dtype.kind not in "biufMm":
        absent |= column.astype(str).str.strip() == ""
    return np.asarray(absent.to_numpy(dtype=bool))


def encode_given(
    values: Any, classes: Sequence[str] | None, name: str, known: Sequence[str] | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Return class numbers (N,), −1 where there is no label, and class names: ``known``, else
    ``classes``, else sorted.

    Numbers are positions in ``classes`` where the user named them.
    """
    import pandas as pd

    absent = is_missing(values) if values.ndim == 1 else np.zeros(len(values), dtype=bool)
    if absent.all():
        raise ValueError(f"Expected labels in `{name}`, got none in any of {len(absent)} rows.")
    present = values[~absent]
    if classes is not None:
        _check_positions(present, classes, name)
    place: Any = slice(None)
    if isinstance(present.dtype, pd.StringDtype):  # each word once: less time and memory
        place, present = pd.factorize(present)
    codes, names = encode_labels(
        present, known or classes, positions=classes is not None, name=name
    )
    given = np.full(len(absent), -1)
    given[~absent] = codes.numpy()[place]
    return given, names


def _check_positions(values: Any, classes: Sequence[str], name: str) -> None:
    """Refuse whole numbers that are the names of classes at other positions; words are looked up by
    name.
    """
    if isinstance(next(iter(values), None), (str, bytes)):
        return
    numbers = {str(value) for value in read_labels(values, name).tolist()}
    class_at = {str(k): str(c) for k, c in enumerate(classes)}
    if numbers <= {*class_at.values()} and (
        odd := [number for number in numbers if class_at.get(number) != number]
    ):
        raise ValueError(
            f"Expected whole numbers in `{name}` to be names or positions in `classes`, got"
            f" {min(odd)}, which is the name of one class and the position of another. Save the"
            " labels as words, which are looked up by name."
        )


def column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a DataFrame, None if it has only 0, 1, … as pandas names
    them, or is none.
    """
    names = list(getattr(table, "columns", ()))
    return None if list(map(str, names)) == list(map(str, range(len(names)))) else names
