"""The review page: one HTML page, the same whether it is opened as a file or served."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from noiseproof.analysis.page.shell import pack, render
from noiseproof.audit.files import NUMBERS, Audit
from noiseproof.audit.issues.spelling import spellings_of
from noiseproof.audit.sources import Source, open_rows
from noiseproof.audit.sources.base import NoRows
from noiseproof.review.comparisons import ColumnRanking
from noiseproof.review.context import Context, Labels, column_ranking, hidden_columns, leading_columns
from noiseproof.review.overview import Overview
from noiseproof.review.projection import BYTES, MOST, Projection
from noiseproof.review.queue import Issues, rounded

THUMBNAIL = 192  # pixels of a picture inside a page
SCRIPTS = (
    "dom.js", "file_store.js", "served_store.js", "view.js", "decide.js", "list.js", "card.js", "chooser.js",
    "measure.js", "grid.js", "overview.js", "map.js", "people.js", "review.js",
)  # fmt: skip
MOST_PAIRS = 200  # of classes whose columns are ranked inside a page


def describe(audit: Audit, issues: Issues, rows: Source | NoRows) -> dict[str, Any]:
    """Return what a page shows of the audit as a whole."""
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


def served_page() -> str:
    """Return the page that requests everything from the server."""
    return _render("")


def file_page(audit: Audit, *, everything: bool = False, max_bytes: int = 20_000_000) -> str:
    """Return a page that needs no server, with rows and pictures of the worst issues up to ``max_bytes``."""
    issues, source = Issues(audit, everything), open_rows(audit.config)
    context = Context(audit, source)
    content: dict[str, Any] = {
        "audit": describe(audit, issues, source),
        "row": issues.row.tolist(),
        "id": issues.id,
        "given": issues.given.tolist(),
        "suggested": issues.suggested.tolist(),
        "why": issues.why,
        "marks": {mark: is_marked.nonzero()[0].tolist() for mark, is_marked in issues.marks.items()},
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
    examples = {one["row"]: one["id"] for part in content["overview"]["findings"] for one in part["examples"]}
    for row, id in {**examples, **dict(zip(issues.row.tolist(), issues.id, strict=True))}.items():
        cells = dict(source.show(row, id))
        if cells.pop("has_image", False) and (picture := source.picture(row, id, THUMBNAIL)) is not None:
            cells["image"] = f"data:{picture[1]};base64,{base64.b64encode(picture[0]).decode()}"
        room -= len(_json(cells)) + 10
        if room < 0:  # the other issues are listed without their rows
            break
        shown[row] = cells
    return _render(_json({**content, "rows": shown}))


def _columns(ranking: ColumnRanking | None, labels: Labels, issues: Issues) -> dict[str, Any]:
    """Return the columns that separate the most frequent pairs of classes, by the numbers of both."""
    if ranking is None:
        return {}
    number = {name: k for k, name in enumerate(labels.classes)}
    pairs = [(number[pair["given"]], number[pair["suggested"]]) for pair in issues.pairs()[:MOST_PAIRS]]
    return {f"{given},{suggested}": ranking.between(given, suggested) for given, suggested in pairs}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _render(data: str) -> str:
    packed = pack(data) if data else ""
    return render("review.html.j2", "noiseproof.review", scripts=SCRIPTS, title="Review", data=packed)
