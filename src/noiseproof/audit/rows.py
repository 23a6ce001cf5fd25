"""What a person sees of a row: its cells, its text or its picture, found by its number, and shown if its id agrees."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import as_ids, as_words, same_id, same_labels
from noiseproof.audit.records import Records

LONGEST = 20_000  # characters of a cell that a page shows
MOST_NUMBERS = 64  # of a vector
OTHER = "The data has changed since the audit: another row is in this place now. Audit the data as it is now."
Content = dict[str, Any]  # fields: [[name, text], …], text, has_image, note


class Rows(Protocol):
    """The rows of the dataset that was audited, by their numbers; nothing is shown where another ``id`` is by now."""

    def show(self, row: int, id: str) -> Content: ...

    def picture(self, row: int, id: str, side: int) -> tuple[bytes, str] | None:
        """A picture not larger than ``side`` and its media type; None where there is nothing to see."""
        ...


class NoRows:
    """Labels and predictions of somebody else's model: there is nothing to look at."""

    def __init__(self, note: str) -> None:
        self.note = note

    def show(self, row: int, id: str) -> Content:
        return {"note": self.note}

    def picture(self, row: int, id: str, side: int) -> tuple[bytes, str] | None:
        return None


class TableRows(NoRows):
    """Cells of a CSV, TSV or Parquet file, or one text among them."""

    def __init__(self, path: Path, label: str | None, text: str | None, id: str | None) -> None:
        self.hidden, self.text = label, text
        if path.suffix.lower() in (".parquet", ".pq"):
            import pandas as pd

            frame = pd.read_parquet(path)
            self.names = [str(name) for name in frame.columns]
            self.cells: Any = _FrameCells(frame)
            words, ids = self.cells.words, self.cells.ids
        else:
            self.cells = Records(path)
            self.names = self.cells.header
            words = ids = self.cells.column
        # None: the audit had no such column; of one that is gone by now there are no cells.
        self.labels = None if label is None else words(label) if label in self.names else []
        self.ids = None if id is None else ids(id) if id in self.names else []

    def __len__(self) -> int:
        return len(self.cells)

    def show(self, row: int, id: str) -> Content:
        if self.ids is not None and not same_id(self.ids[row] if row < len(self.ids) else "", id):
            return {"note": OTHER}
        cells = self.cells[row]
        named = dict(zip(self.names, (shortened(cell) for cell in cells), strict=False))
        if self.hidden is not None:
            named.pop(self.hidden, None)
        text = named.pop(self.text, None) if self.text else None
        return ({} if text is None else {"text": text}) | {"fields": [list(pair) for pair in named.items()]}


class _FrameCells:
    """A table in memory, read like ``Records``."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> list[str]:
        missing = self.frame.iloc[[i]].isna().to_numpy()[0].tolist()
        cells = [self.frame.iat[i, k] for k in range(len(missing))]  # a row as a whole has one type, which rounds
        return ["" if gap else str(cell) for cell, gap in zip(cells, missing, strict=True)]

    def words(self, name: str) -> list[str]:
        return as_words(self.frame[name])

    def ids(self, name: str) -> list[str]:
        return as_ids(self.frame[name])


class FolderRows(NoRows):
    """Pictures in one folder per class. A link that leads out of the dataset's folder is not followed."""

    def __init__(self, root: Path) -> None:
        from noiseproof.data.images import from_image_folder

        dataset = from_image_folder(root)
        self.files: Any = dataset.train.x
        self.labels = [dataset.classes[k] for k in dataset.train.y.tolist()]
        self.root = root.resolve()

    def __len__(self) -> int:
        return len(self.files)

    def id(self, row: int) -> str:
        return str(self.files.path(row).relative_to(self.files.root).as_posix())

    def path(self, row: int, id: str) -> Path | None:
        """The file of a row, where it really lies in the dataset's folder."""
        if self.id(row) != id:
            return None
        real = self.files.path(row).resolve()
        return real if real.is_relative_to(self.root) and real.is_file() else None

    def show(self, row: int, id: str) -> Content:
        if self.id(row) != id:
            return {"note": OTHER}
        if self.path(row, id) is None:
            return {"note": "This picture is not in the dataset's folder: it was moved, or a link leads out of it."}
        return {"has_image": True}

    def picture(self, row: int, id: str, side: int) -> tuple[bytes, str] | None:
        from PIL import Image

        from noiseproof.data.images import FORMATS

        path = self.path(row, id)
        if path is None:
            return None
        try:
            with Image.open(path, formats=FORMATS) as image:
                image.draft("RGB", (side, side))  # a large JPEG is read at a fraction of its size
                return encoded(image, side)
        except Exception:  # PIL raises many kinds of error on damaged files
            return None


class ArrayRows(NoRows):
    """Rows of an array: pictures where they look like some, else numbers."""

    def __init__(self, array: NDArray[Any], labels: NDArray[Any] | None) -> None:
        self.array = array
        self.labels = None if labels is None else as_words(labels.ravel())

    def __len__(self) -> int:
        return len(self.array)

    def show(self, row: int, id: str) -> Content:
        if as_pixels(self.array[row]) is not None:
            return {"has_image": True}
        values = np.asarray(self.array[row]).ravel()
        more = f"the first {MOST_NUMBERS} of {len(values)} numbers"
        return {
            "fields": [[str(i), f"{value:.6g}"] for i, value in enumerate(values[:MOST_NUMBERS].tolist())],
            **({"note": more} if len(values) > MOST_NUMBERS else {}),
        }

    def picture(self, row: int, id: str, side: int) -> tuple[bytes, str] | None:
        from PIL import Image

        pixels = as_pixels(self.array[row])
        return None if pixels is None else encoded(Image.fromarray(pixels), side)


def shortened(cell: str) -> str:
    """A cell as a page shows it."""
    return cell if len(cell) <= LONGEST else f"{cell[:LONGEST]} … and {len(cell) - LONGEST} characters more"


def as_pixels(row: NDArray[Any]) -> NDArray[np.uint8] | None:
    """(H, W) or (H, W, 3) bytes of an array that has the shape of a picture, else None."""
    pixels = np.asarray(row)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4):
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
    elif pixels.ndim != 2:
        return None
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    numbers = np.nan_to_num(pixels.astype(np.float64))
    low, high = numbers.min(), numbers.max()
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return np.asarray(((numbers - low) / max(high - low, 1e-12) * 255).round(), np.uint8)


def encoded(image: Any, side: int) -> tuple[bytes, str]:
    """A picture drawn anew, so that nothing but its pixels leaves the file; small ones stay exact."""
    from noiseproof.data.images import to_rgb

    image = to_rgb(image)  # the reviewer sees what the audit saw
    image.thumbnail((side, side))
    file, exact = io.BytesIO(), max(image.size) <= 64
    image.save(file, "PNG" if exact else "JPEG", **({"optimize": True} if exact else {"quality": 85}))
    return file.getvalue(), "image/png" if exact else "image/jpeg"


def open_rows(config: Mapping[str, Any]) -> Rows:
    """The rows that an audit's config.json names; none where other labels, or more or fewer, are there by now."""
    kind, data = config["kind"], config.get("data")
    if kind == "predictions":
        return NoRows("The audit had labels and predictions only: there is no row to show.")
    if data is None:
        return NoRows(
            "The data was in memory when it was audited: only what the audit found can be shown. "
            "noiseproof.audit.apply.corrected applies the decisions to it."
        )
    path = Path(data)
    if not path.exists():
        return NoRows(f"{path} is no longer there: only what the audit found can be shown.")
    rows: TableRows | FolderRows | ArrayRows
    if kind in ("table", "text"):
        rows = TableRows(path, config["label"], config.get("text"), config.get("id"))
    elif kind == "folder":
        rows = FolderRows(path)
    elif kind == "arrays":
        labels = Path(config.get(labels_in(config)) or "")
        is_there = labels.is_file()  # they may have been in memory
        rows = ArrayRows(open_array(path), open_labels(labels, config.get("labels_key")) if is_there else None)
    else:
        raise ValueError(f"Expected a table, a text, a folder, arrays or predictions in config.json, got {kind!r}.")
    if len(rows) != config["source_rows"] or (rows.labels is not None and not same_labels(config, rows.labels)):
        return NoRows(
            f"The data has changed since the audit: the labels of {path} are not those that were audited, and a row's "
            "number may be another row's by now. Only what the audit found is shown. Audit the data as it is now."
        )
    return rows


def open_array(path: Path) -> NDArray[Any]:
    """The inputs in a .npy or .npz file; no pickled objects."""
    from noiseproof.audit.inputs import INPUTS

    array: NDArray[Any]
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    with np.load(path, allow_pickle=False) as arrays:
        array = arrays[next(name for name in INPUTS if name in arrays)]
    return array


def labels_in(config: Mapping[str, Any]) -> str:
    """Which entry of an audit's config.json names the file with the labels of arrays."""
    in_data = not config.get("labels") and config.get("labels_key", "") is not None
    return "data" if in_data else "labels"


def open_labels(path: Path, key: str | None) -> NDArray[Any]:
    """The labels in a .npy file of their own, or those among the arrays of a .npz file; no pickled objects."""
    from noiseproof.audit.inputs import LABELS

    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        labels: NDArray[Any] = loaded[key or next(name for name in LABELS if name in loaded)]
    return labels
