"""The walks of docs/architecture.md: their functions are entered in the order in which the page
names them.
"""

from __future__ import annotations

import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from noiseproof import get_loss
from noiseproof.cli import app

ROOT = Path(__file__).parents[2]
SOURCE = f"{ROOT / 'src' / 'noiseproof'}/"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
QUICK = {
    "audit": "--epochs 3 --folds 2 --device cpu",
    "train": "--epochs 2 --model mlp:hidden=[8] --workers 0 --accelerator cpu",
}


def walks() -> dict[str, tuple[str, list[str]]]:
    """Command and functions, as `module.py: name`, of each walk by its heading."""
    section = PAGE.partition("\n## Four walks\n")[2].partition("\n## ")[0]
    found = {}
    for part in section.split("\n### ")[1:]:
        heading, _, text = part.partition("\n")
        command, *others = re.findall(r"`([^`]+)`", text)
        found[heading] = (command, [name for name in others if re.fullmatch(r"\S+\.py: \S+", name)])
    return found


def entered(call: Callable[[], object]) -> list[str]:
    """The functions of noiseproof that ``call`` enters, in the order of their first entry."""
    names: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            names.setdefault(f"{code.co_filename.removeprefix(SOURCE)}: {code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(names)


def run(command: str) -> None:
    """Run the command of a walk with what makes it quick."""
    if command.startswith("get_loss"):
        get_loss("gce:q=0.7")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        return
    arguments = shlex.split(command)[1:]
    result = CliRunner().invoke(app, [*arguments, *QUICK.get(arguments[0], "").split()])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("walk", walks())
def test_a_walk_enters_its_functions_in_order(
    walk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    y = random.integers(2, size=80)
    table = pd.DataFrame(random.normal(y[:, None], 0.3, (80, 4)), columns=list("abcd")).assign(y=y)
    table.to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.chdir(tmp_path)
    command, named = walks()[walk]
    order = entered(lambda: run(command))
    assert [name for name in named if name not in order] == []
    assert sorted(named, key=order.index) == named


def test_there_are_four_walks_of_more_than_a_step() -> None:
    assert [len(named) > 6 for _, named in walks().values()] == [True] * 4
