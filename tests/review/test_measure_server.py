"""Measuring by the review server: the right questions, each asked once, through kills; what is sent
blind.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade_audit import write_audit, write_table_audit
from PIL import Image
from review_server import Server, ServerProcess

from noiseproof.audit.decisions import FILE, find_decisions, read_answers, read_log
from noiseproof.audit.files import read_audit
from noiseproof.audit.sample import read_design, read_population
from noiseproof.judge.measure.estimate import measure

httpx = pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")

COUNT = 40


def choice(row: int) -> dict[str, Any]:
    """What the reviewer of these tests answers: two thirds of the labels are right, some rows are
    skipped.
    """
    word = ("keep", "accept", "keep", "keep", "accept", "keep", "skip")[row % 7]
    return {"row": row, "decision": word}


def answer(client: Any, question: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    reply = client.post("/api/decisions", json=body | {"question": question["number"]})
    assert reply.status_code == 200, reply.text
    state: dict[str, Any] = reply.json()
    return state


def ask(client: Any) -> dict[str, Any]:
    state: dict[str, Any] = client.get("/api/question").json()
    return state


def answer_all(client: Any, most: int = 10_000) -> list[int]:
    """The rows that were asked, in their order."""
    rows: list[int] = []
    state = ask(client)
    while (question := state["question"]) is not None and len(rows) < most:
        rows.append(question["row"])
        state = answer(client, question, choice(question["row"]))
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table_audit(tmp_path)


def test_the_questions_are_those_of_the_design_one_after_the_other(folder: Path) -> None:
    audit, path = read_audit(folder), folder / FILE
    frame = audit.issues.set_index("row")
    with (
        Server(folder, "--measure", str(COUNT), "--reviewer", "ann", "--seed", "3") as server,
        server.client() as client,
    ):
        about = client.get("/api/audit").json()
        assert about["measure"] == {"blind": False, "next": about["measure"]["next"]}
        commands = [line["command"] for line in about["measure"]["next"]]
        assert commands == [
            f"noiseproof {name} {folder}" for name in ("measure", "review", "apply")
        ]
        state, design, asked = ask(client), read_design(audit), []
        assert design is not None and state["measured"] is None and state["last"] is None
        while (question := state["question"]) is not None:
            assert state["progress"] == {"measured": len(asked), "total": COUNT}
            expected = design.questions(read_answers(path), COUNT)[0]
            assert (question["row"], question["number"]) == (expected.row, len(asked) + 1)
            row = frame.loc[expected.row]
            assert (question["given"], question["suggested"]) == (
                row["given_label"],
                row["suggested_label"],
            )
            assert client.get(f"/api/rows/{expected.row}").json()["fields"][0] == [
                "weight",
                f"{expected.row / 8:.3f}",
            ]
            state = answer(client, question, choice(expected.row))
            saved = read_log(path)[-1]
            assert (saved.row, saved.reviewer, saved.asked) == (expected.row, "ann", "measure")
            assert (
                saved.probability == pytest.approx(expected.probability)
                and saved.decision == choice(saved.row)["decision"]
            )
            asked.append(expected.row)
        assert len(asked) == len(set(asked)) and design.questions(read_answers(path), COUNT) == []
        # What the panel shows is what was measured.
        measured = measure(read_population(audit), read_answers(path))
        assert measured is not None and state["measured"]["decisions"] == measured.decisions
        for name, estimate in (("rate", measured.rate), ("wrong_left", measured.wrong_left)):
            assert state["measured"][name] == pytest.approx(asdict(estimate))
        assert (
            state["measured"]["to_halve"] == measured.to_halve
            and state["measured"]["agreement"] is None
        )
        assert client.post("/api/decisions", json=choice(asked[0])).status_code == 409


def test_more_can_be_measured_and_decisions_elsewhere_are_named(folder: Path) -> None:
    own = folder.parent / "my decisions.sqlite"
    options = ("--decisions", str(own))
    for count, rows in ((10, 10), (25, 15), (10, 0), (1000, 195)):  # of 220
        with Server(folder, "--measure", str(count), *options) as server, server.client() as client:
            assert len(answer_all(client)) == rows
            done = min(max(count, len(read_log(own))), 220)
            assert ask(client)["progress"] == {"measured": done, "total": done}
            commands = [
                line["command"] for line in client.get("/api/audit").json()["measure"]["next"]
            ]
    assert commands == [
        f"noiseproof {name} {folder} --decisions '{own}'" for name in ("measure", "review", "apply")
    ]
    assert sorted(line.row for line in read_log(own)) == list(range(220))
    assert not find_decisions(folder).exists()


def test_killed_it_asks_what_it_would_have_asked(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    options = ("--measure", str(COUNT), "--repeats", "0.2")
    calm, killed = write_table_audit(tmp_path / "calm"), write_table_audit(tmp_path / "killed")
    with Server(calm, *options) as server, server.client() as client:
        expected = answer_all(client)
    confirmed: list[int] = []
    process = ServerProcess(killed, *options)
    enough = threading.Event()

    def review() -> None:
        try:
            with process.client() as client:
                state = ask(client)
                while (question := state["question"]) is not None:
                    state = answer(client, question, choice(question["row"]))
                    confirmed.append(question["row"])
                    if len(confirmed) >= 20:
                        enough.set()
        except httpx.HTTPError:  # killed
            return

    thread = threading.Thread(target=review)
    thread.start()
    assert enough.wait(60)
    process.kill()
    thread.join()
    saved = [line.row for line in read_log(find_decisions(killed))]
    assert saved[: len(confirmed)] == confirmed and len(saved) - len(confirmed) in (0, 1)
    confirmed[:] = saved  # the last one may be saved, and its confirmation lost
    with Server(killed, *options) as server, server.client() as client:
        confirmed += answer_all(client)
    assert confirmed == expected
    assert read_log(find_decisions(killed)) == read_log(find_decisions(calm))


def test_an_answer_that_is_sent_again_counts_once_and_undo_asks_again(folder: Path) -> None:
    path = folder / FILE
    with Server(folder, "--measure", str(COUNT)) as server, server.client() as client:
        first = ask(client)["question"]
        body = {"row": first["row"], "decision": "keep", "question": 1}
        # the first two replies were lost
        replies = [client.post("/api/decisions", json=body).json() for _ in range(3)]
        assert replies[0] == replies[1] == replies[2] and len(read_log(path)) == 1
        # a second window
        assert client.post("/api/decisions", json=body | {"decision": "accept"}).status_code == 409
        second = replies[0]["question"]
        assert second["number"] == 2 and replies[0]["last"] == {"row": first["row"], "question": 1}
        # Undo, sent twice, takes back one answer; what was undone is asked again, and counts with
        # its new answer.
        state = answer(client, second, {"row": second["row"], "decision": "accept"})
        undo = {"row": second["row"], "decision": "undo", "question": 2}
        replies = [client.post("/api/decisions", json=undo).json() for _ in range(2)]
        assert (
            replies[0] == replies[1]
            and replies[0]["question"] == second
            and len(read_log(path)) == 3
        )
        assert replies[0]["progress"]["measured"] == 1
        assert state["last"] == {"row": second["row"], "question": 2}
        state = client.post(
            "/api/decisions", json=undo | {"row": first["row"], "question": 1}
        ).json()
        assert (state["question"], state["last"], state["measured"]) == (first, None, None)
        assert client.post("/api/decisions", json=undo).status_code == 404  # it is not asked now
        state = answer(client, first, {"row": first["row"], "decision": "accept"})
        assert state["question"]["row"] == second["row"]
    answers = read_answers(path)
    assert [(answer.row, answer.decision, answer.asked) for answer in answers] == [
        (first["row"], "accept", "measure")
    ]


def test_of_many_windows_one_answers_a_question(folder: Path) -> None:
    with Server(folder, "--measure", str(COUNT)) as server:

        def review(number: int) -> list[int]:
            with server.client() as client:
                statuses, state = [], ask(client)
                for _ in range(5):
                    word = {
                        "row": state["question"]["row"],
                        "decision": ("keep", "accept", "skip")[number % 3],
                    }
                    body = word | {"question": state["question"]["number"]}
                    statuses.append(client.post("/api/decisions", json=body).status_code)
                    state = ask(client)
                return statuses

        with ThreadPoolExecutor(12) as pool:
            statuses = [status for window in pool.map(review, range(12)) for status in window]
    assert {200} <= set(statuses) <= {200, 404, 409}
    rows = [line.row for line in read_log(find_decisions(folder))]
    assert len(rows) == len(set(rows)) >= 5


def test_rows_chosen_from_the_list_are_no_part_of_what_is_measured(folder: Path) -> None:
    path = folder / FILE
    with Server(folder, "--measure", str(COUNT)) as server, server.client() as client:
        rows = answer_all(client)
        measured = ask(client)["measured"]
    with Server(folder, "--reviewer", "bob") as server, server.client() as client:
        about = client.get("/api/audit").json()
        assert about["measured"] == measured and "measure" not in about
        chosen = [row for row in range(200) if row not in rows][:30]
        for row in chosen:
            state = client.post("/api/decisions", json={"row": row, "decision": "accept"}).json()
        assert state["measured"]["rate"] == measured["rate"]
        assert state["measured"]["decisions"] == measured["decisions"]
        assert (
            client.post("/api/decisions", json=choice(chosen[0]) | {"question": 1}).status_code
            == 409
        )
    by_hand = [answer for answer in read_answers(path) if answer.row in chosen]
    assert {(answer.reviewer, answer.asked, answer.probability) for answer in by_hand} == {
        ("bob", "", None)
    }


# --- blind ----------------------------------------------------------------------------------------

NAMES = ("abyssinian", "birman", "chartreux", "devonrex")


def write_photos(root: Path) -> Path:
    """Pictures whose ids name their class, and an audit of them."""
    random, labels = np.random.default_rng(0), []
    for name in NAMES:
        (root / "photos" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(random.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(
                root / "photos" / name / f"{i}.png"
            )
            labels.append(name)
    others = [NAMES[(NAMES.index(label) + 1 + i % 3) % 4] for i, label in enumerate(labels)]
    ids = [f"{name}/{i % 10}.png" for i, name in enumerate(labels)]
    return write_audit(
        root / "audit", labels, others, issues=30, kind="folder", data=root / "photos", ids=ids
    )


def write_answers_of_people(root: Path) -> Path:
    """A table in which annotators and an id name the class."""
    labels = [NAMES[i % 4] for i in range(40)]
    others = [NAMES[(i + 1 + i // 4 % 3) % 4] for i in range(40)]
    ids = [f"{label}-{i}" for i, label in enumerate(labels)]
    frame = pd.DataFrame({"key": ids, "x": range(40), "ann": labels, "bob": others, "kind": labels})
    frame.to_csv(root / "cats.csv", index=False)
    return write_audit(
        root / "audit",
        labels,
        others,
        issues=30,
        kind="table",
        data=root / "cats.csv",
        ids=ids,
        label="kind",
        id="key",
        annotators=["ann", "bob"],
    )


@pytest.fixture(params=[write_photos, write_answers_of_people])
def cats(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written: Path = request.param(tmp_path)
    return written


def test_a_blind_review_sends_nothing_that_names_a_label(cats: Path) -> None:
    frame = read_audit(cats).issues.set_index("row")
    sent: list[Any] = []
    watching = {"event_hooks": {"response": [lambda reply: (reply.read(), sent.append(reply))]}}
    options = ("--measure", "30", "--blind", "--repeats", "0.3")
    with Server(cats, *options) as server, server.client(**watching) as client:
        page = client.get("/")
        assert client.get("/api/audit").json()["classes"] == list(NAMES)  # to choose from
        state = ask(client)
        while (question := state["question"]) is not None:
            assert set(question) == {"row", "number"}
            row = question["row"]
            content = client.get(f"/api/rows/{row}").json()
            assert content == (
                {"has_image": True} if "has_image" in content else {"fields": [["x", str(row)]]}
            )
            client.get(f"/api/rows/{row}/picture")
            given, suggested = frame.loc[row, ["given_label", "suggested_label"]]
            other = next(name for name in NAMES if name not in (given, suggested))
            label = other if row % 5 == 0 else given if row % 3 else suggested
            state = answer(client, question, {"row": row, "decision": "other", "label": label})
            if row % 4 == 0:
                undo = {"row": row, "decision": "undo", "question": question["number"]}
                assert client.post("/api/decisions", json=undo).json()["question"] == question
                state = answer(client, question, {"row": row, "decision": "other", "label": label})
        for path in ("/api/issues", "/api/issues/next", "/api/issues?given=0"):
            assert client.get(path).status_code == 404
    words = [
        *NAMES,
        "neighbours",
        "confidence",
        "quality",
        "keep",
        "accept",
        "suggest",
        "margin",
        "verdict",
    ]
    for reply in sent:
        if reply.headers["content-type"] == "application/json":
            text = reply.text.replace(json.dumps(list(NAMES), separators=(",", ":")), "")
            assert [word for word in words if word in text.lower()] == [], (reply.url, text)
    assert not [name for name in NAMES if name in page.text]
    # A label is stored as the decision that it means.
    for answered in read_answers(find_decisions(cats)):
        given, suggested = frame.loc[answered.row, ["given_label", "suggested_label"]]
        assert answered.given_label == given
        meaning = {given: "keep", suggested: "accept"}.get(answered.label, "other")
        assert answered.decision == meaning
        assert meaning == (
            "other" if answered.row % 5 == 0 else "keep" if answered.row % 3 else "accept"
        )


def test_a_blind_answer_is_a_class_or_a_skip(cats: Path) -> None:
    with Server(cats, "--measure", "10", "--blind") as server, server.client() as client:
        question = ask(client)["question"]
        for body, status in (
            ({"decision": "keep"}, 409),
            ({"decision": "accept"}, 409),
            ({"decision": "other"}, 409),
            ({"decision": "other", "label": "dog"}, 409),
            ({"decision": "skip", "label": NAMES[0]}, 409),
        ):
            reply = client.post(
                "/api/decisions", json={"row": question["row"], "question": 1} | body
            )
            assert reply.status_code == status, reply.text
            assert "given" not in reply.text and "suggested" not in reply.text
        assert (
            answer(client, question, {"row": question["row"], "decision": "skip"})["question"][
                "number"
            ]
            == 2
        )
    assert [(line.decision, line.label) for line in read_log(find_decisions(cats))] == [
        ("skip", "")
    ]


# --- the command ----------------------------------------------------------------------------------
