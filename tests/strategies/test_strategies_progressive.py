"""PES against a training loop typed from its paper, and what its stages draw anew and leave
alone.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from handmade_run import make_batch, make_run
from lightning_fabric import Fabric
from torch import Tensor, nn

from noiseproof.data import get_dataset
from noiseproof.data.augment import Compose, PadCrop
from noiseproof.losses import get_loss
from noiseproof.models import get_model
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Run, Strategy
from noiseproof.strategies.mixing import draw_mix, second_view
from noiseproof.strategies.progressive import ProgressiveMixMatch, ProgressiveStopping, last_block
from noiseproof.train import Method, Result, Settings, Task, prepare, train

K, STAGES = 10, {"start": 25, "block_epochs": 14, "head_epochs": 10}
SETTINGS = Settings(
    epochs=55,
    model="mlp:hidden=[16,12]",
    batch_size="full",
    schedule="constant",
    optimizer="sgd:lr=0.2,momentum=0.9,nesterov=false,weight_decay=0.01",
)


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.3")


class Weights(Strategy):
    """The weights at the start of each epoch, after the strategies before it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def start_epoch(self, run: Run) -> None:
        self.seen.append(
            {name: value.clone() for name, value in run.models[0].plain.state_dict().items()}
        )


def trained(task: Task, released: bool = False, balance: bool = True) -> Result:
    strategies = (
        ProgressiveStopping(**STAGES, lr=0.05, released=released, balance=balance),
        Weights(),
    )
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    return train(task, Method(get_loss("ce"), strategies=strategies), SETTINGS, fabric=fabric)


def layers(net: nn.Module) -> list[list[nn.Parameter]]:
    """The weights of the two hidden layers and of the head."""
    parameters = list(net.parameters())
    return [parameters[i : i + 2] for i in (0, 2, 4)]


@pytest.mark.parametrize(("released", "balance"), [(False, True), (True, True), (False, False)])
def test_a_run_is_the_papers_algorithm(task: Task, released: bool, balance: bool) -> None:
    """Bai et al. (2021): T₁ epochs of SGD, Adam on renewed layers, then SGD on the rows that are
    predicted right.

    What is drawn anew is taken from the run; all else is typed here. An epoch is one step on all
    rows.
    """
    result = trained(task, released, balance)
    strategy, weights = result.strategies
    assert isinstance(weights, Weights)
    generator = torch.Generator()
    net = build_classifier(
        SETTINGS.model, "linear", input_shape=task.input_shape, num_outputs=K, generator=generator
    )
    net.double().load_state_dict(weights.seen[0])
    assert task.normalise is not None
    x, y = task.normalise(task.train.x).double(), task.train.given
    below, block, head = layers(net)
    groups = [{"params": part} for part in (below, block, head)]
    sgd = torch.optim.SGD(groups, lr=0.2, momentum=0.9, weight_decay=0.01)
    for epoch in range(55):
        chosen, weight = torch.ones(len(y), dtype=torch.bool), torch.ones(K, dtype=torch.float64)
        optimiser: torch.optim.Optimizer = sgd
        if epoch in (25, 39):  # renewed layers have forgotten their momentum
            renewed = block + head if epoch == 25 else head
            net.load_state_dict(weights.seen[epoch])
            adam = torch.optim.Adam(renewed, lr=0.05)
            for p in renewed:
                sgd.state.pop(p, None)
        if 25 <= epoch < 49:
            optimiser = adam
        if epoch >= 49:
            with torch.no_grad():
                right = net(x).logits.argmax(1) == y
            predicted = set(y[right].tolist())  # a class without such a row keeps all
            chosen = right | torch.tensor([int(label) not in predicted for label in y])
            counts = torch.bincount(y[chosen], minlength=K).double()
            if balance:
                weight = torch.where(counts > 0, counts[counts > 0].mean() / counts, 0)
        for p in net.parameters():
            p.grad = None
        nn.CrossEntropyLoss(weight)(net(x[chosen]).logits, y[chosen]).backward()
        if epoch >= 49 and released:
            for p in block + head:
                p.grad = None
        optimiser.step()
    for ours, theirs in zip(result.models[0].parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    assert isinstance(strategy, ProgressiveStopping)
    torch.testing.assert_close(strategy.class_weights, weight)
    assert torch.equal(strategy.chosen, chosen) and 0.2 < float(chosen.double().mean()) < 0.9


def test_without_a_start_it_is_cross_entropy(task: Task) -> None:
    plain, *others = (
        [
            *train(task, line, Settings(epochs=3, model="mlp:hidden=[8]"))
            .run.models[0]
            .plain.parameters()
        ]
        for line in ("ce", "pes", "pes-semi", "ce & progressive-stopping:start=none")
    )
    for other in others:
        assert all(map(torch.equal, plain, other))


def test_what_each_stage_draws_anew_and_leaves_alone(task: Task) -> None:
    weights = trained(task).strategies[1]
    assert isinstance(weights, Weights)
    seen = weights.seen
    names = ["backbone.layers.0.0", "backbone.layers.1.0", "head.logits"]
    moved = [
        [not torch.equal(a[f"{n}.weight"], b[f"{n}.weight"]) for n in names]
        for a, b in pairwise(seen)
    ]
    trains = {0: [True] * 3, 1: [False, True, True], 2: [False, False, True]}
    assert moved[:24] == [trains[0]] * 24 and moved[25:38] == [trains[1]] * 13
    assert moved[39:48] == [trains[2]] * 9 and moved[49:] == [trains[0]] * 5
    assert moved[24] == [True] * 3  # the last step of all layers, then two are drawn anew
    # the last step of the block, then the head is drawn anew
    assert moved[38] == [False, True, True]
    for epoch, name in ((25, names[1]), (25, names[2]), (39, names[2])):
        drawn = seen[epoch][f"{name}.weight"]
        fan_out, fan_in = drawn.shape
        # Xavier, as the model's own start
        assert float(drawn.abs().max()) <= math.sqrt(6 / (fan_in + fan_out))
        assert not bool(seen[epoch][f"{name}.bias"].any())
        assert not any(torch.equal(drawn, before[f"{name}.weight"]) for before in seen[:epoch])


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        ("resnet34", (3, 32, 32), ["layer4"]),
        ("preact-resnet18", (3, 32, 32), ["layer4"]),
        ("mlp:hidden=[8,6]", (4,), ["layers.1"]),
        ("mlp:hidden=[8]", (4,), []),
        ("mlp:hidden=[]", (4,), []),
    ],
)
def test_the_last_block(model: str, shape: tuple[int, ...], names: list[str]) -> None:
    backbone = get_model(model, input_shape=shape)
    found = [
        name
        for name, module in backbone.named_modules()
        if any(module is part for part in last_block(backbone))
    ]
    assert found == names


def test_a_class_that_is_never_predicted_keeps_its_rows(task: Task) -> None:
    run = make_run(task)
    strategy = ProgressiveStopping(start=1, block_epochs=0, head_epochs=0)
    run.epoch = 1
    strategy.setup(run)
    with torch.no_grad():
        run.models[0].plain.head.logits.bias[3] = 1e3  # type: ignore[union-attr,index]
    strategy.start_epoch(run)
    assert bool(strategy.chosen.all())
    counts = torch.bincount(run.data.given, minlength=K).double()
    torch.testing.assert_close(strategy.class_weights, counts.mean() / counts)


# Semi-supervised


def chosen_run(task: Task, few: bool = False, **options: Any) -> tuple[Run, ProgressiveMixMatch]:
    """The strategy in the second of its epochs of MixMatch, the fifth of ten, with rows chosen at
    random.
    """
    assert task.normalise is not None
    run = make_run(
        task, epochs=10, epoch=4, weight_scale=2, augment=Compose((PadCrop(2), task.normalise))
    )
    strategy = ProgressiveMixMatch(start=2, block_epochs=0, head_epochs=1, **options)
    run.strategies = [strategy]
    strategy.setup(run)
    random = torch.Generator().manual_seed(0)
    strategy.chosen = torch.rand(run.num_rows, generator=random) < (0.3 if few else 0.7)
    return run, strategy


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("batch_size", [64, 33])
def test_steps_have_rows_without_labels_in_their_share(
    task: Task, few: bool, batch_size: int
) -> None:
    """The released code: as many as the set has, half at most; an epoch has as many rows as the
    set.
    """
    run, strategy = chosen_run(task, few)
    run.batch_size = batch_size
    rows = strategy.rows(
        torch.randperm(run.num_rows, generator=torch.Generator().manual_seed(1)), run
    )
    assert len(rows) == run.num_rows
    share = min(0.5, 1 - float(strategy.chosen.double().mean()))
    for part in rows.split(batch_size):
        assert abs(int((~strategy.chosen[part]).sum()) - share * len(part)) <= 1
    times = torch.bincount(rows, minlength=run.num_rows)
    if few:
        labelled = times[strategy.chosen]
        assert int(labelled.max() - labelled.min()) == 1 and int(times[~strategy.chosen].max()) == 1
    else:
        assert torch.equal(times, torch.ones_like(times))


@pytest.mark.parametrize("epoch", [4, 7])
@pytest.mark.parametrize("labels", ["some", "all", "none"])
def test_a_step_is_that_of_mixmatch(task: Task, epoch: int, labels: str) -> None:
    """Bai et al. (2021) and the released code: loss and gradient of a step with weights of
    classes.
    """
    run, strategy = chosen_run(task, lambda_u=5.0, ramp=3.0)
    rows = torch.arange(64)
    strategy.chosen[rows] = {"all": True, "none": False}.get(labels, strategy.chosen[rows])
    strategy.class_weights = torch.linspace(0.5, 3.0, K, dtype=torch.float64)
    strategy.rows(torch.arange(run.num_rows), run)
    run.epoch, run.step, strategy.first_step = epoch, 105, 100
    batch, net = make_batch(run, rows), run.models[0].plain
    step = strategy.step(batch, run)
    assert step is not None
    found = [p.grad for p in net.parameters()]

    x = torch.cat([batch.x, second_view("progressive-mixmatch view", batch, run)])
    labelled = strategy.chosen[rows].repeat(2)
    with torch.no_grad():
        first, second = net(x).logits.softmax(1).chunk(2)
    guess = ((first + second) / 2) ** 2
    t = torch.where(
        strategy.chosen[rows, None],
        torch.eye(K).double()[batch.given],
        guess / guess.sum(1, keepdim=True),
    )
    t = t.repeat(2, 1)
    lam, partner = draw_mix("progressive-mixmatch", 4.0 if epoch == 4 else 0.75, 128, run)
    # partners are drawn among the views row by row
    place = torch.arange(128).view(2, 64).T.flatten()
    partner = place[partner[place.argsort()]]
    x, t = lam * x + (1 - lam) * x[partner], lam * t + (1 - lam) * t[partner]
    log_p = net(x).logits.log_softmax(1)
    loss = torch.zeros((), dtype=torch.float64)
    if labels != "none":
        loss = loss + (-(log_p * t)[labelled].mean(0) * strategy.class_weights).sum()
    if labels != "all":
        done = (epoch - 3) + 5 / (run.num_rows // 64)
        loss = loss + 5.0 * min(1.0, done / 3) * ((log_p.exp() - t)[~labelled] ** 2).mean()
    assert float(step.losses.mean()) == pytest.approx(loss.item(), rel=1e-12)
    for a, b in zip(found, torch.autograd.grad(loss, list(net.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


def test_before_mixmatch_it_is_progressive_stopping(task: Task) -> None:
    """The same weights up to the first epoch of MixMatch, of which each trains them differently."""
    seen = []
    for strategy in (ProgressiveStopping, ProgressiveMixMatch):
        parts = strategy(start=2, block_epochs=1, head_epochs=1, lr=0.01), Weights()
        settings = Settings(epochs=6, model="mlp:hidden=[16,12]")
        weights = train(task, Method(get_loss("ce"), strategies=parts), settings).strategies[1]
        assert isinstance(weights, Weights)
        seen.append(weights.seen)
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*seen, strict=True)]
    drawn = "head.logits.weight"  # anew, from numbers of its own name
    assert same[:2] == [True, True] and not torch.equal(seen[0][2][drawn], seen[1][2][drawn])
    assert all(
        torch.equal(
            seen[0][i]["backbone.layers.0.0.weight"], seen[1][i]["backbone.layers.0.0.weight"]
        )
        for i in range(5)
    )
    assert not same[5]


def test_a_class_weighs_three_times_the_mean_at_most(task: Task) -> None:
    run, strategy = chosen_run(task)
    run.augment = None  # both have the same predictions
    plain = ProgressiveStopping(start=2, block_epochs=0, head_epochs=1)
    plain.setup(run)
    for each in (strategy, plain):
        each.start_epoch(run)
    assert float(plain.class_weights.max()) > 3
    torch.testing.assert_close(strategy.class_weights, plain.class_weights.clamp(max=3))
