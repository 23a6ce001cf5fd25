"""Corrected datasets: a copy with the labels decided in the review, and the accuracy of a model before and after."""

from __future__ import annotations

import math
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.correction import Correction, voted_cells
from noiseproof.audit.decisions import Decision, Standing
from noiseproof.audit.evidence.gather import backbone_of, estimator_inputs
from noiseproof.audit.evidence.trees import FittedClasses, check_classifier, select_rows
from noiseproof.audit.files import Audit, cache_beside, read_audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.issues import Fix
from noiseproof.audit.issues.base import issue_types
from noiseproof.audit.plan import Plan, plan_corrections, read_reviewed
from noiseproof.audit.sets import LabelSets, labels_in
from noiseproof.audit.sources import SOURCES, Source
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.files import file_digest, replacing
from noiseproof.core.plugins import load_object
from noiseproof.core.tablefiles import safe_table, table_kind
from noiseproof.data import NoisyData, Split
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Interrupted, Settings, Task, train

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.train.job import EpochProgress

Excluded = Literal["leave-out", "mark"]  # what becomes of excluded rows
T = TypeVar("T")
EPOCHS = 50  # where the audit trained nothing


def corrected(
    folder: str | Path,
    data: Any,
    *,
    decisions: str | Path | None = None,
    accept_all: bool = False,
    yes: bool = False,
    excluded: Excluded = "leave-out",
    fix: Sequence[str] = (),
    votes: bool = False,
) -> Any:
    """Return a copy of an audited DataFrame, or of an array of labels, with the labels that were decided on.

    ``corrected("audit", frame)`` is for data that was audited in memory; decisions are by default those in the folder.
    Rows of a table that have moved are found by their content; data with rows that changed, came or went is refused.
    ``accept_all`` and ``yes`` are those of `corrections`. Excluded rows of tables and data sets are left out, unless
    ``excluded`` is "mark"; labels alone stay whole (`reviewed_rows` says which rows are excluded). ``fix`` names issue
    types whose remedy is carried out, too (`plan_fixes`). Of an audit of annotators alone, the copy has the consensus
    in a column ``label``, P(it is right) in ``label_quality`` and, with ``votes``, who said what; for arrays, it is a
    table of these.
    """
    _check_excluded(excluded)
    audit = read_audit(folder)
    reviewed = read_reviewed(folder, decisions, accept_all=accept_all or bool(fix) or is_voted(audit))
    plan = plan_corrections(
        audit, reviewed.decisions, reviewed.answers(), merges=reviewed.merges, accept_all=accept_all, yes=yes
    )
    if not yes:
        plan.check(audit.folder)
    joined = _joined(plan_fixes(audit, fix, reviewed.decisions))
    correction = _correction(
        audit,
        plan.changes,
        {**joined.becomes, **plan.becomes},
        joined.left_out.union(plan.excluded if excluded == "leave-out" else ()),
        joined,
        plan.decided,
        votes,
    )
    return _source(audit).corrected(audit, data, correction)


def _correction(
    audit: Audit,
    labels: Mapping[int, str],
    becomes: Mapping[str, str],
    left_out: frozenset[int],
    fix: Fix,
    decided: Collection[int],
    votes: bool,
) -> Correction:
    """Return what becomes of the rows of an audit, by their numbers in it."""
    consensus = None
    if is_voted(audit):
        consensus = voted_cells(audit, labels, becomes, decided=decided, votes=votes)
        labels, becomes = {}, {}
    return Correction(labels, becomes, left_out, consensus, fix.columns, fix.cells)


def plan_fixes(audit: Audit, names: Sequence[str], decided: Mapping[int, Decision] | None = None) -> dict[str, Fix]:
    """Return what the remedy of each issue type of ``names`` does to the data; refuse types without one.

    Nothing is fixed unless it is named, always in a copy, and rows that go are listed. Of copies, the rows ``decided``
    on stay.
    """
    kinds = {kind.name: kind for kind in issue_types()}
    able = [name for name, kind in kinds.items() if kind.fixes]
    fixes = {}
    for name in names:
        if name not in able:
            why = f"nothing can be done about {name!r} by a command. {kinds[name].remedy}" if name in kinds else ""
            raise ValueError(f"Expected issue types with a fix, {', '.join(able)}, got {name!r}{why and ': '}{why}")
        fixes[name] = kinds[name].fix(replace(audit, decided=decided or {}))
    joined = _joined(fixes)
    source = _source(audit)
    if (joined.columns or joined.cells) and not source.has_columns:
        raise ValueError(f"Expected a table whose columns can be changed, got {source.files or 'labels alone'}.")
    return fixes


def _joined(fixes: Mapping[str, Fix]) -> Fix:
    return reduce(or_, fixes.values(), Fix())


def reviewed_rows(audit: Audit, reviewed: Standing, fixes: Mapping[str, Fix] | None = None) -> pd.DataFrame:
    """Return the rows that are excluded, unclear, noted or left out by ``fixes``, with their labels, in order."""
    import pandas as pd

    choices = {row: one.decision for row, one in reviewed.decisions.items() if one.decision in ("exclude", "unclear")}
    notes = {row: f"left out by --fix {name}" for name, fix in (fixes or {}).items() for row in fix.left_out}
    choices = {**choices, **dict.fromkeys(notes, "exclude")}
    notes |= reviewed.notes
    issues = audit.issues[audit.issues["row"].isin([*choices, *notes])].sort_values("row")
    rows = issues["row"].tolist()
    table = {
        "row": rows, "id": issues["id"].tolist(), "given_label": issues["given_label"].tolist(),
        "excluded": [choices.get(row) == "exclude" for row in rows],
        "unclear": [choices.get(row) == "unclear" for row in rows],
        "note": [notes.get(row, "") for row in rows],
    }  # fmt: skip
    return pd.DataFrame(table)


def _check_excluded(excluded: str) -> None:
    if excluded not in get_args(Excluded):
        raise ValueError(
            f"Expected {' or '.join(get_args(Excluded))} for what becomes of excluded rows, got {excluded!r}."
        )


def kept_out(audit: Audit, plan: Plan, excluded: str) -> tuple[int, ...]:
    """Return the rows that a copy goes without: the excluded ones if ``excluded`` is leave-out and the source can."""
    _check_excluded(excluded)
    return plan.excluded if excluded == "leave-out" and _source(audit).can_leave_out else ()


def write_corrected(
    audit: Audit,
    changes: Mapping[int, str],
    out: str | Path,
    *,
    becomes: Mapping[str, str] | None = None,
    left_out: Collection[int] = (),
    link: bool = False,
    same_ok: bool = False,
    fix: Fix | None = None,
    decided: Collection[int] = (),
    votes: bool = False,
) -> Path:
    """Write the dataset with the labels ``changes``; neither the original nor any existing file is overwritten.

    Rows that have moved since the audit are found, and other changes refused (``find_rows``). A table keeps every byte
    but those of the changed cells (Parquet: every column and type). Pictures are copied, or with ``link`` linked, into
    the folders of their classes. Arrays get a .npy file of labels. With ``same_ok``, an existing copy that would be
    written again is accepted.

    Args:
        becomes: classes to merge, and the ones they become, in all rows.
        left_out: rows that the copy goes without (`kept_out`); refused for labels alone and for Excel files.
        fix: what issue types add to that (`plan_fixes`).
        decided: rows on whose label somebody decided, where annotators alone were audited.
        votes: whether the copy also has who said what.
    """
    fix = fix or Fix()
    out, left_out, source = Path(out), fix.left_out.union(left_out), _source(audit)
    becomes = {**fix.becomes, **(becomes or {})}
    if left_out and not source.can_leave_out:
        raise ValueError(f"Expected no rows to leave out of {source.files or 'labels alone'}, got {len(left_out)}.")
    if votes and not source.is_voted:
        raise ValueError("Expected an audit of annotators alone for a column of votes, got one of labels.")
    correction = _correction(audit, changes, becomes, left_out, fix, decided, votes)
    place = source.find_rows(audit, correction.outcomes)
    audit, correction = correction.moved(audit, place, source.labels if becomes else None)
    correction = replace(correction, link=link)

    def write(path: Path) -> None:
        source.write(audit, correction, path)

    if not out.exists() and not out.is_symlink():
        write(out)
    elif out.is_symlink() or not same_ok or not _is_written(write, out):
        raise FileExistsError(f"Expected a new path for the corrected data, {out} exists. Choose another with --out.")
    return out


def _moved(by_row: Mapping[int, T], place: NDArray[np.int64]) -> dict[int, T]:
    return {int(place[row]): value for row, value in by_row.items()}


def write_reviewed(table: pd.DataFrame, out: Path, *, same_ok: bool = False, csv_safe: bool = True) -> Path | None:
    """Write the list of `reviewed_rows` beside the corrected data ``out``; None without any.

    With ``csv_safe``, no spreadsheet takes one of its cells for a formula.
    """
    path = list_beside(out)
    if not len(table):
        return None
    content = (safe_table(table) if csv_safe else table).to_csv(index=False, lineterminator="\n").encode()
    if path.exists() and not (same_ok and path.read_bytes() == content):
        raise FileExistsError(f"Expected a new path for the list of rows, {path} exists. Choose another with --out.")
    if not path.exists():
        with replacing(path, overwrite=False) as part:
            part.write_bytes(content)
    return path


def list_beside(out: Path) -> Path:
    """Return where the list of excluded, unclear and noted rows goes: corrected.csv → corrected-review.csv."""
    return out.with_name(f"{out.name.split('.')[0]}-review.csv")


def _is_written(write: Callable[[Path], None], out: Path) -> bool:
    """Return whether ``out`` is byte for byte what would be written."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, out.name)
        write(fresh)
        return _contents(out) == _contents(fresh)


def _contents(path: Path) -> dict[str, Any]:
    """Return the content of a file, or of each file in a folder, and whether that is a link."""
    if table_kind(path) == ".xlsx":
        with zipfile.ZipFile(path) as book:  # whose properties have the time
            return {name: book.read(name) for name in book.namelist() if name != "docProps/core.xml"}
    files = [one for one in (path, *path.rglob("*")) if one.is_file()]
    return {str(one.relative_to(path)): (one.is_symlink(), file_digest(one)) for one in files}


def default_out(audit: Audit) -> Path:
    return _source(audit).default_out()


def is_voted(audit: Audit) -> bool:
    return _source(audit).is_voted


def _source(audit: Audit) -> Source:
    return SOURCES[audit.config["kind"]](audit.config)


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one method on the same held-out rows, after training on the given and on the corrected labels.

    Of several labels a row, the accuracy is the share of rows without an error, as ``score`` of scikit-learn has it.
    """

    method: str
    train_rows: int
    changed: int  # labels of the training rows that were corrected
    held_rows: int
    before: float  # accuracy by the held-out labels as they are after the correction
    after: float
    interval: tuple[float, float]  # of after − before, 95 %, for other rows like those held out
    before_by_given: float  # accuracy by the held-out labels as they were given
    after_by_given: float
    warning: str | None  # why the held-out labels may be wrong, too
    f1: tuple[float, float] | None = None  # of several labels a row: micro F1 before and after, by corrected labels


@dataclass(frozen=True, eq=False)
class Retraining:
    """One method or estimator, and the rows that it is fitted to twice: with given and with corrected labels."""

    method: str  # or the name of the estimator
    settings: Settings
    seed: int
    classes: tuple[str, ...]
    x: NDArray[np.float32]  # (N, D)
    given: NDArray[np.int64]  # (N,), or 0 and 1 (N, K) of several labels a row
    corrected: NDArray[np.int64]  # the same
    held: NDArray[np.bool_]  # (N,) the test rows
    warning: str | None  # why their labels may be wrong
    estimator: Any = None  # a scikit-learn classifier, in place of the method
    inputs: Any = None  # N rows for it
    excluded: NDArray[np.bool_] | None = None  # (N,) rows that are not trained on once they are excluded
    merged: NDArray[np.int64] | None = None  # (K,) the class that each one becomes

    def run(self, progress: EpochProgress | None = None) -> Comparison:
        """Train on the given and on the corrected labels; ``progress`` counts the epochs of both trainings."""
        predicted: dict[str, NDArray[np.int64]] = {}
        left_out = np.zeros_like(self.held) if self.excluded is None else self.excluded
        for when, labels, rows in (
            ("before", self.given, ~self.held), ("after", self.corrected, ~self.held & ~left_out),
        ):  # fmt: skip
            if self.estimator is not None:
                guess = self._fit_estimator(labels, rows)
            else:
                guess = self._train(labels, rows, len(predicted) * self.settings.epochs, progress)
            predicted[when] = guess if self.merged is None else self.merged[guess]
        given = self.given if self.merged is None else self.merged[self.given]
        right, by_given = (
            {when: _same(guess, labels[self.held]) for when, guess in predicted.items()}
            for labels in (self.corrected, given)
        )
        gain = right["after"].astype(float) - right["before"]
        spread = 1.96 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
        return Comparison(
            method=self.method,
            train_rows=int((~self.held & ~left_out).sum()),
            changed=int((~_same(self.given, self.corrected))[~self.held].sum()),
            held_rows=int(self.held.sum()),
            before=float(right["before"].mean()),
            after=float(right["after"].mean()),
            interval=(float(gain.mean()) - spread, float(gain.mean()) + spread),
            before_by_given=float(by_given["before"].mean()),
            after_by_given=float(by_given["after"].mean()),
            warning=self.warning,
            f1=None if given.ndim == 1 else _micro_f1(predicted, self.corrected[self.held]),
        )

    def _fit_estimator(self, labels: NDArray[np.int64], trained: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the classes (H,) that the estimator predicts for the test rows, fitted to ``trained`` rows.

        Of several labels a row, it is fitted to each of them, (H, K).
        """
        if labels.ndim == 2:
            return np.stack([self._fit_estimator(column, trained) for column in labels.T], 1)
        rows, held = np.flatnonzero(trained), np.flatnonzero(self.held)
        model = FittedClasses.fit(self.estimator, select_rows(self.inputs, rows), labels[rows])
        return np.asarray(model.predict_proba(select_rows(self.inputs, held), max(2, len(self.classes))).argmax(1))

    def _train(
        self, labels: NDArray[np.int64], trained: NDArray[np.bool_], past: int, progress: EpochProgress | None
    ) -> NDArray[np.int64]:
        """Return the classes (H,), or labels (H, K), of the test rows; ``past`` epochs were reported before."""

        def move(epoch: int, step: int, steps: int, row: Any) -> None:
            if progress is not None:
                progress(past + epoch, step, steps, row)

        task = self.task(labels, trained)
        assert task.test is not None
        run = train(task, self.method, self.settings, seed=self.seed, progress=move).run
        log_p = predict_log_probs(run, task.test.x)
        return np.asarray((log_p.argmax(1) if labels.ndim == 1 else (log_p > math.log(0.5)).long()).cpu().numpy())

    def task(self, labels: NDArray[np.int64], trained: NDArray[np.bool_]) -> Task:
        """Return the rows ``trained`` (N,) and the test rows with these labels (N,)."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(labels)
        rows, held = (torch.from_numpy(np.flatnonzero(mask)) for mask in (trained, self.held))
        return Task(NoisyData(x[rows], y[rows], self.classes, rows), test=Split(x[held], y[held]))


def _same(labels: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether rows have the same label, or all of several, (n,)."""
    return np.asarray(labels == others if labels.ndim == 1 else (labels == others).all(1))


def _micro_f1(predicted: Mapping[str, NDArray[np.int64]], labels: NDArray[np.int64]) -> tuple[float, float]:
    """F1 of all labels (n, K) together, before and after; 0 where there are none."""
    before, after = (2 * (p & labels).sum() / max(1, p.sum() + labels.sum()) for p in predicted.values())
    return float(before), float(after)


def plan_retraining(
    audit: Audit,
    changes: Mapping[int, str],
    decided: Mapping[int, Decision],
    *,
    becomes: Mapping[str, str] | None = None,
    method: str | None = None,
    epochs: int | None = None,
    estimator: Any = None,
    seed: int = 0,
) -> Retraining:
    """Read the rows and try one step, so that what cannot be trained is refused before anything is written.

    Trusted rows are held out if the audit had any; else a fifth of the rows, the latest ones if the audit had times;
    near-duplicates and groups are not split. Method, model and epochs default to those of the audit. ``estimator``, a
    scikit-learn classifier or its name as ``module:name``, is fitted in place of the method: a pipeline to the columns
    of a table, others to the features. Excluded rows are trained on before, not after, and never tested on. Classes
    that ``becomes`` merges count as one.
    """
    if estimator is not None:
        estimator = _checked_estimator(estimator, has_method=method is not None or epochs is not None)
    source = _source(audit)
    source.check_inputs(audit.folder)
    place = source.find_rows(audit, {**decided, **changes})
    audit, changes, decided = audit.moved(place), _moved(changes, place), _moved(decided, place)
    data = read_again(audit.config, cache_beside(audit.folder))
    data = data.subset((data.row < 0) | np.isin(data.row, audit.issues["row"].to_numpy()))
    classes, given, corrected, merged = _both_labels(audit, data, changes, becomes or {})
    excluded = np.isin(data.row, [row for row, one in decided.items() if one.decision == "exclude"])
    held = hold_out(audit, data, given, seed)
    together = _together(audit, data)
    keep = held | ~np.isin(together, together[held])  # copies and groups of trusted rows may be anywhere
    held, keep = held & ~excluded, keep & ~(held & excluded)
    if held.sum() == keep.sum():
        raise ValueError(
            f"Expected rows to train on beside the {held.sum()} trusted ones, got only copies of these and rows of "
            "their groups. Leave out --retrain."
        )
    data = data.subset(keep)
    given, corrected = given[keep], corrected[keep]
    held, excluded = held[keep], excluded[keep]
    assert data.x is not None
    planned = Retraining(
        method=type(estimator).__name__ if estimator is not None else method or audit.config["method"] or "ce",
        settings=Settings(backbone_of(audit.config["model"]), epochs or audit.config["epochs"] or EPOCHS),
        seed=seed,
        classes=classes,
        x=data.x,
        given=given,
        corrected=corrected,
        held=held,
        warning=_doubt(audit, data, held, decided, changes),
        estimator=estimator,
        inputs=None if estimator is None else estimator_inputs(estimator, data),
        excluded=excluded,
        merged=merged,
    )
    if estimator is not None:
        return planned
    with suppress(Interrupted):  # by the number of steps
        train(planned.task(given, ~held), planned.method, planned.settings, seed=seed, max_steps=1)
    return planned


def _both_labels(
    audit: Audit, data: AuditData, changes: Mapping[int, str], becomes: Mapping[str, str]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the classes with new ones, the given and the corrected labels of the rows of ``data``, and merged classes.

    Labels are numbers (N,), or 0 and 1 (N, K) of several labels a row.
    """
    name, rows = audit.given, data.row.tolist()
    before = [name[r] if r >= 0 else data.classes[g] for r, g in zip(rows, data.given.tolist(), strict=True)]
    after = [changes.get(row, word) for row, word in zip(rows, before, strict=True)]
    if multi := audit.config.get("multi_label"):
        words = [*before, *(becomes.get(word, word) for word in after)]
        named = (label for word in words for label in labels_in(word, audit.config))
        sets = LabelSets.of(words, multi["separator"], list(dict.fromkeys([*multi["labels"], *named])))
        given, corrected = np.split(sets.members.astype(np.int64), 2)
        return sets.names, given, corrected, None
    classes = tuple(dict.fromkeys((*audit.classes, *changes.values())))
    number = {name: k for k, name in enumerate(classes)}
    given, corrected = (np.array([number[word] for word in words]) for words in (before, after))
    if not becomes:
        return classes, given, corrected, None
    merged = np.array([number[becomes.get(name, name)] for name in classes])
    return classes, given, merged[corrected], merged


def _checked_estimator(estimator: Any, has_method: bool) -> Any:
    if has_method:
        raise ValueError("Expected a method with its epochs, or an estimator, got both. Leave one of them out.")
    return check_classifier(load_object(estimator) if isinstance(estimator, str) else estimator)


def hold_out(audit: Audit, data: AuditData, given: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    from noiseproof.audit.evidence.folds import make_folds
    from noiseproof.audit.evidence.questions import question_folds
    from noiseproof.data.base import derive_seed

    if data.trusted is not None and data.trusted.any() and not data.trusted.all():
        return data.trusted
    # A separate seed: the random numbers that made labels wrong, or sorted the rows, must not choose the test rows.
    fold_seed = derive_seed(seed, zlib.crc32(b"held out"))
    options: dict[str, Any] = {"groups": _together(audit, data), "time": data.time, "seed": fold_seed}
    is_single = given.ndim == 1
    folds = make_folds(given, folds=5, **options) if is_single else question_folds(given == 1, folds=5, **options)
    return np.asarray(folds == (folds.max() if data.time is not None else 0))


def _together(audit: Audit, data: AuditData) -> NDArray[np.int64]:
    """Return a number for each row, (N,), equal within a group and for near-duplicates.

    For rows that were not audited, such as those of a trusted table, only exact copies are known.
    """
    from noiseproof.audit.evidence.folds import merge_groups
    from noiseproof.audit.evidence.neighbours import find_duplicates

    group = audit.issues.set_index("row")["duplicate_group"].reindex(data.row)
    copies = np.array([int(float(g)) if g not in ("", None) and g == g else -1 for g in group.tolist()], dtype=np.int64)
    assert data.x is not None
    same = find_duplicates(data.x, data.comparable, unlike=data.unlike()).group
    together = merge_groups(data.groups, copies, same)
    assert together is not None
    return together


def _doubt(
    audit: Audit,
    data: AuditData,
    held: NDArray[np.bool_],
    decided: Mapping[int, Decision],
    changes: Mapping[int, str],
) -> str | None:
    """Return why the held-out labels may be wrong, None if they are trusted."""
    if data.trusted is not None and data.trusted[held].all():
        return None
    rows = set(data.row[held].tolist())
    flagged = rows & set(audit.issues.loc[audit.issues["is_label_issue"], "row"].tolist())
    undecided = [row for row in flagged if row not in decided or not decided[row].names_label]
    accepted = sum(row in changes for row in undecided)
    rate = (audit.summary.get("noise_rate") or {}).get("estimate")
    by_audit = f", of which {accepted} now have the label suggested by the audit, which favours its model"
    in_all = "" if rate is None else f"; the audit estimates {100 * rate:.1f} % wrong labels in all"
    return (
        f"The {len(rows)} held-out labels come from the same source and may be wrong, too: {len(undecided)} of them "
        f"are issues without a decision{by_audit if accepted else ''}{in_all}. Trust the difference only on labels "
        "known to be right (`noiseproof audit --trusted`)."
    )
