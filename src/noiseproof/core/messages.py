"""Words for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def preview(items: Sequence[Any], most: int = 5) -> str:
    """The first few of ``items`` as a list for a message."""
    return ", ".join(map(repr, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")
