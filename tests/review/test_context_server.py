"""The context of a row as the server sends it: after the row, to this page alone, and never where
it is asked blind.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_audit import write_audit, write_table_audit
from review_server import Server
from test_context import write_flowers

from noiseproof.audit.files import read_audit

pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")


def context_of(client: Any, row: int) -> dict[str, Any]:
    """Ask until nothing is pending."""
    ends = time.monotonic() + 60
    while (answer := client.get(f"/api/context/{row}").json())["pending"]:
        assert time.monotonic() < ends
        time.sleep(0.05)
    return dict(answer)


def test_the_context_names_rows_that_can_be_opened(tmp_path: Path) -> None:
    with Server(write_flowers(tmp_path)) as server, server.client() as client:
        assert client.get("/api/context/0").status_code == 200  # at once, whatever is pending
        shown = context_of(client, 0)
        assert [column["name"] for column in shown["columns"]] == ["petal"] and len(
            shown["votes"]
        ) == 2
        for rows in shown["groups"].values():
            for other in rows:
                fields = dict(client.get(f"/api/rows/{other['row']}").json()["fields"])
                assert "kind" not in fields and other["label"] in ("iris", "rose")
        assert client.get("/api/context/5").status_code == 404  # audited, no issue
        answer = client.post("/api/decisions", json={"row": 5, "decision": "keep"})
        assert answer.status_code == 404  # what can be seen can't all be decided


@pytest.mark.parametrize("blind", [True, False])
def test_measuring_shows_context_unless_it_is_blind(tmp_path: Path, blind: bool) -> None:
    folder = write_table_audit(tmp_path)
    groups = read_audit(folder).issues.set_index("row")["duplicate_group"].astype(str)
    with (
        Server(folder, "--measure", "30", *["--blind"] * blind) as server,
        server.client() as client,
    ):
        for _ in range(12):
            question = client.get("/api/question").json()["question"]
            row = question["row"]
            answer = client.get(f"/api/context/{row}")
            if blind:
                assert answer.status_code == 404 and "blind" in answer.json()["detail"]
            else:
                shown = context_of(client, row)
                others = [other["row"] for rows in shown["groups"].values() for other in rows]
                assert others and all(
                    client.get(f"/api/rows/{other}").status_code == 200 for other in others
                )
                assert ("duplicates" in shown["groups"]) == (groups[row] != "")
            body = {"row": row, "question": question["number"], "decision": "skip"}
            assert client.post("/api/decisions", json=body).status_code == 200
        never = {*range(220)} - {row}
        hidden = [r for r in never if client.get(f"/api/context/{r}").status_code == 200]
        assert len(hidden) <= (0 if blind else 13)  # those that were asked


@pytest.mark.parametrize("blind", [True, False])
def test_predictions_are_not_sent_to_whoever_is_asked_blind(tmp_path: Path, blind: bool) -> None:
    given = np.array(["a", "b"] * 50)
    np.save(tmp_path / "y.npy", given)
    np.save(tmp_path / "p.npy", np.tile([[0.25, 0.75], [0.5, 0.5]], (50, 1)))
    folder = write_audit(
        tmp_path / "audit",
        given.tolist(),
        ["b", "a"] * 50,
        issues=30,
        kind="predictions",
        data=None,
        labels=str(tmp_path / "y.npy"),
        pred_probs=str(tmp_path / "p.npy"),
    )
    with (
        Server(folder, "--measure", "10", *["--blind"] * blind) as server,
        server.client() as client,
    ):
        row = client.get("/api/question").json()["question"]["row"]
        assert ("predictions" in client.get(f"/api/rows/{row}").json()) == (not blind)
