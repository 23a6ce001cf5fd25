"""Evidence on labels: predictions of networks, neighbours, near-duplicates."""

from typing import TYPE_CHECKING

from noiseproof.core.lazy import lazily

if TYPE_CHECKING:  # at run time each is imported on first use
    from noiseproof.judge.evidence.neighbours import VOTERS
    from noiseproof.judge.evidence.network import Evidence, cross_validate, watch_training

__all__ = ["VOTERS", "Evidence", "cross_validate", "watch_training"]

_HOMES = dict.fromkeys(__all__, "noiseproof.judge.evidence.network") | {
    "VOTERS": "noiseproof.judge.evidence.neighbours"
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
