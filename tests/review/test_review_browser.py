"""The review page in a real browser, driven by the keyboard: served, killed and come back to; and
opened as a file.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import ANIMALS, write_audit, write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server, ServerProcess

from noiseproof.audit.decisions import COLUMNS, find_decisions, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def decided(page: Any, count: int) -> str:
    """Wait until so many are decided and saved; what the page says of them."""
    until(page, f"document.getElementById('counts').textContent.startsWith('{count} of ')")
    until(page, "!document.getElementById('counts').textContent.includes('not saved')")
    return str(page.inner_text("#counts"))


def test_every_issue_by_keyboard_alone_through_a_closed_browser_and_a_killed_server(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_table_audit(tmp_path, issues=50)
    expected: dict[int, tuple[str, str]] = {}
    frame = read_audit(folder).issues.set_index("row")

    def press(page: Any, row: int) -> None:
        choice = ("accept", "keep", "skip", "accept", "other")[row % 5]
        given, suggested = frame.loc[row, ["given_label", "suggested_label"]]
        label = next(name for name in ANIMALS if name not in (given, suggested))
        until(page, f"document.getElementById('row')?.dataset.row === '{row}'")
        if choice == "other":
            page.keyboard.press("o")
            page.keyboard.type(label[:2])
            page.keyboard.press("Enter")
        else:
            page.keyboard.press(choice[0])
        expected[row] = (
            choice,
            {"accept": suggested, "keep": given, "skip": "", "other": label}[choice],
        )

    with ServerProcess(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        assert "token" not in page.url
        for row in range(30):
            press(page, row)
        decided(page, 30)
    # The browser is closed and the server killed. Both come again, at another address.
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        assert decided(page, 30) and row_shown(page) == 30
        for row in range(30, 50):
            press(page, row)
        assert decided(page, 50) == "50 of 50 decided · accept 20 · keep 10 · other 10 · skip 10"
        end = (
            f"Everything is decided. `noiseproof apply {folder}` in the terminal writes the"
            " corrected data."
        )
        until(page, f"document.getElementById('message').textContent === {end!r}")
        assert page.evaluate("document.getElementById('progress').position") == 1
    found = read_decisions(find_decisions(folder))
    assert {row: (word.decision, word.label) for row, word in found.items()} == expected


def test_undo_other_label_filter_and_moves(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        press = page.keyboard.press
        press("a")
        press("k")
        assert row_shown(page) == 2
        press("u")
        press("Control+z")  # one after the other
        until(page, "document.getElementById('row')?.dataset.row === '0'")
        assert decided(page, 0)
        press("u")
        until(
            page, "document.getElementById('message').textContent === 'There is nothing to undo.'"
        )
        # A second word on a row, and back to the first.
        press("a")
        press("ArrowLeft")
        assert "accept" in page.inner_text("#card")
        press("k")
        press("u")
        until(page, "document.getElementById('message').textContent === 'Undone: row 0.'")
        decided(page, 1)
        assert read_decisions(find_decisions(folder))[0].decision == "accept"
        # Moves.
        for key, row in (
            ("End", 199),
            ("PageUp", 189),
            ("ArrowUp", 188),
            ("j", 189),
            ("Home", 0),
            ("n", 1),
            ("PageDown", 11),
            ("j", 12),
        ):
            press(key)
            until(page, f"document.getElementById('row')?.dataset.row === '{row}'")
        # The list of classes narrows while one types; Escape decides nothing.
        press("o")
        assert page.locator("#chooser li").count() == 3  # not the given label
        press("Enter")  # nothing is chosen yet
        assert page.locator("#chooser").is_visible()
        page.keyboard.type("o")
        # before those that contain it
        assert page.locator("#chooser li").all_inner_texts()[0].startswith("owl")
        assert page.locator("#chooser li").all_inner_texts()[-1] == "New class “o”"
        press("Escape")
        assert decided(page, 1)
        # One pair of classes.
        press("f")
        page.keyboard.type("fox → owl")
        assert page.locator("#chooser li").count() == 1
        press("Enter")
        names = (
            "[...document.querySelectorAll('.item .words > :first-child')].map((name) =>"
            " name.textContent)"
        )
        until(page, f"{names}.length > 3 && {names}.every((name) => name === 'fox → owl')")
        assert page.inner_text("#filtered") == "only fox → owl"
        until(page, "document.getElementById('row') !== null")
        first = row_shown(page)
        assert frame_pair(folder, first) == ("fox", "owl")
        press("s")
        assert frame_pair(folder, row_shown(page)) == ("fox", "owl") and row_shown(page) > first
        press("f")
        press("Enter")  # all pairs are on top
        until(page, "document.getElementById('filtered').textContent === ''")
        # Undo finds the issue in the list it was decided in.
        press("u")
        until(page, f"document.getElementById('row')?.dataset.row === '{first}'")
        assert decided(page, 1) and page.inner_text("#filtered") == "only fox → owl"
        # Help, and what is typed there decides nothing.
        press("?")
        assert page.locator("#keys").is_visible()
        press("a")
        press("Escape")
        assert not page.locator("#keys").is_visible() and decided(page, 1)
        # A name full of markup is only a name.
        until(page, "document.getElementById('card').textContent.includes('<b>bold</b>')")
        assert page.locator("#card b").count() == 0


def frame_pair(folder: Path, row: int) -> tuple[str, str]:
    frame = read_audit(folder).issues.set_index("row")
    return frame.loc[row, "given_label"], frame.loc[row, "suggested_label"]


def write_large_audit(root: Path, issues: int) -> Path:
    given = [ANIMALS[i % 4] for i in range(issues)]
    suggested = [ANIMALS[(i + 1) % 4] for i in range(issues)]
    return write_audit(
        root / "audit", given, suggested, issues=issues, kind="predictions", data=None
    )


@pytest.mark.parametrize("mode", ["served", pytest.param("file", marks=pytest.mark.slow)])
def test_many_issues_scroll_with_a_few_nodes(chromium: Any, tmp_path: Path, mode: str) -> None:
    issues, most = 20_000, 0
    folder = write_large_audit(tmp_path, issues)
    with browsing(chromium, tmp_path / "profile") as page:
        if mode == "served":
            server = Server(folder)
            address = server.link
        else:
            audit = read_audit(folder)
            (tmp_path / "review.html").write_text(file_page(audit), "utf-8")
            address = (tmp_path / "review.html").as_uri()
        try:
            open_page(page, address)
            for share in (0.1, 0.25, 0.5, 0.75, 0.9, 1):
                page.evaluate(f"byId('list').scrollTop = {share} * byId('list').scrollHeight")
                expected = round(share * issues)
                until(
                    page,
                    "at => [...document.querySelectorAll('.item')].some((i) =>"
                    " Math.abs(i.dataset.at - at) < 30 && i.textContent.includes('→'))",
                    arg=min(expected, issues - 1),
                )
                # The overview, hidden, has a few nodes for each class, whatever the number of
                # issues.
                most = max(
                    most, page.evaluate("document.querySelectorAll(':not(#overview *)').length")
                )
            page.keyboard.press("End")
            until(page, f"document.getElementById('row')?.dataset.row === '{issues - 1}'")
            assert page.locator(f"#item-{issues - 1}").is_visible()
            page.keyboard.press("a")  # behind the last, the first is open
            until(page, "document.getElementById('row')?.dataset.row === '0'")
            decided(page, 1)
            assert page.evaluate("view.pages.size") <= 41
        finally:
            if mode == "served":
                server.stop()
    assert most < 400


def test_a_page_opened_as_a_file_remembers_and_exports(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    audit = read_audit(folder)
    page_text = file_page(audit)
    assert file_page(audit) == page_text  # the same bytes, every time
    (tmp_path / "review.html").write_text(page_text, "utf-8")
    address = (tmp_path / "review.html").as_uri()
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, address)
        for key in "akskau":
            page.keyboard.press(key)
        page.keyboard.press("o")
        page.keyboard.type("owl")
        page.keyboard.press("Enter")
        assert decided(page, 5) == "5 of 200 decided · accept 1 · keep 2 · other 1 · skip 1"
    with browsing(chromium, tmp_path / "profile") as page:  # the browser was closed meanwhile
        open_page(page, address)
        assert decided(page, 5) and row_shown(page) == 5
        with page.expect_download() as download:
            page.keyboard.press("e")
        assert download.value.suggested_filename == "decisions.csv"
        download.value.save_as(tmp_path / "decisions.csv")
    found = list(
        csv.reader(io.StringIO((tmp_path / "decisions.csv").read_text("utf-8"), newline=""))
    )
    assert found == [
        list(COLUMNS),
        *(
            [*cells, "", "", "", "", ""]
            for cells in (
                ["0", "0", "cat", "accept", "dog"],
                ["1", "1", "dog", "keep", "dog"],
                ["2", "2", "fox", "skip", ""],
                ["3", "3", "owl", "keep", "owl"],
                ["4", "4", "cat", "other", "owl"],
            )
        ),
    ]
    assert len(read_decisions(find_decisions(tmp_path))) == 5
    # Another audit in the same browser knows nothing of it.
    (tmp_path / "more").mkdir()
    other = read_audit(write_table_audit(tmp_path / "more", rows=221))
    (tmp_path / "other.html").write_text(file_page(other), "utf-8")
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "other.html").as_uri())
        assert decided(page, 0)


def test_names_that_look_like_markup_or_csv_stay_names(chromium: Any, tmp_path: Path) -> None:
    evil = [
        '</script><script>document.title="taken"</script>',
        'a,"b"',
        "<img src=x onerror=alert(1)>",
        "tab\there",
    ]
    given, suggested = evil * 2, [evil[(i + 1) % 4] for i in range(8)]
    folder = write_audit(
        tmp_path / "audit",
        given,
        suggested,
        issues=8,
        kind="predictions",
        data=None,
        ids=[f"<b>{i}</b>," for i in range(8)],
    )
    audit = read_audit(folder)
    (tmp_path / "review.html").write_text(file_page(audit), "utf-8")
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "review.html").as_uri())
        assert page.title() == "Review" and page.locator("img").count() == 0
        for key in "aao":
            page.keyboard.press(key)
        page.keyboard.type("tab")
        page.keyboard.press("Enter")
        page.keyboard.press("k")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        decided(page, 4)
        with page.expect_download() as download:
            page.keyboard.press("e")
        download.value.save_as(tmp_path / "decisions.csv")
    words = read_decisions(find_decisions(tmp_path))
    assert [word.label for word in words.values()] == [evil[1], evil[2], evil[3], "tab\there"]
    assert [word.given_label for word in words.values()] == evil and words[2].id == "<b>2</b>,"
