"""Which row each person is at, so that no two people work on the same one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS = 240.0  # without a sign of the person, after which a row is free again


class Leases:
    """The row that each tab of each reviewer shows, in memory only; thread-safe.

    >>> leases = Leases()
    >>> leases.take(7, "ann"), leases.take(7, "bob"), leases.take(8, "ann"), leases.take(7, "bob")
    (None, 'ann', None, None)
    """

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._held: dict[tuple[str, str], tuple[int, float]] = {}  # (reviewer, tab) → row and end of the lease
        self._lock = threading.Lock()

    def take(self, row: int, reviewer: str, tab: str = "") -> str | None:
        """Move a tab to ``row``; return the name of another person who is there already and keeps it, else None."""
        with self._lock:
            self._forget()
            self._held.pop((reviewer, tab), None)
            other = next((name for (name, _), (at, _) in self._held.items() if at == row and name != reviewer), None)
            if other is None:
                self._held[reviewer, tab] = row, self.clock() + self.seconds
            return other

    def give_back(self, reviewer: str, tab: str = "") -> None:
        """Free the row of a tab."""
        with self._lock:
            self._held.pop((reviewer, tab), None)

    def rows(self, *, but: str | None = None) -> dict[int, str]:
        """Return who is at which row, without the rows of the reviewer ``but``."""
        with self._lock:
            self._forget()
            return {row: name for (name, _), (row, _) in self._held.items() if name != but}

    def _forget(self) -> None:
        now = self.clock()
        self._held = {holder: lease for holder, lease in self._held.items() if lease[1] > now}
