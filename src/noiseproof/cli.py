"""The command line: reads arguments, calls the library, shows what it returns. The only module that prints."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from noiseproof import __version__

# Modules that need torch are imported where they are used: help and completion must not wait for it.

app = typer.Typer(
    help="Train classifiers on labels that can't be trusted, and find out which labels are wrong.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def _examples(*commands: str) -> str:
    return "Examples:\n\n" + "\n".join(f"- `noiseproof {command}`" for command in commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noiseproof {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe that knows no Δ gets a ?, not a traceback


@contextmanager
def _refusals() -> Iterator[None]:
    """What the library refuses ends in one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, TypeError) as error:
        typer.echo(f"noiseproof: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None


@app.command(epilog=_examples("losses", "losses --presets", "losses --json | jq '.[].name'"))
@_refusals()
def losses(
    presets: Annotated[bool, typer.Option("--presets", help="List the papers' own settings instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every loss with its parameters, formula, paper and equation.

    p is the probability of the label. `NAME:key=value,…` sets parameters, `2*a + b` adds losses, `NAME@PAPER` is a
    paper's own setting.
    """
    from noiseproof.losses import LOSSES, describe
    from noiseproof.losses.presets import PRESETS

    if presets:
        if as_json:
            return _show_json([{"preset": f"{a}@{b}", "holds_for": holds, "loss": c} for a, b, holds, c in PRESETS])
        rows = [(f"{loss}@{paper}", _pairs(holds), spec) for loss, paper, holds, spec in PRESETS]
        return _show(("preset", "holds for", "loss"), rows)
    described = [describe(name) for name in sorted(LOSSES)]
    if as_json:
        return _show_json(described)
    cells = [[loss["name"], _pairs(loss["parameters"]), loss["formula"], loss["source"]] for loss in described]
    return _show(("name", "parameters", "formula", "source"), cells)


@app.command(
    epilog=_examples(
        "calibrate gce --classes 1000",
        "calibrate agce:a=0.6,q=0.6 --classes 1000 --free a,q",
        "calibrate '10*nce + 0.1*agce:a=1.8,q=3' --classes 1000 --free agce.q --json",
    )
)
@_refusals()
def calibrate(
    loss: Annotated[str, typer.Argument(help="The loss as it works for --like classes: gce, agce:a=0.6,q=0.6, …")],
    classes: Annotated[int, typer.Option(help="The number of classes to calibrate for.")],
    like: Annotated[int, typer.Option(help="The number of classes that the loss is known to work for.")] = 100,
    free: Annotated[
        str | None, typer.Option(help="The parameter to solve for (q), or a pair to get the curve of (a,q).")
    ] = None,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the untrained network's logits.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Compute a loss's parameters for another number of classes, without training.

    They give an untrained network the same average error as before (paper 002, section 3.3).
    """
    from noiseproof.losses import get_loss
    from noiseproof.losses.calibrate import calibrate, expected_margin, logit_bias

    before = get_loss(loss)
    names: Any = tuple(name.strip() for name in free.split(",")) if free else None
    found = calibrate(before, classes, like, free=names[0] if names and len(names) == 1 else names, sigma=sigma)
    bias, margin = logit_bias(classes, sigma=sigma), expected_margin(classes, sigma=sigma)
    if as_json:
        return _show_json({
            "loss": found.loss and str(found.loss), "params": found.params, "curve": found.curve, "classes": classes,
            "like": {"loss": str(before), "classes": like}, "sigma": sigma, "average_error": found.error,
            "logit_bias": bias, "expected_margin": margin,
        })  # fmt: skip
    rows = [
        *((k, _text(v), f"{_text(before.hyperparameters[k])} at {like} classes") for k, v in found.params.items()),
        ("average error", _text(found.error), f"⟨δ_k⟩(0), the same as {before} at {like} classes (002 Eq. 3)"),
        ("logit bias", _text(bias), "ε for any loss: the label's mean probability is 0.15 (002 Eq. 4)"),
        ("expected margin", _text(margin), "E[Δ_y] before training, exact (004 Eq. 4)"),
    ]
    _show((f"at {classes} classes", "value", "meaning"), rows)
    if found.curve:
        typer.echo()
        _show(list(found.curve[0]), [[_text(value) for value in point.values()] for point in found.curve])
    return None


@app.command(epilog=_examples("demo", "demo --seed 1 --json"))
@_refusals()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the split, the wrong labels, the weights and the batches.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each loss.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Train on handwritten digits of which 40 % are mislabelled: cross entropy against three robust losses."""
    import torch

    from noiseproof.demo import demo

    # A second thread brings matrices of this size a third, and costs tenfold where its core is busy.
    torch.set_num_threads(1)
    busy = Console(stderr=True).status("training …") if sys.stderr.isatty() else nullcontext()
    with busy:
        rows = list(demo(epochs=epochs, seed=seed))
    if as_json:
        return _show_json([dataclasses.asdict(row) for row in rows])
    return _show(
        ("loss", "test accuracy", "wrong labels memorised", "seconds"),
        [(row.loss, f"{row.accuracy:.3f}", f"{row.memorised:.3f}", f"{row.seconds:.1f}") for row in rows],
    )


def _show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, aligned plain columns in a pipe."""
    if sys.stdout.isatty():
        table = Table(*columns)
        for row in rows:
            table.add_row(*map(Text, row))  # Text: brackets in a cell are no markup
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(key if value is None else f"{key}={_text(value)}" for key, value in values.items())


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
