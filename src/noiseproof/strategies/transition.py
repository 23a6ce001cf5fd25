"""Forward and backward correction with a transition matrix that is estimated during training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.core.checks import count, flag, number
from noiseproof.losses.correction import Backward, Corrected, estimate_transition
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import predict_log_probs

MAX_CONDITION = 100.0  # of T: beyond it, the inverse amplifies errors of the estimate too much


@register("estimate-transition")
@dataclass(eq=False)
class EstimateTransition(Strategy):
    """Forward or backward correction with an estimated T (Patrini et al. 2017): warm up, estimate,
    correct.

    Up to the epoch ``warmup`` (counted from 0) T is the identity, so that the loss is cross
    entropy. Then ``estimate_transition`` computes T from the predictions for the whole training
    set, averaged over models.

    For ``backward``, an estimate with a condition number above 100 is moved towards the identity,
    in steps of one percent, until it is below. With ten classes, symmetric noise of 80 % has 9 and
    pair noise of 45 % has 10; far larger ones come from classes that are not learned yet, two of
    which may even share an anchor.

    Args:
        percentile: see ``estimate_transition``; the paper trusts all predictions (none) on
            CIFAR-100.
        restart: train again with T, from the initial weights and with a fresh optimiser, as the
            paper does. The learning rate continues as scheduled; ``cosine:every=…`` restarts as
            well.
        right: row k of T is taken as if estimated with ``right`` more rows of class k, all of them
            labelled right, in addition to those whose given label k is predicted. A class that few
            rows are of, or that is not learned yet, has no anchor to trust, and its row of T is
            close to the identity's.
    """

    warmup: int = count(1, remedy="T is estimated from a model that has learned something.")
    percentile: float | None = number("(0, 100]", 97.0, optional=True)
    restart: bool = flag(False)
    right: float = number("[0, inf)", 0.0)

    def setup(self, run: Run) -> None:
        # they hold T, so it is in checkpoints
        self._losses = [part for part in run.loss.modules() if isinstance(part, Corrected)]
        self._set(torch.eye(run.num_classes, dtype=torch.float64))
        if self.restart:
            run.check_whole("restart from")
            # Not in checkpoints: a resumed run builds the same initial weights.
            self._initial = [
                {k: v.clone() for k, v in model.plain.state_dict().items()} for model in run.models
            ]

    def start_epoch(self, run: Run) -> None:
        if run.epoch != self.warmup:
            return
        p = predict_log_probs(run).exp()
        given = run.data.given
        T = estimate_transition(p, self.percentile)
        agreeing = torch.bincount(given[p.argmax(1) == given], minlength=run.num_classes)
        T = with_right_rows(T, agreeing, self.right)
        if any(isinstance(loss, Backward) for loss in self._losses):
            T = invertible(T)
        self._set(T)
        if self.restart:
            for model, initial in zip(run.models, self._initial, strict=True):
                model.plain.load_state_dict(initial)
                # another module where weights are averaged
                model.evaluated.load_state_dict(initial)
                model.optimizer.state.clear()

    def restarts(self, epoch: int) -> bool:
        return self.restart and epoch == self.warmup

    def phase(self, run: Run) -> bool:
        """Return whether T is estimated: a step captured before that holds optimiser state that a
        restart has cleared.
        """
        return run.epoch >= self.warmup

    def _set(self, T: Tensor) -> None:
        for loss in self._losses:
            loss.set_transition(T)


def with_right_rows(T: Tensor, counts: Tensor, right: float) -> Tensor:
    """Return the matrix whose row k is (n_k·T_k + right·e_k)/(n_k + right), where n_k is ``counts``
    (K,).

    >>> with_right_rows(torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.tensor([100, 0]), 100.0)
    tensor([[0.8000, 0.2000],
            [0.0000, 1.0000]])
    """
    if right == 0:
        return T
    counts = counts.to(T)
    return torch.lerp(torch.eye(len(T)).to(T), T, (counts / (counts + right))[:, None])


def invertible(T: Tensor) -> Tensor:
    """Return T, or the first of (1 − ε)·T + ε·I, ε = 0.01, 0.02, …, whose condition number is at
    most 100.

    >>> invertible(torch.tensor([[0.7, 0.3], [0.7, 0.3]]))
    tensor([[0.7060, 0.2940],
            [0.6860, 0.3140]])
    """
    candidates = (torch.lerp(T, torch.eye(len(T)).to(T), percent / 100) for percent in range(101))
    return next(mixed for mixed in candidates if float(torch.linalg.cond(mixed)) <= MAX_CONDITION)
