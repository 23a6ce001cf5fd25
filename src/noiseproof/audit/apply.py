"""Corrected datasets: a copy with the labels decided in the review."""

import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import pandas as pd

from noiseproof.audit.correction import Correction, voted_cells
from noiseproof.audit.decisions import Decision, Standing
from noiseproof.audit.files import Audit, read_audit
from noiseproof.audit.issues import Fix
from noiseproof.audit.plan import Plan, plan_corrections, read_reviewed
from noiseproof.audit.sources import SOURCES, Source
from noiseproof.core.files import PathLike, file_digest, replacing
from noiseproof.core.tablefiles import safe_table, table_kind
from noiseproof.judge.issues.base import issue_types

Excluded = Literal["leave-out", "mark"]  # what becomes of excluded rows
T = TypeVar("T")
EPOCHS = 50  # where the audit trained nothing


def corrected(
    folder: PathLike,
    data: Any,
    *,
    decisions: PathLike | None = None,
    accept_all: bool = False,
    yes: bool = False,
    excluded: Excluded = "leave-out",
    fix: Sequence[str] = (),
    votes: bool = False,
) -> Any:
    """Return data that was audited in memory with the labels that were decided on, in a copy.

    A DataFrame of pandas or polars, a Hugging Face ``Dataset``, and labels alone (an array, a
    tensor, a list, a Series) are returned in the same kind. Of other data, such as dicts, Arrow
    tables and torch data sets, the corrected labels are returned, one for each row. Rows that have
    moved are found by their content; data with rows that changed, came or went is refused.

    Args:
        decisions: by default those in the folder.
        accept_all: as of `corrections`, and so is ``yes``.
        excluded: excluded rows of DataFrames and data sets are left out, unless this is "mark";
            labels alone stay whole (`reviewed_rows` says which rows are excluded).
        fix: issue types whose remedy is carried out, too (`plan_fixes`).
        votes: of an audit of annotators alone, whether the copy has who said what, next to the
            consensus in the column ``label`` and P(it is right) in ``label_quality``. Of arrays,
            the copy is a table of these.
    """
    _check_excluded(excluded)
    audit = read_audit(folder)
    reviewed = read_reviewed(
        folder, decisions, accept_all=accept_all or bool(fix) or audit.is_voted
    )
    plan = plan_corrections(
        audit,
        reviewed.decisions,
        reviewed.answers(),
        merges=reviewed.merges,
        accept_all=accept_all,
        yes=yes,
    )
    if not yes:
        plan.check(audit.folder)
    fixed = _joined(plan_fixes(audit, fix, reviewed.decisions))
    left_out = plan.excluded if excluded == "leave-out" else ()
    correction = _correction(
        audit, plan.changes, plan.becomes, left_out, fixed, plan.decided, votes
    )
    return _source(audit).corrected(data, correction)


def _correction(
    audit: Audit,
    labels: Mapping[int, str],
    becomes: Mapping[str, str],
    left_out: Collection[int],
    fix: Fix,
    decided: Collection[int],
    votes: bool,
    link: bool = False,
) -> Correction:
    """Return what becomes of the rows of an audit, by their numbers in it."""
    consensus = None
    becomes = {**fix.becomes, **becomes}
    if audit.is_voted:
        consensus = voted_cells(audit, labels, becomes, decided=decided, votes=votes)
        labels = {}
        becomes = {}
    return Correction(
        audit,
        labels,
        becomes,
        fix.left_out.union(left_out),
        consensus,
        fix.columns,
        fix.cells,
        link,
    )


def plan_fixes(
    audit: Audit, names: Sequence[str], decided: Mapping[int, Decision] | None = None
) -> dict[str, Fix]:
    """Return what the remedy of each issue type of ``names`` does to the data; refuse types without
    one.

    Nothing is fixed unless it is named, always in a copy, and rows that go are listed. Of copies,
    the rows ``decided`` on stay.
    """
    kinds = {kind.name: kind for kind in issue_types()}
    able = [name for name, kind in kinds.items() if kind.fixes]
    fixes = {}
    for name in names:
        if name not in able:
            why = ""
            if name in kinds:
                why = f": nothing can be done about {name!r} by a command. {kinds[name].remedy}"
            raise ValueError(
                f"Expected issue types with a fix, {', '.join(able)}, got {name!r}{why}"
            )
        fixes[name] = kinds[name].fix(replace(audit, decided=decided or {}))
    joined = _joined(fixes)
    source = _source(audit)
    if (joined.columns or joined.cells) and not source.has_columns:
        raise ValueError(
            f"Expected a table whose columns can be changed, got {source.files or 'labels alone'}."
        )
    return fixes


def _joined(fixes: Mapping[str, Fix]) -> Fix:
    return reduce(or_, fixes.values(), Fix())


def reviewed_rows(
    audit: Audit, reviewed: Standing, fixes: Mapping[str, Fix] | None = None
) -> pd.DataFrame:
    """Return the rows that are excluded, unclear, noted or left out by ``fixes``, with their
    labels, in order.
    """
    choices = {
        row: one.decision
        for row, one in reviewed.decisions.items()
        if one.decision in ("exclude", "unclear")
    }
    notes = {
        row: f"left out by --fix {name}"
        for name, fix in (fixes or {}).items()
        for row in fix.left_out
    }
    choices = {**choices, **dict.fromkeys(notes, "exclude")}
    notes |= reviewed.notes
    is_listed = audit.issues["row"].isin([*choices, *notes])
    issues = audit.issues[is_listed].sort_values("row")
    rows = issues["row"].tolist()
    table = {
        "row": rows,
        "id": issues["id"].tolist(),
        "given_label": issues["given_label"].tolist(),
        "excluded": [choices.get(row) == "exclude" for row in rows],
        "unclear": [choices.get(row) == "unclear" for row in rows],
        "note": [notes.get(row, "") for row in rows],
    }
    return pd.DataFrame(table)


def _check_excluded(excluded: str) -> None:
    if excluded not in get_args(Excluded):
        raise ValueError(
            f"Expected {' or '.join(get_args(Excluded))} for what becomes of excluded rows, got"
            f" {excluded!r}."
        )


def kept_out(audit: Audit, plan: Plan, excluded: str) -> tuple[int, ...]:
    """Return the rows that a copy goes without: the excluded ones if ``excluded`` is leave-out and
    the source can.
    """
    _check_excluded(excluded)
    return plan.excluded if excluded == "leave-out" and _source(audit).can_leave_out else ()


def write_corrected(
    audit: Audit,
    changes: Mapping[int, str],
    out: PathLike,
    *,
    becomes: Mapping[str, str] | None = None,
    left_out: Collection[int] = (),
    link: bool = False,
    same_ok: bool = False,
    fix: Fix | None = None,
    decided: Collection[int] = (),
    votes: bool = False,
) -> Path:
    """Write the dataset with the labels ``changes``; neither the original nor any existing file is
    overwritten.

    Rows that have moved since the audit are found, and other changes are refused (`find_rows`). A
    CSV or TSV file keeps every byte outside of the changed cells, Parquet every column and type,
    and Excel what openpyxl keeps. Pictures are copied, or with ``link`` linked, into the folders of
    their classes. Arrays get a .npy file of labels. With ``same_ok``, an existing copy that would
    be written again is accepted.

    Args:
        becomes: classes to merge, and the ones they become, in all rows.
        left_out: rows that the copy goes without (`kept_out`); refused for labels alone and for
            Excel files.
        fix: what issue types add to that (`plan_fixes`).
        decided: rows on whose label somebody decided, where annotators alone were audited.
        votes: whether the copy also has who said what.
    """
    out = Path(out)
    source = _source(audit)
    if votes and not audit.is_voted:
        raise ValueError(
            "Expected an audit of annotators alone for a column of votes, got one of labels."
        )
    correction = _correction(
        audit, changes, becomes or {}, left_out, fix or Fix(), decided, votes, link
    )
    if (count := len(correction.left_out)) and not source.can_leave_out:
        raise ValueError(
            f"Expected no rows to leave out of {source.files or 'labels alone'}, got {count}."
        )
    place = source.find_rows(audit, correction.outcomes)
    correction = correction.moved(place, source.labels if correction.becomes else None)

    def write(path: Path) -> None:
        source.write(correction, path)

    if not out.exists() and not out.is_symlink():
        write(out)
    elif out.is_symlink() or not same_ok or not _is_written(write, out):
        raise FileExistsError(
            f"Expected a new path for the corrected data, {out} exists. Choose another with --out."
        )
    return out


def write_reviewed(
    table: pd.DataFrame, out: Path, *, same_ok: bool = False, csv_safe: bool = True
) -> Path | None:
    """Write the list of `reviewed_rows` next to the corrected data ``out``; None without any.

    With ``csv_safe``, no spreadsheet takes one of its cells for a formula.
    """
    path = list_beside(out)
    if not len(table):
        return None
    cells = safe_table(table) if csv_safe else table
    content = cells.to_csv(index=False, lineterminator="\n").encode()
    if path.exists() and not (same_ok and path.read_bytes() == content):
        raise FileExistsError(
            f"Expected a new path for the list of rows, {path} exists. Choose another with --out."
        )
    if not path.exists():
        with replacing(path, overwrite=False) as part:
            part.write_bytes(content)
    return path


def list_beside(out: Path) -> Path:
    """Return where the list of excluded, unclear and noted rows goes: corrected.csv →
    corrected-review.csv.
    """
    return out.with_name(f"{out.name.split('.')[0]}-review.csv")


def _is_written(write: Callable[[Path], None], out: Path) -> bool:
    """Return whether ``out`` is byte for byte what would be written."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, out.name)
        write(fresh)
        return _contents(out) == _contents(fresh)


def _contents(path: Path) -> dict[str, Any]:
    """Return the content of a file, or of each file in a folder, and whether that is a link."""
    if table_kind(path) == ".xlsx":
        with zipfile.ZipFile(path) as book:  # whose properties have the time
            return {
                name: book.read(name) for name in book.namelist() if name != "docProps/core.xml"
            }
    files = [one for one in (path, *path.rglob("*")) if one.is_file()]
    return {str(one.relative_to(path)): (one.is_symlink(), file_digest(one)) for one in files}


def default_out(audit: Audit) -> Path:
    return _source(audit).default_out()


def _source(audit: Audit) -> Source:
    return SOURCES[audit.config["kind"]](audit.config)
