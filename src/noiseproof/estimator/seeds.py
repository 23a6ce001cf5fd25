"""Seeds as users pass them in ``random_state``."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from noiseproof.core.checks import check_count

RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def draw_seed(random_state: RandomState) -> int:
    """The seed itself, one drawn from a ``RandomState`` or ``Generator``, or another one each time for None."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0]) % 2**31
    return check_count("random_state", random_state, 0, "It is a seed.")
