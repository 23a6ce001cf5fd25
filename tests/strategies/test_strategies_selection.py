"""Selection of samples against references typed from the papers and their code, and resumed runs
bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import handmade_run
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.data import get_dataset
from noiseproof.losses import Loss, get_loss
from noiseproof.strategies import Batch, Run, Strategy, get_strategy
from noiseproof.strategies.selection import CoTeaching, Prune, Sigua, SiguaBackward, SmallLoss
from noiseproof.train import Method, Result, Settings, Task, prepare, train

K = 10
make_run = partial(handmade_run.make_run, models=0)
PAIRS = 0.7 * np.eye(K) + 0.3 * np.roll(np.eye(K), 1, 1)  # T of pair noise
SETTINGS = Settings(epochs=3, model="mlp:hidden=[16]", batch_size=300, optimizer="adam:lr=0.01")


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)


def make_step(rows: int, seed: int = 0) -> tuple[Batch, np.ndarray]:
    """A step of one process, and logits (2, B, K) of two models."""
    random = np.random.default_rng(seed)
    given = torch.from_numpy(random.integers(0, K, rows))
    index = torch.from_numpy(random.permutation(1000)[:rows])
    batch = Batch(torch.empty(rows, 0), given, given, index, index, count=rows)
    return batch, random.normal(0, 3, (2, rows, K))


def gradients(strategy: Strategy, logits: np.ndarray, batch: Batch, run: Run) -> np.ndarray:
    """∂L/∂z (M, B, K) of what the loop makes of a strategy's weights."""
    z = [torch.tensor(one, requires_grad=True) for one in logits]
    outs = [Output(one) for one in z]
    losses = torch.stack([run.loss(out, batch.target) for out in outs])
    weights = strategy.weights(losses.detach(), outs, batch, run)
    run.backward(losses if weights is None else losses * weights, batch)
    return np.stack([one.grad.numpy() for one in z])  # type: ignore[union-attr]


def cross_entropies(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """−log p_y of each row, and its derivative p − onehot."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[np.arange(len(y)), y]), p - np.eye(K)[y]


# --- How many are kept ---------------------------------------------------------------------------
def test_share_forgotten() -> None:
    ramp = [SmallLoss(forget=0.4, ramp=5).forgotten(epoch) for epoch in range(8)]
    assert ramp == pytest.approx([0, 0.08, 0.16, 0.24, 0.32, 0.4, 0.4, 0.4])
    assert [SmallLoss(forget=0.4, ramp=0).forgotten(epoch) for epoch in (0, 1)] == [0.4, 0.4]


@pytest.mark.parametrize(
    "rows, forget, kept", [(128, 0.4, 76), (7, 0.5, 3), (10, 0.0, 10), (3, 0.9, 1), (1, 0.5, 1)]
)
def test_number_kept(task: Task, rows: int, forget: float, kept: int) -> None:
    """int((1 − forget)·B); one where that is none."""
    batch, _ = make_step(rows)
    losses = torch.rand(1, rows, dtype=torch.float64)
    weights = SmallLoss(forget, ramp=0).weights(losses, [], batch, make_run(task))
    assert weights is not None and int((weights > 0).sum()) == kept


@pytest.mark.parametrize("make", [SmallLoss, CoTeaching, Sigua])
def test_start_moves_the_ramp(task: Task, make: Any) -> None:
    batch, _ = make_step(100)
    losses = torch.rand(2, 100, generator=torch.Generator().manual_seed(0))
    found = [
        make(0.5, ramp=5, start=3).weights(losses, [], batch, make_run(task, epoch=epoch))
        for epoch in range(10)
    ]
    assert found[:3] == [None] * 3
    assert [int((weights > 0).sum(1)[0]) for weights in found[3:]] == [100, 90, 80, 70, 60, 50, 50]


# --- Which are kept ------------------------------------------------------------------------------
@pytest.mark.parametrize("rows, epoch", [(64, 0), (64, 3), (101, 50), (2, 50)])
def test_small_loss_is_the_mean_over_the_smallest(task: Task, rows: int, epoch: int) -> None:
    batch, logits = make_step(rows, epoch)
    run = make_run(task, epoch=epoch)
    y = batch.given.numpy()
    want = np.zeros_like(logits)
    for m in range(2):  # each model by itself
        losses, slopes = cross_entropies(logits[m], y)
        small = np.argsort(losses, kind="stable")[
            : max(1, int((1 - 0.45 * min(epoch / 10, 1)) * rows))
        ]
        want[m, small] = slopes[small] / len(small)
    np.testing.assert_allclose(
        gradients(SmallLoss(forget=0.45), logits, batch, run), want, atol=1e-14
    )


@pytest.mark.parametrize("make, kept", [(SmallLoss, 28), (CoTeaching, 28), (Sigua, 28)])
def test_noise_on_targets_does_not_decide_what_is_selected(
    task: Task, make: Any, kept: int
) -> None:
    """Targets with noise have losses of either sign; the rows of smallest −log p of the given label
    are kept.
    """
    batch, logits = make_step(40)
    noise = torch.from_numpy(np.random.default_rng(5).normal(0, 1, (40, K)))
    noisy = batch.with_target(F.one_hot(batch.given, K) + noise)
    run, outs = make_run(task), [Output(torch.tensor(one)) for one in logits]
    losses = torch.stack([run.loss(out, noisy.target) for out in outs])
    weights = make(0.3, ramp=0).weights(losses, outs, noisy, run).numpy()
    assert float(losses.min()) < 0
    for m, chosen in enumerate(weights[::-1] if make is CoTeaching else weights):
        smallest = np.argsort(cross_entropies(logits[m], batch.given.numpy())[0])[:kept]
        np.testing.assert_array_equal(np.flatnonzero(chosen > 0), np.sort(smallest))


def test_sigua_by_backward_correction_judges_the_given_label(task: Task) -> None:
    batch, logits = make_step(60)
    run = make_run(task, get_loss("backward", T=torch.from_numpy(PAIRS)))
    outs = [Output(torch.tensor(logits[0]))]
    noisy = batch.with_target(
        F.one_hot(batch.given, K) + torch.from_numpy(np.random.default_rng(2).normal(0, 1, (60, K)))
    )
    losses = run.loss(outs[0], noisy.target)[None]
    nll = -np.log(np.exp(logits[0]) / np.exp(logits[0]).sum(1, keepdims=True))
    corrected = (np.linalg.inv(PAIRS)[batch.given.numpy()] * nll).sum(1)
    weights = SiguaBackward(scale=0.1).weights(losses, outs, noisy, run)
    np.testing.assert_allclose(weights[0].numpy(), np.where(corrected < 0, -0.1, 1.0))


def test_rows_are_ranked_within_their_class_beside_noise(task: Task) -> None:
    """A class whose losses are all larger keeps the share of rows that the others keep."""
    batch, logits = make_step(400)
    logits[:, :, 3] -= 50
    run, outs = make_run(task), [Output(torch.tensor(logits[0]))]
    losses, strategy = run.loss(outs[0], batch.given)[None], SmallLoss(0.4, ramp=0)
    of_class = batch.given.numpy() == 3

    def kept() -> np.ndarray:
        return strategy.weights(losses, outs, batch, run).numpy()[0] > 0  # type: ignore[union-attr]

    assert not kept()[of_class].any()
    run.strategies = [get_strategy("sln:sigma=0.1,until=1")]
    chosen, y, nll = kept(), batch.given.numpy(), losses[0].numpy()
    assert chosen.sum() == 240
    for k in range(K):
        rows = np.flatnonzero(y == k)
        smallest = rows[np.argsort(nll[rows], kind="stable")]
        assert abs(chosen[rows].sum() - 0.6 * len(rows)) <= 1
        np.testing.assert_array_equal(np.sort(smallest[: chosen[rows].sum()]), rows[chosen[rows]])
    run.epoch = 1  # the noise has ended
    assert not kept()[of_class].any()


@pytest.mark.parametrize("rows, epoch", [(64, 0), (128, 4), (33, 30)])
def test_co_teaching_exchanges_selections(task: Task, rows: int, epoch: int) -> None:
    """Each model's gradient is that of its mean loss over the rows of the other's smallest
    losses.
    """
    batch, logits = make_step(rows, epoch)
    strategy = CoTeaching(forget=0.2)
    kept = int((1 - 0.2 * min(epoch / 10, 1)) * rows)
    z = [torch.tensor(one, requires_grad=True) for one in logits]
    each = [F.cross_entropy(one, batch.given, reduction="none") for one in z]
    first, second = (
        torch.from_numpy(np.argsort(one.detach().numpy())[:kept].copy()) for one in each
    )
    losses = each[0][second].mean(), each[1][first].mean()
    for one in losses:
        one.backward()
    want = np.stack([one.grad.numpy() for one in z])  # type: ignore[union-attr]
    found = gradients(strategy, logits, batch, make_run(task, epoch=epoch))
    np.testing.assert_allclose(found, want, atol=1e-14)


@pytest.mark.parametrize(
    "rows, forget, rate, ascended",
    [(100, 0.4, 0.3, 12), (100, 0.4, 1.0, 40), (10, 0.4, 0.0, 1), (9, 0.2, 0.6, 1)],
)
def test_sigua_descends_on_small_and_ascends_on_the_next(
    task: Task, rows: int, forget: float, rate: float, ascended: int
) -> None:
    batch, logits = make_step(rows, 3)
    losses, slopes = cross_entropies(logits[0], batch.given.numpy())
    order = np.argsort(losses)
    kept = int((1 - forget) * rows)
    small, bad = order[:kept], order[kept : kept + ascended]
    want = np.zeros_like(slopes)
    want[small] = slopes[small] / kept
    want[bad] = -0.02 * slopes[bad] / ascended
    strategy = Sigua(forget, ramp=0, rate=rate, scale=0.02)
    np.testing.assert_allclose(
        gradients(strategy, logits[:1], batch, make_run(task))[0], want, atol=1e-14
    )


def test_sigua_pushes_nothing_away_where_nothing_is_left_out(task: Task) -> None:
    batch, logits = make_step(16)
    _, slopes = cross_entropies(logits[0], batch.given.numpy())
    found = gradients(Sigua(forget=0.4, ramp=10), logits[:1], batch, make_run(task, epoch=0))[0]
    np.testing.assert_allclose(found, slopes / 16, atol=1e-15)


def test_sigua_with_backward_correction(task: Task) -> None:
    batch, logits = make_step(200)
    y = batch.given.numpy()
    log_p = logits[0] - np.log(np.exp(logits[0]).sum(1, keepdims=True))
    pulled = np.eye(K)[y] @ np.linalg.inv(PAIRS)
    corrected = -(pulled * log_p).sum(1)
    slopes = pulled.sum(1, keepdims=True) * np.exp(log_p) - pulled
    assert 20 < (corrected < 0).sum() < 180
    loss = get_loss("backward", T=PAIRS)
    for epoch, gamma in ((1, -1.0), (2, 0.05)):  # plain before the warm-up's end
        want = np.where(corrected < 0, -gamma, 1)[:, None] * slopes / 200
        run = make_run(task, loss, epoch=epoch)
        found = gradients(SiguaBackward(scale=0.05, warmup=2), logits[:1], batch, run)[0]
        np.testing.assert_allclose(found, want, atol=1e-13)


def test_equal_losses_are_taken_in_their_order(task: Task) -> None:
    batch, _ = make_step(8)
    weights = SmallLoss(forget=0.5, ramp=0).weights(torch.ones(1, 8), [], batch, make_run(task))
    assert weights.tolist() == [[2, 2, 2, 2, 0, 0, 0, 0]]


@pytest.mark.parametrize("rows", [64, 63])
@pytest.mark.parametrize(
    "strategy",
    [SmallLoss(0.4, 0), CoTeaching(0.4, 0), Sigua(0.4, 0)],
    ids=str,
)
def test_two_processes_select_what_one_does(task: Task, strategy: Strategy, rows: int) -> None:
    """Rows are ranked over all processes: each one's part of the weights is that of a single
    process.
    """
    batch, logits = make_step(rows)
    outs = [Output(torch.from_numpy(one)) for one in logits]
    run = make_run(task)
    losses = torch.stack([run.loss(out, batch.given) for out in outs])
    alone = strategy.weights(losses, outs, batch, run)
    assert alone is not None

    # What all processes send, made from the whole batch.
    whole = losses.T  # (B, 2)
    sent: list[Tensor] = []
    run.processes.world_size = 2
    run.processes.gather = lambda values, batch: sent.append(values) or whole  # type: ignore[method-assign, func-returns-value]
    # of 63 rows: the last place of the second process only fills up
    places = torch.arange(64).reshape(2, 32) % rows
    parts = []
    for run.processes.rank, place in enumerate(places):
        given = batch.given[place]
        own = replace(batch, x=batch.x[place], target=given, given=given, rows=batch.rows[place])
        parts.append(
            strategy.weights(losses[:, place], [Output(o.logits[place]) for o in outs], own, run)
        )
    torch.testing.assert_close(torch.cat(sent)[:rows], whole)
    assert torch.equal(torch.cat(parts, 1)[:, :rows], alone)  # type: ignore[arg-type]


# --- Pruning -------------------------------------------------------------------------------------
def predicted(run: Run) -> np.ndarray:
    """p_y of each row of the training set under each model, (N, M)."""
    x = run.prepare(torch.as_tensor(run.data.x), run.normalise)
    with torch.no_grad():
        probs = np.stack([model.plain(x).logits.softmax(1).numpy() for model in run.models], 2)
    return probs[np.arange(run.num_rows), run.data.given.numpy()]


@pytest.mark.parametrize("models", [1, 2])
def test_prune_keeps_what_reaches_k(task: Task, models: int) -> None:
    run = make_run(task, "gce", models=models)
    strategy = Prune(start=2, every=3, k=0.1, spare=False)
    strategy.setup(run)
    p = predicted(run)
    want = p >= 0.1
    assert 0.1 < want.mean() < 0.9
    q = 0.7
    # the loss at most its value at p = k
    np.testing.assert_array_equal(want, (1 - p**q) / q <= (1 - 0.1**q) / q)
    batch, _ = make_step(40)
    losses = torch.ones(models, 40, dtype=torch.float64)
    for run.epoch in range(2):
        strategy.start_epoch(run)
        assert strategy.weights(losses, [], batch, run).all()
    run.epoch = 2
    strategy.start_epoch(run)
    weights = strategy.weights(losses, [], batch, run)
    np.testing.assert_array_equal(weights, want[batch.rows].T)  # neither scaled nor averaged anew


def test_prune_is_refreshed_every_few_epochs(task: Task) -> None:
    run = make_run(task, models=1)
    strategy = Prune(start=2, every=3, k=0.1)
    strategy.setup(run)
    looked = []
    for run.epoch in range(10):
        strategy.keep.fill_(False)
        strategy.start_epoch(run)
        looked.append(bool(strategy.keep.any()))
    assert [epoch for epoch in range(10) if looked[epoch]] == [2, 5, 8]


@pytest.mark.parametrize(
    ("lasts", "pruned"), [(None, [2, 3, 4, 5, 6, 7, 8, 9]), (1, [2, 5, 8]), (2, [2, 3, 5, 6, 8, 9])]
)
def test_prune_for_as_long_as_a_decision_lasts(
    task: Task, lasts: int | None, pruned: list[int]
) -> None:
    run = make_run(task, models=1)
    strategy = Prune(start=2, every=3, k=0.1, lasts=lasts, spare=False)
    strategy.setup(run)
    want = predicted(run) >= 0.1
    for run.epoch in range(10):
        strategy.start_epoch(run)
        np.testing.assert_array_equal(
            strategy.keep, want if run.epoch in pruned else np.ones_like(want)
        )


@pytest.mark.parametrize("models", [1, 2])
def test_prune_spares_a_class_of_which_no_sample_reaches_k(task: Task, models: int) -> None:
    run = make_run(task, models=models)
    strategy = Prune(start=0, k=0.1)
    strategy.setup(run)
    strategy.start_epoch(run)
    want = predicted(run) >= 0.1
    spared = 0
    for rows in (np.flatnonzero(run.data.given.numpy() == k) for k in range(10)):
        for m in range(models):
            if not want[rows, m].any():
                want[rows, m] = True
                spared += 1
    assert spared
    np.testing.assert_array_equal(strategy.keep, want)


def test_prune_nothing_where_no_sample_reaches_k(task: Task) -> None:
    run = make_run(task, models=1)
    strategy = Prune(start=0, k=0.99)
    strategy.setup(run)
    strategy.start_epoch(run)
    assert strategy.keep.all() and strategy.keep.shape == (run.num_rows, 1)


# --- In the loop ---------------------------------------------------------------------------------
EVERY: list[tuple[Any, Strategy]] = [
    ("ce", SmallLoss(forget=0.4, ramp=2)),
    ("ce", CoTeaching(forget=0.4, ramp=2)),
    ("ce", Sigua(forget=0.4, ramp=1, start=1)),
    (get_loss("backward", T=PAIRS), SiguaBackward(warmup=1)),
    ("gce", Prune(start=1, every=1, k=0.2)),
    ("gce", Prune(start=0, every=2, k=0.2, lasts=1)),
]


def fit(task: Task, loss: str | Loss, *strategies: Strategy, **options: Any) -> Result:
    loss = get_loss(loss) if isinstance(loss, str) else loss
    method = Method(loss, strategies=strategies)
    return train(task, method, SETTINGS, fabric=Fabric(accelerator="cpu", devices=1), **options)


# --- Refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SmallLoss(1.0), r"`forget` in \[0, 1\), got 1.0"),
        (lambda: SmallLoss(0.4, ramp=-1), "`ramp` to be an integer of at least 0"),
        (lambda: Sigua(0.4, rate=2), "`rate`"),
        (lambda: Sigua(0.4, scale=-1), "`scale`"),
        (lambda: SiguaBackward(scale=-1), "`scale`"),
        (lambda: Prune(0, k=1), "`k`"),
        (lambda: Prune(0, every=0), "`every`"),
    ],
)
def test_wrong_numbers_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["small-loss", "co-teaching", "sigua"])
def test_the_share_to_forget_must_be_said(name: str) -> None:
    with pytest.raises(
        TypeError, match="'forget' is missing. Write .*:forget=0.2 for 20 % wrong labels"
    ):
        get_strategy(name)
