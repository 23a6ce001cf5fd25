"""The Gaussian-process classifier against scikit-learn's regressor, direct quadrature, and
identities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor

from noiseproof.data import corrupt, get_dataset
from noiseproof.heads.gaussian_process import (
    JITTER,
    GaussianProcessClassifier,
    log_marginal_likelihood,
    log_odds,
    mean_softmax,
)
from noiseproof.train import Settings, prepare, train

FIXED = {"length_scale": 1.7, "signal": 2.5, "noise": 0.8}


def digits(count: int, rate: float = 0.4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs in [0, 1], noisy labels, clean test."""
    data = get_dataset("digits", test=0.25, seed=0)
    noisy, test = corrupt(data, f"symmetric:rate={rate}", generator=0), data.test
    assert test is not None
    return noisy.x[:count] / 255, noisy.given[:count], test.x / 255, test.y


def blobs(N: int = 40, K: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % K
    centres = 3 * torch.randn(K, 2, generator=g, dtype=torch.float64)
    return centres[y] + torch.randn(N, 2, generator=g, dtype=torch.float64), y


# --- Labels as real numbers ----------------------------------------------------------------------
def test_labels_become_log_odds() -> None:
    """LN paper, section 3.2 and B.5: one constant at the label; without the dummy class the last
    class is all −C.
    """
    y = torch.arange(10)
    torch.testing.assert_close(
        log_odds(y, 10, 0.01, dummy=True), 6.993933 * torch.eye(10).double(), rtol=1e-6, atol=1e-12
    )
    plain = log_odds(y, 10, 0.01, dummy=False)
    torch.testing.assert_close(
        plain[:9], 6.898715 * torch.eye(10).double()[:9, :9], rtol=1e-6, atol=1e-12
    )
    torch.testing.assert_close(
        plain[9], torch.full((9,), -6.898715).double(), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("dummy", [True, False])
def test_the_softmax_of_the_log_odds_is_the_smoothed_label(dummy: bool) -> None:
    q = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    back = torch.softmax(F.pad(log_odds(q, None, 0.1, dummy), (0, 1)), 1)
    torch.testing.assert_close(back, 0.9 * F.pad(q, (0, int(dummy))) + 0.1 / (3 + dummy))
    torch.testing.assert_close(
        log_odds(q[1:], 3, 0.1, dummy), log_odds(torch.tensor([2]), 3, 0.1, dummy)
    )


# --- The posterior -------------------------------------------------------------------------------
@pytest.mark.parametrize("dummy", [True, False])
def test_posterior_and_likelihood_are_scikit_learns(dummy: bool) -> None:
    """GaussianProcessRegressor on the transformed labels of noisy digits."""
    x, y, x_test, _ = digits(300)
    ours = GaussianProcessClassifier(**FIXED, dummy=dummy).fit(x, y, 10)
    kernel = ConstantKernel(FIXED["signal"]) * RBF(FIXED["length_scale"])
    alpha = FIXED["noise"] + JITTER * FIXED["signal"]
    theirs = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None)
    theirs.fit(x.flatten(1).double().numpy(), log_odds(y, 10, 0.01, dummy).numpy())
    mean, std = theirs.predict(x_test.flatten(1).double().numpy(), return_std=True)
    got, variance = ours.posterior(x_test)
    np.testing.assert_allclose(got, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(variance[:, None].expand_as(got), std**2, rtol=1e-8, atol=1e-8)
    assert ours.log_marginal_likelihood() == pytest.approx(
        theirs.log_marginal_likelihood_value_, rel=1e-10
    )


def test_gradient_of_the_likelihood() -> None:
    """Against autograd through torch's own multivariate normal."""
    x, y = blobs()
    squared, targets = torch.cdist(x, x).square(), log_odds(y, 3, 0.01, dummy=True)
    logs = torch.tensor([0.3, 0.5, -0.7], dtype=torch.float64, requires_grad=True)
    length_scale, signal, noise = logs.exp()
    kernel = (
        signal * torch.exp(-squared / (2 * length_scale**2))
        + (noise + JITTER * signal) * torch.eye(len(x)).double()
    )
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), kernel)
    want = normal.log_prob(targets.T).sum()
    (slope,) = torch.autograd.grad(want, logs)
    value, gradient = log_marginal_likelihood(squared, targets, *logs.detach().exp().tolist())
    assert value == pytest.approx(float(want.detach()), rel=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)


def test_hyperparameters_maximise_the_likelihood() -> None:
    """A flat gradient, and no less than scikit-learn's optimiser finds from several starts."""
    x, y, _, _ = digits(80)
    ours = GaussianProcessClassifier().fit(x, y, 10)
    targets = log_odds(y, 10, 0.01, dummy=True)
    squared = torch.cdist(x.flatten(1), x.flatten(1)).double().square()
    _, gradient = log_marginal_likelihood(
        squared, targets, ours.length_scale, ours.signal, ours.noise
    )
    assert float(gradient.abs().max()) < 1e-4 * targets.numel()
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(1.0)
    theirs = GaussianProcessRegressor(kernel, alpha=1e-10, n_restarts_optimizer=3, random_state=0)
    theirs.fit(x.flatten(1).double().numpy(), targets.numpy())
    assert ours.log_marginal_likelihood() > theirs.log_marginal_likelihood_value_ - 0.01


# --- Class probabilities -------------------------------------------------------------------------
def normal(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("std", [0.05, 1.0, 3.0, 12.0])
def test_mean_softmax_of_two_classes(std: float) -> None:
    """One integral: the difference of the logits is normal."""
    difference = torch.tensor([-8.0, -1.0, 0.0, 2.5, 30.0], dtype=torch.float64)
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    width = math.sqrt(2) * std
    want = (torch.sigmoid(difference[:, None] + width * z) * normal(z)).sum(1) * (z[1] - z[0])
    mean = torch.stack([difference, torch.zeros(5).double()], 1)
    got = mean_softmax(mean, torch.full_like(mean, std))
    torch.testing.assert_close(got, torch.stack([want, 1 - want], 1), rtol=0, atol=2e-8)


def test_mean_softmax_of_three_classes_one_of_them_fixed() -> None:
    """Two integrals: what the classifier without a dummy class asks for."""
    z = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    mean, std = (
        torch.tensor([[1.0, -2.0, 0.0]], dtype=torch.float64),
        torch.tensor([[1.5, 0.7, 0.0]]).double(),
    )
    u = torch.stack(
        [(1.0 + 1.5 * z)[:, None].expand(-1, len(z)), (-2.0 + 0.7 * z).expand(len(z), -1)], 2
    )
    weight = normal(z)[:, None] * normal(z) * (z[1] - z[0]) ** 2
    want = (torch.softmax(F.pad(u, (0, 1)), 2) * weight[..., None]).sum((0, 1))
    torch.testing.assert_close(mean_softmax(mean, std)[0], want, rtol=0, atol=2e-8)


def test_mean_softmax_identities() -> None:
    g = torch.Generator().manual_seed(1)
    mean = 4 * torch.randn(7, 6, generator=g, dtype=torch.float64)
    zero, same = torch.zeros_like(mean), torch.full_like(mean, 2.0)
    torch.testing.assert_close(mean_softmax(mean, zero), torch.softmax(mean, 1))
    blurred = mean_softmax(mean, same)
    torch.testing.assert_close(blurred, mean_softmax(mean + 1e4, same))
    # equal spread keeps the order of the classes
    assert torch.equal(blurred.argsort(1), mean.argsort(1))
    assert bool((blurred.amax(1) < torch.softmax(mean, 1).amax(1)).all())
    torch.testing.assert_close(mean_softmax(0 * mean, same), torch.full_like(mean, 1 / 6))
    many = mean_softmax(torch.linspace(-500, 500, 1000)[None], torch.full((1, 1000), 1.0))
    assert (
        many.dtype == torch.float32
        and bool(many.isfinite().all())
        and float(many.sum()) == pytest.approx(1)
    )
    assert mean_softmax(mean[:0], zero[:0]).shape == (0, 6)


def test_far_away_it_knows_nothing_and_at_the_data_it_knows_the_labels() -> None:
    x, y = blobs(K=3)
    fitted = GaussianProcessClassifier().fit(x, y)
    torch.testing.assert_close(
        fitted.predict_proba(x[:1] + 1e6), torch.full((1, 3), 1 / 3).double()
    )
    mean, variance = fitted.posterior(x[:1] + 1e6)
    assert float(mean.abs().max()) == 0 and float(variance) == fitted.signal
    sure = GaussianProcessClassifier(length_scale=0.01, signal=50.0, noise=1e-6).fit(x, y)
    torch.testing.assert_close(
        sure.posterior(x)[0], log_odds(y, 3, 0.01, dummy=True), rtol=1e-5, atol=1e-5
    )


def test_units_and_origin_of_the_inputs_do_not_matter() -> None:
    x, y = blobs()
    one = GaussianProcessClassifier(**FIXED).fit(x, y)
    other = GaussianProcessClassifier(**{**FIXED, "length_scale": 1024 * 1.7}).fit(
        1024 * x + 2**20, y
    )
    torch.testing.assert_close(
        other.predict_proba(1024 * x + 2**20), one.predict_proba(x), rtol=1e-7, atol=1e-7
    )
    free, scaled = (
        GaussianProcessClassifier().fit(x, y),
        GaussianProcessClassifier().fit(1024 * x, y),
    )
    assert scaled.length_scale == pytest.approx(1024 * free.length_scale, rel=1e-6)


def test_noisy_digits_and_the_generator_left_alone() -> None:
    """Two fifths of 400 labels wrong. Images or rows, numpy or torch, float32 or float64: the same
    classifier.
    """
    x, y, x_test, y_test = digits(400)
    before = torch.get_rng_state()
    fitted = GaussianProcessClassifier().fit(x, y, 10)
    p = fitted.predict_proba(x_test)
    assert torch.equal(torch.get_rng_state(), before)
    assert p.shape == (len(x_test), 10) and float((p.argmax(1) == y_test).double().mean()) > 0.9
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)).double())
    again = GaussianProcessClassifier().fit(x.flatten(1).double().numpy(), y.numpy(), 10)
    torch.testing.assert_close(again.predict_proba(x_test.flatten(1).numpy()), p, rtol=0, atol=0)


def test_soft_labels() -> None:
    """LN paper, section 6: another model's predictions as labels. One-hot ones are the classes."""
    x, y = blobs()
    hard, hot = (
        GaussianProcessClassifier(**FIXED).fit(x, labels) for labels in (y, F.one_hot(y, 3).float())
    )
    torch.testing.assert_close(hot.predict_proba(x), hard.predict_proba(x))
    unsure = (
        GaussianProcessClassifier(**FIXED).fit(x, 0.6 * F.one_hot(y, 3) + 0.4 / 3).predict_proba(x)
    )
    assert bool((unsure.amax(1) < hard.predict_proba(x).amax(1)).all())


# --- Refusals ------------------------------------------------------------------------------------
X, Y = blobs(12)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (torch.zeros(60_000, 1), torch.zeros(60_000).long(), {}, "at most 5000 samples, got 60000"),
        (X, Y, {"max_samples": 11}, "at most 11 samples, got 12"),
        (X[:5], Y, {}, "inputs (N, …) and N labels, got shapes (5, 2) and (12,)"),
        (X[:, 0], Y, {}, "got shapes (12,) and (12,)"),
        (X[:0], Y[:0], {}, "got shapes (0, 2) and (0,)"),
        (X.where(X < X.max(), math.nan), Y, {}, "finite inputs"),
        (torch.ones(12, 2), Y, {}, "inputs that differ, got 12 equal ones"),
        (X, Y - 1, {}, "labels in 0 … 1, got -1 at position 0"),
        (X, Y.double(), {}, "class indices in labels of shape (N,), got torch.float64"),
        (
            X,
            torch.rand(12, 3, generator=torch.Generator()),
            {},
            "probabilities in `y`, with rows that sum to one",
        ),
        (
            X,
            torch.zeros(12, 3, 1),
            {},
            "with at least two classes, got (12, 3, 1)",
        ),
    ],
)
def test_what_cannot_be_fitted(x: Tensor, y: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        GaussianProcessClassifier(**options).fit(x, y)
    assert message in str(caught.value)


def test_the_refusal_says_the_memory() -> None:
    with pytest.raises(ValueError, match="26.8 GiB, and a fit needs 6 times"):
        GaussianProcessClassifier().fit(torch.zeros(60_000, 1), torch.zeros(60_000).long())


@pytest.mark.parametrize("option", ["length_scale", "signal", "noise", "t", "steps", "max_samples"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, "x"])
def test_options_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{option}`"):
        GaussianProcessClassifier(**{option: value})


@pytest.mark.parametrize("loss", ["mae", "ln", "bitemp", "peer"])
def test_other_losses_are_refused_which_it_would_pass_by(loss: str) -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    with pytest.raises(ValueError, match="Expected the loss `ce` for gp"):
        train(task, f"{loss} & gp:steps=3", Settings(epochs=1, model="mlp:hidden=[4]"))
