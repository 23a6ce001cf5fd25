"""P(wrong) of every row, moved to what the measured decisions say.

A logistic regression in the models' log odds and in −log of the rank, held near fixed coefficients
by a penalty, gives a first curve; isotonic regression along the ranking (Ayer et al. 1955) joins
it, worth a hundred decisions, with the answers, each weighted by the rows of its stratum that it
stands for. So P(wrong) falls along the ranking, few answers change the curve as a whole, and many
decide it. The constants were chosen on sets with real mistakes and on planted ones
(``benchmarks/decisions.py`` with ``--real`` and ``--dev``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.judge.cut import parse_goal
from noiseproof.judge.measure.design import is_wrong
from noiseproof.judge.measure.estimate import Population, Sample
from noiseproof.judge.measure.interval import agreement
from noiseproof.judge.saved import Decision, SavedAudit

CURVE_WEIGHT = 100.0  # decisions that the first curve counts as
COEFFICIENTS = np.array([-1.0, 0.3, 0.5])  # of 1, −log rank − 1, log odds
PENALTY = np.array([1.0, 10.0, 3.0])
SUGGESTION_PENALTY = 1.0  # on the square of the shift
LARGEST = 8.0  # log odds


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Probabilities of the rows of an audit, in the order of its issues."""

    wrong: Floats  # (N,) P(the given label is wrong)
    suggestion: Floats  # (N,) P(the suggested label is right)
    is_issue: Bools  # (N,) by the goal

    @property
    def accepted(self) -> Bools:
        """Rows whose suggested label is more likely right than the given one, (N,)."""
        return self.suggestion > 1 - self.wrong


def recalibrate(
    audit: SavedAudit,
    population: Population | None,
    answers: Sequence[Decision],
    goal: str = "f1",
) -> Calibrated:
    """Return the probabilities of an audit's rows after the measured ``answers``; without any, the
    models' own.

    Ties are broken by the models' ranking, then by row: the order of the list, which this changes,
    has no influence.
    """
    frame = audit.issues
    wrong = 1 - frame["model_quality"].to_numpy(np.float64)
    # where labels are wrong
    right = frame["model_suggestion_quality"].to_numpy(np.float64) / np.maximum(wrong, 1e-12)
    ranking = np.lexsort((frame["row"], -wrong))
    rank = np.argsort(ranking)
    if population is not None and (sample := Sample.of(population, answers)):
        strata = population.strata[sample.at]
        stands_for = np.bincount(population.strata)[strata] / np.bincount(strata)[strata]
        wrong = calibrate_wrong(wrong[ranking], rank[sample.at], sample.wrong, stands_for)[rank]
        right = calibrate_suggestion(
            right, sample.at[sample.wrong > 0], sample.suggested[sample.wrong > 0]
        )
    worst = np.lexsort((rank, -wrong))
    is_issue = np.zeros(len(frame), dtype=bool)
    is_issue[worst[: parse_goal(goal).count(wrong[worst])]] = True
    return Calibrated(wrong, wrong * np.clip(right, 0, 1), is_issue)


def find_slips(audit: SavedAudit, answers: Sequence[Decision], calibrated: Calibrated) -> set[int]:
    """Return the rows whose decided change is likelier a mistake of the reviewer than of the label.

    With the error e of one answer, known from rows that were asked twice, the odds that a label is
    wrong are P(wrong)/(1 − P(wrong))·((1 − e)/e)^(answers that say so − others). Without such rows
    there are no slips.
    """
    people = agreement(answers, len(audit.classes))
    if people is None or people.error.value == 0:
        return set()
    votes: dict[int, int] = {}
    for answer in answers:
        if answer.names_label:
            votes[answer.row] = votes.get(answer.row, 0) + 2 * is_wrong(answer) - 1
    wrong = dict(zip(audit.issues["row"].tolist(), logit(calibrated.wrong).tolist(), strict=True))
    trust = -float(logit(people.error.value))
    changed = {answer.row for answer in answers if is_wrong(answer) and answer.asked != "repeat"}
    return {row for row in changed if wrong[row] + trust * votes[row] < 0}


def calibrate_wrong(
    wrong: Floats,
    at: Ints,
    answers: Floats,
    weight: Floats,
) -> Floats:
    """Return P(wrong) (N,), descending, after ``answers`` (n,), 1 for wrong, on the rows ``at``.

    Each answer stands for ``weight`` (n,) rows.
    """
    from sklearn.isotonic import isotonic_regression

    rank = np.arange(len(wrong))
    log_odds = _log_odds(wrong)
    # (N, 3): 1, −log of the rank less its mean, and log odds
    x = np.stack([np.ones(len(wrong)), -np.log((rank + 0.5) / len(rank)) - 1, log_odds], 1)
    curve = expit(x @ _fit(x[at], answers, weight / weight.mean()))
    # The answers are further observations at the ranks of their rows.
    place = np.concatenate([rank, at])
    by_rank = np.argsort(place, kind="stable")
    values = np.concatenate([curve, answers])[by_rank]
    weights = np.concatenate([np.full(len(rank), CURVE_WEIGHT / len(at)), weight])[by_rank]
    calibrated = np.empty(len(rank))
    # Of several observations at a rank, the last counts.
    calibrated[place[by_rank]] = isotonic_regression(
        values, sample_weight=weights, increasing=False
    )
    return calibrated


def _fit(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Return the coefficients (3,) of a logistic regression with a quadratic penalty on their
    distance from ``COEFFICIENTS``.
    """
    from scipy.optimize import minimize

    def loss(b: Floats) -> float:
        return float(
            weight @ (np.logaddexp(0, x @ b) - y * (x @ b)) + PENALTY @ (b - COEFFICIENTS) ** 2 / 2
        )

    def gradient(b: Floats) -> Floats:
        return np.asarray(x.T @ (weight * (expit(x @ b) - y)) + PENALTY * (b - COEFFICIENTS))

    def hessian(b: Floats) -> Floats:
        p = expit(x @ b)
        return np.asarray((x.T * (weight * p * (1 - p))) @ x + np.diag(PENALTY))

    found = minimize(
        loss, COEFFICIENTS, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-9}
    )
    return np.asarray(
        np.maximum(found.x, [-np.inf, 0, 0])
    )  # P(wrong) never rises along the ranking


def calibrate_suggestion(right: Floats, at: Ints, answers: Floats) -> Floats:
    """Return P(suggestion right | label wrong) (N,), its log odds shifted by ``answers`` (n,) on
    wrong labels ``at``.

    The shift maximises the likelihood with a quadratic penalty: few answers move it little.
    """
    from scipy.optimize import brentq

    log_odds = _log_odds(right)
    most = len(at) / SUGGESTION_PENALTY + 1
    shift = brentq(
        lambda s: (answers - expit(log_odds[at] + s)).sum() - SUGGESTION_PENALTY * s, -most, most
    )
    return np.asarray(expit(log_odds + shift))


def _log_odds(p: Floats) -> Floats:
    # rounded quotients of probabilities may lie a little above one
    return np.asarray(np.clip(logit(np.clip(p, 0, 1)), -LARGEST, LARGEST))
