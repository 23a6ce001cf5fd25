"""Rows on which the decisions of several people differ."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from noiseproof.audit.decisions import FILE
from noiseproof.audit.exchange.decided import read_decided_in
from noiseproof.audit.standing import Decision, Standing


def differ(lines: Iterable[Decision]) -> bool:
    """Whether people disagree on a row, by the ``lines`` on it that stand, in the order of the file.

    Whoever decides on a row while others disagree settles it, until somebody disagrees with that. A skip is no opinion.

    >>> ann = Decision(7, "b", "cat", "keep", "cat", "ann")
    >>> bob = Decision(7, "b", "cat", "accept", "dog", "bob")
    >>> differ([ann]), differ([ann, bob]), differ([ann, bob, bob])
    (False, True, False)
    """
    opinions: dict[str, tuple[str, str]] = {}  # of each reviewer
    is_conflict = False
    for line in opinions_of(lines):
        if is_conflict:
            opinions = {}
        opinions[line.reviewer] = ("", line.label) if line.names_label else (line.decision, "")
        is_conflict = len({*opinions.values()}) > 1
    return is_conflict


def opinions_of(lines: Iterable[Decision]) -> list[Decision]:
    """The lines that have an opinion on the row: neither a skip nor a note."""
    return [line for line in lines if line.decision not in ("skip", "note")]


def conflicts(standing: Standing) -> list[int]:
    """The rows on which people disagree, in ascending order."""
    return sorted(row for row in standing.decisions if differ(standing.lines(row)))


def read_conflicts(folder: str | Path, decisions: str | Path | None = None) -> list[int]:
    """The rows on which people disagree by a file of decisions, by default that of the audit in ``folder``."""
    path = Path(decisions or Path(folder) / FILE)
    return conflicts(read_decided_in(folder, decisions)) if path.exists() else []


def independent_pair(lines: Iterable[Decision]) -> tuple[Decision, Decision] | None:
    """The two answers on a row that a second person was asked about: what was decided before, and their own."""
    lines = [line for line in lines if line.decision != "note"]
    for i, second in enumerate(lines):
        before = [line for line in lines[:i] if line.reviewer != second.reviewer]
        if second.asked == "repeat" and before:
            return before[-1], second
    return None
