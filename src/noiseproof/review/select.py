"""Which issues a list shows, and in which order: the filter of the review page, and its search."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import NoRows

if TYPE_CHECKING:
    from noiseproof.review.queue import Issues

Sort = Literal["quality", "given", "suggested", "row", "id"]
State = Literal["open", "decided", "conflict", "accept", "keep", "other", "skip", "exclude", "unclear"]
CHOICES = get_args(State)[3:]  # that decide an issue
KEPT = 64  # selections of rows in memory, the last ones


class Search:
    """Finds the issues whose id, text or cells contain words; the rows are read for the first search, then kept."""

    def __init__(self, issues: Issues, rows: Source | NoRows) -> None:
        self.issues, self.rows = issues, rows
        self.matches = lru_cache(maxsize=32)(self._matches)

    @cached_property
    def texts(self) -> list[str]:
        """All that is searched of each issue, in small letters."""
        texts, position = [id.lower() for id in self.issues.id], self.issues.position
        for row, cells in enumerate(self.rows.cells()):
            if (i := position.get(row)) is not None:
                texts[i] = "\n".join((texts[i], *cells)).lower()
        return texts

    def _matches(self, search: str) -> NDArray[np.bool_]:
        """Return for each issue whether it contains all words of ``search``, in large or small letters, (N,)."""
        positions: Sequence[int] = range(len(self.issues))
        for word in sorted(search.lower().split(), key=len, reverse=True):  # the longest one leaves the fewest
            positions = [i for i in positions if word in self.texts[i]]
        is_match = np.zeros(len(self.issues), dtype=bool)
        is_match[list(positions)] = True
        return is_match


@dataclass(frozen=True)
class Filter:
    """Conditions that an issue meets to be listed, all of them, and the order of the list."""

    given: int | None = None  # number of the class
    suggested: int | None = None
    state: State | None = None
    low: float | None = None  # label_quality in [low, high]
    high: float | None = None
    search: str = ""  # words that all occur in the id, the text or the cells of the row
    selection: str = ""  # key of a list of rows
    sort: Sort = "quality"
    descending: bool = False


class Orders:
    """The positions of all issues in each order; equal ones stay in that of the audit, the worst label first."""

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.by = lru_cache(self._by)  # ten of them

    def _by(self, sort: Sort, descending: bool) -> NDArray[np.int64]:
        """Return all positions, sorted."""
        issues, sign = self.issues, -1 if descending else 1
        if sort == "quality":  # the audit's order
            return np.arange(len(issues))[::sign]
        if sort == "row":
            return np.argsort(sign * issues.row, kind="stable")
        if sort == "id":  # whole numbers by value, before words
            keys = [(0, int(id), id) if id.isascii() and id.isdigit() else (1, 0, id) for id in issues.id]
            return np.array(sorted(range(len(keys)), key=keys.__getitem__, reverse=descending), dtype=np.int64)
        sides = (issues.given, issues.suggested) if sort == "given" else (issues.suggested, issues.given)
        return np.lexsort((sides[1], sign * sides[0]))


def select(
    issues: Issues,
    filter: Filter,
    state: NDArray[np.int8],
    *,
    rows: NDArray[np.int64] | None = None,
    is_match: NDArray[np.bool_] | None = None,
    is_conflict: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Return the positions of the issues that meet a filter, in its order.

    ``state`` (N,) is 0 for an open issue, else 1 + the number of its choice; ``rows`` are those of its selection,
    ``is_match`` (N,) those that its search finds, ``is_conflict`` (N,) those that reviewers disagree on.
    """
    keep = np.ones(len(issues), dtype=bool)
    for number, codes in ((filter.given, issues.given), (filter.suggested, issues.suggested)):
        if number is not None:
            keep &= codes == number
    quality = issues.numbers["label_quality"]
    if filter.low is not None:
        keep &= quality >= filter.low
    if filter.high is not None:
        keep &= quality <= filter.high
    if filter.selection and rows is not None:
        keep &= np.isin(issues.row, rows)
    if filter.search and is_match is not None:
        keep &= is_match
    if filter.state == "conflict":
        keep &= np.zeros(len(issues), dtype=bool) if is_conflict is None else is_conflict
    elif filter.state is not None:
        keep &= state == 0 if filter.state == "open" else state > 0
        if filter.state in CHOICES:
            keep &= state == 1 + CHOICES.index(filter.state)
    order = issues.orders.by(filter.sort, filter.descending)
    return order[keep[order]]


class Selections:
    """Lists of rows by a short key, the last ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()

    def add(self, rows: Iterable[int]) -> str:
        """Keep a list of rows and return its key."""
        numbers = np.unique(np.fromiter(rows, dtype=np.int64))
        key = hashlib.sha256(numbers.tobytes()).hexdigest()[:12]
        self._kept[key] = numbers
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return key

    def __getitem__(self, key: str) -> NDArray[np.int64]:
        return self._kept[key]
