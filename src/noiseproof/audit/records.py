"""Table files of which single cells change: CSV and TSV by their bytes, Parquet by its columns and types."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import as_ids, as_words

BOM = b"\xef\xbb\xbf"


class Records:
    """The records below the header of a .csv, .tsv or .gz file, counted as pandas does: without blank lines.

    A line of spaces and tabs is blank; a line of two quotes is a record with an empty cell. Only the position of each
    record is stored; its cells are read from the file when needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.comma = b"\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else b","
        self.data: bytes | mmap.mmap
        with open(path, "rb") as file:
            if path.name.lower().endswith(".gz"):
                self.data = gzip.decompress(file.read())
            else:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        spans = np.array([span for span, _ in self._walk()], dtype=np.int64).reshape(-1, 2)
        self.header = self._cells(spans[0]) if len(spans) else []
        self.spans = spans[1:]  # (N, 2): begin and end of each record

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, i: int) -> list[str]:
        """Return the cells of record ``i``."""
        return self._cells(self.spans[i])

    def column(self, name: str) -> list[str]:
        """Return the cell of every record in one column, empty where a record is too short."""
        k = self.header.index(name)
        cells = [record[k] if k < len(record) else "" for _, record in self._walk()]
        decoded = {cell: cell.encode("latin-1").decode() for cell in set(cells)}  # each label once, to save memory
        return [decoded[cell] for cell in cells[1:]]

    ids = values = column

    def replace(self, name: str, cells: Mapping[int, str], out: BinaryIO) -> None:
        """Write the file with other ``cells`` in column ``name``, by record, quoted where the old ones are."""
        k, done = self.header.index(name), 0
        for i, cell in sorted(cells.items()):
            begin, end = self.spans[i].tolist()
            first, last = _split(self.data[begin:end], self.comma)[k]
            out.write(self.data[done : begin + first])
            out.write(_as_cell(cell.encode(), self.comma, quoted=self.data[begin + first : begin + first + 1] == b'"'))
            done = begin + last
        out.write(self.data[done:])

    def _cells(self, span: NDArray[np.int64]) -> list[str]:
        record = self.data[int(span[0]) : int(span[1])]
        return [_plain(record[first:last]).decode() for first, last in _split(record, self.comma)]

    def _walk(self) -> Iterator[tuple[tuple[int, int], list[str]]]:
        """Yield begin, end and cells of the header and of every record, read as latin-1: one character is one byte."""
        # Commas, quotes and line ends are the same bytes in UTF-8 and latin-1.
        end = len(BOM) if self.data[: len(BOM)] == BOM else 0
        file = gzip.open(self.path) if isinstance(self.data, bytes) else open(self.path, "rb")  # noqa: SIM115

        def lines() -> Iterator[str]:
            nonlocal end
            for line in text:
                end += len(line)
                yield line

        blank = b" \t\r\n".replace(self.comma, b"")
        limit = csv.field_size_limit(sys.maxsize)  # a cell may hold a document
        try:
            with io.TextIOWrapper(file, encoding="latin-1", newline="") as text:
                text.read(end)
                begin = end
                for cells in csv.reader(lines(), delimiter=self.comma.decode()):
                    if len(cells) > 1 or self.data[begin:end].strip(blank):
                        yield (begin, end), cells
                    begin = end
        finally:
            csv.field_size_limit(limit)


class ParquetRecords:
    """The rows of a Parquet file, with the methods of ``Records``."""

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self.path = path
        self.frame = pd.read_parquet(path)
        self.header = [str(name) for name in self.frame.columns]

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> list[str]:
        """Return the cells of row ``i``."""
        missing = self.frame.iloc[[i]].isna().to_numpy()[0].tolist()
        cells = [self.frame.iat[i, k] for k in range(len(missing))]  # a row as a whole has one type, which rounds
        return ["" if gap else str(cell) for cell, gap in zip(cells, missing, strict=True)]

    def column(self, name: str) -> list[str]:
        """Return the labels in one column as words, empty where there is none."""
        return as_words(self.frame[name])

    def ids(self, name: str) -> list[str]:
        """Return the ids in one column as words, empty where there is none."""
        return as_ids(self.frame[name])

    def values(self, name: str) -> list[Any]:
        """Return the values of one column as Python objects."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        return list(pq.read_table(self.path, columns=[name]).column(0).to_pylist())

    def replace(self, name: str, cells: Mapping[int, Any], out: BinaryIO) -> None:
        """Write the file with other ``cells`` in column ``name``, by row; new categories come last."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(self.path)
        at = table.schema.get_field_index(name)
        field, values = table.schema.field(at), table.column(at).to_pylist()
        for row, value in cells.items():
            values[row] = value
        if pa.types.is_dictionary(field.type):
            known = table.column(at).unify_dictionaries().chunk(0).dictionary.to_pylist()
            categories = [*known, *sorted({*values} - {None, *known})]
            codes = pa.array([None if v is None else categories.index(v) for v in values], type=field.type.index_type)
            names = pa.array(categories, type=field.type.value_type)
            column = pa.DictionaryArray.from_arrays(codes, names, ordered=field.type.ordered)
        else:
            column = pa.array(values, type=field.type)
        pq.write_table(table.set_column(at, field, column), out)


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
    """Return the value of a cell, without quotes."""
    if not cell.startswith(b'"'):
        return cell
    at = _closing_quote(cell, 0)
    return cell[1:at].replace(b'""', b'"') + cell[at + 1 :]


def _as_cell(value: bytes, comma: bytes, quoted: bool) -> bytes:
    if quoted or any(sign in value for sign in (comma, b'"', b"\r", b"\n")):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value
