"""The regularisers of SOP+ against steps typed from the paper."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from handmade_run import make_batch, make_run

from noiseproof.core.output import Output
from noiseproof.data import from_arrays, get_dataset
from noiseproof.data.augment import Compose, Cutout, PadCrop, strong_augmentation
from noiseproof.strategies.consistency import Consistency
from noiseproof.strategies.mixing import second_view
from noiseproof.strategies.sparse_noise import SparseNoise
from noiseproof.train import Settings, Task, prepare, train
from noiseproof.train.step import Stepper

K = 10


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4")


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize(
    ("lambda_c", "lambda_b", "augment"),
    [(0.9, 0.1, True), (2.0, 0.0, True), (0.0, 3.0, True), (0.9, 0.1, False)],
)
def test_steps_are_those_of_the_paper(
    task: Task, models: int, lambda_c: float, lambda_b: float, augment: bool
) -> None:
    """Liu et al. 2022, SOP+: L + λ_C·KL(p(x) ‖ p(x′)), p(x) a constant, + λ_B·Σ_k 1/K log(1/K /
    mean p_k).
    """
    assert task.normalise is not None
    build = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    run = make_run(
        task,
        "sop",
        models=models,
        build=build,
        weight_scale=2,
        augment=Compose((PadCrop(2), task.normalise)) if augment else None,
    )
    strategies = [SparseNoise(lr_u=6.0, lr_v=30.0, std=0.2), Consistency(lambda_c, lambda_b)]
    run.strategies = strategies
    nets = [copy.deepcopy(model.plain) for model in run.models]
    for strategy in strategies:
        strategy.setup(run)
    noise, step, optimisers = (
        strategies[0],
        Stepper(run, None, ()),
        [build(net.parameters()) for net in nets],
    )
    assert isinstance(noise, SparseNoise)
    for run.step in range(5):
        rows = torch.arange(32) + 7 * run.step
        batch = make_batch(run, rows)
        y = torch.eye(K, dtype=torch.float64)[batch.given]
        u, v = noise.u[rows].clone(), noise.v[rows].clone()
        view = second_view("consistency", batch, run)
        assert torch.equal(view, batch.x) != augment
        step(batch)
        for m, net in enumerate(nets):
            z, again = net(batch.x).logits, net(view).logits
            learned = torch.stack([u[:, m] ** 2 * y, v[:, m] ** 2 * (1 - y)], 1)
            loss = run.loss(Output(z, noise=learned), batch.given).mean()
            p = z.softmax(1)
            consistency = F.kl_div(again.log_softmax(1), p.detach(), reduction="batchmean")
            mean = p.mean(0)
            balance = ((1 / K) * ((1 / K) / mean).log()).sum()
            optimisers[m].zero_grad()
            (loss + lambda_c * consistency + lambda_b * balance).backward()
            optimisers[m].step()
    for model, net in zip(run.models, nets, strict=True):
        for ours, theirs in zip(model.plain.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_value_is_that_of_the_divergences(task: Task) -> None:
    """With its gradient known from steps: terms of rows whose mean is the sum of both
    divergences.
    """
    assert task.normalise is not None
    run = make_run(task, weight_scale=2, augment=Compose((PadCrop(2), task.normalise)))
    batch, net = make_batch(run, torch.arange(40)), run.models[0].plain
    with torch.no_grad():
        outs = [net(batch.x)]
    terms = Consistency(0.7, 0.2).penalties(torch.zeros(1, 40), outs, batch, run).detach()
    p, q = (
        outs[0].logits.softmax(1),
        net(second_view("consistency", batch, run)).logits.softmax(1).detach(),
    )
    wanted = 0.7 * (p * (p / q).log()).sum(1).mean() - 0.2 * (K * p.mean(0)).log().mean()
    assert terms.shape == (1, 40) and float(terms.mean()) == pytest.approx(float(wanted), rel=1e-12)
    # ten only fill up
    short = replace(batch, counts=torch.tensor([1.0] * 30 + [0.0] * 10).double(), count=30)
    some = Consistency(0.0, 1.0).penalties(torch.zeros(1, 40), outs, short, run)
    assert float(some[0, :30].mean()) == pytest.approx(
        -float((K * p[:30].mean(0)).log().mean()), rel=1e-12
    )


def test_the_second_view_is_strong_where_the_paper_says_so(task: Task) -> None:
    """Pictures prepared as in the paper; a view is drawn as the first one without it, and for
    anything else.
    """
    pictures = torch.randint(
        256, (20, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    data = from_arrays(pictures, torch.arange(20) % 2, name="cifar10")
    tasks = [prepare(data, paper=paper) for paper in ("sop+", "sop", None)]
    assert [each.strong for each in tasks] == [strong_augmentation("cifar10", "sop+"), None, None]
    assert (
        prepare(data, paper="sop+", augment=False).strong
        is prepare(get_dataset("digits"), paper="sop+").strong
        is None
    )
    assert task.normalise is not None
    cut = Compose((task.normalise, Cutout(100)))
    run = make_run(task, weight_scale=2, augment=Compose((PadCrop(2), task.normalise)), strong=cut)
    batch, net = make_batch(run, torch.arange(40)), run.models[0].plain
    with torch.no_grad():
        outs, nothing = [net(batch.x)], net(torch.zeros_like(batch.x)).logits.softmax(1)
    terms = Consistency(0.7, 0.0).penalties(torch.zeros(1, 40), outs, batch, run)
    p = outs[0].logits.softmax(1)
    torch.testing.assert_close(terms[0].detach(), 0.7 * (p * (p / nothing).log()).sum(1))
    # of other methods
    assert not torch.equal(second_view("view", batch, run), torch.zeros_like(batch.x))


def test_a_run_knows_its_second_view(tmp_path: Path) -> None:
    pictures = torch.randint(
        256, (20, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    task = prepare(from_arrays(pictures, torch.arange(20) % 2, name="cifar10"), paper="sop+")
    for method in ("sop+", "promix:warmup=0"):
        settings = Settings(epochs=1, model="mlp:hidden=[4]")
        out = tmp_path / method.partition(":")[0]
        train(task, method, settings, out=out)
        with pytest.raises(ValueError, match="strong"):
            train(replace(task, strong=None), method, settings, out=out, resume=True)
