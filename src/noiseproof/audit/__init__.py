"""Which labels are wrong, why, and what they should be."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time each is imported when it is asked for
    from noiseproof.audit.inputs import AuditData, read_rows
    from noiseproof.audit.labels import LabelIssues, find_label_issues
    from noiseproof.audit.report import LabelReport, audit

__all__ = ["AuditData", "LabelIssues", "LabelReport", "audit", "find_label_issues", "read_rows"]

_HOMES = {
    "AuditData": "inputs", "read_rows": "inputs", "LabelIssues": "labels", "find_label_issues": "labels",
    "LabelReport": "report", "audit": "report",
}  # fmt: skip
__getattr__, __dir__ = lazily(__name__, {name: f"noiseproof.audit.{home}" for name, home in _HOMES.items()})
