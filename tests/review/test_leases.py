"""Leases of rows, by a clock that the test sets."""

from __future__ import annotations

from noiseproof.review.people import Leases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_row_belongs_to_one_person_until_they_move_on() -> None:
    leases = Leases(60, Clock())
    leases.take(5, "ann")
    leases.take(5, "bob")
    assert leases.rows() == {5: "ann"}
    leases.take(6, "bob")
    assert leases.rows() == {5: "ann", 6: "bob"} and leases.rows(but="bob") == {5: "ann"}
    leases.take(6, "ann")  # Ann left 5 for it, and has none now
    assert leases.rows() == {6: "bob"}
    leases.take(5, "bob")
    assert leases.rows() == {5: "bob"}
    leases.give_back("bob")
    leases.give_back("bob")
    assert leases.rows() == {}


def test_tabs_of_one_person_hold_a_row_each_and_do_not_exclude_each_other() -> None:
    leases = Leases(60, Clock())
    leases.take(1, "ann", "left")
    leases.take(2, "ann", "right")
    assert leases.rows() == {1: "ann", 2: "ann"}
    leases.take(1, "ann", "right")  # the same person
    leases.take(1, "bob")
    leases.give_back("ann", "left")
    leases.take(1, "bob")
    assert leases.rows() == {1: "ann"}  # the other tab is still there
    leases.give_back("ann", "right")
    leases.take(1, "bob")
    assert leases.rows() == {1: "bob"}


def test_a_lease_ends_without_a_sign_of_the_person() -> None:
    clock = Clock()
    leases = Leases(60, clock)
    leases.take(1, "ann")
    clock.now = 59.9
    leases.take(1, "bob")
    leases.take(1, "ann")  # renewed
    clock.now = 119.8
    assert leases.rows() == {1: "ann"}
    clock.now = 119.9
    assert leases.rows() == {}
    leases.take(1, "bob")
    leases.take(1, "ann")
    assert leases.rows() == {1: "bob"}
