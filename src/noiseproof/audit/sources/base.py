"""What an audit source is: one kind of data that is read, shown row by row and written back with
corrected labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from noiseproof.audit.copies import corrected_labels, corrected_table, is_table, label_words
from noiseproof.audit.correction import Correction
from noiseproof.audit.described import DescribedLabels
from noiseproof.audit.files import Audit, same_labels
from noiseproof.audit.pictures import Picture
from noiseproof.audit.rows import Digests, digest_all, digest_words, find_rows
from noiseproof.core.arrays import Array, Bools, Floats32, Ints
from noiseproof.core.messages import Progress, counted, install_command
from noiseproof.core.registry import Registry
from noiseproof.data.arrays import iterate_pairs
from noiseproof.data.features import Kind
from noiseproof.data.frames import library_of
from noiseproof.data.pictures import encode_pictures
from noiseproof.data.rows import OtherRows, Rows
from noiseproof.data.sources import PathLike

# fields: [[name, text], …], text, has_image, predictions: [[class, text], …], note
Content = dict[str, Any]
Columns = dict[str, Array]  # (N,) float64, NaN for gaps; or words as objects, "" for gaps
ANOTHER_ROW = (
    "The data has changed since the audit: another row is in this place now. Audit the data again."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AuditData(Rows):
    """Rows to audit, and the source that they were read from."""

    source: Source

    @property
    def audited(self) -> dict[int, tuple[str, str]]:
        """The id and the word of each audited row, by its number in the source."""
        words = np.array(self.classes, dtype=object)[self.given].tolist()
        rows = zip(self.row.tolist(), map(str, self.names.tolist()), words, strict=True)
        return {row: (id, word) for row, id, word in rows if row >= 0}

    def __repr__(self) -> str:
        features = "" if self.x is None else f", {counted(self.x.shape[1], 'feature')}"
        skipped = sum(len(one.rows) for one in self.skipped)
        left_out = f", {counted(skipped, 'row')} left out" if skipped else ""
        return (
            f"AuditData({self.source.name}, {len(self)} rows, {len(self.classes)}"
            f" classes{features}{left_out})"
        )


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of ``read_rows`` that config.json can't hold: data in memory, and how to read
    it.
    """

    data: Any = None  # an absolute Path, or a table or an array in memory
    labels: Any = None
    pred_probs: Any = None
    embeddings: Any = None
    trusted: Any = None
    annotations: Any = None  # a DataFrame with the columns row, annotator, label
    classes: Sequence[str] | None = None
    seed: int = 0
    progress: Progress | None = None
    cache: PathLike | None = None
    tool: Any = None  # for labels, whose file this is

    @property
    def path(self) -> Path | None:
        return self.data if isinstance(self.data, Path) else None

    @property
    def needs_features(self) -> bool:
        return self.embeddings is None and self.pred_probs is None


class ShownRows(ABC):
    """What the review page shows of the rows of a source; by default not more than ``show``."""

    @abstractmethod
    def show(self, row: int, id: str) -> Content:
        """Return what the review page shows of a row."""

    def picture(self, row: int, id: str, side: int) -> Picture | None:
        """Return a picture of at most ``side`` pixels and its media type, None if the row has
        none.
        """
        return None

    @property
    def has_pictures(self) -> bool:
        """Whether rows can be shown as pictures."""
        return False

    def columns(self, given: Ints) -> Columns:
        """Return the columns of all rows that may separate classes; ``given`` (N,) are the labels,
        −1 for none.
        """
        return {}

    def texts(self) -> list[str] | None:
        """Return the text of each row in the source, None if rows are not texts."""
        return None

    @property
    def has_cells(self) -> bool:
        """Whether rows have words or numbers that a person may search for."""
        return False

    def cells(self) -> Iterator[list[str]]:
        """Yield the cells of each row in the source that the review page shows, to search them."""
        return iter(())


class NoRows(ShownRows):
    """Stands for a source whose rows can't be shown, and says why."""

    def __init__(self, note: str) -> None:
        self.note = note

    def show(self, row: int, id: str) -> Content:
        return {"note": self.note}


class Source(DescribedLabels, ShownRows):
    """One kind of data to audit, registered under the name that config.json has as ``kind``.

    ``config`` holds the entries of config.json about the data: paths, columns, and after ``read``
    the digest of the labels. A source made from a saved config shows rows and writes corrected
    copies.
    """

    name: ClassVar[str]
    files: ClassVar[str] = ""  # the files or folders it reads, as messages call them
    has_columns: ClassVar[bool] = False  # whether it takes names of columns
    is_pictures: ClassVar[bool] = False  # whether every row is a picture file
    # what its rows are, where named features are computed from them
    feature_kind: ClassVar[Kind | None] = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config: dict[str, Any] = dict(config)

    @abstractmethod
    def accepts(self, request: Request) -> bool:
        """Return whether this is the kind of the requested data."""

    @abstractmethod
    def read(self, request: Request) -> AuditData:
        """Read all rows, and note in ``config`` what is needed to find them again."""

    def read_test(self, test: Any, data: AuditData, request: Request) -> OtherRows:
        """Read a test set like the ``data`` that was just read, and encode it in the same way."""
        raise ValueError(
            f"Expected a table, texts or a folder of pictures with `test`, got a {self.name}."
        )

    @property
    @abstractmethod
    def labels(self) -> list[str] | None:
        """The labels in the source now, one for each row; None if they are not in a file."""

    @cached_property
    def row_digests(self) -> Digests:
        """The digest of each row's content with its label, (N, 2); by default of its label
        alone.
        """
        return digest_words(self.labels or [])

    @property
    def labels_entry(self) -> str:
        """The entry of config.json that names the file of the labels."""
        return "data"

    def find_rows(self, audit: Audit, outcomes: Mapping[int, object]) -> Ints:
        """Return where the audited rows are in the source now, (source_rows,); refuse what cannot
        be told.

        ``outcomes`` is what becomes of rows: copies of one that have the same may change places.
        """
        self.locate(audit.folder, self.labels_entry)
        return find_rows(audit, self.row_digests, outcomes)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows in the source now."""

    @abstractmethod
    def write(self, correction: Correction, out: Path) -> None:
        """Write a corrected copy to the new path ``out``; the rows are where ``find_rows`` found
        them.
        """

    @property
    def can_leave_out(self) -> bool:
        """Whether a copy can go without some rows: labels alone belong to inputs by their place."""
        return True

    @abstractmethod
    def default_out(self) -> Path:
        """Return where a corrected copy goes by default, in the current folder: the original may be
        read-only.
        """

    def file(self, id: str) -> Path | None:
        """Return the file of a row, if each has its own."""
        return None

    def describe(self, row: int, id: str) -> str:
        """Return a row that was just read as plain text, for other tools."""
        return id

    def row_names(self, rows: Sequence[int]) -> list[str]:
        """Return what a person calls these rows, which may not have been audited."""
        return [str(row) for row in rows]

    @property
    def has_ids(self) -> bool:
        """Whether rows are known by more than their numbers."""
        return self.config["id"] is not None

    def corrected(self, data: Any, correction: Correction) -> Any:
        """Return the audited data in memory, or its labels alone, corrected in a copy."""
        key = self.config.get("labels_key")
        if library_of(data) == "datasets" and key in data.column_names:
            return corrected_table(data, correction, digests=False)
        if isinstance(data, TorchDataset):
            targets = getattr(data, "targets", None)  # of torchvision: no item need be read
            if targets is None or not same_labels(self.config, label_words(self, targets)):
                targets = [label for _, label in iterate_pairs(data)]
            data = targets
        elif isinstance(data, dict) and key in data:
            data = data[key]
        elif (
            is_table(data) and self.multi_label.get("kind") != "matrix"
        ):  # which may be a DataFrame
            raise ValueError(
                f"Expected the labels that were audited, an array, got a table for the {self.name}."
            )
        return corrected_labels(data, correction)

    def without_names(self, request: Request) -> Request:
        """The request where ``classes`` of rows with several labels are kept as those: a word
        spells a set of them.
        """
        if not self.multi_label or request.classes is None:
            return request
        self.config["multi_label"] = {**self.multi_label, "labels": list(map(str, request.classes))}
        self.config["classes_named"] = False
        return replace(request, classes=None)

    def locate(self, folder: Path, key: str = "data") -> Path:
        """Return the path of the audited file ``key``; refuse data in memory, or gone."""
        path = self.config.get(key)
        if path is None or not Path(path).exists():
            raise FileNotFoundError(
                f"Expected the audited data at {path}, found none."
                if path
                else (
                    "Expected an audit of files, got one of a DataFrame or of arrays in memory. In"
                    f" Python, `noiseproof.audit.corrected({str(folder)!r}, data)` returns them"
                    " corrected."
                )
            )
        return Path(path)

    def check_inputs(self, folder: Path) -> None:
        """Refuse a source without inputs to train on."""
        self.locate(folder)

    def problem(self) -> str | None:
        """Return why no row can be shown, None if all is well."""
        if self.config.get("data") is None:
            return (
                "The data was in memory when it was audited: only the results of the audit can be"
                " shown. noiseproof.audit.corrected applies the decisions to it."
            )
        path = Path(self.config["data"])
        if not path.exists():
            return f"{path} no longer exists: only the results of the audit can be shown."
        has_labels = self.labels is None or same_labels(self.config, self.labels)
        # ids are compared row by row
        digest = None if self.has_ids else self.config.get("rows_sha256")
        has_rows = digest is None or digest_all(self.row_digests) == digest
        if len(self) != self.config["source_rows"] or not has_labels or not has_rows:
            return (
                f"The data has changed since the audit: the rows of {path} are not those that were"
                " audited, or in another order. Only the results of the audit are shown. Audit the"
                " data again."
            )
        return None


def picture_features(
    source: Source, pictures: Any, usable: Bools, request: Request
) -> tuple[Floats32, dict[str, Any]]:
    """Return features (N, F) of pictures, zeros where they are not ``usable``, and their
    description.
    """
    features, description = encode_pictures(
        pictures,
        source.config["features"] or "auto",
        seed=request.seed,
        progress=request.progress,
        cache=request.cache,
    )
    x = np.zeros((len(usable), features.shape[1]), np.float32)
    x[usable] = features
    return x, description


def note_features(source: Source, description: Mapping[str, Any]) -> str:
    """Keep in the config how features were computed, and return a note on it."""
    weights = description["weights"]
    source.config |= {"features": description["name"], "weights": weights}
    sentence = f"The {source.feature_kind} were audited by the features {description['name']}"
    if weights is not None:
        return (
            f"{sentence} (weights of {weights['package']} {weights['version']}, licence:"
            f" {weights['licence']}, SHA-256 {weights['sha256'][:16]}…)."
        )
    extra = {"texts": "text", "pictures": "vision"}[source.feature_kind or "texts"]
    more = f"`{install_command(extra)}`, or other `features` or `embeddings`"
    return f"{sentence}. Pretrained ones see more: {more}."


SOURCES: Registry[Source] = Registry("audit source", returns=Source)


def open_rows(config: Mapping[str, Any]) -> Source | NoRows:
    """Return the rows of the data that config.json names; none where it is gone or its labels have
    changed.
    """
    source = SOURCES[config["kind"]](config)
    return source if (note := source.problem()) is None else NoRows(note)
