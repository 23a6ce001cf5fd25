"""Decisions on an audit that another one replaces: carried over where the rows are the same, else moved aside."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from noiseproof.audit.decisions import COLUMNS, FILE, BadDecisions, Decision, check_decisions, read_decisions, to_line
from noiseproof.audit.files import Audit, read_audit
from noiseproof.audit.sources import SOURCES

if TYPE_CHECKING:
    from noiseproof.audit.report import LabelReport

SOURCE = ("data", "labels", "label")  # entries of config.json that locate the labels


def renew_decisions(folder: str | Path, report: LabelReport) -> str | None:
    """Make decisions.csv in ``folder`` fit ``report`` before that is saved there; return a message if it changed.

    A decision stays with its row of the same file: by its id where both audits have the same kind of ids, else by its
    number, which is the same row only if all labels are the same. What does not fit is kept under another name.
    """
    path = Path(folder, FILE)
    if not path.exists():
        return None
    decisions: dict[int, Decision] = {}
    carried: dict[int, Decision] = {}
    is_same = False
    try:
        old = read_audit(folder)
        is_same = old.config["labels_sha256"] is not None and _agree(old, report, *SOURCE, "labels_sha256")
        decisions = read_decisions(path)
        check_decisions(decisions, old)
        carried = _carry_over(decisions, old, report, is_same)
        is_unchanged = carried == decisions and (is_same or bool(decisions))  # undone decisions name rows, too
    except BadDecisions:
        is_unchanged = is_same  # the rows are the same, and review and apply refuse the file until it is repaired
    except (OSError, ValueError, KeyError):  # without the earlier audit, row numbers mean nothing
        is_unchanged = False
    if is_unchanged:
        return None
    aside = path.with_name(f"decisions-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.csv")
    path.replace(aside)
    if not carried:
        return (
            f"The decisions on the earlier audit are now in {aside}: row numbers may mean other rows in this audit. "
            "Audits with --id carry decisions over."
        )
    path.write_bytes(b"".join(map(to_line, (COLUMNS, *carried.values()))))
    return f"{len(carried)} of {len(decisions)} decisions on the earlier audit are carried over; all are in {aside}."


def _carry_over(decisions: dict[int, Decision], old: Audit, report: LabelReport, is_same: bool) -> dict[int, Decision]:
    """Return the decisions on rows that ``report`` has with the label the reviewer saw, by their numbers there."""
    data, is_audited = report.data, report.data.row >= 0
    has_ids = SOURCES[old.config["kind"]](old.config).has_ids
    labels = [data.classes[k] for k in data.given[is_audited].tolist()]
    ids = [str(id) for id in data.names[is_audited].tolist()]
    rows = dict(zip(data.row[is_audited].tolist(), zip(ids, labels, strict=True), strict=True))
    times = Counter(ids) + Counter(old.issues["id"].tolist())
    by_id = {id: row for row, (id, _) in rows.items() if times[id] == 2}  # once in each audit
    if not has_ids or not _agree(old, report, *SOURCE, "id"):
        by_id = {}
    carried = {}
    for decision in decisions.values():
        row = decision.row if is_same else -1
        if has_ids and (row not in rows or rows[row][0] != decision.id):
            row = by_id.get(decision.id, -1)
        if row in rows and rows[row][1] == decision.given_label and decision.label in {*data.classes, ""}:
            carried[row] = decision._replace(row=row, id=rows[row][0])
    return carried


def _agree(old: Audit, report: LabelReport, *names: str) -> bool:
    return all(old.config[name] == report.config[name] for name in names)
