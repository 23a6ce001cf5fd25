"""Evidence is out of sample where it says so, averaged as it says, and finds planted errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from noiseproof.data import NoisyData
from noiseproof.judge.evidence.neighbours import VOTERS, nearest, neighbour_votes
from noiseproof.judge.evidence.network import (
    Evidence,
    cross_validate,
    prepare_inputs,
    soft_labels,
    watch_training,
)
from noiseproof.judge.labels import find_label_issues
from noiseproof.strategies import predict_log_probs
from noiseproof.strategies.averages import HeldOutAverages, TrainingAverages
from noiseproof.strategies.row_tables import FixedTargets
from noiseproof.train.loop import train
from noiseproof.train.methods import Method, get_method
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

Array = NDArray[Any]


def planted(
    n: int = 240, K: int = 3, rate: float = 0.15, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Inputs in K clusters, true labels, and given ones of which some are the next class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(K, size=n)
    x = (3 * np.eye(K, 5)[true] + rng.normal(size=(n, 5))).astype(np.float32)
    return x, true, np.where(rng.random(n) < rate, (true + 1) % K, true)


def average_precision(quality: Array, wrong: Array) -> float:
    hit = wrong[np.argsort(quality, kind="stable")]
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())


def task_of(x: Array, given: Array, K: int = 3) -> Task:
    return Task(
        NoisyData(
            torch.from_numpy(x), torch.from_numpy(given), tuple("abcdef"[:K]), torch.arange(len(x))
        )
    )


SHORT = Settings(model="mlp:hidden=[8]", epochs=3, batch_size=32, optimizer="adam:lr=0.01")


def with_parts(task: Task, method: str, *parts: Any) -> Method:
    made = get_method(method, task, SHORT)
    return Method(made.loss, made.head, (*made.strategies, *parts))


@pytest.mark.parametrize("method", ["ce", "ln", "nal"])
def test_held_out_averages_are_the_mean_of_what_each_epoch_s_model_says(method: str) -> None:
    x, _, given = planted(90)
    task = task_of(x[:60], given[:60])
    held = HeldOutAverages(torch.from_numpy(x[60:]), torch.from_numpy(given[60:]))
    found = train(task, with_parts(task, method, held), SHORT, seed=1)
    sums = found.strategies[-1]
    assert isinstance(sums, HeldOutAverages)
    # The same runs, cut short after each epoch: the schedule is the one thing that must not know.
    constant = Settings(**{**SHORT.as_dict(), "schedule": "constant"})
    held = HeldOutAverages(torch.from_numpy(x[60:]), torch.from_numpy(given[60:]))
    whole = train(task, with_parts(task, method, held), constant, seed=1).strategies[-1]
    said = []
    # whose targets follow the model from the second on
    for epochs in () if method == "nal" else (1, 2, 3):
        part = train(
            task,
            with_parts(task, method),
            Settings(**{**constant.as_dict(), "epochs": epochs}),
            seed=1,
        )
        model = part.models[0].eval()
        with torch.no_grad():
            said.append(part.run.loss.scores(model(torch.from_numpy(x[60:]))).softmax(1))
    assert isinstance(whole, HeldOutAverages)
    if method == "nal":
        assert float((whole.mean("probs").sum(1) - 1).abs().max()) < 1e-5
    else:
        torch.testing.assert_close(
            whole.mean("probs"), torch.stack(said).mean(0), rtol=1e-4, atol=1e-5
        )
        missed = (
            torch.stack([p.argmax(1) != torch.from_numpy(given[60:]) for p in said]).float().mean(0)
        )
        torch.testing.assert_close(whole.mean("missed"), missed)
    assert (whole.mean("times") == 1).all() and bool((whole.sums[:, 0] == 3).all())
    doubt = whole.mean("doubt")
    assert (
        float(doubt.min()) >= 0
        and float(doubt.max()) < 1
        and (float(doubt.max()) > 0) == (method != "ce")
    )


def test_training_averages_see_each_row_once_an_epoch_before_it_is_learned() -> None:
    x, _, given = planted(64)
    task = task_of(x, given)
    one = Settings(**{**SHORT.as_dict(), "epochs": 1, "batch_size": "full"})
    watched = train(task, with_parts(task, "ce", TrainingAverages()), one, seed=2)
    untrained = train(
        task,
        with_parts(task, "ce", TrainingAverages()),
        Settings(**{**one.as_dict(), "epochs": 2}),
        seed=2,
    )
    sums = watched.strategies[-1]
    assert isinstance(sums, TrainingAverages) and bool((sums.sums[:, 0] == 1).all())
    # One step over all rows: what was said is what the untrained model says, so a second epoch adds
    # to the same.
    twice = untrained.strategies[-1]
    assert isinstance(twice, TrainingAverages) and bool((twice.sums[:, 0] == 2).all())
    assert float((twice.probs - sums.probs).min()) >= 0


def test_where_inputs_are_mixed_each_row_is_asked_by_itself_after_the_epoch() -> None:
    x, _, given = planted(64)
    task = task_of(x, given)
    mixed = train(
        task, with_parts(task, "ce & mixup", TrainingAverages()), replace(SHORT, epochs=1), seed=2
    )
    sums = mixed.strategies[-1]
    assert isinstance(sums, TrainingAverages) and bool((sums.sums[:, 0] == 1).all())
    torch.testing.assert_close(sums.mean("probs"), predict_log_probs(mixed.run).exp())


def test_watching_does_not_change_the_training() -> None:
    x, _, given = planted(64)
    task = task_of(x, given)
    plain = train(task, with_parts(task, "ln"), SHORT, seed=3)
    watched = train(task, with_parts(task, "ln", TrainingAverages()), SHORT, seed=3)
    for a, b in zip(plain.models[0].parameters(), watched.models[0].parameters(), strict=True):
        assert torch.equal(a, b)


def test_training_towards_one_hot_labels_is_training_on_labels() -> None:
    x, _, given = planted(64)
    task = task_of(x, given)
    table = torch.eye(3)[torch.from_numpy(given)]
    plain = train(task, with_parts(task, "ce"), SHORT, seed=3)
    towards = train(task, with_parts(task, "ce", FixedTargets(table)), SHORT, seed=3)
    for a, b in zip(plain.models[0].parameters(), towards.models[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def shapes(found: Evidence, n: int, K: int) -> None:
    assert found.pred_probs.shape == (n, K) and found.pred_probs.dtype == np.float32
    np.testing.assert_allclose(found.pred_probs.sum(1), 1, atol=1e-4)
    for column in (found.unlearned, found.doubt, found.neighbour_agreement):
        assert column is not None and column.shape == (n,)


def test_planted_errors_are_found_by_folds() -> None:
    x, true, given = planted()
    calls: list[tuple[int, int]] = []
    fold = np.arange(len(x)) % 3
    found = cross_validate(
        x, given, 3, fold, epochs=5, progress=lambda _, done, total: calls.append((done, total))
    )
    shapes(found, len(x), 3)
    assert calls == [(i, 45) for i in range(3, 46, 3)]  # an epoch of three folds at a time
    issues = find_label_issues(given, evidence=found)
    assert average_precision(issues.quality, true != given) > 0.9
    assert (
        issues.unlearned is not None
        and issues.unlearned[true != given].mean() > issues.unlearned[true == given].mean()
    )


def test_planted_errors_are_found_by_watching() -> None:
    x, true, given = planted(600)
    found = watch_training(x, given, 3, epochs=10)
    shapes(found, len(x), 3)
    issues = find_label_issues(given, evidence=found)
    assert average_precision(issues.quality, true != given) > 0.9


def test_watching_says_how_sure_the_neighbours_alone_are() -> None:
    x, _, given = planted(120)
    found = watch_training(x, given, 3, epochs=1, seed=4)
    inputs, _ = prepare_inputs(x, given, 3)
    votes = neighbour_votes(given, nearest(inputs, VOTERS, seed=4), 3)[0]
    assert found.guess is not None and found.guess_confidence is not None
    np.testing.assert_array_equal(found.guess_confidence, votes[np.arange(120), found.guess])
    np.testing.assert_array_equal(found.guess_confidence, votes.max(1))
    out_of_fold = cross_validate(x, given, 3, np.arange(120) % 2, epochs=1)
    assert out_of_fold.guess_confidence is None  # no model saw a row's own label


def test_no_row_is_judged_by_its_own_label() -> None:
    """Another label in one row changes what is said of the other folds' rows, not of its own
    fold's.

    The second round is left out: its soft labels come from all rows.
    """
    import noiseproof.judge.evidence.network as module

    x, _, given = planted(90)
    fold = np.arange(90) % 3
    other = given.copy()
    other[0] = (given[0] + 1) % 3
    before, module.LARGE = module.LARGE, 0
    try:
        one, two = (cross_validate(x, y, 3, fold, epochs=2, seed=5) for y in (given, other))
    finally:
        module.LARGE = before
    same = np.abs(one.pred_probs - two.pred_probs).max(1)
    prior = 1 / 26 / 90 / 3  # votes carry the distribution of all labels
    assert same[fold == 0].max() < 2 * prior + 1e-5
    assert same[fold != 0].max() > 0.001


def test_evidence_repeats_itself_by_its_seed() -> None:
    x, _, given = planted(90)
    one, two = (watch_training(x, given, 3, epochs=2, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.pred_probs, two.pred_probs)
    state = torch.get_rng_state()
    watch_training(x, given, 3, epochs=1, seed=8)
    assert torch.equal(state, torch.get_rng_state())


def test_units_of_columns() -> None:
    """Columns in one unit keep their proportions; columns in different units are brought to one
    each.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32) * np.float32([1, 2, 3])
    ready, _ = prepare_inputs(x, np.zeros(500, dtype=int), 2)
    np.testing.assert_allclose(ready.std(0) / ready.std(0)[0], x.std(0) / x.std(0)[0], rtol=1e-4)
    ready, _ = prepare_inputs(x * np.float32([1, 1, 1e5]), np.zeros(500, dtype=int), 2)
    np.testing.assert_allclose(ready.std(0, correction=0), 1, rtol=1e-3)


def test_soft_labels_move_wrong_labels_only() -> None:
    _, true, given = planted(400)
    p = np.full((400, 3), 0.02, dtype=np.float32) + 0.94 * np.eye(3, dtype=np.float32)[true]
    soft = soft_labels(torch.from_numpy(given), torch.from_numpy(p))
    np.testing.assert_array_equal(soft.argmax(1), true)
    np.testing.assert_allclose(soft.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "labels", "K", "folds", "message"),
    [
        (np.zeros((4, 2)), [0, 1, 0, 1], 2, [0, 1, 0, 1], "Expected columns that vary"),
        (np.full((4, 2), np.nan), [0, 1, 0, 1], 2, [0, 1, 0, 1], "finite numbers"),
        (np.eye(4), [0, 1, 0], 2, [0, 1, 0, 1], "Expected `x` of shape"),
        (np.eye(4), [0, 1, 0, 2], 2, [0, 1, 0, 1], "Expected labels in 0 … 1"),
        (np.eye(4), [0, 0, 0, 0], 1, [0, 1, 0, 1], "single class"),
        (np.eye(4), [0, 1, 0, 1], 2, [0, 0, 0, 0], "Expected `folds`"),
    ],
)
def test_refusals(x: Array, labels: list[int], K: int, folds: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_validate(x, labels, K, folds)


def test_a_fast_audit_counts_wrong_labels_by_wide_features() -> None:
    """More columns than rows, which one training memorises at once: no label was called wrong
    before.
    """
    random = np.random.default_rng(0)
    N, D, K = 900, 1000, 5
    y = random.integers(0, K, N)
    x = random.normal(0, 1, (K, D))[y] * 0.25 + random.normal(0, 1, (N, D))
    wrong = random.random(N) < 0.15
    given = np.where(wrong, (y + random.integers(1, K, N)) % K, y)
    evidence = watch_training(x.astype(np.float32), given, K)
    issues = find_label_issues(given, evidence=evidence)
    assert evidence.dynamics is not None
    assert f1_score(wrong, issues.is_issue) > 0.9
    assert issues.noise_rate == pytest.approx(wrong.mean(), abs=0.03)
    clean = find_label_issues(y, evidence=watch_training(x.astype(np.float32), y, K))
    assert clean.is_issue.sum() < 10 and clean.noise_rate < 0.02


def test_narrow_features_are_judged_by_one_training() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 600)
    evidence = watch_training(
        (y + random.normal(0, 0.1, 600))[:, None].astype(np.float32), y, 2, epochs=1
    )
    assert evidence.dynamics is None
