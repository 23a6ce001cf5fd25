"""Noise against noise, momentum model and label correction against what the SLN paper and its
released code say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import handmade_run
import numpy as np
import pytest
import torch
from handmade_run import make_batch
from lightning_fabric import Fabric
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.data import NoisyData
from noiseproof.data.augment import Transform
from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Step, Strategy, get_strategy
from noiseproof.strategies.correction import LabelCorrection
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.strategies.perturb import (
    LogitGradientNoise,
    StochasticLabelNoise,
    WeightGradientNoise,
)
from noiseproof.strategies.selection import SmallLoss
from noiseproof.train import Method, Settings, Task, train
from noiseproof.train.step import forward_backward

K, D = 4, 3  # classes, features
SGD = partial(torch.optim.SGD, lr=0.1)
make_run = partial(handmade_run.make_run, model="mlp:hidden=[5]", build=SGD, epochs=5)


def noisy(n: int = 24, seed: int = 0) -> NoisyData:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=g, dtype=torch.float64)
    given = torch.randint(K, (n,), generator=g)
    return NoisyData(x, given, tuple("abcd"), torch.arange(n))


def gradients(run: Run, batch: Batch, *strategies: Strategy) -> list[Tensor]:
    """The gradient that a step with ``strategies`` hands to the optimiser."""
    for model in run.models:
        model.plain.zero_grad()
    for strategy in strategies:
        strategy.setup(run)
    run.count = batch.count
    forward_backward(batch, run, strategies)
    for strategy in strategies:
        strategy.gradients(run)
    return [p.grad.clone() for model in run.models for p in model.plain.parameters()]


def features_and_probs(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        model = run.models[0].plain
        return model.backbone(batch.x), model(batch.x).logits.softmax(1)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


# Random numbers


def test_the_numbers_depend_on_seed_purpose_and_step_alone() -> None:
    run = make_run(noisy())
    batch = make_batch(run)
    first = run.random.normal("sln", batch, K)
    torch.manual_seed(1)
    torch.rand(3)
    assert torch.equal(run.random.normal("sln", batch, K), first)
    others = [
        run.random.normal("noise-f 0", batch, K),
        make_run(noisy(), seed=1).random.normal("sln", batch, K),
    ]
    run.step = 1
    others.append(run.random.normal("sln", batch, K))
    assert not any(torch.equal(first, other) for other in others)
    numbers = torch.cat([first, *others]).flatten()
    assert abs(
        torch.corrcoef(torch.stack([first.flatten(), others[2].flatten()]))[0, 1]
    ) < 5 / math.sqrt(first.numel())
    assert abs(float(numbers.mean())) < 5 / math.sqrt(len(numbers))


def test_they_are_standard_normal_and_uniform() -> None:
    run = make_run(noisy(n=20_000))
    batch = make_batch(run)
    z, u = run.random.normal("x", batch, K).flatten(), run.random.uniform("x", batch, K).flatten()
    n = len(z)
    for values, moments in ((z, (0, 1, 0, 3)), (u, (1 / 2, 1 / 3, 1 / 4, 1 / 5))):
        for power, moment in enumerate(moments, 1):
            spread = float((values**power).std()) / math.sqrt(n)
            assert abs(float((values**power).mean()) - moment) < 5 * spread, (power, moment)
    assert 0 <= float(u.min()) and float(u.max()) < 1
    assert len(torch.unique(z)) == n  # each entry is its own draw


# Stochastic label noise (Eq. 3)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 3.0])
def test_a_step_of_sln_has_the_gradient_of_the_noisy_label(sigma: float) -> None:
    """∇_f ℓ(f, y + σz) = S·Σ(y + σz) − (y + σz) for the cross entropy, by hand through the last
    layer.
    """
    run = make_run(noisy())
    batch = make_batch(run)
    h, S = features_and_probs(run, batch)
    z = run.random.normal("sln", batch, K)
    target = torch.eye(K, dtype=torch.float64)[batch.given] + sigma * z
    error = (S * target.sum(1, keepdim=True) - target) / len(z)
    *_, weight, bias = gradients(run, batch, StochasticLabelNoise(sigma))
    close(weight, error.T @ h)
    close(bias, error.sum(0))
    # not clipped, not renormalised
    assert float(target.min()) < 0 and float((target.sum(1) - 1).abs().max()) > 0.1


def test_the_noise_of_sln_in_the_logits_has_the_covariance_of_proposition_2() -> None:
    """Noise is linear in z: its response A to unit vectors gives the covariance A·Aᵀ without
    sampling.
    """
    run = make_run(noisy(n=1))
    batch = make_batch(run)
    S = features_and_probs(run, batch)[1][0]
    plain = gradients(run, batch)[-1]  # the bias of the last layer: ∇_f of the one row
    sigma, columns = 0.7, []
    for k in range(K):
        run.random.normal = lambda *_, k=k: torch.eye(K, dtype=torch.float64)[None, k]  # type: ignore[method-assign]
        columns.append((gradients(run, batch, StochasticLabelNoise(sigma))[-1] - plain) / sigma)
    A = torch.stack(columns, 1)
    M = K * torch.outer(S, S) - S[:, None] - S
    M.diagonal().copy_(K * (S - 1 / K) ** 2 + (K - 1) / K)
    close(A @ A.T, M)


def test_sln_ends_at_its_epoch_and_without_sigma_changes_nothing() -> None:
    run = make_run(noisy())
    batch = make_batch(run)
    strategy = StochasticLabelNoise(1.0, until=2)
    for epoch, noise in ((0, True), (1, True), (2, False), (3, False)):
        run.epoch = epoch
        assert (strategy.targets(batch, run).target.dim() == 2) is noise
        assert StochasticLabelNoise(0.0).targets(batch, run) is batch


def test_sln_on_targets_that_are_real_numbers_adds_to_them() -> None:
    run = make_run(noisy())
    soft = torch.full((24, K), 1 / K, dtype=torch.float64)
    batch = make_batch(run).with_target(soft)
    close(
        StochasticLabelNoise(2.0).targets(batch, run).target,
        soft + 2 * run.random.normal("sln", batch, K),
    )


# Noise on the gradient of the logits (Eq. 2)


def jacobian(run: Run, batch: Batch) -> Tensor:
    """∇_θ f of each row by itself, (B, K, p)."""
    model = run.models[0].plain
    rows = []
    for x in batch.x:
        logits = model(x[None]).logits[0]
        rows.append(
            torch.stack(
                [
                    torch.cat(
                        [
                            g.flatten()
                            for g in torch.autograd.grad(
                                f, list(model.parameters()), retain_graph=True
                            )
                        ]
                    )
                    for f in logits
                ]
            )
        )
    return torch.stack(rows)


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_noise_f_is_equation_2(sigma: float) -> None:
    run = make_run(noisy(n=9))
    batch = make_batch(run)
    J, S = jacobian(run, batch), features_and_probs(run, batch)[1]
    error = (
        S
        - torch.eye(K, dtype=torch.float64)[batch.given]
        + sigma * run.random.normal("noise-f 0", batch, K)
    )
    expected = torch.einsum("bk,bkp->p", error, J) / 9
    got = torch.cat([g.flatten() for g in gradients(run, batch, LogitGradientNoise(sigma))])
    close(got, expected)


def test_noise_f_in_the_weights_has_the_covariance_of_proposition_1() -> None:
    run = make_run(noisy(n=1))
    batch = make_batch(run)
    J = jacobian(run, batch)[0]  # (K, p)
    plain = torch.cat([g.flatten() for g in gradients(run, batch)])
    columns = []
    for k in range(K):
        run.random.normal = lambda *_, k=k: torch.eye(K, dtype=torch.float64)[None, k]  # type: ignore[method-assign]
        noisy_ = torch.cat([g.flatten() for g in gradients(run, batch, LogitGradientNoise(0.3))])
        columns.append((noisy_ - plain) / 0.3)
    A = torch.stack(columns, 1)
    close(A @ A.T, J.T @ J)


def test_noise_f_has_the_weights_of_its_rows() -> None:
    """w·(∇_f ℓ + σz): the rows that a selection leaves out get no noise."""
    run = make_run(noisy(n=10))
    batch, selection, noise = make_batch(run), SmallLoss(0.4, ramp=0), LogitGradientNoise(2.0)
    J, S = jacobian(run, batch), features_and_probs(run, batch)[1]
    kept = S.gather(1, batch.given[:, None])[:, 0].argsort(descending=True)[:6]
    error = (
        S
        - torch.eye(K, dtype=torch.float64)[batch.given]
        + 2 * run.random.normal("noise-f 0", batch, K)
    )
    expected = torch.einsum("bk,bkp->p", error[kept], J[kept]) / 6
    close(torch.cat([g.flatten() for g in gradients(run, batch, noise, selection)]), expected)


def test_noise_f_leaves_losses_and_outputs_alone() -> None:
    run = make_run(noisy())
    batch = make_batch(run)
    plain, perturbed = (
        forward_backward(batch, run, ()),
        forward_backward(batch, run, (LogitGradientNoise(5.0),)),
    )
    assert torch.equal(plain.losses, perturbed.losses)
    assert torch.equal(plain.outs[0].logits, perturbed.outs[0].logits)


# Noise on the gradient of the weights (Eq. 1)


def test_noise_theta_is_equation_1_of_the_mean_over_the_batch() -> None:
    """The mean of B gradients with noise σ each has noise of deviation σ/√B: exactly that times the
    drawn numbers.
    """
    run = make_run(noisy(n=64))
    sigma, noise = 0.5, {}
    for B in (16, 64):
        batch = make_batch(run, torch.arange(B))
        plain, perturbed = gradients(run, batch), gradients(run, batch, WeightGradientNoise(sigma))
        generator = run.random.generator("noise-theta", run.step)
        for a, b in zip(plain, perturbed, strict=True):
            z = torch.randn(a.shape, generator=generator, dtype=torch.float64)
            close(b, a + z * sigma / B**0.5)
        noise[B] = torch.cat([(b - a).flatten() for a, b in zip(plain, perturbed, strict=True)])
    close(noise[16], 2 * noise[64])


def test_the_deviation_of_noise_theta_is_sigma_over_the_root_of_the_batch() -> None:
    run = make_run(noisy(n=25), model="mlp:hidden=[200,200]")
    batch = make_batch(run)
    pairs = zip(gradients(run, batch), gradients(run, batch, WeightGradientNoise(3.0)), strict=True)
    z = torch.cat([(b - a).flatten() for a, b in pairs]) * math.sqrt(25) / 3.0
    n = len(z)
    assert (
        n > 40_000
        and abs(float(z.mean())) < 5 / math.sqrt(n)
        and abs(float(z.var()) - 1) < 5 * math.sqrt(2 / n)
    )
    run.step += 1
    fresh = gradients(run, batch, WeightGradientNoise(3.0))[0]
    assert not torch.equal(fresh, gradients(run, batch)[0]) and float(fresh.std()) > 0.3


def test_the_last_batch_of_an_epoch_has_its_own_root() -> None:
    """Through the loop, a batch of 8 after batches of 16: σ/√8 in it."""

    class Watch(Strategy):
        def __init__(self) -> None:
            self.before: list[Tensor] = []
            self.noise: list[Tensor] = []

        def gradients(self, run: Run) -> None:
            grad = run.models[0].plain.head.logits.weight.grad
            (self.noise if len(self.noise) < len(self.before) else self.before).append(grad.clone())

    watch = Watch()
    run = make_run(noisy(n=24))
    sizes = [16, 8]
    for B in sizes:
        gradients(run, make_batch(run, torch.arange(B)), watch, WeightGradientNoise(1.0), watch)
    unit = [
        (after - before) * math.sqrt(B)
        for after, before, B in zip(watch.noise, watch.before, sizes, strict=True)
    ]
    close(*unit)


# Momentum model


class WithStatistics(nn.Module):
    """A model with weights, batch statistics, and a count of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)
        self.linear = nn.Linear(D, K)

    def forward(self, x: Tensor) -> Output:
        return Output(self.linear(self.norm(x)))


def test_the_momentum_model_is_the_average_of_the_papers_recursion() -> None:
    """θ′ ← α·θ′ + (1 − α)·θ over the whole state dict, batch statistics too; whole numbers are left
    alone.
    """
    run = make_run(noisy())
    run.models.clear()
    model = WithStatistics()
    run.add(model, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    strategy = MomentumModel(alpha=0.9)
    strategy.setup(run)
    average = strategy.averages[0]
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    assert run.evaluated == [average] and average is not model
    for _ in range(20):
        run.models[0].optimizer.zero_grad()
        forward_backward(make_batch(run), run, (strategy,))
        run.models[0].optimizer.step()
        strategy.after_step(run)
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                expected[name] = 0.9 * expected[name] + (1 - 0.9) * value
    for name, value in average.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-13, msg=name)
    assert int(model.norm.num_batches_tracked) == 20 and int(average.norm.num_batches_tracked) == 0
    assert not torch.allclose(average.norm.running_mean, model.norm.running_mean)
    assert not any(p.requires_grad for p in average.parameters()) and all(
        p.requires_grad for p in model.parameters()
    )


@pytest.mark.parametrize("alpha, same", [(0.0, "trained"), (1.0, "first")])
def test_the_ends_of_alpha(alpha: float, same: str) -> None:
    run = make_run(noisy())
    first = {name: value.clone() for name, value in run.models[0].plain.state_dict().items()}
    strategy = MomentumModel(alpha)
    strategy.setup(run)
    gradients(run, make_batch(run))
    run.models[0].optimizer.step()
    strategy.after_step(run)
    wanted = first if same == "first" else run.models[0].plain.state_dict()
    for name, value in run.evaluated[0].state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-14, atol=0)


def test_the_momentum_model_predicts_and_the_trained_one_is_trained() -> None:
    """The training is that of cross entropy bit for bit; only what is evaluated differs."""
    data = noisy(60)
    task = Task(data, test=_test_split(data))
    settings = Settings(model="mlp:hidden=[5]", epochs=3, batch_size=16, optimizer="sgd:lr=0.5")
    plain = train(task, "ce", settings, fabric=double())
    averaged = train(
        task, Method(get_loss("ce"), strategies=(MomentumModel(0.9),)), settings, fabric=double()
    )
    for a, b in zip(
        _weights(plain.run.models[0].plain), _weights(averaged.run.models[0].plain), strict=True
    ):
        assert torch.equal(a, b)
    assert [row["train_loss"] for row in plain.metrics] == [
        row["train_loss"] for row in averaged.metrics
    ]
    assert plain.last["test_loss"] != averaged.last["test_loss"]


@pytest.mark.parametrize("epochs, alpha", [(1, 0.0), (10, 0.5), (100, 0.95)])
def test_the_momentum_model_averages_over_a_twentieth_of_the_steps(
    epochs: int, alpha: float
) -> None:
    """With α = 0.999 in 10 epochs, `ce & momentum` had 0.35 on digits, and `ce` 0.97."""
    data = noisy(60)
    # 4 steps an epoch
    task, settings = Task(data), Settings(model="mlp:hidden=[5]", epochs=epochs, batch_size=16)
    default = Method(get_loss("ce"), strategies=(get_strategy("momentum"),))
    result, same = (
        train(task, default, settings),
        train(task, f"ce & momentum:alpha={alpha}", settings),
    )
    assert result.strategies[0].alpha == alpha and default.strategies[0].alpha is None  # type: ignore[attr-defined]
    for a, b in zip(
        _weights(result.run.evaluated[0]), _weights(same.run.evaluated[0]), strict=True
    ):
        assert torch.equal(a, b)


def _test_split(data: NoisyData) -> Any:
    from noiseproof.data import Split

    return Split(data.x, data.given)


def _weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def double() -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


# Label correction


class Watch(Strategy):
    """Keeps what predicts before each epoch, and the targets that the loss saw in it."""

    def __init__(self) -> None:
        self.predictors: list[dict[str, np.ndarray]] = []
        self.targets_of: list[dict[int, np.ndarray]] = []

    def start_epoch(self, run: Run) -> None:
        self.predictors.append(
            {k: v.numpy().copy() for k, v in run.evaluated[0].state_dict().items()}
        )
        self.targets_of.append({})

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        soft = batch.soft_target(run.num_classes, outs[0].logits).detach().numpy()
        self.targets_of[-1] |= {int(row): soft[i].copy() for i, row in enumerate(batch.rows)}
        return batch


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def predict(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The logits of a perceptron with one hidden layer, from its weights."""
    w1, b1, w2, b2 = weights.values()
    return np.maximum(x @ w1.T + b1, 0) @ w2.T + b2


def released_procedure(
    predictors: list[dict[str, np.ndarray]],
    x: np.ndarray,
    given: np.ndarray,
    start: int,
    soft: bool,
    invert: bool,
    against: str,
) -> list[np.ndarray]:
    """The targets of each epoch. On CIFAR, the released code measures ω's loss against the data
    set's current targets: the labels in the first epoch of correction, what the epoch before made
    of them from then on; the label in the mix is always the original one. Its Clothing1M script,
    like the paper, has the original label in both places.
    """
    onehot = np.eye(K)[given]
    current, found = onehot, []
    for epoch, weights in enumerate(predictors):
        if epoch >= start:
            log_p = log_softmax(predict(weights, x))
            loss = -((current if against == "current" else onehot) * log_p).sum(1)
            omega = ((loss - loss.min()) / (loss.max() - loss.min()))[:, None]
            omega = 1 - omega if invert else omega
            mixed_in = np.exp(log_p) if soft else np.eye(K)[log_p.argmax(1)]
            current = omega * onehot + (1 - omega) * mixed_in
        found.append(current)
    return found


@pytest.mark.parametrize("against", ["current", "original"])
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
def test_label_correction_is_the_released_procedure(
    averaged: bool, soft: bool, invert: bool, against: str
) -> None:
    data = noisy(60)
    correction = LabelCorrection(1, soft=soft, invert=invert, against=against)  # type: ignore[arg-type]
    strategies = (*((MomentumModel(0.8),) if averaged else ()), Watch(), correction, Watch())
    settings = Settings(model="mlp:hidden=[5]", epochs=4, batch_size=16, optimizer="sgd:lr=0.5")
    result = train(
        Task(data), Method(get_loss("ce"), strategies=strategies), settings, fabric=double()
    )
    before, after = (s for s in result.strategies if isinstance(s, Watch))
    expected = released_procedure(
        before.predictors,
        data.x.numpy(),
        data.given.numpy(),
        1,
        soft=soft,
        invert=invert,
        against=against,
    )
    assert len(expected) == 4
    for targets, seen in zip(expected, after.targets_of, strict=True):
        assert sorted(seen) == list(range(60))
        np.testing.assert_allclose(
            np.stack([seen[row] for row in range(60)]), targets, rtol=1e-10, atol=1e-12
        )
    final = expected[-1]
    assert np.allclose(final.sum(1), 1) and (final >= -1e-15).all()
    if not invert:  # the largest loss keeps its label, the smallest takes the prediction
        assert np.isclose(final, np.eye(K)[data.given.numpy()]).all(1).any()


def test_current_and_original_differ_from_the_second_correction_on() -> None:
    """So the test above can tell them apart."""
    g = np.random.default_rng(0)
    x, given = g.normal(size=(30, D)), g.integers(K, size=30)
    predictors = [{str(i): w for i, w in enumerate(_random_weights(g))} for _ in range(3)]
    kinds = [
        released_procedure(predictors, x, given, 0, False, False, kind)
        for kind in ("current", "original")
    ]
    assert np.array_equal(kinds[0][0], kinds[1][0]) and not np.allclose(kinds[0][1], kinds[1][1])


def _random_weights(g: np.random.Generator) -> list[np.ndarray]:
    return [g.normal(size=(5, D)), g.normal(size=5), g.normal(size=(K, 5)), g.normal(size=K)]


class Jitter(Transform):
    """Adds what was drawn to each feature."""

    columns = D

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        return images + params

    def apply(self, images: Tensor, params: Tensor) -> Tensor:
        return self.transform(images, params)


def test_label_correction_looks_at_augmented_inputs_drawn_anew_each_epoch() -> None:
    run = make_run(noisy())
    run.augment = Jitter()
    strategy = LabelCorrection(0, against="original")
    kept = []
    for epoch in (0, 1):
        run.epoch = epoch
        strategy.start_epoch(run)
        u = run.augment.draw(24, run.random.generator("label-correction", epoch))
        weights = {k: v.numpy() for k, v in run.models[0].plain.state_dict().items()}
        x = (run.data.x + u).numpy()
        loss = -np.take_along_axis(
            log_softmax(predict(weights, x)), run.data.given.numpy()[:, None], 1
        )[:, 0]
        omega = (loss - loss.min()) / (loss.max() - loss.min())
        np.testing.assert_allclose(strategy.kept.numpy(), omega, rtol=1e-10, atol=1e-12)  # type: ignore[union-attr]
        kept.append(omega)
    assert not np.allclose(*kept)


def test_two_models_correct_by_the_mean_of_their_distributions() -> None:
    run = make_run(noisy(), models=2)
    strategy = LabelCorrection(0, soft=True)
    strategy.start_epoch(run)
    with torch.no_grad():
        p = torch.stack([model.plain(run.data.x).logits.softmax(1) for model in run.models]).mean(0)
    close(strategy.predicted, p)
    loss = -p.log().gather(1, run.data.given[:, None])[:, 0]
    close(strategy.kept, (loss - loss.min()) / (loss.max() - loss.min()))


def test_where_all_losses_are_equal_every_label_stays() -> None:
    run = make_run(noisy())
    for parameter in run.models[0].plain.parameters():
        parameter.detach().zero_()
    strategy = LabelCorrection(0)
    strategy.start_epoch(run)
    batch = make_batch(run)
    assert torch.equal(
        strategy.targets(batch, run).target, torch.eye(K, dtype=torch.float64)[batch.given]
    )


def test_before_its_epoch_label_correction_changes_nothing() -> None:
    run = make_run(noisy())
    strategy = LabelCorrection(3)
    for run.epoch in (0, 1, 2):
        strategy.start_epoch(run)
        batch = make_batch(run)
        assert strategy.targets(batch, run) is batch and strategy.state_dict() == {
            "kept": None,
            "predicted": None,
        }
    run.epoch = 3
    strategy.start_epoch(run)
    assert strategy.kept is not None


def test_label_correction_leaves_models_as_they_were() -> None:
    run = make_run(noisy())
    before = [value.clone() for value in run.models[0].plain.state_dict().values()]
    run.models[0].plain.train()
    LabelCorrection(0).start_epoch(run)
    assert run.models[0].plain.training
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, run.models[0].plain.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    "params, message",
    [
        ({"start": -1}, "Expected `start` to be an integer of at least 0"),
        ({"start": 1.5}, "Expected `start` to be an integer"),
        ({"start": 1, "soft": 1}, "Expected `soft` to be true or false"),
        ({"start": 1, "invert": "yes"}, "Expected `invert` to be true or false"),
        ({"start": 1, "against": "both"}, "Expected `against` to be one of current, original"),
    ],
)
def test_parameters_of_label_correction_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelCorrection(**params)


# Anything the papers combine, combines


def test_sln_then_correction_is_what_the_released_code_does() -> None:
    """σ is zero for good once labels are corrected: then the target is the corrected one, without
    noise.
    """
    data = noisy(60)
    watch = Watch()
    strategies = (StochasticLabelNoise(1.0, until=2), MomentumModel(0.9), LabelCorrection(2), watch)
    settings = Settings(model="mlp:hidden=[5]", epochs=4, batch_size=16, optimizer="sgd:lr=0.1")
    result = train(
        Task(data), Method(get_loss("ce"), strategies=strategies), settings, fabric=double()
    )
    seen = [np.stack([t[row] for row in range(60)]) for t in result.strategies[-1].targets_of]  # type: ignore[attr-defined]
    assert all((t < 0).any() for t in seen[:2]) and all(
        (t >= 0).all() and np.allclose(t.sum(1), 1) for t in seen[2:]
    )


def test_a_step_of_ones_own_is_told_its_rows_too() -> None:
    """Noise on the weights' gradient divides by the rows of this step, also where another strategy
    takes the step.
    """

    class Own(Strategy):
        def step(self, batch: Batch, run: Run) -> Step:
            return forward_backward(batch, run, ())

    data = noisy(32)
    settings = Settings(model="mlp:hidden=[5]", epochs=1, batch_size=16, optimizer="sgd:lr=0.1")
    own, plain = (
        train(Task(data), Method(get_loss("ce"), strategies=strategies), settings, fabric=double())
        for strategies in ((Own(), WeightGradientNoise(1.0)), (WeightGradientNoise(1.0),))
    )
    for a, b in zip(_weights(own.models[0]), _weights(plain.models[0]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "strategy", [StochasticLabelNoise, LogitGradientNoise, WeightGradientNoise]
)
def test_two_processes_with_an_odd_row_add_the_noise_of_one(
    strategy: Callable[..., Strategy],
) -> None:
    """The second process fills its share of three rows up: that row adds nothing, neither its own
    nor noise.
    """
    run = make_run(noisy())
    alone = gradients(run, make_batch(run, torch.tensor([0, 1, 2])), strategy(0.5))
    run.processes.world_size, each = 2, []
    for run.processes.rank, rows, counts in ((0, [0, 1], [1.0, 1.0]), (1, [2, 0], [1.0, 0.0])):
        share = replace(
            make_batch(run, torch.tensor(rows)),
            all_rows=torch.tensor([0, 1, 2]),
            counts=torch.tensor(counts, dtype=torch.float64),
            count=3,
        )
        each.append(gradients(run, share, strategy(0.5)))
    for one, first, second in zip(alone, *each, strict=True):
        close((first + second) / 2, one)
