"""The review page: one HTML page, the same whether it is opened as a file or served, and what it
shows of all rows.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from noiseproof.analysis.page.shell import pack, render
from noiseproof.audit.files import NUMBERS, Audit
from noiseproof.audit.sources import Source, open_rows
from noiseproof.audit.sources.base import NoRows
from noiseproof.core.arrays import Ints
from noiseproof.core.messages import Json
from noiseproof.judge.issues.base import issue_types, list_findings
from noiseproof.judge.issues.spelling import class_spellings
from noiseproof.review.context import (
    AnnotatorFiles,
    Context,
    column_ranking,
    hidden_columns,
    leading_columns,
)
from noiseproof.review.issues import Issues, rounded
from noiseproof.review.projection import BYTES, MOST, Projection

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
MOST_PAIRS = 50  # of classes whose columns are ranked inside a page
BINS = 40  # of the histogram of qualities
EXAMPLES = 6  # rows to look at of each finding


def describe(audit: Audit, issues: Issues, rows: Source | NoRows) -> Json:
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
        "spellings": [pair._asdict() for pair in class_spellings(audit)],
        "searches_cells": rows.has_cells,
        "multi_label": audit.config.get("multi_label"),
    }


class Overview:
    """Pairs of classes that are confused, qualities of labels, noise by class, and progress, which
    alone changes.
    """

    def __init__(self, audit: Audit, rows: Issues, annotators: AnnotatorFiles) -> None:
        K = len(rows.classes)
        self.num_classes = K
        self.at = rows.at
        self.issue = np.flatnonzero(rows.is_issue)  # positions
        self.given = rows.given[self.issue]
        pairs = self.given * K + rows.suggested[self.issue]
        self.pairs, self.pair, issues = np.unique(pairs, return_inverse=True, return_counts=True)
        count = np.bincount(rows.given, minlength=K)
        doubt = np.bincount(rows.given, np.nan_to_num(1 - rows.quality), K)
        # the quality below which a label of a class is called wrong
        cuts = {part["name"]: part["cut"] for part in audit.summary.get("classes", [])}
        findings = [
            finding | {"examples": _examples(audit, rows, finding)}
            for finding in list_findings(audit.summary)
        ]
        self.fixed: Json = {
            "matrix": {
                "given": (self.pairs // K).tolist(),
                "suggested": (self.pairs % K).tolist(),
                "issues": issues.tolist(),
            },
            "classes": {
                "rows": count.tolist(),
                "issues": np.bincount(self.given, minlength=K).tolist(),
                "noise_rate": [rounded(rate) for rate in (doubt / np.maximum(count, 1)).tolist()],
                "cut": [cuts.get(name) for name in audit.classes],
            },
            "histogram": {
                "rows": _histogram(rows, np.arange(len(rows))),
                "issues": _histogram(rows, self.issue),
            },
            "noise_rate": audit.summary.get("noise_rate"),
            "findings": findings,
            "annotators": annotators.describe(),
        }

    def show(self, decided_rows: Ints) -> Json:
        """Return all counts, given the numbers of the rows that are decided."""
        decided = np.isin(self.issue, self.at[decided_rows])
        by_pair = np.bincount(self.pair[decided], minlength=len(self.pairs))
        by_class = np.bincount(self.given[decided], minlength=self.num_classes)
        return self.fixed | {
            "matrix": self.fixed["matrix"] | {"decided": by_pair.tolist()},
            "classes": self.fixed["classes"] | {"decided": by_class.tolist()},
        }


def _histogram(rows: Issues, at: Ints) -> list[list[int]]:
    """Return the number of labels of each class in each bin of quality, (K, BINS)."""
    at = at[np.isfinite(rows.quality[at])]
    K = len(rows.classes)
    edges = (np.arange(K + 1) - 0.5, np.linspace(0, 1, BINS + 1))
    counts = np.histogram2d(rows.given[at], rows.quality[at].clip(0, 1), bins=edges)[0]
    return [[int(count) for count in of_class] for of_class in counts]


def _examples(audit: Audit, rows: Issues, finding: Json) -> list[Json]:
    """Return rows that a finding is about, near-duplicates of each other together and conflicting
    ones first.
    """
    named = [row for row in finding["rows"][:EXAMPLES] if row < len(rows.at)]
    at = rows.at[named]
    flag = {kind.name: kind.flag for kind in issue_types()}[finding["type"]]
    if not finding["rows"] and flag in audit.issues:
        is_flagged = (audit.issues[flag].astype(str) == "True").to_numpy()
        is_conflict = (audit.issues["duplicate_conflict"].astype(str) == "True").to_numpy()
        order = np.lexsort((rows.row, rows.group, ~is_conflict))
        at = order[is_flagged[order]]
    return [
        {"row": int(rows.row[i]), "id": rows.id[i], "label": rows.classes[rows.given[i]]}
        for i in at[at >= 0][:EXAMPLES].tolist()
    ]


def served_page() -> str:
    return _render("")


def file_page(audit: Audit, *, everything: bool = False, max_bytes: int = 20_000_000) -> str:
    """Return a page that needs no server, with rows and pictures of the worst issues up to
    ``max_bytes``.
    """
    issues = Issues(audit, everything)
    source = open_rows(audit.config)
    context = Context(audit, source)
    ranking = column_ranking(source, context.issues)
    columns = {}
    if ranking is not None:  # by the numbers of both classes
        number = {name: k for k, name in enumerate(issues.classes)}
        for pair in issues.pairs()[:MOST_PAIRS]:
            given, suggested = number[pair["given"]], number[pair["suggested"]]
            columns[f"{given},{suggested}"] = ranking.between(given, suggested)
    overview = Overview(audit, context.issues, context.annotators).fixed
    projection = Projection(audit, context, most=min(MOST, max_bytes // (4 * BYTES)))
    projection.start().join()
    content: Json = {
        "audit": describe(audit, issues, source),
        "row": issues.row.tolist(),
        "id": issues.id,
        "given": issues.given.tolist(),
        "suggested": issues.suggested.tolist(),
        "why": issues.why,
        "marks": {mark: has.nonzero()[0].tolist() for mark, has in issues.marks.items()},
        **{name: [rounded(value) for value in issues.numbers[name].tolist()] for name in NUMBERS},
        "columns": columns,
        "leading": leading_columns(ranking, context.issues),
        # by snippets
        "unsaid": sorted(name for name in hidden_columns(audit) if name),
        "overview": overview,
        "map": projection.show(),
    }
    examples = [row for finding in overview["findings"] for row in finding["examples"]]
    ids = {row["row"]: row["id"] for row in examples}
    ids |= dict(zip(issues.row.tolist(), issues.id, strict=True))
    room = max_bytes - len(_json(content))
    content["rows"] = shown = {}
    for row, id in ids.items():
        cells = dict(source.show(row, id))
        picture = source.picture(row, id, THUMBNAIL) if cells.pop("has_image", False) else None
        if picture is not None:
            cells["image"] = f"data:{picture[1]};base64,{base64.b64encode(picture[0]).decode()}"
        room -= len(_json(cells)) + 10
        if room < 0:  # the other issues are listed without their rows
            break
        shown[row] = cells
    return _render(_json(content))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _render(data: str) -> str:
    packed = pack(data) if data else ""
    return render(
        "review.html.j2", "noiseproof.review", scripts=SCRIPTS, title="Review", data=packed
    )
