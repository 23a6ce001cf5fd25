"""noiseproof trains classifiers on labels that can't be trusted, and says which labels are
wrong.
"""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily, provide

# at run time each is imported when it is asked for: the command line must not wait for torch
if TYPE_CHECKING:
    from noiseproof.estimator import NoisyLabelClassifier, RobustClassifier
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
    "LOSSES",
    "Loss",
    "MarginLoss",
    "NoisyLabelClassifier",
    "RobustClassifier",
    "average_error",
    "calibrate",
    "estimate_transition",
    "expected_margin",
    "get_loss",
    "logit_bias",
    "remargin_for",
]

_HOMES = dict.fromkeys(__all__, "noiseproof.losses") | {
    "NoisyLabelClassifier": "noiseproof.estimator.network",
    "RobustClassifier": "noiseproof.estimator.robust",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)

# Lower layers use these without importing them: what accelerate has for GPUs, and the review of a
# report.
provide(
    executors="noiseproof.accelerate.graphs",
    layer_kernels="noiseproof.accelerate.layer_kernels",
    loss_kernels="noiseproof.accelerate.loss_kernels",
    review="noiseproof.review.session",
)
