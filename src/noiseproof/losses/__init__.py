"""Every robust loss of the five papers, and their hyperparameters from the number of classes."""

from noiseproof.core.lazy import import_modules
from noiseproof.losses import attention, bitempered, correction, coupled, gaussian, het, margin, remargin
from noiseproof.losses.base import LOSSES, Loss, MarginLoss, register
from noiseproof.losses.calibrate import (
    Calibration,
    NoSolution,
    average_error,
    calibrate,
    expected_margin,
    logit_bias,
    remargin_for,
)
from noiseproof.losses.correction import estimate_transition
from noiseproof.losses.logistic_normal import LogisticNormal
from noiseproof.losses.multilabel import ASL, MultiLabel
from noiseproof.losses.remargin import Remargin
from noiseproof.losses.spec import as_loss, describe, get_loss
from noiseproof.losses.sums import WeightedSum

__all__ = [
    "ASL", "LOSSES", "Calibration", "LogisticNormal", "Loss", "MarginLoss", "MultiLabel", "NoSolution", "Remargin",
    "WeightedSum", "as_loss", "attention", "average_error", "bitempered", "calibrate", "correction", "coupled",
    "describe", "estimate_transition", "expected_margin", "gaussian", "get_loss", "het", "logit_bias", "margin",
    "register", "remargin", "remargin_for",
]  # fmt: skip

import_modules(__name__, __path__)
