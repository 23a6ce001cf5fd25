"""The parts of methods beside losses and heads: what happens to targets, weights and gradients during training."""

from noiseproof.core.lazy import import_modules
from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, get_strategy, register
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import Run, TrainedModel
from noiseproof.strategies.sweeps import log_probs, per_row, predict_log_probs, sweep

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "TrainedModel", "corrected_targets", "get_strategy", "log_probs",
    "per_row", "predict_log_probs", "register", "sweep", "update_average",
]  # fmt: skip

import_modules(__name__, __path__)
