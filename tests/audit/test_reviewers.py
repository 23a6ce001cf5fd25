"""Reviewers err: their agreement and error against exact enumeration, corrected rates against
simulation.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from noiseproof.audit.decisions import Decision
from noiseproof.judge.measure.interval import Bounded, agreement, corrected, exact_share

ERROR = 0.05


def answer(row: int, label: str, asked: str = "measure", reviewer: str = "") -> Decision:
    decision = "skip" if not label else "keep" if label == "a" else "other"
    return Decision(row, str(row), "a", decision, label, reviewer, asked)  # type: ignore[arg-type]


def pairs(first: str, second: str) -> list[Decision]:
    return [answer(row, label) for row, label in enumerate(first)] + [
        answer(row, label, "repeat") for row, label in enumerate(second)
    ]


@pytest.mark.parametrize(
    ("count", "total"), [(0, 5), (1, 5), (3, 40), (39, 40), (40, 40), (120, 400)]
)
def test_the_exact_interval_is_scipys(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95, "exact")
    share = exact_share(count, total)
    assert share.value == count / total
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_kappa_is_the_exact_fraction_for_all_answers_on_three_rows() -> None:
    for first, second in product(product("abc", repeat=3), repeat=2):
        found = agreement(pairs("".join(first), "".join(second)), 3)
        same = Fraction(sum(a == b for a, b in zip(first, second, strict=True)), 3)
        chance = sum(Fraction(first.count(k) * second.count(k), 9) for k in "abc")
        assert found is not None and found.same == pytest.approx(float(same))
        if chance == 1:
            assert math.isnan(found.kappa)
        else:
            assert found.kappa == pytest.approx(float((same - chance) / (1 - chance)))


@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("error", [0.0, 0.05, 0.3])
def test_the_error_solves_the_probability_that_two_answers_differ(
    num_classes: int, error: float
) -> None:
    wrong = error / (num_classes - 1)
    chances = [1 - error, *[wrong] * (num_classes - 1)]  # of each answer
    differ = sum(p * q for (i, p), (j, q) in product(enumerate(chances), repeat=2) if i != j)
    assert differ == pytest.approx(1 - (1 - error) ** 2 - error**2 / (num_classes - 1))
    rows = 20_000
    apart = round(differ * rows)
    labels = "a" * rows
    found = agreement(pairs(labels, "b" * apart + "a" * (rows - apart)), num_classes)
    assert found is not None and found.error.value == pytest.approx(error, abs=1e-4)
    assert found.error.low <= error + 1e-4 and error - 1e-4 <= found.error.high


def test_answers_that_differ_more_than_guesses_are_guesses() -> None:
    found = agreement(pairs("aaaa", "bbbb"), 2)
    assert found is not None and found.error.value == found.error.high == 0.5
    assert corrected(Bounded(0.4, 0.3, 0.5), found.error, 2) == Bounded(0.4, 0.0, 1.0)


def test_which_answers_are_pairs() -> None:
    assert agreement([], 2) is None
    assert agreement([answer(0, "a"), answer(1, "b", "")], 2) is None
    log = [
        answer(0, "a", reviewer="ann"),
        answer(0, "b", "repeat", "bob"),
        answer(0, "b", reviewer="ann"),  # changed her mind
        answer(0, "a", "repeat", "cem"),  # a third opinion is not a second pair
        answer(1, "a"),
        answer(1, "", "repeat"),  # skipped
        answer(2, ""),
        answer(2, "a", "repeat"),
        answer(3, "a"),
        answer(3, "a", "repeat", "bob"),
        answer(3, "b", "repeat", "bob"),
        answer(4, "b", "repeat"),  # its first answer was undone
    ]
    found = agreement(log, 2)
    assert found is not None and (found.rows, found.same) == (2, 0.5)


def test_a_sure_error_moves_the_rate_and_stretches_its_interval() -> None:
    sure = corrected(Bounded(0.145, 0.1, 0.2), Bounded(0.05, 0.05, 0.05), 2)
    # (m − e)/(1 − 2e)
    assert (sure.value, sure.low, sure.high) == pytest.approx((0.095 / 0.9, 0.05 / 0.9, 0.15 / 0.9))
    many = corrected(Bounded(0.145, 0.1, 0.2), Bounded(0.05, 0.05, 0.05), 100)
    assert many.value == pytest.approx(0.095 / (1 - 0.05 * 100 / 99))
    perfect = Bounded(0.0, 0.0, 0.0)
    assert corrected(Bounded(0.145, 0.1, 0.2), perfect, 10) == Bounded(0.145, 0.1, 0.2)
    assert corrected(Bounded(0.01, 0.0, 0.02), Bounded(0.05, 0.04, 0.06), 10).value == 0.0


def test_small_intervals_combine_as_the_delta_method_has_it() -> None:
    m, e, spread = 0.3, 0.05, 1e-5
    found = corrected(Bounded(m, m - spread, m + spread), Bounded(e, e - spread, e + spread), 5)
    slope_m = 1 / (1 - e * 5 / 4)
    slope_e = (m * 5 / 4 - 1) / (1 - e * 5 / 4) ** 2
    assert found.high - found.value == pytest.approx(
        spread * math.hypot(slope_m, slope_e), rel=1e-3
    )
    assert found.value - found.low == pytest.approx(spread * math.hypot(slope_m, slope_e), rel=1e-3)


@cache
def interval(called: int, total: int, differ: int, repeated: int, num_classes: int) -> Bounded:
    found = agreement(pairs("a" * repeated, "b" * differ + "a" * (repeated - differ)), num_classes)
    assert found is not None
    return corrected(exact_share(called, total), found.error, num_classes)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
@pytest.mark.parametrize(
    ("total", "share"), [(50, 0.1), (50, 0.2), (150, 0.1), (400, 0.1), (400, 0.2)]
)
def test_the_corrected_interval_covers_the_true_rate(
    num_classes: int, total: int, share: float
) -> None:
    generator, repetitions = np.random.default_rng([num_classes, total, int(10 * share)]), 1500
    repeated = round(share * total)
    for rate in (0.02, 0.1, 0.2, 0.4):
        true = np.zeros((repetitions, total), dtype=int)
        given = np.where(
            generator.random(true.shape) < rate, generator.integers(1, num_classes, true.shape), 0
        )
        first, second = (
            np.where(
                generator.random(true.shape) < ERROR,
                generator.integers(1, num_classes, true.shape),
                true,
            )
            for _ in range(2)
        )  # errors uniform over the wrong classes
        called = (first != given).sum(1)
        differ = (first != second)[:, :repeated].sum(1)
        found = [
            interval(m, total, d, repeated, num_classes)
            for m, d in zip(called.tolist(), differ.tolist(), strict=True)
        ]
        assert np.mean([part.low <= rate <= part.high for part in found]) >= 0.93, rate
        if total == 400:  # not by saying nothing
            assert np.mean([part.high - part.low for part in found]) < 0.15, rate
            assert np.mean([part.value for part in found]) == pytest.approx(rate, abs=0.02)
