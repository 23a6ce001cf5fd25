"""The help: every option says what it is for, every command shows examples that parse, and nothing
waits for torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lines import PAGES, ROOT, BadLine, commands, inline, lines, parse, words

from noiseproof.train.protocols import protocols

COMMANDS = dict(commands())


def examples_of(command: Any) -> list[str]:
    return re.findall(r"^- `(noiseproof .+)`$", command.epilog or "", re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_examples_that_parse(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and command.help.strip().partition("\n\n")[0].endswith(".")
    examples = examples_of(command)
    assert examples, f"noiseproof {name} has no example."
    for example in examples:
        context = parse(words(example))
        assert context.command is command, example


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None)
        assert text and text.strip(), f"`{parameter.name}` of noiseproof {name} has no help text."


def test_the_help_names_every_protocol() -> None:
    text = next(option.help for option in COMMANDS["train"].params if option.name == "protocol")
    assert {paper for paper, _ in protocols()} == {
        *re.split(", ", text.partition(": ")[2].rstrip("."))
    }


def test_a_wrong_line_does_not_parse() -> None:
    for line in (
        "train --no-such-option",
        "data",
        "nothing",
        "audit a.csv --folds one",
        "bench table a b c d e",
    ):
        with pytest.raises(BadLine):
            parse(words(f"noiseproof {line}"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_the_pages_parses(page: Path) -> None:
    for line in lines(page):
        parse(words(line.text))
    for line in inline(page):
        try:
            parse(words(line))
        except BadLine as error:  # the command or the option as such; unknown ones are never meant
            assert re.search("Missing|requires an argument", str(error)), f"{line}: {error}"


def test_the_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from noiseproof.cli import app\ntry: app(['--help'])\nexcept SystemExit:"
        " pass\n"
    )
    heavy = {
        "torch",
        "numpy",
        "pandas",
        "sklearn",
        "lightning_fabric",
        "matplotlib",
        "jinja2",
        "fastapi",
    }
    code += f"print('loaded:', *sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:" and "audit" in done.stdout


def test_the_help_of_an_audit_fits_two_screens() -> None:
    command = [sys.executable, "-m", "noiseproof", "audit", "--help"]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert len(done.stdout.splitlines()) <= 100
