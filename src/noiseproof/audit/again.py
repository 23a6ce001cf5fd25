"""An audit that replaces another: decisions train its models and rank all other labels again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof.audit.decisions import Decision, Standing, find_decisions, read_standing
from noiseproof.audit.files import Audit, check_decisions, read_audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.measured import DIAGRAM, write_measured
from noiseproof.audit.report import LabelReport
from noiseproof.audit.result import write_audit
from noiseproof.audit.rows import digest_all, follow_rows, read_row_digests
from noiseproof.audit.run import audit
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Ints
from noiseproof.core.messages import Progress, counted
from noiseproof.data.sources import PathLike
from noiseproof.judge.evidence.gather import FAST_FOLDS
from noiseproof.judge.evidence.network import METHOD
from noiseproof.judge.evidence.questions import METHOD as METHOD_OF_SETS


def audit_again(
    folder: PathLike,
    data: AuditData | None = None,
    *,
    decisions: PathLike | None = None,
    estimator: Any = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> LabelReport:
    """Audit the data of the audit in ``folder`` again, with the decisions on it, and write the
    result there.

    All options are as in the earlier audit. Models are trained on the decided labels; rows that
    were skipped, excluded or unclear, or have a new class, stay as they are. Each row is judged by
    models of other folds, so that its quality never depends on the decision on it. Where
    `noiseproof measure` recalibrated the earlier audit, the new files are recalibrated, too; the
    report that is returned has what the models say.

    Args:
        data: what ``read_rows`` read, where it was in memory and can't be read again.
        decisions: file of the review, by default decisions.sqlite in the folder.
        estimator: that judged the earlier audit, where it was an object without a name.
    """
    earlier = read_audit(Path(folder))
    config = earlier.config
    _check_trained(earlier)
    path = Path(decisions or find_decisions(folder))
    standing = read_standing(path) if path.exists() else Standing()
    check_decisions(standing.decisions.values(), earlier)
    chosen: dict[int, Decision] = {}
    unlearned = 0
    words = earlier.words
    for row, one in standing.decisions.items():
        is_new = not {*words.split(one.label)} <= {*words.names}
        if one.names_label and not is_new:
            chosen[row] = one
        elif one.names_label or one.decision == "exclude":
            unlearned += 1
    if not chosen:
        raise ValueError(
            f"Expected decisions to learn from in {path}, got none. Make some with `noiseproof"
            f" review {folder}`."
        )
    if data is None:
        data = read_again(earlier)
    _check_same(earlier, data)
    data = replace(
        data,
        labels=data.labels.with_words([one.label for one in chosen.values()]),
        notes=(*data.notes, *_notes(chosen, unlearned, config)),
    )
    data = replace(data, decided=_labels(chosen, data))
    report = audit(
        data,
        mode=config["mode"],
        method=None if config["method"] in (METHOD, METHOD_OF_SETS) else config["method"],
        model=config["model"],
        estimator=_estimator(config) if estimator is None else estimator,
        epochs=config["epochs"],
        folds=config["folds"],
        goal=config["goal"],
        issues=config.get("issues"),
        seed=config["seed"],
        device=device,
        progress=progress,
        command=config["command"],
    )
    if lost := sorted({*chosen} - {*report.data.row.tolist()}):
        raise ValueError(
            f"Expected models of other folds for each decided row, got none for row {lost[0]},"
            " whose class lies in one fold. Undo the decision on it."
        )
    report = replace(report, config={**report.config, "again": config.get("again", 0) + 1})
    write_audit(Path(folder), report, csv_safe=config.get("csv_safe", False))
    if Path(folder, DIAGRAM).exists():  # `noiseproof measure` recalibrated the earlier audit
        write_measured(
            read_audit(Path(folder)),
            standing.answers(),
            earlier.summary.get("goal") or config["goal"],
        )
    return report


def _check_trained(earlier: Audit) -> None:
    if earlier.config["mode"] == "predictions":
        raise ValueError(
            "Expected an audit that trained models, got one of another model's predictions in"
            f" {earlier.folder}. Train that model on the corrected labels, and audit its new"
            " predictions with --force, which keeps the decisions."
        )


def _check_same(earlier: Audit, data: AuditData) -> None:
    now = data.audited
    before = earlier.issues[["row", "id", "given_label"]].itertuples(index=False)
    changed = [row for row, *pair in before if now.get(row) != tuple(pair)]
    digests = data.source.row_digests
    if not changed and earlier.config["rows_sha256"] != digest_all(digests):
        place = follow_rows(read_row_digests(earlier), digests)[0]
        changed = np.flatnonzero(place != np.arange(len(place))).tolist()
    has_rows = data.source_rows == earlier.config["source_rows"]
    if changed or not has_rows or data.labels.names != earlier.words.names:
        which = f"row {changed[0]} is another one" if changed else f"it has {data.source_rows} rows"
        raise ValueError(
            f"Expected the data of the audit in {earlier.folder}, it has changed: {which}. Audit it"
            " without --again."
        )


def _labels(decisions: Mapping[int, Decision], data: AuditData) -> Ints:
    """Return the decided label of each row of ``data``, (N,), −1 where there is none."""
    number = {name: k for k, name in enumerate(data.classes)}
    decided = np.full(data.source_rows, -1)
    for row, decision in decisions.items():
        decided[row] = number[decision.label]
    return np.where(data.row >= 0, decided[data.row], -1)


def _notes(
    decisions: Mapping[int, Decision], unlearned: int, config: Mapping[str, Any]
) -> list[str]:
    kept = sum(one.label == one.given_label for one in decisions.values())
    notes = [
        f"Audited again with {counted(len(decisions), 'decision')}, {counted(kept, 'label')} kept"
        f" and {len(decisions) - kept} corrected: models of other folds learned them."
    ]
    if unlearned:
        notes.append(
            f"{counted(unlearned, 'decision')} to exclude a row or name a new class: models of the"
            " classes of this audit cannot learn that, and the rows stay as they are. `noiseproof"
            " apply` writes data to audit without these rows and with the new classes."
        )
    if config["mode"] == "fast":
        notes.append(
            f"The earlier audit was fast; models of {FAST_FOLDS} folds judge now, which did not see"
            " the row."
        )
    return notes


def _estimator(config: Mapping[str, Any]) -> Any:
    """Return the name of the estimator; refuse one that was an object."""
    name = config["estimator"]
    if name is None or (":" in name and not any(sign in name for sign in "( \n")):
        return name
    raise ValueError(
        f"Expected an estimator that has a name, got {name}, which was an object in Python. Pass it"
        " there: `audit_again(folder, estimator=…)`."
    )
