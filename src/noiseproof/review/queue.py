"""The issues of an audit in the order of their review, and the decisions on them."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.decisions import BadDecisions, Choice, Decision, DecisionLog, check_decisions
from noiseproof.audit.files import NUMBERS, Audit
from noiseproof.audit.issues import badges
from noiseproof.review.select import CHOICES, Filter, Orders, Selections, select


class Issues:
    """Issues from the worst label to the best, or with ``everything`` all audited rows."""

    def __init__(self, audit: Audit, everything: bool = False) -> None:
        audit = audit if everything else replace(audit, issues=audit.issues[audit.issues["is_label_issue"]])
        frame = audit.issues
        self.classes = audit.classes
        self.row: NDArray[np.int64] = frame["row"].to_numpy()
        self.id: list[str] = frame["id"].tolist()
        self.why: list[str] = frame["why"].tolist()
        self.given = audit.class_numbers("given_label")
        self.suggested = audit.class_numbers("suggested_label")
        self.numbers = {name: frame[name].to_numpy(dtype=np.float64) for name in NUMBERS}
        texts = {name: text for name, text in badges().items() if name in frame}
        self.marks = {text: frame[name].to_numpy().astype(str) == "True" for name, text in texts.items()}
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
        codes, counts = np.unique(self.given * len(self.classes) + self.suggested, return_counts=True)
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

    def __init__(self, audit: Audit, path: Path, everything: bool = False) -> None:
        self.issues = Issues(audit, everything)
        self.log = DecisionLog(path)
        self.selections = Selections()
        self._lock = threading.Lock()
        self._state = np.zeros(len(self.issues), dtype=np.int8)  # 0: open, else 1 + the number of the choice
        try:
            check_decisions(self.log.decisions, audit)
        except BadDecisions:
            self.log.close()
            raise
        for decision in self.log.decisions.values():
            self._count(decision)

    def _count(self, decision: Decision) -> None:
        if (i := self.issues.position.get(decision.row)) is not None:
            self._state[i] = 0 if decision.decision == "undo" else 1 + CHOICES.index(decision.decision)

    def progress(self) -> dict[str, int]:
        """Return the number of issues, of decided ones, and of each choice."""
        counts = np.bincount(self._state, minlength=1 + len(CHOICES)).tolist()
        return {"total": len(self.issues), "decided": sum(counts[1:]), **dict(zip(CHOICES, counts[1:], strict=True))}

    def decided_rows(self) -> NDArray[np.int64]:
        """Return the numbers of the rows that are decided."""
        return self.issues.row[self._state > 0]

    def select(self, filter: Filter) -> NDArray[np.int64]:
        """Return the positions of the issues that meet a filter, in its order; KeyError for an unknown selection."""
        rows = self.selections[filter.selection] if filter.selection else None
        return select(self.issues, filter, self._state, rows=rows)

    def page(self, offset: int, limit: int, filter: Filter) -> dict[str, Any]:
        """Return ``limit`` of the issues that meet a filter from ``offset`` on, with the decisions on them."""
        selected = self.select(filter)
        return {
            "total": len(selected),
            "offset": offset,
            "issues": [self.issues[i] | self.decided(int(self.issues.row[i])) for i in selected[offset:][:limit]],
        }

    def decided(self, row: int) -> dict[str, str | None]:
        decision = self.log.get(row)
        return {"decision": decision and decision.decision, "label": decision and decision.label}

    def next_open(self, after: int, filter: Filter) -> int | None:
        """Return the place of the next undecided issue of a filter after ``after``, else of the first one."""
        is_open = self._state[self.select(filter)] == 0
        waiting = np.flatnonzero(is_open)
        if not len(waiting):
            return None
        return int(waiting[np.searchsorted(waiting, after, side="right") % len(waiting)])

    def decide(self, row: int, choice: Choice, label: str | None = None, *, reviewer: str = "") -> Decision:
        """Save a decision; KeyError for a row without an issue, ValueError for an unknown label."""
        return self.save(self.resolve(row, choice, label, reviewer=reviewer))

    def resolve(self, row: int, choice: Choice, label: str | None = None, *, reviewer: str = "") -> Decision:
        """Return the decision that a choice means, and do not save it."""
        i = self.issues.position[row]
        given, suggested = (self.issues.classes[codes[i]] for codes in (self.issues.given, self.issues.suggested))
        if (choice == "other") != (label is not None):
            raise ValueError(
                f"Expected a label with the choice other and with no other one, got {label!r} with {choice}."
            )
        if label is not None and label not in self.issues.classes:
            raise ValueError(f"Expected one of the {len(self.issues.classes)} classes, got {label!r}.")
        label = {"accept": suggested, "keep": given}.get(choice, label or "")
        return Decision(row, self.issues.id[i], given, choice, label, reviewer)

    def save(self, decision: Decision) -> Decision:
        """Return the decision once it is on the disk."""
        with self._lock:
            self.log.add(decision)
            if decision.asked != "repeat":  # a second opinion
                self._count(decision)
        return decision
