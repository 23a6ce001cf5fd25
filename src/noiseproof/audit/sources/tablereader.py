"""Tables, in memory or in a file: their labels, features, groups, times and votes are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from noiseproof.audit.files import as_ids, as_words, labels_digest
from noiseproof.audit.sources.annotations import first_labels, place_votes
from noiseproof.audit.sources.base import AuditData, Request, Source
from noiseproof.core.arrays import Array, Bools, Floats, Floats32, Ints
from noiseproof.core.messages import counted, preview
from noiseproof.core.tablefiles import table_kind
from noiseproof.data.frames import ParquetColumns, check_table, read_table, readable, reading_notes
from noiseproof.data.given import encode_given, is_missing
from noiseproof.data.labelsets import NONE as NO_LABEL
from noiseproof.data.labelsets import (
    Labels,
    empty_cells,
    has_lists,
    lists_as_sets,
    spelled_lists,
    yes_no,
)
from noiseproof.data.rows import OtherRows
from noiseproof.data.sources import PATHS
from noiseproof.data.tables import Columns as EncodedColumns
from noiseproof.data.tables import FeatureTable, Frame, fit_columns
from noiseproof.data.votes import Votes

DAY_AND_MONTH = r"^\s*(\d{1,2})[-/.](\d{1,2})[-/.]\d{2,4}(?!\d)"  # in this order or the other
ROLES = ("label", "text", "id", "group", "time")
Unusable = list[tuple[str, Bools]]  # reasons, and the rows (N,) each holds for
Features = tuple[Floats32, list[str], Unusable]  # (N, D), notes, rows without features


class OtherFeatures(NamedTuple):
    """The features of a test set, as fields of ``OtherRows``."""

    x: Floats32  # (T, D)
    frame: Any = None  # columns to compare cell by cell
    unlike: Ints | None = None  # (T,)


class TableReader(Source):
    """Reads a table by the columns that its ``config`` names; ``TableSource`` shows and corrects
    it.
    """

    has_columns = True
    frame: Frame
    # with the labels as they are in the table: in several columns, or in lists
    as_given: pd.DataFrame
    fitted: EncodedColumns | None = None  # the encoder of the columns that were read
    feature_table: FeatureTable | None = None  # of the rows that were read, by their columns

    def read(self, request: Request) -> AuditData:
        config = self.config
        label = config["label"]
        self._check_label(request)
        self.frame = self._open_table(request)
        request = self.without_names(request)
        trusted_column = None
        if isinstance(request.trusted, str) and request.trusted in self.frame.columns:
            trusted_column = config["trusted"] = request.trusted
        features = self._feature_columns()
        table, row = (
            (self.frame, np.arange(len(self.frame)))
            if trusted_column
            else self._with_trusted(request.trusted)
        )
        votes, classes = self._votes(table, request)
        if label is not None:
            column = self._as_words_of_sets(table[label]) if self.multi_label else table[label]
            given, classes = encode_given(column, request.classes, label, known=classes)
        else:
            assert votes is not None and classes is not None
            config["voted"] = True
            given = first_labels(votes, len(classes), config["consensus"], request.seed)
        unusable = [("no label", given < 0), *self._missing(table)]
        columns: dict[str, Any] = {}
        if config["text"] is not None:
            columns["texts"] = table[config["text"]].astype(str).to_numpy(dtype=object)
        if (time := config["time"]) is not None:
            columns["time"] = _times(table[time])
            unusable.append((f"no time in {time!r}", np.isnan(columns["time"])))
        notes = [*reading_notes(self.frame), *self._notes_on_sets()]
        if request.needs_features:
            usable = ~np.logical_or.reduce([mask for _, mask in unusable])
            columns["x"], more, without = self._features(table, features, given, usable, request)
            columns["table"] = self.feature_table
            notes += more
            unusable += without
        if (id := config["id"]) is not None:
            columns["ids"] = table[id].astype(str).to_numpy(dtype=object)
            notes += _repeated_ids(columns["ids"][row >= 0], id)
        if trusted_column is not None:
            columns["trusted"] = yes_no(table[trusted_column].tolist(), trusted_column, "column")
        elif len(row) > len(self.frame):
            columns["trusted"] = row < 0
        if (group := config["group"]) is not None:
            columns["groups"] = _codes(table[group])
        config["labels_sha256"] = (
            labels_digest(as_words(self.frame[label])) if label is not None else None
        )
        data = AuditData(
            Labels.of_classes(classes, given, votes),
            row,
            len(self.frame),
            notes=tuple(notes),
            source=self,
            **columns,
        )
        return data.without(unusable)

    def _check_label(self, request: Request) -> None:
        if request.labels is not None:
            raise ValueError(
                "Expected `label`, the column of the labels in the table, got `labels`."
            )
        has_votes = self.config["annotators"] or request.annotations is not None
        if self.config["label"] is None and not has_votes:
            raise ValueError(
                "Expected `label`, the name of the column with the given labels, got none."
            )

    def _votes(self, table: Frame, request: Request) -> tuple[Votes | None, tuple[str, ...] | None]:
        """Return the votes of all annotators, and all classes in the votes and labels."""
        label = self.config["label"]
        annotators = self.config["annotators"]
        long = request.annotations
        if not annotators and long is None:
            return None, None
        labels = None if label is None else table[label]
        if long is not None:
            ids = as_ids(self.frame[id]) if (id := self.config["id"]) is not None else None
            return place_votes(long, ids, len(table), request.classes, labels=labels)
        columns = [table[name] for name in annotators]
        if labels is not None:
            columns.append(labels)
        codes, names = encode_given(pd.concat(columns), request.classes, ", ".join(annotators))
        votes = codes.reshape(-1, len(table))[: len(annotators)].T
        return Votes.of_table(votes, annotators), names

    def _open_table(self, request: Request) -> Frame:
        """The table as a whole, or a Parquet file for its columns, each of which is read when it is
        needed.
        """
        if (
            request.path is not None
            and table_kind(request.path) == ".parquet"
            and not self.label_columns
        ):
            with readable(request.path):
                columns = ParquetColumns.open(request.path)
            if columns is not None:
                check_table(columns, str(request.path), self._label_column, self.config["text"])
                if self.config["label"] is None or not columns.is_nested(self.config["label"]):
                    return columns
        self.as_given = self._read_table(request.data)
        self._note_lists(self.as_given, request)
        return self._with_label(self.as_given)

    def _note_lists(self, frame: pd.DataFrame, request: Request) -> None:
        """Keep in ``config`` how the lists of a label column are spelled as words, where its cells
        are lists.
        """
        label = self.config["label"]
        if (
            label is None
            or self.label_columns
            or not has_lists(cells := frame[label].tolist(), label)
        ):
            return
        if self.config["annotators"] or request.annotations is not None:
            raise ValueError(
                "Expected one label per row with `annotators`, got lists. Leave one of the options"
                " out."
            )
        names = {name for each in lists_as_sets(cells) for name in each or ()}
        self.config["multi_label"] = {
            **spelled_lists(names, self.config["multi_label"], repr(label)),
            "kind": "cells",
        }

    def _read_table(self, table: Any, categories: Iterable[str] = ()) -> pd.DataFrame:
        frame = read_table(
            table, *self._verbatim, categories=categories, header=self.config.get("header", True)
        )
        return frame.reset_index(drop=True)

    def _with_label(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with one column of words in place of lists, or of several columns that say yes
        or no.
        """
        if absent := [name for name in self.label_columns if name not in frame.columns]:
            raise ValueError(
                f"Expected the label columns {preview(absent)}, there are"
                f" {preview(list(frame.columns), 20)}."
            )
        words = self.set_words(lambda name: frame[name].tolist())
        if words is None:
            return frame
        return frame.drop(columns=self.label_columns).assign(
            **{self.config["label"]: np.array(words, dtype=object)}
        )

    def _as_words_of_sets(self, column: Any) -> Any:
        """A column of several labels: an empty word is no label, and what is absent is not
        labelled.
        """
        is_excel = self.config["data"] is not None and table_kind(self.config["data"]) == ".xlsx"
        column = column.fillna("") if is_excel else column  # it has only blank cells
        return column.astype(object).where(~is_missing(column) | column.isna(), NO_LABEL)

    def _notes_on_sets(self) -> list[str]:
        """Return notes on empty cells and rows without labels, where rows have several."""
        if not self.multi_label:
            return []
        label = self.config["label"]
        notes = empty_cells({name: self.as_given[name].tolist() for name in self.label_columns})
        if count := int(self._as_words_of_sets(self.frame[label]).isna().sum()):
            rows = (
                f"{counted(count, 'row was', 'rows were')} left out as not labelled, without a"
                f" value in {label!r}"
            )
            notes.append(f"{rows}. Where rows have no labels, write an empty word or list.")
        return notes

    @property
    def _given_columns(self) -> list[Any]:
        """The columns of given labels; without one, the first annotator's, or None."""
        return self.given_columns or [next(iter(self.config["annotators"]), None)]

    @property
    def _label_column(self) -> Any:
        """The first column of labels, None where the table has none."""
        return self._given_columns[0]

    @property
    def _verbatim(self) -> list[Any]:
        """Columns that are read as they are written; the first one has the labels."""
        config = self.config
        first, *others = self._given_columns
        return [
            first,
            config["text"],
            config["id"],
            config["group"],
            *config["annotators"],
            *others,
        ]

    def _feature_columns(self) -> list[str]:
        """Return the columns without a role; refuse roles that the table does not have, or has
        twice.
        """
        columns = list(self.frame.columns)
        config = self.config
        roles = [config[role] for role in ROLES if config[role] is not None]
        roles += config["annotators"]
        if config["trusted"] in columns:
            roles.append(config["trusted"])
        if absent := [name for name in [*roles, *config["ignore"]] if name not in columns]:
            raise ValueError(
                f"Expected the columns {preview(absent)} in the table, there are"
                f" {preview(columns, 20)}."
            )
        if twice := sorted({name for name in roles if roles.count(name) > 1}):
            raise ValueError(f"Expected each column in one role, got {preview(twice)} in two.")
        return [name for name in columns if name not in {*roles, *config["ignore"]}]

    def _with_trusted(self, trusted: Any) -> tuple[Frame, Ints]:
        """Return the table, and a number for each row.

        If ``trusted`` is a table, its rows follow, with −1 as their number. It may also be a column
        or a .npy file, which are not read here.
        """
        row = np.arange(len(self.frame))
        is_path = isinstance(trusted, PATHS) and not str(trusted).lower().endswith(".npy")
        if not is_path and not hasattr(trusted, "columns"):
            return self.frame, row
        self.frame = self._whole_frame()
        columns = list(self.frame.columns)
        if is_path and table_kind(trusted) is None:
            raise ValueError(
                f"Expected `trusted` to be a column, a table or a .npy file, got {str(trusted)!r}. "
                f"The columns are {preview(columns, 20)}."
            )
        if self._label_column is None:
            raise ValueError(
                "Expected `label`, a column of the trusted table, too, got only `annotations`."
            )
        more = self._read_other(trusted)
        where = trusted if is_path else "`trusted`"
        optional = (self.config["id"], self.config["group"])
        if absent := [c for c in columns if c not in more.columns and c not in optional]:
            raise ValueError(
                f"Expected the columns of the audited table in {where}, {preview(absent)} are not"
                " there."
            )
        known = self._labels_in(self.frame)
        if unknown := sorted(self._labels_in(more) - known):
            raise ValueError(
                f"Expected labels of the audited table in {where}, got {preview(unknown)}, which it"
                " never has. Correct these labels, or drop their rows."
            )
        both = pd.concat([self.frame, more], ignore_index=True)
        return both, np.concatenate([row, np.full(len(more), -1)])

    def _labels_in(self, frame: pd.DataFrame) -> set[str]:
        words = {*as_words(frame[self.config["label"] or self._label_column])}
        split = self.words.split
        return {name for word in words for name in split(word)}

    def _read_other(self, table: Any) -> pd.DataFrame:
        """Return another table with the same columns: words here are words there, even if they are
        numerals.
        """
        words = [str(c) for c in self.frame.columns if self.frame[c].dtype.kind == "O"]
        return self._with_label(self._read_table(table, words))

    def _whole_frame(self) -> pd.DataFrame:
        return self.frame.read() if isinstance(self.frame, ParquetColumns) else self.frame

    def _missing(self, table: Frame) -> Unusable:
        """Return rows that lack what the audit needs besides a label."""
        return []

    def _features(
        self,
        table: Frame,
        columns: list[str],
        given: Ints,
        usable: Bools,
        request: Request,
    ) -> Features:
        """Return standardised numbers and one-hot words, gaps filled; keep the columns for decision
        trees.
        """
        if not columns:
            raise ValueError(
                "Expected columns besides the label to audit by, got none. Name a `text`, or pass"
                " `embeddings`."
            )
        fitted, notes = fit_columns(
            table, columns, "impute", requested=False, labels=given, wide=True
        )
        self.fitted = fitted
        self.feature_table = replace(fitted.table(table), frame=table[columns])
        return fitted.standardise_(fitted.encode(table)).numpy(), notes, []

    def read_test(self, test: Any, data: AuditData, request: Request) -> OtherRows:
        frame = self._read_other(test)
        label = self.config["label"] or self._label_column
        text = self.config["text"]
        needed = [label, *(self._feature_columns() if text is None else [text])]
        if absent := [c for c in needed if c not in frame.columns]:
            raise ValueError(
                f"Expected the columns of the audited table in `test`, {preview(absent)} are not"
                " there."
            )
        features = self._test_features(frame, data, request)
        labels = data.labels.read(as_words(frame[label]))
        return OtherRows(features.x, labels, features.frame, features.unlike)

    def _test_features(
        self, frame: pd.DataFrame, data: AuditData, request: Request
    ) -> OtherFeatures:
        """Return the features of a test set."""
        assert self.fitted is not None
        x = np.asarray(self.fitted.standardise_(self.fitted.encode(frame)).numpy())
        return OtherFeatures(x, frame, self.fitted.unlike(frame))


def _times(column: pd.Series[Any]) -> Floats:
    """Return numbers or dates as numbers, (N,); NaN where there is none."""
    absent = is_missing(column)
    # pandas makes a number of a missing date
    numbers = pd.to_numeric(column, errors="coerce").where(~absent)
    if (numbers.isna() & ~absent).any():
        cells = column.where(~absent)
        # month first where possible
        dates = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")
        if column.dtype.kind == "O":
            numerals = cells.astype(str).str.extract(DAY_AND_MONTH).astype(float)
            if _day_first(numerals, column):
                swapped = pd.to_datetime(
                    cells, errors="coerce", utc=True, format="mixed", dayfirst=True
                )
                dates = dates.where(numerals[0].isna(), swapped)
        if invalid := column[dates.isna() & ~absent].tolist():
            raise ValueError(
                f"Expected numbers or dates in column {column.name!r}, got {preview(invalid)}."
            )
        return np.where(absent, np.nan, dates.astype("int64").to_numpy(dtype=np.float64))
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _day_first(numerals: pd.DataFrame, column: pd.Series[Any]) -> bool:
    """Return whether dates such as 31/12/2020 begin with the day, by their first two ``numerals``;
    refuse a mixture.
    """
    is_day = numerals > 12
    first, second = (bool(is_day[k].any()) for k in (0, 1))
    differ = (numerals[0] - numerals[1]).abs() > 0
    if first == second and bool(differ.any()):
        examples = (
            column[is_day[0]].tolist()[:1] + column[is_day[1]].tolist()[:1]
            or column[differ].tolist()
        )
        raise ValueError(
            f"Expected dates in column {column.name!r} that all begin with the day, or all with the"
            f" month, and show which, got {preview(examples)}. Write them as 2020-12-31."
        )
    return first


def _codes(column: pd.Series[Any]) -> Ints:
    """Return a number for each value, (N,); each row without a value is a group by itself."""
    codes = pd.factorize(column)[0].astype(np.int64)
    alone = is_missing(column)
    codes[alone] = codes.max(initial=0) + 1 + np.arange(int(alone.sum()))
    return codes


def _repeated_ids(ids: Array, name: str) -> list[str]:
    twice = pd.unique(ids[pd.Series(ids).duplicated(keep=False).to_numpy()])
    if not len(twice):
        return []
    names = counted(len(twice), f"id in {name!r} names", f"ids in {name!r} name")
    return [f"{names} several rows: {preview(twice.tolist())}. Tell them apart by `row`."]
