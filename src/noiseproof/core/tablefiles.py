"""Files of tables, without pandas: kinds, how a text file is written, names of columns, cells that
are no formulas.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import json
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from noiseproof.core.limits import check_members, check_unpacked
from noiseproof.core.messages import install_command, preview

if TYPE_CHECKING:
    import pandas as pd

KINDS = (".csv", ".tsv", ".parquet", ".jsonl", ".xlsx", ".arrow")
OTHER_ENDINGS = {".pq": ".parquet", ".ndjson": ".jsonl", ".feather": ".arrow", ".ipc": ".arrow"}
TEXT_KINDS = (".csv", ".tsv", ".jsonl")  # which may be packed as .gz
HEADERLESS_KINDS = (".csv", ".tsv", ".xlsx")
SEPARATORS = ",;\t|"
SAMPLE = 2**18  # bytes from which the separator and the decimal sign are inferred
MARKS = (  # UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+")
_DOT_NUMBER = re.compile(r"[+-]?\d*\.\d+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")  # 1.234,5


def table_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of a table file by its name, one of ``KINDS``; None for other files.

    >>> table_kind("a.csv.gz"), table_kind("a.feather"), table_kind("a.txt")
    ('.csv', '.arrow', None)
    """
    name = os.fspath(path).lower()
    ending = Path(name.removesuffix(".gz")).suffix
    kind = OTHER_ENDINGS.get(ending, ending)
    kinds = TEXT_KINDS if name.endswith(".gz") else KINDS
    return kind if kind in kinds else None


def open_bytes(path: Path) -> BinaryIO:
    """The file, unpacked if its name ends with .gz."""
    is_packed = path.name.lower().endswith(".gz")
    return cast(BinaryIO, gzip.open(path, "rb") if is_packed else open(path, "rb"))


# How a text file is written


@dataclass(frozen=True)
class TextFormat:
    """Encoding, separator and decimal sign of a text file, and its first record."""

    encoding: str = "utf-8"
    mark: bytes = b""  # the byte-order mark
    separator: str = ","
    decimal: str = "."
    thousands: str | None = None
    first: Sequence[str] = ()  # cells

    @property
    def codec(self) -> str:
        """The name of the encoding for a reader of the whole file, which then skips the byte-order
        mark.
        """
        if not self.mark:
            return self.encoding
        return "utf-8-sig" if self.encoding == "utf-8" else self.encoding[:6]  # utf-16, utf-32

    @property
    def notes(self) -> list[str]:
        """What the user should know about how the file was read."""
        notes = []
        if self.encoding == "cp1252":
            notes.append(
                "The file is not UTF-8: it was read as Windows-1252. If words look wrong, save it"
                " as UTF-8."
            )
        if self.decimal == ",":
            notes.append("Numbers were read with a decimal comma.")
        return notes


def detect_format(
    path: Path, columns: Collection[str | None] = (), *, header: bool = True, whole: bool = True
) -> TextFormat:
    """How a .csv, .tsv or .jsonl file is written; of several readings, one that has the
    ``columns``.

    Without ``whole`` only the beginning of the file is checked to be UTF-8.
    """
    try:
        with open_bytes(path) as file:
            sample = file.read(SAMPLE)
        encoding, mark = _encoding(path, sample, whole)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"Expected a whole .gz file in {path}, got one that is cut off or damaged ({error})."
            " Copy it, or pack it, again."
        ) from error
    is_cut = len(sample) == SAMPLE
    text = codecs.getincrementaldecoder(encoding)("replace").decode(sample[len(mark) :])
    if is_cut:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1] or text
    if table_kind(path) == ".jsonl":
        return TextFormat(encoding, mark)
    separators = "\t" if table_kind(path) == ".tsv" else SEPARATORS
    wanted = {column for column in columns if column is not None}
    tables = {separator: list(read_cells(text, separator)) for separator in separators}

    def rating(separator: str) -> tuple[int, bool, int]:
        first, *others = tables[separator] or [[]]
        if is_cut:  # the last record may be, too
            others = others[:-1]
        widths = set(map(len, others))
        return (
            len(wanted & {*header_names(first, header)}),
            len(first) > 1 and widths <= {len(first)},
            len(first),
        )

    separator = max(separators, key=rating)  # the first of equals
    records = tables[separator]
    first = next(iter(records), ())
    if separator == ",":
        return TextFormat(encoding, mark, separator, first=first)
    decimal, thousands = _decimal(records[header:])
    return TextFormat(encoding, mark, separator, decimal, thousands, first)


def _encoding(path: Path, sample: bytes, whole: bool) -> tuple[str, bytes]:
    """The encoding of a file and its byte-order mark; UTF-8, or Windows-1252 where it is not."""
    for mark, encoding in MARKS:
        if sample.startswith(mark):
            _check_decodes(path, encoding, whole)
            return encoding, mark
    # In UTF-16 without a mark, the high bytes of Latin letters are 0.
    for encoding, high in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[::2])):
        if high.count(0) > len(high) / 3:
            _check_decodes(path, encoding, whole)
            return encoding, b""
    try:
        _check_decodes(path, "utf-8", whole)
        return "utf-8", b""
    except UnicodeDecodeError as error:
        try:
            _check_decodes(path, "cp1252", whole)
        except UnicodeDecodeError:
            raise error from None
    return "cp1252", b""


def _check_decodes(path: Path, encoding: str, whole: bool) -> None:
    """Raise UnicodeDecodeError if the ``whole`` file, or its beginning, is not in ``encoding``.

    A file that becomes too large when it is unpacked is refused, too.
    """
    # Corrected copies keep unpaired surrogates of UTF-16 as they are, so these are no fault here.
    errors = "surrogatepass" if encoding.startswith("utf-16") else "strict"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    with open_bytes(path) as file:
        while part := file.read(SAMPLE):
            check_unpacked(file.tell(), path.stat().st_size, path)
            decoder.decode(part)
            if not whole and len(part) == SAMPLE:
                return
    decoder.decode(b"", final=True)  # refuses a file that is cut off inside a character


def _decimal(records: Sequence[Sequence[str]]) -> tuple[str, str | None]:
    cells = {cell.strip() for record in records for cell in record}
    grouped = {cell for cell in cells if _GROUPED.fullmatch(cell)}
    if any("," in cell for cell in grouped):  # 1.234,5: then 1.234 is a number of thousands
        if any(map(_DOT_NUMBER.fullmatch, cells - grouped)):
            return ".", None
        return ",", "."
    has_commas = any(map(_COMMA_NUMBER.fullmatch, cells))
    if has_commas and not any(map(_DOT_NUMBER.fullmatch, cells)):
        return ",", None
    return ".", None


@contextmanager
def long_cells() -> Iterator[None]:
    """Let a cell hold a document while the csv module reads."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def read_cells(text: str, separator: str) -> Iterator[list[str]]:
    """The cells of each record, without blank lines."""
    with long_cells():
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if len(cells) > 1 or (cells and cells[0].strip(" \t")):
                yield cells


# Columns


def header_names(first: Sequence[Any], header: bool) -> list[str]:
    """The names of the columns by the ``first`` record, as pandas makes them."""
    if not header:
        return [str(i) for i in range(len(first))]
    return [
        str(name) if name not in (None, "") else f"Unnamed: {i}" for i, name in enumerate(first)
    ]


def read_header(path: Path) -> list[str] | None:
    """The names of the columns of a table file, read from its beginning; None where that does not
    show all.
    """
    kind = table_kind(path)
    if kind in (".csv", ".tsv"):
        return header_names(detect_format(path, whole=False).first, header=True)
    if kind == ".xlsx":
        return header_names(next((cells for _, cells in read_sheet(path)), []), header=True)
    if kind != ".parquet":
        return None
    try:
        names = import_module("pyarrow.parquet").read_schema(path).names
    except ImportError:
        return None
    return [str(name) for name in names if not name.startswith("__index_level_")]


def import_reader(module: str, extra: str, path: Path) -> Any:
    """Import a library that reads ``path``, or say which ``extra`` adds it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"Expected {module.partition('.')[0]} to read {path}, it is not installed. Run"
            f" `{install_command(extra)}`."
        ) from None


def read_sheet(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """The number, from 1, and the values of each row of the first sheet of an Excel file, without
    blank rows.
    """
    load_workbook = import_reader("openpyxl", "excel", path).load_workbook
    with zipfile.ZipFile(path) as parts:
        check_members(parts, path)
    book = load_workbook(path, read_only=True, data_only=True)
    try:
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # which some programs write wrongly
        for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
            values = list(cells)
            while values and values[-1] in (None, ""):
                values.pop()
            if values:
                yield number, values
    finally:
        book.close()


def read_json_lines(path: Path, found: TextFormat) -> Iterator[str]:
    """The lines of a .jsonl file that are not blank, with their line ends."""
    with (
        open_bytes(path) as file,
        io.TextIOWrapper(file, encoding=found.codec, newline="\n") as text,
    ):
        yield from (line for line in text if line.strip())


def parse_json_line(line: str) -> dict[str, Any]:
    """The object in a line; anything else is refused."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"a line that is not JSON ({error}): {line[:40].strip()!r}") from None
    if not isinstance(value, dict):
        raise ValueError(
            f"the line {line[:40].strip()!r}. Write one object with the columns as keys on each"
            " line"
        )
    return value


def _is_number(name: Any) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def check_column(column: Any, columns: Sequence[Any], source: str) -> None:
    """Refuse a column that a table lacks."""
    if column is None or column in columns:
        return
    near = difflib.get_close_matches(str(column), map(str, columns), n=1)
    parts = [part.strip() for part in str(column).split(",")]
    if len(parts) > 1 and all(part in columns for part in parts):
        hint = (
            f"There are columns of these {len(parts)} names: if rows have several labels, one in"
            ' each column, add `--multi-label columns`, in Python `multi_label="columns"`.'
        )
    elif len(columns) == 1 and any(separator in str(columns[0]) for separator in SEPARATORS):
        hint = (
            f"Its only one is {columns[0]!r}. Read it with another separator, or pass the path of"
            " the file."
        )
    elif str(column).isdigit() and int(column) < len(columns) and any(map(_is_number, columns)):
        hint = (
            f"There are {preview(list(columns))}, which look like data: use `header=False` if no"
            " row names the columns."
        )
    elif near:
        hint = f"Did you mean {near[0]!r}?"
    elif len(columns) > 12:  # the last one is often the label
        first = preview(columns[:9], 9)
        hint = f"There are {len(columns)}: {first}, …, {preview(columns[-3:])}."
    else:
        hint = f"There are {preview(columns, 12)}."
    raise ValueError(f"Expected a column {column!r} in {source}, found none. {hint}")


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def safe_cell(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: an apostrophe comes before = + - @, a tab or
    a carriage return.

    Numbers stay as they are. ``plain_cell`` takes the apostrophe off again.

    >>> safe_cell("=1+1"), safe_cell("-1.5"), safe_cell("cat"), safe_cell("'-x")
    ("'=1+1", '-1.5', 'cat', "''-x")
    """
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def plain_cell(cell: Any) -> Any:
    """A cell as it was before ``safe_cell``.

    >>> plain_cell("'=1+1"), plain_cell("'cat'")
    ('=1+1', "'cat'")
    """
    return cell[1:] if isinstance(cell, str) and _ESCAPED.match(cell) else cell


def safe_table(table: pd.DataFrame) -> pd.DataFrame:
    """A copy of a table for spreadsheets, whose words and names of columns are no formulas."""
    words = [name for name in table.columns if table[name].dtype.kind not in "biufMm"]
    unsafe = [
        name for name in words if any(safe_cell(cell) is not cell for cell in table[name].unique())
    ]
    safe = table.assign(**{name: [safe_cell(cell) for cell in table[name]] for name in unsafe})
    return safe.rename(columns=safe_cell)
