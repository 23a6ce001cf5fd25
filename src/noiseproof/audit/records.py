"""Table files of which single cells change: text by its bytes, Excel by its parts, Arrow by its columns and types."""

from __future__ import annotations

import csv
import gzip
import io
import json
import mmap
import re
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import as_ids, as_words
from noiseproof.audit.rows import Digests, digest_frame, digest_rows
from noiseproof.audit.sets import column_cells, column_words, join_sets, list_cells, lists_as_sets
from noiseproof.core.files import replacing
from noiseproof.core.tablefiles import detect_format, long_cells, open_bytes, read_json_lines, read_sheet, table_kind
from noiseproof.data.frames import ParquetColumns, read_arrow, read_file, sheet_frame

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.audit.issues import Fix


CELL = rb"<(?P<tag>(?:\w+:)?c)(?P<attributes>\s[^>]*?)(?:/>|>(?P<rest>.*?)</(?P=tag)>)"  # in the XML of a sheet


def open_records(path: Path, columns: Sequence[str | None] = (), *, header: bool = True) -> Records:
    """Open a table file for its rows; ``columns`` are names that it should have."""
    kind = table_kind(path)
    if kind == ".xlsx":
        return ExcelRecords(path, header=header)
    if kind == ".jsonl":
        return JsonRecords(path)
    if kind in (".parquet", ".arrow"):
        return ArrowRecords(path)
    return TextRecords(path, columns, header=header)


class Records(ABC):
    """The rows of a table file, of which single cells can be replaced."""

    header: list[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, i: int) -> list[str]:
        """Return the cells of row ``i``."""

    def rows(self) -> Iterator[Sequence[str]]:
        """Yield the cells of every row."""
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def column(self, name: str) -> list[str]:
        """Return the labels in one column as words, empty where there is none."""

    @abstractmethod
    def ids(self, name: str) -> list[str]:
        """Return the ids in one column as words, empty where there is none."""

    @abstractmethod
    def values(self, name: str) -> Sequence[Any]:
        """Return the cells of one column, as ``replace`` takes them."""

    @abstractmethod
    def digests(self) -> Digests:
        """Return the digest of each row's content, which the order of rows and columns does not change."""

    @abstractmethod
    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write the file with other ``cells`` in column ``name``, by row, and without the rows ``left_out``."""

    @abstractmethod
    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        """Write the file without the columns ``names``."""

    def add(self, columns: Mapping[str, Sequence[Any]], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write the file with new ``columns`` at the end, None for gaps, and without the rows ``left_out``."""
        raise ValueError("Expected a table file for new columns, got a table in memory.")


class TextRecords(Records):
    """The records of a .csv, .tsv or .gz file, counted as pandas does: without blank lines.

    A line of spaces and tabs is blank; a line of two quotes is a record with an empty cell. Only the position of each
    record is stored; its cells are read from the file when needed.
    """

    def __init__(self, path: Path, columns: Sequence[str | None] = (), *, header: bool = True) -> None:
        self.path = path
        self.format = detect_format(path, columns, header=header)
        self.comma = self.format.separator.encode()
        self.is_wide = self.format.encoding.startswith(("utf-16", "utf-32"))  # commas are not single bytes there
        self.encoding = "utf-8" if self.is_wide else self.format.encoding  # of ``data``
        self.data: bytes | mmap.mmap
        with open_bytes(path) as file:
            if self.is_wide:
                text = file.read()[len(self.format.mark) :].decode(self.format.encoding, "surrogatepass")
                self.data = text.encode("utf-8", "surrogatepass")
            elif isinstance(file, gzip.GzipFile):
                self.data = file.read()
            else:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        span, _ = next(self._walk(), (None, None))
        first = [] if span is None else self._cells(span)
        self.header = first if header else [str(i) for i in range(len(first))]
        self.has_header = header

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """Begin and end of each record, (N, 2); digests do without."""
        return np.array([span for span, _ in self._walk()], dtype=np.int64).reshape(-1, 2)[int(self.has_header) :]

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, i: int) -> list[str]:
        return self._cells(self.spans[i])

    def column(self, name: str) -> list[str]:
        """Return the cell of every record in one column, empty where a record is too short."""
        k = self.header.index(name)
        cells = [record[k] if k < len(record) else "" for _, record in self._walk()]
        decoded = {cell: cell.encode("latin-1").decode(self.encoding) for cell in set(cells)}  # each once: less memory
        return [decoded[cell] for cell in cells[self.has_header :]]

    ids = values = column

    def digests(self) -> Digests:
        order = sorted(range(len(self.header)), key=lambda k: self.header[k])
        width = len(order)

        def content(cells: list[str]) -> bytes:
            cells += [""] * (width - len(cells))
            return "\0".join([cells[k] for k in order] + cells[width:]).encode("utf-8", "surrogatepass")

        records = (cells for _, cells in self._walk())
        if self.has_header:
            next(records, None)
        return digest_rows(map(content, records), "\0".join(self.header[k] for k in order))

    def replace(self, name: str, cells: Mapping[int, str], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write the file with other ``cells`` in column ``name``, by record, quoted where the old ones are."""
        k = self.header.index(name)

        def with_cell(row: int, record: bytes) -> bytes:
            if row not in cells:
                return record
            first, last = _split(record, self.comma)[k]
            cell = _as_cell(self._encoded(cells[row]), self.comma, quoted=record[first : first + 1] == b'"')
            return record[:first] + cell + record[last:]

        self._rewrite(with_cell, out, left_out)

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        gone = {k for k, name in enumerate(self.header) if name in names}

        def without(row: int, record: bytes) -> bytes:
            spans = _split(record, self.comma)
            cells = [record[first:last] for k, (first, last) in enumerate(spans) if k not in gone]
            return self.comma.join(cells) + record[spans[-1][1] :]

        self._rewrite(without, out)

    def add(self, columns: Mapping[str, Sequence[Any]], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        width = len(self.header)

        def with_more(row: int, record: bytes) -> bytes:
            spans = _split(record, self.comma)
            new = [name if row < 0 else cells[row] for name, cells in columns.items()]
            words = ["" if cell is None else str(cell) for cell in new]
            more = [_as_cell(self._encoded(word), self.comma, quoted=False) for word in words]
            more = [b""] * (width - len(spans)) + more  # a record may be shorter than the header
            last = spans[min(len(spans), width) - 1][1]  # or longer: what no column has stays at the end
            return record[:last] + b"".join(self.comma + cell for cell in more) + record[last:]

        self._rewrite(with_more, out, left_out)

    def _rewrite(self, changed: Callable[[int, bytes], bytes], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write each record as ``changed`` by its row, −1 for the header; blank lines after one that goes go, too."""
        if self.is_wide:
            out.write(self.format.mark)
        spans = [span for span, _ in self._walk()]
        begins = [begin for begin, _ in spans]
        self._write(self.data[: min(begins, default=None)], out)
        for row, ((begin, end), rest) in enumerate(
            zip(spans, [*begins[1:], len(self.data)], strict=True), -int(self.has_header)
        ):
            if row not in left_out:
                self._write(changed(row, self.data[begin:end]) + self.data[end:rest], out)

    def _encoded(self, cell: str) -> bytes:
        try:
            return cell.encode(self.encoding)
        except UnicodeEncodeError:
            raise ValueError(
                f"Expected labels that {self.format.encoding} can write in {self.path}, got {cell!r}. Save the table "
                "as UTF-8 and audit it again."
            ) from None

    def _write(self, part: bytes, out: BinaryIO) -> None:
        if self.is_wide:
            part = part.decode("utf-8", "surrogatepass").encode(self.format.encoding, "surrogatepass")
        out.write(part)

    def _cells(self, span: Sequence[int] | NDArray[np.int64]) -> list[str]:
        record = self.data[int(span[0]) : int(span[1])]
        return [_plain(record[first:last]).decode(self.encoding) for first, last in _split(record, self.comma)]

    def _walk(self) -> Iterator[tuple[tuple[int, int], list[str]]]:
        """Yield begin, end and cells of the header and of every record, read as latin-1: one character is one byte."""
        # Commas, quotes and line ends are the same bytes in UTF-8, Windows-1252 and latin-1.
        end = 0 if self.is_wide else len(self.format.mark)
        file = io.BytesIO(self.data) if isinstance(self.data, bytes) else open(self.path, "rb")  # noqa: SIM115

        def lines() -> Iterator[str]:
            nonlocal end
            for line in text:
                end += len(line)
                yield line

        blank = b" \t\r\n".replace(self.comma, b"")
        with long_cells(), io.TextIOWrapper(file, encoding="latin-1", newline="") as text:
            text.read(end)
            begin = end
            for cells in csv.reader(lines(), delimiter=self.format.separator):
                if len(cells) > 1 or self.data[begin:end].strip(blank):
                    yield (begin, end), cells
                begin = end


class FrameRecords(Records):
    """The rows of a file that pandas reads as a whole."""

    def __init__(self, path: Path, *, header: bool = True) -> None:
        self.path, self.has_header = path, header
        self.header = [str(name) for name in self.frame.columns]

    @cached_property
    def frame(self) -> pd.DataFrame:
        return read_file(self.path)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> list[str]:
        missing = self.frame.iloc[[i]].isna().to_numpy()[0].tolist()
        cells = [self.frame.iat[i, k] for k in range(len(missing))]  # a row as a whole has one type, which rounds
        return ["" if gap else str(cell) for cell, gap in zip(cells, missing, strict=True)]

    def rows(self) -> Iterator[Sequence[str]]:
        columns = (self.frame.iloc[:, k] for k in range(self.frame.shape[1]))
        words = [
            ["" if gap else str(cell) for cell, gap in zip(column, column.isna(), strict=True)] for column in columns
        ]
        return zip(*words, strict=True)

    def column(self, name: str) -> list[str]:
        return as_words(self.frame[name])

    def ids(self, name: str) -> list[str]:
        return as_ids(self.frame[name])

    def values(self, name: str) -> Sequence[Any]:
        return list(self.frame[name])

    def digests(self) -> Digests:
        return digest_frame(self.frame)


class MemoryRecords(FrameRecords):
    """The rows of a table in memory, to show them: it has no file to write."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame, self.header = frame, list(frame.columns)

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        raise ValueError("Expected a table file, got a table in memory. `noiseproof.audit.corrected` returns it.")

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        self.replace("", {}, out)


class ArrowRecords(FrameRecords):
    """The rows of a Parquet, Feather or Arrow file, whose schema and types stay as they are."""

    def digests(self) -> Digests:
        columns = ParquetColumns.open(self.path) if table_kind(self.path) == ".parquet" else None
        return digest_frame(self.frame if columns is None else columns)  # one column in memory at a time

    def values(self, name: str) -> Sequence[Any]:
        return list(read_arrow(self.path).column(name).to_pylist())

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        table = with_cells(read_arrow(self.path), name, cells)
        if left_out:
            table = table.take([row for row in range(len(table)) if row not in left_out])
        self._save(table, out)

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        self._save(read_arrow(self.path).drop_columns(list(names)), out)

    def add(self, columns: Mapping[str, Sequence[Any]], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        table = read_arrow(self.path)
        for name, cells in columns.items():
            table = table.append_column(name, [list(cells)])
        self._save(table.take([row for row in range(len(table)) if row not in left_out]) if left_out else table, out)

    def _save(self, table: Any, out: BinaryIO) -> None:
        if table_kind(self.path) == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, out)
            return
        import pyarrow as pa

        with open(self.path, "rb") as file:
            is_file = file.read(6).startswith((b"ARROW1", b"FEA1"))
        with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(out, table.schema) as writer:
            writer.write_table(table)


def replaced(values: Iterable[Any], new: Mapping[int, Any]) -> list[Any]:
    """The ``values`` with ``new`` ones in some rows."""
    return [new.get(row, value) for row, value in enumerate(values)]


def with_cells(table: Any, name: str, cells: Mapping[int, Any]) -> Any:
    """Return an Arrow table with other ``cells`` in column ``name``, by row; new categories come last."""
    import pyarrow as pa

    at = table.schema.get_field_index(name)
    field, values = table.schema.field(at), replaced(table.column(at).to_pylist(), cells)
    if pa.types.is_dictionary(field.type):
        known = table.column(at).unify_dictionaries().chunk(0).dictionary.to_pylist()
        categories = [*known, *sorted({*values} - {None, *known})]
        codes = pa.array([None if v is None else categories.index(v) for v in values], type=field.type.index_type)
        names = pa.array(categories, type=field.type.value_type)
        column = pa.DictionaryArray.from_arrays(codes, names, ordered=field.type.ordered)
    else:
        column = pa.array(values, type=field.type)
    return table.set_column(at, field, column)


class JsonRecords(FrameRecords):
    """The objects of a .jsonl file, one a line, of which only the changed values are written anew."""

    def values(self, name: str) -> Sequence[Any]:
        return [json.loads(line).get(name) for line in read_json_lines(self.path, detect_format(self.path))]

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        def with_cell(row: int, line: str, is_ascii: bool) -> str:
            if row not in cells:
                return line
            begin, end = _value_span(line, name)
            return line[:begin] + json.dumps(cells[row], ensure_ascii=is_ascii) + line[end:]

        self._rewrite(with_cell, out, left_out)

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        def without(row: int, line: str, is_ascii: bool) -> str:
            kept = {name: value for name, value in json.loads(line).items() if name not in names}
            return json.dumps(kept, ensure_ascii=is_ascii) + line[len(line.rstrip("\r\n")) :]

        self._rewrite(without, out)

    def add(self, columns: Mapping[str, Sequence[Any]], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        def with_more(row: int, line: str, is_ascii: bool) -> str:
            more = json.dumps({name: cells[row] for name, cells in columns.items()}, ensure_ascii=is_ascii)
            end = line.rindex("}")
            comma = ", " if line[line.index("{") + 1 : end].strip() else ""
            return line[:end].rstrip() + comma + more[1:] + line[end + 1 :]

        self._rewrite(with_more, out, left_out)

    def _rewrite(self, changed: Callable[[int, str, bool], str], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write each line as ``changed`` by its row and whether the file is ASCII: then é is written as \\u00e9."""
        found = detect_format(self.path)
        with open_bytes(self.path) as file:
            data = file.read()[len(found.mark) :]
        is_ascii, row = data.isascii(), -1
        out.write(found.mark)
        for line in io.StringIO(data.decode(found.encoding, "surrogatepass"), newline="\n"):
            if line.strip():
                row += 1
                line = "" if row in left_out else changed(row, line, is_ascii)
            out.write(line.encode(found.encoding, "surrogatepass"))


class ExcelRecords(FrameRecords):
    """The rows of the first sheet of an .xlsx file, of which only the changed cells are written anew."""

    @cached_property
    def _sheet(self) -> tuple[pd.DataFrame, list[int]]:
        return sheet_frame(self.path, self.has_header)

    @cached_property
    def frame(self) -> pd.DataFrame:
        return self._sheet[0]

    def values(self, name: str) -> Sequence[Any]:
        cells = self.frame[name].tolist()  # where a gap made 1 a real number, Excel has a whole one
        return [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        if left_out:
            raise ValueError(f"Expected to keep all rows of {self.path}, got {len(left_out)} to leave out.")
        letter, numbers = _column_letter(self.header.index(name)), self._sheet[1]
        places = {f"{letter}{numbers[row]}".encode(): value for row, value in cells.items()}
        self._write(lambda sheet: _with_sheet_cells(sheet, places, self.path), out)

    def add(self, columns: Mapping[str, Sequence[Any]], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        if left_out:
            self.replace("", {}, out, left_out)
        new: dict[int, list[tuple[str, Any]]] = {}
        first = {next(read_sheet(self.path))[0]: list(columns)} if self.has_header else {}
        lines = {**first, **dict(zip(self._sheet[1], zip(*columns.values(), strict=True), strict=True))}
        for number, cells in lines.items():
            places = (f"{_column_letter(len(self.header) + k)}{number}" for k in range(len(cells)))
            new[number] = [(place, cell) for place, cell in zip(places, cells, strict=True) if cell is not None]
        self._write(lambda sheet: _with_more_cells(sheet, new, len(self.header), self.path), out)

    def _write(self, change: Callable[[bytes], bytes], out: BinaryIO) -> None:
        with zipfile.ZipFile(self.path) as book, zipfile.ZipFile(out, "w") as copy:
            part = _first_sheet(book)
            for info in book.infolist():
                content = book.read(info)
                copy.writestr(info, change(content) if info.filename == part else content)

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        raise ValueError(
            f"Expected to keep all columns of {self.path}, to which other cells may refer, got {len(names)} to leave "
            "out. Save the sheet as a .csv file and audit that."
        )


def rewrite(path: Path, out: Path, fix: Fix, *, columns: Sequence[str | None] = (), header: bool = True) -> None:
    """Write the table in ``path`` to ``out`` with the cells and without the columns of ``fix``."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        steps: list[tuple[str, Any]] = [*fix.cells.items(), *([("", None)] if fix.columns else [])]
        for number, (name, rewrite_cell) in enumerate(steps):
            records = open_records(path, columns, header=header)
            path = Path(folder, f"{number}-{out.name}")
            with packing(path) as file:
                if rewrite_cell is None:
                    records.drop(fix.columns, file)
                    continue
                old = enumerate(records.values(name))
                cells = {row: new for row, cell in old if (new := rewrite_cell(cell)) != cell}
                records.replace(name, cells, file)
        with replacing(out, overwrite=False) as part:
            shutil.move(path, part)


@contextmanager
def packing(path: Path, name: str | None = None) -> Iterator[BinaryIO]:
    """Open a file to write, packed if it is called .gz, also where ``name`` is what it will be called."""
    with open(path, "wb") as file:
        if not (name or path.name).lower().endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield packed  # type: ignore[misc]  # it writes like any file


def _first_sheet(book: zipfile.ZipFile) -> str:
    """Return the name of the part of an Excel file that holds its first sheet."""
    sheets = ElementTree.fromstring(book.read("xl/workbook.xml"))
    links = ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels"))
    targets = {link.get("Id"): link.get("Target", "") for link in links}
    for sheet in (element for element in sheets.iter() if element.tag.endswith("}sheet")):
        target = next(targets[value] for key, value in sheet.items() if key.endswith("}id"))
        if "chartsheets/" not in target:
            return target.lstrip("/") if target.startswith("/") else f"xl/{target}"
    raise ValueError("Expected a sheet with cells in the Excel file, got none.")


def _with_sheet_cells(sheet: bytes, places: Mapping[bytes, Any], path: Path) -> bytes:
    """Return the XML of a sheet with other values in the cells ``places``, such as B7; their style stays."""
    written = 0

    def rewrite(match: re.Match[bytes]) -> bytes:
        nonlocal written
        tag, attributes, rest = match["tag"], match["attributes"], match["rest"] or b""
        place = re.search(rb'(?<!\S)r="([A-Z]+[0-9]+)"', attributes)
        if place is None or place[1] not in places:
            return match[0]
        prefix, value = tag[:-1], places[place[1]]
        if re.search(rb"<%sf[\s>/]" % prefix, rest):
            raise ValueError(
                f"Expected values in the labels of {path}, got a formula in {place[1].decode()}. Paste them as values."
            )
        written += 1
        return _sheet_cell(prefix, re.sub(rb'\s+t="[^"]*"', b"", attributes.rstrip(b"/ ")), value)

    changed = re.sub(CELL, rewrite, sheet, flags=re.DOTALL)
    if written < len(places):
        raise ValueError(
            f"Expected the place of each cell in {path}, as Excel writes it, got none. Open and save it in Excel."
        )
    return changed


def _with_more_cells(sheet: bytes, cells: Mapping[int, Sequence[tuple[str, Any]]], width: int, path: Path) -> bytes:
    """Return the XML of a sheet with more ``cells`` at the end of rows, by their number; ``width`` columns are used."""
    written, number_of = 0, import_module("openpyxl.utils").column_index_from_string

    def keep(match: re.Match[bytes]) -> bytes:
        place = re.search(rb'(?<!\S)r="([A-Z]+)[0-9]+"', match["attributes"])
        return b"" if place is not None and number_of(place[1].decode()) > width else match[0]  # blank, with a style

    def extend(match: re.Match[bytes]) -> bytes:
        nonlocal written
        number = re.search(rb'(?<!\S)r="([0-9]+)"', match["attributes"])
        if number is None or int(number[1]) not in cells:
            return match[0]
        written += 1
        prefix, attributes = match["tag"][:-3], re.sub(rb'\s+spans="[^"]*"', b"", match["attributes"])
        new = b"".join(_sheet_cell(prefix, b' r="%s"' % place.encode(), cell) for place, cell in cells[int(number[1])])
        old = re.sub(CELL, keep, match["rest"], flags=re.DOTALL)
        return b"<%s%s>%s%s</%s>" % (match["tag"], attributes, old, new, match["tag"])

    row = rb"<(?P<tag>(?:\w+:)?row)(?P<attributes>\s[^>]*?)(?<!/)>(?P<rest>.*?)</(?P=tag)>"
    changed = re.sub(row, extend, sheet, flags=re.DOTALL)
    if written < len(cells):
        raise ValueError(f"Expected the number of each row in {path}, as Excel writes it, got none. Open and save it.")
    return re.sub(rb"<(?:\w+:)?dimension\s[^>]*/>", b"", changed, count=1)  # which would name fewer columns


def _sheet_cell(prefix: bytes, attributes: bytes, value: Any) -> bytes:
    tag = prefix + b"c"
    if isinstance(value, str):
        text = escape(value).encode("ascii", "xmlcharrefreplace")
        cell = b'<%sis><%st xml:space="preserve">%s</%st></%sis>' % (prefix, prefix, text, prefix, prefix)
        return b'<%s%s t="inlineStr">%s</%s>' % (tag, attributes, cell, tag)
    kind = b' t="b"' if isinstance(value, bool) else b""
    to_excel = import_module("openpyxl.utils.datetime").to_excel
    number = str(to_excel(value) if isinstance(value, date) else value + 0).encode()
    return b"<%s%s%s><%sv>%s</%sv></%s>" % (tag, attributes, kind, prefix, number, prefix, tag)


def _column_letter(k: int) -> str:
    return str(import_module("openpyxl.utils").get_column_letter(k + 1))


def _value_span(line: str, name: str) -> tuple[int, int]:
    """Return where the value of ``name`` begins and ends in the JSON object of a line, the last one if repeated."""
    decode, at, span = json.JSONDecoder().raw_decode, line.index("{") + 1, (0, 0)
    while True:
        at = _skip(line, at, ", ")
        if line[at] == "}":
            return span
        key, at = decode(line, at)
        begin = _skip(line, at, ": ")
        _, at = decode(line, begin)
        if key == name:
            span = begin, at


def _skip(line: str, at: int, signs: str) -> int:
    while line[at] in f"{signs}\t\r\n":
        at += 1
    return at


def _split(record: bytes, comma: bytes) -> list[tuple[int, int]]:
    """Return where each cell of a record begins and ends."""
    size = len(record) - (2 if record.endswith(b"\r\n") else record.endswith((b"\n", b"\r")))
    spans, begin = [], 0
    while True:
        end = record.find(comma, _closing_quote(record, begin), size)
        spans.append((begin, size if end < 0 else end))
        if end < 0:
            return spans
        begin = end + 1


def _closing_quote(record: bytes, begin: int) -> int:
    """Return where the quote that opens the cell at ``begin`` is closed, ``begin`` if the cell has none."""
    if record[begin : begin + 1] != b'"':
        return begin
    at = record.find(b'"', begin + 1)
    while at >= 0 and record[at + 1 : at + 2] == b'"':  # a doubled quote is a character
        at = record.find(b'"', at + 2)
    return len(record) if at < 0 else at


def _plain(cell: bytes) -> bytes:
    if not cell.startswith(b'"'):
        return cell
    at = _closing_quote(cell, 0)
    return cell[1:at].replace(b'""', b'"') + cell[at + 1 :]


def _as_cell(value: bytes, comma: bytes, quoted: bool) -> bytes:
    if quoted or any(sign in value for sign in (comma, b'"', b"\r", b"\n")):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value


# Several labels a row, in columns that say yes or no, or in lists, read as if one column had words


class LabelColumns(Records):
    """The rows of ``records`` with one column ``name`` in place of the ``columns``."""

    def __init__(self, records: Records, name: str, columns: Sequence[str]) -> None:
        self.records, self.name, self.columns = records, name, list(columns)
        self.kept = [k for k, column in enumerate(records.header) if column not in self.columns]
        self.header = [*(records.header[k] for k in self.kept), name]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> list[str]:
        cells = self.records[i]
        return [*(cells[k] for k in self.kept if k < len(cells)), self.words[i]]

    @cached_property
    def words(self) -> list[str]:
        return column_words({column: self.records.values(column) for column in self.columns})

    def column(self, name: str) -> list[str]:
        return self.words if name == self.name else self.records.column(name)

    def ids(self, name: str) -> list[str]:
        return self.records.ids(name)

    def values(self, name: str) -> Sequence[Any]:
        return self.words if name == self.name else self.records.values(name)

    def digests(self) -> Digests:
        return self.records.digests()

    def drop(self, names: Collection[str], out: BinaryIO) -> None:
        self.records.drop(names, out)

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        """Write the file with other ``cells`` in the columns of the labels, one column after the other."""
        changes = column_cells(cells, {column: self.records.values(column) for column in self.columns})
        changed = [column for column in self.columns if changes[column]] or self.columns[:1]
        path: Path = self.records.path  # type: ignore[attr-defined]  # of a file: others cannot be replaced
        has_header = getattr(self.records, "has_header", True)
        with tempfile.TemporaryDirectory() as folder:
            records = self.records
            for number, column in enumerate(changed):
                part = Path(folder, f"{number}{table_kind(path)}")
                with open(part, "wb") as file:
                    records.replace(column, changes[column], file, left_out if column == changed[-1] else ())
                if column != changed[-1]:
                    records = open_records(part, self.columns, header=has_header)
            with open(part, "rb") as file:
                shutil.copyfileobj(file, out)


class ListCells(LabelColumns):
    """The rows of ``records`` with words in place of the lists in the column ``name``."""

    def __init__(self, records: Records, name: str, separator: str) -> None:
        super().__init__(records, name, [name])
        self.separator = separator

    @cached_property
    def words(self) -> list[str]:
        return [word or "" for word in join_sets(lists_as_sets(self.records.values(self.name)), self.separator)]

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO, left_out: Collection[int] = ()) -> None:
        lists = list_cells(self.records.values(name), cells, self.separator)
        self.records.replace(name, lists, out, left_out)
