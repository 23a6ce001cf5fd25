"""The decisions file: an append-only CSV log, so that every decision reported as saved survives a crash.

Columns row, id, given_label, decision, label. A decision is accept (the suggestion is right), keep (the given label is
right), other (neither: ``label`` is), skip (cannot tell) or undo (the row is undecided again). The last decision on a
row wins. A line cut short by a crash is ignored, and removed before the next one is written.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if os.name == "posix":
    import fcntl

if TYPE_CHECKING:
    from noiseproof.audit.files import Audit

FILE = "decisions.csv"  # in the folder of an audit
Choice = Literal["accept", "keep", "other", "skip", "undo"]
COLUMNS = ("row", "id", "given_label", "decision", "label")


class Decision(NamedTuple):
    """A decision on one row; ``label`` is the label that the row should have, empty for skip and undo."""

    row: int
    id: str
    given_label: str
    decision: Choice
    label: str


class BadDecisions(ValueError):
    """A file that is not a list of decisions, or belongs to another audit."""


def read_decisions(path: str | os.PathLike[str]) -> dict[int, Decision]:
    """Return the last decision on each row, in the order of the first ones; rows whose last one is undo are left out.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("row,id,given_label,decision,label\\n7,b,cat,accept,dog\\n7,b,cat,keep,cat\\n8,c,cat,acc")
    ...     file.flush()
    ...     read_decisions(file.name)
    {7: Decision(row=7, id='b', given_label='cat', decision='keep', label='cat')}
    """
    decisions, _ = _parse(Path(path).read_bytes(), path)
    return {row: decision for row, decision in decisions.items() if decision.decision != "undo"}


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


def _parse(data: bytes, path: object) -> tuple[dict[int, Decision], int]:
    """Return the last decision on each row, and where the last complete record ends."""
    end = _complete_end(data)
    try:
        text = data[:end].decode("utf-8-sig")
    except UnicodeError as error:
        raise BadDecisions(f"Expected decisions as UTF-8 in {path}, got {error}.") from error
    records = csv.reader(io.StringIO(text, newline=""))
    header = next(records, None)
    if header is None and not to_line(COLUMNS).startswith(data):  # another file without a line end
        raise BadDecisions(f"Expected a file of decisions, {path} is not one.")
    if header is not None and tuple(header) != COLUMNS:
        raise BadDecisions(f"Expected the columns {', '.join(COLUMNS)} in {path}, got {', '.join(header)}.")
    decisions = {decision.row: decision for decision in _read_records(records, path)}
    rest = data[end:].decode("utf-8", "replace")
    if len(list(csv.reader(io.StringIO(f'{rest}"', newline="")))) > 1:  # a crash cuts only the last record short
        raise BadDecisions(
            f"Expected decisions in {path}, got a stray quote after decision {len(decisions)}. Remove it by hand."
        )
    return decisions, end


def _read_records(records: Iterator[list[str]], path: object) -> Iterator[Decision]:
    for number, cells in enumerate(records, 1):
        if not cells:
            continue
        try:
            row, id, given, choice, label = cells
            if choice not in get_args(Choice) or not row.isascii() or not row.isdigit():
                raise ValueError
        except ValueError:
            raise BadDecisions(
                f"Expected a row number, an id, a given label, one of {', '.join(get_args(Choice))} and a label in "
                f"decision {number} of {path}, got {cells}."
            ) from None
        yield Decision(int(row), id, given, choice, label)  # type: ignore[arg-type]  # checked above


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
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        try:
            _lock(self._file, self.path)
            self.decisions, self._size = _parse(self.path.read_bytes(), path)
            os.ftruncate(self._file, self._size)  # what a crash cut short
            if not self._size:
                self._write(to_line(COLUMNS))
        except BaseException:
            os.close(self._file)
            raise
        if is_new and os.name == "posix":
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)  # so that the name of the new file survives, too
            os.close(folder)

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(f"Expected space for {len(line)} bytes in {self.path}, the disk is full.")
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # leave no partial line
            raise
        self._size += len(line)

    def add(self, decision: Decision) -> None:
        """Write a decision to the disk; it counts only then."""
        with self._thread_lock:
            self._write(to_line(decision))
            self.decisions[decision.row] = decision

    def get(self, row: int) -> Decision | None:
        """Return the last decision on a row, None if it is undecided."""
        decision = self.decisions.get(row)
        return None if decision is None or decision.decision == "undo" else decision

    def close(self) -> None:
        """Release the file for another review."""
        os.close(self._file)
