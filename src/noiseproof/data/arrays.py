"""A user's data as arrays, sparse matrices, a torch ``Dataset``, or a Hugging Face
``datasets.Dataset``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.arrays import Array, Bools, Floats32
from noiseproof.core.checks import check_count
from noiseproof.core.messages import preview
from noiseproof.core.tablefiles import check_column
from noiseproof.data.base import Dataset, Split
from noiseproof.data.frames import list_class_names
from noiseproof.data.images import Fit, decode, to_pixels
from noiseproof.data.labels import TrainingLabels
from noiseproof.data.tables import from_table, number_columns
from noiseproof.data.text import from_text

Pair = tuple[Any, Any]
OTHER_WAYS = (
    "Use from_table for columns of different kinds, from_text for text, .toarray() for a sparse"
    " matrix."
)
# rows of a sparse matrix that its axes are fitted to, and projected at a time
FIT_ROWS = 50_000
BLOCK = 10_000


def check_features(x: Any, name: str = "x") -> tuple[Tensor, list[str]]:
    """Return inputs as a tensor, and notes: uint8 images (N, C, H, W), all else float32 (N, …) with
    finite numbers.
    """
    if not isinstance(x, Tensor):
        x = torch.from_numpy(_array(x, name))
    if x.layout is not torch.strided or x.is_complex():
        raise TypeError(
            f"Expected dense real numbers in `{name}`, got {x.layout}, {x.dtype}. Use .to_dense()"
            " or .real."
        )
    x = x.detach().cpu()
    if x.dim() < 2 or 0 in x.shape:
        raise ValueError(
            f"Expected `{name}` of shape (N, D) or (N, C, H, W), none of them 0, got"
            f" {tuple(x.shape)}."
        )
    notes: list[str] = []
    if x.dim() == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        notes.append(f"`{name}` of shape {tuple(x.shape)} was read as images with channels last.")
        x = x.permute(0, 3, 1, 2).contiguous()
    if x.dtype is torch.uint8 and x.dim() == 3:
        return x[:, None], notes
    if x.dtype is torch.uint8 and x.dim() == 4:
        return x, notes
    numbers = x.to(torch.float32)
    are_integers = not x.is_floating_point() and x.dtype is not torch.bool
    if x.dim() == 4 and are_integers and 0 <= numbers.min() <= numbers.max() <= 255:
        return x.to(torch.uint8), notes  # pixels in wider integers than they need
    is_odd = ~torch.isfinite(numbers).flatten(1)
    odd_rows = is_odd.any(1)
    if bool(odd_rows.any()):
        row, column = is_odd.nonzero()[0].tolist()
        raise ValueError(
            f"Expected finite numbers in `{name}`, got {x.flatten(1)[row, column].item()} in column"
            f" {column} of row {row}; {int(odd_rows.sum())} of {len(x)} rows contain NaN, infinite"
            " or too large numbers. Drop these rows or fill them in."
        )
    return numbers, notes


def _array(x: Any, name: str) -> Array:
    """An array of numbers that torch can share; anything else is refused."""
    if isinstance(x, np.ma.MaskedArray):
        x = np.where(np.ma.getmaskarray(x), np.nan, x.data)
    try:
        array = np.asarray(x)
        if array.dtype == object:  # numbers of different types, or pandas' nullable ones
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Expected numbers in rows of one length in `{name}`, got {type(x).__name__} ({error})."
            f" {OTHER_WAYS}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"Expected numbers in `{name}`, got dtype {array.dtype} from {type(x).__name__}."
            f" {OTHER_WAYS}"
        )
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.require(array, kind, ["C_CONTIGUOUS", "WRITEABLE"])


def from_arrays(
    x: Any,
    y: Any,
    *,
    classes: Sequence[str] | None = None,
    test: Pair | None = None,
    validation: Pair | None = None,
    trusted: Pair | None = None,
    name: str = "arrays",
) -> Dataset:
    """A dataset from arrays or tensors.

    Where float32 can't distinguish numbers (N, D), their mean is subtracted, and
    ``dataset.encoder`` does the same to new rows.

    Args:
        x: inputs (N, …).
        y: one label for each row, a word or a number; or soft labels (N, K), probabilities or
            counts such as the votes of annotators.
        classes: the names of the classes; whole numbers in ``y`` are positions in them.
        test, validation, trusted: further pairs (x, y) with labels known to be correct; a method
            may train on ``trusted``.
        name: of the dataset.

    >>> data = from_arrays([[0, 1], [1, 0], [1, 1], [0, 0]], ["no", "yes", "yes", "no"])
    >>> data.classes, data.train.y
    (('no', 'yes'), tensor([0, 1, 1, 0]))
    """
    inputs, notes = check_features(x)
    labels = TrainingLabels(y, classes)
    notes += labels.describe()
    columns = number_columns(_plain(x)) if inputs.dim() == 2 else None
    encoded = inputs
    if columns is not None:
        encoded = columns.encode(_plain(x))
        notes.append(
            "The numbers in column"
            f" {preview(columns.shift.nonzero().flatten().tolist())} of `x` hardly differ: their"
            " mean was subtracted, because float32 can't distinguish them; `encoder.encode` does"
            " the same to new rows."
        )
    splits: dict[str, Any] = {"train": Split(encoded, labels.y, soft=labels.soft)}
    for part, pair in {"test": test, "validation": validation, "trusted": trusted}.items():
        if pair is None:
            continue
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"Expected `{part}` to be a pair (x, y), got {type(pair).__name__}.")
        place = f"{part}[0]"
        other, more = check_features(pair[0], place)
        y, soft = labels.encode(pair[1], f"{part}[1]")
        if len(other) != len(y):
            raise ValueError(
                f"Expected as many labels as rows in `{part}`, got {len(other)} rows and {len(y)}"
                " labels."
            )
        shape = tuple(inputs.shape[1:])
        if (tuple(other.shape[1:]), other.dtype) != (shape, inputs.dtype):
            raise ValueError(
                f"Expected rows of shape {shape} and {inputs.dtype} in `{place}`, as in training,"
                f" got {tuple(other.shape[1:])} and {other.dtype}."
            )
        if columns is not None:
            other = columns.encode(_plain(pair[0]))
        splits[part] = Split(other, y, soft=soft)
        notes += more
    return Dataset(name, labels.classes, **splits, encoder=columns, notes=tuple(notes))


def _plain(x: Any) -> Array:
    """Inputs that passed ``check_features`` as an array of their own dtype."""
    if isinstance(x, Tensor):
        if x.dtype is torch.bfloat16:  # which NumPy has not
            x = x.float()
        x = x.detach().cpu().numpy()
    return _array(x, "x")


@dataclass(frozen=True, eq=False)
class DatasetInputs:
    """The images in a column of another dataset as lazy inputs."""

    items: Any
    column: str
    index: Tensor
    size: int | None = None
    fit: Fit = "crop"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Tensor:
        item = _read_item(self.items, int(self.index[i]))
        return _as_tensor(item[self.column], self.size, self.fit)

    def subset(self, index: Tensor) -> DatasetInputs:
        return replace(self, index=self.index[index])


def _read_item(items: Any, i: int) -> Any:
    """Item ``i``; errors name its number."""
    try:
        return items[i]
    except Exception as error:  # user code may raise anything
        raise ValueError(
            f"Expected to read item {i} of the dataset, got {type(error).__name__}: {error}. Fix it"
            " or leave it out."
        ) from error


def _as_tensor(value: Any, size: int | None, fit: Fit) -> Tensor:
    if hasattr(value, "convert"):  # a PIL image
        return to_pixels(value, size, fit)
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        # an image that Hugging Face has not decoded
        return decode(value.get("bytes") or Path(value["path"]), size, fit, value.get("path"))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"Expected tensors, arrays or images in the dataset, got {type(value).__name__}."
        ) from None


def stack_inputs(values: Iterable[Tensor]) -> Tensor:
    """Inputs of one shape as one tensor (N, …)."""
    tensors = list(values)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(
            f"Expected inputs of one shape, got {preview(sorted(shapes))}. Set `size` to resize"
            " images."
        )
    return torch.stack(tensors) if tensors else torch.empty(0)


def from_torch(
    dataset: Any,
    *,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    fit: Fit = "crop",
    test: Any = None,
    validation: Any = None,
    trusted: Any = None,
    name: str = "torch",
) -> Dataset:
    """A dataset from any torch ``Dataset`` of (x, y), read into memory.

    Args:
        dataset: of pairs; images may be PIL images. Its attribute ``classes`` names the classes.
        classes: the names of the classes.
        size, fit: how images are resized, as in ``ImageFiles``.
        test, validation, trusted: further datasets, with labels known to be correct.
        name: of the dataset.
    """
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise TypeError(f"Expected a torch Dataset of (x, y), got {type(dataset).__name__}.")
    names = getattr(dataset, "classes", None)
    if not classes and isinstance(names, (list, tuple)):
        classes = list(map(str, names))
    x, y = read_pairs(dataset, size, fit)
    if isinstance(x, list):
        raise TypeError(
            "Expected tensors, arrays or images in the dataset, got str. Use from_text for texts."
        )
    others = {"test": test, "validation": validation, "trusted": trusted}
    pairs = {
        part: read_pairs(other, size, fit) for part, other in others.items() if other is not None
    }
    return from_arrays(x, y, classes=classes, name=name, **pairs)


def read_pairs(dataset: Any, size: int | None, fit: Fit) -> Pair:
    """Return inputs and labels of all items (x, y): a tensor (N, …), or a list of texts."""
    inputs: list[Any] = []
    labels = []
    for x, label in iterate_pairs(dataset):
        inputs.append(x if isinstance(x, str) else _as_tensor(x, size, fit))
        labels.append(label)
    if not labels:
        raise ValueError("Expected at least one item in the dataset, got none.")
    if any(isinstance(x, str) for x in inputs):
        return inputs, labels
    return stack_inputs(inputs), labels


def iterate_pairs(dataset: Any) -> Iterator[Pair]:
    """Yield the items (x, y) of a torch ``Dataset``; anything else is refused."""
    items = iter(dataset)
    if hasattr(dataset, "__len__"):
        items = (_read_item(dataset, i) for i in range(len(dataset)))
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            size_of = ""
            if isinstance(item, (tuple, list)):
                size_of = f" of {len(item)}"
            raise TypeError(
                f"Expected items (x, y) in the dataset, got a {type(item).__name__}{size_of}. Make"
                " it return pairs."
            )
        x, label = item
        yield x, label.tolist() if isinstance(label, Tensor) else label


class _Roles(NamedTuple):
    """What the columns of a Hugging Face dataset are used for."""

    label: str
    image: str | None
    text: str | None
    features: list[str]
    classes: list[str] | None


def from_hf(
    dataset: Any,
    *,
    label: str | None = None,
    image: str | None = None,
    text: str | None = None,
    features: Sequence[str] | None = None,
    size: int | None = None,
    fit: Fit = "crop",
    **options: Any,
) -> Dataset:
    """A dataset from a Hugging Face ``Dataset``, or a ``DatasetDict`` with ``train`` and possibly
    other splits.

    The label is the column of class labels; the input is the image column (lazy if ``size`` is
    given), else the only text column, else all other columns as a table. ``options`` are passed to
    ``from_text`` or ``from_table``.
    """
    parts = {"train": dataset}
    if isinstance(dataset, Mapping):
        names = ("train", "test", "validation", "trusted")
        parts = {part: dataset[part] for part in names if part in dataset}
    train: Any = parts.get("train")
    if not hasattr(train, "column_names") or not hasattr(train, "__len__"):
        raise TypeError(
            "Expected a Hugging Face Dataset, or a DatasetDict with a train split, got"
            f" {type(dataset).__name__}. A streamed one has no length: load it without streaming."
        )
    roles = hf_roles(train, label, image, text, features)
    if roles.image is not None:
        if options:
            raise TypeError(
                f"Expected no further options for images, got {preview(list(options))}."
            )
        labels = TrainingLabels(list(train[roles.label]), roles.classes, f"{roles.label} of train")
        splits: dict[str, Any] = {}
        for part, data in parts.items():
            images = DatasetInputs(data, roles.image, torch.arange(len(data)), size, fit)
            x = images if size else stack_inputs(images[i] for i in range(len(images)))
            y, soft = labels.encode(list(data[roles.label]), f"{roles.label} of {part}")
            splits[part] = Split(x, y, soft=soft)
        notes = tuple(labels.describe(roles.label))
        return Dataset("hf", labels.classes, **splits, notes=notes)
    inputs = [roles.text] if roles.text else roles.features
    columns = [*inputs, roles.label]
    tables: dict[str, Any] = {
        part: {name: list(data[name]) for name in columns} for part, data in parts.items()
    }
    options |= {"label": roles.label, "classes": roles.classes, **tables}
    train = options.pop("train")
    if roles.text is not None:
        return from_text(train, text=roles.text, **options)
    return from_table(train, features=features, **options)


def hf_roles(
    train: Any,
    label: str | None,
    image: str | None,
    text: str | None,
    features: Sequence[str] | None,
) -> _Roles:
    """Return the columns that the user named.

    Without an input, it is the first column of images, else the only one of texts, else all others.
    """
    columns = list(train.column_names)
    kinds = train.features
    if not label:
        of_classes = (
            name
            for name in columns
            if hasattr(kinds[name], "names") or list_class_names(kinds[name]) is not None
        )
        usual = "labels" if "labels" in columns and "label" not in columns else "label"
        label = next(of_classes, usual)
    if label not in columns:
        raise ValueError(
            f"Expected a column {label!r} among {preview(columns)}. Name the labels with `label`."
        )
    named = [c for c in (image, text, *(features or ())) if c is not None]
    for name in named:
        check_column(name, columns, "the dataset")
    others = [c for c in columns if c != label]
    if not named:
        image, text = _suggest_input(kinds, others)
    classes = getattr(kinds[label], "names", None)
    return _Roles(label, image, text, list(features or others), classes)


def _suggest_input(kinds: Mapping[str, Any], columns: list[str]) -> tuple[str | None, str | None]:
    """The first image column, else the text column if it is the only one."""
    if image := next((c for c in columns if type(kinds[c]).__name__ == "Image"), None):
        return image, None
    strings = [c for c in columns if getattr(kinds[c], "dtype", None) in ("string", "large_string")]
    return None, strings[0] if len(strings) == 1 else None


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix or array of SciPy, which is not imported to see that."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(value))


class SparseAxes:
    """Projects a sparse matrix (N, F) onto its ``dim`` main axes, by truncated SVD; one of few
    columns stays itself.
    """

    def __init__(self, x: Any, dim: int = 256, seed: int = 0) -> None:
        self.project = None
        if x.shape[1] <= check_count("dim", dim, 1):
            return
        from sklearn.decomposition import TruncatedSVD

        sample = np.sort(np.random.default_rng(seed).permutation(x.shape[0])[:FIT_ROWS])
        axes = min(dim, len(sample))
        self.project = TruncatedSVD(axes, random_state=seed % 2**31).fit(
            _finite(x.tocsr()[sample])[0]
        )

    def encode(self, x: Any) -> Floats32:
        """(N, dim) float32, computed in blocks to save memory; NaN in rows that hold NaN or
        infinite numbers.
        """
        x, is_finite = _finite(x.tocsr())
        blocks = [x[i : i + BLOCK] for i in range(0, x.shape[0], BLOCK)]
        if self.project is None:
            dense = np.concatenate([block.toarray() for block in blocks])
        else:
            dense = np.concatenate([self.project.transform(block) for block in blocks]).astype(
                np.float32
            )
        dense[~is_finite] = np.nan
        return np.asarray(dense)


def _finite(x: Any) -> tuple[Any, Bools]:
    """Return the matrix as float32, 0 in place of NaN and infinite numbers, and the rows without
    any of these, (N,).
    """
    with np.errstate(over="ignore"):  # too large for float32 counts as infinite
        x = x.astype(np.float32)
    is_odd = ~np.isfinite(x.data)
    rows = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    x.data[is_odd] = 0
    return x, np.bincount(rows[is_odd], minlength=x.shape[0]) == 0
