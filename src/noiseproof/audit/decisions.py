"""The decisions of a review: a log in an SQLite database, with CSV in and out.

``decisions.sqlite`` in the folder of an audit is what counts. It is in WAL mode, so that it can be
read while a review writes to it, and a decision reported as saved survives a crash. Where there is
no database yet, a review begins with the decisions in the .csv file of the same name; when it
ends, it writes all decisions to that file. docs/audit_files.md lists the columns.

The lines of one reviewer on one row are a stack: undo takes the last one off, and never touches
lines of other reviewers. The last decision on a row that stands wins; an answer to a repeated
question is a second opinion, which replaces no decision.
"""

import csv
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar, get_args

from noiseproof.core.files import Lock, PathLike, replacing
from noiseproof.judge.saved import CHOICES, NO_ROW, Asked, Choice, Decision

__all__ = [
    "COLUMNS",
    "FILE",
    "NO_ROW",
    "Asked",
    "BadDecisions",
    "Choice",
    "Decision",
    "DecisionLog",
    "Standing",
    "check_free",
    "find_decisions",
    "read_answers",
    "read_decisions",
    "read_log",
    "read_standing",
    "write_csv",
]

FILE = "decisions.sqlite"  # in the folder of an audit
K = TypeVar("K")
V = TypeVar("V")


COLUMNS = Decision._fields


class BadDecisions(ValueError):
    """A file that is not a list of decisions, or belongs to another audit."""


def is_valid(decision: Decision) -> bool:
    """Return whether the parts of a decision fit each other."""
    choice = decision.decision
    has_subject = decision.row >= 0 and choice != "merge"
    if decision.row == NO_ROW:
        has_subject = choice in ("merge", "undo") and (decision.id, decision.asked) == ("", "")
    probability = decision.probability
    is_measured = decision.asked == "measure"
    return (
        has_subject
        and choice in CHOICES
        and decision.asked in get_args(Asked)
        and (choice == "undo" or is_measured == (probability is not None))
        and (probability is None or 0 < probability <= 1)
        and (choice != "merge" or decision.label != "")
        and (choice not in ("exclude", "unclear", "note") or decision.label == "")
        and (choice == "note" or decision.note == "")
        and (choice != "note" or decision.asked == "")
        and (decision.batch is None or decision.batch >= 1)
    )


class Standing:
    """What stands of the lines of a log."""

    def __init__(self, lines: Iterable[Decision] = ()) -> None:
        self.decisions: dict[int, Decision] = {}  # the decision on each row
        self.notes: dict[int, str] = {}
        self.merges: dict[str, Decision] = {}  # by the spelling
        self.batches = 0  # the largest number of a batch
        self._length = 0
        # lines with their numbers, by subject and reviewer
        self._stacks: dict[int | str, dict[str, list[tuple[int, Decision]]]] = {}
        for line in lines:
            self.add(line)

    def add(self, line: Decision) -> None:
        self._length += 1
        self.batches = max(self.batches, line.batch or 0)
        stack = self._stacks.setdefault(line.subject, {}).setdefault(line.reviewer, [])
        if line.decision != "undo":
            stack.append((self._length, line))
        elif stack:
            stack.pop()
        lines = self.lines(line.subject)
        if isinstance(line.subject, str):
            _put(self.merges, line.subject, lines[-1] if lines else None)
            return
        decisive = [line for line in lines if line.decision != "note" and line.asked != "repeat"]
        notes = [line.note for line in lines if line.decision == "note"]
        _put(self.decisions, line.row, decisive[-1] if decisive else None)
        _put(self.notes, line.row, notes[-1] if notes and notes[-1] else None)

    def lines(self, subject: int | str) -> list[Decision]:
        """Return the lines of all reviewers on a row, or on the spelling of a class, that stand,
        in the order of the log.
        """
        stacks = self._stacks.get(subject, {}).values()
        return [line for _, line in sorted(numbered for stack in stacks for numbered in stack)]

    def rows(self) -> list[int]:
        """Return the rows that were ever decided on."""
        return [subject for subject in self._stacks if isinstance(subject, int)]

    def answers(self) -> list[Decision]:
        """Return the last answer of each reviewer to each question, in the order of the log.

        A reviewer has one answer on a row, and one more if asked again.
        """
        answers = []
        for row in self.rows():
            for stack in self._stacks[row].values():
                lines = [(number, line) for number, line in stack if line.decision != "note"]
                answers += _last_answer([pair for pair in lines if pair[1].asked != "repeat"])
                answers += _last_answer([pair for pair in lines if pair[1].asked == "repeat"])
        return [answer for _, answer in sorted(answers)]

    def last_action(self, reviewer: str) -> list[Decision]:
        """Return what the reviewer did last and that still stands: one line, or the lines of a
        batch; not what was measured.
        """
        own = [stacks.get(reviewer) for stacks in self._stacks.values()]
        tops = [stack[-1] for stack in own if stack]
        undoable = sorted((number, line) for number, line in tops if not self._is_measured(line))
        if not undoable:
            return []
        last = undoable[-1][1]
        if last.batch is None:
            return [last]
        return [line for _, line in undoable if line.batch == last.batch]

    def _is_measured(self, line: Decision) -> bool:
        """Return whether a line answers a question of the designed sample; in a list, other rows
        have second opinions, too.
        """
        asked = {other.asked for other in self.lines(line.row)}
        return line.asked == "measure" or (line.asked == "repeat" and "measure" in asked)


def _put(mapping: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _last_answer(lines: list[tuple[int, Decision]]) -> list[tuple[int, Decision]]:
    """Return the last line; if it changes an answer in the list, it remains part of the sample."""
    if not lines:
        return []
    number, answer = lines[-1]
    asked = [line for _, line in lines if line.asked]
    if asked and not answer.asked:
        answer = answer._replace(asked=asked[-1].asked, probability=asked[-1].probability)
    return [(number, answer)]


def resolve_merges(merges: Mapping[str, Decision]) -> dict[str, str]:
    """Return the class that each merged spelling becomes in the end; spellings in a circle of
    merges stay.

    >>> one = Decision(NO_ROW, "", "gentoo", "merge", "Gentoo ")
    >>> resolve_merges(
    ...     {"gentoo": one, "Gentoo ": one._replace(given_label="Gentoo ", label="Gentoo")}
    ... )
    {'gentoo': 'Gentoo', 'Gentoo ': 'Gentoo'}
    """
    becomes = {}
    for spelling in merges:
        passed = {spelling}
        name = merges[spelling].label
        while name in merges and name not in passed:
            passed.add(name)
            name = merges[name].label
        is_final = name not in merges or merges[name].label == name
        if is_final and name != spelling:
            becomes[spelling] = name
    return becomes


# Files


def find_decisions(folder: PathLike) -> Path:
    """Return the file with the decisions on the audit in ``folder``: the database, which may not
    exist yet, or decisions.csv where only that exists.
    """
    path = Path(folder, FILE)
    imported = path.with_suffix(".csv")
    return imported if imported.exists() and not path.exists() else path


def read_decisions(path: PathLike) -> dict[int, Decision]:
    """Return the decision that stands on each row, in the order of the first ones.

    Args:
        path: a database that a review wrote, or a CSV file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "decisions.csv")
    >>> write_csv([Decision(7, "b", "cat", "keep", "cat")], path)
    >>> {row: decision.label for row, decision in read_decisions(path).items()}
    {7: 'cat'}
    """
    return read_standing(path).decisions


def read_answers(path: PathLike) -> list[Decision]:
    """Return the last answer of each reviewer to each question that stands, in the order of the
    file.

    A reviewer who is asked about a row again (``repeat``) has two answers on it. An answer that the
    reviewer changes remains part of the measured sample.
    """
    return read_standing(path).answers()


def read_standing(path: PathLike) -> Standing:
    return Standing(read_log(path))


def read_log(path: PathLike) -> list[Decision]:
    """Return every line of a database or a CSV file, also lines that were changed or undone
    later.
    """
    with open(path, "rb") as file:
        is_database = file.read(15) == b"SQLite format 3"
    if not is_database:
        return _read_csv(Path(path))
    try:
        with closing(sqlite3.connect(path)) as connection:
            return _select(connection)
    except sqlite3.Error as error:
        raise BadDecisions(
            f"Expected a database of decisions in {path}, got {error}. Restore a copy, or remove"
            " it to go on with the .csv file of the same name."
        ) from error


def _select(connection: sqlite3.Connection) -> list[Decision]:
    columns = ", ".join(COLUMNS)
    return [
        Decision(*cells)
        for cells in connection.execute(f"SELECT {columns} FROM decisions ORDER BY rowid")
    ]


def _insert(connection: sqlite3.Connection, decisions: Iterable[Decision]) -> None:
    places = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT INTO decisions VALUES ({places})", decisions)


def _read_csv(path: Path) -> list[Decision]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header, *records = list(csv.reader(file, strict=True)) or [[]]
    except (UnicodeError, csv.Error) as error:
        raise BadDecisions(f"Expected decisions as UTF-8 in {path}, got {error}.") from error
    if tuple(header) != COLUMNS:
        raise BadDecisions(
            f"Expected decisions with the columns {', '.join(COLUMNS)} in {path}, got"
            f" {', '.join(header) or 'an empty file'}. Name another file with --decisions."
        )
    return [_parse(cells, number, path) for number, cells in enumerate(records, 1) if cells]


def _parse(cells: list[str], number: int, path: Path) -> Decision:
    try:
        row, id, given, choice, label, reviewer, asked, probability, batch, note = cells
        decision = Decision(
            int(row) if row else NO_ROW,
            id,
            given,
            choice,  # type: ignore[arg-type]
            label,
            reviewer,
            asked,  # type: ignore[arg-type]
            float(probability) if probability else None,
            int(batch) if batch else None,
            note,
        )
        if is_valid(decision):
            return decision
    except ValueError:
        pass
    raise BadDecisions(
        f"Expected a row number, an id, a given label, one of {', '.join(CHOICES)}, a label, a"
        " reviewer or nothing, measure, repeat or nothing, a probability with measure alone, the"
        " number of a batch or nothing, and a text with note alone in decision"
        f" {number} of {path}, got {cells}."
    )


def write_csv(decisions: Iterable[Decision], path: Path) -> None:
    """Write decisions, or the lines of a log, as a CSV file that `read_log` reads."""
    with replacing(path) as part, open(part, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for decision in decisions:
            row = "" if decision.row == NO_ROW else decision.row
            writer.writerow((row, *decision[1:]))


def check_free(path: Path) -> None:
    """Refuse a database of decisions that a running review writes to."""
    if path.exists():
        _lock(path).release()


def _lock(path: Path) -> Lock:
    lock = Lock(path.with_name(f".{path.name}.lock"))
    if not lock.held:
        raise BadDecisions(
            f"Expected {path} to be free, another review writes to it. Use the page of that review"
            " or stop it, or choose another file with --decisions."
        )
    return lock


class DecisionLog:
    """The database of decisions, open in one review at a time, thread-safe.

    ``add`` and ``add_all`` return once the decisions are on the disk, all of them or, after a
    crash, none.

    Args:
        path: of the database, or of the .csv file of the same name next to it.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path).with_suffix(".sqlite")
        self._csv = self.path.with_suffix(".csv")
        self._thread_lock = threading.Lock()
        self._lock = _lock(self.path)
        try:
            lines = self._read()
            self._connection = sqlite3.connect(self.path, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            self._lock.release()
            raise
        self.standing = Standing(lines)

    def _read(self) -> list[Decision]:
        """Return the lines of the log; where there is no database, make one of the CSV file."""
        imported = read_log(self._csv) if self._csv.exists() else []
        if self.path.exists():
            lines = read_log(self.path)
            if lines[: len(imported)] != imported:
                raise BadDecisions(
                    f"Expected the decisions of {self.path} in {self._csv}, got other ones: it was"
                    " edited. Remove the database to go on with the edited ones, else the .csv"
                    " file."
                )
            return lines
        with replacing(self.path) as part:
            part.unlink(missing_ok=True)
            with closing(sqlite3.connect(part)) as connection, connection:
                connection.execute("PRAGMA journal_mode=MEMORY")  # no second file to rename
                connection.execute(f"CREATE TABLE decisions ({', '.join(COLUMNS)})")
                _insert(connection, imported)
        return imported

    @property
    def decisions(self) -> dict[int, Decision]:
        """Return the decision on each row."""
        return self.standing.decisions

    def answers(self) -> list[Decision]:
        """Return the answers so far, as ``read_answers`` does."""
        with self._thread_lock:
            return self.standing.answers()

    def last_action(self, reviewer: str) -> list[Decision]:
        """Return what the reviewer did last and that still stands, as ``Standing`` does."""
        with self._thread_lock:
            return self.standing.last_action(reviewer)

    def next_batch(self) -> int:
        """Return a number that no batch has yet."""
        return self.standing.batches + 1

    def add(self, decision: Decision) -> None:
        """Write a decision to the disk; it counts only then."""
        self.add_all([decision])

    def add_all(self, decisions: Sequence[Decision]) -> None:
        """Write decisions to the disk in one transaction."""
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
            try:
                with self._connection:
                    _insert(self._connection, decisions)
            except sqlite3.Error as error:
                raise OSError(
                    f"Expected space for the decisions in {self.path}, got {error}."
                ) from error
            for decision in decisions:
                self.standing.add(decision)

    def close(self) -> None:
        """Write the CSV file, and release the database for another review."""
        with self._thread_lock:
            if not self._lock.held:
                return
            write_csv(_select(self._connection), self._csv)
            # one file without a log next to it, which a folder that is read-only can hold, too
            with suppress(sqlite3.OperationalError):  # another process reads it
                self._connection.execute("PRAGMA journal_mode=DELETE")
            self._connection.close()
            self._lock.release()
