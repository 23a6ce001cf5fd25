"""Models of rows with several labels: forests of all labels at once, and the join, against
scikit-learn's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from noiseproof.audit import audit
from noiseproof.data.tables import FeatureTable
from noiseproof.judge.evidence import questions
from noiseproof.judge.evidence.join import OFFSET, OWN, _fit_weights, join_answers, mean_shares
from noiseproof.judge.evidence.questions import fit_question_trees
from noiseproof.judge.evidence.trees import TREES
from noiseproof.noise import get_noise

random = np.random.default_rng(0)
X = random.normal(size=(400, 6)).astype(np.float32)
YES = (X[:, :3] + 0.5 * random.normal(size=(400, 3)) > [0.0, 0.5, 1.0]).astype(np.int64)
FOLD = np.arange(400) % 3


def logit(p: Any) -> Any:
    return np.log(p / (1 - p))


@pytest.mark.parametrize(
    ("kind", "theirs"), [("forest", RandomForestClassifier), ("extra", ExtraTreesClassifier)]
)
def test_forests_are_scikit_learns_classifiers_of_several_outputs(kind: str, theirs: Any) -> None:
    table = FeatureTable.of_numbers(X)
    found = fit_question_trees(
        table, YES, YES.shape[1], FOLD, TREES, seed=4, fast=False, progress=None
    )
    assert list(found) == ["forest", "extra"]
    for fold in range(3):
        model = theirs(100, min_samples_leaf=2, random_state=4).fit(
            table.values[FOLD != fold], YES[FOLD != fold]
        )
        expected = [p[:, 1] for p in model.predict_proba(table.values[FOLD == fold])]
        # ties may be split otherwise
        assert np.abs(found[kind][FOLD == fold] - np.stack(expected, 1)).mean() < 0.02


def test_forests_take_one_label_of_one_answer_and_gaps() -> None:
    x, answers = X.copy(), YES[:, :1].copy()
    x[::7, 0] = np.nan
    answers[FOLD != 0] = 1
    table = FeatureTable(x, (0,) * 6, None)
    found = fit_question_trees(
        table, answers, answers.shape[1], FOLD, TREES, seed=0, fast=False, progress=None
    )
    assert (found["extra"][FOLD == 0] == 1).all() and found["extra"].shape == (400, 1)


def test_many_rows_are_boosted_label_by_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MANY_ROWS", 300)
    steps: list[Any] = []
    found = fit_question_trees(
        FeatureTable.of_numbers(X),
        YES,
        YES.shape[1],
        FOLD,
        TREES,
        seed=0,
        fast=True,
        progress=lambda *step: steps.append(step),
    )
    assert list(found) == ["boosting"] and [step[1:] for step in steps] == [(1, 3), (2, 3), (3, 3)]


def test_weights_are_those_of_penalised_logistic_regression() -> None:
    """Around zero weights and without bounds that bind, both are the same problem; C is one over
    the penalty.
    """
    z = np.stack([2 * X[:, 0] + random.normal(size=400), X[:, 0] + random.normal(size=400)], 1)
    found = _fit_weights(z, YES[:, 0].astype(float), np.zeros(2), OFFSET)
    # The offset is penalised like the weights: a column of ones in place of an intercept.
    theirs = LogisticRegression(C=1 / OFFSET, fit_intercept=False, tol=1e-8, max_iter=1000)
    expected = theirs.fit(np.column_stack([z, np.ones(400)]), YES[:, 0]).coef_[0]
    assert found == pytest.approx(expected, abs=1e-3)


def test_joined_weights_have_no_better_neighbours() -> None:
    z, yes, around = (
        random.normal(size=(300, 3)),
        YES[:300, 1].astype(float),
        np.array([0.5, 0.3, 0.2]),
    )
    z[:, 2] -= 3 * yes  # against the answers: its weight is at its bound
    found = _fit_weights(z, yes, around, OWN)
    assert found[2] == 0 and (found[:2] > 0).all()

    def loss(at: Any) -> float:
        p, away = 1 / (1 + np.exp(-(z @ at[:3] + at[3]))), at[:3] - around
        return (
            -float(np.log(np.where(yes == 1, p, 1 - p)).sum())
            + (OWN * away @ away + OFFSET * at[3] ** 2) / 2
        )

    for step in 0.02 * np.vstack([np.eye(4), -np.eye(4), random.normal(size=(20, 4))]):
        moved = found + step
        moved[:3] = np.maximum(moved[:3], 0)
        assert loss(moved) >= loss(found) - 1e-6


def test_joined_predictions_are_calibrated_for_each_label() -> None:
    q = 1 / (1 + np.exp(-2 * random.normal(size=(4000, 2))))
    yes = (random.uniform(size=q.shape) < q).astype(np.int64)
    flat, noise = 1 / (1 + np.exp(-logit(q) / 3)), random.uniform(0.1, 0.9, size=q.shape)
    models = {"flat": flat.astype(np.float32), "noise": noise.astype(np.float32)}
    p, weights = join_answers(yes, models)
    shares = mean_shares(models, weights)
    assert sum(shares.values()) == pytest.approx(1) and shares["flat"] > 0.95
    assert np.abs(p - q).mean() < 0.02  # the odds of a third are those of the truth again
    assert p.mean(0) == pytest.approx(yes.mean(0), abs=0.005)
    again, same = join_answers(1 - yes, models, weights)
    assert np.array_equal(again, p) and same is weights


def test_a_rare_label_has_the_weights_of_the_others() -> None:
    rows, good = 1000, np.full((1000, 4), 0.2, np.float32)
    yes = (random.uniform(size=(rows, 4)) < 0.3).astype(np.int64)
    yes[:, 3] = np.arange(rows) < 3
    good[yes == 1] = 0.7
    good[:, 3] = np.where(np.arange(rows) % 2, 0.2, 0.7)  # here it says nothing, by three rows
    bad = random.uniform(0.1, 0.9, size=(rows, 4)).astype(np.float32)
    p, _ = join_answers(yes, {"good": good, "bad": bad})
    slope = logit(p[:, 3]) - logit(p[:, 3]).mean()
    assert slope[::2].mean() - slope[1::2].mean() > 0.5 * (logit(0.7) - logit(0.2))


@pytest.mark.parametrize("mode", ["thorough", "fast"])
def test_wide_arrays_are_judged_by_forests_too(mode: Any) -> None:
    """They were judged by networks alone, which on yeast, of 103 columns, found half of what
    forests find.
    """
    clusters = random.integers(0, 6, 300)
    x = random.normal(size=(6, 120))[clusters] + random.normal(size=(300, 120))
    true = (np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]]))[clusters]
    given = get_noise("missing-labels:rate=0.2").corrupt(true, generator=0).given.numpy()
    report = audit(x, labels=given, mode=mode)
    models = {each["name"] for each in report.summary()["models"]}
    assert {"forest", "extra", "neighbours"} <= models and ("network" in models) == (
        mode == "thorough"
    )
    found, wrong = report.label_issues.label_is_issue, given != true
    assert found[wrong].mean() > 0.8 and found[~wrong].mean() < 0.05
