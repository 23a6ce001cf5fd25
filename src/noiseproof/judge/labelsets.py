"""Which labels of rows with several of them are wrong: each label is a question, judged as one
label of two classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from noiseproof.core.arrays import Bools, Floats, Floats32, Ints
from noiseproof.core.checks import check_count
from noiseproof.data.labelsets import Labels, read_sets
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
    sets = labels if isinstance(labels, Labels) else read_sets(labels, classes)
    codes = sets.targets
    probs = _checked(pred_probs if evidence is None else evidence.pred_probs, codes)
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is not None and evidence is None and len(probs) > 2:
        k = min(check_count("neighbours", neighbours, 1), len(probs) - 1)
        near = nearest(features, k, seed=seed)
        votes = neighbour_votes(codes.astype(np.float32), near, codes.shape[1], apart=groups)[0]
        agreement = np.where(codes == 1, votes, 1 - votes).astype(np.float32)
        for yes, p, share in zip(codes.T, probs.T, votes.T, strict=True):
            pair = (torch.from_numpy(both(each)) for each in (p, share))
            p[:] = with_votes(torch.from_numpy(yes), *pair)[:, 1]
    guess = None if evidence is None else evidence.guess
    if guess is None:
        guess = guessed(codes, probs)
    rows = CountedRows.of(trusted, counted, len(sets))
    return SetJudge.fit(sets.answers, probs, guess, rows).judge(sets, probs, agreement, goal)


def judge_decided_sets(
    labels: Labels,
    decided: Ints,
    training: Evidence,
    undecided: Evidence,
    *,
    trusted: Any = None,
    counted: Any = None,
    goal: str = "f1",
) -> LabelSetIssues:
    """Judge sets of labels by a ``training`` with decisions: noise and what may be called are
    without them.

    As with one label per row, the quality of a row does not depend on the decision on it, and rates
    count decided rows as decided.

    Args:
        decided: (N,) the numbers of the decided words, −1 for none.
    """
    assert undecided.guess is not None
    answers = labels.answers
    rows = CountedRows.of(trusted, counted, len(labels))
    judge = SetJudge.fit(answers, undecided.pred_probs, undecided.guess, rows)
    issues = judge.judge(labels, training.pred_probs, training.neighbour_agreement, goal)
    known = 1 - issues.label_quality.astype(np.float64)
    is_decided = decided >= 0
    known[is_decided] = (labels.changed(decided).answers != answers)[is_decided]
    rate = float(known[rows.counted.numpy()].mean())
    low, high = issues.noise_interval
    return replace(
        issues,
        noise_rate=rate,
        noise_interval=(min(low, rate), max(high, rate)),
        class_rates=_class_rates(known, answers, rows),
    )


@dataclass(frozen=True, eq=False)
class SetJudge:
    """What all rows share, by which their labels are judged."""

    rows: CountedRows
    is_judged: Bools  # (K,): labels that enough rows have, and enough lack
    noise: AnswerNoise  # of the J labels that are judged
    predictability: Sequence[Predictability]  # (J,)
    may_call: Bools  # (K,): which labels are predicted well enough to call rows wrong
    may_be_fine: bool  # whether so few labels look wrong that there may be none

    @classmethod
    def fit(cls, answers: Bools, probs: Floats32, guess: Ints, rows: CountedRows) -> SetJudge:
        has = answers.sum(0)
        is_judged = (has > 1) & (has < len(answers) - 1)
        if not is_judged.any():
            raise ValueError(
                "Expected a label that two rows or more have, and two or more do not, got none."
            )
        noisy = rows.uncertain if bool(rows.uncertain.any()) else rows.counted
        noise = fit_answer_noise(
            answers[:, is_judged],
            probs[:, is_judged],
            noisy=noisy.numpy(),
            trusted=rows.trusted.numpy(),
        )
        counted = rows.counted.numpy()
        codes = answers[counted].astype(np.int64)
        predictability = []
        may_call = np.zeros_like(is_judged)
        for k in np.flatnonzero(is_judged):
            one = Guesses(codes[:, k], guess[counted, k]).predictability(2)
            predictability.append(one)
            # of rare ones the ranking is enough
            is_learned = one.is_predictable or _is_ranked(answers[:, k], probs[:, k])
            may_call[k] = rows.calibrate or is_learned
        judge = cls(rows, is_judged, noise, predictability, may_call, False)
        return replace(judge, may_be_fine=judge.rate(judge.wrong(answers, probs)) <= NEGLIGIBLE)

    def wrong(self, answers: Bools, probs: Floats32) -> Floats:
        """P(wrong) of each label, (N, K): 0 of trusted rows, and of labels that are not judged."""
        wrong = np.zeros(answers.shape)
        wrong[:, self.is_judged] = self.noise.wrong(
            answers[:, self.is_judged], probs[:, self.is_judged]
        )
        wrong[self.rows.trusted.numpy()] = 0
        return wrong

    def rate(self, wrong: Floats) -> float:
        """The share of wrong labels among all of the counted rows, from P(wrong) (N, K)."""
        number = int(self.rows.counted.sum()) * wrong.shape[1]
        return float(wrong[self.rows.uncertain.numpy()].sum() / number)

    def judge(
        self, labels: Labels, probs: Floats32, agreement: Floats32 | None, goal: str
    ) -> LabelSetIssues:
        """The judgement on all labels; those that are not judged count as right."""
        answers = labels.answers
        N, K = answers.shape
        every_row = np.arange(N)
        wrong = self.wrong(answers, probs)
        quality = (1 - wrong).astype(np.float32)
        noise_rate = self.rate(wrong)
        uncertain = self.rows.uncertain.numpy()
        low, high = self.noise.interval.sum(0) * self.rows.uncertain_share / K
        error = Share.of(noise_rate, int(uncertain.sum()) * K).error if uncertain.any() else 0.0
        aim = parse_goal(goal)
        least = DOUBTFUL if aim.aim == "f1" and self.may_be_fine else 0.0
        candidates = uncertain[:, None] & self.may_call & (wrong > least)
        cut = worst_labels(
            torch.from_numpy(wrong).flatten(), torch.from_numpy(candidates).flatten(), 2 * K, aim
        )
        is_issue = cut.is_issue.view(N, K).numpy()
        # (N,): the label that stands for a row, its most doubtful one
        worst = np.where(self.is_judged, quality, 2.0).argmin(1)
        # The suggestion changes all wrong labels, and that one where none is called wrong.
        flips = is_issue.copy()
        no_issue = ~is_issue.any(1)
        flips[no_issue, worst[no_issue]] = True
        confidence = np.where(answers, probs, 1 - probs)[every_row, worst].astype(np.float32)
        transition = np.tile(np.eye(2), (K, 1, 1))
        transition[self.is_judged] = self.noise.transition
        right = quality[uncertain].astype(np.float64)
        suggested = [labels.spell(row, better) for row, better in enumerate(answers ^ flips)]
        predicted = [labels.spell(row, likely) for row, likely in enumerate(probs > 0.5)]
        words = labels.with_words((*suggested, *predicted)).words
        number = {word: k for k, word in enumerate(words)}
        return LabelSetIssues(
            quality=quality[every_row, worst],
            is_issue=np.asarray(is_issue.any(1)),
            suggested=np.array([number[word] for word in suggested], dtype=np.int64),
            suggestion_quality=np.where(flips, 1 - quality, 1.0).min(1).astype(np.float32),
            predicted=np.array([number[word] for word in predicted], dtype=np.int64),
            noise_rate=noise_rate,
            noise_interval=(max(0.0, float(low) - error), min(1.0, float(high) + error)),
            class_rates=_class_rates(wrong, answers, self.rows),
            transition=transition,
            cut=cut.thresholds.view(K, 2).numpy(),
            margin=np.log((confidence + SMALL) / (1 - confidence + SMALL)).astype(np.float32),
            confidence=confidence,
            suggested_confidence=1 - confidence,
            neighbour_agreement=None if agreement is None else agreement[every_row, worst],
            is_predictable=bool(self.may_call.any()),
            false_positive_rate=float(right[is_issue[uncertain]].sum() / max(right.sum(), 1e-12)),
            hit_rate=float(np.mean([one.hit_rate for one in self.predictability])),
            chance_rate=float(np.mean([one.chance_rate for one in self.predictability])),
            classes=words,
            names=labels.names,
            answers=answers,
            label_quality=quality,
            label_is_issue=is_issue,
            label_probs=probs,
            suggested_answers=answers ^ flips,
            is_judged=self.is_judged,
        )


def _class_rates(wrong: Floats, answers: Bools, rows: CountedRows) -> Floats:
    """The share of wrong ones among the given labels of the counted rows, (K,)."""
    given = answers & rows.counted.numpy()[:, None]
    return np.asarray((wrong * given).sum(0) / np.maximum(given.sum(0), 1))


def _is_ranked(answers: Bools, probs: Floats32) -> bool:
    """Whether predictions rank rows with the label first: their AUC is above 0.5 by twice its
    error.
    """
    from sklearn.metrics import roc_auc_score

    yes = int(answers.sum())
    error = np.sqrt((len(answers) + 1) / (12 * yes * (len(answers) - yes)))
    return bool(roc_auc_score(answers, probs) - 2 * error > 0.5)


def _checked(pred_probs: Any, answers: Ints) -> Floats32:
    if pred_probs is None:
        raise ValueError(
            "Expected `pred_probs` (N, K), the probability of each label, or `evidence`, got"
            " neither."
        )
    probs = np.array(pred_probs, dtype=np.float32)
    is_valid = probs.shape == answers.shape and bool(np.isfinite(probs).all())
    if not is_valid or (probs < 0).any() or (probs > 1).any():
        values = f" from {probs.min():.4g} to {probs.max():.4g}" if probs.size else ""
        raise ValueError(
            f"Expected `pred_probs` of shape {answers.shape} from 0 to 1, the probability of each"
            f" label of each row, got shape {probs.shape}{values}. Apply the sigmoid to logits."
        )
    return probs
