"""Files that are written whole or not at all, and read as they were written: digests, checksums,
locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from filelock import FileLock, Timeout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PathLike = str | os.PathLike[str]
PATHS = (str, os.PathLike)  # the same for isinstance
CHECKSUMS = "checksums.json"  # of the files that ``replacing_all`` wrote to a folder
_WIDTH = 256  # of what is written about a holder, with spaces at its end


class Damaged(ValueError):
    """A file that is not as it was written."""


def check_place(path: PathLike, *, folder: bool) -> Path:
    """The path of a file to write, or of a ``folder``; refuse one that is the other, or inside of a
    file.
    """
    place = Path(path)
    if not folder and place.is_dir():
        raise IsADirectoryError(
            f"Expected a file to write to, got the folder {place}. Name a file in it."
        )
    places = [place, *place.parents] if folder else place.parents
    for one in places:
        if one.exists() and not one.is_dir():
            raise FileExistsError(f"Expected a folder, got the file {one}. Choose another one.")
    return place


def file_digest(path: Path) -> str:
    """SHA-256 of the file's content, computed again when its time or size has changed."""
    stat = path.stat()
    return _read_digest(path.absolute(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _read_digest(path: Path, time: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(path: Path) -> str:
    """XXH3 of the file's content: against damage, not against forgery."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


@contextmanager
def replacing(path: Path, *, overwrite: bool = True, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write, which becomes ``path`` on success; nothing is left after a
    failure.

    Without ``overwrite``, a ``path`` that exists, or that another process writes, raises
    FileExistsError. Without ``sync``, a power cut may bring back the file that was there before,
    whole.
    """
    part = _part(path) if overwrite else path.with_name(f".{path.name}.part")
    with nullcontext() if overwrite else _writing_once(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            _sync(part)
            if overwrite:
                os.replace(part, path)
            else:
                _rename_new(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    if sync:
        sync_folder(path.parent)


@contextmanager
def writing_folder(path: Path, beside: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which becomes the new folder ``path`` on success; a failure
    leaves nothing.

    It may not lie in the folder ``beside``. What a killed process left is removed; while one is
    running, another raises FileExistsError.
    """
    if path.resolve().is_relative_to(beside.resolve()):
        raise ValueError(f"Expected a place outside {beside}, which is not changed, got {path}.")
    part = _part(path)
    with _writing_once(path):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


@contextmanager
def _writing_once(path: Path) -> Iterator[None]:
    """Hold the right to write a new file or folder."""
    lock = Lock(path.with_name(f".{path.name}.lock"))
    try:
        if not lock.held:
            raise FileExistsError(
                f"Expected {path} to be written once, another process writes it. Choose another"
                " place."
            )
        if path.exists():
            raise FileExistsError(f"Expected a new place, got {path}. Choose another one.")
        yield
    finally:
        lock.release()


def _rename_new(part: Path, path: Path) -> None:
    """Rename a file, unless another program has made ``path`` meanwhile."""
    try:
        os.link(part, path)  # fails if ``path`` exists, where a rename overwrites
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.rename(part, path)
    else:
        part.unlink()


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make new names of files survive a power cut, too."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # a file system that cannot
        pass
    finally:
        os.close(descriptor)


# Several files, with their checksums


@contextmanager
def replacing_all(folder: Path, *, sync: bool = True) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives a temporary path for a name: all become files of ``folder``
    together, or none does.

    They count as written once their checksums are, and what a killed process has not renamed by
    then, ``check_files`` does. Without ``sync``, a power cut may bring back what was there before.
    """
    parts: dict[str, Path] = {}

    def part(name: str) -> Path:
        parts[name] = _part(folder / name)
        return parts[name]

    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield part
        for path in parts.values():
            _sync(path)
        sums = {name: checksum(path) for name, path in parts.items()}
        with suppress(Damaged):  # the checksums of other files are lost
            sums = {**(_checksums(folder) or {}), **sums}
        with replacing(folder / CHECKSUMS, sync=False) as path:
            path.write_text(json.dumps(sums, indent=1) + "\n", "utf-8")
    except BaseException:
        for path in parts.values():
            with suppress(OSError):
                path.unlink()
        raise
    for name, path in parts.items():
        os.replace(path, folder / name)
    if sync:
        sync_folder(folder)


def write_checked(path: Path, text: str) -> None:
    """Write a text file and its checksum, without ``sync``: it is written often, or can be made
    again.
    """
    with replacing_all(path.parent, sync=False) as part:
        part(path.name).write_text(text, "utf-8")


def check_files(folder: Path, *names: str) -> None:
    """Refuse files that are not as ``replacing_all`` wrote them; files without a checksum are not
    checked.
    """
    sums = _checksums(folder) or {}
    for name in (name for name in names if name in sums):
        path = folder / name
        part = _part(path)
        if path.exists() and checksum(path) == sums[name]:
            continue
        if part.exists() and checksum(part) == sums[name]:
            os.replace(part, path)
        elif path.exists():
            raise Damaged(
                f"Expected {path} as it was written, got something else: it is damaged, or was"
                f" changed later. Restore it from a copy, or remove {folder / CHECKSUMS} to have it"
                " read as it is."
            )


def _checksums(folder: Path) -> dict[str, str] | None:
    path = folder / CHECKSUMS
    try:
        sums = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        sums = None
        got = f": {error}"
    else:
        got = " other JSON"
    if not isinstance(sums, dict):
        raise Damaged(
            f"Expected checksums in {path}, got{got}. Remove it to have the other files read as"
            " they are."
        )
    return sums


# Tensors, with their checksum in the header


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file with a digest of all that it holds in the header."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    about = {**(header or {}), "digest": _tensors_digest(tensors, header or {})}
    with replacing(path) as part:
        try:
            save_file(dict(tensors), part, about)
        except SafetensorError as error:  # of a full disk, for example
            raise OSError(str(error)) from error


def read_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the header of a file that `write_tensors` wrote, once its digest is
    checked.
    """
    from safetensors import SafetensorError, safe_open

    if not path.stat().st_size:
        raise Damaged("an empty file")
    try:
        with safe_open(path, "pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise Damaged(f"a file that is cut off or damaged ({error})") from error
    if "digest" not in header:
        raise Damaged("no checksum in its header")
    if header.pop("digest") != _tensors_digest(tensors, header):
        raise Damaged("content that does not match its checksum: the file is damaged")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, header


def _tensors_digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Return the XXH3 of the header and of the names, types, shapes and bytes of the tensors."""
    import torch

    names = sorted(tensors)
    kinds = [(name, str(tensors[name].dtype), tensors[name].shape) for name in names]
    digest = xxhash.xxh3_128(json.dumps([header, kinds], sort_keys=True).encode())
    for name in names:
        content = tensors[name].detach().cpu().flatten().view(torch.uint8)
        digest.update(content.numpy().data)
    return digest.hexdigest()


class Lock:
    """The right to write somewhere, of one process at a time; ``held`` is False if another one has
    it.

    The file names the holder, from its second byte on: Windows lets no one read the first while it
    is locked.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            self.held = False
            return
        self.held = True
        self._path = path
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        # it is held without a name, too
        with suppress(OSError), open(path, "r+b", buffering=0) as file:
            file.seek(1)
            file.write(json.dumps(about).ljust(_WIDTH).encode())

    def release(self) -> None:
        if self.held:
            with suppress(OSError):  # Windows removes no open file
                # whoever has it open sees that its name is gone, and does not take it
                self._path.unlink()
            self._lock.release()
        self.held = False


def holder(path: Path) -> dict[str, Any] | None:
    """The process and machine that hold the lock now; None if none does, {} if it is not known
    which.
    """
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


def describe_holder(about: dict[str, Any]) -> str:
    """A holder in words.

    >>> describe_holder({"pid": 7, "host": "a"}), describe_holder({})
    ('process 7 on a', 'another process')
    """
    return f"process {about['pid']} on {about.get('host')}" if "pid" in about else "another process"
