"""Files that are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from noiseproof.core.files import (
    CHECKSUMS,
    Damaged,
    check_files,
    file_digest,
    read_tensors,
    replacing,
    replacing_all,
    write_checked,
    write_tensors,
)


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_appears_when_it_is_complete(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.txt"
    with replacing(path, overwrite=overwrite) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(
    overwrite: bool, error: type[BaseException], tmp_path: Path
) -> None:
    with pytest.raises(error), replacing(tmp_path / "a.txt", overwrite=overwrite) as part:
        part.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(FileExistsError), replacing(path, overwrite=False) as part:
        part.write_text("new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with replacing(path) as part:
        part.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_file_that_another_program_makes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    theirs = tmp_path / "a.txt.part"
    theirs.write_text("someone's")
    with pytest.raises(FileExistsError), replacing(path, overwrite=False) as part:
        part.write_text("new")
        path.write_text("made meanwhile")
    assert path.read_text() == "made meanwhile" and theirs.read_text() == "someone's"
    assert {*tmp_path.iterdir()} == {path, theirs}


def test_a_digest_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    digests = []
    for text in ("one", "three", "one"):
        path.write_text(text)
        digests.append(file_digest(path))
    assert digests[0] == digests[2] != digests[1]


# Checksums


def test_several_files_appear_together_with_their_checksums(tmp_path: Path) -> None:
    with replacing_all(tmp_path / "folder") as part:
        part("a.txt").write_text("one")
        part("b.txt").write_text("two")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [
        "a.txt",
        "b.txt",
        CHECKSUMS,
    ]
    sums = json.loads((tmp_path / "folder" / CHECKSUMS).read_text())
    assert sums == {
        name: xxhash.xxh3_128_hexdigest(text)
        for name, text in (("a.txt", b"one"), ("b.txt", b"two"))
    }
    check_files(tmp_path / "folder", "a.txt", "b.txt", "of another time.txt")


def test_a_failure_leaves_all_of_several_files_as_they_were(tmp_path: Path) -> None:
    write_checked(tmp_path / "a.txt", "old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OSError), replacing_all(tmp_path) as part:
        part("a.txt").write_text("new")
        part("b.txt").write_text("half")
        raise OSError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_killed_process_has_not_renamed_is_renamed_by_the_next_reader(
    tmp_path: Path,
) -> None:
    write_checked(tmp_path / "a.txt", "old")
    (tmp_path / "a.txt.part").write_text("half of anoth")  # killed before it was whole
    check_files(tmp_path, "a.txt")
    assert (tmp_path / "a.txt").read_text() == "old"
    write_checked(tmp_path / "a.txt", "new")
    (tmp_path / "a.txt").rename(tmp_path / "a.txt.part")  # killed between checksums and rename
    (tmp_path / "a.txt").write_text("old")
    check_files(tmp_path, "a.txt")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_changed_files_and_changed_checksums_are_refused(tmp_path: Path) -> None:
    write_checked(tmp_path / "a.txt", "text")
    for path in (tmp_path / "a.txt", tmp_path / CHECKSUMS):
        data = path.read_bytes()
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            if path.name == CHECKSUMS and _is_free(changed, json.loads(data)["a.txt"]):
                continue
            with pytest.raises(Damaged, match="Expected"):
                check_files(tmp_path, "a.txt")
        path.write_bytes(data)


def _is_free(sums: bytes, whole: str) -> bool:
    """Whether checksums are as they were, but for a space, or are those of another name."""
    try:
        return bool(json.loads(sums).get("a.txt", whole) == whole)
    except ValueError:
        return False


def test_tensors_come_back_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.arange(3.0), "digest": torch.tensor([True])}
    header = {"note": '"digest":"00000000000000000000000000000000"', "other": "…"}
    write_tensors(path, tensors, header)
    back, about = read_tensors(path)
    assert all(torch.equal(back[name], value) for name, value in tensors.items())
    assert about == header and torch.equal(load_file(path)["x"], tensors["x"])
    data = path.read_bytes()
    for place in range(len(data)):  # another bit of each byte
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged):
            read_tensors(path)
    for content, error in (
        (b"", "an empty file"),
        (data[:4], "cut off or damaged"),
        (data[:-1], "cut off or damaged"),
        (save({"x": torch.ones(2)}), "no checksum"),
    ):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=error):
            read_tensors(path)


def test_tensors_that_do_not_fit_on_the_disk_are_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*args: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fill)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    assert not list(tmp_path.iterdir())
