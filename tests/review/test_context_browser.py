"""Rows and what they are compared with, in a real browser: a table, texts, digits in columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_film_audit, write_table_audit
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server
from sklearn.datasets import load_digits
from test_context import write_flowers

from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

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
        assert page.locator(".votes li").all_inner_texts() == ["iris 1: ann"]
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


def test_a_page_opened_as_a_file_has_the_strips_and_asks_nothing(
    chromium: Any, tmp_path: Path
) -> None:
    audit = read_audit(write_flowers(tmp_path))
    (tmp_path / "review.html").write_text(file_page(audit), "utf-8")
    with browsing(chromium, tmp_path / "profile", viewport={"width": 360, "height": 640}) as page:
        open_page(page, (tmp_path / "review.html").as_uri())
        assert page.locator(".strips tbody th").all_inner_texts() == ["petal"]
        assert page.locator(".strip .value").count() == 1 and page.locator("#context").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.locator(".fields summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_value_lies_where_the_percentiles_put_it(chromium: Any, tmp_path: Path) -> None:
    audit = read_audit(write_table_audit(tmp_path))
    (tmp_path / "review.html").write_text(file_page(audit), "utf-8")
    values = np.random.default_rng(0).gamma(2, size=2000)
    percentiles = np.percentile(values, [0, 5, 10, 25, 50, 75, 90, 95, 100]).tolist()
    with browsing(chromium, tmp_path / "profile") as page:
        open_page(page, (tmp_path / "review.html").as_uri())
        for value in (-1.0, *np.percentile(values, [3, 20, 50, 66, 93]).tolist(), 99.0):
            share = page.evaluate(
                "([value, percentiles]) => below(value, percentiles)", [value, percentiles]
            )
            assert share == pytest.approx(100 * (values < value).mean(), abs=3)
        assert page.evaluate("below(3, [0, 0, 0, 0, 3, 3, 3, 3, 3])") == 100
        assert page.evaluate("['1,5', '', '1e3', 'x'].map(numberOf)") == pytest.approx(
            [1.5, np.nan, 1000, np.nan], nan_ok=True
        )
        column = {
            "name": "c",
            "given": [0, 0, 0, 1, 2, 3, 4, 4, 9],
            "suggested": [5, 6, 6, 7, 8, 9, 9, 10, 11],
        }
        draw = "drawStrip({ given: 'a', suggested: 'b' }, column, cell).querySelector('.value')"
        place = f"([column, cell]) => parseFloat({draw}?.style.left)"
        assert (
            page.evaluate(place, [column, "5"]) == pytest.approx(50)
            and page.evaluate(place, [column, "0"]) == 0
        )
        assert page.evaluate(place, [column, "1e9"]) == pytest.approx(100)
        assert np.isnan(page.evaluate(place, [column, ""]))


def test_words_are_marked_and_markup_in_a_text_stays_text(chromium: Any, tmp_path: Path) -> None:
    truth = ["good", "bad"] * 40
    texts = [
        f"<b>{'Lovely' if label == 'good' else 'dull'}</b> film {i}"
        for i, label in enumerate(truth)
    ]
    texts[0] = "LOVELY, lovely & <b>dull</b>\nfilm unlovely"
    given = ["bad", *truth[1:]]
    folder = write_film_audit(tmp_path, texts, given, issues=2)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        until(page, "document.querySelectorAll('.text p mark').length === 3")
        marks = [
            (mark.inner_text(), mark.get_attribute("class"))
            for mark in page.locator(".text p mark").all()
        ]
        assert marks == [("LOVELY", "suggested"), ("lovely", "suggested"), ("dull", "given")]
        assert (
            page.locator(".text p").inner_text() == texts[0]
            and page.locator("#card b").count() == 0
        )
        assert "times as frequent in other texts of good" in page.locator(
            "mark.suggested"
        ).first.get_attribute("title")
        until(page, COMPARED)
        assert "film" in page.locator(".other-row .snippet").first.inner_text()


def test_digits_in_columns_are_pictures_that_zoom(chromium: Any, tmp_path: Path) -> None:
    digits = load_digits()
    given = digits.target[:300].astype(str).tolist()
    pd.DataFrame(digits.data[:300]).add_prefix("pixel").assign(digit=given).to_csv(
        tmp_path / "d.csv", index=False
    )
    folder = write_audit(
        tmp_path / "audit",
        given,
        [str((int(name) + 1) % 10) for name in given],
        issues=20,
        kind="table",
        data=tmp_path / "d.csv",
        label="digit",
        classes=[str(k) for k in range(10)],
        header=True,
    )
    (tmp_path / "review.html").write_text(file_page(read_audit(folder)), "utf-8")
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        for address in (server.link, (tmp_path / "review.html").as_uri()):
            open_page(page, address)
            until(page, "document.querySelector('#row img.tiny')?.naturalWidth === 8")
            assert page.locator("#row .fields").count() == 0  # no lines pixel0 … pixel63
            page.keyboard.press("z")
            until(page, "document.querySelector('#zoom img')?.naturalWidth === 8")
            assert page.locator("#zoom img").bounding_box()["width"] > 500
            page.keyboard.press("a")  # decides nothing while the picture is large
            page.keyboard.press("z")
            assert not page.locator("#zoom").is_visible() and page.inner_text("#counts").startswith(
                "0 of 20"
            )
            page.locator("#row .zoomable").click()
            page.locator("#zoom").click()
            assert not page.locator("#zoom").is_visible()
            if address == server.link:
                until(page, COMPARED)
                until(page, "document.querySelector('.other-row img').naturalWidth === 8")
                until(
                    page,
                    "[...document.querySelectorAll('.item img')].every((i) => i.naturalWidth"
                    " === 8)",
                )


def test_a_blind_page_asks_for_no_context(chromium: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    with (
        Server(write_flowers(tmp_path), "--measure", "20", "--blind") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        page.on("request", lambda request: asked.append(request.url))
        open_page(page, server.link)
        page.locator(".fields table").first.wait_for()
        page.wait_for_timeout(300)
        assert page.locator("#context, .strip, mark").count() == 0
        assert page.get_by_text("ann", exact=True).count() == 0
    assert asked and not any("context" in url for url in asked)
