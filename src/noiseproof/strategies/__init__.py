"""The parts of methods that are no losses: what happens to targets, weights and gradients during training."""

from noiseproof.strategies import correction, memory, mixing, momentum, perturb, process, sampling, schedule, selection
from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, get_strategy, register
from noiseproof.strategies.correction import corrected_targets
from noiseproof.strategies.momentum import update_average
from noiseproof.strategies.run import Run

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "corrected_targets", "correction", "get_strategy", "memory",
    "mixing", "momentum", "perturb", "process", "register", "sampling", "schedule", "selection", "update_average",
]  # fmt: skip
