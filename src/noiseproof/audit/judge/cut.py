"""The cut: which labels are called issues, by the goal that these should achieve."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Aim = Literal["f1", "precision", "recall", "budget"]
RARE = 20.0  # rows of the overall noise rate that the rate of each class is averaged with


@dataclass(frozen=True)
class Goal:
    """The largest expected F1, or a bound on another figure."""

    aim: Aim = "f1"
    bound: float = 0.0  # of precision and recall, or the number of rows of a budget

    def count(self, wrong: NDArray[np.float64]) -> int:
        """How many rows to call wrong, from their P(wrong) (N,) in falling order.

        The first n have the expected precision Σₙ P(wrong)/n, recall Σₙ P(wrong)/Σ P(wrong) and F1
        2·Σₙ P(wrong)/(n + Σ P(wrong)). A precision is kept by as many rows as possible, a recall by as few.

        >>> [Goal(*aim).count(np.array([0.9, 0.8, 0.4, 0.1])) for aim in (("f1",), ("precision", 0.8), ("recall", 0.9))]
        [2, 2, 3]
        """
        hits, n, total = wrong.cumsum(), np.arange(1, len(wrong) + 1), wrong.sum()
        if self.aim == "budget":
            return min(int(self.bound), len(wrong))
        if not total > 0:
            return 0
        if self.aim == "f1":
            return int((hits / (n + total)).argmax()) + 1
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
        f"Expected a goal of {', '.join(get_args(Aim))}: f1, precision=0.9, recall=0.9 (in (0, 1]) or budget=300 "
        f"(rows), got {text!r}."
    )


@dataclass(frozen=True, eq=False)
class Cut:
    """Thresholds on the quality of labels, and which labels are below."""

    quality: Tensor  # (N,) float32: P(true = given)
    thresholds: Tensor  # (K,) float64
    is_issue: Tensor  # (N,) bool


def cut_labels(
    labels: Tensor,
    wrong: Tensor,
    uncertain: Tensor,
    rate: float,
    num_classes: int,
    *,
    goal: Goal,
    may_be_fine: bool,
    is_predictable: bool,
) -> Cut:
    """Call the ``uncertain`` labels (N,) issues whose quality 1 − ``wrong`` is below the threshold of their class.

    Where all labels may be right, only those that are more likely wrong than right. A goal other than F1 is met by the
    worst labels, however few or many of a class these are.
    """
    quality = (1 - wrong).to(torch.float32)
    if goal.aim != "f1":
        return worst_labels(wrong, quality, uncertain & is_predictable, num_classes, goal)
    at_most = 0.5 if may_be_fine else 1.0
    thresholds = class_thresholds(labels[uncertain], wrong[uncertain], num_classes, rate, at_most=at_most)
    return Cut(quality, thresholds, (quality.double() < thresholds[labels]) & uncertain & is_predictable)


def worst_labels(wrong: Tensor, quality: Tensor, candidates: Tensor, num_classes: int, goal: Goal) -> Cut:
    """Call as many of the worst ``candidates`` (N,) issues as the ``goal`` needs."""
    rows = candidates.nonzero()[:, 0]
    order = rows[wrong[rows].argsort(descending=True, stable=True)]
    worst = order[: goal.count(wrong[order].numpy())]
    is_issue = torch.zeros_like(candidates)
    is_issue[worst] = True
    threshold = _just_above(float(quality[worst[-1]])) if len(worst) else 0.0
    return Cut(quality, torch.full((num_classes,), threshold, dtype=torch.float64), is_issue)


def _just_above(quality: float) -> float:
    return float(np.nextafter(np.float32(quality), np.float32(2)))


def class_thresholds(labels: Tensor, wrong: Tensor, num_classes: int, rate: float, *, at_most: float = 1.0) -> Tensor:
    """The quality below which a label is an issue, (K,), ``at_most`` this.

    Calling the n labels with the highest P(wrong) issues has the expected F1 2·Σₙ P(wrong)/(n + Σ P(wrong)); the
    largest one sets the threshold. Each class may have as many issues as 1.5 times the sum of P(wrong) in it, averaged
    with ``RARE`` rows of the overall ``rate``: a class of five rows that the model never learned has almost none.
    """
    worst = wrong.sort(descending=True).values
    num_worst = max(1, Goal("f1").count(worst.numpy()))
    overall = min(at_most, 1 - float(worst[num_worst - 1])) if len(worst) else 0.0
    thresholds = torch.full((num_classes,), _just_above(overall), dtype=torch.float64)
    order = wrong.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, worst first
    count = torch.bincount(labels, minlength=num_classes)
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, labels, wrong)
    allowed = (count * (1.5 * sums + RARE * rate) / (count + RARE)).ceil().long()
    limited = allowed < count
    first_beyond = (count.cumsum(0) - count + allowed)[limited]
    limit = (1 - wrong[order[first_beyond]]).to(torch.float32).double()
    thresholds[limited] = thresholds[limited].minimum(limit)
    return thresholds
