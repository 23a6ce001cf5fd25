"""The log of decisions: who answered which question, what stands, and what survives a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noiseproof.audit.decisions import (
    COLUMNS,
    NO_ROW,
    BadDecisions,
    Decision,
    DecisionLog,
    check_free,
    find_decisions,
    read_answers,
    read_decisions,
    read_log,
    read_standing,
    resolve_merges,
    write_csv,
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
    assert log.answers() == read_answers(log.path)
    assert log.decisions == read_decisions(log.path)
    log.close()
    assert read_log(path) == read_log(log.path) == list(lines)
    return path


def test_reviewers_questions_and_probabilities_come_back_exactly(tmp_path: Path) -> None:
    lines = [
        keep(3, 'Ann "A", née B\n', "measure", 1 / 3),
        accept(3, "Bob", "repeat"),
        accept(4, "é", "measure", 1.0),
    ]
    path = write(tmp_path / "decisions.csv", *lines)
    assert read_answers(path) == lines
    header, *_, last = path.read_bytes().splitlines()
    assert header == b"row,id,given_label,decision,label,reviewer,asked,probability,batch,note"
    assert last == "4,4,cat,accept,dog,é,measure,1.0,,".encode()


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


def test_what_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.sqlite")
    log.add(keep(1))
    log._connection.execute("PRAGMA max_page_count=1")
    with pytest.raises(OSError, match="Expected space .* is full"):
        log.add_all([keep(row)._replace(batch=1, id="x" * 5000) for row in range(2, 9)])
    assert log.decisions == {1: keep(1)} and log.next_batch() == 1
    log._connection.execute("PRAGMA max_page_count=1000")
    log.add(keep(2))
    assert read_log(log.path) == [keep(1), keep(2)]  # another process sees them at once
    log.close()


KILLED = """
import sys
from noiseproof.audit.decisions import Decision, DecisionLog
log = DecisionLog(sys.argv[1])
for row in range(10**6):
    batch = [Decision(row, str(k), "cat", "keep", "cat", batch=row + 1) for k in range(3)]
    log.add_all(batch)
    print(row, flush=True)
"""


def test_killed_during_a_write_no_decision_is_lost_and_no_batch_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    for confirmations in (1, 7, 40):
        process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(confirmations):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        confirmed = confirmations + len(process.stdout.read().splitlines())
        process.wait()
        check_free(path)
        lines = read_log(path)
        assert [line.row for line in lines[::3]] in ([*range(confirmed)], [*range(confirmed + 1)])
        assert [line.id for line in lines] == ["0", "1", "2"] * (len(lines) // 3)
        log = DecisionLog(path)
        assert log.standing.lines(0) == lines[:3]
        log.close()
        assert read_log(path.with_suffix(".csv")) == lines
        path.unlink()
        path.with_suffix(".csv").unlink()


# --- files ----------------------------------------------------------------------------------------


def test_a_csv_file_is_where_a_log_begins_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    assert find_decisions(tmp_path) == path.with_suffix(".sqlite")
    # as older reviews, pages without a server and people write it
    path.write_text(
        ",".join(COLUMNS) + "\n,,x,merge,y,,,,1,\n1,a,cat,keep,cat,,,,1,\n\n2,2,cat,note,,,,,,é"
    )
    lines = [
        merge("x", "y")._replace(batch=1),
        keep(1)._replace(id="a", batch=1),
        note(2, "é"),
    ]
    assert find_decisions(tmp_path) == path and read_log(path) == lines
    log = DecisionLog(path)
    assert find_decisions(tmp_path) == log.path != path
    log.add(keep(3))
    with pytest.raises(BadDecisions, match="another review writes to it"):
        DecisionLog(path)
    with pytest.raises(BadDecisions, match="another review writes to it"):
        check_free(log.path)
    assert log.path.read_bytes()[18:20] == b"\2\2"  # WAL
    log.close()
    log.close()
    check_free(log.path)
    assert log.path.read_bytes()[18:20] == b"\1\1"  # one file that can be read anywhere
    assert read_log(path) == read_log(log.path) == [*lines, keep(3)]


def test_an_edited_csv_file_is_not_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.csv", keep(1), keep(2))
    write_csv([keep(1)], path)  # an earlier one, as a killed review leaves it
    DecisionLog(path).close()
    assert read_log(path) == [keep(1), keep(2)]
    write_csv([accept(1)], path)
    with pytest.raises(BadDecisions, match="it was edited. Remove the database to go on with"):
        DecisionLog(path)
    assert read_log(path) == [accept(1)]
    path.with_suffix(".sqlite").unlink()
    DecisionLog(path).close()
    assert read_log(path) == [accept(1)]


HEADER = ",".join(COLUMNS) + "\n"
BAD_CELLS = (
    "1,1,cat,exclude,dog,,,,,",
    "1,1,cat,unclear,cat,,,,,",
    "1,1,cat,note,cat,,,,,x",
    "1,1,cat,keep,cat,,,,,x",
    ",,cat,keep,cat,,,,,",
    "1,1,cat,merge,dog,,,,,",
    ",,cat,merge,,,,,,",
    ",7,cat,merge,dog,,,,,",
    "1,1,cat,keep,cat,,,,0,",
    "1,1,cat,keep,cat,,,,1 ends,",
    "1,1,cat,note,,,measure,0.5,,x",
    "1,1,cat,maybe,cat,,,,,",
    "-2,1,cat,keep,cat,,,,,",
    "1,1,cat,keep,cat",
    "1,1,cat,keep,cat,,measure,,,",
    "1,1,cat,keep,cat,,,0.5,,",
    "1,1,cat,keep,cat,,often,,,",
    "1,1,cat,keep,cat,,measure,1.5,,",
    "1,1,cat,keep,cat,,measure,nan,,",
    "1,1,cat,keep,cat,,measure,half,,",
)


@pytest.mark.parametrize(
    "text, match",
    [(HEADER + cells, "a text with note alone in decision 1") for cells in BAD_CELLS]
    + [
        (HEADER + '1,1,cat,keep,cat,,,,,\n2,"5" pipe,cat,keep,cat,,,,,\n', "as UTF-8 in"),
        (HEADER + '1,1,cat,keep,cat,,,,,\n2,"ow', "as UTF-8 in"),
        ("a,b\n1,2\n", "with the columns row, id"),
        ("", "got an empty file"),
        ("SQLite format 3\0" + "x" * 200, "a database of decisions"),
    ],
)
def test_what_is_not_a_list_of_decisions_is_refused_and_left_alone(
    tmp_path: Path, text: str, match: str
) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text(text)
    for read in (read_decisions, DecisionLog):
        with pytest.raises(BadDecisions, match=match):
            read(path)
    assert path.read_text() == text and not path.with_suffix(".sqlite").exists()


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
