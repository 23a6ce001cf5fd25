"""The designed sample: which rows a person is asked about, in which order, and with which
probability.

Strata of similar P(wrong) have the same sum of √(p(1 − p)) (Dalenius and Hodges 1959); inside a
stratum rows are asked in a random order, so that those answered are a simple random sample of it. A
pilot of 30 questions is allocated by the models' P(wrong); after it, and whenever the number has
doubled, the next ones by the answers so far, in proportion to N_h·√(p_h(1 − p_h)) (Neyman 1934;
integers as in Wright 2012). The constants were chosen on the ``--dev`` sets of
``benchmarks/decisions.py``.

Also what to look at next: what is likely wrong, what the models would learn from, and what
measures, in a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.judge.saved import Asked, Decision, SavedAudit

PILOT = 30  # questions
FIRST_QUESTIONS = 25  # that a review begins with
STRATA = 6
FEW_CLASSES = 2
LEAST = 2  # questions of the pilot in each stratum
# least share of wrong, and of right, labels that the allocation reckons with: models may be
# mistaken
DOUBT = 0.15
PRIOR_WEIGHT = 8.0  # answers that the share by the models counts as
APART = 10  # questions between two about the same row
Purpose = Literal["find", "learn", "measure"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
MIXTURE = "find=0.5,learn=0.3,measure=0.2"


@dataclass(frozen=True)
class Question:
    """A row to ask a person about, and what for."""

    row: int  # of the source
    purpose: Purpose | Literal["repeat"]
    probability: float | None = None  # of being asked by the end of its round, to measure

    @property
    def asked(self) -> Asked:
        """Return as what the answer is saved."""
        if self.purpose == "find" or self.purpose == "learn":
            return ""
        return self.purpose


@dataclass(frozen=True, eq=False)
class Design:
    """The strata of an audit's rows, and the order in which the rows of a stratum are asked."""

    seed: int
    strata: NDArray[np.int16]  # (source rows,), −1 for rows that were not audited
    prior: Floats  # (H,) share of wrong labels by the models

    @classmethod
    def draw(cls, audit: SavedAudit, seed: int = 0) -> Design:
        """Strata by ``model_quality`` and the given labels."""
        wrong = 1 - audit.issues["model_quality"].to_numpy(np.float64)
        of_row = make_strata(wrong, audit.class_numbers("given_label"), len(audit.classes))
        strata = np.full(audit.summary["source_rows"], -1, np.int16)
        strata[audit.issues["row"].to_numpy()] = of_row
        return cls(seed, strata, np.bincount(of_row, weights=wrong) / np.bincount(of_row))

    @cached_property
    def sizes(self) -> Ints:
        """Rows of each stratum, (H,)."""
        return np.bincount(self.strata[self.strata >= 0], minlength=len(self.prior))

    @cached_property
    def order(self) -> list[Ints]:
        """Rows of each stratum in the order in which they are asked."""
        rows = (np.flatnonzero(self.strata == h) for h in range(len(self.prior)))
        return [
            np.random.default_rng([self.seed, h]).permutation(of_stratum)
            for h, of_stratum in enumerate(rows)
        ]

    def questions(
        self, answers: Sequence[Decision], count: int, *, repeats: float = 0.0
    ) -> list[Question]:
        """Return the next questions, in their order, until ``count`` rows were asked in all; empty
        when all are.

        The same answers give the same questions, so that a killed review continues where it
        stopped. A share ``repeats`` of the rows is asked a second time, of whoever reviews then:
        ten questions later or at the end.
        """
        measured = measured_answers(answers)
        planned: list[Question] = []
        for questions in self._rounds(measured):
            planned += questions
            if len(planned) >= count or any(question.row not in measured for question in questions):
                break
        open_questions = [question for question in planned[:count] if question.row not in measured]
        due = [row for row, answer in measured.items() if answer.names_label]
        if open_questions:
            due = due[:-APART]
        repeated = {answer.row for answer in answers if answer.asked == "repeat"}
        again = [
            Question(row, "repeat")
            for row in due
            if row not in repeated and np.random.default_rng([self.seed, row]).random() < repeats
        ]
        return again + open_questions

    def _rounds(self, measured: Mapping[int, Decision]) -> Iterator[list[Question]]:
        """Yield the questions of each round; each needs the answers to all earlier ones."""
        asked = np.zeros_like(self.sizes)
        target = np.minimum(LEAST, self.sizes)
        number = 0
        while asked.sum() < self.sizes.sum():
            size = min(PILOT * 2**number, int(self.sizes.sum()))
            target = allocate(size, self._share(asked, measured), self.sizes, target)
            generator = np.random.default_rng([self.seed, len(self.sizes), number])
            questions = []
            for h in generator.permutation(np.repeat(np.arange(len(target)), target - asked)):
                row = int(self.order[h][asked[h]])
                questions.append(Question(row, "measure", float(target[h] / self.sizes[h])))
                asked[h] += 1
            yield questions
            number += 1

    def _share(self, asked: Ints, measured: Mapping[int, Decision]) -> Floats:
        """Return the shares of wrong labels by the answers of earlier rounds and, for few, by the
        models, (H,).
        """
        prior = np.clip(self.prior, DOUBT, 1 - DOUBT)
        shares = []
        for h, count in enumerate(asked.tolist()):
            answers = [measured[row] for row in self.order[h][:count].tolist()]
            known = [is_wrong(answer) for answer in answers if answer.names_label]
            shares.append((sum(known) + PRIOR_WEIGHT * prior[h]) / (len(known) + PRIOR_WEIGHT))
        return np.array(shares)


def make_strata(wrong: Floats, given: Ints, num_classes: int) -> NDArray[np.int16]:
    """Return the stratum of each row, (N,): rows of similar P(wrong), the worst ones first.

    With few classes, rows of different given labels are in different strata. Each group of rows is
    sorted by P(wrong) and cut into parts whose sums of √(p(1 − p)) are about equal.
    """
    p = np.clip(wrong, 0.004, 0.996)
    spread = np.sqrt(p * (1 - p))
    group = given if num_classes <= FEW_CLASSES else np.zeros_like(given)
    strata = np.empty(len(wrong), np.int16)
    num_strata = 0
    for code in np.unique(group):
        rows = np.flatnonzero(group == code)
        rows = rows[np.argsort(-wrong[rows], kind="stable")]
        cumulated = spread[rows].cumsum()
        total = cumulated[-1]
        num_parts = max(1, round(STRATA * total / spread.sum()))
        before = cumulated - cumulated[0]  # 0 for the first row, less than the total for the last
        part = np.minimum(num_parts * before // total, num_parts - 1)
        # a part may have no rows; strata are numbered without gaps
        stratum = np.unique(part, return_inverse=True)[1]
        strata[rows] = num_strata + stratum
        num_strata += int(stratum.max()) + 1
    return strata


def allocate(count: int, share: Floats, sizes: Ints, least: Ints) -> Ints:
    """Return the number of rows to ask in each stratum, (H,), ``count`` in all and at least
    ``least``: the smallest variance.

    One after the other goes to the stratum with the largest N_h·s_h/√(n_h(n_h + 1)), which is
    optimal (Wright 2012).

    >>> allocate(10, np.array([0.5, 0.1]), np.array([100, 100]), np.array([1, 1]))
    array([6, 4])
    """
    asked = least.copy()
    spread = sizes * np.sqrt(share * (1 - share))
    for _ in range(count - int(asked.sum())):
        worth = np.where(
            asked < sizes, spread / np.sqrt(np.maximum(asked, 0.5) * (asked + 1)), -1.0
        )
        asked[worth.argmax()] += 1
    return asked


def measured_answers(answers: Sequence[Decision]) -> dict[int, Decision]:
    """Return the last answer to each question of the designed sample, by row, in the order of the
    first ones.
    """
    return {answer.row: answer for answer in answers if answer.asked == "measure"}


def is_wrong(answer: Decision) -> bool:
    """Return whether a person said that the given label is wrong."""
    return answer.decision in ("accept", "other") and answer.label != answer.given_label


def parse_mixture(text: str = MIXTURE) -> dict[Purpose, float]:
    """Return the shares of the purposes, which sum to one.

    >>> parse_mixture("find=3,measure=1")
    {'find': 0.75, 'measure': 0.25}
    """
    expected = f"Expected shares of {', '.join(PURPOSES)}, such as {MIXTURE},"
    shares: dict[Purpose, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        purpose = next((purpose for purpose in PURPOSES if purpose == name.strip()), None)
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if purpose is None or not 0 <= share < float("inf") or purpose in shares:
            raise ValueError(f"{expected} got {part.strip()!r} in {text!r}.")
        shares[purpose] = share
    if not (total := sum(shares.values())):
        raise ValueError(f"{expected} got {text!r}, of which none is above 0.")
    return {purpose: share / total for purpose, share in shares.items() if share}


def propose(
    audit: SavedAudit,
    design: Design | None,
    answers: Sequence[Decision],
    mixture: Mapping[Purpose, float],
    count: int,
) -> list[Question]:
    """At most ``count`` rows to look at next, mixed evenly, so that whoever stops early has the
    same mixture.

    ``find`` has undecided rows from the lowest ``label_quality`` on, ``learn`` the
    `most_informative` ones, ``measure`` the next questions of the ``design``; where its round has
    fewer, the others take their place. A row has one purpose, to measure before all others: only
    these rows represent the rest.
    """
    proposals: dict[Purpose, list[Question]] = {}
    frame = audit.issues
    rows = frame["row"].to_numpy()
    closed = {answer.row for answer in answers}
    if share := mixture.get("measure"):
        asked = len(measured_answers(answers)) + round(share * count)
        assert design is not None  # it measures
        questions = design.questions(answers, asked)
        proposals["measure"] = questions
        closed |= {one.row for one in questions}
        count -= len(questions)
    find = mixture.get("find", 0.0)
    learn = mixture.get("learn", 0.0)
    if find:
        order = np.lexsort((rows, frame["model_quality"], frame["label_quality"]))
        worst = rows[order]
        worst = worst[~np.isin(worst, list(closed))][: round(count * find / (find + learn))]
        proposals["find"] = [Question(row, "find") for row in worst.tolist()]
        closed |= {*worst.tolist()}
        count -= len(worst)
    if learn:
        import pandas as pd

        at = most_informative(
            1 - frame["label_quality"].to_numpy(np.float64),
            np.unique(frame["given_label"], return_inverse=True)[1],
            pd.to_numeric(frame["duplicate_group"]).fillna(-1).to_numpy(np.int64),
            np.isin(rows, list(closed)),
            count,
        )
        proposals["learn"] = [Question(row, "learn") for row in rows[at].tolist()]
    return interleave(proposals, mixture)


def most_informative(
    wrong: Floats,
    given: Ints,
    group: Ints,
    closed: Bools,
    count: int,
) -> Ints:
    """Return the positions of ``count`` rows (or fewer) whose labels the models would learn most
    from.

    These are the rows with the largest p(1 − p)/(1 + n), where p is their P(wrong) and n the number
    of more uncertain rows of their given class: uncertain ones, spread over the classes. Of
    near-duplicates, which teach the same, one.

    Args:
        wrong: (N,) P(wrong).
        given: (N,) class numbers.
        group: (N,) of near-duplicates, −1 for a row without any.
        closed: (N,) rows that are not available, like their near-duplicates.
    """
    import pandas as pd

    taken = np.isin(group, group[closed & (group >= 0)])
    worth = wrong * (1 - wrong)
    order = np.lexsort((np.arange(len(wrong)), -worth))
    order = order[~(closed | taken)[order]]
    # one of each group
    alone = np.where(group < 0, -1 - np.arange(len(group)), group)[order]
    order = order[np.sort(np.unique(alone, return_index=True)[1])]
    before = pd.Series(given[order]).groupby(given[order]).cumcount().to_numpy()
    best = np.argsort(-worth[order] / (1 + before), kind="stable")
    return np.asarray(order[best[:count]])


def interleave(
    proposals: Mapping[Purpose, Sequence[Question]], mixture: Mapping[Purpose, float]
) -> list[Question]:
    """Return the proposals of all purposes, each purpose as often as its share of the mixture."""
    places = [
        ((place + 0.5) / mixture[purpose], PURPOSES.index(purpose), proposal)
        for purpose, rows in proposals.items()
        for place, proposal in enumerate(rows)
    ]
    return [proposal for *_, proposal in sorted(places, key=lambda one: one[:2])]
