"""Annotators on the review page: the quality of each, their votes on a row, and the rows where they stand alone."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from noiseproof.audit.files import CROWD, Audit, read_crowd, read_votes

MOST, MOST_ROWS = 500, 500  # annotators, and disputed rows of each, that a page has


class AnnotatorFiles:
    """The files of an audit about its annotators; empty where it has none."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @cached_property
    def votes(self) -> dict[int, list[list[str]]] | None:
        """The annotators of each row with their labels, None where votes are in columns of the data alone."""
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
        for row, consensus in zip(listed["row"].tolist(), listed["consensus_label"].tolist(), strict=True):
            for annotator, label in (self.votes or {}).get(row, ()):
                if label != str(consensus):
                    disputed.setdefault(annotator, []).append(row)
        names = list(map(str, frame.columns))
        lines = [dict(zip(names, cells, strict=True)) for cells in frame[:MOST].astype(object).values.tolist()]
        return [{**line, "rows": disputed.get(line["annotator"], [])[:MOST_ROWS]} for line in lines]
