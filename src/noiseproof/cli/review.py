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
from noiseproof.cli.options import option
from noiseproof.cli.show import AsJson, echo, examples, refusals, show, show_json
from noiseproof.core.messages import counted, install_command

if TYPE_CHECKING:
    from noiseproof.audit.measured import Measured
    from noiseproof.judge.measure.interval import Bounded
    from noiseproof.review.guard import Person

LOCAL = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
PROPOSED = 100  # rows

# pairs of options that do not go together, and why
APART = {
    ("--reviewer", "--reviewers"): "Name all people in --reviewers.",
    ("--html", "--reviewer"): "Decisions in a browser have no reviewer.",
    ("--html", "--reviewers"): "Decisions in a browser have no reviewer.",
    ("--html", "--measure"): "Which row is asked next depends on the answers, and a page without a"
    " server cannot know.",
    ("--html", "--propose"): "A page without a server cannot choose the rows.",
    ("--measure", "--all"): "The sample is drawn from all rows.",
    ("--propose", "--all"): "It chooses the rows.",
    ("--propose", "--measure"): "It chooses the rows.",
    ("--propose", "--repeats"): "It chooses the rows.",
    ("--overlap", "--measure"): "Use --repeats to ask a second person.",
    ("--overlap", "--propose"): "Use --repeats to ask a second person.",
}
# options that need one of others
NEEDS = {
    "--overlap": ("--reviewers",),
    "--count": ("--propose",),
    "--repeats": ("--measure",),
    "--blind": ("--measure", "--propose"),
    "--seed": ("--measure", "--propose"),
}


Folder = Annotated[Path, typer.Argument(help="The folder that `noiseproof audit` wrote.")]


@app.command(
    epilog=examples(
        "review audit/",
        "review audit/ --html review.html",
        "review audit/ --measure 100 --blind --reviewer ann",
        "review audit/ --reviewers ann,bob,cy --overlap 0.1",
        "review audit/ --reviewers ann,bob --host 192.168.0.5 --port 8765",
        "review audit/ --propose find=0.5,learn=0.3,measure=0.2 --count 50",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def review(
    folder: Folder,
    html: Annotated[
        Path | None,
        option("Write one page that needs no server; it keeps decisions in the browser."),
    ] = None,
    decisions: Annotated[
        Path | None, option("Database of the decisions, by default decisions.sqlite in the folder.")
    ] = None,
    measure: Annotated[
        int | None,
        option(
            "Ask about a designed sample until this number of rows is measured, to estimate the"
            " noise rate and what is left of it.",
            min=1,
        ),
    ] = None,
    blind: Annotated[
        bool, option("Hide the given and the suggested label while measuring.", "--blind")
    ] = False,
    reviewer: Annotated[str, option("Who decides; the name is kept with each decision.")] = "",
    reviewers: Annotated[
        str,
        option(
            "Several people, separated by commas: each has a link of their own.", metavar="NAMES"
        ),
    ] = "",
    overlap: Annotated[
        float,
        option(
            "Share of rows that two of the --reviewers decide, unseen by each other.",
            min=0,
            max=1,
        ),
    ] = 0.0,
    repeats: Annotated[
        float, option("Share of measured rows to ask again, for a second opinion.", min=0, max=1)
    ] = 0.0,
    propose: Annotated[
        str,
        option(
            "Ask about rows to find errors, to learn from and to measure, in shares:"
            " find=0.5,learn=0.3,measure=0.2.",
            metavar="MIXTURE",
        ),
    ] = "",
    count: Annotated[int, option("Rows to --propose.", min=1)] = PROPOSED,
    seed: Annotated[
        int, option("Seed of the sample, when the first row of it is measured.", min=0)
    ] = 0,
    everything: Annotated[
        bool, option("Review the other rows, too, after the issues.", "--all")
    ] = False,
    port: Annotated[int, option("Port of the server; 0 is any free one.", min=0, max=65535)] = 0,
    host: Annotated[
        str,
        option(
            "Address that the server listens on, for reviewers on other machines; not encrypted."
        ),
    ] = LOCAL[0],
    allowed_host: Annotated[
        list[str] | None,
        option("Another name that browsers reach the server by, such as a proxy's. Repeatable."),
    ] = None,
    browser: Annotated[bool, option("Open the page in a browser.")] = True,
    max_mb: Annotated[
        float, option("Largest size of rows and pictures in an --html page.", min=1)
    ] = 20,
    force: Annotated[bool, option("Overwrite an existing --html page.", "--force")] = False,
) -> None:
    """Decide on each issue with the keyboard; every decision is saved at once."""
    _check_options(
        html=html,
        reviewer=reviewer,
        reviewers=reviewers,
        measure=measure,
        propose=propose,
        overlap=overlap,
        repeats=repeats,
        blind=blind,
        seed=seed,
        count=count != PROPOSED,
        all=everything,
    )
    if html is not None:
        return _write_page(folder, html, everything, max_mb, force)
    from noiseproof.judge.measure.design import parse_mixture
    from noiseproof.review.guard import check_name, invite, parse_names

    try:
        from noiseproof.review.measuring import QuestionPlan
        from noiseproof.review.server import bind, make_app, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected fastapi and uvicorn for the review in a browser, {error.name} is not"
            f" installed. Run `{install_command('review')}`, or use --html for a page without a"
            " server."
        ) from error
    plan = None
    if propose:
        parse_mixture(propose)
        plan = QuestionPlan(count, blind, 0.0, seed, propose)
    elif measure:
        plan = QuestionPlan(measure, blind, repeats, seed)
    names = parse_names(reviewers) if reviewers else [reviewer and check_name(reviewer)]
    people = invite(names)
    hosts = _hosts(host, allowed_host or [])
    listening = bind(port, host)  # before the decisions are locked
    server = make_app(
        folder,
        people,
        hosts=hosts,
        decisions=decisions,
        everything=everything,
        plan=plan,
        overlap=overlap,
    )
    _show_links(people, hosts[0], listening.getsockname()[1], is_local=host in LOCAL)
    echo(f"decisions: {server.state.review.path}\nCtrl+C ends it; nothing is lost.")
    if browser and not reviewers:
        webbrowser.open(_link(people[0], hosts[0], listening.getsockname()[1]))
    return serve(server, listening)


def _check_options(**values: object) -> None:
    """Refuse options that do not go together, or that would do nothing."""
    used = {f"--{name}" for name, value in values.items() if value}
    for (one, other), why in APART.items():
        if one in used and other in used:
            raise ValueError(f"Expected {one} without {other}, got both. {why} Leave one out.")
    for one, others in NEEDS.items():
        if one in used and not used.intersection(others):
            needed = " or ".join(others)
            raise ValueError(f"Expected {needed} with {one}, got none. Add it, or leave out {one}.")


def _hosts(host: str, allowed: list[str]) -> list[str]:
    """Return the names that browsers may know the server by; links have the first one."""
    if host in LOCAL:
        return [host, *LOCAL, *allowed]
    if host not in EVERYWHERE:
        return [host, *allowed]
    if not allowed:
        import socket

        raise ValueError(
            f"Expected --allowed-host with --host {host}: a server on every address must know the"
            " name that browsers reach it by. Add for example --allowed-host"
            f" {socket.gethostname()}."
        )
    return allowed


def _link(person: Person, host: str, port: int) -> str:
    from noiseproof.review.guard import bracketed

    return f"http://{bracketed(host)}:{port}/?token={person.token}"


def _show_links(people: Sequence[Person], host: str, port: int, *, is_local: bool) -> None:
    if not is_local:
        echo(
            "warning: the connection is not encrypted: whoever can read the network sees the links,"
            " the rows and the decisions. `ssh -L PORT:127.0.0.1:PORT` to this machine, or a proxy"
            " with TLS, is safer.",
            err=True,
        )
    if len(people) == 1:
        return echo(f"review: {_link(people[0], host, port)}")
    width = max(len(person.name) for person in people)
    echo("review: a link for each person, to be kept secret")
    for person in people:
        echo(f"  {person.name:<{width}}  {_link(person, host, port)}")
    return None


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
        "measure audit/ --decisions mine.sqlite --json",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def measure(
    folder: Folder,
    goal: Annotated[
        str | None,
        option(
            "What to call wrong: f1, precision=0.9, recall=0.9 or budget=300; by default as before,"
            " or f1."
        ),
    ] = None,
    decisions: Annotated[
        Path | None, option("Decisions of the review, by default in the folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how many labels are wrong from measured decisions, and recalibrate the list of
    issues by them.
    """
    from noiseproof.audit.files import read_audit
    from noiseproof.audit.measured import write_measured
    from noiseproof.audit.plan import read_reviewed

    audit = read_audit(folder)
    answers = read_reviewed(folder, decisions, accept_all=decisions is None).answers()
    measured = write_measured(
        audit, answers, goal or audit.summary.get("goal") or audit.config["goal"]
    )
    if as_json:
        names = ("issues", "goal", "measured", "reliability")
        return show_json({name: measured.audit.summary[name] for name in names})
    return _show(measured, audit.summary["issues"])


def _show(measured: Measured, before: int) -> None:
    estimates = measured.measurement
    issues = measured.audit.summary["issues"]
    rows = len(measured.audit.issues)
    skipped = f", {estimates.skipped} skipped" if estimates.skipped else ""
    echo(f"measured: {counted(estimates.decisions, 'decision')}{skipped}")
    rate = estimates.rate
    echo(f"wrong labels: {rate.as_share()}, about {rate.value * rows:.0f} of {rows}")
    echo(
        f"left after these decisions: {estimates.wrong_left.value:.0f} wrong labels, at most"
        f" {estimates.wrong_left.high:.0f}"
    )
    called = f"called wrong (goal {measured.goal}): {counted(issues, 'label')} ({before} before)"
    if estimates.precision is not None:
        called += f", of which {estimates.precision.as_share()} are wrong"
    echo(called)
    echo(f"further decisions that halve the interval: {estimates.to_halve}")
    reviewers = estimates.reviewers
    if reviewers is not None:
        echo(
            f"reviewers: {reviewers.same:.0%} of {reviewers.rows} rows asked twice have the same"
            f" label, kappa {reviewers.kappa:.2f}; {reviewers.error.as_share()} of single answers"
            " are wrong"
        )
    if estimates.classes:
        classes = [(name, *_cells(part)) for name, part in estimates.classes.items()]
        show(("given label", "wrong", "95 % interval"), classes)
    if estimates.pairs:
        pairs = sorted(estimates.pairs.items(), key=lambda item: -item[1].value)
        cells = [(*names, *_cells(part)) for names, part in pairs]
        show(("given", "is", "share", "95 % interval"), cells)
    echo(f"issues: {measured.audit.folder / 'issues.csv'}\nreliability: {measured.diagram}")


def _cells(part: Bounded) -> tuple[str, str]:
    return f"{part.value:.1%}", f"{part.low:.1%} to {part.high:.1%}"
