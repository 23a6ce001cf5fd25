"""Searching, filtering and sorting on the review page, served and opened as a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_audit import write_audit, write_film_audit, write_table_audit
from PIL import Image
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


@pytest.mark.parametrize("mode", ["served", "file"])
def test_list_lines_begin_with_the_row(chromium: Any, tmp_path: Path, mode: str) -> None:
    texts = [
        f"A  film\nabout {word}. {'It goes on. ' * 40}" for word in ("love", "war", "bees", "rain")
    ]
    folder = write_film_audit(tmp_path, texts, ["good", "bad", "good", "bad"], issues=4)
    with opened(chromium, folder, mode) as page:
        line = page.locator("#item-2 .words > :last-child").inner_text()
        assert line.startswith("A film about bees. It goes on.") and len(line) <= 200
        assert page.locator("#item-2 .quality").inner_text() == "60 %"  # label_quality is 3 / 5
        labels = page.locator("#card .label").all_inner_texts()
        assert [label.split("\n") for label in labels] == [
            ["given", "good", "right: 20 %"],
            ["suggested", "bad", "right: 60 %"],
        ]


def test_what_is_searched_is_named(chromium: Any, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((20, 20, 3), 40 * i, np.uint8)).save(
                tmp_path / "photos" / name / f"{i}.png"
            )
    names = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]
    folder = write_audit(
        tmp_path / "audit",
        ["cat"] * 3 + ["dog"] * 3,
        ["dog"] * 3 + ["cat"] * 3,
        issues=6,
        kind="folder",
        data=tmp_path / "photos",
        ids=names,
    )
    with opened(chromium, folder, "served") as page:
        assert page.get_attribute("#search", "placeholder") == "Search ids only ( / )"
        page.fill("#search", "dog/")
        assert listed(page, 3) == names[3:]
        assert page.inner_text("#filtered") == "“dog/” in ids only"
    # A page that has not all rows.
    (tmp_path / "more").mkdir()
    audit = read_audit(write_table_audit(tmp_path / "more"))
    (tmp_path / "small.html").write_text(file_page(audit, max_bytes=26_000), "utf-8")
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "small.html").as_uri())
        rows = page.evaluate("Object.keys(store.data.rows).length")
        assert 0 < rows < 200
        assert page.evaluate("store.searched") == f"ids, and cells of all but {200 - rows} rows"


def test_the_bar_fits_a_phone(chromium: Any, tmp_path: Path) -> None:
    with opened(
        chromium, write_table_audit(tmp_path), "file", viewport={"width": 390, "height": 760}
    ) as page:
        assert not page.locator("#only-state").is_visible()
        page.click("#more")
        for part in ("#filter", "#only-state", "#low", "#high", "#sort", "#descending"):
            box = page.locator(part).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 390, part
        page.select_option("#sort", "row")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.click("#more")
        assert page.locator("#card").bounding_box()["height"] > 200


def test_help_lists_the_keys_that_act(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    keys = "[...document.querySelectorAll('#key-groups dt')].map((key) => key.textContent.trim())"
    with opened(chromium, folder, "served", color_scheme="dark") as page:
        assert page.inner_text("[data-theme-switch]").split() == ["Light", "d"]
        page.keyboard.press("d")
        assert page.inner_text("[data-theme-switch]").split() == ["Dark", "d"]
        page.keyboard.press("?")
        assert {"a", "k", "u Ctrl+z", "Ctrl+a", "/"} <= {*page.evaluate(keys)}
        assert "e" not in page.evaluate(keys)  # a served page has nothing to export
    with (
        Server(folder, "--measure", "10", "--blind") as server,
        browsing(chromium, tmp_path / "blind") as page,
    ):
        open_page(page, server.link)
        page.keyboard.press("?")
        blind = {*page.evaluate(keys)}
        assert {"1 … 9", "o", "s"} <= blind and not {"a", "k", "f", "Ctrl+a"} & blind
        assert not page.locator("#filters").is_visible() and not page.locator("#views").is_visible()
