"""`noiseproof apply` where reviewers disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from handmade_audit import write_table_audit
from typer.testing import CliRunner

from noiseproof.audit.decisions import DecisionLog
from noiseproof.audit.files import read_audit
from noiseproof.cli import app
from noiseproof.review.queue import Queue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Row 0 is disputed, row 1 was and is settled, row 2 was decided by one person."""
    folder = write_table_audit(tmp_path)
    queue = Queue(read_audit(folder), folder / "decisions.csv", reviewers=("ann", "bob"))
    for row, choice, name in (
        (0, "keep", "ann"),
        (0, "accept", "bob"),
        (1, "keep", "ann"),
        (1, "accept", "bob"),
        (2, "accept", "ann"),
    ):
        queue.decide(row, choice, reviewer=name)  # type: ignore[arg-type]
    queue.decide(1, "accept", settles=True, reviewer="bob")
    queue.log.close()
    return folder


@pytest.mark.parametrize("unsettled, changed", [("latest", [0, 1, 2]), ("leave", [1, 2])])
def test_conflicts_are_counted_and_the_choice_is_kept_to(
    folder: Path, unsettled: str, changed: list[int]
) -> None:
    out, words = folder / "corrected.csv", ["apply", str(folder), "--unsettled", unsettled, "--yes"]
    done = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "conflicts: 1 row on which reviewers disagree, such as row 0" in done.output
    assert (
        "the latest decision is applied" if unsettled == "latest" else "their labels stay"
    ) in done.output
    before, after = pd.read_csv(folder.parent / "animals.csv"), pd.read_csv(out)
    assert (before["kind"] != after["kind"]).to_numpy().nonzero()[0].tolist() == changed
    result = json.loads(
        CliRunner().invoke(app, [*words, "--json", "--out", str(folder / "again.csv")]).stdout
    )
    assert result["conflicts"] == [0] and result["unsettled"] == unsettled


def test_without_conflicts_nothing_is_mentioned(folder: Path) -> None:
    log = DecisionLog(folder / "decisions.csv")
    log.add(log.standing.lines(0)[-1]._replace(decision="undo", label=""))
    log.close()
    done = CliRunner().invoke(
        app, ["apply", str(folder), "--yes", "--out", str(folder / "corrected.csv")]
    )
    assert done.exit_code == 0 and "disagree" not in done.output
