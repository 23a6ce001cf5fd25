"""A minute's proof on bundled data: what wrong labels do to cross entropy, and what a robust loss does about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noiseproof.data import corrupt, get_dataset
from noiseproof.data.base import own_generator
from noiseproof.losses import get_loss
from noiseproof.models import get_model, initialise_head

LOSSES = ("ce", "gce:q=0.7", "remargin:loss=mae,shift=0.5246", "nce+agce@002:num_classes=10")


@dataclass(frozen=True)
class Row:
    """One loss's result, on clean test labels."""

    loss: str
    accuracy: float
    memorised: float  # share of the wrong training labels that the model has learnt by heart
    seconds: float


def demo(
    losses: Iterable[str] = LOSSES, *, noise: str = "symmetric:rate=0.4", epochs: int = 200, seed: int = 0
) -> Iterator[Row]:
    """Train a 2×512 MLP on scikit-learn's digits with each loss; ``noise`` makes some of the training labels wrong.

    Every loss gets the same split, the same wrong labels, the same initial weights and the same batches.
    """
    digits = get_dataset("digits", test=0.25, seed=seed)
    data, test = corrupt(digits, noise, generator=seed), digits.test
    assert test is not None and isinstance(data.x, Tensor) and isinstance(test.x, Tensor)  # small enough for memory
    x, x_test = data.x / 255, test.x / 255  # (N, 1, 8, 8)
    wrong = data.given != data.clean
    _train("ce", x, data.given, 1, torch.Generator())  # not timed: the first step of a process loads half of torch
    for spec in losses:
        start = time.perf_counter()
        model = _train(spec, x, data.given, epochs, own_generator(seed, 1))  # not the numbers that made the noise
        seconds = time.perf_counter() - start
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == test.y).double().mean()
            memorised = (model(x[wrong]).argmax(1) == data.given[wrong]).double().mean()
        yield Row(spec, float(accuracy), float(memorised), seconds)


def _train(spec: str, x: Tensor, given: Tensor, epochs: int, generator: torch.Generator) -> nn.Module:
    backbone = get_model("mlp:hidden=[512,512]", input_shape=x.shape[1:], generator=generator)
    head = nn.Linear(backbone.num_features, 10, device="meta").to_empty(device="cpu")  # made without drawing
    initialise_head(backbone, head, generator)
    model, loss = nn.Sequential(backbone, head), get_loss(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in torch.split(order, 128):
            optimizer.zero_grad()
            loss(model(x[rows]), given[rows]).backward()
            optimizer.step()
    return model
