"""Several reviewers of one audit: who is where, who decided what, second opinions, disagreement."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.decisions import Decision, DecisionLog
from noiseproof.audit.plan import differ, independent_pair
from noiseproof.audit.rows import mixed
from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.core.messages import Json
from noiseproof.judge.measure.interval import agreement
from noiseproof.judge.saved import ROW_CHOICES
from noiseproof.review.issues import Issues

SECONDS = 240.0  # without a sign of the person, after which a row is free again
MOST_CHANGES = 500  # rows in one answer; a page that missed more loads its list again


class Leases:
    """The row that each tab of each reviewer shows, in memory only; thread-safe.

    >>> leases = Leases()
    >>> leases.take(7, "ann")
    >>> leases.take(7, "bob")
    >>> leases.rows()
    {7: 'ann'}
    """

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        # (reviewer, tab) → row and end of the lease
        self._held: dict[tuple[str, str], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def take(self, row: int, reviewer: str, tab: str = "") -> None:
        """Move a tab to ``row``, unless another person is there already."""
        with self._lock:
            self._forget()
            self._held.pop((reviewer, tab), None)
            at_row = {name for (name, _), (at, _) in self._held.items() if at == row}
            if at_row <= {reviewer}:
                self._held[reviewer, tab] = row, self.clock() + self.seconds

    def give_back(self, reviewer: str, tab: str = "") -> None:
        with self._lock:
            self._held.pop((reviewer, tab), None)

    def rows(self, *, but: str | None = None) -> dict[int, str]:
        """Return who is at which row, without the rows of the reviewer ``but``."""
        with self._lock:
            self._forget()
            return {row: name for (name, _), (row, _) in self._held.items() if name != but}

    def _forget(self) -> None:
        now = self.clock()
        self._held = {holder: lease for holder, lease in self._held.items() if lease[1] > now}


class People:
    """What is known of each issue about those who decided on it; `count` keeps it up to date,
    inside the queue's lock.

    A share ``overlap`` of the rows is decided by two people, and the second does not see what the
    first decided: their answer is kept as a second opinion (``asked`` is repeat), which says how
    far people agree.
    """

    def __init__(
        self, issues: Issues, log: DecisionLog, names: Sequence[str] = ("",), overlap: float = 0.0
    ) -> None:
        count = len(issues)
        self.issues = issues
        self.log = log
        self.names = names
        self.leases = Leases()
        self.several = len(names) > 1
        # (N,)
        self.is_overlap = hashed(issues.row) < (overlap if self.several else 0)
        self.choice = np.zeros(count, dtype=np.int8)  # 0: open, else 1 + the number of the choice
        self.is_conflict = np.zeros(count, dtype=bool)
        self.opinions = np.zeros(count, dtype=np.int16)  # people who decided
        self.decided: dict[str, Bools] = {}  # (N,) of each reviewer
        self.pairs: dict[int, tuple[Decision, Decision]] = {}  # independent answers on a row
        # rows, as they were decided; the number of them is the version of a page
        self.changes: list[int] = []
        for row in log.standing.rows():
            self.count(row)
        self.changes.clear()

    def count(self, row: int) -> None:
        """Renew what is known of a row after a decision on it."""
        i = self.issues.position.get(row)
        if i is None:
            return
        decision = self.log.decisions.get(row)
        self.choice[i] = (None, *ROW_CHOICES).index(decision and decision.decision)
        lines = self._choices(row)
        names = {line.reviewer for line in lines}
        for name in {*self.decided, *names}:
            self._decided(name)[i] = name in names
        self.opinions[i] = len(names)
        self.is_conflict[i] = differ(lines)
        pair = independent_pair(lines)
        if pair is None:
            self.pairs.pop(row, None)
        else:
            self.pairs[row] = pair
        self.changes.append(row)

    def _choices(self, row: int) -> list[Decision]:
        """Return what stands of the decisions on a row, without notes."""
        return [line for line in self.log.standing.lines(row) if line.decision != "note"]

    def _decided(self, name: str) -> Bools:
        return self.decided.setdefault(name, np.zeros(len(self.issues), dtype=bool))

    def choice_for(self, reviewer: str) -> NDArray[np.int8]:
        """Return ``choice`` as a reviewer may see it: open where a second opinion is asked for."""
        return np.where(self.asks_again(reviewer), np.int8(0), self.choice)

    def asks_again(self, reviewer: str, at: Any = slice(None)) -> Bools:
        """Which issues, (N,), or that ``at`` a place, need a second opinion of this reviewer, who
        sees no first.
        """
        has_one = (self.choice[at] > 0) & (self.opinions[at] == 1)
        return np.asarray(self.is_overlap[at] & has_one & ~self._decided(reviewer)[at])

    def is_asked_again(self, row: int, reviewer: str) -> bool:
        """Return whether a decision of this reviewer on a row is a second opinion."""
        return bool(self.asks_again(reviewer, self.issues.position[row]))

    def describe(self, row: int, reviewer: str) -> Json:
        """Return what the page shows of a row about other people: who decided what, and whether
        they disagree.
        """
        last = {line.reviewer: line for line in self._choices(row)}
        by = []
        if (self.several or len(last) > 1) and not self.is_asked_again(row, reviewer):
            by = [
                {"reviewer": name, "decision": line.decision, "label": line.label}
                for name, line in last.items()
            ]
        return {"by": by, "conflict": bool(self.is_conflict[self.issues.position[row]])}

    def show(self, reviewer: str) -> Json:
        """Return who reviews, what each decided, where they are, and how far they agree."""
        at = {name: row for row, name in self.leases.rows().items()}
        counts = dict.fromkeys(self.names, 0)
        for name, is_decided in list(self.decided.items()):
            if name in counts or is_decided.any():
                counts[name] = int(is_decided.sum())
        return {
            "reviewer": reviewer,
            "reviewers": [
                {"name": name, "decided": count, "at": at.get(name)}
                for name, count in counts.items()
            ],
            "conflicts": int(self.is_conflict.sum()),
            "second_opinions": {
                "total": int(self.is_overlap.sum()),
                "done": int((self.is_overlap & (self.opinions > 1)).sum()),
                "yours": int(self.asks_again(reviewer).sum()),
            },
            "agreement": self.agreement(),
            "version": len(self.changes),
        }

    def agreement(self) -> Json | None:
        """Return how far two people agree who did not see each other's decision; None without
        any.
        """
        answers: list[Decision] = []
        for first, second in list(self.pairs.values()):
            answers += [first._replace(asked=""), second]
        agreed = agreement(answers, len(self.issues.classes))
        if agreed is None:
            return None
        return asdict(agreed) | {"kappa": None if math.isnan(agreed.kappa) else agreed.kappa}

    def changed(self, since: int) -> list[int] | None:
        """Return the rows that were decided since a version, None if they are too many, or of
        another server.
        """
        rows = dict.fromkeys(self.changes[since:])
        return None if since > len(self.changes) or len(rows) > MOST_CHANGES else list(rows)


def hashed(row: Ints) -> Floats:
    """Return a number in [0, 1) for each row that looks random and is always the same.

    >>> hashed(np.arange(3)).round(3).tolist()
    [0.883, 0.567, 0.591]
    """
    bits = mixed(row.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
