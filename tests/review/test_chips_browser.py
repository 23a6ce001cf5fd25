"""The chips of a row with several labels in a real browser: on and off, marked, saved, and
applied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from review_browser import CHROMIUM, browsing, open_page, until
from review_server import Server

from noiseproof.audit import audit
from noiseproof.audit.apply import write_corrected
from noiseproof.audit.decisions import find_decisions, read_decisions
from noiseproof.audit.files import read_audit
from noiseproof.audit.plan import plan_corrections

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the review server is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
NAMES = ["calm", "happy", "sad"]


def write_songs(root: Path) -> Path:
    """An audit of 60 rows, of which row 0 lacks "sad", row 1 should not have "calm", and row 2
    lacks all.
    """
    true = np.random.default_rng(0).random((60, 3)) < 0.5
    true[:3] = [[1, 0, 1], [0, 1, 0], [1, 1, 0]]
    given = true.copy()
    given[0, 2], given[1, 0], given[2] = 0, 1, 0
    words = ["|".join(name for name, yes in zip(NAMES, row, strict=True) if yes) for row in given]
    pd.DataFrame({"song": [f"song {i}" for i in range(60)], "tags": words}).to_csv(
        root / "songs.csv", index=False
    )
    p = np.where(true, 0.97, 0.03)
    report = audit(root / "songs.csv", label="tags", multi_label="|", pred_probs=p)
    assert report.data.row[report.order[:3]].tolist() in (
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    )
    report.save(root / "audit")
    return root / "audit"


def go_to(page: Any, row: int) -> None:
    """Show the issue of a row."""
    page.evaluate("(row) => show([0, 1, 2].find((at) => issueAt(at)?.row === row))", row)
    until(page, "(row) => document.getElementById('row')?.dataset.row === String(row)", row)


def chips(page: Any) -> dict[str, tuple[str, str | None]]:
    """Whether each chip is on, and its mark."""
    found = page.locator("#chips .chip").all()
    return {
        c.get_attribute("data-label"): (
            c.get_attribute("aria-pressed"),
            c.get_attribute("data-mark"),
        )
        for c in found
    }


def decide_each(page: Any) -> None:
    go_to(page, 0)
    assert chips(page) == {
        "calm": ("true", None),
        "happy": ("false", None),
        "sad": ("false", "add"),
    }
    page.click("#chips [data-label=sad]")
    assert chips(page)["sad"] == ("true", "add")
    page.click("#chips-save")  # what is suggested
    go_to(page, 1)
    assert chips(page) == {
        "calm": ("true", "remove"),
        "happy": ("true", None),
        "sad": ("false", None),
    }
    page.focus("#chips [data-label=sad]")
    page.keyboard.press("Space")
    page.click("#chips-save")  # neither the given nor the suggested labels
    go_to(page, 2)
    page.click("#chips-save")  # as given
    until(page, "() => document.getElementById('counts').textContent.startsWith('3 of 3')")
    go_to(page, 1)  # as it was decided
    assert chips(page)["sad"] == ("true", None) and chips(page)["calm"] == ("true", "remove")


def check(path: Path, folder: Path, root: Path) -> None:
    decided = read_decisions(path)
    assert {row: (one.decision, one.label) for row, one in decided.items()} == {
        0: ("accept", "calm|sad"),
        1: ("other", "calm|happy|sad"),
        2: ("keep", "(none)"),
    }
    stored = read_audit(folder)
    plan = plan_corrections(stored, decided)
    write_corrected(stored, plan.changes, root / "new.csv")
    before, after = (
        pd.read_csv(root / name, keep_default_na=False)["tags"] for name in ("songs.csv", "new.csv")
    )
    assert after[:3].tolist() == ["calm|sad", "calm|happy|sad", ""] and after[3:].equals(before[3:])


def test_chips_of_a_served_review(chromium: Any, tmp_path: Path) -> None:
    folder = write_songs(tmp_path)
    with Server(folder) as server, browsing(chromium, tmp_path / "profile") as page:
        open_page(page, server.link)
        decide_each(page)
        until(page, "() => !store.unsaved")
    check(find_decisions(folder), folder, tmp_path)
