"""The stacked networks of all folds against one plain training loop for each fold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from noiseproof.data import NoisyData
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.judge.evidence.fold_networks import is_foldable, make_members, train_folds
from noiseproof.judge.evidence.network import cross_validate
from noiseproof.losses import CR
from noiseproof.models.classifier import build_classifier
from noiseproof.train import Diverged, Settings, get_method
from noiseproof.train.task import Task

N, K, FOLDS = 70, 3, 3
RATE, DECAY, SEED = 1e-2, 1e-4, 5
SETTINGS = Settings(
    "mlp:hidden=[8]", epochs=3, batch_size=16, optimizer=f"adam:lr={RATE},weight_decay={DECAY}"
)


def rows() -> tuple[NoisyData, Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, N)
    x = (np.eye(K)[y] @ rng.normal(size=(K, 4)) + rng.normal(size=(N, 4))).astype(np.float32)
    data = NoisyData(torch.from_numpy(x), torch.from_numpy(y), ("a", "b", "c"), torch.arange(N))
    return data, torch.from_numpy(rng.integers(0, FOLDS, N))


def trained(method: str, settings: Settings, fold: Tensor, target: Tensor | None = None) -> Any:
    data, _ = rows()
    parts = get_method(method, Task(data), Settings())
    stack = make_members(parts, settings, SEED, data.x, K, int(fold.max()) + 1)
    assert stack is not None
    return train_folds(
        stack,
        parts.loss,
        data,
        data.given if target is None else target,
        fold,
        settings,
        SEED,
        lambda: None,
    )


def reference(data: NoisyData, target: Tensor, fold: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Probabilities (E, N, K) of the network without fold ``number`` before the steps of each
    epoch, and misses.
    """
    assert isinstance(data.x, Tensor)
    net = build_classifier(
        SETTINGS.model,
        "linear",
        input_shape=(4,),
        num_outputs=K,
        generator=derive_generator(SEED, number),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
    probs, missed = torch.zeros(SETTINGS.epochs, N, K), torch.zeros(SETTINGS.epochs, N)
    for epoch in range(SETTINGS.epochs):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * epoch / SETTINGS.epochs)) / 2
        order = shuffled(N, derive_generator(SEED, FOLDS, epoch))
        for step in torch.split(order, round(SETTINGS.batch_size * FOLDS / (FOLDS - 1))):
            with torch.no_grad():
                p = net(data.x[step]).logits.softmax(1)
                probs[epoch, step] = p
                missed[epoch, step] = (p.argmax(1) != data.given[step]).float()
            learned = step[fold[step] != number]
            optimizer.zero_grad()
            F.cross_entropy(net(data.x[learned]).logits, target[learned]).backward()
            optimizer.step()
    return probs, missed


@pytest.mark.parametrize("soft", [False, True])
def test_members_train_as_networks_of_their_own(soft: bool) -> None:
    data, fold = rows()
    target = (
        torch.rand(N, K, generator=torch.Generator().manual_seed(1)).softmax(1)
        if soft
        else data.given
    )
    averages = trained("ce", SETTINGS, fold, target)
    each, missed = zip(
        *(reference(data, target, fold, number) for number in range(FOLDS)), strict=True
    )
    probs, place = torch.stack(each), torch.arange(N)  # (F, E, N, K)
    # (N, E, K); an untrained network's predictions do not count
    out_of_fold = probs[fold, :, place]
    torch.testing.assert_close(averages.probs, out_of_fold[:, 1:].mean(1), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(averages.missed, torch.stack(missed)[fold, :, place][:, 1:].mean(1))
    others = (probs.mean(1).sum(0) - out_of_fold.mean(1)) / (FOLDS - 1)
    torch.testing.assert_close(averages.dynamics, others, rtol=1e-3, atol=1e-5)
    assert not averages.doubt.any()


def test_one_network_on_all_rows() -> None:
    averages = trained("ln", SETTINGS, torch.full((N,), -1))
    torch.testing.assert_close(averages.probs, averages.dynamics)
    torch.testing.assert_close(averages.probs.sum(1), torch.ones(N))
    assert 0 < float(averages.doubt.min()) and float(averages.doubt.max()) < 1


def test_the_weights_of_a_step_do_not_depend_on_the_rows_left_out() -> None:
    data, fold = rows()
    other = torch.where(fold == 1, (data.given + 1) % K, data.given)
    one, two = (trained("ln", SETTINGS, fold, target) for target in (data.given, other))
    assert torch.equal(one.probs[fold == 1], two.probs[fold == 1])
    assert not torch.equal(one.probs[fold == 0], two.probs[fold == 0])


def test_methods_and_models_that_need_runs_of_their_own() -> None:
    data, fold = rows()
    needed = ("ce & sln", "co-teaching", "cr", "cr:warmup=0", "cr:prior=none,warmup=none", "peer")
    for method, foldable in [
        *((name, True) for name in ("ce", "ln", "gce")),
        *((name, False) for name in needed),
    ]:
        assert is_foldable(get_method(method, Task(data), Settings())) == foldable, method
    images = torch.zeros(4, 1, 8, 8)
    settings = Settings("resnet32", epochs=1, batch_size=2, optimizer="adam")
    # batch statistics
    parts = get_method("ce", Task(data), settings)
    assert make_members(parts, settings, SEED, images, K, 2) is None
    assert isinstance(data.x, Tensor)
    evidence = cross_validate(
        data.x, data.given, K, fold, method="ce & sln", model="mlp:hidden=[8]", epochs=2
    )
    np.testing.assert_allclose(evidence.pred_probs.sum(1), 1, atol=1e-4)
    assert evidence.dynamics is not None and evidence.dynamics.shape == (N, K)


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    _, fold = rows()
    with pytest.raises(Diverged, match="not finite in epoch 1"):
        trained("ce", replace(SETTINGS, optimizer="adam:lr=1e38"), fold)


def test_a_loss_of_shares_gets_those_of_the_labels_that_a_fold_trains_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labels of rows that are left out must not reach the network that predicts them."""
    data, fold = rows()
    assert isinstance(data.x, Tensor)
    got: list[Tensor] = []
    plain = CR.set_shares
    monkeypatch.setattr(
        CR, "set_shares", lambda loss, shares, total=None: (got.append(shares), plain(loss, shares))
    )
    cross_validate(data.x, data.given, K, fold, method="cr", model="mlp:hidden=[8]", epochs=2)
    kept = [data.given[fold != one] for one in range(FOLDS)]
    expected = torch.stack(
        [torch.stack([(labels == k).double().mean() for k in range(K)]) for labels in kept]
    )
    torch.testing.assert_close(torch.stack(got[:FOLDS]), expected)
