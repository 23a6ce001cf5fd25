"""PES against a training loop typed from its paper, and what its stages draw anew and leave alone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from handmade_run import make_run
from lightning_fabric import Fabric
from torch import Tensor, nn

from noiseproof.data import get_dataset
from noiseproof.losses import get_loss
from noiseproof.models import get_model
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Run, Strategy
from noiseproof.strategies.progressive import ProgressiveStopping, last_block
from noiseproof.train import Method, Result, Settings, Task, prepare, train

K, STAGES = 10, {"start": 25, "block_epochs": 14, "head_epochs": 10}
SETTINGS = Settings(epochs=55, model="mlp:hidden=[16,12]", batch_size="full", schedule="constant",
                    optimizer="sgd:lr=0.2,momentum=0.9,nesterov=false,weight_decay=0.01")  # fmt: skip


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.3")


class Weights(Strategy):
    """The weights at the start of each epoch, after the strategies before it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def start_epoch(self, run: Run) -> None:
        self.seen.append({name: value.clone() for name, value in run.models[0].plain.state_dict().items()})


def trained(task: Task, released: bool = False, balance: bool = True) -> Result:
    strategies = ProgressiveStopping(**STAGES, lr=0.05, released=released, balance=balance), Weights()
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    return train(task, Method(get_loss("ce"), strategies=strategies), SETTINGS, fabric=fabric)


def layers(net: nn.Module) -> list[list[nn.Parameter]]:
    """The weights of the two hidden layers and of the head."""
    parameters = list(net.parameters())
    return [parameters[i : i + 2] for i in (0, 2, 4)]


@pytest.mark.parametrize(("released", "balance"), [(False, True), (True, True), (False, False)])
def test_a_run_is_the_papers_algorithm(task: Task, released: bool, balance: bool) -> None:
    """Bai et al. (2021): T₁ epochs of SGD, Adam on renewed layers, then SGD on the rows that are predicted right.

    What is drawn anew is taken from the run; all else is typed here. An epoch is one step on all rows.
    """
    result = trained(task, released, balance)
    strategy, weights = result.strategies
    assert isinstance(weights, Weights)
    generator = torch.Generator()
    net = build_classifier(SETTINGS.model, "linear", input_shape=task.input_shape, num_outputs=K, generator=generator)
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


def test_what_each_stage_draws_anew_and_leaves_alone(task: Task) -> None:
    weights = trained(task).strategies[1]
    assert isinstance(weights, Weights)
    seen = weights.seen
    names = ["backbone.layers.0.0", "backbone.layers.1.0", "head.logits"]
    moved = [[not torch.equal(a[f"{n}.weight"], b[f"{n}.weight"]) for n in names] for a, b in pairwise(seen)]
    trains = {0: [True] * 3, 1: [False, True, True], 2: [False, False, True]}
    assert moved[:24] == [trains[0]] * 24 and moved[25:38] == [trains[1]] * 13
    assert moved[39:48] == [trains[2]] * 9 and moved[49:] == [trains[0]] * 5
    assert moved[24] == [True] * 3  # the last step of all layers, then two are drawn anew
    assert moved[38] == [False, True, True]  # the last step of the block, then the head is drawn anew
    for epoch, name in ((25, names[1]), (25, names[2]), (39, names[2])):
        drawn = seen[epoch][f"{name}.weight"]
        fan_out, fan_in = drawn.shape
        assert float(drawn.abs().max()) <= math.sqrt(6 / (fan_in + fan_out))  # Xavier, as the model's own start
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
    found = [name for name, module in backbone.named_modules() if any(module is part for part in last_block(backbone))]
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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ce & progressive-stopping:start=20", "Expected `start` below the 20 epochs"),
        (
            "pes:head_epochs=19",
            "Expected at most 20 epochs for `start`, `block_epochs` and `head_epochs`, got 26",
        ),
        ("pes & dividemix", "nothing beside `dividemix`.*got `progressive-stopping"),
        ("pes & class-balanced:total=100", "class-balanced before `progressive-stopping"),
        ("pes & freeze", "weights of its own to draw anew"),
    ],
)
def test_what_it_cannot_be_trained_with_is_refused(task: Task, line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        train(task, line, Settings(epochs=20, model="mlp:hidden=[8]"), progress=pytest.fail)
