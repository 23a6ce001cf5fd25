"""The review page: one HTML page, the same whether it is opened as a file or served, and what it
shows of all rows.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.analysis.page.shell import pack, render
from noiseproof.audit.files import NUMBERS, Audit
from noiseproof.audit.sources import Source, open_rows
from noiseproof.audit.sources.base import NoRows
from noiseproof.judge.issues.base import issue_types, list_findings
from noiseproof.judge.issues.spelling import spellings_of
from noiseproof.review.comparisons import ColumnRanking
from noiseproof.review.context import (
    AnnotatorFiles,
    Context,
    Labels,
    column_ranking,
    hidden_columns,
    leading_columns,
)
from noiseproof.review.projection import BYTES, MOST, Projection
from noiseproof.review.queue import Issues, rounded

THUMBNAIL = 192  # pixels of a picture inside a page
SCRIPTS = (
    "dom.js",
    "file_store.js",
    "served_store.js",
    "view.js",
    "decide.js",
    "list.js",
    "card.js",
    "chooser.js",
    "measure.js",
    "grid.js",
    "overview.js",
    "map.js",
    "people.js",
    "review.js",
)
MOST_PAIRS = 200  # of classes whose columns are ranked inside a page
BINS = 40  # of the histogram of qualities
EXAMPLES = 6  # rows to look at of each finding


def describe(audit: Audit, issues: Issues, rows: Source | NoRows) -> dict[str, Any]:
    data = audit.config.get("data") or audit.config.get("labels") or ""
    return {
        "name": Path(data).name,
        "key": audit.key,
        "classes": list(audit.classes),
        "total": len(issues),
        "pairs": issues.pairs(),
        "rows": audit.summary["rows"],
        "verdict": audit.summary["verdict"],
        "has_pictures": rows.has_pictures,
        "spellings": [pair._asdict() for pair in spellings_of(audit)],
        "searches_cells": rows.has_cells,
        "multi_label": audit.config.get("multi_label"),
    }


class Overview:
    """Pairs of classes that are confused, qualities of labels, noise by class, and progress, which
    alone changes.
    """

    def __init__(
        self, audit: Audit, labels: Labels, annotators: AnnotatorFiles | None = None
    ) -> None:
        self.labels = labels
        K = len(labels.classes)
        self.issue = np.flatnonzero(labels.is_issue)  # positions
        pairs = labels.given[self.issue] * K + labels.suggested[self.issue]
        self.pairs, self.pair, issues = np.unique(pairs, return_inverse=True, return_counts=True)
        self.matrix = {
            "given": (self.pairs // K).tolist(),
            "suggested": (self.pairs % K).tolist(),
            "issues": issues.tolist(),
        }
        rows = np.bincount(labels.given, minlength=K)
        wrong = np.bincount(labels.given, np.nan_to_num(1 - labels.quality), K) / np.maximum(
            rows, 1
        )
        self.classes = {
            "rows": rows.tolist(),
            "issues": np.bincount(labels.given[self.issue], minlength=K).tolist(),
            "noise_rate": [rounded(rate) for rate in wrong.tolist()],
            "cut": _cuts(audit),
        }
        findings = [
            one | {"examples": _examples(audit, labels, one)}
            for one in list_findings(audit.summary)
        ]
        self.fixed = {
            "matrix": self.matrix,
            "classes": self.classes,
            "histogram": {
                "rows": self._histogram(slice(None)),
                "issues": self._histogram(self.issue),
            },
            "noise_rate": audit.summary.get("noise_rate"),
            "findings": findings,
            "annotators": (annotators or AnnotatorFiles(audit)).describe(),
        }

    def _histogram(self, at: Any) -> list[list[int]]:
        """Return the number of labels of each class in each bin of quality, (K, BINS)."""
        K, quality, given = len(self.labels.classes), self.labels.quality[at], self.labels.given[at]
        is_known = np.isfinite(quality)
        bins = np.clip((quality[is_known] * BINS).astype(np.int64), 0, BINS - 1)
        return (
            np.bincount(given[is_known] * BINS + bins, minlength=K * BINS).reshape(K, BINS).tolist()
        )

    def describe(self) -> dict[str, Any]:
        """Return the counts that no decision changes."""
        return self.fixed

    def show(self, decided_rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return all counts, given the numbers of the rows that are decided."""
        is_decided = np.zeros(len(self.labels.row), dtype=bool)
        is_decided[self.labels.at[decided_rows]] = True
        decided = is_decided[self.issue]
        by_pair = np.bincount(self.pair[decided], minlength=len(self.pairs)).tolist()
        by_class = np.bincount(
            self.labels.given[self.issue[decided]], minlength=len(self.labels.classes)
        ).tolist()
        return self.describe() | {
            "matrix": self.matrix | {"decided": by_pair},
            "classes": self.classes | {"decided": by_class},
        }


def _examples(audit: Audit, labels: Labels, finding: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows that a finding is about, near-duplicates of each other together and conflicting
    ones first.
    """
    at = labels.at[[row for row in finding["rows"][:EXAMPLES] if row < len(labels.at)]]
    flags = {kind.name: kind.flag for kind in issue_types()}
    if (flag := flags[finding["type"]]) in audit.issues and not len(finding["rows"]):
        is_true = audit.issues[[flag, "duplicate_conflict"]].astype(str) == "True"
        at = np.flatnonzero(is_true[flag])
        at = at[
            np.lexsort(
                (labels.row[at], labels.group[at], ~is_true["duplicate_conflict"].to_numpy()[at])
            )
        ]
    return [
        {"row": int(labels.row[i]), "id": labels.id[i], "label": labels.classes[labels.given[i]]}
        for i in at[at >= 0][:EXAMPLES].tolist()
    ]


def _cuts(audit: Audit) -> list[float | None]:
    """Return the quality below which a label of each class is called wrong, None where it is not
    known.
    """
    cuts = {part["name"]: part["cut"] for part in audit.summary.get("classes", [])}
    return [cuts.get(name) for name in audit.classes]


def served_page() -> str:
    return _render("")


def file_page(audit: Audit, *, everything: bool = False, max_bytes: int = 20_000_000) -> str:
    """Return a page that needs no server, with rows and pictures of the worst issues up to
    ``max_bytes``.
    """
    issues, source = Issues(audit, everything), open_rows(audit.config)
    context = Context(audit, source)
    content: dict[str, Any] = {
        "audit": describe(audit, issues, source),
        "row": issues.row.tolist(),
        "id": issues.id,
        "given": issues.given.tolist(),
        "suggested": issues.suggested.tolist(),
        "why": issues.why,
        "marks": {
            mark: is_marked.nonzero()[0].tolist() for mark, is_marked in issues.marks.items()
        },
        **{name: [rounded(value) for value in issues.numbers[name].tolist()] for name in NUMBERS},
    }
    ranking = column_ranking(source, context.labels)
    content["columns"] = _columns(ranking, context.labels, issues)
    content["leading"] = leading_columns(ranking, context.labels)
    content["unsaid"] = sorted(name for name in hidden_columns(audit) if name)  # by snippets
    content["overview"] = Overview(audit, context.labels, context.annotators).describe()
    content["map"] = Projection(audit, context, most=min(MOST, max_bytes // (4 * BYTES))).show_now()
    room = max_bytes - len(_json(content))
    shown: dict[int, Any] = {}
    examples = {
        one["row"]: one["id"]
        for part in content["overview"]["findings"]
        for one in part["examples"]
    }
    for row, id in {**examples, **dict(zip(issues.row.tolist(), issues.id, strict=True))}.items():
        cells = dict(source.show(row, id))
        if (
            cells.pop("has_image", False)
            and (picture := source.picture(row, id, THUMBNAIL)) is not None
        ):
            cells["image"] = f"data:{picture[1]};base64,{base64.b64encode(picture[0]).decode()}"
        room -= len(_json(cells)) + 10
        if room < 0:  # the other issues are listed without their rows
            break
        shown[row] = cells
    return _render(_json({**content, "rows": shown}))


def _columns(ranking: ColumnRanking | None, labels: Labels, issues: Issues) -> dict[str, Any]:
    """Return the columns that separate the most frequent pairs of classes, by the numbers of
    both.
    """
    if ranking is None:
        return {}
    number = {name: k for k, name in enumerate(labels.classes)}
    pairs = [
        (number[pair["given"]], number[pair["suggested"]]) for pair in issues.pairs()[:MOST_PAIRS]
    ]
    return {f"{given},{suggested}": ranking.between(given, suggested) for given, suggested in pairs}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _render(data: str) -> str:
    packed = pack(data) if data else ""
    return render(
        "review.html.j2", "noiseproof.review", scripts=SCRIPTS, title="Review", data=packed
    )
