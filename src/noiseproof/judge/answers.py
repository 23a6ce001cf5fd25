"""Noise of yes and no: which share of the labels of a question is missing, and which share of the
others was added.

With the predicted probability p of yes, from models that did not see the row's own labels, the
given answer is

    P(given yes | x) = α + (1 − μ − α)·q        q = P(true yes | x) = σ(a·z + b)        z = log (p −
    α)₊/(1 − μ − p)₊

with the rates μ of missing and α of added labels; z is the log odds of yes before the noise, if p
is calibrated, and a and b calibrate it. Where q comes close to 0 and 1 the rates are seen directly,
as the shares of yes and no that are left there. Where it does not, overlap explains as much as
noise does. So no single pair of rates is chosen: a and b are fitted to each pair of a grid, and
P(wrong) is the mean over the grid, weighted by the likelihood of the given answers and by a prior
that all questions share and that is estimated from them (empirical Bayes, Robbins 1956).

The curve is only about right, and more rows do not mend it: with all rows in the likelihood one
pair of rates would exclude its neighbours. So the range of the share of wrong answers lets them
count as 250 at most.

Constants were chosen on the sets of ``benchmarks/multilabel.py --dev``; without it, the benchmark
reports on others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from noiseproof.core.arrays import Bools, Floats, Floats32

MISSING = (0.0, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
ADDED = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
RATES = np.array([(missing, added) for missing in MISSING for added in ADDED])  # (C, 2)
# of the prior density of both rates, exp(−FALL·rate), before any question is seen
FALL = np.array([6.0, 30.0])
PSEUDO = 2.0  # questions that this density counts as
TEMPER = 0.5  # power of the likelihood: rows differ less independently than it assumes
# rows that count at most for the range of the share, and its ends
RANGE_ROWS = 250
QUANTILES = (0.015, 0.985)
# of the log-likelihood, by which labels without noise fit worse where the range excludes them
NO_NOISE = 0.25
# of a: the most likely value, and the deviations of log a above and below it
SLOPE = 1.3
SHARPER = 0.5
FLATTER = 0.2
OFFSET = 1.0  # standard deviation of b: predictions are rarely far off on average
BINS = 80  # of rows by p, which the curve is fitted to
FITS = 25  # rounds of the curve
SHARED = 10  # rounds of the prior
FLOOR = 0.005  # of both parts of z: (t)₊ is (t + √(t² + 4·FLOOR²))/2, which falls on below 0
POINTS = np.linspace(0, 1, 1001)  # of p at which P(wrong) is computed; rows lie between them


@dataclass(frozen=True, eq=False)
class AnswerNoise:
    """The noise of K questions: weights of the C pairs of rates, and P(wrong) by p."""

    weights: Floats  # (K, C)
    wrong_at: Floats  # (K, 2, P): of the answers no and yes, at ``POINTS``
    interval: Floats  # (K, 2): of the share of wrong answers

    @property
    def transition(self) -> Floats:
        """T[k, i, j] = P(given j | true i) of no and yes, (K, 2, 2)."""
        missing, added = (self.weights @ RATES).T
        return np.stack([np.stack([1 - added, added], 1), np.stack([missing, 1 - missing], 1)], 1)

    def wrong(self, answers: Bools, probs: Floats32) -> Floats:
        """P(the given answer is wrong), (N, K)."""
        wrong = np.empty(answers.shape)
        for k, (no, yes) in enumerate(self.wrong_at):
            p = probs[:, k]
            wrong[:, k] = np.where(
                answers[:, k], np.interp(p, POINTS, yes), np.interp(p, POINTS, no)
            )
        return wrong


def _log_odds(p: Floats) -> Floats:
    """z of predictions (n,) for each pair of rates, (C, n)."""
    yes = p - RATES[:, 1:]
    no = 1 - RATES[:, :1] - p
    return np.asarray(np.log((yes + np.hypot(yes, 2 * FLOOR)) / (no + np.hypot(no, 2 * FLOOR))))


def fit_answer_noise(
    answers: Bools,
    probs: Floats32,
    *,
    noisy: Bools | None = None,
    trusted: Bools | None = None,
) -> AnswerNoise:
    """Fit the noise of ``answers`` (N, K) with the predictions ``probs`` (N, K).

    Rates refer to the ``noisy`` rows (N,), by default all; ``trusted`` rows have no noise, so
    that their answers alone show q.

    >>> random = np.random.default_rng(0)
    >>> p = random.uniform(size=(4000, 1)).astype(np.float32)
    >>> true = random.uniform(size=p.shape) < 1 / (1 + (1 / p - 1) ** 4)  # sharper than p
    >>> answers = true & (random.uniform(size=p.shape) > 0.3)
    >>> fit_answer_noise(answers, p).transition.round(1).tolist()
    [[[1.0, 0.0], [0.3, 0.7]]]
    """
    noisy = np.ones(len(answers), dtype=bool) if noisy is None else noisy
    trusted = np.zeros(len(answers), dtype=bool) if trusted is None else trusted
    curves = []
    for k in range(answers.shape[1]):
        p = probs[:, k].astype(np.float64)
        yes = answers[:, k]
        curves.append(
            _Curves.fit(_Bins.of(p[noisy], yes[noisy]), _Bins.of(p[trusted], yes[trusted]))
        )
    likelihood = np.stack([curve.likelihood for curve in curves])
    temper = min(TEMPER, RANGE_ROWS / max(1, noisy.sum()))
    weights, wide = _weights(likelihood, temper)
    wrong_at = []
    ends = []
    for curve, weight, wide_weight in zip(curves, weights, wide, strict=True):
        wrong_at.append(np.tensordot(weight, curve.wrong_at(POINTS), 1))
        ends.append(curve.rate_quantiles(weight, wide_weight))
    low, high = np.moveaxis(np.stack(ends), 2, 0)  # (K, 2)
    excludes_none = temper * (likelihood.max(1) - likelihood[:, 0]) > NO_NOISE
    interval = np.stack([excludes_none * low.min(1), high.max(1)], 1)
    return AnswerNoise(weights, np.stack(wrong_at), interval)


@dataclass(frozen=True, eq=False)
class _Bins:
    """Rows in bins of similar predictions."""

    p: Floats  # (B,): mean prediction
    rows: Floats  # (B,)
    yes: Floats  # (B,): rows with the answer yes

    @classmethod
    def of(cls, p: Floats, yes: Bools) -> _Bins:
        parts = np.array_split(np.argsort(p, kind="stable"), min(BINS, len(p))) if len(p) else []
        counted = [(p[part].mean(), len(part), yes[part].sum()) for part in parts]
        return cls(*np.array(counted, dtype=np.float64).reshape(-1, 3).T)


@dataclass(frozen=True, eq=False)
class _Curves:
    """q = σ(e^slope·z + offset) for each of C pairs of rates, and the log-likelihood of the
    answers.
    """

    slope: Floats
    offset: Floats
    likelihood: Floats
    noisy: _Bins

    @classmethod
    def fit(cls, noisy: _Bins, trusted: _Bins) -> _Curves:
        """Maximise the likelihood and the prior of a and b by Levenberg-Marquardt steps with
        Fisher's information.
        """
        rows = np.append(noisy.rows, trusted.rows)
        yes = np.append(noisy.yes, trusted.yes)
        z = _log_odds(np.append(noisy.p, trusted.p))  # (C, B)
        has_noise = np.arange(len(rows)) < len(noisy.p)
        low = RATES[:, 1:] * has_noise
        span = 1 - RATES.sum(1, keepdims=True) * has_noise
        start = np.log(SLOPE)

        def firmness(slope: Floats) -> Floats:
            return np.where(slope < start, FLATTER**-2, SHARPER**-2)

        def predict(slope: Floats, offset: Floats) -> tuple[Floats, Floats, Floats]:
            q = expit(np.clip(np.exp(slope)[:, None] * z + offset[:, None], -30, 30))
            p = low + span * q
            fit = (yes * np.log(p) + (rows - yes) * np.log1p(-p)).sum(1)
            return q, p, fit - ((slope - start) ** 2 * firmness(slope) + (offset / OFFSET) ** 2) / 2

        at = np.stack([np.full(len(RATES), start), np.zeros(len(RATES))])
        q, p, best = predict(*at)
        damping = np.full(len(RATES), 1e-3)
        for _ in range(FITS):
            slope, offset = at
            dp = span * q * (1 - q)
            dz = np.exp(slope)[:, None] * z
            variance = p * (1 - p)
            pull = (yes - rows * p) / variance * dp
            weight = rows / variance * dp**2
            g_slope = (pull * dz).sum(1) - (slope - start) * firmness(slope)
            g_offset = pull.sum(1) - offset / OFFSET**2
            h_slope = ((weight * dz**2).sum(1) + firmness(slope)) * (1 + damping)
            h_offset = (weight.sum(1) + OFFSET**-2) * (1 + damping)
            h_both = (weight * dz).sum(1)
            det = h_slope * h_offset - h_both**2
            by_slope = np.clip((h_offset * g_slope - h_both * g_offset) / det, -1, 1)
            by_offset = np.clip((h_slope * g_offset - h_both * g_slope) / det, -3, 3)
            moved = at + np.stack([by_slope, by_offset])
            new_q, new_p, new = predict(*moved)
            is_better = new > best
            at = np.where(is_better, moved, at)
            q = np.where(is_better[:, None], new_q, q)
            p = np.where(is_better[:, None], new_p, p)
            best = np.maximum(new, best)
            damping = np.where(is_better, damping / 3, damping * 5)
        slope, offset = at
        return cls(slope, offset, best, noisy)

    def wrong_at(self, p: Floats) -> Floats:
        """P(wrong) of the answers no and yes at predictions (n,) for each pair of rates, (C, 2,
        n).
        """
        z = np.exp(self.slope)[:, None] * _log_odds(p) + self.offset[:, None]
        q = expit(np.clip(z, -30, 30))
        missing = RATES[:, :1]
        added = RATES[:, 1:]
        yes = added + (1 - missing - added) * q
        return np.stack([missing * q / (1 - yes), added * (1 - q) / yes], 1)

    def rate_quantiles(self, *weights: Floats) -> Floats:
        """Both quantiles of the share of wrong answers by each of W weights (C,), (W, 2)."""
        no, yes = np.moveaxis(self.wrong_at(self.noisy.p), 1, 0)  # (C, B)
        wrong = yes @ self.noisy.yes + no @ (self.noisy.rows - self.noisy.yes)
        rate = wrong / self.noisy.rows.sum()
        order = np.argsort(rate)
        at = [np.searchsorted(each[order].cumsum(), QUANTILES) for each in weights]
        return np.asarray(rate[order[np.minimum(at, len(order) - 1)]])


def _weights(likelihood: Floats, temper: float) -> tuple[Floats, Floats]:
    """The weight of each pair of rates for each question, (K, C), from log-likelihoods (K, C).

    And once more by the same prior with the likelihood to the power ``temper``.
    """
    widths = np.outer(np.gradient(np.array(MISSING)), np.gradient(np.array(ADDED))).ravel()
    first = np.exp(-(RATES @ FALL)) * widths
    first /= first.sum()
    below = likelihood - likelihood.max(1, keepdims=True)
    prior = first
    for _ in range(SHARED + 1):
        weights = np.exp(TEMPER * below) * prior
        weights /= weights.sum(1, keepdims=True)
        prior = (weights.sum(0) + PSEUDO * first) / (len(weights) + PSEUDO)
    wide = np.exp(temper * below) * prior
    return np.asarray(weights), np.asarray(wide / wide.sum(1, keepdims=True))
