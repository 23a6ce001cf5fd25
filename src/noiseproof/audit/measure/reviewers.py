"""How often reviewers err, from rows that were asked twice, and estimates without their errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from noiseproof.audit.decisions import Decision
from noiseproof.audit.measure.interval import Estimate, exact_share

ANGLES = 720  # points on the border of a joint region; the range over it is exact to 1e-5 of its width


@dataclass(frozen=True)
class Agreement:
    """How far two answers on the same rows agree."""

    rows: int  # with two answers
    same: float  # share of them with the same label
    kappa: float  # NaN where all answers are one class
    error: Estimate  # probability that one answer is wrong


def agreement(answers: Sequence[Decision], num_classes: int) -> Agreement | None:
    """Agreement of the first and the second answer on each row asked twice, of one or of two people; None without any.

    Cohen's kappa is (same − chance)/(1 − chance) with chance = Σ_k P(first k)·P(second k) (Cohen 1960). The error e of
    one answer, and its interval, follow from the share that differs,

        P(differ) = 1 − (1 − e)² − e²/(K − 1),

    if both answers err independently, with the same probability, and take each of the K − 1 wrong classes equally
    often.
    """
    pairs = _pairs(answers)
    if not pairs:
        return None
    rows, same = len(pairs), sum(first == second for first, second in pairs)
    counts = [Counter(labels) for labels in zip(*pairs, strict=True)]
    chance = sum(counts[0][label] * counts[1][label] for label in counts[0]) / rows**2
    kappa = (same / rows - chance) / (1 - chance) if chance < 1 else math.nan
    differ = exact_share(rows - same, rows)
    error = Estimate(*(_error_of(share, num_classes) for share in (differ.value, differ.low, differ.high)))
    return Agreement(rows, same / rows, kappa, error)


def _pairs(answers: Sequence[Decision]) -> list[tuple[str, str]]:
    """The labels of the first and of the second answer on each row with both; a changed answer counts as it is now."""
    first: dict[int, str] = {}
    second: dict[int, tuple[str, str]] = {}  # reviewer and label
    for answer in answers:
        if answer.asked != "repeat":
            first[answer.row] = answer.label
        elif second.setdefault(answer.row, (answer.reviewer, answer.label))[0] == answer.reviewer:
            second[answer.row] = answer.reviewer, answer.label
    return [(first[row], label) for row, (_, label) in second.items() if first.get(row) and label]  # none was skipped


def _error_of(differ: float, num_classes: int) -> float:
    """The e at which two answers differ with this probability; at most that of a guess, (K − 1)/K."""
    guess = (num_classes - 1) / num_classes
    return guess * (1 - math.sqrt(max(0.0, 1 - differ / guess)))


def corrected(rate: Estimate, error: Estimate, num_classes: int) -> Estimate:
    """The share of wrong labels, from the share that reviewers with the error e call wrong.

    A right label is called wrong with probability e, and a wrong one right with e/(K − 1), so the measured share is
    m = r·(1 − e/(K − 1)) + (1 − r)·e, and

        r = (m − e)/(1 − e·K/(K − 1))

    (Rogan & Gladen 1978). This assumes what `agreement` does, and that e is the same for right and wrong labels. The
    interval is the range of r over the ellipse whose half-axes are those of both intervals; as both come partly from
    the same rows, it is rather too wide.

    >>> found = corrected(Estimate(0.145, 0.10, 0.20), Estimate(0.05, 0.02, 0.10), num_classes=2)
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (0.1056, 0.0335, 0.1705)
    """
    if num_classes < 2:
        raise ValueError(f"Expected `num_classes` ≥ 2, got {num_classes}.")
    guess = (num_classes - 1) / num_classes
    if error.value >= guess:  # answers that are guesses
        return Estimate(rate.value, 0.0, 1.0)
    angle = np.linspace(0, 2 * np.pi, ANGLES + 1)  # with the four ends of the axes
    m, e = (
        part.value + side * np.where(side > 0, part.high - part.value, part.value - part.low)
        for part, side in ((rate, np.cos(angle)), (error, np.sin(angle)))
    )
    r = np.clip((m - e) / np.maximum(1 - e / guess, 1e-12), 0, 1)
    value = min(1.0, max(0.0, (rate.value - error.value) / (1 - error.value / guess)))
    return Estimate(value, float(r.min()), float(r.max()))
