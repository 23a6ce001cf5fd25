"""Classifiers for noisy labels with the interface of scikit-learn."""

from noiseproof.estimator.network import NoisyLabelClassifier
from noiseproof.estimator.robust import RobustClassifier

__all__ = ["NoisyLabelClassifier", "RobustClassifier"]
