"""Measuring and proposing: questions asked one after the other, and what the answers say about all
labels.
"""

import shlex
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import Choice, Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.measure.design import (
    Design,
    Question,
    measured_answers,
    parse_mixture,
    propose,
)
from noiseproof.audit.measure.estimate import Population, measure
from noiseproof.review.people import Leases
from noiseproof.review.queue import Queue, rounded


def command(name: str, audit: Audit, decisions: Path) -> str:
    """Return what to type in the terminal to go on with these decisions."""
    words = ["noiseproof", name, str(audit.folder)]
    if decisions != (audit.folder / DECISIONS).absolute():
        words += ["--decisions", str(decisions)]
    return shlex.join(words)


@dataclass(frozen=True)
class Plan:
    """What `noiseproof review --measure` or `--propose` asks for."""

    count: int  # rows to measure in all, or to propose
    blind: bool = False  # hide the given and the suggested label
    repeats: float = 0.0  # share of the rows that are asked a second time
    seed: int = 0
    mixture: str = ""  # of --propose

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"Expected at least 1 row for --measure or --count, got {self.count}.")
        if not 0 <= self.repeats <= 1:
            raise ValueError(f"Expected a share in [0, 1] for --repeats, got {self.repeats:g}.")


class Panel:
    """What a page shows of the measured decisions, while there are any."""

    def __init__(self, audit: Audit, design: Design | None) -> None:
        self.audit = audit
        self.population = None if design is None else Population.of(audit, design)

    def show(self, answers: Sequence[Decision]) -> dict[str, Any] | None:
        """Return the estimates by all ``answers``; None while nothing is measured."""
        measured = (
            None if self.population is None else measure(self.audit, answers, self.population)
        )
        if measured is None:
            return None
        people = measured.reviewers
        return {
            "decisions": measured.decisions,
            "rate": asdict(measured.rate),
            "wrong_left": asdict(measured.wrong_left),
            "precision": measured.precision and asdict(measured.precision),
            "agreement": (
                people
                and {"rows": people.rows, "same": people.same, "kappa": rounded(people.kappa)}
            ),
            "to_halve": measured.to_halve,
        }


class Measuring:
    """The question that each reviewer is asked now, and the answers so far; thread-safe.

    No two people have the same question. A second opinion is another person's where there are
    several.
    """

    def __init__(
        self,
        audit: Audit,
        queue: Queue,
        plan: Plan,
        *,
        several: bool = False,
        leases: Leases | None = None,
    ) -> None:
        self.audit, self.queue, self.plan, self.several = audit, queue, plan, several
        self.leases = leases or Leases()
        self._lock = threading.Lock()
        self._current: dict[str, int] = {}  # the row that a reviewer is asked about
        self._prepare()
        self._update()

    def _prepare(self) -> None:
        self.design = Design.open(self.audit, seed=self.plan.seed)
        self.panel = Panel(self.audit, self.design)
        self.total = min(self.plan.count, len(self.queue.issues))  # no row is measured twice

    def _update(self) -> None:
        """Read the answers; questions depend on them alone, so that a killed review goes on
        here.
        """
        self.answers = self.queue.log.answers()
        self.measured = measured_answers(self.answers)
        self.open = self._open_questions()
        self.estimates = self.panel.show(self.answers)

    def _open_questions(self) -> list[Question]:
        return self.design.questions(self.answers, self.plan.count, repeats=self.plan.repeats)

    def _answered(self, reviewer: str) -> list[Decision]:
        """Return a reviewer's answers to questions, the last one at the end."""
        return [
            a for a in self.answers if a.asked and a.row in self.measured and a.reviewer == reviewer
        ]

    def _done(self) -> int:
        return len(self.measured)

    def _question(self, reviewer: str) -> Question | None:
        """Return the question of a reviewer: the one they have, else the first that nobody else
        has.
        """
        elsewhere = self.leases.rows(but=reviewer)
        questions = [
            q for q in self.open if q.row not in elsewhere and not self._is_own_repeat(q, reviewer)
        ]
        current = self._current.get(reviewer)
        question = next(
            (q for q in questions if q.row == current), questions[0] if questions else None
        )
        if question is None:
            self.leases.give_back(reviewer)
            return None
        self._current[reviewer] = question.row
        self.leases.take(question.row, reviewer)
        return question

    def _is_own_repeat(self, question: Question, reviewer: str) -> bool:
        return (
            self.several
            and question.asked == "repeat"
            and self.measured[question.row].reviewer == reviewer
        )

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know once."""
        purposes = {
            "measure": "shows all that was measured, and calls labels wrong by it.",
            "review": "shows the labels that are called wrong, to decide on them.",
            "apply": "writes the corrected data.",
        }
        path = self.queue.log.path
        following = [
            {"command": command(name, self.audit, path), "why": why}
            for name, why in purposes.items()
        ]
        return {"blind": self.plan.blind, "next": following}

    def state(self, reviewer: str) -> dict[str, Any]:
        """Return the question that is asked now (null: all are answered), the last answer, and what
        was measured.
        """
        with self._lock:
            return self._state(reviewer)

    def _state(self, reviewer: str) -> dict[str, Any]:
        question, answered = self._question(reviewer), self._answered(reviewer)
        number, last, rows = len(answered) + 1, answered[-1] if answered else None, self._done()
        elsewhere = self.leases.rows(but=reviewer)
        return {
            "question": (
                None if question is None else {"number": number, **self._shown(question.row)}
            ),
            "last": last and {"row": last.row, "question": number - 1},
            "progress": {"measured": rows, "total": max(rows, self.total)},
            "measured": self.estimates,
            # Who has the questions that are left; which come after them depends on the answers.
            "waiting_for": (
                sorted({elsewhere[q.row] for q in self.open if q.row in elsewhere})
                if not question
                else []
            ),
        }

    def has_asked(self, row: int, reviewer: str) -> bool:
        """Return whether a reviewer is asked about the row now, or was."""
        return row == self._current.get(reviewer) or any(
            row == answer.row for answer in self._answered(reviewer)
        )

    def _shown(self, row: int) -> dict[str, Any]:
        """Return what a page may show of a question: blind, only where its row is."""
        return (
            {"row": row} if self.plan.blind else self.queue.issues[self.queue.issues.position[row]]
        )

    def answer(
        self, row: int, number: int | None, choice: Choice, label: str | None, reviewer: str
    ) -> dict[str, Any]:
        """Save the answer to the current question, or undo the last one; ValueError for any other
        question.
        """
        with self._lock:
            question, answered = self._question(reviewer), self._answered(reviewer)
            current, last = len(answered) + 1, answered[-1] if answered else None
            decision = self._resolve(row, choice, label, reviewer)
            if question is not None and (row, number) == (question.row, current):
                if choice != "undo":  # else it is undone already, and the reply was lost
                    probability = question.probability if question.asked == "measure" else None
                    self._save(decision._replace(asked=question.asked, probability=probability))
            elif last is not None and (row, number) == (last.row, current - 1):
                if choice == "undo":
                    self._save(decision)
                    self._current[reviewer] = row  # it is asked again
                elif (decision.decision, decision.label) != (
                    last.decision,
                    last.label,
                ):  # else the reply was lost
                    raise ValueError(f"Question {number} has another answer. Undo it to change it.")
            else:
                raise ValueError(f"Question {number} is not asked now.")
            return self._state(reviewer)

    def _save(self, decision: Decision) -> None:
        self.queue.save(decision)
        self._update()

    def _resolve(self, row: int, choice: Choice, label: str | None, reviewer: str) -> Decision:
        """Return the decision; of a blind review keep for the given label, accept for the suggested
        one, else other.
        """
        if self.plan.blind and choice in ("accept", "keep"):
            raise ValueError(
                f"Expected other with a label, or skip, from a blind review, got {choice}."
            )
        if self.plan.blind and choice == "other":
            issue = self.queue.issues[self.queue.issues.position[row]]
            meanings: dict[str | None, Choice] = {
                issue["suggested"]: "accept",
                issue["given"]: "keep",
            }
            if label in meanings:
                return self.queue.resolve(row, meanings[label], reviewer=reviewer)
        return self.queue.resolve(row, choice, label, reviewer=reviewer)


class Proposing(Measuring):
    """The proposal that is asked now, and the answers so far; thread-safe.

    Only those that measure are saved as measured, and the page does not show which they are. One
    after the other, as whoever could choose which of them to answer would not measure.
    """

    def _prepare(self) -> None:
        plan, answers = self.plan, self.queue.log.answers()
        self.proposals = propose(
            self.audit, answers, parse_mixture(plan.mixture), plan.count, seed=plan.seed
        )
        self.measures = {proposal.row: proposal.purpose == "measure" for proposal in self.proposals}
        self.panel = Panel(self.audit, Design.read(self.audit))
        self.total = len(self.proposals)

    def _open_questions(self) -> list[Question]:
        """The proposals that have no answer; a killed review makes new proposals, by all
        answers.
        """
        closed = {answer.row for answer in self.answers if self._answers_proposal(answer)}
        return [
            Question(
                proposal.row,
                proposal.probability or 0.0,
                "measure" if self.measures[proposal.row] else "",
            )
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
        folder = shlex.quote(str(self.audit.folder))
        following = {
            f"noiseproof audit {folder} --again": (
                "learns the decisions, and ranks the other labels anew."
            ),
            f"noiseproof review {folder} --propose {self.plan.mixture}": (
                "proposes what to look at next."
            ),
            f"noiseproof apply {folder}": "writes the corrected data.",
        }
        commands = [{"command": command, "why": why} for command, why in following.items()]
        return {"blind": self.plan.blind, "next": commands, "done": "looked at"}
