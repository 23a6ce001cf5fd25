"""What `noiseproof audit` found, as the review reads it; ``noiseproof.audit.report`` describes the three files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
FILES = ("issues.csv", "summary.json", "config.json")
TEXT = ("id", "given_label", "predicted_label", "suggested_label", "why")
NUMBERS = ("label_quality", "margin", "neighbour_agreement", "confidence", "suggested_confidence")
MARKS = {"is_near_duplicate": "near-duplicate", "duplicate_conflict": "labels conflict", "is_outlier": "outlier"}


@dataclass(frozen=True, eq=False)
class Audit:
    """One audit's files."""

    folder: Path
    issues: pd.DataFrame  # a row for each audited row, from the worst label to the best
    summary: dict[str, Any]
    config: dict[str, Any]
    key: str  # of this audit's content: decisions in a browser belong to it

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.config["classes"])


def read_audit(folder: str | Path) -> Audit:
    """The audit in ``folder``."""
    import pandas as pd

    folder = Path(folder)
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"Expected an audit in {folder}, found no {' and no '.join(absent)} there. Run `noiseproof audit` first."
        )
    parts: list[dict[str, Any]] = []
    for name in FILES[1:]:
        try:
            part = json.loads((folder / name).read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"Expected JSON in {folder / name}, got {error}.") from error
        if not isinstance(part, dict) or part.get("format") != FORMAT:
            found = part.get("format") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"Expected an audit of format {FORMAT} in {folder / name}, got {found}. Audit again.")
        parts.append(part)
    summary, config = parts
    data = (folder / FILES[0]).read_bytes()
    try:
        issues = pd.read_csv(
            folder / FILES[0],
            dtype=dict.fromkeys(TEXT, str) | {"row": "int64", "is_label_issue": bool},
            keep_default_na=False,
            na_values={name: [""] for name in NUMBERS},
        )
        _check(issues, config)
    except (ValueError, KeyError) as error:  # whatever pandas thinks of a damaged file
        raise ValueError(f"Expected the table of an audit in {folder / FILES[0]}, got {error}. Audit again.") from error
    key = hashlib.sha256(data + str(config.get("labels_sha256")).encode()).hexdigest()[:16]
    return Audit(folder, issues, summary, config, key)


def _check(issues: pd.DataFrame, config: dict[str, Any]) -> None:
    needed = ("row", "is_label_issue", *TEXT, *NUMBERS, *MARKS)
    if absent := [name for name in needed if name not in issues.columns]:
        raise ValueError(f"no column {', '.join(absent)}")
    if not issues["row"].is_unique or (len(issues) and issues["row"].min() < 0):
        raise ValueError("a row twice, or one below 0")
    known = set(config["classes"])
    for column in ("given_label", "suggested_label"):
        if strange := sorted(set(issues[column]) - known):
            raise ValueError(f"{column} {strange[0]!r}, which is no class in config.json")


def as_words(values: Any) -> list[str]:
    """Labels as words, empty where there is none."""
    import pandas as pd

    found = np.asarray(values)
    if found.dtype.kind in "SO":  # of bytes NumPy would read ASCII alone
        plain = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in found.tolist()]
        found = np.array(plain, dtype=object)
    words = found.astype(str).astype(object)
    words[pd.isna(values)] = ""
    return [str(word) for word in words]


def as_ids(column: Any) -> list[str]:
    """The ids in a column of a table in memory, as the audit writes them; empty where there is none."""
    return ["" if gap else str(id) for id, gap in zip(column.astype(str), column.isna(), strict=True)]


def labels_digest(words: Sequence[str]) -> str:
    """Of a source's labels, one a row, as config.json has it; a blank one is none."""
    return hashlib.sha256("\n".join(word if word.strip() else "" for word in words).encode()).hexdigest()


def same_labels(config: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether a source's labels, one a row, are those that were audited."""
    return bool(labels_digest(words) == config["labels_sha256"])


def same_id(found: str, known: str) -> bool:
    """Whether an id of the source is the one that the audit knew: a gap may be called nan, and 7 beside gaps 7.0."""
    return known in (found, f"{found}.0") or {known, found} == {"", "nan"}
