"""The accuracy of a model before and after labels are corrected, on rows that are held out."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.inputs import read_again
from noiseproof.audit.sources import SOURCES
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Bools, Floats32, Ints
from noiseproof.core.plugins import load_object
from noiseproof.data import NoisyData, Split
from noiseproof.data.base import derive_seed
from noiseproof.data.labelsets import Labels
from noiseproof.judge.evidence.folds import make_folds, merge_groups
from noiseproof.judge.evidence.gather import backbone_of, estimator_inputs
from noiseproof.judge.evidence.neighbours import find_duplicates
from noiseproof.judge.evidence.questions import question_folds
from noiseproof.judge.evidence.trees import FittedClasses, check_classifier, select_rows
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Interrupted, Settings, Task, train

if TYPE_CHECKING:
    from noiseproof.train.job import EpochProgress

EPOCHS = 50  # where the audit trained nothing


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one method on the same held-out rows, after training on the given and on the
    corrected labels.

    For several labels per row, the accuracy is the share of rows without an error, as ``score`` of
    scikit-learn has it.
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
    # of several labels per row: micro F1 before and after, by corrected labels
    f1: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Retraining:
    """One method or estimator, and the rows that it is fitted to twice: with given and with
    corrected labels.
    """

    method: str  # or the name of the estimator
    settings: Settings
    seed: int
    classes: tuple[str, ...]
    x: Floats32  # (N, D)
    given: Ints  # (N,), or 0 and 1 (N, K) of several labels per row
    corrected: Ints  # the same, with merged classes
    held: Bools  # (N,) the test rows
    warning: str | None  # why their labels may be wrong
    excluded: Bools  # (N,) rows that are not trained on once they are excluded
    estimator: Any = None  # a scikit-learn classifier, in place of the method
    inputs: Any = None  # N rows for it
    merged: Ints | None = None  # (K,) the class that each class becomes

    def run(self, progress: EpochProgress | None = None) -> Comparison:
        """Train on the given and on the corrected labels; ``progress`` counts the epochs of both
        trainings.
        """
        held = self.held
        trained_after = ~held & ~self.excluded  # the first training has excluded rows, too
        past = self.settings.epochs  # which the first training reports
        # what each training predicts for the held-out rows
        before = self._merge(self._predict(self.given, ~held, 0, progress))
        after = self._merge(self._predict(self.corrected, trained_after, past, progress))
        corrected = self.corrected[held]
        given = self._merge(self.given[held])
        right_before = _same(before, corrected)
        right_after = _same(after, corrected)
        gains = right_after.astype(float) - right_before  # 1, 0 or −1 for each row
        gain = float(gains.mean())
        half_width = math.nan
        if len(gains) > 1:
            half_width = 1.96 * float(gains.std(ddof=1)) / math.sqrt(len(gains))
        f1 = None
        if given.ndim == 2:
            f1 = (_micro_f1(before, corrected), _micro_f1(after, corrected))
        is_changed = ~_same(self.given, self.corrected)
        return Comparison(
            method=self.method,
            train_rows=int(trained_after.sum()),
            changed=int(is_changed[~held].sum()),
            held_rows=int(held.sum()),
            before=float(right_before.mean()),
            after=float(right_after.mean()),
            interval=(gain - half_width, gain + half_width),
            before_by_given=float(_same(before, given).mean()),
            after_by_given=float(_same(after, given).mean()),
            warning=self.warning,
            f1=f1,
        )

    def _merge(self, labels: Ints) -> Ints:
        return labels if self.merged is None else self.merged[labels]

    def _predict(
        self,
        labels: Ints,
        trained: Bools,
        past: int,
        progress: EpochProgress | None,
    ) -> Ints:
        """Return the classes (H,), or labels (H, K), of the test rows after training on ``trained``
        rows; ``past`` epochs were reported before.
        """
        if self.estimator is not None:
            return self._fit_estimator(labels, trained)

        def move(epoch: int, step: int, steps: int, row: Any) -> None:
            if progress is not None:
                progress(past + epoch, step, steps, row)

        task = self.task(labels, trained)
        run = train(task, self.method, self.settings, seed=self.seed, progress=move).run
        assert task.test is not None
        log_p = predict_log_probs(run, task.test.x).cpu().numpy()
        if labels.ndim == 1:
            return np.asarray(log_p.argmax(1))
        return np.asarray(log_p > math.log(0.5), np.int64)

    def _fit_estimator(self, labels: Ints, trained: Bools) -> Ints:
        """Return the classes (H,) that the estimator predicts for the test rows, fitted to
        ``trained`` rows.

        With several labels per row, it is fitted to each of them, (H, K).
        """
        if labels.ndim == 2:
            return np.stack([self._fit_estimator(column, trained) for column in labels.T], 1)
        rows = np.flatnonzero(trained)
        model = FittedClasses.fit(self.estimator, select_rows(self.inputs, rows), labels[rows])
        tested = select_rows(self.inputs, np.flatnonzero(self.held))
        probs = model.predict_proba(tested, max(2, len(self.classes)))
        return np.asarray(probs.argmax(1))

    def task(self, labels: Ints, trained: Bools) -> Task:
        """Return the rows ``trained`` (N,) and the test rows with these labels (N,)."""
        x = torch.from_numpy(self.x)
        y = torch.from_numpy(labels)
        rows = torch.from_numpy(np.flatnonzero(trained))
        held = torch.from_numpy(np.flatnonzero(self.held))
        data = NoisyData(x[rows], y[rows], self.classes, rows)
        return Task(data, test=Split(x[held], y[held]))


def _same(labels: Ints, others: Ints) -> Bools:
    """Return whether rows have the same label, or all of several, (n,)."""
    return np.asarray((labels == others).reshape(len(labels), -1).all(1))


def _micro_f1(predicted: Ints, labels: Ints) -> float:
    """F1 of all labels (n, K) together; 0 where there are none."""
    right = (predicted & labels).sum()
    return float(2 * right / max(1, predicted.sum() + labels.sum()))


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
    """Read the rows and try one step, so that what cannot be trained is refused before anything is
    written.

    Trusted rows are held out if the audit had any; else a fifth of the rows, the latest ones if the
    audit had times; near-duplicates and groups are not split. Method, model and epochs default to
    the audit's. ``estimator``, a scikit-learn classifier or its name as ``module:name``, is
    fitted in place of the method: a pipeline to the columns of a table, others to the features.
    Excluded rows are trained on before, not after, and never tested on. Classes that ``becomes``
    merges count as one.
    """
    if estimator is not None:
        if method is not None or epochs is not None:
            raise ValueError(
                "Expected a method with its epochs, or an estimator, got both. Leave one of them"
                " out."
            )
        if isinstance(estimator, str):
            estimator = load_object(estimator)
        estimator = check_classifier(estimator)
    source = SOURCES[audit.config["kind"]](audit.config)
    source.check_inputs(audit.folder)
    place = source.find_rows(audit, {**decided, **changes})
    audit = audit.moved(place)
    changes = {int(place[row]): label for row, label in changes.items()}
    decided = {int(place[row]): decision for row, decision in decided.items()}
    data = read_again(audit)
    is_audited = np.isin(data.row, audit.issues["row"].to_numpy())
    data = data.subset(is_audited | (data.row < 0))
    classes, given, corrected, merged = _both_labels(audit, data, changes, becomes or {})
    rows = [row for row, one in decided.items() if one.decision == "exclude"]
    excluded = np.isin(data.row, rows)
    together = _together(audit, data)
    held = hold_out(audit, data, given, seed)
    # copies and groups of trusted rows may be anywhere
    keep = np.where(held, ~excluded, ~np.isin(together, together[held]))
    held &= ~excluded
    if held.sum() == keep.sum():
        raise ValueError(
            f"Expected rows to train on next to the {held.sum()} trusted ones, got only copies of"
            " these and rows of their groups. Leave out --retrain."
        )
    data = data.subset(keep)
    held = held[keep]
    assert data.x is not None
    config = audit.config
    name = method or config["method"] or "ce"
    if estimator is not None:
        name = type(estimator).__name__
    backbone = backbone_of(config["model"])
    planned = Retraining(
        method=name,
        settings=Settings(backbone, epochs or config["epochs"] or EPOCHS),
        seed=seed,
        classes=classes,
        x=data.x,
        given=given[keep],
        corrected=corrected[keep],
        held=held,
        warning=_doubt(audit, data, held, decided, changes),
        excluded=excluded[keep],
        estimator=estimator,
        inputs=None if estimator is None else estimator_inputs(estimator, data),
        merged=merged,
    )
    if estimator is not None:
        return planned
    with suppress(Interrupted):  # by the number of steps
        task = planned.task(planned.given, ~held)
        train(task, name, planned.settings, seed=seed, max_steps=1)
    return planned


def _both_labels(
    audit: Audit, data: AuditData, changes: Mapping[int, str], becomes: Mapping[str, str]
) -> tuple[tuple[str, ...], Ints, Ints, Ints | None]:
    """Return the classes with new ones, the given and the corrected labels of the rows of ``data``,
    and merged classes.

    Labels are numbers (N,), or 0 and 1 (N, K) of several labels per row.
    """
    known = audit.given
    pairs = list(zip(data.row.tolist(), data.given.tolist(), strict=True))
    before = [data.classes[code] if row < 0 else known[row] for row, code in pairs]
    after = [changes.get(row, word) for (row, _), word in zip(pairs, before, strict=True)]
    if separator := audit.words.separator:
        words = [*before, *(becomes.get(word, word) for word in after)]
        named = (label for word in words for label in audit.words.split(word))
        names = list(dict.fromkeys([*audit.words.names, *named]))
        sets = Labels.of_sets(words, separator, names)
        given, corrected = np.split(sets.targets, 2)
        return sets.names, given, corrected, None
    classes = tuple(dict.fromkeys((*audit.classes, *changes.values())))
    number = {name: k for k, name in enumerate(classes)}
    given = np.array([number[word] for word in before])
    corrected = np.array([number[word] for word in after])
    if not becomes:
        return classes, given, corrected, None
    merged = np.array([number[becomes.get(name, name)] for name in classes])
    return classes, given, merged[corrected], merged


def hold_out(audit: Audit, data: AuditData, given: Ints, seed: int) -> Bools:
    if data.trusted is not None and data.trusted.any() and not data.trusted.all():
        return data.trusted
    # A separate seed: the random numbers that made labels wrong, or sorted the rows, must not
    # choose the test rows.
    seed = derive_seed(seed, zlib.crc32(b"held out"))
    together = _together(audit, data)
    if given.ndim == 1:
        folds = make_folds(given, folds=5, groups=together, time=data.time, seed=seed)
    else:
        folds = question_folds(given == 1, folds=5, groups=together, time=data.time, seed=seed)
    return np.asarray(folds == (folds.max() if data.time is not None else 0))


def _together(audit: Audit, data: AuditData) -> Ints:
    """Return a number for each row, (N,), equal within a group and for near-duplicates.

    For rows that were not audited, such as rows of a trusted table, only exact copies are known.
    """
    group = audit.issues.set_index("row")["duplicate_group"].reindex(data.row)
    copies = pd.to_numeric(group).fillna(-1).to_numpy(np.int64)
    assert data.x is not None
    same = find_duplicates(data.x, data.labels.comparable, unlike=data.unlike()).group
    return merge_groups(data.groups, copies, same)


def _doubt(
    audit: Audit,
    data: AuditData,
    held: Bools,
    decided: Mapping[int, Decision],
    changes: Mapping[int, str],
) -> str | None:
    """Return why the held-out labels may be wrong, None if they are trusted."""
    if data.trusted is not None and data.trusted[held].all():
        return None
    rows = {*data.row[held].tolist()}
    issues = audit.issues
    flagged = rows & {*issues.loc[issues["is_label_issue"], "row"].tolist()}
    undecided = [row for row in flagged if row not in decided or not decided[row].names_label]
    accepted = sum(row in changes for row in undecided)
    why = f"{len(undecided)} of them are issues without a decision"
    if accepted:
        why += (
            f", of which {accepted} now have the label suggested by the audit, which favours its"
            " model"
        )
    rate = (audit.summary.get("noise_rate") or {}).get("estimate")
    if rate is not None:
        why += f"; the audit estimates {100 * rate:.1f} % wrong labels in all"
    return (
        f"The {len(rows)} held-out labels come from the same source and may be wrong, too: {why}."
        " Trust the difference only on labels known to be right (`noiseproof audit --trusted`)."
    )
