"""Labels of several annotators, combined with the predictions.

With q_k(x) the prior of a row, and P_a(l | k) the probability that annotator a labels a row of
class k as l,

    P(true k | x, labels) ∝ q_k(x)·Π_a P_a(l_a | k)            (Dawid and Skene 1979).

* q_k ∝ p_k^β·f_k^(1 − β)₊ with the predictions p of models that did not see the row, the
  frequencies f of the classes, and the β under which the votes are most likely: predictions that
  know nothing leave the frequencies.
* P_a is counted from few labels, so each class starts with ``PER_CLASS``·K labels of an annotator
  who is right as often as a is, r_a, and who errs as the whole crowd does; r_a itself starts
  with ``OVERALL`` labels of the crowd's accuracy. Both were chosen on simulated crowds
  (``benchmarks/crowd.py --dev``).
* Two or three votes per row hardly distinguish a rare class from errors: with n votes per row on
  average, f starts with ``OF_VOTES``/(n − 1) times as many rows as there are, with the shares of
  the votes.
* Draws of P_a and f (``draw_annotators``) say how far they are known; their settings were chosen on
  simulated crowds (``benchmarks/annotator_intervals.py --dev``).
* Crowds that share no row, and have ``OWN_ROWS`` or more, are fitted each by itself, with its own
  frequencies: nothing tells which of them is right, and the classes of one would become the errors
  of the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from noiseproof.core.messages import Brief
from noiseproof.data.votes import Votes
from noiseproof.judge.posterior import BLOCK, FLOOR, SAMPLE, SMALL, Blocks

ROUNDS = 50  # of EM, at most
START_ACCURACY = 0.8  # the accuracy of each annotator that EM begins with
CONVERGED = 1e-4  # the change of probabilities that ends EM
OVERALL = 4.0
PER_CLASS = 5.0
OF_CROWD = 10.0  # labels that each class of the crowd's own confusion starts with
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
OF_VOTES = 3.0  # chosen on simulated crowds with 2, 3 and 5 votes per row
OWN_ROWS = 50  # of a crowd that is fitted by itself; smaller ones are fitted with the largest
BURN_IN = 50  # sweeps before the first draw
DRAWS = 25
EVERY = 8  # sweeps from one draw to the next
# times OF_VOTES for draws: shares of the votes are shares of the classes blurred by errors
DRAWN_OF_VOTES = 0.3
LEAST = 1e-4  # of any probability P_a(l | k): no single vote decides alone


@dataclass(frozen=True, eq=False, repr=False)
class Annotators(Brief):
    """The fitted confusions of A annotators, and how far the predictions count."""

    confusion: Tensor  # (A, K, K) float64: P_a(l | k), a row for each true class
    beta: float  # of the predictions
    frequency: Tensor  # (C, K) float64: f in each of C crowds


@dataclass(frozen=True, eq=False)
class VotedRows:
    """N rows with the votes on them; a ``given`` label that repeats one of these (a majority, say)
    adds nothing.

    Any other given label is one more vote, with the class confusions ``transition``.
    """

    votes: Votes
    num_classes: int
    probs: Tensor | None = None  # (N, K)
    given: Tensor | None = None  # (N,)
    transition: Tensor | None = None  # (K, K)

    @cached_property
    def adds_given(self) -> Tensor:
        """Return whether the given label is one more vote, (N,): where it repeats votes as a rule,
        on rows without any.
        """
        has_votes = torch.from_numpy(np.diff(self.votes.first) > 0)
        if self.given is None or self.transition is None:
            return torch.zeros_like(has_votes)
        repeats = torch.zeros_like(has_votes)
        repeats[self.row[self.label == self.given[self.row]]] = True
        is_repeated = bool(has_votes.any()) and float(repeats[has_votes].double().mean()) > 0.95
        return ~has_votes if is_repeated else torch.ones_like(has_votes)

    @property
    def error_pattern(self) -> Tensor:
        """Return what annotators are expected to confuse, (K, K): as the given labels do, else all
        classes alike.
        """
        if self.transition is None:
            return torch.ones(self.num_classes, self.num_classes, dtype=torch.float64)
        return self.transition

    @cached_property
    def row(self) -> Tensor:
        return torch.from_numpy(self.votes.row)

    @cached_property
    def annotator(self) -> Tensor:
        return torch.from_numpy(self.votes.annotator)

    @cached_property
    def label(self) -> Tensor:
        return torch.from_numpy(self.votes.label)

    @cached_property
    def crowds(self) -> tuple[Tensor, Tensor]:
        """Return the crowd of each row, (N,), and of each annotator, (A,): 0 is the largest, with
        what is in no other.
        """
        N = len(self.votes)
        A = len(self.votes.names)
        ones = np.ones(len(self.votes.row), dtype=bool)
        links = coo_array((ones, (self.votes.row, N + self.votes.annotator)), (N + A, N + A))
        part = connected_components(links, directed=False)[1]
        size = np.bincount(part[:N], minlength=N + A)
        own = np.argsort(-size, kind="stable")[: int((size >= OWN_ROWS).sum())]
        number = np.zeros(N + A, dtype=np.int64)
        number[own] = np.arange(len(own))
        crowd = torch.from_numpy(number[part])
        return crowd[:N], crowd[N:]

    @cached_property
    def vote_shares(self) -> Tensor:
        """Return the shares of the classes among the votes of each crowd, (C, K)."""
        crowds = int(torch.cat(self.crowds).max()) + 1
        counts = 1.0 + count_pairs(self.crowds[0][self.row], self.label, (crowds, self.num_classes))
        return counts / counts.sum(1, keepdim=True)

    @cached_property
    def blocks(self) -> list[tuple[slice, slice]]:
        """Slices of rows, small enough to copy, and of their votes."""
        first = self.votes.first
        N = len(self.votes)
        step = max(1, int(BLOCK / self.num_classes / max(1.0, len(self.row) / max(N, 1))))
        ends = [(i, min(i + step, N)) for i in range(0, N, step)]
        return [(slice(i, j), slice(int(first[i]), int(first[j]))) for i, j in ends]

    def log_prior(self, rows: slice, beta: float, frequency: Tensor) -> Tensor:
        """log q up to a constant, (n, K)."""
        base = frequency.clamp(min=SMALL).log()[self.crowds[0][rows]]
        if self.probs is None:
            return base
        p = (self.probs[rows].double() + FLOOR * min(1, 10 / self.num_classes)).log_()
        return max(0.0, 1 - beta) * base + beta * p

    def posterior(self, fitted: Annotators) -> Blocks:
        """Yield P(true k | x, labels) of each row, in blocks."""
        for rows, _, truth in self.posterior_and_votes(fitted):
            yield rows, truth

    def posterior_and_votes(self, fitted: Annotators) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the rows and the votes of each block, with P(true k | x, labels) of its rows, (n,
        K).
        """
        log_confusion = fitted.confusion.log()
        by_given = None if self.transition is None else self.transition.T.clamp(min=1e-9).log()
        for rows, votes in self.blocks:
            log_q = self.log_prior(rows, fitted.beta, fitted.frequency)
            likelihood = log_confusion[self.annotator[votes], :, self.label[votes]]  # (v, K)
            log_q.index_add_(0, self.row[votes] - rows.start, likelihood)
            if by_given is not None and self.given is not None:
                log_q += by_given[self.given[rows]] * self.adds_given[rows, None]
            yield rows, votes, log_q.softmax(1)

    def add_counts(self, truth: Tensor, votes: slice, first_row: int, counts: Tensor) -> None:
        """Add the expected votes of a block to ``counts``, (A, K given, K true)."""
        A, K, _ = counts.shape
        at = self.annotator[votes] * K + self.label[votes]
        counts.view(A * K, K).index_add_(0, at, truth[self.row[votes] - first_row])


class _Counts:
    """Votes and rows by their true classes, expected or drawn, and the P_a and f that follow."""

    def __init__(self, rows: VotedRows) -> None:
        A = len(rows.votes.names)
        K = rows.num_classes
        self.rows = rows
        self.votes = torch.zeros(A, K, K, dtype=torch.float64)  # (A, K given, K true)
        self.truth = torch.ones_like(rows.vote_shares)  # (C, K): rows of each crowd

    def add(self, truth: Tensor, block: slice, votes: slice) -> None:
        self.rows.add_counts(truth, votes, block.start, self.votes)
        self.truth.index_add_(0, self.rows.crowds[0][block], truth)

    def annotators(self, beta: float, random: np.random.Generator | None = None) -> Annotators:
        """Return the estimates, or with ``random`` a draw from the distribution whose mean they
        are.
        """
        rows = self.rows
        counts = self.votes.transpose(1, 2)
        # With one vote per row, errors of the annotator and of the predictions cannot be
        # distinguished: counts do not change the confusions.
        few = rows.votes.per_row / max(rows.votes.per_row - 1, SMALL)
        confusion = torch.empty_like(self.votes)
        for crowd in range(len(self.truth)):
            members = rows.crowds[1] == crowd
            confusion[members] = _estimate(counts[members], rows.error_pattern, few, random)
        weight = OF_VOTES * (few - 1) * (1.0 if random is None else DRAWN_OF_VOTES)
        total = self.truth + weight * self.truth.sum(1, keepdim=True) * rows.vote_shares
        return Annotators(confusion, beta, _mean(total, random))


def count_pairs(first: Tensor, second: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return how often each pair of numbers occurs in both (n,), of a ``shape``, float64."""
    counts = torch.bincount(first * shape[1] + second, minlength=shape[0] * shape[1])
    return counts.view(shape).double()


def fit_annotators(rows: VotedRows) -> Annotators:
    """Fit the confusions P_a, the exponent β of the predictions and the frequencies f by EM.

    Each round fits P_a and f to the votes and rows by the posterior of the true classes. β is the
    one of ``BETAS`` under whose prior q these classes are most likely; without predictions, f alone
    is the prior. At first annotators err as ``error_pattern`` says, and f is ``vote_shares``.
    """
    shape = (len(rows.votes.names), rows.num_classes)
    right = torch.full(shape, START_ACCURACY, dtype=torch.float64)
    confusion = _with_accuracy(rows.error_pattern, right).clamp(min=LEAST)
    fitted = Annotators(confusion, 1.0, rows.vote_shares)
    every = max(1, len(rows.votes) // SAMPLE)
    for _ in range(ROUNDS):
        counts = _Counts(rows)
        expected_log_prior = torch.zeros(len(BETAS), dtype=torch.float64)  # under each β
        for block, votes, truth in rows.posterior_and_votes(fitted):
            counts.add(truth, block, votes)
            if rows.probs is not None:
                sample = slice(block.start, block.stop, every)
                for place, beta in enumerate(BETAS):
                    log_q = rows.log_prior(sample, beta, fitted.frequency).log_softmax(1)
                    expected_log_prior[place] += (truth[::every] * log_q).sum()
        beta = 1.0 if rows.probs is None else BETAS[int(expected_log_prior.argmax())]
        before = fitted
        fitted = counts.annotators(beta)
        if (
            beta == before.beta
            and float((fitted.confusion - before.confusion).abs().max()) < CONVERGED
        ):
            break
    return fitted


def draw_annotators(rows: VotedRows, fitted: Annotators, seed: int = 0) -> Iterator[Annotators]:
    """Draw P_a and f given the votes, by Gibbs sampling from ``fitted`` on: true labels given P_a
    and f, and back.
    """
    random = np.random.default_rng(seed)
    for sweep in range(BURN_IN + DRAWS * EVERY):
        counts = _Counts(rows)
        for block, votes, truth in rows.posterior_and_votes(fitted):
            below = truth.cumsum(1)[:, :-1] < torch.from_numpy(random.random((len(truth), 1)))
            drawn = torch.nn.functional.one_hot(below.sum(1), rows.num_classes).double()
            counts.add(drawn, block, votes)
        fitted = counts.annotators(fitted.beta, random)
        if sweep >= BURN_IN and (sweep - BURN_IN) % EVERY == 0:
            yield fitted


def _estimate(
    counts: Tensor, pattern: Tensor, few: float, random: np.random.Generator | None = None
) -> Tensor:
    """P_a (A, K, K) from the votes (A, K true, K given); ``few`` times as many to start with."""
    K = counts.shape[-1]
    labels = counts.sum((1, 2))
    hits = counts.diagonal(dim1=1, dim2=2).sum(1)
    mean = ((hits.sum() + 1) / (labels.sum() + 1.25)).clamp(0.02, 0.999)  # a prior of 80 %
    of_two = torch.stack([hits + OVERALL * mean, labels - hits + OVERALL * (1 - mean)], 1)
    accuracy = _mean(of_two, random)[:, 0].clamp(0.02, 0.999)
    crowd = counts.sum(0)  # (K, K)
    start = OF_CROWD * few
    crowd = (crowd + start * _with_accuracy(pattern, mean.expand(1, K))[0]) / (
        crowd.sum(1, keepdim=True) + start
    )
    # r_a moves the log odds of a right label in all classes alike
    odds = (
        torch.logit(crowd.diagonal().clamp(0.001, 0.999))
        + (torch.logit(accuracy) - torch.logit(mean))[:, None]
    )
    expected = _with_accuracy(crowd, odds.sigmoid())
    return _mean(counts + PER_CLASS * K * few * expected, random).clamp(min=LEAST)


def _mean(weights: Tensor, random: np.random.Generator | None) -> Tensor:
    """Return the mean of Dirichlet distributions with these weights (…, K), or with ``random`` a
    draw from each.
    """
    if random is not None:
        weights = torch.from_numpy(random.standard_gamma(weights.numpy())).clamp(min=SMALL)
    return weights / weights.sum(-1, keepdim=True)


def _with_accuracy(pattern: Tensor, right: Tensor) -> Tensor:
    """P(l | k) of annotators, (A, K, K), who are ``right`` (A, K) and err as the (K, K) ``pattern``
    does.
    """
    errors = pattern.clone().fill_diagonal_(0)
    errors = errors / errors.sum(1, keepdim=True).clamp(min=SMALL)
    return errors * (1 - right)[:, :, None] + torch.diag_embed(right)
