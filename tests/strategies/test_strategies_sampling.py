"""Epochs that see as many rows of each given class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noiseproof.data import get_dataset
from noiseproof.data.base import ClassBalanced
from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Strategy, get_strategy
from noiseproof.train import Method, Settings, prepare, train


class Seen(Strategy):
    """Collects the labels of every epoch."""

    def __init__(self) -> None:
        self.labels: dict[int, list[Tensor]] = {}
        self.order: dict[int, list[Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Seen:
        return self

    def targets(self, batch: Batch, run: Run) -> Batch:
        self.labels.setdefault(run.epoch, []).append(batch.given)
        self.order.setdefault(run.epoch, []).append(batch.rows)
        return batch


@pytest.mark.parametrize(
    "spec, per_class", [("class-balanced:per_class=90", 90), ("class-balanced:total=700", 70)]
)
def test_every_class_comes_equally_often_and_epochs_differ(spec: str, per_class: int) -> None:
    task = prepare(get_dataset("digits"), "asymmetric-mnist:rate=0.4")
    seen = Seen()
    train(
        task,
        Method(get_loss("ce"), strategies=(get_strategy(spec), seen)),
        Settings(epochs=2, model="mlp:hidden=[8]"),
    )
    for labels in seen.labels.values():
        assert torch.bincount(torch.cat(labels)).tolist() == [per_class] * 10
    first, second = (torch.cat(seen.order[epoch]) for epoch in (0, 1))
    assert not torch.equal(first, second)
    given = task.train.given
    few = int(torch.bincount(given).min())
    assert per_class > few or all(
        torch.bincount(first, minlength=len(given)).tolist()[i] <= 1 for i in range(len(given))
    )


def test_one_of_the_two_must_be_said() -> None:
    task = prepare(get_dataset("digits"))
    with pytest.raises(ValueError, match="either `per_class` or `total`"):
        train(
            task,
            Method(get_loss("ce"), strategies=(get_strategy("class-balanced"),)),
            Settings(epochs=1),
        )


def test_divided_rows_are_not_drawn_anew() -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    settings = Settings(epochs=3, batch_size=50, model="mlp:hidden=[8]")
    with pytest.raises(
        ValueError, match="Expected class-balanced before `dividemix:.*Name it first"
    ):
        train(task, "dividemix & class-balanced:per_class=20", settings)
    seen: list[tuple[int, Tensor]] = []

    class Rows(Strategy):
        def rows(self, rows: Tensor, run: Run) -> Tensor:
            seen.append((run.epoch, rows.unique()))
            return rows

    parts = get_strategy("class-balanced:per_class=20"), get_strategy("dividemix:warmup=1"), Rows()
    result = train(task, Method(get_loss("ce"), strategies=parts), settings)
    drawn = ClassBalanced(
        task.train.given, per_class=20, seed=result.run.random.seed_for("class-balanced")
    )
    for epoch, rows in seen:  # labelled and unlabelled, of those that were drawn
        assert set(rows.tolist()) <= set(drawn.draw(epoch).tolist()) and len(rows) > 50
    assert [epoch for epoch, _ in seen] == [0, 1, 2]
