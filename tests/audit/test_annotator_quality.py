"""The quality of annotators: coverage of the intervals, advice, rows to label again by information,
files, the line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from crowds import simulate
from typer.testing import CliRunner

from noiseproof.audit import LabelReport, audit, consensus, find_label_issues, read_audit
from noiseproof.cli import app
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import PER_CLASS, VotedRows, draw_annotators, fit_annotators
from noiseproof.judge.crowd.quality import (
    CHANCE,
    RATES,
    TRAIN,
    UNKNOWN,
    AnnotatorQuality,
    _posterior_density,
    label_again,
    measure_quality,
)
from noiseproof.judge.evidence.network import Evidence


def measured(votes: Votes, classes: int) -> AnnotatorQuality:
    rows = VotedRows(votes, classes)
    return measure_quality(rows, fit_annotators(rows))


@pytest.mark.parametrize("classes, per_row", [(3, 5), (2, 10), (3, 3)])
def test_intervals_cover_the_truth(classes: int, per_row: int) -> None:
    """Of 95 % intervals, 0.96 cover the accuracy on the rows that were labelled, as the simulation
    knows it.

    Those of annotators with many labels are narrow, and cover it where the consensus of three
    labels a row errs, too.
    """
    covered, widths, counts = [], [], []
    for seed in range(8):
        crowd = simulate(seed, classes=classes, per_row=per_row)
        quality = measured(crowd.votes, classes)
        for a in range(len(quality.names)):
            rows = crowd.votes.row[crowd.votes.annotator == a]
            if len(rows) >= 5:
                true = crowd.confusion[a, crowd.truth[rows], crowd.truth[rows]].mean()
                covered.append(quality.low[a] <= true <= quality.high[a])
                widths.append(quality.high[a] - quality.low[a])
                counts.append(len(rows))
    assert len(covered) > 400 and 0.92 < np.mean(covered) < 0.985
    assert np.mean(np.array(covered)[np.array(counts) > 40]) > 0.92
    widths_by_size = [
        np.mean(np.array(widths)[np.array(counts) < 15]),
        np.mean(np.array(widths)[np.array(counts) > 60]),
    ]
    assert widths_by_size[0] > 2 * widths_by_size[1]


def test_the_quality_of_a_known_truth_is_that_of_counting() -> None:
    """With predictions that are certain and right, it is Jeffreys' interval of the share of right
    labels.
    """
    from scipy.stats import beta

    random = np.random.default_rng(0)
    truth = np.arange(300) % 2
    table = np.stack(
        [np.where(random.random(300) < r, truth, 1 - truth) for r in (0.95, 0.8, 0.55)], 1
    )
    probs = torch.from_numpy(np.where(truth[:, None] == [0, 1], 1.0, 0.0))
    rows = VotedRows(Votes.of_table(table), 2, probs)
    quality = measure_quality(rows, fit_annotators(rows))
    hits = (table == truth[:, None]).sum(0)
    np.testing.assert_allclose(quality.low, beta.ppf(0.025, hits + 0.5, 300.5 - hits), atol=0.006)
    np.testing.assert_allclose(quality.high, beta.ppf(0.975, hits + 0.5, 300.5 - hits), atol=0.006)
    wrong = [(table[truth == k, 1] != k).sum() for k in (0, 1)]
    np.testing.assert_allclose(
        quality.confusion[1],
        np.array([[150 - wrong[0], wrong[0]], [wrong[1], 150 - wrong[1]]]),
        atol=1,
    )


def test_the_tabulated_posterior_is_that_of_the_likelihood() -> None:
    """Π (r·w + (1 − r)·e)^c·Jeffreys, vote by vote, where the table interpolates."""
    crowd = simulate(3, classes=3, per_row=3, rows=60, annotators=8)
    rows = VotedRows(crowd.votes, 3)
    fitted = fit_annotators(rows)
    truth = torch.cat([block for _, block in rows.posterior(fitted)]).numpy()
    confusion, grid = fitted.confusion.numpy(), RATES.numpy()
    log_density = np.tile(-0.5 * np.log(grid * (1 - grid)), (8, 1))
    for i, a, label in zip(crowd.votes.row, crowd.votes.annotator, crowd.votes.label, strict=True):
        others = truth[i] / confusion[a, :, label]
        others /= others.sum()
        errors = np.array(
            [
                confusion[a, k, label] / (1 - confusion[a, k, k]) if k != label else 0
                for k in range(3)
            ]
        )
        certain = (others.max() - 1 / 3) / (1 - 1 / 3)
        log_density[a] += certain * np.log(
            grid * others[label] + (1 - grid) * (others * errors).sum()
        )
    density = np.exp(log_density - log_density.max(1, keepdims=True))
    np.testing.assert_allclose(
        _posterior_density(rows, fitted).numpy(), density / density.sum(1, keepdims=True), atol=1e-4
    )


def test_draws_of_confusions_are_from_the_posterior_of_counts() -> None:
    """With predictions that are certain and right, P_a(· | k) is Dirichlet with the mean of the
    fit.
    """
    random, truth = np.random.default_rng(0), np.arange(400) % 2
    table = np.stack(
        [np.where(random.random(400) < r, truth, 1 - truth) for r in (0.95, 0.8, 0.6)], 1
    )
    rows = VotedRows(
        Votes.of_table(table), 2, torch.from_numpy(np.where(truth[:, None] == [0, 1], 1.0, 0.0))
    )
    fitted = fit_annotators(rows)
    drawn = torch.stack(
        [one.confusion for seed in range(12) for one in draw_annotators(rows, fitted, seed)]
    )
    # labels of a class, and those it starts with
    p, weight = fitted.confusion, 200 + PER_CLASS * 2 * 1.5
    expected = (p * (1 - p) / (weight + 1)).sqrt()
    torch.testing.assert_close(drawn.mean(0), p, atol=0.008, rtol=0)
    torch.testing.assert_close(drawn.std(0), expected, atol=0.005, rtol=0)


def test_predictions_for_training_rows_do_not_count_beside_votes() -> None:
    """They learned from the votes: counted as one more witness, they would repeat the majority."""
    crowd = simulate(1, classes=3, per_row=3, rows=200)
    given = consensus(crowd.votes, 3, method="majority").label
    probs = np.random.default_rng(0).dirichlet(np.ones(3), 200).astype(np.float32)
    memorised = np.where(given[:, None] == np.arange(3), 0.98, 0.01).astype(np.float32)
    evidence = Evidence(probs)
    plain, watched = (
        find_label_issues(given, evidence=one, annotators=crowd.votes)
        for one in (evidence, replace(evidence, dynamics=memorised))
    )
    np.testing.assert_array_equal(plain.quality, watched.quality)
    np.testing.assert_array_equal(plain.consensus(given), watched.consensus(given))


def crowd_with_habits() -> tuple[Votes, np.ndarray]:
    """Six good annotators, one who takes bees for ants, one who answers at random, one with three
    labels.
    """
    random, truth = np.random.default_rng(3), np.arange(300) % 3
    good = [np.where(random.random(300) < 0.9, truth, random.integers(0, 3, 300)) for _ in range(6)]
    habit = np.where((truth == 1) & (random.random(300) < 0.8), 0, truth)
    few = np.where(np.arange(300) < 3, truth, -1)
    table = np.stack([*good, habit, random.integers(0, 3, 300), few], 1)
    return Votes.of_table(table, [*"abcdef", "habit", "random", "few"]), truth


def test_advice() -> None:
    quality = measured(crowd_with_habits()[0], 3)
    advice = dict(zip(quality.names, quality.advice(["ant", "bee", "cat"]), strict=True))
    assert advice["random"] == CHANCE and advice["few"] == UNKNOWN
    assert advice["habit"] == f"{TRAIN} on 'bee', often labelled 'ant'"
    assert not any(
        advice[name] in (CHANCE, UNKNOWN) or advice[name].startswith(TRAIN) for name in "abcdef"
    )
    table = quality.table(["ant", "bee", "cat"])
    assert table["annotator"].tolist()[:2] == ["random", "habit"]
    habit = table.set_index("annotator").loc["habit"]
    assert (habit["confuses"], habit["with"]) == ("bee", "ant") and 60 < habit["confused"] < 100
    assert habit["low"] < habit["quality"] < habit["high"]
    assert 0.3 < table.set_index("annotator").loc["random", "chance"] < 0.37


def test_rows_to_label_again_are_those_of_the_largest_information() -> None:
    votes, _ = crowd_with_habits()
    votes = votes[np.arange(300)]
    keep = np.random.default_rng(0).random(len(votes.row)) < 0.4
    votes = Votes(votes.row[keep], votes.annotator[keep], votes.label[keep], 300, votes.names)
    rows = VotedRows(votes, 3)
    fitted = fit_annotators(rows)
    quality = measure_quality(rows, fitted)
    truth = torch.cat([block for _, block in rows.posterior(fitted)]).numpy()
    confusion, table = fitted.confusion.numpy(), votes.table()

    def entropy(p: np.ndarray) -> float:
        return float(-(p * np.log2(np.maximum(p, 1e-300))).sum())

    def information(i: int, a: int) -> float:
        gain = entropy(truth[i])
        for label in range(3):
            joint = truth[i] * confusion[a, :, label]
            gain -= joint.sum() * entropy(joint / joint.sum())
        return gain / max((table[i] >= 0).sum(), 1)

    best = [max((information(i, a), a) for a in range(9) if table[i, a] < 0) for i in range(300)]
    found = label_again(rows, fitted, quality, 25)
    order = sorted(range(300), key=lambda i: -best[i][0])[:25]
    assert {*found["row"].tolist()} == {*order}
    np.testing.assert_allclose(
        found["gain"], [best[i][0] for i in found["row"]], rtol=1e-3, atol=1e-6
    )
    assert found["annotator"].tolist() == [best[i][1] for i in found["row"]]
    assert not {*found["annotator"].tolist()} & {7}  # who answers at random
    shared = label_again(rows, fitted, quality, 25, most=5)
    assert len(shared["row"]) == 25 and max(np.bincount(shared["annotator"])) == 5


@pytest.fixture(scope="module")
def report() -> tuple[LabelReport, np.ndarray]:
    votes, truth = crowd_with_habits()
    keep = np.random.default_rng(0).random(len(votes.row)) < 0.5
    names = np.array(votes.names)
    lines = pd.DataFrame(
        {"row": votes.row, "annotator": names[votes.annotator], "label": votes.label}
    )[keep]
    random = np.random.default_rng(1)
    probs = 0.2 + 0.4 * (truth[:, None] == np.arange(3)) + 0.3 * random.random((300, 3))
    return audit(pred_probs=probs / probs.sum(1, keepdims=True), annotations=lines), truth


def test_the_report(report: tuple[LabelReport, np.ndarray], tmp_path: Path) -> None:
    found, truth = report
    files = found.save(tmp_path / "audit")
    assert {"annotators.csv", "label_again.csv", "votes.csv"} <= {file.name for file in files}
    classes = {"confuses": str, "with": str}
    people = pd.read_csv(
        tmp_path / "audit" / "annotators.csv", dtype=classes, keep_default_na=False
    )
    pd.testing.assert_frame_equal(people, found.annotators, check_dtype=False)
    again = pd.read_csv(tmp_path / "audit" / "label_again.csv")
    assert len(again) == 100 and (again["gain"].diff().dropna() <= 1e-9).all()
    votes = pd.read_csv(tmp_path / "audit" / "votes.csv")
    voted = set(zip(votes["row"], votes["annotator"], strict=True))
    # nobody labels a row twice
    assert not voted & set(zip(again["row"], again["annotator"], strict=True))
    assert found.data.labels.votes is not None and len(votes) == len(found.data.labels.votes.row)
    issues = read_audit(tmp_path / "audit").issues
    consensus = issues["consensus_label"].astype(int).to_numpy()
    assert (consensus == truth[issues["row"]]).mean() > 0.95
    best = issues[["label_quality", "suggestion_quality"]].max(axis=1)
    assert again["quality"][:30].mean() < best.mean() - 0.01  # what is uncertain comes first
    plain = audit(pred_probs=np.full((4, 2), 0.5), labels=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="Expected an audit of several annotators, got none"):
        plain.label_again()
    plain.save(tmp_path / "audit", force=True)
    assert not (tmp_path / "audit" / "votes.csv").exists()


def test_the_command_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    votes, truth = crowd_with_habits()
    np.save("p.npy", 0.2 + 0.4 * (truth[:, None] == np.arange(3)))
    lines = pd.DataFrame(
        {
            "row": votes.row,
            "annotator": np.array(votes.names)[votes.annotator],
            "label": votes.label,
        }
    )
    lines.to_csv("votes.csv", index=False)
    command = ["audit", "--pred-probs", "p.npy", "--annotations", "votes.csv"]
    shown = CliRunner().invoke(app, [*command, "--consensus", "dawid-skene"])
    assert shown.exit_code == 0, shown.output
    assert (
        "annotators: 9, " in shown.output
        and "1 no better than chance, 1 worse than the others" in shown.output
    )
    assert Path("audit/annotators.csv").exists()
    wrong = CliRunner().invoke(app, [*command[:-1], "none.csv", "--out", "other"])
    assert wrong.exit_code == 2 and "Expected annotations at" in wrong.output
