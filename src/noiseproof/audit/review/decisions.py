"""The decisions file: a CSV log that only grows, so that whatever was answered with "saved" survives a crash.

Columns row, id, given_label, decision, label. A decision is accept (the suggestion is right), keep (the given label is
right), other (neither: ``label`` is), skip (cannot tell) or undo (nothing is decided, as before). The last word on a
row wins. A line that a crash tore is no word: it is ignored, and cut off before anything is written behind it.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

if os.name == "posix":
    import fcntl

Choice = Literal["accept", "keep", "other", "skip", "undo"]
COLUMNS = ("row", "id", "given_label", "decision", "label")


class Decision(NamedTuple):
    """One word on one row; ``label`` is the label it should have, empty for skip and undo."""

    row: int
    id: str
    given_label: str
    decision: Choice
    label: str


class BadDecisions(ValueError):
    """A file that is no list of decisions, or one of another audit."""


def read_decisions(path: str | os.PathLike[str]) -> dict[int, Decision]:
    """The last word on each row, in the order the rows were first spoken of; rows whose last word is undo are left out.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("row,id,given_label,decision,label\\n7,b,cat,accept,dog\\n7,b,cat,keep,cat\\n8,c,cat,acc")
    ...     file.flush()
    ...     read_decisions(file.name)
    {7: Decision(row=7, id='b', given_label='cat', decision='keep', label='cat')}
    """
    words, _ = _parse(Path(path).read_bytes(), path)
    return {row: word for row, word in words.items() if word.decision != "undo"}


def _parse(data: bytes, path: object) -> tuple[dict[int, Decision], int]:
    """The last word on each row, and where the last whole record ends."""
    whole = _whole(data)
    try:
        text = data[:whole].decode("utf-8-sig")
    except UnicodeError as error:
        raise BadDecisions(f"Expected decisions as UTF-8 in {path}, got {error}.") from error
    records = csv.reader(io.StringIO(text, newline=""))
    header = next(records, None)
    if header is None and not to_line(COLUMNS).startswith(data):  # somebody else's file, of one line or none
        raise BadDecisions(f"Expected a file of decisions, got {path}, which is another.")
    if header is not None and tuple(header) != COLUMNS:
        raise BadDecisions(f"Expected the columns {', '.join(COLUMNS)} in {path}, got {', '.join(header)}.")
    words = {word.row: word for word in _words(records, path)}
    rest = data[whole:].decode("utf-8", "replace")
    if len(list(csv.reader(io.StringIO(f'{rest}"', newline="")))) > 1:  # a crash tears one record, the last
        raise BadDecisions(
            f"Expected decisions in {path}, got a stray quote behind decision {len(words)}. Mend it by hand."
        )
    return words, whole


def _words(records: Iterator[list[str]], path: object) -> Iterator[Decision]:
    for number, cells in enumerate(records, 1):
        if not cells:
            continue
        try:
            row, id, given, choice, label = cells
            if choice not in get_args(Choice) or not row.isascii() or not row.isdigit():
                raise ValueError
        except ValueError:
            raise BadDecisions(
                f"Expected a row's number, its id, its label, one of {', '.join(get_args(Choice))} and a label as "
                f"decision {number} of {path}, got {cells}."
            ) from None
        yield Decision(int(row), id, given, choice, label)  # type: ignore[arg-type]  # checked above


def _whole(data: bytes) -> int:
    """Where the last whole record ends: behind a line end outside quotes."""
    whole, end, quotes = 0, 0, 0
    for line in data.splitlines(keepends=True):
        quotes, end = quotes + line.count(b'"'), end + len(line)
        if quotes % 2 == 0 and line.endswith((b"\n", b"\r")):
            whole = end
    return whole


def to_line(cells: Iterable[object]) -> bytes:
    """One record of the file."""
    line = io.StringIO()
    # What may end a line is quoted inside a cell: here both may.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def check_free(path: Path) -> None:
    """Refuse a file of decisions that a review writes to."""
    if path.exists():
        with open(path, "rb") as file:
            _claim(file.fileno(), path)


def _claim(file: int, path: Path) -> None:
    if os.name == "posix":  # the lock goes with the process, however it ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadDecisions(
                f"Expected {path} for this one alone, a review writes to it. Use the page of that review or end it, or "
                "give another file with --decisions."
            ) from None


class DecisionLog:
    """The decisions file of one review at a time, for any number of threads: each word is on the disk when told so."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        is_new = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        try:
            _claim(self._file, self.path)
            self.words, self._size = _parse(self.path.read_bytes(), path)
            os.ftruncate(self._file, self._size)  # what a crash tore
            if not self._size:
                self._write(to_line(COLUMNS))
        except BaseException:
            os.close(self._file)
            raise
        if is_new and os.name == "posix":
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)  # the name of a new file is the folder's to remember
            os.close(folder)

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(f"Expected room for {len(line)} bytes in {self.path}, there is none.")
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # no half a line for the next one to go on with
            raise
        self._size += len(line)

    def add(self, word: Decision) -> None:
        """Write one word to the disk; only then does it count."""
        with self._lock:
            self._write(to_line(word))
            self.words[word.row] = word

    def get(self, row: int) -> Decision | None:
        """The last word on a row, None where nothing is decided."""
        word = self.words.get(row)
        return None if word is None or word.decision == "undo" else word

    def close(self) -> None:
        """Give the file free for another review."""
        os.close(self._file)
