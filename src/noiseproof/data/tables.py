"""A user's table, encoded as numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.messages import counted, preview
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
FEW_ROWS, MANY_ROWS = 20, 100
UNKNOWN, EMPTY = -1, -2  # codes of cells that are none of the categories of their column
# mean in standard deviations from which on float32 keeps at most three digits of the differences
FAR = 1e4
_NUMERAL = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_QUANTITY = re.compile(
    r"[$€£¥₹]?\s?([+−-]?)\s?[$€£¥₹]?\s?([1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s?[$€£¥₹%]?",
    re.ASCII | re.IGNORECASE,
)
# in a quantity; of a code such as 02139
_SIGN, _CODE = re.compile("[$€£¥₹%,]"), re.compile(r"[+−-]?0\d")
# beside these, 1,234 is ambiguous
_DECIMAL_COMMA = re.compile(r"[+−-]?(0,\d+|\d+,(\d{1,2}|\d{4,}))")
_ONE_WORD = re.compile("[!-~]*")  # in ASCII: texts of other scripts may have no spaces
_ID = re.compile(r"(?i:(^|[^a-z])(id|uuid|guid)([^a-z]|$)|^(index|idx|key)$)|[a-z]I[dD]$")
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """N rows of D features for decision trees: numbers in any unit, NaN for gaps, categories as
    codes from 0.
    """

    values: NDArray[np.float32]  # (N, D)
    num_categories: tuple[int, ...]  # (D,): 0 for a column of numbers
    frame: Frame | None = None  # the N rows with their columns as in the source
    fitted: Columns | None = None  # the encoder of these columns

    @classmethod
    def of_numbers(cls, x: NDArray[np.float32]) -> FeatureTable:
        return cls(x, (0,) * x.shape[1])

    def subset(self, rows: NDArray[Any]) -> FeatureTable:
        """Some of the rows, by numbers or a mask (N,)."""
        frame = (
            None
            if self.frame is None
            else self.frame.take(np.flatnonzero(rows) if rows.dtype == bool else rows)
        )
        return replace(self, values=self.values[rows], frame=frame)


@dataclass(frozen=True, eq=False)
class Columns:
    """Encodes tables as numbers, fitted on the training rows: numeric columns as they are, columns
    of words one-hot.

    Numbers stay in the units of the table, less ``shift``; ``standardise`` scales the numeric
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
        return (
            *self.numeric,
            *(f"{c}={word}" for c, words in self.categories.items() for word in words),
        )

    @property
    def shift(self) -> Tensor:
        """What is subtracted before the conversion to float32, (D,): the mean of numbers that
        hardly differ, else 0.
        """
        shift: Tensor = shift_of(self.mean, self.std)
        return shift

    def encode(self, rows: Frame | NDArray[Any]) -> Tensor:
        """A table or an array as (N, D) float32; a word that is not among the categories is encoded
        as zeros.
        """
        import pandas as pd

        frame = (
            pd.DataFrame(rows, columns=list(self.numeric)) if isinstance(rows, np.ndarray) else rows
        )
        if absent := [c for c in (*self.numeric, *self.categories) if c not in frame.columns]:
            raise ValueError(
                f"Expected the columns of the training table, {preview(absent)} are missing."
            )
        x, num_missing = np.zeros((len(frame), len(self.mean)), np.float32), {}
        for i, (c, fill, shift) in enumerate(
            zip(self.numeric, self.fill.tolist(), self.shift.tolist(), strict=False)
        ):
            values = _numbers(frame, c, self.missing == "impute")
            num_missing[c] = int(np.isnan(values).sum())
            x[:, i] = np.where(np.isnan(values), fill, values) - shift
        position = len(self.numeric)
        for c, words in self.categories.items():
            codes = self._codes(frame, c, words)
            num_missing[c], known = int((codes == EMPTY).sum()), np.flatnonzero(codes >= 0)
            x[known, position + codes[known]] = 1
            position += len(words)
        if self.missing == "refuse" and any(num_missing.values()):
            counts = [f"{count} in {c!r}" for c, count in num_missing.items() if count]
            raise ValueError(
                "Expected no missing values, got"
                f" {', '.join(counts[:5])}{' …' * (len(counts) > 5)}. Drop those rows or columns,"
                " or fill in medians with `missing='impute'`."
            )
        return torch.from_numpy(x)

    def describe(self, frame: Frame, part: str) -> list[str]:
        """What was imputed or is no known category in another part of the data, a sentence for each
        column.
        """
        notes = []
        for c, fill in zip(self.numeric, self.fill.tolist(), strict=True):
            if count := int(np.isnan(_numbers(frame, c, impute=True)).sum()):
                notes.append(_filled(count, f"column {c!r} of the {part} set", fill))
        for c, words in self.categories.items():
            codes = self._codes(frame, c, words)
            if unknown := sorted(set(_words(frame, c)[codes < 0])):
                where = f"in column {c!r} of the {part} set"
                cells = counted(int((codes < 0).sum()), f"cell {where} is", f"cells {where} are")
                notes.append(f"{cells} none of its categories: {preview(unknown)}.")
        return notes

    def table(self, frame: Frame) -> FeatureTable:
        """A table for decision trees, ``wide`` columns included."""
        words = self.categories | self.wide
        values = np.empty((len(frame), len(self.numeric) + len(words)), np.float32)
        for i, (c, shift) in enumerate(zip(self.numeric, self.shift.tolist(), strict=False)):
            values[:, i] = _numbers(frame, c, self.missing == "impute") - shift
        for i, (c, known) in enumerate(words.items(), len(self.numeric)):
            codes = self._codes(frame, c, known)
            values[:, i] = np.where(codes < 0, np.nan, codes)
        counts = (*[0] * len(self.numeric), *map(len, words.values()))
        return FeatureTable(values, counts, fitted=self)

    def _codes(self, frame: Frame, column: str, known: tuple[str, ...]) -> NDArray[np.int64]:
        """The category number of each cell of a column of words, (N,)."""
        words = _words(frame, column)
        number = {
            word: UNKNOWN if k is None else k for word, k in find_words(set(words), known).items()
        }
        number[""] = EMPTY
        return np.fromiter((number[word] for word in words), np.int64, len(words))

    def unlike(self, frame: Frame) -> NDArray[np.int64] | None:
        """A hash of each row's words in columns that are no inputs but tell rows apart, (N,); None
        without such.
        """
        import pandas as pd

        if not (names := [*self.wide, *self.differing]):
            return None
        hashes = np.zeros(len(frame), np.uint64)
        for name in names:
            parts = frame.parts(name) if isinstance(frame, ParquetColumns) else [frame[name]]
            words = (part.astype(object).where(part.notna(), "").map(_plain_word) for part in parts)
            more = np.concatenate(
                [pd.util.hash_array(part.to_numpy(object), categorize=False) for part in words]
            )
            more = (
                more[frame.rows]
                if isinstance(frame, ParquetColumns) and frame.rows is not None
                else more
            )
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + more
        return hashes.view(np.int64)

    def standardise(self, x: Tensor) -> Tensor:
        """(x − mean)/std with the moments of the training rows, for x from ``encode``."""
        return self.standardise_(x.clone())

    def standardise_(self, x: Tensor) -> Tensor:
        """As ``standardise``, in place."""
        return x.sub_((self.mean - self.shift).to(x)).div_(self.std.to(x))


def _numbers(frame: Frame, column: str, impute: bool = False) -> NDArray[np.float64]:
    """A column as float64, NaN where a cell is empty; words are refused, or with ``impute`` count
    as missing.
    """
    import pandas as pd

    cells = frame[column]
    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(object)
    try:
        numbers = pd.to_numeric(cells, errors="coerce")
    except OverflowError:  # whole numbers of hundreds of digits, which are infinite as real ones
        cells = cells.map(lambda cell: float(str(cell)) if isinstance(cell, int) else cell)
        numbers = pd.to_numeric(cells, errors="coerce")
    values = np.array(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
    non_numbers = np.flatnonzero((numbers.isna() & cells.notna()).to_numpy())
    values[non_numbers] = [_quantity(str(cell)) for cell in cells.iloc[non_numbers]]
    for row in () if impute else non_numbers.tolist():
        if np.isnan(values[row]) and str(cells.iloc[row]).strip():
            raise ValueError(
                f"Expected numbers in column {column!r}, got {cells.iloc[row]!r} in row {row}."
            )
    large = np.abs(values) > np.finfo(np.float32).max
    if large.any():
        row = int(np.flatnonzero(large)[0])
        raise ValueError(
            f"Expected finite numbers in column {column!r}, got {values[row]} in row {row};"
            f" {counted(int(large.sum()), 'row is', 'rows are')} infinite or too large. Drop these"
            " rows or fill them in."
        )
    return values


def _filled(count: int, where: str, median: float) -> str:
    filled = counted(count, f"missing number in {where} was", f"missing numbers in {where} were")
    return f"{filled} filled with its median {median:g}."


def _quantity(word: str) -> float:
    """The number that a word such as $1,234.50 or 12.3 % stands for; NaN for other words."""
    match = _QUANTITY.fullmatch(word.strip())
    return (
        float("".join(part or "" for part in match.groups()).replace(",", "").replace("−", "-"))
        if match
        else np.nan
    )


def shift_of(mean: Any, std: Any) -> Any:
    """The mean where numbers hardly differ, else 0, also where they are constant (std 1)."""
    return mean * ((abs(mean) > FAR * std) & (std != 1))


def moments(values: NDArray[Any]) -> tuple[Any, Any]:
    """Mean and standard deviation over the rows in float64; 1 for the deviation of constants."""
    difference = np.subtract(values, values[0], dtype=np.float64)  # exactly 0 for constants
    mean, std = values[0] + difference.mean(0), difference.std(0)
    return mean, np.where(np.float32(std) > 1e-14 * np.abs(mean), std, 1.0)[()]


def shifted_columns(x: NDArray[Any], names: Iterable[str] | None = None) -> Columns | None:
    """An encoder that subtracts the means of numbers (N, D) that float32 can't distinguish; None if
    there are none.
    """
    if x.dtype.kind not in "iuf" or np.can_cast(x.dtype, np.float32):  # float32 loses nothing
        return None
    # copies of few columns at a time
    parts = [moments(x[:, i : i + 64]) for i in range(0, x.shape[1], 64)]
    mean, std = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    column_names = tuple(map(str, range(len(mean)) if names is None else names))
    columns = Columns(column_names, mean.clone(), {}, "refuse", mean, std)
    return columns if bool(columns.shift.any()) else None


def _words(frame: Frame, column: str) -> Any:
    import pandas as pd

    cells = frame[column]
    # equal words are one object: a pointer for each cell
    if isinstance(cells.dtype, pd.StringDtype):
        codes, words = pd.factorize(cells)
        return np.append(np.asarray(words, dtype=object), "")[codes]  # −1 is the last one
    values = cells.astype(object)
    return values.where(values.notna(), "").map(_word).to_numpy(dtype=object)


def _word(value: Any) -> str:
    """The number 2 is the word "2", also where pandas made it 2.0 because another cell is
    missing.
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _plain_word(value: Any) -> str:
    """A word without what may differ between copies: capital letters and spaces."""
    return " ".join(_word(value).casefold().split())


def _is_numeric(column: pd.Series[Any]) -> bool:
    from pandas.api import types

    kind = column.dtype
    if kind.kind == "O":  # Decimals, or numbers of different kinds
        return types.infer_dtype(column) in (
            "integer",
            "floating",
            "mixed-integer-float",
            "decimal",
        )
    return types.is_bool_dtype(kind) or (
        types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind)
    )


class _LeftOut(NamedTuple):
    """Why a column can't be used, what to do about it, and whether rows that differ in it alone are
    different ones.
    """

    reason: str
    advice: str = ""
    differs: bool = False


def _useless(column: pd.Series[Any], words: list[str] | None, wide: bool) -> _LeftOut | None:
    """Why a column of ``words``, or of numbers (None), can't be used; None if it can."""
    from pandas.api import types

    # the name that pandas gives to a column without a header
    if str(column.name).startswith("Unnamed: "):
        return _LeftOut("has no name, like the row numbers that pandas saves,")
    if column.isna().all() or words == []:
        return _LeftOut("is empty")
    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        return _LeftOut("holds dates")
    if types.is_complex_dtype(column.dtype):
        return _LeftOut("holds complex numbers")
    if (
        column.dtype == object
        and column.map(lambda value: isinstance(value, (list, tuple, dict, np.ndarray))).any()
    ):
        return _LeftOut("holds lists")
    if words and all(map(_DATE.fullmatch, words)):
        return _LeftOut("holds dates")
    if words and len(words) > MAX_CATEGORIES:
        hint, filled = _decimal_comma_hint(words), int(column.notna().sum())
        if not wide or hint or len(words) * MIN_REPEATS > filled:
            return _many_words(column.name, words, str(len(words)), hint, 2 * len(words) <= filled)
    return None


def _many_words(
    name: Any, words: Collection[str], count: str, hint: str = "", repeat: bool = False
) -> _LeftOut:
    """Why a column of too many words is left out. One word that hardly repeats is an identifier,
    even of a copy.
    """
    if 2 * sum(_ONE_WORD.fullmatch(word) is None for word in words) <= len(words):
        return _LeftOut(f"holds {count} different words{hint}", differs=repeat or bool(hint))
    return _LeftOut(
        f"holds {count} different texts",
        f': `--text {name}` (in Python text="{name}") uses it',
        True,
    )


def _decimal_comma_hint(words: list[str]) -> str:
    """What to do about a column of numbers such as 14,23; "" for other columns."""
    numbers = [word for word in words if _DECIMAL_COMMA.fullmatch(word)]
    if 2 * len(numbers) < len(words):
        return ""
    return f" (numbers with a decimal comma: write {numbers[0]} as {numbers[0].replace(',', '.')})"


def _non_numbers(cells: NDArray[Any], words: list[str]) -> list[str] | None:
    """The cells that are no numbers in a column of numbers written as words; None for a column of
    categories.
    """
    numerals = {word for word in words if not np.isnan(_quantity(word))}
    plain = not any(_SIGN.search(word) for word in numerals)
    codes = len(words) <= MAX_CODES or (
        len(words) <= MAX_CATEGORIES and all(map(str.isdigit, numerals))
    )
    if (
        (plain and codes)
        or any(map(_CODE.match, numerals))
        or any(map(_DECIMAL_COMMA.fullmatch, words))
    ):
        return None
    filled = [word for word in cells if word.strip()]
    others = [word for word in filled if word not in numerals]
    return others if len(others) <= MAX_NON_NUMBERS * len(filled) else None


@dataclass(frozen=True)
class _Column:
    """A column of a table, read as numbers or as categories."""

    name: str
    # (N,): float64, NaN where missing; in a column of categories words, None where missing
    cells: NDArray[Any]
    words: list[str]  # the distinct words; none if pandas read numbers
    # words in a numeric column, which count as missing; None for categories
    non_numbers: list[str] | None

    @property
    def is_wide(self) -> bool:
        """Whether these are too many categories for one-hot columns."""
        return self.non_numbers is None and len(self.words) > MAX_CATEGORIES

    def describe(self) -> list[str]:
        """How words were read as numbers, or numbers as categories."""
        if self.is_wide:
            return [
                f"Column {self.name!r} holds {len(self.words)} different words: only decision trees"
                " use it."
            ]
        if self.non_numbers is None:
            others = [word for word in self.words if not _NUMERAL.fullmatch(word)]
            if len(others) >= len(self.words) / 2:
                return []
            but = f", but for {preview(others)}" if others else ""
            hint = _decimal_comma_hint(self.words)
            return [
                f"Column {self.name!r} holds numbers written as words{but}: each counts as a"
                f" category{hint}."
            ]
        if not self.words:
            return []
        odd = sorted(set(self.non_numbers))
        signs = sorted({sign for word in {*self.words} - {*odd} for sign in _SIGN.findall(word)})
        without = f" without {preview(signs)}" if signs else ""
        words = f"in it ({preview(odd)})"
        but = (
            f"; {counted(len(self.non_numbers), f'word {words} counts', f'words {words} count')} as"
            " missing"
            if odd
            else ""
        )
        return [f"Column {self.name!r} was read as numbers{without}{but}."]

    def fit(self) -> _FittedColumn:
        """What remains of the column when its cells are no longer in memory."""
        if self.non_numbers is None:
            return _FittedColumn(
                self.name, tuple(self.words), self.is_wide, sum(cell is None for cell in self.cells)
            )
        gaps, median = np.isnan(self.cells), float(np.nanmedian(self.cells))
        mean, std = moments(np.where(gaps, median, self.cells))
        return _FittedColumn(self.name, None, False, int(gaps.sum()), median, mean, std)


class _FittedColumn(NamedTuple):
    name: str
    words: tuple[str, ...] | None  # of a column of categories
    is_wide: bool
    num_missing: int
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0

    def describe_gaps(self) -> str:
        if self.words is None:
            return _filled(self.num_missing, f"column {self.name!r}", self.median)
        where = f"in column {self.name!r}"
        counts = counted(
            self.num_missing, f"missing word {where} counts", f"missing words {where} count"
        )
        return f"{counts} as none of its categories."


def _read_column(frame: Frame, name: str, missing: MissingPolicy, wide: bool) -> _Column | _LeftOut:
    """A column as numbers or categories; or the reason why it can't be used."""
    import pandas as pd

    if wide and isinstance(frame, ParquetColumns) and (reason := _unreadable(frame, name)):
        return reason
    cells: Any = []
    words: list[str] = []
    non_numbers: list[str] | None = []
    if not _is_numeric(frame[name]):
        cells = _words(frame, name)
        words = sorted(set(cells) - {""})
        non_numbers = (
            None
            if isinstance(frame[name].dtype, pd.CategoricalDtype)
            else _non_numbers(cells, words)
        )
    if reason := _useless(frame[name], words if non_numbers is None else None, wide):
        return reason
    if non_numbers and missing == "refuse":
        raise ValueError(
            f"Expected numbers in column {name!r}, got {preview(sorted(set(non_numbers)))} in"
            f" {len(non_numbers)} of {len(frame)} rows. Drop those rows or the column, or count"
            " words as gaps with `missing='impute'`."
        )
    cells = (
        np.where(cells == "", None, cells)
        if non_numbers is None
        else _numbers(frame, name, bool(non_numbers))
    )
    return _Column(name, cells, words, non_numbers)


def _unreadable(frame: ParquetColumns, name: str) -> _LeftOut | None:
    """Why a column of a file can't be used, as far as it shows before all of it is in memory."""
    if frame.is_nested(name):
        return _LeftOut("holds lists")
    words: set[str] = set()
    for part in frame.word_parts(name):
        words |= {word for word in part if np.isnan(_quantity(word))}
        # Of numbers written as words, a fifth at most may be other words; of categories, a quarter
        # may be different.
        if len(words) > MAX_CATEGORIES and len(words) * MIN_REPEATS > len(frame):
            return _many_words(name, words, f"more than {len(words) - 1}")
    return None


class _Suspicion(NamedTuple):
    """Why a column may mislead a model, what to do about it, and whether that is certain."""

    reason: str
    advice: str
    is_certain: bool


def _find_identifier(name: str, values: NDArray[np.float64]) -> _Suspicion | None:
    """Whether numbers identify the rows and carry no other information."""
    known = values[~np.isnan(values)]
    if (
        len(known) <= FEW_ROWS
        or np.ptp(known) < len(known) - 1
        or (known % 1).any()
        or len(np.unique(known)) < len(known)
    ):
        return None
    advice = (
        f"if it is an identifier, leave it out (`--id {name}` or `--ignore {name}` in an audit,"
        " else `features`)"
    )
    steps = np.diff(values)
    if abs(steps[0]) == 1 and (steps == steps[0]).all():
        return _Suspicion("numbers the rows", advice, True)
    return _Suspicion("differs in every row", advice, _ID.search(name) is not None)


def _find_label_code(
    name: str, cells: NDArray[Any], labels: NDArray[np.int64]
) -> _Suspicion | None:
    """Whether the values of a column and the classes correspond one-to-one: a feature would
    contradict wrong labels.
    """
    import pandas as pd

    num_classes = len(np.unique(labels[labels >= 0]))
    for part in (slice(10_000), slice(None)):  # most columns are ruled out by their first rows
        values, given = pd.factorize(cells[part])[0].astype(np.int64), labels[part]
        known = (values >= 0) & (given >= 0)
        values, given = values[known], given[known]
        pairs = np.unique(values * (labels.max() + 1) + given)
        if not len(np.unique(values)) == len(np.unique(given)) == len(pairs):
            return None
    if len(given) <= max(FEW_ROWS, 2 * num_classes) or not len(pairs) == num_classes > 1:
        return None
    advice = (
        f"if it was made from the label, leave it out (`--ignore {name}` in an audit, else"
        " `features`)"
    )
    return _Suspicion("corresponds one-to-one to the label", advice, len(given) > MANY_ROWS)


def _usable_columns(
    frame: Frame,
    features: Sequence[str],
    missing: MissingPolicy,
    requested: bool,
    labels: NDArray[np.int64] | None,
    wide: bool,
) -> tuple[list[_FittedColumn], list[str], list[str]]:
    """Fit the columns that can be used, one after the other, so that the cells of one alone are in
    memory.

    Also the names of those left out that tell rows apart, and notes.
    """
    columns, differing, notes = [], [], []
    for name in features:
        column = _read_column(frame, name, missing, wide)
        if isinstance(column, _LeftOut):
            reason = column.reason
            if requested:
                raise ValueError(
                    f"Expected numbers or categories in column {name!r}, which {reason}."
                    " Convert it."
                )
            notes.append(
                f"Column {name!r} {reason} and was left out{column.advice if wide else ''}."
            )
            differing += [name] if column.differs else []
            continue
        suspicion = (
            None if column.non_numbers is None else _find_identifier(str(name), column.cells)
        )
        if suspicion is None and labels is not None:
            suspicion = _find_label_code(str(name), column.cells, labels)
        if suspicion is not None and suspicion.is_certain and not requested:
            # not in an audit, which has other ones
            keep = "" if wide else "; name it in `features` to keep it"
            notes.append(f"Column {name!r} {suspicion.reason} and was left out{keep}.")
            continue
        if suspicion is not None:
            notes.append(f"Column {name!r} {suspicion.reason}: {suspicion.advice}.")
        notes += column.describe()
        columns.append(column.fit())
    return columns, differing, notes


def fit_columns(
    frame: Frame,
    features: Sequence[str],
    missing: MissingPolicy,
    requested: bool,
    labels: NDArray[np.int64] | None = None,
    wide: bool = False,
) -> tuple[Columns, list[str]]:
    """Fit an encoder to the columns ``features``; columns that can't be used are left out with a
    note.

    If the user ``requested`` these features, such columns are refused; otherwise identifiers and
    copies of the ``labels``, (N,), −1 where unknown, are left out, too. With ``wide``, columns of
    words too many for one-hot columns, which repeat nevertheless, are kept for ``Columns.table``.
    """
    if missing not in get_args(MissingPolicy):
        raise ValueError(f"Expected `missing` to be refuse or impute, got {missing!r}.")
    columns, differing, notes = _usable_columns(frame, features, missing, requested, labels, wide)
    wide_columns = [column for column in columns if column.is_wide]
    columns = [column for column in columns if not column.is_wide]
    if not columns:
        needed = f"Neighbours need one of numbers, or of at most {MAX_CATEGORIES} different words."
        reasons = [*notes, needed] if wide_columns else notes
        raise ValueError(
            f"Expected at least one usable column, got {preview(list(features))}."
            f" {' '.join(reasons)}".rstrip()
        )
    columns.sort(key=lambda column: column.words is not None)  # numbers first
    if missing == "impute":
        notes += [column.describe_gaps() for column in columns if column.num_missing]
    return replace(_join_columns(columns, wide_columns, missing), differing=tuple(differing)), notes


def _join_columns(
    columns: list[_FittedColumn], wide: list[_FittedColumn], missing: MissingPolicy
) -> Columns:
    numbers = [column for column in columns if column.words is None]
    categories = {column.name: column.words for column in columns if column.words is not None}
    one_hot = sum(map(len, categories.values()))
    mean = torch.tensor(
        [*(column.mean for column in numbers), *[0.0] * one_hot], dtype=torch.float64
    )
    std = torch.tensor([*(column.std for column in numbers), *[1.0] * one_hot], dtype=torch.float64)
    fill = torch.tensor([column.median for column in numbers], dtype=torch.float64)
    names = tuple(column.name for column in numbers)
    return Columns(
        names,
        fill,
        categories,
        missing,
        mean,
        std,
        {column.name: column.words or () for column in wide},
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
    """A dataset from a table with a label column; numbers stay in their units, words become one-hot
    columns.

    Tables are DataFrames of pandas or polars, Arrow tables, dicts of columns, or .csv, .tsv,
    .parquet, .jsonl, .xlsx or .arrow files; without ``header``, the columns of a file are called 0,
    1, … Missing values are refused by name, or with ``missing="impute"`` filled with medians and
    reported in ``notes``. Identifiers and copies of the label are left out, unless ``features``
    names them. ``dataset.encoder`` encodes new rows in the same way.
    """
    if isinstance(table, (str, os.PathLike)):
        label = str(label)  # "label=3" on a command line is the column called 3
    frame = read_table(table, label, header=header)
    if isinstance(features, str) or (features is not None and label in features):
        raise ValueError(
            f"Expected `features` to be a list of columns without the label {label!r}, got"
            f" {features!r}."
        )
    if features is not None and (absent := [c for c in features if c not in frame.columns]):
        raise ValueError(
            f"Expected the columns {preview(absent)} in the table, there are"
            f" {preview(list(frame.columns))}."
        )
    names = [c for c in (frame.columns if features is None else features) if c != label]
    labels = TrainingLabels(frame[label], classes, label)
    columns, notes = fit_columns(
        frame, names, missing, requested=features is not None, labels=labels.y.numpy()
    )
    notes = [*reading_notes(frame), *notes, *describe_labels(labels.y, labels.classes, label)]
    splits = {"train": Split(columns.encode(frame), labels.y)}
    for part, other in {"test": test, "validation": validation, "trusted": trusted}.items():
        if other is not None:
            frame = read_table(other, label, categories=columns.categories, header=header)
            splits[part] = Split(
                columns.encode(frame), labels.encode(frame[label], f"{label} of {part}")
            )
            notes += columns.describe(frame, part)
    return Dataset(
        table_name(table, "table"),
        labels.classes,
        **splits,
        encoder=columns,
        notes=tuple(notes),
        spec="",
    )
