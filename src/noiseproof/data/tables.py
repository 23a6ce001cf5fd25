"""A user's own table: a pandas ``DataFrame``, or a CSV or Parquet file."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.data.base import Dataset, Split
from noiseproof.data.labels import describe_labels, encode_labels, find_words, some
from noiseproof.data.sources import DATASETS, PathLike

if TYPE_CHECKING:  # half a second to import: left to those who use a table
    import pandas as pd

Table: TypeAlias = "pd.DataFrame | PathLike"
MissingPolicy = Literal["refuse", "impute"]
MOST_CATEGORIES = 100  # a column of more words than that is text or an identifier
MOST_CODES = 20  # numerals of no more kinds may be codes: each counts as a category
MOST_GAPS = 0.2  # of the cells of a column of numbers, in which words such as "?" stand
FEW_ROWS, MANY_ROWS = 20, 100  # in no more rows, what looks like an identifier, or a copy of the label, may be chance
SEPARATE = "Separate columns with commas, or tabs in a .tsv file"
UNKNOWN, EMPTY = -1, -2  # where a cell stands among the categories of its column
FAR = 1e4  # deviations: float32 keeps three digits of what differs in numbers with such a mean
Doubt: TypeAlias = tuple[str, str, bool]  # what is odd about a column, advice, whether there is no doubt
_NUMERAL = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_QUANTITY = re.compile(
    r"[$€£¥₹]?\s?([+−-]?)\s?[$€£¥₹]?\s?([1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s?[$€£¥₹%]?",
    re.ASCII | re.IGNORECASE,
)
_SIGN, _CODE = re.compile("[$€£¥₹%,]"), re.compile(r"[+−-]?0\d")  # of a quantity; of a code such as 02139
_DECIMAL_COMMA = re.compile(r"[+−-]?(0,\d+|\d+,(\d{1,2}|\d{4,}))")  # nobody knows what 1,234 is beside such
_ID = re.compile(r"(?i:(^|[^a-z])(id|uuid|guid)([^a-z]|$)|^(index|idx|key)$)|[a-z]I[dD]$")
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")


def read_table(
    table: Table, label: str, text: str | None = None, *words: str | None, categories: Iterable[str] = ()
) -> pd.DataFrame:
    """The rows of a DataFrame, a .csv, a .tsv or a .parquet file, none of them empty, with the columns named.

    Of a .csv or .tsv file, the label, the text and the columns ``words`` are read as they are written. So are
    ``categories``, columns that hold words in another table, but for what pandas takes for a gap.
    """
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
                frame = _read_csv(path, "\t" if kind == "tsv" else ",", [label, text, *words], categories)
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
            if _other_mark(list(frame.columns)):
                hint = f"Its only one is {frame.columns[0]!r}. {SEPARATE}."
            raise ValueError(f"Expected a column {column!r} in {source}, found none. {hint}")
    if len(frame) == 0:
        raise ValueError(f"Expected at least one row in {source}, got an empty table.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise ValueError(f"Expected each column of {source} once, got {some(list(twice))} twice. Rename one of them.")
    return frame


def _other_mark(header: Sequence[Any]) -> bool:
    """Whether one name holds those of all columns, with another mark between them."""
    return len(header) == 1 and any(mark in str(header[0]) for mark in ";\t|")


def _read_csv(path: Path, comma: str, words: Sequence[str | None], categories: Iterable[str] = ()) -> pd.DataFrame:
    import pandas as pd

    header = pd.read_csv(path, sep=comma, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
    if twice := {name for name in header if name and header.count(name) > 1}:  # pandas would call one of them x.1
        raise ValueError(f"the column {some(sorted(twice))} twice. Rename one of them")
    if _other_mark(header) and header[0] not in words:  # before a decimal comma below it is taken for a separator
        raise ValueError(f"a single column {header[0]!r}. {SEPARATE}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            # pandas looks at one file at a time: without other words in it, 02 would be the number 2
            kinds: Any = dict.fromkeys(categories, str)
            frame = pd.read_csv(path, sep=comma, index_col=False, low_memory=False, dtype=kinds)
        except pd.errors.ParserWarning:  # whose first field would become an index, and every column shift by one
            raise ValueError("rows with more fields than the header") from None
        if present := [c for c in frame.columns if c in words]:
            # "NA", "None" and "null" are fine words for a class, 007 names another row than 7: only an empty field is
            # missing.
            frame[present] = pd.read_csv(
                path, sep=comma, index_col=False, usecols=present, dtype=str, keep_default_na=False
            )[present]
    return frame


@dataclass(frozen=True, eq=False)
class Columns:
    """How a table becomes numbers: numeric columns as they are, columns of words one-hot; fitted on the training rows.

    x stays in the table's own units, but for ``shift``; ``standardise`` gives zero mean and unit variance to the
    numeric columns.
    """

    numeric: tuple[str, ...]
    fill: Tensor  # (numeric,) medians, which stand in for missing numbers
    categories: dict[str, tuple[str, ...]]
    missing: MissingPolicy  # impute: a word in a numeric column is as good as none, in new rows as in those of training
    mean: Tensor  # (D,) float64, of the table's numbers; 0 for one-hot columns
    std: Tensor  # (D,) float64; 1 for one-hot and constant columns

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each input, (D,)."""
        return (*self.numeric, *(f"{c}={word}" for c, words in self.categories.items() for word in words))

    @property
    def shift(self) -> Tensor:
        """What is taken off each input before float32 has it, (D,): the mean of numbers that hardly differ, else 0."""
        known = self.mean.dtype is torch.float64  # models saved before held float32, and took nothing off
        return shift_of(self.mean, self.std) if known else torch.zeros_like(self.mean)

    def encode(self, rows: pd.DataFrame | NDArray[Any]) -> Tensor:
        """(N, D) float32, of a table or an array; a word that the training rows did not have is no category."""
        import pandas as pd

        if isinstance(rows, np.ndarray):
            rows = pd.DataFrame(rows, columns=list(self.numeric))
        if absent := [c for c in (*self.numeric, *self.categories) if c not in rows.columns]:
            raise ValueError(f"Expected the columns of the training table, {some(absent)} are not there.")
        x, empty = np.empty((len(rows), len(self.numeric)), np.float32), {}
        for i, (c, fill, shift) in enumerate(zip(self.numeric, self.fill.tolist(), self.shift.tolist(), strict=False)):
            values = _numbers(rows, c, self.missing == "impute")
            empty[c] = int(np.isnan(values).sum())
            x[:, i] = np.where(np.isnan(values), fill, values) - shift
        places = self._places(rows)
        empty |= {c: int((column == EMPTY).sum()) for c, column in places.items()}
        if self.missing == "refuse" and any(empty.values()):
            gaps = [f"{count} in {c!r}" for c, count in empty.items() if count]
            raise ValueError(
                f"Expected no missing values, got {', '.join(gaps[:5])}{' …' * (len(gaps) > 5)}. Drop those rows, "
                "leave the columns out with `features`, or use missing='impute'."
            )
        one_hot = [
            (torch.from_numpy(column)[:, None] == torch.arange(len(self.categories[c]))).float()
            for c, column in places.items()
        ]
        return torch.cat([torch.from_numpy(x), *one_hot], 1)

    def describe(self, rows: pd.DataFrame, part: str) -> list[str]:
        """What of other rows than those of training could not be taken as it is, a sentence for each column."""
        notes = []
        for c, fill in zip(self.numeric, self.fill.tolist(), strict=True):
            if empty := int(np.isnan(_numbers(rows, c, gaps=True)).sum()):
                of = f"in column {c!r} of the {part} set"
                notes.append(f"{empty} missing numbers {of} were filled with its median {fill:g}.")
        for c, places in self._places(rows).items():
            if strange := sorted(set(_words(rows, c)[places < 0])):
                count = int((places < 0).sum())
                of = f"in column {c!r} of the {part} set"
                notes.append(f"{count} cells {of} are none of its categories: {some(strange)}.")
        return notes

    def _places(self, rows: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
        """Of each column of words, where its cells, (N,), stand among its categories."""
        places = {}
        for c, known in self.categories.items():
            words = _words(rows, c)
            place = {word: UNKNOWN if k is None else k for word, k in find_words(set(words), known).items()}
            place[""] = EMPTY
            places[c] = np.array([place[word] for word in words], dtype=np.int64)
        return places

    def standardise(self, x: Tensor) -> Tensor:
        """(x − mean)/std of the training rows, for x as ``encode`` gives it."""
        return (x - (self.mean - self.shift).to(x)) / self.std.to(x)


def _numbers(frame: pd.DataFrame, column: str, gaps: bool = False) -> NDArray[np.float64]:
    """A column in float64, NaN where a cell is empty; a word is refused, or with ``gaps`` as good as empty."""
    import pandas as pd

    cells = frame[column]
    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(object)
    numbers = pd.to_numeric(cells, errors="coerce")
    values = np.array(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
    odd = np.flatnonzero((numbers.isna() & cells.notna()).to_numpy())
    values[odd] = [_quantity(str(cell)) for cell in cells.iloc[odd]]
    if words := [row for row in odd.tolist() if np.isnan(values[row]) and str(cells.iloc[row]).strip() and not gaps]:
        raise ValueError(f"Expected numbers in column {column!r}, got {cells.iloc[words[0]]!r} in row {words[0]}.")
    large = np.abs(values) > np.finfo(np.float32).max
    if large.any():
        row = int(np.flatnonzero(large)[0])
        raise ValueError(
            f"Expected finite numbers in column {column!r}, got {values[row]} in row {row}; "
            f"{int(large.sum())} rows are infinite or too large. Drop these rows or fill them in."
        )
    return values


def _quantity(word: str) -> float:
    """The number of a numeral as people write it, such as $1,234.50 or 12.3 %; NaN of another word."""
    found = _QUANTITY.fullmatch(word.strip())
    return float("".join(part or "" for part in found.groups()).replace(",", "").replace("−", "-")) if found else np.nan


def shift_of(mean: Any, std: Any) -> Any:
    """The means of columns whose numbers hardly differ, of a constant (deviation 1) and all others 0."""
    return mean * ((abs(mean) > FAR * std) & (std != 1))


def moments(values: NDArray[Any]) -> tuple[Any, Any]:
    """Mean and deviation over the rows in float64; 1 for the deviation of what is constant but for rounding."""
    apart = np.subtract(values, values[0], dtype=np.float64)  # 0, and not nearly so, in what is constant
    mean, std = values[0] + apart.mean(0), apart.std(0)
    return mean, np.where(np.float32(std) > 1e-14 * np.abs(mean), std, 1.0)[()]


def shifted_columns(rows: NDArray[Any], names: Iterable[str] | None = None) -> Columns | None:
    """How numbers (N, D) that float32 would not tell apart become inputs: less their mean; None of any others."""
    if rows.dtype.kind not in "iuf" or np.can_cast(rows.dtype, np.float32):  # which hold no more than float32
        return None
    parts = [moments(rows[:, i : i + 64]) for i in range(0, rows.shape[1], 64)]  # copies of few columns at a time
    mean, std = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    named = tuple(map(str, range(len(mean)) if names is None else names))
    columns = Columns(named, mean.clone(), {}, "refuse", mean, std)
    return columns if bool(columns.shift.any()) else None


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


def _useless(column: pd.Series[Any], words: list[str] | None) -> str | None:
    """Why a column of words, or of numbers (None), is left out, if it is."""
    from pandas.api import types

    if str(column.name).startswith("Unnamed: "):  # what pandas calls one without a header
        return "has no name, like the row numbers that pandas saves,"
    if column.isna().all() or words == []:
        return "is empty"
    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        return "holds dates"
    if types.is_complex_dtype(column.dtype):
        return "holds complex numbers"
    if column.dtype == object and column.map(lambda value: isinstance(value, (list, tuple, dict, np.ndarray))).any():
        return "holds lists"
    if words and all(map(_DATE.fullmatch, words)):
        return "holds dates"
    if words and len(words) > MOST_CATEGORIES:
        return f"holds {len(words)} different words{_decimal_comma(words)}"
    return None


def _decimal_comma(words: list[str]) -> str:
    """What to do about a column of numbers such as 14,23; nothing of another."""
    numbers = [word for word in words if _DECIMAL_COMMA.fullmatch(word)]
    if 2 * len(numbers) < len(words):
        return ""
    return f" (numbers with a decimal comma: write {numbers[0]} as {numbers[0].replace(',', '.')})"


def _odd_cells(cells: NDArray[Any], words: list[str]) -> list[str] | None:
    """The cells that are no numbers in a column of numbers written as words; None of any other column."""
    numerals = {word for word in words if not np.isnan(_quantity(word))}
    plain = not any(_SIGN.search(word) for word in numerals)
    codes = len(words) <= MOST_CODES or (len(words) <= MOST_CATEGORIES and all(map(str.isdigit, numerals)))
    if (plain and codes) or any(map(_CODE.match, numerals)) or any(map(_DECIMAL_COMMA.fullmatch, words)):
        return None
    filled = [word for word in cells if word.strip()]
    odd = [word for word in filled if word not in numerals]
    return odd if len(odd) <= MOST_GAPS * len(filled) else None


def _identifier(name: str, values: NDArray[np.float64]) -> Doubt | None:
    """Whether numbers name the rows and tell nothing else."""
    known = values[~np.isnan(values)]
    if len(known) <= FEW_ROWS or np.ptp(known) < len(known) - 1 or (known % 1).any():
        return None
    if len(np.unique(known)) < len(known):
        return None
    advice = f"if it is an identifier, leave it out (`--id {name}` or `--ignore {name}` in an audit, else `features`)"
    steps = np.diff(values)
    if abs(steps[0]) == 1 and (steps == steps[0]).all():
        return "numbers the rows", advice, True
    return "differs in every row", advice, _ID.search(name) is not None


def _label_code(name: str, cells: NDArray[Any], labels: NDArray[np.int64]) -> Doubt | None:
    """Whether each value goes with one class and each class with one value.

    A strong feature contradicts the labels that are wrong. What never does was made from them and hides them all,
    unless there are too few rows for a wrong one.
    """
    import pandas as pd

    classes = len(np.unique(labels[labels >= 0]))
    for rows in (slice(10_000), slice(None)):  # most columns show at once that they are no code
        values, given = pd.factorize(cells[rows])[0].astype(np.int64), labels[rows]
        known = (values >= 0) & (given >= 0)
        values, given = values[known], given[known]
        pairs = np.unique(values * (labels.max() + 1) + given)
        if not len(np.unique(values)) == len(np.unique(given)) == len(pairs):
            return None
    if len(given) <= max(FEW_ROWS, 2 * classes) or not len(pairs) == classes > 1:
        return None
    advice = f"if it was made from the label, leave it out (`--ignore {name}` in an audit, else `features`)"
    return "goes with the label one to one", advice, len(given) > MANY_ROWS


def fit_columns(
    frame: pd.DataFrame,
    features: Sequence[str],
    missing: MissingPolicy,
    asked: bool,
    labels: NDArray[np.int64] | None = None,
) -> tuple[Columns, list[str]]:
    """Decide what each column is; one that can't be used is left out with a note, or refused if it was asked for.

    Identifiers and codes of the ``labels``, (N,), −1 where there is none, are left out unless they were asked for.
    """
    import pandas as pd

    if missing not in ("refuse", "impute"):
        raise ValueError(f"Expected `missing` to be refuse or impute, got {missing!r}.")
    numbers: dict[str, NDArray[np.float64]] = {}
    categories: dict[str, tuple[str, ...]] = {}
    notes = []
    for column in features:
        is_number = _is_numeric(frame[column])
        cells: Any = [] if is_number else _words(frame, column)
        words = sorted(set(cells) - {""})
        is_code = isinstance(frame[column].dtype, pd.CategoricalDtype)
        odd = [] if is_number else None if is_code else _odd_cells(cells, words)
        why = _useless(frame[column], words if odd is None else None)
        if why is not None and asked:
            raise ValueError(f"Expected numbers or categories in column {column!r}, which {why}. Turn it into either.")
        if why is not None:
            notes.append(f"Column {column!r} {why} and was left out.")
            continue
        if odd and missing == "refuse":
            raise ValueError(
                f"Expected numbers in column {column!r}, got {some(sorted(set(odd)))} in {len(odd)} of {len(frame)} "
                "rows. Drop those rows, leave the column out, or use missing='impute'."
            )
        cells = np.where(cells == "", None, cells) if odd is None else _numbers(frame, column, bool(odd))
        doubt = _identifier(str(column), cells) if odd is not None else None
        if doubt is None and labels is not None:
            doubt = _label_code(str(column), cells, labels)
        if doubt is not None:
            what, advice, sure = doubt
            if sure and not asked:
                notes.append(f"Column {column!r} {what} and was left out; from_table keeps it if `features` names it.")
                continue
            notes.append(f"Column {column!r} {what}: {advice}.")
        if odd is None:
            categories[column] = tuple(words)
            others = [word for word in words if not _NUMERAL.fullmatch(word)]
            if len(others) < len(words) / 2:
                but = f", but for {some(others)}" if others else ""
                comma = _decimal_comma(words)
                notes.append(
                    f"Column {column!r} holds numbers written as words{but}: each counts as a category{comma}."
                )
            continue
        numbers[column] = cells
        if not is_number:
            signs = sorted({sign for word in {*words} - {*odd} for sign in _SIGN.findall(word)})
            without = f" without {some(signs)}" if signs else ""
            but = f"; {len(odd)} words in it ({some(sorted(set(odd)))}) count as missing" if odd else ""
            notes.append(f"Column {column!r} was read as numbers{without}{but}.")
    if not numbers and not categories:
        raise ValueError(f"Expected at least one usable column, got {some(list(features))}. {' '.join(notes)}")
    medians = {c: float(np.nanmedian(values)) for c, values in numbers.items()}
    if missing == "impute":
        for column, cells in numbers.items():
            if empty := int(np.isnan(cells).sum()):
                median = f"{medians[column]:g}"
                notes.append(f"{empty} missing numbers in column {column!r} were filled with its median {median}.")
        for column in categories:
            if empty := int((_words(frame, column) == "").sum()):
                notes.append(f"{empty} missing words in column {column!r} count as none of its categories.")
    scales = [moments(np.where(np.isnan(cells), medians[c], cells)) for c, cells in numbers.items()]
    scales += [(0.0, 1.0)] * sum(map(len, categories.values()))
    mean, std = (torch.tensor(column, dtype=torch.float64) for column in zip(*scales, strict=True))
    fill = torch.tensor(list(medians.values()), dtype=torch.float64)
    return Columns(tuple(numbers), fill, categories, missing, mean, std), notes


@DATASETS.register("table")
def from_table(
    table: Table,
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    missing: MissingPolicy = "refuse",
    test: Table | None = None,
    validation: Table | None = None,
    trusted: Table | None = None,
) -> Dataset:
    """A dataset of a table with a label column; numbers stay in their units, words become one-hot columns.

    Missing values are refused by name, or with ``missing="impute"`` filled with medians and reported in ``notes``.
    Identifiers and codes of the label are left out, unless ``features`` names them. ``dataset.encoder`` holds mean and
    spread of each column and encodes new rows the same way.
    """
    if isinstance(table, (str, os.PathLike)):
        label = str(label)  # "label=3" on a command line is the column called 3
    frame = read_table(table, label)
    if isinstance(features, str) or (features is not None and label in features):
        raise ValueError(f"Expected `features` to be a list of columns without the label {label!r}, got {features!r}.")
    if features is not None and (absent := [c for c in features if c not in frame.columns]):
        raise ValueError(f"Expected the columns {some(absent)} in the table, there are {some(list(frame.columns))}.")
    chosen = [c for c in (frame.columns if features is None else features) if c != label]
    positions = classes is not None
    y, names = encode_labels(frame[label], classes, positions=positions, name=label)
    columns, notes = fit_columns(frame, chosen, missing, asked=features is not None, labels=y.numpy())
    notes += describe_labels(y, names, label)
    splits = {"train": Split(columns.encode(frame), y)}
    for part, other in (("test", test), ("validation", validation), ("trusted", trusted)):
        if other is not None:
            rows = read_table(other, label, categories=columns.categories)
            labels, _ = encode_labels(rows[label], names, positions=positions, name=f"{label} of {part}")
            splits[part] = Split(columns.encode(rows), labels)
            notes += columns.describe(rows, part)
    name = Path(table).stem if isinstance(table, (str, os.PathLike)) else "table"
    return Dataset(name, names, **splits, encoder=columns, notes=tuple(notes), spec="")
