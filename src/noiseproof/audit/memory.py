"""Data in memory, of other libraries as what the sources read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from noiseproof.core.messages import preview
from noiseproof.data.arrays import DatasetInputs, hf_roles, read_pairs, stack_inputs
from noiseproof.data.frames import as_frame, is_foreign_table, library_of, list_class_names
from noiseproof.data.labels import as_array
from noiseproof.data.pictures import PRETRAINED, THUMBNAIL, EfficientNetFeatures

INPUTS = ("x", "X", "features", "embeddings", "data")
LABELS = ("y", "labels", "label", "given", "targets")
TEXT = "text"  # the columns of a table that is made from texts and labels
LABEL = "label"
LARGEST = 224  # pixels of a side of pictures that are read into memory
MOST_BYTES = 2**31  # of all of them


@dataclass(frozen=True, eq=False)
class InMemory:
    """Arguments of ``read_rows`` that describe data in memory."""

    data: Any
    labels: Any = None
    label: Any = None
    text: Any = None
    classes: Sequence[str] | None = None
    # the column of a data set, or the key of a dict, that has the labels
    labels_key: str | None = None
    features: str | None = None  # by which pictures and texts are to be seen


def adapt(given: InMemory, *, has_annotators: bool) -> InMemory:
    """Return data of any kind as a DataFrame, an array, a sparse matrix or a Tensor, with its
    labels and classes.
    """
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
    """Return a DataFrame; separate ``labels`` become a column."""
    if given.labels is None or given.label is not None:
        return replace(given, data=frame, text=text)
    labels = as_array(given.labels)
    if labels.ndim != 1 or len(labels) != len(frame):
        raise ValueError(
            f"Expected `labels` of shape ({len(frame)},), one for each row, got {labels.shape}."
        )
    if hasattr(given.labels, "iloc") and hasattr(given.data, "iloc"):
        check_order(given.labels, given.data, "labels")
    name = getattr(given.labels, "name", None) or LABEL
    if name in frame.columns:
        raise ValueError(
            f"Expected `labels` next to columns with other names, got {name!r} in both. Use"
            " `label`."
        )
    column = (
        labels
        if hasattr(given.labels, "iloc") or isinstance(given.labels, Tensor)
        else given.labels
    )
    return replace(
        given, data=frame.assign(**{str(name): column}), labels=None, label=str(name), text=text
    )


def check_order(table: Any, rows: Any, name: str) -> None:
    """Refuse a table whose index has the same values as the index of ``rows`` (0, 1, … without one)
    in another order.
    """
    index = table.index.tolist()
    expected = rows.index.tolist() if hasattr(rows, "iloc") else list(range(len(index)))
    if index != expected and len(index) == len(expected) and {*index} == {*expected}:
        raise ValueError(
            f"Expected the rows of `{name}` in the order of the data, its index has them in"
            f" another. Sort them with `{name}.loc[…]` by the index of the data, or, if they are in"
            f" order, pass `{name}.to_numpy()`."
        )


def _from_torch(given: InMemory) -> InMemory:
    """Return all items (x, y) of a torch ``Dataset``: pictures of PIL as thumbnails, texts as a
    table.
    """
    if given.labels is not None:
        raise ValueError("Expected no `labels` with a torch Dataset of (x, y).")
    names = getattr(given.data, "classes", None)
    classes = given.classes
    if not classes and isinstance(names, (list, tuple)):
        classes = list(map(str, names))
    x, labels = read_pairs(given.data, _picture_side(given), "squash")
    if isinstance(x, list):
        return _table(InMemory(None, labels, classes=classes), as_frame({TEXT: x}), TEXT)
    return InMemory(x, labels, classes=classes)


def _picture_side(given: InMemory, column: int | str = 0) -> int:
    """Return the pixels of a side that the pictures of PIL in a dataset are scaled to: as a model
    sees them.
    """
    name = given.features or (PRETRAINED if EfficientNetFeatures.is_available() else "patches")
    if name.partition(":")[0] in ("patches", "pixels") or not hasattr(given.data, "__len__"):
        return THUMBNAIL
    first = given.data[0][column]
    count = max(len(given.data), 1)
    sides = getattr(first, "size", None)
    native = max(THUMBNAIL, min(sides)) if isinstance(sides, tuple) else LARGEST
    return max(THUMBNAIL, min(native, LARGEST, int((MOST_BYTES / 3 / count) ** 0.5)))


def _from_hugging_face(given: InMemory, has_annotators: bool) -> InMemory:
    """Return a Hugging Face ``Dataset`` with the names of its classes: images as thumbnails, else a
    table.
    """
    if not is_foreign_table(given.data) or (has_annotators and given.label is None):
        return InMemory(as_frame(given.data), given.labels, None, given.text, given.classes)
    roles = hf_roles(given.data, given.label, None, given.text, None)
    classes = given.classes or roles.classes or list_class_names(given.data.features[roles.label])
    if roles.image is not None:
        side = _picture_side(given, roles.image)
        pictures = DatasetInputs(
            given.data, roles.image, torch.arange(len(given.data)), side, "squash"
        )
        x = stack_inputs(pictures[i] for i in range(len(pictures)))
        labels = as_frame(given.data.select_columns([roles.label]))[roles.label].to_numpy(
            dtype=object
        )
        return InMemory(x, labels, classes=classes, labels_key=roles.label)
    is_text_alone = {*given.data.column_names} == {roles.label, roles.text}
    text = given.text or (roles.text if is_text_alone else None)
    return InMemory(as_frame(given.data), given.labels, roles.label, text, classes)


def _from_dict(given: InMemory) -> InMemory:
    """Return the inputs and labels in a dict of arrays, by the names that a .npz file may have."""
    key, labels_key = (
        next((name for name in names if name in given.data), None) for names in (INPUTS, LABELS)
    )
    if key is None or (labels_key is None and given.labels is None):
        raise ValueError(
            f"Expected inputs called {' or '.join(INPUTS)} and labels called {' or '.join(LABELS)}"
            " in the dict, or columns of a table and the name of its `label`, got"
            f" {preview(list(given.data))}."
        )
    labels = given.labels if given.labels is not None else given.data[labels_key]
    inner = adapt(
        InMemory(given.data[key], labels, None, None, given.classes), has_annotators=False
    )
    return InMemory(inner.data, inner.labels, inner.label, inner.text, inner.classes, labels_key)
