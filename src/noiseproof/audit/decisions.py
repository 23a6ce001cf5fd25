"""The decisions file: an append-only CSV log, so that every decision reported as saved survives a crash.

====================  ======================================================================================
row, id, given_label  of the source, as in issues.csv
decision              accept (the suggestion is right), keep (the given label is right), other (neither: ``label`` is),
                      skip (cannot tell) or undo (takes back the reviewer's last answer on the row)
label                 that the row should have; empty for skip and undo
reviewer              name, may be empty
asked                 measure (a question of the designed sample), repeat (a row asked again, for a second opinion) or
                      empty (chosen by the reviewer, or from the list)
probability           of being asked, by the design; only of measure
====================  ======================================================================================

The last decision on a row wins; an answer to a repeated question is a second opinion, which replaces no decision. A
line cut short by a crash is ignored, and removed before the next one is written. Files that have the first five columns
only are read, too, and get the others when a review opens them.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from noiseproof.core.files import replacing

if os.name == "posix":
    import fcntl

if TYPE_CHECKING:
    from noiseproof.audit.files import Audit

FILE = "decisions.csv"  # in the folder of an audit
Choice = Literal["accept", "keep", "other", "skip", "undo"]
Asked = Literal["", "measure", "repeat"]
COLUMNS = ("row", "id", "given_label", "decision", "label", "reviewer", "asked", "probability")
FEWER_COLUMNS = COLUMNS[:5]  # of files without reviewers


class Decision(NamedTuple):
    """A decision on one row; ``label`` is the label that the row should have, empty for skip and undo."""

    row: int
    id: str
    given_label: str
    decision: Choice
    label: str
    reviewer: str = ""
    asked: Asked = ""
    probability: float | None = None  # of being asked, where ``asked`` is measure


class BadDecisions(ValueError):
    """A file that is not a list of decisions, or belongs to another audit."""


def read_decisions(path: str | os.PathLike[str]) -> dict[int, Decision]:
    """Return the last decision on each row, in the order of the first ones; undone ones are left out.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("row,id,given_label,decision,label\\n7,b,cat,accept,dog\\n7,b,cat,keep,cat\\n8,c,cat,acc")
    ...     file.flush()
    ...     read_decisions(file.name)[7].label
    'cat'
    """
    return last_decisions(read_log(path))


def last_decisions(lines: Iterable[Decision]) -> dict[int, Decision]:
    """Return the last decision on each row, from every line of a file."""
    decisions = _Answers(lines).decisions
    return {row: decision for row, decision in decisions.items() if decision.decision != "undo"}


def read_answers(path: str | os.PathLike[str]) -> list[Decision]:
    """Return the last answer of each reviewer to each question, in the order of the file; undone ones are left out.

    A reviewer who is asked about a row again (``repeat``) has two answers on it. An answer that the reviewer changes
    remains part of the measured sample.
    """
    return _Answers(read_log(path)).to_list()


def read_log(path: str | os.PathLike[str]) -> list[Decision]:
    """Return every line of the file, those that were changed or undone later, too."""
    return _parse(Path(path).read_bytes(), path).lines


class _Answers:
    """What the lines of the file come to."""

    def __init__(self, lines: Iterable[Decision]) -> None:
        self.decisions: dict[int, Decision] = {}  # the last on each row, which may be undo
        self._answers: dict[int, Decision] = {}  # by number of the line
        self._numbers: dict[tuple[int, str], list[int]] = {}  # of the answers of a reviewer on a row
        self._length = 0
        for line in lines:
            self.add(line)

    def add(self, line: Decision) -> None:
        self._length += 1
        numbers = self._numbers.setdefault((line.row, line.reviewer), [])
        if line.decision == "undo":
            undone = self._answers.pop(numbers.pop()) if numbers else line
            if undone.asked != "repeat":
                self.decisions[line.row] = line
            return
        is_repeat = line.asked == "repeat"
        if not is_repeat:
            self.decisions[line.row] = line
        for number in numbers:
            if (self._answers[number].asked == "repeat") == is_repeat:  # the answer to the same question changes
                numbers.remove(number)
                first = self._answers.pop(number)
                if not line.asked:  # changed in the list
                    line = line._replace(asked=first.asked, probability=first.probability)
                break
        numbers.append(self._length)
        self._answers[self._length] = line

    def to_list(self) -> list[Decision]:
        return list(self._answers.values())


def check_decisions(decisions: Mapping[int, Decision], audit: Audit) -> None:
    """Refuse decisions on rows that the audit does not have, or has under another id or label."""
    issues = audit.issues[["row", "id", "given_label"]]
    known = {row: (id, given) for row, id, given in issues[issues["row"].isin(list(decisions))].itertuples(index=False)}
    labels = {*audit.classes, ""}
    for decision in decisions.values():
        if known.get(decision.row) != (decision.id, decision.given_label) or decision.label not in labels:
            raise BadDecisions(
                f"Expected decisions on this audit, got one on row {decision.row} ({decision.id!r}, given "
                f"{decision.given_label!r}, label {decision.label!r}), which the audit does not have. They belong to "
                "another audit: name its folder, or other decisions with --decisions, or move the file and start over."
            )


@dataclass(frozen=True)
class _Content:
    """A file of decisions."""

    lines: list[Decision]
    end: int  # of the last complete record, in bytes
    has_all_columns: bool


def _parse(data: bytes, path: object) -> _Content:
    end = _complete_end(data)
    try:
        text = data[:end].decode("utf-8-sig")
    except UnicodeError as error:
        raise BadDecisions(f"Expected decisions as UTF-8 in {path}, got {error}.") from error
    records = csv.reader(io.StringIO(text, newline=""))
    header = next(records, None)
    if header is None and not to_line(COLUMNS).startswith(data):  # another file without a line end
        raise BadDecisions(f"Expected a file of decisions, {path} is not one.")
    if header is not None and tuple(header) not in (COLUMNS, FEWER_COLUMNS):
        raise BadDecisions(f"Expected the columns {', '.join(COLUMNS)} in {path}, got {', '.join(header)}.")
    lines = list(_read_records(records, len(header or COLUMNS), path))
    rest = data[end:].decode("utf-8", "replace")
    if len(list(csv.reader(io.StringIO(f'{rest}"', newline="")))) > 1:  # a crash cuts only the last record short
        raise BadDecisions(
            f"Expected decisions in {path}, got a stray quote after decision {len(lines)}. Remove it by hand."
        )
    return _Content(lines, end, header is None or tuple(header) == COLUMNS)


def _read_records(records: Iterator[list[str]], width: int, path: object) -> Iterator[Decision]:
    for number, cells in enumerate(records, 1):
        if not cells:
            continue
        try:
            if len(cells) != width:
                raise ValueError
            row, id, given, choice, label, reviewer, asked, chance = (*cells, "", "", "")[: len(COLUMNS)]
            number_of_row = int(row) if row.isascii() and row.isdigit() else -1
            probability = float(chance) if chance else None
            decision = Decision(number_of_row, id, given, choice, label, reviewer, asked, probability)  # type: ignore[arg-type]
            if not _is_valid(decision):
                raise ValueError
        except ValueError:
            raise BadDecisions(
                f"Expected a row number, an id, a given label, one of {', '.join(get_args(Choice))}, a label, a "
                "reviewer or nothing, measure, repeat or nothing, and a probability with measure alone in "
                f"decision {number} of {path}, got {cells}."
            ) from None
        yield decision


def _is_valid(decision: Decision) -> bool:
    choice, asked, probability = decision.decision, decision.asked, decision.probability
    return (
        decision.row >= 0
        and choice in get_args(Choice)
        and asked in get_args(Asked)
        and (choice == "undo" or (asked == "measure") == (probability is not None))
        and (probability is None or 0 < probability <= 1)
    )


def _complete_end(data: bytes) -> int:
    """Return where the last complete record ends: after a line end outside quotes."""
    complete, position, quotes = 0, 0, 0
    for line in data.splitlines(keepends=True):
        quotes, position = quotes + line.count(b'"'), position + len(line)
        if quotes % 2 == 0 and line.endswith((b"\n", b"\r")):
            complete = position
    return complete


def to_line(cells: Iterable[object]) -> bytes:
    """Return one record of the file."""
    line = io.StringIO()
    # With this terminator both \r and \n are quoted inside a cell.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def check_free(path: Path) -> None:
    """Refuse a file of decisions that a running review writes to."""
    if path.exists():
        with open(path, "rb") as file:
            _lock(file.fileno(), path)


def _lock(file: int, path: Path) -> None:
    if os.name == "posix":  # released with the process, however it ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadDecisions(
                f"Expected {path} to be free, another review writes to it. Use the page of that review or stop it, or "
                "choose another file with --decisions."
            ) from None


class DecisionLog:
    """The decisions file, open in one review at a time, thread-safe; ``add`` returns once the decision is on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._thread_lock = threading.Lock()
        is_new = not self.path.exists()
        self._file = self._open()
        try:
            content = _parse(self.path.read_bytes(), path)
            if not content.has_all_columns:
                content = self._add_columns(content.lines)
            self._answers, self._size = _Answers(content.lines), content.end
            os.ftruncate(self._file, self._size)  # what a crash cut short
            if not self._size:
                self._write(to_line(COLUMNS))
        except BaseException:
            self.close()
            raise
        if is_new:
            _sync_folder(self.path)

    def _open(self) -> int:
        """Open and lock the file; if another process replaced it before it was locked, open the new one."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
            try:
                _lock(file, self.path)
                if os.name != "posix" or os.path.samestat(os.fstat(file), os.stat(self.path)):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def _add_columns(self, lines: list[Decision]) -> _Content:
        """Replace a file of fewer columns by one of all, and open that; a crash leaves one or the other."""
        if os.name != "posix":  # Windows replaces no open file
            self.close()
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(to_line, (COLUMNS, *lines))))
        _sync_folder(self.path)  # decisions to come are in the new file
        self.close()  # the old file, and with it the lock
        self._file = self._open()
        return _parse(self.path.read_bytes(), self.path)

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(f"Expected space for {len(line)} bytes in {self.path}, the disk is full.")
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # leave no partial line
            raise
        self._size += len(line)

    @property
    def decisions(self) -> dict[int, Decision]:
        """The last decision on each row, which may be undo."""
        return self._answers.decisions

    def answers(self) -> list[Decision]:
        """Return the answers so far, as ``read_answers`` does."""
        with self._thread_lock:
            return self._answers.to_list()

    def add(self, decision: Decision) -> None:
        """Write a decision to the disk; it counts only then."""
        if not _is_valid(decision):
            raise ValueError(
                f"Expected a row ≥ 0, a decision of {', '.join(get_args(Choice))} and a probability in (0, 1] with "
                f"measure alone, got {decision}."
            )
        with self._thread_lock:
            self._write(to_line(decision))
            self._answers.add(decision)

    def get(self, row: int) -> Decision | None:
        """Return the last decision on a row, None if it is undecided."""
        decision = self.decisions.get(row)
        return None if decision is None or decision.decision == "undo" else decision

    def close(self) -> None:
        """Release the file for another review."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _sync_folder(path: Path) -> None:
    """Make the name of a new file survive, too."""
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
