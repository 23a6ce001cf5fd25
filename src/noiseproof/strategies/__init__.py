"""The parts of methods other than losses and heads: what happens to targets, weights and gradients
during training.
"""

from noiseproof.core.lazy import import_modules
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import (
    STRATEGIES,
    Run,
    Strategy,
    TrainedModel,
    get_strategy,
    register,
)
from noiseproof.strategies.sweeps import log_probs, per_row, predict_log_probs, sweep

__all__ = [
    "STRATEGIES",
    "Batch",
    "Run",
    "Step",
    "Strategy",
    "TrainedModel",
    "corrected_targets",
    "get_strategy",
    "log_probs",
    "per_row",
    "predict_log_probs",
    "register",
    "sweep",
    "update_average",
]

import_modules(__name__, __path__)
