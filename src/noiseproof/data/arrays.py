"""A user's own data as arrays, as a torch ``Dataset``, or as a Hugging Face ``datasets.Dataset``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.data.base import Dataset, Split
from noiseproof.data.images import Fit, decode, to_pixels
from noiseproof.data.labels import describe_labels, encode_labels, some
from noiseproof.data.tables import Columns, from_table, shifted_columns
from noiseproof.data.text import from_text

Pair = tuple[Any, Any]
OTHER_WAYS = "Use from_table for columns of different kinds, from_text for text, .toarray() for a sparse matrix."


def check_features(x: Any, name: str = "x") -> tuple[Tensor, list[str]]:
    """Inputs as a tensor: uint8 images (N, C, H, W), everything else float32 (N, …); refuses what is not finite."""
    if not isinstance(x, Tensor):
        x = torch.from_numpy(_array(x, name))
    if x.layout is not torch.strided or x.is_complex():
        raise TypeError(
            f"Expected dense real numbers in `{name}`, got {x.layout}, {x.dtype}. Use .to_dense() or .real."
        )
    x = x.detach().cpu()
    if x.dim() < 2 or 0 in x.shape:
        raise ValueError(f"Expected `{name}` of shape (N, D) or (N, C, H, W), none of them 0, got {tuple(x.shape)}.")
    notes: list[str] = []
    if x.dim() == 4:
        x, notes = _channels_first(x, name)
    if x.dtype is torch.uint8 and x.dim() in (3, 4):
        return (x if x.dim() == 4 else x[:, None]), notes
    numbers = x.to(torch.float32)
    if (
        x.dim() == 4
        and not x.is_floating_point()
        and x.dtype is not torch.bool
        and 0 <= numbers.min() <= numbers.max() <= 255
    ):
        return x.to(torch.uint8), notes  # pixels in wider integers than they need
    finite = torch.isfinite(numbers).flatten(1)
    if not bool(finite.all()):
        rows = (~finite.all(1)).nonzero().flatten().tolist()
        column = int((~finite[rows[0]]).nonzero()[0])
        raise ValueError(
            f"Expected finite numbers in `{name}`, got {x.flatten(1)[rows[0], column].item()} in column {column} of "
            f"row {rows[0]}; {len(rows)} of {len(x)} rows hold NaN, infinite or too large numbers. "
            "Drop these rows or fill them in."
        )
    return numbers, notes


def _array(x: Any, name: str) -> NDArray[Any]:
    """Numbers as torch can share them; whatever else is refused."""
    if isinstance(x, np.ma.MaskedArray):
        x = np.where(np.ma.getmaskarray(x), np.nan, x.data)
    try:
        array = np.asarray(x)
        if array.dtype == object:  # numbers of different kinds, pandas' nullable ones
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Expected numbers in rows of one length in `{name}`, got {type(x).__name__} ({error}). {OTHER_WAYS}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"Expected numbers in `{name}`, got dtype {array.dtype} from {type(x).__name__}. {OTHER_WAYS}")
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.require(array, kind, ["C_CONTIGUOUS", "WRITEABLE"])


def _channels_first(images: Tensor, name: str) -> tuple[Tensor, list[str]]:
    if images.shape[1] not in (1, 3, 4) and images.shape[3] in (1, 3, 4):
        note = f"`{name}` of shape {tuple(images.shape)} was read as images with channels last."
        return images.permute(0, 3, 1, 2).contiguous(), [note]
    return images, []


def from_arrays(
    x: Any,
    y: Any,
    *,
    classes: Sequence[str] | None = None,
    test: Pair | None = None,
    trusted: Pair | None = None,
    name: str = "arrays",
) -> Dataset:
    """A dataset of arrays or tensors: inputs (N, …) and one label a row, in words or numbers.

    Whole numbers beside ``classes`` are positions in it. Inputs that need no conversion are shared, not copied.
    ``test`` and ``trusted`` are further pairs (x, y); ``trusted`` holds a few labels known to be right. Where float32
    would blur numbers (N, D), their mean is taken off before, and ``dataset.encoder`` does so to new rows.

    >>> data = from_arrays([[0, 1], [1, 0], [1, 1], [0, 0]], ["no", "yes", "yes", "no"])
    >>> data.classes, data.train.y
    (('no', 'yes'), tensor([0, 1, 1, 0]))
    """
    splits: dict[str, Split] = {}
    notes: list[str] = []
    columns: Columns | None = None
    positions = classes is not None
    for part, pair in (("train", (x, y)), ("test", test), ("trusted", trusted)):
        if pair is None:
            continue
        of = "" if part == "train" else f" of {part}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"Expected `{part}` to be a pair (x, y), got {type(pair).__name__}.")
        inputs, more = check_features(pair[0], f"x{of}")
        labels, names = encode_labels(pair[1], classes, positions=positions, name=f"y{of}")
        if len(inputs) != len(labels):
            raise ValueError(f"Expected as many labels as rows, got {len(inputs)} rows of x{of}, {len(labels)} labels.")
        if part == "train":
            more, classes, first = [*more, *describe_labels(labels, names)], names, inputs
            columns = shifted_columns(_plain(pair[0])) if inputs.dim() == 2 else None
            if columns is not None:
                which = columns.shift.nonzero().flatten().tolist()
                more.append(
                    f"The numbers in column {some(which)} of `x` hardly differ: their mean was taken off, before "
                    "float32 blurs them; `encoder.encode` does the same to new rows."
                )
        elif (inputs.shape[1:], inputs.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(
                f"Expected rows of shape {tuple(first.shape[1:])} and {first.dtype} in x{of}, as in training, "
                f"got {tuple(inputs.shape[1:])} and {inputs.dtype}."
            )
        if columns is not None:
            inputs = columns.encode(_plain(pair[0]))
        splits[part], notes = Split(inputs, labels), notes + more
    return Dataset(name, names, **splits, encoder=columns, notes=tuple(notes), spec="")


def _plain(x: Any) -> NDArray[Any]:
    """Inputs that ``check_features`` let pass, as they came."""
    if isinstance(x, Tensor):
        x = (x.float() if x.dtype is torch.bfloat16 else x).detach().cpu().numpy()  # NumPy has no bfloat16
    return _array(x, "x")


class DatasetRows:
    """One field of another dataset's items as rows, read when asked for."""

    def __init__(self, items: Any, field: int | str, index: Tensor, size: int | None = None, fit: Fit = "crop") -> None:
        self.items, self.field, self.index, self.size, self.fit = items, field, index, size, fit

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Tensor:
        row = _as_tensor(read_item(self.items, int(self.index[i]))[self.field], self.size, self.fit)
        return row if row.dtype is torch.uint8 else row.float()

    def subset(self, index: Tensor) -> DatasetRows:
        """The rows ``index``, in that order."""
        return DatasetRows(self.items, self.field, self.index[index], self.size, self.fit)


def read_item(items: Any, i: int) -> Any:
    """``items[i]``; what goes wrong there is told with the number of the item."""
    try:
        return items[i]
    except Exception as error:  # somebody else's code
        raise ValueError(
            f"Expected to read item {i} of the dataset, got {type(error).__name__}: {error}. Mend it or leave it out."
        ) from error


def _as_tensor(value: Any, size: int | None, fit: Fit) -> Tensor:
    if hasattr(value, "convert"):  # a PIL image
        return to_pixels(value, size, fit)
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        # how Hugging Face stores an image it has not decoded
        return decode(value.get("bytes") or Path(value["path"]), size, fit, value.get("path"))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"Expected tensors, arrays or images in the dataset, got {type(value).__name__}.") from None


def _stack(values: Iterable[Any], size: int | None, fit: Fit) -> Tensor:
    rows = [_as_tensor(value, size, fit) for value in values]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise ValueError(f"Expected inputs of one shape, got {some(sorted(shapes))}. Set `size` to scale images to it.")
    return torch.stack(rows) if rows else torch.empty(0)


def from_torch(
    dataset: Any,
    *,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    fit: Fit = "crop",
    lazy: bool = False,
    test: Any = None,
    trusted: Any = None,
    name: str = "torch",
) -> Dataset:
    """A dataset of any torch ``Dataset`` of (x, y), read into memory; ``lazy`` reads only its labels now.

    Images may be PIL images, scaled to ``size``. A ``classes`` attribute of the dataset names the classes.
    """
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise TypeError(f"Expected a torch Dataset of (x, y), got {type(dataset).__name__}.")
    named = getattr(dataset, "classes", None)
    classes = classes or (list(map(str, named)) if isinstance(named, (list, tuple)) else None)
    sources = {"train": dataset, "test": test, "trusted": trusted}
    pairs = {part: _pairs(source, size, fit, lazy) for part, source in sources.items() if source is not None}
    if not lazy:
        x, y = pairs["train"]
        return from_arrays(x, y, classes=classes, test=pairs.get("test"), trusted=pairs.get("trusted"), name=name)
    return _lazy(name, pairs, classes)


def _pairs(dataset: Any, size: int | None, fit: Fit, lazy: bool) -> Pair:
    """Inputs and labels of all items (x, y)."""
    count = len(dataset) if hasattr(dataset, "__len__") else None
    if count is None and lazy:
        raise TypeError("Expected a dataset with a length to read lazily, got an iterable one. Use lazy=False.")
    rows = DatasetRows(dataset, 0, torch.arange(count or 0), size, fit)
    if lazy and count and (targets := _targets(dataset, count)) is not None:
        return rows, targets
    inputs, labels = [], []
    for item in iter(dataset) if count is None else (read_item(dataset, i) for i in range(count)):
        x, label = _pair(item)
        if not lazy:
            inputs.append(x)
        labels.append(label)
    if not labels:
        raise ValueError("Expected at least one item in the dataset, got none.")
    return rows if lazy else _stack(inputs, size, fit), labels


def _pair(item: Any) -> Pair:
    """Input and label of an item (x, y)."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        size_of = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise TypeError(
            f"Expected items (x, y) in the dataset, got a {type(item).__name__}{size_of}. Make it return pairs."
        )
    return item[0], item[1].tolist() if isinstance(item[1], Tensor) else item[1]


def _targets(dataset: Any, count: int) -> Any:
    """The attribute ``targets`` where it holds the labels of the items, so that they need not be read; else None."""
    targets = getattr(dataset, "targets", None)
    transforms = getattr(dataset, "transforms", None)  # torchvision's: of input and label together, or of each alone
    changed = (getattr(dataset, "target_transform", None), getattr(transforms, "target_transform", transforms))
    if targets is None or len(targets) != count or any(change is not None for change in changed):
        return None
    looked_at = sorted({0, count // 2, count - 1})
    same = (np.array_equal(_pair(read_item(dataset, i))[1], np.asarray(targets[i])) for i in looked_at)
    return targets if all(same) else None


def _lazy(name: str, pairs: Mapping[str, Pair], classes: Sequence[str] | None, label: str = "y") -> Dataset:
    """A dataset of rows that are read when asked for; only the labels are here."""
    splits, positions = {}, classes is not None
    for part, (rows, labels) in pairs.items():
        y, classes = encode_labels(labels, classes, positions=positions, name=f"{label} of {part}")
        splits[part] = Split(rows, y)
    names = tuple(classes or ())
    notes = tuple(describe_labels(splits["train"].y, names, label))
    return Dataset(name, names, **splits, encoder=None, notes=notes, spec="")


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
    """A dataset of a Hugging Face ``Dataset``, or of a ``DatasetDict`` with ``train`` and perhaps other splits.

    The label is the column of class labels; the input is the image column (read row by row where ``size`` is given),
    else the one text column, else all other columns as a table. ``options`` go to ``from_text`` or ``from_table``.
    """
    parts = {"train": dataset}
    if isinstance(dataset, Mapping):
        parts = {part: dataset[part] for part in ("train", "test", "validation", "trusted") if part in dataset}
    train: Any = parts.get("train")
    if not hasattr(train, "column_names") or not hasattr(train, "__len__"):
        raise TypeError(
            f"Expected a Hugging Face Dataset, or a DatasetDict with a train split, got {type(dataset).__name__}. "
            "A streamed one has no length: load it without streaming."
        )
    columns, kinds = list(train.column_names), train.features
    named = [c for c in columns if hasattr(kinds[c], "names")]
    label = label or next(iter(named or [c for c in ("label", "labels") if c in columns]), "label")
    if label not in columns:
        raise ValueError(f"Expected a column {label!r} among {some(columns)}. Name the labels with `label`.")
    if absent := [c for c in (image, text, *(features or ())) if c is not None and c not in columns]:
        raise ValueError(f"Expected the columns {some(absent)} in the dataset, there are {some(columns)}.")
    names = getattr(kinds[label], "names", None)
    others = [c for c in columns if c != label]
    if not (image or text or features):
        image = next((c for c in others if type(kinds[c]).__name__ == "Image"), None)
        words = [c for c in others if getattr(kinds[c], "dtype", None) in ("string", "large_string")]
        text = words[0] if image is None and len(words) == 1 else None
    if image is not None:
        if options:
            raise TypeError(f"Expected no further options for images, got {some(list(options))}.")
        pairs: dict[str, Pair] = {}
        for part, data in parts.items():
            rows = DatasetRows(data, image, torch.arange(len(data)), size, fit)
            whole = rows if size else _stack((rows[i] for i in range(len(rows))), None, fit)
            pairs[part] = (whole, list(data[label]))
        return _lazy("hf", pairs, names, label)
    import pandas as pd

    wanted = [text] if text else list(features or others)
    frames = {part: pd.DataFrame({c: list(data[c]) for c in [*wanted, label]}) for part, data in parts.items()}
    if text is not None:
        return from_text(frames.pop("train"), text=text, label=label, classes=names, **frames, **options)
    return from_table(frames.pop("train"), label=label, features=features, classes=names, **frames, **options)
