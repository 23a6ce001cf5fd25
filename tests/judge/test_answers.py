"""Rates of missing and added labels, and P(wrong): against simulated truth, another optimiser, and
known rates.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize  # type: ignore[import-untyped]

from noiseproof.judge import answers as judge
from noiseproof.judge.answers import RATES, fit_answer_noise


def simulated(rates: list[tuple[float, float]], sharpness: float, rows: int = 4000, seed: int = 0):
    """True and given answers, P(true yes), and predictions of the given answers, which have errors,
    (N, K).
    """
    random = np.random.default_rng(seed)
    z = sharpness * random.normal(size=(rows, len(rates))) - 0.5
    q = 1 / (1 + np.exp(-z))
    missing, added = np.array(rates).T
    p = added + (1 - missing - added) * q
    true, draw = random.uniform(size=q.shape) < q, random.uniform(size=q.shape)
    predicted = p / (p + (1 - p) * np.exp(0.5 * random.normal(size=p.shape)))
    return true, np.where(true, draw >= missing, draw < added), q, predicted.astype(np.float32)


def exact(given: np.ndarray, q: np.ndarray, rates: list[tuple[float, float]]) -> np.ndarray:
    """P(wrong) by Bayes' rule with the rates that made the noise."""
    missing, added = np.array(rates).T
    yes, no = added * (1 - q) / (added * (1 - q) + (1 - missing) * q + 1e-12), missing * q
    return np.where(given, yes, no / (no + (1 - added) * (1 - q)))


@pytest.mark.parametrize("rates", [(0.3, 0.0), (0.15, 0.05), (0.0, 0.05), (0.0, 0.0)])
def test_rates_and_probabilities_are_those_that_made_the_noise(rates: tuple[float, float]) -> None:
    true, given, q, p = simulated([rates] * 3, sharpness=6)
    noise = fit_answer_noise(given, p)
    # a step of the grid
    assert noise.transition[:, 1, 0] == pytest.approx([rates[0]] * 3, abs=0.05)
    assert noise.transition[:, 0, 1] == pytest.approx([rates[1]] * 3, abs=0.01)
    assert np.allclose(noise.transition.sum(2), 1)
    wrong = noise.wrong(given, p)
    assert np.abs(wrong - exact(given, q, [rates] * 3)).mean() < 0.04
    assert wrong.mean(0) == pytest.approx((true != given).mean(0), abs=0.03)
    low, high = noise.interval.T
    assert (low - 0.01 <= (true != given).mean(0)).all() and (
        (true != given).mean(0) <= high + 0.01
    ).all()


def coverage(rates: tuple[float, float], rows: int, sharpness: float, seeds: range) -> float:
    """How often the range of the share of wrong answers, of all questions as an audit reports it,
    has the truth.
    """
    hits = 0
    for seed in seeds:
        true, given, _, p = simulated([rates] * 5, sharpness, rows, seed)
        noise = fit_answer_noise(given, p)
        (low, high), mean = noise.interval.mean(0), noise.wrong(given, p).mean()
        error = 1.96 * np.sqrt(mean * (1 - mean) / given.size)
        hits += bool(low - error <= (true != given).mean() <= high + error)
    return hits / len(seeds)


ALL_RATES = [(0.3, 0.0), (0.15, 0.05), (0.05, 0.01), (0.0, 0.05), (0.0, 0.0)]


@pytest.mark.parametrize("rates", ALL_RATES)
@pytest.mark.parametrize(("rows", "sharpness"), [(500, 3.0), (2000, 3.0), (2000, 6.0)])
def test_the_interval_of_the_rate_covers_it(
    rates: tuple[float, float], rows: int, sharpness: float
) -> None:
    assert coverage(rates, rows, sharpness, range(5)) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("rates", ALL_RATES)
@pytest.mark.parametrize("sharpness", [1.5, 3.0, 6.0])
@pytest.mark.parametrize("rows", [500, 2000, 8000])
def test_the_interval_covers_the_rate_in_nine_of_ten_runs(
    rates: tuple[float, float], sharpness: float, rows: int
) -> None:
    """Seeds from 100 on were used to choose constants."""
    assert coverage(rates, rows, sharpness, range(20)) >= 0.9


def test_overlap_is_not_called_noise() -> None:
    true, given, _, p = simulated([(0.0, 0.0)] * 5, sharpness=2.0, rows=1500)
    assert np.array_equal(true, given) and ((p > 0.5) != true).mean() > 0.2
    noise = fit_answer_noise(given, p)
    assert noise.wrong(given, p).mean() < 0.03 and (noise.interval[:, 0] < 0.01).all()


def test_questions_tell_each_other_which_noise_is_likely() -> None:
    """A question that is hard to predict among easy ones, and by itself."""
    rates = [(0.3, 0.0)] * 7
    _, given, _, p = simulated(rates, sharpness=6, rows=1500)
    _, hard, _, weak = simulated(rates[:1], sharpness=1.0, rows=1500, seed=1)
    alone = fit_answer_noise(hard, weak).transition[0, 1, 0]
    beside = fit_answer_noise(np.hstack([given, hard]), np.hstack([p, weak])).transition[7, 1, 0]
    assert abs(beside - 0.3) < abs(alone - 0.3) and abs(beside - 0.3) < 0.05


def test_trusted_rows_tell_overlap_from_noise() -> None:
    true, given, _, p = simulated([(0.3, 0.0)], sharpness=1.0, rows=4000)
    trusted = np.arange(4000) < 1500
    given[trusted] = true[trusted]
    noise = fit_answer_noise(given, p, noisy=~trusted, trusted=trusted)
    assert noise.transition[0, 1, 0] == pytest.approx(0.3, abs=0.08)
    assert noise.transition[0, 0, 1] < 0.02


def test_curves_have_the_largest_posterior() -> None:
    _, given, _, p = simulated([(0.15, 0.05)], sharpness=3, rows=600)
    p = p[:, 0].astype(float)
    bins, none = judge._Bins.of(p, given[:, 0]), judge._Bins.of(p[:0], given[:0, 0])
    curves = judge._Curves.fit(bins, none)
    for c in (0, 40, 90, len(RATES) - 20):
        missing, added = RATES[c]
        above, below = (
            (t + np.sqrt(t**2 + 4 * 0.005**2)) / 2 for t in (bins.p - added, 1 - missing - bins.p)
        )
        z = np.log(above / below)

        def loss(
            at: np.ndarray, z: np.ndarray = z, missing: float = missing, added: float = added
        ) -> float:
            q = 1 / (1 + np.exp(-(np.exp(at[0]) * z + at[1])))
            yes = added + (1 - missing - added) * q
            fit = (bins.yes * np.log(yes) + (bins.rows - bins.yes) * np.log(1 - yes)).sum()
            away = at[0] - np.log(1.3)
            return -fit + (away / (0.5 if away > 0 else 0.2)) ** 2 / 2 + at[1] ** 2 / 2

        best = min(
            (minimize(loss, (slope, 0.0), method="Nelder-Mead") for slope in (-0.5, 0.3)),
            key=lambda r: r.fun,
        )
        assert -curves.likelihood[c] == pytest.approx(best.fun, abs=0.01)


def test_the_order_of_rows_and_questions_does_not_matter() -> None:
    _, given, _, p = simulated([(0.3, 0.0), (0.1, 0.05), (0.0, 0.0)], sharpness=3, rows=500)
    wrong = fit_answer_noise(given, p).wrong(given, p)
    rows, questions = np.random.default_rng(1).permutation(500), [2, 0, 1]
    other, others = given[rows][:, questions], p[rows][:, questions]
    assert fit_answer_noise(other, others).wrong(other, others) == pytest.approx(
        wrong[rows][:, questions], abs=1e-6
    )


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_predictions_that_are_constant_or_certain_give_numbers(p: float) -> None:
    given = np.arange(40)[:, None] % 2 == 0
    probs = np.full((40, 1), p, dtype=np.float32)
    probs[:20] = given[:20]
    wrong = fit_answer_noise(given, probs).wrong(given, probs)
    assert np.isfinite(wrong).all() and (wrong >= 0).all() and (wrong <= 1).all()
