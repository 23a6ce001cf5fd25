"""The papers' theory as tests: propositions and equations, one of them wrong as printed; and where
the rest is.
"""

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.losses import LOSSES, get_loss
from noiseproof.losses.calibrate import expected_margin
from noiseproof.losses.het import Het

ELSEWHERE = {
    "LN paper, Eq. 6": (
        "test_loss_gaussian.py",
        "test_eq_6_the_gradient_is_the_residual_over_the_covariance",
    ),
    "LN paper, Eq. 7": (
        "test_loss_gaussian.py",
        "test_eq_7_without_lambda_the_optimum_is_the_outer_product",
    ),
    "LN paper, Eqs. 7, 8": (
        "test_loss_gaussian.py",
        "test_eq_7_and_8_the_best_covariance_divides_the_gradient_by_the_squared_residual",
    ),
    "LN paper, B.4": ("test_loss_gaussian.py", "test_b_4_lambda_is_the_threshold_of_attenuation"),
    "SLN paper, Prop. 1 of a training step": (
        "test_strategies_perturb.py",
        "test_noise_f_in_the_weights_has_the_covariance_of_proposition_1",
    ),
    "SLN paper, Prop. 2 of a training step": (
        "test_strategies_perturb.py",
        "test_the_noise_of_sln_in_the_logits_has_the_covariance_of_proposition_2",
    ),
    "NAL paper, Theorem 1": ("test_loss_attention.py", "test_theorem_1"),
    "curriculum paper, A.3": (
        "test_analysis_before.py",
        "test_the_largest_ratio_of_asymmetric_losses",
    ),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_it_is_tested_where_this_page_says(what: str) -> None:
    file, name = ELSEWHERE[what]
    (path,) = Path(__file__).parents[1].rglob(file)
    tree = ast.parse(path.read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# --- the SLN paper: the noise that SLN and its relatives put on gradients
# -------------------------------------------------

C, DRAWS = 3, 40_000  # classes


@pytest.fixture(scope="module")
def network() -> tuple[torch.nn.Module, Tensor]:
    """A network of two layers and one input."""
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, C)
    ).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model, torch.tensor([[0.7, -1.2]], dtype=torch.float64)


def flat(gradients: dict[str, Tensor], dims: int) -> Tensor:
    return torch.cat([gradient.flatten(dims) for gradient in gradients.values()], -1)


def assert_covariance(noise: Tensor, M: Tensor) -> None:
    """The mean is zero and the covariance ``M``, within five standard errors of Gaussian samples
    (n, d).
    """
    n, variance = len(noise), M.diagonal()
    assert bool((noise.mean(0).abs() <= 5 * (variance / n).sqrt()).all())
    found = noise.T @ noise / n
    error = ((torch.outer(variance, variance) + M.square()) / n).sqrt()
    assert bool(((found - M).abs() <= 5 * error).all())
    assert float((found - M).norm() / M.norm()) < 0.03


def test_proposition_1_noise_on_the_logits_gradient(
    network: tuple[torch.nn.Module, Tensor],
) -> None:
    """Eq. 2's noise in the weights: z·∇_θ f, of covariance σ²(∇_θi f)ᵀ∇_θj f."""
    model, x = network
    parameters, sigma = dict(model.named_parameters()), 0.4
    z = torch.randn(DRAWS, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    label = torch.tensor([1])
    logits = model(x)
    error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(label, C)  # ∇_f of cross entropy

    def pulled(at: dict[str, Tensor], direction: Tensor) -> Tensor:
        return (functional_call(model, at, (x,)) * direction).sum()

    gradients = vmap(grad(pulled), (None, 0))(parameters, error.detach() + sigma * z)
    clean = grad(pulled)(parameters, error.detach())
    noise = flat(gradients, 1) - flat(clean, 0)
    # (C, p)
    J = flat(
        {
            k: v[0]
            for k, v in jacrev(lambda at: functional_call(model, at, (x,)))(parameters).items()
        },
        1,
    )
    assert_covariance(noise.detach(), sigma**2 * (J.T @ J).detach())


def test_proposition_2_noise_on_labels_seen_in_the_logits(
    network: tuple[torch.nn.Module, Tensor],
) -> None:
    """Eq. 3's noise in ∇_f: M_ii = c(S_i − 1/c)² + (c − 1)/c and M_ij = c·S_i·S_j − S_i − S_j."""
    model, x = network
    z = torch.randn(DRAWS, C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sigma, label = 0.7, torch.nn.functional.one_hot(torch.tensor([2]), C).double()
    logits = model(x).detach()
    at = logits.expand(DRAWS, -1).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(get_loss("ce", reduction="sum")(at, label + sigma * z), at)
    S = torch.softmax(logits[0], 0)
    M = C * torch.outer(S, S) - S[:, None] - S
    M.diagonal().copy_(C * (S - 1 / C) ** 2 + (C - 1) / C)
    assert_covariance(gradient - (S - label), sigma**2 * M)


def test_proposition_3_noise_on_labels_seen_in_the_weights(
    network: tuple[torch.nn.Module, Tensor],
) -> None:
    """Eq. 3's noise in ∇_θ: M_ij = (∇_θi S/S)ᵀ(∇_θj S/S)."""
    model, x = network
    parameters, sigma = dict(model.named_parameters()), 0.5
    z = torch.randn(DRAWS, C, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    label, loss = torch.nn.functional.one_hot(torch.tensor([0]), C).double(), get_loss("ce")

    def cost(at: dict[str, Tensor], target: Tensor) -> Tensor:
        return loss.per_sample(Output(functional_call(model, at, (x,))), target[None])[0]

    noisy = vmap(grad(cost), (None, 0))(parameters, label + sigma * z)
    noise = flat(noisy, 1) - flat(grad(cost)(parameters, label[0]), 0)
    S = torch.softmax(model(x)[0], 0).detach()
    slopes = jacrev(lambda at: functional_call(model, at, (x,)).softmax(1)[0])(parameters)
    ratio = flat(slopes, 1).detach() / S[:, None]  # (C, p)
    assert_covariance(noise.detach(), sigma**2 * ratio.T @ ratio)


def test_the_noise_of_sln_grows_with_confidence() -> None:
    """What the SLN paper concludes from Proposition 2: each entry's variance is least at S_i = 1/c
    and largest at one.
    """
    S = torch.linspace(0, 1, 101, dtype=torch.float64)
    variance = 10 * (S - 1 / 10) ** 2 + 9 / 10
    assert int(variance.argmin()) == 10 and int(variance.argmax()) == 100


# --- the LN paper
# ------------------------------------------------------------------------------------------


def test_equation_14_the_gradient_of_het() -> None:
    """∂L/∂μ = −(δ_c − E[S·S_c/E[S_c]]), by quadrature over the noise; and Het's, from samples."""
    mean = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64, requires_grad=True)
    scale, label = torch.tensor([0.6, 1.1, 0.3], dtype=torch.float64), 1
    nodes, shares = np.polynomial.hermite_e.hermegauss(24)
    grid = torch.tensor(list(itertools.product(nodes, repeat=3)))
    weight = torch.tensor([math.prod(w) for w in itertools.product(shares, repeat=3)])
    weight = weight / weight.sum()
    S = torch.softmax(mean + scale * grid, 1)  # (n, 3)
    (truth,) = torch.autograd.grad(-torch.log(weight @ S[:, label]), mean)
    S = S.detach()
    attenuated = weight @ (S * S[:, [label]] / (weight @ S[:, label]))
    formula = -(torch.nn.functional.one_hot(torch.tensor(label), 3) - attenuated)
    assert torch.allclose(truth, formula, rtol=1e-10, atol=1e-12)
    at = mean.detach()[None].requires_grad_()
    loss = Het(tau=1.0, samples=40_000, covariance="diagonal")(
        Output(at, scale=scale[None]), torch.tensor([label])
    )
    (sampled,) = torch.autograd.grad(loss, at)
    assert float((sampled[0] - formula).abs().max()) < 0.02  # five standard errors


# --- the curriculum paper
# ------------------------------------------------------------------------------------------

MARGIN = [
    name
    for name in sorted(LOSSES)
    if name not in ("remargin", "unit", "tau-shift", "tau-scale", "peer")
]
MARGIN = [name for name in MARGIN if getattr(LOSSES[name], "kind", "") == "margin"]


@pytest.mark.parametrize("name", MARGIN)
def test_equation_1_every_margin_loss_is_a_weight_times_the_margin(name: str) -> None:
    """∇L = ∇[−w(Δ)·Δ] with w held fixed (its printed w is negative), and ‖∇Δ‖₁ = 2."""
    loss = get_loss(name, reduction="none")
    if loss.needs != {"logits"} or not loss.independent_rows:
        pytest.skip("needs more than logits")
    generator = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(200, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    y = torch.randint(7, (200,), generator=generator)
    (gradient,) = torch.autograd.grad(loss(z, y).sum(), z)
    (direction,) = torch.autograd.grad(margin(z, y).sum(), z)
    weight = loss.sample_weight(margin(z, y).detach()).detach()
    assert torch.allclose(gradient, -weight[:, None] * direction, rtol=1e-8, atol=1e-12)
    assert torch.allclose(direction.abs().sum(1), torch.tensor(2.0, dtype=torch.float64))


def rows(seed: int, n: int = 3000) -> list[tuple[Tensor, Tensor]]:
    """Random logits of six sizes and numbers of classes, with labels."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for k, size in itertools.product((3, 10, 100), (1.0, 5.0)):
        z = size * torch.randn(n, k, generator=generator, dtype=torch.float64)
        found.append((z, torch.randint(k, (n,), generator=generator)))
    return found


def of_nce(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of NCE (n, k), γ, ε and w_CE = 1 − p_y of curriculum paper, section 4.1."""
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(get_loss("nce", reduction="sum")(at, y), at)
    nll = -torch.log_softmax(z, 1)
    own = nll.gather(1, y[:, None])[:, 0]
    return gradient, 1 / nll.sum(1), z.shape[1] * own / nll.sum(1), -torch.expm1(-own)


def test_equation_2_nce_is_cross_entropy_and_a_regulariser() -> None:
    """∇NCE = γ·∇CE + γ·ε·∇R with R = Σ log p_i/k."""
    for z, y in rows(0, n=300):
        gradient, gamma, epsilon, _ = of_nce(z, y)
        p = torch.softmax(z, 1)
        of_ce = p - torch.nn.functional.one_hot(y, z.shape[1])
        of_regulariser = 1 / z.shape[1] - p
        expected = gamma[:, None] * (of_ce + epsilon[:, None] * of_regulariser)
        assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-13)


def test_equation_3_is_false_as_printed_and_true_as_corrected() -> None:
    """‖∇NCE‖₁ ≤ 2γ(1 + ε)·w_CE is broken often; 2γ(w_CE + ε(k − 1)/k) never, for w_CE(Δ_i) sums to
    k − 1.
    """
    broken, worst, total = 0, 0.0, 0
    for z, y in rows(1):
        gradient, gamma, epsilon, w = of_nce(z, y)
        size, k = gradient.abs().sum(1), z.shape[1]
        corrected = 2 * gamma * (w + epsilon * (k - 1) / k)
        assert bool((size <= corrected + 1e-15).all())
        printed = 2 * gamma * (1 + epsilon) * w
        broken, total = broken + int((size > printed * (1 + 1e-9)).sum()), total + len(z)
        worst = max(worst, float((size / printed).max()))
    assert broken > 0.01 * total and worst > 1.1


def test_a_counterexample_to_equation_3() -> None:
    """Three classes, logits (2, 0, −6), the label the first: 0.0269 > 0.0239."""
    z, y = torch.tensor([[2.0, 0.0, -6.0]], dtype=torch.float64), torch.tensor([0])
    gradient, gamma, epsilon, w = of_nce(z, y)
    p = [math.exp(v) / (math.exp(2) + 1 + math.exp(-6)) for v in (2.0, 0.0, -6.0)]
    nll = [-math.log(v) for v in p]
    by_hand = [
        ((p[j] - (j == 0)) - nll[0] / sum(nll) * sum(p[j] - (j == i) for i in range(3))) / sum(nll)
        for j in range(3)
    ]
    assert gradient[0].tolist() == pytest.approx(by_hand, rel=1e-12)
    assert sum(map(abs, by_hand)) > 2 * float(gamma * (1 + epsilon) * w)


def equation_4(k: int, sigma: float = 1.0) -> float:
    """The curriculum paper's approximation of the expected margin."""
    return -math.log(k - 1) - sigma**2 / 2 + math.expm1(sigma**2) / (2 * (k - 1))


@pytest.mark.parametrize("k", [10, 20, 50, 100, 400, 1000, 10_000])
def test_equation_4_approximates_the_expected_margin(k: int) -> None:
    """σ = 1, k ≥ 10: what is left is of order 1/k², down to the accuracy of the exact value."""
    assert abs(equation_4(k) - expected_margin(k)) < 2.5 / (k - 1) ** 2 + 1e-7


def test_equation_4_fails_for_few_classes_and_large_sigma() -> None:
    assert expected_margin(2) == 0 and equation_4(2) == pytest.approx(0.359, abs=1e-3)
    assert expected_margin(10, sigma=2) == pytest.approx(-3.633, abs=1e-3)
    assert equation_4(10, sigma=2) == pytest.approx(-1.220, abs=1e-3)
