"""Issues by words of their ids, texts and cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.sources import Source
from noiseproof.audit.sources.base import NoRows

if TYPE_CHECKING:
    from noiseproof.review.queue import Issues


class Search:
    """Finds the issues whose id, text or cells contain words; the rows are read for the first search, then kept."""

    def __init__(self, issues: Issues, rows: Source | NoRows) -> None:
        self.issues, self.rows = issues, rows
        self.matches = lru_cache(maxsize=32)(self._matches)

    @cached_property
    def texts(self) -> list[str]:
        """All that is searched of each issue, in small letters."""
        texts, position = [id.lower() for id in self.issues.id], self.issues.position
        for row, cells in enumerate(self.rows.cells()):
            if (i := position.get(row)) is not None:
                texts[i] = "\n".join((texts[i], *cells)).lower()
        return texts

    def _matches(self, search: str) -> NDArray[np.bool_]:
        """Return for each issue whether it contains all words of ``search``, in large or small letters, (N,)."""
        positions: Sequence[int] = range(len(self.issues))
        for word in sorted(search.lower().split(), key=len, reverse=True):  # the longest one leaves the fewest
            positions = [i for i in positions if word in self.texts[i]]
        is_match = np.zeros(len(self.issues), dtype=bool)
        is_match[list(positions)] = True
        return is_match
