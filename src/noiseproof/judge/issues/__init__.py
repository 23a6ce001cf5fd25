"""Issue types: what an audit finds, one file each."""

from noiseproof.core.lazy import import_modules
from noiseproof.judge.issues.base import (
    ISSUES,
    Finding,
    Fix,
    Issue,
    badges,
    find_issues,
    register_issue,
)
from noiseproof.judge.issues.label import WrongLabels  # first in every listing

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
