"""Issues of an audit in the order of their review: filtered, searched, and the decisions on
them.
"""

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from noiseproof.audit.decisions import (
    NO_ROW,
    BadDecisions,
    Choice,
    Decision,
    DecisionLog,
    resolve_merges,
)
from noiseproof.audit.files import Audit, check_decisions
from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import NoRows
from noiseproof.core.arrays import Bools, Ints
from noiseproof.core.messages import Json
from noiseproof.judge.issues.spelling import class_spellings
from noiseproof.judge.saved import ROW_CHOICES, RowChoice
from noiseproof.review.issues import Issues, Sort
from noiseproof.review.people import People

State = Literal[
    "open", "decided", "conflict", "accept", "keep", "other", "skip", "exclude", "unclear"
]
KEPT = 64  # selections of rows in memory, the last ones
COUNTABLE = 2**53 - 1  # the largest integer that is exact in JavaScript


class UnknownSelection(KeyError):
    """A list of rows to filter by that is no longer kept."""


class Search:
    """Finds the issues whose id, text or cells contain words; the rows are read for the first
    search, then kept.
    """

    def __init__(self, issues: Issues, rows: Source | NoRows) -> None:
        self.issues = issues
        self.rows = rows
        self.matches = lru_cache(maxsize=32)(self._matches)

    @cached_property
    def texts(self) -> list[str]:
        """All that is searched of each issue, in small letters."""
        texts = [id.lower() for id in self.issues.id]
        for row, cells in enumerate(self.rows.cells()):
            i = self.issues.position.get(row)
            if i is not None:
                texts[i] = "\n".join((texts[i], *cells)).lower()
        return texts

    def _matches(self, search: str) -> Bools:
        """Return for each issue whether it contains all words of ``search``, in large or small
        letters, (N,).
        """
        words = search.lower().split()
        return np.array([all(word in text for word in words) for text in self.texts], dtype=bool)


class Filter(BaseModel):
    """Conditions that an issue meets to be listed, all of them, and the order of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    given: int | None = Field(default=None, ge=0, le=COUNTABLE, description="Number of the class.")
    suggested: int | None = Field(default=None, ge=0, le=COUNTABLE)
    state: State | None = None
    low: float | None = Field(
        default=None, allow_inf_nan=False, description="The least label_quality."
    )
    high: float | None = Field(default=None, allow_inf_nan=False)
    search: str = Field(
        default="", max_length=1000, description="Words of the id, the text or the cells."
    )
    selection: str = Field(default="", max_length=100, description="Key of a list of rows.")
    sort: Sort = "quality"
    descending: bool = False


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
        self.search = Search(self.issues, NoRows(""))  # of ids, until the rows are there
        self._selections: dict[str, Ints] = {}
        self._lock = threading.Lock()
        self._classes = frozenset(audit.classes)
        self._spellings = class_spellings(audit)
        try:
            merges = self.log.standing.merges.values()
            check_decisions(chain(self.log.decisions.values(), merges), audit)
        except BadDecisions:
            self.log.close()
            raise
        self.people = People(self.issues, self.log, reviewers, overlap)

    # Lists

    def progress(self) -> dict[str, int]:
        counts = np.bincount(self.people.choice, minlength=1 + len(ROW_CHOICES)).tolist()
        choices = dict(zip(ROW_CHOICES, counts[1:], strict=True))
        return {"total": len(self.issues), "decided": sum(counts[1:]), **choices}

    def decided_rows(self) -> Ints:
        return self.issues.row[self.people.choice > 0]

    def keep_selection(self, rows: Iterable[int]) -> str:
        """Keep a list of rows to filter by, and return its key."""
        numbers = np.unique(np.fromiter(rows, dtype=np.int64))
        key = hashlib.sha256(numbers.tobytes()).hexdigest()[:12]
        self._selections.pop(key, None)
        self._selections[key] = numbers
        if len(self._selections) > KEPT:
            del self._selections[next(iter(self._selections))]
        return key

    def select(self, filter: Filter, reviewer: str = "") -> Ints:
        """Return the positions of the issues that meet a filter, in its order."""
        issues = self.issues
        choice = self.people.choice_for(reviewer)
        conditions = [np.ones(len(issues), dtype=bool)]
        if filter.given is not None:
            conditions.append(issues.given == filter.given)
        if filter.suggested is not None:
            conditions.append(issues.suggested == filter.suggested)
        if filter.low is not None:
            conditions.append(issues.quality >= filter.low)
        if filter.high is not None:
            conditions.append(issues.quality <= filter.high)
        if filter.selection:
            if filter.selection not in self._selections:
                raise UnknownSelection(filter.selection)
            conditions.append(np.isin(issues.row, self._selections[filter.selection]))
        if filter.search:
            conditions.append(self.search.matches(filter.search))
        if filter.state == "conflict":
            conditions.append(self.people.is_conflict)
        elif filter.state == "open":
            conditions.append(choice == 0)
        elif filter.state == "decided":
            conditions.append(choice > 0)
        elif filter.state is not None:
            conditions.append(choice == 1 + ROW_CHOICES.index(filter.state))
        order: Ints = issues.order(filter.sort, filter.descending)
        listed: Ints = order[np.logical_and.reduce(conditions)[order]]
        return listed

    def page(self, offset: int, limit: int, filter: Filter, reviewer: str = "") -> Json:
        selected = self.select(filter, reviewer)
        issues = [
            self.issues[i] | self.decided(int(self.issues.row[i]), reviewer)
            for i in selected[offset:][:limit]
        ]
        return {"total": len(selected), "offset": offset, "issues": issues}

    def decided(self, row: int, reviewer: str = "") -> Json:
        """Return what a reviewer may see of the decisions on a row: nothing, where a second opinion
        is asked for.
        """
        shown: Json = {"decision": None, "label": None, "note": None}
        if not self.people.is_asked_again(row, reviewer):
            decision = self.log.decisions.get(row)
            if decision is not None:
                shown |= {"decision": decision.decision, "label": decision.label}
            shown["note"] = self.log.standing.notes.get(row)
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
        rows = self.issues.row[selected]
        leases = self.people.leases
        with self._lock:
            is_open = self.people.choice_for(reviewer)[selected] == 0
            elsewhere = leases.rows(but=reviewer)
            is_taken = np.isin(rows, list(elsewhere))
            waiting = np.flatnonzero(is_open & ~is_taken)
            if not len(waiting):
                leases.give_back(reviewer, tab)
                return None, sorted({elsewhere[row] for row in rows[is_open & is_taken].tolist()})
            place = int(waiting[np.searchsorted(waiting, after, side="right") % len(waiting)])
            if self.people.several:
                leases.take(int(rows[place]), reviewer, tab)
            return place, []

    # Classes

    def new_classes(self) -> list[str]:
        """Return the classes that reviewers named and the audit does not have, in the order of the
        first decisions.
        """
        decisions = list(self.log.decisions.values())  # at once: other threads may decide meanwhile
        labels = dict.fromkeys(one.label for one in decisions if one.decision == "other")
        return [name for name in labels if name not in self._classes]

    def spellings(self) -> list[Json]:
        """Return the classes that are probably one and that no reviewer was asked about, with their
        numbers of rows.
        """
        merges = self.log.standing.merges
        return [pair._asdict() for pair in self._spellings if pair.spelling not in merges]

    def merge(self, spelling: str, label: str, reviewer: str = "") -> None:
        """Make ``spelling`` and ``label`` one class, or two if both are the same word.

        Undecided issues that are about this difference alone become kept, in one batch with the
        merge.
        """
        for name in (spelling, label):
            self._check_label(name)
        with self._lock:
            merges = self.log.standing.merges
            if spelling in merges and merges[spelling].label == label:
                return
            decision = Decision(NO_ROW, "", spelling, "merge", label, reviewer)
            lines = [decision]
            if label != spelling:
                becomes = resolve_merges(merges | {spelling: decision})
                if becomes.get(spelling) is None:
                    raise ValueError(
                        f"Expected another class than {label!r}, which is to become {spelling!r}."
                        " Undo that."
                    )
                lines += self._moot(becomes, reviewer)
            self._add(lines)

    def _moot(self, becomes: Mapping[str, str], reviewer: str) -> list[Decision]:
        """Return decisions to keep the given label of undecided issues whose two labels are one
        class now.
        """
        names = [becomes.get(name, name) for name in self.issues.classes]
        _, same = np.unique(names, return_inverse=True)
        is_one = same[self.issues.given] == same[self.issues.suggested]
        rows = self.issues.row[is_one & (self.people.choice == 0)].tolist()
        return [self.resolve(row, "keep", reviewer=reviewer) for row in rows]

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
            if ends_conflict or not self._stands(decision):
                self._add([self._asked(decision)])
        return decision

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
            self.resolve(row, choice, label, new_class=True, reviewer=reviewer)
            for row in dict.fromkeys(rows)
        ]
        with self._lock:
            elsewhere = self.people.leases.rows(but=reviewer)
            choices = self.people.choice_for(reviewer)
            lines = [
                self._asked(decision)
                for decision in decisions
                if (also_decided or not choices[self.issues.position[decision.row]])
                and decision.row not in elsewhere
                and not self._stands(decision)
            ]
            if not lines:
                return None, 0
            batch = self.log.next_batch()
            self._add(lines, batch)
        return batch, len(lines)

    def undo(self, reviewer: str = "") -> list[Decision]:
        """Take back what the reviewer did last, one decision or a batch; return it, empty if there
        is nothing.
        """
        with self._lock:
            undone = self.log.last_action(reviewer)
            if undone:
                self._add([line._replace(decision="undo", label="", note="") for line in undone])
        return undone

    def save(self, decision: Decision) -> None:
        """Save a decision that was resolved; it is on the disk then."""
        with self._lock:
            self._add([decision])

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
        i = self.issues.position[row]
        given = self.issues.classes[self.issues.given[i]]
        suggested = self.issues.classes[self.issues.suggested[i]]
        if choice == "merge":
            raise ValueError(
                "Expected a decision on a row, got merge, which is about classes. Use /api/merges."
            )
        for name, value in (("other", label), ("note", note)):
            if (choice == name) != (value is not None):
                raise ValueError(
                    f"Expected a {'label' if name == 'other' else name} with the choice {name} and"
                    f" with no other one, got {value!r} with {choice}."
                )
        if note is not None and not is_text(note):
            raise ValueError("Expected text as a note, got characters that no file can hold.")
        meaning = {"accept": suggested, "keep": given}.get(choice, label or "")
        return Decision(row, self.issues.id[i], given, choice, meaning, reviewer, note=note or "")

    def _check_label(self, label: str, new_class: bool = False) -> None:
        """Refuse a label that is not a class, unless it is meant to be a new one."""
        if label in self._classes:
            return
        if not new_class and label not in self.new_classes():
            raise ValueError(
                f"Expected one of the {len(self.issues.classes)} classes, got {label!r}."
            )
        if not label.isprintable() or label != " ".join(label.split()):
            raise ValueError(
                "Expected a name for a new class in one line, without needless spaces, got"
                f" {label!r}."
            )

    def _asked(self, decision: Decision) -> Decision:
        """Return the decision as a second opinion, where the reviewer was asked for one."""
        is_choice = decision.decision in ROW_CHOICES
        if is_choice and self.people.is_asked_again(decision.row, decision.reviewer):
            return decision._replace(asked="repeat")
        return decision

    def _stands(self, decision: Decision) -> bool:
        """Return whether the same reviewer has decided this already: a request that is sent again
        changes nothing.
        """
        standing = self.log.standing
        if decision.decision == "note":
            return standing.notes.get(decision.row, "") == decision.note
        current = self.log.decisions.get(decision.row)
        if current is not None and _is_repeated(current, decision):
            return True
        # A second opinion stands next to the current decision.
        own = [one for one in standing.lines(decision.row) if one.reviewer == decision.reviewer]
        return bool(own) and own[-1].asked == "repeat" and _is_repeated(own[-1], decision)

    def _add(self, lines: Sequence[Decision], batch: int | None = None) -> None:
        """Save decisions, several of them as one batch."""
        if len(lines) > 1 and batch is None:
            batch = self.log.next_batch()
        self.log.add_all([line._replace(batch=batch) for line in lines])
        for line in lines:
            self.people.count(line.row)


def _is_repeated(earlier: Decision, later: Decision) -> bool:
    """Return whether a reviewer decided the same on a row again, whatever the question was."""
    as_earlier = later._replace(
        asked=earlier.asked,
        probability=earlier.probability,
        batch=earlier.batch,
        note=earlier.note,
    )
    return as_earlier == earlier


def is_text(text: str) -> bool:
    """Return whether a file can hold a text: Python keeps half characters, which JSON can name, as
    lone surrogates.
    """
    return not any("\ud800" <= sign <= "\udfff" or sign == "\0" for sign in text)
