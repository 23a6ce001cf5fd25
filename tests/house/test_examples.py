"""Every script of examples/ runs from top to bottom in an empty folder, and what it prints is what it promises."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs an example, and returns what it printed."""

    def run(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def numbers(text: str, pattern: str) -> list[float]:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in:\n{text}"
    return [float(number) for number in found.groups()]


def test_each_example_is_tested_here_and_included_in_a_tutorial() -> None:
    tested = {name.removeprefix("test_the_example_") for name in globals() if name.startswith("test_the_example_")}
    names = {path.stem for path in EXAMPLES}
    assert tested == names
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    assert set(re.findall(r"literalinclude\} \.\./\.\./examples/(\w+)\.py", pages)) == names
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert all(f"tutorials/{path.stem}\n" in index for path in (ROOT / "docs" / "tutorials").glob("*.md"))


def test_the_markers_that_tutorials_cut_by_are_in_the_examples() -> None:
    block = r"```\{literalinclude\} \.\./\.\./examples/(\w+)\.py\n(.*?)```"
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        for name, options in re.findall(block, page.read_text("utf-8"), re.DOTALL):
            lines = (ROOT / "examples" / f"{name}.py").read_text("utf-8").splitlines()
            for marker in re.findall(r":(?:start|end)-(?:at|before): \"?(.+?)\"?\n", options):
                assert sum(marker in line for line in lines) == 1, (page.name, marker)


# The commands of these tutorials are run by test_docs_commands.
@pytest.mark.slow
def test_the_example_table(run) -> None:  # type: ignore[no-untyped-def]
    text = run("table")
    before, after = numbers(text, r"wrong labels: (\d+) before, (\d+) after")
    assert before == 85 and after < before / 2
    first, second = numbers(text, r"accuracy: (0\.\d+) before, (0\.\d+) after")
    assert second >= first and "may be wrong, too" in text
    old, new = (Path(name).read_bytes().splitlines() for name in ("cells.csv", "corrected.csv"))
    assert len(old) == 570 and 50 < sum(a != b for a, b in zip(old, new, strict=True)) < 150


def test_the_example_pictures(run) -> None:  # type: ignore[no-untyped-def]
    text = run("pictures")
    before, after = numbers(text, r"misplaced pictures: (\d+) before, (\d+) after")
    assert before > 10 and after < before / 3
    assert len(list(Path("corrected").glob("*/*.png"))) == len(list(Path("photos").glob("*/*.png"))) == 200
    assert "<script" in Path("review.html").read_text("utf-8")
    assert Path("audit/fiftyone/labels.json").is_file() and Path("audit/label-studio.json").is_file()


def test_the_example_own_loop(run) -> None:  # type: ignore[no-untyped-def]
    text = run("own_loop")
    (ce,) = numbers(text, r"cross entropy: (\S+)")
    (robust,) = numbers(text, r"robust loss: (\S+)")
    (everything,) = numbers(text, r"label correction: (\S+)")
    assert min(robust, everything) > ce + 0.05


@pytest.mark.slow
def test_the_example_text(run) -> None:  # type: ignore[no-untyped-def]
    text = run("text")
    flagged, right, wrong = numbers(text, r"flagged: (\d+), of which wrong: (\d+), wrong in total: (\d+)")
    assert wrong == 50 and right > 0.7 * wrong and right > 0.8 * flagged
    assert numbers(text, r"right topic: (\S+)")[0] > 0.9


def test_the_example_scikit_learn(run) -> None:  # type: ignore[no-untyped-def]
    text = run("scikit_learn")
    (robust,) = numbers(text, r"NoisyLabelClassifier: (\S+)")
    (logistic,) = numbers(text, r"LogisticRegression: (\S+)")
    assert robust > logistic + 0.05
    assert "the same predictions, True" in text and "exported: (500, 10)" in text
