"""The one training loop, its record, its checkpoints, and the named methods."""

from noiseproof.train.guard import Diverged, Interrupted
from noiseproof.train.loop import Result, train
from noiseproof.train.methods import METHODS, Method, get_method
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task, prepare

__all__ = [
    "METHODS",
    "Diverged",
    "Interrupted",
    "Method",
    "Result",
    "Settings",
    "Task",
    "get_method",
    "prepare",
    "train",
]
