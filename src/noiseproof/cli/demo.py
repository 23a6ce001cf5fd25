"""`noiseproof demo`: all of it on bundled data."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import option
from noiseproof.cli.show import echo, examples, refusals
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.demo import Step

TITLES = {
    "Trained": "train: digits, 40 % of the training labels wrong; accuracy on clean test labels",
    "Audited": "audit: which labels are wrong?",
    "Reviewed": "measure: a reviewer who knows the truth decides on a random sample of digits",
    "Written": "pages, to open in a browser",
    "Applied": "correct: apply the decisions, and suggestions that are more likely right than the"
    " given label",
    "Mended": "train again: accuracy before and after the correction",
    "Doubted": "real doubts: the same digits with their original labels",
}


@app.command(epilog=examples("demo", "demo --out story --no-browser"), rich_help_panel=YOUR_DATA)
@refusals()
def demo(
    out: Annotated[
        str | None,
        option("New or empty folder for what it writes, by default runs/demo, runs/demo-2, …."),
    ] = None,
    epochs: Annotated[int, option("Epochs of each training, at most.", min=2)] = 60,
    browser: Annotated[bool, option("Open the page to review, where there is a screen.")] = True,
) -> None:
    """Train on digits of which 40 % are mislabelled, audit, measure and correct the labels, and
    train again.

    It takes about a minute, needs no network, and leaves a page of the trainings, a page to review
    the issues, and the corrected table. Last, it audits the digits with their original labels.
    """
    import webbrowser
    from itertools import count

    import torch

    from noiseproof.demo import Audited, Written, demo

    # A second thread brings matrices of this size a third, and costs tenfold where its core is
    # busy.
    torch.set_num_threads(1)
    folders = (Path("runs", "demo" if n == 1 else f"demo-{n}") for n in count(1))
    folder = out or next(folder for folder in folders if not folder.exists())
    titles = dict(TITLES)
    busy = Console(stderr=True).status("working …") if sys.stderr.isatty() else nullcontext()
    with busy:
        for step in demo(folder, epochs=epochs):
            title = titles.pop(type(step).__name__, None)
            if title is not None:
                echo(title)
            for line in _lines(step):
                echo(f"  {line}")
            if isinstance(step, Audited):
                audited = step.folder
            if isinstance(step, Written):
                page = step.review
    echo(
        "next\n"
        f"  {f'noiseproof review {audited}':<40}     decide on these labels in the browser\n"
        "  noiseproof audit YOUR.csv --label COLUMN     the same with your data;"
        " noiseproof audit -h: texts, pictures, arrays"
    )
    has_screen = sys.platform in ("win32", "darwin") or bool(
        {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    )
    if browser and sys.stdout.isatty() and has_screen:
        webbrowser.open(page.absolute().as_uri())


def _lines(step: Step) -> list[str]:
    """Return the lines that describe a step of the demo."""
    from noiseproof.demo import Applied, Audited, Doubted, Mended, Reviewed, Trained, Written

    match step:
        case Trained():
            repeats = f"repeats {step.memorised:4.0%} of the wrong labels"
            return [f"{step.method:<12} {step.accuracy:.3f}, {repeats} ({step.seconds:.1f} s)"]
        case Audited():
            low, high = step.interval
            rate = f"rate {step.noise_rate:.1%} ({low:.1%} to {high:.1%})"
            return [
                f"{step.issues} of {step.rows} called wrong, {rate}",
                f"{step.found} of these are wrong, of {step.wrong} wrong labels in all"
                f" ({step.seconds:.1f} s)",
                str(step.folder),
            ]
        case Reviewed():
            return [
                f"{step.rate.as_share()} of the labels are wrong by {step.decisions} answers: an"
                " interval that holds for any kind of errors",
                f"{step.issues} called wrong now, {step.found} of these are wrong"
                f" ({step.seconds:.1f} s)",
            ]
        case Written():
            return [
                f"{step.analysis}: what the methods did",
                f"{step.review}: the issues, to decide on with the keyboard ({step.seconds:.1f} s)",
            ]
        case Applied():
            return [
                *(f"expected: {part}" for part in step.expected.split("; ")),
                f"{counted(step.changed, 'label')} changed: {step.wrong_before} wrong before,"
                f" {step.wrong_after} now",
                str(step.path),
            ]
        case Mended():
            return [f"{step.method:<12} {step.before:.3f} → {step.after:.3f}"]
        case Doubted():
            return [
                f"{step.issues} of {step.rows} called wrong; the most doubtful ones"
                f" ({step.seconds:.1f} s):",
                *(
                    f"row {row} is labelled {given} and looks like {other}"
                    for row, given, other in step.worst
                ),
                str(step.page),
            ]
