"""Issue types: what an audit finds, one file each."""

import importlib
import pkgutil

from noiseproof.audit.issues.base import ISSUES, Issue, badges, find_issues, register_issue
from noiseproof.audit.issues.label import WrongLabels  # first in every listing

__all__ = ["ISSUES", "Issue", "WrongLabels", "badges", "find_issues", "register_issue"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
