"""Corrected datasets: a copy with the labels decided in the review, and the accuracy of a model before and after."""

from __future__ import annotations

import filecmp
import math
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.decisions import Decision
from noiseproof.audit.evidence.estimators import FittedClasses, check_classifier, select_rows
from noiseproof.audit.evidence.gather import backbone_of, estimator_inputs
from noiseproof.audit.files import Audit, cache_beside, read_audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.plan import corrections, read_decided
from noiseproof.audit.sources import SOURCES, Source
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.objects import load_object
from noiseproof.data import NoisyData, Split
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Interrupted, Settings, Task, train

if TYPE_CHECKING:
    from noiseproof.train.job import EpochProgress

EPOCHS = 50  # where the audit trained nothing


def corrected(
    folder: str | Path,
    data: Any,
    *,
    decisions: str | Path | None = None,
    accept_all: bool = False,
    yes: bool = False,
) -> Any:
    """Return a copy of an audited DataFrame, or of an array of labels, with the labels that were decided on.

    ``corrected("audit", frame)`` is for data that was audited in memory; decisions are by default those in the folder.
    Data whose labels, or whose ids in the rows that change, are not those that were audited is refused. ``accept_all``
    and ``yes`` are those of `corrections`.
    """
    audit = read_audit(folder)
    decided, answers = read_decided(folder, decisions, accept_all=accept_all)
    changes = corrections(audit, decided, answers, accept_all=accept_all, yes=yes)
    return _source(audit).corrected(audit, data, changes)


def write_corrected(
    audit: Audit, changes: Mapping[int, str], out: str | Path, *, link: bool = False, same_ok: bool = False
) -> Path:
    """Write the dataset with the labels ``changes``; neither the original nor any existing file is overwritten.

    A table keeps every byte but those of the changed cells (Parquet: every column and type). Pictures are copied, or
    with ``link`` linked, into the folders of their classes. Arrays get a .npy file of labels. With ``same_ok``, an
    existing copy is accepted if it is byte for byte what would be written.
    """
    out = Path(out)
    if not out.exists() and not out.is_symlink():
        _source(audit).write_corrected(audit, changes, out, link=link)
    elif out.is_symlink() or not same_ok or not _is_written(audit, changes, out, link):
        raise FileExistsError(f"Expected a new path for the corrected data, {out} exists. Choose another with --out.")
    return out


def _is_written(audit: Audit, changes: Mapping[int, str], out: Path, link: bool) -> bool:
    """Return whether ``out`` is byte for byte what would be written."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, out.name)
        _source(audit).write_corrected(audit, changes, fresh, link=True)  # links are enough to compare with
        existing, wanted = (
            {path.relative_to(top): path for path in (top, *top.rglob("*")) if path.is_file()} for top in (out, fresh)
        )
        return existing.keys() == wanted.keys() and all(
            path.is_symlink() == (link and path != out) and filecmp.cmp(path, wanted[name], shallow=False)
            for name, path in existing.items()
        )


def default_out(audit: Audit) -> Path:
    """Return where the corrected data goes by default: ``corrected``, with the ending of the original."""
    return _source(audit).default_out()


def _source(audit: Audit) -> Source:
    return SOURCES[audit.config["kind"]](audit.config)


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one method on the same held-out rows, after training on the given and on the corrected labels."""

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


@dataclass(frozen=True, eq=False)
class Retraining:
    """One method or estimator, and the rows that it is fitted to twice: with given and with corrected labels."""

    method: str  # or the name of the estimator
    settings: Settings
    seed: int
    classes: tuple[str, ...]
    x: NDArray[np.float32]  # (N, D)
    given: NDArray[np.int64]  # (N,)
    corrected: NDArray[np.int64]  # (N,)
    held: NDArray[np.bool_]  # (N,) the test rows
    warning: str | None  # why their labels may be wrong
    estimator: Any = None  # a scikit-learn classifier, in place of the method
    inputs: Any = None  # N rows for it

    def run(self, progress: EpochProgress | None = None) -> Comparison:
        """Train on the given and on the corrected labels; ``progress`` counts the epochs of both trainings."""
        predicted: dict[str, NDArray[np.int64]] = {}
        for when, labels in (("before", self.given), ("after", self.corrected)):
            if self.estimator is not None:
                predicted[when] = self._fit_estimator(labels)
            else:
                predicted[when] = self._train(labels, len(predicted) * self.settings.epochs, progress)
        right = {when: guess == self.corrected[self.held] for when, guess in predicted.items()}
        gain = right["after"].astype(float) - right["before"]
        spread = 1.96 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
        by_given = {when: float((guess == self.given[self.held]).mean()) for when, guess in predicted.items()}
        return Comparison(
            method=self.method,
            train_rows=int((~self.held).sum()),
            changed=int((self.given != self.corrected)[~self.held].sum()),
            held_rows=int(self.held.sum()),
            before=float(right["before"].mean()),
            after=float(right["after"].mean()),
            interval=(float(gain.mean()) - spread, float(gain.mean()) + spread),
            before_by_given=by_given["before"],
            after_by_given=by_given["after"],
            warning=self.warning,
        )

    def _fit_estimator(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the classes (H,) that the estimator predicts for the test rows."""
        rows, held = np.flatnonzero(~self.held), np.flatnonzero(self.held)
        model = FittedClasses.fit(self.estimator, select_rows(self.inputs, rows), labels[rows])
        return np.asarray(model.predict_proba(select_rows(self.inputs, held), len(self.classes)).argmax(1))

    def _train(self, labels: NDArray[np.int64], past: int, progress: EpochProgress | None) -> NDArray[np.int64]:
        """Return the classes (H,) that the method predicts for the test rows; ``past`` epochs were reported before."""

        def move(epoch: int, step: int, steps: int, row: Any) -> None:
            if progress is not None:
                progress(past + epoch, step, steps, row)

        task = self.task(labels)
        assert task.test is not None
        run = train(task, self.method, self.settings, seed=self.seed, progress=move).run
        return np.asarray(predict_log_probs(run, task.test.x).argmax(1).cpu().numpy())

    def task(self, labels: NDArray[np.int64]) -> Task:
        """Return the training and test rows with these labels (N,)."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(labels)
        rows, held = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~self.held, self.held))
        return Task(NoisyData(x[rows], y[rows], self.classes, rows), test=Split(x[held], y[held]))


def plan_retraining(
    audit: Audit,
    changes: Mapping[int, str],
    decided: Mapping[int, Decision],
    *,
    method: str | None = None,
    epochs: int | None = None,
    estimator: Any = None,
    seed: int = 0,
) -> Retraining:
    """Read the rows and try one step, so that what cannot be trained is refused before anything is written.

    Trusted rows are held out if the audit had any, and their near-duplicates and groups are not trained on; else a
    fifth of the rows, without splitting near-duplicates and groups, the latest ones if the audit had times. Method,
    model and epochs default to those of the audit. ``estimator``, a scikit-learn classifier or its name as
    ``module:name``, is fitted in place of the method: a pipeline to the columns of a table, others to the features.
    """
    if estimator is not None:
        estimator = _checked_estimator(estimator, has_method=method is not None or epochs is not None)
    _source(audit).check_inputs(audit.folder)
    data = read_again(audit.config, cache_beside(audit.folder))
    number = {name: k for k, name in enumerate(audit.classes)}
    given_name = dict(zip(audit.issues["row"].tolist(), audit.issues["given_label"].tolist(), strict=True))
    known = data.row < 0
    keep = known | np.isin(data.row, audit.issues["row"].to_numpy())
    data = data.subset(keep)
    given = np.array(
        [number[given_name[r]] if r >= 0 else g for r, g in zip(data.row.tolist(), data.given, strict=True)]
    )
    corrected = given.copy()
    place = {row: i for i, row in enumerate(data.row.tolist()) if row >= 0}
    for row, name in changes.items():
        if row in place:
            corrected[place[row]] = number[name]
    held = hold_out(audit, data, given, seed)
    together = _together(audit, data)
    keep = held | ~np.isin(together, together[held])  # copies and groups of trusted rows may be anywhere
    if held.sum() == keep.sum():
        raise ValueError(
            f"Expected rows to train on beside the {held.sum()} trusted ones, got only copies of these and rows of "
            "their groups. Leave out --retrain."
        )
    data, given, corrected, held = data.subset(keep), given[keep], corrected[keep], held[keep]
    assert data.x is not None
    planned = Retraining(
        method=type(estimator).__name__ if estimator is not None else method or audit.config["method"] or "ce",
        settings=Settings(backbone_of(audit.config["model"]), epochs or audit.config["epochs"] or EPOCHS),
        seed=seed,
        classes=audit.classes,
        x=data.x,
        given=given,
        corrected=corrected,
        held=held,
        warning=_doubt(audit, data, held, decided, changes),
        estimator=estimator,
        inputs=None if estimator is None else estimator_inputs(estimator, data),
    )
    if estimator is not None:
        return planned
    with suppress(Interrupted):  # by the number of steps
        train(planned.task(given), planned.method, planned.settings, seed=seed, max_steps=1)
    return planned


def _checked_estimator(estimator: Any, has_method: bool) -> Any:
    """Return a classifier, by its name if it is a string."""
    if has_method:
        raise ValueError("Expected a method with its epochs, or an estimator, got both. Leave one of them out.")
    return check_classifier(load_object(estimator) if isinstance(estimator, str) else estimator)


def hold_out(audit: Audit, data: AuditData, given: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return the test rows, (N,)."""
    from noiseproof.audit.evidence.folds import make_folds
    from noiseproof.data.base import derive_seed

    if data.trusted is not None and data.trusted.any() and not data.trusted.all():
        return data.trusted
    # A separate seed: the random numbers that made labels wrong, or sorted the rows, must not choose the test rows.
    fold_seed = derive_seed(seed, zlib.crc32(b"held out"))
    folds = make_folds(given, folds=5, groups=_together(audit, data), time=data.time, seed=fold_seed)
    return np.asarray(folds == (folds.max() if data.time is not None else 0))


def _together(audit: Audit, data: AuditData) -> NDArray[np.int64]:
    """Return a number for each row, (N,), equal within a group and for near-duplicates.

    For rows that were not audited, such as those of a trusted table, only exact copies are known.
    """
    from noiseproof.audit.evidence.duplicates import find_duplicates
    from noiseproof.audit.evidence.folds import merge_groups

    group = audit.issues.set_index("row")["duplicate_group"].reindex(data.row)
    copies = np.array([int(float(g)) if g not in ("", None) and g == g else -1 for g in group.tolist()], dtype=np.int64)
    assert data.x is not None
    same = find_duplicates(data.x, data.given).group
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
