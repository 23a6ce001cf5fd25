"""The grid of the review page: many rows selected and decided at once, by keyboard and mouse,
undone as one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_browser import CHROMIUM, browsing, open_page, until
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_decisions
from noiseproof.audit.files import read_audit

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def says(page: Any, text: str) -> None:
    """Wait until the message of the page begins so."""
    until(
        page, "(text) => document.getElementById('message').textContent.startsWith(text)", arg=text
    )


def choices(folder: Path) -> Counter[str]:
    return Counter(one.decision for one in read_decisions(find_decisions(folder)).values())


def test_a_batch_is_saved_and_undone_as_one(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    frame = read_audit(folder).issues.set_index("row")
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "grid")
        page.wait_for_selector("#cell-0")
        press = page.keyboard.press
        press("Space")
        press("Shift+ArrowRight")
        press("a")
        says(page, "2 decisions saved. Press u to take all of them back.")
        assert choices(folder) == {"accept": 2}
        page.wait_for_selector("#cell-1 .accept")  # drawn when the decisions were loaded again
        press("x")  # nothing is selected: the one in focus
        says(page, "1 decision saved.")
        assert read_decisions(find_decisions(folder))[1].decision == "exclude"
        # A pair: all of it, also what is not loaded; what is decided stays.
        press("f")
        page.keyboard.type("cat → dog")
        press("Enter")
        pair = [
            row
            for row in range(200)
            if tuple(frame.loc[row, ["given_label", "suggested_label"]]) == ("cat", "dog")
        ]
        until(page, f"view.total === {len(pair)} && issueAt(0) !== undefined")
        press("Control+a")
        assert page.inner_text("#selected") == f"{len(pair)} of {len(pair)} selected"
        press("c")
        page.wait_for_selector("#confirm[open]")
        assert page.inner_text("#confirm-question") == f"Mark {len(pair)} rows as unclear?"
        assert page.inner_text("#confirm-decided").strip() == "also 1 row with a decision"
        press("Enter")
        says(
            page, f"{len(pair) - 1} decisions saved. Press u to take all of them back. 1 row stayed"
        )
        assert choices(folder) == {"accept": 1, "exclude": 1, "unclear": len(pair) - 1}
        press("u")
        says(page, f"Undone: {len(pair) - 1} decisions.")
        assert choices(folder) == {"accept": 1, "exclude": 1}
        until(page, "document.querySelectorAll('.cell .done').length === 1")
        # Another label, and No to the question.
        press("Escape")
        until(page, "view.total === 200 && issueAt(0) !== undefined")
        press("Control+a")
        press("o")
        page.keyboard.type("owl")
        press("Enter")
        page.wait_for_selector("#confirm[open]")
        assert page.inner_text("#confirm-question") == "Label 200 rows as owl?"
        press("Escape")
        assert choices(folder) == {"accept": 1, "exclude": 1} and page.inner_text(
            "#selected"
        ).startswith("200")
        press("o")
        page.keyboard.type("owl")
        press("Enter")
        page.wait_for_selector("#confirm[open]")
        page.check("#confirm-also")
        # that of No, late
        page.evaluate("document.getElementById('confirm').dispatchEvent(new Event('close'))")
        page.click("#confirm button[value=yes]")
        says(page, "200 decisions saved.")
        assert choices(folder) == {"other": 200}
        assert page.inner_text("#counts") == "200 of 200 decided · other 200"
        page.click("[data-many=undo]")
        says(page, "Undone: 200 decisions.")
        assert choices(folder) == {"accept": 1, "exclude": 1}
