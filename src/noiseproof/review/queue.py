"""The issues of an audit in the order of their review: filtered, sorted, searched, and the
decisions on them.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.decisions import (
    NO_ROW,
    ROW_CHOICES,
    BadDecisions,
    Choice,
    Decision,
    DecisionLog,
    RowChoice,
    resolve_merges,
)
from noiseproof.audit.files import NUMBERS, Audit, check_decisions
from noiseproof.audit.issues import badges
from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import NoRows
from noiseproof.judge.issues.spelling import spellings_of
from noiseproof.review.people import People

Sort = Literal["quality", "given", "suggested", "row", "id"]
State = Literal[
    "open", "decided", "conflict", "accept", "keep", "other", "skip", "exclude", "unclear"
]
KEPT = 64  # selections of rows in memory, the last ones


class Search:
    """Finds the issues whose id, text or cells contain words; the rows are read for the first
    search, then kept.
    """

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
        """Return for each issue whether it contains all words of ``search``, in large or small
        letters, (N,).
        """
        positions: Sequence[int] = range(len(self.issues))
        # the longest one leaves the fewest
        for word in sorted(search.lower().split(), key=len, reverse=True):
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
    """The positions of all issues in each order; equal ones stay in that of the audit, the worst
    label first.
    """

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.by = lru_cache(self._by)  # ten of them

    def _by(self, sort: Sort, descending: bool) -> NDArray[np.int64]:
        issues, sign = self.issues, -1 if descending else 1
        if sort == "quality":  # the audit's order
            return np.arange(len(issues))[::sign]
        if sort == "row":
            return np.argsort(sign * issues.row, kind="stable")
        if sort == "id":  # whole numbers by value, before words
            keys = [
                (0, int(id), id) if id.isascii() and id.isdigit() else (1, 0, id)
                for id in issues.id
            ]
            return np.array(
                sorted(range(len(keys)), key=keys.__getitem__, reverse=descending), dtype=np.int64
            )
        sides = (
            (issues.given, issues.suggested)
            if sort == "given"
            else (issues.suggested, issues.given)
        )
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

    ``state`` (N,) is 0 for an open issue, else 1 + the number of its choice; ``rows`` are those of
    its selection, ``is_match`` (N,) those that its search finds, ``is_conflict`` (N,) those that
    reviewers disagree on.
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
        if filter.state in ROW_CHOICES:
            keep &= state == 1 + ROW_CHOICES.index(filter.state)
    order = issues.orders.by(filter.sort, filter.descending)
    return order[keep[order]]


class Selections:
    """Lists of rows by a short key, the last ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()

    def add(self, rows: Iterable[int]) -> str:
        numbers = np.unique(np.fromiter(rows, dtype=np.int64))
        key = hashlib.sha256(numbers.tobytes()).hexdigest()[:12]
        self._kept[key] = numbers
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return key

    def __getitem__(self, key: str) -> NDArray[np.int64]:
        return self._kept[key]


class Issues:
    """Issues from the worst label to the best, or with ``everything`` all audited rows."""

    def __init__(self, audit: Audit, everything: bool = False) -> None:
        audit = (
            audit
            if everything
            else replace(audit, issues=audit.issues[audit.issues["is_label_issue"]])
        )
        frame = audit.issues
        self.classes = audit.classes
        self.row: NDArray[np.int64] = frame["row"].to_numpy()
        self.id: list[str] = frame["id"].tolist()
        self.why: list[str] = frame["why"].tolist()
        self.given = audit.class_numbers("given_label")
        self.suggested = audit.class_numbers("suggested_label")
        self.numbers = {name: frame[name].to_numpy(dtype=np.float64) for name in NUMBERS}
        texts = {name: text for name, text in badges().items() if name in frame}
        self.marks = {
            text: frame[name].to_numpy().astype(str) == "True" for name, text in texts.items()
        }
        self.position = {row: i for i, row in enumerate(self.row.tolist())}
        self.orders = Orders(self)

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, i: int) -> dict[str, Any]:
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

    def pairs(self) -> list[dict[str, Any]]:
        """Return class pairs and their number of issues, the most frequent first."""
        codes, counts = np.unique(
            self.given * len(self.classes) + self.suggested, return_counts=True
        )
        order = np.lexsort((codes, -counts))
        return [
            {
                "given": self.classes[codes[i] // len(self.classes)],
                "suggested": self.classes[codes[i] % len(self.classes)],
                "issues": int(counts[i]),
            }
            for i in order.tolist()
        ]


def rounded(value: float) -> float | None:
    """Return a number with four digits, None where JSON has none."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


class Queue:
    """Issues and the log of decisions on them; thread-safe."""

    def __init__(
        self,
        audit: Audit,
        path: Path,
        everything: bool = False,
        *,
        reviewers: Sequence[str] = ("",),
        overlap: float = 0.0,
    ) -> None:
        self.issues = Issues(audit, everything)
        self.log = DecisionLog(path)
        self.selections = Selections()
        self.search = Search(self.issues, NoRows(""))  # of ids, until the rows are there
        self._lock = threading.Lock()
        # 0: open, else 1 + the number of the choice
        self._state = np.zeros(len(self.issues), dtype=np.int8)
        self._classes = frozenset(audit.classes)
        self._spellings = spellings_of(audit)
        try:
            check_decisions(
                chain(self.log.decisions.values(), self.log.standing.merges.values()), audit
            )
        except BadDecisions:
            self.log.close()
            raise
        self.people = People(
            self.issues.row, len(self.issues.classes), self.log, reviewers, overlap=overlap
        )
        for row in self.log.decisions:
            self._show(row)

    def _count(self, row: int) -> None:
        self._show(row)
        self.people.count(row)

    def _show(self, row: int) -> None:
        if (i := self.issues.position.get(row)) is not None:
            decision = self.log.get(row)
            self._state[i] = 0 if decision is None else 1 + ROW_CHOICES.index(decision.decision)

    def progress(self) -> dict[str, int]:
        counts = np.bincount(self._state, minlength=1 + len(ROW_CHOICES)).tolist()
        choices = dict(zip(ROW_CHOICES, counts[1:], strict=True))
        return {"total": len(self.issues), "decided": sum(counts[1:]), **choices}

    def decided_rows(self) -> NDArray[np.int64]:
        return self.issues.row[self._state > 0]

    def state(self, reviewer: str) -> NDArray[np.int8]:
        """Return 0 for an open issue, else 1 + the number of its choice, (N,): what a reviewer may
        see of it.
        """
        return np.where(self.people.asks_again(reviewer), np.int8(0), self._state)

    def select(self, filter: Filter, reviewer: str = "") -> NDArray[np.int64]:
        """Return the positions of the issues that meet a filter, in its order; KeyError for an
        unknown selection.
        """
        rows = self.selections[filter.selection] if filter.selection else None
        is_match = self.search.matches(filter.search) if filter.search else None
        is_conflict = self.people.is_conflict
        return select(
            self.issues,
            filter,
            self.state(reviewer),
            rows=rows,
            is_match=is_match,
            is_conflict=is_conflict,
        )

    def page(self, offset: int, limit: int, filter: Filter, reviewer: str = "") -> dict[str, Any]:
        selected = self.select(filter, reviewer)
        shown = selected[offset:][:limit]
        return {
            "total": len(selected),
            "offset": offset,
            "issues": [
                self.issues[i] | self.decided(int(self.issues.row[i]), reviewer) for i in shown
            ],
        }

    def decided(self, row: int, reviewer: str = "") -> dict[str, Any]:
        """Return what a reviewer may see of the decisions on a row: nothing, where a second opinion
        is asked for.
        """
        is_hidden = self.people.is_asked_again(row, reviewer)
        decision, note = (
            (None, None) if is_hidden else (self.log.get(row), self.log.standing.notes.get(row))
        )
        shown = {
            "decision": decision and decision.decision,
            "label": decision and decision.label,
            "note": note,
        }
        return shown | self.people.describe(row, reviewer)

    def next_open(
        self, after: int, filter: Filter, reviewer: str = "", tab: str = ""
    ) -> tuple[int | None, list[str]]:
        """Return the place of the next undecided issue of a filter after ``after``, else of the
        first one.

        The reviewer is at that row then. Rows that others are at are passed over; without any other
        left, the names of those people come with None.
        """
        selected = self.select(filter, reviewer)
        with self._lock:
            is_open = self.state(reviewer)[selected] == 0
            elsewhere = self.people.leases.rows(but=reviewer)
            is_taken = np.isin(self.issues.row[selected], list(elsewhere))
            waiting = np.flatnonzero(is_open & ~is_taken)
            if not len(waiting):
                self.people.leases.give_back(reviewer, tab)
                rows = self.issues.row[selected[is_open & is_taken]].tolist()
                return None, sorted({elsewhere[row] for row in rows})
            place = int(waiting[np.searchsorted(waiting, after, side="right") % len(waiting)])
            if self.people.several:
                self.people.leases.take(int(self.issues.row[selected[place]]), reviewer, tab)
            return place, []

    # Classes

    def new_classes(self) -> list[str]:
        """Return the classes that reviewers named and the audit does not have, in the order of the
        first decisions.
        """
        decisions = list(self.log.decisions.values())  # at once: other threads may decide meanwhile
        labels = dict.fromkeys(
            decision.label for decision in decisions if decision.decision == "other"
        )
        return [name for name in labels if name not in self._classes]

    def spellings(self) -> list[dict[str, Any]]:
        """Return the classes that are probably one and that nobody was asked about, with their
        numbers of rows.
        """
        merges = self.log.standing.merges
        return [pair._asdict() for pair in self._spellings if pair.spelling not in merges]

    def merge(self, spelling: str, label: str, reviewer: str = "") -> Decision | None:
        """Make ``spelling`` and ``label`` one class, or two if both are the same word; None if that
        is so already.

        Undecided issues that are about this difference alone become kept, in one batch with the
        merge.
        """
        classes = {*self._classes, *self.new_classes()}
        if unknown := [name for name in (spelling, label) if name not in classes]:
            raise ValueError(f"Expected one of the {len(classes)} classes, got {unknown[0]!r}.")
        with self._lock:
            merges = self.log.standing.merges
            if spelling in merges and merges[spelling].label == label:
                return None
            decision = Decision(NO_ROW, "", spelling, "merge", label, reviewer)
            becomes = resolve_merges(merges | {spelling: decision})
            if label != spelling and becomes.get(spelling) is None:
                raise ValueError(
                    f"Expected another class than {label!r}, which is to become {spelling!r}. Undo"
                    " that."
                )
            moot = self._moot(becomes, reviewer) if label != spelling else []
            if moot:
                batch = self.log.next_batch()
                self.log.add_all([line._replace(batch=batch) for line in (decision, *moot)])
            else:
                self.log.add(decision)
            for line in moot:
                self._count(line.row)
        return decision

    def _moot(self, becomes: Mapping[str, str], reviewer: str) -> list[Decision]:
        """Decisions to keep the given label of undecided issues whose two labels are one class
        now.
        """
        names = [becomes.get(name, name) for name in self.issues.classes]
        number = {name: k for k, name in enumerate(dict.fromkeys(names))}
        same = np.array([number[name] for name in names])
        at = np.flatnonzero(
            (same[self.issues.given] == same[self.issues.suggested]) & (self._state == 0)
        )
        return [self.resolve(int(row), "keep", reviewer=reviewer) for row in self.issues.row[at]]

    # Decisions

    def decide(
        self,
        row: int,
        choice: Choice,
        label: str | None = None,
        *,
        note: str | None = None,
        new_class: bool = False,
        settles: bool = False,
        reviewer: str = "",
    ) -> Decision:
        """Save a decision; KeyError for a row without an issue, ValueError for an unknown label.

        With ``settles`` it ends a conflict on the row, even if it is what the reviewer decided
        before.
        """
        decision = self.resolve(
            row, choice, label, note=note, new_class=new_class, reviewer=reviewer
        )
        with self._lock:
            ends_conflict = settles and self.people.is_conflict[self.issues.position[row]]
            if not self._stands(decision) or ends_conflict:
                self._add(self._asked(decision))
        return decision

    def _asked(self, decision: Decision) -> Decision:
        """Return the decision as a second opinion, where the reviewer was asked for one."""
        is_second = decision.decision in ROW_CHOICES and self.people.is_asked_again(
            decision.row, decision.reviewer
        )
        return decision._replace(asked="repeat") if is_second else decision

    def decide_many(
        self,
        rows: Sequence[int],
        choice: RowChoice,
        label: str | None = None,
        *,
        new_class: bool = False,
        also_decided: bool = False,
        reviewer: str = "",
    ) -> tuple[int | None, int]:
        """Save the same choice on many rows as one batch; return its number and how many decisions
        it has.

        Rows that are decided already stay as they are, unless ``also_decided``, and so do rows that
        others are at.
        """
        if label is not None:
            self._check_label(label, new_class)
        decisions = [
            self._resolve(row, choice, label, reviewer=reviewer) for row in dict.fromkeys(rows)
        ]
        with self._lock:
            batch, elsewhere, state = (
                self.log.next_batch(),
                self.people.leases.rows(but=reviewer),
                self.state(reviewer),
            )
            lines = [
                self._asked(decision)._replace(batch=batch)
                for decision in decisions
                if (also_decided or not state[self.issues.position[decision.row]])
                and decision.row not in elsewhere
                and not self._stands(decision)
            ]
            if not lines:
                return None, 0
            self.log.add_all(lines)
            for line in lines:
                self._count(line.row)
        return batch, len(lines)

    def undo(self, reviewer: str = "") -> list[Decision]:
        """Take back what the reviewer did last, one decision or a batch; return it, empty if there
        is nothing.
        """
        with self._lock:
            undone = self.log.last_action(reviewer)
            batch = self.log.next_batch() if len(undone) > 1 else None
            lines = [
                line._replace(decision="undo", label="", note="", batch=batch) for line in undone
            ]
            self.log.add_all(lines)
            for line in lines:
                self._count(line.row)
        return undone

    def resolve(
        self,
        row: int,
        choice: Choice,
        label: str | None = None,
        *,
        note: str | None = None,
        new_class: bool = False,
        reviewer: str = "",
    ) -> Decision:
        """Return the decision that a choice means, and do not save it."""
        if label is not None:
            self._check_label(label, new_class)
        return self._resolve(row, choice, label, note, reviewer)

    def _resolve(
        self,
        row: int,
        choice: Choice,
        label: str | None,
        note: str | None = None,
        reviewer: str = "",
    ) -> Decision:
        i = self.issues.position[row]
        given, suggested = (
            self.issues.classes[codes[i]] for codes in (self.issues.given, self.issues.suggested)
        )
        if choice == "merge":
            raise ValueError(
                "Expected a decision on a row, got merge, which is about classes. Use /api/merges."
            )
        if (choice == "other") != (label is not None):
            raise ValueError(
                f"Expected a label with the choice other and with no other one, got {label!r} with"
                f" {choice}."
            )
        if (choice == "note") != (note is not None):
            raise ValueError(
                f"Expected a note with the choice note and with no other one, got {note!r} with"
                f" {choice}."
            )
        if note is not None and not is_text(note):
            raise ValueError("Expected text as a note, got characters that no file can hold.")
        label = {"accept": suggested, "keep": given}.get(choice, label or "")
        return Decision(row, self.issues.id[i], given, choice, label, reviewer, note=note or "")

    def _check_label(self, label: str, new_class: bool) -> None:
        """Refuse a label that is no class, unless it is meant to be a new one."""
        if label in self._classes or label in self.new_classes():
            return
        if not new_class:
            raise ValueError(
                f"Expected one of the {len(self.issues.classes)} classes, got {label!r}."
            )
        if not label.isprintable() or label != " ".join(label.split()):
            raise ValueError(
                "Expected a name for a new class in one line, without needless spaces, got"
                f" {label!r}."
            )

    def _stands(self, decision: Decision) -> bool:
        """Whether this is decided already, by the same reviewer: a request that is sent again
        changes nothing.
        """
        if decision.decision == "note":
            return self.log.standing.notes.get(decision.row, "") == decision.note
        current = self.log.get(decision.row)
        if current is not None and current[:6] == decision[:6]:
            return True
        own = [
            line
            for line in self.log.standing.lines(decision.row)
            if line.reviewer == decision.reviewer
        ]
        # a second opinion
        return bool(own) and own[-1].asked == "repeat" and own[-1][:6] == decision[:6]

    def save(self, decision: Decision) -> Decision:
        """Return the decision once it is on the disk."""
        with self._lock:
            self._add(decision)
        return decision

    def _add(self, decision: Decision) -> None:
        self.log.add(decision)
        self._count(decision.row)


def is_text(text: str) -> bool:
    """Whether a file can hold a text: Python keeps half characters, which JSON can name, as lone
    surrogates.
    """
    return not any("\ud800" <= sign <= "\udfff" or sign == "\0" for sign in text)
