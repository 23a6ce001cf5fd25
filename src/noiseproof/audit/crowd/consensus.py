"""The consensus of several annotators on each row, by five models of how they err."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.crowd.confusion import VotedRows, fit_annotators
from noiseproof.audit.judge.posterior import SMALL
from noiseproof.core.checks import check_word
from noiseproof.core.messages import Brief
from noiseproof.core.probs import check_probabilities
from noiseproof.data.votes import Votes

Method = Literal["majority", "dawid-skene", "glad", "mace", "pooled"]
METHODS: tuple[Method, ...] = get_args(Method)
ROUNDS, GLAD_STEPS = 500, 200
KNOWS, STRATEGY = 0.5, 10.0  # priors of MACE: Beta on knowing, Dirichlet on the answers of one who does not
CONVERGED = 1e-7  # the change of probabilities that ends EM
SAME = 1e-9  # probabilities that differ by less are a tie


@dataclass(frozen=True, eq=False, repr=False)
class Consensus(Brief):
    """The label that annotators agree on, with its probability."""

    label: NDArray[np.int64]  # (N,), −1 where there is neither a vote nor a prediction
    probs: NDArray[np.float64]  # (N, K)

    @property
    def quality(self) -> NDArray[np.float64]:
        """The probability that the consensus is right, (N,)."""
        return np.asarray(self.probs[np.arange(len(self.label)), np.maximum(self.label, 0)])


def consensus(
    votes: Votes | Any,
    num_classes: int | None = None,
    *,
    method: Method = "pooled",
    pred_probs: Any = None,
    seed: int = 0,
) -> Consensus:
    """Combine the votes on each row, and the predictions for it where there are any.

    A tie is never resolved towards the first class: it goes to the class that predictions, reliabilities of the
    annotators and frequencies of the classes together make likelier (``pooled``), else to one at random.

    Args:
        votes: a table (N, A) of class numbers, −1 where an annotator gave none, or ``Votes``.
        num_classes: by default the columns of ``pred_probs``, or the largest class with a vote.
        method: ``majority``; ``dawid-skene``, a confusion matrix of each annotator (Dawid and Skene 1979); ``glad``,
            an ability of each annotator and a difficulty of each row (Whitehill et al. 2009); ``mace``, an annotator
            who knows the label or answers by habit (Hovy et al. 2013); ``pooled``, confusion matrices that start as
            the crowd's, for annotators with few labels.
        pred_probs: (N, K), from models that did not see the row: the prior of its label.
        seed: of ties that nothing else resolves.

    >>> consensus([[0, 0, 1], [1, 1, -1], [2, 1, 2]], method="majority").label
    array([0, 1, 2])
    """
    check_word("method", method, METHODS)
    votes = votes if isinstance(votes, Votes) else Votes.of_table(votes)
    probs = None if pred_probs is None else check_probabilities("pred_probs", np.asarray(pred_probs), tolerance=0.02)
    K = num_classes or (probs.shape[1] if probs is not None else int(votes.label.max(initial=0)) + 1)
    if probs is not None and probs.shape != (len(votes), K):
        raise ValueError(f"Expected `pred_probs` of shape ({len(votes)}, {K}), got {tuple(probs.shape)}.")
    if votes.label.max(initial=-1) >= K:
        raise ValueError(f"Expected labels from 0 to {K - 1} in `votes`, got {votes.label.max()}.")
    rows = VotedRows(votes, K, probs)
    truth = _MODELS[method](rows).numpy()
    is_tied = (truth >= truth.max(1, keepdims=True) - SAME).sum(1) > 1
    prior = _pooled(rows).numpy() if is_tied.any() and method != "pooled" else np.zeros_like(truth)
    label = resolve_ties(truth, prior, seed)
    if probs is None:
        label = np.where(np.diff(votes.first) > 0, label, -1)
    return Consensus(label, truth)


def resolve_ties(scores: NDArray[Any], prior: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Return the class of the best score, (N,): of equal ones that of the best ``prior``, else one at random."""
    best = scores >= scores.max(1, keepdims=True) - SAME
    prior = np.where(best, prior, -np.inf)
    best &= prior >= prior.max(1, keepdims=True) - SAME
    chance = np.random.default_rng(seed).random(best.shape)
    return np.asarray(np.where(best, chance, -1.0).argmax(1))


def _log_prior(rows: VotedRows, frequency: Tensor) -> Tensor:
    """log q, (N, K): of the predictions, else of the frequencies of the classes."""
    return rows.log_prior(slice(0, len(rows.votes)), 1.0, frequency).log_softmax(1)


def _joined(rows: VotedRows, log_prior: Tensor, likelihood: Tensor) -> Tensor:
    """log P(true k, votes) of each row, (N, K), from that of each vote, (V, K)."""
    return log_prior.index_add(0, rows.row, likelihood)


def _shares(rows: VotedRows) -> Tensor:
    """The share of each class among the votes on a row, (N, K); even where there are none."""
    counts = torch.from_numpy(rows.votes.counts(rows.num_classes))
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), 1 / rows.num_classes)


def _majority(rows: VotedRows) -> Tensor:
    return _shares(rows)


def _pooled(rows: VotedRows) -> Tensor:
    fitted = fit_annotators(rows)
    return torch.cat([truth for _, truth in rows.posterior(fitted)])


def _dawid_skene(rows: VotedRows) -> Tensor:
    """EM from the shares of the votes; f is the mean of the posterior, P_a(l | k) the expected share of l among k."""
    truth, A, K = _shares(rows), len(rows.votes.names), rows.num_classes
    for _ in range(ROUNDS):
        counts = torch.zeros(A, K, K, dtype=torch.float64)  # (A, given, true)
        rows.add_counts(truth, slice(None), 0, counts)
        # P_a(l | k) of a class k that an annotator was never seen to label is 0, as in the paper: not SMALL/SMALL.
        log_confusion = counts.div(counts.sum(1, keepdim=True).clamp(min=SMALL)).clamp(min=SMALL).log()
        likelihood = log_confusion[rows.annotator, rows.label]  # (V, K)
        before, truth = truth, _joined(rows, _log_prior(rows, truth.mean(0)), likelihood).softmax(1)
        if float((truth - before).abs().max()) < CONVERGED:
            break
    return truth


def _glad(rows: VotedRows) -> Tensor:
    """P(l = k) = σ(α_a·e^{b_i}), errors spread evenly, with N(1, 1) priors of α and b; at the mode of α and b."""
    A, N, K = len(rows.votes.names), len(rows.votes), rows.num_classes
    ability, ease = (torch.ones(n, dtype=torch.float64, requires_grad=True) for n in (A, N))
    log_prior = _log_prior(rows, torch.full((K,), 1 / K, dtype=torch.float64))
    hit = torch.nn.functional.one_hot(rows.label, K).double()

    def joint() -> Tensor:
        x = (ability[rows.annotator] * ease[rows.row].exp())[:, None]
        right, wrong = -torch.nn.functional.softplus(-x), -torch.nn.functional.softplus(x) - np.log(max(K - 1, 1))
        return _joined(rows, log_prior, hit * right + (1 - hit) * wrong)

    optimizer = torch.optim.LBFGS([ability, ease], max_iter=GLAD_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = 0.5 * ((ability - 1).square().sum() + (ease - 1).square().sum()) - joint().logsumexp(1).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return joint().softmax(1)


def _mace(rows: VotedRows) -> Tensor:
    """P(l | k) = θ_a·1(l = k) + (1 − θ_a)·ξ_a(l), by variational Bayes with Beta(½, ½) and Dirichlet(10) priors."""
    A, K = len(rows.votes.names), rows.num_classes
    guess = knows = torch.full((A,), 0.5, dtype=torch.float64)  # weights, which need not sum to one
    habit = torch.full((A, K), 1 / K, dtype=torch.float64)
    log_prior = _log_prior(rows, torch.full((K,), 1 / K, dtype=torch.float64))
    hit = torch.nn.functional.one_hot(rows.label, K).double()
    truth = torch.zeros_like(log_prior)
    for _ in range(ROUNDS):
        guessed = (guess[:, None] * habit)[rows.annotator, rows.label][:, None]  # (V, 1)
        likelihood = guessed + knows[rows.annotator, None] * hit  # (V, K)
        before, truth = truth, _joined(rows, log_prior, likelihood.clamp(min=SMALL).log()).softmax(1)
        if float((truth - before).abs().max()) < CONVERGED:
            break
        by_guess = (truth[rows.row] * guessed / likelihood.clamp(min=SMALL)).sum(1)  # (V,) P(answered by habit)
        spread = torch.zeros_like(habit).index_put((rows.annotator, rows.label), by_guess, accumulate=True)
        guesses = spread.sum(1)
        known = torch.bincount(rows.annotator, minlength=A).double() - guesses
        total = torch.digamma(guesses + known + 2 * KNOWS)
        guess, knows = ((torch.digamma(n + KNOWS) - total).exp() for n in (guesses, known))
        habit = (torch.digamma(spread + STRATEGY) - torch.digamma((spread + STRATEGY).sum(1, keepdim=True))).exp()
    return truth


_MODELS: dict[str, Callable[[VotedRows], Tensor]] = {
    "majority": _majority, "dawid-skene": _dawid_skene, "glad": _glad, "mace": _mace, "pooled": _pooled,
}  # fmt: skip
