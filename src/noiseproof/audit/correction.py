"""What becomes of the rows of an audit: new labels, rows and columns that are left out, the
consensus of annotators.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from noiseproof.audit.csvfile import Changes
from noiseproof.audit.described import CellsOf
from noiseproof.audit.files import Audit, read_votes, same_labels
from noiseproof.audit.labelcells import label_cells, merge_labels
from noiseproof.audit.rows import Digests, find_rows
from noiseproof.core.arrays import Ints

LABEL = "label"
QUALITY = "label_quality"
VOTES = "votes"
PREFIX = "consensus_"  # of all names, where the data has a column of one of them
Cells = dict[str, list[Any]]  # of each row of the source, None for none


@dataclass(frozen=True)
class Correction:
    """The changes to the data of an audit, by the numbers of its rows."""

    audit: Audit
    labels: Mapping[int, str]
    # classes that are merged into others, in all rows
    becomes: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    consensus: Cells | None = None  # new columns, where annotators alone were audited
    dropped: frozenset[str] = frozenset()  # columns
    # columns, by the cells they had
    rewritten: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    link: bool = False  # whether pictures are linked

    @property
    def outcomes(self) -> dict[int, object]:
        """Return what becomes of rows: of copies of one that moved, it has to be the same.

        Of a consensus that is the label: either copy may have the quality and the votes of the
        other.
        """
        labels: Mapping[int, object] = self.labels
        if self.consensus is not None:
            labels = dict(enumerate(self.consensus[LABEL]))
        return {**labels, **dict.fromkeys(self.left_out)}

    def moved(self, place: Ints, words: Sequence[str] | None) -> Correction:
        """Return the correction with the numbers that rows have now, ``place`` (source_rows,).

        ``words`` are the labels that the data has now: labels of merged classes change, too.
        """
        audit = self.audit.moved(place)
        left_out = frozenset(place[list(self.left_out)].tolist())
        new = {int(place[row]): label for row, label in self.labels.items()}
        labels = merge_labels(audit, new, self.becomes, words)
        consensus = self.consensus
        if consensus is not None:
            order = np.argsort(place).tolist()
            consensus = {name: [column[row] for row in order] for name, column in consensus.items()}
        kept = {row: label for row, label in labels.items() if row not in left_out}
        return replace(self, audit=audit, labels=kept, left_out=left_out, consensus=consensus)

    def found_in(self, digests: Digests | None, words: Sequence[str] | None) -> Correction:
        """Return the correction for data in memory; labels alone have no ``digests``, and stay
        whole.
        """
        if digests is not None:
            return self.moved(find_rows(self.audit, digests, self.outcomes), words)
        config = self.audit.config
        if words is not None and not same_labels(config, words):
            raise ValueError(
                "Expected the labels that were audited in"
                f" {config['data'] or config['labels'] or 'memory'}, they or their"
                " order have changed since. Audit the data again."
            )
        return self.moved(np.arange(config["source_rows"]), words)

    def changes(self, header: Sequence[Any], cells_of: CellsOf, class_names: Any = None) -> Changes:
        """Return the changes to a table with the columns ``header``."""
        cells: dict[str, dict[int, Any]] = {}
        added: Cells = {}
        if self.consensus is None:
            cells |= label_cells(self.audit, self.labels, cells_of, class_names)
        else:
            added = named_cells(self.consensus, header)
        for name, rewrite in self.rewritten.items():
            old = enumerate(cells_of(name))
            cells[name] = {row: new for row, cell in old if (new := rewrite(cell)) != cell}
        return Changes(cells, added, self.dropped, self.left_out)


def voted_cells(
    audit: Audit,
    changes: Mapping[int, str],
    becomes: Mapping[str, str],
    *,
    decided: Collection[int] = (),
    votes: bool = False,
) -> Cells:
    """Return the new columns: label, label_quality (P(it is right), 1 where somebody decided) and,
    if asked, votes.

    These are the labels of each annotator as a JSON object. Rows that were not audited have none of
    them.
    """
    issues = audit.issues
    rows = int(audit.config["source_rows"])
    cells: Cells = {LABEL: [None] * rows, QUALITY: [None] * rows}
    new = merge_labels(audit, changes, becomes, None)
    names = {*issues["given_label"], *new.values()}
    are_numbers = all(
        name.isascii() and name.isdecimal() and str(int(name)) == name for name in names
    )
    columns = ["row", "given_label", "suggested_label", "label_quality", "suggestion_quality"]
    for row, given, suggested, quality, other_quality in issues[columns].itertuples(index=False):
        label = new.get(row, given)
        likely = {suggested: other_quality, given: quality}.get(changes.get(row, given), 0.0)
        cells[LABEL][row] = int(label) if are_numbers else label
        cells[QUALITY][row] = 1.0 if row in decided else round(float(likely), 6)
    if votes:
        said = read_votes(audit)
        cells[VOTES] = [
            json.dumps(dict(said[row]), ensure_ascii=False) if row in said else None
            for row in range(rows)
        ]
    return cells


def named_cells(cells: Cells, header: Sequence[Any]) -> Cells:
    """Return the cells by names that the data does not have yet."""
    for prefix in ("", PREFIX):
        if not {f"{prefix}{name}" for name in cells} & {*map(str, header)}:
            return {f"{prefix}{name}": column for name, column in cells.items()}
    raise ValueError(
        f"Expected data without the columns {', '.join(cells)}, or without"
        f" {', '.join(PREFIX + n for n in cells)}, for the consensus, got some of both. Rename"
        " them, and audit again."
    )
