"""A minute's proof on bundled data: what wrong labels do to cross entropy, and what a robust loss does about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from noiseproof.losses import get_loss

LOSSES = ("ce", "gce:q=0.7", "remargin:loss=mae,shift=0.5246", "nce+agce@002:num_classes=10")


@dataclass(frozen=True)
class Row:
    """One loss's result, on clean test labels."""

    loss: str
    accuracy: float
    memorised: float  # share of the wrong training labels that the model has learnt by heart
    seconds: float


def demo(losses: Iterable[str] = LOSSES, *, noise: float = 0.4, epochs: int = 200, seed: int = 0) -> Iterator[Row]:
    """Train a 2×512 MLP on scikit-learn's digits with each loss; ``noise`` of the labels are wrong, at random.

    Every loss gets the same split, the same wrong labels, the same initial weights and the same batches.
    """
    pixels, digits = load_digits(return_X_y=True)
    split = train_test_split(pixels / 16, digits, test_size=0.25, stratify=digits, random_state=seed)
    x, x_test, clean, y_test = map(torch.from_numpy, split)
    x, x_test = x.float(), x_test.float()  # (N, 64)
    given, wrong = _corrupt(clean, noise, torch.Generator().manual_seed(seed))
    _train("ce", x, given, 1, torch.Generator())  # not timed: the first step of a process loads half of torch
    for spec in losses:
        start = time.perf_counter()
        model = _train(spec, x, given, epochs, torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - start
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).double().mean()
            memorised = (model(x[wrong]).argmax(1) == given[wrong]).double().mean()
        yield Row(spec, float(accuracy), float(memorised), seconds)


def _corrupt(clean: Tensor, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels of which exactly ``rate`` moved to another class, each other class alike; and which rows moved."""
    num_classes = int(clean.max()) + 1
    wrong = torch.randperm(len(clean), generator=generator)[: round(rate * len(clean))]
    step = torch.randint(1, num_classes, wrong.shape, generator=generator)
    return clean.index_add(0, wrong, step) % num_classes, wrong


def _train(spec: str, x: Tensor, given: Tensor, epochs: int, generator: torch.Generator) -> nn.Module:
    model, loss = _mlp((64, 512, 512, 10), generator), get_loss(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in (order[i : i + 128] for i in range(0, len(x), 128)):
            optimizer.zero_grad()
            loss(model(x[rows]), given[rows]).backward()
            optimizer.step()
    return model


def _mlp(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with PyTorch's own initialisation, drawn from ``generator`` and not from the global one."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
