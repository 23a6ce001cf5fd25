"""Shared by all commands: examples, errors, tables and progress."""

from __future__ import annotations

import inspect
import json
import math
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
    from noiseproof.core.messages import Progress
    from noiseproof.core.registry import Registry
    from noiseproof.train.job import EpochProgress

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        help="Folder of the official files; else $NOISEPROOF_DATA, else ~/.cache/noiseproof.",
    ),
]

IMPUTE = "`missing=impute` in the dataset, as in table:table=FILE,label=COLUMN,missing=impute"

Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*commands: str) -> str:
    return "Examples:\n\n" + "\n".join(f"- `noiseproof {command}`" for command in commands)


class refusals(ContextDecorator):  # noqa: N801, in lower case like other decorators
    """Turn errors of the library into one line on stderr and exit code 2.

    Arguments of Python in backticks are called by the command's options of these names, or by
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

            # else of keys in a file
            own = {} if hasattr(error, "experiment") else option_names(self.command)
            # nor those of a spec
            own = {name: own[name] for name in own.keys() - getattr(error, "parameters", set())}
            names = {"missing='impute'": IMPUTE, **own, "data_dir": "--data-dir", **self.options}
            text = re.sub("`([^`]+)`", lambda match: names.get(match[1], match[0]), str(error))
            say(re.sub(r"`(\w+)='(\S+)'`", r"`\1=\2`", text) + plugin_line(error))
            raise typer.Exit(2) from None
        # typer would call the first one "Aborted."
        if isinstance(error, (EOFError, zlib.error, zipfile.BadZipFile)):
            say(
                f"Expected whole files, got one that is cut off or damaged ({type(error).__name__}:"
                f" {error})."
            )
            raise typer.Exit(2) from None


def option_names(command: Callable[..., Any] | None) -> dict[str, str]:
    """The options of a command by the names that arguments of Python would have."""
    names = {}
    for name, hint in get_type_hints(command, include_extras=True).items() if command else ():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # the first may be a name, too
                written = re.search("--[^/']+", str((info.default, info.param_decls)))
                option = written[0] if written else f"--{name.replace('_', '-')}"
                names[option[2:].replace("-", "_")] = option
    return names


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters of names and labels as escapes."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def say(what: object) -> None:
    """Print one line on stderr, from the first process of a node."""
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        echo(f"noiseproof: {' '.join(str(what).split())}", err=True)


def list_registered(registry: Registry[Any], as_json: bool) -> None:
    described = [describe(registry, name) for name in sorted(registry)]
    if as_json:
        return show_json(described)
    rows = [(thing["name"], signature(thing), thing["summary"]) for thing in described]
    return show(("name", "parameters", "what it does"), rows)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    if hours < 48:
        return f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.1f} h"
    return f"{hours / 24:.0f} days" if hours < 2 * 8766 else f"{hours / 8766:.1f} years"


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
def stage_progress(write_line: Progress, *columns: str) -> Iterator[Progress]:
    """On a terminal, progress bars, one per stage, with these ``columns`` of rich; else
    ``write_line``.
    """
    if not sys.stderr.isatty():
        yield write_line
        return
    from rich import progress

    text, *beside = (
        progress.TextColumn("{task.description}"),
        *(getattr(progress, name)() for name in columns),
    )
    with progress.Progress(
        text, progress.BarColumn(), *beside, console=Console(stderr=True)
    ) as bars:
        tasks: dict[str, Any] = {}

        def move(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield move


@contextmanager
def count_progress(label: str = "") -> Iterator[Progress]:
    """Show how much is done: one bar on a terminal, else a line every five seconds."""
    shown = time.monotonic()

    def write_line(stage: str, done: int, total: int | None) -> None:
        nonlocal shown
        if (now := time.monotonic()) - shown > 5:
            shown = now
            echo(f"{label or stage} {done}/{total}", err=True)

    with stage_progress(write_line) as report:
        yield (
            report
            if report is write_line
            else lambda _, done, total: report(label or "figures", done, total)
        )


@contextmanager
def training_progress(epochs: int, shown: bool) -> Iterator[EpochProgress | None]:
    """Show the progress of a training: a bar with the remaining time on a terminal, else a line
    every two seconds.
    """
    if not shown:
        yield None
        return
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TimeRemainingColumn())
        with Progress(
            *columns, TextColumn("{task.fields[metrics]}"), console=Console(stderr=True)
        ) as bars:
            bar = bars.add_task("", total=epochs, epoch=f"0/{epochs}", metrics="")

            def move(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
                bars.update(bar, completed=epoch + step / steps, epoch=f"{epoch + 1}/{epochs}")
                if row is not None:
                    bars.update(bar, metrics=headline(row))

            yield move
        return
    began, shown_at, first = time.monotonic(), -math.inf, -1

    def line(epoch: int, step: int, steps: int, row: Mapping[str, float] | None) -> None:
        nonlocal shown_at, first
        first, now = epoch if first < 0 else first, time.monotonic()
        if row is not None and (now - shown_at > 2 or epoch + 1 == epochs):
            shown_at = now
            remaining = (now - began) / (epoch + 1 - first) * (epochs - epoch - 1)
            echo(
                f"epoch {epoch + 1}/{epochs}: {headline(row)}, {duration(remaining)} left", err=True
            )

    yield line


def headline(row: Mapping[str, float]) -> str:
    names = {
        "train_loss": "loss",
        "validation_accuracy": "noisy validation",
        "test_accuracy": "test",
    }
    return ", ".join(f"{text} {row[name]:.3f}" for name, text in names.items() if name in row)


def describe(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Name, first sentence and parameters of a registered factory; those without a default are
    ``required``.
    """
    factory = registry[name]
    # a partial has the docstring of Python's class
    text = inspect.getdoc(getattr(factory, "func", factory)) or ""
    parameters = registry.parameters(name)
    return {
        "name": name,
        "summary": " ".join(text.partition("\n\n")[0].split()).replace("``", ""),
        "parameters": {
            key: value for key, value in parameters.items() if value is not inspect.Parameter.empty
        },
        "required": [key for key, value in parameters.items() if value is inspect.Parameter.empty],
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
    return ", ".join(
        key if value is None else f"{key}={plain(value)}" for key, value in values.items()
    )


def plain(value: Any, digits: str = ".6g") -> str:
    return f"{value:{digits}}" if isinstance(value, float) else str(value)
