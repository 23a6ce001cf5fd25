"""What models are fitted to once a reviewer has decided on some labels, so that no decision judges its own row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Taught:
    """Labels of N rows to fit models to.

    A model of a fold learns the decisions on the rows of other folds only. Soft labels and weights, which all folds
    share and which would carry a decision back to its own row, are those of models that saw no decision.
    """

    labels: NDArray[np.int64]  # (N,), or answers (N, K): the decided label, else the given one
    # (N, K): P(true k) without decisions, of a decided row 1 for its label; None of many rows, and of several labels
    truth: Tensor | None
    weights: Mapping[str, float]  # of the models, by name
    label_weights: NDArray[np.float64] | None = None  # (K, M + 1), of several labels a row: those of `join_answers`
