"""A run ends with one line on what this machine cannot test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from untested import untested

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("chromium is not installed", "1 in a browser (apt-get install chromium)"),
        ("needs Debian's chromium", "1 in a browser (apt-get install chromium)"),
        ("playwright is not installed", "1 in a browser (apt-get install chromium)"),
        ("needs a CUDA device", "1 on a GPU"),
        ("needs Triton, and a GPU or its interpreter", "1 on a GPU"),
        (
            "the official files are not here: /data/mnist",
            "1 with the official files (NOISEPROOF_DATA=FOLDER make",
        ),
        ("cifar-n not found: set NOISEPROOF_DATA to a folder", "1 with the official files"),
        ("could not import 'scipy.sparse': No module", "1 with other packages (pip install scipy)"),
        ("the review server's client is not installed", "1 of the review server (make setup)"),
        ("needs g++", "1 with other programs"),
        ("umap-learn is not installed", "1 with other packages (pip install umap-learn)"),
        ("crowd-kit is not installed (it needs transformers)", "(pip install crowd-kit)"),
        ("needs optuna", "1 with other packages (pip install optuna)"),
    ],
)
def test_a_reason_names_what_is_missing_and_how_to_get_it(reason: str, found: str) -> None:
    assert found in untested([reason])


@pytest.mark.parametrize(
    "reason",
    [
        "class indices only",
        "has a GPU",
        "needs more than logits",
        "no IPv6",
        "an installed package has the files",
    ],
)
def test_tests_that_are_skipped_on_any_machine_are_not_named(reason: str) -> None:
    assert untested([reason]) == ""


def test_a_run_ends_with_one_line(tmp_path: Path) -> None:
    """A run of this suite's own settings, on a file that skips its tests."""
    skipping = tmp_path / "test_skipping.py"
    skipping.write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_page(number):\n"
        "    pytest.skip('chromium is not installed')\n\n"
        "def test_loss():\n"
        "    pytest.skip('class indices only')\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        f"--rootdir={tmp_path}",
    ]
    paths = os.pathsep.join(str(ROOT / "tests" / folder) for folder in (".", "helpers"))
    answer = subprocess.run(
        [*command, "-c", os.devnull, str(skipping)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "PYTEST_ADDOPTS": ""},
    )
    *_, line, end = answer.stdout.splitlines()
    assert line == "Not tested here: 3 in a browser (apt-get install chromium).", (
        answer.stdout + answer.stderr
    )
    assert re.search("4 skipped", end)
