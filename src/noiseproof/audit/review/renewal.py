"""Decisions on an audit that another one replaces: kept where they are on the same rows, else moved aside."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from noiseproof.audit.files import Audit, read_audit
from noiseproof.audit.review.decisions import COLUMNS, BadDecisions, Decision, read_decisions, to_line
from noiseproof.audit.review.queue import check_words

if TYPE_CHECKING:
    from noiseproof.audit.report import LabelReport

SOURCE = ("data", "labels", "label")  # of an audit's config: where the labels are


def renew_decisions(folder: str | Path, report: LabelReport) -> str | None:
    """Make decisions.csv in ``folder`` fit ``report``, before that is saved there; says what it moved, if anything.

    A decision stays with its row of the same file: by its id where both audits have the same kind of ids, else by its
    number, which is the same row only if all labels are the same. What does not fit is kept under another name.
    """
    path = Path(folder, "decisions.csv")
    if not path.exists():
        return None
    words: dict[int, Decision] = {}
    carried: dict[int, Decision] = {}
    is_same = False
    try:
        old = read_audit(folder)
        is_same = old.config["labels_sha256"] is not None and _agree(old, report, *SOURCE, "labels_sha256")
        words = read_decisions(path)
        check_words(words, old)
        carried = _carry(words, old, report, is_same)
        is_kept = carried == words and (is_same or bool(words))  # words that were undone name rows, too
    except BadDecisions:
        is_kept = is_same  # the rows are the same, and review and apply refuse the file until it is mended
    except (OSError, ValueError, KeyError):  # without the earlier audit nobody knows which rows were meant
        is_kept = False
    if is_kept:
        return None
    aside = path.with_name(f"decisions-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.csv")
    path.replace(aside)
    if not carried:
        return (
            f"The decisions on the earlier audit are now in {aside}: a row's number need not mean the same row here. "
            "Audits with --id carry decisions over."
        )
    path.write_bytes(b"".join(map(to_line, (COLUMNS, *carried.values()))))
    return f"{len(carried)} of {len(words)} decisions on the earlier audit are carried over; all are in {aside}."


def _carry(words: dict[int, Decision], old: Audit, report: LabelReport, is_same: bool) -> dict[int, Decision]:
    """The decisions on rows that ``report`` has with the label that the reviewer saw, by their numbers there."""
    data, own = report.data, report.data.row >= 0
    has_ids = old.config["id"] is not None or old.config["kind"] == "folder"
    labels = [data.classes[k] for k in data.given[own].tolist()]
    ids = [str(id) for id in data.names[own].tolist()]
    rows = dict(zip(data.row[own].tolist(), zip(ids, labels, strict=True), strict=True))
    times = Counter(ids) + Counter(old.issues["id"].tolist())
    by_id = {id: row for row, (id, _) in rows.items() if times[id] == 2}  # once in each audit
    if not has_ids or not _agree(old, report, *SOURCE, "id"):
        by_id = {}
    carried = {}
    for word in words.values():
        row = word.row if is_same else -1
        if has_ids and (row not in rows or rows[row][0] != word.id):
            row = by_id.get(word.id, -1)
        if row in rows and rows[row][1] == word.given_label and word.label in {*data.classes, ""}:
            carried[row] = word._replace(row=row, id=rows[row][0])
    return carried


def _agree(old: Audit, report: LabelReport, *names: str) -> bool:
    return all(old.config[name] == report.config[name] for name in names)
