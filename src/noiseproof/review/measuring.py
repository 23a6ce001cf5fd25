"""Measuring and proposing: questions asked one after the other, and what the answers say about all
labels.
"""

import shlex
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import Choice, Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.sample import open_design, read_population
from noiseproof.core.messages import Json
from noiseproof.judge.measure.design import (
    Question,
    measured_answers,
    parse_mixture,
    propose,
)
from noiseproof.judge.measure.estimate import Population, measure
from noiseproof.review.issues import rounded
from noiseproof.review.queue import Queue


def command(name: str, audit: Audit, decisions: Path) -> str:
    """Return what to type in the terminal to go on with these decisions."""
    words = ["noiseproof", name, str(audit.folder)]
    if decisions != (audit.folder / DECISIONS).absolute():
        words += ["--decisions", str(decisions)]
    return shlex.join(words)


@dataclass(frozen=True)
class QuestionPlan:
    """What `noiseproof review --measure` or `--propose` asks for."""

    count: int  # rows to measure in all, or to propose
    blind: bool = False  # hide the given and the suggested label
    repeats: float = 0.0  # share of the rows that are asked a second time
    seed: int = 0
    mixture: str = ""  # of --propose


def show_estimates(population: Population | None, answers: Sequence[Decision]) -> Json | None:
    """Return what a page shows of the measured ``answers``; None while there are none."""
    measured = measure(population, answers)
    if measured is None:
        return None
    people = measured.reviewers
    agreement = None
    if people is not None:
        agreement = {"rows": people.rows, "same": people.same, "kappa": rounded(people.kappa)}
    return {
        "decisions": measured.decisions,
        "rate": asdict(measured.rate),
        "wrong_left": asdict(measured.wrong_left),
        "precision": measured.precision and asdict(measured.precision),
        "agreement": agreement,
        "to_halve": measured.to_halve,
    }


class Measuring:
    """The question that each reviewer is asked now, and the answers so far; thread-safe.

    No two people have the same question. A second opinion is another person's where there are
    several.
    """

    def __init__(self, audit: Audit, queue: Queue, plan: QuestionPlan) -> None:
        self.audit = audit
        self.queue = queue
        self.plan = plan
        self.leases = queue.people.leases
        self._lock = threading.Lock()
        self._current: dict[str, int] = {}  # the row that a reviewer is asked about
        self._prepare()
        self._update()

    def _prepare(self) -> None:
        self.design = open_design(self.audit, seed=self.plan.seed)
        self.population = read_population(self.audit)
        self.total = min(self.plan.count, len(self.queue.issues))  # no row is measured twice

    def _update(self) -> None:
        """Read the answers; questions depend on them alone, so that a killed review goes on
        here.
        """
        self.answers = self.queue.log.answers()
        self.measured = measured_answers(self.answers)
        self.open = self._open_questions()
        self.estimates = show_estimates(self.population, self.answers)

    def _open_questions(self) -> list[Question]:
        return self.design.questions(self.answers, self.plan.count, repeats=self.plan.repeats)

    def _is_answer(self, answer: Decision) -> bool:
        """Return whether a decision answers a question."""
        return bool(answer.asked) and answer.row in self.measured

    def _answered(self, reviewer: str) -> list[Decision]:
        """Return a reviewer's answers to questions, the last one at the end."""
        return [one for one in self.answers if one.reviewer == reviewer and self._is_answer(one)]

    def _done(self) -> int:
        return len(self.measured)

    def _question(self, reviewer: str) -> Question | None:
        """Return the question of a reviewer: the one they have, else the first that no one else
        has.
        """
        elsewhere = self.leases.rows(but=reviewer)
        questions = {
            question.row: question
            for question in self.open
            if question.row not in elsewhere and not self._is_own_repeat(question, reviewer)
        }
        if not questions:
            self.leases.give_back(reviewer)
            return None
        row = self._current.get(reviewer)
        if row not in questions:
            row = next(iter(questions))
        self._current[reviewer] = row
        self.leases.take(row, reviewer)
        return questions[row]

    def _is_own_repeat(self, question: Question, reviewer: str) -> bool:
        if not self.queue.people.several or question.asked != "repeat":
            return False
        return self.measured[question.row].reviewer == reviewer

    def describe(self) -> Json:
        """Return what the page needs to know once."""
        following = [
            {"command": command, "why": why} for command, why in self._next_commands().items()
        ]
        return {"blind": self.plan.blind, "next": following}

    def _next_commands(self) -> dict[str, str]:
        path = self.queue.log.path
        return {
            command("measure", self.audit, path): (
                "shows all that was measured, and calls labels wrong by it."
            ),
            command("review", self.audit, path): (
                "shows the labels that are called wrong, to decide on them."
            ),
            command("apply", self.audit, path): "writes the corrected data.",
        }

    def state(self, reviewer: str) -> Json:
        """Return the question that is asked now (null: all are answered), the last answer, and what
        was measured.
        """
        with self._lock:
            return self._state(reviewer)

    def _state(self, reviewer: str) -> Json:
        question = self._question(reviewer)
        answered = self._answered(reviewer)
        rows = self._done()
        state: Json = {
            "question": None,
            "last": None,
            "progress": {"measured": rows, "total": max(rows, self.total)},
            "measured": self.estimates,
            "waiting_for": [],
        }
        if answered:
            state["last"] = {"row": answered[-1].row, "question": len(answered)}
        if question is not None:
            state["question"] = {"number": len(answered) + 1, **self._shown(question.row)}
        else:
            # Who has the questions that are left; which come after them depends on the answers.
            elsewhere = self.leases.rows(but=reviewer)
            names = {elsewhere[one.row] for one in self.open if one.row in elsewhere}
            state["waiting_for"] = sorted(names)
        return state

    def has_asked(self, row: int, reviewer: str) -> bool:
        """Return whether a reviewer is asked about the row now, or was."""
        answered = (answer.row for answer in self._answered(reviewer))
        return row == self._current.get(reviewer) or row in answered

    def _shown(self, row: int) -> Json:
        """Return what a page may show of a question: blind, only where its row is."""
        if self.plan.blind:
            return {"row": row}
        return self.queue.issues[self.queue.issues.position[row]]

    def answer(
        self, row: int, number: int | None, choice: Choice, label: str | None, reviewer: str
    ) -> Json:
        """Save the answer to the current question, or undo the last one; ValueError for any other
        question.
        """
        with self._lock:
            question = self._question(reviewer)
            answered = self._answered(reviewer)
            decision = self._resolve(row, choice, label, reviewer)
            if question is not None and (row, number) == (question.row, len(answered) + 1):
                if choice != "undo":  # else it is undone already, and the reply was lost
                    self._save(
                        decision._replace(asked=question.asked, probability=question.probability)
                    )
            elif answered and (row, number) == (answered[-1].row, len(answered)):
                last = answered[-1]
                if choice == "undo":
                    self._save(decision)
                    self._current[reviewer] = row  # it is asked again
                # else the reply was lost
                elif (decision.decision, decision.label) != (last.decision, last.label):
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
            if label == issue["given"]:
                return self.queue.resolve(row, "keep", reviewer=reviewer)
            if label == issue["suggested"]:
                return self.queue.resolve(row, "accept", reviewer=reviewer)
        return self.queue.resolve(row, choice, label, reviewer=reviewer)


class Proposing(Measuring):
    """The proposal that is asked now, and the answers so far; thread-safe.

    Only the proposals that measure are saved as measured, and the page does not show which they
    are. One comes after the other, since whoever could choose which of them to answer would not
    measure.
    """

    def _prepare(self) -> None:
        mixture = parse_mixture(self.plan.mixture)
        answers = self.queue.log.answers()
        design = None
        if mixture.get("measure"):
            design = open_design(self.audit, seed=self.plan.seed)
        self.proposals = propose(self.audit, design, answers, mixture, self.plan.count)
        self.measures = {proposal.row: proposal.purpose == "measure" for proposal in self.proposals}
        self.population = read_population(self.audit)
        self.total = len(self.proposals)

    def _open_questions(self) -> list[Question]:
        """Return the proposals that have no answer; a killed review makes new proposals, by all
        answers.
        """
        closed = {answer.row for answer in self.answers if self._is_answer(answer)}
        return [proposal for proposal in self.proposals if proposal.row not in closed]

    def _is_answer(self, answer: Decision) -> bool:
        measures = self.measures.get(answer.row)
        return measures is not None and (not measures or answer.asked == "measure")

    def _done(self) -> int:
        return self.total - len(self.open)

    def describe(self) -> Json:
        return super().describe() | {"done": "looked at"}

    def _next_commands(self) -> dict[str, str]:
        folder = shlex.quote(str(self.audit.folder))
        return {
            f"noiseproof audit {folder} --again": (
                "learns the decisions, and ranks the other labels again."
            ),
            f"noiseproof review {folder} --propose {self.plan.mixture}": (
                "proposes what to look at next."
            ),
            f"noiseproof apply {folder}": "writes the corrected data.",
        }
