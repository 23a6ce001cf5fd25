"""Tables, in memory or in a file, audited by their columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.correction import Correction
from noiseproof.audit.csvfile import packing
from noiseproof.audit.early import check_label, check_roles
from noiseproof.audit.files import Audit, as_ids, as_words, labels_digest, same_id
from noiseproof.audit.labelcells import set_words
from noiseproof.audit.memory import columns_of, corrected_table
from noiseproof.audit.pictures import SAMPLE, Layout, encode_picture, find_layout, pixel_columns
from noiseproof.audit.records import FrameRecords, Records, open_records
from noiseproof.audit.rows import Digests
from noiseproof.audit.sets import NONE as NO_LABEL
from noiseproof.audit.sets import empty_cells, has_lists, labels_in, lists_as_sets, spelled_lists, yes_no
from noiseproof.audit.sources.annotations import first_labels, place_votes
from noiseproof.audit.sources.base import ANOTHER_ROW, SOURCES, AuditData, Columns, Content, OtherRows, Request, Source
from noiseproof.audit.sources.labels import encode_given, is_missing
from noiseproof.core.files import replacing
from noiseproof.core.messages import counted, preview
from noiseproof.core.tablefiles import KINDS, table_kind
from noiseproof.data.frames import (
    ParquetColumns,
    check_table,
    read_table,
    readable,
    reading_notes,
)
from noiseproof.data.labels import find_words
from noiseproof.data.tables import Columns as EncodedColumns
from noiseproof.data.tables import FeatureTable, Frame, fit_columns
from noiseproof.data.votes import Votes

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 20_000  # characters of a cell on the page
DAY_AND_MONTH = r"^\s*(\d{1,2})[-/.](\d{1,2})[-/.]\d{2,4}(?!\d)"  # in this order or the other
Unusable = list[tuple[str, NDArray[np.bool_]]]  # reasons, and the rows (N,) each holds for
Features = tuple[NDArray[np.float32], list[str], Unusable]  # (N, D), notes, rows without features


@SOURCES.register_class("table")
class TableSource(Source):
    """A table with a column of labels, audited by its other columns."""

    files = f"a table ({', '.join(KINDS)})"
    has_columns = True
    frame: Frame
    fitted: EncodedColumns | None = None  # the encoder of the columns that were read
    feature_table: FeatureTable | None = None  # of the rows that were read, by their columns

    def accepts(self, request: Request) -> bool:
        return self.is_table(request) and self.config["text"] is None

    def is_table(self, request: Request) -> bool:
        if request.path is not None:
            return table_kind(request.path) is not None
        return hasattr(request.data, "columns")

    # Reading

    def read(self, request: Request) -> AuditData:
        label, annotators, trusted = self.config["label"], self.config["annotators"], request.trusted
        check_label(label, annotators, request.labels, request.annotations)
        self.frame = self._open_table(request)
        request = self.without_names(request)
        trusted_column = trusted if isinstance(trusted, str) and trusted in self.frame.columns else None
        if trusted_column is not None:
            self.config["trusted"], trusted = trusted_column, None
        features = self._feature_columns(trusted_column)
        table, row = self._with_trusted(trusted)
        votes, classes = self._votes(table, request)
        if label is not None:
            column = table[label]
            column = self._as_words_of_sets(column) if self.multi_label else column
            given, classes = encode_given(column, request.classes, label, known=classes)
        else:
            assert votes is not None and classes is not None
            given = first_labels(votes, len(classes), self.config["consensus"], request.seed)
        time = None if (column := self.config["time"]) is None else _times(table[column])
        unusable = [("no label", given < 0), *self._missing(table)]
        if time is not None:
            unusable.append((f"no time in {column!r}", np.isnan(time)))
        x, notes = None, [*reading_notes(self.frame), *self._empty_cells(), *self._unlabelled()]
        if request.needs_features:
            usable = ~np.logical_or.reduce([mask for _, mask in unusable])
            x, more, without = self._features(table, features, given, usable, request)
            notes, unusable = [*notes, *more], [*unusable, *without]
        ids = None if (id := self.config["id"]) is None else table[id].astype(str).to_numpy(dtype=object)
        if ids is not None:
            notes += _repeated_ids(ids[row >= 0], id)
        is_trusted = None if len(row) == len(self.frame) else row < 0
        if trusted_column is not None:
            is_trusted = yes_no(table[trusted_column].tolist(), trusted_column, "column")
        self.config["labels_sha256"] = labels_digest(as_words(self.frame[label])) if label is not None else None
        groups = None if (group := self.config["group"]) is None else _codes(table[group])
        data = AuditData(
            self, classes, given, row, len(self.frame), x, ids=ids, groups=groups, time=time, trusted=is_trusted,
            annotators=votes, notes=tuple(notes), table=self.feature_table,
        )  # fmt: skip
        return data.without(unusable)

    def _votes(self, table: Frame, request: Request) -> tuple[Votes | None, tuple[str, ...] | None]:
        """Return the votes of all annotators, and all classes in the votes and labels."""
        label, annotators, long = self.config["label"], self.config["annotators"], request.annotations
        if not annotators and long is None:
            return None, None
        import pandas as pd

        labels = None if label is None else table[label]
        if long is not None:
            ids = as_ids(self.frame[id]) if (id := self.config["id"]) is not None else None
            return place_votes(long, ids, len(table), request.classes, labels=labels)
        columns = [*(table[c] for c in annotators), *([] if labels is None else [labels])]
        codes, names = encode_given(pd.concat(columns), request.classes, ", ".join(annotators))
        return Votes.of_table(codes.reshape(-1, len(table)).T[:, : len(annotators)], annotators), names

    def _open_table(self, request: Request) -> Frame:
        """The table as a whole, or a Parquet file for its columns, each of which is read when it is needed."""
        if request.path is not None and table_kind(request.path) == ".parquet" and not self.label_columns:
            with readable(request.path):
                columns = ParquetColumns.open(request.path)
            if columns is not None:
                check_table(columns, str(request.path), self._verbatim[0], self.config["text"])
                if self.config["label"] is None or not columns.is_nested(self.config["label"]):
                    return columns
        self.as_given = self._read_table(request.data).reset_index(drop=True)
        self._note_lists(self.as_given, request)
        return self._with_label(self.as_given)

    def _note_lists(self, frame: pd.DataFrame, request: Request) -> None:
        """Keep in ``config`` how the lists of a label column are spelled as words, where its cells are lists."""
        label = self.config["label"]
        if label is None or self.label_columns or not has_lists(cells := frame[label].tolist(), label):
            return
        if self.config["annotators"] or request.annotations is not None:
            raise ValueError("Expected one label a row beside `annotators`, got lists. Leave one of the options out.")
        names = {name for each in lists_as_sets(cells) for name in each or ()}
        self.config["multi_label"] = {**spelled_lists(names, self.config["multi_label"], repr(label)), "kind": "cells"}

    def _read_table(self, table: Any, categories: Iterable[str] = ()) -> pd.DataFrame:
        return read_table(table, *self._verbatim, categories=categories, header=self.config.get("header", True))

    @property
    def label_columns(self) -> list[str]:
        """Columns that say yes or no, one for each label; empty where one column has the labels."""
        return list(self.multi_label.get("columns") or ())

    @property
    def _given_columns(self) -> list[Any]:
        """The columns of the given labels: several that say yes or no, one, or none."""
        label = self.config["label"]
        return self.label_columns or ([] if label is None else [label])

    @property
    def has_lists(self) -> bool:
        """Whether the cells of the label column are lists."""
        return self.multi_label.get("kind") == "cells"

    def _with_label(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with one column of words in place of lists, or of several columns that say yes or no."""
        if absent := [name for name in self.label_columns if name not in frame.columns]:
            raise ValueError(
                f"Expected the label columns {preview(absent)}, there are {preview(list(frame.columns), 20)}."
            )
        words = set_words(self.config, lambda name: frame[name].tolist())
        if words is None:
            return frame
        return frame.drop(columns=self.label_columns).assign(**{self.config["label"]: np.array(words, dtype=object)})

    def _empty_cells(self) -> list[str]:
        return empty_cells({name: self.as_given[name].tolist() for name in self.label_columns})

    def _as_words_of_sets(self, column: Any) -> Any:
        """A column of several labels: an empty word is no label, and what is absent is not labelled."""
        is_excel = self.config["data"] is not None and table_kind(self.config["data"]) == ".xlsx"
        column = column.fillna("") if is_excel else column  # it has only blank cells
        return column.astype(object).where(~is_missing(column) | column.isna(), NO_LABEL)

    def _unlabelled(self) -> list[str]:
        """A note on rows of several labels that are not labelled, if there are any."""
        label = self.config["label"]
        count = int(self._as_words_of_sets(self.frame[label]).isna().sum()) if self.multi_label else 0
        rows = f"{counted(count, 'row was', 'rows were')} left out as not labelled, without a value in {label!r}"
        return [f"{rows}. Where rows have no labels, write an empty word or list."] if count else []

    @property
    def _verbatim(self) -> list[Any]:
        """Columns that are read as they are written; the first one has the labels."""
        config = self.config
        label = next(iter(config["annotators"]), None) if config["label"] is None else config["label"]
        columns: list[Any] = list(self.label_columns)
        first, *others = columns or [label]
        return [first, config["text"], config["id"], config["group"], *config["annotators"], *others]

    def _feature_columns(self, trusted: str | None) -> list[str]:
        """Return the columns without a role; refuse roles that the table does not have, or has twice."""
        columns = list(self.frame.columns)
        roles = check_roles(columns, self.config, trusted)
        return [c for c in columns if c not in roles]

    def _with_trusted(self, trusted: Any) -> tuple[Frame, NDArray[np.int64]]:
        """Return the table with the rows of the table ``trusted``, if it is one, and row numbers, −1 for those."""
        row = np.arange(len(self.frame))
        is_path = isinstance(trusted, (str, os.PathLike)) and not str(trusted).lower().endswith(".npy")
        if not is_path and not hasattr(trusted, "columns"):
            return self.frame, row
        import pandas as pd

        self.frame, columns = self._whole_frame(), list(self.frame.columns)
        if is_path and table_kind(trusted) is None:
            raise ValueError(
                f"Expected `trusted` to be a column, a table or a .npy file, got {str(trusted)!r}. "
                f"The columns are {preview(columns, 20)}."
            )
        if (label := self._verbatim[0]) is None:
            raise ValueError("Expected `label`, a column of the trusted table, too, got only `annotations`.")
        words = [str(c) for c in columns if self.frame[c].dtype.kind == "O"]  # even if it has only numerals there
        more = self._with_label(self._read_table(trusted, words).reset_index(drop=True))
        where, optional = trusted if is_path else "`trusted`", (self.config["id"], self.config["group"])
        if absent := [c for c in columns if c not in more.columns and c not in optional]:
            raise ValueError(f"Expected the columns of the audited table in {where}, {preview(absent)} are not there.")
        label = self.config["label"] or self._verbatim[0]
        known, found = (
            {name for word in {*as_words(table[label])} for name in labels_in(word, self.config)}
            for table in (self.frame, more)
        )
        if unknown := sorted(found - known):
            raise ValueError(
                f"Expected labels of the audited table in {where}, got {preview(unknown)}, which it never has. "
                "Correct these labels, or drop their rows."
            )
        return pd.concat([self.frame, more], ignore_index=True), np.concatenate([row, np.full(len(more), -1)])

    def _whole_frame(self) -> pd.DataFrame:
        return self.frame.read() if isinstance(self.frame, ParquetColumns) else self.frame

    def _missing(self, table: Frame) -> Unusable:
        """Return rows that lack what the audit needs besides a label."""
        return []

    def _features(
        self,
        table: Frame,
        columns: list[str],
        given: NDArray[np.int64],
        usable: NDArray[np.bool_],
        request: Request,
    ) -> Features:
        """Return standardised numbers and one-hot words, gaps filled; keep the columns for decision trees."""
        if not columns:
            raise ValueError(
                "Expected columns besides the label to audit by, got none. Name a `text`, or pass `embeddings`."
            )
        fitted, notes = fit_columns(table, columns, "impute", requested=False, labels=given, wide=True)
        self.fitted = fitted
        self.feature_table = replace(fitted.table(table), frame=table[columns])
        return fitted.standardise_(fitted.encode(table)).numpy(), notes, []

    def unlike(self, table: FeatureTable | None) -> NDArray[np.int64] | None:
        return None if self.fitted is None or table is None or table.frame is None else self.fitted.unlike(table.frame)

    def read_test(self, test: Any, data: AuditData, request: Request) -> OtherRows:
        words = [str(c) for c in self.frame.columns if self.frame[c].dtype.kind == "O"]
        frame = self._with_label(self._read_table(test, words).reset_index(drop=True))
        label, text, trusted = self.config["label"] or self._verbatim[0], self.config["text"], self.config["trusted"]
        features = self._feature_columns(trusted if trusted in self.frame.columns else None)
        needed = [label, *(features if text is None else [text])]
        if absent := [c for c in needed if c not in frame.columns]:
            raise ValueError(f"Expected the columns of the audited table in `test`, {preview(absent)} are not there.")
        words, answers = as_words(frame[label]), None
        if data.sets is not None:
            answers = data.sets.answers(words)
            given = np.full(len(words), -1)
        else:
            number = find_words({*words}, data.classes)
            given = np.array([-1 if number[word] is None else number[word] for word in words], dtype=np.int64)
        x, unlike = self._test_features(frame, data, request), self.fitted.unlike(frame) if self.fitted else None
        return OtherRows(x, given, self._test_frame(frame), answers, unlike)

    def _test_features(self, frame: pd.DataFrame, data: AuditData, request: Request) -> NDArray[np.float32]:
        if self.fitted is None:
            raise ValueError("Expected columns of the table as features beside `test`, got embeddings or predictions.")
        return np.asarray(self.fitted.standardise_(self.fitted.encode(frame)).numpy())

    def _test_frame(self, frame: pd.DataFrame) -> Any:
        """Return what is compared column by column."""
        return frame

    # Showing

    @cached_property
    def records(self) -> Records:
        if self.config.get("data") is None:
            is_made = self.label_columns or self.has_lists  # the label column, from others
            return FrameRecords(self.as_given if is_made else self._whole_frame())
        columns = [*self._given_columns, self.config["text"], self.config["id"]]
        return open_records(Path(self.config["data"]), columns, header=self.config.get("header", True))

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def labels(self) -> list[str] | None:
        label = self.config["label"]
        if label is None:
            return None
        if not {*self._given_columns} <= {*self.records.header}:
            return []
        sets = set_words(self.config, self.records.values)
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

    @property
    def is_voted(self) -> bool:
        return self.config["label"] is None

    def find_rows(self, audit: Audit, outcomes: Mapping[int, object]) -> NDArray[np.int64]:
        self.locate(audit.folder)
        self._check_columns(self.records.header)
        return super().find_rows(audit, outcomes)

    def show(self, row: int, id: str) -> Content:
        if self.ids is not None and not same_id(self.ids[row] if row < len(self.ids) else "", id):
            return {"note": ANOTHER_ROW}
        cells = dict(zip(self.records.header, map(_shortened, self.records[row]), strict=False))
        for name in self._given_columns:
            cells.pop(name, None)
        text = cells.pop(self.config["text"], None)
        pixels = self.pixel_names
        fields = [[str(name), cell] for name, cell in cells.items() if name not in pixels]
        shown: Content = {} if text is None else {"text": text}
        return shown | ({"has_image": True} if pixels else {}) | {"fields": fields}

    @cached_property
    def pixel_names(self) -> set[str]:
        """The columns that are a picture, which is shown instead."""
        return set() if self.layout is None else {self.records.header[k] for k in self.pixel_positions}

    @property
    def _searched(self) -> list[int]:
        """Positions of the columns with something to search for."""
        hidden = {*self._given_columns, *self.pixel_names}
        return [k for k, name in enumerate(self.records.header) if name not in hidden]

    @property
    def has_cells(self) -> bool:
        return bool({self.records.header[k] for k in self._searched} - {self.config["id"]})

    def cells(self) -> Iterator[list[str]]:
        columns = self._searched
        for record in self.records.rows():
            yield [record[k] for k in columns if k < len(record)]

    @cached_property
    def pixel_positions(self) -> list[int]:
        """Positions of the columns that are the pixels of a picture, if ``layout`` is one."""
        config, header = self.config, self.records.header
        roles = {config[role] for role in ("text", "id", "group", "time")} | {
            *config["annotators"],
            *self._given_columns,
        }
        return pixel_columns(["" if name in roles else str(name) for name in header])

    @cached_property
    def layout(self) -> Layout | None:
        """How numbered columns are a picture, None if they are none."""
        if not self.pixel_positions or not len(self):
            return None
        rows = np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(int)).tolist()
        sample = [self._pixels(row) for row in rows]
        if any(numbers is None for numbers in sample):
            return None
        named = "pix" in str(self.records.header[self.pixel_positions[0]]).lower()
        return find_layout(np.array(sample, np.float64), named=named)

    def _pixels(self, row: int) -> list[float] | None:
        cells = self.records[row]
        try:
            return [float(cells[k]) for k in self.pixel_positions]
        except (ValueError, IndexError):
            return None

    @property
    def has_pictures(self) -> bool:
        return self.layout is not None

    def picture(self, row: int, id: str, side: int) -> tuple[bytes, str] | None:
        from PIL import Image

        if self.layout is None or "note" in self.show(row, id) or (numbers := self._pixels(row)) is None:
            return None
        return encode_picture(Image.fromarray(self.layout.pixels(np.array(numbers))), side)

    def columns(self, given: NDArray[np.int64]) -> Columns:
        if self.config["data"] is not None:
            self.frame = self._with_label(self._read_table(Path(self.config["data"])).reset_index(drop=True))
        trusted = self.config["trusted"]
        names = self._feature_columns(trusted if trusted in self.frame.columns else None)
        try:
            fitted = fit_columns(self.frame, names, "impute", requested=False, labels=given, wide=True)[0]
        except ValueError:  # no column is of use
            return {}
        values, words = fitted.table(self.frame).values.astype(np.float64), fitted.categories | fitted.wide
        shift = fitted.shift.tolist()
        columns: Columns = {str(name): values[:, k] + shift[k] for k, name in enumerate(fitted.numeric)}
        for codes, (name, known) in zip(values.T[len(columns) :], words.items(), strict=True):
            spelled = np.array([*known, ""], dtype=object)  # the last one: gaps
            columns[str(name)] = spelled[np.nan_to_num(codes, nan=len(known)).astype(int)]
        return columns

    def describe(self, row: int, id: str) -> str:
        self.frame = frame = self._whole_frame()
        # Cell by cell: a row as a whole has one type, which rounds large whole numbers beside real ones.
        cells: list[tuple[str, Any]] = [
            (name, frame.iloc[row, j]) for j, name in enumerate(self.frame.columns) if name != self.config["label"]
        ]
        return "\n".join(f"{name}: {value}" for name, value in cells)

    def row_names(self, rows: Sequence[int]) -> list[str]:
        if self.config["id"] is None:
            return super().row_names(rows)
        return [str(name) for name in self.frame[self.config["id"]].iloc[list(rows)]]

    # Correcting

    def default_out(self) -> Path:
        name = Path(self.config["data"] or "").name.lower()
        return Path(f"corrected{Path(name.removesuffix('.gz')).suffix}{'.gz' * name.endswith('.gz')}")

    @property
    def can_leave_out(self) -> bool:
        return (
            self.config["data"] is None or table_kind(self.config["data"]) != ".xlsx"
        )  # other cells may refer to rows

    def write(self, audit: Audit, correction: Correction, out: Path) -> None:
        """Write the table; bytes of text and types of Arrow stay as they were."""
        self._check_kind(audit, out)
        changes = correction.changes(audit, self.records.header, self.records.values)
        with replacing(out, overwrite=False) as part, packing(part, out.name) as file:
            self.records.write(changes, file)

    def _check_kind(self, audit: Audit, out: Path) -> None:
        kind = table_kind(self.locate(audit.folder))
        if table_kind(out) != kind:
            raise ValueError(f"Expected a {kind} file as the original is, got {out}.")

    def corrected(self, audit: Audit, data: Any, correction: Correction) -> Any:
        columns = columns_of(data)
        if columns is None:
            return super().corrected(audit, data, correction)
        self._check_columns(columns)
        return corrected_table(audit, data, correction, digests=True)

    def _check_columns(self, columns: Iterable[Any]) -> None:
        """Refuse a table without the columns of the labels, or of the ids."""
        header = list(columns)
        for column in (*self._given_columns, self.config["id"]):
            if column is not None and column not in header:
                raise ValueError(
                    f"Expected the audited table with its column {column!r}, got {', '.join(map(str, header))}."
                )


def _shortened(cell: str) -> str:
    return cell if len(cell) <= LONGEST else f"{cell[:LONGEST]} … and {len(cell) - LONGEST} characters more"


def _times(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return numbers or dates as numbers, (N,); NaN where there is none."""
    import pandas as pd

    absent = is_missing(column)
    numbers = pd.to_numeric(column, errors="coerce").where(~absent)  # pandas makes a number of a missing date
    if (numbers.isna() & ~absent).any():
        cells = column.where(~absent)
        dates = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")  # month first where possible
        if column.dtype.kind == "O":
            numerals = cells.astype(str).str.extract(DAY_AND_MONTH).astype(float)
            if _day_first(numerals, column):
                swapped = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed", dayfirst=True)
                dates = dates.where(numerals[0].isna(), swapped)
        if invalid := column[dates.isna() & ~absent].tolist():
            raise ValueError(f"Expected numbers or dates in column {column.name!r}, got {preview(invalid)}.")
        return np.where(absent, np.nan, dates.astype("int64").to_numpy(dtype=np.float64))
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _day_first(numerals: pd.DataFrame, column: pd.Series[Any]) -> bool:
    """Return whether dates such as 31/12/2020 begin with the day, by their first two ``numerals``; refuse a mixture."""
    is_day = numerals > 12
    first, second = (bool(is_day[k].any()) for k in (0, 1))
    differ = (numerals[0] - numerals[1]).abs() > 0
    if first == second and bool(differ.any()):
        examples = column[is_day[0]].tolist()[:1] + column[is_day[1]].tolist()[:1] or column[differ].tolist()
        raise ValueError(
            f"Expected dates in column {column.name!r} that all begin with the day, or all with the month, and show "
            f"which, got {preview(examples)}. Write them as 2020-12-31."
        )
    return first


def _codes(column: pd.Series[Any]) -> NDArray[np.int64]:
    """Return a number for each value, (N,); each row without a value is a group by itself."""
    import pandas as pd

    codes = pd.factorize(column)[0].astype(np.int64)
    alone = is_missing(column)
    codes[alone] = codes.max(initial=0) + 1 + np.arange(int(alone.sum()))
    return codes


def _repeated_ids(ids: NDArray[Any], name: str) -> list[str]:
    import pandas as pd

    twice = pd.unique(ids[pd.Series(ids).duplicated(keep=False).to_numpy()])
    if not len(twice):
        return []
    names = counted(len(twice), f"id in {name!r} names", f"ids in {name!r} name")
    return [f"{names} several rows: {preview(twice.tolist())}. Tell them apart by `row`."]
