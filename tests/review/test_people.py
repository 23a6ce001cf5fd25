"""Who is where, second opinions and conflicts, without a server: by a queue and a clock that the
test sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade_audit import write_table_audit

from noiseproof.audit.decisions import (
    FILE,
    Decision,
    find_decisions,
    read_answers,
    read_decisions,
    read_log,
    read_standing,
)
from noiseproof.audit.files import read_audit
from noiseproof.audit.plan import conflicts, differ
from noiseproof.judge.measure.interval import agreement
from noiseproof.review.people import Leases, hashed
from noiseproof.review.queue import Filter, Queue


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table_audit(tmp_path)


def open_queue(
    folder: Path, names: tuple[str, ...] = ("ann", "bob"), overlap: float = 0.0
) -> Queue:
    return Queue(read_audit(folder), folder / "decisions.csv", reviewers=names, overlap=overlap)


ANN, BOB, CY = ("ann", "keep", "cat"), ("bob", "accept", "dog"), ("cy", "keep", "cat")


def line(reviewer: str, choice: str, label: str = "") -> Decision:
    return Decision(7, "b", "cat", choice, label, reviewer)  # type: ignore[arg-type]


# --- conflicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([], False),
        ([line("ann", "keep", "cat"), line("bob", "keep", "cat")], False),
        ([line("ann", "accept", "dog"), line("bob", "other", "dog")], False),  # the same label
        ([line("ann", "keep", "cat"), line("ann", "accept", "dog")], False),  # a change of mind
        ([line("ann", "keep", "cat"), line("bob", "skip")], False),
        ([line("ann", "exclude"), line("bob", "unclear")], True),
        ([line("ann", "exclude"), line("bob", "other", "exclude")], True),  # a class of that name
        ([line(*ANN), line(*BOB)], True),
        ([line(*ANN), line(*BOB), line("cy", "note")], True),
        ([line(*ANN), line(*BOB), line("cy", "other", "fox")], False),
        ([line(*ANN), line(*BOB), line("bob", "accept", "dog")], False),
        ([line(*ANN), line(*BOB), line(*CY), line(*ANN)], False),
        ([line(*ANN), line(*BOB), line(*CY), line("bob", "exclude")], True),
    ],
)
def test_people_disagree_until_somebody_settles_it(lines: list[Decision], expected: bool) -> None:
    assert differ(lines) is expected


def test_a_conflict_is_listed_settled_and_comes_back_when_that_is_undone(folder: Path) -> None:
    queue = open_queue(folder, ("ann", "bob", "cy"))
    queue.decide(3, "keep", reviewer="ann")
    queue.decide(4, "keep", reviewer="ann")
    queue.decide(3, "accept", reviewer="bob")
    listed = Filter(state="conflict")
    assert queue.issues.row[queue.select(listed, "cy")].tolist() == [3]
    assert queue.people.show("cy")["conflicts"] == 1
    shown = queue.decided(3, "cy")
    assert shown["conflict"] and shown["decision"] == "accept"
    assert [(one["reviewer"], one["decision"]) for one in shown["by"]] == [
        ("ann", "keep"),
        ("bob", "accept"),
    ]
    assert conflicts(read_standing(find_decisions(folder))) == [3]
    queue.decide(3, "keep", settles=True, reviewer="cy")
    assert not len(queue.select(listed)) and queue.decided(3)["decision"] == "keep"
    queue.undo("cy")
    assert (
        queue.issues.row[queue.select(listed)].tolist() == [3]
        and queue.decided(3)["decision"] == "accept"
    )
    # What Bob decided already, decided again by Bob, settles it only if he means to; sent twice, it
    # is one line.
    lines = read_log(folder / FILE)
    queue.decide(3, "accept", reviewer="bob")
    assert read_log(folder / FILE) == lines
    queue.decide(3, "accept", settles=True, reviewer="bob")
    settled = read_log(folder / FILE)
    queue.decide(3, "accept", settles=True, reviewer="bob")
    assert read_log(folder / FILE) == settled != lines
    assert conflicts(read_standing(find_decisions(folder))) == []


def test_undo_is_each_persons_own(folder: Path) -> None:
    queue = open_queue(folder)
    queue.decide(1, "keep", reviewer="ann")
    queue.decide(1, "accept", reviewer="bob")
    queue.decide(2, "keep", reviewer="bob")
    assert [undone.row for undone in queue.undo("ann")] == [1]
    assert queue.decided(1)["decision"] == "accept" and not queue.people.is_conflict.any()
    assert queue.undo("ann") == []
    assert [undone.row for undone in queue.undo("bob")] == [2]


# --- leases ---------------------------------------------------------------------------------------


def test_the_next_row_is_one_that_nobody_is_at(folder: Path) -> None:
    queue, clock = open_queue(folder), Clock()
    queue.people.leases = Leases(60, clock)
    assert queue.next_open(-1, Filter(), "ann", "1") == (0, [])
    assert queue.next_open(-1, Filter(), "bob", "1") == (1, [])
    assert queue.next_open(-1, Filter(), "ann", "2") == (0, [])  # another tab of hers
    assert queue.next_open(1, Filter(), "bob", "1") == (2, [])
    assert queue.next_open(0, Filter(), "ann", "1") == (1, [])  # Bob gave it back
    assert queue.decide_many([1, 2, 3], "keep", reviewer="ann")[1] == 2  # all but Bob's row
    clock.now = 60  # Bob has left
    assert queue.decide_many([1, 2, 3], "keep", reviewer="ann")[1] == 1


def test_what_others_have_at_the_end_is_named(folder: Path) -> None:
    queue = open_queue(folder, ("ann", "bob", "cy"))
    queue.decide_many(range(198), "keep", reviewer="ann")
    assert (
        queue.next_open(-1, Filter(), "bob")[0] == 198
        and queue.next_open(-1, Filter(), "cy")[0] == 199
    )
    assert queue.next_open(-1, Filter(), "ann") == (None, ["bob", "cy"])
    queue.decide(198, "keep", reviewer="bob")
    assert queue.next_open(-1, Filter(), "bob") == (None, ["cy"])
    queue.decide(199, "keep", reviewer="cy")
    assert queue.next_open(-1, Filter(), "bob") == (None, [])


# --- second opinions ------------------------------------------------------------------------------


def test_the_share_of_rows_for_two_people_is_fixed_and_looks_random() -> None:
    rows = np.arange(100_000)
    share = hashed(rows)
    assert share.min() >= 0 and share.max() < 1 and np.array_equal(share, hashed(rows))
    assert np.histogram(share, 10, (0, 1))[0] == pytest.approx(np.full(10, 10_000), rel=0.05)
    assert abs(np.corrcoef(share[:-1], share[1:])[0, 1]) < 0.02
    assert np.array_equal(hashed(rows[500:700]), share[500:700])  # of the row alone
    # The first outputs of splitmix64 with the seeds 0, 1, 2, as in its reference implementation.
    first = [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0x975835DE1C9756CE]
    assert hashed(rows[:3]).tolist() == [(value >> 11) / 2**53 for value in first]


def test_a_second_opinion_is_asked_for_blind_and_replaces_nothing(folder: Path) -> None:
    queue = open_queue(folder, ("ann", "bob", "cy"), overlap=0.2)
    second = queue.issues.row[queue.people.is_overlap].tolist()
    assert 20 < len(second) < 60
    for row in range(200):
        queue.decide(row, "keep" if row % 3 else "accept", reviewer="ann")
    assert queue.next_open(-1, Filter(), "ann") == (None, [])
    # Bob is sent to these rows alone, and sees them as open.
    asked = []
    while (place := queue.next_open(-1, Filter(), "bob")[0]) is not None:
        row = int(queue.issues.row[place])
        assert queue.decided(row, "bob") == {
            "decision": None,
            "label": None,
            "note": None,
            "by": [],
            "conflict": False,
        }
        assert row in queue.issues.row[queue.select(Filter(state="open"), "bob")]
        assert row not in queue.issues.row[queue.select(Filter(state="decided"), "bob")]
        assert queue.decided(row, "ann")["decision"] == ("keep" if row % 3 else "accept")
        choice = "accept" if len(asked) < 4 else ("keep" if row % 3 else "accept")
        for _ in range(2):  # a lost reply
            queue.decide(row, choice, reviewer="bob")
        assert len(queue.decided(row, "bob")["by"]) == 2  # now he sees both
        asked.append(row)
    assert asked == second and queue.next_open(-1, Filter(), "cy") == (None, [])  # two are enough
    decisions = read_decisions(find_decisions(folder))
    assert {row: one.reviewer for row, one in decisions.items()} == dict.fromkeys(range(200), "ann")
    answers = read_answers(find_decisions(folder))
    expected = agreement(answers, 4)
    state = queue.people.show("bob")
    assert expected is not None and state["agreement"]["rows"] == expected.rows == len(second)
    assert (
        state["agreement"]["same"] == expected.same
        and state["agreement"]["kappa"] == expected.kappa
    )
    assert state["second_opinions"] == {"total": len(second), "done": len(second), "yours": 0}
    differing = [row for row in second[:4] if row % 3]
    assert state["conflicts"] == len(differing) > 0
    # Settled with both in view, the agreement is still that of two people who saw nothing.
    for row in differing:
        queue.decide(row, "keep", settles=True, reviewer="cy")
    assert queue.people.show("cy")["conflicts"] == 0
    assert queue.people.show("cy")["agreement"] == state["agreement"]
    # It is undone like any other decision, and asked for again.
    assert [undone.row for undone in queue.undo("bob")] == [second[-1]]
    assert queue.next_open(-1, Filter(), "cy")[0] == queue.issues.position[second[-1]]
    counts = {person["name"]: person["decided"] for person in queue.people.show("ann")["reviewers"]}
    assert counts == {"ann": 200, "bob": len(second) - 1, "cy": len(differing)}
    queue.log.close()
    again = open_queue(folder, ("ann", "bob", "cy"), overlap=0.2)  # all of it is in the file
    before, after = queue.people.show("ann"), again.people.show("ann")
    assert {**after, "version": 0, "reviewers": counts} == {
        **before,
        "version": 0,
        "reviewers": {person["name"]: person["decided"] for person in after["reviewers"]},
    }


def test_a_first_decision_that_is_undone_leaves_the_row_open(folder: Path) -> None:
    queue = open_queue(folder, overlap=1.0)
    queue.decide(0, "keep", reviewer="ann")
    queue.decide(0, "accept", reviewer="bob")
    queue.undo("ann")
    assert queue.decided(0)["decision"] is None and queue.progress()["decided"] == 0
    queue.decide(0, "keep", reviewer="ann")
    # hers is the decision again, not a second opinion
    assert queue.decided(0)["decision"] == "keep"


def test_changes_since_a_version(folder: Path) -> None:
    queue = open_queue(folder)
    people = queue.people
    version = people.show("ann")["version"]
    queue.decide(1, "keep", reviewer="ann")
    queue.decide(2, "keep", reviewer="ann")
    queue.undo("ann")
    assert people.changed(version) == [1, 2] and people.changed(people.show("ann")["version"]) == []
    assert people.changed(10**6) is None  # of a server that ran longer


def test_many_changes_are_not_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noiseproof.review.people.MOST_CHANGES", 10)
    queue = open_queue(folder)
    queue.decide_many(range(10), "keep", reviewer="ann")
    assert queue.people.changed(0) == list(range(10))
    queue.decide(10, "keep", reviewer="ann")
    assert queue.people.changed(0) is None
