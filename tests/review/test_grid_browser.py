"""The grid of the review page: many rows selected and decided at once, by keyboard and mouse,
undone as one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_audit import ANIMALS, write_audit, write_film_audit, write_table_audit
from PIL import Image
from review_browser import CHROMIUM, browsing, open_page, until
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

SELECTED = "[...grid.selected].sort((i, j) => i - j)"


def says(page: Any, text: str) -> None:
    """Wait until the message of the page begins so."""
    until(
        page, "(text) => document.getElementById('message').textContent.startsWith(text)", arg=text
    )


def choices(folder: Path) -> Counter[str]:
    return Counter(one.decision for one in read_decisions(find_decisions(folder)).values())


def test_cells_are_selected_by_keyboard_and_mouse(chromium: Any, tmp_path: Path) -> None:
    with (
        Server(write_table_audit(tmp_path)) as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        open_page(page, server.link, "grid")
        page.wait_for_selector("#cell-0")
        press = page.keyboard.press
        columns = page.evaluate("grid.geometry.columns")
        assert columns == 4 and page.evaluate("document.activeElement.id") == "cells"
        assert page.get_attribute("#cells", "aria-multiselectable") == "true"
        press("Space")
        press("ArrowRight")
        press("Shift+ArrowDown")
        assert page.evaluate(SELECTED) == [0, 1, 2, 3, 4, 5]
        press("Shift+ArrowUp")  # a range shrinks, too
        assert page.evaluate(SELECTED) == [0, 1]
        press("End")
        press("Space")
        until(page, "document.getElementById('cell-199')?.getAttribute('aria-selected') === 'true'")
        assert page.get_attribute("#cells", "aria-activedescendant") == "cell-199"
        press("Shift+Home")
        assert page.inner_text("#selected") == "200 of 200 selected"
        press("Escape")
        assert page.evaluate(SELECTED) == []
        page.click("#cell-2")
        page.click("#cell-5", modifiers=["Shift"])
        page.click("#cell-3")  # off again
        assert page.evaluate(SELECTED) == [2, 4, 5]
        assert page.get_attribute("#cell-4", "aria-selected") == "true"
        assert page.get_attribute("#cell-3", "aria-selected") == "false"
        outline = "getComputedStyle(document.querySelector('#cell-3 .cell-box')).outlineStyle"
        assert page.evaluate(outline) == "solid"  # the focus is visible
        press("Enter")
        until(
            page,
            "document.body.dataset.view === 'list' && document.getElementById('row')?.dataset.row"
            " === '3'",
        )
        press("g")
        assert page.evaluate("grid.focus") == 3 and page.evaluate(SELECTED) == [2, 4, 5]


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
        assert choices(folder) == {"accept": 2} and page.locator("#cell-1 .accept").is_visible()
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


def test_what_the_server_refuses_is_shown_again(chromium: Any, tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "grid")
        page.wait_for_selector("#cell-0")
        page.route(
            "**/api/decisions/many",
            lambda route: route.fulfill(status=507, json={"detail": "The disk is full."}),
        )
        page.keyboard.press("Space")
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("k")
        says(page, "Not saved: The disk is full.")
        page.wait_for_selector("#cell-1:not(:has(.done))")
        page.unroute("**/api/decisions/many")
        page.keyboard.press("k")  # the one in focus
        says(page, "1 decision saved.")
        assert choices(folder) == {"keep": 1}


def test_a_file_decides_many_keeps_and_undoes_them(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "review.html").write_text(
        file_page(read_audit(write_table_audit(tmp_path))), "utf-8"
    )
    address = (tmp_path / "review.html").as_uri()
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, address, "grid")
        page.keyboard.press("Space")
        page.keyboard.press("k")
        says(page, "1 decision saved.")
        page.keyboard.press("Control+a")
        page.keyboard.press("a")
        page.wait_for_selector("#confirm[open]")
        assert page.inner_text("#confirm-question") == "Accept 200 suggestions?"
        page.keyboard.press("Enter")
        says(page, "199 decisions saved.")
        assert page.inner_text("#counts") == "200 of 200 decided · accept 199 · keep 1"
        page.keyboard.press("u")
        says(page, "Undone: 199 decisions.")
        assert page.inner_text("#counts") == "1 of 200 decided · keep 1"
        open_page(page, address)
        assert page.inner_text("#counts") == "1 of 200 decided · keep 1"


@pytest.mark.parametrize("mode", ["served", pytest.param("file", marks=pytest.mark.slow)])
def test_a_hundred_thousand_issues_are_a_few_nodes_and_one_request(
    chromium: Any, tmp_path: Path, mode: str
) -> None:
    issues = 100_000
    given, suggested = ([ANIMALS[(i + k) % 4] for i in range(issues)] for k in (0, 1))
    folder = write_audit(
        tmp_path / "audit", given, suggested, issues=issues, kind="predictions", data=None
    )
    with browsing(chromium, tmp_path / "profile") as page:
        server = Server(folder) if mode == "served" else None
        (tmp_path / "review.html").write_text(
            file_page(read_audit(folder)) if server is None else "", "utf-8"
        )
        try:
            open_page(
                page, (tmp_path / "review.html").as_uri() if server is None else server.link, "grid"
            )
            for share in (0.5, 1):
                page.evaluate(f"byId('cells').scrollTop = {share} * byId('cells').scrollHeight")
                until(
                    page,
                    "at => [...document.querySelectorAll('.cell')].some((cell) =>"
                    " Math.abs(cell.dataset.at - at) < 60 && cell.textContent.includes('→'))",
                    arg=round(share * issues),
                )
                assert page.evaluate("document.querySelectorAll('.cell').length") < 60
            if server is None:
                return
            sent: list[Any] = []
            page.on(
                "request",
                lambda r: sent.append(r.post_data_json) if r.url.endswith("/many") else None,
            )
            page.keyboard.press("Home")
            page.keyboard.press("Control+a")
            page.click("#cell-1")  # all but one
            page.keyboard.press("a")
            page.wait_for_selector("#confirm[open]")
            assert page.inner_text("#confirm-question") == "Accept 99,999 suggestions?"
            page.keyboard.press("Enter")
            says(page, "99,999 decisions saved.")
            (body,) = sent
            assert body["ranges"] == [[0, 1], [2, issues]] and "rows" not in body
            assert choices(folder) == {"accept": issues - 1}
            page.wait_for_selector("#cell-1:not(:has(.done))")
            page.keyboard.press("u")
            says(page, "Undone: 99,999 decisions.")
            assert not choices(folder)
        finally:
            if server is not None:
                server.kill()


def test_pictures_and_texts_fit_a_phone(chromium: Any, tmp_path: Path) -> None:
    labels = ["cat"] * 6 + ["dog"] * 6
    for i, name in enumerate(labels):
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((240, 320, 3), 20 * i, np.uint8)).save(
            tmp_path / "photos" / name / f"{i % 6}.png"
        )
    pictures = write_audit(
        tmp_path / "audit",
        labels,
        labels[::-1],
        issues=12,
        kind="folder",
        data=tmp_path / "photos",
        ids=[f"{name}/{i % 6}.png" for i, name in enumerate(labels)],
    )
    (tmp_path / "films").mkdir()
    texts = write_film_audit(
        tmp_path / "films", [f"film {i} " * 80 for i in range(12)], ["good", "bad"] * 6, issues=12
    )
    for folder in (pictures, texts):
        with (
            Server(folder) as server,
            browsing(
                chromium, tmp_path / "profile", viewport={"width": 390, "height": 760}
            ) as page,
        ):
            open_page(page, server.link, "grid")
            page.wait_for_selector("#cell-0 .cell-labels")
            if folder == pictures:
                until(page, "document.querySelector('#cell-0 img').naturalWidth === 192")
                assert page.evaluate("grid.geometry.columns") == 2
            else:
                assert page.inner_text("#cell-3 .cell-words").startswith("film 3 film 3")
            page.click("#cell-1")
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            for button in page.locator("#bulk button").all():
                box = button.bounding_box()
                assert (
                    box["x"] >= 0
                    and box["x"] + box["width"] <= 390
                    and box["y"] + box["height"] <= 760
                )
            assert page.locator("#cells").bounding_box()["height"] > 300
            # Asked at once: cells are replaced whenever the grid is drawn.
            cell, words = page.evaluate(
                "['.cell-box', '.cell-labels'].map((part) => document.querySelector(`#cell-3"
                " ${part}`).getBoundingClientRect().bottom)"
            )
            assert words <= cell + 1  # clipped, with its labels in view
