"""`noiseproof review` in a process of its own, for the tests of the server and of the page in a
browser.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


class Server:
    """A review server; it is killed at the end."""

    def __init__(
        self, folder: Path, *options: str, stderr: IO[str] | None = None, **environment: str
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "noiseproof",
            "review",
            str(folder),
            "--no-browser",
            *options,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environment},
        )
        self.links = self._read_links(several="--reviewers" in options)
        self.link = next(iter(self.links.values()))
        match = re.fullmatch(
            r"(http://(?:[a-z0-9.]+|\[[0-9a-f:]+\]):(\d+))/\?token=(\S+)", self.link
        )
        assert match, self.link
        self.address, self.port, self.token = match[1], int(match[2]), match[3]

    def _read_links(self, several: bool) -> dict[str, str]:
        """The link of each reviewer by name, of a single one by an empty name."""
        assert self.process.stdout is not None
        links: dict[str, str] = {}
        for line in self.process.stdout:
            if line.startswith("decisions: "):
                break
            if match := re.fullmatch(r"(?:review:|  (.+?)) +(http://\S+)\n", line):
                links[match[1] or ""] = match[2]
        assert links and several == ("" not in links), links
        return links

    def client_of(self, reviewer: str) -> Any:
        import httpx

        headers = {"authorization": f"Bearer {self.links[reviewer].partition('token=')[2]}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30)

    def client(self, **options: Any) -> Any:
        import httpx

        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, **options)

    def kill(self) -> None:
        """End the process as a power failure does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
