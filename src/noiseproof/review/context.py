"""A row as a reviewer sees it: a few words of it, votes, and what to compare it with."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

from noiseproof.audit.files import CROWD, Audit, read_crowd, read_votes
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import AuditData, NoRows
from noiseproof.core.messages import Json
from noiseproof.review.comparisons import ColumnRanking, Nearby, WordRanking
from noiseproof.review.issues import Issues

MOST_ANNOTATORS = 500  # that a page has
MOST_ROWS = 500  # disputed ones of each annotator, that a page has
SNIPPET = 200  # characters of a text or cell
FEW = 4  # cells of a row
NEAREST = 5  # rows
TYPICAL = 2  # rows
PAIRS = 10  # the most frequent ones of issues, whose columns lead the snippets of all


class AnnotatorFiles:
    """The files of an audit about its annotators; empty where it has none."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @cached_property
    def votes(self) -> dict[int, list[list[str]]]:
        return read_votes(self.audit)

    def describe(self) -> list[Json]:
        """Return a line for each annotator, the worst first: annotators.csv, and the disputed rows.

        These are labels called wrong on rows where they disagree with the consensus.
        """
        frame = read_crowd(self.audit, CROWD[0])
        if frame is None:
            return []
        issues = self.audit.issues
        listed = issues[issues["is_label_issue"]]
        disputed: dict[str, list[int]] = {}
        for row, consensus in listed[["row", "consensus_label"]].itertuples(index=False):
            for annotator, label in self.votes.get(row, ()):
                if label != str(consensus):
                    disputed.setdefault(annotator, []).append(row)
        lines: list[dict[Any, Any]] = frame[:MOST_ANNOTATORS].astype(object).to_dict("records")
        return [{**line, "rows": disputed.get(line["annotator"], [])[:MOST_ROWS]} for line in lines]


def hidden_columns(audit: Audit) -> set[str]:
    """Return the columns that a snippet does not show: the id, which stands next to it, and
    votes.
    """
    return {audit.config["id"], *(audit.config["annotators"] or ())}


def snippet(
    content: Mapping[str, Any], columns: Iterable[str], hidden: Collection[str] = ()
) -> Json:
    """Return the beginning of a text, or the cells in ``columns``, by default the first that say
    something.

    >>> snippet({"fields": [["weight", "0"], ["size", "7"]]}, [])
    {'fields': [['size', '7']]}
    """
    if content.get("has_image"):
        return {"has_image": True}
    if "text" in content:
        return {"text": " ".join(content["text"][: 2 * SNIPPET].split())[:SNIPPET]}
    cells = dict(content.get("fields") or content.get("predictions", []))
    names = [name for name in columns if name in cells]
    if not names:
        names = [name for name, cell in cells.items() if cell not in ("", "0")]
    shown = [name for name in names if name not in hidden][:FEW]
    return {"fields": [[name, cells[name][:SNIPPET]] for name in shown]}


class Prepared(ABC):
    """Something that takes long, and is prepared in a thread from the first request on."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._prepare, daemon=True)
                self._thread.start()
            return self._thread

    @abstractmethod
    def _prepare(self) -> None: ...


class Context(Prepared):
    """The context of each row of one audit."""

    def __init__(self, audit: Audit, rows: Source | NoRows, data: AuditData | None = None) -> None:
        super().__init__()
        self.audit = audit
        self.rows = rows
        self.data = data
        self.issues = Issues(audit, everything=True)
        self.annotators = AnnotatorFiles(audit)
        self.sent: set[int] = set()  # rows that were shown next to others
        self.columns: ColumnRanking | None = None
        self.leading: list[str] = []  # columns of all snippets
        self.words: WordRanking | None = None
        self.nearby: Nearby | None = None
        self.fault: str | None = None  # why there are no rows to compare with

    def id(self, row: int) -> str | None:
        """Return the id of an audited row, None for any other."""
        at = self.issues.position.get(row)
        return None if at is None else self.issues.id[at]

    @property
    def note(self) -> str | None:
        """Return the sentence about the fault for the page, None where there is none."""
        return None if self.fault is None else f"There are no rows to compare with: {self.fault}"

    # Preparing

    def _prepare(self) -> None:
        try:
            self._read_columns_and_words()
            self._read_features()
        # readers raise many kinds of errors, and the review goes on without
        except Exception as error:
            self.fault = str(error)

    def _read_columns_and_words(self) -> None:
        columns = column_ranking(self.rows, self.issues)
        self.leading = leading_columns(columns, self.issues)
        self.columns = columns
        texts = self.rows.texts()
        if texts is not None and len(texts) == len(self.issues.at):
            self.words = WordRanking(texts, self.issues.by_row)

    def _read_features(self) -> None:
        config = self.audit.config
        issues = self.issues
        if isinstance(self.rows, NoRows) and not config.get("embeddings"):
            return
        data = self.data or read_again(self.audit)
        if data.x is None:
            return
        digest = data.source.config["labels_sha256"]
        if data.source_rows != len(issues.at) or digest != config["labels_sha256"]:
            raise ValueError("the data has changed since the audit.")
        keep = issues.audited(data.row)
        rows = data.row[keep]
        at = issues.at[rows]
        self.nearby = Nearby(data.x[keep], rows, issues.given[at], issues.quality[at])

    # Showing

    def show(self, row: int) -> Json:
        """Return what the page shows with an audited row."""
        is_pending = self.start().is_alive()  # asked first: what follows is then complete
        at = self.issues.position[row]
        given = int(self.issues.given[at])
        suggested = int(self.issues.suggested[at])
        columns = []
        if self.columns is not None:
            columns = self.columns.between(given, suggested)
        words = {}
        if self.words is not None:
            words = self.words.between(row, given, suggested)
        groups = {"duplicates": self.issues.duplicates(row)}
        if self.nearby is not None:
            sides = {"given": given, "suggested": suggested}
            for side, label in sides.items():
                groups[f"nearest_{side}"] = self.nearby.nearest(row, label, NEAREST)
            for side, label in sides.items():
                typical = [other for other in self.nearby.typical(label) if other != row]
                groups[f"typical_{side}"] = typical[:TYPICAL]
        self.sent.update(*groups.values())
        names = [column["name"] for column in columns]
        return {
            "pending": is_pending,
            "columns": columns,
            "words": words,
            "votes": self.annotators.votes.get(row, []),
            "groups": {
                name: [self.show_briefly(other, names) for other in rows]
                for name, rows in groups.items()
                if rows
            },
            "note": self.note,
        }

    def show_briefly(self, row: int, columns: Iterable[str] = ()) -> Json:
        """Return what names an audited row, and a part of it."""
        at = self.issues.position[row]
        id = self.issues.id[at]
        return {
            "row": row,
            "id": id,
            "label": self.issues.classes[self.issues.given[at]],
            "is_issue": bool(self.issues.is_issue[at]),
            **snippet(self.rows.show(row, id), columns, hidden_columns(self.audit)),
        }


def column_ranking(rows: Source | NoRows, issues: Issues) -> ColumnRanking | None:
    """Return the ranking of the columns of a source, None where it has none to rank."""
    if rows.has_pictures:  # pixels, which are seen at once
        return None
    columns = rows.columns(issues.by_row)
    if not columns or any(len(values) != len(issues.at) for values in columns.values()):
        return None
    return ColumnRanking(columns, issues.by_row)


def leading_columns(ranking: ColumnRanking | None, issues: Issues) -> list[str]:
    """Return the columns that separate the most frequent pairs of classes of issues best, the same
    for all issues.
    """
    if ranking is None:
        return []
    given = issues.given[issues.is_issue].tolist()
    suggested = issues.suggested[issues.is_issue].tolist()
    score: Counter[str] = Counter()
    for pair, count in Counter(zip(given, suggested, strict=True)).most_common(PAIRS):
        for column in ranking.between(*pair):
            score[column["name"]] += count * column["separation"]
    return [name for name, _ in score.most_common(FEW)]
