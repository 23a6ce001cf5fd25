"""A user's own table: a pandas ``DataFrame``, or a CSV or Parquet file."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from noiseproof.data.base import Dataset, Split
from noiseproof.data.labels import describe_labels, encode_labels, some
from noiseproof.data.sources import DATASETS, PathLike

if TYPE_CHECKING:  # half a second to import: left to those who use a table
    import pandas as pd

Table: TypeAlias = "pd.DataFrame | PathLike"
Missing = Literal["refuse", "impute"]
MOST_CATEGORIES = 100  # a column of more words than that is text or an identifier
_NUMERAL = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")


def read_table(table: Table, label: str, text: str | None = None) -> pd.DataFrame:
    """The rows of a DataFrame, a .csv, a .tsv or a .parquet file, none of them empty, with the columns named."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        frame, source = table, "the table"
    elif isinstance(table, (str, os.PathLike)):
        path, source = Path(table), str(table)
        kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
        if not path.exists():
            raise FileNotFoundError(f"Expected a table at {path}, found no such file.")
        try:
            if kind in ("csv", "tsv"):
                frame = _read_csv(path, "\t" if kind == "tsv" else ",", [c for c in (label, text) if c is not None])
            elif kind in ("parquet", "pq"):
                frame = pd.read_parquet(path)
            else:
                raise ValueError(f"a file of kind {kind!r}")
        except UnicodeError as error:
            raise ValueError(f"Expected UTF-8 in {path}, got {error}. Save the table in that encoding.") from error
        except (ValueError, OSError) as error:
            reason = str(error).strip().rstrip(".")
            raise ValueError(f"Expected a readable .csv, .tsv or .parquet file in {path}, got {reason}.") from error
    else:
        raise TypeError(f"Expected a pandas DataFrame or the path of a file, got {type(table).__name__}.")
    for column in (label, text):
        if column is not None and column not in frame.columns:
            near = difflib.get_close_matches(str(column), map(str, frame.columns), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {some(list(frame.columns))}."
            if len(frame.columns) == 1 and any(mark in str(frame.columns[0]) for mark in ";\t|"):
                hint = f"Its only one is {frame.columns[0]!r}. Separate columns with commas, or tabs in a .tsv file."
            raise ValueError(f"Expected a column {column!r} in {source}, found none. {hint}")
    if len(frame) == 0:
        raise ValueError(f"Expected at least one row in {source}, got an empty table.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise ValueError(f"Expected each column of {source} once, got {some(list(twice))} twice. Rename one of them.")
    return frame


def _read_csv(path: Path, comma: str, words: list[str]) -> pd.DataFrame:
    import pandas as pd

    header = pd.read_csv(path, sep=comma, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
    if twice := {name for name in header if name and header.count(name) > 1}:  # pandas would call one of them x.1
        raise ValueError(f"the column {some(sorted(twice))} twice. Rename one of them")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(path, sep=comma, index_col=False, low_memory=False)
        except pd.errors.ParserWarning:  # whose first field would become an index, and every column shift by one
            raise ValueError("rows with more fields than the header") from None
        if present := [c for c in words if c in frame.columns]:
            # "NA", "None" and "null" are fine words for a class: only an empty field is missing.
            frame[present] = pd.read_csv(
                path, sep=comma, index_col=False, usecols=present, dtype=str, keep_default_na=False
            )[present]
    return frame


@dataclass(frozen=True, eq=False)
class Columns:
    """How a table becomes numbers: numeric columns as they are, columns of words one-hot; fitted on the training rows.

    x stays in the table's own units; ``standardise`` gives zero mean and unit variance to the numeric columns.
    """

    numeric: tuple[str, ...]
    fill: Tensor  # (numeric,) medians, which stand in for missing numbers
    categories: dict[str, tuple[str, ...]]
    missing: Missing
    mean: Tensor  # (D,); 0 for one-hot columns
    std: Tensor  # (D,); 1 for one-hot and constant columns

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each input, (D,)."""
        return (*self.numeric, *(f"{c}={word}" for c, words in self.categories.items() for word in words))

    def encode(self, rows: pd.DataFrame) -> Tensor:
        """(N, D) float32; a word that the training rows did not have is none of the categories."""
        if absent := [c for c in (*self.numeric, *self.categories) if c not in rows.columns]:
            raise ValueError(f"Expected the columns of the training table, {some(absent)} are not there.")
        blocks = [_numbers(rows, c).astype(np.float32)[:, None] for c in self.numeric]
        numbers = np.concatenate(blocks, 1) if blocks else np.empty((len(rows), 0), np.float32)
        words = {c: _words(rows, c) for c in self.categories}
        empty = {c: int(np.isnan(numbers[:, i]).sum()) for i, c in enumerate(self.numeric)}
        empty |= {c: int((column == "").sum()) for c, column in words.items()}
        if self.missing == "refuse" and any(empty.values()):
            gaps = [f"{count} in {c!r}" for c, count in empty.items() if count]
            raise ValueError(
                f"Expected no missing values, got {', '.join(gaps[:5])}{' …' * (len(gaps) > 5)}. Drop those rows, "
                "leave the columns out with `features`, or use missing='impute'."
            )
        x = torch.from_numpy(np.where(np.isnan(numbers), self.fill.numpy(), numbers))
        one_hot = [
            torch.from_numpy(words[c] == word)[:, None].float() for c, ws in self.categories.items() for word in ws
        ]
        return torch.cat([x, *one_hot], 1)

    def standardise(self, x: Tensor) -> Tensor:
        """(x − mean)/std of the training rows."""
        return (x - self.mean) / self.std


def _numbers(frame: pd.DataFrame, column: str) -> Any:
    import pandas as pd

    numbers = pd.to_numeric(frame[column], errors="coerce")
    words = (numbers.isna() & frame[column].notna()).to_numpy()
    if words.any():
        row = int(np.flatnonzero(words)[0])
        raise ValueError(f"Expected numbers in column {column!r}, got {frame[column].iloc[row]!r} in row {row}.")
    values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    large = np.abs(values) > np.finfo(np.float32).max
    if large.any():
        row = int(np.flatnonzero(large)[0])
        raise ValueError(
            f"Expected finite numbers in column {column!r}, got {values[row]} in row {row}; "
            f"{int(large.sum())} rows are infinite or too large. Drop these rows or fill them in."
        )
    return values


def _words(frame: pd.DataFrame, column: str) -> Any:
    values = frame[column].astype(object)
    return values.where(values.notna(), "").map(_word).to_numpy(dtype=object)


def _word(value: Any) -> str:
    """The number 2 is the word "2", also where a gap in its column made it 2.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_numeric(column: pd.Series[Any]) -> bool:
    from pandas.api import types

    kind = column.dtype
    if kind.kind == "O":  # Decimals, or numbers of different kinds
        return types.infer_dtype(column) in ("integer", "floating", "mixed-integer-float", "decimal")
    return types.is_bool_dtype(kind) or (types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind))


def _useless(column: pd.Series[Any], words: list[str]) -> str | None:
    """Why a column is left out, if it is."""
    from pandas.api import types

    if str(column.name).startswith("Unnamed: "):  # what pandas calls one without a header
        return "has no name, like the row numbers that pandas saves,"
    if column.isna().all() or words == [""]:
        return "is empty"
    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        return "holds dates"
    if types.is_complex_dtype(column.dtype):
        return "holds complex numbers"
    if column.dtype == object and column.map(lambda value: isinstance(value, (list, tuple, dict, np.ndarray))).any():
        return "holds lists"
    if words and all(map(_DATE.fullmatch, words)):
        return "holds dates"
    return f"holds {len(words)} different words" if len(words) > MOST_CATEGORIES else None


def fit_columns(
    frame: pd.DataFrame, features: Sequence[str], missing: Missing, asked: bool
) -> tuple[Columns, list[str]]:
    """Decide what each column is; one that can't be used is left out with a note, or refused if it was asked for."""
    if missing not in ("refuse", "impute"):
        raise ValueError(f"Expected `missing` to be refuse or impute, got {missing!r}.")
    numeric, categories, notes = [], {}, []
    for column in features:
        values = frame[column]
        words = [] if _is_numeric(values) else sorted(set(_words(frame, column)) - {""})
        why = _useless(values, words)
        if why is not None and asked:
            raise ValueError(f"Expected numbers or categories in column {column!r}, which {why}. Turn it into either.")
        if why is not None:
            notes.append(f"Column {column!r} {why} and was left out.")
        elif words:
            categories[column] = tuple(words)
            odd = [word for word in words if not _NUMERAL.fullmatch(word)]
            if len(odd) < len(words) / 2:
                but = f", but for {some(odd)}" if odd else ""
                notes.append(f"Column {column!r} holds numbers written as words{but}: each counts as a category.")
        else:
            numeric.append(column)
            if values.dtype.kind in "iu" and len(frame) > 20 and values.is_unique:
                notes.append(f"Column {column!r} differs in every row: if it is an identifier, leave it out.")
    if not numeric and not categories:
        raise ValueError(f"Expected at least one usable column, got {some(list(features))}. {' '.join(notes)}")
    numbers = {c: _numbers(frame, c) for c in numeric}
    medians = {c: float(np.nanmedian(values)) for c, values in numbers.items()}
    if missing == "impute":
        for column, values in numbers.items():
            if gaps := int(np.isnan(values).sum()):
                median = f"{medians[column]:g}"
                notes.append(f"{gaps} missing numbers in column {column!r} were filled with its median {median}.")
        for column in categories:
            if gaps := int((_words(frame, column) == "").sum()):
                notes.append(f"{gaps} missing words in column {column!r} count as none of its categories.")
    one_hot = sum(map(len, categories.values()))
    zeros, ones = torch.zeros(len(numeric) + one_hot), torch.ones(len(numeric) + one_hot)
    raw = Columns(tuple(numeric), torch.tensor(list(medians.values())), categories, missing, zeros, ones)
    x = raw.encode(frame)[:, : len(numeric)].double()
    mean, std = zeros.clone(), ones.clone()
    mean[: len(numeric)] = x.mean(0).float()
    spread = x.var(0, correction=0).sqrt().float() if numeric else std[:0]
    std[: len(numeric)] = torch.where(spread > 0, spread, 1)
    return Columns(tuple(numeric), raw.fill, categories, missing, mean, std), notes


@DATASETS.register("table")
def from_table(
    table: Table,
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    missing: Missing = "refuse",
    test: Table | None = None,
    validation: Table | None = None,
    trusted: Table | None = None,
) -> Dataset:
    """A dataset of a table with a label column; numbers stay in their units, words become one-hot columns.

    Missing values are refused by name, or with ``missing="impute"`` filled with medians and reported in ``notes``.
    ``dataset.encoder`` holds mean and spread of each column and encodes new rows the same way.
    """
    if isinstance(table, (str, os.PathLike)):
        label = str(label)  # "label=3" on a command line is the column called 3
    frame = read_table(table, label)
    if isinstance(features, str) or (features is not None and label in features):
        raise ValueError(f"Expected `features` to be a list of columns without the label {label!r}, got {features!r}.")
    if features is not None and (absent := [c for c in features if c not in frame.columns]):
        raise ValueError(f"Expected the columns {some(absent)} in the table, there are {some(list(frame.columns))}.")
    chosen = [c for c in (frame.columns if features is None else features) if c != label]
    columns, notes = fit_columns(frame, chosen, missing, asked=features is not None)
    positions = classes is not None
    y, names = encode_labels(frame[label], classes, positions=positions, name=label)
    notes += describe_labels(y, names, label)
    splits = {"train": Split(columns.encode(frame), y)}
    for part, other in (("test", test), ("validation", validation), ("trusted", trusted)):
        if other is not None:
            rows = read_table(other, label)
            labels, _ = encode_labels(rows[label], names, positions=positions, name=f"{label} of {part}")
            splits[part] = Split(columns.encode(rows), labels)
    name = Path(table).stem if isinstance(table, (str, os.PathLike)) else "table"
    return Dataset(name, names, **splits, encoder=columns, notes=tuple(notes), spec="")
