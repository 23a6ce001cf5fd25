"""Logistic-Normal and Het: 60-digit truth, the propositions of paper 000, quadrature, and what every loss must do."""

from __future__ import annotations

import copy
import io
import math
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mpmath import mp, mpf
from scipy import integrate, stats
from test_loss_memory import Allocations
from test_loss_truth import TOLERANCE
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.heads import HEADS, get_head
from noiseproof.losses import LogisticNormal, get_loss
from noiseproof.losses import gaussian as module
from noiseproof.losses.gaussian import LN, Het, draw_noise
from noiseproof.losses.logistic_normal import inverse_softmax_centred, negative_log_normal, softmax_centred

DTYPES = list(TOLERANCE)
Row = tuple[mpf, list[mpf], list[mpf]]  # loss, its gradient by μ and by what spreads


# --- Truth: paper 000 in 60 digits -----------------------------------------------------------------------------------
def target_logits(y: int, K: int, t: mpf, dummy: bool) -> list[mpf]:
    """S_C⁻¹((1 − t)δ_y + t·u) from Eqs. 11, 24 and the map's definition."""
    classes = K + dummy
    q = [(1 - t) * (k == y) + t / classes for k in range(classes)]
    return [mp.log(q[k] / q[-1]) for k in range(classes - 1)]


def residual(mean: np.ndarray, y: int, tau: float, t: float, dummy: bool) -> list[mpf]:
    K = len(mean) + (not dummy)
    aims = target_logits(y, K, mpf(t), dummy)
    return [mpf(tau) * a - mpf(float(m)) for a, m in zip(aims, mean, strict=True)]


def eq5_by_matrices(r: list[mpf], root: mp.matrix) -> mpf:
    """½ rᵀΣ⁻¹r + ½ log|Σ| with Σ = root·rootᵀ (Eq. 5), by elimination."""
    covariance = root * root.T
    solved = mp.lu_solve(covariance, mp.matrix(r))
    return (mp.fsum(a * b for a, b in zip(r, solved, strict=True)) + mp.log(mp.det(covariance))) / 2


def full_root(c: list[mpf], lam: mpf) -> mp.matrix:
    return mp.matrix([[ci * cj + (lam if i == j else 0) for j, cj in enumerate(c)] for i, ci in enumerate(c)])


def full_truth(r: list[mpf], c: list[mpf], lam: mpf) -> Row:
    """Eq. 5 for Σ^½ = ccᵀ + λI (Eq. 9) by Sherman-Morrison, and its gradients by μ and c."""
    D = len(r)
    s, q = mp.fsum(x * x for x in c), mp.fsum(x * y for x, y in zip(c, r, strict=True))

    def solve(v: list[mpf]) -> list[mpf]:  # (ccᵀ + λI)⁻¹ v
        along = mp.fsum(x * y for x, y in zip(c, v, strict=True)) / (lam + s)
        return [(y - x * along) / lam for x, y in zip(c, v, strict=True)]

    w = solve(r)
    g = solve(w)
    value = mp.fsum(x * x for x in w) / 2 + (D - 1) * mp.log(lam) + mp.log(lam + s)
    cw, cg = q / (lam + s), q / (lam + s) ** 2  # cᵀw and cᵀg
    return value, [-x for x in g], [2 * x / (lam + s) - cw * b - cg * a for x, a, b in zip(c, w, g, strict=True)]


def diagonal_truth(r: list[mpf], scale: list[mpf], lam: mpf) -> Row:
    """Eq. 5 for Σ^½ = diag(σ) + λI; one σ stands for all."""
    D, one = len(r), len(scale) == 1
    d = [lam + x for x in (scale * D if one else scale)]
    value = mp.fsum((x / y) ** 2 for x, y in zip(r, d, strict=True)) / 2 + mp.fsum(mp.log(y) for y in d)
    slopes = [1 / y - x**2 / y**3 for x, y in zip(r, d, strict=True)]
    return value, [-x / y**2 for x, y in zip(r, d, strict=True)], [mp.fsum(slopes)] if one else slopes


def test_truth_is_the_definition() -> None:
    """The O(D) truth equals Eq. 5 with whole matrices, and its gradients are its derivatives."""
    rng = np.random.default_rng(0)
    for D in (1, 2, 5):
        r, c = ([mpf(x) for x in rng.normal(size=D)] for _ in range(2))
        lam = mpf(0.3)
        value, of_mean, of_root = full_truth(r, c, lam)
        assert abs(value - eq5_by_matrices(r, full_root(c, lam))) < mpf(10) ** -50
        scale = [abs(x) for x in c]
        diagonal = diagonal_truth(r, scale, lam)
        assert abs(diagonal[0] - eq5_by_matrices(r, mp.diag([lam + x for x in scale]))) < mpf(10) ** -50
        for i in range(D):

            def moved(x: mpf, v: list[mpf], i: int = i) -> list[mpf]:
                return [*v[:i], x, *v[i + 1 :]]

            wanted = [
                (-of_mean[i], lambda x: eq5_by_matrices(moved(x, r), full_root(c, lam)), r[i]),
                (of_root[i], lambda x: eq5_by_matrices(r, full_root(moved(x, c), lam)), c[i]),
                (diagonal[2][i], lambda x: diagonal_truth(r, moved(x, scale), lam)[0], scale[i]),
            ]
            for want, function, at in wanted:
                assert abs(want - mp.diff(function, at)) < mpf(10) ** -20


# --- Logistic-Normal against it --------------------------------------------------------------------------------------
def float32_numbers(x: np.ndarray) -> np.ndarray:
    """Exactly representable in float32, so that one truth serves both precisions."""
    return x.astype(np.float32).astype(np.float64)


CASES = [(K, scale, 0) for K in (2, 10, 100, 1000) for scale in (1, 5, 50, 500)] + [(10, 3, 480), (10, 3, -480)]
ROWS = {2: 8, 10: 8, 100: 4, 1000: 2}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"lam": 0.1, "tau": 1.0},
    {"lam": 1.0, "tau": 0.1, "t": 0.1},
    {"lam": 0.5, "tau": 1.0, "dummy": False},
    {"covariance": "diagonal", "lam": 0.1},
    {"covariance": "isotropic"},
    {"covariance": "identity", "tau": 1.0},
    {"covariance": "diagonal", "dummy": False},
]


def named(settings: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(s, id=",".join(f"{k}={v}" for k, v in s.items()) or "default") for s in settings]


def spread_name(loss: LN) -> str | None:
    return next(iter(loss.needs - {"logits"}), None)


def batch(loss: LN, K: int, scale: float, centre: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, what spreads them, labels. Some roots point where training drives them: along the residual (Eq. 7)."""
    rng = np.random.default_rng([K, int(scale), abs(int(centre))])
    B, D = ROWS[K], loss.num_outputs(K)
    mean = float32_numbers(centre + scale * rng.uniform(-1, 1, size=(B, D)))
    y = rng.integers(K, size=B)
    y[0], y[1] = K - 1, 0
    width = 1 if loss.covariance == "isotropic" else D
    spread = rng.normal(size=(B, width)) * 10.0 ** rng.uniform(-2, 1, size=(B, 1))
    if loss.covariance == "full":
        for i in (1, 3, 5)[: B // 2]:
            r = np.array([float(x) for x in residual(mean[i], int(y[i]), loss.tau, loss.t, loss.dummy)])
            length = np.linalg.norm(r)
            spread[i] = r / length * math.sqrt(max(length - loss.lam, 1e-4))
        spread[0] = 0 if K == 10 else spread[0]
    return mean, float32_numbers(spread if loss.covariance == "full" else np.abs(spread)), y


@cache
def truths(key: str, K: int, scale: float, centre: float) -> tuple[np.ndarray, ...]:
    loss = get_loss(key)
    assert isinstance(loss, LN)
    mean, spread, y = batch(loss, K, scale, centre)
    rows = []
    for m, s, label in zip(mean, spread, y, strict=True):
        r, other = residual(m, int(label), loss.tau, loss.t, loss.dummy), [mpf(float(x)) for x in s]
        if loss.covariance == "identity":
            rows.append(diagonal_truth(r, [mpf(0)], mpf(1)))
        else:
            rows.append((full_truth if loss.covariance == "full" else diagonal_truth)(r, other, mpf(loss.lam)))
    gradients = (np.array([[float(g) for g in row[i]] for row in rows]) for i in (1, 2))
    return mean, spread, y, np.array([float(row[0]) for row in rows]), *gradients


def run(loss: Any, parts: dict[str, Tensor], target: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of every part of an output."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in parts.items()}
    value = loss(Output(**leaves), target, **options)
    found = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
    return value.detach(), {k: g for k, g in zip(leaves, found, strict=True) if g is not None}


def excess(got: Tensor, want: np.ndarray, dtype: torch.dtype) -> float:
    """Largest error in units of what is allowed: relative, and absolute as the row's largest entry where that is > 1."""
    assert got.dtype == dtype
    rtol, atol = TOLERANCE[dtype]
    size = np.abs(want).max(-1, keepdims=True) if want.ndim == 2 else 1.0
    have = got.double().numpy()
    ratio = np.abs(have - want) / (rtol * np.abs(want) + atol * np.maximum(1.0, size))
    return float(np.where(np.isfinite(have), ratio, np.inf).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("setting", named(SETTINGS))
def test_value_and_gradient(setting: dict[str, Any], dtype: torch.dtype) -> None:
    loss = get_loss("ln", **setting, reduction="none")
    assert isinstance(loss, LN)
    name, wrong = spread_name(loss), []
    for K, scale, centre in CASES:
        mean, spread, y, value, *gradients = truths(str(loss), K, scale, centre)
        parts = {"logits": torch.tensor(mean, dtype=dtype)}
        if name:
            parts[name] = torch.tensor(spread, dtype=dtype)
        got, found = run(loss, parts, torch.from_numpy(y))
        for what, have, want in zip(
            ("value", *parts), (got, *found.values()), (value, *gradients)[: 1 + len(parts)], strict=True
        ):
            if not (ratio := excess(have, want, dtype)) <= 1:
                wrong.append(f"{what} at K={K}, logits {centre}±{scale}: {ratio:.3g} times the allowed error")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_roots(dtype: torch.dtype) -> None:
    """From roots that underflow when squared to roots whose covariance is all there is."""
    rng = np.random.default_rng(1)
    loss = LN(reduction="none")
    for size in (1e-40, 1e-20, 1e-6, 1e3, 1e6, 1e15):
        mean, root = rng.normal(size=(4, 10)), float32_numbers(size * rng.normal(size=(4, 10)))
        root[1] = float32_numbers(size * np.sign(mean[1]))
        mean, y = float32_numbers(mean), rng.integers(10, size=4)
        rows = [
            full_truth(residual(m, int(k), loss.tau, loss.t, True), [mpf(float(x)) for x in c], mpf(loss.lam))
            for m, c, k in zip(mean, root, y, strict=True)
        ]
        parts = {"logits": torch.tensor(mean, dtype=dtype), "root": torch.tensor(root, dtype=dtype)}
        got, found = run(loss, parts, torch.from_numpy(y))
        assert excess(got, np.array([float(r[0]) for r in rows]), dtype) <= 1
        for i, gradient in enumerate(found.values()):
            assert excess(gradient, np.array([[float(x) for x in r[1 + i]] for r in rows]), dtype) <= 1, size


@pytest.mark.parametrize("dummy", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_targets(dtype: torch.dtype, dummy: bool) -> None:
    """Another model's prediction: smoothed by t, mapped by S_C⁻¹ (000, section 6), zeros included."""
    rng, K, t, tau, lam = np.random.default_rng(2), 5, 0.01, 0.5, 0.5
    loss = LN(dummy=dummy, reduction="none")
    D = loss.num_outputs(K)
    mean, root = float32_numbers(3 * rng.normal(size=(6, D))), float32_numbers(rng.normal(size=(6, D)))
    target = float32_numbers(rng.dirichlet(np.full(K, 0.3), size=6))
    target[0] = np.eye(K)[K - 1]
    rows = []
    for m, c, p in zip(mean, root, target, strict=True):
        classes = K + dummy
        q = [(1 - mpf(t)) * (mpf(float(p[k])) if k < K else 0) + mpf(t) / classes for k in range(classes)]
        r = [mpf(tau) * mp.log(q[k] / q[-1]) - mpf(float(m[k])) for k in range(D)]
        rows.append(full_truth(r, [mpf(float(x)) for x in c], mpf(lam)))
    parts = {"logits": torch.tensor(mean, dtype=dtype), "root": torch.tensor(root, dtype=dtype)}
    got, found = run(loss, parts, torch.tensor(target, dtype=dtype))
    assert excess(got, np.array([float(r[0]) for r in rows]), dtype) <= 1
    for i, gradient in enumerate(found.values()):
        assert excess(gradient, np.array([[float(x) for x in r[1 + i]] for r in rows]), dtype) <= 1


def test_targets_can_be_learned() -> None:
    loss, generator = LN(), torch.Generator().manual_seed(0)
    mean, root = (torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    target = torch.rand(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: loss(Output(mean, root=root), t), target)


# --- The propositions of paper 000 -----------------------------------------------------------------------------------
def test_target_constants() -> None:
    """B.5 with K' = K + 1 for the dummy class: README's numbers, and Eqs. 25-26."""
    assert LN(tau=1.0)._aim(10) == pytest.approx(6.99393, abs=5e-6)
    assert LN(tau=1.0, dummy=False)._aim(10) == pytest.approx(6.89871, abs=5e-6)
    C = math.log((0.99 * 10 + 0.01) / 0.01)
    aims = -LN(tau=1.0, dummy=False).error(torch.zeros(2, 9), torch.tensor([3, 9]))
    torch.testing.assert_close(aims[0], C * F.one_hot(torch.tensor(3), 9).double())
    torch.testing.assert_close(aims[1], torch.full((9,), -C, dtype=torch.float64))


def residuals(B: int = 5, D: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means, roots, labels and the residuals τy − μ of the default loss, float64."""
    generator = torch.Generator().manual_seed(seed)
    mean, root = (torch.randn(B, D, generator=generator, dtype=torch.float64) for _ in range(2))
    y = torch.randint(D, (B,), generator=generator)
    return mean, root, y, -LN().error(mean, y)


def test_eq_6_the_gradient_is_the_residual_over_the_covariance() -> None:
    mean, root, y, r = residuals()
    loss = LN(reduction="none")
    _, found = run(loss, {"logits": mean, "root": root}, y)
    covariance = loss.distribution(Output(mean, root=root)).logit_covariance()
    torch.testing.assert_close(found["logits"], -torch.linalg.solve(covariance, r))


def test_eq_7_and_8_the_best_covariance_divides_the_gradient_by_the_squared_residual() -> None:
    """c ∥ r with cᵀc = ‖r‖ − λ is a minimum, there Σr = ‖r‖²r (Eq. 20) and ∂L/∂μ = −r/‖r‖² (Eq. 8)."""
    mean, _, y, r = residuals()
    length = r.norm(dim=1, keepdim=True)
    best = r / length * (length - 0.5).sqrt()
    loss = LN(lam=0.5, reduction="none")
    value, found = run(loss, {"logits": mean, "root": best}, y)
    torch.testing.assert_close(found["root"], torch.zeros_like(best), atol=1e-12, rtol=0)
    torch.testing.assert_close(found["logits"], -r / length**2)
    covariance = loss.distribution(Output(mean, root=best)).logit_covariance()
    torch.testing.assert_close((covariance @ r[..., None]).squeeze(2), length**2 * r)
    generator = torch.Generator().manual_seed(1)
    for size in (1e-3, 0.1, 1.0, 10.0):
        other = best + size * torch.randn(best.shape, generator=generator, dtype=torch.float64)
        assert (loss(Output(mean, root=other), y) > value).all()


def test_eq_7_without_lambda_the_optimum_is_the_outer_product() -> None:
    """Among all Σ: for Σ = rrᵀ + εI the gradient of Eq. 17 along r vanishes with ε."""
    r = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for epsilon in (1e-2, 1e-4):
        inverse = torch.linalg.inv(torch.outer(r, r) + epsilon * torch.eye(3, dtype=torch.float64))
        slope = inverse - inverse @ torch.outer(r, r) @ inverse  # Eq. 17
        assert float(r @ slope @ r).__abs__() < 2 * epsilon


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
def test_b_4_lambda_is_the_threshold_of_attenuation(lam: float) -> None:
    """One logit: the best variance is max(λ², r²); below λ the loss is a squared error over λ² (Figure 2)."""
    r = torch.linspace(0.02, 5, 250, dtype=torch.float64)
    loss = LN(lam=lam, tau=1.0, dummy=False, reduction="none")
    mean = (loss._aim(2) - r)[:, None]  # (B, 1); the label is class 0 of two
    label = torch.zeros(len(r), dtype=torch.long)
    best = (r - lam).clamp_min(0).sqrt()[:, None]
    _, found = run(loss, {"logits": mean, "root": best}, label)
    variance = loss.distribution(Output(mean, root=best)).logit_variance[:, 0]
    torch.testing.assert_close(variance, r.square().clamp_min(lam**2))
    torch.testing.assert_close(found["logits"][:, 0], torch.where(r < lam, -r / lam**2, -1 / r))
    torch.testing.assert_close(found["root"], torch.zeros_like(best), atol=1e-10, rtol=0)
    # Eq. 23 with the factor ½ that it lost; where r < λ only c = 0 is stationary.
    for c in (-2.0, -0.3, 0.01, 0.7, 3.0):
        sigma = c**4 + 2 * lam * c**2 + lam**2
        _, found = run(loss, {"logits": mean, "root": torch.full_like(mean, c)}, label)
        eq23 = (sigma - r**2) * (4 * c**3 + 4 * lam * c) / (2 * sigma**2)
        torch.testing.assert_close(found["root"][:, 0], eq23)
        assert (found["root"][r < lam] * c > 0).all()


def test_eq_12_temperature_scales_the_squared_error() -> None:
    """μ at the target of class 1, the label class 0, Σ = I: twice the loss is τ²·‖y_i − y‖²."""
    once = None
    for tau in (1.0, 0.5, 3.0):
        loss = LN(tau=tau, covariance="identity")
        mean = -loss.error(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([1]))
        value = 2 * loss(mean, torch.tensor([0])).item()
        once = value if once is None else once
        assert value == pytest.approx(tau**2 * once, rel=1e-12)
    assert once == pytest.approx(2 * LN(tau=1.0)._aim(4) ** 2, rel=1e-12)


def test_the_dummy_class_treats_all_classes_alike() -> None:
    """Permuting classes permutes the loss with the dummy class, not without (000, section 3.2)."""
    mean, root, _, _ = residuals(D=5)
    order = torch.tensor([4, 2, 0, 1, 3])
    loss = LN(reduction="none")
    for k in range(5):
        y, moved = torch.full((5,), k), torch.full((5,), int((order == k).nonzero()))
        torch.testing.assert_close(
            loss(Output(mean[:, order], root=root[:, order]), moved), loss(Output(mean, root=root), y)
        )
    plain = LN(dummy=False, covariance="identity", tau=1.0, reduction="none")
    at_origin = plain(torch.zeros(2, 4, dtype=torch.float64), torch.tensor([0, 4]))
    assert at_origin[1].item() == pytest.approx(4 * at_origin[0].item())  # (K − 1)·C² against C²


# --- The distribution ------------------------------------------------------------------------------------------------
def distributions(lam: float = 0.4, tau: float = 1.5) -> list[LogisticNormal]:
    mean, root, _, _ = residuals(B=3, D=4)
    variants: list[dict[str, Tensor]] = [{"root": root}, {"scale": root.abs()}, {"scale": root[:, :1].abs()}, {}]
    return [LogisticNormal(mean, **spread, lam=lam, tau=tau) for spread in variants]


def points(B: int, classes: int, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.full(classes, 2.0), size=B))


@pytest.mark.parametrize("which", range(4), ids=["full", "diagonal", "isotropic", "identity"])
def test_log_prob_is_a_normal_density_times_a_jacobian(which: int) -> None:
    """Eq. 4 against scipy's normal density and the determinant of S_C⁻¹'s Jacobian by autograd, D × D."""
    distribution = distributions()[which]
    q = points(3, 5)
    covariance = distribution.logit_covariance()
    for i in range(3):

        def chart(head: Tensor) -> Tensor:
            return inverse_softmax_centred(torch.cat([head, 1 - head.sum()[None]]), distribution.tau)

        jacobian = torch.autograd.functional.jacobian(chart, q[i, :-1])
        normal = stats.multivariate_normal(distribution.loc[i].numpy(), covariance[i].numpy())
        want = normal.logpdf(chart(q[i, :-1]).numpy()) + torch.linalg.slogdet(jacobian).logabsdet.item()
        assert distribution.log_prob(q)[i].item() == pytest.approx(want, rel=1e-9)


def test_density_integrates_to_one() -> None:
    for tau in (0.5, 2.0):
        line = LogisticNormal(torch.tensor([0.7]), root=torch.tensor([0.6]), lam=0.3, tau=tau)

        def density(p: float, line: LogisticNormal = line) -> float:
            return line.log_prob(torch.tensor([p, 1 - p], dtype=torch.float64)).exp().item()

        assert integrate.quad(density, 0, 1, limit=200)[0] == pytest.approx(1, abs=1e-6)


def test_released_nll_counts_the_simplex_as_a_surface() -> None:
    """The released code's −log_prob exceeds Eq. 4 by ½ log(D + 1): its Jacobian is √det JᵀJ of D → D + 1.

    README section 2: beside that constant, NLL = Eq. 5 + D/2·log 2π − D·log τ + Σ_k log q_k.
    """
    mean, root, y, _ = residuals(B=3, D=4)
    loss = LN(lam=0.4, tau=1.5, reduction="none")
    q = loss.smoothed(y, 4)
    assert q.shape == (3, 5) and torch.allclose(q.sum(1), torch.ones(3, dtype=torch.float64))
    ours = -loss.distribution(Output(mean, root=root)).log_prob(q)
    for i in range(3):
        z = inverse_softmax_centred(q[i], 1.5)
        jacobian = torch.autograd.functional.jacobian(lambda z: softmax_centred(z, 1.5), z)  # (5, 4)
        covariance = loss.distribution(Output(mean, root=root)).logit_covariance()[i]
        normal = stats.multivariate_normal(mean[i].numpy(), covariance.numpy())
        released = -normal.logpdf(z.numpy()) + torch.linalg.slogdet(jacobian.T @ jacobian).logabsdet.item() / 2
        assert released - ours[i].item() == pytest.approx(math.log(5) / 2, abs=1e-9)
    eq5 = loss(Output(mean, root=root), y)
    constants = 4 / 2 * math.log(2 * math.pi) - 4 * math.log(1.5) + q.log().sum(1)
    torch.testing.assert_close(ours, eq5 + constants)


@pytest.mark.parametrize("setting", named(SETTINGS))
def test_nll_is_minus_the_log_density(setting: dict[str, Any]) -> None:
    """The same gradients as Eq. 5, and a value that differs by what does not depend on the output."""
    plain, whole = (get_loss("ln", **setting, nll=nll, reduction="none") for nll in (False, True))
    parts, y = parts_of(plain), torch.tensor([0, 3, 1, 4, 3, 2])
    (value, found), (density, same) = run(plain, parts, y), run(whole, parts, y)
    for name in found:
        torch.testing.assert_close(found[name], same[name])
    assert torch.allclose(density - value, (density - value)[0])
    soft = points(6, 5)
    log_prob = plain.distribution(Output(**parts)).log_prob(plain.smoothed(soft, 5))
    torch.testing.assert_close(whole(Output(**parts), soft), -log_prob)


@pytest.mark.parametrize("which", range(4), ids=["full", "diagonal", "isotropic", "identity"])
def test_samples_have_the_moments_of_the_logits(which: int) -> None:
    """Mean and covariance of S_C⁻¹ of 40 000 samples within five standard errors; the global state stays."""
    distribution, n = distributions()[which], 40_000
    state = torch.get_rng_state()
    q = distribution.sample((n,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state()) and not q.requires_grad
    assert q.shape == (n, 3, 5) and torch.allclose(q.sum(-1), torch.ones(n, 3, dtype=torch.float64))
    z = inverse_softmax_centred(q, distribution.tau) - distribution.loc
    covariance = distribution.logit_covariance()
    variance = torch.diagonal(covariance, dim1=1, dim2=2)
    torch.testing.assert_close(distribution.logit_variance, variance)
    assert (z.mean(0).abs() < 5 * (variance / n).sqrt()).all()
    error = torch.einsum("nbi,nbj->bij", z, z) / n - covariance
    assert (error.abs() < 5 * ((variance[:, :, None] * variance[:, None] + covariance**2) / n).sqrt()).all()
    again = distribution.sample((n,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, q)


def test_rsample_carries_gradients_and_shapes_broadcast() -> None:
    root = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loc = torch.zeros(4, requires_grad=True)
    distribution = LogisticNormal(loc, root=root)
    assert distribution.batch_shape == (3,) and distribution.event_shape == (5,)
    distribution.rsample((2,), generator=torch.Generator().manual_seed(0))[..., 0].sum().backward()
    assert loc.grad is not None and root.grad is not None and root.grad.abs().sum() > 0
    assert distribution.log_prob(points(2, 5)[:, None].float()).shape == (2, 3)
    assert distribution.logit_covariance().shape == (3, 4, 4)


def test_distribution_refuses() -> None:
    loc = torch.zeros(2, 3)
    for wrong, match in (
        ({"root": loc, "scale": loc}, "both"),
        ({"root": torch.zeros(2, 4)}, "`root` of 3 columns"),
        ({"scale": torch.zeros(2, 2)}, "`scale` of 3 columns"),
        ({"lam": 0.0}, "`lam`"),
        ({"tau": -1.0}, "`tau`"),
        ({"root": torch.full((2, 3), math.nan)}, "root"),
        ({"scale": -torch.ones(2, 3)}, "scale"),
    ):
        with pytest.raises(ValueError, match=match):
            LogisticNormal(loc, **wrong)
    with pytest.raises(ValueError, match="support"):
        LogisticNormal(loc).log_prob(torch.ones(2, 4))


# --- Cost ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("soft", [False, True], ids=["classes", "real"])
def test_memory_is_linear_in_the_classes(soft: bool) -> None:
    """No tensor beyond (B, K), forward and backward, and a fixed number of those."""
    B, counts = 16, []
    for D in (100, 400):
        generator = torch.Generator().manual_seed(0)
        mean, root = (torch.randn(B, D, generator=generator, requires_grad=True) for _ in range(2))
        target = points(B, D).float() if soft else torch.arange(B)
        with Allocations() as seen:
            LN()(Output(mean, root=root), target).backward()
        assert max(seen.sizes) == B * D
        counts.append(sum(size == B * D for size in seen.sizes))
    assert counts[0] == counts[1] <= 20
