"""Every kind of decision in a real browser: exclude, unclear, a note, a new class, spellings that
are one, undo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_audit, write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server

from noiseproof.audit.decisions import Decision, find_decisions, read_log, read_standing
from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def says(page: Any, text: str) -> None:
    until(page, "(text) => document.getElementById('message').textContent === text", text)


def counts(page: Any, text: str) -> None:
    until(page, "(text) => document.getElementById('counts').textContent === text", text)


def shows(page: Any, row: int) -> None:
    until(page, "(row) => document.getElementById('row')?.dataset.row === String(row)", row)


def decide_each_kind(page: Any) -> None:
    """Exclude row 0 by key and row 1 by button, flag row 2, note and keep row 3, name a class for
    row 4.
    """
    press = page.keyboard.press
    press("x")
    shows(page, 1)
    page.click("#choices [data-choice=exclude]")
    shows(page, 2)
    press("c")
    shows(page, 3)
    press("t")
    page.keyboard.type("Blurred,")
    press("Shift+Enter")
    page.keyboard.type("ak")  # decides nothing
    press("Enter")
    says(page, "Noted.")
    assert page.locator("#note").is_hidden() and page.inner_text("#card .note") == "✎ Blurred,\nak"
    assert (
        page.locator("#item-3 .noted").get_attribute("aria-label") == "has a note"
        and row_shown(page) == 3
    )
    press("k")
    shows(page, 4)
    press("o")
    page.keyboard.type("cat")  # the given label
    assert page.locator("#chooser li").count() == 0
    assert page.inner_text("#chooser-answer") == "“cat” is the given label: keep it with k."
    press("Enter")
    page.fill("#chooser-word", "")
    page.keyboard.type(" red  fox ")
    assert page.locator("#chooser li").all_inner_texts() == ["New class “red fox”"]
    press("Enter")
    assert page.locator("#chooser").is_visible()  # a typo makes no class
    assert page.inner_text("#chooser-answer") == "Enter again makes the new class “red fox”."
    press("Enter")
    shows(page, 5)
    press("o")  # it is a class like any other now
    page.keyboard.type("red")
    press("Enter")
    shows(page, 6)
    counts(page, "6 of 9 decided · keep 1 · other 2 · exclude 2 · unclear 1")


def check_each_kind(path: Path) -> None:
    standing = read_standing(path)
    assert {row: (one.decision, one.label) for row, one in standing.decisions.items()} == {
        0: ("exclude", ""),
        1: ("exclude", ""),
        2: ("unclear", ""),
        3: ("keep", "owl"),
        4: ("other", "red fox"),
        5: ("other", "red fox"),
    }
    assert standing.notes == {3: "Blurred,\nak"}


def test_every_kind_of_decision_and_undo_after_a_reload(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, issues=9)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        decide_each_kind(page)
        check_each_kind(find_decisions(folder))
        page.reload()
        page.wait_for_selector("body[data-ready]")
        page.keyboard.press("l")
        shows(page, 6)
        for row in (5, 4, 3):
            page.keyboard.press("u")
            shows(page, row)
        assert page.inner_text("#card .note") == "✎ Blurred,\nak"
        page.keyboard.press("u")
        says(page, "Undone: the note on row 3.")
        assert page.locator("#card .note").count() == page.locator(".noted").count() == 0
        counts(page, "3 of 9 decided · exclude 2 · unclear 1")
        page.keyboard.press("o")
        page.keyboard.type("red")  # nobody has this label any more
        assert page.locator("#chooser li").all_inner_texts() == ["New class “red”"]
    assert read_standing(find_decisions(folder)).notes == {}


def test_a_page_that_is_a_file_decides_everything_and_exports_it(
    chromium: Any, tmp_path: Path
) -> None:
    audit = read_audit(write_table_audit(tmp_path, issues=9))
    (tmp_path / "review.html").write_text(file_page(audit), "utf-8")
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "review.html").as_uri())
        decide_each_kind(page)
        page.keyboard.press("x")
        shows(page, 7)
        page.keyboard.press("u")
        shows(page, 6)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        shows(page, 6)
        with page.expect_download() as download:
            page.keyboard.press("e")
        download.value.save_as(tmp_path / "decisions.csv")
        for key in "akx":
            page.keyboard.press(key)
        then = (
            "“Export”, then `noiseproof apply FOLDER --decisions decisions.csv`, with the folder of"
            " the audit,"
        )
        says(page, f"Everything is decided. {then} writes the corrected data.")
    check_each_kind(tmp_path / "decisions.csv")


def test_when_everything_is_decided_keys_decide_nothing_more(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, issues=2)
    end = (
        f"Everything is decided. `noiseproof apply {folder}` in the terminal writes the corrected"
        " data."
    )
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        page.keyboard.press("a")
        page.keyboard.press("k")
        says(page, end)
        for key in "akxcs":
            page.evaluate("say('')")
            page.keyboard.press(key)
            says(page, end)
        assert [line.decision for line in read_log(find_decisions(folder))] == ["accept", "keep"]
        page.keyboard.press("ArrowUp")  # chosen by hand, it can be changed
        shows(page, 0)
        page.keyboard.press("x")
        says(page, end)
        until(page, "!store.unsaved")
    assert [(line.row, line.decision) for line in read_log(find_decisions(folder))][2:] == [
        (0, "exclude")
    ]


def test_an_audit_without_issues_has_nothing_to_press(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, issues=0)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        assert page.locator("#choices button:visible").count() == 0
        assert "No issues. The labels look fine." in page.inner_text("#card")
        for key in "akxctu":
            page.keyboard.press(key)
        says(page, "There is nothing to undo.")


PENGUINS = ["Gentoo ", "Gentoo ", *["Gentoo"] * 4, "Adelle", *["Adelie"] * 20]
SUGGESTED = ["Gentoo", "Adelie", *["Gentoo ", "Adelie"] * 2, "Gentoo", *["Gentoo"] * 20]


def merge_spellings(page: Any) -> None:
    """No to a typo, yes to spaces, and undo of both."""
    press, line = page.keyboard.press, page.locator("#spelling-question")
    assert line.inner_text() == "“Adelle” (1 row) and “Adelie” (20 rows): are they one?"
    press("m")
    press("Tab")
    press("Enter")
    says(page, "They stay two classes.")
    assert line.inner_text() == "“Gentoo␣” (2 rows) and “Gentoo” (4 rows): are they one?"
    assert page.inner_text("#spelling-yes") == "Yes, make them “Gentoo”"
    page.click("#spelling-yes")
    says(page, "“Gentoo␣” becomes “Gentoo”.")
    until(page, "document.getElementById('spelling').hidden")
    counts(page, "3 of 7 decided · keep 3")  # rows 0, 2 and 4 are about the spelling only
    press("u")
    says(page, "Undone: the spellings.")
    counts(page, "0 of 7 decided")
    press("m")
    press("Enter")
    counts(page, "3 of 7 decided · keep 3")
    # any two classes
    press("m")
    page.keyboard.type("adelle")
    press("Enter")
    page.keyboard.type("adelie")
    press("Enter")
    says(page, "“Adelle” becomes “Adelie”.")


def check_merges(path: Path) -> None:
    standing = read_standing(path)
    assert {name: merge.label for name, merge in standing.merges.items()} == {
        "Adelle": "Adelie",
        "Gentoo ": "Gentoo",
    }
    assert {row: one.decision for row, one in standing.decisions.items()} == {
        0: "keep",
        2: "keep",
        4: "keep",
    }


def test_spellings_are_merged_by_key_and_by_click(chromium: Any, tmp_path: Path) -> None:
    folder = write_audit(
        tmp_path / "audit", PENGUINS, SUGGESTED, issues=7, kind="arrays", data=None
    )
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        merge_spellings(page)
    check_merges(find_decisions(folder))


def test_spellings_are_merged_in_a_file(chromium: Any, tmp_path: Path) -> None:
    folder = write_audit(
        tmp_path / "audit", PENGUINS, SUGGESTED, issues=7, kind="arrays", data=None
    )
    (tmp_path / "review.html").write_text(file_page(read_audit(folder)), "utf-8")
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "review.html").as_uri())
        merge_spellings(page)
        with page.expect_download() as download:
            page.keyboard.press("e")
        download.value.save_as(tmp_path / "decisions.csv")
    check_merges(tmp_path / "decisions.csv")


def test_one_person_undoes_nothing_of_another(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--reviewers", "ann,bob") as server,
        browsing(chromium, tmp_path / "profile") as ann,
    ):
        open_page(ann, server.links["ann"])
        ann.keyboard.press("a")
        counts(ann, "1 of 200 decided · accept 1")
        with server.client_of("bob") as bob:
            assert (
                bob.post("/api/decisions", json={"row": 0, "decision": "exclude"}).status_code
                == 200
            )
            assert (
                bob.post("/api/decisions", json={"row": 1, "decision": "keep"}).status_code == 200
            )
        ann.keyboard.press("u")
        says(ann, "Undone: row 0.")
        assert "exclude" in ann.inner_text("#card")  # what stands is Bob's
        ann.keyboard.press("u")
        says(ann, "There is nothing to undo.")
    found = read_standing(find_decisions(folder)).decisions
    assert {row: (one.decision, one.reviewer) for row, one in found.items()} == {
        0: ("exclude", "bob"),
        1: ("keep", "bob"),
    }


def test_measured_questions_can_be_excluded_or_unclear(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with (
        Server(folder, "--measure", "4") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link)
        assert page.locator("[data-choice=note]").count() == 0
        for number, key in enumerate("xck", 1):
            until(page, "(n) => store.unsaved === 0 && issueAt(view.current)?.number === n", number)
            page.keyboard.press(key)
        until(page, "store.unsaved === 0 && issueAt(view.current)?.number === 4")
    answers: list[Decision] = read_standing(find_decisions(folder)).answers()
    assert [(one.decision, one.asked) for one in answers] == [
        ("exclude", "measure"),
        ("unclear", "measure"),
        ("keep", "measure"),
    ]
