"""Executors for GPUs: CUDA graphs, stacks of runs, Triton kernels, and fleets of runs on one
device.
"""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time imported when used: layers and losses load the kernels alone
    from noiseproof.accelerate.fleet import Outcome, fit_many
    from noiseproof.train.job import Job

__all__ = ["Job", "Outcome", "fit_many"]

__getattr__, __dir__ = lazily(
    __name__,
    dict.fromkeys(__all__, "noiseproof.accelerate.fleet") | {"Job": "noiseproof.train.job"},
)
