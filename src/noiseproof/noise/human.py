"""Labels by people: CIFAR-10N and CIFAR-100N, and files of labels from one or several annotators.

No file can run code: ``torch.load(weights_only=True)``, ``numpy.load(allow_pickle=False)`` and the
csv module read them.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from noiseproof.core.checks import check_word, word
from noiseproof.noise.base import NoiseModel, NoisyLabels, register

Annotators = Literal["vote", "all", "worst"]
MISSING = -1  # an annotator who did not label a row

# or 3.0, which pandas writes for 3 in a column with empty cells
_INTEGER = re.compile(r"\s*(-?\d+)(?:\.0*)?\s*")


@register("file")
@dataclass(frozen=True)
class LabelFile(NoiseModel):
    """Labels from a file: CSV with a header line, .npy of shape (N,) or (N, A), .pt with a tensor
    or named ones.

    Row i of the file belongs to row i of the data. With several annotators, an empty cell or −1 is
    a missing label.

    Args:
        path: the file, also looked up in ``folder``.
        given: column (or columns, one for each annotator) of the given labels; by default
            ``label_noisy``, as in the files of the SLN paper, or the only column.
        clean: column of the true labels, compared with the labels of the data to check the order
            of the rows; by default ``label``, if ``given`` has its default and there is such a
            column.
        annotators: how several labels of a row are combined: ``vote``, the most frequent one, of
            the earliest column for ties; ``all``, one row for each label (``index`` is its row in
            the data); ``worst``, the wrong label of the earliest column, the true one if all are
            right.
        folder: the data folder.
    """

    path: str | Path
    given: str | Sequence[str] | None = None
    clean: str | None = None
    annotators: Annotators | None = word(get_args(Annotators), None)
    folder: str | Path | None = None

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor | NoisyLabels:
        labels = self._read(clean, num_classes)
        if self.annotators == "all":
            present = labels != MISSING
            index, annotator = present.nonzero().unbind(1)
            return replace(
                self._labels(labels[present], clean[index], num_classes, index), annotator=annotator
            )
        if self.annotators == "worst":
            return worst_label(labels, clean)
        return majority_vote(labels)

    def _read(self, clean: Tensor, num_classes: int) -> Tensor:
        """Return the labels of each row, (N, A), one column for each annotator."""
        path = Path(self.path)
        if self.folder is not None and not path.exists() and Path(self.folder, path).exists():
            path = Path(self.folder, path)
        table = read_columns(path)
        names, truth = self._columns(table)
        columns = {name: _column(table, name, path) for name in [*names, truth] if name}
        for name, column in columns.items():
            if len(column) != len(clean):
                raise ValueError(
                    f"Expected {len(clean)} labels in {name!r} of {path}, one for each row of the"
                    f" data, got {len(column)}. Corrupt the whole training set before you split it;"
                    " if the file is truncated, download it again."
                )
        if truth:
            _check_order(columns[truth][:, 0], clean, path)
        labels = torch.cat([columns[name] for name in names], 1)
        several = labels.shape[1] > 1
        lowest = MISSING if several else 0
        outside = (labels < lowest) | (labels >= num_classes)
        if bool(outside.any()):
            row, annotator = outside.nonzero()[0].tolist()
            raise ValueError(
                f"Expected labels in 0 … {num_classes - 1} in {path}, got"
                f" {int(labels[row, annotator])} in row {row}. Use the file that belongs to the"
                " data; give num_classes if the data lacks its last classes."
            )
        unlabelled = (labels == MISSING).all(1)
        if bool(unlabelled.any()):
            row = int(unlabelled.nonzero()[0])
            raise ValueError(
                f"Expected a label from at least one annotator in {path}, row {row} has none. Drop"
                " the row."
            )
        if several and self.annotators is None:
            raise ValueError(
                f"{path} has {labels.shape[1]} labels per row. Set `annotators` to vote, all or"
                " worst."
            )
        return labels

    def _columns(self, table: Mapping[str, Any]) -> tuple[list[str], str | None]:
        if self.given is not None:
            names = self.given if isinstance(self.given, (list, tuple)) else [self.given]
            return [str(name) for name in names], self.clean
        if "label_noisy" in table:
            return ["label_noisy"], self.clean or ("label" if "label" in table else None)
        if len(table) != 1:
            raise ValueError(
                f"Expected `given` to name the labels of {self.path}. It has"
                f" {', '.join(table) or 'none'}."
            )
        return list(table), self.clean


@dataclass(frozen=True)
class CIFARN(NoiseModel):
    """Human labels of CIFAR's training images, from the official files (Wei et al. 2022).

    Args:
        which: the set of labels.
        folder: contains the official file, directly or in a folder ``cifar-n``; by default
            ``$NOISEPROOF_DATA``.
    """

    which: str
    folder: str | Path | None = None
    file = ""
    keys: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check_word("which", self.which, self.keys)

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor | NoisyLabels:
        labels = LabelFile(self._path(), given=self.keys[self.which], clean="clean_label")
        return labels.draw(clean, num_classes, None, None)

    def _path(self) -> Path:
        folder = self.folder or os.environ.get("NOISEPROOF_DATA")
        if not folder:
            raise ValueError(
                f"Expected the folder of {self.file}. Set `folder` or the variable NOISEPROOF_DATA."
            )
        for path in (Path(folder) / self.file, Path(folder) / "cifar-n" / self.file):
            if path.is_file():
                return path
        raise FileNotFoundError(
            f"Expected {self.file} in {folder} or its folder cifar-n. Run `noiseproof data fetch"
            f" {self.name}`, or get it from the folder `data` of"
            " https://github.com/UCSC-REAL/cifar-10-100n."
        )


@register("cifar10n")
@dataclass(frozen=True)
class CIFAR10N(CIFARN):
    """CIFAR-10N: ``clean``, ``aggregate``, ``random1``, ``random2``, ``random3`` or ``worst``.

    Three people labelled each image (17.23, 18.12 and 17.64 % wrong); ``aggregate`` is their
    majority (9.01 %) and ``worst`` a wrong one of the three wherever there is one (40.21 %).
    """

    file = "CIFAR-10_human.pt"
    keys: ClassVar[Mapping[str, str]] = {
        "clean": "clean_label",
        "aggregate": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
        "worst": "worse_label",
    }
    classes = 10


@register("cifar100n")
@dataclass(frozen=True)
class CIFAR100N(CIFARN):
    """CIFAR-100N: ``noisy``, by one person per image (40.20 % wrong), or ``clean``."""

    which: str = "noisy"
    file = "CIFAR-100_human.pt"
    keys: ClassVar[Mapping[str, str]] = {"noisy": "noisy_label", "clean": "clean_label"}
    classes = 100


def majority_vote(labels: Tensor) -> Tensor:
    """Return the most frequent label of each row of (N, A); ties go to the earliest annotator.

    >>> majority_vote(torch.tensor([[3, 1, 1], [2, 1, 0], [-1, 4, 4]]))
    tensor([1, 2, 4])
    """
    # (N, A)
    votes = torch.stack([(labels == label[:, None]).sum(1) for label in labels.unbind(1)], 1)
    earliest = votes.masked_fill(labels == MISSING, 0).argmax(1, keepdim=True)
    return labels.gather(1, earliest).squeeze(1)


def worst_label(labels: Tensor, clean: Tensor) -> Tensor:
    """Return the earliest wrong label of each row of (N, A), or the true one if every annotator is
    right.
    """
    wrong = (labels != clean[:, None]) & (labels != MISSING)
    earliest = wrong.int().argmax(1, keepdim=True)
    return torch.where(wrong.any(1), labels.gather(1, earliest).squeeze(1), clean)


def read_columns(path: Path) -> Mapping[str, Any]:
    """Return the columns of a .csv, .npy or .pt file by name; an unnamed array is ``labels``."""
    readers = {".csv": _read_csv, ".npy": _read_npy, ".pt": _read_pt}
    if path.suffix.lower() not in readers:
        raise ValueError(f"Expected labels in a .csv, .npy or .pt file, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file of labels at {path}, got none.")
    return readers[path.suffix.lower()](path)


def _check_order(truth: Tensor, clean: Tensor, path: Path) -> None:
    """Refuse a file whose true labels are not the labels of the data."""
    differs = truth != clean
    if bool(differs.any()):
        row = int(differs.nonzero()[0])
        raise ValueError(
            f"Expected the clean labels in {path} to be those of the data, {int(differs.sum())}"
            f" of {len(clean)} rows differ, first row {row}: {int(truth[row])} in the file,"
            f" {int(clean[row])} in the data. Keep the data in the order the file was made for"
            " (CIFAR: the official python files)."
        )


def _read_csv(path: Path) -> Mapping[str, Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if row and len(row) != len(header):
                    raise ValueError(
                        f"Expected {len(header)} cells in line {reader.line_num} of {path}, got"
                        f" {len(row)}. If the file is truncated, download it again."
                    )
                if row:
                    rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected {path} to be CSV in UTF-8: {error}. Download or save it again."
        ) from None
    if not header or len(set(header)) < len(header) or all(map(_INTEGER.fullmatch, header)):
        raise ValueError(
            f"Expected the first line of {path} to name its columns, each once, got {header}."
        )
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_npy(path: Path) -> Mapping[str, Any]:
    try:
        return {"labels": np.load(path, allow_pickle=False)}
    except Exception as error:  # a broken or hostile header can raise anything
        raise ValueError(
            f"Expected {path} to hold an array of integers and nothing else: {error}. If the file"
            " is truncated, download it again; save your own labels with numpy.save(path,"
            " integers)."
        ) from None


INTEGERS = ("i1", "i2", "i4", "i8", "u1")  # codes of NumPy


def _integer_dtype(code: str | bytes, *_: object) -> np.dtype[Any]:
    """Return the type of NumPy with this code, if it is one of integers.

    Pickled types have flags, which NumPy trusts: an array of integers could claim to hold addresses
    of objects. NumPy ignores the flags of a type that is not a copy, as here.
    """
    code = code.decode() if isinstance(code, bytes) else code
    if code not in INTEGERS:
        raise ValueError(f"an array of {code}, not of integers")
    return np.dtype(code)


PICKLED_ARRAYS: Mapping[str, Any] = {  # what a pickled array of integers names
    "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],  # NumPy 1
    "numpy._core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _integer_dtype,
    "_codecs.encode": codecs.encode,
}


def _read_pt(path: Path) -> Mapping[str, Any]:
    admitted: list[Any] = [(value, name) for name, value in PICKLED_ARRAYS.items()]
    admitted += [type(np.dtype(code)) for code in INTEGERS]
    try:
        with torch.serialization.safe_globals(admitted):
            content = torch.load(path, map_location="cpu", weights_only=True)
        table = content if isinstance(content, dict) else {"labels": content}
        return {
            str(name): value.numpy() if isinstance(value, Tensor) else value
            for name, value in table.items()
        }
    except Exception as error:  # a broken or hostile file can raise anything
        raise ValueError(
            f"Expected {path} to hold tensors, arrays or lists of integers and nothing else. "
            "If the file is truncated, download it again; "
            "save your own labels with torch.save(tensor, path)."
        ) from error


def _column(table: Mapping[str, Any], name: str, path: Path) -> Tensor:
    where = f"in {name!r} of {path}"
    if name not in table:
        raise ValueError(
            f"Expected a column {name!r} in {path}, got {', '.join(map(repr, table)) or 'none'}."
        )
    values = table[name]
    if path.suffix.lower() == ".csv":
        values = _parse_cells(values, where)
    # a list of lists may be small in a file and huge as an array
    if isinstance(values, list) and all(
        type(value) is int and abs(value) < 2**63 for value in values
    ):
        values = np.array(values, dtype=np.int64)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        actual = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"Expected integers {where}, got {actual}. Encode the classes from 0.")
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"Expected shape (N,) or (N, A) {where}, got {values.shape}.")
    return torch.from_numpy(values.astype(np.int64, copy=False)).reshape(len(values), -1)


def _parse_cells(cells: Sequence[str], where: str) -> list[int]:
    labels = []
    for row, cell in enumerate(cells):
        integer = _INTEGER.fullmatch(cell)
        if integer is None and cell.strip():
            raise ValueError(
                f"Expected an integer {where}, row {row}, got {cell!r}. Encode the classes from 0."
            )
        labels.append(int(integer[1]) if integer else MISSING)
    return labels
