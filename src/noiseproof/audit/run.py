"""The audit of a dataset from end to end."""

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from noiseproof.audit.files import FORMAT
from noiseproof.audit.inputs import read_rows
from noiseproof.audit.issues import find_issues
from noiseproof.audit.report import LabelReport
from noiseproof.audit.rows import digest_all
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.core.messages import Progress, preview
from noiseproof.core.plugins import load_object
from noiseproof.core.registry import near_names
from noiseproof.core.tensors import check_device
from noiseproof.judge.cut import parse_goal
from noiseproof.judge.evidence.gather import AuditEvidence, Mode, StageClock, check_models, gather
from noiseproof.judge.evidence.network import CORRECTED, METHOD
from noiseproof.judge.evidence.questions import METHOD as METHOD_OF_SETS
from noiseproof.judge.issues.base import chosen_types
from noiseproof.judge.labelissues import LabelIssues
from noiseproof.judge.labels import find_label_issues, judge_decided
from noiseproof.judge.labelsets import find_label_set_issues, judge_decided_sets

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
        issues: names of issue types to look for as well as wrong labels, near-duplicates and
            outliers, or ``all``, the default.
    """
    _check_options(reading)
    if mode not in ("thorough", "fast"):
        raise ValueError(f"Expected `mode` to be thorough or fast, got {mode!r}.")
    check_models(method, model, estimator)
    check_device(device)
    parse_goal(goal)  # before an hour of work
    chosen_types(issues)
    data = _rows_of(data, reading, seed, progress)
    training: dict[str, Any] = {
        "method": method or (METHOD_OF_SETS if data.labels.are_sets else METHOD),
        "model": "auto" if model is None else model,
        "epochs": epochs,
    }
    clock = StageClock(progress, data.seconds)
    if folds is None:
        folds = 5 if len(data) < MANY else 3
    work = 0 if data.x is None else NUMBER_WORK * data.x.size
    with threads_for(work):
        with clock("digests of rows"):  # of the data as it was read, before hours of training
            row_digests = data.source.row_digests
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
        evidence = _with_unused(evidence, {"method": method, "epochs": epochs})
        with clock("judging labels"):
            labels = _judge(evidence, goal, seed)
        evidence = evidence.with_words(labels.classes or ())  # also of sets that are suggested
        with clock("other issues"):
            found = find_issues(evidence, labels, issues)
    data = evidence.data
    trained = evidence.training
    assert isinstance(data, AuditData)
    has_folds = trained is not None and mode == "thorough"
    config = {
        "format": FORMAT,
        **data.source.config,
        "classes": list(data.classes),
        "mode": mode if trained else "predictions",
        **training,
        "estimator": repr(estimator) if hasattr(estimator, "fit") else estimator,
        "models": _shares(trained.weights) if trained else [],
        "folds": folds if has_folds else None,
        "goal": goal,
        "issues": issues,
        "seed": seed,
        "source_rows": data.source_rows,
        "rows_sha256": digest_all(row_digests),
        "versions": _versions(),
        "command": command,
    }
    recall = evidence.surroundings.neighbour_recall
    out_of_sample = trained.pred_probs if trained and has_folds else None
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


def _judge(evidence: AuditEvidence, goal: str, seed: int) -> LabelIssues:
    """The quality of each label, with the decisions on others."""
    data = evidence.data
    trained = evidence.training
    undecided = evidence.undecided
    votes = data.labels.votes
    options: dict[str, Any] = {"trusted": data.trusted, "counted": data.row >= 0, "goal": goal}
    given: Any = data.given
    judge: Callable[..., LabelIssues] = find_label_issues
    if data.labels.are_sets:
        given = data.labels
        judge = find_label_set_issues
        if trained is not None and undecided is not None:
            assert data.decided is not None
            return judge_decided_sets(given, data.decided, trained, undecided, **options)
    labels = judge(
        given,
        data.pred_probs,
        evidence=undecided or trained,
        features=data.x,
        annotators=votes,
        groups=evidence.groups,
        seed=seed,
        **options,
    )
    if trained is None or undecided is None:
        return labels
    assert data.decided is not None
    return judge_decided(
        labels, given, data.decided, trained, undecided, annotators=votes, **options
    )


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
    labels does not count as another.
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
    versions = {"python": platform.python_version()}
    for name in ("noiseproof", "torch", "numpy", "scikit-learn", "pandas"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            versions[name] = "unknown"
    return versions
