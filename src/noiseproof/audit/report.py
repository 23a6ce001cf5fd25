"""The audit of a dataset from end to end."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.evidence import VOTERS, cross_validate, watch_training
from noiseproof.audit.evidence.folds import (
    Duplicates,
    find_duplicates,
    in_one_fold,
    make_folds,
    merge_groups,
    outlier_scores,
)
from noiseproof.audit.evidence.neighbours import Neighbours, nearest
from noiseproof.audit.files import FORMAT, check_folder, write_audit
from noiseproof.audit.labels import LabelIssues, find_label_issues
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.progress import Progress
from noiseproof.data.sources import PathLike

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("noiseproof")

Mode = Literal["thorough", "fast"]
NEIGHBOURS = 10  # that decide what is a near-duplicate or an outlier
FEW, VERY_FEW = 2000, 50  # rows of which a fast audit misses much, and of which none says much
LARGEST_MATRIX, MOST_PAIRS, MOST_LISTED = 200, 20, 1000


def audit(
    data: AuditData,
    *,
    mode: Mode = "thorough",
    method: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    folds: int = 5,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> LabelReport:
    """Find the wrong labels of a dataset that ``read_rows`` read.

    ``thorough`` judges each row by models trained on other folds; ``fast`` watches one training on all rows. Where the
    data came with another model's predictions, nothing is trained.
    """
    if mode not in ("thorough", "fast"):
        raise ValueError(f"Expected `mode` to be thorough or fast, got {mode!r}.")
    clock = _Clock(progress, data.seconds)
    notes: list[str] = []
    near, duplicates, scores, cut, recall = None, None, None, None, None
    if data.x is not None and len(data) > 2:
        with clock("near-duplicates and outliers", 1) as done:
            near = nearest(data.x, min(VOTERS, len(data) - 1), seed=seed)
            few = Neighbours(near.index[:, :NEIGHBOURS], near.distance[:, :NEIGHBOURS], near.recall)
            duplicates = find_duplicates(data.x, data.given, few)
            scores, cut = outlier_scores(few, duplicates.is_duplicate)
            recall = near.recall
            done(1)
        if duplicates.common:
            notes.append(
                f"{duplicates.common} rows have inputs that more than twenty rows, and more than a hundredth, share: "
                "they are not called duplicates."
            )
    else:
        notes.append("Without features there is no search for neighbours, near-duplicates and outliers.")
    if len(data) < VERY_FEW:
        notes.append(f"With {len(data)} rows, rates and counts mean little: look at each row yourself.")
    copies = None if duplicates is None else duplicates.group
    train: Any = watch_training if mode == "fast" else cross_validate
    asked = {"method": method, "model": model, "epochs": epochs}
    chosen = {name: train.__kwdefaults__[name] if value is None else value for name, value in asked.items()}
    evidence = None
    if data.pred_probs is None:
        if data.x is None:
            raise ValueError("Expected features to train on, or predictions, got neither.")
        fold: list[NDArray[np.int64]] = []
        if mode == "thorough":
            fold = [_folds(data, copies, folds, seed, notes)]
            if (alone := in_one_fold(data.given, fold[0])).any():
                data, near = _without(data, alone), None  # rows have other numbers now
                fold, scores = [fold[0][~alone]], None if scores is None else scores[~alone]
                duplicates = duplicates and duplicates.subset(~alone)
                copies = None if duplicates is None else duplicates.group
        else:
            train = partial(train, groups=merge_groups(data.groups, copies))
            near = near if data.groups is None else None  # else others are looked for: a row's own group has no say
            if len(data) < FEW:
                notes.append(f"With {len(data)} rows, one training tells little: --thorough finds more, in a minute.")
        with clock("training") as done:
            evidence = train(
                data.x, data.given, len(data.classes), *fold, **chosen, seed=seed, device=device, neighbours=near,
                progress=lambda _, count, total: done(count, total),
            )  # fmt: skip
    with clock("judging labels", 1) as done:
        found = find_label_issues(
            data.given, data.pred_probs, evidence=evidence, features=data.x, trusted=data.trusted,
            annotators=data.annotators, groups=merge_groups(data.groups, copies), counted=data.row >= 0, seed=seed,
        )  # fmt: skip
        done(1)
    config = {
        "format": FORMAT, **data.source.config, "classes": list(data.classes),
        "mode": mode if evidence is not None else "predictions", **chosen,
        "folds": folds if evidence is not None and mode == "thorough" else None, "seed": seed,
        "source_rows": data.source_rows, "versions": _versions(), "command": command,
    }  # fmt: skip
    return LabelReport(
        replace(data, notes=(*data.notes, *notes)), found, duplicates, scores, cut, recall, config, clock.seconds
    )


def _folds(data: AuditData, copies: Any, folds: int, seed: int, notes: list[str]) -> NDArray[np.int64]:
    """Folds that keep groups and near-duplicates whole; the latter only where each class is still in several folds."""

    def made(groups: NDArray[np.int64] | None) -> NDArray[np.int64]:
        return make_folds(data.given, folds=folds, groups=groups, time=data.time, seed=seed)

    groups = merge_groups(data.groups, copies)
    if copies is None or groups is None:
        return made(groups)
    fold = made(groups) if np.ptp(groups) else np.zeros(len(data), np.int64)
    if (alone := in_one_fold(data.given, fold)).any():
        loose = made(data.groups)
        if in_one_fold(data.given, loose).sum() < alone.sum():
            notes.append("Near-duplicates were split between folds: some classes consist of little else.")
            return loose
    return fold


def _without(data: AuditData, alone: NDArray[np.bool_]) -> AuditData:
    """Without rows whose class no model learned; refuses where too little is left."""
    data = data.subset(~alone, "all rows of its class are in one fold: no model learned it without them")
    if len(np.unique(data.given)) < 2:
        raise ValueError(
            "Expected classes with rows in several groups or times, got one at most: each class lies in a group or a "
            "time of its own. Leave out the group or the time, or use --fast."
        )
    return data


class _Clock:
    """Passes progress on, and keeps the seconds of each stage."""

    def __init__(self, progress: Progress | None, reading: float) -> None:
        self.progress, self.seconds = progress, {"reading": round(reading, 3)}

    @contextmanager
    def __call__(self, stage: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Yields what is told (done, total), or (done,) where the total is known."""

        def tell(done: int, of: int | None = None) -> None:
            if self.progress is not None:
                self.progress(stage, done, total or of or 1)

        began = time.perf_counter()
        if total:
            tell(0)
        yield tell
        self.seconds[stage] = round(time.perf_counter() - began, 3)


def _versions() -> dict[str, str]:
    names = ("noiseproof", "torch", "numpy", "scikit-learn", "pandas")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[name] = "unknown"
    return found


@dataclass(frozen=True, eq=False)
class LabelReport:
    """What an audit found: each label's quality, issue or not, correction and reason; and the dataset as a whole."""

    data: AuditData
    found: LabelIssues
    duplicates: Duplicates | None = None
    outlier_scores: NDArray[np.float32] | None = None  # (N,)
    outlier_cut: float | None = None
    neighbour_recall: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def order(self) -> NDArray[np.int64]:
        """Audited rows from the worst to the best: issues first, each part by its quality, (N,)."""
        own = np.flatnonzero(self.data.row >= 0)
        keys = (self.data.row[own], self.found.quality[own], ~self.found.is_issue[own])
        return own[np.lexsort(keys)]

    @property
    def is_outlier(self) -> NDArray[np.bool_]:
        """(N,)"""
        if self.outlier_scores is None or self.outlier_cut is None:
            return np.zeros(len(self.data), dtype=bool)
        return np.asarray(self.outlier_scores > self.outlier_cut)

    def table(self) -> pd.DataFrame:
        """The rows of issues.csv."""
        import pandas as pd

        data, found, rows = self.data, self.found, self.order

        def named(codes: NDArray[np.int64]) -> pd.Categorical[str]:
            return pd.Categorical.from_codes(codes[rows], categories=pd.Index(data.classes, dtype=object))

        def number(values: NDArray[np.float32] | None) -> NDArray[np.float64]:
            exact = np.full(len(data), np.nan) if values is None else values.astype(np.float64)
            return np.asarray(np.round(exact[rows], 6))

        copies = self.duplicates or Duplicates(np.full(len(data), -1), np.zeros(len(data), dtype=bool), 0)
        group = pd.array(copies.group[rows], dtype="Int64")
        group[~copies.is_duplicate[rows]] = pd.NA
        return pd.DataFrame({
            "row": data.row[rows], "id": data.names[rows], "is_label_issue": found.is_issue[rows],
            "label_quality": number(found.quality), "given_label": named(data.given),
            "predicted_label": named(found.predicted), "suggested_label": named(found.suggested), "why": self.why(rows),
            "margin": number(found.margin), "neighbour_agreement": number(found.neighbour_agreement),
            "is_near_duplicate": copies.is_duplicate[rows], "duplicate_group": group,
            "duplicate_conflict": copies.conflict[rows],
            "is_outlier": self.is_outlier[rows], "outlier_score": number(self.outlier_scores),
            "confidence": number(found.confidence), "suggested_confidence": number(found.suggested_confidence),
            "unlearned": number(found.unlearned), "doubt": number(found.doubt),
        })  # fmt: skip

    def why(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """One sentence for each of ``rows``, (R,): with its numbers for an issue, in general for the others."""
        data, found = self.data, self.found
        known = np.zeros(len(data), dtype=bool) if data.trusted is None else data.trusted
        cases = [known[rows], found.predicted[rows] == data.given[rows]]
        general = np.array(
            ["The label is trusted.", "The evidence agrees with the label.",
             "Another label is likelier, but not by enough to call this one wrong."], dtype=object
        )  # fmt: skip
        sentences: NDArray[Any] = general[np.select(cases, [0, 1], 2)]
        at = np.flatnonzero(found.is_issue[rows])
        issues = rows[at]
        names = np.array(data.classes, dtype=object)
        parts = zip(
            names[data.given[issues]].tolist(), names[found.suggested[issues]].tolist(),
            _percent(found.confidence, issues), _percent(found.suggested_confidence, issues),
            _percent(found.neighbour_agreement, issues), _percent(found.unlearned, issues),
            _percent(found.doubt, issues), self._copies(issues), strict=True,
        )  # fmt: skip
        sentences[at] = [_sentence(*part) for part in parts]
        return sentences

    def _copies(self, rows: NDArray[np.int64]) -> list[bool]:
        return [False] * len(rows) if self.duplicates is None else self.duplicates.conflict[rows].tolist()

    def summary(self) -> dict[str, Any]:
        """The contents of summary.json."""
        data, found = self.data, self.found
        own = data.row >= 0
        K = len(data.classes)
        low, high = found.noise_interval
        issues = found.is_issue & own
        rows, wrong = (np.bincount(data.given[mask], minlength=K).tolist() for mask in (own, issues))
        notes = [*data.notes]
        if self.neighbour_recall is not None and self.neighbour_recall < 1:
            notes.append(f"Neighbours were found approximately, {self.neighbour_recall:.1%} of the true ones.")
        if found.contradicted is not None:
            notes.append(
                f"Where neighbours are surest they contradict {found.contradicted:.1%} of the labels, more than one "
                "training does: either it has learned wrong labels by heart, which --thorough brings to light, or the "
                "features are too weak, which only better ones mend."
            )
        return {
            "format": FORMAT, "source_rows": data.source_rows, "rows": int(own.sum()), "issues": int(issues.sum()),
            "labels_look_fine": found.looks_fine, "verdict": self._verdict(int(issues.sum()), int(own.sum())),
            "noise_rate": {"estimate": found.noise_rate, "low": low, "high": high},
            "false_positive_rate": found.false_positive_rate,
            "classes": [
                {"name": name, "rows": rows[k], "issues": wrong[k], "cut": float(found.cut[k])}
                for k, name in enumerate(data.classes)
            ],
            "transition": np.round(found.transition, 6).tolist() if K <= LARGEST_MATRIX else None,
            "worst_pairs": self._worst_pairs(issues),
            "near_duplicates": self._near_duplicates(own),
            "outliers": {"rows": int((self.is_outlier & own).sum()), "cut": self.outlier_cut},
            "skipped": [
                {"reason": s.reason, "count": len(s.rows), "rows": s.rows[:MOST_LISTED].tolist()} for s in data.skipped
            ],
            "notes": notes, "neighbour_recall": self.neighbour_recall, "seconds": dict(self.seconds),
        }  # fmt: skip

    def _verdict(self, issues: int, rows: int) -> str:
        low, high = self.found.noise_interval
        if not self.found.is_predictable:
            hits, chance = self.found.hit_rate, self.found.chance_rate
            return (
                f"The rows hardly tell their labels, so none can be called wrong: {hits:.1%} are met by predictions, "
                f"{chance:.1%} would be by chance. Look at the columns, or give better features."
            )
        if self.found.is_undecided:
            return (
                f"One training can't tell whether the labels are fine: {low:.1%} to {high:.1%} may be wrong; "
                f"{issues} of {rows} are called issues."
            )
        if self.found.looks_fine:
            alarms = f"; {issues} of {rows} are called issues, mistakes or false alarms" if issues else ""
            rate = self.found.false_positive_rate
            return (
                f"The labels look fine, {high:.1%} wrong at the most{alarms} "
                f"(expected share of right labels called issues: {rate:.2%})."
            )
        rate = self.found.noise_rate
        return f"About {rate:.1%} of the labels look wrong ({low:.1%} to {high:.1%}): {issues} of {rows} are issues."

    def _worst_pairs(self, issues: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """The corrections that are made most often."""
        classes, K = self.data.classes, len(self.data.classes)
        pairs, counts = np.unique(self.data.given[issues] * K + self.found.suggested[issues], return_counts=True)
        worst = np.lexsort((pairs, -counts))[:MOST_PAIRS]
        return [
            {
                "given": classes[pair // K], "suggested": classes[pair % K], "issues": count,
                "probability": round(float(self.found.transition[pair % K, pair // K]), 6),
            }
            for pair, count in zip(pairs[worst].tolist(), counts[worst].tolist(), strict=True)
        ]  # fmt: skip

    def _near_duplicates(self, own: NDArray[np.bool_]) -> dict[str, Any]:
        if self.duplicates is None:
            return {"groups": 0, "rows": 0, "conflicting": 0, "conflicts": []}
        group, data = np.where(own, self.duplicates.group, -1), self.data
        rows = np.flatnonzero((group >= 0) & self.duplicates.conflict)
        rows = rows[np.argsort(group[rows], kind="stable")]
        parts = np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if len(rows) else []
        conflicts = [
            {
                "group": int(group[part[0]]), "rows": data.row[part].tolist(),
                "labels": [data.classes[k] for k in data.given[part].tolist()],
            }
            for part in parts[:MOST_LISTED]
        ]  # fmt: skip
        return {
            "groups": len(np.unique(group[group >= 0])), "rows": int((group >= 0).sum()), "conflicting": len(parts),
            "conflicts": conflicts,
        }  # fmt: skip

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: PathLike, *, force: bool = False, tell: Callable[[str], None] = log.warning) -> list[Path]:
        """Write issues.csv, issues.parquet where pyarrow is installed, summary.json and config.json.

        A folder that is not empty is refused; ``force`` replaces these files and keeps all others, but for decisions
        on an earlier audit there: they stay with their rows, or move to another file, which ``tell`` reports.
        """
        from noiseproof.audit.renewal import renew_decisions

        target = check_folder(folder, force=force)
        target.mkdir(parents=True, exist_ok=True)
        if force and (renewed := renew_decisions(target, self)):
            tell(renewed)
        return write_audit(target, self)

    def to_label_studio(self, path: PathLike, *, all_rows: bool = False, force: bool = False) -> Path:
        """Write tasks for Label Studio; see `noiseproof.audit.export.to_label_studio`."""
        from noiseproof.audit.export import to_label_studio

        return to_label_studio(self, path, all_rows=all_rows, force=force)

    def to_fiftyone(self, folder: PathLike, *, all_rows: bool = True, force: bool = False) -> Path:
        """Write a folder that FiftyOne imports; see `noiseproof.audit.export.to_fiftyone`."""
        from noiseproof.audit.export import to_fiftyone

        return to_fiftyone(self, folder, all_rows=all_rows, force=force)


def _percent(values: NDArray[np.float32] | None, rows: NDArray[np.int64]) -> list[int | None]:
    """Whole percents of some rows, None where there is no number."""
    if values is None:
        return [None] * len(rows)
    shares = values[rows]
    known = np.isfinite(shares)
    percents = np.rint(100 * np.where(known, shares, 0)).astype(int).tolist()
    return [percent if there else None for percent, there in zip(percents, known.tolist(), strict=True)]


def _sentence(
    given: str, suggested: str, own: int, other: int, agree: int | None, unlearned: int | None, doubt: int | None,
    conflict: bool,
) -> str:  # fmt: skip
    """Why a label is an issue, the model first, then what speaks with it."""
    parts = [f"The model gives {given!r} {own} % and {suggested!r} {other} %"]
    if agree is not None:
        parts.append(f"{f'{agree} %' if agree else 'none'} of its neighbours bear {given!r}")
    if unlearned is not None and unlearned >= 50:
        epochs = f"only in {100 - unlearned} % of the epochs" if unlearned < 100 else "in no epoch"
        parts.append(f"{given!r} was predicted {epochs}")
    if doubt is not None and doubt >= 50:
        parts.append(f"the model doubts this row by {doubt} %")
    if conflict:
        parts.append("a near-duplicate bears another label")
    return "; ".join(parts) + "."
