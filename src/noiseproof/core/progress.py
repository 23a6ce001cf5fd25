"""How long work reports how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the name of a stage, how much of it is done, and how much there is (None if unknown)."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None: ...
