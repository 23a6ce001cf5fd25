"""The class-noise posterior: the probability that a given label is right, from predictions and
class confusions.

With q_k(x) the probability that x is of class k and T[k, j] = P(given j | true k),

    P(true k | x, given y) = q_k·T[k, y] / Σ_i q_i·T[i, y].

Both are estimated from predictions p of models that did not see the row's label:

* q ∝ (p + ε)^β. β maximises the likelihood of the given labels, P(given y) = Σ_k q_k·T[k, y], which
  corrects the underconfidence of averaged models; ε keeps a single probability near zero from
  deciding alone.
* The joint J[i, j] = P(true i, given j) starts as the confident joint (Northcutt et al. 2021) and
  is then the mean of the posterior (EM). Overlapping classes fill it, too, but symmetrically:
  calibrated probabilities have E[p_i·1(y = j)] = E[p_i·p_j]. So only the asymmetric part counts as
  noise between two classes, by McNemar's (J_ij − J_ji)₊²/(J_ij + J_ji); the rest of the
  off-diagonal mass is spread over all pairs. Of what is left between two classes, a share ``EVEN``
  is spread over all pairs, too: classes that overlap lopsidedly look like noise.

``FLOOR`` and ``EVEN`` were chosen on the tables of ``benchmarks/tablesets.py`` called ``DEV``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from noiseproof.core.messages import Brief
from noiseproof.core.probs import confident_counts, mean_label_probability

BETAS = (0.7, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
EM_ROUNDS = 3  # T ranks best after three
SAMPLE = 10_000  # rows that β and the rates are estimated on
BLOCK = 2**22  # numbers of an intermediate result
FLOOR = 0.002  # ε up to ten classes
EVEN = 0.25  # of the noise that a class receives from each other one
# Gain in log likelihood, over the root of its squares by row, for which half of the preferences
# between classes count.
PREFERENCE = 7.0
STEEP = 1 / 0.15  # of `step`
LEAST_NOISE = 0.02  # mean rate of a class in T, below which preferences could not be seen
SMALL = 1e-12
TINY = torch.finfo(torch.float64).tiny

# rows, and the probability of each class being their true one, (n, K) float64
Blocks = Iterator[tuple[slice, Tensor]]


@dataclass(frozen=True, eq=False, repr=False)
class ClassNoise(Brief):
    """β and T, from which the posterior follows."""

    beta: float
    transition: Tensor  # (K, K) float64
    sharpness: float = 1.0  # exponent of the posterior

    def for_ranking(self, rows: NoisyRows) -> ClassNoise:
        """The same mean rate in every class, and preferences between classes as far as ``rows``
        show them; β sharpens what follows in place of the predictions.

        T[i, j] = e·(a·D_ij + (1 − a)/(K − 1)) with D the rows of T without their diagonal. By
        class, rates are mostly overlap and make rankings worse; who is taken for whom is only
        believed where it makes the given labels more likely, not only a few of them. Without
        preferences, labels are ranked by their probability in the predictions as they are.
        """
        K = len(self.transition)
        rate = max(LEAST_NOISE, 1 - float(self.transition.diagonal().mean()))
        even = (1 - torch.eye(K, dtype=torch.float64)) / max(K - 1, 1)
        preferred = self.transition.clone().fill_diagonal_(0)
        total = preferred.sum(1, keepdim=True)
        preferred = torch.where(total > SMALL, preferred / total.clamp(min=SMALL), even)

        def with_rate(offdiagonal: Tensor) -> Tensor:
            return rate * offdiagonal + (1 - rate) * torch.eye(K, dtype=torch.float64)

        labels, probs = rows.labels, rows.probs
        gain = _log_likelihood(labels, probs, self.beta, with_rate(preferred))
        gain -= _log_likelihood(labels, probs, self.beta, with_rate(even))
        share = step(float(gain.sum() / gain.norm().clamp(min=SMALL)) / PREFERENCE)
        T = with_rate(share * preferred + (1 - share) * even)
        return ClassNoise(1.0, T, sharpness=self.beta)

    def posterior(self, labels: Tensor, probs: Tensor) -> Blocks:
        """P(true k | x, given y) of each row, in blocks."""
        by_given = self.transition.T.contiguous()  # (K given, K true)
        for rows in blocks(probs):
            joint = sharpen(probs[rows], self.beta).mul_(by_given[labels[rows]])
            truth = joint.div_(joint.sum(1, keepdim=True).clamp_(min=SMALL))
            yield rows, _sharpen_truth(truth, labels[rows], self.sharpness)

    def adjusted_transition(self, labels: Tensor, wrong: Tensor, probs: Tensor) -> Tensor:
        """T where P(true ≠ given) is ``wrong`` (N,): the other classes share it in the posterior's
        proportions.
        """
        K = probs.shape[1]
        by_given = torch.zeros(K, K, dtype=torch.float64)
        for rows, truth in self.posterior(labels, probs):
            y, bad = labels[rows, None], wrong[rows, None]
            truth.scatter_(1, y, 0.0)
            truth.mul_(bad / truth.sum(1, keepdim=True).clamp_(min=SMALL)).scatter_(1, y, 1 - bad)
            by_given.index_add_(0, labels[rows], truth)
        joint = by_given.T
        total = joint.sum(1, keepdim=True)
        T = torch.where(
            total > SMALL, joint / total.clamp(min=SMALL), torch.eye(K, dtype=torch.float64)
        )
        return T / T.sum(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """Rows whose labels may be wrong, with their confident joint."""

    labels: Tensor  # (n,)
    probs: Tensor  # (n, K)
    joint: Tensor  # (K, K)

    @classmethod
    def of(cls, labels: Tensor, probs: Tensor) -> Self:
        return cls(labels, probs, confident_joint(labels, probs))

    def sample(self, generator: torch.Generator | None) -> NoisyRows:
        """At most ``SAMPLE`` of the rows, for the expensive steps."""
        if len(self.labels) <= SAMPLE:
            return self
        rows = torch.rand(len(self.labels), generator=generator).argsort()[:SAMPLE]
        return self.of(self.labels[rows], self.probs[rows])


@dataclass(frozen=True, eq=False)
class RowPosterior:
    """The posterior of N rows, reduced to what is reported of each."""

    wrong: Tensor  # (N,) float64: P(true ≠ given)
    suggested: Tensor  # (N,): the most likely class other than the given one
    suggested_share: Tensor  # (N,) float64: P(true = suggested | true ≠ given)
    predicted: Tensor  # (N,): the most likely class by the predictions alone
    margin: Tensor  # (N,) float32: log p_given − log p of the best other class


def reduce_posterior(labels: Tensor, probs: Tensor, posterior: Blocks) -> RowPosterior:
    """Reduce the ``posterior`` of labels (N,) and predictions (N, K), block by block."""
    N = len(labels)
    wrong = torch.empty(N, dtype=torch.float64)
    suggested, predicted = torch.empty(N, dtype=torch.int64), torch.empty(N, dtype=torch.int64)
    share = torch.empty(N, dtype=torch.float64)
    margin = torch.empty(N, dtype=torch.float32)
    for rows, truth in posterior:
        y, p = labels[rows, None], probs[rows]
        wrong[rows] = 1 - truth.gather(1, y)[:, 0]
        others = truth.scatter(1, y, 0.0)
        suggested[rows] = others.scatter(1, y, -1.0).argmax(1)
        total = others.sum(1).clamp_(min=TINY)
        share[rows] = others.gather(1, suggested[rows, None])[:, 0] / total
        predicted[rows] = p.argmax(1)
        best = p.scatter(1, y, -1.0).amax(1)
        margin[rows] = torch.log((p.gather(1, y)[:, 0] + SMALL) / (best + SMALL)).float()
    return RowPosterior(wrong, suggested, share, predicted, margin)


def step(x: float) -> float:
    """From 0 to 1 where x is positive, and ½ at one."""
    return 1 / (1 + x**-STEEP) if x > SMALL else 0.0


def blocks(probs: Tensor) -> Iterator[slice]:
    """Slices of rows, small enough to copy."""
    step = max(1, BLOCK // probs.shape[1])
    return (slice(i, i + step) for i in range(0, len(probs), step))


def sharpen(p: Tensor, beta: float) -> Tensor:
    """q ∝ (p + ε)^β, (n, K) float64, where ε is ``FLOOR`` up to ten classes and falls as 1/K
    beyond.
    """
    q = (p.double() + FLOOR * min(1, 10 / p.shape[1])).pow_(beta)
    return q.div_(q.sum(1, keepdim=True))


def _sharpen_truth(truth: Tensor, labels: Tensor, exponent: float) -> Tensor:
    """A posterior (n, K) with the ``exponent``: of the odds of the given labels (n,), and of the
    other classes' probabilities, so that the ranking of labels stays.
    """
    if exponent == 1:
        return truth
    given = labels[:, None]
    right = torch.sigmoid(exponent * torch.logit(truth.gather(1, given), eps=1e-9))
    others = truth.pow(exponent).scatter_(1, given, 0.0)
    others.mul_((1 - right) / others.sum(1, keepdim=True).clamp_(min=TINY))
    return others.scatter_(1, given, right)


def fit_class_noise(
    rows: NoisyRows, sample: NoisyRows, trusted: tuple[Tensor, Tensor] | None = None
) -> ClassNoise:
    """Fit T to ``rows``, and β to a ``sample`` of them.

    β is fitted to ``trusted`` labels (m,) and their predictions (m, K) instead, where there are
    any: these have no noise, and so no influence on T.
    """
    best, beta = -torch.inf, 1.0
    for candidate in BETAS if rows.probs.shape[1] <= 200 else BETAS[1::2]:
        if trusted is not None:
            fit = float(_log_likelihood(*trusted, candidate, None).sum())
        else:
            T = run_em(sample, candidate)
            fit = float(_log_likelihood(sample.labels, sample.probs, candidate, T).sum())
        if fit > best:
            best, beta = fit, candidate
    return ClassNoise(beta, _spread(run_em(rows, beta)))


def confident_joint(labels: Tensor, probs: Tensor, *, confident: bool = True) -> Tensor:
    """J[i, j]: rows of label j that are confidently of class i, scaled to the labels' frequencies
    (Northcutt 2021).

    Confidently: p_i is at least the mean p_i of the rows with label i; of several such classes, the
    most likely one. Without ``confident`` every row counts, for the class whose p_i is largest
    relative to that mean.
    """
    threshold = mean_label_probability(labels, probs) - 1e-6
    joint = confident_counts(labels, probs, threshold, relative=not confident)
    count = torch.bincount(labels, minlength=len(joint)).double()
    joint.diagonal().clamp_(min=1)
    return joint.mul_(count / joint.sum(0) / len(labels))


def one_way_mass(joint: Tensor) -> Tensor:
    """The part of J that overlap does not explain: McNemar's (J_ij − J_ji)₊²/(J_ij + J_ji)."""
    return (joint - joint.T).clamp_(min=0).square_() / (joint + joint.T).clamp_(min=SMALL)


def without_overlap(joint: Tensor, num_rows: int) -> Tensor:
    """J with the off-diagonal mass that overlap explains spread over all pairs; the column sums
    stay.

    One row is subtracted from each excess, the amount expected by chance.
    """
    excess = (one_way_mass(joint) - 1 / num_rows).clamp_(min=0)
    given = joint.sum(0)
    even = torch.outer(joint.sum(1), given).fill_diagonal_(0)
    rest = (1 - joint.trace() / joint.sum()) * joint.sum() - excess.sum()
    noise = excess.add_(even.mul_(rest.clamp(min=1e-6) / even.sum().clamp(min=SMALL)))
    noise.diagonal().copy_((given - noise.sum(0)).maximum(0.01 * given))
    return noise


def run_em(rows: NoisyRows, beta: float, rounds: int = EM_ROUNDS) -> Tensor:
    """T after ``rounds`` of EM: posterior from T, joint from the posterior, T from the joint
    without overlap.
    """
    labels, probs = rows.labels, rows.probs
    K = probs.shape[1]
    T = _rows_to_one(without_overlap(rows.joint, len(labels)))
    for _ in range(rounds):
        by_given = torch.full((K, K), 0.1 / K, dtype=torch.float64)  # (K given, K true)
        for block, truth in ClassNoise(beta, T).posterior(labels, probs):
            by_given.index_add_(0, labels[block], truth)
        T = _rows_to_one(without_overlap(by_given.T / len(labels), len(labels)))
    return T


def _spread(T: Tensor) -> Tensor:
    """T with a share ``EVEN`` of its off-diagonal mass spread over all pairs; the diagonal
    stays.
    """
    stay = T.diagonal()
    even = ((1 - stay) / max(len(T) - 1, 1))[:, None].expand_as(T).clone().fill_diagonal_(0)
    return (1 - EVEN) * T + EVEN * (even + stay.diag())


def _rows_to_one(joint: Tensor) -> Tensor:
    total = joint.sum(1, keepdim=True)
    absent = total[:, 0] <= 0  # a class without rows: its labels would be right
    joint = joint / total.clamp(min=SMALL)
    joint[absent] = 0
    joint.diagonal()[absent] = 1
    return joint


def _log_likelihood(labels: Tensor, probs: Tensor, beta: float, T: Tensor | None) -> Tensor:
    """log P(given y | x) of each row, (n,); without T, P(given y | x) = q_y."""
    parts = []
    for block in blocks(probs):
        q, y = sharpen(probs[block], beta), labels[block]
        p = q.gather(1, y[:, None])[:, 0] if T is None else (q * T.T[y]).sum(1)
        parts.append(p.clamp_(min=SMALL).log_())
    return torch.cat(parts)
