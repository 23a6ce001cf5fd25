"""Votes of annotators, read from a file with a line for each label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from noiseproof.core.arrays import Array, Bools, Ints
from noiseproof.core.messages import counted, preview
from noiseproof.data.frames import as_frame, read_file
from noiseproof.data.given import encode_given, is_missing
from noiseproof.data.sources import PATHS
from noiseproof.data.votes import Votes

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData, Request

# the names that each column may have
ROWS = ("row", "task", "item")
ANNOTATORS = ("annotator", "worker")
LABELS = ("label", "response")


def read_annotations(annotations: Any, id: str | None, label: Any) -> pd.DataFrame:
    """Return the columns row, annotator and label of votes in a file or in a table; votes without a
    label are left out.

    The first may also be called as the column ``id`` of the data, or id as in our votes.csv, the
    last as its column ``label``.
    """
    columns: dict[str, list[str | None]] = {
        "row": [*([] if id is None else [id, "id"]), *ROWS],
        "annotator": [*ANNOTATORS],
        "label": [label, *LABELS],
    }
    is_file = isinstance(annotations, PATHS)
    verbatim = [name for names in columns.values() for name in names]
    frame = read_file(Path(annotations), verbatim) if is_file else as_frame(annotations)
    where = str(annotations) if is_file else "`annotations`"
    named = [
        next((name for name in names if name in frame.columns), None) for names in columns.values()
    ]
    if None in named:
        raise ValueError(
            f"Expected the columns {', '.join(columns)} in {where}, a line for each label, got "
            f"{preview(list(frame.columns))}. Rename them."
        )
    frame = frame[named].set_axis([*columns], axis=1)
    if (nameless := is_missing(frame["annotator"])).any():
        raise ValueError(
            f"Expected an annotator in every line of {where}, got none in {int(nameless.sum())},"
            f" the first of them {int(nameless.argmax())}. Drop these lines."
        )
    frame = frame[~is_missing(frame["label"])].reset_index(drop=True)
    if frame.empty:
        raise ValueError(f"Expected labels of annotators in {where}, got none.")
    return frame


def place_votes(
    frame: pd.DataFrame,
    ids: Sequence[str] | None,
    num_rows: int,
    classes: Sequence[str] | None,
    *,
    labels: Any = None,
    known: Sequence[str] | None = None,
) -> tuple[Votes, tuple[str, ...]]:
    """Return the votes on rows that are called by their ``ids``, else by their numbers; and the
    names of the classes.

    These are ``known``, else ``classes``, which the user named, else all in the votes and in the
    given ``labels``.
    """
    row = (
        _row_numbers(frame["row"], num_rows)
        if ids is None
        else _find_ids(frame["row"].astype(str), ids)
    )
    annotator, names = pd.factorize(frame["annotator"].astype(str), sort=True)
    order = np.lexsort((annotator, row))
    row = row[order]
    annotator = annotator[order].astype(np.int64)
    is_again = (np.diff(row) == 0) & (np.diff(annotator) == 0)
    if len(again := np.flatnonzero(is_again)):
        first = frame.iloc[order[again[0]]]
        raise ValueError(
            "Expected one label of each annotator for a row in `annotations`, got more in"
            f" {counted(len(again), 'case')}, the first of them by {first['annotator']!s} for the"
            f" row {first['row']!s}. Drop all but one."
        )
    cells = frame["label"] if labels is None else pd.concat([frame["label"], labels])
    codes, found = encode_given(cells, classes, "annotations", known=known)
    votes = codes[: len(frame)][order]
    return Votes(row, annotator, votes, num_rows, tuple(map(str, names))), found


def _row_numbers(column: pd.Series[Any], num_rows: int) -> Ints:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    is_known = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < num_rows)
    if unknown := _unknown(column, is_known):
        raise ValueError(
            f"Expected row numbers from 0 to {num_rows - 1} in `annotations`, got"
            f" {preview(unknown)}. If these are ids, name their column in the data with `id`."
        )
    return numbers.astype(np.int64)


def _find_ids(column: pd.Series[Any], ids: Sequence[str]) -> Ints:
    index = pd.Index(ids)
    if not index.is_unique:
        twice = list(index[index.duplicated()].unique())
        raise ValueError(
            "Expected each id once in the data, as `annotations` refer to them, got"
            f" {preview(twice)} twice."
        )
    row = index.get_indexer(pd.Index(column))
    if (row < 0).any():
        raise ValueError(
            "Expected the ids of the data in `annotations`, got"
            f" {preview(_unknown(column, row >= 0))}, which the data does not have. Correct these"
            " ids, or drop their lines."
        )
    return row.astype(np.int64)


def _unknown(column: pd.Series[Any], is_known: Bools) -> list[Any]:
    return list(dict.fromkeys(column[~is_known].tolist()))


def first_labels(votes: Votes, num_classes: int, method: str, seed: int, probs: Any = None) -> Ints:
    """Return the labels to audit where there is no column of them, (N,): the consensus, −1 without
    votes.
    """
    from noiseproof.judge.crowd.consensus import consensus

    label = consensus(votes, num_classes, method=method, pred_probs=probs, seed=seed).label  # type: ignore[arg-type]
    return np.where(np.diff(votes.first) > 0, label, -1)


def voted_labels(request: Request, num_rows: int, method: str) -> Array:
    """Return the consensus on each row as labels, (N,): whole numbers or words, NaN or "" without
    votes.
    """
    votes, names = place_votes(request.annotations, None, num_rows, request.classes)
    label = first_labels(votes, len(names), method, request.seed)
    if request.classes is None and all(name.isdecimal() for name in names):
        return np.append(np.array(names, np.float64), np.nan)[label]
    return np.array([*names, ""], dtype=object)[label]


def attach_votes(data: AuditData, frame: pd.DataFrame, classes: Sequence[str] | None) -> AuditData:
    """Return ``data`` with votes for the classes that its labels have."""
    ids = data.source.row_names(range(data.source_rows)) if data.source.has_ids else None
    votes, _ = place_votes(frame, ids, data.source_rows, classes, known=data.classes)
    return replace(data, labels=replace(data.labels, votes=votes[data.row]))
