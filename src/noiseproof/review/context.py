"""A row as a reviewer sees it: a few words of it, votes, and what to compare it with."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from noiseproof.audit.files import CROWD, Audit, cache_beside, read_crowd, read_votes
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import AuditData, NoRows
from noiseproof.review.comparisons import ColumnRanking, Nearby, WordRanking

MOST_ANNOTATORS, MOST_ROWS = 500, 500  # annotators, and disputed rows of each, that a page has
SNIPPET, FEW = 200, 4  # characters of a text or cell, cells of a row
NEAREST, TYPICAL, DUPLICATES = 5, 2, 10  # rows of each kind
PAIRS = 10  # the most frequent ones of issues, whose columns lead the snippets of all


class AnnotatorFiles:
    """The files of an audit about its annotators; empty where it has none."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @cached_property
    def votes(self) -> dict[int, list[list[str]]]:
        return read_votes(self.audit)

    def describe(self) -> list[dict[str, Any]]:
        """Return a line for each annotator, the worst first: annotators.csv, and the disputed rows.

        These are labels called wrong on rows where they disagree with the consensus.
        """
        if (frame := read_crowd(self.audit, CROWD[0])) is None:
            return []
        issues = self.audit.issues
        listed = issues[issues["is_label_issue"]]
        disputed: dict[str, list[int]] = {}
        for row, consensus in zip(
            listed["row"].tolist(), listed["consensus_label"].tolist(), strict=True
        ):
            for annotator, label in self.votes.get(row, ()):
                if label != str(consensus):
                    disputed.setdefault(annotator, []).append(row)
        names = list(map(str, frame.columns))
        lines = [
            dict(zip(names, cells, strict=True))
            for cells in frame[:MOST_ANNOTATORS].astype(object).values.tolist()
        ]
        return [{**line, "rows": disputed.get(line["annotator"], [])[:MOST_ROWS]} for line in lines]


def hidden_columns(audit: Audit) -> set[str]:
    """Return the columns that a snippet does not show: the id, which stands beside it, and
    votes.
    """
    return {audit.config["id"], *(audit.config["annotators"] or ())}


def snippet(
    content: Mapping[str, Any], columns: Iterable[str], hidden: Collection[str] = ()
) -> dict[str, Any]:
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
    first = [name for name in columns if name in cells] or [
        n for n, cell in cells.items() if cell not in ("", "0")
    ]
    return {"fields": [[name, cells[name][:SNIPPET]] for name in first if name not in hidden][:FEW]}


class Labels:
    """The audited rows by their number in the source: classes, quality, groups of
    near-duplicates.
    """

    def __init__(self, audit: Audit) -> None:
        import pandas as pd

        frame = audit.issues
        self.classes = audit.classes
        self.row = frame["row"].to_numpy(dtype=np.int64)
        self.id: list[str] = frame["id"].tolist()
        self.given = audit.class_numbers("given_label")
        self.suggested = audit.class_numbers("suggested_label")
        self.is_issue = frame["is_label_issue"].to_numpy(dtype=bool)
        self.quality = frame["label_quality"].to_numpy(dtype=np.float64)
        self.position = {row: i for i, row in enumerate(self.row.tolist())}
        groups = pd.to_numeric(frame["duplicate_group"], errors="coerce").to_numpy(dtype=np.float64)
        self.group = np.where(np.isnan(groups), -1, groups).astype(np.int64)
        rows = max(int(audit.config["source_rows"]), int(self.row.max(initial=-1)) + 1)
        self.at = np.full(rows, -1)  # row → position
        self.at[self.row] = np.arange(len(self.row))

    @property
    def by_row(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The class of each row of the source, −1 where it was not audited."""
        return np.where(self.at < 0, -1, self.given[self.at])

    def duplicates(self, row: int) -> list[int]:
        """Return the near-duplicates of a row, those of another class first."""
        i = self.position[row]
        if self.group[i] < 0:
            return []
        others = np.flatnonzero(self.group == self.group[i])
        others = others[others != i]
        order = np.lexsort((self.row[others], self.given[others] == self.given[i]))
        return [int(r) for r in self.row[others[order]][:DUPLICATES]]


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
    """The context of each row of one audit; what takes long is prepared in a thread, from the first
    request on.
    """

    def __init__(self, audit: Audit, rows: Source | NoRows, data: AuditData | None = None) -> None:
        super().__init__()
        self.audit, self.rows, self.data, self.labels = audit, rows, data, Labels(audit)
        self.annotators = AnnotatorFiles(audit)
        self.sent: set[int] = set()  # rows that were shown beside others
        self.columns: ColumnRanking | None = None
        self.leading: list[str] = []  # columns of all snippets
        self.words: WordRanking | None = None
        self.nearby: Nearby | None = None
        self.note: str | None = None

    def id(self, row: int) -> str | None:
        """Return the id of an audited row, None for any other."""
        at = self.labels.position.get(row)
        return None if at is None else self.labels.id[at]

    # Preparing

    def _prepare(self) -> None:
        try:
            self._read_columns_and_words()
            self._read_features()
        except (
            Exception
        ) as error:  # readers raise many kinds of errors, and the review goes on without
            self.note = f"There are no rows to compare with: {error}"

    def _read_columns_and_words(self) -> None:
        labels, given = self.labels, self.labels.by_row
        columns = column_ranking(self.rows, self.labels)
        self.leading = leading_columns(columns, self.labels)
        self.columns = columns
        if (texts := self.rows.texts()) is not None and len(texts) == len(given):
            words = WordRanking(texts, given, len(labels.classes))
            self.words = words if words.has_words else None

    def _read_features(self) -> None:
        config, labels = self.audit.config, self.labels
        if isinstance(self.rows, NoRows) and not config.get("embeddings"):
            return
        data = (
            read_again(config, cache_beside(self.audit.folder)) if self.data is None else self.data
        )
        if data.x is None:
            return
        if (
            data.source_rows != len(labels.at)
            or data.source.config["labels_sha256"] != config["labels_sha256"]
        ):
            raise ValueError("the data has changed since the audit.")
        keep = np.flatnonzero((data.row >= 0) & (labels.at[data.row] >= 0))
        at = labels.at[data.row[keep]]
        self.nearby = Nearby(data.x[keep], data.row[keep], labels.given[at], labels.quality[at])

    # Showing

    def show(self, row: int) -> dict[str, Any]:
        """Return what the page shows beside an audited row."""
        is_pending = self.start().is_alive()  # asked first: what follows is then complete
        at = self.labels.position[row]
        given, suggested = int(self.labels.given[at]), int(self.labels.suggested[at])
        columns = self.columns.between(given, suggested) if self.columns is not None else []
        names = [column["name"] for column in columns]
        groups = {
            "duplicates": self.labels.duplicates(row),
            "nearest_given": self._nearest(row, given),
            "nearest_suggested": self._nearest(row, suggested),
            "typical_given": self._typical(row, given),
            "typical_suggested": self._typical(row, suggested),
        }
        return {
            "pending": is_pending,
            "columns": columns,
            "words": self.words.between(row, given, suggested) if self.words is not None else {},
            "votes": self.annotators.votes.get(row, []),
            "groups": {
                name: [self._snippet(r, names) for r in rows]
                for name, rows in groups.items()
                if rows
            },
            "note": self.note,
        }

    def _nearest(self, row: int, label: int) -> list[int]:
        return (
            []
            if self.nearby is None
            else [other for other, _ in self.nearby.nearest(row, label, NEAREST)]
        )

    def _typical(self, row: int, label: int) -> list[int]:
        rows = [] if self.nearby is None else self.nearby.typical(label)
        return [other for other in rows if other != row][:TYPICAL]

    def _snippet(self, row: int, columns: Iterable[str]) -> dict[str, Any]:
        self.sent.add(row)
        return self.show_briefly(row, columns)

    def show_briefly(self, row: int, columns: Iterable[str] = ()) -> dict[str, Any]:
        """Return what names an audited row, and a part of it."""
        at = self.labels.position[row]
        about: dict[str, Any] = {
            "row": row,
            "id": self.labels.id[at],
            "label": self.labels.classes[self.labels.given[at]],
            "is_issue": bool(self.labels.is_issue[at]),
        }
        return about | snippet(
            self.rows.show(row, self.labels.id[at]), columns, hidden_columns(self.audit)
        )


def column_ranking(rows: Source | NoRows, labels: Labels) -> ColumnRanking | None:
    """Return the ranking of the columns of a source, None where it has none to rank."""
    if rows.has_pictures:  # pixels, which are seen at once
        return None
    columns = rows.columns(labels.by_row)
    if not columns or any(len(values) != len(labels.at) for values in columns.values()):
        return None
    return ColumnRanking(columns, labels.by_row)


def leading_columns(ranking: ColumnRanking | None, labels: Labels) -> list[str]:
    """Return the columns that separate the most frequent pairs of classes of issues best, the same
    for all issues.
    """
    if ranking is None:
        return []
    given, suggested = (
        codes[labels.is_issue].tolist() for codes in (labels.given, labels.suggested)
    )
    score: Counter[str] = Counter()
    for pair, issues in Counter(zip(given, suggested, strict=True)).most_common(PAIRS):
        for column in ranking.between(*pair):
            score[column["name"]] += issues * column["separation"]
    return [name for name, _ in score.most_common(FEW)]
