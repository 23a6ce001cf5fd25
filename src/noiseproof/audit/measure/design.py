"""The designed sample: which rows a person is asked about, and with which probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit


@dataclass(frozen=True)
class Question:
    """A row to ask a person about."""

    row: int  # of the source
    probability: float  # of being asked, by the design
    asked: Literal["measure", "repeat"] = "measure"


class Design:
    """The strata of an audit's rows, and the order in which those of a stratum are asked."""

    @classmethod
    def open(cls, audit: Audit, *, seed: int = 0) -> Design:
        raise NotImplementedError

    @classmethod
    def read(cls, audit: Audit) -> Design | None:
        raise NotImplementedError

    def questions(
        self, answers: Sequence[Decision], count: int, *, reviewer: str = "", repeats: float = 0.0
    ) -> list[Question]:
        raise NotImplementedError
