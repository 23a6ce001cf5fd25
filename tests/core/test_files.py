"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from noiseproof.core.files import file_digest, replacing


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_appears_when_it_is_complete(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.txt"
    with replacing(path, overwrite=overwrite) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(overwrite: bool, error: type[BaseException], tmp_path: Path) -> None:
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


def test_a_digest_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    digests = []
    for text in ("one", "three", "one"):
        path.write_text(text)
        digests.append(file_digest(path))
    assert digests[0] == digests[2] != digests[1]
