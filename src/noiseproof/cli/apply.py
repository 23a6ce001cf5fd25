"""`noiseproof apply`: correct the dataset by decisions, and compare a model before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from noiseproof.cli.main import YOUR_DATA, app
from noiseproof.cli.options import on_training, option
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
    words,
)
from noiseproof.core.messages import counted

if TYPE_CHECKING:
    from noiseproof.audit.decisions import Standing
    from noiseproof.audit.files import Audit
    from noiseproof.audit.plan import Plan
    from noiseproof.audit.retrain import Comparison, Retraining
    from noiseproof.judge.issues import Fix

Unsettled = Literal["latest", "leave"]


@app.command(
    epilog=examples(
        "apply audit/",
        "apply audit/ --decisions decisions.csv --out corrected.csv --retrain",
        "apply audit/ --accept-all --yes --retrain --method gce",
        "apply audit/ --unsettled leave --excluded mark",
        "apply audit/ --fix near-duplicate,spelling,columns",
        "apply photos-audit/ --link",
        "apply votes-audit/ --votes",
    ),
    rich_help_panel=YOUR_DATA,
)
@refusals()
def apply(
    folder: Folder,
    decisions: Annotated[
        Path | None,
        option("Decisions, or labels from other tools; by default the folder's review."),
    ] = None,
    out: Annotated[
        Path | None,
        option("New file or folder of the corrected data, by default ./corrected…."),
    ] = None,
    accept_all: Annotated[
        bool,
        option(
            "Take suggestions for undecided rows, too, if they are more likely right than the"
            " label.",
            "--accept-all",
        ),
    ] = False,
    yes: Annotated[
        bool, option("Take them unmeasured, even if that may spoil more than it mends.", "--yes")
    ] = False,
    unsettled: Annotated[
        Unsettled,
        option("Rows on which reviewers disagree: apply the latest decision, or leave the label."),
    ] = "latest",
    excluded: Annotated[
        str,
        option(
            "What becomes of excluded rows; mark: only the list names them.",
            metavar="leave-out|mark",
        ),
    ] = "leave-out",
    link: Annotated[
        bool, option("Link pictures to the originals instead of copying them.", "--link")
    ] = False,
    fix: Annotated[
        str | None,
        option(
            "Carry out the remedy of issue types, in the copy: near-duplicate, spelling, columns, …"
            " of the report.",
            metavar="TYPE,…",
        ),
    ] = None,
    votes: Annotated[
        bool,
        option("With the consensus of annotators, a column of who said what.", "--votes"),
    ] = False,
    csv_safe: Annotated[
        bool, option("Put an apostrophe before formulas in the list of reviewed rows.")
    ] = True,
    retrain: Annotated[
        bool,
        option(
            "Train on the given and the corrected labels; compare on held-out rows.", "--retrain"
        ),
    ] = False,
    method: Annotated[
        str | None, on_training("Method of --retrain, by default the audit's.")
    ] = None,
    epochs: Annotated[
        int | None, on_training("Epochs of --retrain, by default the audit's.", min=1)
    ] = None,
    estimator: Annotated[
        str | None, on_training("A scikit-learn classifier for --retrain, as module:name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a corrected copy of the dataset, and show the gain in accuracy of a model."""
    from noiseproof.audit import read_audit
    from noiseproof.audit.apply import kept_out, plan_fixes
    from noiseproof.audit.plan import plan_corrections, read_conflicts, read_reviewed

    audit = read_audit(folder)
    # a consensus of annotators is written without any decision
    needs_none = accept_all or bool(fix) or audit.is_voted
    reviewed = read_reviewed(folder, decisions, accept_all=needs_none)
    disputed = read_conflicts(folder, decisions)
    decided = reviewed.decisions
    if unsettled == "leave":
        decided = {row: one for row, one in decided.items() if row not in disputed}
    if fix and retrain:
        raise ValueError(
            "Expected --fix or --retrain, got both. Audit the fixed data again, and compare there."
        )
    fixes = plan_fixes(audit, words(fix), decided)
    reviewed.decisions = decided
    plan = plan_corrections(
        audit,
        decided,
        reviewed.answers(),
        merges=reviewed.merges,
        accept_all=accept_all,
        yes=yes,
    )
    left_out = kept_out(audit, plan, excluded)
    if not yes:
        plan.check(folder, "--accept-all", "--yes")
    if not as_json and (plan.changes or decided):
        echo(f"expected: {plan.expected()}")
    planned = None
    if retrain and plan.changes_data:  # refuses what can't be trained before anything is written
        from noiseproof.audit.retrain import plan_retraining

        with training_exits("Stopped."):
            planned = plan_retraining(
                audit,
                plan.changes,
                decided,
                becomes=plan.becomes,
                method=method,
                epochs=epochs,
                estimator=estimator,
            )
    # A stopped retraining left its corrected data: the same command continues with it.
    copies = {"link": link, "votes": votes, "same_ok": planned is not None}
    files = _write(audit, reviewed, plan, left_out, out, csv_safe, fixes, **copies)
    comparison = None
    if planned is not None:
        comparison = _retrain(planned, files["corrected"], shown=not as_json)
    result = _count(audit, reviewed, plan) | files | {"fixed": _fixed(fixes)}
    result |= {"conflicts": disputed, "unsettled": unsettled}
    if as_json:
        return show_json(result | {"retrain": comparison and asdict(comparison)})
    _show(result, audit, accept_all=accept_all)
    if retrain:
        _show_comparison(comparison)


def _write(
    audit: Audit,
    reviewed: Standing,
    plan: Plan,
    left_out: tuple[int, ...],
    out: Path | None,
    csv_safe: bool,
    fixes: Mapping[str, Fix],
    *,
    same_ok: bool,
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

    out = out or default_out(audit)
    rows = reviewed_rows(audit, reviewed, fixes)
    if len(rows) and not same_ok and list_beside(out).exists():
        raise FileExistsError(
            f"Expected no {list_beside(out)}, where excluded rows are listed. Choose another --out."
        )
    written = write_corrected(
        audit,
        plan.changes,
        out,
        becomes=plan.becomes,
        left_out=left_out,
        fix=reduce(or_, fixes.values()) if fixes else None,
        decided=plan.decided,
        same_ok=same_ok,
        **options,
    )
    listed = write_reviewed(rows, out, same_ok=same_ok, csv_safe=csv_safe)
    return {"left_out": len(left_out), "listed": listed, "corrected": written}


def _fixed(fixes: Mapping[str, Fix]) -> dict[str, Any]:
    return {
        name: {
            "left_out": sorted(fix.left_out),
            "columns": sorted(fix.columns),
            "merged": dict(fix.labels or fix.becomes),
            "rewritten": sorted(fix.cells),
        }
        for name, fix in fixes.items()
    }


def _count(audit: Audit, reviewed: Standing, plan: Plan) -> dict[str, Any]:

    issues = audit.issues.loc[audit.issues["is_label_issue"], "row"].tolist()
    decided = reviewed.decisions
    changed = [audit.words.split(word) for word in plan.changes.values()]
    return {
        "decisions": Counter(decision.decision for decision in decided.values()),
        "measured": plan.measured,
        "changed": len(plan.changes),
        "gain": plan.as_dict(),
        "slips": plan.slips,
        "left": sum(row not in decided and row not in plan.changes for row in issues),
        "notes": len(reviewed.notes),
        "excluded": len(plan.excluded),
        "unclear": len(plan.unclear),
        "merged": plan.becomes,
        "voted": audit.is_voted,
        "new_classes": {
            name: sum(name in labels for labels in changed) for name in plan.new_classes
        },
    }


def _show(result: Mapping[str, Any], audit: Audit, accept_all: bool) -> None:
    from noiseproof.judge.issues.leakage import leaking_columns

    summary = audit.summary
    if accept_all and leaking_columns(summary):
        # why it is not to be trusted (``distrust``), without the verdict itself
        say(summary["verdict"].partition(". With ")[0] + ".")
    counts = ", ".join(f"{n} {choice}" for choice, n in sorted(result["decisions"].items()))
    echo(f"decisions: {counts or 'none'}")
    if result["voted"]:
        skipped = ", ".join(f"{one['count']}: {one['reason']}" for one in summary["skipped"])
        echo(
            f"labels: the consensus ({audit.config['consensus']}) of"
            f" {summary['known']['annotators']} annotators on {len(audit.issues)} of"
            f" {summary['source_rows']} rows{skipped and f' ({skipped})'}"
        )
    echo(f"changed: {result['changed']} of {summary['source_rows']} labels")
    echo(f"corrected: {result['corrected']}")
    rows = result["conflicts"]
    if rows:
        meaning = "the latest decision is applied"
        if result["unsettled"] == "leave":
            meaning = "their labels stay"
        echo(
            f"conflicts: {counted(len(rows), 'row')} on which reviewers disagree, such as row"
            f" {rows[0]}; {meaning}. The button conflicts of `noiseproof review {audit.folder}`"
            " lists them, and a decision there settles each"
        )
    _show_reviewed(result)
    slips = result["slips"]
    if slips:
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
    """Show what was decided about more than single labels, line by line."""
    for kind, fixed in result["fixed"].items():
        rows = fixed["left_out"]
        parts = []
        if rows:
            parts.append(f"{counted(len(rows), 'row')} left out")
        parts += [f"column {name!r} left out" for name in fixed["columns"]]
        parts += [f"{old!r} is {new!r} in all rows" for old, new in fixed["merged"].items()]
        parts += [f"cells of column {name!r} rewritten" for name in fixed["rewritten"]]
        echo(f"fixed {kind}: {'; '.join(parts) or 'there was nothing to fix'}")
    for spelling, label in result["merged"].items():
        echo(f"merged: {spelling!r} is {label!r} in all rows")
    for name, count in result["new_classes"].items():
        echo(f"new class: {name!r} in {counted(count, 'row')}")
    if result["excluded"]:
        where = "left out" if result["left_out"] else "still in the data, and in the list"
        echo(f"excluded: {counted(result['excluded'], 'row')}, {where}")
    if result["unclear"]:
        echo(f"unclear: {counted(result['unclear'], 'row')}, left as before")
    if result["listed"] is not None:
        echo(f"list of excluded, unclear and noted rows: {result['listed']}")


def _retrain(planned: Retraining, written: Path, shown: bool) -> Comparison:
    epochs = 2 * planned.settings.epochs
    is_shown = shown and planned.estimator is None
    with training_exits("Stopped."):
        try:
            with training_progress(epochs, is_shown) as progress:
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
    head = ["trained on", "accuracy", "by the given labels"]
    before = [comparison.before, comparison.before_by_given]
    after = [comparison.after, comparison.after_by_given]
    if comparison.f1 is not None:
        head = ["trained on", "rows without an error", "by the given labels", "micro F1"]
        before.append(comparison.f1[0])
        after.append(comparison.f1[1])
    rows = [("given labels", before), ("corrected labels", after)]
    show(head, [(name, *(f"{value:.4f}" for value in values)) for name, values in rows])
    echo(
        f"difference: {comparison.after - comparison.before:+.4f}, 95 % interval {low:+.4f} to"
        f" {high:+.4f}"
    )
    if comparison.warning:
        say(f"warning: {comparison.warning}")
    return None
