"""Which labels are wrong, by labels and evidence: arrays in, arrays out.

Nothing here opens a file, and PyTorch is imported on first use.
"""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:
    from noiseproof.judge.crowd.consensus import Consensus, consensus
    from noiseproof.judge.evidence.network import Evidence, cross_validate, watch_training
    from noiseproof.judge.labelissues import LabelIssues, LabelSetIssues
    from noiseproof.judge.labels import find_label_issues

__all__ = [
    "Consensus",
    "Evidence",
    "LabelIssues",
    "LabelSetIssues",
    "consensus",
    "cross_validate",
    "find_label_issues",
    "watch_training",
]

_HOMES = {
    "Consensus": "crowd.consensus",
    "consensus": "crowd.consensus",
    "Evidence": "evidence.network",
    "cross_validate": "evidence.network",
    "watch_training": "evidence.network",
    "LabelIssues": "labelissues",
    "LabelSetIssues": "labelissues",
    "find_label_issues": "labels",
}
__getattr__, __dir__ = lazily(
    __name__, {name: f"noiseproof.judge.{home}" for name, home in _HOMES.items()}
)
