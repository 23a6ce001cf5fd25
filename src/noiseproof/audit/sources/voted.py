"""Corrected data of an audit of annotators alone: their consensus, and what was decided, as new columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import Audit, read_votes
from noiseproof.audit.sources.labels import merge_labels, row_outcomes

LABEL, QUALITY, VOTES = "label", "label_quality", "votes"
PREFIX = "consensus_"  # of all names, where the data has a column of one of them
Cells = dict[str, list[Any]]  # of each row of the source, None for none


def voted_cells(
    audit: Audit,
    changes: Mapping[int, str],
    becomes: Mapping[str, str],
    *,
    decided: Collection[int] = (),
    votes: bool = False,
) -> Cells:
    """Return the new columns: label, label_quality (P(it is right), 1 where somebody decided) and, if asked, votes.

    These are the labels of each annotator as a JSON object. Rows that were not audited have none of them.
    """
    issues, rows = audit.issues, int(audit.config["source_rows"])
    cells: Cells = {name: [None] * rows for name in (LABEL, QUALITY, *([VOTES] if votes else []))}
    new = merge_labels(audit, changes, becomes, None)
    names = {*issues["given_label"], *new.values()}
    are_numbers = all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in names)
    columns = ["row", "given_label", "suggested_label", "label_quality", "suggestion_quality"]
    for row, given, suggested, quality, other_quality in issues[columns].itertuples(index=False):
        label = new.get(row, given)
        likely = {suggested: other_quality, given: quality}.get(changes.get(row, given), 0.0)
        cells[LABEL][row] = int(label) if are_numbers else label
        cells[QUALITY][row] = 1.0 if row in decided else round(float(likely), 6)
    for row, pairs in ((read_votes(audit) or {}) if votes else {}).items():
        cells[VOTES][row] = json.dumps(dict(pairs), ensure_ascii=False)
    return cells


def voted_outcomes(cells: Cells, left_out: Collection[int] = ()) -> dict[int, object]:
    """Return what copies of a row that moved must have in common: the label.

    Either of them may have the quality and the votes of the other, as all their cells are the same.
    """
    return row_outcomes(dict(enumerate(cells[LABEL])), left_out)


def moved_cells(cells: Cells, place: NDArray[np.int64]) -> Cells:
    """Return the cells in the order that the rows have now, ``place`` (source_rows,)."""
    order = np.argsort(place).tolist()
    return {name: [column[row] for row in order] for name, column in cells.items()}


def named_cells(cells: Cells, header: Sequence[Any]) -> Cells:
    """Return the cells by names that the data does not have yet."""
    for prefix in ("", PREFIX):
        if not {f"{prefix}{name}" for name in cells} & {*map(str, header)}:
            return {f"{prefix}{name}": column for name, column in cells.items()}
    raise ValueError(
        f"Expected data without the columns {', '.join(cells)}, or without {', '.join(PREFIX + n for n in cells)}, for "
        "the consensus, got some of both. Rename them, and audit again."
    )
