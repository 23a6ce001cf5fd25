"""A review page in a real browser."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def browsing(chromium: Any, profile: Path, **options: Any) -> Iterator[Any]:
    """A browser with a memory of its own; any error on its pages, and any request to elsewhere, is
    a failure.
    """
    context = chromium.launch_persistent_context(
        str(profile),
        executable_path=CHROMIUM,
        args=ARGUMENTS,
        accept_downloads=True,
        **{"viewport": {"width": 1100, "height": 700}, **options},
    )
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request",
        lambda r: (
            None
            if re.match(r"(http://(127\.0\.0\.1|localhost):|file:|data:|blob:)", r.url)
            else errors.append(r.url)
        ),
    )
    try:
        yield page
        assert errors == [], errors
    finally:
        context.close()


def open_page(page: Any, address: str, view: str = "list") -> None:
    """Open a review in one of its views: overview, list or grid."""
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.evaluate("(name) => views.show(name)", view)


def until(page: Any, expression: str, arg: object = None) -> None:
    """Wait until a page says yes; playwright's own waiting evaluates strings, which the page
    forbids.
    """
    ends = time.monotonic() + 30
    while not page.evaluate(expression, arg):
        assert time.monotonic() < ends, (
            f"{expression}; the page says {page.inner_text('body')[:500]}"
        )
        page.wait_for_timeout(20)


def row_shown(page: Any) -> int:
    return int(page.locator("#row").get_attribute("data-row"))
