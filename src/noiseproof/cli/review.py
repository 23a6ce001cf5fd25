"""`noiseproof review`: decide on the issues of an audit."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import app
from noiseproof.cli.show import examples, refusals

if TYPE_CHECKING:
    from noiseproof.review.measuring import Plan

Folder = Annotated[Path, typer.Argument(help="The folder that `noiseproof audit` wrote.")]


PROPOSED = 100  # rows
Propose = Annotated[
    str,
    typer.Option(
        metavar="MIXTURE",
        help="Ask about rows to find errors, to learn from and to measure, in shares: find=0.5,learn=0.3,measure=0.2.",
    ),
]
Count = Annotated[int, typer.Option(min=1, help="Rows to --propose.")]


@app.command(
    epilog=examples(
        "review audit/",
        "review audit/ --port 8765 --no-browser",
        "review audit/ --html review.html",
        "review audit/ --html review.html --max-mb 20 --force",
        "review audit/ --all --decisions mine.csv --browser",
        "review audit/ --measure 100",
        "review audit/ --measure 100 --blind --reviewer ann --repeats 0.1 --seed 1",
        "review audit/ --propose find=0.5,learn=0.3,measure=0.2 --count 50",
    )
)
@refusals()
def review(
    folder: Folder,
    html: Annotated[
        Path | None, typer.Option(help="Write one page that needs no server; it keeps decisions in the browser.")
    ] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="File that decisions are added to, by default decisions.csv in the folder.")
    ] = None,
    measure: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ask about a designed sample until this number of rows is measured, to estimate the "
            "noise rate and what is left of it.",
        ),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Hide the given and the suggested label while measuring.")
    ] = False,
    reviewer: Annotated[str, typer.Option(help="Who decides; the name is kept with each decision.")] = "",
    repeats: Annotated[
        float, typer.Option(min=0, max=1, help="Share of measured rows to ask a second time, for a second opinion.")
    ] = 0.0,
    propose: Propose = "",
    count: Count = PROPOSED,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample, when the first row of it is measured.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Review the other rows, too, after the issues.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 is any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    max_mb: Annotated[
        float, typer.Option("--max-mb", min=1, help="Largest size of rows and pictures in an --html page.")
    ] = 20,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing --html page.")] = False,
) -> None:
    """Decide on each issue with the keyboard; every decision is saved at once."""
    if html is not None and reviewer:
        raise ValueError("Expected --reviewer without --html: decisions in a browser have no reviewer. Leave it out.")
    pages = {"--html": html is not None, "--all": everything}
    plan = _plan(measure, blind, repeats, seed, propose, count, [name for name, used in pages.items() if used])
    if html is not None:
        return _write_page(folder, html, everything, max_mb, force)
    import secrets

    from noiseproof.audit.decisions import FILE as DECISIONS

    try:
        from noiseproof.review.server import bind, make_app, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected fastapi and uvicorn for the review in a browser, {error.name} is not installed. "
            "Run `pip install noiseproof[review]`, or use --html for a page without a server."
        ) from error
    token = secrets.token_urlsafe(32)
    server = make_app(folder, token, decisions=decisions, everything=everything, reviewer=reviewer, plan=plan)
    listening = bind(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"
    listening.listen(128)  # requests wait until the server answers
    typer.echo(f"review: {address}\ndecisions: {decisions or folder / DECISIONS}\nCtrl+C ends it; nothing is lost.")
    if browser:
        webbrowser.open(address)
    return serve(server, listening)


def _plan(
    measure: int | None, blind: bool, repeats: float, seed: int, propose: str, count: int, pages: list[str]
) -> Plan | None:
    """Return what to measure or to propose; refuse options that do not go together, ``pages`` are those in use."""
    from noiseproof.review.measuring import Plan

    if propose:
        return _proposals(measure, blind, repeats, seed, propose, count, pages)
    if count != PROPOSED:
        raise ValueError("Expected --propose beside --count, got none. Add --propose find=0.5,learn=0.3,measure=0.2.")
    if measure is None:
        used = [name for name, value in (("--blind", blind), ("--repeats", repeats), ("--seed", seed)) if value]
        if used:
            raise ValueError(f"Expected --measure beside {' and '.join(used)}, got none. Add --measure 100.")
        return None
    if "--html" in pages:
        raise ValueError(
            "Expected --measure without --html: which row is asked next depends on the answers, and a page without a "
            "server cannot know. Leave out --html."
        )
    if "--all" in pages:
        raise ValueError("Expected --measure without --all: the sample is drawn from all rows. Leave out --all.")
    return Plan(measure, blind, repeats, seed)


def _proposals(
    measure: int | None, blind: bool, repeats: float, seed: int, propose: str, count: int, pages: list[str]
) -> Plan:
    """Return what to propose."""
    from noiseproof.audit.measure.proposals import parse_mixture
    from noiseproof.review.measuring import Plan

    parse_mixture(propose)
    used = [*(["--measure"] if measure else []), *(["--repeats"] if repeats else []), *pages]
    if used:
        raise ValueError(f"Expected --propose without {' and '.join(used)}: it chooses the rows. Leave that out.")
    return Plan(count, blind, 0.0, seed, propose)


def _write_page(folder: Path, html: Path, everything: bool, max_mb: float, force: bool) -> None:
    from noiseproof.audit import read_audit
    from noiseproof.review.page import file_page

    audit = read_audit(folder)
    if html.exists() and not force:
        raise FileExistsError(f"Expected a new file for the page, {html} exists. Use --force to overwrite it.")
    page = file_page(audit, everything=everything, max_bytes=int(max_mb * 1e6))
    html.write_text(page, "utf-8")
    typer.echo(f"page: {html} ({html.stat().st_size / 1e6:.1f} MB)")
