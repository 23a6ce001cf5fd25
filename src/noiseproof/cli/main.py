"""The command itself."""

import atexit
import gc
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from noiseproof import __version__
from noiseproof.core.messages import ELSEWHERE

# The parts of the help, in its order.
YOUR_DATA = "Your data"
TRAINING = "Training and research"
LISTS = "Lists"
INSTALLATION = "This installation"
WELCOME = """\
noiseproof finds the wrong labels of a dataset, and trains classifiers in spite of them.

  noiseproof audit data.csv --label y   find them: in a table, texts or a folder of pictures
  noiseproof review audit/              decide on them in the browser, with the keyboard
  noiseproof apply audit/               write the corrected dataset

  noiseproof demo                       all of it on bundled data, in a minute
  noiseproof doctor                     check this installation
  noiseproof --help                     all commands
"""


class Commands(TyperGroup):
    """Adds to refused options what is written instead: names of other libraries, lists of seeds."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            _explain(error)
            raise


def _explain(error: Any) -> None:
    command = getattr(getattr(error, "ctx", None), "command", None)
    word = getattr(error, "option_name", "").lstrip("-")
    name, example = ELSEWHERE.get(word.replace("-", "_"), ("", ""))
    if name in [param.name for param in getattr(command, "params", ())]:
        error.possibilities = None
        error.message = f"No such option: --{word}. Write --{name} {example}."
    if getattr(getattr(error, "param", None), "name", "") == "seeds":
        error.message = "Expected a number of seeds, at least 1: 3 stands for the seeds 0, 1 and 2."


app = typer.Typer(
    cls=Commands,
    help="Train classifiers on labels that can't be trusted, and find out which labels are wrong.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noiseproof {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(WELCOME, nl=False)
        return
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a pipe without Unicode gets ? for Δ, not a traceback
            stream.reconfigure(errors="replace")
    # Libraries make many objects that live until the end: searching them for cycles takes a sixth
    # of a short command.
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)  # else the interpreter searches them all once more
    # before torch is imported: idle threads sleep
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # It announces bfloat16 run by run.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    from noiseproof.cli.show import refusals
    from noiseproof.core.plugins import load_plugins

    with refusals():
        load_plugins()
