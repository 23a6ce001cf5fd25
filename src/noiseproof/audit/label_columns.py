"""Tables with several labels a row in columns that say yes or no, or in lists, read as if one column had words."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from noiseproof.audit.records import Records, open_records
from noiseproof.audit.rows import Digests
from noiseproof.audit.sets import column_cells, column_words, join_sets, list_cells, lists_as_sets
from noiseproof.core.tablefiles import table_kind


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

    def rows(self) -> Iterator[Sequence[str]]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def words(self) -> list[str]:
        """The labels of each row as one word."""
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
        """Write the file with the lists that other words spell."""
        lists = list_cells(self.records.values(name), cells, self.separator)
        self.records.replace(name, lists, out, left_out)
