"""Proposals by the review server: the mixture that was named, and only what measures is saved as
measured.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from handmade_audit import write_audit
from review_server import Server, ServerProcess

from noiseproof.audit.decisions import find_decisions, read_answers, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.audit.sample import open_design, read_design
from noiseproof.judge.measure.design import parse_mixture, propose

pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")

MIXTURE = "find=0.5,learn=0.3,measure=0.2"
OPTIONS = ("--propose", MIXTURE, "--count", "50")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    given = ["cat" if row % 3 else "dog" for row in range(400)]
    suggested = ["dog" if label == "cat" else "cat" for label in given]
    return write_audit(tmp_path / "audit", given, suggested, issues=40, kind="table", data=None)


def answer(client: Any, state: dict[str, Any], decision: str = "keep") -> dict[str, Any]:
    body = {
        "row": state["question"]["row"],
        "question": state["question"]["number"],
        "decision": decision,
    }
    reply = client.post("/api/decisions", json=body)
    assert reply.status_code == 200, reply.text
    following: dict[str, Any] = reply.json()
    return following


def test_proposals_are_asked_one_after_the_other_and_keep_their_purpose(folder: Path) -> None:
    audit = read_audit(folder)
    with Server(folder, *OPTIONS, "--reviewer", "ann") as server, server.client() as client:
        about = client.get("/api/audit").json()
        assert about["measure"]["done"] == "looked at"
        assert about["measure"]["next"][0]["command"] == f"noiseproof audit {folder} --again"
        assert "purpose" not in str(about)
        proposals = propose(audit, open_design(audit), [], parse_mixture(MIXTURE), 50)
        state = client.get("/api/question").json()
        for number, proposal in enumerate(proposals, 1):
            assert (state["question"]["row"], state["question"]["number"]) == (proposal.row, number)
            assert state["progress"] == {"measured": number - 1, "total": 50}
            state = answer(client, state)
        assert state["question"] is None and state["measured"]["decisions"] == 10
    answers = {line.row: line for line in read_answers(find_decisions(folder))}
    assert len(answers) == 50 and {line.reviewer for line in answers.values()} == {"ann"}
    for proposal in proposals:
        line = answers[proposal.row]
        assert line.asked == ("measure" if proposal.purpose == "measure" else "")
        assert line.probability == (
            pytest.approx(proposal.probability) if proposal.probability else None
        )


def test_a_killed_review_proposes_what_is_left(folder: Path) -> None:
    rows = []
    for kind in (ServerProcess, Server, Server):
        with kind(folder, *OPTIONS) as server, server.client() as client:
            state = client.get("/api/question").json()
            for _ in range(20):
                rows.append(state["question"]["row"])
                state = answer(client, state)
    decided, audit = read_decisions(find_decisions(folder)), read_audit(folder)
    assert {*decided} == {*rows}
    asked = Counter(line.asked for line in decided.values())
    assert asked["measure"] == 12
    # What was measured are the first questions of the design, whatever was decided between them.
    design = read_design(audit)
    assert design is not None
    first = [question.row for question in design.questions([], 12)]
    assert sorted(row for row, line in decided.items() if line.asked == "measure") == sorted(first)


def test_without_measuring_no_sample_is_drawn(folder: Path) -> None:
    with Server(folder, "--propose", "find=1", "--count", "3") as server, server.client() as client:
        state = client.get("/api/question").json()
        assert [state["question"]["row"]] == [0] and state["measured"] is None
        assert state["progress"]["total"] == 3
    assert not (folder / "measure.json").exists()
