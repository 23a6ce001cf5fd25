"""CSV and TSV files, of which every byte outside of the changed cells stays."""

import csv
import gzip
import io
import mmap
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from noiseproof.audit.rows import Digests, digest_rows
from noiseproof.core.arrays import Ints
from noiseproof.core.tablefiles import detect_format, long_cells, open_bytes


@dataclass(frozen=True)
class Changes:
    """What differs between a table and its corrected copy."""

    # new cells of columns, by row
    cells: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    # new columns at the end, None for gaps
    added: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dropped: Collection[str] = ()  # columns
    left_out: Collection[int] = ()  # rows

    def of_row(self, row: int) -> dict[str, Any]:
        """Return the new cells of a row, by column."""
        return {name: cells[row] for name, cells in self.cells.items() if row in cells}


class TextRecords:
    """The records of a .csv, .tsv or .gz file, counted as pandas does: without blank lines.

    A line of spaces and tabs is blank; a line of two quotes is a record with an empty cell. Only
    the position of each record is stored; its cells are read from the file when needed.
    """

    def __init__(
        self, path: Path, columns: Sequence[str | None] = (), *, header: bool = True
    ) -> None:
        self.path = path
        self.has_header = header
        self.format = detect_format(path, columns, header=header)
        self.comma = self.format.separator.encode()
        # Commas and line ends are single bytes in all encodings but UTF-16 and UTF-32, which are
        # read as UTF-8.
        self.is_wide = self.format.encoding.startswith(("utf-16", "utf-32"))
        self.encoding = "utf-8" if self.is_wide else self.format.encoding
        self.cell = re.compile(rb'(?:"([^"]*(?:""[^"]*)*)"?)?([^%s]*)' % re.escape(self.comma))
        self.data: bytes | mmap.mmap
        with open_bytes(path) as file:
            if self.is_wide:
                text = file.read()[len(self.format.mark) :].decode(
                    self.format.encoding, "surrogatepass"
                )
                self.data = text.encode("utf-8", "surrogatepass")
            elif isinstance(file, gzip.GzipFile):
                self.data = file.read()
            else:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        first = next((self._cells(span) for span, _ in self._walk()), [])
        self.header = first if header else [str(i) for i in range(len(first))]

    @cached_property
    def spans(self) -> Ints:
        """Begin and end of each record, (N, 2); digests do without."""
        spans = [span for span, _ in self._walk()]
        spans = spans[int(self.has_header) :]
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, i: int) -> list[str]:
        return self._cells(self.spans[i])

    def rows(self) -> Iterator[Sequence[str]]:
        """Yield the cells of every record."""
        return map(self._cells, self.spans)

    def column(self, name: str) -> list[str]:
        """Return the cell of every record in one column, empty where a record is too short."""
        position = self.header.index(name)
        cells = [record[position] if position < len(record) else "" for _, record in self._walk()]
        if self.has_header:
            del cells[0]
        # _walk reads bytes as latin-1, whatever the encoding. Equal cells become one string, which
        # saves memory.
        decoded = {cell: cell.encode("latin-1").decode(self.encoding) for cell in set(cells)}
        return [decoded[cell] for cell in cells]

    ids = values = column

    def digests(self) -> Digests:
        """Return the digest of each record, which the order of the columns does not change."""
        order = sorted(range(len(self.header)), key=lambda k: self.header[k])
        width = len(order)

        def content(cells: list[str]) -> bytes:
            cells += [""] * (width - len(cells))
            return "\0".join([cells[k] for k in order] + cells[width:]).encode(
                "utf-8", "surrogatepass"
            )

        records = (cells for _, cells in self._walk())
        if self.has_header:
            next(records, None)
        return digest_rows(map(content, records), "\0".join(self.header[k] for k in order))

    def write(self, changes: Changes, out: BinaryIO) -> None:
        """Write the file with ``changes``; a cell is quoted where the old one is, or where it has
        to be.

        Blank lines after a record that is left out go, too.
        """
        if self.is_wide:
            out.write(self.format.mark)
        written = 0
        is_kept = True
        for row, ((begin, end), _) in enumerate(self._walk(), -int(self.has_header)):
            if is_kept:
                self._write(self.data[written:begin], out)
            is_kept = row not in changes.left_out
            if is_kept:
                self._write(self._edited(row, self.data[begin:end], changes), out)
            written = end
        if is_kept:
            self._write(self.data[written:], out)

    def _edited(self, row: int, record: bytes, changes: Changes) -> bytes:
        """Return a record with its changes; the header is row −1."""
        new = changes.of_row(row)
        if not (new or changes.added or changes.dropped):
            return record
        matches = self._matches(record)
        cells = [match[0] for match in matches]
        for name, cell in new.items():
            k = self.header.index(name)
            cells[k] = self._as_cell(cell, is_quoted=cells[k].startswith(b'"'))
        if changes.added:
            more = changes.added if row < 0 else [column[row] for column in changes.added.values()]
            width = len(self.header)
            cells += [b""] * (width - len(cells))  # a record may be shorter than the header
            # or longer: what no column has stays at the end
            cells[width:width] = map(self._as_cell, more)
        dropped = {self.header.index(name) for name in changes.dropped}
        return (
            self.comma.join(cell for k, cell in enumerate(cells) if k not in dropped)
            + record[matches[-1].end() :]
        )

    def _as_cell(self, value: Any, is_quoted: bool = False) -> bytes:
        try:
            cell = ("" if value is None else str(value)).encode(self.encoding)
        except UnicodeEncodeError:
            raise ValueError(
                f"Expected labels that {self.format.encoding} can write in {self.path}, got"
                f" {value!r}. Save the table as UTF-8 and audit it again."
            ) from None
        if is_quoted or any(sign in cell for sign in (self.comma, b'"', b"\r", b"\n")):
            return b'"' + cell.replace(b'"', b'""') + b'"'
        return cell

    def _write(self, part: bytes, out: BinaryIO) -> None:
        if self.is_wide:
            part = part.decode("utf-8", "surrogatepass").encode(
                self.format.encoding, "surrogatepass"
            )
        out.write(part)

    def _cells(self, span: Sequence[int] | Ints) -> list[str]:
        matches = self._matches(self.data[int(span[0]) : int(span[1])])
        cells = []
        for match in matches:
            quoted = (match[1] or b"").replace(b'""', b'"')
            cells.append((quoted + match[2]).decode(self.encoding))
        return cells

    def _matches(self, record: bytes) -> list[re.Match[bytes]]:
        """Return each cell of a record: what it has in quotes, and after them."""
        size = len(record.rstrip(b"\r\n"))
        matches = []
        at = 0
        while at <= size:
            match = self.cell.match(record, at, size)
            assert match is not None  # of nothing, too
            matches.append(match)
            at = match.end() + 1
        return matches

    def _walk(self) -> Iterator[tuple[tuple[int, int], list[str]]]:
        """Yield begin, end and cells of the header and of every record, read as latin-1: one
        character is one byte.
        """
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


@contextmanager
def packing(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file to write, packed if ``name``, which it will have, ends with .gz."""
    with open(path, "wb") as file:
        if not name.lower().endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield packed  # type: ignore[misc]  # it writes like any file
