"""Labels from other tools as decisions on an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from noiseproof.audit.decisions import FILE, BadDecisions, Choice, Decision, read_standing
from noiseproof.audit.exchange.base import KEY, TOOLS, Item, Labels, Tool
from noiseproof.audit.files import Audit, read_audit
from noiseproof.audit.sets import join_set, split_set
from noiseproof.audit.standing import Standing

ENDINGS = (".json", ".jsonl", ".xml")  # of files that tools write


def find_tool(path: Path) -> tuple[Tool, Any] | None:
    """Return the tool whose file or folder this is, and its content; None if it is none's."""
    tools = [TOOLS[name]() for name in TOOLS] if path.is_dir() or path.suffix.lower() in ENDINGS else []
    parsed = ((tool, tool.parse(path)) for tool in tools)
    return next(((tool, content) for tool, content in parsed if content is not None), None)


def read_decided_in(folder: str | Path, decisions: str | Path | None) -> Standing:
    """Return what was decided on the audit in ``folder``: in decisions.csv, or in a file of another tool."""
    path = Path(decisions or Path(folder) / FILE)
    if not path.is_dir() and path.suffix.lower() not in ENDINGS:
        return read_standing(path)
    if (found := find_tool(path)) is None:
        raise BadDecisions(f"Expected decisions, or labels from {', '.join(TOOLS)}, in {path}, got something else.")
    (tool, content), audit = found, read_audit(folder)
    items = list(tool.items(content, path))
    if not audit.config.get("multi_label"):
        items = [item.alone() for item in items]
    if problem := next((item.problem for item in items if item.problem), ""):
        raise BadDecisions(f"Expected labels for each entry of {path}, got {problem}. Correct or drop it.")
    return Standing(_decisions(items, audit, path, is_explicit=tool.asks))


def _decisions(items: list[Item], audit: Audit, path: Path, *, is_explicit: bool) -> Iterator[Decision]:
    """Yield a decision for each label: keep, accept or other; skip where somebody passed and nobody answered.

    Without ``is_explicit``, a label that is still the given one decides nothing.
    """
    columns = ["row", "id", "given_label", "suggested_label"]
    known = {row: cells for row, *cells in audit.issues[columns].itertuples(index=False)}
    names = _names({row: id for row, (id, *_) in known.items()})
    answered, multi = {item.at for item in items if item.labels is not None}, audit.config.get("multi_label")
    for item in items:
        row = names.get(item.id) if item.row is None else item.row
        id, given, suggested = known.get(-1 if row is None else row, ("", "", ""))
        is_same = item.id in (id, f"{KEY}{row}") or names.get(item.id) == row
        if row is None or row not in known or not is_same:
            raise BadDecisions(
                f"Expected labels of rows of the audit in {audit.folder}, got one of {item.id!r} in {path}, which it "
                "does not have. They belong to another audit: name its folder."
            )
        if item.given not in (None, given):
            raise BadDecisions(
                f"Expected labels of rows of the audit in {audit.folder}, got row {row} with the given label "
                f"{item.given!r} in {path}, which is {given!r} there. They belong to another audit: name its folder."
            )
        if item.labels is None:
            if item.reviewer and item.at not in answered:
                yield Decision(row, id, given, "skip", "", item.reviewer)
            continue
        label = _spelled(item.labels, given, suggested, multi)
        choice: Choice = "keep" if label == given else "accept" if label == suggested else "other"
        if choice != "keep" or is_explicit:
            yield Decision(row, id, given, choice, label, item.reviewer)


def _spelled(labels: Labels, given: str, suggested: str, multi: Mapping[str, Any] | None) -> str:
    """One label, or the word of several: that of the given or suggested ones where they are the same."""
    if not multi:
        return labels[0]
    if len(labels) == 1 and {*(parts := split_set(labels[0], multi["separator"]))} <= {*multi["labels"]}:
        labels = parts  # of a file that spells sets as words
    for word in (given, suggested):
        if {*split_set(word, multi["separator"])} == {*labels}:
            return word
    if odd := [label for label in labels if multi["separator"] in label]:
        raise BadDecisions(
            f"Expected labels without {multi['separator']!r}, which separates those of a row in this audit, got "
            f"{odd[0]!r}. Rename it."
        )
    kept = [label for label in split_set(given, multi["separator"]) if label in labels]
    known = [label for label in multi["labels"] if label in labels and label not in kept]
    new = [label for label in labels if label not in kept and label not in known]
    return join_set([*kept, *known, *new], multi["joiner"])


def _names(ids: Mapping[int, str]) -> dict[str, int | None]:
    """Return the row that a name stands for, by its id or the end of it, as tools drop folders; None for several."""
    rows: dict[str, int | None] = {}
    for row, id in ids.items():
        parts = id.split("/")
        for name in ("/".join(parts[k:]) for k in range(1, len(parts))):
            rows[name] = None if name in rows else row
    counts = Counter(ids.values())
    return rows | {id: row if counts[id] == 1 else None for row, id in ids.items()}
