"""What to look at next: what is likely wrong, what the models would learn from, and what measures, in a mixture."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.measure.design import Design, measured_answers
from noiseproof.core.checks import check_count

Purpose = Literal["find", "learn", "measure"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
MIXTURE = "find=0.5,learn=0.3,measure=0.2"


@dataclass(frozen=True)
class Proposal:
    """A row to look at, and what for."""

    row: int  # of the source
    purpose: Purpose
    probability: float | None = None  # of being asked by the design, where the purpose is to measure


def parse_mixture(text: str = MIXTURE) -> dict[Purpose, float]:
    """The shares of the purposes, which sum to one.

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
    audit: Audit, answers: Sequence[Decision], mixture: Mapping[Purpose, float], count: int, *, seed: int = 0
) -> list[Proposal]:
    """At most ``count`` rows to look at next, mixed evenly, so that whoever stops early has the same mixture.

    ``find`` has undecided rows from the lowest ``label_quality`` on, ``learn`` those of `most_informative`, ``measure``
    the next questions of the `Design`, which is drawn where there is none; where its round has fewer, the others take
    their place. A row has one purpose, to measure before all others: only these rows represent the rest.
    """
    check_count("count", count, 1)
    questions: list[Proposal] = []
    if share := mixture.get("measure"):
        asked = len(measured_answers(answers)) + round(share * count)
        following = Design.open(audit, seed=seed).questions(answers, asked)
        questions = [Proposal(question.row, "measure", question.probability) for question in following]
    frame = audit.issues
    closed = {answer.row for answer in answers} | {question.row for question in questions}
    order = np.lexsort((frame["row"], frame["model_quality"], frame["label_quality"]))
    worst = frame["row"].to_numpy()[order]
    worst = worst[~np.isin(worst, list(closed))]
    find, learn = mixture.get("find", 0.0), mixture.get("learn", 0.0)
    others = count - len(questions) if find or learn else 0
    found = worst[: round(others * find / (find + learn or 1))].tolist()
    uncertain: list[int] = []
    if learn:
        groups = frame["duplicate_group"].to_numpy(dtype=object)
        group = np.array([-1 if value in ("", None) or value != value else int(float(value)) for value in groups])
        at = most_informative(
            1 - frame["label_quality"].to_numpy(np.float64),
            np.unique(frame["given_label"], return_inverse=True)[1],
            group,
            np.isin(frame["row"].to_numpy(), [*closed, *found]),
            others - len(found),
        )
        uncertain = frame["row"].to_numpy()[at].tolist()
    proposals: dict[Purpose, list[Proposal]] = {
        "measure": questions,
        "find": [Proposal(row, "find") for row in found],
        "learn": [Proposal(row, "learn") for row in uncertain],
    }
    return interleave(proposals, mixture)


def most_informative(
    wrong: NDArray[np.float64],
    given: NDArray[np.int64],
    group: NDArray[np.int64],
    closed: NDArray[np.bool_],
    count: int,
) -> NDArray[np.int64]:
    """The positions of ``count`` rows (or fewer) whose labels the models would learn most from.

    One after the other, the row with the largest p(1 − p)/(1 + n), where p is its P(wrong) and n the number of rows of
    its given class so far: uncertain ones, spread over the classes. Of near-duplicates, which teach the same, one.

    Args:
        wrong: (N,) P(wrong).
        given: (N,) class numbers.
        group: (N,) of near-duplicates, −1 for a row without any.
        closed: (N,) rows that are not available, and nor are their near-duplicates.
    """
    worth = wrong * (1 - wrong)
    taken = set(group[closed & (group >= 0)].tolist())
    order = np.lexsort((np.arange(len(wrong)), -worth))
    waiting = {k: iter(order[(given[order] == k) & ~closed[order]].tolist()) for k in np.unique(given).tolist()}
    chosen: list[int] = []
    heap: list[tuple[float, int, int, int]] = []  # −worth/(1 + n), row, class, n

    def push(k: int, n: int) -> None:
        for i in waiting[k]:
            if group[i] < 0 or group[i] not in taken:
                heapq.heappush(heap, (-worth[i] / (1 + n), i, k, n))
                return

    for k in waiting:
        push(k, 0)
    while heap and len(chosen) < count:
        _, i, k, n = heapq.heappop(heap)
        if group[i] >= 0 and group[i] in taken:  # taken since by a row of another class
            push(k, n)
            continue
        chosen.append(i)
        taken.add(int(group[i]))
        push(k, n + 1)
    return np.array(chosen, dtype=np.int64)


def interleave(proposals: Mapping[Purpose, Sequence[Proposal]], mixture: Mapping[Purpose, float]) -> list[Proposal]:
    """The proposals of all purposes, each next one of the purpose that is farthest behind its share."""
    waiting = {purpose: list(rows) for purpose, rows in proposals.items() if rows}
    mixed: list[Proposal] = []
    done = dict.fromkeys(waiting, 0)
    while waiting:
        behind = {purpose: mixture[purpose] * (len(mixed) + 1) - done[purpose] for purpose in waiting}
        purpose = max(waiting, key=lambda name: (behind[name], -PURPOSES.index(name)))
        mixed.append(waiting[purpose].pop(0))
        done[purpose] += 1
        if not waiting[purpose]:
            del waiting[purpose]
    return mixed
