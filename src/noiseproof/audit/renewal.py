"""Decisions on an earlier audit that a new one in its folder takes over."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from noiseproof.audit.decisions import (
    NO_ROW,
    BadDecisions,
    Decision,
    Standing,
    find_decisions,
    read_log,
)
from noiseproof.audit.files import DESIGN, Audit, check_decisions, read_audit
from noiseproof.audit.result import AuditResult
from noiseproof.audit.rows import follow_rows, read_row_digests
from noiseproof.audit.sources import SOURCES
from noiseproof.core.files import PathLike

SOURCE = ("data", "labels", "label")  # entries of config.json that locate the labels


def renew_decisions(
    folder: PathLike, report: AuditResult
) -> tuple[str, Path, Sequence[Decision]] | None:
    """Move the decisions in ``folder`` aside where they do not fit ``report``, which is to be saved
    there.

    A decision stays with its row of the same file: found by its content, else by its id where both
    audits have the same kind of ids. What does not fit is kept under another name. The designed
    sample (measure.json and strata.npy) stays if the audited rows are the same.

    Returns:
        What to tell, and the file and its decisions to write once the new audit is written; None
        where all stays.
    """
    path = find_decisions(folder)
    design = [file for file in (path.with_name(name) for name in DESIGN) if file.exists()]
    if not path.exists() and not design:
        return None
    lines = _read_whole(path)
    counted = path if path.exists() else design[0]
    digest = hashlib.sha256(counted.read_bytes()).hexdigest()[:8]
    carried, is_same = _carried(path.parent, lines, report)
    if carried is None:  # review and apply refuse the file until it is repaired
        return None
    if not is_same or len(carried) != len(lines or ()):
        for file in design:
            file.replace(file.with_name(f"{file.stem}-{digest}{file.suffix}"))
        carried = [
            line._replace(asked="", probability=None) if line.asked == "measure" else line
            for line in carried
        ]
    if carried == lines or not path.exists():
        return None
    for file in {path, path.with_suffix(".csv")}:
        if file.exists():
            file.replace(file.with_stem(f"decisions-{digest}"))
    aside = path.with_stem(f"decisions-{digest}")
    kept = len(Standing(carried).decisions)
    if not kept:
        gone = (
            "row numbers may mean other rows in this audit. Audits with --id carry decisions over."
        )
        return f"The decisions on the earlier audit are now in {aside}: {gone}", path, ()
    total = len(Standing(lines or ()).decisions)
    message = (
        f"{kept} of {total} decisions on the earlier audit are carried over; all are in {aside}."
    )
    return message, path.with_suffix(".csv"), carried


def _carried(
    folder: Path, lines: list[Decision] | None, report: AuditResult
) -> tuple[list[Decision] | None, bool]:
    """Return the lines that ``report`` takes over, and whether it has the same rows; None for lines
    that are damaged or of another audit, while the rows are the same.
    """
    carried: list[Decision] | None = []
    is_same = False
    try:
        old = read_audit(folder)
        is_same_source = _agree(old, report, *SOURCE)
        place = _followed(old, report) if is_same_source else {}
        is_same = is_same_source and _agree(old, report, "labels_sha256", "rows_sha256")
        is_same &= old.config["labels_sha256"] is not None
        if lines is None:
            raise BadDecisions
        check_decisions(lines, old)
        carried = _carry_over(lines, old, report, is_same, place)
        is_same &= {*old.issues["row"]} == report.data.audited.keys()
    except BadDecisions:
        carried = None if is_same else []
    except (OSError, ValueError, KeyError):  # without the earlier audit, row numbers mean nothing
        pass
    return carried, is_same


def _read_whole(path: Path) -> list[Decision] | None:
    """Return the lines of a file of decisions, none if there is no file; None if it is damaged."""
    try:
        return read_log(path) if path.exists() else []
    except BadDecisions:
        return None


def _followed(old: Audit, report: AuditResult) -> dict[int, int]:
    """Return where the rows of the earlier audit are now, for rows that have no copies."""
    assert report.row_digests is not None
    place, has_copies = follow_rows(read_row_digests(old), report.row_digests)
    is_known = (place >= 0) & ~has_copies
    return dict(zip(np.flatnonzero(is_known).tolist(), place[is_known].tolist(), strict=True))


def _carry_over(
    lines: list[Decision], old: Audit, report: AuditResult, is_same: bool, place: dict[int, int]
) -> list[Decision]:
    """Return the lines on rows that ``report`` has with the label the reviewer saw, by their
    numbers there.
    """
    data = report.data
    rows = data.audited
    by_id = {}
    if SOURCES[old.config["kind"]](old.config).has_ids and _agree(old, report, *SOURCE, "id"):
        by_id = _rows_by_id(old, rows)
    carried = []
    for decision in lines:
        if decision.row == NO_ROW:  # about classes
            if is_same or {decision.given_label, decision.label} <= {*data.classes, ""}:
                carried.append(decision)
            continue
        row = place.get(decision.row, decision.row if is_same else -1)
        if row not in rows:
            row = by_id.get(decision.id, -1)
        is_known = decision.decision == "other" or decision.label in {*data.classes, ""}
        if row in rows and rows[row][1] == decision.given_label and is_known:
            carried.append(decision._replace(row=row, id=rows[row][0]))
    return carried


def _rows_by_id(old: Audit, rows: Mapping[int, tuple[str, str]]) -> dict[str, int]:
    times = Counter(id for id, _ in rows.values()) + Counter(old.issues["id"].tolist())
    return {id: row for row, (id, _) in rows.items() if times[id] == 2}  # once in each audit


def _agree(old: Audit, report: AuditResult, *names: str) -> bool:
    return all(old.config[name] == report.config[name] for name in names)
