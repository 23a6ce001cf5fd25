"""`noiseproof apply`: correct the dataset by decisions, and compare a model before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import on_training
from noiseproof.cli.review import Folder
from noiseproof.cli.show import (
    AsJson,
    echo,
    examples,
    refusals,
    say,
    show,
    show_json,
    training_exits,
    training_progress,
)
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.audit.decisions import Decision, Standing
    from noiseproof.audit.files import Audit
    from noiseproof.audit.issues import Fix
    from noiseproof.audit.plan import Plan
    from noiseproof.audit.retrain import Comparison, Retraining


Decisions = Annotated[
    Path | None,
    typer.Option(
        help=("Decisions, or labels from Label Studio and others; by default the folder's review.")
    ),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="Take them unmeasured, even if that may spoil more than it mends."),
]
Excluded = Annotated[
    str,
    typer.Option(
        metavar="leave-out|mark",
        help="What becomes of excluded rows; mark: only the list names them.",
    ),
]
Link = Annotated[
    bool, typer.Option("--link", help="Link pictures to the originals instead of copying them.")
]
Unsettled = Literal["latest", "leave"]
UnsettledRows = Annotated[
    Unsettled,
    typer.Option(
        help="Rows on which reviewers disagree: apply the latest decision, or leave the label."
    ),
]


FixTypes = Annotated[
    str | None,
    typer.Option(
        "--fix",
        metavar="TYPE,…",
        help=(
            "Carry out the remedy of issue types, in the copy: near-duplicate, spelling, columns, …"
            " of the report."
        ),
    ),
]
Votes = Annotated[
    bool,
    typer.Option(
        "--votes",
        help="Of an audit of annotators alone: a column of who said what beside their consensus.",
    ),
]
CsvSafe = Annotated[
    bool,
    typer.Option(
        help=(
            "In the list of reviewed rows, an apostrophe before cells that are formulas in"
            " spreadsheets."
        )
    ),
]


@app.command(
    epilog=examples(
        "apply audit/",
        "apply audit/ --decisions decisions.csv --out corrected.csv --retrain",
        "apply audit/ --accept-all --yes --retrain --method gce",
        "apply audit/ --accept-all --yes",
        "apply audit/ --retrain --epochs 50 --seed 1 --json",
        "apply audit/ --accept-all --yes --retrain --estimator"
        " sklearn.ensemble:RandomForestClassifier",
        "apply audit/ --unsettled leave",
        "apply photos-audit/ --link",
        "apply audit/ --excluded mark --no-csv-safe",
        "apply audit/ --fix near-duplicate,spelling,columns",
        "apply votes-audit/ --votes",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def apply(
    folder: Folder,
    decisions: Decisions = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New file or folder of the corrected data, by default ./corrected…."),
    ] = None,
    accept_all: Annotated[
        bool,
        typer.Option(
            "--accept-all",
            help=(
                "Take suggestions for undecided rows, too, if they are more likely right than the"
                " label."
            ),
        ),
    ] = False,
    yes: Yes = False,
    unsettled: UnsettledRows = "latest",
    excluded: Excluded = "leave-out",
    link: Link = False,
    fix: FixTypes = None,
    votes: Votes = False,
    csv_safe: CsvSafe = True,
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain",
            help="Train on the given and the corrected labels; compare on held-out rows.",
        ),
    ] = False,
    method: Annotated[
        str | None, on_training("Method of --retrain, by default the audit's.")
    ] = None,
    epochs: Annotated[
        int | None, on_training("Epochs of --retrain, by default the audit's.", min=1)
    ] = None,
    estimator: Annotated[
        str | None,
        on_training(
            "A scikit-learn classifier for --retrain in place of the method, as module:name."
        ),
    ] = None,
    seed: Annotated[
        int, on_training("Seed of the held-out rows, the weights and the batches.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a corrected copy of the dataset, and show the gain in accuracy of a model."""
    from noiseproof.audit.apply import kept_out
    from noiseproof.audit.plan import plan_corrections, read_conflicts

    audit, reviewed = _read(folder, decisions, accept_all or bool(fix))
    disputed = read_conflicts(folder, decisions)
    decided = {
        row: one
        for row, one in reviewed.decisions.items()
        if unsettled == "latest" or row not in disputed
    }
    fixes = _plan_fixes(audit, fix, retrain, decided)
    reviewed.decisions, answers, merges = decided, reviewed.answers(), reviewed.merges
    plan = plan_corrections(audit, decided, answers, merges=merges, accept_all=accept_all, yes=yes)
    left_out = kept_out(audit, plan, excluded)
    if not yes:
        plan.check(folder, "--accept-all", "--yes")
    if not as_json and (plan.changes or decided):
        echo(f"expected: {plan.expected()}")
    planned = None
    if retrain and plan.changes_data:  # refuses what can't be trained before anything is written
        from noiseproof.audit.retrain import plan_retraining

        with training_exits("Stopped."):
            settings: dict[str, Any] = {
                "method": method,
                "epochs": epochs,
                "estimator": estimator,
                "seed": seed,
            }
            planned = plan_retraining(
                audit, plan.changes, decided, becomes=plan.becomes, **settings
            )
    # A stopped retraining left its corrected data: the same command continues with it.
    options = {"link": link, "votes": votes, "same_ok": planned is not None}
    files = _write(audit, reviewed, plan, left_out, out, csv_safe, fixes, **options)
    comparison = (
        None if planned is None else _retrain(planned, files["corrected"], shown=not as_json)
    )
    result = (
        _count(audit, reviewed, plan)
        | {"conflicts": disputed, "unsettled": unsettled}
        | files
        | _fixed(fixes)
    )
    if as_json:
        return show_json(result | {"retrain": None if comparison is None else asdict(comparison)})
    _show(result, audit, accept_all=accept_all)
    return _show_comparison(comparison) if retrain else None


def _read(folder: Path, decisions: Path | None, needs_no_decision: bool) -> tuple[Audit, Standing]:
    """Return the audit, and what was decided on it; the consensus of annotators is written without
    any decision.
    """
    from noiseproof.audit import read_audit
    from noiseproof.audit.apply import is_voted
    from noiseproof.audit.plan import read_reviewed

    audit = read_audit(folder)
    return audit, read_reviewed(folder, decisions, accept_all=needs_no_decision or is_voted(audit))


def _write(
    audit: Audit,
    reviewed: Standing,
    plan: Plan,
    left_out: tuple[int, ...],
    out: Path | None,
    csv_safe: bool,
    fixes: Mapping[str, Fix],
    **options: bool,
) -> dict[str, Any]:
    """Write the corrected data, and the list of excluded, unclear and noted rows."""
    from functools import reduce
    from operator import or_

    from noiseproof.audit.apply import (
        default_out,
        list_beside,
        reviewed_rows,
        write_corrected,
        write_reviewed,
    )

    out, rows = out or default_out(audit), reviewed_rows(audit, reviewed, fixes)
    fix = reduce(or_, fixes.values()) if fixes else None
    if len(rows) and not options["same_ok"] and list_beside(out).exists():
        raise FileExistsError(
            f"Expected no {list_beside(out)}, where excluded rows are listed. Choose another --out."
        )
    what: dict[str, Any] = {
        "becomes": plan.becomes,
        "left_out": left_out,
        "fix": fix,
        "decided": plan.decided,
    }
    written = write_corrected(audit, plan.changes, out, **(what | options))
    listed = write_reviewed(rows, out, same_ok=options["same_ok"], csv_safe=csv_safe)
    return {"left_out": len(left_out), "listed": listed, "corrected": written}


def _plan_fixes(
    audit: Audit, fix: str | None, retrain: bool, decided: Mapping[int, Decision]
) -> dict[str, Fix]:
    from noiseproof.audit.apply import plan_fixes

    if fix and retrain:
        raise ValueError(
            "Expected --fix or --retrain, got both. Audit the fixed data again, and compare there."
        )
    return plan_fixes(
        audit, [name.strip() for name in (fix or "").split(",") if name.strip()], decided
    )


def _fixed(fixes: Mapping[str, Fix]) -> dict[str, Any]:
    fixed = {
        name: {
            "left_out": sorted(fix.left_out),
            "columns": sorted(fix.columns),
            "merged": dict(fix.labels or fix.becomes),
            "rewritten": sorted(fix.cells),
        }
        for name, fix in fixes.items()
    }
    return {"fixed": fixed}


def _count(audit: Audit, reviewed: Standing, plan: Plan) -> dict[str, Any]:
    from noiseproof.audit.apply import is_voted
    from noiseproof.data.labelsets import labels_in

    issues = audit.issues.loc[audit.issues["is_label_issue"], "row"].tolist()
    decided = reviewed.decisions
    left = sum(row not in decided and row not in plan.changes for row in issues)
    changed = [labels_in(word, audit.config) for word in plan.changes.values()]
    return {
        "decisions": Counter(decision.decision for decision in decided.values()),
        "measured": plan.measured,
        "changed": len(plan.changes),
        "gain": plan.as_dict(),
        "slips": plan.slips,
        "left": left,
        "notes": len(reviewed.notes),
        "excluded": len(plan.excluded),
        "unclear": len(plan.unclear),
        "merged": plan.becomes,
        "voted": is_voted(audit),
        "new_classes": {
            name: sum(name in labels for labels in changed) for name in plan.new_classes
        },
    }


def _show(result: Mapping[str, Any], audit: Audit, accept_all: bool) -> None:
    from noiseproof.judge.issues.leakage import leaking_columns

    if accept_all and leaking_columns(audit.summary):
        say(audit.summary["verdict"].partition(". With ")[0] + ".")
    counts = ", ".join(f"{n} {choice}" for choice, n in sorted(result["decisions"].items()))
    echo(f"decisions: {counts or 'none'}")
    if result["voted"]:
        skipped = ", ".join(f"{one['count']}: {one['reason']}" for one in audit.summary["skipped"])
        echo(
            f"labels: the consensus ({audit.config['consensus']}) of"
            f" {audit.summary['known']['annotators']} annotators on {len(audit.issues)} of"
            f" {audit.summary['source_rows']} rows{skipped and f' ({skipped})'}"
        )
    echo(
        f"changed: {result['changed']} of {audit.summary['source_rows']} labels\ncorrected:"
        f" {result['corrected']}"
    )
    if rows := result["conflicts"]:
        meaning = (
            "the latest decision is applied"
            if result["unsettled"] == "latest"
            else "their labels stay"
        )
        echo(
            f"conflicts: {counted(len(rows), 'row')} on which reviewers disagree, such as row"
            f" {rows[0]}; {meaning}. The button conflicts of `noiseproof review {audit.folder}`"
            " lists them, and a decision there settles each"
        )
    _show_reviewed(result)
    if slips := result["slips"]:
        echo(
            f"held back: {counted(len(slips), 'decided change')}, such as of row {slips[0]},"
            f" likelier to be slips of the reviewer; `noiseproof review {audit.folder} --measure"
            f" {result['measured']} --repeats 1` asks again, and --yes applies them as decided"
        )
    if accept_all and result["left"]:
        echo(
            f"left as they are: {counted(result['left'], 'issue')} whose suggestion is no more"
            f" likely right than the label; `noiseproof review {audit.folder}` has them at the end"
        )


def _show_reviewed(result: Mapping[str, Any]) -> None:
    """Show what was decided beside labels, line by line, where there is something."""
    for kind, fixed in result["fixed"].items():
        parts = [f"{counted(len(rows), 'row')} left out"] if (rows := fixed["left_out"]) else []
        parts += [f"column {name!r} left out" for name in fixed["columns"]]
        parts += [
            f"{spelling!r} is {label!r} in all rows" for spelling, label in fixed["merged"].items()
        ]
        parts += [f"cells of column {name!r} rewritten" for name in fixed["rewritten"]]
        echo(f"fixed {kind}: {'; '.join(parts) or 'there was nothing to fix'}")
    for spelling, label in result["merged"].items():
        echo(f"merged: {spelling!r} is {label!r} in all rows")
    for name, count in result["new_classes"].items():
        echo(f"new class: {name!r} in {counted(count, 'row')}")
    if excluded := result["excluded"]:
        where = "left out" if result["left_out"] else "still in the data, and in the list"
        echo(f"excluded: {counted(excluded, 'row')}, {where}")
    if unclear := result["unclear"]:
        echo(f"unclear: {counted(unclear, 'row')}, left as before")
    if result["listed"] is not None:
        echo(f"list of excluded, unclear and noted rows: {result['listed']}")


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


def _show_comparison(comparison: Comparison | None) -> None:
    if comparison is None:
        return echo("no label changed: there is nothing to compare")
    low, high = comparison.interval
    echo(
        f"\n{comparison.method} on {comparison.train_rows} rows, tested on {comparison.held_rows}"
        " held-out ones"
    )
    rows = [
        ("given labels", f"{comparison.before:.4f}", f"{comparison.before_by_given:.4f}"),
        ("corrected labels", f"{comparison.after:.4f}", f"{comparison.after_by_given:.4f}"),
    ]
    if comparison.f1 is None:
        show(("trained on", "accuracy", "by the given labels"), rows)
    else:
        f1 = (f"{value:.4f}" for value in comparison.f1)
        header = ("trained on", "rows without an error", "by the given labels", "micro F1")
        show(header, [(*row, value) for row, value in zip(rows, f1, strict=True)])
    echo(
        f"difference: {comparison.after - comparison.before:+.4f}, 95 % interval {low:+.4f} to"
        f" {high:+.4f}"
    )
    if comparison.warning:
        say(f"warning: {comparison.warning}")
