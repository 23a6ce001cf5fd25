"""Memories of predictions against recursions typed from the papers and their code, and resumed runs
bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from handmade_run import make_batch, make_run
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.data import get_dataset
from noiseproof.losses import get_loss
from noiseproof.strategies import STRATEGIES
from noiseproof.strategies.memory import EstimatedTargets, ExchangedMemory, TargetMemory
from noiseproof.strategies.mixing import Mixup, draw_mix
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.train import Method, Settings, Task, prepare

K = 10
SETTINGS = Settings(epochs=3, model="mlp:hidden=[16]", batch_size=300, optimizer="adam:lr=0.01")


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4")


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def one_hot(task: Task) -> np.ndarray:
    return np.eye(K)[task.train.given.numpy()]


@pytest.mark.parametrize("every", [1, 3])
def test_estimated_targets_follow_the_recursion(task: Task, every: int) -> None:
    """t = 0.9 t + 0.1 softmax(z), before the loss."""
    run = make_run(task)
    strategy = EstimatedTargets(start=2, every=every)
    strategy.setup(run)
    random, table = np.random.default_rng(0), one_hot(task)
    for epoch in range(9):
        run.epoch = epoch
        order = random.permutation(60)
        for rows in (order[:25], order[25:50]):  # the last ten rows are not always seen
            z = random.normal(0, 3, (25, K))
            out = Output(torch.tensor(z, requires_grad=True))
            batch = make_batch(run, rows)
            revised = strategy.revise(batch, [out], run)
            if epoch < 2:
                assert revised is batch
                continue
            if (epoch - 2) % every == 0:
                table[rows] = 0.9 * table[rows] + 0.1 * softmax(z)
            np.testing.assert_allclose(revised.target.numpy(), table[rows], rtol=1e-13)
            assert not revised.target.requires_grad
    np.testing.assert_allclose(strategy.table[:, 0].numpy(), table, rtol=1e-13)


@pytest.mark.parametrize("models", [1, 2])
def test_a_class_that_is_not_predicted_yet_keeps_its_labels(task: Task, models: int) -> None:
    run = make_run(task, models=models, epoch=2)
    strategy = EstimatedTargets(start=2)
    strategy.setup(run)
    assert run.normalise is not None
    z = [model.plain(run.normalise(task.train.x).double()).logits.detach() for model in run.models]
    strategy.start_epoch(run)
    revised = strategy.revise(make_batch(run), [Output(each) for each in z], run)
    moved = (revised.target.reshape(models, -1, K).numpy() != one_hot(task)).any(2)
    for m, each in enumerate(z):
        predicted = np.isin(task.train.given.numpy(), each.argmax(1).numpy())
        assert 0 < predicted.sum() < len(predicted)
        np.testing.assert_array_equal(moved[m], predicted)
    for epoch, follows_all in (
        (2, EstimatedTargets(start=2, spare=False)),
        (0, EstimatedTargets(start=0)),
    ):
        run.epoch = epoch
        follows_all.setup(run)
        follows_all.start_epoch(run)
        revised = follows_all.revise(make_batch(run), [Output(each) for each in z], run)
        assert (revised.target.reshape(models, -1, K).numpy() != one_hot(task)).any(2).all()


def test_nal_updates_in_the_epochs_of_the_released_code(task: Task) -> None:
    """Epochs counted from 1, at least 60 and divisible by 10, are 59, 69, … counted from 0."""
    run, strategy = make_run(task), EstimatedTargets(start=59, every=10)
    strategy.setup(run)
    out, changed = Output(torch.zeros(5, K, dtype=torch.float64)), []
    for run.epoch in range(100):
        before = strategy.table.clone()
        strategy.revise(make_batch(run, range(5)), [out], run)
        if not torch.equal(before, strategy.table):
            changed.append(run.epoch + 1)
    assert changed == [60, 70, 80, 90, 100]


def test_two_models_estimate_each_its_own(task: Task) -> None:
    run, strategy = make_run(task, models=2), EstimatedTargets(start=0)
    strategy.setup(run)
    z = torch.randn(2, 7, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = strategy.revise(make_batch(run, range(7)), [Output(z[0]), Output(z[1])], run).target
    np.testing.assert_allclose(
        target.numpy(), 0.9 * one_hot(task)[:7] + 0.1 * softmax(z.numpy()), rtol=1e-13
    )


@pytest.mark.parametrize("beta, clip", [(0.7, 1e-4), (0.9, 0.0), (0.3, 0.2)])
def test_target_memory_follows_the_recursion(task: Task, beta: float, clip: float) -> None:
    """ELR's code: p clamped, then t = β t + (1 − β) p/Σp from zero, and the loss sees the new t."""
    run, strategy = make_run(task, "elr:lam=3,clip=1e-4"), TargetMemory(beta, clip)
    strategy.setup(run)
    random, table = np.random.default_rng(1), np.zeros((len(task.train), K))
    for _ in range(6):
        rows = random.permutation(40)[:30]
        z = random.normal(0, 5, (30, K))
        batch = make_batch(run, rows)
        logits = torch.tensor(z, requires_grad=True)
        (out,) = strategy.outputs([Output(logits)], batch, run)
        p = softmax(z)
        kept = np.clip(p, clip, 1 - clip)
        table[rows] = beta * table[rows] + (1 - beta) * kept / kept.sum(1, keepdims=True)
        assert out.memory is not None and not out.memory.requires_grad
        np.testing.assert_allclose(out.memory.numpy(), table[rows], rtol=1e-12)

        y = batch.given.numpy()
        inner = (table[rows] * np.clip(p, 1e-4, 1 - 1e-4)).sum(1)
        loss = -np.log(p[np.arange(30), y]) + 3 * np.log(1 - inner)
        np.testing.assert_allclose(run.loss(out, batch.target).detach().numpy(), loss, rtol=1e-10)


def test_memory_never_leaves_the_unit_interval(task: Task) -> None:
    """The loss refuses a memory above 1, which rounding must not make of certain predictions."""
    run = make_run(task, precision="32-true")
    for beta in np.linspace(0, 1, 23):
        strategy = TargetMemory(float(beta), clip=0)
        strategy.setup(run)
        for size in (3.0, 17.0, 200.0):
            z = size * torch.eye(K)
            for _ in range(20):
                (out,) = strategy.outputs([Output(z)], make_batch(run, range(K)), run)
                assert (
                    out.memory is not None
                    and 0 <= float(out.memory.min())
                    and float(out.memory.max()) <= 1
                )


def predict(model: torch.nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return softmax(model.eval()(x).logits.numpy())


@pytest.mark.parametrize("reweigh", [False, True])
def test_exchanged_memory_is_the_others_on_unmixed_inputs(task: Task, reweigh: bool) -> None:
    """ELR+'s code: the other's prediction of plain inputs, its history mixed like the inputs, y·q
    on CIFAR-100.
    """
    run = make_run(task, "elr", models=2)
    teachers = [model.plain for model in make_run(task, models=2).models]
    for teacher in teachers:
        torch.nn.init.normal_(
            teacher.head.logits.weight, generator=torch.Generator().manual_seed(5)
        )
    for model, teacher in zip(run.models, teachers[::-1], strict=True):
        model.evaluated = teacher  # none of them is trained: the prediction must come from these
    memory, mixup = ExchangedMemory(beta=0.7, reweigh=reweigh), Mixup(alpha=1.0)
    memory.setup(run)
    random, tables = np.random.default_rng(2), np.zeros((2, len(task.train), K))
    for run.step in range(4):
        rows = random.permutation(50)[:32]
        plain = make_batch(run, rows)
        batch = mixup.targets(memory.targets(plain, run), run)
        outs = [run.forward(model.wrapped, batch.x) for model in run.models]
        outs = mixup.outputs(memory.outputs(outs, batch, run), batch, run)
        batch = memory.revise(batch, outs, run)

        lam, partner = draw_mix("mixup", 1.0, 32, run)
        mate = rows[partner.numpy()]
        y = lam * one_hot(task)[rows] + (1 - lam) * one_hot(task)[mate]
        for m in range(2):
            tables[m, rows] = 0.7 * tables[m, rows] + 0.3 * predict(run.evaluated[1 - m], plain.x)
            q = lam * tables[m, rows] + (1 - lam) * tables[m, mate]
            np.testing.assert_allclose(outs[m].memory.numpy(), q, rtol=1e-12)  # type: ignore[union-attr]
            wanted = y * q / (y * q).sum(1, keepdims=True) if reweigh else y
            target = batch.target[m] if reweigh else batch.target
            np.testing.assert_allclose(target.numpy(), wanted, rtol=1e-12)
    assert all(model.wrapped.training for model in run.models)


def test_specs_and_refusals() -> None:
    assert (
        str(EstimatedTargets(start=59, every=10))
        == "estimated-targets:start=59,every=10,alpha=0.9,spare=true"
    )
    assert str(ExchangedMemory()) == "exchanged-memory:beta=0.7,clip=0.0,reweigh=false"
    for name, wrong in [
        ("estimated-targets", {"start": -1}),
        ("estimated-targets", {"start": 0, "alpha": 1.1}),
        ("estimated-targets", {"start": 0, "every": 0}),
        ("target-memory", {"beta": -0.1}),
        ("target-memory", {"clip": 0.5}),
        ("exchanged-memory", {"reweigh": 1}),
    ]:
        with pytest.raises(ValueError, match=f"Expected `{list(wrong)[-1]}`"):
            STRATEGIES.create(name, **wrong)


def methods() -> dict[str, Method]:
    released = EstimatedTargets(start=1, every=2)
    exchange = (ExchangedMemory(reweigh=True), Mixup(), MomentumModel(0.9))
    return {
        "selc": Method(get_loss("ce"), strategies=(EstimatedTargets(start=1),)),
        "nal": Method(get_loss("nal:lam=0.5,floor=1e-4"), "attention", (released,)),
        "elr": Method(get_loss("elr"), strategies=(TargetMemory(),)),
        "elr+": Method(get_loss("elr:clip=1e-4"), strategies=exchange),
    }
