"""Which labels are wrong, why, and what they should be."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time each is imported on first use
    from noiseproof.audit.again import audit_again
    from noiseproof.audit.apply import corrected, write_corrected
    from noiseproof.audit.files import read_audit
    from noiseproof.audit.inputs import read_rows
    from noiseproof.audit.plan import corrections
    from noiseproof.audit.report import LabelReport
    from noiseproof.audit.retrain import plan_retraining
    from noiseproof.audit.run import audit
    from noiseproof.audit.sources.base import AuditData
    from noiseproof.judge.crowd.consensus import Consensus, consensus
    from noiseproof.judge.labelissues import LabelIssues
    from noiseproof.judge.labels import find_label_issues

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
    "AuditData": "audit.sources.base",
    "Consensus": "judge.crowd.consensus",
    "consensus": "judge.crowd.consensus",
    "LabelIssues": "judge.labelissues",
    "LabelReport": "audit.report",
    "audit": "audit.run",
    "audit_again": "audit.again",
    "corrected": "audit.apply",
    "corrections": "audit.plan",
    "find_label_issues": "judge.labels",
    "plan_retraining": "audit.retrain",
    "read_audit": "audit.files",
    "read_rows": "audit.inputs",
    "write_corrected": "audit.apply",
}
__getattr__, __dir__ = lazily(
    __name__, {name: f"noiseproof.{home}" for name, home in _HOMES.items()}
)
