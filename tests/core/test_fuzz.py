"""Every reader of files, on damaged ones: it reads them, or refuses them in words that name what
was expected.

Hypothesis cuts, flips, repeats and mixes bytes of whole files. Files that once did harm are kept in
``tests/corpus``, in a folder for each reader, and read on every run.
"""

from __future__ import annotations

import gzip
import io
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from handmade_audit import write_table_audit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from noiseproof.audit.decisions import Decision, read_log, write_csv
from noiseproof.audit.files import read_audit
from noiseproof.audit.inputs import read_rows
from noiseproof.audit.records import open_records
from noiseproof.data.images import decode
from noiseproof.data.research.cifar import read_batch
from noiseproof.data.research.idx import read_idx
from noiseproof.noise.human import read_columns

CORPUS = Path(__file__).parents[1] / "corpus"
FRAME = pd.DataFrame(
    {
        "x": np.arange(12) / 7,
        "w": ["é", "b,c", 'q"t', ""] * 3,
        "y": ["cat", "dog"] * 6,
        "when": ["2020-01-31"] * 12,
    }
)


@dataclass(frozen=True)
class Reader:
    """A file that is whole, and how it is read."""

    name: str  # of the file
    whole: Callable[[], bytes]
    read: Callable[[Path], Any]


def bytes_of(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def a_table(path: Path) -> None:
    read_rows(path, label="y", features=None)
    records = open_records(path, ["y"])
    records.digests()
    records.column("y")


def picture(kind: str) -> bytes:
    colours = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    return bytes_of(lambda file: Image.fromarray(colours).save(file, kind))


def a_batch() -> bytes:
    import pickle

    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}, 2)


def an_archive() -> bytes:
    x = np.random.default_rng(0).normal(size=(12, 2))
    return bytes_of(lambda file: np.savez_compressed(file, x=x, labels=np.arange(12) % 2))


def a_sparse_matrix() -> bytes:
    from scipy import sparse

    return bytes_of(
        lambda file: sparse.save_npz(file, sparse.random(12, 6, 0.5, "csr", random_state=0))
    )


def part_of_audit(name: str) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            audit = write_table_audit(Path(folder), rows=12, issues=4)
            (audit / name).write_bytes(path.read_bytes())
            read_audit(audit)

    return read


def file_of_audit(name: str) -> Callable[[], bytes]:
    def whole() -> bytes:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            return (write_table_audit(Path(folder), rows=12, issues=4) / name).read_bytes()

    return whole


LINES = [
    Decision(1, "1", "cat", "accept", "dog"),
    Decision(2, "é", "cat", "note", "", note='a "b"\n'),
]


def some_decisions() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "decisions.csv")
        write_csv(LINES, path)
        return path.read_bytes()


LABELS = np.arange(12) % 2
IDX = bytes([0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(12)
READERS = {
    "csv": Reader("t.csv", lambda: FRAME.to_csv(index=False).encode(), a_table),
    "csv.gz": Reader(
        "t.csv.gz", lambda: gzip.compress(FRAME.to_csv(index=False).encode(), mtime=0), a_table
    ),
    "utf-16": Reader("t.csv", lambda: FRAME.to_csv(index=False).encode("utf-16"), a_table),
    "jsonl": Reader(
        "t.jsonl", lambda: FRAME.to_json(orient="records", lines=True).encode(), a_table
    ),
    "xlsx": Reader(
        "t.xlsx", lambda: bytes_of(lambda file: FRAME.to_excel(file, index=False)), a_table
    ),
    "parquet": Reader("t.parquet", lambda: bytes_of(lambda file: FRAME.to_parquet(file)), a_table),
    "npy": Reader(
        "x.npy",
        lambda: bytes_of(lambda file: np.save(file, np.eye(12))),
        lambda path: read_rows(path, labels=LABELS),
    ),
    "npz": Reader("d.npz", an_archive, lambda path: read_rows(path)),
    "sparse": Reader("s.npz", a_sparse_matrix, lambda path: read_rows(path, labels=LABELS)),
    "png": Reader("a.png", lambda: picture("PNG"), lambda path: decode(path, 8)),
    "jpeg": Reader("a.jpg", lambda: picture("JPEG"), lambda path: decode(path, 8)),
    "gif": Reader("a.gif", lambda: picture("GIF"), lambda path: decode(path, 8)),
    "tiff": Reader("a.tif", lambda: picture("TIFF"), lambda path: decode(path, 8)),
    "webp": Reader("a.webp", lambda: picture("WEBP"), lambda path: decode(path, 8)),
    "ppm": Reader("a.ppm", lambda: picture("PPM"), lambda path: decode(path, 8)),
    "idx": Reader("a.idx", lambda: IDX, lambda path: read_idx(path, (3, 4))),
    "idx.gz": Reader(
        "a.gz", lambda: gzip.compress(IDX, mtime=0), lambda path: read_idx(path, (3, 4))
    ),
    "batch": Reader("data_batch_1", a_batch, lambda path: read_batch(path, 2)),
    "labels.csv": Reader("a.csv", lambda: b"one,two\n1,2\n0,\n", read_columns),
    "labels.npy": Reader(
        "a.npy", lambda: bytes_of(lambda file: np.save(file, LABELS)), read_columns
    ),
    "labels.pt": Reader(
        "a.pt", lambda: bytes_of(lambda file: torch.save(torch.arange(3), file)), read_columns
    ),
    "decisions": Reader("decisions.csv", some_decisions, read_log),
    "issues": Reader("issues.csv", file_of_audit("issues.csv"), part_of_audit("issues.csv")),
    "summary": Reader("summary.json", file_of_audit("summary.json"), part_of_audit("summary.json")),
    "config": Reader("config.json", file_of_audit("config.json"), part_of_audit("config.json")),
}
SMALL = [
    b"",
    b"\x00",
    b"\xff" * 4,
    b"[" * 5000,
    b"{}",
    b"9" * 400,
    b"-1",
    b'"',
    b"\n\n",
    b"\r",
    b"NaN",
    b"1e999",
]
_WHOLE: dict[str, bytes] = {}


def check(reader: Reader, path: Path) -> None:
    """Read a file, or see it refused in our words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except (ValueError, TypeError, FileNotFoundError) as error:
        assert str(error).startswith(("Expected", "Unknown")), repr(error)


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject, tmp_path: Path) -> None:
    reader = READERS[name]
    whole = _WHOLE.setdefault(name, reader.whole())
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(len(content) - 1, 0)))
        kind = data.draw(st.sampled_from(["flip", "cut", "drop", "put", "repeat", "replace"]))
        if kind == "flip" and content:
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place:]
        elif kind == "drop":
            del content[place : place + data.draw(st.integers(1, 20))]
        elif kind == "put":
            content[place:place] = data.draw(st.sampled_from(SMALL) | st.binary(max_size=20))
        elif kind == "repeat":
            content[place:place] = content[place : place + data.draw(st.integers(1, 200))]
        else:
            part = data.draw(st.sampled_from(SMALL))
            content[place : place + len(part)] = part
    path = tmp_path / reader.name
    path.write_bytes(content)
    check(reader, path)


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_and_no_file_at_all(name: str, tmp_path: Path) -> None:
    reader, path = READERS[name], tmp_path / READERS[name].name
    path.write_bytes(reader.whole())
    reader.read(path)
    for content in SMALL:
        path.write_bytes(content)
        check(reader, path)


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_what_once_did_harm(path: Path, tmp_path: Path) -> None:
    reader = READERS[path.parent.name]
    copy = tmp_path / reader.name
    copy.write_bytes(path.read_bytes())
    check(reader, copy)
