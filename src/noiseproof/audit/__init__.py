"""Which labels are wrong, why, and what they should be."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time each is imported on first use
    from noiseproof.audit.again import audit_again
    from noiseproof.audit.apply import corrected, write_corrected
    from noiseproof.audit.crowd.consensus import Consensus, consensus
    from noiseproof.audit.files import read_audit
    from noiseproof.audit.inputs import read_rows
    from noiseproof.audit.labelissues import LabelIssues
    from noiseproof.audit.labels import find_label_issues
    from noiseproof.audit.plan import corrections
    from noiseproof.audit.report import LabelReport
    from noiseproof.audit.retrain import plan_retraining
    from noiseproof.audit.run import audit
    from noiseproof.audit.sources.base import AuditData

__all__ = [
    "AuditData",
    "Consensus",
    "LabelIssues",
    "LabelReport",
    "audit",
    "audit_again",
    "consensus",
    "corrected",
    "corrections",
    "find_label_issues",
    "plan_retraining",
    "read_audit",
    "read_rows",
    "write_corrected",
]

_HOMES = {
    "AuditData": "sources.base",
    "Consensus": "crowd.consensus",
    "consensus": "crowd.consensus",
    "LabelIssues": "labelissues",
    "LabelReport": "report",
    "audit": "run",
    "audit_again": "again",
    "corrected": "apply",
    "corrections": "plan",
    "find_label_issues": "labels",
    "plan_retraining": "retrain",
    "read_audit": "files",
    "read_rows": "inputs",
    "write_corrected": "apply",
}
__getattr__, __dir__ = lazily(
    __name__, {name: f"noiseproof.audit.{home}" for name, home in _HOMES.items()}
)
