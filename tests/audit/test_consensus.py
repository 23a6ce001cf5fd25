"""Consensus of annotators: against crowd-kit, against EM typed from the paper, ties, predictions,
few labels.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from crowds import simulate

from noiseproof.audit import consensus
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import VotedRows
from noiseproof.judge.crowd.consensus import METHODS, resolve_ties


def test_the_probabilities_are_those_of_crowd_kit() -> None:
    crowdkit = pytest.importorskip(
        "crowdkit.aggregation", reason="crowd-kit is not installed (it needs transformers)"
    )
    votes = simulate(1, rows=100, annotators=12, per_row=4).votes
    frame = pd.DataFrame({"task": votes.row, "worker": votes.annotator, "label": votes.label})
    reference = crowdkit.DawidSkene(n_iter=500, tol=-1)
    expected = (
        reference.fit_predict_proba(frame).reindex(index=range(100), columns=range(3)).to_numpy()
    )
    np.testing.assert_allclose(consensus(votes, 3, method="dawid-skene").probs, expected, atol=1e-6)


def test_dawid_skene_is_that_of_the_paper() -> None:
    """The EM of Dawid and Skene (1979), equations 2.3 to 2.5, row by row."""
    table = simulate(3, rows=60, annotators=6, per_row=4, classes=3).votes.table()
    truth = np.array([[np.mean(row[row >= 0] == k) for k in range(3)] for row in table])
    for _ in range(300):
        confusion = np.zeros((6, 3, 3))
        for a in range(6):
            for k in range(3):
                for label in range(3):
                    confusion[a, k, label] = truth[table[:, a] == label, k].sum()
        confusion /= np.maximum(confusion.sum(2, keepdims=True), 1e-300)
        frequency = truth.mean(0)
        joint = np.array(
            [
                [
                    frequency[k]
                    * np.prod([confusion[a, k, row[a]] for a in range(6) if row[a] >= 0])
                    for k in range(3)
                ]
                for row in table
            ]
        )
        truth = joint / joint.sum(1, keepdims=True)
    np.testing.assert_allclose(consensus(table, 3, method="dawid-skene").probs, truth, atol=1e-4)


def test_dawid_skene_of_annotators_who_never_saw_a_class() -> None:
    """Two crowds with classes of their own: the votes of one say nothing for the classes of the
    other.
    """
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 40)
    table = np.full((200, 6), -1)
    table[:40, :3] = np.where(random.random((40, 3)) < 0.8, truth[:, None], 1 - truth[:, None])
    table[40:, 3:] = 2
    label = consensus(table, 3, method="dawid-skene").label
    assert (label[:40] < 2).all() and (label[40:] == 2).all()
    assert (label[:40] == truth).mean() > 0.7


def test_ties_go_to_the_predictions_then_to_the_prior_then_to_chance() -> None:
    tied = [[0, 1]] * 400
    probs = np.tile([[0.3, 0.7], [0.6, 0.4]], (200, 1))
    assert consensus(tied, method="majority", pred_probs=probs).label.tolist() == [1, 0] * 200
    more = [*tied, [1, 1]]  # class 1 is the more frequent one
    assert (consensus(more, method="majority").label == 1).all()
    by_chance = consensus(tied, method="majority", seed=3).label
    assert 150 < by_chance.sum() < 250  # not all towards the first class
    assert (by_chance == consensus(tied, method="majority", seed=3).label).all()
    assert (by_chance != consensus(tied, method="majority", seed=4).label).any()
    assert resolve_ties(np.array([[0.2, 0.5, 0.3]]), np.array([[0.9, 0.0, 0.1]]), 0).tolist() == [1]


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_classes_and_annotators_does_not_matter(method: str) -> None:
    crowd = simulate(5, rows=120, annotators=15, classes=3, per_row=5)
    votes, turn = crowd.votes, np.array([2, 0, 1])
    probs = consensus(votes, 3, method=method).probs
    other = Votes(votes.row, votes.annotator, turn[votes.label], len(votes), votes.names)
    np.testing.assert_allclose(consensus(other, 3, method=method).probs[:, turn], probs, atol=1e-4)
    table = votes.table()[:, ::-1]
    np.testing.assert_allclose(consensus(table, 3, method=method).probs, probs, atol=1e-4)


def test_pooled_confusions_serve_annotators_with_few_labels() -> None:
    accuracy: dict[str, list[float]] = {
        method: [] for method in ("majority", "dawid-skene", "pooled")
    }
    for seed in range(6):
        crowd = simulate(seed, rows=400, annotators=150, classes=4, per_row=4, skew=0.3)
        for method, values in accuracy.items():
            values.append(
                float((consensus(crowd.votes, 4, method=method).label == crowd.truth).mean())
            )  # type: ignore[arg-type]
    mean = {method: np.mean(values) for method, values in accuracy.items()}
    assert mean["pooled"] > mean["majority"] + 0.02 and mean["pooled"] > mean["dawid-skene"] + 0.03


def test_predictions_help_as_far_as_they_know_something() -> None:
    crowd = simulate(2, rows=600, annotators=60, classes=3, per_row=2)
    random = np.random.default_rng(0)
    alone = (consensus(crowd.votes, 3).label == crowd.truth).mean()
    good = 0.1 + 0.7 * (crowd.truth[:, None] == np.arange(3))
    # certain, and without any relation to the truth
    confused = random.dirichlet(np.full(3, 0.5), 600)
    with_good = (consensus(crowd.votes, 3, pred_probs=good).label == crowd.truth).mean()
    with_bad = (consensus(crowd.votes, 3, pred_probs=confused).label == crowd.truth).mean()
    assert with_good > alone + 0.1 and with_bad > alone - 0.03


def test_rows_without_votes() -> None:
    found = consensus([[0, 0], [-1, -1], [1, 1]], method="pooled")
    assert found.label.tolist() == [0, -1, 1] and found.probs.shape == (3, 2)
    probs = [[0.9, 0.1], [0.2, 0.8], [0.1, 0.9]]
    assert consensus(
        [[0, 0], [-1, -1], [1, 1]], method="pooled", pred_probs=probs
    ).label.tolist() == [0, 1, 1]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="Expected `method` .*majority.*got 'median'"):
        consensus([[0, 1]], method="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Expected `pred_probs` of shape \(1, 2\), got \(2, 2\)"):
        consensus([[0, 1]], pred_probs=[[0.5, 0.5], [0.5, 0.5]])


def test_votes_that_are_no_table_of_classes_are_refused() -> None:
    lines = pd.DataFrame({"row": [0, 0, 1], "annotator": [1, 2, 1], "label": [0, 1, 0]})
    for bad in (lines, [["a", "b"]], [], [[0.5, 1.7]]):
        with pytest.raises(ValueError, match="a column for each annotator"):
            consensus(bad)
    with pytest.raises(ValueError, match="sorted by row"):
        Votes(np.array([1, 0]), np.array([0, 0]), np.array([0, 1]), 2, ("a",))
    with pytest.raises(ValueError, match="from 0 to 1"):
        consensus([[0, 2], [1, 1]], num_classes=2)


def test_crowds_without_a_common_row_keep_their_classes() -> None:
    """The second crowd is careless, and labels other classes: these must not become errors for
    those of the first.
    """
    random, right = np.random.default_rng(0), [0.9, 0.9, 0.8, 0.6, 0.6, 0.45, 0.5, 0.4]
    table, truth = np.full((200, 8), -1), np.repeat([0, 2], 100) + random.integers(0, 2, 200)
    for row in range(200):
        for a in random.choice(4, 3, replace=False) + (4 if row >= 100 else 0):
            table[row, a] = truth[row] if random.random() < right[a] else random.integers(0, 4)
    found, majority = consensus(table, 4), consensus(table, 4, method="majority")
    assert sum(label not in votes for label, votes in zip(found.label, table, strict=True)) <= 2
    assert (found.label == truth).mean() > 0.84 and (majority.label == truth).mean() > 0.84
    halves = [consensus(half, 4) for half in (table[:100], table[100:])]
    np.testing.assert_allclose(
        found.probs, np.concatenate([half.probs for half in halves]), atol=0.02
    )
    # the second has 30 rows here
    rows = VotedRows(Votes.of_table(np.vstack([table[:130], np.full((1, 8), -1)])), 4)
    assert rows.crowds[0].unique().tolist() == rows.crowds[1].unique().tolist() == [0]
    even = consensus(table, 4, pred_probs=np.full((200, 4), 0.25))
    assert (even.label == found.label).mean() > 0.95


@pytest.mark.parametrize("per_row", [2, 3])
def test_few_votes_a_row_leave_the_classes_their_shares(per_row: int) -> None:
    """Two or three votes hardly tell a rare class from errors: no class swallows the other."""
    right = []
    for seed in range(4):
        crowd = simulate(seed, rows=800, annotators=160, classes=2, per_row=per_row, mean=0.8)
        found, majority = (
            consensus(crowd.votes, 2, method=method).label for method in ("pooled", "majority")
        )
        assert abs(found.mean() - crowd.truth.mean()) < 0.12
        right.append(((found == crowd.truth).mean(), (majority == crowd.truth).mean()))
    ours, theirs = np.mean(right, 0)
    assert ours > theirs - 0.01
