"""Chen et al.'s averaged predictions against softmaxes recomputed by hand, and the labels that
follow from them.
"""

from __future__ import annotations

import math
import os
import signal
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.data import Dataset, Split, corrupt, get_dataset
from noiseproof.data.base import derive_generator
from noiseproof.losses import get_loss
from noiseproof.strategies import Run, Strategy
from noiseproof.train import Interrupted, Method, Settings, prepare, train
from noiseproof.train.instance import CHEN_CIFAR10, averaged_predictions

SETTINGS = Settings(
    model="mlp:hidden=[12]", epochs=4, batch_size=32, optimizer="sgd:lr=0.1,momentum=0.9"
)


def digits(n: int = 200) -> Dataset:
    data = get_dataset("digits")
    assert isinstance(data.train.x, Tensor)
    return replace(data, train=Split(data.train.x[:n], data.train.y[:n]), test=None)


def noise_images() -> Dataset:
    """Random images that call themselves CIFAR-10, so that they are cropped and flipped as those
    are.
    """
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 3, 32, 32), generator=g, dtype=torch.uint8)
    return Dataset("cifar10", tuple("abcdefghij"), Split(x, torch.arange(60) % 10))


def cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def averaged(data: Dataset, settings: Settings = SETTINGS, **options: Any) -> Tensor:
    return averaged_predictions(data, settings, fabric=cpu(), **options)


class Spy(Strategy):
    """Says itself, after every epoch, what the model predicts of all training images."""

    def __init__(self, x: Tensor, augmented: bool) -> None:
        self.x, self.augmented = x, augmented
        self.softmaxes: list[np.ndarray[Any, Any]] = []

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        model = run.models[0].plain.eval()
        if self.augmented:
            assert run.augment is not None
            drawn = derive_generator(run.random.seed, zlib.crc32(b"chen"), run.epoch)
            x = run.augment.apply(self.x, run.augment.draw(len(self.x), drawn))
        else:
            assert run.normalise is not None
            x = run.normalise.apply(self.x, torch.empty(len(self.x), 0))
        with torch.no_grad():
            e = np.exp(model(x.float()).logits.double().numpy())
        self.softmaxes.append(e / e.sum(1, keepdims=True))
        model.train()


@pytest.mark.parametrize(
    "data, augmented", [(digits(), False), (noise_images(), True)], ids=["digits", "augmented"]
)
def test_the_mean_over_epochs_of_what_the_model_says(data: Dataset, augmented: bool) -> None:
    assert isinstance(data.train.x, Tensor)
    spy = Spy(data.train.x, augmented)
    run = train(
        prepare(data), Method(get_loss("ce"), strategies=(spy,)), SETTINGS, seed=3, fabric=cpu()
    )
    spied = run.strategies[0].softmaxes  # type: ignore[attr-defined]
    assert len(spied) == 4 and np.abs(spied[0] - spied[-1]).max() > 0.05
    found = averaged(data, seed=3)
    assert found.dtype is torch.float64 and found.shape == (len(data.train), 10)
    np.testing.assert_allclose(found.numpy(), np.mean(spied, 0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.sum(1).numpy(), 1, rtol=1e-6)


def test_the_labels_that_the_model_doubts_most_are_flipped() -> None:
    """Algorithm 1 of Chen et al. 2020 in a loop: ⌊rN⌋ samples of the largest score of another class
    get that class.
    """
    data = digits()
    S = averaged(data)
    y = data.train.y.tolist()
    rivals = [max((float(S[i, k]), -k) for k in range(10) if k != y[i]) for i in range(len(y))]
    doubted = sorted(range(len(y)), key=lambda i: (-rivals[i][0], i))[: math.floor(0.3 * len(y))]
    expected = [-rivals[i][1] if i in doubted else y[i] for i in range(len(y))]
    noisy = corrupt(data, "chen:rate=0.3", features=S)
    assert noisy.given.tolist() == expected and noisy.rate == 0.3
    assert noisy.clean is not None and noisy.clean.tolist() == y
    assert prepare(data, "chen:rate=0.3", features=S).train.given.tolist() == expected


def test_the_seed_decides_and_nothing_else() -> None:
    data, state = digits(60), torch.get_rng_state()
    first = averaged(data)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(averaged(data), first)
    assert not torch.equal(averaged(data, seed=1), first)


def test_an_interrupted_training_loses_nothing(tmp_path: Path) -> None:
    data = digits(60)
    calls: list[tuple[int, int]] = []

    def interrupt(epoch: int, step: int, steps: int, row: object) -> None:
        calls.append((epoch, step))
        if (epoch, step) == (2, 1) and row is None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="epoch 3 of 4"):
        averaged(data, out=tmp_path, progress=interrupt)
    done = len(calls)
    found = averaged(data, out=tmp_path, progress=interrupt)
    assert calls[done] == (2, 2)  # the next step
    assert torch.equal(found, averaged(data))
    done = len(calls)
    assert torch.equal(averaged(data, out=tmp_path, progress=interrupt), found)
    assert len(calls) == done  # it is not trained again


def test_the_settings_of_chen_et_al() -> None:
    """150 epochs of a wide residual network, 0.1·0.2 from epoch 60 and ·0.2 again from 120 on."""
    rate = CHEN_CIFAR10.make_schedule()
    lr = [0.1 * rate(epoch, CHEN_CIFAR10.epochs) for epoch in range(CHEN_CIFAR10.epochs)]
    np.testing.assert_allclose(lr, [0.1] * 60 + [0.02] * 60 + [0.004] * 30)
    assert CHEN_CIFAR10.model == "wrn-28-2-sln:width=10" and CHEN_CIFAR10.batch_size == 128
