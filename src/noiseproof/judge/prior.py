"""The share of wrong labels, learned from sets whose mistakes were not planted.

Two numbers of a set bound what its predictions can show of the share r of wrong labels. The
class-noise posterior counts the mistakes that overlap between classes cannot explain, e: right
where mistakes are spread at random, a fraction of the truth where people, rules or tools made them,
since their mistakes look like overlap. The other number is the share c of labels that the
predictions contradict once every class counts alike, p_k/P(given k). On real sets r is about c; on
planted ones it is near e.

Which of the two it is shows in the share of c that is explained, and in h: what overlap leaves
unexplained after many rounds of EM. Mistakes that are spread at random stay; where those of people
are, overlap explains nearly all in the end. So

    r = c^(1 − w) · e^w        w = min(1, e/c / PLANTED)^1.5 / (1 + (UNEXPLAINED/h)³)

and w is near one as well where a set contradicts little and the posterior finds almost none of that
wrong: labels that are predicted so well are right.

The truth is at most c, or `AT_MOST`·r if that is more. It is at least h²/c: h where that is nearly
all that is contradicted, far less where overlap explains most, since then it may explain the rest.
Data, fit and what came out on families of sets left out: benchmarks/prior.py, docs/real.md.
"""

import math

import torch
from torch import Tensor

from noiseproof.judge.posterior import blocks

PLANTED = 0.65  # e/c from which mistakes look as if they were spread at random
UNEXPLAINED = 0.02  # h below which they do not
FEW_CONTRADICTED, FEW_EXPLAINED = 0.13, 0.2  # c and e/c below which labels look right
STEEP = 1 / 0.15  # of these two steps
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


def likely_rate(
    explained: float,
    unexplained: float,
    contradicted: float,
    planted: float = PLANTED,
    few_contradicted: float = FEW_CONTRADICTED,
    few_explained: float = FEW_EXPLAINED,
) -> float:
    """The share of wrong labels, from e, h and c.

    >>> # people's mistakes; in between; at random
    >>> [round(likely_rate(e, h, 0.3), 3) for e, h in ((0.03, 0.0), (0.11, 0.05), (0.2, 0.2))]
    [0.298, 0.201, 0.2]
    """
    ratio = (explained + SMALL / 2) / (contradicted + SMALL)
    spread = min(1.0, ratio / planted) ** 1.5
    spread /= 1 + (UNEXPLAINED / (unexplained + SMALL)) ** 3
    few = _step(few_contradicted / (contradicted + SMALL)) * _step(few_explained / ratio)
    weight = 1 - (1 - spread) * (1 - few)
    floor = SMALL / 10
    return math.exp(
        (1 - weight) * math.log(contradicted + floor) + weight * math.log(explained + floor)
    )


def bounds(rate: float, unexplained: float, contradicted: float) -> tuple[float, float]:
    """The least and the largest share of wrong labels, from the likely one, h and c.

    >>> [round(bound, 4) for bound in bounds(0.1, 0.09, 0.12)]
    [0.0675, 0.16]
    """
    low = min(rate, unexplained, unexplained**2 / max(contradicted, SMALL))
    return low, min(1.0, max(AT_MOST * rate, contradicted))


def _step(x: float) -> float:
    """From 0 to 1, and ½ at one."""
    return 1 / (1 + math.pow(x, -STEEP))
