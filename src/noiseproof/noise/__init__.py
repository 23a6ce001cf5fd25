"""Label noise: every model of the five papers, each corrupting a whole vector of labels once and saying where."""

from noiseproof.noise import classwise, human, instance, openset
from noiseproof.noise.base import NOISES, NoiseModel, NoisyLabels, get_noise, register
from noiseproof.noise.instance import PredictionAverage
from noiseproof.noise.openset import OpenSetLabels

__all__ = [
    "NOISES", "NoiseModel", "NoisyLabels", "OpenSetLabels", "PredictionAverage", "classwise", "get_noise", "human",
    "instance", "openset", "register",
]  # fmt: skip
