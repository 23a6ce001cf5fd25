"""The command line: reads arguments, calls the library, shows what it returns. The only package
that prints.

Modules that need torch are imported where they are used: help and completion must not wait for it.
"""

# In the order of the help.
# isort: off
from noiseproof.cli import audit, review, apply, demo, train, analyze, bench, data, catalog, doctor

# isort: on
from noiseproof.cli.main import app

__all__ = [
    "analyze",
    "app",
    "apply",
    "audit",
    "bench",
    "catalog",
    "data",
    "demo",
    "doctor",
    "review",
    "train",
]
