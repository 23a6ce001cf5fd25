"""The share of wrong labels, learned from sets whose mistakes were not planted.

Two numbers of a set bound what its predictions can show of the share r of wrong labels. The
class-noise posterior counts the mistakes that overlap between classes cannot explain, e: right
where mistakes are spread at random, a fraction of the truth where people, rules or tools made them,
since their mistakes look like overlap. The other number is the share c of labels that the
predictions contradict once every class counts alike, p_k/P(given k). On real sets r is about c; on
planted ones it is near e.

Which of the two it is shows where the predictions are most certain: u is the share of labels that
they contradict in the most certain quarter of each predicted class. Mistakes that are spread at
random are there as often as elsewhere, also between classes that look alike; mistakes of
people, rules and tools are rare there. So

    r = c^(1 − w) · s^w        s = max(e, u − its error), w from 0 to 1 as u/c passes `AT_RANDOM`

Where e is less than u, w is multiplied by √(e/u): the posterior sees mistakes that go one way or to
all classes alike; where these are fewer than even the most certain predictions contradict, two
classes were taken for each other, as people do. And w is near one where a set contradicts little
and the posterior finds almost none of that wrong: labels that are predicted so well are right.

The truth is at most c, or `AT_MOST`·r if that is more. With h, what overlap leaves unexplained
after many rounds of EM, it is at least h²/c: h where that is nearly all that is contradicted, far
less where overlap explains most, since then it may explain the rest. Data, fit and what came out on
families of sets left out: benchmarks/prior.py, docs/real.md.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.judge.posterior import blocks, step

CERTAIN = 0.25  # share of the rows predicted to be of a class whose predictions are most certain
AT_RANDOM = 0.29  # u/c above which mistakes look as if they were spread at random
FEW_CONTRADICTED, FEW_EXPLAINED = 0.12, 0.2  # c and e/c below which labels look right
AT_MOST = 1.6
SMALL = 1e-3


def balanced_contradictions(labels: Tensor, probs: Tensor) -> float:
    """Share of labels (N,) that differ from the class whose p_k/P(given k) is largest in ``probs``
    (N, K).

    A rare class is hardly ever the most likely one, but it is the one that is likelier than usual.
    A class that is as likely as the given one contradicts nothing.
    """
    frequency = torch.bincount(labels, minlength=probs.shape[1]).double() / max(len(labels), 1)
    contradicted = 0
    for rows in blocks(probs):
        relative = (probs[rows].double() + SMALL) / (frequency + SMALL)
        own = relative.gather(1, labels[rows, None])[:, 0]
        contradicted += int((relative.amax(1) > own).sum())
    return contradicted / max(len(labels), 1)


def most_certain(
    guess: NDArray[np.int64], confidence: NDArray[np.float32], share: float
) -> NDArray[np.int64]:
    """Row numbers of the ``share`` of rows of each class guessed, (n,), whose ``confidence`` is
    largest, one at least.
    """
    order = np.lexsort((-confidence, guess))
    count = np.bincount(guess)
    rank = np.arange(len(order)) - np.repeat(count.cumsum() - count, count)
    return order[rank < np.repeat(np.ceil(share * count), count)]


def certain_contradictions(labels: Tensor, probs: Tensor) -> tuple[float, float]:
    """Share of labels (N,) that the most certain predictions (N, K) contradict, and 1.96 standard
    errors below.
    """
    confidence, guess = (part.numpy() for part in probs.max(1))
    rows = most_certain(guess, confidence, CERTAIN)
    n = max(len(rows), 1)
    share = float((labels.numpy()[rows] != guess[rows]).sum() / n)
    return share, max(0.0, share - 1.96 * math.sqrt(max(share * (1 - share), 1 / n) / n))


def likely_rate(
    explained: float,
    certain: tuple[float, float],
    contradicted: float,
    at_random: float = AT_RANDOM,
    few_contradicted: float = FEW_CONTRADICTED,
    few_explained: float = FEW_EXPLAINED,
) -> float:
    """The share of wrong labels, from e, u with its lower bound, and c.

    >>> # people's mistakes; in between; at random
    >>> signals = (0.03, (0.01, 0.0)), (0.1, (0.09, 0.08)), (0.2, (0.2, 0.19))
    >>> [round(likely_rate(e, u, 0.3), 3) for e, u in signals]
    [0.299, 0.164, 0.201]
    """
    c = contradicted + SMALL
    seen = math.sqrt(min(1.0, explained / (certain[0] + SMALL)))
    spread = step(certain[0] / c / at_random) * seen
    few = step(few_contradicted / c) * step(few_explained * c / (explained + SMALL / 2))
    weight = 1 - (1 - spread) * (1 - few)
    floor = SMALL / 10
    at_random_alone = min(max(explained, certain[1]), contradicted)
    return math.exp(
        (1 - weight) * math.log(contradicted + floor) + weight * math.log(at_random_alone + floor)
    )


def bounds(rate: float, unexplained: float, contradicted: float) -> tuple[float, float]:
    """The least and the largest share of wrong labels, from the likely one, h and c.

    >>> [round(bound, 4) for bound in bounds(0.1, 0.09, 0.12)]
    [0.0675, 0.16]
    """
    low = min(rate, unexplained, unexplained**2 / max(contradicted, SMALL))
    return low, min(1.0, max(AT_MOST * rate, contradicted))
