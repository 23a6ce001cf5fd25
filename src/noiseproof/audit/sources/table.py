"""Tables, in memory or in a file, audited by their columns: shown, and written with corrected
labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from noiseproof.audit.copies import corrected_table, is_table
from noiseproof.audit.correction import Correction
from noiseproof.audit.csvfile import packing
from noiseproof.audit.files import Audit, same_id
from noiseproof.audit.pictures import Picture, PixelColumns, find_pixels
from noiseproof.audit.records import FrameRecords, Records, open_records
from noiseproof.audit.rows import Digests
from noiseproof.audit.sources.base import ANOTHER_ROW, SOURCES, Columns, Content, Request
from noiseproof.audit.sources.tablereader import TableReader
from noiseproof.core.arrays import Ints
from noiseproof.core.files import replacing
from noiseproof.core.tablefiles import KINDS, table_kind
from noiseproof.data.tables import fit_columns

LONGEST = 20_000  # characters of a cell on the page


@SOURCES.register_class("table")
class TableSource(TableReader):
    """A table with a column of labels, audited by its other columns."""

    files = f"a table ({', '.join(KINDS)})"

    def accepts(self, request: Request) -> bool:
        return self.has_table(request) and self.config["text"] is None

    def has_table(self, request: Request) -> bool:
        if request.path is not None:
            return table_kind(request.path) is not None
        return hasattr(request.data, "columns")

    # Showing

    @cached_property
    def records(self) -> Records:
        if self.config.get("data") is None:
            return FrameRecords(self.as_given if self.multi_label else self._whole_frame())
        columns = [*self.given_columns, self.config["text"], self.config["id"]]
        return open_records(
            Path(self.config["data"]), columns, header=self.config.get("header", True)
        )

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def labels(self) -> list[str] | None:
        label = self.config["label"]
        if label is None:
            return None
        if not {*self.given_columns} <= {*self.records.header}:
            return []
        sets = self.set_words(self.records.values)
        return self.records.column(label) if sets is None else [word or "" for word in sets]

    @cached_property
    def ids(self) -> list[str] | None:
        id = self.config["id"]
        if id is None:
            return None
        return self.records.ids(id) if id in self.records.header else []

    @cached_property
    def row_digests(self) -> Digests:
        return self.records.digests()

    def find_rows(self, audit: Audit, outcomes: Mapping[int, object]) -> Ints:
        self.locate(audit.folder)
        self.check_columns(self.records.header)
        return super().find_rows(audit, outcomes)

    def show(self, row: int, id: str) -> Content:
        if self.ids is not None:
            now = self.ids[row] if row < len(self.ids) else ""
            if not same_id(now, id):
                return {"note": ANOTHER_ROW}
        record = self.records[row]
        cells = {
            self.records.header[k]: _shortened(record[k]) for k in self._shown if k < len(record)
        }
        text = cells.pop(self.config["text"], None)
        shown: Content = {} if text is None else {"text": text}
        if self.has_pictures:
            shown["has_image"] = True
        return shown | {"fields": [[str(name), cell] for name, cell in cells.items()]}

    @cached_property
    def pixels(self) -> PixelColumns | None:
        """The columns that are a picture, which is shown instead; None if there are none."""
        roles = {self.config[role] for role in ("text", "id", "group", "time")}
        roles |= {*self.config["annotators"], *self.given_columns}
        return find_pixels(
            ["" if name in roles else str(name) for name in self.records.header], self.records
        )

    @cached_property
    def _shown(self) -> list[int]:
        """Positions of the columns whose cells are shown, and searched: neither labels nor
        pixels.
        """
        pixels = () if self.pixels is None else self.pixels.positions
        header = self.records.header
        return [
            k for k, name in enumerate(header) if k not in pixels and name not in self.given_columns
        ]

    @property
    def has_cells(self) -> bool:
        return bool({self.records.header[k] for k in self._shown} - {self.config["id"]})

    def cells(self) -> Iterator[list[str]]:
        for record in self.records.rows():
            yield [record[k] for k in self._shown if k < len(record)]

    @property
    def has_pictures(self) -> bool:
        return self.pixels is not None

    def picture(self, row: int, id: str, side: int) -> Picture | None:
        if self.pixels is None or "note" in self.show(row, id):
            return None
        return self.pixels.picture(self.records[row], side)

    def columns(self, given: Ints) -> Columns:
        if self.config["data"] is not None:
            self.frame = self._with_label(self._read_table(Path(self.config["data"])))
        try:
            fitted = fit_columns(
                self.frame,
                self._feature_columns(),
                "impute",
                requested=False,
                labels=given,
                wide=True,
            )[0]
        except ValueError:  # no column is of use
            return {}
        values = fitted.table(self.frame).values.astype(np.float64)
        words = fitted.categories | fitted.wide
        shift = fitted.shift.tolist()
        columns: Columns = {
            str(name): values[:, k] + shift[k] for k, name in enumerate(fitted.numeric)
        }
        for codes, (name, known) in zip(values.T[len(columns) :], words.items(), strict=True):
            spelled = np.array([*known, ""], dtype=object)  # the last one: gaps
            places = np.nan_to_num(codes, nan=len(known)).astype(int)
            columns[str(name)] = spelled[places]
        return columns

    def describe(self, row: int, id: str) -> str:
        self.frame = frame = self._whole_frame()
        # Cell by cell: a row as a whole has one type, which rounds large whole numbers next to real
        # ones.
        cells: list[tuple[str, Any]] = [
            (name, frame.iloc[row, j])
            for j, name in enumerate(self.frame.columns)
            if name != self.config["label"]
        ]
        return "\n".join(f"{name}: {value}" for name, value in cells)

    def row_names(self, rows: Sequence[int]) -> list[str]:
        if self.config["id"] is None:
            return super().row_names(rows)
        return [str(name) for name in self.frame[self.config["id"]].iloc[list(rows)]]

    # Correcting

    def default_out(self) -> Path:
        name = Path(self.config["data"] or "").name.lower()
        return Path(
            f"corrected{Path(name.removesuffix('.gz')).suffix}{'.gz' * name.endswith('.gz')}"
        )

    @property
    def can_leave_out(self) -> bool:
        return (
            self.config["data"] is None or table_kind(self.config["data"]) != ".xlsx"
        )  # other cells may refer to rows

    def write(self, correction: Correction, out: Path) -> None:
        """Write the table; bytes of text and types of Arrow stay as they were."""
        kind = table_kind(self.config["data"])
        if table_kind(out) != kind:
            raise ValueError(f"Expected a {kind} file as the original is, got {out}.")
        changes = correction.changes(self.records.header, self.records.values)
        with replacing(out, overwrite=False) as part, packing(part, out.name) as file:
            self.records.write(changes, file)

    def corrected(self, data: Any, correction: Correction) -> Any:
        if not is_table(data):
            return super().corrected(data, correction)
        return corrected_table(data, correction, digests=True)


def _shortened(cell: str) -> str:
    return (
        cell
        if len(cell) <= LONGEST
        else f"{cell[:LONGEST]} … and {len(cell) - LONGEST} characters more"
    )
