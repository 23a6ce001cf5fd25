"""The frame finds what is not safe, and only that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from chaos import Outcome, bits, flipped, interruptions, outcome_of, writers

from noiseproof.core.files import check_files, replacing, replacing_all

TEXT = "a value, long enough for a first half" * 3


def careful(folder: Path) -> str:
    with replacing(folder / "value") as part:
        part.write_text(TEXT)
    return (folder / "value").read_text()


def pair(folder: Path) -> list[str]:
    """Two files that belong together, replaced; what a reader finds before it, and after."""
    before = read_pair(folder)
    for text in ("old", "new") if not before[0] else ("new",):
        with replacing_all(folder) as part:
            for name in ("a", "b"):
                part(name).write_text(text + TEXT)
    return [*before, *read_pair(folder)]


def read_pair(folder: Path) -> list[str]:
    check_files(folder, "a", "b")
    return [path.read_text()[:3] if (path := folder / name).exists() else "" for name in ("a", "b")]


def careless(folder: Path) -> str:
    """Writes in place, once: a kill leaves half of it."""
    path = folder / "value"
    if not path.exists():
        path.write_text(TEXT)
    return path.read_text()


def appending(folder: Path) -> int:
    """Takes no lock, so that of two writers both read before one writes, also a file that is new
    and still empty.
    """
    path = folder / "value"
    count = int(path.read_text() or 0) if path.exists() else 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, str(count + 1).encode())
    os.close(file)
    return count


@pytest.mark.parametrize("how", ["kill", "full"])
def test_work_that_is_safe_passes(how: str, tmp_path: Path) -> None:
    cases = list(interruptions(careful, tmp_path, how, count=20))
    assert {case.again.value for case in cases} == {TEXT}
    operations = [case.operation for case in cases]
    if how == "kill":
        assert all(case.first.killed for case in cases)
        assert [
            f"{what} value{end}"
            for what, end in (("create", ".part"), ("write", ".part"), ("replace", ".part"))
        ] == [
            operation
            for operation in operations
            if operation.split()[0] in ("create", "write", "replace")
        ]
    else:
        assert all(case.first.error == "OSError" and case.first.is_refusal for case in cases[:-2])


@pytest.mark.parametrize("how", ["kill", "full"])
def test_files_that_belong_together_are_never_of_two_times(how: str, tmp_path: Path) -> None:
    cases = list(interruptions(pair, tmp_path, how, count=40))
    found = {tuple(case.again.value[:2]) for case in cases}
    assert (
        found == {("", ""), ("old", "old"), ("new", "new")} if how == "kill" else len(found) > 1
    ), found
    assert {first == second for first, second in found} == {True}
    assert {tuple(case.again.value[2:]) for case in cases} == {("new", "new")}


def test_half_a_write_is_found(tmp_path: Path) -> None:
    values = [case.again.value for case in interruptions(careless, tmp_path, "kill", count=20)]
    assert TEXT[: len(TEXT) // 2] in values


def test_writers_start_together_and_report_each(tmp_path: Path) -> None:
    outcomes = writers(appending, tmp_path / "shared", 3)
    assert len(outcomes) == 3 and all(
        outcome.error == "" and not outcome.killed for outcome in outcomes
    )


def test_a_flipped_bit_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"value": 1}))
    before, time = path.read_bytes(), path.stat().st_mtime_ns
    assert 6 <= len(bits(path)) and len({bit % 8 for bit in bits(path)}) > 2
    for bit in bits(path):
        with flipped(path, bit):
            now = path.read_bytes()
            assert sum((a ^ b).bit_count() for a, b in zip(before, now, strict=True)) == 1
            assert path.stat().st_mtime_ns == time
    assert path.read_bytes() == before


def test_a_refusal_is_in_our_words() -> None:
    def fail(error: Exception) -> Outcome:
        def work() -> None:
            raise error

        return outcome_of(work)

    assert fail(ValueError("Expected a table, got none.")).is_refusal
    assert fail(OSError(28, "No space left on device")).is_refusal
    assert not fail(KeyError("last")).is_refusal and not outcome_of(lambda: 1).is_refusal
