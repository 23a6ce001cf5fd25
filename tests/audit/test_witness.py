"""Descriptions of classes as evidence: joined by Bayes' rule, read from tables, refused with a
reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from noiseproof.audit import audit, read_rows
from noiseproof.judge.evidence.witness import consult_witness, likelihood_ratios

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


def predictions(truth: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Of two classes, (N, 2): calibrated, and independent of all else given the class."""
    p = random.beta(8, 2, len(truth))
    predicted = np.where(random.random(len(truth)) < p, truth, 1 - truth)
    of_one = np.where(predicted == 1, p, 1 - p)
    return np.stack([1 - of_one, of_one], 1).astype(np.float32)


def test_the_ratios_of_known_densities_are_found_without_a_label() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(2, size=20_000)
    # N(1, 1) for class 1 and N(−1, 1) for class 0: the log odds of equal priors are 2s
    score = random.normal(2.0 * truth - 1)
    similarities = np.stack([-score, score], 1).astype(np.float32)
    ratios = likelihood_ratios(predictions(truth, random), similarities)
    assert np.abs(ratios[:, 1] - ratios[:, 0] - 2 * score).mean() < 0.05


def test_a_witness_is_heard_as_far_as_it_helps() -> None:
    random = np.random.default_rng(1)
    truth = random.integers(2, size=5000)
    pred_probs = predictions(truth, random)
    given = np.where(random.random(5000) < 0.2, 1 - truth, truth)
    noise = random.normal(size=(5000, 2)).astype(np.float32)
    score = random.normal(2.0 * truth - 1)
    good = np.stack([-score, score], 1).astype(np.float32)
    for nothing in (noise, np.zeros_like(noise)):
        assert np.abs(consult_witness(pred_probs, nothing, given) - pred_probs).mean() < 0.01
    joined = consult_witness(pred_probs, good, given)
    assert (joined.argmax(1) == truth).mean() > (pred_probs.argmax(1) == truth).mean() + 0.05


def test_an_audit_judges_by_predictions_and_descriptions(tmp_path: Path) -> None:
    table = mails()
    # a rule that models learn: half of those that smile are labelled sad
    smiles = table["text"].str.contains("smile") & (np.arange(len(table)) % 2 == 0)
    table["mood"] = table["mood"].where(~smiles, "sad")
    file = tmp_path / "moods.csv"
    pd.DataFrame({"class": [*MOODS], "description": [*MOODS.values()]}).to_csv(file, index=False)
    short = {"folds": 2, "epochs": 2, "device": "cpu"}
    alone = audit(read_rows(table, label="mood", text="text", ignore=["true"]), **short)
    for describe in (file, MOODS):
        rows = read_rows(table, label="mood", text="text", ignore=["true"], describe=describe)
        assert rows.similarities is not None and rows.similarities.shape == (len(table), 2)
        described = audit(rows, **short)
        joined = consult_witness(alone.out_of_sample, rows.similarities, rows.given)
        np.testing.assert_allclose(described.out_of_sample, joined, atol=1e-5)


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
