"""The papers' propositions about gradients, against definitions typed from the papers and against
drawn noise.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noiseproof.analysis.before.label_noise import (
    logit_noise_covariance,
    weight_noise_covariance,
)
from noiseproof.analysis.before.losses import Start
from noiseproof.analysis.before.nce import nce_figure, nce_over_margins, split_nce
from noiseproof.losses import get_loss


def drawn(rows: int, classes: int, size: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=g)
    return size * torch.randn(rows, classes, generator=g, dtype=torch.float64), labels


# --- NCE ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "size"), [(2, 1.0), (10, 0.1), (10, 1.0), (10, 5.0), (100, 3.0)]
)
def test_the_parts_of_nce_are_the_papers_and_add_up_to_its_gradient(
    classes: int, size: float
) -> None:
    logits, labels = drawn(50, classes, size)
    split = split_nce(logits, labels)
    z = logits.numpy()
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    label = log_p[np.arange(50), labels.numpy()]
    np.testing.assert_allclose(split.gamma.numpy(), -1 / log_p.sum(1), rtol=1e-10)
    np.testing.assert_allclose(split.epsilon.numpy(), classes * label / log_p.sum(1), rtol=1e-10)
    np.testing.assert_allclose(split.regulariser.numpy(), log_p.mean(1), rtol=1e-10)

    at = logits.clone().requires_grad_()
    (nce,) = torch.autograd.grad(get_loss("nce", reduction="sum")(at, labels), at)
    log_q = at.log_softmax(1)
    ce = -log_q.gather(1, labels[:, None])[:, 0]
    # Eq. 2, γ and ε being constants
    rewritten = (split.gamma * ce + split.gamma * split.epsilon * log_q.mean(1)).sum()
    (same,) = torch.autograd.grad(rewritten, at)
    np.testing.assert_allclose(nce.numpy(), same.numpy(), atol=1e-12)
    np.testing.assert_allclose(
        split.weight.numpy(), nce.abs().sum(1).numpy() / 2, rtol=1e-9, atol=1e-14
    )
    w = 1 - np.exp(label)  # w_CE
    bound = split.gamma.numpy() * (w + split.epsilon.numpy() * (classes - 1) / classes)
    np.testing.assert_allclose(split.bound.numpy(), bound, rtol=1e-9)
    np.testing.assert_allclose(
        split.estimate.numpy(),
        split.gamma.numpy() * (1 + split.epsilon.numpy()) * w,
        rtol=1e-6,
        atol=1e-15,
    )


def test_the_bound_holds_everywhere_and_the_papers_does_not() -> None:
    exceeded, largest = 0, 0.0
    for classes in (2, 3, 10, 100):
        for size in (0.1, 1.0, 5.0, 20.0):
            split = split_nce(*drawn(500, classes, size, seed=classes))
            assert bool((split.weight <= split.bound * (1 + 1e-9)).all()), (classes, size)
            ratio = split.weight / split.estimate
            exceeded += int((ratio > 1 + 1e-9).sum())
            largest = max(largest, float(ratio[split.estimate > 1e-12].max()))
    assert exceeded > 100 and largest > 1.05  # Eq. 3 as printed


def test_nce_over_margins_falls_from_chance_on() -> None:
    """The paper has γ fall with the margin; −Σ log p_k is smallest, and γ largest, at p_y = 1/K."""
    table = nce_over_margins(100, points=201)
    assert table["epsilon"].is_monotonic_decreasing
    assert table["margin"][table["gamma"].idxmax()] == pytest.approx(-math.log(99), abs=0.06)
    table = nce_over_margins(100, points=9)
    p = 1 / (1 + np.exp(-table["margin"].iloc[4]))
    assert table["estimate"].iloc[4] / table["gamma"].iloc[4] == pytest.approx(
        (1 + table["epsilon"].iloc[4]) * (1 - p), rel=0.02
    )  # at one margin p_y is the same whatever the others are


def test_nce_is_drawn_where_it_is_a_part_of_a_loss() -> None:
    assert nce_figure(Start(["mae", "ce"], 10)) is None
    drawn_figure = nce_figure(Start(["ce", "10*nce + mae"], 10))
    assert drawn_figure is not None and set(drawn_figure.data["column"]) >= {
        "gamma",
        "epsilon",
        "weight",
        "bound",
    }
    # the paper's ŵ = 2γ(1 + ε)w bounds ‖∇L‖₁ (Eq. 3)
    assert "½ŵ_NCE = γ(1 + ε)w" in set(drawn_figure.data["part"])


# --- Stochastic label noise -----------------------------------------------------------------------


def test_the_noise_on_logits_has_the_papers_entries() -> None:
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    M = logit_noise_covariance(p)
    for i in range(3):
        assert float(M[i, i]) == pytest.approx(3 * (float(p[i]) - 1 / 3) ** 2 + 2 / 3)
        for j in set(range(3)) - {i}:
            assert float(M[i, j]) == pytest.approx(float(3 * p[i] * p[j] - p[i] - p[j]))
    several = logit_noise_covariance(torch.stack([p, p.flip(0)]))
    assert torch.allclose(several[1], logit_noise_covariance(p.flip(0)))


def test_the_covariances_are_those_of_drawn_noise() -> None:
    """Gradients of cross entropy against y + σz, by autograd, of 20 000 draws of z."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    x, y, sigma, draws = (
        torch.tensor([0.5, -1.0]).double(),
        torch.tensor([0.0, 1.0, 0.0]).double(),
        0.4,
        20_000,
    )
    weights = list(model.parameters())

    def flat(gradients: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([gradient.flatten() for gradient in gradients])

    logits = model(x)
    z = torch.randn(draws, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    jacobian = torch.stack(
        [flat(torch.autograd.grad(logits[k], weights, retain_graph=True)) for k in range(3)]
    )
    p = logits.softmax(0).detach()

    # Eq. 3: ∂ℓ(f, y + σz)/∂f of each draw
    f = logits.detach().expand(draws, -1).clone().requires_grad_()
    (noisy,) = torch.autograd.grad(-((y + sigma * z) * f.log_softmax(1)).sum(), f)
    clean = p - y
    on_logits = noisy - clean
    assert torch.allclose(
        on_logits.T @ on_logits / draws, sigma**2 * logit_noise_covariance(p), atol=0.01
    )
    # Propositions 3 and 1 in the weights
    on_weights = on_logits @ jacobian
    expected = sigma**2 * weight_noise_covariance(jacobian, p)
    assert torch.allclose(
        on_weights.T @ on_weights / draws, expected, atol=0.03 * float(expected.abs().max())
    )
    of_logits = (sigma * z) @ jacobian
    expected = sigma**2 * weight_noise_covariance(jacobian)
    assert torch.allclose(
        of_logits.T @ of_logits / draws, expected, atol=0.03 * float(expected.abs().max())
    )
    # Proposition 3 is Proposition 2 carried to the weights
    assert torch.allclose(
        weight_noise_covariance(jacobian, p),
        jacobian.T @ logit_noise_covariance(p) @ jacobian,
        atol=1e-12,
    )


def test_the_noise_is_smallest_for_uniform_and_largest_for_certain_predictions() -> None:
    """Claim 2: √((K − 1)/K) at 1/K, √(K − 1) at 1."""
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    probs = torch.cat([p[:, None], (1 - p)[:, None].expand(-1, 9) / 9], 1)
    deviation = logit_noise_covariance(probs)[:, 0, 0].sqrt()
    assert p[deviation.argmin()] == pytest.approx(0.1)
    assert float(deviation.min()) == pytest.approx(math.sqrt(0.9))
    assert p[deviation.argmax()] == 1.0 and float(deviation.max()) == pytest.approx(3.0)
