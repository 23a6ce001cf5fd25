"""`noiseproof review` and `noiseproof apply`: decide on the issues of an audit, and correct the dataset."""

from __future__ import annotations

import webbrowser
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import app
from noiseproof.cli.options import on_training
from noiseproof.cli.show import AsJson, examples, refusals, say, show, show_json, training_exits, training_progress

if TYPE_CHECKING:
    from noiseproof.audit.apply import Comparison, Retraining
    from noiseproof.review.measuring import Plan

Folder = Annotated[Path, typer.Argument(help="The folder that `noiseproof audit` wrote.")]


@app.command(
    epilog=examples(
        "review audit/",
        "review audit/ --port 8765 --no-browser",
        "review audit/ --html review.html",
        "review audit/ --html review.html --max-mb 20 --force",
        "review audit/ --all --decisions mine.csv --browser",
        "review audit/ --measure 100",
        "review audit/ --measure 100 --blind --reviewer ann --repeats 0.1 --seed 1",
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
    plan = _plan(measure, blind, repeats, seed, has_page=html is not None, everything=everything)
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
    measure: int | None, blind: bool, repeats: float, seed: int, *, has_page: bool, everything: bool
) -> Plan | None:
    """Return what to measure; refuse options that do not go together."""
    from noiseproof.review.measuring import Plan

    if measure is None:
        used = [name for name, value in (("--blind", blind), ("--repeats", repeats), ("--seed", seed)) if value]
        if used:
            raise ValueError(f"Expected --measure beside {' and '.join(used)}, got none. Add --measure 100.")
        return None
    if has_page:
        raise ValueError(
            "Expected --measure without --html: which row is asked next depends on the answers, and a page without a "
            "server cannot know. Leave out --html."
        )
    if everything:
        raise ValueError("Expected --measure without --all: the sample is drawn from all rows. Leave out --all.")
    return Plan(measure, blind, repeats, seed)


def _write_page(folder: Path, html: Path, everything: bool, max_mb: float, force: bool) -> None:
    from noiseproof.audit import read_audit
    from noiseproof.review.page import file_page

    audit = read_audit(folder)
    if html.exists() and not force:
        raise FileExistsError(f"Expected a new file for the page, {html} exists. Use --force to overwrite it.")
    page = file_page(audit, everything=everything, max_bytes=int(max_mb * 1e6))
    html.write_text(page, "utf-8")
    typer.echo(f"page: {html} ({html.stat().st_size / 1e6:.1f} MB)")


@app.command(
    epilog=examples(
        "apply audit/",
        "apply audit/ --decisions decisions.csv --out corrected.csv --retrain",
        "apply audit/ --accept-all --retrain --method gce",
        "apply audit/ --retrain --epochs 50 --seed 1 --json",
        "apply audit/ --accept-all --retrain --estimator sklearn.ensemble:RandomForestClassifier",
        "apply photos-audit/ --link",
    )
)
@refusals()
def apply(
    folder: Folder,
    decisions: Annotated[
        Path | None, typer.Option(help="Decisions of the review, by default decisions.csv in the folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file or folder of the corrected data, by default ./corrected….")
    ] = None,
    accept_all: Annotated[
        bool,
        typer.Option("--accept-all", help="Correct undecided labels, too, if they are more likely wrong than right."),
    ] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Link pictures to the originals instead of copying them.")
    ] = False,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Train on the given and the corrected labels; compare on held-out rows.")
    ] = False,
    method: Annotated[str | None, on_training("Method of --retrain, by default the audit's.")] = None,
    epochs: Annotated[int | None, on_training("Epochs of --retrain, by default the audit's.", min=1)] = None,
    estimator: Annotated[
        str | None, on_training("A scikit-learn classifier for --retrain in place of the method, as module:name.")
    ] = None,
    seed: Annotated[int, on_training("Seed of the held-out rows, the weights and the batches.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a corrected copy of the dataset, and show the gain in accuracy of a model."""
    from noiseproof.audit import corrections, read_audit
    from noiseproof.audit.apply import default_out, plan_retraining, read_decided, write_corrected

    audit = read_audit(folder)
    decided = read_decided(folder, decisions, accept_all=accept_all)
    changes = corrections(audit, decided, accept_all=accept_all)
    planned = None
    if retrain and changes:  # refuses what can't be trained before anything is written
        with training_exits("Stopped."):
            planned = plan_retraining(
                audit, changes, decided, method=method, epochs=epochs, estimator=estimator, seed=seed
            )
    # A stopped retraining left its corrected data: the same command continues with it.
    written = write_corrected(audit, changes, out or default_out(audit), link=link, same_ok=planned is not None)
    comparison = None if planned is None else _retrain(planned, written, shown=not as_json)
    issues = audit.issues.loc[audit.issues["is_label_issue"], "row"].tolist()
    left = sum(row not in decided and row not in changes for row in issues)
    counts = Counter(decision.decision for decision in decided.values())
    if as_json:
        result = {"decisions": counts, "changed": len(changes), "left": left, "corrected": written}
        return show_json(result | {"retrain": None if comparison is None else asdict(comparison)})
    typer.echo(f"decisions: {', '.join(f'{n} {choice}' for choice, n in sorted(counts.items())) or 'none'}")
    typer.echo(f"changed: {len(changes)} of {audit.summary['source_rows']} labels\ncorrected: {written}")
    if accept_all and left:
        typer.echo(
            f"left as they are: {left} issues whose label is more likely right than wrong; "
            f"`noiseproof review {folder}` has them at the end"
        )
    if retrain and comparison is None:
        typer.echo("no label changed: there is nothing to compare")
    if comparison is not None:
        _show_comparison(comparison)
    return None


def _retrain(planned: Retraining, written: Path, shown: bool) -> Comparison:
    with training_exits("Stopped."):
        try:
            if planned.estimator is not None:
                return planned.run()
            with training_progress(2 * planned.settings.epochs, shown) as progress:
                return planned.run(progress)
        except BaseException:
            say(f"The corrected data is written to {written}; the retraining is not finished.")
            raise


def _show_comparison(comparison: Comparison) -> None:
    low, high = comparison.interval
    typer.echo(f"\n{comparison.method} on {comparison.train_rows} rows, tested on {comparison.held_rows} held-out ones")
    show(
        ("trained on", "accuracy", "by the given labels"),
        [
            ("given labels", f"{comparison.before:.4f}", f"{comparison.before_by_given:.4f}"),
            ("corrected labels", f"{comparison.after:.4f}", f"{comparison.after_by_given:.4f}"),
        ],
    )
    typer.echo(f"difference: {comparison.after - comparison.before:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")
    if comparison.warning:
        say(f"warning: {comparison.warning}")
