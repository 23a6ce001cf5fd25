"""Decisions of all kinds as the server keeps them: many at once, undone as one, new classes, notes,
merges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_audit import ANIMALS, write_audit, write_table_audit
from review_server import Server

from noiseproof.audit.decisions import (
    NO_ROW,
    Decision,
    find_decisions,
    read_log,
    read_standing,
)
from noiseproof.audit.files import read_audit
from noiseproof.review.queue import Filter, Queue

pytest.importorskip("httpx", reason="the review server's client is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytest.importorskip("uvicorn", reason="the review server is not installed")


def post(client: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def choices(folder: Path) -> dict[int, str]:
    return {
        row: one.decision for row, one in read_standing(find_decisions(folder)).decisions.items()
    }


def test_exclude_unclear_note_and_a_new_class(tmp_path: Path) -> None:
    folder, text = write_table_audit(tmp_path), 'Fell off the table, "twice".\nAsk Bob.'
    with Server(folder) as server, server.client() as client:
        post(client, "decisions", row=0, decision="exclude")
        post(client, "decisions", row=1, decision="unclear")
        post(client, "decisions", row=1, decision="note", note=text)
        post(client, "decisions", row=5, decision="note", note="undecided")
        assert (
            "Expected one of the 4 classes"
            in post(client, "decisions", 409, row=2, decision="other", label="emu")["detail"]
        )
        post(client, "decisions", row=2, decision="other", label="emu", new_class=True)
        assert client.get("/api/audit").json()["new_classes"] == ["emu"]
        # a class like any other
        progress = post(client, "decisions", row=3, decision="other", label="emu")["progress"]
        assert progress == {
            "total": 200,
            "decided": 4,
            "accept": 0,
            "keep": 0,
            "other": 2,
            "skip": 0,
            "exclude": 1,
            "unclear": 1,
        }
        shown = client.get("/api/issues", params={"limit": 6}).json()["issues"]
        assert [(one["decision"], one["label"], one["note"]) for one in shown] == [
            ("exclude", "", None),
            ("unclear", "", text),
            ("other", "emu", None),
            ("other", "emu", None),
            (None, None, None),
            (None, None, "undecided"),
        ]
    with Server(folder) as server, server.client() as client:  # from the file alone
        assert client.get("/api/audit").json()["new_classes"] == ["emu"]
        assert client.get("/api/issues/next").json() == {"position": 4}
        assert post(client, "undo") | {"progress": 0} == {
            "undone": [3],
            "batch": None,
            "choice": "other",
            "position": 3,
            "now": {"decision": None, "label": None, "note": None, "by": [], "conflict": False},
            "new_classes": ["emu"],
            "spellings": [],
            "progress": 0,
            "measured": None,
        }
        assert post(client, "undo")["new_classes"] == []
        assert (post(client, "undo")["undone"], post(client, "undo")["choice"]) == ([5], "note")
    standing = read_standing(find_decisions(folder))
    assert choices(folder) == {0: "exclude", 1: "unclear"} and standing.notes == {}


def test_a_request_that_is_sent_again_changes_nothing(tmp_path: Path) -> None:
    """Its answer may be lost; with two equal lines, undo would take back one of them and seem to do
    nothing.
    """
    folder = write_table_audit(tmp_path)
    with Server(folder) as server, server.client() as client:
        for _ in range(2):
            post(client, "decisions", row=0, decision="accept")
            post(client, "decisions", row=0, decision="note", note="n")
            post(client, "decisions/many", decision="keep", rows=[0, 1], also_decided=True)
            post(client, "merges", given_label="cat", label="cat")
        # the second round: accept and keep row 0 again
        assert len(read_log(find_decisions(folder))) == 5 + 1 + 1


def test_many_are_decided_and_undone_as_one(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    with Server(folder, "--reviewer", "ann") as server, server.client() as client:
        post(client, "decisions", row=3, decision="skip")
        answer = post(client, "decisions/many", decision="accept", rows=[5, 3, 4, 5])
        # row 3 is left alone
        assert (answer["batch"], answer["saved"], answer["progress"]["decided"]) == (1, 2, 3)
        assert post(client, "decisions/many", decision="accept", rows=[5, 4])["batch"] is None
        answer = post(
            client, "decisions/many", decision="other", label="fox", rows=[3, 4], also_decided=True
        )
        assert (answer["batch"], answer["saved"], answer["progress"]["other"]) == (2, 2, 2)
        assert choices(folder) == {3: "other", 4: "other", 5: "accept"}
        answer = post(client, "undo")
        assert (answer["undone"], answer["batch"], answer["position"]) == ([3, 4], 2, 3)
        assert choices(folder) == {3: "skip", 4: "accept", 5: "accept"}
        post(client, "decisions/many", 404, decision="keep", rows=[6, 210])
        post(client, "decisions/many", 409, decision="other", label="emu", rows=[6])
        post(client, "decisions/many", 409, decision="keep", label="fox", rows=[6])
        for bad in ("undo", "note", "merge"):
            post(client, "decisions/many", 422, decision=bad, rows=[6])
        assert choices(folder) == {3: "skip", 4: "accept", 5: "accept"}
    # undo reads the log
    with Server(folder, "--reviewer", "ann") as server, server.client() as client:
        assert [post(client, "undo")["undone"] for _ in range(3)] == [[5, 4], [3], []]
    assert choices(folder) == {} and {
        line.reviewer for line in read_log(find_decisions(folder))
    } == {"ann"}


def test_ten_thousand_at_once(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path, rows=10_000, issues=10_000)
    with Server(folder) as server, server.client() as client:
        answer = post(client, "decisions/many", decision="accept", rows=list(range(10_000)))
        assert answer["saved"] == answer["progress"]["accept"] == 10_000
        suggested = {line.row: line.label for line in read_log(find_decisions(folder))}
        assert all(suggested[i] == ANIMALS[(i % 4 + 1 + i // 4 % 3) % 4] for i in range(10_000))
        assert len(post(client, "undo")["undone"]) == 10_000
    assert choices(folder) == {}


def test_nobody_undoes_what_another_decided(tmp_path: Path) -> None:
    folder = write_table_audit(tmp_path)
    queue = Queue(read_audit(folder), folder / "decisions.csv")
    queue.decide(0, "accept", reviewer="ann")
    queue.decide(1, "keep", reviewer="bob")
    queue.decide(0, "keep", reviewer="bob")
    assert [line.row for line in queue.undo("ann")] == [0]
    assert queue.decided(0)["decision"] == "keep"  # Bob's later decision stands
    assert queue.undo("ann") == []
    assert [line.row for line in queue.undo("bob")] == [0] and queue.decided(0)["decision"] is None
    assert queue.progress()["decided"] == 1 and queue.next_open(-1, Filter())[0] == 0
    queue.log.close()


def write_penguins(root: Path) -> Path:
    """Two spellings of Gentoo, and a typo of Adelie."""
    given = ["Gentoo "] * 2 + ["Gentoo"] * 4 + ["Adelle"] + ["Adelie"] * 20
    suggested = ["Gentoo", "Adelie"] + ["Gentoo ", "Adelie"] * 2 + ["Gentoo"] + ["Gentoo"] * 20
    return write_audit(root / "audit", given, suggested, issues=7, kind="arrays", data=None)


def test_spellings_are_asked_about_and_merged_with_what_is_moot_then(tmp_path: Path) -> None:
    folder = write_penguins(tmp_path)
    typo = {"spelling": "Adelle", "label": "Adelie", "rows": 1, "label_rows": 20}
    with Server(folder, "--reviewer", "ann") as server, server.client() as client:
        spaces = {"spelling": "Gentoo ", "label": "Gentoo", "rows": 2, "label_rows": 4}
        assert client.get("/api/audit").json()["spellings"] == [typo, spaces]
        post(client, "decisions", row=4, decision="skip")
        answer = post(client, "merges", given_label="Gentoo ", label="Gentoo")
        # rows 0 and 2, not the skipped one
        assert answer["spellings"] == [typo] and answer["progress"]["keep"] == 2
        # they are two
        assert post(client, "merges", given_label="Adelle", label="Adelle")["spellings"] == []
        for pair in (("Gentoo", "Gentoo "), ("emu", "Gentoo"), ("Gentoo", "emu")):
            post(client, "merges", 409, given_label=pair[0], label=pair[1])
        assert post(client, "undo")["spellings"] == [typo]
        answer = post(client, "undo")
        assert (answer["undone"], answer["choice"], answer["spellings"]) == (
            [0, 2],
            "merge",
            [typo, spaces],
        )
    lines = read_log(find_decisions(folder))
    assert lines[1:4] == [
        Decision(NO_ROW, "", "Gentoo ", "merge", "Gentoo", "ann", batch=1),
        Decision(0, "0", "Gentoo ", "keep", "Gentoo ", "ann", batch=1),
        Decision(2, "2", "Gentoo", "keep", "Gentoo", "ann", batch=1),
    ]
    assert choices(folder) == {4: "skip"} and read_standing(find_decisions(folder)).merges == {}
