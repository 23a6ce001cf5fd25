"""Shared by all commands: examples, errors, tables and progress."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.models import OptionInfo

from noiseproof.core.messages import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from noiseproof.core.messages import Progress
    from noiseproof.core.registry import Registry
    from noiseproof.train.job import EpochProgress

Command = TypeVar("Command", bound=Callable[..., Any])

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        help="Folder of the official files; else $NOISEPROOF_DATA, else ~/.cache/noiseproof.",
    ),
]
IMPUTE = "`missing=impute` in the dataset, as in table:table=FILE,label=COLUMN,missing=impute"
LINE_SECONDS = 10  # between two lines about the progress of a stage
METRICS = {
    "train_loss": "loss",
    "validation_accuracy": "noisy validation",
    "test_accuracy": "test",
}


def examples(*commands: str) -> str:
    return "Examples:\n\n" + "\n".join(f"- `noiseproof {command}`" for command in commands)


class refusals(ContextDecorator):  # noqa: N801, in lower case like other decorators
    """Turn errors of the library into one line on stderr and exit code 2.

    Arguments of Python in backticks are replaced by the command's options of these names, or by
    ``options``, and `name='value'` is written as in specs.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = options or {}
        self.command: Callable[..., Any] | None = None

    def __call__(self, command: Command) -> Command:
        self.command = command
        return super().__call__(command)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has closed it
            return
        if isinstance(error, (ValueError, TypeError, OSError, ImportError, MemoryError)):
            from noiseproof.core.plugins import plugin_line

            say(self._in_options(error) + plugin_line(error))
            raise typer.Exit(2) from None
        # typer would call the first one "Aborted."
        if isinstance(error, (EOFError, zlib.error, zipfile.BadZipFile)):
            say(
                f"Expected whole files, got one that is cut off or damaged ({type(error).__name__}:"
                f" {error})."
            )
            raise typer.Exit(2) from None

    def _in_options(self, error: BaseException) -> str:
        names = {"missing='impute'": IMPUTE}
        if not hasattr(error, "experiment"):  # else it is about keys of a file
            names |= option_names(self.command)
            for name in getattr(error, "parameters", ()):  # of a spec
                names.pop(name, None)
        names |= {"data_dir": "--data-dir", **self.options}
        text = re.sub("`([^`]+)`", lambda match: names.get(match[1], match[0]), str(error))
        return re.sub(r"`(\w+)='(\S+)'`", r"`\1=\2`", text)


def option_names(command: Callable[..., Any] | None) -> dict[str, str]:
    """Return the options of a command by the names that arguments of Python would have."""
    names: dict[str, str] = {}
    if command is None:
        return names
    for name, hint in get_type_hints(command, include_extras=True).items():
        if any(isinstance(info, OptionInfo) for info in getattr(hint, "__metadata__", ())):
            names[name] = f"--{name.replace('_', '-')}"
    return names


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters of names and labels as escapes."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def say(what: object) -> None:
    """Print one line on stderr, from the first process of a node."""
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        echo(f"noiseproof: {' '.join(str(what).split())}", err=True)


def duration(seconds: float) -> str:
    hours = seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    if hours < 1.5:
        return f"{seconds / 60:.0f} min"
    if hours < 48:
        return f"{hours:.1f} h"
    if hours < 2 * 8766:
        return f"{hours / 24:.0f} days"
    return f"{hours / 8766:.1f} years"


@contextmanager
def training_exits(interrupted: str = "", then: str = "") -> Iterator[None]:
    """End the command where a training is interrupted (exit code 130) or diverges (3), with one
    line on stderr.

    The line is ``interrupted``, by default the reason, followed by ``then``.
    """
    from noiseproof.train import Diverged, Interrupted

    try:
        yield
    except Interrupted as stopped:
        say(f"{interrupted or stopped}{then}")
        raise typer.Exit(130) from None
    except Diverged as error:
        say(error)
        raise typer.Exit(3) from None


@contextmanager
def _bars(*columns: str) -> Iterator[Bars]:
    """Show bars with the remaining time on a terminal, next to ``columns`` of text."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    first, *others = map(TextColumn, columns)
    shown = (first, BarColumn(), TimeRemainingColumn(), *others)
    with Progress(*shown, console=Console(stderr=True)) as bars:
        yield bars


@contextmanager
def stage_progress() -> Iterator[Progress]:
    """Show how far each stage is: a bar on a terminal, else its first line and one every ten
    seconds.
    """
    if sys.stderr.isatty():
        with _bars("{task.description}") as bars:
            tasks: dict[str, Any] = {}

            def move(stage: str, done: int, total: int | None) -> None:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage)
                bars.update(tasks[stage], completed=done, total=total)

            yield move
        return
    shown: dict[str, float] = {}

    def write_line(stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if stage not in shown or now - shown[stage] > LINE_SECONDS:
            shown[stage] = now
            say(f"{stage} {done}/{total or '?'}")

    yield write_line


@contextmanager
def training_progress(epochs: int, shown: bool) -> Iterator[EpochProgress | None]:
    """Show the progress of a training: a bar with the remaining time on a terminal, else a line
    every two seconds.
    """
    if not shown:
        yield None
    elif sys.stderr.isatty():
        with _bars("epoch {task.description}", "{task.fields[metrics]}") as bars:
            bar = bars.add_task(f"0/{epochs}", total=epochs, metrics="")

            def move(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
                description = f"{epoch + 1}/{epochs}"
                bars.update(bar, completed=epoch + step / steps, description=description)
                if row is not None:
                    bars.update(bar, metrics=headline(row))

            yield move
    else:
        yield _training_lines(epochs)


def _training_lines(epochs: int) -> EpochProgress:
    began = time.monotonic()
    shown_at = -2.0
    first: int | None = None

    def line(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
        nonlocal shown_at, first
        if first is None:  # not 0 where a run resumes
            first = epoch
        passed = time.monotonic() - began
        if row is not None and (passed - shown_at > 2 or epoch + 1 == epochs):
            shown_at = passed
            left = duration(passed / (epoch + 1 - first) * (epochs - epoch - 1))
            echo(f"epoch {epoch + 1}/{epochs}: {headline(row)}, {left} left", err=True)

    return line


def headline(row: Mapping[str, float]) -> str:
    return ", ".join(f"{text} {row[name]:.3f}" for name, text in METRICS.items() if name in row)


def list_registered(registry: Registry[Any], as_json: bool) -> None:
    described = [describe(registry, name) for name in sorted(registry)]
    if as_json:
        return show_json(described)
    rows = [(thing["name"], signature(thing), thing["summary"]) for thing in described]
    return show(("name", "parameters", "what it does"), rows)


def describe(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Return name, first sentence and parameters of a registered factory; those without a default
    are ``required``.
    """
    factory = registry[name]
    # a partial has the docstring of Python's class
    text = inspect.getdoc(getattr(factory, "func", factory)) or ""
    defaults = registry.parameters(name)
    required = [key for key, value in defaults.items() if value is inspect.Parameter.empty]
    return {
        "name": name,
        "summary": " ".join(text.partition("\n\n")[0].split()).replace("``", ""),
        "parameters": {key: value for key, value in defaults.items() if key not in required},
        "required": required,
    }


def signature(described: Mapping[str, Any]) -> str:
    from noiseproof.core.grammar import format_value

    defaults = (f"{key}={format_value(value)}" for key, value in described["parameters"].items())
    return ", ".join([*described["required"], *defaults])


def show_json(value: Any) -> None:
    text = json.dumps(value, default=str)
    echo(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2))  # JSON has no NaN


def show_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    from noiseproof.train.record import to_csv

    echo(to_csv(rows), nl=False)


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, aligned plain columns in a pipe."""
    rows = [
        [printable(cell).replace("\n", "\\n").replace("\t", "\\t") for cell in row] for row in rows
    ]
    if sys.stdout is not None and sys.stdout.isatty():  # None if it was closed
        table = Table(*columns)
        for row in rows:
            table.add_row(*map(Text, row))  # Text: brackets in a cell are not markup
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def pairs(values: Mapping[str, Any]) -> str:
    words = (key if value is None else f"{key}={plain(value)}" for key, value in values.items())
    return ", ".join(words)


def plain(value: Any, digits: str = ".6g") -> str:
    """Return a value as a cell of a table, empty for None."""
    if value is None:
        return ""
    return f"{value:{digits}}" if isinstance(value, float) else str(value)


def words(text: str | None) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]
