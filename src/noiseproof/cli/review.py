"""`noiseproof review`: decide on the issues of an audit; `noiseproof measure`: what its designed
sample says.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.show import AsJson, echo, examples, refusals, show, show_json
from noiseproof.core.messages import counted, install_command

if TYPE_CHECKING:
    from noiseproof.audit.measure.interval import Estimate
    from noiseproof.audit.measured import Measured
    from noiseproof.review.guard import Person
    from noiseproof.review.measuring import Plan

Folder = Annotated[Path, typer.Argument(help="The folder that `noiseproof audit` wrote.")]


LOOPBACK, EVERYWHERE = "127.0.0.1", ("0.0.0.0", "::")
PROPOSED = 100  # rows
Propose = Annotated[
    str,
    typer.Option(
        metavar="MIXTURE",
        help=(
            "Ask about rows to find errors, to learn from and to measure, in shares:"
            " find=0.5,learn=0.3,measure=0.2."
        ),
    ),
]
Reviewer = Annotated[str, typer.Option(help="Who decides; the name is kept with each decision.")]
Reviewers = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help="Several people, separated by commas: each has a link of their own."
    ),
]
Overlap = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Share of rows that two of the --reviewers decide, unseen by each other."
    ),
]
Host = Annotated[
    str,
    typer.Option(
        help="Address that the server listens on, for reviewers on other machines; not encrypted."
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Another name that browsers reach the server by, such as that of a proxy. Repeatable."
    ),
]
Measure = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Ask about a designed sample until this number of rows is measured, to estimate the "
            "noise rate and what is left of it."
        ),
    ),
]
Count = Annotated[int, typer.Option(min=1, help="Rows to --propose.")]


@app.command(
    epilog=examples(
        "review audit/",
        "review audit/ --port 8765 --no-browser",
        "review audit/ --html review.html",
        "review audit/ --html review.html --max-mb 20 --force",
        "review audit/ --all --decisions mine.sqlite --browser",
        "review audit/ --measure 100",
        "review audit/ --measure 100 --blind --reviewer ann --repeats 0.1 --seed 1",
        "review audit/ --reviewers ann,bob,cy --overlap 0.1",
        "review audit/ --reviewers ann,bob --host 192.168.0.5 --port 8765",
        "review audit/ --reviewers ann,bob --host 0.0.0.0 --allowed-host review.example.org --port"
        " 8765",
        "review audit/ --propose find=0.5,learn=0.3,measure=0.2 --count 50",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def review(
    folder: Folder,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one page that needs no server; it keeps decisions in the browser."
        ),
    ] = None,
    decisions: Annotated[
        Path | None,
        typer.Option(
            help="Database that decisions are added to, by default decisions.sqlite in the folder."
        ),
    ] = None,
    measure: Measure = None,
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Hide the given and the suggested label while measuring."),
    ] = False,
    reviewer: Reviewer = "",
    reviewers: Reviewers = "",
    overlap: Overlap = 0.0,
    repeats: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of measured rows to ask a second time, for a second opinion."
        ),
    ] = 0.0,
    propose: Propose = "",
    count: Count = PROPOSED,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the sample, when the first row of it is measured.")
    ] = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Review the other rows, too, after the issues.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server; 0 is any free one.")
    ] = 0,
    host: Host = LOOPBACK,
    allowed_host: AllowedHost = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    max_mb: Annotated[
        float,
        typer.Option(
            "--max-mb", min=1, help="Largest size of rows and pictures in an --html page."
        ),
    ] = 20,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing --html page.")
    ] = False,
) -> None:
    """Decide on each issue with the keyboard; every decision is saved at once."""
    _check_people(html, reviewer, reviewers, overlap, is_asked=bool(measure or propose))
    pages = {"--html": html is not None, "--all": everything}
    plan = _plan(
        measure,
        blind,
        repeats,
        seed,
        propose,
        count,
        [name for name, used in pages.items() if used],
    )
    if html is not None:
        return _write_page(folder, html, everything, max_mb, force)
    from noiseproof.review.guard import invite, parse_names

    try:
        from noiseproof.review.server import bind, make_app, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected fastapi and uvicorn for the review in a browser, {error.name} is not"
            f" installed. Run `{install_command('review')}`, or use --html for a page without a"
            " server."
        ) from error
    people, hosts = (
        invite(parse_names(reviewers) if reviewers else [reviewer]),
        _hosts(host, allowed_host or []),
    )
    server = make_app(
        folder,
        people,
        hosts=hosts,
        decisions=decisions,
        everything=everything,
        plan=plan,
        overlap=overlap,
    )
    listening = bind(port, host)
    listening.listen(128)  # requests wait until the server answers
    links = _links(people, hosts[0], listening.getsockname()[1])
    _show_links(links, server.state.review.path, is_local=host in _own_names())
    if browser and not reviewers:
        webbrowser.open(links[""])
    return serve(server, listening)


def _check_people(
    html: Path | None, reviewer: str, reviewers: str, overlap: float, is_asked: bool
) -> None:
    from noiseproof.review.guard import check_name

    if html is not None and (reviewer or reviewers):
        option = "--reviewers" if reviewers else "--reviewer"
        raise ValueError(
            f"Expected {option} without --html: decisions in a browser have no reviewer. Leave it"
            " out."
        )
    if reviewer and reviewers:
        raise ValueError(
            "Expected either --reviewer or --reviewers, got both. Name everybody in --reviewers."
        )
    if overlap and not reviewers:
        raise ValueError(
            "Expected --reviewers beside --overlap, got none. Add for example --reviewers ann,bob."
        )
    if overlap and is_asked:
        raise ValueError(
            "Expected --overlap without --measure and --propose. Use --repeats to ask a second"
            " person."
        )
    if reviewer:
        check_name(reviewer)


def _own_names() -> tuple[str, ...]:
    from noiseproof.review.guard import LOOPBACK as NAMES

    return (*NAMES, "::1")


def _hosts(host: str, allowed: list[str]) -> list[str]:
    """Return the names that browsers may know the server by; links have the first one."""
    if host in _own_names():
        return [host, *_own_names(), *allowed]
    if host not in EVERYWHERE:
        return [host, *allowed]
    if not allowed:
        import socket

        raise ValueError(
            f"Expected --allowed-host beside --host {host}: a server on every address must know the"
            " name that browsers reach it by. Add for example --allowed-host"
            f" {socket.gethostname()}."
        )
    return allowed


def _links(people: Sequence[Person], host: str, port: int) -> dict[str, str]:
    from noiseproof.review.guard import bracketed

    names = [person.name for person in people] if len(people) > 1 else [""]
    links = (f"http://{bracketed(host)}:{port}/?token={person.token}" for person in people)
    return dict(zip(names, links, strict=True))


def _show_links(links: dict[str, str], decisions: Path, *, is_local: bool) -> None:
    if not is_local:
        echo(
            "warning: the connection is not encrypted: whoever can read the network sees the links,"
            " the rows and the decisions. `ssh -L PORT:127.0.0.1:PORT` to this machine, or a proxy"
            " with TLS, is safer.",
            err=True,
        )
    if len(links) == 1:
        echo(f"review: {links['']}")
    else:
        width = max(map(len, links))
        echo("review: a link for each person, to be kept secret")
        for name, link in links.items():
            echo(f"  {name:<{width}}  {link}")
    echo(f"decisions: {decisions}\nCtrl+C ends it; nothing is lost.")


def _plan(
    measure: int | None,
    blind: bool,
    repeats: float,
    seed: int,
    propose: str,
    count: int,
    pages: list[str],
) -> Plan | None:
    """Return what to measure or to propose; refuse options that do not go together, ``pages`` are
    those in use.
    """
    from noiseproof.review.measuring import Plan

    if propose:
        return _proposals(measure, blind, repeats, seed, propose, count, pages)
    if count != PROPOSED:
        raise ValueError(
            "Expected --propose beside --count, got none. Add --propose"
            " find=0.5,learn=0.3,measure=0.2."
        )
    if measure is None:
        used = [
            name
            for name, value in (("--blind", blind), ("--repeats", repeats), ("--seed", seed))
            if value
        ]
        if used:
            raise ValueError(
                f"Expected --measure beside {' and '.join(used)}, got none. Add --measure 100."
            )
        return None
    if "--html" in pages:
        raise ValueError(
            "Expected --measure without --html: which row is asked next depends on the answers, and"
            " a page without a server cannot know. Leave out --html."
        )
    if "--all" in pages:
        raise ValueError(
            "Expected --measure without --all: the sample is drawn from all rows. Leave out --all."
        )
    return Plan(measure, blind, repeats, seed)


def _proposals(
    measure: int | None,
    blind: bool,
    repeats: float,
    seed: int,
    propose: str,
    count: int,
    pages: list[str],
) -> Plan:
    from noiseproof.audit.measure.design import parse_mixture
    from noiseproof.review.measuring import Plan

    parse_mixture(propose)
    used = [*(["--measure"] if measure else []), *(["--repeats"] if repeats else []), *pages]
    if used:
        raise ValueError(
            f"Expected --propose without {' and '.join(used)}: it chooses the rows. Leave that out."
        )
    return Plan(count, blind, 0.0, seed, propose)


def _write_page(folder: Path, html: Path, everything: bool, max_mb: float, force: bool) -> None:
    from noiseproof.audit import read_audit
    from noiseproof.review.page import file_page

    audit = read_audit(folder)
    if html.exists() and not force:
        raise FileExistsError(
            f"Expected a new file for the page, {html} exists. Use --force to overwrite it."
        )
    if not html.parent.is_dir():
        raise FileNotFoundError(
            f"Expected --html in a folder that exists, got {html}. Make {html.parent} first, or"
            " choose another place."
        )
    page = file_page(audit, everything=everything, max_bytes=int(max_mb * 1e6))
    html.write_text(page, "utf-8")
    echo(f"page: {html} ({html.stat().st_size / 1e6:.1f} MB)")


@app.command(
    epilog=examples(
        "measure audit/",
        "measure audit/ --goal precision=0.9",
        "measure audit/ --goal budget=300 --decisions mine.sqlite --json",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def measure(
    folder: Folder,
    goal: Annotated[
        str | None,
        typer.Option(
            help=(
                "What to call wrong: f1, precision=0.9, recall=0.9 or budget=300; by default as"
                " before, or f1."
            )
        ),
    ] = None,
    decisions: Annotated[
        Path | None,
        typer.Option(help="Decisions of the review, by default decisions.sqlite in the folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how many labels are wrong from measured decisions, and recalibrate the list of
    issues by them.
    """
    from noiseproof.audit.files import read_audit
    from noiseproof.audit.measured import write_measured
    from noiseproof.audit.plan import read_decided

    audit = read_audit(folder)
    _, answers = read_decided(folder, decisions, accept_all=decisions is None)
    measured = write_measured(
        audit, answers, goal or audit.summary.get("goal") or audit.config["goal"]
    )
    if as_json:
        return show_json(
            {
                name: measured.audit.summary[name]
                for name in ("issues", "goal", "measured", "reliability")
            }
        )
    return _show(measured, audit.summary["issues"])


def _show(measured: Measured, before: int) -> None:
    found, issues = measured.measurement, measured.audit.summary["issues"]
    rows = len(measured.audit.issues)
    skipped = f", {found.skipped} skipped" if found.skipped else ""
    echo(f"measured: {counted(found.decisions, 'decision')}{skipped}")
    echo(f"wrong labels: {found.rate.as_share()}, about {found.rate.value * rows:.0f} of {rows}")
    echo(
        f"left after these decisions: {found.wrong_left.value:.0f} wrong labels, at most"
        f" {found.wrong_left.high:.0f}"
    )
    precision = (
        "" if found.precision is None else f", of which {found.precision.as_share()} are wrong"
    )
    echo(
        f"called wrong (goal {measured.goal}): {counted(issues, 'label')} ({before}"
        f" before){precision}"
    )
    echo(f"further decisions that halve the interval: {found.to_halve}")
    if (reviewers := found.reviewers) is not None:
        echo(
            f"reviewers: {reviewers.same:.0%} of {reviewers.rows} rows asked twice have the same"
            f" label, kappa {reviewers.kappa:.2f}; {reviewers.error.as_share()} of single answers"
            " are wrong"
        )
    if found.classes:
        show(
            ("given label", "wrong", "95 % interval"),
            [(name, *_cells(part)) for name, part in found.classes.items()],
        )
    if found.pairs:
        pairs = sorted(found.pairs.items(), key=lambda item: -item[1].value)
        show(
            ("given", "is", "share", "95 % interval"),
            [(*names, *_cells(part)) for names, part in pairs],
        )
    echo(f"issues: {measured.audit.folder / 'issues.csv'}\nreliability: {measured.diagram}")


def _cells(part: Estimate) -> tuple[str, str]:
    return f"{part.value:.1%}", f"{part.low:.1%} to {part.high:.1%}"
