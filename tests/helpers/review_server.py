"""`noiseproof review` in a process of its own, for the tests of the server and of the page in a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Server:
    """A review server; it is killed at the end."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "noiseproof", "review", str(folder), "--no-browser", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"review: ((http://127\.0\.0\.1:(\d+))/\?token=(\S+))\n", line)
        assert match, line
        self.link, self.address, self.port, self.token = match[1], match[2], int(match[3]), match[4]

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
