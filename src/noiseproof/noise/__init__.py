"""Label noise: models that corrupt a full vector of labels once and report which labels are
wrong.
"""

from noiseproof.core.lazy import import_modules
from noiseproof.noise.base import NOISES, NoiseModel, NoisyLabels, get_noise, register
from noiseproof.noise.openset import OpenSetLabels

__all__ = [
    "NOISES",
    "NoiseModel",
    "NoisyLabels",
    "OpenSetLabels",
    "get_noise",
    "register",
]

import_modules(__name__, __path__)
