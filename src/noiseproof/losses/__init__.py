"""Every robust loss of the five papers, and their hyperparameters from the number of classes."""

from noiseproof.core.lazy import import_modules
from noiseproof.losses.attention import EarlyLearning, NoiseAttention, OverParameterised
from noiseproof.losses.base import LOSSES, Loss, MarginLoss, WeightedSum, register
from noiseproof.losses.bitempered import BiTempered
from noiseproof.losses.calibrate import Calibration, NoSolution, calibrate, remargin_for
from noiseproof.losses.correction import Backward, Forward, estimate_transition
from noiseproof.losses.coupled import CR, GLS, MSE, NCE, NFL, Brier, LabelSmoothing, Peer
from noiseproof.losses.gaussian import LN
from noiseproof.losses.het import Het
from noiseproof.losses.initial import average_error, expected_margin, logit_bias
from noiseproof.losses.logistic_normal import LogisticNormal
from noiseproof.losses.margin import (
    AEL,
    AGCE,
    AUL,
    CE,
    GCE,
    MAE,
    RCE,
    SCE,
    TCE,
    Focal,
    PHuber,
    TruncatedGCE,
)
from noiseproof.losses.multilabel import ASL, MultiLabel
from noiseproof.losses.remargin import Remargin, Unit
from noiseproof.losses.sums import as_loss, describe, get_loss

__all__ = [
    "AEL",
    "AGCE",
    "ASL",
    "AUL",
    "CE",
    "CR",
    "GCE",
    "GLS",
    "LN",
    "LOSSES",
    "MAE",
    "MSE",
    "NCE",
    "NFL",
    "RCE",
    "SCE",
    "TCE",
    "Backward",
    "BiTempered",
    "Brier",
    "Calibration",
    "EarlyLearning",
    "Focal",
    "Forward",
    "Het",
    "LabelSmoothing",
    "LogisticNormal",
    "Loss",
    "MarginLoss",
    "MultiLabel",
    "NoSolution",
    "NoiseAttention",
    "OverParameterised",
    "PHuber",
    "Peer",
    "Remargin",
    "TruncatedGCE",
    "Unit",
    "WeightedSum",
    "as_loss",
    "average_error",
    "calibrate",
    "describe",
    "estimate_transition",
    "expected_margin",
    "get_loss",
    "logit_bias",
    "register",
    "remargin_for",
]

import_modules(__name__, __path__)
