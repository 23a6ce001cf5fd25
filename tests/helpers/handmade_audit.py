"""Audits made by hand, in the format that ``noiseproof.audit.report`` describes, for the tests of
review and apply.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from noiseproof.audit.rows import digest_frame
from noiseproof.audit.sources import SOURCES

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
)


def write_audit(
    folder: Path,
    given: Sequence[str],
    suggested: Sequence[str],
    *,
    issues: int,
    kind: str,
    data: Path | None,
    classes: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    words: Sequence[str] | None = None,
    **config: Any,
) -> Path:
    """An audit of ``len(given)`` rows of which the first ``issues`` are issues, in the order of the
    source.
    """
    folder.mkdir(parents=True)
    ids = ids or [str(row) for row in range(len(given))]
    with open(folder / "issues.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row, (label, other) in enumerate(zip(given, suggested, strict=True)):
            quality, is_issue = (row + 1) / (len(given) + 1), row < issues
            suggestion = f"{0.75 * (1 - quality):.6f}"
            why = f"Of its neighbours 1 in 10 is {label}."
            out.writerow(
                (
                    row,
                    ids[row],
                    is_issue,
                    f"{quality:.6f}",
                    label,
                    other if is_issue else label,
                    other,
                    suggestion,
                    why,
                    -1.5,
                    0.1,
                    row % 7 == 0,
                    3 if row % 7 == 0 else "",
                    row % 14 == 0,
                    row % 11 == 0,
                    1.5,
                    0.05,
                    0.9,
                    "",
                    "",
                    f"{quality:.6f}",
                    suggestion,
                )
            )
    summary = {
        "format": 2,
        "source_rows": len(given),
        "rows": len(given),
        "issues": issues,
        "labels_look_fine": not issues,
        "verdict": "The labels look fine." if not issues else f"{issues} labels look wrong.",
        "noise_rate": {"estimate": 0.1, "low": 0.05, "high": 0.15},
        "false_positive_rate": 0.01,
    }
    sha = hashlib.sha256("\n".join(words or given).encode()).hexdigest()
    names = list(classes) if classes else sorted({*given, *suggested})
    found = {
        "format": 2,
        "kind": kind,
        "data": data and str(data),
        "labels": None,
        "pred_probs": None,
        "embeddings": None,
        "label": None,
        "text": None,
        "id": None,
        "group": None,
        "time": None,
        "trusted": None,
        "annotators": [],
        "ignore": [],
        "classes": names,
        "features": None,
        "weights": None,
        "mode": "fast",
        "method": "ce",
        "model": "auto",
        "epochs": 5,
        "folds": 5,
        "goal": "f1",
        "seed": 0,
        "source_rows": len(given),
        "labels_sha256": sha,
        "versions": {},
        "command": "",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text(json.dumps(found | config))
    if (data or Path(config.get("labels") or "gone")).exists():
        write_row_digests(folder)
    return folder


def write_row_digests(folder: Path, frame: pd.DataFrame | None = None) -> None:
    """The digests of the rows as the data is now; of a table in memory where one is passed."""
    config = json.loads((folder / "config.json").read_text())
    source = SOURCES[config["kind"]](config)
    digests = source.row_digests if frame is None else digest_frame(frame)
    np.save(folder / "rows.npy", digests)
    config["rows_sha256"] = hashlib.sha256(digests.tobytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


ANIMALS = ("cat", "dog", "fox", "owl")


def write_table_audit(root: Path, rows: int = 220, issues: int = 200) -> Path:
    """A table of animals and its audit; neighbouring rows hold different class pairs."""
    given = [ANIMALS[i % 4] for i in range(rows)]
    suggested = [ANIMALS[(i % 4 + 1 + i // 4 % 3) % 4] for i in range(rows)]
    with open(root / "animals.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("weight", "note", "kind"))
        for i, label in enumerate(given):
            out.writerow((f"{i / 8:.3f}", f'number {i}, "quoted" <b>bold</b> é', label))
    return write_audit(
        root / "audit",
        given,
        suggested,
        issues=issues,
        kind="table",
        data=root / "animals.csv",
        label="kind",
    )


def write_film_audit(folder: Path, texts: list[str], given: list[str], issues: int) -> Path:
    """An audit of reviews that are good or bad, with the other label suggested everywhere."""
    pd.DataFrame({"review": texts, "mood": given}).to_csv(folder / "films.csv", index=False)
    return write_audit(
        folder / "audit",
        given,
        [{"good": "bad", "bad": "good"}[g] for g in given],
        issues=issues,
        kind="text",
        data=folder / "films.csv",
        label="mood",
        text="review",
        features="tfidf",
        header=True,
    )
