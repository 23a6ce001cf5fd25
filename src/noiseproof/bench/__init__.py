"""Fair comparison: experiments as data, their results, each made once, and engines that make
them.
"""

from noiseproof.bench.engines import ENGINES, run_all
from noiseproof.bench.experiment import BadExperiment, Experiment, check, load_experiments
from noiseproof.bench.results import read_results, status

__all__ = [
    "ENGINES",
    "BadExperiment",
    "Experiment",
    "check",
    "load_experiments",
    "read_results",
    "run_all",
    "status",
]
