"""Which labels are wrong: the stages posterior → noise rate → interval → cut, from labels and
evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.core.messages import preview
from noiseproof.core.probs import check_probabilities
from noiseproof.data.labelsets import are_lists, is_matrix
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import fit_annotators
from noiseproof.judge.cut import parse_goal, worst_labels
from noiseproof.judge.evidence.neighbours import VOTERS, nearest, neighbour_votes
from noiseproof.judge.evidence.network import Evidence
from noiseproof.judge.interval import Guesses, rate_interval
from noiseproof.judge.labelissues import (
    CountedRows,
    LabelIssues,
    RowJudge,
    class_means,
    select,
    with_votes,
)
from noiseproof.judge.labelsets import find_label_set_issues
from noiseproof.judge.posterior import (
    ClassNoise,
    NoisyRows,
    RowPosterior,
    fit_class_noise,
)
from noiseproof.judge.rate import (
    NoiseRate,
    RateEstimates,
    estimate_rates,
    shifted,
)

MIN_VOTED = 50  # rows with neighbours that may vote, below which the models' guesses count
DYNAMICS = 0.25  # weight of predictions for training rows next to out-of-sample ones


def find_label_issues(
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
) -> LabelIssues:
    """Rank the given labels from bad to good by the class-noise posterior, and cut the list.

    Mistakes of people, rules and tools look like overlap between classes, so predictions alone
    cannot tell how many labels are wrong. The noise rate is what sets like this one turned out to
    have (`judge/prior.py`), between the errors that no overlap explains and the most that such sets
    had; the posterior's log odds are shifted until their mean agrees. The cut maximises the
    expected F1. Predictions that match no more labels than by chance contradict none: nothing is an
    issue. Where confident neighbours contradict more labels than the range allows, its upper end is
    raised to their share. Decisions on a sample of rows measure the rate without assumptions.

    Args:
        labels: (N,) classes as integers from 0, or as words; of several labels a row (N, K) zeros
            and ones, or lists, for which each label is judged by itself (``LabelSetIssues``).
        pred_probs: (N, K), from models that did not see the row's own label; of several labels, of
            each by itself.
        classes: names of the K columns; by default, the labels that are words, sorted as
            scikit-learn does.
        features: (N, F): neighbours vote, too, as far as that makes the labels more
            likely.
        evidence: of ``cross_validate`` or ``watch_training``, in place of ``pred_probs`` and
            ``features``.
        trusted: (N,) bool, or row numbers: labels known to be right. 20 or more calibrate the
            predictions, so that the noise rate has no range but the sampling error.
        annotators: ``Votes``, or (N, A) labels of several annotators, −1 where one gave none.
        groups: (N,): rows of one group (near-duplicates) are not neighbours.
        counted: (N,) bool, or row numbers: the rows that rates, matrix and cuts refer to; all
            others only help.
        goal: what the cut is made for: ``f1``, ``precision=0.9``, ``recall=0.9`` (as expected from
            P(wrong)), or ``budget=300`` rows; class limits apply to ``f1`` alone.
        neighbours: how many vote.

    >>> issues = find_label_issues(
    ...     [0, 0, 1, 1, 0], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]
    ... )
    >>> int(issues.quality.argmin()), int(issues.suggested[4])
    (4, 1)
    """
    if is_matrix(labels) or are_lists(labels):
        return find_label_set_issues(
            labels,
            pred_probs,
            classes=classes,
            features=features,
            evidence=evidence,
            trusted=trusted,
            annotators=annotators,
            groups=groups,
            counted=counted,
            goal=goal,
            neighbours=neighbours,
            seed=seed,
        )
    # (N, K)
    probs = _checked_probabilities(evidence.pred_probs if evidence is not None else pred_probs)
    given, names = _checked_labels(labels, probs, classes)
    N, K = probs.shape
    rows = CountedRows.of(trusted, counted, N)
    people = None if annotators is None else _votes(annotators, N, K)
    probs, agreement = _with_neighbours(given, probs, evidence, features, groups, neighbours, seed)
    guesses = _guesses(given, probs, evidence, rows)
    predictability = guesses.predictability(K)
    is_predictable = rows.calibrate or people is not None or predictability.is_predictable
    judge, estimates, probs, posterior = _fit(given, probs, rows, evidence, people, seed)
    wrong = posterior.wrong.masked_fill(rows.trusted, 0)
    rate = _noise_rate(
        estimates, wrong, rows, has_annotators=people is not None, is_predictable=is_predictable
    )
    contradiction = guesses.confident_contradiction() if is_predictable and people is None else None
    interval = rate_interval(rate, int(rows.counted.sum()), contradiction)
    wrong[rows.uncertain], shift = rows.shift_to_rate(wrong, rate.estimate)
    cut = worst_labels(wrong, rows.uncertain, K, parse_goal(goal), is_predictable=is_predictable)
    return LabelIssues(
        **judge.describe(given, probs, posterior, wrong, cut, rows.counted),
        noise_rate=rate.estimate,
        noise_interval=(interval.low, interval.high),
        class_rates=class_means(wrong, given, K, rows.counted),
        neighbour_agreement=agreement,
        unlearned=None if evidence is None else evidence.unlearned,
        doubt=None if evidence is None else evidence.doubt,
        **asdict(replace(predictability, is_predictable=is_predictable)),
        contradicted=interval.contradicted,
        classes=names,
        judge=replace(judge, shift=shift),
        voted=None if people is None else judge.voted(given, probs, people),
    )


def _fit(
    given: Tensor,
    probs: Tensor,
    rows: CountedRows,
    evidence: Evidence | None,
    votes: Votes | None,
    seed: int,
) -> tuple[RowJudge, RateEstimates, Tensor, RowPosterior]:
    """T and β, the noise rates, the predictions to rank by (with those for training rows, if any),
    and what follows.
    """
    generator = torch.Generator().manual_seed(seed)
    fitted = select(~rows.trusted if rows.calibrate else rows.counted)

    def fit(p: Tensor) -> tuple[ClassNoise, NoisyRows, NoisyRows]:
        noisy = NoisyRows.of(given[fitted], p[fitted])
        sample = noisy.sample(generator)
        trusted = (given[rows.trusted], p[rows.trusted]) if rows.calibrate else None
        return fit_class_noise(noisy, sample, trusted), noisy, sample

    noise, noisy, sample = fit(probs)
    estimates = estimate_rates(noisy, sample, noise.beta)
    ranking = probs if evidence is None else with_dynamics(probs, evidence, votes)
    if ranking is not probs:
        probs = ranking
        noise, _, sample = fit(probs)
    if votes is None and not rows.calibrate:
        noise = noise.for_ranking(sample)
    judge = RowJudge(noise)
    if votes is not None:
        judge = replace(judge, annotators=fit_annotators(judge.voted(given, probs, votes)))
    return judge, estimates, probs, judge.posterior(given, probs, votes)


def _checked_probabilities(pred_probs: Any) -> Tensor:
    """Probabilities (N, K) float32 whose rows sum to one."""
    if pred_probs is None:
        raise ValueError(
            "Expected `pred_probs` (N, K) or `evidence`, got neither. cross_validate makes"
            " evidence."
        )
    probs = check_probabilities(
        "pred_probs", np.ascontiguousarray(pred_probs), tolerance=0.02, dtype=torch.float32
    )
    return probs / probs.sum(1, keepdim=True)


def _checked_labels(
    labels: Any, probs: Tensor, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[Any, ...] | None]:
    """Class numbers (N,) int64, and the classes of labels that are words."""
    given, K = np.asarray(labels), probs.shape[1]
    if given.ndim != 1 or len(given) != len(probs):
        raise ValueError(
            f"Expected `labels` of shape ({len(probs)},), one for each row, got {given.shape}."
        )
    if classes is not None or given.dtype.kind in "USOb":
        return _numbered(given, K, classes)
    if given.dtype.kind not in "iu":
        raise TypeError(f"Expected words or integers from 0 as `labels`, got dtype {given.dtype}.")
    y = torch.as_tensor(given.astype(np.int64))
    if int(y.min()) < 0 or int(y.max()) >= K:
        raise ValueError(
            f"Expected labels in 0 … {K - 1}, the columns of `pred_probs`, got {int(y.min())} …"
            f" {int(y.max())}."
        )
    return y, None


def _numbered(
    given: NDArray[Any], num_columns: int, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """Class numbers (N,) of labels by their ``classes``, which are by default their sorted
    values.
    """
    words = given.tolist()
    if missing := [i for i, word in enumerate(words) if word is None or word != word]:
        raise ValueError(
            f"Expected a label in every row, got none in {len(missing)}, the first of them"
            f" {missing[0]}."
        )
    names = tuple(np.unique(given).tolist() if classes is None else classes)
    if len(names) != num_columns:
        raise ValueError(
            f"Expected a class for each of the {num_columns} columns of `pred_probs`, got"
            f" {len(names)}: {preview(names)}. Name all classes, in the order of the columns, with"
            " `classes`."
        )
    number = {name: k for k, name in enumerate(names)}
    if unknown := sorted({str(word) for word in words if word not in number}):
        raise ValueError(
            f"Expected `labels` among `classes`, {preview(names)}, got {preview(unknown)}."
        )
    return torch.tensor([number[word] for word in words], dtype=torch.int64), names


def _noise_rate(
    estimates: RateEstimates,
    wrong: Tensor,
    rows: CountedRows,
    *,
    has_annotators: bool,
    is_predictable: bool,
) -> NoiseRate:
    """The rate of the counted rows; annotators and trusted rows tell overlap from noise."""
    if has_annotators:
        return NoiseRate.exact(float(wrong[rows.counted].mean()))
    estimates = estimates.times(rows.uncertain_share)
    if rows.calibrate:
        return NoiseRate.exact(estimates.converged)
    return NoiseRate.likely(estimates, is_predictable=is_predictable)


def _votes(annotators: Any, num_rows: int, num_classes: int) -> Votes:
    if isinstance(annotators, Votes):
        return annotators
    table = np.asarray(annotators)
    if table.ndim != 2 or len(table) != num_rows or table.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `annotators` to be integers of shape ({num_rows}, A), −1 where one gave no"
            f" label, got {table.dtype} of shape {table.shape}."
        )
    if table.size and (table.min() < -1 or table.max() >= num_classes):
        raise ValueError(
            f"Expected annotators' labels in −1 … {num_classes - 1}, got {table.min()} …"
            f" {table.max()}."
        )
    return Votes.of_table(table)


def _guesses(given: Tensor, probs: Tensor, evidence: Evidence | None, rows: CountedRows) -> Guesses:
    """Guesses for the counted rows; where neighbours made them, for those whose neighbours may
    vote.
    """
    labels, counted = given.numpy(), np.flatnonzero(rows.counted.numpy())
    if evidence is not None and evidence.guess is not None:
        if evidence.guess_confidence is None or evidence.neighbour_agreement is None:
            return Guesses(labels[counted], evidence.guess[counted])
        voted = counted[np.isfinite(evidence.neighbour_agreement[counted])]
        if len(voted) >= min(MIN_VOTED, len(counted)):
            return Guesses(labels[voted], evidence.guess[voted], evidence.guess_confidence[voted])
    return Guesses(labels[counted], probs.argmax(1).numpy()[counted])


def _with_neighbours(
    given: Tensor,
    probs: Tensor,
    evidence: Evidence | None,
    features: Any,
    groups: Any,
    neighbours: int,
    seed: int,
) -> tuple[Tensor, NDArray[np.float32] | None]:
    """Predictions (N, K) with the votes of neighbours among ``features``, and the share that
    agrees, (N,).
    """
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is None or agreement is not None or len(probs) <= 2:
        return probs, agreement
    near = nearest(
        features, min(check_count("neighbours", neighbours, 1), len(probs) - 1), seed=seed
    )
    votes, agreement = neighbour_votes(given, near, probs.shape[1], apart=groups)
    return (
        probs if evidence is not None else with_votes(given, probs, torch.from_numpy(votes))
    ), agreement


def with_dynamics(probs: Tensor, evidence: Evidence, votes: Votes | None) -> Tensor:
    """Predictions (N, K) with those for training rows, which rank well, but agree too much to count
    errors by.

    Next to ``votes`` they are left out: the labels that taught these models are the votes, which
    would count twice.
    """
    if evidence.dynamics is None or votes is not None:
        return probs
    return torch.lerp(probs, torch.from_numpy(evidence.dynamics), DYNAMICS)


def judge_decided(
    issues: LabelIssues,
    given: NDArray[np.int64],
    decided: NDArray[np.int64],
    training: Evidence,
    undecided: Evidence,
    *,
    trusted: Any = None,
    annotators: Votes | None = None,
    counted: Any = None,
    goal: str = "f1",
) -> LabelIssues:
    """Judge the ``given`` labels by a ``training`` with decisions, from ``issues`` by one without,
    ``undecided``.

    What all rows share, or a row's own label has trained (T, β, the shift of the log odds,
    predictions for training rows), stays as without decisions: the quality of a row does not depend
    on the decision on it. Only the noise rate counts decided rows as decided.

    Args:
        decided: (N,) the decided labels, −1 for none.
    """
    assert issues.judge is not None
    y, K = torch.from_numpy(given), training.pred_probs.shape[1]
    rows = CountedRows.of(trusted, counted, len(given))
    probs = with_dynamics(torch.from_numpy(training.pred_probs), undecided, annotators)
    posterior = issues.judge.posterior(y, probs, annotators)
    wrong = shifted(posterior.wrong, issues.judge.shift).masked_fill(rows.trusted, 0)
    cut = worst_labels(
        wrong, rows.uncertain, K, parse_goal(goal), is_predictable=issues.is_predictable
    )
    reviewed = torch.from_numpy(decided)
    known = torch.where(reviewed >= 0, (reviewed != y).double(), wrong)
    rate = float(known[rows.counted].mean())
    low, high = issues.noise_interval
    return replace(
        issues,
        **issues.judge.describe(y, probs, posterior, wrong, cut, rows.counted),
        noise_rate=rate,
        noise_interval=(min(low, rate), max(high, rate)),
        class_rates=class_means(known, y, K, rows.counted),
        neighbour_agreement=training.neighbour_agreement,
        unlearned=training.unlearned,
        doubt=training.doubt,
        voted=None if annotators is None else issues.judge.voted(y, probs, annotators),
    )
