"""Issue types: what an audit finds, one file each; most of them are in ``noiseproof.judge``."""

from noiseproof.core.lazy import import_modules
from noiseproof.judge.issues import (
    ISSUES,
    Finding,
    Fix,
    Issue,
    WrongLabels,
    badges,
    find_issues,
    register_issue,
)

__all__ = [
    "ISSUES",
    "Finding",
    "Fix",
    "Issue",
    "WrongLabels",
    "badges",
    "find_issues",
    "register_issue",
]

import_modules(__name__, __path__)
