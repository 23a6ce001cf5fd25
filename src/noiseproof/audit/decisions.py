"""The decisions file: an append-only CSV log, so that every decision reported as saved survives a
crash.

docs/audit_files.md lists its columns. The lines of one reviewer on one row are a stack: undo takes
the last one off, and never touches those of others. The last decision on a row that stands wins; an
answer to a repeated question is a second opinion, which replaces no decision. A line cut short by a
crash is ignored, and so is a batch without its end; both are removed before the next line is
written. A last line that lacks nothing but its line end, as an editor may leave it, counts: notes
are written in quotes, so that one cut short is no whole line.
"""

from __future__ import annotations

import csv
import io
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from filelock import FileLock, Timeout, lock_descriptor

from noiseproof.core.files import sync_folder

if TYPE_CHECKING:
    pass

__all__ = [
    "COLUMNS",
    "FILE",
    "NO_ROW",
    "Asked",
    "BadDecisions",
    "Choice",
    "Decision",
    "DecisionLog",
    "check_free",
    "last_decisions",
    "read_answers",
    "read_decisions",
    "read_log",
    "read_standing",
    "to_bytes",
]

RowChoice = Literal["accept", "keep", "other", "skip", "exclude", "unclear"]  # what decides a row
Choice = RowChoice | Literal["note", "merge", "undo"]
Asked = Literal["", "measure", "repeat"]
ROW_CHOICES: tuple[RowChoice, ...] = get_args(RowChoice)
CHOICES: tuple[Choice, ...] = (*ROW_CHOICES, "note", "merge", "undo")
NO_ROW = -1  # of a merge, which is about classes
K = TypeVar("K")
V = TypeVar("V")
FILE = "decisions.csv"  # in the folder of an audit
COLUMNS = (
    "row",
    "id",
    "given_label",
    "decision",
    "label",
    "reviewer",
    "asked",
    "probability",
    "batch",
    "note",
)
BATCH = re.compile(r"([1-9][0-9]{0,15})( end)?")


class Decision(NamedTuple):
    """A decision on one row; ``label`` is the label that the row should have, empty where the
    choice names none.
    """

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
    choice, asked, probability, batch = (
        decision.decision,
        decision.asked,
        decision.probability,
        decision.batch,
    )
    is_merge = choice == "merge" or (choice == "undo" and decision.row == NO_ROW)
    return (
        choice in CHOICES
        and (
            decision.row >= 0
            if not is_merge
            else (decision.row, decision.id, asked) == (NO_ROW, "", "")
        )
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

    The lines of one reviewer on one row are a stack, and undo takes the last one off. Of the lines
    that still stand the most recent one counts, whoever wrote it.
    """

    def __init__(self, lines: Iterable[Decision] = ()) -> None:
        self.decisions: dict[int, Decision] = {}  # the decision on each row
        self.notes: dict[int, str] = {}
        self.merges: dict[str, Decision] = {}  # by the spelling
        self.batches = 0  # the largest number of a batch
        self._length = 0
        # by subject and reviewer
        self._stacks: dict[int | str, dict[str, list[tuple[int, Decision]]]] = {}
        self._answers: dict[int, Decision] = {}  # by the number of the line
        # of the answers of a reviewer on a row
        self._numbers: dict[tuple[int | str, str], list[int]] = {}
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
        """All lines on a row, or on the spelling of a class, that stand, of everybody, in the order
        of the file.
        """
        return [
            line
            for _, line in sorted(
                pair for stack in self._stacks.get(row, {}).values() for pair in stack
            )
        ]

    def rows(self) -> list[int]:
        """The rows that were ever decided on."""
        return [subject for subject in self._stacks if isinstance(subject, int)]

    def answers(self) -> list[Decision]:
        """The last answer of each reviewer to each question, in the order of the file."""
        return [self._answers[number] for number in sorted(self._answers)]

    def _is_measured(self, line: Decision) -> bool:
        """Whether a line answers a question of the designed sample; in a list, others have second
        opinions, too.
        """
        return line.asked == "measure" or (
            line.asked == "repeat"
            and any(other.asked == "measure" for other in self.lines(line.row))
        )

    def last_action(self, reviewer: str) -> list[Decision]:
        """What the reviewer did last and that still stands: one line, or those of a batch; not what
        was measured.
        """
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
    """The class that each merged spelling becomes in the end; spellings that a circle of merges
    leads back to stay.

    >>> one = Decision(NO_ROW, "", "gentoo", "merge", "Gentoo ")
    >>> resolve_merges(
    ...     {"gentoo": one, "Gentoo ": one._replace(given_label="Gentoo ", label="Gentoo")}
    ... )
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


class BadDecisions(ValueError):
    """A file that is not a list of decisions, or belongs to another audit."""


def read_decisions(path: str | os.PathLike[str]) -> dict[int, Decision]:
    """Return the last decision on each row, in the order of the first ones; undone ones are left
    out.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write(
    ...         ",".join(COLUMNS)
    ...         + "\\n7,b,cat,accept,dog,,,,,\\n7,b,cat,keep,cat,,,,,\\n8,c,cat,acc"
    ...     )
    ...     file.flush()
    ...     {row: decision.label for row, decision in read_decisions(file.name).items()}
    {7: 'cat'}
    """
    return last_decisions(read_log(path))


def last_decisions(lines: Iterable[Decision]) -> dict[int, Decision]:
    return Standing(lines).decisions


def read_answers(path: str | os.PathLike[str]) -> list[Decision]:
    """Return the last answer of each reviewer to each question, in the order of the file; undone
    ones are left out.

    A reviewer who is asked about a row again (``repeat``) has two answers on it. An answer that the
    reviewer changes remains part of the measured sample.
    """
    return read_standing(path).answers()


def read_standing(path: str | os.PathLike[str]) -> Standing:
    return Standing(read_log(path))


def read_log(path: str | os.PathLike[str]) -> list[Decision]:
    """Return every line of the file, those that were changed or undone later, too."""
    return _parse(Path(path).read_bytes(), path).lines


@dataclass(frozen=True)
class _Content:
    lines: list[Decision]
    # of the last complete record, or of the last one before a batch without its end, in bytes
    end: int
    lacks_line_end: bool  # after the last complete record


def _parse(data: bytes, path: object) -> _Content:
    ends = _record_ends(data)
    if ends and _is_whole(data[ends[-1] :], path):
        ends.append(len(data))
    end = ends[-1] if ends else 0
    try:
        text = data[:end].decode("utf-8-sig")
    except UnicodeError as error:
        raise BadDecisions(f"Expected decisions as UTF-8 in {path}, got {error}.") from error
    records = csv.reader(io.StringIO(text, newline=""))
    header = next(records, None)
    if header is None and not to_line(COLUMNS).startswith(data):  # another file without a line end
        raise BadDecisions(f"Expected a file of decisions, {path} is not one.")
    if header is not None and tuple(header) != COLUMNS:
        raise BadDecisions(
            f"Expected the columns {', '.join(COLUMNS)} in {path}, got {', '.join(header)}."
        )
    lines: list[Decision] = []
    # records and lines before the batch that the file ends with, if that has no end
    begin, whole = 0, 0
    for number, line, is_open in _read_records(records, path):
        lines.append(line)
        if not is_open:
            begin, whole = number + 1, len(lines)
        elif len(lines) == 1 or lines[-2].batch != line.batch:
            begin, whole = number, len(lines) - 1
    rest = data[end:].decode("utf-8", "replace")
    # a crash cuts only the last record short
    if len(list(csv.reader(io.StringIO(f'{rest}"', newline="")))) > 1:
        raise BadDecisions(
            f"Expected decisions in {path}, got a stray quote after decision {len(lines)}. Remove"
            " it by hand."
        )
    if whole < len(lines):
        end = ends[begin - 1]
    lacks_line_end = 0 < end == len(data) and not data.endswith((b"\n", b"\r"))
    return _Content(lines[:whole], end, lacks_line_end)


def _is_whole(rest: bytes, path: object) -> bool:
    """Return whether the bytes after the last line end are a record that lacks nothing else."""
    if not rest.strip() or rest.count(b'"') % 2:
        return False
    try:
        cells = next(csv.reader([rest.decode()]))
        lines = [line for _, line, _ in _read_records(iter([cells]), path)]
        return lines[0].decision != "note" or not rest.endswith(b",")
    except ValueError:  # of a letter that was cut, too
        return False


def _read_records(
    records: Iterator[list[str]], path: object
) -> Iterator[tuple[int, Decision, bool]]:
    """The number of each record after the header, its decision, and whether its batch goes on."""
    for number, cells in enumerate(records, 1):
        if not cells:
            continue
        try:
            if len(cells) != len(COLUMNS):
                raise ValueError
            row, id, given, choice, label, reviewer, asked, chance, batch, note = cells
            number_of_row = (
                int(row) if row.isascii() and row.isdigit() else NO_ROW if not row else NO_ROW - 1
            )
            probability = float(chance) if chance else None
            in_batch = BATCH.fullmatch(batch)
            if batch and in_batch is None:
                raise ValueError
            batch_number = int(in_batch[1]) if in_batch else None
            decision = Decision(
                number_of_row,
                id,
                given,
                choice,  # type: ignore[arg-type]
                label,
                reviewer,
                asked,  # type: ignore[arg-type]
                probability,
                batch_number,
                note,
            )
            if not is_valid(decision):
                raise ValueError
        except ValueError:
            raise BadDecisions(
                f"Expected a row number, an id, a given label, one of {', '.join(CHOICES)}, a"
                " label, a reviewer or nothing, measure, repeat or nothing, a probability with"
                " measure alone, the number of a batch or nothing, and a text with note alone in"
                f" decision {number} of {path}, got {cells}."
            ) from None
        yield number, decision, in_batch is not None and not in_batch[2]


def _record_ends(data: bytes) -> list[int]:
    """Return where each complete record ends: after a line end outside quotes."""
    ends, position, quotes = [], 0, 0
    for line in data.splitlines(keepends=True):
        quotes, position = quotes + line.count(b'"'), position + len(line)
        if quotes % 2 == 0 and line.endswith((b"\n", b"\r")):
            ends.append(position)
    return ends


def to_line(cells: Iterable[object]) -> bytes:
    line = io.StringIO()
    # With this terminator both \r and \n are quoted inside a cell.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def to_lines(decisions: Sequence[Decision]) -> bytes:
    """Return the records of decisions; the last one of each batch marks its end."""
    lines = []
    for i, decision in enumerate(decisions):
        is_last = decision.batch is not None and decision.batch != (
            decisions[i + 1].batch if i + 1 < len(decisions) else None
        )
        cells: dict[str, object] = {
            **decision._asdict(),
            "row": "" if decision.row == NO_ROW else decision.row,
            "batch": f"{decision.batch} end" if is_last else decision.batch,
        }
        note = (
            b'"%s"' % decision.note.replace('"', '""').encode()
            if decision.decision == "note"
            else b""
        )
        lines.append(to_line([*cells.values()][:-1]).removesuffix(b"\n") + b"," + note + b"\n")
    return b"".join(lines)


def to_bytes(decisions: Sequence[Decision]) -> bytes:
    return to_line(COLUMNS) + to_lines(decisions)


def check_free(path: Path) -> None:
    """Refuse a file of decisions that a running review writes to."""
    if path.exists():
        with open(path, "rb") as file:
            beside = _lock(file.fileno(), path)
        if beside is not None:
            beside.release()


def _lock(file: int, path: Path) -> FileLock | None:
    """Lock an open file until it is closed; on Windows, where nobody could read it then, a file
    beside it.
    """
    beside = (
        None
        if os.name == "posix"
        else FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)
    )
    try:
        if beside is not None:
            beside.acquire(blocking=False)
        elif not lock_descriptor(file, blocking=False):
            raise Timeout(str(path))
    except Timeout:
        raise BadDecisions(
            f"Expected {path} to be free, another review writes to it. Use the page of that review"
            " or stop it, or choose another file with --decisions."
        ) from None
    return beside


class DecisionLog:
    """The decisions file, open in one review at a time, thread-safe.

    ``add`` and ``add_all`` return once the decisions are on the disk, all of them or, after a
    crash, none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._thread_lock = threading.Lock()
        is_new = not self.path.exists()
        self._file = self._open()
        try:
            content = _parse(self.path.read_bytes(), path)
            self.standing, self._size = Standing(content.lines), content.end
            os.ftruncate(self._file, self._size)  # what a crash cut short
            if content.lacks_line_end:
                self._write(b"\n")
            if not self._size:
                self._write(to_line(COLUMNS))
        except BaseException:
            self.close()
            raise
        if is_new:
            sync_folder(self.path.parent)

    def _open(self) -> int:
        """Open and lock the file; if another process replaced it before it was locked, open the new
        one.
        """
        while True:
            file = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
            )
            try:
                self._beside = _lock(file, self.path)
                if os.name != "posix" or os.path.samestat(os.fstat(file), os.stat(self.path)):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(
                    f"Expected space for {len(line)} bytes in {self.path}, the disk is full."
                )
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # leave no partial line
            raise
        self._size += len(line)

    @property
    def decisions(self) -> dict[int, Decision]:
        """The decision on each row."""
        return self.standing.decisions

    def answers(self) -> list[Decision]:
        """Return the answers so far, as ``read_answers`` does."""
        with self._thread_lock:
            return self.standing.answers()

    def add(self, decision: Decision) -> None:
        """Write a decision to the disk; it counts only then."""
        self.add_all([decision])

    def add_all(self, decisions: Sequence[Decision]) -> None:
        """Write decisions to the disk at once; those of one batch (`next_batch`) count together, or
        not at all.
        """
        for decision in decisions:
            if not is_valid(decision):
                raise ValueError(
                    f"Expected a row ≥ 0, a decision of {', '.join(CHOICES)}, a probability in (0,"
                    " 1] with measure alone, a batch ≥ 1 or none, and a text with note alone, got"
                    f" {decision}."
                )
        batches = {decision.batch for decision in decisions}
        if len(decisions) > 1 and (len(batches) > 1 or None in batches):
            raise ValueError(
                f"Expected one batch for {len(decisions)} decisions, got {batches}. Use"
                " `next_batch`."
            )
        with self._thread_lock:
            self._write(to_lines(decisions))
            for decision in decisions:
                self.standing.add(decision)

    def next_batch(self) -> int:
        """Return a number that no batch has yet."""
        return self.standing.batches + 1

    def last_action(self, reviewer: str) -> list[Decision]:
        """Return what the reviewer did last and that still stands: one line, or those of a
        batch.
        """
        with self._thread_lock:
            return self.standing.last_action(reviewer)

    def get(self, row: int) -> Decision | None:
        """Return the decision on a row, None if it is undecided."""
        return self.decisions.get(row)

    def close(self) -> None:
        """Release the file for another review."""
        if self._file >= 0:
            os.close(self._file)
            if self._beside is not None:
                self._beside.release()
        self._file = -1
