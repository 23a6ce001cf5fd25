"""Limits on what a file or a connection may ask for, so that a small one cannot take all memory:
all in one place.

Each can be raised by an environment variable, which the refusal names.
"""

import os
from pathlib import Path
from zipfile import ZipFile

LIMITS = {
    "pixels": 2**26,  # of a picture: 8192 × 8192, of which decoding takes up to 1.3 GB
    "unpacking": 200,  # bytes that a byte of a packed file may become, of more than FREE of them
    "archive_bytes": 2**30,  # that a downloaded archive may unpack to; CIFAR's unpack to 190 MB
    "connections": 200,  # that a review server has open
    "request_seconds": 30,  # until a request has arrived whole, or a part of its answer was read
    "request_bytes": 2**26,
}
FREE = 2**27  # bytes that any packed file may have: highly regular data is packed a thousandfold


class LimitExceeded(ValueError):
    """A file or a request that asks for more than a limit."""


def limit(name: str) -> int:
    """Return a limit from the environment, or from ``LIMITS``."""
    variable = variable_of(name)
    text = os.environ.get(variable, "")
    if text and not (text.isdecimal() and int(text)):
        raise ValueError(
            f"Expected a whole number of at least 1 in the environment variable {variable}, got"
            f" {text!r}."
        )
    return int(text) if text else LIMITS[name]


def variable_of(name: str) -> str:
    return f"NOISEPROOF_MAX_{name.upper()}"


def check_limit(name: str, value: int, what: str, source: object) -> None:
    """Refuse more than a limit; ``what`` has the unit, ``source`` says where it is.

    >>> check_limit("pixels", 10**9, "pixels", "a.png")
    Traceback (most recent call last):
    noiseproof.core.limits.LimitExceeded: Expected at most 67108864 pixels in a.png, got 1000000...
    """
    if value > (most := limit(name)):
        remedy = f"If you trust it, set {variable_of(name)}={value}."
        raise LimitExceeded(f"Expected at most {most} {what} in {source}, got {value}. {remedy}")


def check_unpacked(unpacked: int, packed: int, source: object) -> None:
    """Refuse a file that becomes much larger when it is unpacked; the first ``FREE`` bytes may."""
    if unpacked > FREE:
        check_limit(
            "unpacking",
            -(-unpacked // max(packed, 1)),
            "unpacked bytes for each packed one",
            source,
        )


def check_members(archive: ZipFile, path: Path, names: set[str] | None = None) -> None:
    """Refuse a zip file whose members, all or the ``names``, become much larger when they are
    unpacked.
    """
    members = [info for info in archive.infolist() if names is None or info.filename in names]
    check_unpacked(
        sum(info.file_size for info in members), sum(info.compress_size for info in members), path
    )
