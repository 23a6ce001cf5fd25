"""The rows of tables: shown, known by digests, and written to a copy that differs in some cells."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pandas as pd

from noiseproof.audit.csvfile import Changes, TextRecords
from noiseproof.audit.files import as_ids, as_words
from noiseproof.audit.rows import Digests, digest_frame
from noiseproof.core.tablefiles import (
    detect_format,
    open_bytes,
    read_json_lines,
    read_sheet,
    table_kind,
)
from noiseproof.data.frames import read_arrow, read_file, sheet_frame


class FrameRecords:
    """The rows of a DataFrame."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.header = list(frame.columns)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> list[str]:
        return [words[0] for words in _words(self.frame.iloc[[i]])]

    def rows(self) -> Iterator[Sequence[str]]:
        """Yield the cells of every row."""
        return zip(*_words(self.frame), strict=True)

    def column(self, name: str) -> list[str]:
        """Return the labels in one column as words, empty where there is none."""
        return as_words(self.frame[name])

    def ids(self, name: str) -> list[str]:
        """Return the ids in one column as words, empty where there is none."""
        return as_ids(self.frame[name])

    def values(self, name: str) -> Sequence[Any]:
        """Return the cells of one column, as ``write`` takes them."""
        return self.frame[name].tolist()

    def digests(self) -> Digests:
        """Return the digest of each row, which the order of the columns does not change."""
        return digest_frame(self.frame)

    def write(self, changes: Changes, out: BinaryIO) -> None:
        """Write the table with ``changes``."""
        raise ValueError(
            "Expected a table file, got a table in memory. `noiseproof.audit.corrected` returns it."
        )


def _words(frame: pd.DataFrame) -> list[list[str]]:
    """Return the cells of each column; a row as a whole would have one type, which rounds."""
    return [
        ["" if gap else str(cell) for cell, gap in zip(column.array, column.isna(), strict=True)]
        for _, column in frame.items()
    ]


Records: TypeAlias = TextRecords | FrameRecords


class FileRecords(FrameRecords):
    """The rows of a file that pandas reads as a whole."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_file(path))
        self.path = path
        self.header = [str(name) for name in self.header]


class ArrowRecords(FileRecords):
    """The rows of a Parquet, Feather or Arrow file, whose schema and types stay as they are."""

    def values(self, name: str) -> Sequence[Any]:
        return list(read_arrow(self.path).column(name).to_pylist())

    def write(self, changes: Changes, out: BinaryIO) -> None:
        table = read_arrow(self.path)
        for name, cells in changes.cells.items():
            table = _with_cells(table, name, cells)
        for name, column in changes.added.items():
            table = table.append_column(name, [list(column)])
        table = table.drop_columns(list(changes.dropped))
        if changes.left_out:
            table = table.take([row for row in range(len(table)) if row not in changes.left_out])
        if table_kind(self.path) == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, out)
            return
        import pyarrow as pa

        with open(self.path, "rb") as file:
            is_file = file.read(6) == b"ARROW1"
        with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(out, table.schema) as writer:
            writer.write_table(table)


class JsonRecords(FileRecords):
    """The objects of a .jsonl file, one a line; lines without a change keep their bytes."""

    def values(self, name: str) -> Sequence[Any]:
        return [
            json.loads(line).get(name)
            for line in read_json_lines(self.path, detect_format(self.path))
        ]

    def write(self, changes: Changes, out: BinaryIO) -> None:
        found = detect_format(self.path)
        with open_bytes(self.path) as file:
            data = file.read()[len(found.mark) :]
        is_ascii = data.isascii()  # é is written as \u00e9
        row = -1
        out.write(found.mark)
        for line in io.StringIO(data.decode(found.encoding, "surrogatepass"), newline="\n"):
            if line.strip():
                row += 1
                if row in changes.left_out:
                    continue
                line = _edited_line(line, row, changes, is_ascii)
            out.write(line.encode(found.encoding, "surrogatepass"))


def _edited_line(line: str, row: int, changes: Changes, is_ascii: bool) -> str:
    new = changes.of_row(row)
    for name, column in changes.added.items():
        new[name] = column[row]
    if not new and not changes.dropped:
        return line
    old = json.loads(line)
    content = {name: value for name, value in (old | new).items() if name not in changes.dropped}
    has_spaces = line.strip() == json.dumps(old, ensure_ascii=is_ascii)
    separators = (", ", ": ") if has_spaces else (",", ":")
    end = line[len(line.rstrip("\r\n")) :]
    return json.dumps(content, ensure_ascii=is_ascii, separators=separators) + end


class ExcelRecords(FileRecords):
    """The rows of the first sheet of an .xlsx file; openpyxl writes the workbook with other
    cells.
    """

    def __init__(self, path: Path, *, header: bool = True) -> None:
        frame, self.numbers = sheet_frame(path, header)  # of the rows in the sheet, from 1
        FrameRecords.__init__(self, frame)
        self.path = path
        self.has_header = header

    def values(self, name: str) -> Sequence[Any]:
        cells = self.frame[name].tolist()  # where a gap made 1 a real number, Excel has a whole one
        return [
            int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells
        ]

    def write(self, changes: Changes, out: BinaryIO) -> None:
        if gone := [*changes.left_out, *changes.dropped]:
            raise ValueError(
                f"Expected to keep all rows and columns of {self.path}, to which other cells may"
                f" refer, got {len(gone)} to leave out. Save the sheet as a .csv file and audit"
                " that."
            )
        book = import_module("openpyxl").load_workbook(self.path, rich_text=True)
        sheet = book.worksheets[0]
        for name, cells in changes.cells.items():
            for row, value in cells.items():
                cell = sheet.cell(self.numbers[row], self.header.index(name) + 1)
                if cell.data_type == "f":
                    raise ValueError(
                        f"Expected values in the labels of {self.path}, got a formula in"
                        f" {cell.coordinate}. Paste them as values."
                    )
                _set_cell(cell, value)
        names = [next(read_sheet(self.path))[0]] if self.has_header else []
        for k, (name, column) in enumerate(changes.added.items(), len(self.header) + 1):
            words = [name, *column] if self.has_header else column
            for number, value in zip([*names, *self.numbers], words, strict=True):
                _set_cell(sheet.cell(number, k), value)
        book.save(out)


def _set_cell(cell: Any, value: Any) -> None:
    try:
        cell.value = value
    except Exception as error:  # of openpyxl, which has no common one
        raise ValueError(
            f"Expected words and numbers that Excel can hold, got {value!r}. Undo the decision."
        ) from error
    if cell.data_type == "f":
        cell.data_type = "s"  # a word that begins with = is not a formula


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


def replaced(values: Iterable[Any], new: Mapping[int, Any]) -> list[Any]:
    """Return the ``values`` with ``new`` ones in some rows."""
    return [new.get(row, value) for row, value in enumerate(values)]


def _with_cells(table: Any, name: str, cells: Mapping[int, Any]) -> Any:
    """Return an Arrow table with other ``cells`` in column ``name``, by row; new categories come
    last.
    """
    import pyarrow as pa

    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    values = replaced(table.column(at).to_pylist(), cells)
    if not pa.types.is_dictionary(field.type):
        return table.set_column(at, field, pa.array(values, type=field.type))
    known = table.column(at).unify_dictionaries().chunk(0).dictionary.to_pylist()
    categories = [*known, *sorted({*values} - {None, *known})]
    codes = pa.array(
        [None if v is None else categories.index(v) for v in values], type=field.type.index_type
    )
    names = pa.array(categories, type=field.type.value_type)
    column = pa.DictionaryArray.from_arrays(codes, names, ordered=field.type.ordered)
    return table.set_column(at, field, column)
