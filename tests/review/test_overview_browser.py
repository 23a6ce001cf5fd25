"""The overview in a real browser: its numbers lead to exactly the rows behind them, by pointer and
by keyboard.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_table_audit
from matplotlib.path import Path as Polygon
from numpy.typing import NDArray
from review_browser import CHROMIUM, browsing, open_page, row_shown, until
from review_server import Server
from sklearn.datasets import load_digits
from test_overview import read_map

from noiseproof.analysis.page.marks import COLORS, GREY
from noiseproof.audit.decisions import FILE, read_log
from noiseproof.audit.files import read_audit
from noiseproof.judge.issues.base import Bars, Finding
from noiseproof.review import page as review_page
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


@pytest.mark.parametrize(
    "shape",
    [
        [(0.1, 0.1), (0.9, 0.15), (0.5, 0.9)],
        [(0.2, 0.1), (0.8, 0.1), (0.8, 0.9), (0.5, 0.3), (0.2, 0.9)],
    ],
)
def test_a_lasso_takes_exactly_the_rows_inside(
    chromium: Any, tmp_path: Path, shape: list[tuple[float, float]]
) -> None:
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


def test_a_zoomed_map_selects_what_it_shows(chromium: Any, tmp_path: Path) -> None:
    with Server(write_trees(tmp_path)) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        _, before = places(page)
        middle = np.array(page.evaluate("[map.layout.width / 2, map.layout.height / 2]"))
        page.locator("#map-top").focus()
        for _ in range(3):
            page.keyboard.press("+")
        found, points = places(page)
        np.testing.assert_allclose(points, middle + 1.5**3 * (before - middle), atol=1e-6)
        page.keyboard.down("Shift")
        moved = np.array([30, -20])
        drag(page, [middle.tolist(), (middle + moved).tolist()], "#map-top")
        page.keyboard.up("Shift")
        assert page.evaluate("document.body.dataset.view") == "overview"
        np.testing.assert_allclose(places(page)[1], points + moved, atol=1e-6)
        polygon = middle + np.array([[-210, -190], [200, -180], [20, 190]])
        drag(page, polygon.tolist(), "#map-top")
        inside = Polygon(polygon).contains_points(points + moved) & (np.arange(400) < 120)
        assert 5 < inside.sum() < 100 and sorted(listed(page)) == sorted(
            found["row"][inside].tolist()
        )
        see_overview(page)
        page.get_by_role("button", name="Show all of the map").click()
        np.testing.assert_allclose(places(page)[1], before, atol=1e-6)
        page.locator("#map-top").hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        until(page, "Math.abs(map.layout.scale / map.whole - Math.E) < 1e-6")


def test_hovering_names_a_row_and_a_click_opens_it(chromium: Any, tmp_path: Path) -> None:
    folder = write_trees(tmp_path)
    frame = read_audit(folder).issues.set_index("row")
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        found, points = places(page)
        apart = np.linalg.norm(points[:, None] - points, axis=2) + 1e9 * np.eye(len(points))
        alone = [
            int(np.argmax(apart[at].min(1))) + at.start for at in (slice(0, 120), slice(120, 400))
        ]
        page.locator("#map-top").scroll_into_view_if_needed()
        box = page.locator("#map-top").bounding_box()
        for at in alone:
            row, x, y = int(found["row"][at]), *points[at].tolist()
            page.mouse.move(box["x"] + x, box["y"] + y)
            until(page, "!document.getElementById('map-hint').hidden")
            label, suggested = frame.loc[row, ["given_label", "suggested_label"]]
            hint = page.inner_text("#map-hint")
            assert hint.startswith(
                f"row {row}: {label}" + (f", suggested {suggested}" if at < 120 else "\n")
            )
            assert "height " in hint and "girth " in hint
        # not called wrong: it is shown, and can't be decided
        page.mouse.click(box["x"] + x, box["y"] + y)
        page.locator("#other-row table").wait_for()
        assert page.inner_text("#other-title") == f"{label}: row {row}"
        page.keyboard.press("Escape")
        x, y = points[alone[0]].tolist()
        page.mouse.click(box["x"] + x, box["y"] + y)
        until(page, "document.body.dataset.view === 'list'")
        assert listed(page) == [int(found["row"][alone[0]])]


def test_a_range_of_bars_lists_its_rows(chromium: Any, tmp_path: Path) -> None:
    folder = write_trees(tmp_path)
    frame = read_audit(folder).issues
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        assert "400 labels, 120 called wrong; cuts 0.20 to 0.30, by class" in (
            page.locator(".histogram").get_attribute("aria-label")
        )
        scale = page.locator(".histogram").bounding_box()["width"] / 480
        at = [scale * page.evaluate(f"qualityAt({quality})") for quality in (0.06, 0.19)]
        drag(page, [(at[0], 40), (at[0] + 5, 41), (at[1], 40)], ".histogram")
        until(page, "view.filter.low !== null && document.body.dataset.view !== 'overview'")
        assert page.evaluate("[view.filter.low, view.filter.high]") == [0.05, 0.2]  # whole bars
        inside = frame.query("is_label_issue and 0.05 <= label_quality <= 0.2")["row"].tolist()
        assert listed(page) == inside and 40 < len(inside) < 120
        # One class, by keyboard.
        see_overview(page)
        page.locator("#quality select").select_option("cedar")
        cedar = frame.query("given_label == 'cedar'")
        label = page.locator(".histogram").get_attribute("aria-label")
        assert f"{len(cedar)} labels" in label and label.endswith("cut 0.20")
        page.locator("#quality input").first.fill("0.1")
        page.keyboard.press("e")  # a number may have an exponent; it is no command
        page.locator("#quality input").first.fill("0.1")
        page.locator("#quality input").last.fill("0.15")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert listed(page) == cedar.query("0.1 <= label_quality <= 0.15")["row"].tolist()
        # Nothing is called wrong above the cut.
        see_overview(page)
        drag(page, [(at[1] * 3, 40), (at[1] * 3.5, 40)], ".histogram")
        until(
            page, "document.getElementById('message').textContent.startsWith('There is no label')"
        )
        assert (
            page.evaluate("document.body.dataset.view") == "overview"
            and page.inner_text("#filtered") == ""
        )


def test_everything_is_reached_by_keyboard(chromium: Any, tmp_path: Path) -> None:
    folder = write_trees(tmp_path)
    issues = read_audit(folder).issues.query("is_label_issue")
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        press = page.keyboard.press
        page.locator(".begin").focus()
        press("Tab")  # the matrix is one stop
        for key in ("ArrowDown", "ArrowLeft", "ArrowUp"):
            press(key)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "All given ash"
        press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.cell") == "0,1"  # 0,0 has no rows
        press("Enter")
        assert (
            listed(page)
            == issues.query("given_label == 'ash' and suggested_label == 'birch'")["row"].tolist()
        )
        see_overview(page)
        # The map: the next label called wrong to the right, then a rectangle between two of them.
        found, points = places(page)
        page.locator("#map-top").focus()
        press("ArrowRight")
        press("ArrowUp")
        until(page, "document.getElementById('map-status').textContent.startsWith('row ')")
        first = page.evaluate("map.at")
        row = int(found["row"][first])
        until(page, f"document.getElementById('map-status').textContent.startsWith('row {row}: ')")
        press("Space")
        for _ in range(6):
            press("ArrowRight")
            press("ArrowDown")
        second = page.evaluate("map.at")
        assert first != second < 120
        press("Space")
        corners = np.sort(points[[first, second]], axis=0)
        inside = ((points >= corners[0] - 1e-6) & (points <= corners[1] + 1e-6)).all(1) & (
            np.arange(400) < 120
        )
        assert sorted(listed(page)) == sorted(found["row"][inside].tolist())
        # The nearest 50, and the row itself.
        see_overview(page)
        page.locator("#map-top").focus()
        press("n")
        apart = np.linalg.norm(points[:120] - points[second], axis=1)
        assert sorted(listed(page)) == sorted(found["row"][np.argsort(apart)[:50]].tolist())
        see_overview(page)
        page.locator("#map-top").focus()
        press("Enter")
        until(page, "document.body.dataset.view === 'list'")
        assert listed(page) == [int(found["row"][second])]
        # Every button of the page has a name, and what can be pressed can be focused.
        see_overview(page)
        nameless = page.evaluate(
            "[...document.querySelectorAll('#overview button, #overview input, #overview"
            " select')].filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim()"
            " || one.labels?.length)).length"
        )
        assert nameless == 0


def test_colours_follow_the_theme_and_one_class_can_be_lit(chromium: Any, tmp_path: Path) -> None:
    css = (Path(review_page.__file__).parent / "templates" / "review.css").read_text("utf-8")
    pairs = dict(re.findall(r"\.color-(\w+) { background: light-dark\((#\w+, #\w+)\); }", css))
    colors = {
        name: dict(zip(("light", "dark"), pair.split(", "), strict=True))
        for name, pair in pairs.items()
    }
    for name, color in [*enumerate(COLORS[:10]), ("other", GREY)]:  # those of all figures
        assert colors[str(name)]["light"] == color
    drawn = (
        "() => { const { width, height } = byId('map-points'), pen ="
        " byId('map-points').getContext('2d');const seen = new Set(), data = pen.getImageData(0, 0,"
        " width, height).data;for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 204)"
        " seen.add(data.slice(i, i + 3).join());return [...seen]; }"
    )
    with Server(write_trees(tmp_path)) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        for side in ("light", "dark"):
            page.evaluate(f"theme.set('{side}')")
            pixels = [tuple(map(int, pixel.split(","))) for pixel in page.evaluate(drawn)]
            for name in "012":
                hexes = colors[name][side]
                wanted = [int(hexes[i : i + 2], 16) for i in (1, 3, 5)]
                assert any(np.abs(np.subtract(pixel, wanted)).max() <= 2 for pixel in pixels)
        page.locator(".swatch").nth(1).click()
        assert page.locator(".swatch").nth(1).get_attribute("aria-pressed") == "true"
        wanted = [int(colors["0"]["dark"][i : i + 2], 16) for i in (1, 3, 5)]
        pixels = [tuple(map(int, pixel.split(","))) for pixel in page.evaluate(drawn)]
        assert not any(np.abs(np.subtract(pixel, wanted)).max() <= 2 for pixel in pixels)  # dimmed


def test_a_phone_shows_all_of_it(chromium: Any, tmp_path: Path) -> None:
    with (
        Server(write_trees(tmp_path)) as server,
        browsing(chromium, tmp_path / "profile", viewport={"width": 390, "height": 800}) as page,
    ):
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for part in ("#matrix", "#map-frame", ".histogram", "#rates"):
            page.locator(part).scroll_into_view_if_needed()
            box = page.locator(part).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["width"] > 300
        assert page.evaluate("byId('overview').scrollWidth <= byId('overview').clientWidth")


def test_the_matrix_of_many_classes_shows_the_most_confused(chromium: Any, tmp_path: Path) -> None:
    names = [f"class {k:02}" for k in range(40)]
    pairs = [(k, (k + 1) % 40) for k in range(40) for _ in range(2 + (k % 20 == 7) * 5 + (k < 8))]
    given, suggested = ([names[pair[side]] for pair in pairs] for side in (0, 1))
    x = np.random.default_rng(0).normal(size=len(pairs))
    pd.DataFrame({"x": x, "kind": given}).to_csv(tmp_path / "many.csv", index=False)
    folder = write_audit(
        tmp_path / "audit",
        given,
        suggested,
        issues=len(pairs),
        kind="table",
        data=tmp_path / "many.csv",
        label="kind",
        classes=names,
        header=True,
    )
    counts = np.zeros(40, int)
    np.add.at(counts, np.array(pairs).ravel(), 1)
    first = sorted(np.lexsort((np.arange(40), -counts))[:15].tolist())
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        head = page.locator(".matrix tbody th")
        assert head.all_inner_texts() == [names[k] for k in first]
        page.get_by_role("button", name="25 more classes …").click()
        page.keyboard.type("class 33")
        page.keyboard.press("Enter")
        assert head.all_inner_texts() == [names[k] for k in sorted([*first, 33])]
        assert page.locator("#rates tbody tr").count() == 12
        page.get_by_role("button", name="All 40 classes").click()
        assert page.locator("#rates tbody tr").count() == 40
        until(page, "map.points !== null")
        assert (
            page.locator(".swatch").count() == 11
            and page.locator(".swatch").last.inner_text() == "30 others"
        )


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


def test_a_small_page_has_a_smaller_map(tmp_path: Path) -> None:
    audit = read_audit(write_trees(tmp_path))
    sizes = [len(file_page(audit, max_bytes=size)) for size in (1_000_000, 10_000)]
    assert sizes[1] < sizes[0] and file_page(audit, max_bytes=40)  # without a map


def test_whoever_is_asked_sees_no_overview(chromium: Any, tmp_path: Path) -> None:
    requests: list[str] = []
    with (
        Server(write_table_audit(tmp_path), "--measure", "20") as server,
        browsing(chromium, tmp_path / "profile") as page,
    ):
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.link)
        page.wait_for_selector("body[data-ready]")
        page.keyboard.press("v")
        assert (
            not page.locator("#overview").is_visible() and not page.locator("#views").is_visible()
        )
    assert requests and not any("overview" in url or "map" in url for url in requests)


@pytest.mark.parametrize("is_served", [True, False])
def test_other_issues_are_drawn_with_what_to_do_and_the_worst_comes_first(
    is_served: bool, chromium: Any, tmp_path: Path
) -> None:
    folder = write_trees(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    small = Finding(
        "class 'ash'",
        0.4,
        "Class 'ash' has 12 of 400 rows.",
        Bars("rows", [("ash", 12), ("oak", 388)], "rows"),
    )
    late = Finding(
        "column '<b>late'",
        0.98,
        "Column '<b>late' alone predicts 98.0% of the labels.",
        Bars("labels predicted", [("<b>late", 98.0), ("girth" + 60 * " long", 30.0)], "%", (0,)),
    )
    summary["imbalance"], summary["leakage"] = (
        {"findings": [small.as_dict()]},
        {"findings": [late.as_dict()]},
    )
    (folder / "summary.json").write_text(json.dumps(summary))
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        (tmp_path / "page.html").write_text(file_page(read_audit(folder)), "utf-8")
        open_page(page, server.link if is_served else (tmp_path / "page.html").as_uri())
        see_overview(page)
        parts = page.locator("#findings article").all()
        assert [part.get_attribute("aria-label") for part in parts] == [
            "leakage: column '<b>late'",
            "imbalance: class 'ash'",
        ]
        assert "alone predicts 98.0% of the labels" in parts[0].inner_text()
        assert "noiseproof apply … --fix leakage" in parts[0].inner_text()
        assert "--fix" not in parts[1].inner_text()  # a class has to be collected
        lines = parts[0].locator("tbody tr")
        assert [line.inner_text().split() for line in lines.all()] == [
            ["<b>late", "◂", "98", "%"],
            ["girth", *60 * ["long"], "30", "%"],
        ]
        name, bar = (lines.nth(1).locator(part).bounding_box() for part in ("th", ".bar"))
        assert name["x"] + name["width"] <= bar["x"] + 1  # a long name has several lines
        assert lines.nth(1).locator("th").evaluate("(name) => name.scrollWidth <= name.clientWidth")
        widths = [line.locator("i").bounding_box()["width"] for line in lines.all()]
        assert widths[1] / widths[0] == pytest.approx(30 / 98, rel=0.05)


def test_an_audit_without_other_issues_shows_no_empty_part(chromium: Any, tmp_path: Path) -> None:
    with Server(write_trees(tmp_path)) as server, browsing(chromium, tmp_path / "profile") as page:
        page.goto(server.link)
        page.wait_for_selector("body[data-ready]")
        see_overview(page)
        assert not page.locator("#findings").is_visible()


@pytest.mark.parametrize("is_served", [True, False])
def test_a_page_without_wrong_labels_opens_on_the_other_issues(
    is_served: bool, chromium: Any, tmp_path: Path
) -> None:
    folder = write_trees(tmp_path, issues=0)
    summary = json.loads((folder / "summary.json").read_text())
    late = Finding("column 'late'", 0.98, "Column 'late' has a space: 'a  b'.")
    summary |= {
        "leakage": {"findings": [late.as_dict()]},
        "verdict": "Not to be trusted: `late`.",
        "near_duplicates": {"groups": 1, "rows": 58, "conflicting": 1, "conflicts": []},
        "outliers": {"rows": 0, "cut": 3.0},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    frame = read_audit(folder).issues
    # rows of the handmade audit are one group
    conflicting = frame.loc[frame["duplicate_conflict"], "row"].tolist()
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        (tmp_path / "page.html").write_text(file_page(read_audit(folder)), "utf-8")
        page.goto(server.link if is_served else (tmp_path / "page.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        until(page, HAS_MAP)
        assert page.evaluate("document.body.dataset.view") == "overview"
        assert page.inner_text("#verdict") == "Not to be trusted: `late`."
        assert (
            page.locator("#matrix, .begin").count() == 0
            and page.inner_text("#counts") == "nothing to decide"
        )
        first = page.locator("#overview section").first
        assert first.get_attribute("id") == "findings"
        names = [part.get_attribute("aria-label") for part in first.locator("article").all()]
        assert names == ["leakage: column 'late'", "near-duplicate: rows"]
        assert "58 rows in 1 group, 1 with different labels." in first.inner_text()
        assert "has a space: 'a  b'." in first.inner_text()  # two spaces are two
        buttons = first.get_by_role("button")
        assert buttons.all_inner_texts() == [f"row {row}" for row in conflicting[:6]]
        buttons.nth(1).click()
        until(page, "document.querySelector('#other-row table') !== null")
        row = conflicting[1]
        assert page.inner_text("#other-title") == f"{frame['given_label'][row]}: row {row}"
        girth = pd.read_csv(tmp_path / "trees.csv", dtype=str)["girth"][row]
        assert girth in page.inner_text("#other-row")


def test_labels_that_differ_in_spaces_look_different_in_every_view(
    chromium: Any, tmp_path: Path
) -> None:
    names, shown = [" dog", "dog", "dog ", "sea  dog"], ["␣dog", "dog", "dog␣", "sea␣␣dog"]
    given = [names[i % 4] for i in range(40)]
    suggested = [names[(i + 1) % 4] for i in range(40)]
    pd.DataFrame({"x": np.arange(40.0), "y": np.sin(np.arange(40)), "kind": given}).to_csv(
        tmp_path / "dogs.csv", index=False
    )
    folder = write_audit(
        tmp_path / "audit",
        given,
        suggested,
        issues=40,
        kind="table",
        data=tmp_path / "dogs.csv",
        label="kind",
        classes=names,
        header=True,
    )
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        assert page.locator(".matrix tbody th").all_inner_texts() == shown
        assert page.locator(".swatch").all_inner_texts() == shown
        assert page.locator("#quality option").all_inner_texts() == ["All classes", *shown]
        assert sorted(page.locator("#rates tbody th").all_inner_texts()) == sorted(shown)
        page.locator('[data-cell="3,0"]').click()
        assert (
            listed(page) == [*range(3, 40, 4)]
            and page.inner_text("#filtered") == "only sea␣␣dog → ␣dog"
        )
        page.keyboard.press("Escape")
        until(page, "!isFiltered() && view.total === 40")
        assert page.locator(".item").first.inner_text().splitlines()[0] == "␣dog → dog"
        assert page.locator(".label strong").all_inner_texts() == ["␣dog", "dog"]
        page.keyboard.press("o")
        assert page.locator("#chooser li span:first-child").all_inner_texts() == [
            "dog␣",
            "sea␣␣dog",
            "dog",
        ]
        page.keyboard.type("sea")
        page.keyboard.press("Enter")
        until(page, "!store.unsaved && view.current === 1")
        assert "→ sea␣␣dog" in page.locator(".item").first.inner_text()
        page.keyboard.press("g")
        assert page.locator(".cell-labels").nth(1).inner_text().startswith("dog → dog␣")
    (decided,) = read_log(folder / FILE)
    assert decided.label == "sea  dog"  # as the data spells it


@pytest.mark.parametrize("width", [1280, 420])
def test_the_words_of_the_cuts_are_inside_the_histogram(
    width: int, chromium: Any, tmp_path: Path
) -> None:
    folder = write_trees(tmp_path)
    with (
        Server(folder) as server,
        browsing(chromium, tmp_path / "profile", viewport={"width": width, "height": 800}) as page,
    ):
        open_page(page, server.link, "overview")
        until(page, HAS_MAP)
        for cuts in (
            [0.02, 0.52],
            [0.0, 0.01],
            [0.99, 1.0],
            [0.0, 1.0],
            [0.5, 0.5],
            [1.0, 1.0],
            [0.0, 0.0],
        ):
            page.evaluate(
                "(cuts) => { overview.data.classes.cut = [...cuts, null]; overview.draw(); }", cuts
            )
            frame, words = (
                page.locator(part).bounding_box() for part in (".histogram", ".cut-words")
            )
            assert words["x"] >= frame["x"] and words["y"] >= frame["y"]
            assert words["x"] + words["width"] <= frame["x"] + frame["width"]
            low, high = (page.locator(".histogram .cut").nth(k).bounding_box() for k in (0, 1))
            assert words["y"] + words["height"] <= min(low["y"], high["y"]) + 4  # above the lines
