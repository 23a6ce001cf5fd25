"""Downloads from the official sources: resumed where they stopped, checked before they are used, extracted safely."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from noiseproof.data.sources import DATASETS, PathLike, data_root

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all

CHUNK = 2**20
LARGEST_ARCHIVE = 2**30  # bytes that an archive may unpack to; CIFAR's unpack to 190 MB


@dataclass(frozen=True)
class Download:
    """One official file: where it is, what it must hash to, where it goes, and the folder it unpacks to."""

    url: str
    md5: str
    path: str
    folder: str | None = None

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


def _idx(base: str, folder: str, md5s: tuple[str, str, str, str]) -> tuple[Download, ...]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Download(f"{base}{stem}-ubyte.gz", md5, f"{folder}/raw/{stem}-ubyte.gz")
        for stem, md5 in zip(stems, md5s, strict=True)
    )


def _cifar(archive: str, md5: str, folder: str) -> Download:
    return Download(f"https://www.cs.toronto.edu/~kriz/{archive}", md5, archive, folder)


def _human(name: str, md5: str) -> Download:
    return Download(
        f"https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/{name}", md5, f"cifar-n/{name}"
    )


_CIFAR10 = _cifar("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py")
_CIFAR100 = _cifar("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python")

DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",  # LeCun's own site refuses downloads
        "MNIST",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "FashionMNIST",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": (_CIFAR10,),
    "cifar100": (_CIFAR100,),
    "cifar10n": (_CIFAR10, _human("CIFAR-10_human.pt", "96644db5574813cae939af5f7f2a0aec")),
    "cifar100n": (_CIFAR100, _human("CIFAR-100_human.pt", "a67b45c1d7992051865b5c755bd68bb1")),
}

ASK: dict[str, str] = {
    "clothing1m": "Its makers send the link on request: see https://github.com/Cysu/noisy_label. Unpack the images "
    "and the annotation lists into the folder clothing1M",
    "animal10n": "Fill in the form on https://dm.kaist.ac.kr/datasets/animal-10n and unpack the raw images "
    "(folders training and testing) into the folder ANIMAL-10N",
    "webvision": "Accept the terms on https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html and unpack the "
    "resized Google images, the validation images and info into the folder webvision",
}


def fetch(
    name: str, data_dir: PathLike | None = None, *, progress: Progress | None = None, base_url: str | None = None
) -> tuple[Path, ...]:
    """Download the official files of ``name`` into the data folder and return where they are.

    An interrupted download goes on where it stopped; a file is used only after its checksum matched.
    ``base_url`` is a mirror that holds the files under their own names.
    """
    root = data_root(data_dir)
    if name in ASK:
        raise PermissionError(f"{name} can't be downloaded without asking. {ASK[name]} of {root}.")
    if name not in DOWNLOADS:
        DATASETS[name]  # refuses a name that does not exist
        raise ValueError(f"{name} needs no download.")
    places = []
    for item in DOWNLOADS[name]:
        place = root / (item.folder or item.path)
        unpacked = place.with_name(place.name.removesuffix(".gz"))
        if unpacked.exists():
            place = unpacked
        elif not place.exists():
            archive = root / item.path
            here = archive.exists() and md5(archive) == item.md5
            if not here:
                url = f"{base_url.rstrip('/')}/{item.name}" if base_url else item.url
                download(url, archive, item.md5, progress=progress)
            if item.folder is not None:
                extract(archive, root, item.folder)
                if not here:  # an archive that the user put there stays
                    archive.unlink()
        places.append(place)
    return tuple(places)


def md5(path: Path) -> str:
    """The checksum that the official pages give; it guards against accidents, the safe readers against the rest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, path: Path, checksum: str, *, progress: Progress | None = None, timeout: float = 30) -> None:
    """Download ``url`` to ``path`` by way of ``path.part``, which a later call continues."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"Expected an http or https address, got {url!r}.")
    part = path.with_name(path.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _receive(url, part, progress, timeout)
    found = md5(part)
    if found != checksum:
        part.unlink()
        if resumed:  # the part may have been of another version of the file
            return download(url, path, checksum, progress=progress, timeout=timeout)
        raise ValueError(
            f"Expected the md5 checksum {checksum} of {url}, got {found}; the download is deleted. "
            f"Try again, or download the file by other means to {path}."
        )
    os.replace(part, path)


def _receive(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "noiseproof"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            if reply.status != 206:  # the server sends all of it, or there was nothing to resume
                done = 0
            length = reply.headers.get("Content-Length")
            total = done + int(length) if length is not None else None
            part.parent.mkdir(parents=True, exist_ok=True)  # only now: an empty folder would look like the dataset's
            with part.open("ab" if done else "wb") as file:
                while chunk := reply.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(part.name.removesuffix(".part"), done, total)
        if total is not None and done < total:
            raise http.client.IncompleteRead(b"", total - done)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send: the part is whole, or not of this file; the checksum will tell
            return
        raise ConnectionError(
            f"{url} answered {error.code} {error.reason}. Download it by other means to {part.with_suffix('')}."
        ) from error
    except urllib.error.URLError as error:
        raise ConnectionError(
            f"No network: {url} can't be reached ({error.reason}). Download it elsewhere and put it at "
            f"{part.with_suffix('')}, or set NOISEPROOF_DATA to a folder that has it."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"The download of {url} broke off after {done} bytes ({type(error).__name__}: {error}). "
            "Run the same command again: it goes on from there."
        ) from error


def extract(archive: Path, root: Path, folder: str) -> None:
    """Unpack ``folder`` of a tar archive into ``root``: plain files inside that folder only, all or nothing."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".extract-") as scratch:
        size = 0
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    parts = PurePosixPath(member.name).parts
                    if not (member.isreg() or member.isdir()) or ".." in parts or parts[:1] != (folder,):
                        raise ValueError(f"the member {member.name!r}")
                    size += member.size
                    if size > LARGEST_ARCHIVE:
                        raise ValueError(f"more than {LARGEST_ARCHIVE} bytes")
                    target = Path(scratch, *parts)
                    (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
                    if (source := tar.extractfile(member)) is not None:
                        with source, target.open("xb") as file:  # neither owner nor mode come from the archive
                            shutil.copyfileobj(source, file)
        except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
            raise ValueError(
                f"Expected {archive} to hold plain files in {folder}/ and nothing else, got {error}. "
                "Nothing was unpacked; delete the archive and fetch it again."
            ) from error
        os.rename(Path(scratch) / folder, root / folder)
