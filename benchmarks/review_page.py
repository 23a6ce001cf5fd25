"""How quick the review page is in a browser: from a key to the next row drawn, and decisions a
minute.

    python benchmarks/review_page.py [--issues 100000] [--decisions 200]

A server process (`noiseproof review`) and Chromium on this machine; a table of four columns, every
row an issue. The scripted reviewer decides as soon as a row is drawn, so its decisions a minute are
the page's limit, not a person's. A row is drawn when the frame after the one that shows it begins
(two ``requestAnimationFrame``).

- list: one key for each row.
- grid: a screenful at a time, all of it selected (Shift+PageDown), accepted with one key, saved as
  one batch.

Bytes are those of the page itself, and of all that was fetched up to the first row.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import write_rows

# the server and browser of the tests
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from handmade_audit import write_table_audit
from review_browser import browsing, open_page, until
from review_server import ServerProcess

from noiseproof.review.page import served_page

RESULTS = Path(__file__).parent / "results" / "review_page.json"
WATCH = """() => {
  window.times = [];
  let pressed = 0, row = document.getElementById("row")?.dataset.row;
  document.addEventListener("keydown", () => { pressed = performance.now(); }, true);
  new MutationObserver(() => {
    const now = document.getElementById("row")?.dataset.row;
    if (now === row || now === undefined) return;
    row = now;
    const from = pressed;
    const measure = () => window.times.push(performance.now() - from);
    requestAnimationFrame(() => requestAnimationFrame(measure));
  }).observe(document.getElementById("card"), { childList: true, subtree: true });
}"""


def decide_in_list(page: Any, count: int) -> dict[str, float]:
    """Milliseconds from a key to the next row drawn, and decisions a minute."""
    page.evaluate(WATCH)
    started = time.perf_counter()
    for done in range(count):
        page.keyboard.press("ak"[done % 2])
        until_quick(page, "(count) => window.times.length > count", done)
    seconds = time.perf_counter() - started
    times = page.evaluate("window.times")
    until(page, "!document.getElementById('counts').textContent.includes('not saved')")
    return {
        "key_to_row_median_ms": round(statistics.median(times), 1),
        "key_to_row_p95_ms": round(statistics.quantiles(times, n=20)[-1], 1),
        "list_decisions_per_minute": round(60 * count / seconds),
    }


def until_quick(page: Any, expression: str, arg: object) -> None:
    """As ``until``, without the pause between two questions."""
    ends = time.monotonic() + 30
    while not page.evaluate(expression, arg):
        assert time.monotonic() < ends, expression


def decide_in_grid(page: Any, count: int) -> dict[str, float]:
    """Decisions a minute, a screenful at a time."""
    page.evaluate("views.show('grid')")
    until(page, "document.querySelectorAll('.cell').length > 0")
    decided = "() => store.unsaved ? -1 : store.progress.decided"
    before, screens, started = page.evaluate(decided), 0, time.perf_counter()
    while (done := page.evaluate(decided)) < before + count:
        page.keyboard.press("Shift+PageDown")
        page.keyboard.press("a")
        until_quick(page, "(done) => store.unsaved === 0 && store.progress.decided > done", done)
        page.keyboard.press("ArrowRight")
        screens += 1
    seconds = time.perf_counter() - started
    return {
        "grid_rows_at_a_time": round((done - before) / screens, 1),
        "grid_decisions_per_minute": round(60 * (done - before) / seconds),
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--issues", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        root = Path(name)
        folder = write_table_audit(root, rows=options.issues + 20, issues=options.issues)
        with ServerProcess(folder) as server, browsing(driver.chromium, root / "profile") as page:
            sizes: list[int] = []
            page.on(
                "response",
                lambda response: sizes.append(int(response.headers.get("content-length", 0))),
            )
            started = time.perf_counter()
            open_page(page, server.link)
            until(page, "document.getElementById('row') !== null")
            row: dict[str, object] = {"issues": options.issues, "decisions": options.decisions}
            row |= {"seconds_to_first_row": round(time.perf_counter() - started, 2)}
            row |= {"bytes_of_page": len(served_page().encode()), "bytes_to_first_row": sum(sizes)}
            row |= decide_in_list(page, options.decisions) | decide_in_grid(page, options.decisions)
    print(row)
    write_rows(RESULTS, [row])


if __name__ == "__main__":
    main()
