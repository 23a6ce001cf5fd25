"""The consensus of several annotators on each row, by three models of how they err."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.arrays import Floats, Ints
from noiseproof.core.checks import check_word
from noiseproof.core.messages import Brief
from noiseproof.core.probs import check_probabilities
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import Annotators, VotedRows, fit_annotators
from noiseproof.judge.posterior import SMALL

Method = Literal["majority", "dawid-skene", "pooled"]
METHODS: tuple[Method, ...] = get_args(Method)
ROUNDS = 500
CONVERGED = 1e-7  # the change of probabilities that ends EM
SAME = 1e-9  # probabilities that differ by less are a tie


@dataclass(frozen=True, eq=False, repr=False)
class Consensus(Brief):
    """The label that annotators agree on, with its probability."""

    label: Ints  # (N,), −1 where there is neither a vote nor a prediction
    probs: Floats  # (N, K)

    @property
    def quality(self) -> Floats:
        """Return the probability that the consensus is right, (N,)."""
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

    A tie is never resolved towards the first class: it goes to the class that predictions,
    reliabilities of the annotators and frequencies of the classes together make likelier
    (``pooled``), else to one at random.

    Args:
        votes: a table (N, A) of class numbers, −1 where an annotator gave none, or ``Votes``.
        num_classes: by default the columns of ``pred_probs``, or the largest class with a vote.
        method: ``majority``; ``dawid-skene``, a confusion matrix of each annotator (Dawid and Skene
            1979); ``pooled``, confusion matrices that start as the crowd's, for annotators with few
            labels.
        pred_probs: (N, K), from models that did not see the row: the prior of its label.
        seed: of ties that nothing else resolves.

    >>> consensus([[0, 0, 1], [1, 1, -1], [2, 1, 2]], method="majority").label
    array([0, 1, 2])
    """
    check_word("method", method, METHODS)
    votes = votes if isinstance(votes, Votes) else Votes.of_table(votes)
    K = num_classes or int(votes.label.max(initial=0)) + 1
    probs = None
    if pred_probs is not None:
        probs = check_probabilities("pred_probs", np.asarray(pred_probs), tolerance=0.02)
        K = num_classes or probs.shape[1]
        if probs.shape != (len(votes), K):
            raise ValueError(
                f"Expected `pred_probs` of shape ({len(votes)}, {K}), got {tuple(probs.shape)}."
            )
    if votes.label.max(initial=-1) >= K:
        raise ValueError(f"Expected labels from 0 to {K - 1} in `votes`, got {votes.label.max()}.")
    rows = VotedRows(votes, K, probs)
    truth = _MODELS[method](rows).numpy()
    is_tied = (truth >= truth.max(1, keepdims=True) - SAME).sum(1) > 1
    prior = np.zeros_like(truth)
    if is_tied.any() and method != "pooled":
        prior = _pooled(rows).numpy()
    label = resolve_ties(truth, prior, seed)
    if probs is None:
        label = np.where(np.diff(votes.first) > 0, label, -1)
    return Consensus(label, truth)


def resolve_ties(scores: NDArray[Any], prior: NDArray[Any], seed: int) -> Ints:
    """Return the class of the best score, (N,): of equal ones the class of the best ``prior``,
    else one at random.
    """
    best = scores >= scores.max(1, keepdims=True) - SAME
    prior = np.where(best, prior, -np.inf)
    best &= prior >= prior.max(1, keepdims=True) - SAME
    chance = np.random.default_rng(seed).random(best.shape)
    return np.asarray(np.where(best, chance, -1.0).argmax(1))


def _shares(rows: VotedRows) -> Tensor:
    """Return the shares of the classes among the votes on each row, (N, K); equal shares without
    votes.
    """
    counts = torch.from_numpy(rows.votes.counts(rows.num_classes))
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), 1 / rows.num_classes)


def _pooled(rows: VotedRows) -> Tensor:
    """Return the posterior of confusion matrices that share what is known of the whole crowd."""
    return _posterior(rows, fit_annotators(rows))


def _dawid_skene(rows: VotedRows) -> Tensor:
    """Run EM from the shares of the votes.

    f is the mean of the posterior, P_a(l | k) the expected share of the labels l among rows of
    class k.
    """
    truth = _shares(rows)
    crowds, K = rows.vote_shares.shape
    for _ in range(ROUNDS):
        counts = truth.new_zeros(len(rows.votes.names), K, K)  # (A, given, true)
        rows.add_counts(truth, slice(None), 0, counts)
        # P_a(l | k) of a class k that an annotator was never seen to label is 0, as in the paper:
        # not SMALL/SMALL.
        shares = counts / counts.sum(1, keepdim=True).clamp(min=SMALL)
        confusion = shares.clamp(min=SMALL).transpose(1, 2)
        before = truth
        truth = _posterior(rows, Annotators(confusion, 1.0, truth.mean(0).expand(crowds, K)))
        if float((truth - before).abs().max()) < CONVERGED:
            break
    return truth


def _posterior(rows: VotedRows, fitted: Annotators) -> Tensor:
    return torch.cat([truth for _, truth in rows.posterior(fitted)])


_MODELS: dict[str, Callable[[VotedRows], Tensor]] = {
    "majority": _shares,
    "dawid-skene": _dawid_skene,
    "pooled": _pooled,
}
