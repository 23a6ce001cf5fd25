"""Small files that ask for much memory are refused, by the name of the limit, before they get
it.
"""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from noiseproof.audit.inputs import read_rows
from noiseproof.core.limits import (
    LIMITS,
    LimitExceeded,
    check_limit,
    check_unpacked,
    limit,
    variable_of,
)
from noiseproof.data.images import decode

MB, SIDE = 2**20, 8_300
MEASURE = """
import json, resource, sys
import numpy, pandas, torch, scipy.sparse, openpyxl, pyarrow.parquet, PIL.Image
import noiseproof.audit, noiseproof.estimator
from noiseproof.audit.inputs import read_rows
from noiseproof.data.research.cifar import read_batch
from noiseproof.data.images import decode
from noiseproof.noise.human import read_columns

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

outcomes, before = {}, peak()
for name, code in json.load(sys.stdin).items():
    try:
        said = str(eval(code))
    except ValueError as error:
        said = str(error)
    outcomes[name], before = (said, peak() - before), peak()
print(json.dumps(outcomes))
"""


def png(path: Path) -> None:
    """A PNG of one colour, written line by line, so that this process does not hold it, either."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    packer = zlib.compressobj(1)
    content = b"".join(
        [*(packer.compress(bytes(1 + 4 * SIDE)) for _ in range(SIDE)), packer.flush()]
    )
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 6, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", content), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def npz(path: Path, name: str) -> None:
    """A .npz file to which the array ``name`` is added, of 400 MB."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (50_000, 1000)}
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{name}.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
        for _ in range(50):
            file.write(bytes(8_000_000))


def gz(path: Path) -> None:
    with gzip.open(path, "wb", 6) as file:
        file.write(b"x,y\n1,a\n2,b\n")
        for _ in range(300):
            file.write(b"1,a\n" * (MB // 4))


def xlsx(path: Path) -> None:
    pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}).to_excel(path, index=False)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as book,
        book.open("xl/more.xml", "w") as file,
    ):
        for _ in range(300):
            file.write(bytes(MB))


def parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros, schema = (
        pa.array(np.zeros(1_000_000)),
        pa.schema([("x", pa.float64()), ("y", pa.float64())]),
    )
    with pq.ParquetWriter(path, schema) as file:
        for _ in range(50):
            file.write_table(pa.table([zeros, zeros], schema=schema))


def pictures(path: Path) -> None:
    for i in range(8):
        file = path / ("cat" if i < 4 else "dog") / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (i * 20, 0, 0)).save(file)
    png(path / "dog" / "9.png")


def unused(path: Path) -> None:
    np.savez_compressed(
        path, x=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2
    )
    npz(path, "other")


def used(path: Path) -> None:
    np.savez_compressed(path, labels=np.arange(50_000) % 2)
    npz(path, "x")


def pickled(path: Path) -> None:
    blob = b"\x80\x05\x96" + struct.pack("<Q", 4 * 2**30) + b"..."
    assert len(blob) == 14
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels/data.pkl", blob)


def nested(path: Path) -> None:
    """Thirty lists, each of the one before twice: a billion numbers in a few hundred bytes."""
    lists: list[object] = [0, 0]
    for _ in range(30):
        lists = [lists, lists]
    pixels = np.zeros((2, 3072), np.uint8)
    path.write_bytes(pickle.dumps({b"data": pixels, b"labels": lists}, 2))


UNPACKED = "Expected at most 200 unpacked bytes for each packed one in {path}, got "
TOO_MANY = (
    f"Expected at most {2**26} pixels in {{path}}, got {SIDE**2}. If you trust it, set"
    " NOISEPROOF_MAX_PIXELS="
)
SKIPPED = f"(8, 'a picture of more than {2**26} pixels (NOISEPROOF_MAX_PIXELS raises that)', None)"
READ = "(lambda rows: (len(rows), rows.skipped[0].reason, rows.source.picture(8, 'dog/9.png', 64)))"
TENSORS = "Expected {path} to hold tensors, arrays or lists of integers and nothing else. "
LISTS = (
    "Expected a CIFAR python batch of 2 images in {path}, got ValueError('labels that are not"
    " integers')"
)
# file, how it is made, how it is read, what is said
BOMBS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a.png": (png, "decode(PATH, 32)", TOO_MANY),
    "photos": (pictures, f"{READ}(read_rows(PATH, features='pixels'))", SKIPPED),
    "unused.npz": (unused, "len(read_rows(PATH))", "40"),
    "used.npz": (used, "read_rows(PATH)", UNPACKED),
    "t.csv.gz": (gz, "read_rows(PATH, label='y')", UNPACKED),
    "t.xlsx": (xlsx, "read_rows(PATH, label='y')", UNPACKED),
    "t.parquet": (parquet, "read_rows(PATH, label='y')", UNPACKED),
    "labels.pt": (pickled, "read_columns(PATH)", TENSORS),
    "batch": (nested, "read_batch(PATH, 2)", LISTS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bombs")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, tuple[str, int]]:
    """What a process says of each file, and by how many MB its largest memory grows meanwhile."""
    codes = {}
    for name, (write, code, _) in BOMBS.items():
        write(folder / name)
        codes[name] = code.replace("PATH", f"__import__('pathlib').Path({str(folder / name)!r})")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=json.dumps(codes), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_does_not_take_much_memory(
    name: str, folder: Path, outcomes: dict[str, tuple[str, int]]
) -> None:
    path, (said, grown) = folder / name, outcomes[name]
    assert said.startswith(BOMBS[name][2].replace("{path}", str(path))), said
    assert grown < 150
    assert path.is_dir() or path.stat().st_size < 4 * MB


def test_a_picture_is_read_once_the_limit_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    Image.new("L", (100, 100)).save(path)
    monkeypatch.setenv("NOISEPROOF_MAX_PIXELS", "9999")
    with pytest.raises(LimitExceeded, match="set NOISEPROOF_MAX_PIXELS=10000"):
        decode(path, 8)
    monkeypatch.setenv("NOISEPROOF_MAX_PIXELS", "10000")
    assert decode(path, 8).shape == (3, 8, 8)
    monkeypatch.setenv("NOISEPROOF_MAX_PIXELS", "many")
    with pytest.raises(
        ValueError,
        match="Expected a whole number of at least 1 .* NOISEPROOF_MAX_PIXELS, got 'many'",
    ):
        decode(path, 8)


def test_indices_outside_of_a_sparse_matrix_are_refused(tmp_path: Path) -> None:
    from scipy import sparse

    matrix = sparse.random(40, 5, 0.5, "csr", random_state=0)
    matrix.indices[3] = 10**6
    sparse.save_npz(tmp_path / "x.npz", matrix)
    with pytest.raises(ValueError, match="Expected arrays of numbers or words in .*x.npz"):
        read_rows(tmp_path / "x.npz", labels=np.arange(40) % 2)


def test_every_limit_is_named_in_its_refusal_and_raised_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, most in LIMITS.items():
        check_limit(name, most, "things", "a file")
        with pytest.raises(
            LimitExceeded,
            match=f"at most {most} things in a file, .*{variable_of(name)}={most + 1}",
        ):
            check_limit(name, most + 1, "things", "a file")
        monkeypatch.setenv(variable_of(name), str(most + 1))
        check_limit(name, most + 1, "things", "a file")
        assert limit(name) == most + 1
    monkeypatch.undo()
    check_unpacked(2**27, 1, "a file")
    check_unpacked(2**27 + 200, (2**27 + 200) // 200 + 1, "a file")
    with pytest.raises(LimitExceeded, match="unpacked bytes for each packed one"):
        check_unpacked(2**27 + 200, 1000, "a file")
