"""The parts of methods beside losses and heads: what happens to targets, weights and gradients during training."""

import importlib
import pkgutil

from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, get_strategy, register
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import Run, TrainedModel
from noiseproof.strategies.sweeps import log_probs, per_row, predict_log_probs, sweep

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "TrainedModel", "corrected_targets", "get_strategy", "log_probs",
    "per_row", "predict_log_probs", "register", "sweep", "update_average",
]  # fmt: skip

for _module in pkgutil.iter_modules(__path__):  # each one registers its strategies
    importlib.import_module(f"{__name__}.{_module.name}")
