"""The class-noise posterior: how likely a given label is right, by what a model says and by which labels get confused.

With q_k(x) the probability that x is truly of class k and T[k, j] = P(given j | true k),

    P(true k | x, given y) = q_k·T[k, y] / Σ_i q_i·T[i, y].

Both are taken from predictions p, which a model made without having seen the row's own label:

* q ∝ (p + ε)^β. The β under which the given labels are most likely, P(given y) = Σ_k q_k·T[k, y], makes averages of
  several models as certain as they should be; ε keeps one number near zero from deciding alone.
* The joint J[i, j] = P(true i, given j) begins as the confident joint (Northcutt et al. 2021) and is then the mean of
  the posterior (EM). Classes that overlap fill it, too, but symmetrically: of probabilities that are calibrated,
  E[p_i·1(y = j)] = E[p_i·p_j]. So only what is *not* symmetric is believed to be noise between two classes, by
  McNemar's measure (J_ij − J_ji)₊²/(J_ij + J_ji); the rest of the off-diagonal mass is spread over all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BETAS = (0.7, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
ROUNDS = 3  # of EM, after which T ranks best
MANY = 30  # of EM, after which the noise rate hardly moves
LOOKED_AT = 10_000  # rows that β is found on
BLOCK = 2**22  # numbers of an intermediate result
FLOOR = 0.02  # ε up to ten classes
LOW_FLOOR = 0.005  # ε for the noise rate, of which the other would hide about a fiftieth
ONE_WAY = 10.0  # from a tenth of all contradictions on, what goes one way speaks for all of them
SMALL = 1e-12


@dataclass(frozen=True, eq=False)
class ClassNoise:
    """β, T and what they are good for."""

    beta: float
    transition: Tensor  # (K, K) float64
    floor: float = FLOOR
    mean_rate: float = 0.0  # wrong labels by the posterior
    least_rate: float = 0.0  # wrong labels where overlap explains what it can: the posterior's after many rounds
    confident_rate: float = 1.0  # wrong labels where every sure contradiction is an error: the confident joint's
    most_rate: float = 1.0  # and every contradiction at all, as far as contradictions go one way

    def truth(self, labels: Tensor, probs: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """P(true k | x, given y) of each row, in blocks: rows, (n, K) float64."""
        of_given = self.transition.T.contiguous()  # (K given, K true)
        for rows in blocks(probs):
            joint = sharpened(probs[rows], self.beta, self.floor).mul_(of_given[labels[rows]])
            yield rows, joint.div_(joint.sum(1, keepdim=True).clamp_(min=SMALL))

    def rate(self, labels: Tensor, probs: Tensor) -> float:
        """The mean of P(true ≠ given)."""
        right = [truth.gather(1, labels[rows, None]) for rows, truth in self.truth(labels, probs)]
        return 1 - float(torch.cat(right).mean())


def blocks(probs: Tensor) -> Iterator[slice]:
    """Slices of rows, so small that a copy of each is no matter."""
    step = max(1, BLOCK // probs.shape[1])
    return (slice(i, i + step) for i in range(0, len(probs), step))


def sharpened(p: Tensor, beta: float, floor: float = FLOOR) -> Tensor:
    """q ∝ (p + ε)^β, (n, K) float64, where ε is ``floor`` up to ten classes, and the less the more there are."""
    q = (p.double() + floor * min(1, 10 / p.shape[1])).pow_(beta)
    return q.div_(q.sum(1, keepdim=True))


def fit_class_noise(
    labels: Tensor,
    probs: Tensor,
    *,
    trusted: Tensor | None = None,
    generator: torch.Generator | None = None,
    rates: bool = True,
) -> ClassNoise:
    """β and T of given ``labels`` (N,) and out-of-sample predictions ``probs`` (N, K).

    Rows whose labels are ``trusted`` (N,) bool tell how certain q should be, for there no noise is in the way: β is
    then the one under which *they* are most likely. They tell nothing of the noise. Without ``rates``, the noise rates,
    which are most of the work, stay unknown.
    """
    noisy = slice(None) if trusted is None else ~trusted
    y, p = labels[noisy], probs[noisy]
    confident = confident_joint(y, p)
    some_y, some_p, start = y, p, confident
    if len(y) > LOOKED_AT:
        some = torch.rand(len(y), generator=generator).argsort()[:LOOKED_AT]
        some_y, some_p = y[some], p[some]
        start = confident_joint(some_y, some_p)
    best, beta = -torch.inf, 1.0
    for candidate in BETAS if probs.shape[1] <= 200 else BETAS[1::2]:
        if trusted is not None:
            fit = _likelihood(labels[trusted], probs[trusted], candidate, None)
        else:
            fit = _likelihood(some_y, some_p, candidate, _em(some_y, some_p, candidate, start))
        if fit > best:
            best, beta = fit, candidate
    T = _em(y, p, beta, confident)
    if not rates:
        return ClassNoise(beta, T)
    mean, least = (
        ClassNoise(beta, _em(some_y, some_p, beta, start, rounds, LOW_FLOOR), LOW_FLOOR).rate(some_y, some_p)
        for rounds in (ROUNDS, MANY)
    )
    sure, every = 1 - float(confident.trace()), confident_joint(y, p, surely=False)
    # Where one class alone loses labels to another, half of its rows are less sure than their mean, and not counted.
    # Overlap does not explain that, as far as it goes one way and by more than chance: McNemar's measure, in rows, is
    # then χ² of one degree of freedom for each pair of classes.
    contradicted = 1 - float(every.trace())
    pairs = int(((every + every.T).fill_diagonal_(0) > 0).sum()) / 2
    one_way = float(_one_way(every).sum()) - (pairs + 2 * math.sqrt(2 * pairs)) / len(y)
    share = min(1.0, ONE_WAY * max(0.0, one_way) / max(contradicted, SMALL))
    most = sure + share * max(0.0, contradicted - sure)
    return ClassNoise(beta, T, FLOOR, mean, least, sure, most)


def confident_joint(labels: Tensor, probs: Tensor, *, surely: bool = True) -> Tensor:
    """J[i, j]: rows of label j that are surely of class i, scaled to the labels' frequencies, (K, K) (Northcutt 2021).

    Surely: p_i is at least the mean p_i of the rows that bear the label i; of several such classes, the likeliest.
    Else all rows, each of the class whose p_i is largest in proportion to that mean.
    """
    K = probs.shape[1]
    count = torch.bincount(labels, minlength=K).double()
    own = probs.gather(1, labels[:, None])[:, 0].double()
    threshold = torch.full((K,), torch.inf, dtype=torch.float64)
    present = count > 0
    threshold[present] = (torch.zeros_like(count).index_add_(0, labels, own) / count)[present] - 1e-6
    pairs = torch.zeros(K * K, dtype=torch.float64)
    for rows in blocks(probs):
        p = probs[rows].double()
        if surely:
            p[p < threshold] = -1
        else:
            p /= threshold
        value, likeliest = p.max(1)
        found = value >= 0
        pairs += torch.bincount(likeliest[found] * K + labels[rows][found], minlength=K * K)
    joint = pairs.view(K, K)
    joint.diagonal().clamp_(min=1)
    return joint.mul_(count / joint.sum(0) / len(labels))


def _one_way(joint: Tensor) -> Tensor:
    """What overlap does not explain of J: McNemar's (J_ij − J_ji)₊²/(J_ij + J_ji)."""
    return (joint - joint.T).clamp_(min=0).square_() / (joint + joint.T).clamp_(min=SMALL)


def without_overlap(joint: Tensor, num_rows: int) -> Tensor:
    """J with the off-diagonal mass that overlap explains spread over all pairs; the columns' sums stay.

    One row's worth is taken off each excess, which is what chance puts there.
    """
    excess = (_one_way(joint) - 1 / num_rows).clamp_(min=0)
    given = joint.sum(0)
    even = torch.outer(joint.sum(1), given).fill_diagonal_(0)
    left = (1 - joint.trace() / joint.sum()) * joint.sum() - excess.sum()
    noise = excess.add_(even.mul_(left.clamp(min=1e-6) / even.sum().clamp(min=SMALL)))
    noise.diagonal().copy_((given - noise.sum(0)).maximum(0.01 * given))
    return noise


def _em(
    labels: Tensor, probs: Tensor, beta: float, start: Tensor, rounds: int = ROUNDS, floor: float = FLOOR
) -> Tensor:
    """T after a few rounds: posterior by T, joint by the posterior, T by the joint without overlap."""
    K = probs.shape[1]
    T = _rows_to_one(without_overlap(start, len(labels)))
    for _ in range(rounds):
        by_given = torch.full((K, K), 0.1 / K, dtype=torch.float64)  # (K given, K true)
        for rows, truth in ClassNoise(beta, T, floor).truth(labels, probs):
            by_given.index_add_(0, labels[rows], truth)
        T = _rows_to_one(without_overlap(by_given.T / len(labels), len(labels)))
    return T


def _rows_to_one(joint: Tensor) -> Tensor:
    total = joint.sum(1, keepdim=True)
    absent = total[:, 0] <= 0  # a class that nobody has: its labels would be right
    joint = joint / total.clamp(min=SMALL)
    joint[absent] = 0
    joint.diagonal()[absent] = 1
    return joint


def _likelihood(labels: Tensor, probs: Tensor, beta: float, T: Tensor | None) -> float:
    """Σ log P(given y | x); without T, P(given y | x) = q_y."""
    total = 0.0
    for rows in blocks(probs):
        q, y = sharpened(probs[rows], beta), labels[rows]
        p = q.gather(1, y[:, None])[:, 0] if T is None else (q * T.T[y]).sum(1)
        total += float(p.clamp_(min=SMALL).log_().sum())
    return total
