"""`noiseproof review` and `noiseproof apply`: decide on the issues of an audit, and correct the dataset."""

from __future__ import annotations

import webbrowser
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.main import app
from noiseproof.cli.show import (
    AsJson,
    examples,
    on_training,
    refusals,
    say,
    show,
    show_json,
    training_progress,
)

if TYPE_CHECKING:
    from noiseproof.audit.apply import Comparison

Folder = Annotated[Path, typer.Argument(help="The folder that `noiseproof audit` wrote.")]


@app.command(
    epilog=examples(
        "review audit/",
        "review audit/ --port 8765 --no-browser",
        "review audit/ --html review.html",
        "review audit/ --html review.html --max-mb 20 --force",
        "review audit/ --all --decisions mine.csv --browser",
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
    everything: Annotated[
        bool, typer.Option("--all", help="Review the rows that look fine, too, behind the issues.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 is any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    max_mb: Annotated[
        float, typer.Option("--max-mb", min=1, help="Size that rows and pictures in an --html page may have.")
    ] = 20,
    force: Annotated[bool, typer.Option("--force", help="Write over an --html page that is there.")] = False,
) -> None:
    """Decide with the keyboard what each doubtful label should be; every decision is saved at once."""
    if html is not None:
        return _write_page(folder, html, everything, max_mb, force)
    import secrets

    try:
        from noiseproof.review.server import bind, make_app, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected fastapi and uvicorn for the review in a browser, {error.name} is not installed. "
            "Run `pip install noiseproof[review]`, or use --html for a page without a server."
        ) from error
    token = secrets.token_urlsafe(32)
    server = make_app(folder, token, decisions=decisions, everything=everything)
    listening = bind(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"
    listening.listen(128)  # whoever comes from here on is answered
    typer.echo(
        f"review: {address}\ndecisions: {decisions or folder / 'decisions.csv'}\nCtrl+C ends it; nothing is lost."
    )
    if browser:
        webbrowser.open(address)
    return serve(server, listening)


def _write_page(folder: Path, html: Path, everything: bool, max_mb: float, force: bool) -> None:
    from noiseproof.audit.files import read_audit
    from noiseproof.review.page import file_page

    audit = read_audit(folder)
    if html.exists() and not force:
        raise FileExistsError(f"Expected a new file for the page, {html} is there. Use --force to write over it.")
    page = file_page(audit, everything=everything, max_bytes=int(max_mb * 1e6))
    html.write_text(page, "utf-8")
    typer.echo(f"page: {html} ({html.stat().st_size / 1e6:.1f} MB)")


@app.command(
    epilog=examples(
        "apply audit/",
        "apply audit/ --decisions decisions.csv --out corrected.csv --retrain",
        "apply audit/ --accept-all --retrain --method gce",
        "apply audit/ --retrain --epochs 50 --seed 1 --json",
        "apply photos-audit/ --link",
    )
)
@refusals()
def apply(
    folder: Folder,
    decisions: Annotated[
        Path | None, typer.Option(help="What the review decided, by default decisions.csv in the folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file or folder of the corrected data, by default ./corrected….")
    ] = None,
    accept_all: Annotated[
        bool,
        typer.Option(
            "--accept-all", help="Where nobody decided, correct the labels that are likelier wrong than right."
        ),
    ] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Link pictures to the originals instead of copying them.")
    ] = False,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Train before and after; compare on rows that were held out.")
    ] = False,
    method: Annotated[str | None, on_training("Method of --retrain, by default the audit's.")] = None,
    epochs: Annotated[int | None, on_training("Epochs of --retrain, by default the audit's.", min=1)] = None,
    seed: Annotated[int, on_training("Seed of the held-out rows, the weights and the batches.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a corrected copy of the dataset, and show what a model gains by it."""
    from noiseproof.audit.apply import corrections, default_out, plan_retraining, read_decided, write_corrected
    from noiseproof.audit.files import read_audit
    from noiseproof.train import Diverged, Interrupted

    audit = read_audit(folder)
    decided = read_decided(folder, decisions, accept_all=accept_all)
    changes = corrections(audit, decided, accept_all=accept_all)
    issues = audit.issues.loc[audit.issues["is_label_issue"], "row"]
    left = sum(row not in decided and row not in changes for row in issues.tolist())
    counts = Counter(word.decision for word in decided.values())
    written = compared = None
    try:
        planned = None
        if retrain and changes:  # what can be refused is refused before anything is written
            planned = plan_retraining(audit, changes, decided, method=method, epochs=epochs, seed=seed)
        # A retraining that was stopped left its corrected data: the same command goes on with it.
        written = write_corrected(audit, changes, out or default_out(audit), link=link, same_ok=planned is not None)
        if planned is not None:
            with training_progress(2 * planned.settings.epochs, not as_json) as progress:
                compared = planned.run(progress)
    except BaseException as error:
        if written is not None:
            say(f"The corrected data is written, to {written}; the retraining is not done.")
        if isinstance(error, (Diverged, Interrupted)):
            say(error if isinstance(error, Diverged) else "Stopped.")
            raise typer.Exit(3 if isinstance(error, Diverged) else 130) from None
        raise
    if as_json:
        found = {"decisions": counts, "changed": len(changes), "left": left, "corrected": written}
        return show_json(found | {"retrain": None if compared is None else asdict(compared)})
    typer.echo(f"decisions: {', '.join(f'{n} {choice}' for choice, n in sorted(counts.items())) or 'none'}")
    typer.echo(f"changed: {len(changes)} of {audit.summary['source_rows']} labels\ncorrected: {written}")
    if accept_all and left:
        typer.echo(
            f"left as they are: {left} issues whose label is likelier right than wrong; "
            f"`noiseproof review {folder}` has them at the end"
        )
    if retrain and compared is None:
        typer.echo("no label changed: there is nothing to compare")
    if compared is not None:
        _show_comparison(compared)
    return None


def _show_comparison(compared: Comparison) -> None:
    low, high = compared.interval
    typer.echo(f"\n{compared.method} on {compared.train_rows} rows, judged on {compared.held_rows} that were held out")
    show(
        ("trained on", "accuracy", "by the labels as given"),
        [
            ("labels as given", f"{compared.before:.4f}", f"{compared.before_by_given:.4f}"),
            ("labels as corrected", f"{compared.after:.4f}", f"{compared.after_by_given:.4f}"),
        ],
    )
    typer.echo(f"difference: {compared.after - compared.before:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")
    if compared.warning:
        say(f"warning: {compared.warning}")
