"""The issues of an audit as the review has them: as columns, in the order of the audit."""

import math
from collections import Counter
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from noiseproof.audit.files import NUMBERS, Audit
from noiseproof.core.arrays import Ints
from noiseproof.core.messages import Json
from noiseproof.judge.issues import badges

Sort = Literal["quality", "given", "suggested", "row", "id"]
DUPLICATES = 10  # that are shown of a row


class Issues:
    """Issues from the worst label to the best, or with ``everything`` all audited rows."""

    def __init__(self, audit: Audit, everything: bool = False) -> None:
        import pandas as pd

        if not everything:
            audit = replace(audit, issues=audit.issues[audit.issues["is_label_issue"]])
        frame = audit.issues
        self.classes = audit.classes
        self.row: Ints = frame["row"].to_numpy(dtype=np.int64)
        self.id: list[str] = frame["id"].tolist()
        self.why: list[str] = frame["why"].tolist()
        self.given = audit.class_numbers("given_label")
        self.suggested = audit.class_numbers("suggested_label")
        self.is_issue = frame["is_label_issue"].to_numpy(dtype=bool)
        self.numbers = {name: frame[name].to_numpy(dtype=np.float64) for name in NUMBERS}
        self.quality = self.numbers["label_quality"]
        self.marks = {
            text: frame[name].to_numpy().astype(str) == "True"
            for name, text in badges().items()
            if name in frame
        }
        groups = pd.to_numeric(frame["duplicate_group"], errors="coerce")
        self.group = groups.fillna(-1).to_numpy(dtype=np.int64)  # of near-duplicates
        self.position = {row: i for i, row in enumerate(self.row.tolist())}
        rows = max(int(audit.config["source_rows"]), int(self.row.max(initial=-1)) + 1)
        self.at = np.full(rows, -1)  # row of the source → position
        self.at[self.row] = np.arange(len(self.row))
        self.order = lru_cache(self._order)  # ten of them

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, i: int) -> Json:
        """Return what a page shows of issue ``i``."""
        return {
            "row": int(self.row[i]),
            "id": self.id[i],
            "given": self.classes[self.given[i]],
            "suggested": self.classes[self.suggested[i]],
            "why": self.why[i],
            "marks": [mark for mark, has in self.marks.items() if has[i]],
            **{name: rounded(values[i]) for name, values in self.numbers.items()},
        }

    @property
    def by_row(self) -> Ints:
        """The class of each row of the source, −1 where it is not among these."""
        return np.where(self.at < 0, -1, self.given[self.at])

    def audited(self, rows: Ints) -> Ints:
        """Return the places of the ``rows`` that are among these; −1 stands for no row."""
        is_audited = (rows >= 0) & (self.at[rows] >= 0)
        return is_audited.nonzero()[0]

    def pairs(self) -> list[Json]:
        """Return class pairs and their number of issues, the most frequent first."""
        counts = Counter(zip(self.given.tolist(), self.suggested.tolist(), strict=True))
        return [
            {
                "given": self.classes[given],
                "suggested": self.classes[suggested],
                "issues": count,
            }
            for (given, suggested), count in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ]

    def duplicates(self, row: int) -> list[int]:
        """Return the near-duplicates of a row, the ones of another class first."""
        i = self.position[row]
        if self.group[i] < 0:
            return []
        others = np.flatnonzero((self.group == self.group[i]) & (self.row != row))
        order = np.lexsort((self.row[others], self.given[others] == self.given[i]))
        return [int(other) for other in self.row[others[order]][:DUPLICATES]]

    def _order(self, sort: Sort, descending: bool) -> Ints:
        """Return the positions in an order; equal ones stay as the audit has them, the worst label
        first.
        """
        columns = {
            "quality": [np.arange(len(self))],  # the audit's order
            "row": [self.row],
            "given": [self.suggested, self.given],
            "suggested": [self.given, self.suggested],
        }
        # ids are sorted only where they are asked for: a million words take seconds
        *ties, first = [self.id_rank] if sort == "id" else columns[sort]
        return np.lexsort([*ties, -first if descending else first])

    @cached_property
    def id_rank(self) -> Ints:
        """Places of the ids in their order: whole numbers by value, before words."""
        keys = [(0, int(id), id) if id.isascii() and id.isdigit() else (1, 0, id) for id in self.id]
        place = {key: i for i, key in enumerate(sorted(set(keys)))}
        return np.array([place[key] for key in keys], dtype=np.int64)


def rounded(value: float) -> float | None:
    """Return a number with four digits, None where JSON has none."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
