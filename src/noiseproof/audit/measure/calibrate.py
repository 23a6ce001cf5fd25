"""P(wrong) of every row, moved to what decisions say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Probabilities of the rows of an audit, in the order of its issues."""

    wrong: NDArray[np.float64]  # (N,) P(the given label is wrong)
    suggestion: NDArray[np.float64]  # (N,) P(the suggested label is right)
    is_issue: NDArray[np.bool_]  # (N,) by the goal


def recalibrate(audit: Audit, answers: Sequence[Decision], goal: str = "f1") -> Calibrated:
    raise NotImplementedError
