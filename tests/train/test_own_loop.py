"""The parts of strategies that a loop of one's own can call: the moving average of weights, and
corrected targets.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noiseproof import get_loss
from noiseproof.data import get_dataset
from noiseproof.strategies import Batch, Run, corrected_targets, predict_log_probs, update_average
from noiseproof.strategies.correction import LabelCorrection
from noiseproof.train import Settings, prepare, train
from noiseproof.train.methods import Method


def make_network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_an_average_of_weights_and_statistics_but_not_of_counts() -> None:
    model, average = make_network(0), make_network(1)
    # moves the batch statistics
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    before = copy.deepcopy(average.state_dict())
    update_average(average, model, alpha=0.9)
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            expected = 0.9 * before[name].double() + 0.1 * model.state_dict()[name].double()
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)
        else:
            assert value == before[name] == 0 and model.state_dict()[name] == 1
    assert all(parameter.grad is None for parameter in average.parameters())


def test_what_no_average_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected `alpha` in \[0, 1\], got 1.5"):
        update_average(make_network(0), make_network(0), alpha=1.5)


def reference(log_p: np.ndarray, given: np.ndarray, current: np.ndarray, soft: bool) -> np.ndarray:
    """SLN paper, section 3.3, typed row by row."""
    N, K = log_p.shape
    losses = [-sum(current[i, k] * log_p[i, k] for k in range(K)) for i in range(N)]
    low, high = min(losses), max(losses)
    targets = np.zeros((N, K))
    for i in range(N):
        omega = (losses[i] - low) / (high - low)
        predicted = np.exp(log_p[i]) if soft else np.eye(K)[log_p[i].argmax()]
        targets[i] = omega * np.eye(K)[given[i]] + (1 - omega) * predicted
    return targets


@pytest.mark.parametrize("soft", [False, True])
def test_corrected_targets_are_the_papers(soft: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(4, (20,), generator=generator)
    current = np.eye(4)[given.numpy()]
    targets: Tensor | None = None
    for _ in range(3):  # from epoch to epoch, each against the targets of the last one
        log_p = torch.randn(20, 4, generator=generator, dtype=torch.float64).log_softmax(1)
        targets = corrected_targets(log_p, given, current=targets, soft=soft)
        current = reference(log_p.numpy(), given.numpy(), current, soft)
        np.testing.assert_allclose(targets.numpy(), current, atol=1e-12)
        assert torch.allclose(targets.sum(1), torch.ones(20, dtype=torch.float64))


def test_rows_that_nothing_tells_apart_keep_their_labels() -> None:
    targets = corrected_targets(torch.full((3, 2), 0.5).log(), torch.tensor([0, 1, 1]))
    assert targets.tolist() == [[1, 0], [0, 1], [0, 1]]


SEEN: list[tuple[Tensor, Tensor]] = []


class Recorded(LabelCorrection):
    """Label correction that adds to SEEN what each epoch's correction saw and made; runs have a
    copy of their own.
    """

    def start_epoch(self, run: Run) -> None:
        log_p = predict_log_probs(run)
        super().start_epoch(run)
        rows = torch.arange(run.num_rows)
        batch = Batch(log_p, run.data.given, run.data.given, rows, rows)
        SEEN.append((log_p, self.targets(batch, run).target))


@pytest.mark.parametrize("soft", [False, True])
def test_the_strategy_makes_the_same_targets(soft: bool) -> None:
    data = get_dataset("digits")
    task = prepare(data, "symmetric:rate=0.4")
    SEEN.clear()
    train(
        task,
        Method(get_loss("ce"), strategies=(Recorded(start=0, soft=soft),)),
        Settings(epochs=3, model="mlp:hidden=[16]"),
    )
    current = None
    for log_p, target in SEEN:
        current = corrected_targets(log_p, task.train.given, current=current, soft=soft)
        torch.testing.assert_close(current, target, rtol=1e-5, atol=1e-6)
    assert len(SEEN) == 3
