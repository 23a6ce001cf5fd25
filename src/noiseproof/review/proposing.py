"""Rows that a mixture of purposes proposes, asked one after the other."""

from __future__ import annotations

import shlex
from typing import Any

from noiseproof.audit.decisions import Decision
from noiseproof.audit.measure.design import Design, Question
from noiseproof.audit.measure.proposals import parse_mixture, propose
from noiseproof.review.measuring import Measuring, Panel


class Proposing(Measuring):
    """The proposal that is asked now, and the answers so far; thread-safe.

    Only those that measure are saved as measured, and the page does not show which they are. One after the other, as
    whoever could choose which of them to answer would not measure.
    """

    def _prepare(self) -> None:
        plan, answers = self.plan, self.queue.log.answers()
        self.proposals = propose(self.audit, answers, parse_mixture(plan.mixture), plan.count, seed=plan.seed)
        self.measures = {proposal.row: proposal.purpose == "measure" for proposal in self.proposals}
        self.panel = Panel(self.audit, Design.read(self.audit))
        self.total = len(self.proposals)

    def _open_questions(self) -> list[Question]:
        """The proposals that have no answer; a killed review makes new proposals, by all answers."""
        closed = {answer.row for answer in self.answers if self._answers_proposal(answer)}
        return [
            Question(proposal.row, proposal.probability or 0.0, "measure" if self.measures[proposal.row] else "")
            for proposal in self.proposals
            if proposal.row not in closed
        ]

    def _answers_proposal(self, answer: Decision) -> bool:
        measures = self.measures.get(answer.row)
        return measures is not None and (not measures or answer.asked == "measure")

    def _answered(self, reviewer: str) -> list[Decision]:
        return [a for a in self.answers if self._answers_proposal(a) and a.reviewer == reviewer]

    def _done(self) -> int:
        return self.total - len(self.open)

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know once."""
        folder = shlex.quote(str(self.audit.folder))
        following = {
            f"noiseproof audit {folder} --again": "learns the decisions, and ranks the other labels anew.",
            f"noiseproof review {folder} --propose {self.plan.mixture}": "proposes what to look at next.",
            f"noiseproof apply {folder}": "writes the corrected data.",
        }
        commands = [{"command": command, "why": why} for command, why in following.items()]
        return {"blind": self.plan.blind, "next": commands, "done": "looked at"}
