"""`noiseproof measure`: what decisions on a designed sample say about all labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.review import Folder
from noiseproof.cli.show import AsJson, echo, examples, refusals, show, show_json
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.audit.measure.interval import Estimate
    from noiseproof.audit.measured import Measured


@app.command(
    epilog=examples(
        "measure audit/",
        "measure audit/ --goal precision=0.9",
        "measure audit/ --goal budget=300 --decisions mine.csv --json",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def measure(
    folder: Folder,
    goal: Annotated[
        str | None,
        typer.Option(
            help="What to call wrong: f1, precision=0.9, recall=0.9 or budget=300; by default as before, or f1."
        ),
    ] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="Decisions of the review, by default decisions.csv in the folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how many labels are wrong from measured decisions, and recalibrate the list of issues by them."""
    from noiseproof.audit.files import read_audit
    from noiseproof.audit.measured import write_measured
    from noiseproof.audit.plan import read_decided

    audit = read_audit(folder)
    _, answers = read_decided(folder, decisions, accept_all=decisions is None)
    measured = write_measured(audit, answers, goal or audit.summary.get("goal") or audit.config["goal"])
    if as_json:
        return show_json({name: measured.audit.summary[name] for name in ("issues", "goal", "measured", "reliability")})
    return _show(measured)


def _show(measured: Measured) -> None:
    found, issues = measured.measurement, measured.audit.summary["issues"]
    rows = len(measured.audit.issues)
    skipped = f", {found.skipped} skipped" if found.skipped else ""
    echo(f"measured: {counted(found.decisions, 'decision')}{skipped}")
    echo(f"wrong labels: {found.rate.as_share()}, about {found.rate.value * rows:.0f} of {rows}")
    echo(f"left after these decisions: {found.wrong_left.value:.0f} wrong labels, at most {found.wrong_left.high:.0f}")
    precision = "" if found.precision is None else f", of which {found.precision.as_share()} are wrong"
    echo(f"called wrong (goal {measured.goal}): {counted(issues, 'label')}{precision}")
    echo(f"further decisions that halve the interval: {found.to_halve}")
    if (reviewers := found.reviewers) is not None:
        echo(
            f"reviewers: {reviewers.same:.0%} of {reviewers.rows} rows asked twice have the same label, kappa "
            f"{reviewers.kappa:.2f}; {reviewers.error.as_share()} of single answers are wrong"
        )
    if found.classes:
        show(("given label", "wrong", "95 % interval"), [(name, *_cells(part)) for name, part in found.classes.items()])
    if found.pairs:
        pairs = sorted(found.pairs.items(), key=lambda item: -item[1].value)
        show(("given", "is", "share", "95 % interval"), [(*names, *_cells(part)) for names, part in pairs])
    echo(f"issues: {measured.audit.folder / 'issues.csv'}\nreliability: {measured.diagram}")


def _cells(part: Estimate) -> tuple[str, str]:
    return f"{part.value:.1%}", f"{part.low:.1%} to {part.high:.1%}"
