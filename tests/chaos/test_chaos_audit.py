"""Audits, decisions and corrections that are killed, find the disk full, meet another writer or
read damaged files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chaos import THOROUGH, Outcome, bits, flipped, interruptions, outcome_of, writers
from PIL import Image

from noiseproof.audit import audit, read_audit, read_rows, write_corrected
from noiseproof.audit.decisions import (
    Decision,
    DecisionLog,
    find_decisions,
    read_decisions,
    read_log,
    write_csv,
)
from noiseproof.audit.plan import corrections, read_reviewed

ROWS = 24
TRUE = ["cat", "dog"] * (ROWS // 2)
# rows 0, 8 and 16 are wrong
GIVEN = ["dog" if i % 8 == 0 else label for i, label in enumerate(TRUE)]
# rows of one label change places
SWAPPED = [8, 2, 4, 3, 0, 5, 6, 7, 16, *range(9, 16), 1, *range(17, 24)]


def table(order: Any = range(ROWS)) -> pd.DataFrame:
    return pd.DataFrame({"x": range(ROWS), "true": TRUE, "y": GIVEN}).iloc[list(order)]


DECISIONS = [Decision(row, str(row), "dog", "accept", "cat") for row in (0, 8, 16)]


def save(folder: Path, frame: pd.DataFrame) -> None:
    data = folder / f"t-{os.getpid()}.csv"
    frame.to_csv(data, index=False)
    data.replace(folder / "t.csv")  # whole, for another writer that reads it at this moment
    probs = np.eye(2)[(frame["true"] == "dog").to_numpy().astype(int)] * 0.8 + 0.1
    rows = read_rows(folder / "t.csv", label="y", ignore=["true"], pred_probs=probs)
    audit(rows).save(folder / "audit", force=True, tell=lambda _: None)


def apply(folder: Path, out: Path) -> dict[str, Any]:
    found = read_audit(folder / "audit")
    reviewed = read_reviewed(folder / "audit", None)
    decisions, answers = reviewed.decisions, reviewed.answers()
    out.unlink(missing_ok=True)
    written = pd.read_csv(write_corrected(found, corrections(found, decisions, answers), out))
    return {
        "wrong": int((written["y"] != written["true"]).sum()),
        "rows": sorted(written["x"].tolist()),
    }


def a_new_audit(folder: Path) -> dict[str, Any]:
    """An audit, and what its files say."""
    save(folder, table())
    found = read_audit(folder / "audit")
    return {"key": found.key, "issues": hashlib.sha256(found.issues.to_csv().encode()).hexdigest()}


def a_replaced_audit(folder: Path) -> dict[str, Any]:
    """Decisions on an audit, rows that change places, another audit with --force, and the corrected
    data.
    """
    log = folder / "audit" / "decisions.csv"
    if not (folder / "ready").exists():
        shutil.rmtree(folder / "audit", ignore_errors=True)
        save(folder, table())
        write_csv(DECISIONS, log)
        (folder / "ready").touch()
    save(folder, table(SWAPPED))
    kept = [read_decisions(file) for file in (folder / "audit").glob("decisions*.csv")]
    assert max(map(len, kept)) == 3  # no decision is lost, here or aside
    if not log.exists():  # a command that was killed in between kept them aside
        return {"wrong": 3, "rows": [*range(ROWS)]}
    return apply(folder, folder / "new.csv")


def an_applied_table(folder: Path) -> dict[str, Any]:
    if not (folder / "audit" / "decisions.csv").exists():
        save(folder, table())
        write_csv(DECISIONS, folder / "audit" / "decisions.csv")
    found, out = read_audit(folder / "audit"), folder / "new.csv"
    if not out.exists():
        write_corrected(found, dict.fromkeys((0, 8, 16), "cat"), out)
    content = out.read_text()
    # another name of the whole file, which the next one of this name removes
    if [*folder.glob(".*.part")]:
        out.unlink()
        write_corrected(found, dict.fromkeys((0, 8, 16), "cat"), out)
    return {"content": content, "parts": [path.name for path in folder.glob(".*.part")]}


def applied_pictures(folder: Path) -> dict[str, Any]:
    if not (folder / "audit" / "checksums.json").exists():
        for i in range(6):
            path = folder / "photos" / ("cat" if i < 3 else "dog") / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 40 * i).save(path)
        audit(read_rows(folder / "photos", pred_probs=np.eye(2)[[0, 0, 1, 1, 1, 1]])).save(
            folder / "audit", force=True
        )
    out = folder / "new"
    if not out.exists():
        write_corrected(read_audit(folder / "audit"), {2: "dog"}, out)
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png"))
    return {"files": files, "left": [path.name for path in folder.glob("new.*")]}


def a_review(folder: Path) -> list[Any]:
    """Five decisions, begun where the file ends."""
    log = DecisionLog(folder / "decisions.csv")
    for row in range(len(log.decisions), 5):
        log.add(Decision(row, str(row), "cat", "accept", "dog"))
    log.close()
    return [list(line) for line in read_log(find_decisions(folder))]


SCENARIOS = [a_new_audit, a_replaced_audit, an_applied_table, applied_pictures, a_review]


@pytest.mark.parametrize("how", ["kill", "full"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_stopped_at_any_write_ends_as_if_it_was_not(
    scenario: Any, how: Any, tmp_path: Path
) -> None:
    whole = outcome_of(lambda: scenario(_made(tmp_path / "whole")))
    assert not whole.error, whole
    for case in interruptions(scenario, tmp_path / "cases", how):
        if how == "full":
            assert case.first.is_refusal or case.first == whole, f"{case.operation}: {case.first}"
        # decisions may be aside; those that are applied reach their rows
        if scenario is a_replaced_audit:
            assert case.again.value and case.again.value["rows"] == [*range(ROWS)], case.again
            assert case.again.value["wrong"] in (0, 3), f"{case.operation}: {case.again}"
        else:
            assert case.again == whole or case.again.is_refusal, f"{case.operation}: {case.again}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("scenario", [a_new_audit, applied_pictures, a_review])
def test_of_two_writers_each_ends_as_alone_or_is_refused(scenario: Any, tmp_path: Path) -> None:
    whole = outcome_of(lambda: scenario(_made(tmp_path / "whole")))
    for attempt in range(4 if THOROUGH else 1):
        outcomes = writers(scenario, _made(tmp_path / str(attempt)), 2)
        assert any(outcome == whole for outcome in outcomes), outcomes
        for outcome in outcomes:
            assert outcome == whole or outcome.is_refusal, outcome
        assert outcome_of(lambda attempt=attempt: scenario(tmp_path / str(attempt))) == whole


@pytest.mark.parametrize(
    "name", ["issues.csv", "summary.json", "config.json", "rows.npy", "checksums.json"]
)
def test_a_flipped_bit_in_an_audit_is_refused_or_changes_nothing(name: str, tmp_path: Path) -> None:
    save(tmp_path, table())
    log = tmp_path / "audit" / "decisions.csv"
    write_csv(DECISIONS, log)
    whole = Outcome(json.loads(json.dumps(apply(tmp_path, tmp_path / "new.csv"))))
    assert whole.value == {"wrong": 0, "rows": [*range(ROWS)]}
    for bit in bits(tmp_path / "audit" / name):
        with flipped(tmp_path / "audit" / name, bit):
            outcome = outcome_of(lambda: apply(tmp_path, tmp_path / "new.csv"))
        assert outcome == whole or outcome.is_refusal, f"bit {bit} of {name}: {outcome}"


def test_a_flipped_bit_in_the_data_is_refused(tmp_path: Path) -> None:
    save(tmp_path, table())
    write_csv([Decision(0, "0", "dog", "accept", "cat")], tmp_path / "audit" / "decisions.csv")
    before = (tmp_path / "t.csv").read_bytes()
    for bit in bits(tmp_path / "t.csv"):
        with flipped(tmp_path / "t.csv", bit):
            outcome = outcome_of(lambda: apply(tmp_path, tmp_path / "new.csv"))
        assert outcome.is_refusal or before[bit // 8] in b"\r\n", f"bit {bit}: {outcome}"
