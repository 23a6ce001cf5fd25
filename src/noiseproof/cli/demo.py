"""`noiseproof demo`: all of it on bundled data."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from rich.console import Console

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import option
from noiseproof.cli.show import echo, examples, refusals


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

    # With matrices of this size, a second thread gains a third of the time, and costs ten times as
    # much where its core is busy.
    torch.set_num_threads(1)
    folders = (Path("runs", "demo" if n == 1 else f"demo-{n}") for n in count(1))
    folder = out or next(folder for folder in folders if not folder.exists())
    busy = Console(stderr=True).status("working …") if sys.stderr.isatty() else nullcontext()
    title = ""
    began = time.perf_counter()
    with busy:
        for step in demo(folder, epochs=epochs):
            if step.title != title:
                title = step.title
                echo(title)
            first, *others = step.lines()
            now = time.perf_counter()
            for line in (f"{first}, {now - began:.1f} s", *others):
                echo(f"  {line}")
            began = now
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
