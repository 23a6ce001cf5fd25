"""Several reviewers on one server: links, hosts, questions."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_table_audit
from review_server import Server

from noiseproof.audit.decisions import find_decisions, read_answers, read_log
from noiseproof.review.guard import LONGEST_NAME, invite, parse_names

httpx = pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table_audit(tmp_path)


# --- names and links ------------------------------------------------------------------------------


def test_names_are_stripped_and_may_be_of_any_script() -> None:
    assert parse_names(" ann ,José, 张伟,a/../b") == ["ann", "José", "张伟", "a/../b"]
    places = [person.place for person in invite(parse_names("ann,José,张伟,a/../b,api"))]
    assert all(re.fullmatch("[a-z0-9-]+", place) and place != "api" for place in places)
    assert len({*places}) == 5
    # a server later
    assert places == [person.place for person in invite(parse_names("ann,José,张伟,a/../b,api"))]
    tokens = [person.token for person in invite(["ann", "bob"])]
    assert tokens[0] != tokens[1] and min(map(len, tokens)) >= 32


@pytest.mark.parametrize(
    "text",
    [
        "ann",
        "ann,ann",
        "ann,Ann",
        "ann,",
        ",",
        "ann,b\nob",
        "ann,b\x1bob",
        f"ann,{'b' * (LONGEST_NAME + 1)}",
    ],
)
def test_names_that_cannot_be_told_apart_or_written_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Expected .*names"):
        parse_names(text)


def test_the_token_names_the_reviewer_of_every_decision(folder: Path) -> None:
    with Server(folder, "--reviewers", "ann,bob") as server:
        for row, name in enumerate(("ann", "bob", "ann")):
            with server.client_of(name) as client:
                assert client.get("/api/audit").json()["reviewer"] == name
                answer = client.post("/api/decisions", json={"row": row, "decision": "keep"})
                assert answer.status_code == 200
                # nobody speaks for another
                claimed = {"row": row, "decision": "keep", "reviewer": "bob"}
                assert client.post("/api/decisions", json=claimed).status_code == 422
    assert [line.reviewer for line in read_log(find_decisions(folder))] == ["ann", "bob", "ann"]


def test_two_links_in_one_browser_stay_two_people(folder: Path) -> None:
    with (
        Server(folder, "--reviewers", "ann,bob") as server,
        httpx.Client(base_url=server.address) as browser,
    ):
        roots = {}
        for name, link in server.links.items():
            answer = browser.get(link)
            assert answer.status_code == 303
            roots[name] = answer.headers["location"]
            cookie = answer.headers["set-cookie"]
            assert (
                f"Path={roots[name]}" in cookie
                and "HttpOnly" in cookie
                and "SameSite=Strict" in cookie
            )
        assert len(browser.cookies) == 2
        for name, root in roots.items():
            assert browser.get(root).headers["content-type"].startswith("text/html")
            assert browser.get(f"{root}api/audit").json()["reviewer"] == name
        # whose would it be?
        assert browser.get("/").status_code == browser.get("/api/audit").status_code == 401
        # A token does not open the page of another person, by whatever means.
        token = server.links["ann"].partition("token=")[2]
        with httpx.Client(
            base_url=server.address, headers={"authorization": f"Bearer {token}"}
        ) as ann:
            assert ann.get(f"{roots['bob']}api/audit").status_code == 401
            assert ann.get(f"{roots['ann']}api/audit").json()["reviewer"] == "ann"
        cookies = "; ".join(
            f"{cookie.name}={cookie.value}"
            for cookie in browser.cookies.jar
            if cookie.path != roots["bob"]
        )
        stolen = httpx.get(f"{server.address}{roots['bob']}api/audit", headers={"cookie": cookies})
        assert stolen.status_code == 401
        for path in ("/ann", f"{roots['ann']}/../..", "/nobody-123456/api/audit"):
            assert browser.get(path).status_code in (401, 404)


def test_the_link_of_the_same_name_opens_the_old_tab_of_a_server_that_was_started_again(
    folder: Path,
) -> None:
    with httpx.Client() as browser:
        with Server(folder, "--reviewers", "ann,bob") as server:
            root, port = browser.get(server.links["ann"]).headers["location"], str(server.port)
            old = f"{server.address}{root}api/audit"
            assert browser.get(old).status_code == 200
        with Server(folder, "--reviewers", "cy,ann", "--port", port) as server:
            assert browser.get(old).status_code == 401
            browser.get(server.links["ann"])
            assert browser.get(old).json()["reviewer"] == "ann"


# --- hosts ----------------------------------------------------------------------------------------


def test_a_host_of_its_own_is_the_only_one_that_is_answered(folder: Path) -> None:
    with Server(folder, "--host", "127.0.0.2") as server, server.client() as client:
        assert server.address == f"http://127.0.0.2:{server.port}"
        assert "not encrypted" in server.stderr and "ssh -L" in server.stderr
        assert client.get("/api/audit").status_code == 200
        for host in (
            "127.0.0.1",
            "localhost",
            "evil.example",
            f"127.0.0.1:{server.port}",
            "127.0.0.2.evil.example",
        ):
            assert client.get("/api/audit", headers={"host": host}).status_code == 403
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.2",
            f"http://127.0.0.1:{server.port}",
        ):
            assert client.get("/api/audit", headers={"origin": origin}).status_code == 403
        assert httpx.get(f"{server.address}/api/audit").status_code == 401
        assert "frame-ancestors 'none'" in client.get("/").headers["content-security-policy"]
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.1", server.port))


def test_every_address_answers_to_the_allowed_names(folder: Path) -> None:
    names = ("--allowed-host", "localhost", "--allowed-host", "Review.example.org")
    with Server(folder, "--host", "0.0.0.0", *names) as server, server.client() as client:
        assert (
            server.address == f"http://localhost:{server.port}" and "not encrypted" in server.stderr
        )
        assert client.get("/api/audit", headers={"host": "review.example.org"}).status_code == 200
        # TLS ends at the proxy
        proxied = {"host": "review.example.org", "origin": "https://review.example.org"}
        assert client.get("/api/audit", headers=proxied).status_code == 200
        crossed = {"host": "review.example.org", "origin": f"http://localhost:{server.port}"}
        assert client.get("/api/audit", headers=crossed).status_code == 403
        for host in ("0.0.0.0", "127.0.0.1", socket.gethostname()):
            assert client.get("/api/audit", headers={"host": host}).status_code == 403


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_ipv6_is_written_in_brackets(folder: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
    with Server(folder, "--host", "::1") as server, server.client() as client:
        assert server.address == f"http://[::1]:{server.port}"
        assert client.get("/api/audit").status_code == 200


# --- measuring ------------------------------------------------------------------------------------

COUNT = 40


def reply(client: Any, state: dict[str, Any], decision: str = "keep") -> dict[str, Any]:
    question = state["question"]
    body = {"row": question["row"], "question": question["number"], "decision": decision}
    answer = client.post("/api/decisions", json=body)
    assert answer.status_code == 200, answer.text
    new: dict[str, Any] = answer.json()
    return new


def test_no_two_people_are_asked_the_same_question(folder: Path) -> None:
    options = ("--measure", str(COUNT), "--repeats", "0.3", "--reviewers", "ann,bob")
    with (
        Server(folder, *options) as server,
        server.client_of("ann") as ann,
        server.client_of("bob") as bob,
    ):
        clients = {"ann": ann, "bob": bob}
        states = {name: client.get("/api/question").json() for name, client in clients.items()}
        asked: dict[str, list[int]] = {"ann": [], "bob": []}
        waited = 0
        for step in range(200):
            name = "ann" if step % 3 else "bob"  # one is quicker
            state = states[name] = clients[name].get("/api/question").json()
            other = states["bob" if name == "ann" else "ann"]["question"]
            if state["question"] is None:
                waited += bool(state["waiting_for"])
                continue
            assert other is None or other["row"] != state["question"]["row"]
            assert clients[name].get(f"/api/rows/{state['question']['row']}").status_code == 200
            if other is not None:  # the row of another person is not shown
                assert clients[name].get(f"/api/rows/{other['row']}").status_code in (
                    404,
                    200 if other["row"] in asked[name] else 404,
                )
            asked[name].append(state["question"]["row"])
            states[name] = reply(clients[name], state)
            if all(
                client.get("/api/question").json()["question"] is None
                for client in clients.values()
            ):
                break
        assert waited > 0  # the last question of the pilot was another's
        final = ann.get("/api/question").json()
        assert final["progress"] == {"measured": COUNT, "total": COUNT}
    answers = read_answers(find_decisions(folder))
    first = {answer.row: answer.reviewer for answer in answers if answer.asked == "measure"}
    second = {answer.row: answer.reviewer for answer in answers if answer.asked == "repeat"}
    assert len(first) == COUNT and {*first.values()} == {"ann", "bob"}
    # always another person
    assert len(second) >= 5 and all(first[row] != name for row, name in second.items())
    assert len(answers) == COUNT + len(second)  # no row was asked twice by accident
    assert final["measured"]["agreement"] == {
        "rows": len(second),
        "same": 1.0,
        "kappa": pytest.approx(1.0),
    }


def test_undo_asks_the_same_person_again_and_leaves_others_alone(folder: Path) -> None:
    options = ("--measure", str(COUNT), "--reviewers", "ann,bob")
    with (
        Server(folder, *options) as server,
        server.client_of("ann") as ann,
        server.client_of("bob") as bob,
    ):
        of_ann, of_bob = ann.get("/api/question").json(), bob.get("/api/question").json()
        first = of_ann["question"]
        of_ann = reply(ann, of_ann)
        of_bob = reply(bob, of_bob, "accept")
        body = {"row": first["row"], "question": 1, "decision": "undo"}
        assert bob.post("/api/decisions", json=body).status_code == 404  # it was never asked of Bob
        undone = ann.post("/api/decisions", json=body).json()
        assert undone["question"] == first and undone["progress"]["measured"] == 1
        assert bob.get("/api/question").json()["question"] == of_bob["question"]
        again = reply(ann, undone, "accept")
        assert again["question"]["row"] not in (first["row"], of_bob["question"]["row"])
    lines = [(line.reviewer, line.decision) for line in read_log(find_decisions(folder))]
    assert lines == [("ann", "keep"), ("bob", "accept"), ("ann", "undo"), ("ann", "accept")]


def test_proposals_are_divided_among_people(folder: Path) -> None:
    options = ("--propose", "find=0.5,measure=0.5", "--count", "20", "--reviewers", "ann,bob")
    with (
        Server(folder, *options) as server,
        server.client_of("ann") as ann,
        server.client_of("bob") as bob,
    ):
        for _ in range(10):
            for client in (ann, bob):
                reply(client, client.get("/api/question").json())
        done = ann.get("/api/question").json()
        assert done["question"] is None and done["progress"] == {"measured": 20, "total": 20}
    rows = [line.row for line in read_log(find_decisions(folder))]
    assert len({*rows}) == 20
