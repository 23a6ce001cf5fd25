"""Estimates from the designed sample, with intervals that assume nothing about the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.measure.interval import Estimate as Estimate
from noiseproof.audit.measure.reviewers import Agreement


@dataclass(frozen=True, eq=False)
class Measurement:
    """What the measured decisions say about all labels of an audit."""

    decisions: int  # measured rows that were decided
    skipped: int
    rate: Estimate
    classes: dict[str, Estimate]  # of given classes with enough decisions
    pairs: dict[tuple[str, str], Estimate]  # (given, true): share of the rows of `given`
    precision: Estimate | None  # of what is called wrong
    wrong_left: Estimate  # wrong labels still in the data once decisions are applied
    to_halve: int  # further decisions until the interval of the rate is half as wide
    reviewers: Agreement | None = None

    def as_dict(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Gain:
    """What changing undecided labels does, by the measured sample."""

    mended: Estimate
    spoiled: Estimate
    net: Estimate
    decisions: int  # measured rows among the changes
    needed: int  # decisions after which `net` is expected to be clearly positive; 0 if it is, −1 if it never will be


def measure(audit: Audit, answers: Sequence[Decision]) -> Measurement | None:
    raise NotImplementedError


def gain(audit: Audit, answers: Sequence[Decision], changes: Mapping[int, str]) -> Gain | None:
    raise NotImplementedError
