"""`noiseproof audit`: which labels of a dataset are wrong."""

from __future__ import annotations

import shlex
import sys
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import columns, names, on_machine, on_training
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
)
from noiseproof.core.messages import counted, plain

if TYPE_CHECKING:
    from pathlib import Path

    from noiseproof.audit import LabelReport
    from noiseproof.core.messages import Progress

BEGAN = clock.perf_counter()
SHOWN = 10
EXPORTS = {  # file or folder that is written, by tool
    "label-studio": "label-studio.json",
    "argilla": "argilla",
    "cvat": "cvat.xml",
    "fiftyone": "fiftyone",
    "coco": "coco.json",
    "imagefolder": "imagefolder",
}
AGAIN_OPTIONS = (
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
COLUMNS, MODELS = "Columns of a table", "From other models"  # panels of the help


def option(text: str, panel: str | None = None, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **options)


def column(text: str, several: bool = False) -> Any:
    return option(text, COLUMNS, autocompletion=columns(several))


Data = Annotated[
    str | None,
    typer.Argument(
        help=(
            "A .csv, .tsv, .parquet, .jsonl, .xlsx or .arrow file, a folder of pictures by class,"
            " .npy or .npz, labels from Label Studio, Argilla, CVAT, FiftyOne or COCO; with --again"
            " the folder of an audit."
        )
    ),
]
Label = Annotated[str | None, column("Column of the given labels.", several=True)]
MultiLabel = Annotated[
    str | None,
    option(
        "Rows have several labels: their separator in the label column (--multi-label='|' for a|b),"
        " or columns where --label a,b,c names columns of 1 and 0.",
        COLUMNS,
    ),
]
Text = Annotated[str | None, column("Column of texts to audit by.")]
Id = Annotated[str | None, column("Column of row ids.")]
Groups = Annotated[
    str | None, column("Column of groups, such as patients: never split between folds.")
]
Time = Annotated[str | None, column("Column of numbers or dates: folds are blocks of time.")]
Annotators = Annotated[
    str | None, column("Columns with the labels of several annotators: a,b,c.", several=True)
]
Annotations = Annotated[
    str | None,
    option(
        "A table of their labels instead, with the columns row (or the --id), annotator and label."
    ),
]
ConsensusOption = Annotated[
    str,
    option(
        "The label of several annotators where there is none: majority, dawid-skene or pooled.",
        autocompletion=names(more=("majority", "dawid-skene", "pooled")),
    ),
]
NoHeader = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="The file has no names of columns: they are 0, 1, …",
        rich_help_panel=COLUMNS,
    ),
]
Ignore = Annotated[str | None, column("Columns to hide from the models: a,b,c.", several=True)]
Trusted = Annotated[
    str | None,
    option(
        "Labels known to be right: a column of yes and no, a table of more rows, or a .npy file."
    ),
]
Test = Annotated[
    str | None,
    option("A test set to compare with: a table of the same columns, or a folder of pictures."),
]
Labels = Annotated[
    str | None, option("A .npy file of labels, beside arrays or predictions.", MODELS)
]
PredProbs = Annotated[
    str | None,
    option(
        "A .npy file or a table (N, K) of another model's out-of-sample probabilities: nothing is"
        " trained.",
        MODELS,
    ),
]
Embeddings = Annotated[
    str | None,
    option("A .npy file or a table (N, F) of features, instead of the built-in ones.", MODELS),
]
FeaturesOption = Annotated[
    str | None,
    option(
        "Features of texts or pictures, of `noiseproof features`: tfidf, timm:NAME, …",
        MODELS,
        autocompletion=names("features"),
    ),
]
Classes = Annotated[
    str | None,
    option(
        "Names of all classes, in the order of their numbers, or of the columns of --pred-probs:"
        " a,b."
    ),
]
Fast = Annotated[
    bool,
    typer.Option(
        "--fast/--thorough", help="Follow one training, or judge each row by models of other folds."
    ),
]
Out = Annotated[str, option("Folder of the results; must be new or empty.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an earlier audit in that folder; no decision is lost."),
]
CsvSafe = Annotated[
    bool,
    typer.Option(
        help="An apostrophe before cells of issues.csv that are formulas in spreadsheets."
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Learn from the decisions on an audit, and rank its other labels anew."
    ),
]
Export = Annotated[
    str | None,
    option(
        f"Also write for other tools, one or more of {', '.join(EXPORTS)}: a,b.",
        autocompletion=names(more=EXPORTS, several=True),
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of features, folds, weights and batches.")]
Method = Annotated[
    str | None,
    on_training("A robust method of `noiseproof methods`.", autocompletion=names("methods")),
]
Model = Annotated[
    str | None,
    on_training(
        "trees, network, both, lightgbm, xgboost, catboost, or a backbone of `noiseproof models`.",
        autocompletion=names("judges"),
    ),
]
Estimator = Annotated[
    str | None,
    on_training("A scikit-learn classifier to judge by: sklearn.ensemble:RandomForestClassifier."),
]
Epochs = Annotated[int | None, on_training("Passes over the data.", min=1)]
Folds = Annotated[
    int | None,
    on_training(
        "Parts of the data, each judged by models of the others; 5, or 3 from 100000 rows on.",
        min=2,
    ),
]
Goal = Annotated[
    str,
    option(
        "What the labels called wrong should achieve: f1, precision=0.9, recall=0.9, or budget=300"
        " (rows)."
    ),
]
IssueTypes = Annotated[
    str | None,
    option(
        "Issue types to look for beside wrong labels: all, or a,b; by default those that are"
        " quick.",
        autocompletion=names("issues", more=["all"], several=True),
    ),
]
Engine = Annotated[str, on_machine("Where folds and searches run: local or ray.")]
Address = Annotated[
    str | None, on_machine("Address of a Ray cluster, or auto; by default one is started.")
]
Device = Annotated[str | None, on_machine("cpu, cuda or mps; by default the best available.")]
Threads = Annotated[
    int | None, on_machine("Threads, by default as many as the data occupies.", min=1)
]


@app.command(
    epilog=examples(
        "audit data.csv --label y",
        "audit reviews.csv --label mood --text review --fast",
        "audit photos/ --export label-studio,fiftyone",
        "audit x.npy --labels y.npy --out audit-x",
        "audit --labels y.npy --pred-probs p.npy",
        "audit data.xlsx --label y --id name --pred-probs p.csv",
        "audit data.parquet --label y --groups patient --time visit --trusted checked --ignore"
        " weight_kg",
        "audit data.csv --label y --id name --annotators ann,bob --classes cat,dog --folds 10"
        " --seed 1 --force --json",
        "audit data.csv --id name --annotations votes.csv --consensus dawid-skene",
        "audit mails.csv --label kind --embeddings mails.npy --method gce --model mlp:hidden=[64]"
        " --epochs 20",
        "audit iris.csv --label 4 --no-header",
        "audit data.csv --label y --model trees",
        "audit data.csv --label y --estimator sklearn.ensemble:RandomForestClassifier",
        "audit data.csv --label y --goal precision=0.9",
        "audit data.csv --label y --issues all",
        "audit train.csv --label y --test test.csv",
        "audit photos/ --features timm:resnet18 --device cuda --threads 8",
        "audit data.parquet --label y --engine ray --address auto",
        "audit data.csv --label y --no-csv-safe",
        "audit songs.csv --label moods --multi-label='|'",
        "audit songs.csv --label calm,sad,happy --multi-label columns",
        "audit audit/ --again",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals(ARGUMENTS)
def audit(
    context: typer.Context,
    data: Data = None,
    label: Label = None,
    multi_label: MultiLabel = None,
    text: Text = None,
    id: Id = None,
    groups: Groups = None,
    time: Time = None,
    annotators: Annotators = None,
    annotations: Annotations = None,
    consensus: ConsensusOption = "majority",
    ignore: Ignore = None,
    no_header: NoHeader = False,
    trusted: Trusted = None,
    test: Test = None,
    labels: Labels = None,
    pred_probs: PredProbs = None,
    embeddings: Embeddings = None,
    features: FeaturesOption = None,
    classes: Classes = None,
    fast: Fast = False,
    out: Out = "audit",
    force: Force = False,
    csv_safe: CsvSafe = True,
    again: Again = False,
    goal: Goal = "f1",
    issues: IssueTypes = None,
    export: Export = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    method: Method = None,
    model: Model = None,
    estimator: Estimator = None,
    epochs: Epochs = None,
    folds: Folds = None,
    engine: Engine = "local",
    address: Address = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Find the wrong labels of a dataset, with a score, a suggested label and a reason for each."""
    exports = _exports(export, engine, address)
    if again:
        return _audit_again(context, exports, _machine(engine, address, threads), as_json)
    source = {
        "label": label,
        "text": text,
        "id": id,
        "group": groups,
        "time": time,
        "annotators": _words(annotators),
        "annotations": annotations,
        "consensus": consensus,
        "ignore": _words(ignore),
        "trusted": trusted,
        "test": test,
        "labels": labels,
        "pred_probs": pred_probs,
        "embeddings": embeddings,
        "classes": _words(classes) or None,
        "features": features,
        "header": not no_header,
        "multi_label": multi_label,
    }
    _check(data, source, out, force, goal)  # before torch is imported, and before an hour of work
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
    }
    with _machine(engine, address, threads):
        report = _run(data, source, options, seed, exports, out)
    out, files = _save(report, out, force, exports, csv_safe)
    return (
        show_json({"folder": out, "files": files, **report.summary()})
        if as_json
        else _show(report, files, out)
    )


def _exports(export: str | None, engine: str, address: str | None) -> list[str]:
    """The tools to write for; refuses unknown ones, and an engine that does not exist, before torch
    is imported.
    """
    from noiseproof.core.cluster import check_engine

    check_engine(engine, address)
    exports = _words(export)
    if unknown := [name for name in exports if name not in EXPORTS]:
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

    folder, device = context.params["data"], context.params["device"]
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in AGAIN_OPTIONS
        and (source := context.get_parameter_source(str(parameter.name))) is not None
        and source.name == "COMMANDLINE"
    ]
    if folder is None:
        raise ValueError(
            "Expected the folder of an audit beside --again, got none: noiseproof audit audit/"
            " --again."
        )
    if given:
        raise ValueError(
            f"Expected no {', '.join(given)} beside --again: all options are those of the audit in"
            f" {folder}. Leave them out, or audit the data without --again."
        )
    from noiseproof.audit.again import audit_again
    from noiseproof.audit.decisions import find_decisions, read_decisions
    from noiseproof.audit.files import FILES, read_audit

    interrupted = "interrupted, nothing was written."
    try:
        with machine, training_exits(interrupted), _progress() as progress:
            report = audit_again(folder, device=device, progress=progress)
    except KeyboardInterrupt:  # while the data was read
        say(interrupted)
        raise typer.Exit(130) from None
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


def _check(data: str | None, source: dict[str, Any], out: str, force: bool, goal: str) -> None:
    """Refuse data that can't be read, an unknown goal, and a folder that the results can't be
    written to.
    """
    from pathlib import Path

    from noiseproof.audit.early import check_request

    check_request(data, source)
    from noiseproof.audit.decisions import BadDecisions
    from noiseproof.audit.files import check_folder
    from noiseproof.judge.cut import parse_goal

    parse_goal(goal)
    try:
        check_folder(out, force=force)
    except BadDecisions:
        raise ValueError(
            f"Expected a folder that is not in use, a review writes its decisions to {out}. Stop"
            " it, or choose another folder with --out."
        ) from None
    if (
        data is not None
        and Path(data).is_dir()
        and Path(out).resolve().is_relative_to(Path(data).resolve())
    ):
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
    seed: int,
    exports: Sequence[str],
    out: str,
) -> LabelReport:
    """Read and audit the data with progress; interruption and divergence end the command."""
    from noiseproof.audit import audit, read_rows
    from noiseproof.audit.exchange import TOOLS
    from noiseproof.audit.files import cache_beside
    from noiseproof.judge.evidence.gather import check_models

    check_models(options["method"], options["model"], options["estimator"])
    interrupted = "interrupted, nothing was written."
    try:
        with training_exits(interrupted), _progress() as progress:
            imported = clock.perf_counter()
            rows = read_rows(data, **source, seed=seed, progress=progress, cache=cache_beside(out))
            for tool in exports:
                TOOLS[tool]().check(rows.source)
            command = shlex.join(["noiseproof", *sys.argv[1:]])
            report = audit(rows, **options, seed=seed, progress=progress, command=command)
            report.seconds["starting"] = round(imported - BEGAN, 3)
            return report
    except KeyboardInterrupt:  # while the data was read
        say(interrupted)
        raise typer.Exit(130) from None


def _save(
    report: LabelReport, out: str, force: bool, exports: Sequence[str], csv_safe: bool
) -> tuple[str, list[Path]]:
    """Write the results to ``out``, or beside it if it was taken during the audit; return the
    folder and the files.
    """
    from noiseproof.audit.decisions import BadDecisions

    try:
        files = report.save(out, force=force, csv_safe=csv_safe, tell=say)
    except (FileExistsError, BadDecisions):  # the work of an hour is not thrown away
        taken, out = out, _sibling(out)
        files = report.save(out, csv_safe=csv_safe, tell=say)
        say(
            f"{taken} was taken during the audit, by another one or by a review: the results are in"
            f" {out}."
        )
    return out, files + _export(report, out, force, exports)


def _export(report: LabelReport, out: str, force: bool, exports: Sequence[str]) -> list[Path]:
    from pathlib import Path

    return [report.export(tool, Path(out, EXPORTS[tool]), force=force) for tool in exports]


def _words(value: str | None) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()] if value else []


def _sibling(out: str) -> str:
    """Make a new folder beside ``out``: audit-1, audit-2, …"""
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
    echo(f"{summary['rows']} rows of {len(summary['classes'])} classes. {summary['verdict']}")
    if assumption := summary["assumption"]:
        from noiseproof.audit.measure.design import FIRST_QUESTIONS

        rows = min(FIRST_QUESTIONS, summary["rows"])
        measure = f"noiseproof review {shlex.quote(out)} --measure {rows}"
        echo(f"{assumption}. {rows} answers measure it and set the cut: {measure}")
    if pairs := summary["worst_pairs"][:5]:
        echo("\nworst pairs")
        cells = [
            (plain(p["given"]), plain(p["suggested"]), str(p["issues"]), f"{p['probability']:.3f}")
            for p in pairs
        ]
        show(("given", "should be", "issues", "P(given | should be)"), cells)
    data, labels, order = report.data, report.label_issues, report.order
    worst = (order if data.decided is None else order[data.decided[order] < 0])[:SHOWN]
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
    if data.labels.votes is not None:
        echo(report.annotator_quality.headline(data.classes))
    _show_issues(report, summary)
    for skipped in summary["skipped"]:
        first = ", ".join(report.data.source.row_names(skipped["rows"][:5])) + (
            " …" if skipped["count"] > 5 else ""
        )
        echo(f"skipped: {counted(skipped['count'], 'row')} ({first}): {skipped['reason']}")
    for note in summary["notes"]:
        echo(f"note: {note}")
    if models := ", ".join(f"{m['name']} {m['weight']:.0%}" for m in summary["models"]):
        echo(f"models: {models}")
    echo(f"time: {sum(summary['seconds'].values()):.1f} s")
    echo(f"files: {', '.join(map(str, files))}")
    echo(
        f"next: {_without_leaking(report, summary, out) or f'noiseproof review {shlex.quote(out)}'}"
    )


def _without_leaking(report: LabelReport, summary: Mapping[str, Any], out: str) -> str:
    """The command of the audit without columns that predict the label alone; empty where no option
    leaves them out.
    """
    from noiseproof.judge.issues.leakage import can_ignore, leaking_columns

    leaking, command = leaking_columns(summary), report.config["command"]
    if not leaking or not command or not can_ignore(report.data):
        return ""
    words = []
    given = iter(shlex.split(command))
    for word in given:
        if word in ("--ignore", "--out"):
            next(given, None)
        elif word != "--force" and not word.startswith(("--ignore=", "--out=")):
            words.append(word)
    ignored = ",".join([*(report.config["ignore"] or ()), *leaking])
    return shlex.join([*words, "--ignore", ignored, "--out", out, "--force"])


def _show_issues(report: LabelReport, summary: Mapping[str, Any]) -> None:
    """Show a line for each issue type that was found, what needs action first."""
    from noiseproof.judge.evidence.gather import MOST_CELLS
    from noiseproof.judge.issues.base import NEEDS_ACTION

    lines = {issue.name: issue.headline(summary) for issue in report.issues}
    for issue in sorted(report.issues, key=lambda issue: -issue.score):
        if line := lines[issue.name]:
            needs_action = issue.score >= NEEDS_ACTION
            fix = f" [apply --fix {issue.name}]" if issue.fixes and needs_action else ""
            echo(f"{'' if needs_action else 'also '}{line}{fix}")
    if absent := ", ".join(name for name, line in lines.items() if not line and name != "label"):
        seen = f" (columns of {MOST_CELLS} rows)" if summary["rows"] > MOST_CELLS else ""
        echo(f"not found: {absent}{seen}")


def _progress() -> AbstractContextManager[Progress]:
    """Report progress: a bar on a terminal, else a line for each stage and one every ten
    seconds.
    """
    reported: dict[str, float] = {}

    def report(stage: str, done: int, total: int | None) -> None:
        now = clock.monotonic()
        if stage not in reported or now - reported[stage] > 10:
            reported[stage] = now
            say(f"{stage} {done}/{total}")

    return stage_progress(report, "TimeElapsedColumn", "TimeRemainingColumn")
