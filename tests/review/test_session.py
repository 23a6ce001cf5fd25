"""The review of a report: inline in the page of a notebook, in a browser elsewhere; saved once,
opened again.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from review_browser import CHROMIUM, browsing

from noiseproof.audit import LabelReport, audit
from noiseproof.audit.decisions import find_decisions, read_decisions

httpx = pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")


def make_report(wrong: int = 7) -> LabelReport:
    """60 rows in memory, one of them with a wrong label."""
    labels = np.repeat(["cat", "dog"], 30)
    probs = np.where(labels[:, None] == ["cat", "dog"], 0.95, 0.05)
    labels[wrong] = "dog"
    frame = pd.DataFrame({"sound": [f"sound {i}" for i in range(60)], "animal": labels})
    # so that row 4 is nearer to row 7 than row 10 is
    numbers = np.arange(60, dtype=np.float32) ** 1.01
    return audit(frame, label="animal", pred_probs=probs, embeddings=numbers[:, None])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser would open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a notebook, as IPython shows itself there."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_in_a_browser_the_rows_in_memory_are_shown_and_decisions_are_saved(
    tmp_path: Path, opened: list[str]
) -> None:
    session = make_report().review(tmp_path / "audit", wait=False, reviewer="ann")
    try:
        assert opened == [session.address] and "/?token=" in session.address
        with httpx.Client(
            follow_redirects=True, base_url=session.address.partition("/?")[0]
        ) as client:
            page = client.get(session.address)
            assert (
                page.status_code == 200
                and page.headers["content-security-policy"] == "frame-ancestors 'none'"
            )
            assert client.get("/api/rows/7").json() == {"fields": [["sound", "sound 7"]]}
            assert (
                client.post("/api/decisions", json={"row": 7, "decision": "accept"}).status_code
                == 200
            )
            session.app.state.review.context.start().join()
            context = client.get("/api/context/7").json()
            nearest = [other["row"] for other in context["groups"]["nearest_suggested"]]
            # of the embeddings in memory
            assert context["note"] is None and sorted(nearest) == [4, 5, 6, 8, 9]
            token = session.address.partition("token=")[2]
            client.cookies.clear()
            # a path is no key outside a notebook
            assert client.get(f"/{token}/api/audit").status_code == 401
    finally:
        session.close()
    decision = read_decisions(find_decisions(tmp_path / "audit"))[7]
    assert (decision.label, decision.reviewer) == ("cat", "ann")
    assert "closed" in repr(session) and "<iframe" not in session._repr_html_()


@pytest.mark.usefixtures("notebook")
def test_in_a_notebook_the_address_is_the_key_and_only_pages_of_this_machine_may_frame_it(
    tmp_path: Path, opened: list[str]
) -> None:
    # does not wait: the next cell can run
    session = make_report().review(tmp_path / "audit", height=500)
    try:
        assert opened == []
        html = session._repr_html_()
        (source,) = re.findall(r'<iframe src="([^"]+)"', html)
        assert source == session.address and 'height="500"' in html
        base, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/([\w-]{43})/", source).groups()  # type: ignore[union-attr]
        answer = httpx.get(source)
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
        assert (
            answer.headers["content-security-policy"]
            == "frame-ancestors http://127.0.0.1:* http://localhost:* https://127.0.0.1:*"
            " https://localhost:* vscode-webview:"
        )
        assert httpx.get(f"{source}api/rows/7").json() == {"fields": [["sound", "sound 7"]]}
        for path in ("/", "/api/audit", f"/{token[:-1]}x/api/audit", f"/x{token}/", f"//{token}/"):
            assert httpx.get(base + path).status_code == 401, path
        foreign = {"origin": "http://evil.example"}
        assert httpx.post(f"{source}api/decisions", headers=foreign, json={}).status_code == 403
        assert httpx.get(source, headers={"host": "evil.example"}).status_code == 403
    finally:
        session.close()


def test_a_cell_run_again_serves_the_same_audit_with_its_decisions(
    tmp_path: Path, opened: list[str]
) -> None:
    report, folder = make_report(), tmp_path / "audit"
    first = report.review(folder, wait=False)
    port = httpx.URL(first.address).port
    with httpx.Client(follow_redirects=True, base_url=f"http://127.0.0.1:{port}") as client:
        client.get(first.address)
        client.post("/api/decisions", json={"row": 7, "decision": "keep"})
    written = (folder / "issues.csv").stat().st_mtime_ns
    second = make_report().review(folder, wait=False)  # the audit, too, was run again
    try:
        assert not first.is_running and second.is_running
        assert (folder / "issues.csv").stat().st_mtime_ns == written
        with httpx.Client(follow_redirects=True) as client:
            client.get(second.address)
            progress = client.get(second.address.partition("?")[0] + "api/audit").json()["progress"]
        assert progress["decided"] == 1
    finally:
        second.close()
    with pytest.raises(FileExistsError, match="Pass another `folder`, or `force=True`"):
        make_report(wrong=9).review(folder, wait=False)
    third = make_report(wrong=9).review(folder, wait=False, force=True)
    third.close()
    # the decision was on a label that is no issue now
    assert read_decisions(find_decisions(folder)) == {}


def test_a_script_waits_until_it_is_interrupted(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from noiseproof.review import session as sessions

    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not sessions.is_script()
    monkeypatch.delattr(sys, "ps1")
    assert sessions.is_script() and not sessions.in_notebook()
    joined: list[bool] = []

    def interrupt(self: Any) -> None:
        joined.append(self.is_running)
        self.close()

    monkeypatch.setattr(sessions.ReviewSession, "wait", interrupt)
    assert not make_report().review(tmp_path / "audit").is_running and joined == [True]


class Outer(BaseHTTPRequestHandler):
    """A page of a notebook server with some HTML in it."""

    html = ""

    def do_GET(self) -> None:
        body = f"<!doctype html><title>notebook</title>{self.html}".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def outer() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Outer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.usefixtures("notebook")
def test_the_page_works_inside_the_page_of_a_notebook(
    chromium: Any, tmp_path: Path, outer: HTTPServer
) -> None:
    session = make_report().review(tmp_path / "audit")
    Outer.html = session._repr_html_()
    try:
        with browsing(chromium, tmp_path / "profile") as page:
            # another site than the frame: no cookies
            page.goto(f"http://localhost:{outer.server_port}/")
            frame = page.frame_locator("iframe")
            frame.locator(".begin").click()  # the overview comes first
            frame.get_by_text("sound 7", exact=True).wait_for()
            frame.locator("h1").click()  # keys go to the page that was clicked last
            page.keyboard.press("a")
            frame.locator("#counts", has_text="1 of 1 decided").wait_for()
    finally:
        session.close()
    assert read_decisions(find_decisions(tmp_path / "audit"))[7].label == "cat"


def test_a_port_in_use_is_named(tmp_path: Path, opened: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="Expected a free port"):
            make_report().review(tmp_path / "audit", wait=False, port=taken.getsockname()[1])
    # the file of decisions is not left locked
    session = make_report().review(tmp_path / "audit", wait=False)
    session.close()
