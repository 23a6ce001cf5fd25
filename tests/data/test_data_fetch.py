"""Downloads against a local server: resumed, checked, refused, and extracted without trusting the
archive.
"""

import hashlib
import io
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from noiseproof.data import get_dataset
from noiseproof.data.research import fetch
from noiseproof.data.research.fetch import download, extract
from noiseproof.data.sources import FILES, Download, OfficialFiles

BODY = bytes(range(256)) * 4000
MD5 = hashlib.md5(BODY).hexdigest()


class Server:
    """Serves ``files`` with Range support; ``cut`` breaks the connection after so many bytes of an
    answer.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.ranges = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Range")))
                body = outer.files.get(self.path)
                if body is None:
                    return self.send_error(404)
                start = 0
                if outer.ranges and (
                    match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
                ):
                    start = int(match[1])
                    if start >= len(body):
                        return self.send_error(416)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self.wfile.write(body[start:][: outer.cut])
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()
    server.thread.join()


def test_a_download_is_whole_checked_and_reported(server: Server, tmp_path: Path) -> None:
    server.files["/a/file.bin"] = BODY
    seen: list[tuple[str, int, int | None]] = []
    download(
        f"{server.url}/a/file.bin",
        tmp_path / "sub" / "file.bin",
        MD5,
        progress=lambda *step: seen.append(step),
    )
    assert (tmp_path / "sub" / "file.bin").read_bytes() == BODY
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["file.bin"]
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"], server.cut = BODY, 300_000
    path = tmp_path / "file.bin"
    with pytest.raises(
        ConnectionError, match="stopped after 300000 bytes.*Run the same command again"
    ):
        download(f"{server.url}/file.bin", path, MD5)
    assert not path.exists() and (tmp_path / "file.bin.part").stat().st_size == 300_000
    server.cut = None
    seen: list[int] = []
    download(f"{server.url}/file.bin", path, MD5, progress=lambda _, done, total: seen.append(done))
    assert server.asked == [("/file.bin", None), ("/file.bin", "bytes=300000-")]
    assert path.read_bytes() == BODY and seen[0] > 300_000
    assert not (tmp_path / "file.bin.part").exists()


def test_a_server_that_can_not_resume_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"], server.ranges = BODY, False
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    download(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize(
    "part", [BODY, b"of another version", BODY + b"longer"], ids=["whole", "other", "longer"]
)
def test_what_a_part_holds_is_never_trusted(server: Server, tmp_path: Path, part: bytes) -> None:
    server.files["/file.bin"] = BODY
    (tmp_path / "file.bin.part").write_bytes(part)
    download(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_corrupted_download_is_refused_and_deleted(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = BODY[:-1] + b"!"
    with pytest.raises(
        ValueError, match=f"Expected the md5 checksum {MD5} of {server.url}/file.bin, got .*deleted"
    ):
        download(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert list(tmp_path.iterdir()) == []


def test_no_network_and_missing_files_are_said_plainly(server: Server, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(
        ConnectionError,
        match=f"{port}/x.bin stopped after 0 bytes.*put the file at {tmp_path / 'x.bin'}",
    ):
        download(f"http://127.0.0.1:{port}/x.bin", tmp_path / "x.bin", MD5)
    with pytest.raises(ConnectionError, match="HTTP Error 404: Not Found"):
        download(f"{server.url}/none", tmp_path / "none", MD5)
    with pytest.raises(
        ValueError, match="Expected an http or https address, got 'file:///etc/passwd'"
    ):
        download("file:///etc/passwd", tmp_path / "x", MD5)


@pytest.mark.parametrize("name", ["clothing1m", "animal10n", "webvision"])
def test_sets_behind_a_form_say_where_to_ask(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        PermissionError,
        match=f"{name} can't be downloaded automatically. .*https://.* of {tmp_path}",
    ):
        fetch.fetch(name, tmp_path)
    with pytest.raises(FileNotFoundError, match="https://"):
        get_dataset(name, tmp_path)
    assert not FILES[name].downloads


def pack(path: Path, members: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for name, blob in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))
    return path.read_bytes()


def test_fetch_unpacks_an_archive_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = pack(tmp_path / "made.tar.gz", {"toy-folder/a": b"1", "toy-folder/deep/b": b"22"})
    server.files["/toy.tar.gz"] = blob
    item = Download(
        f"{server.url}/toy.tar.gz",
        hashlib.md5(blob).hexdigest(),
        "toy.tar.gz",
        "toy-folder",
    )
    monkeypatch.setitem(FILES, "toy", OfficialFiles((("toy-folder",),), (item,)))
    root = tmp_path / "data"
    for _ in range(2):
        assert fetch.fetch("toy", root) == (root / "toy-folder",)
    assert len(server.asked) == 1
    assert (root / "toy-folder/deep/b").read_bytes() == b"22"
    assert [path.name for path in root.iterdir()] == ["toy-folder"]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("toy/../../outside"),
        member("/tmp/outside-noiseproof"),
        member("other/file"),
        member("toy/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("toy/link", tarfile.LNKTYPE, "toy/a"),
        member("toy/device", tarfile.CHRTYPE),
        member("toy/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type.decode()}",
)
def test_a_hostile_archive_writes_nothing(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive, root = tmp_path / "toy.tar.gz", tmp_path / "data"
    root.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(member("toy", tarfile.DIRTYPE))
        tar.addfile(member("toy/a"))
        tar.addfile(bad)
    with pytest.raises(
        ValueError, match=f"Expected {archive} to hold plain files in toy/ .*Nothing was unpacked"
    ):
        extract(archive, root, "toy")
    assert list(root.iterdir()) == [] and sorted(path.name for path in tmp_path.iterdir()) == [
        "data",
        "toy.tar.gz",
    ]


def test_archives_that_are_cut_or_swell_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = pack(tmp_path / "toy.tar.gz", {"toy/a": bytes(5000), "toy/b": bytes(5000)})
    monkeypatch.setenv("NOISEPROOF_MAX_ARCHIVE_BYTES", "9000")
    with pytest.raises(ValueError, match="at most 9000 bytes"):
        extract(tmp_path / "toy.tar.gz", tmp_path, "toy")
    (tmp_path / "toy.tar.gz").write_bytes(blob[: len(blob) // 2])
    with pytest.raises(ValueError, match="Nothing was unpacked"):
        extract(tmp_path / "toy.tar.gz", tmp_path, "toy")
    assert [path.name for path in tmp_path.iterdir()] == ["toy.tar.gz"]
