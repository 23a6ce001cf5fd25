"""Descriptions of classes as evidence: joined by Bayes' rule, read from tables, refused with a
reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import audit, read_rows
from noiseproof.judge.evidence.witness import consult_witness

MOODS = {
    "happy": "joy, delight and laughter",
    "sad": "grief, tears and sorrow",
}


def mails(num_rows: int = 240) -> pd.DataFrame:
    random = np.random.default_rng(0)
    words = {
        "happy": "joyful laugh delighted smile cheerful fun",
        "sad": "grief cry tears mourning sorrow lonely",
    }
    true = random.choice(list(words), num_rows)
    texts = [
        " ".join(random.choice([*words[mood].split(), "today", "we", "were", "all"], 6))
        for mood in true
    ]
    return pd.DataFrame({"text": texts, "mood": true, "true": true})


def test_a_witness_with_known_densities_joins_as_bayes_rule_says() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(2, size=20_000)
    # N(±1, 1) for class 1 and 0: the posterior of equal priors is σ(2s)
    score = random.normal(2.0 * truth - 1)
    similarities = np.stack([-score, score], 1).astype(np.float32)
    p = random.beta(8, 2, len(truth))  # a prediction that is right with probability p
    is_right = random.random(len(truth)) < p
    predicted = np.where(is_right, truth, 1 - truth)
    pred_probs = np.where(predicted == 1, p, 1 - p)
    pred_probs = np.stack([1 - pred_probs, pred_probs], 1).astype(np.float32)
    odds = np.log(pred_probs[:, 1] / pred_probs[:, 0]) + 2 * score
    expected = 1 / (1 + np.exp(-odds))
    joined = consult_witness(pred_probs, similarities)
    np.testing.assert_allclose(joined.sum(1), 1, atol=1e-5)
    assert np.abs(joined[:, 1] - expected).mean() < 0.01


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_witness_that_knows_nothing_changes_next_to_nothing(scale: float) -> None:
    random = np.random.default_rng(1)
    pred_probs = random.dirichlet([1, 1, 1], 5000).astype(np.float32)
    similarities = scale * random.normal(size=(5000, 3)).astype(np.float32)
    assert np.abs(consult_witness(pred_probs, similarities) - pred_probs).mean() < 0.02


def test_descriptions_see_mistakes_that_follow_a_pattern(tmp_path: Path) -> None:
    table = mails()
    # a rule that every model learns: whoever smiles is labelled sad
    table["mood"] = table["mood"].where(~table["text"].str.contains("smile"), "sad")
    is_wrong = (table["mood"] != table["true"]).to_numpy()
    file = tmp_path / "moods.csv"
    pd.DataFrame({"class": [*MOODS], "description": [*MOODS.values()]}).to_csv(file, index=False)
    columns = table.drop(columns="true")
    options = {"label": "mood", "text": "text"}
    alone = audit(read_rows(columns, **options), mode="fast")
    described = audit(read_rows(columns, **options, describe=file), mode="fast")
    of_dict = audit(read_rows(columns, **options, describe=MOODS), mode="fast")
    assert (of_dict.label_issues.quality == described.label_issues.quality).all()
    worst = {
        name: is_wrong[np.argsort(report.label_issues.quality)[: is_wrong.sum()]].mean()
        for name, report in {"alone": alone, "described": described}.items()
    }
    assert worst["described"] > worst["alone"] + 0.1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": "text", "describe": {"happy": "joy"}}, "a description of every class"),
        ({"text": "text", "describe": pd.DataFrame({"name": ["sad"]})}, "the columns class and"),
        ({"describe": MOODS}, "Expected texts with `describe`"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(options: dict, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_rows(mails(20).drop(columns="true"), label="mood", **options)
