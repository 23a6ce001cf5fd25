"""A few words of a row, for a line of a list or a card of a grid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from noiseproof.audit.files import Audit

SNIPPET, FEW = 200, 4  # characters of a text or cell, cells of a row


def hidden_columns(audit: Audit) -> set[str]:
    """Return the columns that a snippet does not show: the id, which stands beside it, and votes."""
    return {audit.config["id"], *(audit.config["annotators"] or ())}


def snippet(content: Mapping[str, Any], columns: Iterable[str], hidden: Collection[str] = ()) -> dict[str, Any]:
    """Return the beginning of a text, or the cells in ``columns``, by default the first that say something.

    >>> snippet({"fields": [["weight", "0"], ["size", "7"]]}, [])
    {'fields': [['size', '7']]}
    """
    if content.get("has_image"):
        return {"has_image": True}
    if "text" in content:
        return {"text": " ".join(content["text"][: 2 * SNIPPET].split())[:SNIPPET]}
    cells = dict(content.get("fields") or content.get("predictions", []))
    first = [name for name in columns if name in cells] or [n for n, cell in cells.items() if cell not in ("", "0")]
    return {"fields": [[name, cells[name][:SNIPPET]] for name in first if name not in hidden][:FEW]}
