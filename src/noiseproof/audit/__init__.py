"""Which labels are wrong, why, and what they should be."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time each is imported when it is asked for
    from noiseproof.audit.inputs import AuditData, read_rows
    from noiseproof.audit.labels import LabelIssues, find_label_issues
    from noiseproof.audit.report import LabelReport, audit

__all__ = ["AuditData", "LabelIssues", "LabelReport", "audit", "find_label_issues", "read_rows"]

_HOMES = {
    "AuditData": "inputs", "read_rows": "inputs", "LabelIssues": "labels", "find_label_issues": "labels",
    "LabelReport": "report", "audit": "report",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"noiseproof.audit.{_HOMES[name]}"), name)
    globals()[name] = found  # found directly from now on
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
