"""What to look at next: each purpose takes what it should, in the mixture that was named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_audit import write_audit

from noiseproof.audit import read_audit
from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.sample import open_design, read_design
from noiseproof.judge.measure.design import (
    PURPOSES,
    Question,
    interleave,
    most_informative,
    parse_mixture,
    propose,
)


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """400 rows of two classes whose quality rises with the row; every seventh is a near-duplicate
    of the others.
    """
    given = ["cat" if row % 3 else "dog" for row in range(400)]
    suggested = ["dog" if label == "cat" else "cat" for label in given]
    return read_audit(
        write_audit(tmp_path / "audit", given, suggested, issues=40, kind="table", data=None)
    )


def answer(audit: Audit, row: int, **options: Any) -> Decision:
    given = "cat" if row % 3 else "dog"
    return Decision(row, str(row), given, "keep", given, **options)


def test_a_mixture_is_named_by_its_shares() -> None:
    assert parse_mixture() == {"find": 0.5, "learn": 0.3, "measure": 0.2}
    assert parse_mixture("measure = 2, find=6") == {"measure": 0.25, "find": 0.75}
    assert parse_mixture("find=1,learn=0") == {"find": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "find",
        "find=x",
        "find=-1",
        "find=inf",
        "find=nan",
        "find=1,find=1",
        "lern=0.5",
        "find=0,learn=0",
    ],
)
def test_what_is_no_mixture_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="Expected shares of find, learn, measure, such as find=0.5,"
    ):
        parse_mixture(text)


def test_each_purpose_has_its_rows_and_its_share(audit: Audit) -> None:
    proposals = propose(audit, open_design(audit), [], parse_mixture(), 100)
    rows = {purpose: [p.row for p in proposals if p.purpose == purpose] for purpose in PURPOSES}
    assert {purpose: len(found) for purpose, found in rows.items()} == {
        "find": 50,
        "learn": 30,
        "measure": 20,
    }
    assert len({p.row for p in proposals}) == 100
    design = read_design(audit)
    assert design is not None
    questions = design.questions([], 20)
    assert [(p.row, p.probability) for p in proposals if p.purpose == "measure"] == [
        (question.row, question.probability) for question in questions
    ]
    assert all(p.probability is None for p in proposals if p.purpose != "measure")
    asked = {question.row for question in questions}
    assert rows["find"] == [row for row in range(400) if row not in asked][:50]
    # Near ½: the qualities are (row + 1)/401; every seventh row is a near-duplicate of one that was
    # proposed.
    assert (
        all(abs(row - 200) < 40 for row in rows["learn"])
        and sum(row % 7 == 0 for row in rows["learn"]) == 0
    )
    assert abs(sum(row % 3 == 0 for row in rows["learn"]) - 15) <= 1
    for end in range(1, 101):  # whoever stops early
        counts = {
            purpose: sum(p.purpose == purpose for p in proposals[:end]) for purpose in PURPOSES
        }
        assert all(
            abs(counts[purpose] - share * end) < 1 for purpose, share in parse_mixture().items()
        )


def test_decided_rows_are_proposed_only_to_measure(audit: Audit) -> None:
    first = propose(audit, open_design(audit), [], parse_mixture(), 100)
    answers = [
        (
            answer(audit, p.row, asked="measure", probability=p.probability)
            if p.purpose == "measure"
            else answer(audit, p.row)
        )
        for p in first
    ]
    second = propose(audit, open_design(audit), answers, parse_mixture(), 50)
    measured = {p.row for p in first if p.purpose == "measure"}
    assert not {p.row for p in second if p.purpose != "measure"} & {p.row for p in first}
    assert not {p.row for p in second if p.purpose == "measure"} & measured
    assert [p.row for p in second] == [
        p.row for p in propose(audit, open_design(audit), answers, parse_mixture(), 50)
    ]
    design = read_design(audit)
    assert design is not None
    continued = [question.row for question in design.questions(answers, 30)]
    assert [p.row for p in second if p.purpose == "measure"] == continued and len(continued) == 10


def test_find_follows_the_recalibrated_quality(audit: Audit) -> None:
    turned = replace(
        audit, issues=audit.issues.assign(label_quality=1 - audit.issues["label_quality"])
    )
    assert [p.row for p in propose(turned, None, [], {"find": 1.0}, 5)] == [399, 398, 397, 396, 395]
    assert not (audit.folder / "measure.json").exists()


def test_where_the_round_of_the_design_ends_the_others_take_their_place(audit: Audit) -> None:
    proposals = propose(
        audit, open_design(audit), [], {"find": 0.25, "learn": 0.25, "measure": 0.5}, 100
    )
    counts = [sum(p.purpose == purpose for p in proposals) for purpose in PURPOSES]
    assert counts == [35, 35, 30]  # the pilot
    assert len(propose(audit, open_design(audit), [], {"measure": 1.0}, 100)) == 30


def test_fewer_rows_than_asked_for(audit: Audit) -> None:
    few = replace(audit, issues=audit.issues.head(5))
    assert len(propose(few, None, [], {"find": 0.5, "learn": 0.5}, 100)) == 5


def reference(wrong: Any, given: Any, group: Any, closed: Any, count: int) -> list[int]:
    """The definition, one row after the other, of the most uncertain row of each group."""
    taken = {g for g, c in zip(group, closed, strict=True) if c and g >= 0}
    rows = [i for i in range(len(wrong)) if not closed[i] and group[i] not in taken]
    worth = wrong * (1 - wrong)
    rows = [
        i
        for i in rows
        if group[i] < 0 or i == min((-worth[j], j) for j in rows if group[j] == group[i])[1]
    ]
    chosen: list[int] = []
    while len(chosen) < count and len(chosen) < len(rows):
        values = [
            (-worth[i] / (1 + sum(given[j] == given[i] for j in chosen)), i)
            for i in rows
            if i not in chosen
        ]
        chosen.append(min(values)[1])
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_informative_rows_by_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wrong, given = rng.random(40).round(2), rng.integers(4, size=40)
    group = np.where(rng.random(40) < 0.5, rng.integers(6, size=40), -1)
    closed = rng.random(40) < 0.2
    assert most_informative(wrong, given, group, closed, 15).tolist() == reference(
        wrong, given, group, closed, 15
    )


def test_an_exhausted_purpose_leaves_its_place_to_the_others() -> None:
    rows = {
        "find": [Question(i, "find") for i in range(3)],
        "measure": [Question(9, "measure", 0.5)],
        "learn": [],
    }
    mixed = interleave(rows, {"find": 0.4, "learn": 0.2, "measure": 0.4})  # type: ignore[arg-type]
    assert [p.row for p in mixed] == [0, 9, 1, 2]
