"""The command itself."""

import atexit
import gc
import logging
import os
import sys
from typing import Annotated

import typer

from noiseproof import __version__

# The parts of the help, in its order.
YOUR_DATA, TRAINING, LISTS, INSTALLATION = "Your data", "Training and research", "Lists", "This installation"
WELCOME = """noiseproof finds the wrong labels of a dataset, and trains classifiers in spite of them.

  noiseproof audit data.csv --label y   find them: in a table, texts or a folder of pictures
  noiseproof review audit/              decide on them in the browser, with the keyboard
  noiseproof apply audit/               write the corrected dataset

  noiseproof demo                       all of it on bundled data, in a minute
  noiseproof doctor                     check this installation
  noiseproof --help                     all commands
"""

app = typer.Typer(
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(WELCOME, nl=False)
        return
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe without Unicode gets ? for Δ, not a traceback
    # Libraries make many objects that live until the end: searching them for cycles takes a sixth of a short command.
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)  # else the interpreter searches them all once more
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: idle threads sleep
    # It announces bfloat16 run by run.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    from noiseproof.cli.show import refusals
    from noiseproof.core.plugins import load_plugins

    with refusals():
        load_plugins()
