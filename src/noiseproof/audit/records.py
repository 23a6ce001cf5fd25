"""A CSV or TSV file by its bytes, so that one cell can be changed and every other byte stays what it was."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

BOM = b"\xef\xbb\xbf"


class Records:
    """The records below the header of a .csv, .tsv or .gz file, as pandas counts them: blank lines are none.

    Blank is what holds spaces and tabs alone; a line of two quotes is a record with an empty cell.

    Only where each record lies is kept; its cells are read from the file when they are asked for.
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
        """The cells of record ``i``."""
        return self._cells(self.spans[i])

    def column(self, name: str) -> list[str]:
        """The cell of every record in one column; empty where a record is too short."""
        k = self.header.index(name)
        words: dict[str, str] = {}  # a label is said many times: once is enough to keep
        cells = [record[k] if k < len(record) else "" for _, record in self._walk()]
        for cell in set(cells):
            words[cell] = cell.encode("latin-1").decode()
        return [words[cell] for cell in cells[1:]]

    def replace(self, name: str, cells: Mapping[int, str], out: BinaryIO) -> None:
        """Write the file with other ``cells`` in column ``name`` of some records, quoted where the old ones are."""
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
        """Begin, end and cells of the header and of every record, read as latin-1: one character is one byte."""
        # UTF-8 has its commas, quotes and line ends where latin-1 would see them.
        end = len(BOM) if self.data[: len(BOM)] == BOM else 0
        file = gzip.open(self.path) if isinstance(self.data, bytes) else open(self.path, "rb")  # noqa: SIM115

        def lines() -> Iterator[str]:
            nonlocal end
            for line in text:
                end += len(line)
                yield line

        blank = b" \t\r\n".replace(self.comma, b"")
        limit = csv.field_size_limit(sys.maxsize)  # a cell may be a whole document
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


def _split(record: bytes, comma: bytes) -> list[tuple[int, int]]:
    """Where each cell of a record begins and ends."""
    size = len(record) - (2 if record.endswith(b"\r\n") else record.endswith((b"\n", b"\r")))
    spans, begin = [], 0
    while True:
        end = record.find(comma, _closing_quote(record, begin), size)
        spans.append((begin, size if end < 0 else end))
        if end < 0:
            return spans
        begin = end + 1


def _closing_quote(record: bytes, begin: int) -> int:
    """Where the quote that opens the cell at ``begin`` is closed; ``begin`` itself if none does."""
    if record[begin : begin + 1] != b'"':
        return begin
    at = record.find(b'"', begin + 1)
    while at >= 0 and record[at + 1 : at + 2] == b'"':  # two are one that closes nothing
        at = record.find(b'"', at + 2)
    return len(record) if at < 0 else at


def _plain(cell: bytes) -> bytes:
    """What a cell says."""
    if not cell.startswith(b'"'):
        return cell
    at = _closing_quote(cell, 0)
    return cell[1:at].replace(b'""', b'"') + cell[at + 1 :]


def _as_cell(value: bytes, comma: bytes, quoted: bool) -> bytes:
    if quoted or any(sign in value for sign in (comma, b'"', b"\r", b"\n")):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value
