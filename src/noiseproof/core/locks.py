"""Locks between processes, which the system releases when their process ends, however it ends."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_WIDTH = 256  # of what is written about a holder, with spaces at its end


class Lock:
    """The right to write somewhere, of one process at a time; ``held`` is False if another one has it.

    The file names the holder, from its second byte on: Windows lets nobody read the first while it is locked.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            self.held = False
            return
        self.held, self._path = True, path
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        with suppress(OSError), open(path, "r+b", buffering=0) as file:  # it is held without a name, too
            file.seek(1)
            file.write(json.dumps(about).ljust(_WIDTH).encode())

    def release(self) -> None:
        if self.held:
            with suppress(OSError):  # Windows removes no open file
                self._path.unlink()  # whoever has it open sees that its name is gone, and does not take it
            self._lock.release()
        self.held = False


def holder(path: Path) -> dict[str, Any] | None:
    """The process and machine that hold the lock now; None if none does, {} if it is not known which."""
    if not path.exists():
        return None
    probe = FileLock(path, thread_local=False)
    try:
        probe.acquire(blocking=False)
    except Timeout:
        return last_holder(path)
    probe.release()
    return None


def last_holder(path: Path) -> dict[str, Any]:
    """Who holds the lock, or was killed while it did; {} if it is not known."""
    with suppress(OSError, ValueError), open(path, "rb", buffering=0) as file:
        file.seek(1)
        about = json.loads(file.read())
        return about if isinstance(about, dict) else {}
    return {}


def describe(about: dict[str, Any]) -> str:
    """A holder in words.

    >>> describe({"pid": 7, "host": "a"}), describe({})
    ('process 7 on a', 'another process')
    """
    return f"process {about['pid']} on {about.get('host')}" if "pid" in about else "another process"
