"""The parts of methods beside losses and heads: what happens to targets, weights and gradients during training."""

from noiseproof.strategies import (
    correction,
    early_stopping,
    gaussian_process,
    memory,
    mixing,
    momentum,
    perturb,
    sampling,
    selection,
    transition,
)
from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, get_strategy, register
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import Run, TrainedModel
from noiseproof.strategies.sweeps import log_probs, per_row, predict_log_probs, sweep

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "TrainedModel", "corrected_targets", "correction",
    "early_stopping", "gaussian_process", "get_strategy", "log_probs", "memory", "mixing", "momentum", "per_row",
    "perturb", "predict_log_probs", "register", "sampling", "selection", "sweep", "transition", "update_average",
]  # fmt: skip
