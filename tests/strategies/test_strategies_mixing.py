"""Mixup and DivideMix against references typed from the papers, scikit-learn's mixture, and resumed
runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import handmade_run
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from handmade_run import make_batch
from scipy import stats
from torch import Tensor

from noiseproof.data import get_dataset
from noiseproof.data.augment import Compose, PadCrop
from noiseproof.data.base import NoisyData, Split
from noiseproof.losses import get_loss
from noiseproof.strategies import STRATEGIES, Run, mixing
from noiseproof.strategies.averages import TrainingAverages
from noiseproof.strategies.mixing import (
    DivideMix,
    Mixup,
    Undivided,
    clean_posterior,
    draw_mix,
    predicted_by_all,
    ramped,
    second_view,
    sharpen,
)
from noiseproof.train import Interrupted, Method, Settings, Task, prepare, train
from noiseproof.train.step import forward_backward

K = 10
# predictions that differ from uniform
make_run = partial(handmade_run.make_run, models=2, weight_scale=2)
SETTINGS = Settings(epochs=3, model="mlp:hidden=[16]", batch_size=300, optimizer="adam:lr=0.01")


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4")


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


# The Gaussian mixture


def lumps(seed: int, n: int, noisy: float) -> np.ndarray:
    """Losses as networks have them after a warm-up: a skewed lump near zero, a broad one above."""
    random = np.random.default_rng(seed)
    wrong = random.random(n) < noisy
    loss = np.where(wrong, random.gamma(9, 0.35, n), random.gamma(1.2, 0.3, n))
    return np.asarray((loss - loss.min()) / (loss.max() - loss.min()))


def test_posterior_separates_what_generated_the_losses() -> None:
    random = np.random.default_rng(0)
    losses = np.concatenate([random.normal(0.2, 0.05, 6000), random.normal(0.7, 0.1, 4000)])
    found = clean_posterior(torch.from_numpy(losses)).numpy() > 0.5
    low, high = 0.6 * stats.norm.pdf(losses, 0.2, 0.05), 0.4 * stats.norm.pdf(losses, 0.7, 0.1)
    assert (found == (low > high)).mean() > 0.995


def test_posterior_of_few_losses() -> None:
    assert clean_posterior(torch.tensor([0.0, 1.0])).round().tolist() == [1, 0]
    # Ties at both ends leave no cut inside them.
    assert clean_posterior(torch.tensor([0.0] * 50 + [1.0])).round().tolist() == [1] * 50 + [0]
    assert clean_posterior(torch.tensor([1.0] * 50 + [0.0])).round().tolist() == [0] * 50 + [1]


# Mixing


def test_sharpening() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(K), 20)
    p[0] = np.eye(K)[3]
    power = p**2
    found = sharpen(torch.from_numpy(p))
    np.testing.assert_allclose(found.numpy(), power / power.sum(1, keepdims=True), rtol=1e-12)
    assert torch.equal(found[0], torch.eye(K, dtype=torch.float64)[3])


@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_lambda_is_the_larger_part_of_a_beta_variable(task: Task, alpha: float) -> None:
    run, drawn = make_run(task, models=0), []
    for run.step in range(2000):
        lam, partner = draw_mix("test", alpha, 5, run)
        drawn.append(lam)
        assert sorted(partner.tolist()) == list(range(5))
    larger = stats.beta(alpha, alpha)
    assert stats.kstest(drawn, lambda x: np.clip(2 * larger.cdf(x) - 1, 0, 1)).pvalue > 0.01
    assert draw_mix("test", alpha, 5, run)[0] == drawn[-1] != draw_mix("other", alpha, 5, run)[0]


def test_mixup_mixes_inputs_and_targets_alike(task: Task) -> None:
    run, strategy = make_run(task, models=0), Mixup(alpha=1.0)
    seen = []
    for run.step in range(3):
        batch = make_batch(run, torch.arange(32))
        mixed = strategy.targets(batch, run)
        lam, partner = draw_mix("mixup", 1.0, 32, run)
        x, y = batch.x.numpy(), np.eye(K)[batch.given.numpy()]
        other = partner.numpy()
        np.testing.assert_allclose(mixed.x.numpy(), lam * x + (1 - lam) * x[other], atol=1e-12)
        np.testing.assert_allclose(mixed.target.numpy(), lam * y + (1 - lam) * y[other], atol=1e-12)
        # Each model's own target keeps its place.
        both = replace(batch, target=torch.stack([torch.from_numpy(y), torch.from_numpy(1 - y)]))
        target = strategy.targets(both, run).target
        np.testing.assert_allclose(
            target[1].numpy(), lam * (1 - y) + (1 - lam) * (1 - y)[other], atol=1e-12
        )
        seen.append(lam)
    assert len(set(seen)) == 3


# DivideMix


def divided(run: Run, seed: int = 0, **options: Any) -> DivideMix:
    """DivideMix in its first epoch after one of warm-up, with a division of its own."""
    strategy = DivideMix(warmup=1, **options)
    random = torch.Generator().manual_seed(seed)
    strategy.trust = [
        torch.rand(run.num_rows, generator=random, dtype=torch.float64) for _ in range(2)
    ]
    run.epoch = 1
    return strategy


def test_each_network_is_divided_by_the_other(task: Task) -> None:
    run, strategy = make_run(task), DivideMix(warmup=0)
    strategy.start_epoch(run)
    x = run.fetch(run.data.x, torch.arange(run.num_rows), run.normalise)
    for m in range(2):
        with torch.no_grad():
            losses = F.cross_entropy(
                run.models[m].plain(x).logits, run.data.given, reduction="none"
            ).numpy()
        scaled = (losses - losses.min()) / (losses.max() - losses.min())
        found = strategy.trust[1 - m]
        assert found is not None
        expected = clean_posterior(torch.from_numpy(scaled))
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-7)
        assert 0 < int((found > 0.5).sum()) < run.num_rows


def test_labels_that_both_networks_predict_are_trusted_where_asked(task: Task) -> None:
    """Of losses of 0.1 and 0.9 the mixture trusts the first; of the others, those rows that are
    said to be trusted.
    """
    run, strategy = make_run(task), DivideMix(warmup=0, agreed=True)
    x = run.fetch(run.data.x, torch.arange(run.num_rows), run.normalise)
    with torch.no_grad():
        said = torch.stack([model.plain(x).logits.argmax(1) for model in run.models])
    both = (said == run.data.given).all(0)
    assert 0 < int(both.sum()) < int((said == run.data.given).any(0).sum()) < run.num_rows
    assert torch.equal(predicted_by_all(run), both)
    losses = torch.tensor([0.1, 0.1, 0.9, 0.9]).repeat(run.num_rows // 4 + 1)[: run.num_rows]
    strategy._divide(0, losses, run, torch.arange(run.num_rows) % 2 == 0)
    assert strategy.trust[1] is not None and strategy.trust[1][:4].round().tolist() == [1, 1, 1, 0]
    strategy.start_epoch(run)
    plain = DivideMix(warmup=0)
    plain.start_epoch(run)
    for found, posterior in zip(strategy.trust, plain.trust, strict=True):
        assert found is not None and posterior is not None
        assert torch.equal(found, torch.where(both, 1.0, posterior))


def test_scaled_losses_are_divided(task: Task) -> None:
    run, strategy = make_run(task), DivideMix(warmup=0)
    losses = torch.from_numpy(lumps(0, run.num_rows, 0.5))
    strategy._divide(0, 3 * losses + 1, run)
    found = strategy.trust[1]
    assert found is not None and strategy.trust[0] is None
    torch.testing.assert_close(found, clean_posterior(losses))


@pytest.mark.parametrize("batch_size", [64, 33, 2])
def test_an_epoch_has_all_labelled_rows_of_both_networks(task: Task, batch_size: int) -> None:
    run = make_run(task)
    run.batch_size = batch_size
    strategy, order = (
        divided(run),
        torch.randperm(run.num_rows, generator=torch.Generator().manual_seed(3)),
    )
    batches = list(torch.split(strategy.rows(order, run), batch_size))
    assert {len(batch) for batch in batches} == {batch_size}  # no step has rows of both networks
    assert torch.equal(torch.cat(batches), strategy.rows(order, run))
    for trust in strategy.trust:
        assert trust is not None
        labelled = set((trust > 0.5).nonzero()[:, 0].tolist())
        own = [batches.pop(0).tolist() for _ in range(-(-2 * len(labelled) // batch_size))]
        counts = [sum(row in labelled for row in batch) for batch in own]
        assert set(counts) <= {batch_size // 2, (batch_size + 1) // 2}
        assert labelled <= {row for batch in own for row in batch}
        taken = [row for batch in own for row in batch if row in labelled]
        # only what fills the last step up comes twice
        assert len(taken) - len(labelled) < batch_size
        rest = [row for batch in own for row in batch if row not in labelled]
        assert max(np.unique(rest, return_counts=True)[1]) <= -(
            -len(rest) // (run.num_rows - len(labelled))
        )
    assert not batches


def test_without_unlabelled_rows_the_labelled_fill_the_steps(task: Task) -> None:
    run = make_run(task)
    strategy = divided(run)
    strategy.trust = [torch.ones(run.num_rows, dtype=torch.float64) for _ in range(2)]
    rows = strategy.rows(torch.arange(run.num_rows), run)
    assert len(rows) == 2 * 64 * -(-run.num_rows // 64)
    assert set(rows[: len(rows) // 2].tolist()) == set(range(run.num_rows))
    losses = _step(strategy, run, rows[:64]).losses
    assert torch.isfinite(losses).all()
    assert all(
        torch.isfinite(p.grad).all() for p in run.models[0].plain.parameters() if p.grad is not None
    )


def _step(strategy: DivideMix, run: Run, rows: Tensor) -> Any:
    for model in run.models:
        model.optimizer.zero_grad()
    step = strategy.step(make_batch(run, rows), run)
    assert step is not None and step.outs == []
    return step


def reference_loss(run: Run, m: int, rows: Tensor, trust: np.ndarray, weight: float) -> Tensor:
    """Algorithm 1 and Eqs. 3-12 of DivideMix for a step without augmentation: both views are the
    same.
    """
    own, other = run.models[m].plain, run.models[1 - m].plain
    x = make_batch(run, rows).x
    with torch.no_grad():
        p, q = softmax(own(x).logits.numpy()), softmax(other(x).logits.numpy())
    w = trust[rows.numpy()][:, None]
    y = np.eye(K)[run.data.given[rows].numpy()]
    target = np.where(w > 0.5, w * y + (1 - w) * p, (p + q) / 2) ** 2
    target /= target.sum(1, keepdims=True)
    lam, partner = draw_mix("dividemix", 4.0, 2 * len(rows), run)
    # Views lie beside one another: samples 2i and 2i + 1 are the row i.
    x, t = x.repeat_interleave(2, 0), torch.from_numpy(target).repeat_interleave(2, 0)
    x, t = lam * x + (1 - lam) * x[partner], lam * t + (1 - lam) * t[partner]
    labelled = torch.from_numpy(w[:, 0] > 0.5).repeat_interleave(2)
    log_p = F.log_softmax(own(x).logits, 1)
    supervised = -(t * log_p).sum(1)[labelled].mean()
    unsupervised = ((log_p.exp() - t) ** 2)[~labelled].mean()  # over rows and classes
    mean = log_p.exp().mean(0)
    penalty = ((1 / K) * torch.log((1 / K) / mean)).sum()
    return supervised + weight * unsupervised + penalty


@pytest.mark.parametrize("lambda_u", [25.0, 0.0])
def test_a_step_is_that_of_the_paper(task: Task, lambda_u: float) -> None:
    """Loss and gradient of each network in turn; the other one has none, so its optimiser leaves it
    alone.
    """
    run = make_run(task)
    strategy = divided(run, lambda_u=lambda_u)
    run.epoch = 5
    strategy.first_step = 1000
    rows = strategy.rows(torch.arange(run.num_rows), run).split(64)
    first, second = (int(-(-int((t > 0.5).sum()) // 32)) for t in strategy.trust)  # type: ignore[operator]
    assert len(rows) == first + second
    for place, m, progress in [
        (0, 0, 5.0),
        (first - 1, 0, 5 + (first - 1) / first),
        (first + 3, 1, 5 + 3 / second),
    ]:
        run.step = 1000 + place
        step = _step(strategy, run, rows[place])
        assert all(p.grad is None for p in run.models[1 - m].plain.parameters())
        found = [p.grad for p in run.models[m].plain.parameters()]
        trust = strategy.trust[m]
        assert trust is not None
        loss = reference_loss(run, m, rows[place], trust.numpy(), lambda_u * (progress - 1) / 16)
        wanted = torch.autograd.grad(loss, list(run.models[m].plain.parameters()))
        assert float(step.losses.mean()) == pytest.approx(loss.item(), rel=1e-12)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


def test_without_balance_a_step_has_no_term_of_equal_classes(task: Task) -> None:
    """Rows that are all trusted, mixed with themselves: cross entropy is all that is left."""
    run = make_run(task)
    strategy = divided(run, balance=False, alpha=1e-9)
    strategy.trust[0] = torch.ones(run.num_rows, dtype=torch.float64)
    run.epoch, strategy.first_step, strategy._num_steps = 5, run.step, [1, 1]
    batch = make_batch(run, torch.arange(20))
    step = _step(strategy, run, batch.rows)
    wanted = F.cross_entropy(run.models[0].plain(batch.x).logits, batch.given, reduction="none")
    torch.testing.assert_close(step.losses[0], wanted.detach())


def test_a_rare_class_is_predicted_as_often_as_it_is_there() -> None:
    """Clean labels, 3 % of which are of a class far from the other: with the term of equal classes
    others join it.
    """
    y = (torch.arange(400) % 33 == 0).long()  # 13 rows
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) + 2 * y[:, None]
    task = Task(NoisyData(x, y, ("a", "b"), torch.arange(400), clean=y), test=Split(x, y))
    settings = Settings(epochs=20, model="mlp:hidden=[32]", batch_size=64)
    plain, fair, even = (
        train(task, line, settings).last["test_accuracy"]
        for line in ("ce", "dividemix", "dividemix:balance=true")
    )
    assert fair > plain - 0.01 and even < plain - 0.05


def test_trusted_labels_stay_as_they_are(task: Task) -> None:
    """w = 1: the target is the given label, whatever the networks say; w = 0: the label does not
    matter.
    """
    run = make_run(task)
    strategy, rows = divided(run), torch.arange(20)
    batch = make_batch(run, rows)
    x = batch.x[:, None].expand(-1, 2, *batch.x.shape[1:])
    strategy.trust[0] = torch.ones(run.num_rows, dtype=torch.float64)
    assert torch.equal(strategy._guess(0, x, batch, run), F.one_hot(batch.given, K).double())
    strategy.trust[0] = torch.zeros(run.num_rows, dtype=torch.float64)
    guess = strategy._guess(0, x, batch, run)
    assert torch.equal(
        guess, strategy._guess(0, x, replace(batch, given=(batch.given + 1) % K), run)
    )
    assert torch.allclose(guess.sum(1), torch.ones(20, dtype=torch.float64))


def test_the_weight_of_unlabelled_rows_rises_over_16_epochs() -> None:
    assert [ramped(epochs, 16) for epochs in (0, 0.5, 8, 16, 290)] == [0, 0.5 / 16, 0.5, 1, 1]
    assert ramped(0, 0) == 1


@pytest.mark.parametrize("penalty", [False, True])
def test_the_warm_up_penalises_confidence_where_asked(penalty: bool, task: Task) -> None:
    """The released code under asymmetric noise: CE + mean Σ p log p."""
    run = make_run(task)
    batch = make_batch(run, torch.arange(30))
    forward_backward(batch, run, [DivideMix(warmup=1, penalty=penalty)])
    for model in (model.plain for model in run.models):
        z = model(batch.x).logits
        p = z.softmax(1)
        loss = F.cross_entropy(z, batch.given) + penalty * (p * p.log()).sum(1).mean()
        wanted = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-13)


def test_two_augmentations(task: Task) -> None:
    assert task.normalise is not None
    run = make_run(task, augment=Compose((PadCrop(2), task.normalise)))
    strategy, rows = divided(run), torch.arange(40)
    batch = make_batch(run, rows)
    one = second_view("view", batch, run)
    assert torch.equal(one, second_view("view", batch, run))
    run.step += 1
    other = second_view("view", batch, run)
    assert (
        one.shape == batch.x.shape and not torch.equal(one, batch.x) and not torch.equal(one, other)
    )
    seen: list[Tensor] = []
    run.models[0].wrapped.register_forward_pre_hook(lambda model, args: seen.append(args[0]))
    strategy._guess(0, torch.stack([batch.x, other], 1), batch, run)
    assert torch.equal(seen[0][0::2], batch.x) and torch.equal(seen[0][1::2], other)


def test_a_mixture_that_collapses(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal losses, or none that is trusted: an error at first, then the last division stands."""
    run = make_run(task)
    for model in (model.plain for model in run.models):
        for parameter in model.parameters():
            parameter.data.zero_()
    with pytest.raises(Undivided, match=r"network 1 .* all the same.*warmup=0"):
        DivideMix(warmup=0).start_epoch(run)
    losses = torch.from_numpy(lumps(0, run.num_rows, 0.5))
    with monkeypatch.context() as patch:
        patch.setattr(mixing, "clean_posterior", torch.zeros_like)
        with pytest.raises(Undivided, match="none of which the mixture trusts"):
            DivideMix(warmup=0)._divide(0, losses, run)
    strategy = DivideMix(warmup=0)
    with pytest.raises(Undivided, match="not finite"):
        strategy._divide(0, torch.where(losses > 0.5, torch.nan, losses), run)
    strategy._divide(0, losses, run)
    strategy._divide(1, losses, run)
    before = [t.clone() for t in strategy.trust if t is not None]
    with pytest.warns(UserWarning, match="last division stands"):
        strategy.start_epoch(run)
    assert len(before) == 2
    for old, new in zip(before, strategy.trust, strict=True):
        assert new is not None and torch.equal(old, new)


def test_specs_and_refusals() -> None:
    assert str(Mixup(alpha=0.5)) == "mixup:alpha=0.5"
    assert str(DivideMix(lambda_u=0)).startswith(
        "dividemix:warmup=10,lambda_u=0.0,ramp=16.0,alpha=4.0,"
    )
    for name, wrong in [
        ("mixup", {"alpha": 0}),
        ("dividemix", {"warmup": -1}),
        ("dividemix", {"lambda_u": -1}),
    ]:
        with pytest.raises(ValueError, match=f"Expected `{next(iter(wrong))}`"):
            STRATEGIES.create(name, **wrong)


# Whole runs


def methods() -> dict[str, Method]:
    return {
        "mixup": Method(get_loss("ce"), strategies=(Mixup(),)),
        "dividemix": Method(get_loss("ce"), strategies=(DivideMix(warmup=1, ramp=2),)),
        "dividemix-0": Method(
            get_loss("ce"), strategies=(DivideMix(warmup=1, lambda_u=0, penalty=True),)
        ),
    }


# Company


def test_a_warmup_may_have_noise_of_its_own(task: Task) -> None:
    results = [
        train(task, f"ce & sln:sigma={s},until=1 & dividemix:warmup=1", SETTINGS) for s in (0, 5)
    ]
    assert results[0].last["train_loss"] != results[1].last["train_loss"]


@pytest.mark.parametrize("steps", [3, 5, 8, 14])  # 5 is the end of the warm-up's only epoch
def test_what_models_say_is_averaged_after_the_warmup_too(
    task: Task, steps: int, tmp_path: Path
) -> None:
    def watched(**options: Any) -> TrainingAverages:
        method = Method(get_loss("ce"), strategies=(DivideMix(warmup=1), TrainingAverages()))
        found = train(task, method, SETTINGS, **options).strategies[-1]
        assert isinstance(found, TrainingAverages)
        return found

    whole = watched()
    assert bool((whole.sums[:, 0] == SETTINGS.epochs).all())
    with pytest.raises(Interrupted):
        watched(out=tmp_path, max_steps=steps)
    again = watched(out=tmp_path, resume=True)
    assert torch.equal(again.sums, whole.sums) and torch.equal(again.probs, whole.probs)
