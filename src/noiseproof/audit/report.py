"""The audit of a dataset from end to end, and its report."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.crowd.confusion import Annotators, VotedRows
from noiseproof.audit.crowd.quality import AnnotatorQuality, label_again, measure_quality
from noiseproof.audit.evidence.gather import AuditEvidence, Mode, StageClock, check_models, gather
from noiseproof.audit.evidence.network import CORRECTED, METHOD
from noiseproof.audit.evidence.questions import METHOD as METHOD_OF_SETS
from noiseproof.audit.figures import FIGURES, as_html, as_text
from noiseproof.audit.files import COLUMNS, FORMAT, LOCK, check_folder, write_audit
from noiseproof.audit.inputs import read_rows
from noiseproof.audit.issues import Issue, WrongLabels, find_issues
from noiseproof.audit.issues.base import MAX_LISTED, chosen_types
from noiseproof.audit.issues.label import TRUSTED, general_sentences
from noiseproof.audit.issues.leakage import distrust, leaking_columns
from noiseproof.audit.judge.cut import parse_goal
from noiseproof.audit.labels import LabelIssues, find_label_issues, judge_decided
from noiseproof.audit.labelsets import judge_sets
from noiseproof.audit.rows import Digests, digest_all
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.core.files import Lock
from noiseproof.core.lazy import provided
from noiseproof.core.messages import Progress, preview
from noiseproof.core.plugins import load_object
from noiseproof.core.registry import near_names
from noiseproof.core.tensors import check_device
from noiseproof.data.sources import PathLike

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("noiseproof")
AGAIN = 100  # rows to label again that are listed
TAKEN = (
    "The predictions are taken as they are: wrong labels look right if their model saw a column"
    " that was made from the label."
)
MANY = 100_000  # rows from which on two thirds teach a model as much as four fifths


def audit(
    data: AuditData | Any = None,
    *,
    mode: Mode = "thorough",
    method: str | None = None,
    model: str | None = None,
    estimator: Any = None,
    epochs: int | None = None,
    folds: int | None = None,
    goal: str = "f1",
    issues: str | Sequence[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    command: str | None = None,
    **reading: Any,
) -> LabelReport:
    """Find the wrong labels of a dataset that ``read_rows`` read, or reads now with the options
    ``reading``.

    ``audit("data.csv", label="y")``, ``audit(frame, label="y")``, ``audit(X, labels=y)``,
    ``audit(texts, labels=y)``.

    ``thorough`` judges each row by models trained on other folds; ``fast`` by the predictions of
    one training on all rows. Where the data comes with another model's predictions, nothing is
    trained.

    Args:
        method: that trains the network.
        model: ``trees``, ``network``, ``both``, ``lightgbm``, ``xgboost``, ``catboost``, or the
            spec of a backbone; by default both for tables and arrays of few columns, else the
            network. Each is joined with the others, and with the votes of neighbours, by how well
            it predicts labels that it did not see.
        estimator: a scikit-learn classifier with ``predict_proba``, or its name as ``module:name``,
            used in place of the default models. A pipeline gets the columns of a table, any other
            estimator the features as numbers.
        epochs: of the network.
        folds: by default 5, and 3 from 100 000 rows on, where each is large enough to learn from.
        goal: what the cut is made for, as in ``find_label_issues``.
        issues: names of issue types to look for beside wrong labels, near-duplicates and outliers,
            or ``all``; by default those that take little time.
    """
    _check_options(reading)
    if mode not in ("thorough", "fast"):
        raise ValueError(f"Expected `mode` to be thorough or fast, got {mode!r}.")
    check_models(method, model, estimator)
    check_device(device)
    parse_goal(goal)  # before an hour of work
    chosen_types(issues)
    data = _rows_of(data, reading, seed, progress)
    asked = {"method": method, "epochs": epochs}
    training: dict[str, Any] = {
        "method": method or (METHOD if data.sets is None else METHOD_OF_SETS),
        "model": "auto" if model is None else model,
        "epochs": epochs,
    }
    clock = StageClock(progress, data.seconds)
    folds = (5 if len(data) < MANY else 3) if folds is None else folds
    work = NUMBER_WORK * (0 if data.x is None else data.x.size)
    with threads_for(work), clock("digests of rows"):
        # of the data as it was read, before hours of training
        row_digests = data.source.row_digests
    with threads_for(work):
        evidence = gather(
            data,
            mode=mode,
            folds=folds,
            seed=seed,
            clock=clock,
            device=device,
            **training,
            estimator=load_object(estimator) if isinstance(estimator, str) else estimator,
        )
    evidence = _with_unused(evidence, asked)
    with threads_for(work), clock("judging labels"):
        evidence, labels = _judge(evidence, goal, seed)
    data, trained = evidence.data, evidence.training
    config = {
        "format": FORMAT,
        **data.source.config,
        "classes": list(data.classes),
        "mode": mode if trained else "predictions",
        **training,
        "estimator": (
            estimator if estimator is None or isinstance(estimator, str) else repr(estimator)
        ),
        "models": _shares(trained.weights) if trained else [],
        "folds": folds if trained and mode == "thorough" else None,
        "goal": goal,
        "issues": issues,
        "seed": seed,
        "source_rows": data.source_rows,
        "rows_sha256": digest_all(row_digests),
        "versions": _versions(),
        "command": command,
    }
    recall = evidence.surroundings.neighbour_recall
    out_of_sample = trained.pred_probs if trained and mode == "thorough" else None
    with threads_for(work), clock("other issues"):
        found = find_issues(evidence, labels, issues)
    return LabelReport(data, found, recall, config, clock.seconds, out_of_sample, row_digests)


def _rows_of(
    data: AuditData | Any, reading: Mapping[str, Any], seed: int, progress: Progress | None
) -> AuditData:
    if not isinstance(data, AuditData):
        return read_rows(data, seed=seed, progress=progress, **reading)
    if reading:
        raise TypeError(
            f"Expected no {preview(list(reading))} with data that `read_rows` read. Pass it there."
        )
    return data


def _check_options(reading: Mapping[str, Any]) -> None:
    known = signature(read_rows).parameters
    if unknown := [name for name in reading if name not in known]:
        names = sorted({*known, *signature(audit).parameters} - {"data", "reading"})
        raise TypeError(f"audit() has no option {unknown[0]!r}. {near_names(unknown[0], names)}")


def _judge(evidence: AuditEvidence, goal: str, seed: int) -> tuple[AuditEvidence, LabelIssues]:
    """The quality of each label, with the decisions on others, and the evidence with the classes
    that are suggested.
    """
    data, trained, undecided = evidence.data, evidence.training, evidence.undecided
    if data.sets is not None:
        return judge_sets(evidence, goal, seed)
    labels = find_label_issues(
        data.given,
        data.pred_probs,
        evidence=undecided or trained,
        features=data.x,
        trusted=data.trusted,
        annotators=data.annotators,
        groups=evidence.groups,
        counted=data.row >= 0,
        goal=goal,
        seed=seed,
    )
    if trained is not None and undecided is not None:
        labels = judge_decided(labels, data, trained, undecided, goal)
    return evidence, labels


def _with_unused(evidence: AuditEvidence, asked: Mapping[str, Any]) -> AuditEvidence:
    """The evidence with a note on options of networks that the user ``asked`` for where none was
    trained.
    """
    names = " and ".join(f"`{name}`" for name, value in asked.items() if value is not None)
    if not names or evidence.training is None or "linear" in evidence.training.weights:
        return evidence
    return evidence.with_note(
        f"No network was trained, so {names} had no effect. The model both trains one."
    )


def _shares(weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """The models whose predictions were joined, the most important first: a refit to corrected
    labels is no other.
    """
    shares: dict[str, float] = {}
    for model, weight in weights.items():
        name = model.removesuffix(CORRECTED)
        shares[name] = shares.get(name, 0.0) + weight
    return [
        {"name": name, "weight": round(shares[name], 4)}
        for name in sorted(shares, key=lambda n: -shares[n])
    ]


def _versions() -> dict[str, str]:
    names = ("noiseproof", "torch", "numpy", "scikit-learn", "pandas")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            versions[name] = "unknown"
    return versions


@dataclass(frozen=True, eq=False, repr=False)
class LabelReport:
    """The result of an audit: issues of every type for each row, and a summary of the dataset."""

    data: AuditData
    issues: tuple[Issue, ...]  # one of each type
    neighbour_recall: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    # of each stage; `save` adds that of writing
    seconds: dict[str, float] = field(default_factory=dict)
    # (N, K) of models that did not see the row; of a thorough audit
    out_of_sample: NDArray[np.float32] | None = None
    row_digests: Digests | None = None  # of all rows of the source

    @property
    def label_issues(self) -> LabelIssues:
        """The quality of each label."""
        return next(issue.labels for issue in self.issues if isinstance(issue, WrongLabels))

    @property
    def order(self) -> NDArray[np.int64]:
        """Audited rows from the worst to the best: issues first, each part by its quality, (N,)."""
        rows, labels = np.flatnonzero(self.data.row >= 0), self.label_issues
        return rows[np.lexsort((self.data.row[rows], labels.quality[rows], ~labels.is_issue[rows]))]

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def table(self) -> pd.DataFrame:
        """The rows of issues.csv."""
        import pandas as pd

        rows = self.order
        columns = {"row": self.data.row[rows], "id": self.data.names[rows], "why": self.why(rows)}
        for issue in self.issues:
            columns |= issue.columns(self.data, rows)
        return pd.DataFrame({name: columns[name] for name in dict.fromkeys((*COLUMNS, *columns))})

    def why(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """One sentence for each of ``rows``, (R,): with its numbers for an issue, in general for
        the others.
        """
        data, labels = self.data, self.label_issues
        is_predicted = labels.predicted[rows] == data.given[rows]
        sentences = general_sentences(
            labels.quality[rows], labels.suggestion_quality[rows], is_predicted
        )
        if data.trusted is not None:
            sentences[data.trusted[rows]] = TRUSTED
        at = np.flatnonzero(labels.is_issue[rows])
        reasons = zip(*(issue.explain(data, rows[at]) for issue in self.issues), strict=True)
        sentences[at] = ["; ".join(filter(None, parts)) + "." for parts in reasons]
        return sentences

    def summary(self) -> dict[str, Any]:
        """The contents of summary.json."""
        data, recall = self.data, self.neighbour_recall
        notes = [*data.notes]
        if recall is not None and recall < 1:
            notes.append(f"Neighbours were found approximately, {recall:.1%} of the true ones.")
        summary: dict[str, Any] = {
            "format": FORMAT,
            "source_rows": data.source_rows,
            "rows": int((data.row >= 0).sum()),
        }
        for issue in self.issues:
            summary |= issue.summary(data)
            notes += issue.notes()
        skipped = [
            {"reason": s.reason, "count": len(s.rows), "rows": s.rows[:MAX_LISTED].tolist()}
            for s in data.skipped
        ]
        known = {
            "trusted": 0 if data.trusted is None else int(data.trusted.sum()),
            "annotators": 0 if data.annotators is None else len(data.annotators.names),
        }
        summary |= {
            "known": known,
            "models": self.config.get("models", []),
            "skipped": skipped,
            "notes": notes,
            "neighbour_recall": recall,
            "seconds": dict(self.seconds),
        }
        if data.pred_probs is not None and summary["labels_look_fine"]:
            notes.append(TAKEN)
        if leaking := leaking_columns(summary):
            summary["verdict"] = distrust(
                summary["verdict"], leaking, data, self.config.get("ignore") or ()
            )
            summary["labels_look_fine"] = False
        return summary

    # Annotators

    @cached_property
    def annotator_quality(self) -> AnnotatorQuality:
        """The accuracy of each annotator with its interval, and what they confuse."""
        voted, fitted = self._voted()
        return measure_quality(voted, fitted)

    @property
    def annotators(self) -> pd.DataFrame:
        """The rows of annotators.csv: labels, quality with its 95 % interval, the most frequent
        confusion, advice.
        """
        return self.annotator_quality.table(self.data.classes)

    def label_again(self, n: int = AGAIN, *, most: int | None = None) -> pd.DataFrame:
        """The rows of label_again.csv: the ``n`` rows whose next label is worth most, and who
        should give it.

        With ``most``, nobody gets more rows than that.
        """
        import pandas as pd

        voted, fitted = self._voted()
        data, labels = self.data, self.label_issues
        found = label_again(
            voted, fitted, self.annotator_quality, n, most=most, among=data.row >= 0
        )
        rows, consensus = found["row"], labels.consensus(data.given)
        quality = np.maximum(labels.quality, labels.suggestion_quality)
        return pd.DataFrame(
            {
                "row": data.row[rows],
                "id": data.names[rows],
                "annotator": np.array(voted.votes.names)[found["annotator"]],
                "gain": found["gain"].round(4),
                "consensus": np.array(data.classes, dtype=object)[consensus[rows]],
                "quality": quality[rows].astype(np.float64).round(4),
                "labels": np.diff(voted.votes.first)[rows],
            }
        )

    def votes(self) -> pd.DataFrame:
        """The rows of votes.csv: row, id, annotator and label of each vote on an audited row."""
        import pandas as pd

        votes, row = self._voted()[0].votes, self.data.row
        is_audited = row[votes.row] >= 0
        names, classes = (
            np.array(votes.names, dtype=object),
            np.array(self.data.classes, dtype=object),
        )
        columns = (
            row[votes.row],
            self.data.names[votes.row],
            names[votes.annotator],
            classes[votes.label],
        )
        header = "row", "id", "annotator", "label"
        return pd.DataFrame(dict(zip(header, (c[is_audited] for c in columns), strict=True)))

    def _voted(self) -> tuple[VotedRows, Annotators]:
        labels = self.label_issues
        if labels.voted is None or labels.judge is None or labels.judge.annotators is None:
            raise ValueError(
                "Expected an audit of several annotators, got none. Name `annotators` or"
                " `annotations`."
            )
        return labels.voted, labels.judge.annotators

    def figure(self, name: str) -> Any:
        """Return a matplotlib figure, which a notebook shows.

        Args:
            name: ``quality`` (histogram with the cut), ``confusions`` (pairs of classes) or
                ``classes``.
        """
        import matplotlib.pyplot  # noqa: F401  # notebooks show figures once it is imported

        from noiseproof.analysis import to_matplotlib

        if name not in FIGURES:
            raise ValueError(f"Expected a figure of {', '.join(FIGURES)}, got {name!r}.")
        drawn = FIGURES[name](self)
        canvas = to_matplotlib(drawn)
        canvas.suptitle(drawn.title)
        return canvas

    def review(self, folder: PathLike = "audit", **options: Any) -> Any:
        """Open the review page of this audit, in a notebook inline; see
        `noiseproof.review.session.open_review`.
        """
        return provided("review").open_review(self, folder, **options)

    # Files

    def save(
        self,
        folder: PathLike,
        *,
        force: bool = False,
        csv_safe: bool = True,
        tell: Callable[[str], None] = log.warning,
    ) -> list[Path]:
        """Write the files of the audit (docs/audit_files.md).

        A folder that is not empty is refused; ``force`` replaces these files and keeps all others,
        but for decisions on an earlier audit there: they stay with their rows, or move to another
        file, which ``tell`` reports. With ``csv_safe``, cells of issues.csv that a spreadsheet
        would take for formulas get an apostrophe.
        """
        from noiseproof.audit.again import renew_decisions

        target = check_folder(folder, force=force)
        lock = Lock(target / LOCK)
        try:
            if not lock.held:
                raise FileExistsError(
                    f"Expected a folder of this audit alone, another one writes to {target}."
                )
            check_folder(folder, force=force)  # another one may just have finished
            renewal = renew_decisions(target, self) if force else None
            written = write_audit(target, self, csv_safe=csv_safe)
            if renewal is not None:
                renewal.finish()  # decisions by the numbers of rows in this audit come after it
                tell(renewal.message)
        finally:
            lock.release()
        return written

    def export(
        self, tool: str, path: PathLike, *, all_rows: bool | None = None, force: bool = False
    ) -> Path:
        """Write what another tool imports: label-studio, argilla, cvat, fiftyone, coco or
        imagefolder.

        The first three get issues alone by default, the others all rows. An existing file, or a
        folder that holds files, is refused, unless ``force``.
        """
        from noiseproof.audit.exchange import TOOLS
        from noiseproof.audit.exchange.base import exported_rows

        chosen, target = TOOLS[tool](), Path(path)
        chosen.check(self.data.source)
        rows = list(exported_rows(self, chosen.takes_all_rows if all_rows is None else all_rows))
        chosen.write(self, target, rows, force=force)
        return target
