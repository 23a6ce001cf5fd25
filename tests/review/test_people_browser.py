"""Several people and several tabs in real browsers, on one server that is killed in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_decisions

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def open_list(page: Any, link: str) -> None:
    open_page(page, link)
    page.keyboard.press("l")
    until(page, "document.getElementById('row') !== null")


def press(page: Any, *keys: str) -> None:
    """Press keys, each once the page shows an issue and has saved what was decided."""
    for key in keys:
        until(page, "view.current >= 0 && !store.unsaved && !store.busy")
        page.keyboard.press(key)
    until(page, "view.current >= 0 && !store.unsaved && !store.busy")


def look(page: Any) -> str:
    """Let a page ask what others did; what it shows of the people."""
    page.evaluate("people.look()")
    return str(page.inner_text("#people"))


def test_two_people_never_meet_and_see_what_the_other_does(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--reviewers", "ann,bob") as server,
        browsing(chromium, tmp_path / "ann") as ann,
        browsing(chromium, tmp_path / "bob") as bob,
    ):
        open_list(ann, server.links["ann"])
        open_list(bob, server.links["bob"])
        assert (row_shown(ann), row_shown(bob)) == (0, 1)
        assert look(ann) == "ann (you) 0\nbob 0, at row 1"
        until(ann, "document.querySelector('#item-1 .mark')?.textContent === 'bob is here'")
        press(ann, "a")  # passes over Bob's row
        assert row_shown(ann) == 2
        press(bob, "k", "k")
        assert row_shown(bob) == 4  # 0 is decided, Ann is at 2, 3 was the one between
        look(ann)
        # without loading the list again
        until(ann, "document.querySelector('#item-1 .keep') !== null")
        assert ann.inner_text("#counts").startswith("3 of 200 decided")
        assert "bob 2, at row 4" in ann.inner_text("#people")
        # Ann opens Bob's row by hand: she sees that he is there, and decides nothing.
        ann.click("#item-4")
        until(ann, "document.getElementById('others')?.textContent.includes('bob is here')")
        ann.keyboard.press("a")
        until(ann, "document.getElementById('message').textContent.includes('bob is at this row')")
        # A row that Bob decided, decided by Ann otherwise: both see the conflict, and either
        # settles it.
        ann.click("#item-1")
        until(ann, "document.getElementById('row')?.dataset.row === '1'")
        press(ann, "a")
        assert "1 conflict" in look(ann) and "1 conflict" in look(bob)
        bob.click("#conflicts")
        until(bob, "document.getElementById('others')?.textContent.includes('ann: accept')")
        assert (
            "bob (you): keep dog" in bob.inner_text("#others")
            and bob.inner_text("#filtered") == "conflict"
        )
        press(bob, "k")  # as he decided before
        assert "conflict" not in look(bob) and "conflict" not in look(ann)
    decisions = read_decisions(find_decisions(folder))
    assert {row: (one.decision, one.reviewer) for row, one in decisions.items()} == {
        0: ("accept", "ann"),
        1: ("keep", "bob"),
        3: ("keep", "bob"),
    }
