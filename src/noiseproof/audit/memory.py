"""Data in memory: of other libraries as what the sources read, and back with corrected labels in the same kind."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset

from noiseproof.audit.files import as_words
from noiseproof.audit.records import replaced, with_cells
from noiseproof.audit.sets import list_cells, split_among
from noiseproof.core.messages import preview
from noiseproof.data.arrays import DatasetInputs, hf_roles, read_pairs, stack_inputs
from noiseproof.data.frames import as_frame, is_foreign_table, library_of, list_class_names
from noiseproof.data.pictures import PRETRAINED, THUMBNAIL, EfficientNetFeatures

INPUTS, LABELS = ("x", "X", "features", "embeddings", "data"), ("y", "labels", "label", "given", "targets")
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
        return InMemory(frame, given.labels, given.label, text, given.classes)
    labels = np.asarray(given.labels.detach().cpu() if isinstance(given.labels, Tensor) else given.labels)
    if labels.ndim != 1 or len(labels) != len(frame):
        raise ValueError(f"Expected `labels` of shape ({len(frame)},), one for each row, got {labels.shape}.")
    if hasattr(given.labels, "iloc") and hasattr(given.data, "iloc"):
        check_order(given.labels, given.data, "labels")
    name = getattr(given.labels, "name", None) or LABEL
    if name in frame.columns:
        raise ValueError(f"Expected `labels` beside columns with other names, got {name!r} in both. Use `label`.")
    column = labels if hasattr(given.labels, "iloc") or isinstance(given.labels, Tensor) else given.labels
    return InMemory(frame.assign(**{str(name): column}), None, str(name), text, given.classes)


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
        return _table(InMemory(None, labels, None, None, classes), as_frame({TEXT: x}), TEXT)
    return InMemory(x, labels, classes=classes)


def _picture_side(given: InMemory, column: int | str = 0) -> int:
    """Return the pixels of a side that the pictures of PIL in a dataset are scaled to: as a model sees them."""
    name = given.features or (PRETRAINED if EfficientNetFeatures.is_available() else "patches")
    if name.partition(":")[0] in ("patches", "pixels") or not hasattr(given.data, "__len__"):
        return THUMBNAIL
    first, count = given.data[0][column], max(len(given.data), 1)
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


def columns_of(data: Any) -> list[Any] | None:
    """Return the names of the columns of a table or of a dict, None for labels alone."""
    if isinstance(data, TorchDataset) or not (is_foreign_table(data) or hasattr(data, "columns")):
        return None
    if library_of(data) in ("pyarrow", "datasets"):
        return list(data.schema.names if library_of(data) == "pyarrow" else data.column_names)
    if type(data).__name__ == "LazyFrame":
        return list(data.collect_schema().names())
    return list(data) if isinstance(data, dict) else list(as_frame(data).columns)


def label_cells(data: Any, label: Any) -> tuple[list[Any], list[str]]:
    """Return the labels in ``data`` as it stores them, and as the audit's words; ``label`` is their column, if any."""
    if isinstance(data, TorchDataset):
        labels = read_pairs(data, None, "crop", lazy=True)[1]
        values = np.asarray(labels)
        return list(values), as_words(values)
    if label is None:
        values = np.asarray(data.detach().cpu() if isinstance(data, Tensor) else data)
        return list(values.ravel()), as_words(values.ravel())  # of dates, `tolist` would make numbers
    if isinstance(data, dict):
        return label_cells(data[label], None)
    frame = as_frame(data)
    if library_of(data) == "datasets":
        return list(data[label]), as_words(frame[label])
    return frame[label].tolist(), as_words(frame[label])


def with_label_cells(data: Any, label: Any, changes: Mapping[int, Any]) -> Any:
    """Return a copy of ``data``, of the same kind and types, with other labels in some rows."""
    library = library_of(data)
    if isinstance(data, TorchDataset):
        return Relabelled(data, changes)
    if label is None:
        return _with_values(data, changes)
    if isinstance(data, dict):
        return {**data, label: _with_values(data[label], changes)}
    if isinstance(data, list):
        return [{**row, label: changes[i]} if i in changes else row for i, row in enumerate(data)]
    if library == "datasets":
        values = replaced(data[label], changes)
        copy = data.remove_columns(label).add_column(label, values, feature=data.features[label])
        return copy.select_columns(data.column_names)
    if library == "pyarrow":
        if type(data).__name__ == "Table":
            return with_cells(data, label, changes)
        table = type(data.schema.empty_table()).from_batches([data])
        return with_cells(table, label, changes).combine_chunks().to_batches()[0]
    if library == "polars":
        frame = data.collect() if type(data).__name__ == "LazyFrame" else data
        copy = frame.with_columns(_with_values(frame[label], changes))
        return copy.lazy() if frame is not data else copy
    copy = data.copy()
    copy[label] = _with_values(data[label], changes)
    return copy


def _with_values(labels: Any, changes: Mapping[int, Any]) -> Any:
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

    cells, dtype = replaced(labels.tolist(), changes), labels.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        new = sorted({*changes.values()} - {*dtype.categories})
        dtype = pd.CategoricalDtype([*dtype.categories, *new], dtype.ordered)
    return pd.Series(cells, labels.index, dtype, name=labels.name)


def hugging_face_cells(data: Any, label: str, words: Mapping[int, str], separator: str) -> dict[int, Any]:
    """Lists of labels for a column of a Hugging Face data set, by row, as numbers where it has those of class names."""
    names = list_class_names(data.features[label])
    if names is None:
        return list_cells(list(data[label]), words, separator)
    place = f"the class names of {label!r}"
    sets = split_among(words, separator, names, place, "Add them with `cast_column`")
    return {row: [names.index(name) for name in each] for row, each in sets.items()}


def without_rows(data: Any, left_out: Collection[int]) -> Any:
    """Return a table or a data set without some rows; labels alone stay whole, as their places mean inputs."""
    is_table = is_foreign_table(data) or hasattr(data, "columns") or isinstance(data, TorchDataset)
    if not left_out or not is_table:
        return data
    library = library_of(data)
    if type(data).__name__ == "LazyFrame":
        return without_rows(data.collect(), left_out).lazy()
    count = len(next(iter(data.values()))) if isinstance(data, dict) else len(data)
    rows = [row for row in range(count) if row not in left_out]
    if isinstance(data, dict):
        return {name: _rows_of(values, rows) for name, values in data.items()}
    if library == "datasets":
        return data.select(rows)
    if isinstance(data, TorchDataset):
        return Subset(data, rows)
    if library == "pyarrow":
        return data.take(rows)
    return data.iloc[rows] if hasattr(data, "iloc") else _rows_of(data, rows)


def without_columns(data: Any, names: Collection[str]) -> Any:
    if isinstance(data, dict):
        return {name: values for name, values in data.items() if name not in names}
    if isinstance(data, list):
        return [{name: value for name, value in row.items() if name not in names} for row in data]
    library = library_of(data)
    if library == "datasets":
        return data.remove_columns(list(names))
    if library == "pyarrow":
        return data.drop_columns(list(names))
    return data.drop(list(names)) if library == "polars" else data.drop(columns=list(names))


def with_columns(data: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a copy of a table with new columns, None for gaps."""
    if isinstance(data, dict):
        return {**data, **{name: list(cells) for name, cells in columns.items()}}
    if isinstance(data, list):
        return [{**row, **{name: cells[i] for name, cells in columns.items()}} for i, row in enumerate(data)]
    library = library_of(data)
    if library == "datasets":
        for name, cells in columns.items():
            data = data.add_column(name, list(cells))
        return data
    if library == "pyarrow":
        for name, cells in columns.items():
            data = data.append_column(name, [list(cells)])
        return data
    if library == "polars":
        frame = data.collect() if type(data).__name__ == "LazyFrame" else data
        series = type(frame.to_series(0)) if frame.width else None
        copy = frame.with_columns(*(series(name, list(cells)) for name, cells in columns.items()))  # type: ignore[misc]
        return copy.lazy() if frame is not data else copy
    return data.assign(**{name: as_column(cells).set_axis(data.index) for name, cells in columns.items()})


def as_column(cells: Sequence[Any]) -> Any:
    """Return cells as a column of pandas, whole numbers as such beside gaps."""
    import pandas as pd

    has_gaps = any(cell is None for cell in cells)
    are_numbers = all(cell is None or isinstance(cell, int) for cell in cells)
    return pd.Series(list(cells), dtype="Int64" if has_gaps and are_numbers else None)


def _rows_of(values: Any, rows: list[int]) -> Any:
    if isinstance(values, (list, tuple)):
        return type(values)(values[row] for row in rows)
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


class Relabelled(TorchDataset[tuple[Any, Any]]):
    """A torch ``Dataset`` of (x, y) with other labels in some rows."""

    def __init__(self, dataset: Any, changes: Mapping[int, Any]) -> None:
        self.dataset = dataset
        self.changes = {row: value.item() if hasattr(value, "item") else value for row, value in changes.items()}
        if hasattr(dataset, "classes"):
            self.classes = dataset.classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        x, y = self.dataset[i]
        new = self.changes.get(i % len(self.dataset), y)
        return x, torch.as_tensor(new, dtype=y.dtype) if isinstance(y, Tensor) else new
