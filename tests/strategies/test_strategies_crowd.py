"""Crowd layers against a training loop typed from the paper; a crowd with a bad annotator; votes as
soft labels.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade_run import make_batch, make_run
from torch import Tensor

from noiseproof.data import NoisyData, from_arrays, get_dataset
from noiseproof.data.votes import Votes
from noiseproof.noise import get_noise
from noiseproof.strategies.crowd import CrowdLayer
from noiseproof.train import Settings, Task, prepare, train
from noiseproof.train.step import Stepper

K = 10


@pytest.fixture(scope="module")
def task() -> Task:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    return replace(task, train=replace(task.train, annotator=torch.arange(len(task.train)) % 3))


def said(kind: str, p: Tensor, w: Tensor) -> Tensor:
    """−log P(label) for all labels: Rodrigues and Pereira 2018, Eq. 8 with a softmax; or Σ_k p_k
    T[k, l].
    """
    if kind == "matrix":
        activation = torch.stack([w[i] @ p[i] for i in range(len(p))])
        return -(activation.exp() / activation.exp().sum(1, keepdim=True)).log()
    T = w.exp() / w.exp().sum(2, keepdim=True)
    return -torch.stack([p[i] @ T[i] for i in range(len(p))]).log()


@pytest.mark.parametrize("kind", ["matrix", "transition"])
@pytest.mark.parametrize("models", [1, 2])
def test_a_run_is_that_of_the_papers(task: Task, kind: str, models: int) -> None:
    """The layer of each annotator and the network descend on the cross entropy of the labels of
    that annotator.
    """
    build = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    run = make_run(task, "ce", models=models, build=build)
    strategy = CrowdLayer(kind=kind, lr=0.03)  # type: ignore[arg-type]
    run.strategies = [strategy]
    nets = [copy.deepcopy(model.plain) for model in run.models]
    strategy.setup(run)
    start = torch.eye(K, dtype=torch.float64) * (1 if kind == "matrix" else 3)
    layers = [start.expand(3, K, K).clone().requires_grad_() for _ in range(models)]
    optimisers = [
        (build(net.parameters()), torch.optim.Adam([layer], 0.03))
        for net, layer in zip(nets, layers, strict=True)
    ]
    random, step = np.random.default_rng(0), Stepper(run, None, ())
    for number in range(8):
        rows = random.permutation(40)[:24]
        batch = make_batch(run, rows)
        run.step = number
        step(batch)
        for m, net in enumerate(nets):
            p = net(batch.x).logits.softmax(1)
            nll = said(kind, p, layers[m][torch.from_numpy(rows % 3)])
            for optimiser in optimisers[m]:
                optimiser.zero_grad()
            nll[torch.arange(24), batch.given].mean().backward()
            for optimiser in optimisers[m]:
                optimiser.step()
    for m, net in enumerate(nets):
        torch.testing.assert_close(strategy.layers[:, m], layers[m].detach(), rtol=1e-8, atol=1e-10)
        for ours, theirs in zip(run.models[m].plain.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert torch.allclose(strategy.confusion().sum(2), torch.ones(3, K, dtype=torch.float64))


def crowd(seed: int = 0) -> tuple[Task, np.ndarray]:
    """Digits labelled by one good annotator and two who take each digit for the next one in 60 % of
    the rows.
    """
    task, random = prepare(get_dataset("digits")), np.random.default_rng(seed)
    truth = task.train.given.numpy()
    wrong = (truth[:, None] + 1) % K
    table = np.where(random.random((len(truth), 3)) < [0.95, 0.4, 0.4], truth[:, None], wrong)
    table[random.random(table.shape) < 0.4] = -1
    table[:, 0] = np.where((table < 0).all(1), truth, table[:, 0])
    votes = Votes.of_table(table)
    rows = torch.from_numpy(votes.row)
    data = replace(
        task.train.subset(rows),
        given=torch.from_numpy(votes.label),
        annotator=torch.from_numpy(votes.annotator),
    )
    return replace(task, train=data), table


def test_a_crowd_whose_majority_is_wrong() -> None:
    task, _ = crowd()
    settings = Settings(epochs=20, model="mlp:hidden=[64]")
    alone, layered = (
        train(task, method, settings).metrics[-1]["test_accuracy"]
        for method in ("ce", "ce & crowd-layer")
    )
    assert layered > alone + 0.15 and layered > 0.9


def test_annotators_of_a_file_and_parts_of_the_data(tmp_path: object) -> None:
    path = f"{tmp_path}/votes.npy"
    np.save(path, np.array([[0, 1, -1], [1, -1, 1], [2, 2, 0], [0, 0, 1]]))
    noisy = get_noise("file", path=path, annotators="all").corrupt([0, 1, 2, 0])
    assert noisy.annotator is not None and noisy.annotator.tolist() == [
        0,
        1,
        0,
        2,
        0,
        1,
        2,
        0,
        1,
        2,
    ]
    data = from_arrays(np.eye(4, dtype=np.float32), [0, 1, 2, 0])
    both = prepare(data, f"file:path={path},annotators=all", validation=0.25)
    for part in (both.train, both.validation):
        assert isinstance(part, NoisyData) and part.annotator is not None
        table = np.load(path)
        assert part.given.tolist() == [
            table[i, a] for i, a in zip(part.index, part.annotator, strict=True)
        ]


@pytest.mark.parametrize("method", ["ce", "gce", "elr", "sln", "ce & crowd-layer"])
def test_votes_are_soft_labels(method: str) -> None:
    """The counts of ``Votes`` go into any method that takes distributions."""
    _, table = crowd()
    x = prepare(get_dataset("digits")).train.x
    data = from_arrays(x.numpy(), Votes.of_table(table).counts(K))  # type: ignore[union-attr]
    result = train(prepare(data), method, Settings(epochs=1, model="mlp:hidden=[8]"))
    assert data.train.soft is not None and len(result.metrics) == 1
    np.testing.assert_allclose(data.train.soft.sum(1), 1, rtol=1e-6)
