"""Networks of one architecture as one: the stack says, learns and remembers what its members would
alone.
"""

from __future__ import annotations

import copy

import pytest
import torch

from noiseproof.accelerate.networks import Stack, Unstackable, draws, release
from noiseproof.heads import HEADS
from noiseproof.models.classifier import Classifier, build_classifier

SEATS, ROWS = 3, 4
SHAPES = {
    "lenet5": (1, 28, 28),
    "cnn4": (1, 28, 28),
    "mlp": (6,),
    "mlp1024": (6,),
    "mlp-2x2000": (6,),
}
STACKED = ["lenet5", "cnn4", "mlp:hidden=[8]", "mlp1024", "resnet32", "wrn-28-2", "wrn-28-2-sln"]


def members(model: str, head: str = "linear", *, count: int = SEATS) -> list[Classifier]:
    shape = SHAPES.get(model.partition(":")[0], (3, 32, 32))
    return [
        build_classifier(
            model,
            head,
            input_shape=shape,
            num_outputs=5,
            generator=torch.Generator().manual_seed(seed),
        ).double()
        for seed in range(count)
    ]


def rows(model: str) -> torch.Tensor:
    shape = SHAPES.get(model.partition(":")[0], (3, 32, 32))
    return torch.randn(
        SEATS * ROWS, *shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )


def assert_same_step(together: list[Classifier], x: torch.Tensor) -> None:
    """Outputs, gradients and batch statistics of a stack's training step are those of its
    members'.
    """
    alone = copy.deepcopy(together)
    stack, each = Stack(together), len(x) // len(together)
    out, apart = stack(x), [model(part) for model, part in zip(alone, x.split(each), strict=True)]
    total, expected = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for field, value in out._asdict().items():
        if value is not None:
            reference = torch.cat([getattr(one, field) for one in apart])
            assert torch.allclose(value, reference, rtol=1e-9, atol=1e-9), field
            total, expected = total + value.square().sum(), expected + reference.square().sum()
    total.backward()
    stack.share_gradients()
    expected.backward()
    for one, other in zip(together, alone, strict=True):
        for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
            assert torch.allclose(
                a.grad, b.grad, rtol=1e-7, atol=1e-9 * float(b.grad.abs().max() + 1)
            ), name
        for (name, a), b in zip(one.named_buffers(), other.buffers(), strict=True):
            assert torch.allclose(a, b, rtol=1e-9), name


@pytest.mark.parametrize("head", sorted(HEADS))
def test_every_head_stacks(head: str) -> None:
    assert_same_step(members("lenet5", head), rows("lenet5"))


@pytest.mark.parametrize("name", STACKED)
def test_every_small_model_stacks(name: str) -> None:
    assert_same_step(members(name), rows(name))


def test_one_row_of_each() -> None:
    """The last batch may have one: its convolutions' gradients, too."""
    assert_same_step(members("wrn-28-2:depth=10"), rows("wrn-28-2:depth=10")[:SEATS])


def test_members_and_stack_share_their_weights_until_they_are_released() -> None:
    together = members("cnn4")
    stack, x = Stack(together), rows("cnn4")
    before = stack(x).logits.detach()
    with torch.no_grad():
        together[1].head.logits.weight.mul_(2)
    changed = (stack(x).logits != before).view(SEATS, ROWS, -1).all(2).all(1)
    assert changed.tolist() == [False, True, False]
    together[0].load_state_dict(together[2].state_dict())
    same = stack(x[:ROWS].repeat(SEATS, 1, 1, 1)).logits.view(SEATS, ROWS, -1)
    assert torch.equal(same[0], same[2]) and not torch.equal(same[0], same[1])
    assert [p.shape for p in together[0].parameters()] == [
        p.shape for p in members("cnn4", count=1)[0].parameters()
    ]
    kept = copy.deepcopy(together[0].state_dict())
    release(together[0])
    with torch.no_grad():
        for value in stack.parameters():
            value.zero_()
    assert all(torch.equal(value, kept[name]) for name, value in together[0].state_dict().items())
    assert not any(value.any() for value in together[1].parameters())


def test_what_fills_a_gpu_alone_is_refused_before_anything_moves() -> None:
    together = members("cnn8", count=2)
    storages = [value.data_ptr() for value in together[1].parameters()]
    with pytest.raises(Unstackable, match="more than 128 channels"):
        Stack(together)
    assert [value.data_ptr() for value in together[1].parameters()] == storages


@pytest.mark.parametrize(
    ("model", "answer"), [("wrn-28-2:depth=10", False), ("wrn-28-2:depth=10,dropout=0.2", True)]
)
def test_whether_layers_draw(model: str, answer: bool) -> None:
    network = members(model, count=1)[0]
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    assert draws(network, lambda copy: copy(rows(model)[:2])) is answer
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
