"""noiseproof trains classifiers on labels that can't be trusted, and says which labels are wrong."""

from noiseproof.losses import (
    LOSSES,
    Loss,
    MarginLoss,
    average_error,
    calibrate,
    estimate_transition,
    expected_margin,
    get_loss,
    logit_bias,
    remargin_for,
)

__version__ = "0.1.0"
__all__ = [
    "LOSSES", "Loss", "MarginLoss", "average_error", "calibrate", "estimate_transition", "expected_margin", "get_loss",
    "logit_bias", "remargin_for",
]  # fmt: skip
