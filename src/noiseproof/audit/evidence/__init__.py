"""Evidence on labels: predictions of networks, neighbours, near-duplicates."""

from noiseproof.audit.evidence.neighbours import VOTERS
from noiseproof.audit.evidence.network import Evidence, cross_validate, watch_training

__all__ = ["VOTERS", "Evidence", "cross_validate", "watch_training"]
