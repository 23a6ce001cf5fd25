"""Heads on top of a backbone: logits, and whatever else a loss needs."""

from noiseproof.heads import attention, gaussian, linear
from noiseproof.heads.base import HEADS, Head, get_head
from noiseproof.heads.gaussian_process import GaussianProcessClassifier

__all__ = ["HEADS", "GaussianProcessClassifier", "Head", "attention", "gaussian", "get_head", "linear"]
