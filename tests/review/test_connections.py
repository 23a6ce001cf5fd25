"""Connections that never finish their request, never read the answer or send nonsense do not hold
up the review.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_server import Server, ServerProcess

pytest.importorskip("httpx")
PATIENCE = 60  # seconds after which something hangs


@contextlib.contextmanager
def held(server: Server, count: int, content: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent ``content`` and nothing more."""
    sockets = []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
            sockets[-1].sendall(content)
        yield sockets
    finally:
        for one in sockets:
            one.close()


def is_closed(one: socket.socket) -> bool:
    """Whether the server ends a connection, in time."""
    one.settimeout(PATIENCE)
    try:
        while one.recv(2**16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_600_half_sent_requests_hold_nothing_up(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    folder = write_table_audit(tmp_path)
    with (
        open(log, "w") as stderr,
        ServerProcess(folder, stderr=stderr) as server,
        server.client() as client,
    ):
        with held(server, 600, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ") as sockets:
            for row in range(20):
                body = {"row": row, "decision": "skip"}
                assert client.post("/api/decisions", json=body).status_code == 200
            with server.client() as another:  # whoever comes later is let in, too
                assert another.get("/api/audit").json()["progress"]["decided"] == 20
            files = Path("/proc", str(server.process.pid), "fd")
            if files.exists():
                assert len(list(files.iterdir())) < 400
            assert all(is_closed(one) for one in sockets[:300])  # the oldest ones made room
        assert client.get("/api/audit").status_code == 200
    assert log.stat().st_size < 2000, log.read_text()[:2000]


def test_requests_that_do_not_arrive_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_MAX_REQUEST_SECONDS", "1")
    contents = (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{",
        b"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding:"
        b" chunked\r\n\r\n5\r\n{",
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(write_table_audit(tmp_path)))
        waiting = [
            (stack.enter_context(held(server, 3, content)), b"a" if content else b"G")
            for content in contents
        ]
        slow = {sockets[0]: drop for sockets, drop in waiting}
        began = time.monotonic()
        while slow and time.monotonic() - began < PATIENCE:  # a byte now and then does not help
            for one, drop in slow.items():
                with contextlib.suppress(OSError):
                    one.sendall(drop)
            for one in select.select([*slow], [], [], 0.2)[0]:
                del slow[one]
        assert all(is_closed(one) for sockets, _ in waiting for one in sockets)


def test_an_answer_that_nobody_reads_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_MAX_REQUEST_SECONDS", "1")
    folder = write_table_audit(tmp_path, rows=2000, issues=2000)
    with Server(folder) as server:
        request = (
            "GET /api/issues?limit=500 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer"
            f" {server.token}\r\n\r\n"
        ).encode()
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", server.port))
            one.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                for _ in range(400):
                    one.sendall(request)  # until nothing more is taken, or the connection ends
            with contextlib.suppress(OSError):
                while one.recv(2**16):
                    pass
        with server.client() as client:
            assert client.get("/api/audit").status_code == 200


def test_a_request_that_is_too_long_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_MAX_REQUEST_BYTES", "100000")
    with Server(write_table_audit(tmp_path)) as server, server.client() as client:
        body = {"decision": "skip", "rows": [0] * 100_000}
        with pytest.raises(Exception, match=r"(?i)disconnect|reset|closed|broken|EOF"):
            client.post("/api/decisions/many", json=body)
        assert client.post("/api/decisions", json={"row": 0, "decision": "skip"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        '{"row": NaN, "decision": "skip"}',
        '{"row": 1e999, "decision": "skip"}',
        '{"row": -Infinity}',
        '{"row": 0, "decision": "other", "label": "\\ud800"}',
        '{"row": 0, "decision": "\\udfff"}',
        '{"row": 0, "decision": "note", "note": "\\ud83d"}',
        '{"row": 0, "decision": "skip", "\\ud800": 1}',
        '{"row": 0.5, "decision": "skip"}',
        '{"row": "0", "decision": "skip"}',
        "[NaN]",
        '"\\ud800"',
        "NaN",
    ],
)
def test_values_that_json_cannot_hold_are_refused(
    running: tuple[ServerProcess, Any], body: str
) -> None:
    server, log = running
    headers = {"content-type": "application/json"}
    with server.client() as client:
        for path in (
            "/api/decisions",
            "/api/decisions/many",
            "/api/merges",
            "/api/people",
            "/api/selections",
        ):
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code == 422 and answer.json()["detail"], (path, answer.text)
    assert "Traceback" not in Path(log).read_text()


def test_nonsense_is_not_logged(running: tuple[ServerProcess, Any]) -> None:
    server, log = running
    for content in (
        b"\x16\x03\x01" * 50,
        b"GET\r\n\r\n",
        b"A" * 100_000,
        b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n",
    ):
        with held(server, 5, content) as sockets:
            if content[0] != b"G"[0]:
                assert all(map(is_closed, sockets[:1]))
    with server.client() as client:
        assert client.get("/api/audit").status_code == 200
    assert Path(log).read_text() == ""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    root = tmp_path_factory.mktemp("running")
    with (
        open(root / "log.txt", "w") as stderr,
        ServerProcess(write_table_audit(root), stderr=stderr) as server,
    ):
        yield server, root / "log.txt"


def test_a_server_without_room_for_files_says_so_once(tmp_path: Path) -> None:
    """Where the system allows few files, what is logged does not grow with the connections."""
    folder, log = write_table_audit(tmp_path), tmp_path / "log.txt"
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100));"
        "from noiseproof.cli import app; app(['review', sys.argv[1], '--no-browser'])"
    )
    with open(log, "w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "NOISEPROOF_MAX_REQUEST_SECONDS": "2"},
        )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2].partition("/")[0])
        sockets = [
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(150)
        ]
        assert all(map(is_closed, sockets[:20]))
        for one in sockets:
            one.close()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 401")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert log.stat().st_size < 5000, log.read_text()[:3000]
