"""The files of an audit: reader, writer and digests; docs/audit_files.md has their format."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import NO_ROW, BadDecisions, Decision, check_free
from noiseproof.audit.described import DescribedLabels
from noiseproof.core.arrays import Ints
from noiseproof.core.files import check_files, check_place, replacing_all
from noiseproof.core.messages import Json
from noiseproof.core.tablefiles import plain_cell
from noiseproof.data.sources import PathLike

FORMAT = 2
FILES = ("issues.csv", "summary.json", "config.json")
PARQUET = "issues.parquet"
CROWD = ("annotators.csv", "label_again.csv", "votes.csv")  # of several annotators
DESIGN = ("measure.json", "strata.npy")  # of the designed sample that decisions measure
ROWS = "rows.npy"
LOCK = "audit.lock"  # of the process that writes an audit
PREDICTIONS = "out_of_sample.npy"
MOST_PREDICTIONS = 100_000_000  # numbers, in 400 MB
TEXT = ("id", "given_label", "predicted_label", "suggested_label", "why")
NUMBERS = (
    "label_quality",
    "suggestion_quality",
    "model_quality",
    "model_suggestion_quality",
    "margin",
    "neighbour_agreement",
    "confidence",
    "suggested_confidence",
)
FLAGS = ("is_near_duplicate", "duplicate_conflict", "is_outlier")  # of issues.csv
COLUMNS = (
    "row",
    "id",
    "is_label_issue",
    "label_quality",
    "given_label",
    "predicted_label",
    "suggested_label",
    "suggestion_quality",
    "why",
    "margin",
    "neighbour_agreement",
    "is_near_duplicate",
    "duplicate_group",
    "duplicate_conflict",
    "is_outlier",
    "outlier_score",
    "confidence",
    "suggested_confidence",
    "unlearned",
    "doubt",
    "model_quality",
    "model_suggestion_quality",
)  # of issues.csv; columns of further issue types follow


@dataclass(frozen=True, eq=False, repr=False)
class Audit(DescribedLabels):
    """The files of one audit."""

    folder: Path
    issues: pd.DataFrame  # a row for each audited row, from the worst label to the best
    summary: Json
    config: Json
    key: str  # digest of what decisions are about, to which those in a browser belong
    # decisions by row, where a fix is planned
    decided: Mapping[int, Decision] = field(default_factory=dict)

    def __repr__(self) -> str:
        issues = int(self.issues["is_label_issue"].sum())
        return (
            f"Audit({str(self.folder)!r}, {len(self.issues)} rows, {len(self.classes)} classes,"
            f" {issues} issues)"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.config["classes"])

    def class_numbers(self, column: str) -> Ints:
        """Return the classes in a column of the issues by their numbers, (N,)."""
        number = {name: k for k, name in enumerate(self.classes)}
        return self.issues[column].map(number).to_numpy().astype(np.int64)

    @property
    def given(self) -> dict[int, str]:
        """Return the given label of each audited row."""
        return dict(
            zip(self.issues["row"].tolist(), self.issues["given_label"].tolist(), strict=True)
        )

    def spellings(self, cells: Sequence[Any]) -> Json:
        """Return how ``cells``, one for each row of the source, spell each given label, most often
        if in several ways.
        """
        counts: dict[str, Counter[Any]] = {}
        for row, name in self.given.items():
            counts.setdefault(name, Counter())[cells[row]] += 1
        return {name: count.most_common(1)[0][0] for name, count in counts.items()}

    def moved(self, place: Ints) -> Audit:
        """Return the audit with the numbers that its rows have now, ``place`` (source_rows,)."""
        rows = place[self.issues["row"].to_numpy()]
        return replace(self, issues=self.issues.assign(row=rows))


def read_audit(folder: PathLike) -> Audit:
    """Read the audit in ``folder``."""
    folder = Path(folder)
    check_files(folder, *FILES, ROWS)
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"Expected an audit in {folder}, found no {' and no '.join(absent)}. Run `noiseproof"
            " audit` first."
        )
    summary, config = (_read_json(folder / name) for name in FILES[1:])
    for name, part in zip(FILES[1:], (summary, config), strict=True):
        if part.get("format") != FORMAT:
            raise ValueError(
                f"Expected an audit of format {FORMAT} in {folder / name}, got"
                f" {part.get('format')}. Audit again: {renewing_command(config)}"
            )
    try:
        issues = pd.read_csv(
            folder / FILES[0],
            dtype=dict.fromkeys(TEXT, str) | {"row": "int64", "is_label_issue": bool},
            keep_default_na=False,
            na_values={name: [""] for name in NUMBERS},
        )
        if config.get("csv_safe"):
            for name in TEXT:
                issues[name] = [plain_cell(cell) for cell in issues[name]]
        _check(issues, config)
    except (ValueError, KeyError) as error:  # pandas raises several kinds on damaged files
        raise ValueError(
            f"Expected the table of an audit in {folder / FILES[0]}, got {error}. Audit again."
        ) from error
    return Audit(folder, issues, summary, config, _key(issues, config))


def _key(issues: pd.DataFrame, config: Mapping[str, Any]) -> str:
    """Return the digest of rows, ids, given and suggested labels; decisions move qualities and
    their order, and not this.
    """
    cells = issues[["row", "id", "given_label", "suggested_label"]].sort_values("row")
    digest = hashlib.sha256(str(config.get("labels_sha256")).encode())
    digest.update("\0".join(config["classes"]).encode())
    digest.update(pd.util.hash_pandas_object(cells, index=False).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def _read_json(path: Path) -> Json:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {path}, got {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"Expected an audit of format {FORMAT} in {path}, got {type(content).__name__}. Audit"
            " again."
        )
    return content


def renewing_command(config: Mapping[str, Any]) -> str:
    """Return the command line that makes an audit again."""
    command = config.get("command") or "noiseproof audit …"
    return str(command) if "--force" in str(command).split() else f"{command} --force"


def _check(issues: pd.DataFrame, config: Json) -> None:
    needed = (
        "row",
        "is_label_issue",
        *TEXT,
        *NUMBERS,
        *FLAGS,
    )
    if absent := [name for name in needed if name not in issues.columns]:
        raise ValueError(f"no column {', '.join(absent)}")
    if not issues["row"].is_unique or (len(issues) and issues["row"].min() < 0):
        raise ValueError("a repeated or negative row number")
    if len(issues) and (last := issues["row"].max()) >= config.get("source_rows", last + 1):
        raise ValueError(f"row {last} of a source of {config['source_rows']} rows")
    known = set(config["classes"])
    for column in ("given_label", "suggested_label"):
        if unknown := sorted(set(issues[column]) - known):
            raise ValueError(f"{column} {unknown[0]!r}, which is not a class in config.json")


def check_folder(folder: PathLike, *, force: bool = False) -> Path:
    """Return the folder to write to; refuse one with files, unless ``force``."""
    path = check_place(folder, folder=True)
    # A killed audit leaves unfinished files and its lock, which the next one replaces.
    if (
        path.is_dir()
        and not force
        and any(file.name != LOCK and file.suffix != ".part" for file in path.iterdir())
    ):
        raise FileExistsError(
            f"Expected a new or empty folder, got {path}, which holds files. Choose another one"
            " with --out, or replace an earlier audit there with --force, which keeps all other"
            " files."
        )
    check_free(path / DECISIONS)  # of a running review of the audit to replace
    return path


def cache_beside(folder: PathLike) -> Path:
    """Return the folder next to an audit where features are kept, for further audits of the same
    data.
    """
    return Path(os.path.abspath(folder)).parent / ".noiseproof"


def read_votes(audit: Audit) -> dict[int, list[list[str]]]:
    """Return the annotators of each row with their labels."""
    votes: dict[int, list[list[str]]] = {}
    if (frame := read_crowd(audit, CROWD[2])) is None:
        return votes
    for row, annotator, label in frame[["row", "annotator", "label"]].itertuples(index=False):
        votes.setdefault(row, []).append([annotator, label])
    return votes


def read_crowd(audit: Audit, name: str) -> pd.DataFrame | None:
    """Read one of the files about annotators (`CROWD`), None if the audit has none."""
    path = audit.folder / name
    check_files(audit.folder, name)
    if not path.exists():
        return None
    text = ("annotator", "confuses", "with", "advice", "label")
    frame = pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=False)
    if audit.config.get("csv_safe"):
        for column in frame.columns.intersection(list(text)):
            frame[column] = [plain_cell(cell) for cell in frame[column]]
    return frame


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing_all(path.parent) as part:
        part(path.name).write_text(to_json(content), encoding="utf-8")


def to_json(content: Mapping[str, Any]) -> str:
    return json.dumps(_plain(content), indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def is_utf8(name: str) -> bool:
    """Return whether a name can be written; Python keeps other bytes as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_words(values: Any) -> list[str]:
    """Return labels as words, empty where there is none."""
    # one object for each word, not for each row
    if isinstance(getattr(values, "dtype", None), pd.StringDtype):
        codes, words = pd.factorize(values)
        return list(np.append(np.asarray(words, dtype=object), "")[codes])  # −1 is the last one
    labels = np.asarray(values)
    if labels.dtype.kind in "SO":  # NumPy decodes only ASCII bytes
        decoded = [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for value in labels.tolist()
        ]
        labels = np.array(decoded, dtype=object)
    words = labels.astype(str).astype(object)
    words[pd.isna(values)] = ""
    return [str(word) for word in words]


def as_ids(column: Any) -> list[str]:
    """Return the ids in a column of a DataFrame, as the audit writes them; empty where there is
    none.
    """
    words = column.astype(str).where(~column.isna(), "")
    return [str(word) for word in words]


def labels_digest(words: Sequence[str]) -> str:
    """Return the digest of the labels of a source, one per row, as in config.json; blank ones count
    as missing.
    """
    return hashlib.sha256(
        "\n".join(word if word.strip() else "" for word in words).encode()
    ).hexdigest()


def same_labels(config: Mapping[str, Any], words: Sequence[str]) -> bool:
    return bool(labels_digest(words) == config["labels_sha256"])


def same_id(id: str, audited: str) -> bool:
    """Return whether an id in the source is the audited one: pandas writes nan for a gap, and 7.0
    for 7 in a column with gaps.
    """
    return audited in (id, f"{id}.0") or {audited, id} == {"", "nan"}


def check_decisions(decisions: Iterable[Decision], audit: Audit) -> None:
    """Refuse decisions on rows or classes that the audit does not have, or has under another id or
    label.
    """
    decisions = list(decisions)
    issues = audit.issues[["row", "id", "given_label"]]
    decided = issues[issues["row"].isin([decision.row for decision in decisions])]
    known = {row: (id, given) for row, id, given in decided.itertuples(index=False)}
    labels = {*audit.classes, ""}
    for decision in decisions:
        if decision.row == NO_ROW:
            is_known = decision.given_label in labels
        else:
            # other may name a new class
            has_label = decision.decision == "other" or decision.label in labels
            is_known = has_label and known.get(decision.row) == decision[1:3]
        if not is_known:
            row = "classes" if decision.row == NO_ROW else f"row {decision.row}"
            raise BadDecisions(
                f"Expected decisions on this audit, got one on {row} ({decision.id!r}, given"
                f" {decision.given_label!r}, label {decision.label!r}), which the audit does not"
                " have. They belong to another audit: name its folder, or other decisions with"
                " --decisions, or move the file and start over."
            )
