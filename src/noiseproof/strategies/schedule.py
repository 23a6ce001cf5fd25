"""What happens once in a run: it ends early, or its loss learns the noise from a first half of training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from noiseproof.core.checks import check_count, check_flag, check_number
from noiseproof.losses.correction import Backward, Corrected, estimate_transition
from noiseproof.strategies.base import Strategy, register
from noiseproof.strategies.run import Run
from noiseproof.strategies.sweeps import predict_log_probs

CONDITION = 100.0  # of T, beyond which its inverse multiplies errors of the estimate too much


@register("early-stopping")
class EarlyStopping(Strategy):
    """End the run after ``patience`` epochs without a better accuracy on the held-out noisy labels.

    Where the training starts anew (``estimate-transition:restart=true``), so does the count.
    """

    validates = True

    def __init__(self, patience: int = 10) -> None:
        self.patience = check_count("patience", patience, 1)
        self.best = -math.inf
        self.waited = 0

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        accuracy = metrics["validation_accuracy"]
        if any(strategy.restarts(run.epoch) for strategy in run.strategies):
            self.best = -math.inf  # of weights that are no more
        self.waited = 0 if accuracy > self.best else self.waited + 1
        self.best = max(self.best, accuracy)
        if self.waited >= self.patience:
            run.stop(f"no better noisy validation accuracy than {self.best:.4f} in {self.patience} epochs")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


@register("estimate-transition")
class EstimateTransition(Strategy):
    """Forward or backward correction with an estimated T (Patrini et al. 2017): warm up, estimate, correct.

    Up to the epoch ``warmup`` (counted from 0) T is the identity, so that the loss is the cross entropy. Then a pass
    over the whole set predicts the given labels, and T is what ``estimate_transition`` makes of it. Several models
    predict by their mean.

    For ``backward``, an estimate whose condition number is above 100 is moved towards the identity, by whole percents,
    until it is not. Of ten classes, symmetric noise of 80 % has 9 and pair noise of 45 % has 10; far larger ones come
    from classes that are not learned yet, two of which may even share an anchor.

    Args:
        percentile: see ``estimate_transition``; the paper trusts all predictions (none) on CIFAR-100.
        restart: train anew with T, from the first weights and without the optimiser's memory, as the paper does. The
            learning rate goes on as scheduled; ``cosine:every=…`` restarts as well.
    """

    def __init__(self, warmup: int, percentile: float | None = 97.0, restart: bool = False) -> None:
        self.warmup = check_count("warmup", warmup, 1, "T is estimated from a model that has learned something.")
        self.percentile = None if percentile is None else check_number("percentile", percentile, "(0, 100]", 0, 100)
        self.restart = check_flag("restart", restart)
        self._losses: list[Corrected] = []  # they hold T, and checkpoints hold them
        self._first: list[dict[str, Tensor]] = []

    def setup(self, run: Run) -> None:
        self._losses = [part for part in run.loss.modules() if isinstance(part, Corrected)]
        if not self._losses:
            raise ValueError(f"Expected the loss `forward` or `backward` to estimate T for, got `{run.loss}`.")
        self.check_reached("warmup", run)
        self._set(torch.eye(run.num_classes, dtype=torch.float64))
        if self.restart:
            if run.is_sharded:
                raise ValueError("Expected whole weights to restart from, got sharded ones. Train with DDP, not FSDP.")
            # A resumed run builds the same first weights: they need no place in the checkpoint.
            self._first = [{k: v.clone() for k, v in model.plain.state_dict().items()} for model in run.models]

    def start_epoch(self, run: Run) -> None:
        if run.epoch != self.warmup:
            return
        T = estimate_transition(predict_log_probs(run).exp(), self.percentile)
        self._set(invertible(T) if any(isinstance(loss, Backward) for loss in self._losses) else T)
        if self.restart:
            for model, first in zip(run.models, self._first, strict=True):
                model.plain.load_state_dict(first)
                model.evaluated.load_state_dict(first)  # another module where weights are averaged
                model.optimizer.state.clear()

    def restarts(self, epoch: int) -> bool:
        return self.restart and epoch == self.warmup

    def phase(self, run: Run) -> bool:
        """Whether T is estimated: a step that was captured before holds the optimiser's memory that is gone."""
        return run.epoch >= self.warmup

    def _set(self, T: Tensor) -> None:
        for loss in self._losses:
            loss.set_transition(T)


def invertible(T: Tensor) -> Tensor:
    """T, or the first of (1 − ε)·T + ε·I, ε = 0.01, 0.02, …, whose condition number is at most 100.

    >>> invertible(torch.tensor([[0.7, 0.3], [0.7, 0.3]]))
    tensor([[0.7060, 0.2940],
            [0.6860, 0.3140]])
    """
    towards = (torch.lerp(T, torch.eye(len(T)).to(T), percent / 100) for percent in range(101))
    return next(mixed for mixed in towards if float(torch.linalg.cond(mixed)) <= CONDITION)
