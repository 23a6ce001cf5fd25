"""The help: every option says what it is for, every command shows examples that parse, and nothing
waits for torch.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lines import PAGES, ROOT, ROOT_COMMAND, BadLine, commands, inline, lines, parse, words

from noiseproof.train.protocols import protocols

COMMANDS = dict(commands())


def examples_of(command: Any) -> list[str]:
    return re.findall(r"^- `(noiseproof .+)`$", command.epilog or "", re.MULTILINE)


def test_the_tree_is_the_whole_command_line() -> None:
    assert set(COMMANDS) >= {
        "audit",
        "review",
        "apply",
        "train",
        "demo",
        "analyze page",
        "bench run",
        "data show",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_examples_that_parse(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and command.help.strip().partition("\n\n")[0].rstrip().endswith((".", "…"))
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_an_example(name: str) -> None:
    shown = {word for example in examples_of(COMMANDS[name]) for word in words(example)}
    for parameter in COMMANDS[name].params:
        spellings = {*parameter.opts, *parameter.secondary_opts}
        is_option = parameter.param_type_name == "option" and parameter.name not in (
            "help",
            "version",
        )
        assert not is_option or spellings & shown, (
            f"No example of noiseproof {name} shows {' or '.join(spellings)}."
        )


def test_the_help_names_every_protocol() -> None:
    text = next(option.help for option in COMMANDS["train"].params if option.name == "protocol")
    assert {paper for paper, _ in protocols()} == {
        *re.split(", ", text.partition(": ")[2].rstrip("."))
    }


def test_every_group_says_what_is_in_it() -> None:
    groups = [ROOT_COMMAND, *(c for c in ROOT_COMMAND.commands.values() if hasattr(c, "commands"))]
    assert all(group.help for group in groups) and len(groups) > 3


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
