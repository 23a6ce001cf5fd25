"""axe-core on every view of the review page, light and dark: nothing serious, nothing critical."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from handmade_audit import write_film_audit, write_table_audit
from review_browser import CHROMIUM, browsing, open_page, until
from review_server import Server

from noiseproof.audit.files import read_audit
from noiseproof.review.page import file_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-core is not installed"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of each kind of page."""
    root = tmp_path_factory.mktemp("accessible")
    films = [f"a {'fine' if i % 2 else 'dull'} film, number {i}" for i in range(40)]
    folders = {}
    for name in ("table", "films", "measured", "blind", "people"):
        (root / name).mkdir()
        folders[name] = (
            write_film_audit(
                root / name, films, ["good" if i % 2 else "bad" for i in range(40)], 20
            )
            if name == "films"
            else write_table_audit(root / name)
        )
    (root / "review.html").write_text(file_page(read_audit(folders["table"])), "utf-8")
    options = {
        "table": (),
        "films": (),
        "measured": ("--measure", "30"),
        "blind": ("--measure", "30", "--blind"),
        "people": ("--reviewers", "ann,bob"),
    }
    servers = {name: Server(folders[name], *more) for name, more in options.items()}
    yield {name: server.link for name, server in servers.items()} | {
        "file": (root / "review.html").as_uri()
    }
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(chromium, tmp_path_factory.mktemp("profile")) as page:
        yield page


# A new view is one more line: its name, the page it is on, and the keys that lead there.
VIEWS = [
    ("list", "table", "l"),
    ("decided", "table", "l a"),
    ("end", "films", "l" + " a" * 20),
    ("text", "films", "l Home"),
    ("grid", "table", "g"),
    ("overview", "table", "v"),
    ("chooser", "table", "l o"),
    ("filter", "table", "l f"),
    ("keys", "table", "l ?"),
    ("several people", "people", "l a"),
    ("measuring", "measured", "a k"),
    ("blind", "blind", "1 s"),
    ("file", "file", "l k"),
]


def test_axe_has_no_serious_finding(page: Any, links: dict[str, str]) -> None:
    for view, link, keys in VIEWS:
        open_page(page, links[link])
        for key in keys.split():
            page.keyboard.press(key)
            until(page, "!store.unsaved")
        page.wait_for_load_state("networkidle")  # what comes by itself: context, pictures
        for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.evaluate(f"theme.set('{theme}')")
            assert findings(page, rules) == [], (view, theme)


def findings(page: Any, rules: dict[str, Any] | None = None) -> list[str]:
    """What axe-core calls serious or critical; by default of all rules."""
    result = axe.Axe().run(page, options={"resultTypes": ["violations"], **(rules or {})})
    return [
        f"{finding['id']}: {finding['help']} ({node['html'][:150]}) {node['failureSummary'][:300]}"
        for finding in result.response["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]


def test_axe_sees_what_is_wrong(page: Any, links: dict[str, str]) -> None:
    open_page(page, links["file"])
    page.evaluate("byId('message').append(make('img', { src: 'data:,' }), make('button'))")
    assert {finding.partition(":")[0] for finding in findings(page)} == {"button-name", "image-alt"}
