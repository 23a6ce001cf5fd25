"""The parts of methods that are no losses: what happens to targets, weights and gradients during training."""

from noiseproof.strategies import correction, memory, mixing, momentum, perturb, process, sampling, schedule, selection
from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, get_strategy, register
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import Run, TrainedModel
from noiseproof.strategies.sweeps import log_probs, per_row, predict_log_probs, sweep

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "TrainedModel", "corrected_targets", "correction",
    "get_strategy", "log_probs", "memory", "mixing", "momentum", "per_row", "perturb", "predict_log_probs",
    "process", "register", "sampling", "schedule", "selection", "sweep", "update_average",
]  # fmt: skip
