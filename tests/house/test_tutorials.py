"""Tutorials and pages on concepts run from top to bottom in an empty folder, and print what they
promise.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
CONCEPTS = ROOT / "docs" / "concepts"
CELL = re.compile(r"^```\{code-cell\} python\n(?::[^\n]*\n)*(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs the cells of a page, and returns what they printed, or the names that they leave."""

    def run(name: str, folder: Path = TUTORIALS, keep: bool = False) -> Any:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MPLBACKEND", "agg")
        cells = CELL.findall((folder / f"{name}.md").read_text("utf-8"))
        names: dict[str, object] = {"__name__": "__main__"}
        for cell in cells:
            exec(compile(cell, f"{name}.md", "exec"), names)
        return names if keep else capsys.readouterr().out

    return run


def numbers(text: str, pattern: str) -> list[float]:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in:\n{text}"
    return [float(number) for number in found.groups()]


def test_each_tutorial_is_tested_here_and_listed() -> None:
    tested = {
        name.removeprefix("test_the_tutorial_")
        for name in globals()
        if name.startswith("test_the_tutorial_")
    }
    pages = [*TUTORIALS.glob("*.md"), *CONCEPTS.glob("*.md")]
    assert tested == {path.stem for path in TUTORIALS.glob("*.md")}
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert all(f"{path.parent.name}/{path.stem}\n" in index for path in pages)


# The commands of these tutorials are run by test_docs_commands.
@pytest.mark.slow
def test_the_tutorial_table(run) -> None:  # type: ignore[no-untyped-def]
    text = run("table")
    before, after = numbers(text, r"wrong labels: (\d+) before, (\d+) after")
    assert before == 85 and after < before / 2
    first, second = numbers(text, r"accuracy: (0\.\d+) before, (0\.\d+) after")
    assert second >= first and "may be wrong, too" in text
    old, new = (Path(name).read_bytes().splitlines() for name in ("cells.csv", "corrected.csv"))
    assert len(old) == 570 and 50 < sum(a != b for a, b in zip(old, new, strict=True)) < 150


def test_the_tutorial_pictures(run) -> None:  # type: ignore[no-untyped-def]
    text = run("pictures")
    before, after = numbers(text, r"misplaced pictures: (\d+) before, (\d+) after")
    assert before > 10 and after < before / 3
    assert (
        len(list(Path("corrected").glob("*/*.png")))
        == len(list(Path("photos").glob("*/*.png")))
        == 200
    )
    assert "<script" in Path("review.html").read_text("utf-8")
    assert (
        Path("audit/fiftyone/labels.json").is_file() and Path("audit/label-studio.json").is_file()
    )


def test_the_tutorial_own_loop(run) -> None:  # type: ignore[no-untyped-def]
    text = run("own_loop")
    (ce,) = numbers(text, r"cross entropy: (\S+)")
    (robust,) = numbers(text, r"robust loss: (\S+)")
    (everything,) = numbers(text, r"label correction: (\S+)")
    assert min(robust, everything) > ce + 0.05


@pytest.mark.slow
def test_the_tutorial_text(run) -> None:  # type: ignore[no-untyped-def]
    text = run("text")
    flagged, right, wrong = numbers(
        text, r"flagged: (\d+), of which wrong: (\d+), wrong in total: (\d+)"
    )
    assert wrong == 50 and right > 0.7 * wrong and right > 0.8 * flagged
    assert numbers(text, r"right topic: (\S+)")[0] > 0.9


def test_the_tutorial_scikit_learn(run) -> None:  # type: ignore[no-untyped-def]
    text = run("scikit_learn")
    (robust,) = numbers(text, r"NoisyLabelClassifier: (\S+)")
    (logistic,) = numbers(text, r"LogisticRegression: (\S+)")
    assert robust > logistic + 0.05
    assert "the same predictions, True" in text and "exported: (500, 10)" in text


def test_the_pages_on_concepts(run) -> None:  # type: ignore[no-untyped-def]
    for path in CONCEPTS.glob("*.md"):
        if path.stem != "audit":  # slow
            text = run(path.stem, CONCEPTS)
            if path.stem == "intervals":
                assert numbers(text, r"([\d.]+)% of 2000 intervals contain the true rate")[0] >= 95
                narrow, wide = numbers(
                    text, r"doubts: (\S+) wide on average\ndrawn anywhere: (\S+) wide"
                )
                assert narrow < wide


@pytest.mark.slow
def test_what_the_audit_assumes_is_seen(run) -> None:  # type: ignore[no-untyped-def]
    names = run("audit", CONCEPTS, keep=True)
    symmetric, _, chen = names["rows"]
    assert symmetric["of these wrong"] > 0.9 * symmetric["wrong labels"]
    # on rows that any model is unsure about: too few are called, and nearly all of them are wrong
    assert 0.9 * chen["called wrong"] < chen["of these wrong"] < 0.6 * chen["wrong labels"]
    assert chen["wrong among the first 200 of the list"] > 100
