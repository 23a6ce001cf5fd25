"""`noiseproof review` as a server, for the tests of the server and of the page in a browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Self
from unittest.mock import patch

from typer.testing import CliRunner

from noiseproof.cli import app


class Server:
    """A review server in a thread of this process; ``stderr`` is what the command warned of."""

    def __init__(self, folder: Path, *options: str) -> None:
        from noiseproof.review.server import make_server

        given: list[Any] = []
        with patch("noiseproof.review.server.serve", lambda *parts: given.extend(parts)):
            done = CliRunner().invoke(app, ["review", str(folder), "--no-browser", *options])
        assert done.exit_code == 0, done.output
        self.application, listening = given
        self.server = make_server(self.application)
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        self.thread.start()
        self.stderr = done.stderr
        self._take_links(done.stdout.splitlines(keepends=True), several="--reviewers" in options)

    def _take_links(self, lines: Iterable[str], several: bool) -> None:
        """Read the link of each reviewer by name, of a single one by an empty name."""
        self.links: dict[str, str] = {}
        for line in lines:
            if line.startswith("decisions: "):
                break
            match = re.fullmatch(r"(?:review:|  (.+?)) +(http://\S+)\n", line)
            if match:
                self.links[match[1] or ""] = match[2]
        assert self.links and several == ("" not in self.links), self.links
        self.link = next(iter(self.links.values()))
        found = re.fullmatch(
            r"(http://(?:[a-z0-9.]+|\[[0-9a-f:]+\]):(\d+))/\?token=(\S+)", self.link
        )
        assert found, self.link
        self.address, self.port, self.token = found[1], int(found[2]), found[3]

    def client_of(self, reviewer: str) -> Any:
        import httpx

        headers = {"authorization": f"Bearer {self.links[reviewer].partition('token=')[2]}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30)

    def client(self, **options: Any) -> Any:
        import httpx

        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, **options)

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join()
        self.application.state.review.queue.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerProcess(Server):
    """A review server in a process of its own; it is killed at the end."""

    def __init__(
        self, folder: Path, *options: str, stderr: IO[str] | None = None, **environment: str
    ) -> None:
        command = [sys.executable, "-m", "noiseproof", "review", str(folder), "--no-browser"]
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self._take_links(self.process.stdout, several="--reviewers" in options)

    def kill(self) -> None:
        """End the process as a power failure does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        self.kill()
