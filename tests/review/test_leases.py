"""Leases of rows, by a clock that the test sets."""

from __future__ import annotations

from noiseproof.review.people import Leases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_row_belongs_to_one_person_until_they_move_on() -> None:
    leases = Leases(60, Clock())
    assert leases.take(5, "ann") is None
    assert leases.take(5, "bob") == "ann"
    assert leases.take(6, "bob") is None
    assert leases.rows() == {5: "ann", 6: "bob"} and leases.rows(but="bob") == {5: "ann"}
    assert leases.take(6, "ann") == "bob"  # Ann left 5 for it, and has none now
    assert leases.take(5, "bob") is None
    assert leases.rows() == {5: "bob"}
    leases.give_back("bob")
    leases.give_back("bob")
    assert leases.rows() == {}


def test_tabs_of_one_person_hold_a_row_each_and_do_not_exclude_each_other() -> None:
    leases = Leases(60, Clock())
    assert leases.take(1, "ann", "left") is None and leases.take(2, "ann", "right") is None
    assert leases.take(1, "ann", "right") is None  # the same person
    assert leases.take(1, "bob") == "ann"
    leases.give_back("ann", "left")
    assert leases.take(1, "bob") == "ann"  # the other tab is still there
    leases.give_back("ann", "right")
    assert leases.take(1, "bob") is None


def test_a_lease_ends_without_a_sign_of_the_person() -> None:
    clock = Clock()
    leases = Leases(60, clock)
    leases.take(1, "ann")
    clock.now = 59.9
    assert leases.take(1, "bob") == "ann"
    assert leases.take(1, "ann") is None  # renewed
    clock.now = 119.8
    assert leases.rows() == {1: "ann"}
    clock.now = 119.9
    assert leases.rows() == {} and leases.take(1, "bob") is None
    assert leases.take(1, "ann") == "bob"
