"""Searching, filtering and sorting on the review page, served and opened as a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server

from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# names of the listed rows
SHOWN = "[...document.querySelectorAll('.item')].map((item) => item.title)"


@contextmanager
def opened(chromium: Any, folder: Path, mode: str, **options: Any) -> Iterator[Any]:
    """The page of an audit, served or as a file."""
    with browsing(chromium, folder.parent / "profile", **options) as page:
        if mode == "file":
            (folder.parent / "review.html").write_text(file_page(read_audit(folder)), "utf-8")
            open_page(page, (folder.parent / "review.html").as_uri())
            yield page
        else:
            with Server(folder) as server:
                open_page(page, server.link)
                yield page


def listed(page: Any, total: int) -> list[str]:
    """Wait until the list has so many issues; the names of the first ones."""
    until(page, f"view.total === {total} && (Boolean(issueAt(0)) || {total} === 0)")
    page.wait_for_timeout(100)
    return list(page.evaluate(SHOWN))


@pytest.mark.parametrize("mode", ["served", "file"])
def test_search_state_quality_and_order(chromium: Any, tmp_path: Path, mode: str) -> None:
    with opened(chromium, write_table_audit(tmp_path), mode) as page:
        press = page.keyboard.press
        # Words of cells, in large or small letters; what is typed in the field decides nothing.
        press("/")
        page.keyboard.type("BOLD 17")
        holding_17 = [row for row in range(200) if "17" in f"{row / 8:.3f} {row}"]
        assert listed(page, len(holding_17))[:3] == [f"row {row}" for row in holding_17[:3]]
        assert page.inner_text("#filtered") == "“BOLD 17” in ids and cells"
        assert page.inner_text("#counts") == "0 of 200 decided"
        press("Enter")  # back to the keys of the list
        press("k")
        until(page, "document.getElementById('counts').textContent.startsWith('1 of 200')")
        press("Escape")
        assert listed(page, 200)[0] == "row 0" and page.input_value("#search") == ""
        # What is decided in a list of open issues stays in it.
        page.select_option("#only-state", "open")
        listed(page, 199)
        press("Home")
        first = row_shown(page)
        press("s")
        until(page, f"document.getElementById('row')?.dataset.row !== '{first}'")
        assert (
            page.evaluate("view.total") == 199 and page.locator("#item-0 .skip-word").is_visible()
        )
        page.select_option("#only-state", "keep")
        assert listed(page, 1) == [f"row {holding_17[0]}"]
        page.select_option("#only-state", "")
        # A range of quality, in percent: that of row r is (r + 1) / 221.
        page.fill("#low", "10")
        page.fill("#high", "12")
        press("Tab")
        expected = [row for row in range(200) if 0.10 <= round((row + 1) / 221, 6) <= 0.12]
        assert listed(page, len(expected)) == [f"row {row}" for row in expected]
        assert page.inner_text("#filtered") == "right with 10 % to 12 %"
        page.click("#descending")
        assert listed(page, len(expected)) == [f"row {row}" for row in expected[::-1]]
        page.click("#clear")  # with the order
        assert listed(page, 200)[:2] == ["row 0", "row 1"]
        page.select_option("#sort", "suggested")
        page.click("#descending")
        until(
            page,
            "issueAt(0)?.suggested === 'owl' && issueAt(0)?.given === 'cat' && issueAt(0)?.row"
            " === 8",
        )
        page.fill("#search", "nothing has this")
        listed(page, 0)
        assert page.inner_text("#card") == "No issue meets this filter."
        press("Escape")
        press("Escape")
        listed(page, 200)
        # Chosen rows, as the overview sends them.
        page.evaluate("setFilter({ rows: [7, 3, 150, 219] })")
        assert listed(page, 3) == ["row 3", "row 7", "row 150"]
