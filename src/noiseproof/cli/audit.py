"""`noiseproof audit`: which labels of a dataset are wrong."""

from __future__ import annotations

import shlex
import sys
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import app
from noiseproof.cli.show import AsJson, bars, examples, on_machine, on_training, refusals, say, show, show_json

if TYPE_CHECKING:
    from pathlib import Path

    from noiseproof.audit import LabelReport
    from noiseproof.core.progress import Progress

SHOWN = 10
EXPORTS = ("label-studio", "fiftyone")


def on_table(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel="Columns of a table")


def on_model(text: str, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="From other models", **options)


@app.command(
    epilog=examples(
        "audit data.csv --label y",
        "audit reviews.csv --label mood --text review --fast",
        "audit photos/ --export label-studio,fiftyone",
        "audit x.npy --labels y.npy --out audit-x",
        "audit --labels y.npy --pred-probs p.npy",
        "audit data.parquet --label y --groups patient --time visit --trusted checked --ignore weight_kg",
        "audit data.csv --label y --id name --annotators ann,bob --classes cat,dog --folds 10 --seed 1 --force --json",
        "audit mails.csv --label kind --embeddings mails.npy --method gce --model mlp:hidden=[64] --epochs 20",
        "audit photos/ --backbone timm:resnet18 --device cuda --threads 8",
    )
)
@refusals()
def audit(
    data: Annotated[
        str | None, typer.Argument(help="A .csv, .tsv or .parquet file, a folder of pictures by class, .npy or .npz.")
    ] = None,
    label: Annotated[str | None, on_table("Column of the given labels.")] = None,
    text: Annotated[str | None, on_table("Column of texts to audit by.")] = None,
    id: Annotated[str | None, on_table("Column that names a row.")] = None,
    groups: Annotated[
        str | None, on_table("Column of what belongs together, such as a patient: never split between folds.")
    ] = None,
    time: Annotated[str | None, on_table("Column of numbers or dates: folds are blocks of time.")] = None,
    annotators: Annotated[str | None, on_table("Columns with the labels of several annotators: a,b,c.")] = None,
    ignore: Annotated[str | None, on_table("Columns that no model should see: a,b,c.")] = None,
    trusted: Annotated[
        str | None,
        typer.Option(help="Labels known to be right: a column of yes and no, a table of more rows, or a .npy file."),
    ] = None,
    labels: Annotated[str | None, on_model("A .npy file of labels, beside arrays or predictions.")] = None,
    pred_probs: Annotated[
        str | None, on_model("A .npy file (N, K) of another model's out-of-sample probabilities: nothing is trained.")
    ] = None,
    embeddings: Annotated[str | None, on_model("A .npy file (N, F) of features in the place of our own.")] = None,
    backbone: Annotated[str | None, on_model("timm:NAME, a pretrained model that looks at the pictures.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Names of all classes, in the order of their numbers, or of the columns of --pred-probs: a,b."
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast/--thorough", help="Watch one training, or judge each row by models of other folds.")
    ] = False,
    out: Annotated[str, typer.Option(help="Folder of the results; refused if it holds anything.")] = "audit",
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier audit in that folder; no decision is lost.")
    ] = False,
    export: Annotated[str | None, typer.Option(help=f"Also write for {' or '.join(EXPORTS)}, or both: a,b.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of features, folds, weights and batches.")] = 0,
    as_json: AsJson = False,
    method: Annotated[str | None, on_training("A robust method of `noiseproof methods`.")] = None,
    model: Annotated[str | None, on_training("A backbone of `noiseproof models`.")] = None,
    epochs: Annotated[int | None, on_training("Passes over the data.", min=1)] = None,
    folds: Annotated[int, on_training("Parts of the data, each judged by models of the others.", min=2)] = 5,
    device: Annotated[str | None, on_machine("cpu, cuda or mps; by default the best there is.")] = None,
    threads: Annotated[int | None, on_machine("Threads, by default torch's choice.", min=1)] = None,
) -> None:
    """Name the labels of a dataset that are wrong, with a score, a suggested label and a reason for each."""
    from pathlib import Path

    import torch

    from noiseproof.audit import audit, read_rows
    from noiseproof.audit.decisions import BadDecisions
    from noiseproof.audit.export import check_pictures
    from noiseproof.audit.files import check_folder
    from noiseproof.train import Diverged, Interrupted

    exports = _words(export)
    if unknown := [name for name in exports if name not in EXPORTS]:
        raise ValueError(f"Expected --export of {' or '.join(EXPORTS)}, got {', '.join(unknown)}.")
    try:
        check_folder(out, force=force)  # before an hour of work
    except BadDecisions:
        raise ValueError(
            f"Expected nobody at work in {out}, a review writes its decisions there. End it, or choose another folder "
            "with --out."
        ) from None
    if data is not None and Path(data).is_dir() and Path(out).resolve().is_relative_to(Path(data).resolve()):
        raise ValueError(f"Expected a folder outside the pictures in {data}, got {out}. Choose another one with --out.")
    if threads:
        torch.set_num_threads(threads)
    try:
        with _progress() as progress:
            rows = read_rows(
                data, label=label, text=text, id=id, group=groups, time=time, annotators=_words(annotators),
                ignore=_words(ignore), trusted=trusted, labels=labels, pred_probs=pred_probs, embeddings=embeddings,
                classes=_words(classes) or None, backbone=backbone, seed=seed, progress=progress,
            )  # fmt: skip
            if "fiftyone" in exports:
                check_pictures(rows.source)
            report = audit(
                rows, mode="fast" if fast else "thorough", method=method, model=model, epochs=epochs, folds=folds,
                seed=seed, device=device, progress=progress, command=shlex.join(["noiseproof", *sys.argv[1:]]),
            )  # fmt: skip
    except (KeyboardInterrupt, Interrupted):
        say("interrupted, nothing was written.")
        raise typer.Exit(130) from None
    except Diverged as error:
        say(error)
        raise typer.Exit(3) from None
    try:
        files = report.save(out, force=force, tell=say)
    except (FileExistsError, BadDecisions):  # it was free when the audit began, and an hour's work is not thrown away
        taken, out = out, _sibling(out)
        files = report.save(out, tell=say)
        say(f"{taken} was taken while the audit ran, by another one or by a review: the results are in {out}.")
    if "label-studio" in exports:
        files.append(report.to_label_studio(Path(out, "label-studio.json"), force=force))
    if "fiftyone" in exports:
        files.append(report.to_fiftyone(Path(out, "fiftyone"), force=force))
    if as_json:
        return show_json({"folder": out, "files": files, **report.summary()})
    return _show(report, files, out)


def _words(value: str | None) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()] if value else []


def _sibling(out: str) -> str:
    """A new folder beside ``out``: audit-1, audit-2, …"""
    from pathlib import Path

    path, n = Path(out) if Path(out).name not in ("", "..") else Path(out).resolve(), 1
    while True:
        try:
            (other := path.with_name(f"{path.name}-{n}")).mkdir(parents=True)
        except FileExistsError:
            n += 1
        else:
            return str(other)


def _show(report: LabelReport, files: Sequence[Path], out: str) -> None:
    summary = report.summary()
    typer.echo(f"{summary['rows']} rows of {len(summary['classes'])} classes. {summary['verdict']}")
    if pairs := summary["worst_pairs"][:5]:
        typer.echo("\nworst pairs")
        cells = [(p["given"], p["suggested"], str(p["issues"]), f"{p['probability']:.3f}") for p in pairs]
        show(("given", "should be", "issues", "P(given | should be)"), cells)
    data, labels, worst = report.data, report.label_issues, report.order[:SHOWN]
    none = "" if labels.is_issue[worst].any() else ", none of them called wrong"
    typer.echo(f"\nworst labels{none}")
    rows = [
        (
            str(data.names[i]),
            f"{labels.quality[i]:.3f}",
            data.classes[data.given[i]],
            data.classes[labels.suggested[i]],
            why,
        )
        for i, why in zip(worst.tolist(), report.why(worst).tolist(), strict=True)
    ]
    show(("row", "quality", "given", "suggested", "why"), rows)
    typer.echo()
    for headline in filter(None, (issue.headline(summary) for issue in report.issues)):
        typer.echo(headline)
    for skipped in summary["skipped"]:
        first = ", ".join(report.data.source.row_names(skipped["rows"][:5])) + (" …" if skipped["count"] > 5 else "")
        typer.echo(f"skipped: {skipped['count']} rows ({first}): {skipped['reason']}")
    for note in summary["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"time: {sum(summary['seconds'].values()):.1f} s")
    typer.echo(f"files: {', '.join(map(str, files))}")
    typer.echo(f"next: noiseproof review {shlex.quote(out)}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Says how far the audit is: a bar on a terminal, a line for each stage, and then one every ten seconds, else."""
    if sys.stderr.isatty():
        from rich.progress import TimeElapsedColumn, TimeRemainingColumn

        with bars(TimeElapsedColumn(), TimeRemainingColumn()) as move:
            yield move
        return
    said: dict[str, float] = {}

    def tell(stage: str, done: int, total: int | None) -> None:
        now = clock.monotonic()
        if stage not in said or now - said[stage] > 10:
            said[stage] = now
            say(f"{stage} {done}/{total}")

    yield tell
