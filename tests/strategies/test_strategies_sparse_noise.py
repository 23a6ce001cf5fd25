"""SOP against a training loop typed from its paper, with one optimiser for each of θ, u and v."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from handmade_run import make_batch, make_run
from torch import Tensor

from noiseproof.data import get_dataset
from noiseproof.strategies.sparse_noise import SparseNoise
from noiseproof.train import Task, prepare
from noiseproof.train.step import Stepper

K = 10


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4")


def normalised(a: Tensor) -> Tensor:
    positive = torch.maximum(a, torch.tensor(1e-4, dtype=a.dtype))
    return positive / positive.sum(1, keepdim=True)


@pytest.mark.parametrize("models", [1, 2])
def test_a_run_is_the_papers_two_minimisations(task: Task, models: int) -> None:
    """Liu et al. 2022, section 3.2: (θ, u) by the cross entropy of φ(p + s), v by the squares, u
    and v in [−1, 1].
    """
    build = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    run = make_run(task, "sop", models=models, build=build)
    strategy = SparseNoise(lr_u=6.0, lr_v=30.0, std=0.2)
    run.strategies = [strategy]
    nets = [copy.deepcopy(model.plain) for model in run.models]
    strategy.setup(run)
    u = [strategy.u[:, m].clone().requires_grad_() for m in range(models)]  # (N, 1)
    v = [strategy.v[:, m].clone().requires_grad_() for m in range(models)]
    optimisers = [
        (build(net.parameters()), torch.optim.SGD([u[m]], 6.0), torch.optim.SGD([v[m]], 30.0))
        for m, net in enumerate(nets)
    ]
    random, step = np.random.default_rng(0), Stepper(run, None, ())
    for _ in range(8):
        rows = random.permutation(40)[:24]
        batch = make_batch(run, rows)
        step(batch)
        y = torch.eye(K, dtype=torch.float64)[batch.given]
        for m, net in enumerate(nets):
            logits = net(batch.x).logits
            p, s = logits.softmax(1), u[m][rows] ** 2 * y - v[m][rows] ** 2 * (1 - y)
            explained = -(y * normalised(p + s).log()).sum(1).mean()
            best = torch.eye(K, dtype=torch.float64)[logits.argmax(1)]
            square = ((best + s - y) ** 2).sum(1).mean()
            parameters = [*net.parameters(), u[m], v[m]]
            for x in parameters:
                x.grad = None
            of_first = torch.autograd.grad(explained, [*net.parameters(), u[m]], retain_graph=True)
            for x, gradient in zip(
                parameters, (*of_first, *torch.autograd.grad(square, v[m])), strict=True
            ):
                x.grad = gradient
            for optimiser in optimisers[m]:
                optimiser.step()
            with torch.no_grad():
                u[m].clamp_(-1, 1)
                v[m].clamp_(-1, 1)
    for m, net in enumerate(nets):
        torch.testing.assert_close(strategy.u[:, m], u[m].detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(strategy.v[:, m], v[m].detach(), rtol=1e-10, atol=1e-12)
        for ours, theirs in zip(run.models[m].plain.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert 0 < int((strategy.u[:40].abs() == 1).sum()) < 40 * models


def test_it_starts_from_almost_nothing(task: Task) -> None:
    run, strategy = make_run(task, "sop"), SparseNoise()
    run.strategies = [strategy]
    strategy.setup(run)
    assert strategy.u.shape == (run.num_rows, 1, 1) and strategy.v.shape == (run.num_rows, 1, K)
    assert float(strategy.v.std()) == pytest.approx(1e-8, rel=0.05)
