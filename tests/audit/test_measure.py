"""The designed sample and what it says, against exact enumeration, brute force and simulation."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.isotonic import IsotonicRegression

from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.audit.sample import open_design, read_design, read_population
from noiseproof.judge.cut import Goal, parse_goal
from noiseproof.judge.measure import calibrate
from noiseproof.judge.measure.calibrate import (
    Calibrated,
    calibrate_suggestion,
    calibrate_wrong,
    find_slips,
    recalibrate,
)
from noiseproof.judge.measure.design import PILOT, Design, allocate, make_strata
from noiseproof.judge.measure.estimate import Population, gain, measure
from noiseproof.judge.measure.interval import exact_share, stratified


def make_audit(
    folder: Path, *, rows: int = 400, classes: int = 3, seed: int = 0
) -> tuple[Audit, np.ndarray]:
    """An audit whose ranking is right more often than not, and the true classes of its rows."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, classes, rows)
    wrong = generator.random(rows) < 0.2
    given = np.where(wrong, (truth + 1) % classes, truth)
    believed = 1 / (1 + np.exp(-(3.0 * wrong - 2.5 + generator.normal(size=rows))))
    order = np.argsort(-believed)
    suggested = np.where(wrong, truth, (truth + 2) % classes)
    names = np.array([f"c{k}" for k in range(classes)], dtype=object)
    issues = pd.DataFrame(
        {
            "row": order,
            "id": order.astype(str),
            "is_label_issue": believed[order] > 0.5,
            "model_quality": 1 - believed[order],
            "label_quality": 1 - believed[order],
            "model_suggestion_quality": 0.8 * believed[order],
            "given_label": names[given[order]],
            "suggested_label": names[suggested[order]],
        }
    )
    config = {"classes": names.tolist()}
    return Audit(folder, issues, {"source_rows": rows}, config, "key"), truth


def answer(audit: Audit, truth: np.ndarray, row: int, asked: str = "measure") -> Decision:
    """Of a person who knows the truth."""
    line = audit.issues.set_index("row").loc[row]
    label = f"c{truth[row]}"
    choice = {line["given_label"]: "keep", line["suggested_label"]: "accept"}.get(label, "other")
    return Decision(row, str(row), line["given_label"], choice, label, "ann", asked, None)  # type: ignore[arg-type]


def answer_all(audit: Audit, truth: np.ndarray, design: Design, count: int) -> list[Decision]:
    answers: list[Decision] = []
    while questions := design.questions(answers, count):
        answers += [answer(audit, truth, question.row) for question in questions]
    return answers


# --- intervals ------------------------------------------------------------------------------------


def outcomes(
    sizes: tuple[int, ...], wrong: tuple[int, ...], asked: tuple[int, ...]
) -> list[tuple[float, np.ndarray]]:
    """Every possible vector of hits, with its probability: hypergeometric in each stratum."""
    choices = []
    for n, k, m in zip(sizes, wrong, asked, strict=True):
        total = math.comb(n, m)
        choices.append(
            [(math.comb(k, h) * math.comb(n - k, m - h) / total, h) for h in range(m + 1)]
        )
    return [
        (math.prod(p for p, _ in c), np.array([h for _, h in c], float))
        for c in itertools.product(*choices)
    ]


@pytest.mark.parametrize(
    ("sizes", "wrong", "asked"),
    [
        ((300,), (30,), (50,)),
        ((300,), (3,), (50,)),
        ((40, 200), (30, 10), (20, 30)),
        ((40, 60, 300), (36, 20, 3), (12, 18, 20)),
        ((50, 50, 200), (5, 25, 0), (14, 20, 16)),
        ((20, 30, 150), (20, 0, 15), (10, 10, 30)),
    ],
)
def test_interval_by_exact_enumeration(
    sizes: tuple[int, ...], wrong: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    truth = sum(wrong) / sum(sizes)
    mean = covered = 0.0
    for probability, hits in outcomes(sizes, wrong, asked):
        if probability > 0:
            estimate = stratified(hits, np.array(asked, float), np.array(sizes, float))
            mean += probability * estimate.value
            covered += probability * (estimate.low <= truth <= estimate.high)
    assert mean == pytest.approx(truth, abs=1e-12)  # unbiased
    assert covered >= 0.94


def test_a_census_is_exact() -> None:
    estimate = stratified(np.array([3.0, 1.0]), np.array([10.0, 5.0]), np.array([10.0, 5.0]))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((4 / 15,) * 3)


def test_a_stratum_without_answers_is_unknown() -> None:
    estimate = stratified(np.array([0.0, 0.0]), np.array([50.0, 0.0]), np.array([100.0, 100.0]))
    assert estimate.high > 0.45  # half of the rows may all be wrong


def test_exact_share_inverts_the_binomial_tails() -> None:
    share = exact_share(3, 20)
    tail = [
        sum(math.comb(20, k) * p**k * (1 - p) ** (20 - k) for k in ks)
        for p, ks in ((share.low, range(3, 21)), (share.high, range(4)))
    ]
    assert tail == pytest.approx([0.025, 0.025])


# --- design ---------------------------------------------------------------------------------------


def test_allocation_has_the_smallest_variance_of_all() -> None:
    share, sizes, least = np.array([0.5, 0.2, 0.05]), np.array([30, 60, 200]), np.array([1, 1, 1])

    def variance(asked: tuple[int, ...]) -> float:
        return sum(n**2 * p * (1 - p) / m for n, p, m in zip(sizes, share, asked, strict=True))

    every = [(a, b, 20 - a - b) for a in range(1, 19) for b in range(1, 20 - a)]
    assert variance(tuple(allocate(20, share, sizes, least))) == pytest.approx(
        min(map(variance, every))
    )


def test_allocation_stops_at_the_size_of_a_stratum() -> None:
    asked = allocate(40, np.array([0.5, 0.01]), np.array([20, 40]), np.array([1, 1]))
    assert asked.tolist() == [20, 20]


def test_strata_follow_the_ranking() -> None:
    wrong = np.random.default_rng(0).beta(0.3, 1, 1000)
    strata = make_strata(wrong, np.zeros(1000, np.int64), 5)
    for first, second in itertools.pairwise(range(strata.max() + 1)):
        assert wrong[strata == first].min() >= wrong[strata == second].max()


def test_two_classes_have_strata_of_their_own() -> None:
    generator = np.random.default_rng(0)
    given = (generator.random(1000) < 0.1).astype(np.int64)
    strata = make_strata(generator.random(1000), given, 2)
    assert not set(strata[given == 0]) & set(strata[given == 1])


def test_each_row_of_a_stratum_is_asked_equally_often(tmp_path: Path) -> None:
    audit, _ = make_audit(tmp_path, rows=60)
    asked, probability = Counter[int](), dict[int, float]()
    drawn = Design.draw(audit)
    for seed in range(2000):
        questions = Design(seed, drawn.strata, drawn.prior).questions([], PILOT)
        assert len({q.row for q in questions}) == PILOT
        asked.update(q.row for q in questions)
    probability = {
        q.row: q.probability
        for seed in range(50)
        for q in Design(seed, drawn.strata, drawn.prior).questions([], PILOT)
    }
    for row, p in probability.items():
        assert asked[row] / 2000 == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / 2000) + 1e-9)


def test_labels_that_models_call_surely_wrong_are_asked_about_as_those_surely_right() -> None:
    """Else two of 355 digits stand for a quarter of the data, and the interval is wider than of a
    simple sample.
    """
    strata = np.repeat(np.arange(2, dtype=np.int16), 300)
    design = Design(0, strata, np.array([0.999, 0.001]))
    asked = np.bincount([strata[question.row] for question in design.questions([], PILOT)])
    assert asked.tolist() == [PILOT / 2, PILOT / 2]


def test_a_killed_review_continues_with_the_same_questions(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path)
    design = open_design(audit, seed=3)
    whole = [a.row for a in answer_all(audit, truth, design, 80)]
    answers: list[Decision] = []
    while questions := open_design(audit).questions(answers, 80):  # read anew after each answer
        answers.append(answer(audit, truth, questions[0].row))
    assert [a.row for a in answers] == whole
    assert len(set(whole)) == 80


def test_more_questions_extend_the_sample(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path)
    design = open_design(audit)
    first = answer_all(audit, truth, design, 50)
    assert {a.row for a in first} <= {a.row for a in answer_all(audit, truth, design, 120)}


def test_an_undone_question_is_asked_again(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path)
    design = open_design(audit)
    answers = answer_all(audit, truth, design, 50)
    undone = answers.pop(7)
    assert [q.row for q in design.questions(answers, 50)] == [undone.row]


def test_all_rows_can_be_asked(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path, rows=45)
    answers = answer_all(audit, truth, open_design(audit), 1000)
    assert len(answers) == 45
    measured = measure(read_population(audit), answers)
    assert measured is not None
    assert measured.rate.low == pytest.approx(measured.rate.high)


def test_repeats_come_later_and_once(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path)
    design, answers, order = open_design(audit), [], []
    while questions := design.questions(answers, 60, repeats=0.3):
        question = questions[0]
        order.append((question.row, question.asked))
        answers.append(answer(audit, truth, question.row, question.asked))
    repeated = [row for row, asked in order if asked == "repeat"]
    assert len(repeated) == len(set(repeated)) and 8 <= len(repeated) <= 30
    for row in repeated:
        assert order.index((row, "repeat")) > order.index((row, "measure"))


def test_a_damaged_design_is_refused(tmp_path: Path) -> None:
    audit, _ = make_audit(tmp_path)
    open_design(audit)
    np.save(tmp_path / "strata.npy", np.zeros(7, np.int16))
    with pytest.raises(ValueError, match=r"strata\.npy as it was written, got something else"):
        read_design(audit)
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(ValueError, match=r"measure\.json.*other rows.*measure again"):
        read_design(audit)


# --- what is measured -----------------------------------------------------------------------------


def test_only_measured_decisions_count(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path)
    design = open_design(audit)
    answers = answer_all(audit, truth, design, 50)
    asked = {a.row for a in answers}
    by_hand = [
        answer(audit, truth, row, "")
        for row in audit.issues["row"][:60].tolist()
        if row not in asked
    ]
    measured, with_more = (
        measure(read_population(audit), answers),
        measure(read_population(audit), answers + by_hand),
    )
    assert measured is not None and with_more is not None
    assert with_more.rate == measured.rate
    # but what they correct is no longer wrong
    assert with_more.wrong_left.value < measured.wrong_left.value
    assert measure(read_population(audit), by_hand) is None


def test_rate_covers_the_truth_as_often_as_it_says(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path, rows=1500, seed=1)
    rows = audit.issues["row"].to_numpy()
    wrong = audit.issues["given_label"].to_numpy() != np.array([f"c{k}" for k in truth[rows]])
    drawn, covered = Design.draw(audit), 0
    population = Population.of(audit, drawn)
    by_row = {row: answer(audit, truth, row) for row in rows.tolist()}
    for seed in range(150):
        design = Design(seed, drawn.strata, drawn.prior)
        answers: list[Decision] = []
        while questions := design.questions(answers, 60):
            answers += [by_row[question.row] for question in questions]
        measured = measure(population, answers)
        assert measured is not None
        covered += measured.rate.low <= wrong.mean() <= measured.rate.high
    assert covered / 150 >= 0.93


def test_figures_by_hand(tmp_path: Path) -> None:
    """Two strata of 10 and 30 rows; 5 and 6 of them asked."""
    rows = np.arange(40)
    given = np.where(rows % 2 == 0, "a", "b")
    issues = pd.DataFrame(
        {
            "row": rows,
            "id": rows.astype(str),
            "is_label_issue": rows < 10,
            "label_quality": 0.5,
            "given_label": given,
            "model_quality": np.where(rows < 10, 0.2, 0.9),
            "model_suggestion_quality": 0.1,
            "suggested_label": np.where(rows % 2 == 0, "b", "a"),
        }
    )
    audit = Audit(tmp_path, issues, {"source_rows": 40}, {"classes": ["a", "b", "c"]}, "")
    design = Design(0, np.where(rows < 10, 0, 1).astype(np.int16), np.array([0.8, 0.1]))
    population = Population.of(audit, design)

    def said(row: int, choice: str, label: str) -> Decision:
        return Decision(row, str(row), str(given[row]), choice, label, "", "measure", 0.5)  # type: ignore[arg-type]

    answers = [
        said(0, "accept", "b"),
        said(1, "accept", "a"),
        said(2, "other", "c"),
        said(3, "keep", "b"),
        said(4, "accept", "b"),
        said(10, "keep", "a"),
        said(11, "keep", "b"),
        said(12, "keep", "a"),
        said(13, "accept", "a"),
        said(14, "keep", "a"),
        said(15, "keep", "b"),
        said(16, "skip", ""),
    ]
    measured = measure(population, answers)
    assert measured is not None
    assert (measured.decisions, measured.skipped) == (11, 1)
    assert measured.rate.value == pytest.approx((10 * 4 / 5 + 30 * 1 / 6) / 40)
    assert measured.precision is not None and measured.precision.value == pytest.approx(4 / 5)
    assert measured.wrong_left.value == pytest.approx(10 * 4 / 5 + 30 / 6 - 5)
    expected = gain(population, answers, issues["is_label_issue"].to_numpy())
    assert expected is not None
    assert expected.decisions == 5
    # five undecided rows, three of five suggestions right
    assert expected.mended.value == pytest.approx(5 * 3 / 5)
    assert expected.spoiled.value == pytest.approx(5 * 1 / 5)
    assert expected.net.value == pytest.approx(5 * 2 / 5)
    json.dumps(measured.as_dict())


# --- recalibration --------------------------------------------------------------------------------


def test_calibration_is_isotonic_regression_where_the_curve_has_no_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "CURVE_WEIGHT", 1e-9)
    generator = np.random.default_rng(0)
    wrong = np.sort(generator.random(200))[::-1].copy()
    at = np.sort(generator.permutation(200)[:60])
    answers = (generator.random(60) < wrong[at]).astype(float)
    weight = generator.uniform(0.5, 3, 60)
    reference = (
        IsotonicRegression(increasing=False).fit(at, answers, sample_weight=weight).predict(at)
    )
    assert calibrate_wrong(wrong, at, answers, weight)[at] == pytest.approx(reference, abs=1e-6)


def test_calibration_never_changes_the_ranking_and_converges(tmp_path: Path) -> None:
    audit, truth = make_audit(tmp_path, rows=3000, seed=2)
    answers = answer_all(audit, truth, open_design(audit), 3000)
    wrong = recalibrate(audit, read_population(audit), answers).wrong
    assert (np.diff(wrong) <= 1e-12).all()
    is_wrong = audit.issues["given_label"].to_numpy() != np.array(
        [f"c{k}" for k in truth[audit.issues["row"]]]
    )
    for part in np.array_split(np.arange(3000), 6):
        assert wrong[part].mean() == pytest.approx(is_wrong[part].mean(), abs=0.02)


def test_without_decisions_nothing_moves(tmp_path: Path) -> None:
    audit, _ = make_audit(tmp_path)
    calibrated = recalibrate(audit, read_population(audit), [])
    assert calibrated.wrong == pytest.approx(1 - audit.issues["model_quality"].to_numpy())
    assert calibrated.suggestion == pytest.approx(
        audit.issues["model_suggestion_quality"].to_numpy()
    )


def test_suggestions_move_towards_what_was_decided() -> None:
    right, at = np.full(500, 0.9), np.arange(200)
    moved = calibrate_suggestion(right, at, (np.arange(200) < 60).astype(float))
    assert moved[300] == pytest.approx(0.3, abs=0.03)
    few = calibrate_suggestion(right, at[:2], np.zeros(2))
    assert 0.5 < few[300] < 0.9
    # a quotient of rounded probabilities may lie above one
    above = calibrate_suggestion(np.full(500, 1 + 1e-9), at[:2], np.zeros(2))
    assert 0.5 < above[300] < 1


def test_slips_by_bayes_rule(tmp_path: Path) -> None:
    """Of 20 rows asked twice, 2 differ: e solves 1 − (1 − e)² − e²/2 = 0.1."""
    audit, _ = make_audit(tmp_path)
    lines = audit.issues.set_index("row")
    rows = audit.issues["row"].tolist()[:20]

    def said(row: int, is_wrong: bool, asked: str) -> Decision:
        given = lines.loc[row, "given_label"]
        label = lines.loc[row, "suggested_label"] if is_wrong else given
        return Decision(row, str(row), given, "accept" if is_wrong else "keep", label, "", asked)  # type: ignore[arg-type]

    answers = [said(row, True, "measure") for row in rows]
    answers += [said(row, i >= 2, "repeat") for i, row in enumerate(rows)]
    likely, unlikely = audit.issues["row"].tolist()[30:32]
    answers += [said(likely, True, ""), said(unlikely, True, "")]
    wrong = np.full(len(audit.issues), 0.5)
    e = (2 / 3) * (1 - math.sqrt(1 - 0.1 / (2 / 3)))
    wrong[[0, 1, 30, 31]] = 0.51, 0.49, e + 0.001, e - 0.001
    calibrated = Calibrated(wrong, wrong, wrong > 0.5)
    assert find_slips(audit, answers, calibrated) == {rows[1], unlikely}
    assert find_slips(audit, answers[:20], calibrated) == set()  # nothing was asked twice


@pytest.mark.parametrize("text", ["f1", "precision=0.7", "recall=0.8", "budget=17", "budget=9999"])
def test_goals_by_brute_force(text: str) -> None:
    wrong = np.sort(np.random.default_rng(4).beta(0.4, 1.5, 300))[::-1]
    goal, total, count = parse_goal(text), wrong.sum(), parse_goal(text).count(wrong)
    precision = [wrong[:n].sum() / n for n in range(1, 301)]
    recall = [wrong[:n].sum() / total for n in range(1, 301)]
    f1 = [2 * wrong[:n].sum() / (n + total) for n in range(1, 301)]
    wanted = {
        "f1": f1.index(max(f1)) + 1,
        "precision": max((n for n in range(1, 301) if precision[n - 1] >= goal.bound), default=0),
        "recall": min((n for n in range(1, 301) if recall[n - 1] >= goal.bound), default=300),
        "budget": min(int(goal.bound), 300),
    }
    assert count == wanted[goal.aim]


def test_a_precision_out_of_reach_calls_nothing_wrong() -> None:
    assert Goal("precision", 0.9).count(np.array([0.5, 0.2])) == 0


@pytest.mark.parametrize(
    "text", ["", "f2", "precision=2", "recall", "budget=0", "budget=1.5", "f1=0.3"]
)
def test_bad_goals_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a goal of f1, precision, recall, budget"):
        parse_goal(text)
