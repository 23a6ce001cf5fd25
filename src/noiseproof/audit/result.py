"""The result of an audit, as tables and as files."""

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from noiseproof.audit.files import (
    COLUMNS,
    CROWD,
    FILES,
    FORMAT,
    MOST_PREDICTIONS,
    PARQUET,
    PREDICTIONS,
    ROWS,
    to_json,
)
from noiseproof.audit.issues import Issue, WrongLabels
from noiseproof.audit.rows import Digests
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Array, Floats32, Ints
from noiseproof.core.files import replacing_all
from noiseproof.core.messages import Json
from noiseproof.core.tablefiles import safe_table
from noiseproof.data.frames import write_csv
from noiseproof.judge.crowd.confusion import Annotators, VotedRows
from noiseproof.judge.crowd.quality import AnnotatorQuality, label_again, measure_quality
from noiseproof.judge.issues.base import MAX_LISTED
from noiseproof.judge.issues.label import TRUSTED, general_sentences
from noiseproof.judge.issues.leakage import distrust, leaking_columns
from noiseproof.judge.labelissues import LabelIssues

AGAIN = 100  # rows to label again that are listed
TAKEN = (
    "The predictions are taken as they are: wrong labels look right if their model saw a column"
    " that was made from the label."
)


@dataclass(frozen=True, eq=False, repr=False)
class AuditResult:
    """The issues of every type for each row, and a summary of the dataset."""

    data: AuditData
    issues: tuple[Issue, ...]  # one of each type
    neighbour_recall: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    # of each stage; `save` adds the time of writing
    seconds: dict[str, float] = field(default_factory=dict)
    # (N, K) of models that did not see the row; of a thorough audit
    out_of_sample: Floats32 | None = None
    row_digests: Digests | None = None  # of all rows of the source

    @property
    def label_issues(self) -> LabelIssues:
        """The quality of each label."""
        return next(issue.labels for issue in self.issues if isinstance(issue, WrongLabels))

    @property
    def order(self) -> Ints:
        """Audited rows from the worst to the best: issues first, each part by its quality, (N,)."""
        rows = np.flatnonzero(self.data.row >= 0)
        labels = self.label_issues
        keys = (self.data.row[rows], labels.quality[rows], ~labels.is_issue[rows])
        return rows[np.lexsort(keys)]

    def table(self) -> pd.DataFrame:
        """The rows of issues.csv."""
        rows = self.order
        data = self.data
        columns = {"row": data.row[rows], "id": data.names[rows], "why": self.why(rows)}
        for issue in self.issues:
            columns |= issue.columns(data, rows)
        order = dict.fromkeys((*COLUMNS, *columns))
        return pd.DataFrame({name: columns[name] for name in order})

    def why(self, rows: Ints) -> Array:
        """One sentence for each of ``rows``, (R,): with its numbers for an issue, in general for
        the others.
        """
        data = self.data
        labels = self.label_issues
        is_predicted = labels.predicted[rows] == data.given[rows]
        sentences = general_sentences(
            labels.quality[rows], labels.suggestion_quality[rows], is_predicted
        )
        if data.trusted is not None:
            sentences[data.trusted[rows]] = TRUSTED
        at = np.flatnonzero(labels.is_issue[rows])
        reasons = zip(*(issue.explain(data, rows[at]) for issue in self.issues), strict=True)
        sentences[at] = ["; ".join(filter(None, parts)) + "." for parts in reasons]
        return sentences

    def summary(self) -> Json:
        """The contents of summary.json."""
        data = self.data
        recall = self.neighbour_recall
        notes = [*data.notes]
        if recall is not None and recall < 1:
            notes.append(f"Neighbours were found approximately, {recall:.1%} of the true ones.")
        summary: Json = {
            "format": FORMAT,
            "source_rows": data.source_rows,
            "rows": int((data.row >= 0).sum()),
        }
        for issue in self.issues:
            summary |= issue.summary(data)
            notes += issue.notes()
        skipped = [
            {"reason": s.reason, "count": len(s.rows), "rows": s.rows[:MAX_LISTED].tolist()}
            for s in data.skipped
        ]
        known = {
            "trusted": 0 if data.trusted is None else int(data.trusted.sum()),
            "annotators": 0 if data.labels.votes is None else len(data.labels.votes.names),
        }
        summary |= {
            "known": known,
            "models": self.config.get("models", []),
            "skipped": skipped,
            "notes": notes,
            "neighbour_recall": recall,
            "seconds": dict(self.seconds),
        }
        if data.pred_probs is not None and summary["labels_look_fine"]:
            notes.append(TAKEN)
        if leaking := leaking_columns(summary):
            summary["verdict"] = distrust(
                summary["verdict"], leaking, data, self.config.get("ignore") or ()
            )
            summary["labels_look_fine"] = False
        return summary

    @cached_property
    def annotator_quality(self) -> AnnotatorQuality:
        """The accuracy of each annotator with its interval, and what they confuse."""
        voted, fitted = self._voted()
        return measure_quality(voted, fitted)

    @property
    def annotators(self) -> pd.DataFrame:
        """The rows of annotators.csv: labels, quality with its 95 % interval, the most frequent
        confusion, advice.
        """
        return self.annotator_quality.table(self.data.classes)

    def label_again(self, n: int = AGAIN, *, most: int | None = None) -> pd.DataFrame:
        """The rows of label_again.csv: the ``n`` rows whose next label is worth most, and who
        should give it.

        With ``most``, no one gets more rows than that.
        """
        voted, fitted = self._voted()
        data = self.data
        labels = self.label_issues
        found = label_again(
            voted, fitted, self.annotator_quality, n, most=most, among=data.row >= 0
        )
        rows = found["row"].to_numpy()
        consensus = labels.consensus(data.given)
        quality = np.maximum(labels.quality, labels.suggestion_quality)
        return pd.DataFrame(
            {
                "row": data.row[rows],
                "id": data.names[rows],
                "annotator": np.array(voted.votes.names)[found["annotator"]],
                "gain": found["gain"].round(4),
                "consensus": np.array(data.classes, dtype=object)[consensus[rows]],
                "quality": quality[rows].astype(np.float64).round(4),
                "labels": np.diff(voted.votes.first)[rows],
            }
        )

    def votes(self) -> pd.DataFrame:
        """The rows of votes.csv: row, id, annotator and label of each vote on an audited row."""
        votes = self._voted()[0].votes
        row = self.data.row[votes.row]
        frame = pd.DataFrame(
            {
                "row": row,
                "id": self.data.names[votes.row],
                "annotator": np.array(votes.names, dtype=object)[votes.annotator],
                "label": np.array(self.data.classes, dtype=object)[votes.label],
            }
        )
        return frame[row >= 0].reset_index(drop=True)

    def _voted(self) -> tuple[VotedRows, Annotators]:
        labels = self.label_issues
        if labels.voted is None or labels.judge is None or labels.judge.annotators is None:
            raise ValueError(
                "Expected an audit of several annotators, got none. Name `annotators` or"
                " `annotations`."
            )
        return labels.voted, labels.judge.annotators


def write_audit(folder: Path, report: AuditResult, *, csv_safe: bool = True) -> list[Path]:
    """Write the files of an audit to an existing ``folder``; earlier ones are replaced once all are
    written.

    With ``csv_safe``, no spreadsheet takes a cell of issues.csv for a formula; `read_audit` reads
    cells as they were.
    """
    began = time.perf_counter()
    table = report.table()
    predictions = _predictions(report)
    # pandas quotes carriage returns in cells only if they can end a line.
    texts = (*table["given_label"].cat.categories, *map(str, table["id"]))
    end = "\r\n" if any("\r" in text for text in texts) else "\n"
    written: list[Path] = []
    with replacing_all(folder) as part_of:

        def part(name: str) -> Path:
            written.append(folder / name)
            return part_of(name)

        write_csv(safe_table(table) if csv_safe else table, part(FILES[0]), end)
        if importlib.util.find_spec("pyarrow") is not None:
            table.to_parquet(part(PARQUET), index=False, engine="pyarrow")
        if report.data.labels.votes is not None:
            for name, frame in zip(
                CROWD, (report.annotators, report.label_again(), report.votes()), strict=True
            ):
                write_csv(safe_table(frame) if csv_safe else frame, part(name))
        report.seconds["writing"] = round(time.perf_counter() - began, 3)
        contents = report.summary(), {**report.config, "csv_safe": csv_safe}
        for name, content in zip(FILES[1:], contents, strict=True):
            part(name).write_text(to_json(content), encoding="utf-8")
        arrays = {PREDICTIONS: predictions, ROWS: report.row_digests}
        for name, array in arrays.items():
            if array is not None:
                with open(part(name), "wb") as file:
                    np.save(file, array)
    absent = [name for name, array in arrays.items() if array is None]
    for name in [*absent, *(CROWD if report.data.labels.votes is None else ())]:
        (folder / name).unlink(missing_ok=True)  # of an earlier audit
    return written


def _predictions(report: AuditResult) -> Floats32 | None:
    """The out-of-sample predictions in the order of the source, NaN for rows that were not
    audited.
    """
    data = report.data
    probs = report.out_of_sample
    if probs is None or data.source_rows * probs.shape[1] > MOST_PREDICTIONS:
        return None
    audited = data.row >= 0
    table = np.full((data.source_rows, probs.shape[1]), np.nan, np.float32)
    table[data.row[audited]] = probs[audited]
    return table
