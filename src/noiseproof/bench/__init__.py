"""Fair comparison: experiments as data, results that are never made twice, engines that make them."""

from noiseproof.bench.engines import ENGINES, run_all
from noiseproof.bench.experiment import BadExperiment, Experiment, check, load_experiments
from noiseproof.bench.results import read_results, status

__all__ = [
    "ENGINES", "BadExperiment", "Experiment", "check", "load_experiments", "read_results", "run_all", "status",
]  # fmt: skip
