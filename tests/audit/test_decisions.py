"""The log of decisions: who answered which question, what stands, and files of earlier versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noiseproof.audit.decisions import (
    COLUMNS,
    BadDecisions,
    Decision,
    DecisionLog,
    read_answers,
    read_decisions,
    read_log,
    to_line,
)

OLD = b'row,id,given_label,decision,label\n7,"b\r\n,",cat,accept,dog\n8,c,cat,skip,\n8,c,cat,undo,\n9,d,owl,keep,owl\n'
OLD_LINES = [
    Decision(7, "b\r\n,", "cat", "accept", "dog"), Decision(8, "c", "cat", "skip", ""),
    Decision(8, "c", "cat", "undo", ""), Decision(9, "d", "owl", "keep", "owl"),
]  # fmt: skip


def keep(row: int, reviewer: str = "", asked: str = "", probability: float | None = None) -> Decision:
    return Decision(row, str(row), "cat", "keep", "cat", reviewer, asked, probability)  # type: ignore[arg-type]


def accept(row: int, reviewer: str = "", asked: str = "", probability: float | None = None) -> Decision:
    return Decision(row, str(row), "cat", "accept", "dog", reviewer, asked, probability)  # type: ignore[arg-type]


def undo(row: int, reviewer: str = "") -> Decision:
    return Decision(row, str(row), "cat", "undo", "", reviewer)


def write(path: Path, *lines: Decision) -> Path:
    log = DecisionLog(path)
    for line in lines:
        log.add(line)
    assert log.answers() == read_answers(path)
    assert {row: line for row, line in log.decisions.items() if line.decision != "undo"} == read_decisions(path)
    log.close()
    assert read_log(path) == list(lines)
    return path


def test_reviewers_questions_and_probabilities_come_back_exactly(tmp_path: Path) -> None:
    lines = [keep(3, 'Ann "A", née B\n', "measure", 1 / 3), accept(3, "Bob", "repeat"), accept(4, "é", "measure", 1.0)]
    path = write(tmp_path / "decisions.csv", *lines)
    assert read_answers(path) == lines
    assert path.read_bytes().splitlines()[0] == b"row,id,given_label,decision,label,reviewer,asked,probability"
    assert path.read_bytes().endswith("4,4,cat,accept,dog,é,measure,1.0\n".encode())


def test_a_second_opinion_replaces_no_decision(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", keep(3, "ann", "measure", 0.5), accept(3, "bob", "repeat"), keep(4, "", "repeat"))
    assert read_decisions(path) == {3: keep(3, "ann", "measure", 0.5)}
    assert [answer.reviewer for answer in read_answers(path)] == ["ann", "bob", ""]
    # one person asked twice; an undo takes the second answer back, another one the first
    twice = [keep(3, "ann", "measure", 0.5), accept(3, "ann", "repeat")]
    assert read_answers(write(tmp_path / "b.csv", *twice)) == twice
    path = write(tmp_path / "c.csv", *twice, undo(3, "ann"))
    assert read_answers(path) == twice[:1] and read_decisions(path) == {3: twice[0]}
    path = write(tmp_path / "d.csv", *twice, undo(3, "ann"), undo(3, "ann"))
    assert read_answers(path) == [] and read_decisions(path) == {}


def test_a_changed_answer_remains_part_of_the_sample(tmp_path: Path) -> None:
    first = keep(3, "ann", "measure", 0.25)
    path = write(tmp_path / "a.csv", first, keep(5, "ann"), accept(3, "ann"))
    assert read_answers(path) == [keep(5, "ann"), accept(3, "ann", "measure", 0.25)]
    assert read_decisions(path)[3].label == "dog" and list(read_decisions(path)) == [3, 5]
    path = write(tmp_path / "b.csv", first, accept(3, "ann"), undo(3, "ann"))
    assert read_answers(path) == [] and read_decisions(path) == {}  # the answer goes, not the change alone
    path = write(tmp_path / "c.csv", first, accept(3, "bob"))
    assert read_answers(path) == [first, accept(3, "bob")]  # another person's decision is no measured one
    assert read_decisions(path) == {3: accept(3, "bob")}
    path = write(tmp_path / "d.csv", keep(3, "ann"), accept(3, "ann", "measure", 0.25))
    assert read_answers(path) == [accept(3, "ann", "measure", 0.25)]  # decided before the design asked about it
    path = write(tmp_path / "e.csv", first, accept(3, "ann", "repeat"), keep(3, "ann", "repeat"))
    assert read_answers(path) == [first, keep(3, "ann", "repeat")]


def test_a_reviewer_undoes_only_their_own_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", keep(3, "ann", "measure", 0.5), accept(4, "ann"), undo(3, "bob"))
    assert read_answers(path) == [keep(3, "ann", "measure", 0.5), accept(4, "ann")]
    assert set(read_decisions(path)) == {4}  # what is applied is undecided again


@pytest.mark.parametrize(
    "cells", ["keep,cat,,measure,", "keep,cat,,,0.5", "keep,cat,,repeat,0.5", "keep,cat,,often,", "keep,cat,,measure,0",
              "keep,cat,,measure,1.5", "keep,cat,,measure,nan", "keep,cat,,measure,half", "keep,cat", "keep,cat,,,,"],
)  # fmt: skip
def test_questions_without_sense_are_refused(tmp_path: Path, cells: str) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(to_line(COLUMNS) + f"1,1,cat,{cells}\n".encode())
    for read in (read_decisions, read_answers, DecisionLog):
        with pytest.raises(BadDecisions, match="a probability with measure alone in decision 1"):
            read(path)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.csv")
    for bad in (keep(1, "", "measure"), keep(1, "", "", 0.5), keep(-1), keep(1, "", "measure", 2.0)):
        with pytest.raises(ValueError, match="Expected a row ≥ 0"):
            log.add(bad)
    log.close()
    assert read_log(log.path) == []


# --- files of five columns --------------------------------------------------------------------------------------------


def test_a_file_of_five_columns_is_read_and_gets_the_others_when_a_review_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(OLD + b"10,e,ow")
    assert read_log(path) == OLD_LINES and path.read_bytes() == OLD + b"10,e,ow"  # reading changes nothing
    log = DecisionLog(path)
    assert path.read_bytes() == b"".join(map(to_line, (COLUMNS, *OLD_LINES)))
    with pytest.raises(BadDecisions, match="another review writes to it"):
        DecisionLog(path)  # the lock is that of the new file
    log.add(keep(10, "ann", "measure", 0.5))
    log.close()
    assert read_log(path) == [*OLD_LINES, keep(10, "ann", "measure", 0.5)]
    assert set(read_decisions(path)) == {7, 9, 10} and os.listdir(tmp_path) == ["decisions.csv"]


def test_an_open_file_is_not_upgraded_by_another_review(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "decisions.csv"
    path.write_bytes(OLD)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BadDecisions, match="another review writes to it"):
            DecisionLog(path)
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_crash_during_the_upgrade_loses_nothing(tmp_path: Path, step: str) -> None:
    """The process dies at the rename, as by kill -9."""
    path = tmp_path / "decisions.csv"
    path.write_bytes(OLD)
    program = f"""
import os
from noiseproof.audit.decisions import DecisionLog
rename = os.replace
def replace(part, path):
    if {step == "after"}:
        rename(part, path)
    os._exit(9)
os.replace = replace
DecisionLog({str(path)!r})
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 9
    assert read_log(path) == OLD_LINES
    log = DecisionLog(path)
    log.add(keep(1))
    log.close()
    assert read_log(path) == [*OLD_LINES, keep(1)] and os.listdir(tmp_path) == ["decisions.csv"]


def test_a_file_that_was_replaced_while_a_review_waited_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reviews open an old file; the second has it open when the first replaces it and goes away."""
    path, real = tmp_path / "decisions.csv", os.open
    path.write_bytes(OLD)
    opened: list[str] = []

    def slow(file: str | Path, flags: int, mode: int = 0o777) -> int:
        handle = real(file, flags, mode)
        if Path(file) == path and not opened:
            opened.append("first")
            monkeypatch.undo()
            write_first = DecisionLog(path)  # locks, replaces and closes in the meantime
            write_first.add(keep(1))
            write_first.close()
        return handle

    monkeypatch.setattr(os, "open", slow)
    log = DecisionLog(path)
    log.add(keep(2))
    log.close()
    assert read_log(path) == [*OLD_LINES, keep(1), keep(2)]
