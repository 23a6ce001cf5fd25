"""Several people and several tabs in real browsers, on one server that is killed in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_decisions, read_log

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


def test_two_links_in_two_tabs_of_one_browser_stay_two_people(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--reviewers", "ann,bob") as server,
        browsing(chromium, tmp_path / "profile") as ann,
    ):
        open_list(ann, server.links["ann"])
        bob = ann.context.new_page()
        open_list(bob, server.links["bob"])
        assert "token" not in ann.url and "token" not in bob.url
        for _ in range(3):
            ann.bring_to_front()
            press(ann, "a")
            bob.bring_to_front()
            press(bob, "k")
        ann.bring_to_front()
        ann.reload()
        ann.wait_for_selector("body[data-ready]")
        assert "ann (you) 3" in look(ann)
    by = {line.row: (line.reviewer, line.decision) for line in read_log(find_decisions(folder))}
    assert sorted(by.values()) == [("ann", "accept")] * 3 + [("bob", "keep")] * 3 and len(by) == 6


def test_a_killed_server_loses_nothing_and_the_same_tabs_go_on(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path)
    with browsing(chromium, tmp_path / "ann") as ann, browsing(chromium, tmp_path / "bob") as bob:
        with Server(folder, "--reviewers", "ann,bob") as server:
            open_list(ann, server.links["ann"])
            open_list(bob, server.links["bob"])
            for _ in range(4):
                press(ann, "a")
                press(bob, "k")
            port = str(server.port)
        confirmed = len(read_log(find_decisions(folder)))
        assert confirmed == 8
        ann.keyboard.press("a")  # nobody answers
        until(ann, "document.getElementById('counts').textContent.includes('1 not saved yet')")
        with Server(folder, "--reviewers", "ann,bob", "--port", port) as server:
            for page, name in ((ann, "ann"), (bob, "bob")):
                tab = page.context.new_page()
                open_page(tab, server.links[name])  # its cookie is for the old tab, too
                tab.close()
            until(ann, "!store.unsaved && view.current >= 0")
            press(bob, "k")
            assert look(ann).startswith("ann (you) 5") and "ann 5" in look(bob)
            until(bob, "document.getElementById('counts').textContent.startsWith('10 of 200')")
    lines = read_log(find_decisions(folder))
    # nobody did what the other had done
    assert len(lines) == 10 and len({line.row for line in lines}) == 10
    assert sorted(line.reviewer for line in lines) == ["ann"] * 5 + ["bob"] * 5


def test_a_tab_notices_what_another_tab_of_the_same_person_undid(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--reviewer", "ann") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_list(page, server.link)
        other = page.context.new_page()
        open_list(other, server.link)
        page.bring_to_front()
        press(page, "a", "a", "a")
        other.bring_to_front()
        look(other)
        until(other, "document.getElementById('counts').textContent.startsWith('3 of 200')")
        until(other, "document.querySelector('#item-2 .accept') !== null")
        other.evaluate("store.send('/api/undo', {})")
        page.bring_to_front()
        look(page)
        until(page, "document.getElementById('counts').textContent.startsWith('2 of 200')")
        until(
            page, "document.querySelector('#item-2') && !document.querySelector('#item-2 .accept')"
        )
        assert page.inner_text("#people") == "ann (you) 2"
    assert {*read_decisions(find_decisions(folder))} == {0, 1}


def test_people_are_asked_for_second_opinions_without_seeing_the_first(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path, rows=30, issues=6)
    options = ("--reviewers", "ann,bob", "--overlap", "1")
    with (
        Server(folder, *options) as server,
        browsing(chromium, tmp_path / "ann") as ann,
        browsing(chromium, tmp_path / "bob") as bob,
    ):
        open_list(ann, server.links["ann"])
        press(ann, *"aaaaaa")
        until(
            ann,
            "document.getElementById('message').textContent.startsWith('Everything is decided.')",
        )
        open_list(bob, server.links["bob"])
        assert bob.locator(".item .done").count() == 0 and "accept" not in bob.inner_text("#card")
        press(bob, *"aaaaak")
        until(
            bob,
            "document.getElementById('message').textContent.startsWith('Everything is decided.')",
        )
        assert "second opinions 6 of 6\nagreement 83.3 % of 6 rows" in look(bob)
        assert "1 conflict" in look(ann)
    assert {one.reviewer for one in read_decisions(find_decisions(folder)).values()} == {"ann"}


def test_whoever_waits_for_the_last_question_of_a_round_gets_the_next(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path)
    options = ("--measure", "40", "--reviewers", "ann,bob")
    with Server(folder, *options) as server, browsing(chromium, tmp_path / "bob") as page:
        with server.client_of("ann") as ann:
            for _ in range(28):  # of 30 in the first round
                question = ann.get("/api/question").json()["question"]
                body = {"row": question["row"], "question": question["number"], "decision": "keep"}
                assert ann.post("/api/decisions", json=body).status_code == 200
            question = ann.get("/api/question").json()["question"]
            open_page(page, server.links["bob"])
            assert page.inner_text("#people") == "Reviewer: bob"
            page.keyboard.press("k")
            until(page, "document.getElementById('card').textContent.includes('ann')")
            assert "ann" in page.inner_text("#card") and "Done" not in page.inner_text("#card")
            body = {"row": question["row"], "question": question["number"], "decision": "keep"}
            assert ann.post("/api/decisions", json=body).status_code == 200
        until(page, "document.getElementById('row') !== null")  # by itself
        page.keyboard.press("k")
        until(page, "document.getElementById('counts').textContent.startsWith('31 of 40')")
