"""Rows and what they are compared with, in a real browser: a table, texts, digits in columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server
from test_context import write_flowers

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

COMPARED = "document.querySelectorAll('#context .group').length === 5"


def test_a_table_begins_with_the_columns_that_matter_and_names_rows_to_compare_with(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_flowers(tmp_path)
    petal = pd.read_csv(tmp_path / "flowers.csv")["petal"][0]
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        until(page, COMPARED)
        first = page.locator(".strips tbody tr")
        assert first.count() == 1 and first.inner_text().split() == ["petal", f"{petal:g}"]
        text = page.locator(".strip").get_attribute("aria-label")
        assert (
            text.startswith("petal: above ")
            and " % of rose, above " in text
            and text.endswith(" % of iris")
        )
        assert page.locator(".fields summary").inner_text() == "13 more columns, 1 zero or empty"
        assert not page.get_by_text("noise0", exact=True).is_visible()
        page.locator(".fields summary").click()
        assert page.get_by_text("noise0", exact=True).is_visible()
        assert page.locator("details tr").last.inner_text().split() == ["empty", "0"]  # at the end
        assert page.locator(".votes li").all_inner_texts() == ["iris 1: ann", "rose 1: bob"]
        assert page.locator(".fields").first.get_by_text("ann", exact=True).count() == 0
        titles = [
            "Near-duplicates",
            "Nearest of rose",
            "Nearest of iris",
            "Typical of rose",
            "Typical of iris",
        ]
        assert page.locator("#context .group h3").all_inner_texts() == titles
        # Another row is opened, and keys decide nothing meanwhile.
        page.locator(".other-row").nth(12).click()
        page.locator("#other-row .strips").wait_for()
        assert page.locator("#other-title").inner_text().startswith("rose: row ")
        page.keyboard.press("a")
        page.keyboard.press("Escape")
        assert not page.locator("#other").is_visible() and page.inner_text("#counts").startswith(
            "0 of 3"
        )
        # The next row of the pair has its columns in order at once; leafing on quickly leaves one
        # context.
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert row_shown(page) == 2
        # it has no near-duplicate
        until(page, "document.querySelectorAll('#context .group').length === 4")
        assert page.locator("#context").count() == 1
