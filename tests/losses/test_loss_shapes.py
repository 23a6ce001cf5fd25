"""Logits (B, K, …) and labels of other integer types, as torch.nn.CrossEntropyLoss takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_loss_contract import CASES, Case
from torch import nn

import noiseproof.losses
from noiseproof.losses import CE, GCE, LOSSES

K = 5
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"weight": torch.arange(1.0, K + 1)},
    {"ignore_index": 2},
    {"weight": torch.arange(1.0, K + 1), "ignore_index": 2, "reduction": "none"},
]


def draw(*places: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, K, *places, generator=generator, dtype=torch.float64)
    return logits, torch.randint(K, (3, *places), generator=generator)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("places", [(), (4,), (2, 3), (2, 1, 3)], ids=str)
def test_places_are_rows_as_in_torch(places: tuple[int, ...], options: dict[str, Any]) -> None:
    options = {
        name: value.double() if name == "weight" else value for name, value in options.items()
    }
    logits, labels = draw(*places)
    torch.testing.assert_close(
        CE(**options)(logits, labels), nn.CrossEntropyLoss(**options)(logits, labels)
    )
    if "ignore_index" not in options:
        soft = torch.rand(
            logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype
        )
        ours, theirs = CE(**options)(logits, soft), nn.CrossEntropyLoss(**options)(logits, soft)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("case", [case for case in CASES if case.make().independent_rows], ids=repr)
def test_places_are_rows_of_every_loss(case: Case) -> None:
    loss = case.make()
    logits, labels = draw(2, 3)
    if loss.needs != {"logits"} or loss.multilabel:
        with pytest.raises(
            ValueError, match=r"for `.*`, which (needs|has several) .*, got \(3, 5, 2, 3\)"
        ):
            loss(logits, labels)
        return
    flat = logits.movedim(1, -1).reshape(-1, K)
    torch.testing.assert_close(loss(logits, labels), loss(flat, labels.flatten()))


def test_weights_of_places() -> None:
    logits, labels = draw(4)
    weight = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = (GCE(reduction="none")(logits, labels) * weight).mean()
    torch.testing.assert_close(GCE()(logits, labels, weight), expected)
    with pytest.raises(ValueError, match=r"need a `sample_weight` of shape \(3, 4\), got \(3,\)"):
        GCE()(logits, labels, weight[:, 0])
    with pytest.raises(
        ValueError, match=r"need a target of shape \(3, 4\) or \(3, 5, 4\), got \(3, 5\)"
    ):
        GCE()(logits, torch.zeros(3, K))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_labels_of_other_integer_types(dtype: torch.dtype) -> None:
    logits, labels = draw()
    assert GCE()(logits, labels.to(dtype)) == GCE()(logits, labels)
    assert GCE()(logits[0], labels[0].to(dtype)) == GCE()(logits[0], labels[0])


def test_every_loss_is_a_class_of_the_package() -> None:
    public = {
        cls
        for name in noiseproof.losses.__all__
        if isinstance(cls := getattr(noiseproof.losses, name), type)
    }
    assert {LOSSES[name] for name in LOSSES} - {LOSSES["tau-shift"], LOSSES["tau-scale"]} <= public
