"""Lines that begin with `noiseproof`: where they stand, and what the command line makes of them
without running.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from noiseproof.cli import app

ROOT = Path(__file__).parents[2]
DOCS = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.relative_to(ROOT / "docs").parts[0][0] != "_"
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
ROOT_COMMAND: Any = typer.main.get_command(app)
BadLine = typer.BadParameter.__mro__[2]  # ClickException, of click or of the one that typer brings

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n+)?^```(?:console|bash|sh)\n(?P<body>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
INLINE = re.compile(r"(?<!`)`(noiseproof [^`]+)`(?!`)")


class Line(NamedTuple):
    page: str
    number: int
    text: str  # noiseproof …, without the prompt and a comment
    why: str | None  # why it is not run


def words(line: str) -> list[str]:
    """The arguments of a line: without the program, a comment, and what its output goes to."""
    found = shlex.split(line, comments=True)[1:]
    return found[: found.index("|")] if "|" in found else found


def lines(page: Path) -> list[Line]:
    """Every command of the blocks of a page, in order."""
    text, found = page.read_text("utf-8"), []
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start("body")) + 1
        for offset, line in enumerate(block["body"].splitlines()):
            if line.removeprefix("$ ").startswith("noiseproof "):
                name = page.relative_to(ROOT).as_posix()
                found.append(Line(name, first + offset, line.removeprefix("$ "), block["why"]))
    return found


def inline(page: Path) -> list[str]:
    """Commands in running text and tables; those with … or NAME in them stand for others."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [
        " ".join(line.split())
        for line in INLINE.findall(text)
        if "…" not in line and not re.search(r"\b[A-Z]{3,}\b", line)
    ]


def commands(command: Any = ROOT_COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its name: `train`, `data show`, …"""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield " ".join(path), command


def parse(arguments: list[str]) -> Any:
    """The context that the command line makes of a line; raises ``BadLine`` where it can't. Nothing
    is run.
    """
    command, name, context = ROOT_COMMAND, "noiseproof", None
    while hasattr(command, "commands"):
        context = command.make_context(name, list(arguments), parent=context)
        name, command, arguments = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    return command.make_context(name, list(arguments), parent=context)
