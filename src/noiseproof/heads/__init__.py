"""Heads on top of a backbone: logits, and whatever else a loss needs."""

import importlib
import pkgutil

from noiseproof.heads.base import HEADS, Head, get_head
from noiseproof.heads.gaussian_process import GaussianProcessClassifier

__all__ = ["HEADS", "GaussianProcessClassifier", "Head", "get_head"]

for _module in pkgutil.iter_modules(__path__):  # each one registers its heads
    importlib.import_module(f"{__name__}.{_module.name}")
