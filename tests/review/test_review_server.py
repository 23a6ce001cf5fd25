"""The review server as a browser and as an attacker meet it: a real process, killed and started
again.
"""

from __future__ import annotations

import csv
import io
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_table_audit
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from PIL import Image
from review_server import Server, ServerProcess
from typer.testing import CliRunner

from noiseproof.audit.decisions import (
    COLUMNS,
    FILE,
    NO_ROW,
    BadDecisions,
    Decision,
    DecisionLog,
    find_decisions,
    read_decisions,
    read_log,
    write_csv,
)
from noiseproof.audit.files import read_audit
from noiseproof.audit.sources import open_rows
from noiseproof.audit.sources.pictures import PictureSource
from noiseproof.cli import app
from noiseproof.data.images import decode
from noiseproof.review.queue import Queue

httpx = pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")

SECRET = b"root:x:0:0:secret"
CHOICES = ("accept", "keep", "skip")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_table_audit(root)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with Server(root / "audit") as running:
        yield running


# --- who is let in --------------------------------------------------------------------------------

PATHS = (
    "/",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/api/audit",
    "/api/issues",
    "/api/issues/next",
    "/api/rows/0",
    "/api/rows/0/picture",
    "/api/context/0",
    "/api/decisions",
    "/api/decisions/many",
    "/api/merges",
    "/api/undo",
    "/api/people",
    "/nowhere",
    "/favicon.ico",
)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_comes_without_the_token(server: Server, path: str) -> None:
    token = server.token
    for headers in (
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {token[:-1]}"},
        {"authorization": "Bearer é"},
        {"authorization": f"Basic {token}"},
        {"cookie": "noiseproof=1; ;;"},
        {"cookie": f"noiseproof={token}"},
    ):
        raw = {name: value.encode() for name, value in headers.items()}
        with httpx.Client(base_url=server.address, headers=raw) as stranger:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
                answer = stranger.request(method, path)
                assert answer.status_code == 401, (method, headers)
                assert "set-cookie" not in answer.headers
            assert stranger.get(path, params={"token": f"{token}x"}).status_code == 401


def test_the_address_with_the_token_sets_a_cookie_that_only_this_page_sends(server: Server) -> None:
    with httpx.Client(base_url=server.address) as client:
        answer = client.get("/", params={"token": server.token})
        # the token leaves the address bar
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        page = client.get("/")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert server.token not in page.text
        assert client.get("/api/audit").json()["total"] == 200
    # nowhere else
    assert httpx.get(f"{server.address}/api/audit?token={server.token}").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "",
        "0.0.0.0",
        "[",
    ],
)
def test_a_name_that_was_bent_to_this_machine_is_refused(server: Server, host: str) -> None:
    with server.client() as client:
        assert client.get("/api/audit", headers={"host": host}).status_code == 403
        assert (
            client.get("/api/audit", headers={"host": f"localhost:{server.port}"}).status_code
            == 200
        )


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"]
)
def test_other_sites_decide_nothing(server: Server, root: Path, origin: str) -> None:
    with server.client() as client:
        before = read_log(root / "audit" / FILE)
        word = {"row": 0, "decision": "accept"}
        assert (
            client.post("/api/decisions", json=word, headers={"origin": origin}).status_code == 403
        )
        # a plain form
        assert (
            client.post("/api/decisions", content='{"row":0,"decision":"accept"}').status_code
            == 422
        )
        assert read_log(root / "audit" / FILE) == before


def test_only_this_machine_can_connect(server: Server) -> None:
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", server.port))  # answered if it listened on every address


def test_answers_do_not_wait_for_acknowledgements() -> None:
    from noiseproof.review.server import bind

    with (
        bind() as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_every_answer_forbids_frames_sniffing_and_storing(server: Server) -> None:
    with server.client() as client:
        for answer in (client.get("/"), client.get("/api/issues"), httpx.get(server.address)):
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in answer.headers


# --- what it shows --------------------------------------------------------------------------------


def test_pages_of_issues_join_to_the_whole_list(server: Server) -> None:
    with server.client() as client:
        pages = [
            client.get("/api/issues", params={"offset": at, "limit": 64}).json()
            for at in range(0, 256, 64)
        ]
        rows = [issue["row"] for page in pages for issue in page["issues"]]
        assert rows == list(range(200)) and {page["total"] for page in pages} == {200}
        audit = client.get("/api/audit").json()
        assert audit["classes"] == ["cat", "dog", "fox", "owl"]
        assert sum(pair["issues"] for pair in audit["pairs"]) == 200
        pair = audit["pairs"][3]
        number = {side: audit["classes"].index(pair[side]) for side in ("given", "suggested")}
        only = client.get("/api/issues", params=number).json()
        assert only["total"] == pair["issues"] == len(only["issues"])
        assert {(i["given"], i["suggested"]) for i in only["issues"]} == {
            (pair["given"], pair["suggested"])
        }
        assert client.get("/api/issues", params={"given": 4}).json()["total"] == 0
        for bad in (
            {"limit": 0},
            {"limit": 501},
            {"offset": -1},
            {"offset": "x"},
            {"offset": 2**70},
        ):
            assert client.get("/api/issues", params=bad).status_code == 422


def test_a_row_is_shown_without_its_label_and_only_if_it_was_audited(server: Server) -> None:
    with server.client() as client:
        assert client.get("/api/rows/3").json() == {
            "fields": [["weight", "0.375"], ["note", 'number 3, "quoted" <b>bold</b> é']]
        }
        assert client.get("/api/rows/3/picture").status_code == 404
        # no issue, and beside issues to compare them with
        assert client.get("/api/rows/210").status_code == 200
        assert (
            client.get("/api/rows/220").status_code
            == client.get("/api/context/210").status_code
            == 404
        )
        for strange in (
            "-1",
            "1.5",
            "1e3",
            "９",
            "0x1",
            "..",
            "%2e%2e",
            "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
            "0%00",
        ):
            assert client.get(f"/api/rows/{strange}").status_code in (404, 422), strange
            assert client.get(f"/api/rows/{strange}/picture").status_code in (404, 422), strange
            assert client.get(f"/api/context/{strange}").status_code in (404, 422), strange


def write_pictures(root: Path) -> Path:
    """A folder of pictures with links that lead out of it, and its audit."""
    random = np.random.default_rng(0)
    (root / "outside").mkdir(parents=True)
    Image.fromarray(random.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(
        root / "outside" / "private.png"
    )
    (root / "outside" / "passwd").write_bytes(SECRET)
    for name in ("cat", "dog"):
        (root / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = random.integers(0, 255, (100, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / name / f"{i}.png")
    (root / "photos" / "cat" / "4.png").symlink_to(root / "outside" / "private.png")
    (root / "photos" / "cat" / "5.png").symlink_to(root / "outside" / "passwd")
    (root / "photos" / "cat" / "6.png").write_bytes(SECRET)
    files = sorted(
        p.relative_to(root / "photos").as_posix() for p in (root / "photos").rglob("*.png")
    )
    labels = [file.split("/")[0] for file in files]
    others = [{"cat": "dog", "dog": "cat"}[label] for label in labels]
    # an id is words, never a path
    ids = ["../outside/passwd" if i == 1 else file for i, file in enumerate(files)]
    return write_audit(
        root / "audit",
        labels,
        others,
        issues=len(files),
        kind="folder",
        data=root / "photos",
        ids=ids,
    )


def test_pictures_come_by_row_and_never_from_outside_the_folder(tmp_path: Path) -> None:
    with Server(write_pictures(tmp_path)) as server, server.client() as client:
        for row in (0, 2, 3, 7, 10):
            answer = client.get(f"/api/rows/{row}/picture", params={"side": 96})
            assert answer.status_code == 200 and answer.headers["content-type"] == "image/jpeg"
            assert answer.content != (tmp_path / "photos" / "cat" / "1.png").read_bytes()
        for row, why in (
            (1, "another id"),
            (4, "a link out"),
            (5, "a link out"),
            (6, "no picture"),
        ):
            answer = client.get(f"/api/rows/{row}/picture")
            assert answer.status_code == 404 and SECRET not in answer.content, why
        assert "another row is in this place" in client.get("/api/rows/1").json()["note"]
        assert "not in the folder of the dataset" in client.get("/api/rows/4").json()["note"]
        (tmp_path / "photos" / "cat" / "0.png").unlink()
        # bent meanwhile
        (tmp_path / "photos" / "cat" / "0.png").symlink_to(tmp_path / "outside" / "private.png")
        assert client.get("/api/rows/0/picture").status_code == 404
        for path in (
            "/../outside/passwd",
            "/api/rows/../../outside/passwd",
            "/%2e%2e/outside/passwd",
            "/x/../outside/passwd",
            f"/api/rows/{tmp_path}/outside/passwd",
            "/api/rows/..%2f..%2foutside%2fpasswd/picture",
            "//etc/passwd",
            "/photos/cat/1.png",
            "/decisions.csv",
            "/api/rows/1/picture/../../../outside/passwd",
        ):
            headers = (
                f"host: 127.0.0.1\r\nauthorization: Bearer {server.token}\r\nconnection: close"
            )
            request = f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n"
            # as it is: httpx would tidy it up
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(request.encode())
                answer = b"".join(iter(lambda: raw.recv(65536), b""))
            assert answer.split()[1] in (b"404", b"422", b"400"), path
            assert SECRET not in answer


def test_the_reviewer_sees_the_picture_that_was_audited(tmp_path: Path) -> None:
    shades = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30)
    turned = Image.Exif()
    turned[0x0112] = 6
    icon = Image.new("RGBA", (30, 20), (0, 0, 0, 0))
    icon.paste((0, 0, 0, 255), (5, 5, 9, 9))
    kinds = {
        "grey": Image.fromarray((shades // 3).astype(np.uint8)),
        "deep": Image.fromarray(shades * 100),
        "icon": icon,
        "palette": icon.convert("P"),
    }
    for name, picture in kinds.items():
        (tmp_path / name).mkdir()
        for exif in (None, turned):
            picture.save(
                tmp_path / name / f"{exif is turned}.png", **({"exif": exif} if exif else {})
            )
    rows = PictureSource({"data": tmp_path})
    for row in range(len(rows)):
        path, answer = rows.image_files.path(row), rows.picture(row, rows.ids[row], 96)
        assert answer is not None and answer[1] == "image/png"
        seen = np.asarray(Image.open(io.BytesIO(answer[0])))
        np.testing.assert_array_equal(
            seen, decode(path, None).permute(1, 2, 0).numpy(), err_msg=str(path)
        )
        assert (
            seen.shape == ((30, 20, 3) if path.stem == "True" else (20, 30, 3))
            and len(np.unique(seen)) > 1
        )


def test_where_labels_are_no_longer_those_that_were_audited_no_row_is_shown(tmp_path: Path) -> None:
    write_table_audit(tmp_path)
    lines = (tmp_path / "animals.csv").read_text("utf-8").splitlines(keepends=True)
    # every row moves up by one
    (tmp_path / "animals.csv").write_text("".join([lines[0], *lines[2:]]), "utf-8")
    pictures = write_pictures(tmp_path / "more")
    (tmp_path / "more" / "photos" / "cat" / "0.png").unlink()
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    np.save(arrays / "x.npy", np.arange(8.0).reshape(4, 2)[1:])
    np.save(arrays / "y.npy", np.array(["a", "b", "a", "b"])[1:])
    write_audit(
        arrays / "audit",
        list("abab"),
        list("baba"),
        issues=4,
        kind="arrays",
        data=arrays / "x.npy",
        labels=str(arrays / "y.npy"),
    )
    for folder in (tmp_path / "audit", pictures, arrays / "audit"):
        audit = read_audit(folder)
        rows = open_rows(audit.config)
        for row, id in audit.issues[["row", "id"]].itertuples(index=False):
            assert list(rows.show(row, id)) == ["note"] and rows.picture(row, id, 96) is None
            assert "changed since the audit" in rows.show(row, id)["note"]
    with Server(pictures) as server, server.client() as client:
        assert "changed since the audit" in client.get("/api/rows/0").json()["note"]
        assert client.get("/api/rows/0/picture").status_code == 404


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_row_whose_place_another_took_is_not_shown(tmp_path: Path, ending: str) -> None:
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(6)], "x": range(6), "y": list("aaabbb")})
    path = tmp_path / f"t.{ending}"
    folder = write_audit(
        tmp_path / "audit",
        frame["y"].tolist(),
        list("bbbaaa"),
        issues=6,
        kind="table",
        data=path,
        label="y",
        id="id",
        ids=frame["id"].tolist(),
    )

    def shown() -> list[str]:
        rows = open_rows(read_audit(folder).config)
        return [dict(rows.show(row, f"p{row}").get("fields", [])).get("x", "") for row in range(6)]

    for order, expected in (
        ([0, 1, 2, 3, 4, 5], list("012345")),
        ([0, 2, 1, 3, 4, 5], ["0", "", "", "3", "4", "5"]),
    ):
        table = frame.iloc[order]  # with the same labels in the same order
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
        assert shown() == expected


def test_a_picture_whose_place_another_took_is_not_shown(tmp_path: Path) -> None:
    audit = read_audit(write_pictures(tmp_path))
    (tmp_path / "photos" / "dog" / "1.png").rename(tmp_path / "photos" / "dog" / "9.png")
    rows = open_rows(audit.config)
    found = {row: rows.show(row, f"dog/{row - 7}.png") for row in (7, 8, 9, 10)}
    assert [row for row, content in found.items() if content == {"has_image": True}] == [7]
    assert rows.picture(9, "dog/2.png", 96) is None and "another row" in found[9]["note"]


def test_numbers_of_a_row_are_shown_as_they_are(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "key": [2**53 + 1, 7],
            "age": [23, 24],
            "x": [0.5, None],
            "y": ["a", "b"],
            "v": [[1, 2], []],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    folder = write_audit(
        tmp_path / "audit",
        ["a", "b"],
        ["b", "a"],
        issues=2,
        kind="table",
        data=tmp_path / "t.parquet",
        label="y",
    )
    rows = open_rows(read_audit(folder).config)
    first = [["key", "9007199254740993"], ["age", "23"], ["x", "0.5"], ["v", "[1 2]"]]
    assert rows.show(0, "0")["fields"] == first
    assert rows.show(1, "1")["fields"] == [["key", "7"], ["age", "24"], ["x", ""], ["v", "[]"]]


# --- what it keeps --------------------------------------------------------------------------------


def words(folder: Path) -> list[tuple[str, ...]]:
    write_csv(read_log(folder / FILE), folder / "copy.csv")
    with open(folder / "copy.csv", newline="", encoding="utf-8") as file:
        return [tuple(cells) for cells in csv.reader(file)]


def test_an_answer_means_that_the_decision_is_in_the_file(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with Server(folder) as server, server.client() as client:
        sent: list[dict[str, Any]] = [
            {"row": 0, "decision": "accept"},
            {"row": 1, "decision": "keep"},
            {"row": 2, "decision": "skip"},
            {"row": 3, "decision": "other", "label": "fox"},
            {"row": 1, "decision": "undo"},
            {"row": 0, "decision": "keep"},
        ]
        expected = [
            COLUMNS,
            *(
                (*cells, "", "", "", "", "")
                for cells in (
                    ("0", "0", "cat", "accept", "dog"),
                    ("1", "1", "dog", "keep", "dog"),
                    ("2", "2", "fox", "skip", ""),
                    ("3", "3", "owl", "other", "fox"),
                    ("1", "1", "dog", "undo", ""),
                    ("0", "0", "cat", "keep", "cat"),
                )
            ),
        ]
        for i, word in enumerate(sent):
            assert client.post("/api/decisions", json=word).json()["saved"]["row"] == word["row"]
            assert words(folder) == expected[: i + 2]
        for odd in (
            {"row": 3, "decision": "other"},
            {"row": 3, "decision": "other", "label": "unicorn"},
            {"row": 3, "decision": "accept", "label": "dog"},
            {"row": 3, "decision": "exclude", "label": "dog"},
            {"row": 3, "decision": "keep", "note": "so"},
            {"row": 3, "decision": "note"},
            {"row": 3, "decision": "merge"},
            {"row": 3, "decision": "other", "label": " ", "new_class": True},
            {"row": 3, "decision": "other", "label": "a\nb", "new_class": True},
            {"row": 3, "decision": "other", "label": "x  y", "new_class": True},
            {"row": 3, "decision": "note", "note": "\0"},
        ):
            assert client.post("/api/decisions", json=odd).status_code == 409
        for bad in (
            {"row": 3, "decision": "delete"},
            {"row": "3", "decision": "keep"},
            {"row": True, "decision": "keep"},
            {"row": 3, "decision": "keep", "path": "/etc"},
            {"row": 3},
            [],
            None,
        ):
            assert client.post("/api/decisions", json=bad).status_code == 422
        assert (
            client.post("/api/decisions", json={"row": 210, "decision": "keep"}).status_code == 404
        )
        assert words(folder) == expected
        choices = {"accept": 0, "keep": 1, "other": 1, "skip": 1, "exclude": 0, "unclear": 0}
        progress = {"total": 200, "decided": 3, **choices}
        assert client.get("/api/audit").json()["progress"] == progress
        assert client.get("/api/issues/next").json() == {"position": 1}
        assert client.get("/api/issues/next", params={"after": 1}).json() == {"position": 4}
        # from the top again
        assert client.get("/api/issues/next", params={"after": 199}).json() == {"position": 1}
    assert {row: word.decision for row, word in read_decisions(find_decisions(folder)).items()} == {
        0: "keep",
        2: "skip",
        3: "other",
    }


def test_fifty_clients_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)

    def review(number: int) -> list[int]:
        with server.client() as client:
            statuses = []
            for step in range(6):
                row = (number * 4 + step) % 200  # neighbours decide on the same rows
                word = {"row": row, "decision": CHOICES[(number + step) % 3]}
                statuses.append(client.post("/api/decisions", json=word).status_code)
                statuses.append(
                    client.get("/api/issues", params={"offset": row, "limit": 20}).status_code
                )
            return statuses

    with Server(folder) as server:
        with ThreadPoolExecutor(50) as pool:
            statuses = [status for found in pool.map(review, range(50)) for status in found]
        assert set(statuses) == {200}
        with server.client() as client:
            shown = [
                i
                for at in (0, 100)
                for i in client.get("/api/issues", params={"offset": at}).json()["issues"]
            ]
            progress = client.get("/api/audit").json()["progress"]
    found = words(folder)
    # what is decided so already is not written again; rows 0 and 1 are decided twice
    assert len(found) == 1 + 200 + 2
    last = {int(cells[0]): cells[3] for cells in found[1:]}
    assert {issue["row"]: issue["decision"] for issue in shown if issue["decision"]} == last
    assert progress["decided"] == len(last) == sum(progress[choice] for choice in CHOICES)


def test_killed_in_the_middle_of_it_nothing_that_was_answered_is_lost(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    answered: dict[int, str] = {}
    process = ServerProcess(folder)
    enough = threading.Event()

    def storm(number: int) -> None:
        with process.client() as client:
            for row in range(number, 100, 4):
                body = {"row": row, "decision": CHOICES[row % 3]}
                try:
                    assert client.post("/api/decisions", json=body).status_code == 200
                except httpx.HTTPError:  # killed
                    return
                answered[row] = CHOICES[row % 3]
                if len(answered) >= 30:
                    enough.set()

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(30)
    process.kill()
    for thread in threads:
        thread.join()
    kept = {row: word.decision for row, word in read_decisions(find_decisions(folder)).items()}
    assert answered.items() <= kept.items()
    with Server(folder) as server, server.client() as client:
        shown = [
            i
            for at in (0, 100)
            for i in client.get("/api/issues", params={"offset": at}).json()["issues"]
        ]
        assert answered.items() <= {issue["row"]: issue["decision"] for issue in shown}.items()
        assert (
            client.post("/api/decisions", json={"row": 199, "decision": "keep"}).status_code == 200
        )
    assert words(folder)[-1] == ("199", "199", "owl", "keep", "owl", "", "", "", "", "")
    assert all(len(cells) == 10 for cells in words(folder))


def test_a_second_review_of_the_same_file_is_refused(server: Server, root: Path) -> None:
    done = CliRunner().invoke(app, ["review", str(root / "audit"), "--no-browser"])
    assert done.exit_code == 2 and "another review writes to it" in done.stderr
    assert done.stdout == ""


def test_a_page_that_another_audit_left_behind_is_refused(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with Server(folder) as server, server.client() as client:
        key, before = (
            client.get("/api/audit").json()["key"],
            read_log(folder / FILE),
        )
        word = {"row": 0, "decision": "accept"}
        for other in (f"{key[:-1]}?", "x", ""):
            headers = {"noiseproof-audit": other}
            for path in (
                "/api/audit",
                "/api/issues",
                "/api/issues/next",
                "/api/rows/0",
                "/api/context/0",
            ):
                assert client.get(path, headers=headers).status_code == 409
            answer = client.post("/api/decisions", json=word, headers=headers)
            assert (
                answer.status_code == 409 and "belongs to another audit" in answer.json()["detail"]
            )
        assert read_log(folder / FILE) == before
        assert (
            client.post("/api/decisions", json=word, headers={"noiseproof-audit": key}).status_code
            == 200
        )
    assert set(read_decisions(find_decisions(folder))) == {0}


def test_decisions_of_another_audit_are_refused(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    wrong = (
        (0, "0", "dog", "keep", "dog"),
        (900, "900", "cat", "keep", "cat"),
        (0, "x", "cat", "keep", "cat"),
        (0, "0", "cat", "accept", "bird"),
        (NO_ROW, "", "bird", "merge", "cat"),
    )
    for number, cells in enumerate(wrong):
        path = folder / f"{number}.csv"
        write_csv([Decision(*cells)], path)  # type: ignore[arg-type]
        with pytest.raises(BadDecisions, match="another audit"):
            Queue(read_audit(folder), path)
        assert read_log(path) == [Decision(*cells)]  # type: ignore[arg-type]


# --- the file itself ------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
# what means something in a CSV file
texts |= st.sampled_from(["\r", "a\rb", '"', "\n", ",", "\r\n"])
choices = st.sampled_from(["accept", "keep", "other", "undo"])
questions = st.just(("", None)) | st.tuples(st.just("measure"), st.floats(0, 1, exclude_min=True))
some_words = st.lists(
    st.builds(
        lambda row, id, given, choice, label, reviewer, question: Decision(
            row, id, given, choice, label, reviewer, *question
        ),
        st.integers(0, 9),
        texts,
        texts,
        choices,
        texts,
        texts,
        questions,
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(some_words)
def test_all_words_come_back_from_the_database_and_from_csv(
    tmp_path_factory: pytest.TempPathFactory, written: list[Decision]
) -> None:
    path = tmp_path_factory.mktemp("words") / "decisions.csv"
    write_csv(written, path)
    log = DecisionLog(path)
    log.add(Decision(3, "x", "a", "keep", "a"))
    log.close()
    assert read_log(path) == read_log(log.path) == [*written, Decision(3, "x", "a", "keep", "a")]
    stacks: dict[tuple[int, str], list[tuple[int, Decision]]] = {}
    for number, word in enumerate(read_log(path)):
        stack = stacks.setdefault((word.row, word.reviewer), [])
        stack[-1:] = [] if word.decision == "undo" else [*stack[-1:], (number, word)]
    last = {
        word.row: word for _, word in sorted(word for stack in stacks.values() for word in stack)
    }
    assert read_decisions(path) == log.decisions == last


# --- whatever a schema can think of ---------------------------------------------------------------


@pytest.mark.parametrize(
    "mode, options",
    [("positive", ()), ("negative", ()), ("positive", ("--measure", "5", "--blind"))],
)
def test_no_request_that_a_schema_can_think_of_breaks_the_server(
    tmp_path: Path, mode: str, options: tuple[str, ...]
) -> None:
    schemathesis = pytest.importorskip(
        "schemathesis", reason="the fuzzer of the review server is not installed"
    )

    fuzzed = set()
    with Server(write_pictures(tmp_path), *options) as server:
        headers = {"authorization": f"Bearer {server.token}"}
        schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json", headers=headers)
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=5,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate],
            )
            @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
            def attack(case: Any) -> None:
                answer = case.call(headers=headers)
                assert answer.status_code < 500
                assert SECRET not in answer.content

            try:
                attack()
            except Unsatisfiable:  # nothing is wrong about asking for the page
                assert mode == "negative" and not operation.query and not operation.body
            fuzzed.add(operation.path)
        with server.client() as client:
            assert client.get("/api/audit").status_code == 200
            described = client.get("/openapi.json").json()["paths"]
    assert len(fuzzed) >= 7 and fuzzed == {*described}
