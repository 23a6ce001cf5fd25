"""`noiseproof audit`: which labels of a dataset are wrong."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import columns, names, on_machine, on_training, option
from noiseproof.cli.show import (
    AsJson,
    echo,
    examples,
    refusals,
    say,
    show,
    show_json,
    stage_progress,
    training_exits,
    words,
)
from noiseproof.core.messages import counted, plain

if TYPE_CHECKING:
    from pathlib import Path

    from noiseproof.audit import LabelReport

SHOWN = 10  # of the worst labels
INTERRUPTED = "interrupted, nothing was written."
EXPORTS = {  # file or folder that is written, by tool
    "label-studio": "label-studio.json",
    "argilla": "argilla",
    "cvat": "cvat.xml",
    "fiftyone": "fiftyone",
    "coco": "coco.json",
    "imagefolder": "imagefolder",
}
# options of --again; all others are as in the earlier audit
OF_AGAIN = (
    "data",
    "again",
    "export",
    "as_json",
    "engine",
    "address",
    "device",
    "threads",
    "help",
)
# of Python
ARGUMENTS = {"group": "--groups", "header=False": "--no-header", "mode": "--fast or --thorough"}
OTHER_MODELS = "From other models"  # a panel of the help


def column(text: str, several: bool = False) -> Any:
    return option(text, panel="Columns of a table", complete=columns(several))


@app.command(
    epilog=examples(
        "audit data.csv --label y",
        "audit reviews.csv --label mood --text review --fast",
        "audit photos/ --export label-studio,fiftyone",
        "audit --labels y.npy --pred-probs p.npy",
        "audit data.parquet --label y --groups patient --ignore weight_kg --goal precision=0.9",
        "audit data.csv --id name --annotators ann,bob --consensus dawid-skene",
        "audit songs.csv --label moods --multi-label='|'",
        "audit audit/ --again",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals(ARGUMENTS)
def audit(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            help="A .csv, .tsv, .parquet, .jsonl, .xlsx or .arrow file, a folder of pictures by"
            " class, .npy or .npz, labels from Label Studio, Argilla, CVAT, FiftyOne or COCO; with"
            " --again the folder of an audit."
        ),
    ] = None,
    label: Annotated[str | None, column("Column of the given labels.", several=True)] = None,
    multi_label: Annotated[
        str | None,
        column(
            "Rows have several labels: their separator (--multi-label='|' for a|b), or columns"
            " where --label a,b,c names columns of 1 and 0."
        ),
    ] = None,
    text: Annotated[str | None, column("Column of texts to audit by.")] = None,
    id: Annotated[str | None, column("Column of row ids.")] = None,
    groups: Annotated[
        str | None, column("Column of groups, such as patients: never split between folds.")
    ] = None,
    time: Annotated[
        str | None, column("Column of numbers or dates: folds are blocks of time.")
    ] = None,
    annotators: Annotated[
        str | None, column("Columns with the labels of several annotators: a,b,c.", several=True)
    ] = None,
    annotations: Annotated[
        str | None,
        option("A table of their labels: columns row (or the --id), annotator and label."),
    ] = None,
    consensus: Annotated[
        str,
        option(
            "Label of several annotators: majority, dawid-skene or pooled.",
            complete="majority dawid-skene pooled",
        ),
    ] = "majority",
    ignore: Annotated[
        str | None, column("Columns to hide from the models: a,b,c.", several=True)
    ] = None,
    no_header: Annotated[
        bool,
        option(
            "The file has no names of columns: they are 0, 1, …",
            "--no-header",
            panel="Columns of a table",
        ),
    ] = False,
    trusted: Annotated[
        str | None, option("Right labels: a column of yes and no, a table, or a .npy file.")
    ] = None,
    test: Annotated[
        str | None, option("A test set to compare with: a table or a folder of pictures.")
    ] = None,
    labels: Annotated[
        str | None,
        option("A .npy file of labels, with arrays or predictions.", panel=OTHER_MODELS),
    ] = None,
    pred_probs: Annotated[
        str | None,
        option(
            "Another model's out-of-sample probabilities (N, K), .npy or a table: no training.",
            panel=OTHER_MODELS,
        ),
    ] = None,
    embeddings: Annotated[
        str | None,
        option("Features (N, F), .npy or a table, for the built-in ones.", panel=OTHER_MODELS),
    ] = None,
    features: Annotated[
        str | None,
        option(
            "Features of texts or pictures, of `noiseproof features`: tfidf, …",
            panel=OTHER_MODELS,
            complete=names("features"),
        ),
    ] = None,
    describe: Annotated[
        str | None,
        option(
            "A table of class and description, by which texts are judged, too.",
            panel=OTHER_MODELS,
        ),
    ] = None,
    classes: Annotated[
        str | None, option("Names of all classes, in the order of their numbers: a,b.")
    ] = None,
    fast: Annotated[
        bool,
        option("Follow one training, or judge each row by other folds.", "--fast/--thorough"),
    ] = False,
    out: Annotated[str, option("Folder of the results; must be new or empty.")] = "audit",
    force: Annotated[
        bool, option("Replace an earlier audit in that folder; no decision is lost.", "--force")
    ] = False,
    csv_safe: Annotated[bool, option("Put an apostrophe before formulas in issues.csv.")] = True,
    again: Annotated[
        bool, option("Learn from the decisions on an audit, and rank its other labels.", "--again")
    ] = False,
    goal: Annotated[
        str, option("What to call wrong: f1, precision=0.9, recall=0.9 or budget=300 (rows).")
    ] = "f1",
    issues: Annotated[
        str | None,
        option(
            "Issue types to look for as well: a,b; by default all.",
            complete=names("issues", more=["all"], several=True),
        ),
    ] = None,
    export: Annotated[
        str | None,
        option(
            f"Also write for {', '.join(EXPORTS)}: a,b.",
            complete=names(more=EXPORTS, several=True),
        ),
    ] = None,
    seed: Annotated[int, option("Seed of features, folds, weights and batches.", min=0)] = 0,
    as_json: AsJson = False,
    method: Annotated[
        str | None,
        on_training("A robust method of `noiseproof methods`.", complete=names("methods")),
    ] = None,
    model: Annotated[
        str | None,
        on_training(
            "trees, network, both, lightgbm, xgboost, catboost, or one of `noiseproof models`.",
            complete=names("judges"),
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        on_training("A scikit-learn classifier: sklearn.ensemble:RandomForestClassifier."),
    ] = None,
    epochs: Annotated[int | None, on_training("Passes over the data.", min=1)] = None,
    folds: Annotated[
        int | None,
        on_training("Parts of the data, each judged by models of the others.", min=2),
    ] = None,
    engine: Annotated[str, on_machine("Where folds and searches run: local or ray.")] = "local",
    address: Annotated[
        str | None, on_machine("Address of a Ray cluster, or auto; by default one is started.")
    ] = None,
    device: Annotated[
        str | None, on_machine("cpu, cuda or mps; by default the best available.")
    ] = None,
    threads: Annotated[
        int | None,
        on_machine("Threads, by default as many as the data occupies.", min=1),
    ] = None,
) -> None:
    """Find the wrong labels of a dataset, with a score, a suggested label and a reason for each."""
    exports = _exports(export)
    if again:
        return _audit_again(context, exports, _machine(engine, address, threads), as_json)
    source = {
        "label": label,
        "text": text,
        "id": id,
        "group": groups,
        "time": time,
        "annotators": words(annotators),
        "annotations": annotations,
        "consensus": consensus,
        "ignore": words(ignore),
        "trusted": trusted,
        "test": test,
        "labels": labels,
        "pred_probs": pred_probs,
        "embeddings": embeddings,
        "classes": words(classes) or None,
        "features": features,
        "describe": describe,
        "header": not no_header,
        "multi_label": multi_label,
    }
    _check(data, out, force, goal)  # before an hour of work
    options = {
        "mode": "fast" if fast else "thorough",
        "method": method,
        "model": model,
        "estimator": estimator,
        "epochs": epochs,
        "folds": folds,
        "goal": goal,
        "issues": issues,
        "device": device,
        "seed": seed,
    }
    with _machine(engine, address, threads):
        report = _run(data, source, options, exports, out)
    out, files = _save(report, out, force, exports, csv_safe)
    if as_json:
        return show_json({"folder": out, "files": files, **report.summary()})
    return _show(report, files, out)


def _exports(export: str | None) -> list[str]:
    """Return the tools to write for."""
    exports = words(export)
    unknown = [name for name in exports if name not in EXPORTS]
    if unknown:
        raise ValueError(f"Expected --export of {', '.join(EXPORTS)}, got {', '.join(unknown)}.")
    return exports


def _audit_again(
    context: typer.Context,
    exports: Sequence[str],
    machine: AbstractContextManager[None],
    as_json: bool,
) -> None:
    """Audit the data of an audit with the decisions on it; refuse options that the earlier audit
    has.
    """
    from pathlib import Path

    folder = context.params["data"]
    if folder is None:
        raise ValueError(
            "Expected the folder of an audit with --again, got none: noiseproof audit audit/"
            " --again."
        )
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name not in OF_AGAIN and source and source.name == "COMMANDLINE":
            given.append(parameter.opts[0])
    if given:
        raise ValueError(
            f"Expected no {', '.join(given)} with --again: all options are as in the audit in"
            f" {folder}. Leave them out, or audit the data without --again."
        )
    from noiseproof.audit.again import audit_again
    from noiseproof.audit.decisions import find_decisions, read_decisions
    from noiseproof.audit.files import FILES, read_audit

    with machine, _interruptible(), stage_progress() as progress:
        report = audit_again(folder, device=context.params["device"], progress=progress)
    files = [Path(folder, name) for name in FILES] + _export(report, folder, True, exports)
    saved = read_audit(folder)
    if as_json:
        return show_json({"folder": folder, "files": files, **saved.summary})
    _show(report, files, folder)
    if "measured" in saved.summary:
        echo(f"measured: {saved.summary['verdict']}")
    issues = saved.issues.loc[saved.issues["is_label_issue"], "row"]
    decided = issues.isin(list(read_decisions(find_decisions(folder))))
    return echo(f"undecided: {int((~decided).sum())} of {len(issues)} issues")


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        with training_exits(INTERRUPTED):
            yield
    except KeyboardInterrupt:  # while the data was read
        say(INTERRUPTED)
        raise typer.Exit(130) from None


def _check(data: str | None, out: str, force: bool, goal: str) -> None:
    """Refuse a folder that the results can't be written to, and an unknown goal."""
    from pathlib import Path

    from noiseproof.audit.decisions import BadDecisions
    from noiseproof.audit.files import check_folder
    from noiseproof.judge.cut import parse_goal

    parse_goal(goal)
    try:
        folder = check_folder(out, force=force)
    except BadDecisions:
        raise ValueError(
            f"Expected a folder that is not in use, a review writes its decisions to {out}. Stop"
            " it, or choose another folder with --out."
        ) from None
    pictures = Path(data or "")
    if data and pictures.is_dir() and folder.resolve().is_relative_to(pictures.resolve()):
        raise ValueError(
            f"Expected a folder outside the pictures in {data}, got {out}. Choose another one with"
            " --out."
        )


@contextmanager
def _machine(engine: Any, address: str | None, threads: int | None) -> Iterator[None]:
    from noiseproof.core.cluster import fixed_threads, work_on

    with fixed_threads(threads), work_on(engine, address):
        yield


def _run(
    data: str | None,
    source: dict[str, Any],
    options: dict[str, Any],
    exports: Sequence[str],
    out: str,
) -> LabelReport:
    """Read and audit the data with progress; interruption and divergence end the command."""
    from noiseproof.audit import audit, read_rows
    from noiseproof.audit.exchange import TOOLS
    from noiseproof.audit.files import cache_beside
    from noiseproof.judge.evidence.gather import check_models

    check_models(options["method"], options["model"], options["estimator"])
    with _interruptible(), stage_progress() as progress:
        rows = read_rows(
            data, **source, seed=options["seed"], progress=progress, cache=cache_beside(out)
        )
        for tool in exports:
            TOOLS[tool]().check(rows.source)
        command = shlex.join(["noiseproof", *sys.argv[1:]])
        return audit(rows, **options, progress=progress, command=command)


def _save(
    report: LabelReport, out: str, force: bool, exports: Sequence[str], csv_safe: bool
) -> tuple[str, list[Path]]:
    """Write the results to ``out``, or next to it if it was taken during the audit; return the
    folder and the files.
    """
    from noiseproof.audit.decisions import BadDecisions

    try:
        files = report.save(out, force=force, csv_safe=csv_safe, tell=say)
    except (FileExistsError, BadDecisions):  # the work of an hour is not thrown away
        taken = out
        out = _new_folder(taken)
        files = report.save(out, csv_safe=csv_safe, tell=say)
        say(
            f"{taken} was taken during the audit, by another one or by a review: the results are in"
            f" {out}."
        )
    return out, files + _export(report, out, force, exports)


def _export(report: LabelReport, out: str, force: bool, exports: Sequence[str]) -> list[Path]:
    from pathlib import Path

    return [report.export(tool, Path(out, EXPORTS[tool]), force=force) for tool in exports]


def _new_folder(taken: str) -> str:
    """Make the first new folder of audit-1, audit-2, … and return its path."""
    from itertools import count
    from pathlib import Path

    path = Path(taken)
    if path.name in ("", ".."):
        path = path.resolve()
    folders = (path.with_name(f"{path.name}-{number}") for number in count(1))
    folder = next(folder for folder in folders if not folder.exists())
    folder.mkdir(parents=True)
    return str(folder)


def _show(report: LabelReport, files: Sequence[Path], out: str) -> None:
    summary = report.summary()
    echo(f"{summary['rows']} rows of {len(summary['classes'])} classes. {summary['verdict']}")
    if summary["assumption"]:
        from noiseproof.judge.measure.design import FIRST_QUESTIONS

        rows = min(FIRST_QUESTIONS, summary["rows"])
        measure = f"noiseproof review {shlex.quote(out)} --measure {rows}"
        echo(f"{summary['assumption']}. {rows} answers measure it and set the cut: {measure}")
    pairs = [
        (plain(p["given"]), plain(p["suggested"]), str(p["issues"]), f"{p['probability']:.3f}")
        for p in summary["worst_pairs"][:5]
    ]
    if pairs:
        echo("\nworst pairs")
        show(("given", "should be", "issues", "P(given | should be)"), pairs)
    _show_worst(report)
    if report.data.labels.votes is not None:
        echo(report.annotator_quality.headline(report.data.classes))
    _show_issues(report, summary)
    for skipped in summary["skipped"]:
        first = ", ".join(report.data.source.row_names(skipped["rows"][:5]))
        if skipped["count"] > 5:
            first += " …"
        echo(f"skipped: {counted(skipped['count'], 'row')} ({first}): {skipped['reason']}")
    for note in summary["notes"]:
        echo(f"note: {note}")
    models = ", ".join(f"{m['name']} {m['weight']:.0%}" for m in summary["models"])
    if models:
        echo(f"models: {models}")
    echo(f"time: {sum(summary['seconds'].values()):.1f} s")
    echo(f"files: {', '.join(map(str, files))}")
    following = _without_leaking(report, summary, out)
    echo(f"next: {following or f'noiseproof review {shlex.quote(out)}'}")


def _show_worst(report: LabelReport) -> None:
    data = report.data
    labels = report.label_issues
    worst = report.order
    if data.decided is not None:
        worst = worst[data.decided[worst] < 0]
    worst = worst[:SHOWN]
    none = "" if labels.is_issue[worst].any() else ", none of them an issue"
    echo(f"\nworst labels{none}")
    rows = [
        (
            str(data.names[i]),
            f"{labels.quality[i]:.3f}",
            plain(data.classes[data.given[i]]),
            plain(data.classes[labels.suggested[i]]),
            why,
        )
        for i, why in zip(worst.tolist(), report.why(worst).tolist(), strict=True)
    ]
    show(("row", "quality", "given", "suggested", "why"), rows)
    echo()


def _show_issues(report: LabelReport, summary: Mapping[str, Any]) -> None:
    """Show a line for each issue type with findings, what needs action first."""
    from noiseproof.judge.evidence.gather import MOST_CELLS
    from noiseproof.judge.issues.base import NEEDS_ACTION

    absent = []
    for issue in sorted(report.issues, key=lambda issue: -issue.score):
        line = issue.headline(summary)
        if not line:
            if issue.name != "label":
                absent.append(issue.name)
        elif issue.score < NEEDS_ACTION:
            echo(f"also {line}")
        elif issue.fixes:
            echo(f"{line} [apply --fix {issue.name}]")
        else:
            echo(line)
    if absent:
        seen = f" (columns of {MOST_CELLS} rows)" if summary["rows"] > MOST_CELLS else ""
        echo(f"not found: {', '.join(absent)}{seen}")


def _without_leaking(report: LabelReport, summary: Mapping[str, Any], out: str) -> str:
    """Return the command of the audit without columns that predict the label alone; empty where no
    option leaves them out.
    """
    from noiseproof.judge.issues.leakage import can_ignore, leaking_columns

    leaking = leaking_columns(summary)
    command = report.config["command"]
    if not leaking or not command or not can_ignore(report.data):
        return ""
    kept = []
    given = iter(shlex.split(command))
    for word in given:
        if word in ("--ignore", "--out"):
            next(given, None)
        elif word != "--force" and not word.startswith(("--ignore=", "--out=")):
            kept.append(word)
    ignored = ",".join([*(report.config["ignore"] or ()), *leaking])
    return shlex.join([*kept, "--ignore", ignored, "--out", out, "--force"])
