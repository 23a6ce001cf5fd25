"""Downloads from the official sources: resumed after an interruption, verified by checksum,
extracted safely.
"""

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.request
import zlib
from pathlib import Path, PurePosixPath

from noiseproof.core.limits import check_limit
from noiseproof.core.messages import Progress
from noiseproof.data.sources import DATASETS, FILES, Download, PathLike, data_root

CHUNK = 2**20
TIMEOUT = 30  # seconds


def fetch(
    name: str,
    data_dir: PathLike | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Download the official files of ``name`` into the data folder and return their paths.

    An interrupted download is resumed; a file is used only if its checksum matches.
    """
    root = data_root(data_dir)
    files = FILES.get(name)
    if files is None:
        DATASETS[name]  # refuses an unknown name
        raise ValueError(f"{name} needs no download.")
    if files.request:
        raise PermissionError(
            f"{name} can't be downloaded automatically. {files.request} of {root}."
        )
    return tuple(_fetch_one(item, root, progress) for item in files.downloads)


def _fetch_one(item: Download, root: Path, progress: Progress | None) -> Path:
    place = root / (item.folder or item.path)
    unpacked = place.with_name(place.name.removesuffix(".gz"))
    for path in (unpacked, place):
        if path.exists():
            return path
    archive = root / item.path
    was_there = archive.exists() and md5(archive) == item.md5
    if not was_there:
        download(item.url, archive, item.md5, progress=progress)
    if item.folder is not None:
        extract(archive, root, item.folder)
        if not was_there:  # an archive that the user put there stays
            archive.unlink()
    return place


def md5(path: Path) -> str:
    """The MD5 checksum, which the official pages publish; it detects accidents, not attacks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, path: Path, checksum: str, *, progress: Progress | None = None) -> None:
    """Download ``url`` to ``path`` through ``path.part``, which a later call resumes."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"Expected an http or https address, got {url!r}.")
    part = path.with_name(path.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _receive(url, part, progress)
    actual = md5(part)
    if actual != checksum:
        part.unlink()
        if resumed:  # the part may belong to another version of the file
            return download(url, path, checksum, progress=progress)
        raise ValueError(
            f"Expected the md5 checksum {checksum} of {url}, got {actual}; the download is deleted."
            f" Try again, or download the file yourself to {path}."
        )
    os.replace(part, path)


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "noiseproof"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            if reply.status != 206:  # the server sends the whole file
                done = 0
            length = reply.headers.get("Content-Length")
            total = done + int(length) if length is not None else None
            # not earlier: an empty folder would look like the dataset
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab" if done else "wb") as file:
                while chunk := reply.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(part.name.removesuffix(".part"), done, total)
        if total is not None and done < total:
            raise http.client.IncompleteRead(b"", total - done)
    except (OSError, http.client.HTTPException) as error:
        # 416, nothing left to send: the part is complete, or of another file; the checksum decides
        if getattr(error, "code", None) != 416:
            raise ConnectionError(
                f"The download of {url} stopped after {done} bytes ({type(error).__name__}:"
                f" {error}). Run the same command again to resume it. Without a network, put the"
                f" file at {part.with_suffix('')}, or set NOISEPROOF_DATA to a folder that has it."
            ) from error


def extract(archive: Path, root: Path, folder: str) -> None:
    """Unpack ``folder`` of a tar archive into ``root``: plain files inside that folder only, all or
    nothing.
    """
    with tempfile.TemporaryDirectory(dir=root, prefix=".extract-") as scratch:
        try:
            with tarfile.open(archive) as tar:
                size = 0
                members = []
                for member in tar:
                    is_plain = member.isreg() or member.isdir()
                    if not is_plain or PurePosixPath(member.name).parts[:1] != (folder,):
                        raise ValueError(f"the member {member.name!r}")
                    size += member.size
                    check_limit("archive_bytes", size, "bytes", archive)
                    members.append(member)
                # neither owner nor mode come from the archive, and no path leads out of the folder
                tar.extractall(Path(scratch, folder), members, filter="data")
        except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
            raise ValueError(
                f"Expected {archive} to hold plain files in {folder}/ and nothing else, got"
                f" {error}. Nothing was unpacked; delete the archive and fetch it again."
            ) from error
        os.rename(Path(scratch, folder, folder), root / folder)
