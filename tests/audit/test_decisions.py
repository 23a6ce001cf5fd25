"""The log of decisions: who answered which question, and what stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noiseproof.audit.decisions import (
    COLUMNS,
    NO_ROW,
    BadDecisions,
    Decision,
    DecisionLog,
    read_answers,
    read_decisions,
    read_log,
    read_standing,
    resolve_merges,
    to_bytes,
    to_line,
)


def keep(
    row: int, reviewer: str = "", asked: str = "", probability: float | None = None
) -> Decision:
    return Decision(row, str(row), "cat", "keep", "cat", reviewer, asked, probability)  # type: ignore[arg-type]


def accept(
    row: int, reviewer: str = "", asked: str = "", probability: float | None = None
) -> Decision:
    return Decision(row, str(row), "cat", "accept", "dog", reviewer, asked, probability)  # type: ignore[arg-type]


def undo(row: int, reviewer: str = "") -> Decision:
    return Decision(row, str(row), "cat", "undo", "", reviewer)


def write(path: Path, *lines: Decision) -> Path:
    log = DecisionLog(path)
    for line in lines:
        log.add(line)
    assert log.answers() == read_answers(path)
    assert log.decisions == read_decisions(path)
    log.close()
    assert read_log(path) == list(lines)
    return path


def test_reviewers_questions_and_probabilities_come_back_exactly(tmp_path: Path) -> None:
    lines = [
        keep(3, 'Ann "A", née B\n', "measure", 1 / 3),
        accept(3, "Bob", "repeat"),
        accept(4, "é", "measure", 1.0),
    ]
    path = write(tmp_path / "decisions.csv", *lines)
    assert read_answers(path) == lines
    assert (
        path.read_bytes().splitlines()[0]
        == b"row,id,given_label,decision,label,reviewer,asked,probability,batch,note"
    )
    assert path.read_bytes().endswith("4,4,cat,accept,dog,é,measure,1.0,,\n".encode())


def test_a_second_opinion_replaces_no_decision(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        keep(3, "ann", "measure", 0.5),
        accept(3, "bob", "repeat"),
        keep(4, "", "repeat"),
    )
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
    # the change goes, not the answer
    assert read_answers(path) == [first] and read_decisions(path) == {3: first}
    path = write(tmp_path / "f.csv", first, accept(3, "ann"), undo(3, "ann"), undo(3, "ann"))
    assert read_answers(path) == [] and read_decisions(path) == {}
    path = write(tmp_path / "c.csv", first, accept(3, "bob"))
    # another person's decision is no measured one
    assert read_answers(path) == [first, accept(3, "bob")]
    assert read_decisions(path) == {3: accept(3, "bob")}
    path = write(tmp_path / "d.csv", keep(3, "ann"), accept(3, "ann", "measure", 0.25))
    # decided before the design asked about it
    assert read_answers(path) == [accept(3, "ann", "measure", 0.25)]
    path = write(tmp_path / "e.csv", first, accept(3, "ann", "repeat"), keep(3, "ann", "repeat"))
    assert read_answers(path) == [first, keep(3, "ann", "repeat")]


def test_a_reviewer_undoes_only_their_own_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", keep(3, "ann", "measure", 0.5), accept(4, "ann"), undo(3, "bob")
    )
    assert read_answers(path) == [keep(3, "ann", "measure", 0.5), accept(4, "ann")]
    assert set(read_decisions(path)) == {3, 4}
    # Bob's decision is the later one; without it Ann's stands again, whoever undoes first
    path = write(tmp_path / "b.csv", keep(3, "ann"), accept(3, "bob"), undo(3, "bob"))
    assert read_decisions(path) == {3: keep(3, "ann")}
    path = write(tmp_path / "c.csv", keep(3, "ann"), accept(3, "bob"), undo(3, "ann"))
    assert read_decisions(path) == {3: accept(3, "bob")}
    path = write(
        tmp_path / "d.csv",
        keep(3, "ann"),
        accept(3, "bob"),
        undo(3, "ann"),
        undo(3, "ann"),
        undo(3, "bob"),
    )
    assert read_decisions(path) == {} and read_answers(path) == []


def test_decisions_on_a_row_are_a_stack_for_each_reviewer(tmp_path: Path) -> None:
    skip = Decision(3, "3", "cat", "skip", "", "ann")
    lines = [keep(3, "ann"), accept(3, "ann"), skip, accept(3, "bob")]
    undone = [
        *lines,
        undo(3, "ann"),
        undo(3, "bob"),
        undo(3, "ann"),
        undo(3, "ann"),
        undo(3, "ann"),
    ]
    expected = [lines[0], lines[1], skip, lines[3], lines[3], lines[1], lines[0], None, None]
    for count, decision in enumerate(expected, 1):
        path = write(tmp_path / f"{count}.csv", *undone[:count])
        assert read_decisions(path).get(3) == decision, count


# --- excluded, unclear, notes, merges -------------------------------------------------------------


def note(row: int, text: str, reviewer: str = "") -> Decision:
    return Decision(row, str(row), "cat", "note", "", reviewer, note=text)


def merge(spelling: str, label: str, reviewer: str = "") -> Decision:
    return Decision(NO_ROW, "", spelling, "merge", label, reviewer)


def test_a_note_decides_nothing_and_the_last_one_counts(tmp_path: Path) -> None:
    exclude, unclear = (
        Decision(row, str(row), "cat", choice, "")
        for row, choice in ((3, "exclude"), (4, "unclear"))
    )  # type: ignore[arg-type]
    text = 'two\nlines, "quoted"; é'
    path = write(
        tmp_path / "a.csv", exclude, note(3, text, "ann"), unclear, note(5, "blurred"), note(5, "")
    )
    standing = read_standing(path)
    assert standing.decisions == {3: exclude, 4: unclear} and standing.notes == {3: text}
    assert [answer.row for answer in standing.answers()] == [3, 4]
    assert not exclude.names_label and not unclear.names_label and keep(1).names_label
    # an undo takes back the reviewer's last line on the row, which may be a note
    path = write(tmp_path / "b.csv", keep(3), note(3, "one"), note(3, "two"), undo(3))
    assert read_standing(path).notes == {3: "one"} and read_decisions(path) == {3: keep(3)}
    path = write(tmp_path / "c.csv", keep(3), note(3, "one"), undo(3), undo(3))
    assert read_standing(path).notes == {} and read_decisions(path) == {}
    path = write(
        tmp_path / "d.csv", note(3, "ann's", "ann"), note(3, "bob's", "bob"), undo(3, "bob")
    )
    assert read_standing(path).notes == {3: "ann's"}


def test_merges_are_about_classes_and_can_be_undone(tmp_path: Path) -> None:
    first, second = merge("Gentoo ", "Gentoo", "ann"), merge("gento", "gento", "bob")
    back = first._replace(decision="undo", label="")
    path = write(tmp_path / "a.csv", first, keep(3), second)
    assert path.read_bytes().splitlines()[1] == b",,Gentoo ,merge,Gentoo,ann,,,,"
    assert read_standing(path).merges == {"Gentoo ": first, "gento": second} and read_decisions(
        path
    ) == {3: keep(3)}
    assert read_standing(write(tmp_path / "b.csv", first, second, back)).merges == {"gento": second}
    assert read_standing(
        write(tmp_path / "c.csv", first, back._replace(reviewer="bob"))
    ).merges == {"Gentoo ": first}


def test_merged_classes_follow_each_other_and_circles_stay() -> None:
    def becomes(*pairs: tuple[str, str]) -> dict[str, str]:
        return resolve_merges({spelling: merge(spelling, label) for spelling, label in pairs})

    assert becomes(("a", "b"), ("b", "c"), ("d", "d")) == {"a": "c", "b": "c"}
    assert becomes(("a", "b"), ("b", "b")) == {"a": "b"}
    assert becomes(("a", "b"), ("b", "a"), ("c", "a")) == {}


@pytest.mark.parametrize(
    "cells",
    [
        "1,1,cat,exclude,dog,,,,,",
        "1,1,cat,unclear,cat,,,,,",
        "1,1,cat,note,cat,,,,,x",
        "1,1,cat,keep,cat,,,,,x",
        ",,cat,keep,cat,,,,,",
        "1,1,cat,merge,dog,,,,,",
        ",,cat,merge,,,,,,",
        ",7,cat,merge,dog,,,,,",
        "1,1,cat,keep,cat,,,,0,",
        "1,1,cat,keep,cat,,,,one,",
        "1,1,cat,keep,cat,,,,1 ends,",
        "-1,,cat,merge,dog,,,,,",
        "1,1,cat,note,,,measure,0.5,,x",
    ],
)
def test_lines_without_sense_are_refused(tmp_path: Path, cells: str) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(to_line(COLUMNS) + f"{cells}\n".encode())
    for read in (read_standing, DecisionLog):
        with pytest.raises(BadDecisions, match="a text with note alone in decision 1"):
            read(path)


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_is_undone_as_one_and_only_what_is_still_the_last(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.csv")
    assert log.next_batch() == 1 and log.last_action("ann") == []
    log.add(keep(1, "ann"))
    batch = [accept(row, "ann")._replace(batch=1) for row in (1, 2, 3)]
    log.add_all(batch)
    log.add(keep(3, "bob"))
    log.add(keep(2, "ann"))
    log.add(keep(9, "ann", "measure", 0.5))  # what was measured is not undone from the list
    assert log.next_batch() == 2 and log.last_action("bob") == [keep(3, "bob")]
    assert log.last_action("ann") == [keep(2, "ann")]
    log.add(undo(2, "ann"))
    assert log.last_action("ann") == batch
    log.add(undo(3, "ann"))
    assert log.last_action("ann") == batch[:2]
    log.add_all([undo(line.row, "ann")._replace(batch=2) for line in batch[:2]])
    assert log.last_action("ann") == [keep(1, "ann")] and log.next_batch() == 3
    assert log.decisions == {
        1: keep(1, "ann"),
        3: keep(3, "bob"),
        9: keep(9, "ann", "measure", 0.5),
    }
    with pytest.raises(ValueError, match="Expected one batch for 2 decisions"):
        log.add_all([keep(4), keep(5)])
    log.close()
    assert [line.split(b",")[-2] for line in log.path.read_bytes().splitlines()[1:]] == [
        b"",
        b"1",
        b"1",
        b"1 end",
        b"",
        b"",
        b"",
        b"",
        b"",
        b"2",
        b"2 end",
    ]


def test_a_batch_torn_at_any_byte_goes_as_a_whole(tmp_path: Path) -> None:
    """Truncated at every byte, the file has all lines of a batch or none, and takes further
    lines.
    """
    path = tmp_path / "decisions.csv"
    actions = [
        [keep(1)],
        [accept(row)._replace(batch=1, id='a "b"\r\n,') for row in (2, 3, 4)],
        [note(2, "é\n")],
        [undo(row)._replace(batch=2) for row in (2, 3)],
        [merge("x", "y")._replace(batch=3), keep(5)._replace(batch=3)],
        [keep(6)._replace(batch=4)],
    ]
    log = DecisionLog(path)
    sizes, ends, lines = [0], [path.stat().st_size], []
    for action in actions:
        log.add_all(action)
        lines += action
        sizes.append(len(lines))
        ends.append(path.stat().st_size)
    log.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        # but for its line end
        complete = max((n for n, end in enumerate(ends) if end - 1 <= cut and n), default=0)
        assert read_log(path) == lines[: sizes[complete]], cut
        log = DecisionLog(path)
        log.add(keep(7))
        log.close()
        assert path.read_bytes() == whole[: ends[complete]] + to_line(keep(7)), cut


def test_a_batch_that_the_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = DecisionLog(tmp_path / "decisions.csv"), os.write
    log.add(keep(1))
    before = log.path.read_bytes()
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:40]))
    with pytest.raises(OSError, match="the disk is full"):
        log.add_all([keep(row)._replace(batch=1) for row in range(2, 9)])
    monkeypatch.undo()
    assert (
        log.path.read_bytes() == before and log.decisions == {1: keep(1)} and log.next_batch() == 1
    )
    log.close()


@pytest.mark.parametrize(
    "cells",
    [
        "keep,cat,,measure,",
        "keep,cat,,,0.5",
        "keep,cat,,repeat,0.5",
        "keep,cat,,often,",
        "keep,cat,,measure,0",
        "keep,cat,,measure,1.5",
        "keep,cat,,measure,nan",
        "keep,cat,,measure,half",
        "keep,cat",
        "keep,cat,,,,,,",
    ],
)
def test_questions_without_sense_are_refused(tmp_path: Path, cells: str) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(to_line(COLUMNS) + f"1,1,cat,{cells},,\n".encode())
    for read in (read_decisions, read_answers, DecisionLog):
        with pytest.raises(
            BadDecisions, match="a probability with measure alone, .* in decision 1"
        ):
            read(path)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.csv")
    for bad in (
        keep(1, "", "measure"),
        keep(1, "", "", 0.5),
        keep(-1),
        keep(1, "", "measure", 2.0),
    ):
        with pytest.raises(ValueError, match="Expected a row ≥ 0"):
            log.add(bad)
    log.close()
    assert read_log(log.path) == []


def test_a_file_that_was_replaced_while_a_review_waited_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A review has the file open when another process replaces it."""
    path, real = tmp_path / "decisions.csv", os.open
    path.write_bytes(to_bytes([keep(9)]))
    opened: list[str] = []

    def slow(file: str | Path, flags: int, mode: int = 0o777) -> int:
        handle = real(file, flags, mode)
        if Path(file) == path and not opened:
            opened.append("first")
            monkeypatch.undo()
            path.with_suffix(".new").write_bytes(to_bytes([keep(1)]))
            path.with_suffix(".new").replace(path)
        return handle

    monkeypatch.setattr(os, "open", slow)
    log = DecisionLog(path)
    log.add(keep(2))
    log.close()
    assert read_log(path) == [keep(1), keep(2)]


def test_a_last_line_without_its_line_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text(",".join(COLUMNS) + "\n1,a,cat,keep,cat,,,,,\n2,b,cat,accept,dog,,,,,")
    assert {row: one.label for row, one in read_decisions(path).items()} == {1: "cat", 2: "dog"}
    log = DecisionLog(path)
    log.add(keep(3))
    log.close()
    assert [line.row for line in read_log(path)] == [1, 2, 3] and path.read_bytes().endswith(b"\n")


def test_notes_count_unless_they_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(to_bytes([note(2, "blurred"), note(3, "")]).removesuffix(b"\n"))
    assert read_log(path) == [note(2, "blurred"), note(3, "")]
    path.write_bytes(to_bytes([note(2, "blurred")])[:-3])
    assert read_log(path) == []
    path.write_bytes(to_line(COLUMNS) + b"2,2,cat,note,,,,,,written by hand")
    assert [line.note for line in read_log(path)] == ["written by hand"]
