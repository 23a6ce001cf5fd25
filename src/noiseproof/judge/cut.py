"""The cut: which labels are called issues, by the goal that these should achieve."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Aim = Literal["f1", "precision", "recall", "budget"]


@dataclass(frozen=True)
class Goal:
    """The largest expected F1, or a bound on another figure."""

    aim: Aim = "f1"
    bound: float = 0.0  # of precision and recall, or the number of rows of a budget

    def count(self, wrong: NDArray[np.float64]) -> int:
        """How many rows to call wrong, from their P(wrong) (N,) in falling order.

        The first n have the expected precision Σₙ P(wrong)/n, recall Σₙ P(wrong)/Σ P(wrong) and F1
        2·Σₙ P(wrong)/(n + Σ P(wrong)). A precision is kept by as many rows as possible, a recall by
        as few.

        >>> p = np.array([0.9, 0.8, 0.4, 0.1])
        >>> [goal.count(p) for goal in (Goal("f1"), Goal("precision", 0.8), Goal("recall", 0.9))]
        [2, 2, 3]
        """
        hits, n, total = wrong.cumsum(), np.arange(1, len(wrong) + 1), wrong.sum()
        if self.aim == "budget":
            return min(int(self.bound), len(wrong))
        if not total > 0:
            return 0
        if self.aim == "f1":  # nothing where less than half a label is expected to be wrong
            return int((hits / (n + total)).argmax()) + 1 if total > 0.5 else 0
        if self.aim == "recall":
            return int(np.searchsorted(hits, self.bound * total * (1 - 1e-12))) + 1
        kept = np.flatnonzero(hits / n >= self.bound - 1e-12)
        return int(kept[-1]) + 1 if len(kept) else 0


def parse_goal(text: str) -> Goal:
    """``f1``, ``precision=0.9``, ``recall=0.9`` or ``budget=300``.

    >>> parse_goal("budget=300")
    Goal(aim='budget', bound=300.0)
    """
    name, _, value = text.strip().partition("=")
    try:
        if name == "f1" and not value:
            return Goal()
        bound = float(value)
        if name in ("precision", "recall") and 0 < bound <= 1:
            return Goal(name, bound)  # type: ignore[arg-type]  # checked above
        if name == "budget" and bound >= 1 and bound == int(bound):
            return Goal("budget", bound)
    except (ValueError, OverflowError):  # not a number, or an infinite one
        pass
    raise ValueError(
        f"Expected a goal of {', '.join(get_args(Aim))}: f1, precision=0.9, recall=0.9 (in (0, 1])"
        f" or budget=300 (rows), got {text!r}."
    )


@dataclass(frozen=True, eq=False)
class Cut:
    """Thresholds on the quality of labels, and which labels are below."""

    quality: Tensor  # (N,) float32: P(true = given)
    thresholds: Tensor  # (K,) float64
    is_issue: Tensor  # (N,) bool


def worst_labels(
    wrong: Tensor, candidates: Tensor, num_classes: int, goal: Goal, *, is_predictable: bool = True
) -> Cut:
    """Call as many of the worst ``candidates`` (N,) issues as the ``goal`` needs; for F1, with all
    that are as bad.

    Where labels are not predictable, only a budget is spent.
    """
    if not is_predictable and goal.aim != "budget":
        candidates = torch.zeros_like(candidates)
    quality = (1 - wrong).to(torch.float32)
    rows = candidates.nonzero()[:, 0]
    order = rows[wrong[rows].argsort(descending=True, stable=True)]
    worst = order[: goal.count(wrong[order].numpy())]
    is_issue = torch.zeros_like(candidates)
    is_issue[worst] = True
    threshold = (
        float(np.nextafter(np.float32(quality[worst[-1]]), np.float32(2))) if len(worst) else 0.0
    )
    if goal.aim == "f1":
        is_issue = candidates & (quality.double() < threshold)
    return Cut(quality, torch.full((num_classes,), threshold, dtype=torch.float64), is_issue)
