"""Data in memory with corrected labels: arrays, DataFrames and data sets in a copy, of other kinds
the labels alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from noiseproof.audit.correction import Cells, Correction
from noiseproof.audit.csvfile import Changes
from noiseproof.audit.described import DescribedLabels
from noiseproof.audit.files import as_words
from noiseproof.audit.labelcells import spell_labels
from noiseproof.audit.records import replaced
from noiseproof.audit.rows import Digests, digest_frame
from noiseproof.data.frames import as_frame, is_foreign_table, library_of, list_class_names
from noiseproof.data.labels import as_array
from noiseproof.data.labelsets import as_sets, join_sets, with_sets

SETS = ("matrix", "lists")  # kinds of several labels per row
SAME_KIND = ("pandas", "polars", "datasets")  # libraries whose tables are corrected as a whole


def is_table(data: Any) -> bool:
    return not isinstance(data, TorchDataset) and (
        is_foreign_table(data) or hasattr(data, "columns")
    )


def corrected_table(data: Any, correction: Correction, digests: bool) -> Any:
    """Return a table corrected in a copy: of pandas, polars or Hugging Face, or of another library
    its labels alone.

    Rows that moved are found by their ``digests``.
    """
    if type(data).__name__ == "LazyFrame":
        return corrected_table(data.collect(), correction, digests).lazy()
    library = library_of(data)
    frame = as_frame(data)
    table = data if library in SAME_KIND else frame
    audit = correction.audit
    audit.check_columns(list(frame.columns))
    label = audit.label_name
    words = None
    if correction.consensus is None:
        sets = audit.set_words(lambda name: frame[name].tolist())
        words = as_words(frame[label]) if sets is None else [word or "" for word in sets]
    now = digest_frame(frame) if digests else None
    correction = correction.found_in(now, words)
    class_names = None
    if library == "datasets" and label is not None:
        class_names = list_class_names(table.features[label])
    changes = correction.changes(
        list(frame.columns), lambda name: _stored_cells(table, name), class_names
    )
    if table is data:
        return _changed(table, changes)
    if changes.dropped or correction.rewritten:
        raise ValueError(
            "Expected a DataFrame or a Hugging Face data set to change its columns, got a"
            f" {type(data).__name__}."
        )
    if correction.consensus is not None:
        return cell_table(correction.consensus)
    copy = _changed(table, replace(changes, left_out=()))
    return copy[audit.label_columns] if audit.label_columns else copy[label].tolist()


def _stored_cells(table: Any, name: str) -> list[Any]:
    column = table[name]
    if library_of(table) == "polars":
        return list(column.to_list())
    return list(column if library_of(table) == "datasets" else column.tolist())


def _changed(table: Any, changes: Changes) -> Any:
    """Return a copy of a table with ``changes``, of the same library and types."""
    kept = [row for row in range(len(table)) if row not in changes.left_out]
    added = {name: list(column) for name, column in changes.added.items()}
    dropped = list(changes.dropped)
    if library_of(table) == "datasets":
        names = table.column_names
        for name, cells in changes.cells.items():
            values = replaced(table[name], cells)
            table = table.remove_columns(name).add_column(
                name, values, feature=table.features[name]
            )
        table = table.select_columns(names)
        for name, column in added.items():
            table = table.add_column(name, column)
        table = table.remove_columns(dropped)
        return table.select(kept) if changes.left_out else table
    if library_of(table) == "polars":
        columns = [with_values(table[name], cells) for name, cells in changes.cells.items()]
        series = type(table.to_series(0))
        new = [series(name, column) for name, column in added.items()]
        return table.with_columns(*columns, *new).drop(dropped)[kept]
    copy = table.copy()
    for name, cells in changes.cells.items():
        copy[name] = with_values(table[name], cells)
    for name, column in added.items():
        copy[name] = as_column(column).set_axis(table.index)
    copy = copy.drop(columns=dropped)
    return copy.iloc[kept] if changes.left_out else copy


def corrected_labels(
    labels: Any,
    correction: Correction,
    digest: Callable[[list[str]], Digests] | None = None,
) -> Any:
    """Return a copy of labels without a table: an array, a tensor, a list, a Series, a matrix, or
    lists.

    ``digest`` returns the digests of their inputs with their words, by which rows that moved are
    found.
    """
    words = label_words(correction.audit, labels)
    return with_labels(labels, correction.found_in(digest and digest(words), words))


def label_words(described: DescribedLabels, labels: Any) -> list[str]:
    """Return labels as the audit's words, empty where there is none; of a matrix or lists, the word
    of each set.
    """
    multi = described.multi_label
    if multi.get("kind") in SETS:
        return [
            word or "" for word in join_sets(as_sets(labels, multi["labels"]), multi["separator"])
        ]
    return as_words(as_array(labels).ravel())


def with_labels(labels: Any, correction: Correction) -> Any:
    """Return a copy of labels, or of a matrix or lists of them, with the corrected ones."""
    new = correction.labels
    multi = correction.audit.multi_label
    if multi.get("kind") in SETS:
        return with_sets(labels, new, multi["separator"], multi["labels"])
    cells = list(as_array(labels).ravel())  # of dates, `tolist` would make numbers
    spelling = spell_labels(correction.audit, cells, new.values())
    return with_values(labels, {row: spelling[name] for row, name in new.items()})


def with_values(labels: Any, changes: Mapping[int, Any]) -> Any:
    """Return a copy of labels in a list, an array, a tensor or a column, with other values in some
    rows.
    """
    if library_of(labels) == "polars":
        return type(labels)(labels.name, replaced(labels.to_list(), changes), dtype=labels.dtype)
    if hasattr(labels, "iloc"):
        return _with_series_values(labels, changes)
    plain = {
        row: value.item() if isinstance(value, (np.generic, Tensor)) else value
        for row, value in changes.items()
    }
    if isinstance(labels, (list, tuple)):
        return type(labels)(replaced(labels, plain))
    if isinstance(labels, Tensor):
        copy = labels.clone()
        for row, value in plain.items():
            copy.view(-1)[row] = value
        return copy
    array = np.asarray(labels)
    cells = replaced(array.ravel(), changes)
    # Words may need more room than before; numbers keep their type.
    written = np.array(cells, dtype=None if array.dtype.kind in "US" else array.dtype)
    return written.astype(np.promote_types(written.dtype, array.dtype)).reshape(array.shape)


def _with_series_values(labels: Any, changes: Mapping[int, Any]) -> Any:
    dtype = labels.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        new = sorted({*changes.values()} - {*dtype.categories})
        dtype = pd.CategoricalDtype([*dtype.categories, *new], dtype.ordered)
    return pd.Series(replaced(labels.tolist(), changes), labels.index, dtype, name=labels.name)


def cell_table(cells: Cells) -> Any:
    """Return the consensus of annotators as a table of pandas, with the numbers of the rows."""
    count = len(next(iter(cells.values())))
    return pd.DataFrame(
        {"row": range(count), **{name: as_column(column) for name, column in cells.items()}}
    )


def as_column(cells: Sequence[Any]) -> Any:
    """Return cells as a column of pandas, whole numbers as such also with gaps."""
    has_gaps = any(cell is None for cell in cells)
    are_numbers = all(cell is None or isinstance(cell, int) for cell in cells)
    return pd.Series(list(cells), dtype="Int64" if has_gaps and are_numbers else None)
