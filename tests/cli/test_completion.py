"""What the tabulator key completes, by the shells' own protocol, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import noiseproof
from noiseproof.bench.tables import list_tables
from noiseproof.cli.options import _known_names, _state
from noiseproof.data import DATASETS
from noiseproof.judge.evidence.gather import CHOICES
from noiseproof.losses import LOSSES
from noiseproof.models import MODELS
from noiseproof.noise import NOISES
from noiseproof.train import METHODS

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the file of names: without it a process needs the time of importing torch."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NOISEPROOF_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)
    _known_names()
    return tmp_path


def complete(line: str, shell: str = "bash", **environment: str) -> list[str]:
    """The completions of the last word of a line; a blank at its end begins a new word."""
    asked = {
        "_NOISEPROOF_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line.replace(" ", "\n"),
        "_TYPER_COMPLETE_ARGS": line,
    }
    asked |= {
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    code = (
        "import sys; sys.argv[0] = 'noiseproof'; from noiseproof.cli import app;"
        " app(prog_name='noiseproof')"
    )
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=os.environ | asked | environment,
        capture_output=True,
        text=True,
    )
    if not environment:  # plug-ins that changed
        assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE), "completion imports torch"
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("noiseproof train --method ", {*METHODS, *LOSSES}),
        ("noiseproof analyze fit --loss ", {*METHODS, *LOSSES}),
        ("noiseproof train --dataset ", set(DATASETS)),
        ("noiseproof data show ", set(DATASETS)),
        ("noiseproof train --noise ", set(NOISES)),
        ("noiseproof train --model ", set(MODELS)),
        ("noiseproof bench table ", set(list_tables())),
        ("noiseproof audit a.csv --model ", {"trees", "lightgbm", *CHOICES, *MODELS}),
    ],
)
def test_names_are_those_of_the_registries(line: str, names: set[str]) -> None:
    assert set(complete(line)) == names


def test_the_beginning_chooses_also_after_a_comma() -> None:
    assert complete("noiseproof train --method sln-d") == ["sln-dividemix"]
    assert complete("noiseproof bench compare --methods ce,elr") == ["ce,elr", "ce,elr+"]
    assert complete("noiseproof audit a.csv --export coco,f") == ["coco,fiftyone"]
    assert complete("noiseproof train --method gce:q=") == []


def test_columns_are_those_of_the_table(home: Path) -> None:
    Path("pets.csv").write_text("size;fur;kind\n1;2;cat\n")
    assert complete("noiseproof audit pets.csv --label ") == ["fur", "kind", "size"]
    assert complete("noiseproof audit pets.csv --ignore size,k") == ["size,kind"]
    assert complete("noiseproof bench compare --data pets.csv --label f") == ["fur"]
    assert complete("noiseproof audit nowhere.csv --label ") == []


def test_the_file_of_names_is_used_until_something_is_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = home / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    state = _state()
    (home / "data.csv").write_text("a,b\n")
    assert _state() == state
    os.utime(site, ns=(1, 1))  # as an installer does
    assert _state() != state
    package = str(Path(noiseproof.__file__).parent)
    assert any(part.startswith(package) for part in state) and noiseproof.__version__ in state


def test_names_of_plug_ins_are_completed_and_broken_ones_do_no_harm(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = home / "mine.py"
    plugin.write_text(
        "from noiseproof.data import DATASETS\nDATASETS.register('my-pets')(lambda: None)\n"
    )
    assert complete("noiseproof train --dataset my", NOISEPROOF_PLUGINS=str(plugin)) == ["my-pets"]
    monkeypatch.setattr("noiseproof.cli.options._registered_names", lambda: 1 / 0)
    for plugins in ("broken", ""):  # and the file has the names of other plug-ins
        monkeypatch.setenv("NOISEPROOF_PLUGINS", plugins)
        assert _known_names() == {}
