"""Decisions on an earlier audit that a new one in its folder takes over."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import (
    NO_ROW,
    BadDecisions,
    Decision,
    last_decisions,
    read_log,
    to_bytes,
)
from noiseproof.audit.files import DESIGN, Audit, check_decisions, read_audit
from noiseproof.audit.result import AuditResult
from noiseproof.audit.rows import follow_rows, read_row_digests
from noiseproof.audit.sources import SOURCES
from noiseproof.core.files import replacing

SOURCE = ("data", "labels", "label")  # entries of config.json that locate the labels


@dataclass(frozen=True)
class Renewal:
    """Decisions that moved aside, and those that another audit takes over once it is written."""

    message: str
    path: Path
    carried: Sequence[Decision]

    def finish(self) -> None:
        """Write the decisions that are carried over."""
        if self.carried:
            with replacing(self.path) as part:
                part.write_bytes(to_bytes(self.carried))


def renew_decisions(folder: str | Path, report: AuditResult) -> Renewal | None:
    """Move decisions.csv in ``folder`` aside where it does not fit ``report``, which is to be saved
    there.

    A decision stays with its row of the same file: found by its content, else by its id where both
    audits have the same kind of ids. What does not fit is kept under another name. The designed
    sample (measure.json and strata.npy) stays if the audited rows are the same.
    """
    path = Path(folder, DECISIONS)
    design = [file for file in (path.with_name(name) for name in DESIGN) if file.exists()]
    if not path.exists() and not design:
        return None
    renewed = _renew(path, report)
    if renewed.is_unchanged and (renewed.keeps_design or not design):
        return None
    digest = hashlib.sha256((path if path.exists() else design[0]).read_bytes()).hexdigest()[:8]
    for file in () if renewed.keeps_design else design:
        file.replace(file.with_name(f"{file.stem}-{digest}{file.suffix}"))
    if not path.exists():
        return None
    aside = path.with_name(f"decisions-{digest}.csv")
    path.replace(aside)
    if not (kept := len(last_decisions(renewed.carried))):
        gone = (
            "row numbers may mean other rows in this audit. Audits with --id carry decisions over."
        )
        return Renewal(f"The decisions on the earlier audit are now in {aside}: {gone}", path, ())
    total = len(last_decisions(renewed.lines))
    message = (
        f"{kept} of {total} decisions on the earlier audit are carried over; all are in {aside}."
    )
    return Renewal(message, path, renewed.carried)


@dataclass
class _Renewed:
    """The lines of decisions.csv, and those that another audit takes over."""

    lines: list[Decision] = field(default_factory=list)
    carried: list[Decision] = field(default_factory=list)
    is_unchanged: bool = False
    keeps_design: bool = False


def _renew(path: Path, report: AuditResult) -> _Renewed:
    renewed, is_same = _Renewed(), False
    try:
        old = read_audit(path.parent)
        is_same = old.config["labels_sha256"] is not None and _agree(
            old, report, *SOURCE, "labels_sha256"
        )
        place = _followed(old, report) if _agree(old, report, *SOURCE) else {}
        is_same &= _agree(old, report, "rows_sha256")
        lines = renewed.lines = read_log(path) if path.exists() else []
        check_decisions(lines, old)
        carried = _carry_over(lines, old, report, is_same, place)
        same_rows = set(old.issues["row"]) == set(report.data.row[report.data.row >= 0].tolist())
        renewed.keeps_design = is_same and same_rows and len(carried) == len(lines)
        renewed.carried = (
            carried if renewed.keeps_design else [_without_design(line) for line in carried]
        )
        renewed.is_unchanged = renewed.carried == lines and (is_same or bool(lines))
    except BadDecisions:
        # the rows are the same, and review and apply refuse the file until repaired
        renewed.is_unchanged = is_same
    except (OSError, ValueError, KeyError):  # without the earlier audit, row numbers mean nothing
        pass
    return renewed


def _without_design(line: Decision) -> Decision:
    return line._replace(asked="", probability=None) if line.asked == "measure" else line


def _followed(old: Audit, report: AuditResult) -> dict[int, int]:
    """Return where the rows of the earlier audit are now, for rows that have no copies."""
    assert report.row_digests is not None
    place, has_copies = follow_rows(read_row_digests(old), report.row_digests)
    return {row: now for row, now in enumerate(place.tolist()) if now >= 0 and not has_copies[row]}


def _carry_over(
    lines: list[Decision], old: Audit, report: AuditResult, is_same: bool, place: dict[int, int]
) -> list[Decision]:
    """Return the lines on rows that ``report`` has with the label the reviewer saw, by their
    numbers there.
    """
    data, is_audited = report.data, report.data.row >= 0
    has_ids = SOURCES[old.config["kind"]](old.config).has_ids
    labels = [data.classes[k] for k in data.given[is_audited].tolist()]
    ids = [str(id) for id in data.names[is_audited].tolist()]
    rows = dict(zip(data.row[is_audited].tolist(), zip(ids, labels, strict=True), strict=True))
    by_id = _rows_by_id(old, rows) if has_ids and _agree(old, report, *SOURCE, "id") else {}

    def find(decision: Decision) -> int:
        row = place.get(decision.row, decision.row if is_same else -1)
        return row if row in rows else by_id.get(decision.id, -1)

    carried = []
    for decision in lines:
        if decision.row == NO_ROW:  # about classes
            if is_same or {decision.given_label, decision.label} <= {*data.classes, ""}:
                carried.append(decision)
            continue
        row = find(decision)
        is_known = decision.decision == "other" or decision.label in {*data.classes, ""}
        if row in rows and rows[row][1] == decision.given_label and is_known:
            carried.append(decision._replace(row=row, id=rows[row][0]))
    return carried


def _rows_by_id(old: Audit, rows: Mapping[int, tuple[str, str]]) -> dict[str, int]:
    times = Counter(id for id, _ in rows.values()) + Counter(old.issues["id"].tolist())
    return {id: row for row, (id, _) in rows.items() if times[id] == 2}  # once in each audit


def _agree(old: Audit, report: AuditResult, *names: str) -> bool:
    return all(old.config[name] == report.config[name] for name in names)
