"""Which labels of rows with several of them are wrong: each label is a question, judged as one label of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.evidence import VOTERS, Evidence
from noiseproof.audit.evidence.gather import AuditEvidence
from noiseproof.audit.evidence.neighbours import nearest, neighbour_votes
from noiseproof.audit.evidence.questions import both, guessed
from noiseproof.audit.judge.cut import cut_labels
from noiseproof.audit.judge.goal import parse_goal
from noiseproof.audit.judge.interval import NEGLIGIBLE
from noiseproof.audit.labels import CountedRows, LabelIssues, find_label_issues
from noiseproof.audit.sets import LabelSets, as_indicators
from noiseproof.core.checks import check_count


@dataclass(frozen=True, eq=False, repr=False)
class LabelSetIssues(LabelIssues):
    """The quality of N rows with several of K labels, and of each label of a row.

    ``quality`` is that of the worst label of a row, and ``suggested_answers`` the labels without those that are issues
    and with those that are missing. ``class_rates`` (K,) are shares of wrong labels among the given ones,
    ``transition`` (K, 2, 2) the probabilities of no and yes by the true answer, ``cut`` (K, 2) those of no and yes.
    """

    names: tuple[str, ...] = ()  # (K,)
    answers: NDArray[np.bool_] = None  # type: ignore[assignment]  # (N, K): the given labels
    label_quality: NDArray[np.float32] = None  # type: ignore[assignment]  # (N, K): P(the answer is right)
    label_is_issue: NDArray[np.bool_] = None  # type: ignore[assignment]  # (N, K)
    label_probs: NDArray[np.float32] = None  # type: ignore[assignment]  # (N, K): the predictions' probability of yes
    suggested_answers: NDArray[np.bool_] = None  # type: ignore[assignment]  # (N, K)
    is_judged: NDArray[np.bool_] = None  # type: ignore[assignment]  # (K,): whether enough rows have the label

    def __repr__(self) -> str:
        pairs = f"{int(self.label_is_issue.sum())} labels to add or remove in {int(self.is_issue.sum())} rows"
        share = f"about {self.noise_rate:.1%} wrong" if self.is_predictable else "hardly predictable"
        return f"LabelSetIssues({len(self.quality)} rows of {len(self.names)} labels, {pairs}, {share})"

    @property
    def lost_rates(self) -> NDArray[np.float64]:
        """The share of rows that should have each label and lack it, (K,)."""
        return np.asarray(self.transition[:, 1, 0])

    def changes(self, row: int) -> tuple[list[str], list[str]]:
        """The labels to add to a row, and those to remove from it."""
        issues, given = self.label_is_issue[row], self.answers[row]
        return tuple(  # type: ignore[return-value]
            [self.names[k] for k in np.flatnonzero(issues & (given == is_given))] for is_given in (False, True)
        )


def find_label_set_issues(
    labels: Any,
    pred_probs: Any = None,
    *,
    classes: Sequence[Any] | None = None,
    features: Any = None,
    evidence: Evidence | None = None,
    trusted: Any = None,
    annotators: Any = None,
    groups: Any = None,
    counted: Any = None,
    goal: str = "f1",
    neighbours: int = VOTERS,
    seed: int = 0,
) -> LabelSetIssues:
    """``find_label_issues`` for rows with several labels, by the probability (N, K) of each label.

    Each label is judged by itself: noise rate and posterior are those of its own two classes, no and yes. The cut is
    made for all labels of all rows together; a budget counts labels.

    >>> p = [[0.9, 0.8], [0.1, 0.9], [0.8, 0.1], [0.2, 0.9]]
    >>> found = find_label_set_issues([[1, 0], [0, 1], [1, 0], [0, 1]], p)
    >>> int(found.label_quality.argmin()), found.suggested_answers[0].tolist()
    (1, [True, True])
    """
    if annotators is not None:
        raise ValueError("Expected one label a row beside `annotators`, got several. Leave one of them out.")
    answers, names = as_indicators(labels, classes)
    probs = _checked(pred_probs if evidence is None else evidence.pred_probs, answers)
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is not None and evidence is None and len(probs) > 2:
        near = nearest(features, min(check_count("neighbours", neighbours, 1), len(probs) - 1), seed=seed)
        votes = neighbour_votes(answers.astype(np.float32), near, answers.shape[1], apart=groups)[0]
        agreement = np.where(answers == 1, votes, 1 - votes).astype(np.float32)
        probs = np.stack([_with_votes(answers[:, k], probs[:, k], votes[:, k]) for k in range(answers.shape[1])], 1)
    guess = guessed(answers, probs) if evidence is None or evidence.guess is None else evidence.guess
    is_judged = np.array([1 < yes < len(answers) - 1 for yes in answers.sum(0)])
    judged = [
        find_label_issues(
            answers[:, k], evidence=Evidence(
                both(probs[:, k]), None, guess=guess[:, k],
                dynamics=None if evidence is None or evidence.dynamics is None else both(evidence.dynamics[:, k]),
            ), trusted=trusted, counted=counted, seed=seed,
        )
        for k in np.flatnonzero(is_judged).tolist()
    ]  # fmt: skip
    if not judged:
        raise ValueError("Expected a label that two rows or more have, and two or more do not, got none.")
    rows = CountedRows.of(trusted, counted, len(answers)).uncertain.numpy()
    return _joined(answers.astype(bool), names, probs, agreement, is_judged, judged, rows, goal)


def _cut(
    answers: NDArray[np.bool_], quality: NDArray[np.float32], uncertain: NDArray[np.bool_], rate: float, goal: str
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which labels are issues, (N, K), and the cut of each label that is absent or given, (K, 2)."""
    K = answers.shape[1]
    codes, wrong = torch.from_numpy(2 * np.arange(K) + answers), torch.from_numpy(1 - quality.astype(np.float64))
    cut = cut_labels(
        codes.flatten(), wrong.flatten(), torch.from_numpy(uncertain).flatten(), rate, 2 * K, goal=parse_goal(goal),
        may_be_fine=rate <= NEGLIGIBLE, is_predictable=True,
    )  # fmt: skip
    return cut.is_issue.view(-1, K).numpy(), cut.thresholds.view(K, 2).numpy()


def _joined(
    answers: NDArray[np.bool_],
    names: tuple[str, ...],
    probs: NDArray[np.float32],
    agreement: NDArray[np.float32] | None,
    is_judged: NDArray[np.bool_],
    judged: Sequence[LabelIssues],
    uncertain: NDArray[np.bool_],
    goal: str,
) -> LabelSetIssues:
    """The judgement on all rows from that on each label; labels that are not judged count as right."""
    N, K = answers.shape
    at, rows = np.flatnonzero(is_judged), np.arange(N)

    def table(name: str, missing: float, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        values = np.full((*shape, K), missing, dtype=dtype)
        values[..., at] = np.stack([getattr(each, name) for each in judged], -1)
        return values

    quality, margin = table("quality", 1.0, (N,), np.float32), table("margin", np.inf, (N,), np.float32)
    predictable = table("is_predictable", 0, (), bool)
    mean = {name: float(np.mean([getattr(each, name) for each in judged])) * len(judged) / K for name in (
        "noise_rate", "hit_rate", "chance_rate")}  # fmt: skip
    is_issue, cut = _cut(answers, quality, uncertain[:, None] & predictable, mean["noise_rate"], goal)
    worst = np.where(is_judged, quality, 2.0).argmin(1)
    flips = is_issue | ((np.arange(K) == worst[:, None]) & ~is_issue.any(1, keepdims=True))
    confidence = np.where(answers, probs, 1 - probs)[rows, worst].astype(np.float32)
    eye = np.broadcast_to(np.eye(2), (K, 2, 2)).copy()
    eye[at] = np.stack([each.transition for each in judged])
    right = quality[uncertain].astype(np.float64)
    low, high = (float(np.mean([each.noise_interval[i] for each in judged])) * len(judged) / K for i in (0, 1))
    class_rates = np.zeros(K)
    class_rates[at] = [each.class_rates[1] for each in judged]
    return LabelSetIssues(
        quality=quality[rows, worst],
        is_issue=np.asarray(is_issue.any(1)),
        suggested=np.zeros(N, dtype=np.int64),  # `judge_sets` fills in the numbers of words
        suggestion_quality=np.where(flips, 1 - quality, 1.0).min(1).astype(np.float32),
        predicted=np.zeros(N, dtype=np.int64),
        noise_interval=(low, high),
        class_rates=class_rates,
        transition=eye,
        cut=cut,
        margin=margin[rows, worst],
        confidence=confidence,
        suggested_confidence=1 - confidence,
        neighbour_agreement=None if agreement is None else agreement[rows, worst],
        is_predictable=bool(predictable.any()),
        false_positive_rate=float(right[is_issue[uncertain]].sum() / max(right.sum(), 1e-12)),
        **mean,
        names=names,
        answers=answers,
        label_quality=quality,
        label_is_issue=is_issue,
        label_probs=probs,
        suggested_answers=answers ^ flips,
        is_judged=is_judged,
    )


def judge_sets(evidence: AuditEvidence, goal: str, seed: int) -> tuple[AuditEvidence, LabelSetIssues]:
    """The judgement on the rows of an audit, and the evidence with the suggested sets among its classes."""
    data, trained = evidence.data, evidence.training
    assert data.sets is not None
    sets, x = data.sets, data.x
    issues = find_label_set_issues(
        data.answers, data.pred_probs, classes=sets.names, evidence=trained,
        features=x if trained is None else None, trusted=data.trusted, groups=evidence.groups,
        counted=data.row >= 0, goal=goal, seed=seed,
    )  # fmt: skip
    words, number = list(data.classes), {word: k for k, word in enumerate(data.classes)}

    def coded(answers: NDArray[np.bool_]) -> NDArray[np.int64]:
        codes = []
        for row, given in zip(answers, data.given.tolist(), strict=True):
            word = sets.spell(row, data.classes[given])
            if word not in number:
                number[word] = len(words)
                words.append(word)
            codes.append(number[word])
        return np.array(codes, dtype=np.int64)

    suggested, predicted = coded(issues.suggested_answers), coded(issues.label_probs > 0.5)
    issues = replace(issues, suggested=suggested, predicted=predicted)
    data = replace(data, classes=tuple(words), sets=LabelSets.of(words, sets.separator, sets.names))
    return replace(evidence, data=data), issues


def _checked(pred_probs: Any, answers: NDArray[np.int64]) -> NDArray[np.float32]:
    if pred_probs is None:
        raise ValueError("Expected `pred_probs` (N, K), the probability of each label, or `evidence`, got neither.")
    probs = np.asarray(pred_probs, dtype=np.float32)
    is_valid = probs.shape == answers.shape and bool(np.isfinite(probs).all())
    if not is_valid or (probs < 0).any() or (probs > 1).any():
        raise ValueError(
            f"Expected `pred_probs` of shape {answers.shape} from 0 to 1, the probability of each label of each row, "
            f"got shape {probs.shape}{f' from {probs.min():.4g} to {probs.max():.4g}' if probs.size else ''}."
        )
    return probs


def _with_votes(answers: NDArray[np.int64], p: NDArray[np.float32], votes: NDArray[np.float32]) -> NDArray[np.float32]:
    """(1 − a)·p + a·v, with the a of 0, ¼, ½ under which the given answers are most likely."""
    candidates = [(1 - a) * p + a * votes for a in (0.0, 0.25, 0.5)]
    likely = [float(np.log(np.clip(np.where(answers == 1, q, 1 - q), 1e-3, 1)).mean()) for q in candidates]
    return np.asarray(candidates[int(np.argmax(likely))], dtype=np.float32)
