"""The command line: reads arguments, calls the library, shows what it returns. The only package that prints.

Modules that need torch are imported where they are used: help and completion must not wait for it.
"""

from noiseproof.cli import catalog, data, train, bench  # isort: skip  # each adds its commands, in the order of the help
from noiseproof.cli.main import app

__all__ = ["app", "bench", "catalog", "data", "train"]
