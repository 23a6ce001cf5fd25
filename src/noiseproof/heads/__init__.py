"""Heads on top of a backbone: logits, and whatever else a loss needs."""

from noiseproof.core.lazy import import_modules
from noiseproof.heads.base import HEADS, Head, get_head, head_for
from noiseproof.heads.gaussian_process import GaussianProcessClassifier

__all__ = ["HEADS", "GaussianProcessClassifier", "Head", "get_head", "head_for"]

import_modules(__name__, __path__)
