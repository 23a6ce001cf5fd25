"""What the tabulator key completes, by the shells' own protocol, in a process of its own."""

from __future__ import annotations

import os
import pty
import re
import shutil
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


def test_the_beginning_chooses_also_after_a_comma_and_of_a_papers_settings() -> None:
    assert complete("noiseproof train --method sln-d") == ["sln-dividemix"]
    assert complete("noiseproof train --method sce@") == ["sce@curriculum"]
    assert complete("noiseproof bench compare --methods ce,elr") == ["ce,elr", "ce,elr+"]
    assert complete("noiseproof audit a.csv --export coco,f") == ["coco,fiftyone"]
    assert complete("noiseproof train --method gce:q=") == []


def test_columns_are_those_of_the_table(home: Path) -> None:
    Path("pets.csv").write_text("size;fur;kind\n1;2;cat\n")
    assert complete("noiseproof audit pets.csv --label ") == ["fur", "kind", "size"]
    assert complete("noiseproof audit pets.csv --ignore size,k") == ["size,kind"]
    assert complete("noiseproof bench compare --data pets.csv --label f") == ["fur"]
    assert complete("noiseproof audit nowhere.csv --label ") == []


def type_in_bash(home: Path, line: str) -> list[str]:
    """The arguments of the command after typing ``line`` and the tabulator key, in an interactive
    bash.
    """
    command, script = home / "bin" / "noiseproof", home / "completion.sh"
    command.parent.mkdir(exist_ok=True)
    command.write_text(
        f"#!{sys.executable}\nfrom noiseproof.cli import app\napp(prog_name='noiseproof')\n"
    )
    command.chmod(0o755)
    environment = {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "TERM": "dumb",
        "PS1": "ready>",
    }
    asked = {"_NOISEPROOF_COMPLETE": "source_bash"}
    script.write_text(
        subprocess.check_output([command], env=os.environ | environment | asked, text=True)
    )
    controller, terminal = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env=os.environ | environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        shown = _read_until(controller, b"ready>")
        os.write(controller, f"source '{script}'; bind 'set enable-bracketed-paste off'\r".encode())
        _read_until(controller, b"ready>")
        # \x01: to the start of the line
        os.write(controller, f"{line}\t\x01printf '<%s>' \r".encode())
        shown = _read_until(controller, b"<noiseproof>", b"ready>")
    finally:
        os.close(controller)
        bash.kill()
        bash.wait()
    return re.findall("<(.*?)>", shown[shown.rindex("<noiseproof>") :])


def _read_until(terminal: int, *ends: bytes) -> str:
    """What a terminal shows until all of ``ends``, one after the other."""
    shown, begin = b"", 0
    for end in ends:
        while (place := shown.find(end, begin)) < 0:
            shown += os.read(terminal, 1024)
        begin = place + len(end)
    return shown.decode()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("train --method sce@cu", ["train", "--method", "sce@curriculum"]),
        ("train --method=sce@cu", ["train", "--method=sce@curriculum"]),
        ("bench compare --methods ce,sce@", ["bench", "compare", "--methods", "ce,sce@curriculum"]),
        (
            "train --noise=xia:rate=0.4 --method sce@",
            ["train", "--noise=xia:rate=0.4", "--method", "sce@curriculum"],
        ),
    ],
)
def test_words_that_bash_breaks(home: Path, typed: str, completed: list[str]) -> None:
    assert type_in_bash(home, f"noiseproof {typed}") == ["noiseproof", *completed]


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


def test_names_of_plug_ins_are_completed_and_broken_ones_do_no_harm(home: Path) -> None:
    plugin = home / "mine.py"
    plugin.write_text(
        "from noiseproof.data import DATASETS\nDATASETS.register('my-pets')(lambda: None)\n"
    )
    assert complete("noiseproof train --dataset my", NOISEPROOF_PLUGINS=str(plugin)) == ["my-pets"]
    plugin.write_text("1 / 0\n")
    assert complete("noiseproof train --dataset my", NOISEPROOF_PLUGINS=str(plugin)) == []
    assert complete("noiseproof train --dataset my", NOISEPROOF_PLUGINS="") == []
