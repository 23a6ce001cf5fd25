"""noiseproof trains classifiers on labels that can't be trusted, and says which labels are wrong."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time each is imported when it is asked for: the command line must not wait for torch
    from noiseproof.estimator import NoisyLabelClassifier
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
    "LOSSES", "Loss", "MarginLoss", "NoisyLabelClassifier", "average_error", "calibrate", "estimate_transition",
    "expected_margin", "get_loss", "logit_bias", "remargin_for",
]  # fmt: skip

_ELSEWHERE = {"NoisyLabelClassifier": "noiseproof.estimator"}  # all other names are of the losses


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_ELSEWHERE.get(name, "noiseproof.losses")), name)
    globals()[name] = found  # found directly from now on
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
