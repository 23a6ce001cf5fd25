"""The recipes for Lightning, the Hugging Face Trainer and skorch, against stand-ins: none is
installed here.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
GIVEN = torch.tensor([0, 1, 1, 0])


class LightningModule(nn.Module):
    """As much of Lightning's as the recipe uses."""

    def log(self, name: str, value: torch.Tensor) -> None:
        self.logged = {name: float(value)}


class Trainer:
    """Keeps what it was made of."""

    def __init__(self, **given: Any) -> None:
        self.given = given


class Classifier:
    """Makes its criterion from a class or function, as skorch does."""

    def __init__(
        self, module: Any, criterion: Any, predict_nonlinearity: Any, **given: Any
    ) -> None:
        self.criterion_, self.nonlinearity, self.given = criterion(), predict_nonlinearity, given


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of the page define."""
    parts: dict[str, dict[str, Any]] = {
        "lightning": {"LightningModule": LightningModule},
        "transformers": {"Trainer": Trainer, "TrainerCallback": object},
        "skorch": {"NeuralNetClassifier": Classifier},
    }
    for name, things in parts.items():
        module = ModuleType(name)
        vars(module).update(things)
        monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {"__name__": "recipes"}
    for block in BLOCKS:
        exec(compile(block, "recipes.md", "exec"), names)
    return names


def make_network() -> nn.Linear:
    network = nn.Linear(3, 2)
    with torch.no_grad():
        network.weight.copy_(torch.arange(6.0).reshape(2, 3) / 10)
        network.bias.zero_()
    return network


def inputs() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def test_the_page_names_the_versions_that_it_was_run_with() -> None:
    """`make integrations` installs these (tests/integrations/test_frameworks.py)."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    named = re.findall(r"(Lightning|transformers|skorch) ([0-9.]+[0-9])", PAGE.split("## ")[0])
    assert len(named) == 3 and all(
        f"{name.lower()}=={version}" in makefile for name, version in named
    )
    assert len(BLOCKS) == 4


def test_skorch_gets_probabilities(recipes: dict[str, Any]) -> None:
    made = recipes["make_classifier"](make_network(), max_epochs=3)
    logits = make_network()(inputs())
    torch.testing.assert_close(made.nonlinearity(logits), logits.softmax(1))
    p = logits.softmax(1).gather(1, GIVEN[:, None])
    torch.testing.assert_close(made.criterion_(logits, GIVEN), ((1 - p**0.7) / 0.7).mean())
    assert made.given == {"max_epochs": 3}


def test_lightning_takes_a_step_by_the_robust_loss_and_moves_the_average(
    recipes: dict[str, Any],
) -> None:
    module = recipes["Robust"](make_network(), alpha=0.5)
    optimizer = module.configure_optimizers()
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == set(
        map(id, module.network.parameters())
    )
    before = module.network.weight.detach().clone()
    loss = module.training_step((inputs(), GIVEN), 0)
    p = module.network(inputs()).softmax(1).gather(1, GIVEN[:, None])
    torch.testing.assert_close(loss, ((1 - p**0.7) / 0.7).mean())  # curriculum paper, Table 1
    loss.backward()
    optimizer.step()
    module.on_train_batch_end(None, None, 0)
    torch.testing.assert_close(module.average.weight, (before + module.network.weight.detach()) / 2)
    module.validation_step((inputs(), GIVEN), 0)
    assert module.logged == {
        "noisy_accuracy": (module.average(inputs()).argmax(1) == GIVEN).double().mean().item()
    }
    assert "average.weight" in module.state_dict()


def test_accumulated_batches_of_the_trainer_sum_to_the_mean(recipes: dict[str, Any]) -> None:
    trainer = recipes["make_trainer"](make_network(), "arguments", "dataset")
    compute = trainer.given["compute_loss_func"]
    logits = make_network()(inputs())
    whole = compute({"logits": logits}, GIVEN)
    parts = [
        compute({"logits": logits[i]}, GIVEN[i], num_items_in_batch=4)
        for i in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), whole)
    p = logits.softmax(1).gather(1, GIVEN[:, None])
    torch.testing.assert_close(whole, ((1 - p**0.7) / 0.7).mean())


def test_tokens_that_do_not_count_are_left_out(recipes: dict[str, Any]) -> None:
    compute = recipes["make_trainer"](make_network(), "arguments", "dataset").given[
        "compute_loss_func"
    ]
    logits = make_network()(inputs())  # (4, K)
    tokens, labels = (
        torch.stack([logits, logits.flip(0)]),
        torch.tensor([[0, 1, 1, 0], [-100, -100, 1, -100]]),
    )
    p = torch.cat([logits, logits[1:2]]).softmax(1)[range(5), [0, 1, 1, 0, 1]]
    torch.testing.assert_close(compute({"logits": tokens}, labels), ((1 - p**0.7) / 0.7).mean())


def test_the_callback_moves_the_average(recipes: dict[str, Any]) -> None:
    model = make_network()
    average = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        model.weight += 1
    recipes["MomentumModel"](average, alpha=0.75).on_step_end(
        None, None, None, model=model, tokenizer=None
    )
    torch.testing.assert_close(average.weight, model.weight.detach() - 0.75)
