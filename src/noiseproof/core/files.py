"""Digests of files, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of the file's content, computed again when its time or size has changed."""
    stat = path.stat()
    return _read_digest(path.absolute(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _read_digest(path: Path, time: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
