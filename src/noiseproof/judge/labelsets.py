"""Which labels of rows with several of them are wrong: each label is a question, judged as one
label of two classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from noiseproof.core.arrays import Bools, Floats, Floats32, Ints
from noiseproof.core.checks import check_count
from noiseproof.data.labelsets import as_indicators
from noiseproof.judge.answers import AnswerNoise, fit_answer_noise
from noiseproof.judge.cut import parse_goal, worst_labels
from noiseproof.judge.evidence.neighbours import VOTERS, nearest, neighbour_votes
from noiseproof.judge.evidence.network import Evidence
from noiseproof.judge.evidence.questions import both, guessed
from noiseproof.judge.interval import NEGLIGIBLE, Guesses, Predictability, Share
from noiseproof.judge.labelissues import CountedRows, LabelSetIssues, with_votes
from noiseproof.judge.posterior import SMALL

DOUBTFUL = 0.1  # P(wrong) up to which no label is called where all may be right


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

    Each label is a question with its own rates of missing and added labels, of which the other
    questions say what is likely (``judge/answers.py``). The cut is made for all labels of all rows
    together; a budget counts labels.

    >>> p = [[0.9, 0.8], [0.1, 0.9], [0.8, 0.1], [0.2, 0.9]]
    >>> found = find_label_set_issues([[1, 0], [0, 1], [1, 0], [0, 1]], p)
    >>> int(found.label_quality.argmin()), found.suggested_answers[0].tolist()
    (1, [True, True])
    """
    if annotators is not None:
        raise ValueError(
            "Expected one label per row with `annotators`, got several. Leave one of them out."
        )
    answers, names = as_indicators(labels, classes)
    probs = _checked(pred_probs if evidence is None else evidence.pred_probs, answers)
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is not None and evidence is None and len(probs) > 2:
        near = nearest(
            features, min(check_count("neighbours", neighbours, 1), len(probs) - 1), seed=seed
        )
        votes = neighbour_votes(answers.astype(np.float32), near, answers.shape[1], apart=groups)[0]
        agreement = np.where(answers == 1, votes, 1 - votes).astype(np.float32)
        columns = zip(torch.from_numpy(answers).T, probs.T, votes.T, strict=True)
        probs = np.stack(
            [
                with_votes(y, *(torch.from_numpy(both(each)) for each in pair))[:, 1]
                for y, *pair in columns
            ],
            1,
        )
    guess = (
        guessed(answers, probs) if evidence is None or evidence.guess is None else evidence.guess
    )
    rows = CountedRows.of(trusted, counted, len(answers))
    judged = _judge(answers.astype(bool), probs, guess, rows)
    return _joined(answers.astype(bool), names, probs, agreement, judged, rows, goal)


@dataclass(frozen=True, eq=False)
class _Judged:
    """The judgement on J of K labels, those that enough rows have and lack."""

    at: Ints  # (J,)
    noise: AnswerNoise
    wrong: Floats  # (N, J)
    predictability: Sequence[Predictability]  # (J,)
    may_call: Bools  # (K,): which labels are predicted well enough to call rows wrong
    may_be_fine: bool  # whether so few labels look wrong that there may be none


def _judge(
    answers: Bools,
    probs: Floats32,
    guess: Ints,
    rows: CountedRows,
) -> _Judged:
    at = np.flatnonzero([1 < yes < len(answers) - 1 for yes in answers.sum(0)])
    if not len(at):
        raise ValueError(
            "Expected a label that two rows or more have, and two or more do not, got none."
        )
    K, counted = answers.shape[1], np.flatnonzero(rows.counted.numpy())
    answers, probs = answers[:, at], probs[:, at]
    noisy = rows.uncertain if bool(rows.uncertain.any()) else rows.counted
    noise = fit_answer_noise(answers, probs, noisy=noisy.numpy(), trusted=rows.trusted.numpy())
    wrong = np.where(rows.trusted.numpy()[:, None], 0, noise.wrong(answers, probs))
    codes = answers[counted].astype(np.int64)
    guesses = [Guesses(codes[:, j], guess[counted, k]) for j, k in enumerate(at.tolist())]
    predictability = [each.predictability(2) for each in guesses]
    may_call = np.zeros(K, dtype=bool)
    may_call[at] = rows.calibrate or [
        # of rare ones the ranking is enough
        one.is_predictable or _is_ranked(answers[:, j], probs[:, j])
        for j, one in enumerate(predictability)
    ]
    return _Judged(at, noise, wrong, predictability, may_call, _rate(wrong, rows, K) <= NEGLIGIBLE)


def _rate(wrong: Floats, rows: CountedRows, num_labels: int) -> float:
    """The share of wrong labels among all K of the counted rows, from P(wrong) of some of them;
    trusted ones have 0.
    """
    return float(wrong[rows.uncertain.numpy()].sum() / (rows.counted.sum() * num_labels))


def _class_rates(wrong: Floats, answers: Bools, rows: CountedRows) -> Floats:
    """The share of wrong ones among the given labels of the counted rows, (K,)."""
    given = answers & rows.counted.numpy()[:, None]
    return np.asarray((wrong * given).sum(0) / np.maximum(given.sum(0), 1))


def _is_ranked(answers: Bools, probs: Floats32) -> bool:
    """Whether predictions rank rows with the label first: their AUC is above 0.5 by twice its
    error.
    """
    from scipy.stats import rankdata  # its import takes half a second

    yes, n = int(answers.sum()), len(answers)
    pairs = max(1, yes * (n - yes))
    auc = (rankdata(probs)[answers].sum() - yes * (yes + 1) / 2) / pairs
    return bool(auc - 2 * np.sqrt((n + 1) / (12 * pairs)) > 0.5)


def _joined(
    answers: Bools,
    names: tuple[str, ...],
    probs: Floats32,
    agreement: Floats32 | None,
    judged: _Judged,
    counted: CountedRows,
    goal: str,
) -> LabelSetIssues:
    """The judgement on all rows from that on each label; labels that are not judged count as
    right.
    """
    (N, K), at = answers.shape, judged.at
    rows, is_judged, uncertain = np.arange(N), np.isin(np.arange(K), at), counted.uncertain.numpy()

    wrong = np.zeros((N, K))
    wrong[:, at] = judged.wrong
    quality = (1 - wrong).astype(np.float32)
    share = float(uncertain.sum() / counted.counted.sum())  # of the rows that rates refer to
    noise_rate = _rate(wrong, counted, K)
    low, high = judged.noise.interval.sum(0) * share / K
    error = Share.of(noise_rate, int(uncertain.sum()) * K).error if share else 0.0
    aim, may_call = parse_goal(goal), judged.may_call
    may_be_fine = aim.aim == "f1" and judged.may_be_fine
    candidates = uncertain[:, None] & may_call & (wrong > (DOUBTFUL if may_be_fine else 0))
    flat_wrong, flat_candidates = (torch.from_numpy(each).flatten() for each in (wrong, candidates))
    cut = worst_labels(flat_wrong, flat_candidates, 2 * K, aim)
    is_issue = cut.is_issue.view(N, K).numpy()
    worst = np.where(is_judged, quality, 2.0).argmin(1)
    flips = is_issue | ((np.arange(K) == worst[:, None]) & ~is_issue.any(1, keepdims=True))
    confidence = np.where(answers, probs, 1 - probs)[rows, worst].astype(np.float32)
    eye = np.broadcast_to(np.eye(2), (K, 2, 2)).copy()
    eye[at] = judged.noise.transition
    right = quality[uncertain].astype(np.float64)
    return LabelSetIssues(
        quality=quality[rows, worst],
        is_issue=np.asarray(is_issue.any(1)),
        suggested=np.zeros(N, dtype=np.int64),  # `judge_sets` fills in the numbers of words
        suggestion_quality=np.where(flips, 1 - quality, 1.0).min(1).astype(np.float32),
        predicted=np.zeros(N, dtype=np.int64),
        noise_rate=noise_rate,
        noise_interval=(max(0.0, float(low) - error), min(1.0, float(high) + error)),
        class_rates=_class_rates(wrong, answers, counted),
        transition=eye,
        cut=cut.thresholds.view(K, 2).numpy(),
        margin=np.log((confidence + SMALL) / (1 - confidence + SMALL)).astype(np.float32),
        confidence=confidence,
        suggested_confidence=1 - confidence,
        neighbour_agreement=None if agreement is None else agreement[rows, worst],
        is_predictable=bool(may_call.any()),
        false_positive_rate=float(right[is_issue[uncertain]].sum() / max(right.sum(), 1e-12)),
        hit_rate=float(np.mean([each.hit_rate for each in judged.predictability])),
        chance_rate=float(np.mean([each.chance_rate for each in judged.predictability])),
        names=names,
        answers=answers,
        label_quality=quality,
        label_is_issue=is_issue,
        label_probs=probs,
        suggested_answers=answers ^ flips,
        is_judged=is_judged,
    )


def judge_decided_sets(
    answers: Bools,
    decided: Bools,
    is_decided: Bools,
    training: Evidence,
    undecided: Evidence,
    *,
    names: tuple[str, ...],
    trusted: Any = None,
    counted: Any = None,
    goal: str = "f1",
) -> LabelSetIssues:
    """Judge labels (N, K) by a ``training`` with decisions: noise and what may be called are
    without them.

    As with one label per row, the quality of a row does not depend on the decision on it, and rates
    count decided rows as decided.

    Args:
        decided: (N, K) the decided labels, in the rows where ``is_decided`` (N,) is true.
    """
    assert undecided.guess is not None
    rows = CountedRows.of(trusted, counted, len(answers))
    judged = _judge(answers, undecided.pred_probs, undecided.guess, rows)
    probs, at = training.pred_probs, judged.at
    wrong = np.where(
        rows.trusted.numpy()[:, None], 0, judged.noise.wrong(answers[:, at], probs[:, at])
    )
    agreement = training.neighbour_agreement
    issues = _joined(answers, names, probs, agreement, replace(judged, wrong=wrong), rows, goal)
    known = 1 - issues.label_quality.astype(np.float64)
    known[is_decided] = decided[is_decided] != answers[is_decided]
    rate = float(known[rows.counted.numpy()].mean())
    low, high = issues.noise_interval
    return replace(
        issues,
        noise_rate=rate,
        noise_interval=(min(low, rate), max(high, rate)),
        class_rates=_class_rates(known, answers, rows),
    )


def _checked(pred_probs: Any, answers: Ints) -> Floats32:
    if pred_probs is None:
        raise ValueError(
            "Expected `pred_probs` (N, K), the probability of each label, or `evidence`, got"
            " neither."
        )
    probs = np.asarray(pred_probs, dtype=np.float32)
    is_valid = probs.shape == answers.shape and bool(np.isfinite(probs).all())
    if not is_valid or (probs < 0).any() or (probs > 1).any():
        values = f" from {probs.min():.4g} to {probs.max():.4g}" if probs.size else ""
        raise ValueError(
            f"Expected `pred_probs` of shape {answers.shape} from 0 to 1, the probability of each"
            f" label of each row, got shape {probs.shape}{values}."
        )
    return probs
