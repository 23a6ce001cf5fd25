"""Data in memory: of other libraries as what the sources read, and back with corrected labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from noiseproof.audit.files import as_words
from noiseproof.audit.labelcells import check_columns, label_name, set_words, spell_labels
from noiseproof.audit.records import replaced
from noiseproof.audit.rows import Digests, digest_frame
from noiseproof.audit.sets import as_sets, join_sets, with_sets
from noiseproof.core.messages import preview
from noiseproof.data.arrays import DatasetInputs, hf_roles, read_pairs, stack_inputs
from noiseproof.data.frames import as_frame, is_foreign_table, library_of, list_class_names
from noiseproof.data.pictures import PRETRAINED, THUMBNAIL, EfficientNetFeatures

if TYPE_CHECKING:
    from noiseproof.audit.correction import Cells, Correction
    from noiseproof.audit.csvfile import Changes
    from noiseproof.audit.files import Audit

INPUTS = ("x", "X", "features", "embeddings", "data")
LABELS = ("y", "labels", "label", "given", "targets")
TEXT, LABEL = "text", "label"  # columns of a table that is made from texts and labels
LARGEST, MOST_BYTES = 224, 2**31  # pixels of a side, and bytes of all pictures that are read into memory


@dataclass(frozen=True, eq=False)
class InMemory:
    """Arguments of ``read_rows`` that describe data in memory."""

    data: Any
    labels: Any = None
    label: Any = None
    text: Any = None
    classes: Sequence[str] | None = None
    labels_key: str | None = None  # the column of a data set, or the key of a dict, that has the labels
    features: str | None = None  # by which pictures and texts are to be seen


def adapt(given: InMemory, *, has_annotators: bool) -> InMemory:
    """Return data of any kind as a DataFrame, an array, a sparse matrix or a Tensor, with its labels and classes."""
    data = given.data
    if library_of(data) == "datasets":
        return _from_hugging_face(given, has_annotators)
    if isinstance(data, TorchDataset):
        return _from_torch(given)
    if isinstance(data, dict) and given.label is None and not has_annotators:
        return _from_dict(given)
    if _are_texts(data) and given.labels is not None:
        return _table(given, as_frame({TEXT: list(data)}), TEXT)
    if is_foreign_table(data) or hasattr(data, "columns"):
        return _table(given, as_frame(data), given.text)
    return given


def _are_texts(data: Any) -> bool:
    """Whether ``data`` is a sequence of words: a list, or an array or a column of one dimension."""
    if not hasattr(data, "__len__") or getattr(data, "ndim", 1) != 1 or not len(data):
        return False
    is_column = library_of(data) in ("pandas", "polars", "pyarrow") and not hasattr(data, "columns")
    if not isinstance(data, (list, tuple, np.ndarray)) and not is_column:
        return False
    first: Any = next((value for value in data if value is not None), None)
    return isinstance(first.as_py() if hasattr(first, "as_py") else first, str)


def _table(given: InMemory, frame: Any, text: Any) -> InMemory:
    """Return a DataFrame; ``labels`` beside it become a column."""
    if given.labels is None or given.label is not None:
        return replace(given, data=frame, text=text)
    labels = _as_array(given.labels)
    if labels.ndim != 1 or len(labels) != len(frame):
        raise ValueError(f"Expected `labels` of shape ({len(frame)},), one for each row, got {labels.shape}.")
    if hasattr(given.labels, "iloc") and hasattr(given.data, "iloc"):
        check_order(given.labels, given.data, "labels")
    name = getattr(given.labels, "name", None) or LABEL
    if name in frame.columns:
        raise ValueError(f"Expected `labels` beside columns with other names, got {name!r} in both. Use `label`.")
    column = labels if hasattr(given.labels, "iloc") or isinstance(given.labels, Tensor) else given.labels
    return replace(given, data=frame.assign(**{str(name): column}), labels=None, label=str(name), text=text)


def check_order(table: Any, rows: Any, name: str) -> None:
    """Refuse a table whose index has the same values as that of ``rows`` (0, 1, … without one) in another order."""
    index = table.index.tolist()
    expected = rows.index.tolist() if hasattr(rows, "iloc") else list(range(len(index)))
    if index != expected and len(index) == len(expected) and {*index} == {*expected}:
        raise ValueError(
            f"Expected the rows of `{name}` in the order of the data, its index has them in another. Sort them with "
            f"`{name}.loc[…]` by the index of the data, or, if they are in order, pass `{name}.to_numpy()`."
        )


def _from_torch(given: InMemory) -> InMemory:
    """Return all items (x, y) of a torch ``Dataset``: pictures of PIL as thumbnails, texts as a table."""
    if given.labels is not None:
        raise ValueError("Expected no `labels` beside a torch Dataset of (x, y).")
    names = getattr(given.data, "classes", None)
    classes = given.classes or (list(map(str, names)) if isinstance(names, (list, tuple)) else None)
    x, labels = read_pairs(given.data, _picture_side(given), "squash")
    if isinstance(x, list):
        return _table(InMemory(None, labels, classes=classes), as_frame({TEXT: x}), TEXT)
    return InMemory(x, labels, classes=classes)


def _picture_side(given: InMemory, column: int | str = 0) -> int:
    """Return the pixels of a side that the pictures of PIL in a dataset are scaled to: as a model sees them."""
    name = given.features or (PRETRAINED if EfficientNetFeatures.is_available() else "patches")
    if name.partition(":")[0] in ("patches", "pixels") or not hasattr(given.data, "__len__"):
        return THUMBNAIL
    first = given.data[0][column]
    count = max(len(given.data), 1)
    sides = getattr(first, "size", None)
    native = max(THUMBNAIL, min(sides)) if isinstance(sides, tuple) else LARGEST
    return max(THUMBNAIL, min(native, LARGEST, int((MOST_BYTES / 3 / count) ** 0.5)))


def _from_hugging_face(given: InMemory, has_annotators: bool) -> InMemory:
    """Return a Hugging Face ``Dataset`` with the names of its classes: images as thumbnails, else a table."""
    if not is_foreign_table(given.data) or (has_annotators and given.label is None):
        return InMemory(as_frame(given.data), given.labels, None, given.text, given.classes)
    roles = hf_roles(given.data, given.label, None, given.text, None)
    classes = given.classes or roles.classes or list_class_names(given.data.features[roles.label])
    if roles.image is not None:
        side = _picture_side(given, roles.image)
        pictures = DatasetInputs(given.data, roles.image, torch.arange(len(given.data)), side, "squash")
        x = stack_inputs(pictures[i] for i in range(len(pictures)))
        labels = as_frame(given.data.select_columns([roles.label]))[roles.label].to_numpy(dtype=object)
        return InMemory(x, labels, classes=classes, labels_key=roles.label)
    is_text_alone = {*given.data.column_names} == {roles.label, roles.text}
    text = given.text or (roles.text if is_text_alone else None)
    return InMemory(as_frame(given.data), given.labels, roles.label, text, classes)


def _from_dict(given: InMemory) -> InMemory:
    """Return the inputs and labels in a dict of arrays, by the names that a .npz file may have."""
    key, labels_key = (next((name for name in names if name in given.data), None) for names in (INPUTS, LABELS))
    if key is None or (labels_key is None and given.labels is None):
        raise ValueError(
            f"Expected inputs called {' or '.join(INPUTS)} and labels called {' or '.join(LABELS)} in the dict, or "
            f"columns of a table and the name of its `label`, got {preview(list(given.data))}."
        )
    labels = given.labels if given.labels is not None else given.data[labels_key]
    inner = adapt(InMemory(given.data[key], labels, None, None, given.classes), has_annotators=False)
    return InMemory(inner.data, inner.labels, inner.label, inner.text, inner.classes, labels_key)


# Corrected copies

SETS = ("matrix", "lists")  # kinds of several labels a row
SAME_KIND = ("pandas", "polars", "datasets")  # libraries whose tables are corrected as a whole


def is_table(data: Any) -> bool:
    return not isinstance(data, TorchDataset) and (is_foreign_table(data) or hasattr(data, "columns"))


def corrected_table(audit: Audit, data: Any, correction: Correction, digests: bool) -> Any:
    """Return a table corrected in a copy: of pandas, polars or Hugging Face, or of another library its labels alone.

    Rows that moved are found by their ``digests``.
    """
    library = library_of(data)
    if type(data).__name__ == "LazyFrame":
        return corrected_table(audit, data.collect(), correction, digests).lazy()
    is_whole = library in SAME_KIND
    table = data if is_whole else as_frame(data)
    frame = as_frame(table)
    check_columns(audit.config, list(frame.columns))
    label = label_name(audit.config)
    words = None
    if correction.consensus is None:
        sets = set_words(audit.config, lambda name: frame[name].tolist())
        words = as_words(frame[label]) if sets is None else [word or "" for word in sets]
    audit, correction = correction.found_in(audit, digest_frame(frame) if digests else None, words)
    class_names = list_class_names(table.features[label]) if library == "datasets" and label is not None else None
    changes = correction.changes(audit, list(frame.columns), lambda name: _stored_cells(table, name), class_names)
    if is_whole:
        return _changed(table, changes)
    if changes.dropped or correction.rewritten:
        raise ValueError(
            f"Expected a DataFrame or a Hugging Face data set to change its columns, got a {type(data).__name__}."
        )
    if correction.consensus is not None:
        return cell_table(correction.consensus)
    copy = _changed(table, replace(changes, left_out=()))
    columns = (audit.config.get("multi_label") or {}).get("columns")
    return copy[columns] if columns else copy[label].tolist()


def _stored_cells(table: Any, name: str) -> list[Any]:
    if library_of(table) == "polars":
        return list(table[name].to_list())
    return list(table[name]) if library_of(table) == "datasets" else list(table[name].tolist())


def _changed(table: Any, changes: Changes) -> Any:
    """Return a copy of a table with ``changes``, of the same library and types."""
    kept = [row for row in range(len(table)) if row not in changes.left_out]
    added = {name: list(column) for name, column in changes.added.items()}
    dropped = list(changes.dropped)
    if library_of(table) == "datasets":
        names = table.column_names
        for name, cells in changes.cells.items():
            values = replaced(table[name], cells)
            table = table.remove_columns(name).add_column(name, values, feature=table.features[name])
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
    audit: Audit, labels: Any, correction: Correction, digest: Callable[[list[str]], Digests] | None = None
) -> Any:
    """Return a copy of labels without a table: an array, a tensor, a list, a Series, a matrix, or lists.

    ``digest`` returns the digests of their inputs with their words, by which rows that moved are found.
    """
    words = label_words(audit.config, labels)
    audit, correction = correction.found_in(audit, digest and digest(words), words)
    return with_labels(audit, labels, correction.labels)


def label_words(config: Mapping[str, Any], labels: Any) -> list[str]:
    """Return labels as the audit's words, empty where there is none; of a matrix or lists, the word of each set."""
    multi = config.get("multi_label") or {}
    if multi.get("kind") in SETS:
        return [word or "" for word in join_sets(as_sets(labels, multi["labels"]), multi["separator"])]
    return as_words(_as_array(labels).ravel())


def with_labels(audit: Audit, labels: Any, new: Mapping[int, str]) -> Any:
    """Return a copy of labels, or of a matrix or lists of them, with ``new`` ones in some rows."""
    multi = audit.config.get("multi_label") or {}
    if multi.get("kind") in SETS:
        return with_sets(labels, new, multi["separator"], multi["labels"])
    cells = list(_as_array(labels).ravel())  # of dates, `tolist` would make numbers
    spelling = spell_labels(audit, cells, new.values())
    return with_values(labels, {row: spelling[name] for row, name in new.items()})


def _as_array(labels: Any) -> Any:
    return np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)


def with_values(labels: Any, changes: Mapping[int, Any]) -> Any:
    """Return a copy of labels in a list, an array, a tensor or a column, with other values in some rows."""
    if library_of(labels) == "polars":
        return type(labels)(labels.name, replaced(labels.to_list(), changes), dtype=labels.dtype)
    if hasattr(labels, "iloc"):
        return _with_series_values(labels, changes)
    if isinstance(labels, Tensor):
        copy = labels.clone()
        for row, value in changes.items():
            copy.view(-1)[row] = value.item() if hasattr(value, "item") else value
        return copy
    if isinstance(labels, (list, tuple)):
        plain = {row: value.item() if isinstance(value, np.generic) else value for row, value in changes.items()}
        return type(labels)(replaced(labels, plain))
    array = np.asarray(labels)
    cells = replaced(array.ravel(), changes)
    # Words may need more room than before; numbers keep their type.
    written = np.array(cells, dtype=None if array.dtype.kind in "US" else array.dtype)
    return written.astype(np.promote_types(written.dtype, array.dtype)).reshape(array.shape)


def _with_series_values(labels: Any, changes: Mapping[int, Any]) -> Any:
    import pandas as pd

    dtype = labels.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        new = sorted({*changes.values()} - {*dtype.categories})
        dtype = pd.CategoricalDtype([*dtype.categories, *new], dtype.ordered)
    return pd.Series(replaced(labels.tolist(), changes), labels.index, dtype, name=labels.name)


def cell_table(cells: Cells) -> Any:
    """Return the consensus of annotators as a table of pandas, with the numbers of the rows."""
    import pandas as pd

    count = len(next(iter(cells.values())))
    return pd.DataFrame({"row": range(count), **{name: as_column(column) for name, column in cells.items()}})


def as_column(cells: Sequence[Any]) -> Any:
    """Return cells as a column of pandas, whole numbers as such beside gaps."""
    import pandas as pd

    has_gaps = any(cell is None for cell in cells)
    are_numbers = all(cell is None or isinstance(cell, int) for cell in cells)
    return pd.Series(list(cells), dtype="Int64" if has_gaps and are_numbers else None)
