"""The overview in a real browser: its numbers lead to exactly the rows behind them, by pointer and
by keyboard.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit
from matplotlib.path import Path as Polygon
from numpy.typing import NDArray
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server
from sklearn.datasets import load_digits
from test_overview import read_map

from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

NAMES = ("ash", "birch", "cedar")
HAS_MAP = "map.points !== null && map.layout.width > 0"


def write_trees(root: Path, rows: int = 400, issues: int = 120) -> Path:
    """An audit of trees by two measures; cuts differ by class."""
    random = np.random.default_rng(0)
    given = random.integers(0, 3, rows)
    suggested = (given + 1 + (random.random(rows) < 0.3)) % 3
    measures = random.normal(size=(rows, 2)) + 2 * np.eye(3, 2)[given]
    frame = pd.DataFrame(
        {"height": measures[:, 0], "girth": measures[:, 1], "tree": np.array(NAMES)[given]}
    )
    frame.to_csv(root / "trees.csv", index=False)
    folder = write_audit(
        root / "audit",
        frame["tree"].tolist(),
        [NAMES[k] for k in suggested],
        issues=issues,
        kind="table",
        data=root / "trees.csv",
        label="tree",
        header=True,
    )
    summary = json.loads((folder / "summary.json").read_text())
    summary["classes"] = [{"name": name, "cut": 0.3 - 0.05 * k} for k, name in enumerate(NAMES)]
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def see_overview(page: Any) -> None:
    """Go to the overview, and wait until its numbers are drawn."""
    page.keyboard.press("v")
    until(
        page,
        "document.body.dataset.view === 'overview' && !byId('overview').hasAttribute('aria-busy')",
    )


def listed(page: Any) -> list[int]:
    """The rows of the list, or of the grid, in its order, once it is shown."""
    until(page, "document.body.dataset.view !== 'overview' && view.current >= 0")
    return [
        int(row)
        for row in page.evaluate(
            "(async () => { const rows = []; for (let i = 0; i < view.total; i++) "
            "{ await load(Math.floor(i / PAGE)); rows.push(issueAt(i).row); } return rows; })()"
        )
    ]


def places(page: Any) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """The map, and where the page draws its rows: pixels from the corner of the canvas."""
    found = read_map(page.evaluate("store.map()"))
    layout = page.evaluate("map.layout")
    x = layout["left"] + layout["scale"] * found["x"]
    return found, np.stack([x, layout["bottom"] - layout["scale"] * found["y"].astype(float)], 1)


def drag(page: Any, path: Any, target: str) -> None:
    page.locator(target).scroll_into_view_if_needed()
    box = page.locator(target).bounding_box()
    corners = [(box["x"] + x, box["y"] + y) for x, y in path]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in corners[1:]:
        page.mouse.move(*corner)
    page.mouse.up()


def test_a_review_begins_with_the_overview_and_a_cell_lists_its_pair(
    chromium: Any, tmp_path: Path
) -> None:
    folder = write_trees(tmp_path)
    issues = read_audit(folder).issues.query("is_label_issue")
    pair = issues.query("given_label == 'birch' and suggested_label == 'ash'")["row"].tolist()
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        page.goto(server.link)
        page.wait_for_selector("body[data-ready]")
        assert (
            page.evaluate("document.body.dataset.view") == "overview"
            and page.locator("#overview").is_visible()
        )
        counts = issues.groupby(["given_label", "suggested_label"]).size()
        cells = {
            cell.get_attribute("data-cell"): cell.inner_text()
            for cell in page.locator("[data-cell]").all()
        }
        assert cells == {
            f"{NAMES.index(g)},{NAMES.index(s)}": str(n) for (g, s), n in counts.items()
        }
        cell = page.get_by_role(
            "button", name=f"{len(pair)} open: birch, suggested ash", exact=True
        )
        cell.click()
        assert listed(page) == pair and page.evaluate("document.body.dataset.view") == "list"
        assert page.inner_text("#filtered") == "only birch → ash" and row_shown(page) == pair[0]
        page.keyboard.press("k")
        until(page, "store.progress.decided === 1 && store.unsaved === 0")
        see_overview(page)
        until(
            page,
            "document.querySelector('[data-cell=\"1,0\"]').textContent ==="
            f" '{len(pair) - 1}/{len(pair)}'",
        )
        assert (
            page.locator("#rates tbody tr")
            .filter(has_text="birch")
            .locator("td")
            .nth(2)
            .inner_text()
            == "1"
        )
        page.keyboard.press("u")
        until(page, f"document.querySelector('[data-cell=\"1,0\"]').textContent === '{len(pair)}'")
        assert page.evaluate("document.body.dataset.view") == "overview"
        page.keyboard.press("l")
        page.keyboard.press("k")
        until(page, "store.progress.decided === 1 && store.unsaved === 0")
        see_overview(page)
        # A line and a column of the matrix, a line of the table.
        page.get_by_role("button", name="All suggested cedar", exact=True).click()
        assert listed(page) == issues.query("suggested_label == 'cedar'")["row"].tolist()
        see_overview(page)
        page.get_by_role("button", name="Labels called wrong: cedar", exact=True).click()
        assert listed(page) == issues.query("given_label == 'cedar'")["row"].tolist()
        # Once something is decided, the list comes first.
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.body.dataset.view") == "list"


def test_a_lasso_takes_exactly_the_rows_inside(chromium: Any, tmp_path: Path) -> None:
    shape = [(0.2, 0.1), (0.8, 0.1), (0.8, 0.9), (0.5, 0.3), (0.2, 0.9)]
    folder = write_trees(tmp_path)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        found, points = places(page)
        low, high = points.min(0), points.max(0)
        polygon = low + (high - low) * np.array(shape)
        drag(page, polygon.tolist(), "#map-top")
        until(page, "view.filter.rows !== null && document.body.dataset.view !== 'overview'")
        inside = Polygon(polygon).contains_points(points)
        called = np.arange(len(points)) < 120
        assert 10 < inside[called].sum() < 110
        assert sorted(listed(page)) == sorted(found["row"][inside & called].tolist())
        see_overview(page)
        page.locator("#map-top").scroll_into_view_if_needed()
        empty = np.array([[2, 2], [12, 2], [12, 12]])  # a corner without rows
        drag(page, empty.tolist(), "#map-top")
        assert page.inner_text("#message") == "There is no label called wrong among 0 rows."
        assert page.evaluate("document.body.dataset.view") == "overview"


def test_a_page_opened_as_a_file_has_the_overview(chromium: Any, tmp_path: Path) -> None:
    digits = load_digits()
    given = digits.target[:300].astype(str).tolist()
    pd.DataFrame(digits.data[:300]).add_prefix("pixel").assign(digit=given).to_csv(
        tmp_path / "d.csv", index=False
    )
    folder = write_audit(
        tmp_path / "audit",
        given,
        [str((int(name) + 1) % 10) for name in given],
        issues=40,
        kind="table",
        data=tmp_path / "d.csv",
        label="digit",
        classes=[str(k) for k in range(10)],
        header=True,
    )
    (tmp_path / "review.html").write_text(file_page(read_audit(folder)), "utf-8")
    pair = [row for row in range(40) if given[row] == "3"]
    with browsing(chromium, tmp_path / "profile") as page:
        page.goto((tmp_path / "review.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        until(page, HAS_MAP)
        assert page.evaluate("document.body.dataset.view") == "overview"
        found, points = places(page)
        assert sorted(found["row"].tolist()) == [*range(300)]
        page.locator('[data-cell="3,4"]').click()
        assert listed(page) == pair
        page.keyboard.press("a")
        see_overview(page)
        until(
            page,
            "document.querySelector('[data-cell=\"3,4\"]').textContent ==="
            f" '{len(pair) - 1}/{len(pair)}'",
        )
        page.locator("#map-top").scroll_into_view_if_needed()
        box, (x, y) = page.locator("#map-top").bounding_box(), points[0].tolist()
        page.mouse.move(box["x"] + x, box["y"] + y)
        until(page, "document.querySelector('#map-hint img')?.naturalWidth === 8")
        everything = (points.min(0) - 3, points.max(0) + 3)
        (left, top), (right, bottom) = (corner.tolist() for corner in everything)
        drag(page, [(left, top), (right, top), (right, bottom), (left, bottom)], "#map-top")
        until(page, "view.filter.rows !== null")
        assert listed(page) == [*range(40)]
