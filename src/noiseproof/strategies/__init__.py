"""The parts of methods that are no losses: what happens to targets, weights and gradients during training."""

from noiseproof.strategies import correction, momentum, perturb
from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, register
from noiseproof.strategies.run import Run

__all__ = [
    "STRATEGIES", "Batch", "Run", "Step", "Strategy", "correction", "momentum", "perturb", "register",
]  # fmt: skip
