"""The loop against loops written out by hand, and what it promises: the same seed, the same
weights, no trace left.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from safetensors import safe_open
from torch import Tensor, nn

from noiseproof.accelerate import Job, fit_many
from noiseproof.core.output import Output
from noiseproof.data import Dataset, NoisyData, Split, get_dataset
from noiseproof.losses import get_loss
from noiseproof.losses.margin import CE
from noiseproof.models import MODELS, Backbone
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.strategies.perturb import StochasticLabelNoise
from noiseproof.train import Diverged, Interrupted, Method, Result, Settings, Task, prepare
from noiseproof.train import train as train_anywhere
from noiseproof.train.checkpoint import checkpoints, load
from noiseproof.train.loop import _split
from noiseproof.train.schedule import SCHEDULES
from noiseproof.train.task import find_nonfinite

D, K = 6, 4


class Halving(Backbone):
    """One hidden layer, half of which is dropped."""

    num_features = 16

    def __init__(self, *, in_features: int = D, init: str = "pytorch") -> None:
        super().__init__(init)
        self.linear = nn.Linear(in_features, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x.flatten(1)).relu(), 0.5, self.training)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._factories, "test-dropout", Halving)
    monkeypatch.setitem(MODELS._factories, "test-norm", Normed)


@pytest.fixture(scope="module")
def digits() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)


def toy(n: int = 50, seed: int = 0) -> Task:
    """Points in double precision, prepared by nothing."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=g, dtype=torch.float64)
    y = torch.randint(K, (n,), generator=g)
    return Task(NoisyData(x, y, tuple("abcd"), torch.arange(n)), test=Split(x, y))


def double() -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, also where there is a GPU."""
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


def with_(*strategies: Strategy, loss: str = "ce") -> Method:
    return Method(get_loss(loss), strategies=strategies)


def weights(result: Result) -> list[Tensor]:
    return list(result.run.models[0].plain.state_dict().values())


def same(a: Result, b: Result) -> bool:
    """Whether two runs are the same, bit for bit, but for the time they took."""
    rows = [[{**row, "seconds": 0} for row in result.metrics] for result in (a, b)]
    return rows[0] == rows[1] and all(
        torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True)
    )


class Spy(Strategy):
    """Keeps the first weights, the rows of every step and the learning rates."""

    def __init__(self) -> None:
        self.first: nn.Module | None = None
        self.steps: list[tuple[int, Tensor]] = []
        self.rates: list[float] = []

    def setup(self, run: Run) -> None:
        self.first = copy.deepcopy(run.models[0].plain)

    def start_epoch(self, run: Run) -> None:
        self.rates.append(run.models[0].optimizer.param_groups[0]["lr"])

    def targets(self, batch: Batch, run: Run) -> Batch:
        self.steps.append((run.epoch, batch.rows.clone()))
        return batch


# Against a loop by hand


@pytest.mark.parametrize(
    "settings, build, clip",
    [
        ("sgd:lr=0.3,momentum=0", lambda p: torch.optim.SGD(p, lr=0.3), None),
        ("sgd:lr=0.1", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), None),
        (
            "sgd:lr=0.1,momentum=0.8,nesterov=true,weight_decay=0.01",
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
            None,
        ),
        ("adam:lr=0.01", lambda p: torch.optim.Adam(p, lr=0.01), None),
        (
            "adam:lr=0.01,beta1=0.5,beta2=0.9,weight_decay=0.1,eps=1e-3",
            lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), weight_decay=0.1, eps=1e-3),
            None,
        ),
        ("sgd:lr=0.1", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 0.05),
        ("adam:lr=0.01", lambda p: torch.optim.Adam(p, lr=0.01), 0.2),
    ],
)
def test_the_loop_is_that_of_every_pytorch_tutorial(
    settings: str, build: Callable[..., Any], clip: float | None
) -> None:
    task = toy()
    run = train(
        task,
        with_(Spy()),
        Settings(
            model="mlp:hidden=[7]",
            epochs=3,
            batch_size=16,
            optimizer=settings,
            schedule="constant",
            clip=clip,
        ),
        fabric=double(),
    )
    spy = run.strategies[0]
    assert isinstance(spy, Spy) and spy.first is not None
    model, criterion, norms = spy.first, nn.CrossEntropyLoss(), []
    optimizer = build(model.parameters())
    for _, rows in spy.steps:
        optimizer.zero_grad()
        criterion(model(task.train.x[rows]).logits, task.train.given[rows]).backward()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
    for a, b in zip(weights(run), model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert clip is None or max(norms) > clip  # it was clipped


def test_an_epoch_sees_every_row_once_in_a_new_order() -> None:
    run = train(
        toy(),
        with_(Spy()),
        Settings(model="mlp:hidden=[]", epochs=3, batch_size=16),
        fabric=double(),
    )
    steps = run.strategies[0].steps  # type: ignore[attr-defined]
    orders = [torch.cat([rows for epoch, rows in steps if epoch == e]).tolist() for e in range(3)]
    assert [len(rows) for _, rows in steps] == [16, 16, 16, 2] * 3
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3 and list(range(50)) not in orders
    assert run.run.step == 12 and run.run.epoch == 3


@pytest.mark.parametrize(
    "n, batch_size, sizes", [(50, 16, [16] * 3), (48, 16, [16] * 3), (10, 16, [10]), (50, 50, [50])]
)
def test_drop_last_leaves_out_a_smaller_last_batch_but_never_all(
    n: int, batch_size: int, sizes: list[int]
) -> None:
    settings = Settings(model="mlp:hidden=[]", epochs=1, batch_size=batch_size, drop_last=True)
    run = train(toy(n), with_(Spy()), settings, fabric=double())
    assert [len(rows) for _, rows in run.strategies[0].steps] == sizes  # type: ignore[attr-defined]


def test_an_epoch_of_fewer_rows_than_a_batch_still_has_a_step() -> None:
    class Few(Strategy):
        def rows(self, rows: Tensor, run: Run) -> Tensor:
            return rows[:5]

    settings = Settings(model="mlp:hidden=[]", epochs=2, batch_size=16, drop_last=True)
    run = train(toy(), with_(Few(), Spy()), settings, fabric=double())
    assert [len(rows) for _, rows in run.strategies[1].steps] == [5, 5]  # type: ignore[attr-defined]


def test_the_full_batch_is_gradient_descent() -> None:
    """θ ← θ − η·∇L of softmax regression, ∇_W L = (S − Y)ᵀX/N written out in numpy."""
    task = toy()
    settings = Settings(
        model="mlp:hidden=[]",
        epochs=20,
        batch_size="full",
        optimizer="sgd:lr=0.7,momentum=0",
        schedule="constant",
    )
    run = train(task, with_(Spy()), settings, fabric=double())
    spy = run.strategies[0]
    W, b = (p.detach().numpy().copy() for p in spy.first.parameters())  # type: ignore[attr-defined]
    x, Y = task.train.x.numpy(), np.eye(K)[task.train.given.numpy()]
    for _ in range(20):
        e = np.exp(x @ W.T + b)
        error = (e / e.sum(1, keepdims=True) - Y) / len(x)
        W, b = W - 0.7 * error.T @ x, b - 0.7 * error.sum(0)
    np.testing.assert_allclose(weights(run)[0].numpy(), W, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(weights(run)[1].numpy(), b, rtol=1e-11, atol=1e-13)
    assert run.run.step == 20


def test_weights_of_samples_and_targets_of_ones_own_enter_the_mean() -> None:
    """L = Σ w_i·ℓ(z_i, t_i)/B, the weights of several strategies multiplied; weights say nothing to
    the divisor.
    """

    class Weigh(Strategy):
        def __init__(self, by: int) -> None:
            self.by = by

        def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
            return (batch.rows[None] % self.by).to(losses.dtype)

    class Smooth(Strategy):
        def targets(self, batch: Batch, run: Run) -> Batch:
            return batch.with_target(0.7 * batch.soft_target(K, batch.x) + 0.3 / K)

    task = toy()
    settings = Settings(
        model="mlp:hidden=[7]", epochs=1, batch_size=25, optimizer="sgd:lr=0.5,momentum=0"
    )
    run = train(task, with_(Spy(), Weigh(2), Smooth(), Weigh(3)), settings, fabric=double())
    spy = run.strategies[0]
    model = spy.first  # type: ignore[attr-defined]
    for _, rows in spy.steps:  # type: ignore[attr-defined]
        t = 0.7 * torch.eye(K, dtype=torch.float64)[task.train.given[rows]] + 0.3 / K
        losses = -(t * model(task.train.x[rows]).logits.log_softmax(1)).sum(1)
        model.zero_grad()
        ((rows % 2) * (rows % 3) * losses).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
    for a, b in zip(weights(run), model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_hooks_are_called_in_their_order() -> None:
    calls: list[str] = []

    class Log(Strategy):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            hooks = (
                "setup",
                "start_epoch",
                "rows",
                "targets",
                "outputs",
                "revise",
                "weights",
                "step",
                "gradients",
                "after_step",
                "end_epoch",
            )
            if name in hooks:
                calls.append(name)
            return found

    train(
        toy(),
        with_(Log()),
        Settings(model="mlp:hidden=[]", epochs=2, batch_size=25),
        fabric=double(),
    )
    step = ["step", "targets", "outputs", "revise", "weights", "gradients", "after_step"]
    epoch = ["start_epoch", "rows", *step, *step, "end_epoch"]
    assert calls == ["setup", *epoch, *epoch]


# The same seed, the same run


def test_a_default_strategy_leaves_a_run_bit_identical(digits: Task) -> None:
    settings = Settings(model="mlp:hidden=[16]", epochs=2)
    plain = train(digits, "ce", settings)
    assert same(plain, train(digits, with_(Strategy()), settings))
    assert same(plain, train(digits, with_(Strategy(), Strategy(), Strategy()), settings))


@pytest.mark.parametrize(
    "method", ["ce", "sln-mo-lc:start=1,alpha=0.9", "noise-f", "noise-theta", "co-teaching"]
)
def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    digits: Task, method: str
) -> None:
    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=256)
    first, again, other = (train(digits, method, settings, seed=seed) for seed in (5, 5, 6))
    assert same(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(weights(first), weights(other), strict=True))
    assert first.last["train_loss"] != other.last["train_loss"]


def test_a_method_that_is_used_twice_starts_afresh(digits: Task) -> None:
    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=256)
    method = with_(StochasticLabelNoise(0.5), MomentumModel(0.9))
    first, second = train(digits, method, settings), train(digits, method, settings)
    assert same(first, second) and method.loss.reduction == "mean"
    assert not hasattr(method.strategies[1], "averages")


def test_the_rate_of_the_noise_does_not_change_weights_or_order(digits: Task) -> None:
    """The run's seed decides them, the task's own decides the labels: methods are compared on the
    same footing.
    """
    other = prepare(get_dataset("digits"), "symmetric:rate=0.2", validation=0.1, seed=9)
    runs = [
        train(task, with_(Spy()), Settings(model="mlp:hidden=[8]", epochs=1)).strategies[0]
        for task in (digits, other)
    ]
    a, b = runs
    assert all(torch.equal(x, y) for (_, x), (_, y) in zip(a.steps, b.steps, strict=True))  # type: ignore[attr-defined]
    firsts = [list(spy.first.state_dict().values()) for spy in runs]  # type: ignore[attr-defined]
    assert all(torch.equal(x, y) for x, y in zip(*firsts, strict=True))


@pytest.mark.parametrize("model", ["mlp:hidden=[8]", "test-dropout"])
@pytest.mark.parametrize("method", ["ce", "sln-mo-lc:start=1", "peer", "noise-theta"])
def test_no_global_generator_is_touched(method: str, model: str, tmp_path: Path) -> None:
    task = prepare(get_dataset("two-moons:n=64,n_test=10"), "symmetric:rate=0.3", validation=0.1)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    settings = Settings(
        model=model.replace("dropout", "dropout:in_features=2"), epochs=2, batch_size=16
    )
    train(task, method, settings, out=tmp_path, samples=True)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), states[1], strict=True))


def test_what_others_draw_changes_nothing() -> None:
    """Dropout draws from the global generator: from this run's seed, whatever was drawn before."""
    settings = Settings(model="test-dropout", epochs=2, batch_size=16)
    torch.manual_seed(1)
    first = train(toy(), "ce", settings)
    torch.manual_seed(2)

    class Draw(Strategy):
        def after_step(self, run: Run) -> None:
            torch.rand(7)

    second = train(toy(), with_(Draw()), settings)
    assert same(first, second)
    assert not same(first, train(toy(), "ce", settings, seed=1))


def test_dropout_differs_from_step_to_step_and_is_off_at_test() -> None:
    kept: list[Tensor] = []

    class Look(Strategy):
        def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
            with run.random.eager_step():
                kept.append(torch.rand(3))
            return outs

    task = toy(32)
    settings = Settings(model="test-dropout", epochs=2, batch_size=16)
    result = train(task, with_(Look()), settings)
    assert len({tuple(draw.tolist()) for draw in kept}) == 4
    model = result.models[0].eval()
    logits = model(task.test.x.float()).logits  # type: ignore[union-attr]
    accuracy = float((logits.argmax(1) == task.test.y).double().mean())  # type: ignore[union-attr]
    assert result.last["test_accuracy"] == accuracy


def test_a_dropout_model_is_resumed_exactly(tmp_path: Path) -> None:
    settings = Settings(model="test-dropout", epochs=2, batch_size=16)
    with pytest.raises(Interrupted):
        train(toy(), "ce", settings, out=tmp_path, max_steps=3)
    assert same(
        train(toy(), "ce", settings, out=tmp_path, resume=True), train(toy(), "ce", settings)
    )


# Learning rates


def torch_rates(build: Callable[[torch.optim.Optimizer], Any], epochs: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = build(optimizer), []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


lrs = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    "spec, build, epochs",
    [
        ("constant", lambda o: lrs.ConstantLR(o, factor=1.0), 20),
        ("step:at=[66,132]", lambda o: lrs.MultiStepLR(o, [66, 132], 0.1), 198),  # The bias paper
        # The SLN paper's Clothing1M
        ("step:at=[5],factor=0.1", lambda o: lrs.MultiStepLR(o, [5], 0.1), 10),
        ("step:at=[40,80]", lambda o: lrs.MultiStepLR(o, [40, 80], 0.1), 120),  # SELC
        ("step:at=[0.5,0.75]", lambda o: lrs.MultiStepLR(o, [100, 150], 0.1), 200),
        # NAL paper's ANIMAL-10N
        ("step:at=[50,75],factor=0.2", lambda o: lrs.MultiStepLR(o, [50, 75], 0.2), 100),
        ("exponential:gamma=0.97", lambda o: lrs.ExponentialLR(o, 0.97), 100),
        ("cosine", lambda o: lrs.CosineAnnealingLR(o, 120), 120),
        ("cosine:low=0.1", lambda o: lrs.CosineAnnealingLR(o, 90, eta_min=0.1), 90),
        # NAL paper
        (
            "cosine:low=0.05,every=10",
            lambda o: lrs.CosineAnnealingWarmRestarts(o, 10, eta_min=0.05),
            45,
        ),
    ],
)
def test_schedules_are_those_of_pytorch(spec: str, build: Callable[..., Any], epochs: int) -> None:
    rate = Settings(schedule=spec).make_schedule()
    np.testing.assert_allclose(
        [rate(e, epochs) for e in range(epochs)], torch_rates(build, epochs), rtol=1e-9, atol=1e-12
    )


def test_paper_003_goes_from_002_to_0001_and_back() -> None:
    rate = Settings(schedule="cosine:low=0.05,every=10").make_schedule()
    lr = [0.02 * rate(epoch, 500) for epoch in range(500)]
    by_hand = [
        0.001 + (0.02 - 0.001) * (1 + math.cos(math.pi * (e % 10) / 10)) / 2 for e in range(500)
    ]
    np.testing.assert_allclose(lr, by_hand, rtol=1e-13)
    assert lr[0] == lr[10] == lr[490] == 0.02


def test_co_teaching_is_constant_up_to_epoch_80_and_then_falls_linearly() -> None:
    """Its released plan: (200 − e)/(200 − 80) from epoch 80 on, counted from 0."""
    plan = [1.0] * 80 + [(200 - e) / (200 - 80) for e in range(80, 200)]
    for spec in ("linear:start=80", "linear:start=0.4"):
        rate = Settings(schedule=spec).make_schedule()
        np.testing.assert_allclose([rate(e, 200) for e in range(200)], plan, rtol=1e-13)
    down = Settings(schedule="linear:start=0,low=0.5").make_schedule()
    np.testing.assert_allclose(
        [down(e, 4) for e in range(5)], [1, 0.875, 0.75, 0.625, 0.5], rtol=1e-13
    )


def test_shares_of_the_training_are_whole_epochs_where_they_should_be() -> None:
    """0.55·100 is 55.00000000000001: epoch 55 all the same."""
    for percent in range(1, 100):
        rate = SCHEDULES.create("step", at=[percent / 100], factor=0.5)
        assert [rate(epoch, 100) for epoch in range(100)].index(0.5) == percent


@pytest.mark.parametrize(
    "spec", ["constant", "step", "exponential", "cosine", "cosine:every=2", "linear"]
)
def test_the_loop_trains_at_the_scheduled_rate(spec: str) -> None:
    settings = Settings(
        model="mlp:hidden=[]", epochs=4, batch_size="full", optimizer="sgd:lr=0.5", schedule=spec
    )
    result = train(toy(), with_(Spy()), settings, fabric=double())
    rates = [0.5 * settings.make_schedule()(epoch, 4) for epoch in range(4)]
    assert result.strategies[0].rates == rates == [row["lr"] for row in result.metrics]  # type: ignore[attr-defined]


def test_every_schedule_has_a_reference_here() -> None:
    assert set(SCHEDULES) == {"constant", "step", "exponential", "cosine", "linear"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"epochs": 0}, "Expected `epochs` to be an integer of at least 1"),
        ({"batch_size": 0}, "Expected `batch_size`.*Or 'full'"),
        ({"batch_size": "all"}, "Expected `batch_size`"),
        ({"clip": -1}, "Expected `clip` in"),
        ({"optimizer": "sgd:lr=-1"}, "Expected `lr` in"),
        ({"optimizer": "sdg"}, "Unknown optimizer 'sdg'. Did you mean 'sgd'"),
        ({"optimizer": "adam:beta1=1"}, "Expected `beta1` in"),
        ({"optimizer": "adam:eps=0"}, "Expected `eps` in"),
        ({"schedule": "step:at=[-1]"}, "Expected `at` in"),
        ({"schedule": "cosine:low=2"}, "Expected `low` in"),
        ({"schedule": "exponential:gamma=0"}, "Expected `gamma` in"),
        ({"checkpoint_steps": 0}, "Expected `checkpoint_steps`"),
        ({"workers": -1}, "Expected `workers`"),
        ({"checkpoint_seconds": -1}, "Expected `checkpoint_seconds`"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


@pytest.mark.parametrize("mark", [0.5, 2])
def test_one_mark_of_a_schedule_needs_no_brackets(mark: float) -> None:
    rate = Settings(schedule=f"step:at={mark}").make_schedule()
    assert [rate(epoch, 4) for epoch in range(4)] == [1.0, 1.0, 0.1, 0.1]


def test_a_seed_is_not_negative() -> None:
    with pytest.raises(ValueError, match="`seed` to be an integer of at least 0, got -1"):
        train(toy(), "ce", Settings(epochs=1), seed=-1)


# Inputs that cannot be trained on


@pytest.mark.parametrize(
    "shape, place", [((20, 3), "row 13, column 2"), ((20, 1, 4, 4), "row 13, place 0, 3, 1")]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_named(
    shape: tuple[int, ...], place: str, value: float
) -> None:
    x, y = torch.rand(shape, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    good = Dataset("arrays", ("a", "b"), Split(x.clone(), y))
    x[13].view(-1)[2 if x.dim() == 2 else 13] = value
    bad = Split(x, y)
    for part, data in (
        ("training", Dataset("arrays", ("a", "b"), bad)),
        ("test", replace(good, test=bad)),
    ):
        with pytest.raises(
            ValueError, match=f"finite {part} inputs, got NaN or infinity in {place}. Drop"
        ):
            prepare(data, validation=0.2)


def test_large_numbers_are_finite() -> None:
    assert (
        find_nonfinite(torch.full((4, 3), 3e38)) is None
        and find_nonfinite(torch.zeros(3, 2, dtype=torch.uint8)) is None
    )


def test_no_rows_are_refused() -> None:
    nothing = Split(torch.rand(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="Expected rows of arrays to train on, got none"):
        prepare(Dataset("arrays", ("a", "b"), nothing))


# A last row by itself


class Normed(Backbone):
    """One hidden layer with batch normalisation, which has no deviation of one row."""

    num_features = 8

    def __init__(self, *, in_features: int = D, init: str = "pytorch") -> None:
        super().__init__(init)
        self.layers = nn.Sequential(
            nn.Linear(in_features, self.num_features), nn.BatchNorm1d(self.num_features)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layers(x.flatten(1))
        return hidden.relu()


def sizes(task: Task, model: str, batch_size: int) -> list[int]:
    spy = train(
        task, with_(Spy()), Settings(model=model, epochs=1, batch_size=batch_size), fabric=double()
    ).strategies[0]
    assert isinstance(spy, Spy)
    assert torch.cat([rows for _, rows in spy.steps]).sort().values.tolist() == list(
        range(len(task.train))
    )
    return [len(rows) for _, rows in spy.steps]


def test_a_last_row_by_itself_joins_the_first_batch_where_batches_are_normalised() -> None:
    assert sizes(toy(13), "test-norm", 4) == [5, 4, 4]
    assert sizes(toy(5), "test-norm", 4) == [5]
    assert sizes(toy(14), "test-norm", 4) == [4, 4, 4, 2]
    assert sizes(toy(13), "mlp:hidden=[8]", 4) == [4, 4, 4, 1]
    for task, rows in ((toy(13), 1), (toy(1), 4)):
        with pytest.raises(ValueError, match="at least 2 rows per step, .*Raise the batch size"):
            train(
                task, "ce", Settings(model="test-norm", epochs=1, batch_size=rows), fabric=double()
            )


def test_every_process_gets_two_rows_to_normalise() -> None:
    run = train(
        toy(13), "ce", Settings(model="test-norm", epochs=1, batch_size=4), fabric=double()
    ).run
    run.processes.world_size = 2
    assert [len(part) for part in _split(torch.arange(10), run, False)] == [6, 4]
    assert [len(part) for part in _split(torch.arange(11), run, False)] == [4, 4, 3]
    assert [len(part) for part in _split(torch.arange(10), run, True)] == [4, 4]


def test_a_larger_first_batch_resumes_and_stacks_alike(tmp_path: Path) -> None:
    settings = Settings(model="test-norm", epochs=3, batch_size=4, checkpoint_steps=1)
    whole = train(toy(13), "sln", settings, fabric=double())
    with pytest.raises(Interrupted):
        train(toy(13), "sln", settings, fabric=double(), out=tmp_path, max_steps=5)
    assert same(train(toy(13), "sln", settings, fabric=double(), out=tmp_path, resume=True), whole)
    outcomes = fit_many(
        [Job(toy(13), "sln", settings, seed=s) for s in (0, 1)],
        fabric=double(),
        stack=True,
        at_once=2,
    )
    assert isinstance(outcomes[0], Result)
    for a, b in zip(weights(whole), weights(outcomes[0]), strict=True):
        torch.testing.assert_close(a, b)


# Divergence


HOT = Settings(
    model="mlp:hidden=[8]",
    epochs=3,
    batch_size=16,
    optimizer="sgd:lr=1e6,momentum=0",
    schedule="constant",
)


def finite(path: Path) -> bool:
    with safe_open(path, "pt") as file:
        return all(bool(torch.isfinite(file.get_tensor(name)).all()) for name in file.keys())  # noqa: SIM118


def blow_up(
    task: Task, method: Method, settings: Settings, out: Path | None, **options: Any
) -> str:
    with pytest.raises(Diverged) as stopped:
        train(task, method, settings, out=out, **options)
    return str(stopped.value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_stops_a_run_though_its_weights_are(value: float) -> None:
    """Of either sign, at the step that has it: its gradient is that of the loss without it."""

    class Spoiled(CE):
        calls = 0

        def forward(self, *args: Any) -> Tensor:
            self.calls += 1
            losses: Tensor = super().forward(*args)
            return losses + (value if self.calls == 3 else 0.0)

    cool = replace(HOT, optimizer="sgd:lr=0.01,momentum=0")
    assert "not finite at step 3 (epoch 1)" in blow_up(
        toy(), Method(Spoiled(), "linear"), cool, None
    )


def test_a_diverging_run_stops_with_step_cause_and_checkpoint(tmp_path: Path) -> None:
    steps: list[float] = []

    class Losses(Strategy):
        def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> None:
            steps.append(bool(torch.isfinite(losses).all()))

    said = blow_up(
        toy(),
        with_(StochasticLabelNoise(0.5, max_norm=None), Losses()),
        replace(HOT, checkpoint_steps=1),
        tmp_path,
    )
    saved = checkpoints(tmp_path / "checkpoints")
    step = load(saved[-1])["step"] + 1
    assert f"not finite at step {step} (epoch {1 + (step - 1) // 4})" in said
    assert (
        "a learning rate too large (1e+06) or too much noise"
        " (sln:sigma=0.5,until=none,max_norm=none)" in said
    )
    assert f"The last good checkpoint is {saved[-1]}." in said
    assert saved and all(finite(path) for path in saved)


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "optimizer", ["sgd:lr=1e6,momentum=0", "sgd:lr=1e18,momentum=0.9", "sgd:lr=1e38,momentum=0"]
)
def test_nothing_that_is_not_finite_is_ever_saved(
    tmp_path: Path, optimizer: str, every: int
) -> None:
    """The step that breaks the weights still has a finite loss: only the next one shows it."""
    task = prepare(get_dataset("two-moons:n=64,n_test=10"), "symmetric:rate=0.4", validation=0.2)
    settings = replace(HOT, optimizer=optimizer, checkpoint_steps=every, checkpoint_seconds=0.0)
    said = blow_up(task, with_(MomentumModel(0.5)), settings, tmp_path)
    assert all(finite(path) for path in tmp_path.rglob("*.safetensors")), list(
        tmp_path.rglob("*.safetensors")
    )
    saved = checkpoints(tmp_path / "checkpoints")
    assert (
        f"The last good checkpoint is {saved[-1]}" if saved else "No checkpoint was saved."
    ) in said
    assert "noise" not in said


@pytest.mark.parametrize("out", [False, True])
def test_weights_that_break_in_the_very_last_step_are_noticed(tmp_path: Path, out: bool) -> None:
    class Break(Strategy):
        def after_step(self, run: Run) -> None:
            if run.step == 7:  # the eighth and last
                run.models[0].plain.head.logits.bias.detach()[0] = math.nan

    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=16)
    task = prepare(get_dataset("two-moons:n=64,n_test=10"), "symmetric:rate=0.4", validation=0.01)
    said = blow_up(task, with_(Break()), settings, tmp_path if out else None)
    assert "step 8 (epoch 2)" in said
    assert all(finite(path) for path in tmp_path.rglob("*.safetensors"))


def test_a_resumed_run_names_the_step_of_the_whole_run(tmp_path: Path) -> None:
    class Break(Strategy):
        def gradients(self, run: Run) -> None:
            if run.step == 6:
                run.models[0].plain.head.logits.bias.grad[0] = math.inf  # type: ignore[union-attr, index]

    settings = Settings(model="mlp:hidden=[8]", epochs=3, batch_size=16, checkpoint_steps=1)
    with pytest.raises(Interrupted):
        train(toy(), with_(Break()), settings, out=tmp_path, max_steps=5)
    with pytest.raises(
        Diverged,
        match=r"step 7 \(epoch 2\).*The last good checkpoint is .*step-000000006.safetensors.",
    ):
        train(toy(), with_(Break()), settings, out=tmp_path, resume=True)


def test_an_exploded_covariance_is_a_divergence_like_others(tmp_path: Path) -> None:
    class Explode(Strategy):
        def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
            far = 1e200 if run.step == 5 else 1.0
            return [out._replace(root=None if out.root is None else out.root * far) for out in outs]

    settings = Settings(model="mlp:hidden=[8]", epochs=3, batch_size=16, checkpoint_steps=1)
    said = blow_up(
        toy(),
        Method(get_loss("ln"), "gaussian-root", (Explode(),)),
        settings,
        tmp_path,
        fabric=double(),
    )
    assert "not finite at step 6 (epoch 2). Likely: a learning rate too large" in said
    assert said.endswith("step-000000005.safetensors.")


def test_clipping_does_what_the_message_suggests() -> None:
    calm = replace(HOT, clip=1e-7)
    assert len(train(toy(), "ce", calm).metrics) == 3


# Ends


def test_a_run_can_be_ended_early_and_stays_ended(tmp_path: Path) -> None:
    class Enough(Strategy):
        def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
            if metrics["epoch"] == 2:
                run.stop("enough")
                run.stop("more than enough")

    settings = Settings(model="mlp:hidden=[8]", epochs=5, batch_size=16)
    result = train(toy(), with_(Enough()), settings, out=tmp_path)
    assert len(result.metrics) == 2 and result.stopped == "enough"
    again = train(toy(), with_(Enough()), settings, out=tmp_path, resume=True)
    assert same(result, again) and again.stopped == "enough"
    assert train(toy(), "ce", settings).stopped is None


def test_a_finished_run_is_resumed_to_itself(tmp_path: Path) -> None:
    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=16)
    result = train(toy(), "ce", settings, out=tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = train(toy(), "ce", settings, out=tmp_path, resume=True)
    assert same(result, again) and result.metrics == again.metrics
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("steps", [8, 9, 100])
def test_as_many_steps_as_there_are_finish_the_run(tmp_path: Path, steps: int) -> None:
    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=16)
    assert len(train(toy(), "ce", settings, out=tmp_path, max_steps=steps).metrics) == 2


def test_without_a_folder_nothing_is_said_to_be_saved() -> None:
    with pytest.raises(
        Interrupted, match="Stopped after step 3 in epoch 1 of 2. Nothing was saved"
    ):
        train(toy(), "ce", Settings(model="mlp:hidden=[8]", epochs=2, batch_size=16), max_steps=3)


def test_last_best_best_clean_best_true_and_oracle_are_five_epochs() -> None:
    def row(epoch: int, validation: float, test: float, clean: float = 0.5) -> dict[str, float]:
        return {
            "epoch": epoch,
            "validation_accuracy": validation,
            "validation_accuracy_clean": clean,
            "test_accuracy": test,
        }

    rows = [
        row(1, 0.3, 0.5),
        row(2, 0.6, 0.7),
        row(3, 0.5, 0.9),
        row(4, 0.6, 0.9, 0.8),
        row(5, math.nan, 0.1),
    ]
    result = Result(rows, None)  # type: ignore[arg-type]
    assert (result.last["epoch"], result.best["epoch"], result.oracle["epoch"]) == (5, 2, 3)  # type: ignore[index]
    # true labels of noisy rows are not attainable
    assert result.best_true is rows[3] and result.best_clean is None
    for number, clean in enumerate((0.9, 0.2, 0.2, 0.2, 0.2)):
        rows[number]["clean_validation_accuracy"] = clean
    assert result.best_clean is rows[0] and result.best_true is rows[3]
    blind = Result([{"epoch": 1}], None)  # type: ignore[arg-type]
    assert (
        blind.best is blind.best_clean is blind.best_true is blind.oracle is None
        and blind.last == {"epoch": 1}
    )
    assert Result([row(1, math.nan, math.nan)], None).best is None  # type: ignore[arg-type]


def test_a_head_that_does_not_give_what_the_loss_needs_is_refused() -> None:
    settings = Settings(model="mlp:hidden=[8]", epochs=1)
    with pytest.raises(
        ValueError, match="Expected a head that gives root for `ln.*Use gaussian-root"
    ):
        train(toy(), Method(get_loss("ln"), "linear"), settings)
    # before the first step
    with pytest.raises(ValueError, match=r"`scale` of shape \(2, 1\), got shape"):
        train(
            toy(),
            Method(get_loss("ln:covariance=isotropic"), "gaussian-scale"),
            settings,
            progress=pytest.fail,
        )


def test_progress_is_told_every_step_and_every_epoch() -> None:
    told: list[tuple[int, int, int, bool]] = []
    settings = Settings(model="mlp:hidden=[8]", epochs=2, batch_size=25)
    train(
        toy(), "ce", settings, progress=lambda e, i, n, row: told.append((e, i, n, row is not None))
    )
    assert told == [
        (e, i, 2, done) for e in (0, 1) for i, done in ((1, False), (2, False), (2, True))
    ]
