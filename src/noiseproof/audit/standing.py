"""A decision, and what many of them come to: the decision on each row, its note, and the classes that are one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar, get_args

RowChoice = Literal["accept", "keep", "other", "skip", "exclude", "unclear"]  # what decides a row
Choice = RowChoice | Literal["note", "merge", "undo"]
Asked = Literal["", "measure", "repeat"]
ROW_CHOICES: tuple[RowChoice, ...] = get_args(RowChoice)
CHOICES: tuple[Choice, ...] = (*ROW_CHOICES, "note", "merge", "undo")
NO_ROW = -1  # of a merge, which is about classes
K = TypeVar("K")
V = TypeVar("V")


class Decision(NamedTuple):
    """A decision on one row; ``label`` is the label that the row should have, empty where the choice names none."""

    row: int  # NO_ROW for a merge, and for taking one back
    id: str
    given_label: str  # of a merge: the spelling that becomes ``label``
    decision: Choice
    label: str
    reviewer: str = ""
    asked: Asked = ""
    probability: float | None = None  # of being asked, where ``asked`` is measure
    batch: int | None = None  # ≥ 1, shared by all that one action wrote
    note: str = ""  # of the row, where ``decision`` is note

    @property
    def names_label(self) -> bool:
        """Whether it says what the label of the row is: skip, exclude and unclear do not."""
        return self.decision in ("accept", "keep", "other")

    @property
    def subject(self) -> int | str:
        """What is decided on: a row, or the spelling of a class."""
        return self.given_label if self.row == NO_ROW else self.row


def is_valid(decision: Decision) -> bool:
    """Whether a decision can be written, and read again."""
    choice, asked, probability, batch = decision.decision, decision.asked, decision.probability, decision.batch
    is_merge = choice == "merge" or (choice == "undo" and decision.row == NO_ROW)
    return (
        choice in CHOICES
        and (decision.row >= 0 if not is_merge else (decision.row, decision.id, asked) == (NO_ROW, "", ""))
        and asked in get_args(Asked)
        and (choice == "undo" or (asked == "measure") == (probability is not None))
        and (probability is None or 0 < probability <= 1)
        and (choice != "merge" or decision.label != "")
        and (choice not in ("exclude", "unclear", "note") or decision.label == "")
        and (choice == "note" or decision.note == "")
        and (choice != "note" or asked == "")
        and (batch is None or batch >= 1)
    )


class Standing:
    """What stands of the lines of a file.

    The lines of one reviewer on one row are a stack, and undo takes the last one off. Of the lines that still stand the
    most recent one counts, whoever wrote it.
    """

    def __init__(self, lines: Iterable[Decision] = ()) -> None:
        self.decisions: dict[int, Decision] = {}  # the decision on each row
        self.notes: dict[int, str] = {}
        self.merges: dict[str, Decision] = {}  # by the spelling
        self.batches = 0  # the largest number of a batch
        self._length = 0
        self._stacks: dict[int | str, dict[str, list[tuple[int, Decision]]]] = {}  # by subject and reviewer
        self._answers: dict[int, Decision] = {}  # by the number of the line
        self._numbers: dict[tuple[int | str, str], list[int]] = {}  # of the answers of a reviewer on a row
        for line in lines:
            self.add(line)

    def add(self, line: Decision) -> None:
        self._length += 1
        self.batches = max(self.batches, line.batch or 0)
        stack = self._stacks.setdefault(line.subject, {}).setdefault(line.reviewer, [])
        if line.decision != "undo":
            stack.append((self._length, line))
        elif stack:  # never what another reviewer decided
            stack.pop()
        self._renew(line.subject)
        if line.row != NO_ROW:
            self._renew_answers(line.row, line.reviewer, stack)

    def _renew(self, subject: int | str) -> None:
        lines = self.lines(subject)
        if isinstance(subject, str):
            _put(self.merges, subject, lines[-1] if lines else None)
            return
        decisive = [line for line in lines if line.decision != "note" and line.asked != "repeat"]
        notes = [line.note for line in lines if line.decision == "note"]
        _put(self.decisions, subject, decisive[-1] if decisive else None)
        _put(self.notes, subject, notes[-1] or None if notes else None)

    def _renew_answers(self, row: int, reviewer: str, stack: list[tuple[int, Decision]]) -> None:
        """A reviewer has one answer on a row, and one more if it was asked again."""
        for number in self._numbers.pop((row, reviewer), ()):
            del self._answers[number]
        for is_repeat in (False, True):
            pairs = [
                (number, line)
                for number, line in stack
                if line.decision != "note" and (line.asked == "repeat") == is_repeat
            ]
            if not pairs:
                continue
            number, answer = pairs[-1]
            measured = next((line for _, line in reversed(pairs) if line.asked), answer)
            if not answer.asked:  # an answer that is changed in the list remains part of the sample
                answer = answer._replace(asked=measured.asked, probability=measured.probability)
            self._answers[number] = answer
            self._numbers.setdefault((row, reviewer), []).append(number)

    def lines(self, row: int | str) -> list[Decision]:
        """All lines on a row, or on the spelling of a class, that stand, of everybody, in the order of the file."""
        return [line for _, line in sorted(pair for stack in self._stacks.get(row, {}).values() for pair in stack)]

    def rows(self) -> list[int]:
        """The rows that were ever decided on."""
        return [subject for subject in self._stacks if isinstance(subject, int)]

    def answers(self) -> list[Decision]:
        """The last answer of each reviewer to each question, in the order of the file."""
        return [self._answers[number] for number in sorted(self._answers)]

    def _is_measured(self, line: Decision) -> bool:
        """Whether a line answers a question of the designed sample; in a list, others have second opinions, too."""
        return line.asked == "measure" or (
            line.asked == "repeat" and any(other.asked == "measure" for other in self.lines(line.row))
        )

    def last_action(self, reviewer: str) -> list[Decision]:
        """What the reviewer did last and that still stands: one line, or those of a batch; not what was measured."""
        tops = [stacks[reviewer][-1] for stacks in self._stacks.values() if stacks.get(reviewer)]
        undoable = sorted((number, line) for number, line in tops if not self._is_measured(line))
        if not undoable:
            return []
        last = undoable[-1][1]
        return [line for _, line in undoable if line.batch == last.batch] if last.batch else [last]


def _put(mapping: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def resolve_merges(merges: Mapping[str, Decision]) -> dict[str, str]:
    """The class that each merged spelling becomes in the end; spellings that a circle of merges leads back to stay.

    >>> one = Decision(NO_ROW, "", "gentoo", "merge", "Gentoo ")
    >>> resolve_merges({"gentoo": one, "Gentoo ": one._replace(given_label="Gentoo ", label="Gentoo")})
    {'gentoo': 'Gentoo', 'Gentoo ': 'Gentoo'}
    """
    becomes = {}
    for spelling in merges:
        passed, name = {spelling}, merges[spelling].label
        while name in merges and name not in passed:
            passed.add(name)
            name = merges[name].label
        last = merges[name].label if name in merges else name
        if name != spelling and last == name:
            becomes[spelling] = name
    return becomes
