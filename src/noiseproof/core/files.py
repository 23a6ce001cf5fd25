"""Digests of files, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def replacing(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write, which becomes ``path`` on success; nothing is left after a failure.

    Without ``overwrite``, several processes may write the same ``path``: all but the first raise FileExistsError.
    """
    part = path.with_name(f"{path.name}.part" if overwrite else f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        if overwrite:
            os.replace(part, path)
        else:
            _rename_new(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _rename_new(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # fails if ``path`` exists, where a rename overwrites
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.rename(part, path)
    else:
        part.unlink()
