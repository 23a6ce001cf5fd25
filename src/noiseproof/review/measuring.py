"""Measuring: the questions of a designed sample, one after the other, and what the answers say about all labels."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import Choice, Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.measure.design import Design, Question, measured_answers
from noiseproof.audit.measure.estimate import Population, measure
from noiseproof.review.queue import Queue, rounded


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
        measured = None if self.population is None else measure(self.audit, answers, self.population)
        if measured is None:
            return None
        people = measured.reviewers
        return {
            "decisions": measured.decisions,
            "rate": asdict(measured.rate),
            "wrong_left": asdict(measured.wrong_left),
            "precision": measured.precision and asdict(measured.precision),
            "agreement": people and {"rows": people.rows, "same": people.same, "kappa": rounded(people.kappa)},
            "to_halve": measured.to_halve,
        }


class Measuring:
    """The question that is asked now, and the answers so far; thread-safe."""

    def __init__(self, audit: Audit, queue: Queue, plan: Plan) -> None:
        self.audit, self.queue, self.plan = audit, queue, plan
        self.design = Design.open(audit, seed=plan.seed)
        self.panel = Panel(audit, self.design)
        self.total = min(plan.count, len(queue.issues))  # no row is measured twice
        self._lock = threading.Lock()
        self._update()

    def _update(self) -> None:
        """Ask the design for the next question; it depends on the answers alone, so a killed review goes on here."""
        answers = self.queue.log.answers()
        reviewer = self.queue.reviewer
        following = self.design.questions(answers, self.plan.count, repeats=self.plan.repeats)
        self.question: Question | None = following[0] if following else None
        self.answered = [answer for answer in answers if answer.asked and answer.reviewer == reviewer]
        self.rows = len(measured_answers(answers))
        self.estimates = self.panel.show(answers)

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know once."""
        purposes = {
            "measure": "shows all that was measured, and calls labels wrong by it.",
            "review": "shows the labels that are called wrong, to decide on them.",
            "apply": "writes the corrected data.",
        }
        path, words = self.queue.log.path, [str(self.audit.folder)]
        if path != (self.audit.folder / DECISIONS).absolute():
            words += ["--decisions", str(path)]
        commands = {name: shlex.join(["noiseproof", name, *words]) for name in purposes}
        following = [{"command": commands[name], "why": why} for name, why in purposes.items()]
        return {"blind": self.plan.blind, "next": following}

    def state(self) -> dict[str, Any]:
        """Return the question that is asked now (null: all are answered), the last answer, and what was measured."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        number = len(self.answered) + 1
        last = self.answered[-1] if self.answered else None
        return {
            "question": None if self.question is None else {"number": number, **self._shown(self.question.row)},
            "last": last and {"row": last.row, "question": number - 1},
            "progress": {"measured": self.rows, "total": max(self.rows, self.total)},
            "measured": self.estimates,
        }

    def has_asked(self, row: int) -> bool:
        """Return whether the row is asked about now, or was."""
        question = self.question
        return (question is not None and row == question.row) or any(row == answer.row for answer in self.answered)

    def _shown(self, row: int) -> dict[str, Any]:
        """Return what a page may show of a question: blind, only where its row is."""
        return {"row": row} if self.plan.blind else self.queue.issues[self.queue.issues.position[row]]

    def answer(self, row: int, number: int | None, choice: Choice, label: str | None) -> dict[str, Any]:
        """Save the answer to the current question, or undo the last one; ValueError for any other question."""
        with self._lock:
            current = len(self.answered) + 1
            last = self.answered[-1] if self.answered else None
            decision = self._resolve(row, choice, label)
            if self.question is not None and (row, number) == (self.question.row, current):
                if choice != "undo":  # else it is undone already, and the reply was lost
                    probability = self.question.probability if self.question.asked == "measure" else None
                    self._save(decision._replace(asked=self.question.asked, probability=probability))
            elif last is not None and (row, number) == (last.row, current - 1):
                if choice == "undo":
                    self._save(decision)
                elif (decision.decision, decision.label) != (last.decision, last.label):  # else the reply was lost
                    raise ValueError(f"Question {number} has another answer. Undo it to change it.")
            else:
                raise ValueError(f"Question {number} is not asked now.")
            return self._state()

    def _save(self, decision: Decision) -> None:
        self.queue.save(decision)
        self._update()

    def _resolve(self, row: int, choice: Choice, label: str | None) -> Decision:
        """Return the decision; of a blind review keep for the given label, accept for the suggested one, else other."""
        if self.plan.blind and choice in ("accept", "keep"):
            raise ValueError(f"Expected other with a label, or skip, from a blind review, got {choice}.")
        if self.plan.blind and choice == "other":
            issue = self.queue.issues[self.queue.issues.position[row]]
            meanings: dict[str | None, Choice] = {issue["suggested"]: "accept", issue["given"]: "keep"}
            if label in meanings:
                return self.queue.resolve(row, meanings[label])
        return self.queue.resolve(row, choice, label)
