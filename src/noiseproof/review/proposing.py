"""Rows that a mixture of purposes proposes, asked one after the other."""

from __future__ import annotations

import shlex
import threading
from typing import Any

from noiseproof.audit.files import Audit
from noiseproof.audit.measure.design import Design, Question, measured_answers
from noiseproof.audit.measure.proposals import parse_mixture, propose
from noiseproof.review.measuring import Measuring, Panel, Plan
from noiseproof.review.queue import Queue


class Proposing(Measuring):
    """The proposal that is asked now, and the answers so far; thread-safe.

    Only those that measure are saved as measured, and the page does not show which they are. One after the other, as
    whoever could choose which of them to answer would not measure.
    """

    def __init__(self, audit: Audit, queue: Queue, plan: Plan) -> None:
        self.audit, self.queue, self.plan = audit, queue, plan
        self.proposals = propose(audit, queue.log.answers(), parse_mixture(plan.mixture), plan.count, seed=plan.seed)
        self.panel = Panel(audit, Design.read(audit))
        self.total = len(self.proposals)
        self._lock = threading.Lock()
        self._update()

    def _update(self) -> None:
        """Ask about the first proposal that has no answer; a killed review makes new proposals, by all answers."""
        answers = self.queue.log.answers()
        measured, any_answer = measured_answers(answers), {answer.row: answer for answer in answers}
        self.question, self.answered = None, []
        for proposal in self.proposals:
            measures = proposal.purpose == "measure"
            answer = (measured if measures else any_answer).get(proposal.row)
            if answer is None:
                self.question = Question(proposal.row, proposal.probability or 0.0, "measure" if measures else "")
                break
            self.answered.append(answer)
        self.rows = len(self.answered)
        self.estimates = self.panel.show(answers)

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
