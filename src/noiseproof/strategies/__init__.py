"""The parts of methods that are no losses: what happens to targets, weights and gradients during training."""

from noiseproof.strategies.base import STRATEGIES, Batch, Step, Strategy, register
from noiseproof.strategies.run import Run

__all__ = ["STRATEGIES", "Batch", "Run", "Step", "Strategy", "register"]
