"""A user's table, encoded as numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.arrays import Array, Floats, Floats32, Ints
from noiseproof.core.messages import counted, preview
from noiseproof.core.tablefiles import check_column
from noiseproof.data.base import Dataset, Split
from noiseproof.data.frames import ParquetColumns, Table, read_table, reading_notes, table_name
from noiseproof.data.labels import TrainingLabels, describe_labels, find_words
from noiseproof.data.sources import DATASETS

if TYPE_CHECKING:  # takes half a second to import
    import pandas as pd

Frame: TypeAlias = "pd.DataFrame | ParquetColumns"
MissingPolicy = Literal["refuse", "impute"]
MAX_CATEGORIES = 100  # a column of more distinct words is too wide for one-hot columns
# rows for each of its words, on average, below which such a column is text or an identifier
MIN_REPEATS = 4
MAX_CODES = 20  # numerals of at most this many kinds may be codes: they stay categories
MAX_NON_NUMBERS = 0.2  # share of the cells of a numeric column that may be words such as "?"
# in few rows, what looks like an identifier or a copy of the label may be chance
FEW_ROWS = 20
MANY_ROWS = 100
UNKNOWN = -1  # codes of cells that are none of the categories of their column
EMPTY = -2
# mean in standard deviations from which on float32 keeps at most three digits of the differences
FAR = 1e4
BLOCK = 16  # columns whose moments are computed at once
_QUANTITY = re.compile(
    r"[$€£¥₹]?\s?([+−-]?)\s?[$€£¥₹]?\s?([1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s?[$€£¥₹%]?",
    re.ASCII | re.IGNORECASE,
)
_SIGN = re.compile("[$€£¥₹%,]")  # in a quantity
_CODE = re.compile(r"[+−-]?0\d")  # the start of a code such as 02139
# in a column with one of these, 1,234 is ambiguous
_DECIMAL_COMMA = re.compile(r"[+−-]?(0,\d+|\d+,(\d{1,2}|\d{4,}))")
_ONE_WORD = re.compile("[!-~]*")  # in ASCII: texts of other scripts may have no spaces
_ID = re.compile(r"(?i:(^|[^a-z])(id|uuid|guid)([^a-z]|$)|^(index|idx|key)$)|[a-z]I[dD]$")
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """N rows of D features for decision trees: numbers in any unit, NaN for gaps, categories as
    codes from 0.
    """

    values: Floats32  # (N, D)
    num_categories: tuple[int, ...]  # (D,): 0 for a column of numbers
    frame: Frame | None = None  # the N rows with their columns as in the source
    fitted: Columns | None = None  # the encoder of these columns

    @classmethod
    def of_numbers(cls, x: Floats32) -> FeatureTable:
        return cls(x, (0,) * x.shape[1])

    def __getitem__(self, rows: Array) -> FeatureTable:
        """Return some of the rows, by numbers or a mask (N,)."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        frame = None if self.frame is None else self.frame.take(numbers)
        return replace(self, values=self.values[rows], frame=frame)


@dataclass(frozen=True, eq=False)
class Columns:
    """Encodes tables as numbers, fitted on the training rows: numeric columns as they are, columns
    of words one-hot.

    Numbers stay in the units of the table, less ``shift``; ``standardise_`` scales the numeric
    columns to zero mean and unit variance.
    """

    numeric: tuple[str, ...]
    fill: Tensor  # (numeric,) medians, which replace missing numbers
    categories: dict[str, tuple[str, ...]]
    missing: MissingPolicy  # with impute, words in numeric columns count as missing
    mean: Tensor  # (D,) float64, of the numbers in the table; 0 for one-hot columns
    std: Tensor  # (D,) float64; 1 for one-hot and constant columns
    # categories too many for one-hot columns
    wide: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # left out, as texts: rows that differ in them are different ones
    differing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each input, (D,)."""
        one_hot = [f"{c}={word}" for c, words in self.categories.items() for word in words]
        return (*self.numeric, *one_hot)

    @property
    def shift(self) -> Tensor:
        """What is subtracted before the conversion to float32, (D,): the mean of numbers that
        hardly differ, else 0.
        """
        shift: Tensor = shift_of(self.mean, self.std)
        return shift

    def encode(self, rows: Frame | Array) -> Tensor:
        """Encode a table or an array as (N, D) float32; words without a category become zeros."""
        import pandas as pd

        frame: Any = rows
        if isinstance(rows, np.ndarray):
            frame = pd.DataFrame(rows, columns=list(self.numeric))
        return self.encode_part(frame, "")[0]

    def encode_part(self, frame: Frame, part: str) -> tuple[Tensor, list[str]]:
        """Encode a part of the data, and return notes on what was imputed or has no known
        category.
        """
        if absent := [c for c in (*self.numeric, *self.categories) if c not in frame.columns]:
            raise ValueError(
                f"Expected the columns of the training table, {preview(absent)} are missing."
            )
        x = np.zeros((len(frame), len(self.mean)), np.float32)
        num_missing = {}
        notes = []
        shifts = self.shift.tolist()
        for i, (c, fill) in enumerate(zip(self.numeric, self.fill.tolist(), strict=True)):
            values = _numbers(frame[c], self.missing == "impute")
            is_gap = np.isnan(values)
            num_missing[c] = int(is_gap.sum())
            if num_missing[c]:
                notes.append(_filled(num_missing[c], f"column {c!r} of the {part} set", fill))
            x[:, i] = np.where(is_gap, fill, values) - shifts[i]
        position = len(self.numeric)
        for c, words in self.categories.items():
            codes = _codes(frame[c], words)
            num_missing[c] = int((codes == EMPTY).sum())
            is_unknown = codes < 0
            if is_unknown.any():
                where = f"in column {c!r} of the {part} set"
                cells = counted(int(is_unknown.sum()), f"cell {where} is", f"cells {where} are")
                unknown = sorted(set(_words(frame[c])[is_unknown]))
                notes.append(f"{cells} none of its categories: {preview(unknown)}.")
            known = np.flatnonzero(~is_unknown)
            x[known, position + codes[known]] = 1
            position += len(words)
        if self.missing == "refuse" and any(num_missing.values()):
            counts = [f"{count} in {c!r}" for c, count in num_missing.items() if count]
            raise ValueError(
                f"Expected no missing values, got {', '.join(counts[:5])}. Drop those rows or"
                " columns, or fill in medians with `missing='impute'`."
            )
        return torch.from_numpy(x), notes

    def table(self, frame: Frame) -> FeatureTable:
        """Return a table for decision trees, ``wide`` columns included."""
        words = self.categories | self.wide
        values = np.empty((len(frame), len(self.numeric) + len(words)), np.float32)
        for i, c in enumerate(self.numeric):
            values[:, i] = _numbers(frame[c], self.missing == "impute") - float(self.shift[i])
        for i, (c, known) in enumerate(words.items(), len(self.numeric)):
            codes = _codes(frame[c], known)
            values[:, i] = np.where(codes < 0, np.nan, codes)
        counts = (*[0] * len(self.numeric), *map(len, words.values()))
        return FeatureTable(values, counts, fitted=self)

    def unlike(self, frame: Frame) -> Ints | None:
        """Return a hash for each row of the words in columns that distinguish rows and are not
        inputs, (N,); None if there are no such columns.
        """
        import pandas as pd

        names = [*self.wide, *self.differing]
        if not names:
            return None
        # copies may differ in capital letters and spaces
        plain = {
            name: [" ".join(word.casefold().split()) for word in _words(frame[name])]
            for name in names
        }
        hashes = pd.util.hash_pandas_object(pd.DataFrame(plain, dtype=object), index=False)
        return hashes.to_numpy().view(np.int64)

    def standardise_(self, x: Tensor) -> Tensor:
        """Change x of ``encode`` to (x − mean)/std with the moments of the training rows."""
        return x.sub_((self.mean - self.shift).to(x)).div_(self.std.to(x))


def _numbers(cells: pd.Series[Any], impute: bool = False) -> Floats:
    """A column as float64, NaN where a cell is empty; words are refused, or with ``impute`` count
    as missing.
    """
    import pandas as pd

    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(object)
    try:
        numbers = pd.to_numeric(cells, errors="coerce")
    except OverflowError:  # whole numbers of hundreds of digits, which are infinite as real ones
        numbers = pd.to_numeric(cells.astype(str), errors="coerce")
    values = np.array(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
    non_numbers = np.flatnonzero((numbers.isna() & cells.notna()).to_numpy())
    values[non_numbers] = [_quantity(str(cell)) for cell in cells.iloc[non_numbers]]
    for row in non_numbers.tolist():
        if not impute and np.isnan(values[row]) and str(cells.iloc[row]).strip():
            raise ValueError(
                f"Expected numbers in column {cells.name!r}, got {cells.iloc[row]!r} in row {row}."
            )
    large = np.abs(values) > np.finfo(np.float32).max
    if large.any():
        row = int(large.argmax())
        raise ValueError(
            f"Expected finite numbers in column {cells.name!r}, got {values[row]} in row {row};"
            f" {counted(int(large.sum()), 'row is', 'rows are')} infinite or too large. Drop these"
            " rows or fill them in."
        )
    return values


def _quantity(word: str) -> float:
    """The number that a word such as $1,234.50 or 12.3 % stands for; NaN for other words."""
    match = _QUANTITY.fullmatch(word.strip())
    if match is None:
        return np.nan
    digits = "".join(part or "" for part in match.groups())
    return float(digits.replace(",", "").replace("−", "-"))


def _words(cells: pd.Series[Any]) -> Any:
    """A column as words (N,), "" where a cell is empty."""
    import pandas as pd

    # equal words are one object: a pointer for each cell
    if isinstance(cells.dtype, pd.StringDtype):
        codes, words = pd.factorize(cells)
        return np.append(np.asarray(words, dtype=object), "")[codes]  # −1 is the last one
    values = cells.astype(object)
    return values.where(values.notna(), "").map(_word).to_numpy(dtype=object)


def _word(value: Any) -> str:
    # pandas makes the number 2 a 2.0 where another cell is missing
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _codes(cells: pd.Series[Any], known: Sequence[str]) -> Ints:
    """The number of the category of each cell of a column of words, (N,)."""
    words = _words(cells)
    number = find_words({*words}, known) | {"": EMPTY}
    return np.fromiter((number.get(word, UNKNOWN) for word in words), np.int64, len(words))


def shift_of(mean: Any, std: Any) -> Any:
    """Return the mean where numbers hardly differ, else 0, also for constants (std 1)."""
    return mean * ((abs(mean) > FAR * std) & (std != 1))


def moments(values: Array) -> tuple[Any, Any]:
    """Return mean and standard deviation over the rows in float64; 1 as that of constants."""
    if values.ndim == 2 and values.shape[1] > BLOCK:  # in parts, which take less memory
        parts = np.array_split(values, -(-values.shape[1] // BLOCK), axis=1)
        means, stds = zip(*map(moments, parts), strict=True)
        return np.concatenate(means), np.concatenate(stds)
    difference = np.subtract(values, values[0], dtype=np.float64)  # exactly 0 for constants
    mean = values[0] + difference.mean(0)
    std = difference.std(0)
    return mean, np.where(np.float32(std) > 1e-14 * np.abs(mean), std, 1.0)[()]


def number_columns(x: Array, names: Iterable[str] | None = None) -> Columns | None:
    """Return an encoder of numbers (N, D) that fills gaps with medians, or with means if there are
    none yet, and subtracts the means of numbers that float32 can't distinguish; None if there is
    nothing to do.
    """
    if x.dtype.kind not in "iuf":
        return None
    missing = np.isnan(x)
    medians = None
    if missing.any():
        medians = np.nanmedian(np.where(missing.all(0), 0.0, x), axis=0)
        x = np.where(missing, medians, x)
    elif np.can_cast(x.dtype, np.float32):  # float32 loses nothing
        return None
    mean, std = (torch.from_numpy(part.astype(np.float64)) for part in moments(x))
    if names is None:
        names = map(str, range(len(mean)))
    column_names = tuple(map(str, names))
    if medians is not None:
        fill = torch.from_numpy(medians.astype(np.float64))
        return Columns(column_names, fill, {}, "impute", mean, std)
    columns = Columns(column_names, mean.clone(), {}, "refuse", mean, std)
    return columns if bool(columns.shift.any()) else None


def is_numeric(column: pd.Series[Any]) -> bool:
    """Return whether all cells of a column are numbers or truth values."""
    from pandas.api import types

    kind = column.dtype
    if kind.kind == "O":  # Decimals, or numbers of different kinds
        numbers = ("integer", "floating", "mixed-integer-float", "decimal")
        return types.infer_dtype(column) in numbers
    return types.is_bool_dtype(kind) or types.is_numeric_dtype(kind)


@dataclass(eq=False)
class _LeftOut(Exception):
    """Why a column can't be used, what to do about it, and whether rows that differ in it alone are
    different ones.
    """

    reason: str
    advice: str = ""
    differs: bool = False


def _check_type(column: pd.Series[Any]) -> None:
    """Refuse a column by its name or the type of its cells."""
    from pandas.api import types

    # the name that pandas gives to a column without a header
    if str(column.name).startswith("Unnamed: "):
        raise _LeftOut("has no name, like the row numbers that pandas saves,")
    if column.isna().all():
        raise _LeftOut("is empty")
    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        raise _LeftOut("holds dates")
    if types.is_complex_dtype(column.dtype):
        raise _LeftOut("holds complex numbers")
    lists = (list, tuple, dict, np.ndarray)
    if column.dtype == object and column.map(lambda value: isinstance(value, lists)).any():
        raise _LeftOut("holds lists")


def _check_categories(column: pd.Series[Any], words: list[str], wide: bool) -> None:
    """Refuse words that are dates, texts or identifiers."""
    if not words:
        raise _LeftOut("is empty")
    if all(map(_DATE.fullmatch, words)):
        raise _LeftOut("holds dates")
    num_filled = int(column.notna().sum())
    hint = _decimal_comma_hint(words)
    can_be_wide = wide and not hint and len(words) * MIN_REPEATS <= num_filled
    if len(words) <= MAX_CATEGORIES or can_be_wide:
        return
    # One word that hardly repeats is an identifier, even of a copy.
    if 2 * sum(_ONE_WORD.fullmatch(word) is None for word in words) <= len(words):
        differs = 2 * len(words) <= num_filled or bool(hint)
        raise _LeftOut(f"holds {len(words)} different words{hint}", differs=differs)
    advice = ""
    if wide:
        advice = f': `--text {column.name}` (in Python text="{column.name}") uses it'
    raise _LeftOut(f"holds {len(words)} different texts", advice, True)


def _decimal_comma_hint(words: list[str]) -> str:
    """What to do about a column of numbers such as 14,23; "" for other columns."""
    numbers = [word for word in words if _DECIMAL_COMMA.fullmatch(word)]
    if 2 * len(numbers) < len(words):
        return ""
    return f" (numbers with a decimal comma: write {numbers[0]} as {numbers[0].replace(',', '.')})"


def _non_numbers(cells: Array, words: list[str]) -> list[str] | None:
    """The cells that are not numbers in a column of numbers written as words; None for a column of
    categories.
    """
    numerals = {word for word in words if not np.isnan(_quantity(word))}
    has_signs = any(map(_SIGN.search, numerals))
    are_few = len(words) <= MAX_CODES
    are_codes = len(words) <= MAX_CATEGORIES and all(map(str.isdigit, numerals))
    is_ambiguous = any(map(_CODE.match, numerals)) or any(map(_DECIMAL_COMMA.fullmatch, words))
    if is_ambiguous or (not has_signs and (are_few or are_codes)):
        return None
    filled = [word for word in cells if word.strip()]
    others = [word for word in filled if word not in numerals]
    return others if len(others) <= MAX_NON_NUMBERS * len(filled) else None


class _Column(NamedTuple):
    """What is kept of a column of categories, its ``words``, or of numbers."""

    name: str
    words: tuple[str, ...]  # () of numbers
    num_missing: int
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0

    @property
    def is_wide(self) -> bool:
        """Whether these are too many categories for one-hot columns."""
        return len(self.words) > MAX_CATEGORIES

    def describe_gaps(self) -> str:
        where = f"column {self.name!r}"
        if not self.words:
            return _filled(self.num_missing, where, self.median)
        one = f"missing word in {where} counts"
        many = f"missing words in {where} count"
        return f"{counted(self.num_missing, one, many)} as none of its categories."


def _filled(count: int, where: str, median: float) -> str:
    filled = counted(count, f"missing number in {where} was", f"missing numbers in {where} were")
    return f"{filled} filled with its median {median:g}."


def _fit_column(
    frame: Frame,
    name: str,
    missing: MissingPolicy,
    labels: Ints | None,
    keep: bool,
    wide: bool,
) -> tuple[_Column, list[str]]:
    """Read a column as numbers or categories; raise _LeftOut if it can't be used, or without
    ``keep`` carries no information.

    Returns:
        The fitted column, and notes on it.
    """
    import pandas as pd

    if isinstance(frame, ParquetColumns) and frame.is_nested(name):
        raise _LeftOut("holds lists")  # which are not read
    column = frame[name]
    _check_type(column)
    cells: Any = None
    non_numbers: list[str] | None = []
    notes: list[str] = []
    if not is_numeric(column):
        cells = _words(column)
        words = sorted(set(cells) - {""})
        is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
        non_numbers = None if is_categorical else _non_numbers(cells, words)
        if non_numbers is None:
            _check_categories(column, words, wide)
            cells = np.where(cells == "", None, cells)
        notes = _describe_words(name, words, non_numbers)
    if non_numbers and missing == "refuse":
        raise ValueError(
            f"Expected numbers in column {name!r}, got {preview(sorted(set(non_numbers)))} in"
            f" {len(non_numbers)} of {len(frame)} rows. Drop those rows or the column, or count"
            " words as gaps with `missing='impute'`."
        )
    suspicion = None
    if non_numbers is not None:
        cells = _numbers(column, bool(non_numbers))
        suspicion = _find_identifier(str(name), cells)
    if suspicion is None and labels is not None:
        suspicion = _find_label_code(str(name), cells, labels)
    if suspicion is not None:
        if suspicion.is_certain and not keep:
            advice = "" if wide else "; name it in `features` to keep it"
            raise _LeftOut(suspicion.reason, advice)
        notes.insert(
            0,
            f"Column {name!r} {suspicion.reason}: {suspicion.condition}, leave it out"
            f" ({suspicion.options} in an audit, else `features`).",
        )
    if non_numbers is None:
        return _Column(name, tuple(words), sum(cell is None for cell in cells)), notes
    gaps = np.isnan(cells)
    median = float(np.nanmedian(cells))
    mean, std = moments(np.where(gaps, median, cells))
    return _Column(name, (), int(gaps.sum()), median, mean, std), notes


def _describe_words(name: str, words: list[str], non_numbers: list[str] | None) -> list[str]:
    """How words were read as numbers, or numbers as categories."""
    if non_numbers is not None:
        odd = sorted(set(non_numbers))
        numerals = {*words} - {*odd}
        signs = sorted({sign for word in numerals for sign in _SIGN.findall(word)})
        note = f"Column {name!r} was read as numbers"
        if signs:
            note += f" without {preview(signs)}"
        if odd:
            listed = f"in it ({preview(odd)})"
            gaps = counted(len(non_numbers), f"word {listed} counts", f"words {listed} count")
            note += f"; {gaps} as missing"
        return [f"{note}."]
    if len(words) > MAX_CATEGORIES:
        return [f"Column {name!r} holds {len(words)} different words: only decision trees use it."]
    hint = _decimal_comma_hint(words)
    others = [word for word in words if np.isnan(_quantity(word.replace(",", ".")))]
    if 2 * len(others) >= len(words):  # words, as expected
        return []
    but = ""
    if others:
        but = f", but for {preview(others)}"
    return [
        f"Column {name!r} holds numbers written as words{but}: each counts as a category{hint}."
    ]


class _Suspicion(NamedTuple):
    """Why a column may mislead a model, when and how to leave it out, whether this is certain."""

    reason: str
    condition: str
    options: str  # of an audit, which leave the column out
    is_certain: bool


def _find_identifier(name: str, values: Floats) -> _Suspicion | None:
    """Return a suspicion if numbers identify the rows and carry no other information."""
    known = values[~np.isnan(values)]
    if len(known) <= FEW_ROWS or np.ptp(known) < len(known) - 1:
        return None
    if (known % 1).any() or len(np.unique(known)) < len(known):
        return None
    condition = "if it is an identifier"
    options = f"`--id {name}` or `--ignore {name}`"
    steps = np.diff(values)
    if abs(steps[0]) == 1 and (steps == steps[0]).all():
        return _Suspicion("numbers the rows", condition, options, True)
    is_certain = _ID.search(name) is not None
    return _Suspicion("differs in every row", condition, options, is_certain)


def _find_label_code(name: str, cells: Array, labels: Ints) -> _Suspicion | None:
    """Return a suspicion if the values of a column and the given classes correspond one-to-one.

    Where some labels are wrong, a true feature would contradict them.
    """
    import pandas as pd

    rows = pd.DataFrame({"value": pd.factorize(cells)[0], "label": labels})
    known = rows[(rows >= 0).all(axis=1)]
    pairs = known.drop_duplicates()
    if not (pairs["value"].is_unique and pairs["label"].is_unique):
        return None
    num_classes = len(np.unique(labels[labels >= 0]))
    if len(known) <= max(FEW_ROWS, 2 * num_classes) or not len(pairs) == num_classes > 1:
        return None
    return _Suspicion(
        "corresponds one-to-one to the label",
        "if it was made from the label",
        f"`--ignore {name}`",
        len(known) > MANY_ROWS,
    )


def fit_columns(
    frame: Frame,
    features: Sequence[str],
    missing: MissingPolicy,
    requested: bool,
    labels: Ints | None = None,
    wide: bool = False,
) -> tuple[Columns, list[str]]:
    """Fit an encoder to columns; those that can't be used are left out with a note.

    Args:
        frame: the table.
        features: the names of its columns.
        missing: what is done about missing values.
        requested: whether the user named these features. Then columns that can't be used are
            refused; otherwise identifiers and copies of the labels are left out, too.
        labels: (N,) classes, −1 where unknown.
        wide: whether columns of words too many for one-hot columns, which repeat nevertheless, are
            kept for ``Columns.table``.

    Returns:
        The encoder, and notes for the user.
    """
    if missing not in get_args(MissingPolicy):
        raise ValueError(f"Expected `missing` to be refuse or impute, got {missing!r}.")
    columns: list[_Column] = []
    differing: list[str] = []
    notes: list[str] = []
    for name in features:  # one after the other, so that the cells of one alone are in memory
        try:
            column, more = _fit_column(frame, name, missing, labels, requested, wide)
        except _LeftOut as left_out:
            if requested:
                raise ValueError(
                    f"Expected numbers or categories in column {name!r}, which {left_out.reason}."
                    " Convert it."
                ) from None
            notes.append(f"Column {name!r} {left_out.reason} and was left out{left_out.advice}.")
            if left_out.differs:
                differing.append(name)
            continue
        columns.append(column)
        notes += more
    if all(column.is_wide for column in columns):
        if columns:
            notes.append("Neighbours need one of numbers, or of at most 100 different words.")
        got = preview(list(features))
        raise ValueError(" ".join([f"Expected at least one usable column, got {got}.", *notes]))
    columns.sort(key=lambda column: bool(column.words))  # numbers first
    if missing == "impute":
        gaps = [column for column in columns if column.num_missing and not column.is_wide]
        notes += [column.describe_gaps() for column in gaps]
    return _join(columns, missing, tuple(differing)), notes


def _join(columns: list[_Column], missing: MissingPolicy, differing: tuple[str, ...]) -> Columns:
    numbers = [column for column in columns if not column.words]
    wide = {column.name: column.words for column in columns if column.is_wide}
    narrow = {
        column.name: column.words for column in columns if column.words and not column.is_wide
    }
    num_one_hot = sum(map(len, narrow.values()))
    means = [column.mean for column in numbers] + [0.0] * num_one_hot
    stds = [column.std for column in numbers] + [1.0] * num_one_hot
    return Columns(
        tuple(column.name for column in numbers),
        torch.tensor([column.median for column in numbers], dtype=torch.float64),
        narrow,
        missing,
        torch.tensor(means, dtype=torch.float64),
        torch.tensor(stds, dtype=torch.float64),
        wide,
        differing,
    )


@DATASETS.register("table")
def from_table(
    table: Table,
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    missing: MissingPolicy = "refuse",
    header: bool = True,
    test: Table | None = None,
    validation: Table | None = None,
    trusted: Table | None = None,
) -> Dataset:
    """A dataset from a table; words become one-hot columns.

    Numbers stay in their units. ``dataset.encoder`` encodes new rows in the same way.

    Args:
        table: a DataFrame of pandas or polars, an Arrow table, a dict of columns, or a .csv, .tsv,
            .parquet, .jsonl, .xlsx or .arrow file.
        label: the column of the labels.
        features: the columns to use; by default all others but identifiers and copies of the label.
        classes: the names of the classes in their order.
        missing: whether missing values are refused, or filled with medians and noted.
        header: whether a file names its columns; else they are called 0, 1, …
        test, validation, trusted: further tables, with labels known to be correct.
    """
    if isinstance(table, (str, os.PathLike)):
        label = str(label)  # "label=3" on a command line is the column called 3
    frame = read_table(table, label, header=header)
    if isinstance(features, str) or (features is not None and label in features):
        raise ValueError(
            f"Expected `features` to be a list of columns without the label {label!r}, got"
            f" {features!r}."
        )
    if features is None:
        names = [name for name in frame.columns if name != label]
    else:
        names = list(features)
        for name in names:
            check_column(name, list(frame.columns), "the table")
    labels = TrainingLabels(frame[label], classes, label)
    columns, notes = fit_columns(
        frame, names, missing, requested=features is not None, labels=labels.y.numpy()
    )
    notes = [*reading_notes(frame), *notes, *describe_labels(labels.y, labels.classes, label)]
    splits: dict[str, Any] = {"train": Split(columns.encode(frame), labels.y)}
    for part, other in {"test": test, "validation": validation, "trusted": trusted}.items():
        if other is not None:
            frame = read_table(other, label, categories=columns.categories, header=header)
            y, _ = labels.encode(frame[label], f"{label} of {part}")
            x, more = columns.encode_part(frame, part)
            splits[part] = Split(x, y)
            notes += more
    return Dataset(
        table_name(table, "table"),
        labels.classes,
        **splits,
        encoder=columns,
        notes=tuple(notes),
    )
