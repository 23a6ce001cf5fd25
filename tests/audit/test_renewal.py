"""Decisions and the designed sample when another audit replaces theirs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import audit, read_rows
from noiseproof.audit.decisions import (
    Decision,
    find_decisions,
    read_decisions,
    read_log,
    write_csv,
)
from noiseproof.audit.files import read_audit

STRATA = np.arange(60, dtype=np.int16) % 4


def save(
    folder: Path, names: list[int], *, id: str | None = "name", labels: dict[int, str] | None = None
) -> list[str]:
    """Audit the animals ``names``, every third of which is a cat; return what is said about
    decisions.
    """
    given = [(labels or {}).get(name, ("cat", "dog", "owl")[name % 3]) for name in names]
    table = folder.parent / "t.csv"
    pd.DataFrame({"name": [f"n{name}" for name in names], "x": names, "y": given}).to_csv(
        table, index=False
    )
    probs = np.eye(3)[[name % 3 for name in names]] * 0.85 + 0.05
    np.save(folder.parent / "p.npy", probs)
    rows = read_rows(table, label="y", id=id, pred_probs=folder.parent / "p.npy")
    told: list[str] = []
    audit(rows, command="noiseproof audit t.csv --label y").save(
        folder, force=True, tell=told.append
    )
    return told


def decide(folder: Path) -> bytes:
    """Measured answers on two rows, one of them undone, a second opinion, and a decision from the
    list.
    """
    ids = read_audit(folder).issues.set_index("row")["id"]
    lines = [
        Decision(9, ids[9], "cat", "accept", "dog", "ann", "measure", 0.25),
        Decision(12, ids[12], "cat", "keep", "cat", "ann", "measure", 0.5),
        Decision(12, ids[12], "cat", "undo", "", "ann"),
        Decision(9, ids[9], "cat", "keep", "cat", "bob", "repeat"),
        Decision(15, ids[15], "cat", "other", "owl", "bob"),
    ]
    write_csv(lines, folder / "decisions.csv")
    (folder / "measure.json").write_text('{"seed": 0}')
    np.save(folder / "strata.npy", STRATA)
    return (folder / "decisions.csv").read_bytes()


def files(folder: Path) -> list[str]:
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name.startswith(("decisions", "measure", "strata"))
    )


def test_the_sample_stays_where_the_rows_are_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    save(folder, [*range(60)], id=None)
    decided = decide(folder)
    assert save(folder, [*range(60)], id=None) == []
    assert files(folder) == ["decisions.csv", "measure.json", "strata.npy"]
    assert (folder / "decisions.csv").read_bytes() == decided
    (message,) = save(folder, [*range(60)])  # they have names now
    assert "2 of 2 decisions on the earlier audit are carried over" in message
    lines = read_log(find_decisions(folder))
    assert [line.id for line in lines] == ["n9", "n12", "n12", "n9", "n15"]
    assert [line.asked for line in lines] == ["measure", "measure", "", "repeat", ""] and lines[
        0
    ].probability == 0.25
    assert (folder / "measure.json").exists() and (np.load(folder / "strata.npy") == STRATA).all()
    # and none again: the same rows by their content
    (message,) = save(folder, [*range(60)], id=None)
    assert "2 of 2 decisions on the earlier audit are carried over" in message
    assert [line.id for line in read_log(find_decisions(folder))] == ["9", "12", "12", "9", "15"]
    assert {"measure.json", "strata.npy"} <= {*files(folder)}


def test_the_sample_goes_aside_with_its_decisions_where_rows_differ(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    save(folder, [*range(60)])
    decided = decide(folder)
    (message,) = save(folder, [*range(3, 60)])  # rows have moved; their ids name them
    assert "2 of 2 decisions" in message
    (aside,) = folder.glob("decisions-*.csv")
    digest = aside.stem.removeprefix("decisions-")
    assert aside.read_bytes() == decided
    assert files(folder) == [
        aside.name,
        "decisions.csv",
        f"measure-{digest}.json",
        f"strata-{digest}.npy",
    ]
    assert read_log(find_decisions(folder)) == [
        # no longer measured: the sample was of other rows
        Decision(6, "n9", "cat", "accept", "dog", "ann"),
        Decision(9, "n12", "cat", "keep", "cat", "ann"),
        Decision(9, "n12", "cat", "undo", "", "ann"),
        Decision(6, "n9", "cat", "keep", "cat", "bob", "repeat"),
        Decision(12, "n15", "cat", "other", "owl", "bob"),
    ]


def test_one_changed_label_ends_the_sample(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    save(folder, [*range(60)])
    decide(folder)
    save(folder, [*range(60)], labels={40: "owl"})
    assert not (folder / "measure.json").exists() and not (folder / "strata.npy").exists()
    assert {line.asked for line in read_log(find_decisions(folder))} == {"", "repeat"}
    assert read_decisions(find_decisions(folder))[9].label == "dog"


def test_a_sample_without_answers_goes_aside_too(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    save(folder, [*range(60)])
    decide(folder)
    find_decisions(folder).unlink()
    assert save(folder, [*range(60)]) == [] and (folder / "measure.json").exists()
    assert save(folder, [*range(1, 60)]) == []
    assert [name[:8] for name in files(folder)] == ["measure-", "strata-" + files(folder)[1][7]]


def test_an_audit_of_another_format_is_refused_with_the_command_that_renews_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "audit"
    save(folder, [*range(60)])
    (folder / "checksums.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "summary.json").write_text('{"format": 1}')
    with pytest.raises(
        ValueError, match="format 2 in .*, got 1. .*: noiseproof audit t.csv --label y --force$"
    ):
        read_audit(folder)
    for command, expected in (
        (None, "noiseproof audit … --force"),
        ("noiseproof audit --force t.csv",) * 2,
    ):
        (folder / "config.json").write_text(json.dumps(config | {"command": command}))
        with pytest.raises(ValueError, match=f"Audit again: {expected}$"):
            read_audit(folder)
