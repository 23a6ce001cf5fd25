"""Logistic-Normal and Het: 60-digit truth, the propositions of the LN paper, quadrature, and what
every loss must do.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
import weakref
from functools import cache
from typing import Any
from unittest import mock

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
from noiseproof.heads import get_head
from noiseproof.losses import LogisticNormal, get_loss
from noiseproof.losses import het as module
from noiseproof.losses.gaussian import LN
from noiseproof.losses.het import Het, draw_noise
from noiseproof.losses.logistic_normal import inverse_softmax_centred, softmax_centred

DTYPES = list(TOLERANCE)
Row = tuple[mpf, list[mpf], list[mpf]]  # loss, its gradient by μ and by what spreads


# --- Truth: the LN paper in 60 digits
# -----------------------------------------------------------------------------------
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
    return mp.matrix(
        [[ci * cj + (lam if i == j else 0) for j, cj in enumerate(c)] for i, ci in enumerate(c)]
    )


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
    return (
        value,
        [-x for x in g],
        [2 * x / (lam + s) - cw * b - cg * a for x, a, b in zip(c, w, g, strict=True)],
    )


def diagonal_truth(r: list[mpf], scale: list[mpf], lam: mpf) -> Row:
    """Eq. 5 for Σ^½ = diag(σ) + λI; one σ stands for all."""
    D, one = len(r), len(scale) == 1
    d = [lam + x for x in (scale * D if one else scale)]
    value = mp.fsum((x / y) ** 2 for x, y in zip(r, d, strict=True)) / 2 + mp.fsum(
        mp.log(y) for y in d
    )
    slopes = [1 / y - x**2 / y**3 for x, y in zip(r, d, strict=True)]
    return (
        value,
        [-x / y**2 for x, y in zip(r, d, strict=True)],
        [mp.fsum(slopes)] if one else slopes,
    )


def replaced(v: list[mpf], i: int, x: mpf) -> list[mpf]:
    return [*v[:i], x, *v[i + 1 :]]


@pytest.mark.parametrize("D", [1, 2, 5])
def test_truth_is_the_definition(D: int) -> None:
    """The O(D) truth equals Eq. 5 with whole matrices, and its gradients are its derivatives."""
    rng, lam, tiny = np.random.default_rng(D), mpf(0.3), mpf(10) ** -20
    r, c = ([mpf(x) for x in rng.normal(size=D)] for _ in range(2))
    scale = [abs(x) for x in c]
    value, of_mean, of_root = full_truth(r, c, lam)
    assert abs(value - eq5_by_matrices(r, full_root(c, lam))) < tiny
    diagonal = diagonal_truth(r, scale, lam)
    assert abs(diagonal[0] - eq5_by_matrices(r, mp.diag([lam + x for x in scale]))) < tiny
    for i in range(D):
        by_r = mp.diff(lambda x, i=i: eq5_by_matrices(replaced(r, i, x), full_root(c, lam)), r[i])
        by_c = mp.diff(lambda x, i=i: eq5_by_matrices(r, full_root(replaced(c, i, x), lam)), c[i])
        by_scale = mp.diff(
            lambda x, i=i: diagonal_truth(r, replaced(scale, i, x), lam)[0], scale[i]
        )
        assert (
            max(abs(by_r + of_mean[i]), abs(by_c - of_root[i]), abs(by_scale - diagonal[2][i]))
            < tiny
        )


# --- Logistic-Normal against it ------------------------------------------------------------------
def float32_numbers(x: np.ndarray) -> np.ndarray:
    """Exactly representable in float32, so that one truth serves both precisions."""
    return x.astype(np.float32).astype(np.float64)


CASES = [(K, scale, 0) for K in (2, 10) for scale in (1, 5, 50, 500)] + [
    (100, 1, 0),
    (100, 50, 0),
    (1000, 5, 0),
    (10, 3, 480),
    (10, 3, -480),
]
ROWS = {2: 8, 10: 8, 100: 3, 1000: 2}
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
    return [
        pytest.param(s, id=",".join(f"{k}={v}" for k, v in s.items()) or "default")
        for s in settings
    ]


def spread_name(loss: LN) -> str | None:
    return next(iter(loss.needs - {"logits"}), None)


def batch(
    loss: LN, K: int, scale: float, centre: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, what spreads them, labels. Some roots point nearly where training drives them: along
    the residual.
    """
    rng = np.random.default_rng([K, int(scale), abs(int(centre))])
    B, D = ROWS[K], loss.num_outputs(K)
    mean = float32_numbers(centre + scale * rng.uniform(-1, 1, size=(B, D)))
    y = rng.integers(K, size=B)
    y[0], y[1] = K - 1, 0
    width = 1 if loss.covariance == "isotropic" else D
    spread = rng.normal(size=(B, width)) * 10.0 ** rng.uniform(-2, 1, size=(B, 1))
    if loss.covariance == "full":
        for i in (1, 3, 5)[: B // 2]:
            r = np.array(
                [float(x) for x in residual(mean[i], int(y[i]), loss.tau, loss.t, loss.dummy)]
            )
            length = np.linalg.norm(r)
            spread[i] = (r / length + 0.01 * rng.normal(size=D)) * math.sqrt(
                max(length - loss.lam, 1e-4)
            )
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
            rows.append(
                (full_truth if loss.covariance == "full" else diagonal_truth)(
                    r, other, mpf(loss.lam)
                )
            )
    gradients = (np.array([[float(g) for g in row[i]] for row in rows]) for i in (1, 2))
    return mean, spread, y, np.array([float(row[0]) for row in rows]), *gradients


def run(
    loss: Any, parts: dict[str, Tensor], target: Tensor, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of every part of an output."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in parts.items()}
    value = loss(Output(**leaves), target, **options)
    found = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
    return value.detach(), {k: g for k, g in zip(leaves, found, strict=True) if g is not None}


def excess(got: Tensor, want: np.ndarray, dtype: torch.dtype) -> float:
    """Largest error in units of what is allowed: relative, and absolute in units of the row's
    largest entry.
    """
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
            ("value", *parts),
            (got, *found.values()),
            (value, *gradients)[: 1 + len(parts)],
            strict=True,
        ):
            if not (ratio := excess(have, want, dtype)) <= 1:
                wrong.append(
                    f"{what} at K={K}, logits {centre}±{scale}: {ratio:.3g} times the allowed error"
                )
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
            full_truth(
                residual(m, int(k), loss.tau, loss.t, True),
                [mpf(float(x)) for x in c],
                mpf(loss.lam),
            )
            for m, c, k in zip(mean, root, y, strict=True)
        ]
        parts = {"logits": torch.tensor(mean, dtype=dtype), "root": torch.tensor(root, dtype=dtype)}
        got, found = run(loss, parts, torch.from_numpy(y))
        assert excess(got, np.array([float(r[0]) for r in rows]), dtype) <= 1
        for i, gradient in enumerate(found.values()):
            assert (
                excess(gradient, np.array([[float(x) for x in r[1 + i]] for r in rows]), dtype) <= 1
            ), size


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_roots_along_the_residual(dtype: torch.dtype, lam: float) -> None:
    """Where training drives c (Eq. 7) the part of the residual across c is all rounding, and weighs
    1/λ².
    """
    rng, loss = np.random.default_rng(4), LN(lam=lam, tau=1.0, reduction="none")
    for D in (2, 10, 100):
        mean, y = float32_numbers(rng.normal(size=(4, D))), rng.integers(D, size=4)
        rs = [residual(m, int(k), loss.tau, loss.t, True) for m, k in zip(mean, y, strict=True)]
        r = np.array([[float(x) for x in row] for row in rs])
        length = np.linalg.norm(r, axis=1, keepdims=True)
        root = float32_numbers(r / length * np.sqrt(length - lam))
        rows = [
            full_truth(row, [mpf(float(x)) for x in c], mpf(lam))
            for row, c in zip(rs, root, strict=True)
        ]
        parts = {"logits": torch.tensor(mean, dtype=dtype), "root": torch.tensor(root, dtype=dtype)}
        got, found = run(loss, parts, torch.from_numpy(y))
        assert excess(got, np.array([float(row[0]) for row in rows]), dtype) <= 1
        for i, gradient in enumerate(found.values()):
            assert (
                excess(gradient, np.array([[float(x) for x in row[1 + i]] for row in rows]), dtype)
                <= 1
            ), D


@pytest.mark.parametrize("dummy", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_targets(dtype: torch.dtype, dummy: bool) -> None:
    """Another model's prediction: smoothed by t, mapped by S_C⁻¹ (LN paper, section 6), zeros
    included.
    """
    rng, K, t, tau, lam = np.random.default_rng(2), 5, 0.01, 0.5, 0.5
    loss = LN(dummy=dummy, reduction="none")
    D = loss.num_outputs(K)
    mean, root = (
        float32_numbers(3 * rng.normal(size=(6, D))),
        float32_numbers(rng.normal(size=(6, D))),
    )
    target = float32_numbers(rng.dirichlet(np.full(K, 0.3), size=6))
    target[0] = np.eye(K)[K - 1]
    rows = []
    for m, c, p in zip(mean, root, target, strict=True):
        classes = K + dummy
        q = [
            (1 - mpf(t)) * (mpf(float(p[k])) if k < K else 0) + mpf(t) / classes
            for k in range(classes)
        ]
        r = [mpf(tau) * mp.log(q[k] / q[-1]) - mpf(float(m[k])) for k in range(D)]
        rows.append(full_truth(r, [mpf(float(x)) for x in c], mpf(lam)))
    parts = {"logits": torch.tensor(mean, dtype=dtype), "root": torch.tensor(root, dtype=dtype)}
    got, found = run(loss, parts, torch.tensor(target, dtype=dtype))
    assert excess(got, np.array([float(r[0]) for r in rows]), dtype) <= 1
    for i, gradient in enumerate(found.values()):
        assert excess(gradient, np.array([[float(x) for x in r[1 + i]] for r in rows]), dtype) <= 1


# --- The propositions of the LN paper
# -----------------------------------------------------------------------------------
def test_target_constants() -> None:
    """B.5 with K' = K + 1 for the dummy class: README's numbers, and Eqs. 25-26."""
    assert LN(tau=1.0).label_logit(10) == pytest.approx(6.99393, abs=5e-6)
    assert LN(tau=1.0, dummy=False).label_logit(10) == pytest.approx(6.89871, abs=5e-6)
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
    covariance = logit_covariance(loss.distribution(Output(mean, root=root)))
    torch.testing.assert_close(found["logits"], -torch.linalg.solve(covariance, r))


def test_eq_7_and_8_the_best_covariance_divides_the_gradient_by_the_squared_residual() -> None:
    """c ∥ r with cᵀc = ‖r‖ − λ is a minimum, there Σr = ‖r‖²r (Eq. 20) and ∂L/∂μ = −r/‖r‖² (Eq.
    8).
    """
    mean, _, y, r = residuals()
    length = r.norm(dim=1, keepdim=True)
    best = r / length * (length - 0.5).sqrt()
    loss = LN(lam=0.5, reduction="none")
    value, found = run(loss, {"logits": mean, "root": best}, y)
    torch.testing.assert_close(found["root"], torch.zeros_like(best), atol=1e-12, rtol=0)
    torch.testing.assert_close(found["logits"], -r / length**2)
    covariance = logit_covariance(loss.distribution(Output(mean, root=best)))
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
    """One logit: the best variance is max(λ², r²); below λ the loss is a squared error over λ²
    (Figure 2).
    """
    r = torch.linspace(0.02, 5, 250, dtype=torch.float64)
    loss = LN(lam=lam, tau=1.0, dummy=False, reduction="none")
    mean = (loss.label_logit(2) - r)[:, None]  # (B, 1); the label is class 0 of two
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
    assert once == pytest.approx(2 * LN(tau=1.0).label_logit(4) ** 2, rel=1e-12)


def test_the_dummy_class_treats_all_classes_alike() -> None:
    """Permuting classes permutes the loss with the dummy class, not without (LN paper, section
    3.2).
    """
    mean, root, _, _ = residuals(D=5)
    order = torch.tensor([4, 2, 0, 1, 3])
    loss = LN(reduction="none")
    for k in range(5):
        y, moved = torch.full((5,), k), torch.full((5,), int((order == k).nonzero()))
        torch.testing.assert_close(
            loss(Output(mean[:, order], root=root[:, order]), moved),
            loss(Output(mean, root=root), y),
        )
    plain = LN(dummy=False, covariance="identity", tau=1.0, reduction="none")
    at_origin = plain(torch.zeros(2, 4, dtype=torch.float64), torch.tensor([0, 4]))
    assert at_origin[1].item() == pytest.approx(4 * at_origin[0].item())  # (K − 1)·C² against C²


# --- The distribution ----------------------------------------------------------------------------
def logit_covariance(distribution: LogisticNormal) -> Tensor:
    """Σ = Σ^½·Σ^½ (…, D, D), from its root."""
    loc, root, scale = distribution.loc, distribution.root, distribution.scale
    half = torch.diag_embed(torch.full_like(loc, distribution.lam))
    if root is not None:
        half = half + root[..., :, None] * root[..., None, :]
    if scale is not None:
        half = half + torch.diag_embed(scale.expand_as(loc))
    return half @ half


def distributions(lam: float = 0.4, tau: float = 1.5) -> list[LogisticNormal]:
    mean, root, _, _ = residuals(B=3, D=4)
    variants: list[dict[str, Tensor]] = [
        {"root": root},
        {"scale": root.abs()},
        {"scale": root[:, :1].abs()},
        {},
    ]
    return [LogisticNormal(mean, **spread, lam=lam, tau=tau) for spread in variants]


def points(B: int, classes: int, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.full(classes, 2.0), size=B))


@pytest.mark.parametrize("which", range(4), ids=["full", "diagonal", "isotropic", "identity"])
def test_log_prob_is_a_normal_density_times_a_jacobian(which: int) -> None:
    """Eq. 4 against scipy's normal density and the determinant of S_C⁻¹'s Jacobian by autograd, D ×
    D.
    """
    distribution = distributions()[which]
    q = points(3, 5)
    covariance = logit_covariance(distribution)
    for i in range(3):

        def chart(head: Tensor) -> Tensor:
            return inverse_softmax_centred(
                torch.cat([head, 1 - head.sum()[None]]), distribution.tau
            )

        jacobian = torch.autograd.functional.jacobian(chart, q[i, :-1])
        normal = stats.multivariate_normal(distribution.loc[i].numpy(), covariance[i].numpy())
        want = (
            normal.logpdf(chart(q[i, :-1]).numpy())
            + torch.linalg.slogdet(jacobian).logabsdet.item()
        )
        assert distribution.log_prob(q)[i].item() == pytest.approx(want, rel=1e-9)


def test_density_integrates_to_one() -> None:
    for tau in (0.5, 2.0):
        line = LogisticNormal(torch.tensor([0.7]), root=torch.tensor([0.6]), lam=0.3, tau=tau)

        def density(p: float, line: LogisticNormal = line) -> float:
            return line.log_prob(torch.tensor([p, 1 - p], dtype=torch.float64)).exp().item()

        assert integrate.quad(density, 0, 1, limit=200)[0] == pytest.approx(1, abs=1e-6)


def test_released_nll_counts_the_simplex_as_a_surface() -> None:
    """The released code's −log_prob exceeds Eq. 4 by ½ log(D + 1): its Jacobian is √det JᵀJ of D →
    D + 1.

    README section 2: beside that constant, NLL = Eq. 5 + D/2·log 2π − D·log τ + Σ_k log q_k.
    """
    mean, root, y, _ = residuals(B=3, D=4)
    loss = LN(lam=0.4, tau=1.5, reduction="none")
    q = 0.99 * F.one_hot(y, 5).double() + 0.01 / 5
    ours = -loss.distribution(Output(mean, root=root)).log_prob(q)
    for i in range(3):
        z = inverse_softmax_centred(q[i], 1.5)
        # (5, 4)
        jacobian = torch.autograd.functional.jacobian(lambda z: softmax_centred(z, 1.5), z)
        covariance = logit_covariance(loss.distribution(Output(mean, root=root)))[i]
        normal = stats.multivariate_normal(mean[i].numpy(), covariance.numpy())
        released = (
            -normal.logpdf(z.numpy())
            + torch.linalg.slogdet(jacobian.T @ jacobian).logabsdet.item() / 2
        )
        assert released - ours[i].item() == pytest.approx(math.log(5) / 2, abs=1e-9)
    eq5 = loss(Output(mean, root=root), y)
    constants = 4 / 2 * math.log(2 * math.pi) - 4 * math.log(1.5) + q.log().sum(1)
    torch.testing.assert_close(ours, eq5 + constants)


@pytest.mark.parametrize("which", range(4), ids=["full", "diagonal", "isotropic", "identity"])
def test_samples_have_the_moments_of_the_logits(which: int) -> None:
    """Mean and covariance of S_C⁻¹ of 40 000 samples within five standard errors; the global state
    stays.
    """
    distribution, n = distributions()[which], 40_000
    state = torch.get_rng_state()
    q = distribution.sample((n,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state()) and not q.requires_grad
    assert q.shape == (n, 3, 5) and torch.allclose(q.sum(-1), torch.ones(n, 3, dtype=torch.float64))
    z = inverse_softmax_centred(q, distribution.tau) - distribution.loc
    covariance = logit_covariance(distribution)
    variance = torch.diagonal(covariance, dim1=1, dim2=2)
    torch.testing.assert_close(distribution.logit_variance, variance)
    assert (z.mean(0).abs() < 5 * (variance / n).sqrt()).all()
    error = torch.einsum("nbi,nbj->bij", z, z) / n - covariance
    assert (
        error.abs() < 5 * ((variance[:, :, None] * variance[:, None] + covariance**2) / n).sqrt()
    ).all()
    again = distribution.sample((n,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, q)


def test_distribution_refuses() -> None:
    loc = torch.zeros(2, 3)
    for wrong, match in (
        ({"root": loc, "scale": loc}, "both"),
        ({"lam": 0.0}, "`lam`"),
        ({"tau": -1.0}, "`tau`"),
    ):
        with pytest.raises(ValueError, match=match):
            LogisticNormal(loc, **wrong)  # type: ignore[arg-type]


# --- Cost ----------------------------------------------------------------------------------------
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
    assert counts[0] == counts[1]


# --- What every loss must do ---------------------------------------------------------------------
B, K = 6, 5
LABELS = torch.tensor([0, 3, 1, 4, 3, 2])
SPECS = [
    "ln",
    "ln:dummy=false",
    "ln:covariance=diagonal",
    "ln:covariance=isotropic",
    "ln:covariance=identity",
    "het:samples=7",
    "het:samples=7,covariance=full,tau=0.7",
]
every_loss = pytest.mark.parametrize("spec", SPECS)


def parts_of(loss: Any, rows: int = B, num_classes: int = K, seed: int = 3) -> dict[str, Tensor]:
    """An output with the fields that ``loss`` needs, float64."""
    generator = torch.Generator().manual_seed(seed)
    D = loss.num_outputs(num_classes)
    shapes = {
        "root": (D,),
        "scale": (1 if loss.covariance == "isotropic" else D,),
        "factors": (D, 2),
    }
    parts = {"logits": 2 * torch.randn(rows, D, generator=generator, dtype=torch.float64)}
    for name in sorted(loss.needs - {"logits"}):
        parts[name] = torch.randn(rows, *shapes[name], generator=generator, dtype=torch.float64)
        parts[name] = parts[name].abs() + 0.1 if name == "scale" else parts[name]
    return parts


def pick(parts: dict[str, Tensor], rows: Any) -> dict[str, Tensor]:
    return {name: x[rows] for name, x in parts.items()}


@every_loss
def test_gradcheck(spec: str) -> None:
    loss = get_loss(spec)
    parts = pick(parts_of(loss), slice(0, 3))
    for target in (LABELS[:3], points(3, K)):

        def function(*fields: Tensor, target: Tensor = target) -> Any:
            return loss(Output(**dict(zip(parts, fields, strict=True))), target)

        inputs = [x.requires_grad_() for x in parts.values()]
        assert torch.autograd.gradcheck(function, inputs)
        if spec.startswith("ln"):
            assert torch.autograd.gradgradcheck(function, inputs)


@every_loss
def test_class_label_equals_one_hot_target(spec: str) -> None:
    for weight in (None, torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)):
        loss = get_loss(spec, reduction="none", weight=weight)
        parts = parts_of(loss)
        (value, found), (same, also) = (
            run(loss, parts, LABELS),
            run(loss, parts, F.one_hot(LABELS, K).double()),
        )
        torch.testing.assert_close(value, same)
        for name in found:
            torch.testing.assert_close(found[name], also[name])


@every_loss
def test_order_of_the_batch_does_not_matter(spec: str) -> None:
    loss = get_loss(spec, reduction="none")
    parts, order = parts_of(loss), torch.tensor([3, 0, 5, 1, 4, 2])
    if spec.startswith("het"):
        pytest.skip("a row's noise depends on its place in the batch")
    value, found = run(loss, parts, LABELS)
    moved, also = run(loss, pick(parts, order), LABELS[order])
    torch.testing.assert_close(moved, value[order])
    for name in found:
        torch.testing.assert_close(also[name], found[name][order])
    if spec.startswith("ln"):
        alone = torch.cat(
            [loss(Output(**pick(parts, slice(i, i + 1))), LABELS[i : i + 1]) for i in range(B)]
        )
        torch.testing.assert_close(alone, value)


@every_loss
def test_weights_and_reduction(spec: str) -> None:
    """By hand: rows times weight[y] times sample_weight; mean over Σ weight[y] of the rows that
    count.
    """
    weight = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)
    row_weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.5, 1.0], dtype=torch.float64)
    parts = parts_of(get_loss(spec))
    rows = get_loss(spec, reduction="none")(Output(**parts), LABELS)
    for ignore_index, labels in ((-100, LABELS.masked_fill(LABELS == 3, -100)), (3, LABELS)):
        counted = LABELS != 3
        share = weight[LABELS] * counted
        want = rows * share * row_weight
        for reduction, expected in (
            ("none", want),
            ("sum", want.sum()),
            ("mean", want.sum() / share.sum()),
        ):
            loss = get_loss(spec, reduction=reduction, weight=weight, ignore_index=ignore_index)
            value, found = run(loss, parts, labels, sample_weight=row_weight)
            torch.testing.assert_close(value, expected)
            assert all(gradient[~counted].abs().sum() == 0 for gradient in found.values())
    assert get_loss(spec)(Output(**parts), LABELS).item() == pytest.approx(rows.mean().item())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_half_precision(spec: str, dtype: torch.dtype) -> None:
    """The dtype of the logits comes back, near the loss of the same numbers in float64, and finite
    far out.
    """
    loss = get_loss(spec, reduction="none")
    parts = {name: x.to(dtype) for name, x in parts_of(loss).items()}
    for target in (LABELS, points(B, K).to(dtype)):
        value, found = run(loss, parts, target)
        assert value.dtype == dtype and all(
            g.dtype == dtype and g.isfinite().all() for g in found.values()
        )
        if spec.startswith("ln"):
            wide = {name: x.double() for name, x in parts.items()}
            want, also = run(loss, wide, target if target.dim() == 1 else target.double())
            torch.testing.assert_close(value.double(), want, rtol=2e-2, atol=2e-2)
            for name in found:
                torch.testing.assert_close(found[name].double(), also[name], rtol=2e-2, atol=2e-2)
    # float16 ends at 65504, which a squared error of 100/λ passes
    parts["logits"] = parts["logits"].sign() * 30
    assert all(
        x.isfinite().all()
        for x in (run(loss, parts, LABELS)[0], *run(loss, parts, LABELS)[1].values())
    )


@every_loss
def test_nan_logits_never_become_a_finite_loss(spec: str) -> None:
    loss = get_loss(spec, reduction="none")
    for target in (LABELS, points(B, K)):
        parts = parts_of(loss)
        parts["logits"][1, 0] = math.nan
        value = loss(Output(**parts), target)
        assert value[1].isnan() and value[[0, 2, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("spec", [s for s in SPECS if s.startswith("ln")])
def test_compiled_and_functional(spec: str) -> None:
    torch._dynamo.reset()
    loss = get_loss(spec)
    parts = parts_of(loss)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for target in (LABELS, points(B, K)):
        value, found = run(loss, parts, target)
        same, also = run(fast, parts, target)
        torch.testing.assert_close(same, value)

        def of_row(row: dict[str, Tensor], t: Tensor) -> Tensor:
            return loss(Output(**{name: x[None] for name, x in row.items()}), t[None])

        mapped = torch.func.vmap(torch.func.grad(of_row))(parts, target)
        for name in found:
            torch.testing.assert_close(also[name], found[name])
            torch.testing.assert_close(mapped[name] / B, found[name])


def test_compiled_het_breaks_the_graph_and_stays_right() -> None:
    torch._dynamo.reset()
    loss = get_loss("het:samples=7")
    parts = parts_of(loss)
    fast = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(fast(Output(**parts), LABELS), loss(Output(**parts), LABELS))


@every_loss
def test_copies_and_specs_are_the_same_loss(spec: str) -> None:
    weight = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)
    loss = get_loss(spec, weight=weight, ignore_index=4)
    parts = parts_of(loss)
    want = loss(Output(**parts), LABELS)
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    again = get_loss(str(loss), weight=weight, ignore_index=4)
    assert str(again) == str(loss)
    copies = (
        copy.deepcopy(loss),
        pickle.loads(pickle.dumps(loss)),
        torch.load(file, weights_only=False),
        again,
    )
    for copied in (*copies, loss.with_hyperparameters(**loss.hyperparameters)):
        torch.testing.assert_close(copied(Output(**parts), LABELS), want)
        assert copied.needs == loss.needs and copied.num_outputs(K) == loss.num_outputs(K)


@every_loss
def test_labels_outside_the_classes(spec: str) -> None:
    loss = get_loss(spec)
    for label in (K, -1, 10**6):
        labels = torch.tensor([0, 1, label, 1, 0, 1])
        with pytest.raises(ValueError, match=f"labels in 0 … {K - 1}, got {label} at position 2"):
            loss(Output(**parts_of(loss)), labels)


@every_loss
def test_missing_and_misshapen_fields(spec: str) -> None:
    loss = get_loss(spec)
    parts = parts_of(loss)
    for name in loss.needs - {"logits"}:
        for wrong in (
            None,
            parts[name][:3],
            parts[name][:, :-1] if parts[name].shape[1] > 1 else parts[name][:, 0],
        ):
            with pytest.raises(ValueError, match=f"`{name}` of shape"):
                loss(Output(**{**parts, name: wrong}), LABELS)
    with pytest.raises(ValueError, match="target of shape"):
        loss(Output(**parts), torch.ones(B, K + 1, dtype=torch.float64))


def test_ln_refuses() -> None:
    out = Output(torch.zeros(2, 3), root=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="probabilities in the target of ln, got -0.25"):
        LN()(out, torch.tensor([[1.25, -0.25, 0.0], [1.0, 0.0, 0.0]]))
    for lam in (0, -1, 1e-9, math.nan):
        with pytest.raises(ValueError, match="`lam`"):
            LN(lam=lam)
    with pytest.raises(ValueError, match="one of"):
        LN(covariance="low-rank")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_loss
def test_on_a_gpu(spec: str) -> None:
    """ln: the CPU's numbers, without waiting for the device; het draws other noise there, the same
    at every call.
    """
    loss = get_loss(spec, reduction="none")
    parts = parts_of(loss)
    there = {name: x.cuda() for name, x in parts.items()}
    for target in (LABELS, points(B, K)):
        value, found = run(loss, parts, target)
        run(loss, there, target.cuda())
        moved = target.cuda()
        torch.cuda.set_sync_debug_mode("error" if spec.startswith("ln") else "default")
        try:
            got, also = run(loss, there, moved)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if spec.startswith("ln"):
            torch.testing.assert_close(got.cpu(), value, rtol=1e-9, atol=1e-12)
            for name in found:
                torch.testing.assert_close(also[name].cpu(), found[name], rtol=1e-9, atol=1e-12)
        else:
            torch.testing.assert_close(got, run(loss, there, moved)[0])


# --- Prediction ----------------------------------------------------------------------------------
def test_ln_scores() -> None:
    """softmax(scores) is S_C(μ/τ) with the dummy class dropped and renormalised."""
    mean = torch.tensor([[1.0, -0.5, 0.25]])
    with_dummy = softmax_centred(mean, 0.5)
    dropped = with_dummy[:, :3] / with_dummy[:, :3].sum()
    out = Output(mean, root=mean)
    torch.testing.assert_close(LN(tau=0.5).scores(out).softmax(1), dropped)
    loss = LN(tau=0.5, dummy=False)
    torch.testing.assert_close(loss.scores(out).softmax(1), with_dummy)
    assert loss.num_outputs(4) == 3 and LN().num_outputs(4) == 4


# --- Het -----------------------------------------------------------------------------------------
def noise_of(
    loss: Het, parts: dict[str, Tensor], seed: int = 0, pieces: tuple[int, ...] = ()
) -> list[Any]:
    """Chunks of fixed noise, split as ``pieces`` says."""
    rows, K = parts["logits"].shape
    rank = parts["factors"].shape[2] if "factors" in parts else 0
    generator = torch.Generator().manual_seed(seed)
    like = {"generator": generator, "dtype": torch.float64}
    each, across = (
        torch.randn(loss.samples, rows, K, **like),
        torch.randn(loss.samples, rows, max(rank, 1), **like),
    )
    each, across = (x.float().to(parts["logits"].dtype) for x in (each, across))
    sizes = list(pieces or (loss.samples,))
    return [
        (a, b if rank else None)
        for a, b in zip(each.split(sizes), across.split(sizes), strict=True)
    ]


def het_truth(
    parts: dict[str, Tensor], chunks: list[Any], tau: float, y: int, row: int
) -> tuple[mpf, dict[str, Any]]:
    """−log mean_s softmax(u_s/τ)_y of one row and its gradients, in 60 digits."""
    mean, scale = ([mpf(x) for x in parts[name][row].tolist()] for name in ("logits", "scale"))
    factors = (
        [[mpf(x) for x in line] for line in parts["factors"][row].tolist()]
        if "factors" in parts
        else None
    )
    K, temperature = len(mean), mpf(tau)
    sums = {"p": mpf(0), "logits": [mpf(0)] * K, "scale": [mpf(0)] * K}
    sums["factors"] = [[mpf(0)] * len(factors[0]) for _ in range(K)] if factors else []
    samples = 0
    for each, across in chunks:
        for s in range(len(each)):
            noise = [mpf(x) for x in each[s, row].tolist()]
            wide = [mpf(x) for x in across[s, row].tolist()] if factors else []
            u = [m + d * n for m, d, n in zip(mean, scale, noise, strict=True)]
            if factors:
                u = [
                    a + mp.fsum(v * w for v, w in zip(line, wide, strict=True))
                    for a, line in zip(u, factors, strict=True)
                ]
            exps = [mp.exp((a - max(u)) / temperature) for a in u]
            total = mp.fsum(exps)
            p = [e / total for e in exps]
            sums["p"] += p[y]
            samples += 1
            for k in range(K):
                slope = p[y] * ((k == y) - p[k]) / temperature  # dp_y/du_k
                sums["logits"][k] += slope
                sums["scale"][k] += slope * noise[k]
                for j, w in enumerate(wide):
                    sums["factors"][k][j] += slope * w
    gradients = {name: -np.array(sums[name]) / sums["p"] for name in parts}
    return -mp.log(sums["p"] / samples), {name: g.astype(float) for name, g in gradients.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_het_against_the_same_noise_in_60_digits(
    covariance: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for classes, size, centre, tau in (
        (2, 1, 0, 1.0),
        (5, 5, 0, 0.5),
        (10, 50, 0, 20.0),
        (6, 500, 0, 1.0),
        (4, 3, 480, 1),
    ):
        loss = Het(tau=tau, samples=20, covariance=covariance, reduction="none")
        parts = parts_of(loss, 3, classes, seed=classes)
        parts["logits"] = centre + size * parts["logits"] / 2
        parts = {name: x.float().to(dtype) for name, x in parts.items()}
        chunks = noise_of(loss, parts, pieces=(7, 13))
        monkeypatch.setattr(module, "draw_noise", lambda *args, chunks=chunks, **kwargs: chunks)
        y = parts["logits"].argmax(1)
        y[0] = parts["logits"][0].argmin()
        value, found = run(loss, parts, y)
        truth = [het_truth(parts, chunks, tau, int(y[row]), row) for row in range(3)]
        # Noisy logits round at their own size; a label 500 below the top weighs its samples by the
        # digits left.
        allowed = 5 if size == 500 and dtype is torch.float32 else 1
        assert excess(value, np.array([float(v) for v, _ in truth]), dtype) <= allowed, (
            classes,
            size,
        )
        for name, gradient in found.items():
            want = np.stack([g[name] for _, g in truth])
            assert excess(gradient.flatten(1), want.reshape(3, -1), dtype) <= allowed, (
                classes,
                size,
                name,
            )


def quadrature(
    mean: np.ndarray, d: np.ndarray, v: np.ndarray | None = None, tau: float = 1.0
) -> np.ndarray:
    """E softmax((μ + vε + d·ε′)/τ) exactly, (K,): no sampling.

    With 1/Σ_k e^u_k = ∫₀^∞ exp(−t Σ_k e^u_k) dt the expectation over independent u_k is a
    one-dimensional integral over x = log t of a product of one-dimensional ones; ε of a single
    factor is one more, outside.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    x = np.arange(-30, 30, 0.1)
    total = np.zeros(len(mean))
    for outer, share in [(0.0, 1.0)] if v is None else zip(nodes, weights, strict=True):
        centre = mean if v is None else mean + v * outer
        u = (centre[:, None] + d[:, None] * nodes) / tau  # (K, n)
        rate = np.exp(np.minimum(u[:, :, None] + x, 300))  # (K, n, x)
        survive = np.exp(-rate)
        each, rising = (np.einsum("n,knx->kx", weights, part) for part in (survive, rate * survive))
        others = [np.prod(np.delete(each, k, 0), 0) for k in range(len(mean))]
        total += share * (rising * others).sum(1) * 0.1
    return total


def test_quadrature_is_right() -> None:
    """Where it is known: no noise, symmetry, and two classes as one logistic-normal integral."""
    mean = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(
        quadrature(mean, np.zeros(3)), np.exp(mean) / np.exp(mean).sum(), rtol=1e-9
    )
    d, v = np.array([0.7, 1.5]), np.array([0.4, -1.1])
    spread = math.sqrt((d**2).sum() + (v[0] - v[1]) ** 2)
    want = integrate.quad(
        lambda e: stats.norm.pdf(e) / (1 + math.exp(-(0.8 + spread * e) / 1.7)), -12, 12
    )[0]
    got = quadrature(np.array([0.5, -0.3]), d, v, tau=1.7)
    assert got[0] == pytest.approx(want, rel=1e-8) and got.sum() == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("classes", "tau"), [(2, 1.0), (5, 0.5), (10, 1.0)])
def test_het_is_within_its_standard_error_of_the_truth(classes: int, tau: float, rank: int) -> None:
    """20 000 samples against quadrature: the probabilities, and the gradients by μ (Eq. 14) and
    d.
    """
    rng, samples = np.random.default_rng(classes), 20_000
    mean, d, v = rng.normal(size=classes), 0.2 + rng.uniform(size=classes), rng.normal(size=classes)
    parts = {"logits": torch.tensor(mean)[None], "scale": torch.tensor(d)[None]}
    if rank:
        parts["factors"] = torch.tensor(v)[None, :, None]
    loss = Het(tau=tau, samples=samples, covariance="full" if rank else "diagonal")
    exact = quadrature(mean, d, v if rank else None, tau)
    p = loss.scores(Output(**parts)).exp()[0].numpy()
    error = np.sqrt(exact * (1 - exact) / samples)  # no softmax spreads more than a coin
    assert (np.abs(p - exact) < 5 * error).all()
    _, found = run(loss, parts, torch.tensor([1]))
    h = 1e-3
    for name in ("logits", "scale"):
        for k in (0, 1):
            step = h * np.eye(classes)[k]
            moved = [
                (mean + sign * step, d) if name == "logits" else (mean, d + sign * step)
                for sign in (1, -1)
            ]
            low, high = (math.log(quadrature(*at, v if rank else None, tau)[1]) for at in moved)
            # A softmax moves by at most 1/(4τ) with a logit and |ε|/(4τ) with its scale, over p_y.
            spread = 1 / (tau * exact[1] * math.sqrt(samples))
            assert abs(found[name][0, k].item() - (high - low) / (2 * h)) < 3 * spread + 1e-4


def test_het_without_noise_is_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, K, generator=generator)
    out = Output(logits, scale=torch.zeros(B, 1))
    for tau in (1.0, 0.5):
        torch.testing.assert_close(
            Het(tau=tau, samples=3)(out, LABELS), F.cross_entropy(logits / tau, LABELS)
        )


def test_het_noise_is_drawn_for_each_class_and_factor() -> None:
    """Equal scales do not cancel (one scalar for all classes would), and with R = K no two noises
    are the same.
    """
    out = Output(torch.zeros(4, 3), scale=torch.full((4, 3), 2.0))
    p = Het(samples=1).scores(out)
    assert (p.std(1) > 0.1).all() and len({tuple(row) for row in p.tolist()}) == 4
    each, across = next(draw_noise(torch.zeros(4, 3), 3, samples=5, source=0, rows=4))
    assert (
        across is not None and each.shape == across.shape and not torch.isclose(each, across).any()
    )
    each, across = next(draw_noise(torch.zeros(4, 3), 2, samples=5, source=0, rows=1))
    assert across is not None and each.shape == (5, 1, 3) and across.shape == (5, 1, 2)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_het_draws_once_a_step_from_a_generator(
    covariance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph can hold a generator and no seed: loss, way back and prediction of a step then
    share one draw.
    """
    loss = Het(samples=40, covariance=covariance, tau=0.5)  # type: ignore[arg-type]
    parts = {name: value.requires_grad_() for name, value in parts_of(loss).items()}
    out = Output(**parts)
    # several, drawn again else
    monkeypatch.setattr("noiseproof.losses.het.CHUNK", 7 * out.logits.numel())

    def step(source: torch.Generator | None, seed: int) -> list[torch.Tensor]:
        loss.set_step(seed, source)
        value = loss(out, LABELS)
        return [value, loss.scores(out), *torch.autograd.grad(value, list(parts.values()))]

    def seeded(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    source = int(np.random.SeedSequence([0, 4]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    for one, other in zip(step(seeded(source), 9), step(None, 3), strict=True):
        torch.testing.assert_close(one, other)
    generator = seeded(1)
    first, second = step(generator, 0), step(generator, 0)
    assert not torch.equal(first[0], second[0])
    loss.set_step(0)
    assert torch.equal(loss(out, LABELS), step(None, 0)[0]) and not loss._drawn
    loss.set_step(0, generator)
    loss.eval()
    assert torch.equal(
        loss(out, LABELS), Het(samples=40, covariance=covariance, tau=0.5).eval()(out, LABELS)
    )  # type: ignore[arg-type]


def test_het_averages_once_a_step_for_the_loss_and_for_who_watches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = Het(samples=9)
    out = Output(**{name: value.requires_grad_() for name, value in parts_of(loss).items()})
    spy = mock.Mock(wraps=module._MeanSoftmax.apply)
    monkeypatch.setattr(module, "_MeanSoftmax", mock.Mock(apply=spy))
    loss.set_step(3, torch.Generator())
    value = loss(out, LABELS)
    with torch.no_grad():
        log_p = loss.scores(out)
        assert spy.call_count == 1
        torch.testing.assert_close(F.nll_loss(log_p, LABELS), value)
        # another output
        assert not torch.equal(loss.scores(out._replace(scale=2 * out.scale)), log_p)
    # a gradient is not kept
    assert torch.equal(loss.scores(out), log_p) and loss.scores(out).requires_grad
    copies = (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)))
    assert all(made._last is None for made in copies)
    activation = torch.zeros(B, K, requires_grad=True) * 1
    loss(out._replace(logits=activation), LABELS)
    gone = weakref.ref(activation)
    del activation
    assert gone() is None  # nor what it was made of
    with torch.no_grad():
        loss.set_step(4, torch.Generator().manual_seed(4))
        assert not torch.equal(loss.scores(out), log_p)
        assert torch.equal(loss.eval().scores(out), Het(samples=9).eval().scores(out))


def test_het_draws_depend_on_seed_and_step_only() -> None:
    """A fresh loss at the same step draws the same: what a resumed run relies on. The global state
    is not touched.
    """
    out = Output(**parts_of(Het()))
    state = torch.get_rng_state()

    def value(step: int | None, seed: int = 0, train: bool = True) -> float:
        loss = Het(samples=5, seed=seed).train(train)
        if step is not None:
            loss.set_step(step)
        return float(loss(out, LABELS))

    assert value(7) == value(7) and value(None) == value(0)
    assert (
        len({value(0), value(7), value(8), value(7, seed=1), value(7, train=False), value(2**62)})
        == 6
    )
    assert value(7, train=False) == value(8, train=False)
    moved = get_loss("ce + 0.5*het:samples=5")
    moved.set_step(3)
    first = float(moved(out, LABELS))
    moved.set_step(4)
    assert float(moved(out, LABELS)) != first
    assert torch.equal(state, torch.get_rng_state())


def test_het_memory_does_not_grow_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing larger than a chunk is ever made, and what waits for the way back does not depend on
    the samples.
    """
    monkeypatch.setattr(module, "CHUNK", 10 * B * K)
    kept = []
    for samples in (10, 1000):
        loss = Het(samples=samples, covariance="full")
        parts = {name: x.requires_grad_() for name, x in parts_of(loss).items()}
        saved: list[int] = []

        def keep(x: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(x.numel())
            return x

        with Allocations() as seen, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss(Output(**parts), LABELS).backward()
        assert max(seen.sizes) <= 10 * B * K
        kept.append(sum(saved))
    assert kept[0] == kept[1]


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_het_prediction_of_a_row_depends_on_that_row_alone(
    covariance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rows are in the call, and in however many chunks their noisy logits are made."""
    loss = Het(samples=40, covariance=covariance)  # type: ignore[arg-type]
    out = Output(**parts_of(loss))

    def scores(rows: slice) -> Tensor:
        return loss.scores(Output._make(None if part is None else part[rows] for part in out))

    once = loss.eval().scores(out)
    for room in (10**6, 40 * K, 7 * K):
        monkeypatch.setattr(module, "CHUNK", room)
        whole = loss.scores(out)
        torch.testing.assert_close(torch.cat([scores(slice(i, i + 1)) for i in range(B)]), whole)
        torch.testing.assert_close(scores(slice(2, None)), whole[2:])
        if room >= 40 * K:  # what is drawn at a time is that of a row
            torch.testing.assert_close(whole, once)
    loss.train()
    # in training rows differ
    assert not torch.isclose(scores(slice(1, 2)), loss.scores(out)[1:2]).all()


def test_het_refuses() -> None:
    for samples in (0, -1, 1.5):
        with pytest.raises(ValueError, match="samples"):
            Het(samples=samples)
    with pytest.raises(ValueError, match="one of diagonal, full"):
        Het(covariance="identity")


# --- Heads ---------------------------------------------------------------------------------------
PAIRS = [
    ("ln", "gaussian-root"),
    ("ln:dummy=false", "gaussian-root"),
    ("ln:covariance=diagonal", "gaussian-scale"),
    ("ln:covariance=isotropic", "gaussian-scale:isotropic=true"),
    ("ln:covariance=identity", "linear"),
    ("het:samples=50", "gaussian-scale"),
    ("het:samples=50,covariance=full", "gaussian-factors:rank=2"),
]


@pytest.mark.parametrize(("spec", "head"), PAIRS)
def test_heads_give_what_losses_need_and_learn(spec: str, head: str) -> None:
    """Every layer gets a gradient, and a few steps of Adam on three clusters find the classes."""
    loss, generator = get_loss(spec), torch.Generator().manual_seed(0)
    top = get_head(head, 4, loss.num_outputs(3))
    assert loss.needs <= top.gives

    def fill(layer: torch.nn.Linear, generator: torch.Generator | None) -> None:
        with torch.no_grad():
            layer.weight.copy_(0.1 * torch.randn(layer.weight.shape, generator=generator))
            layer.bias.fill_(0.1)

    top.reset_parameters(fill, generator)
    y = torch.arange(60) % 3
    x = 2 * F.one_hot(y, 4).float() + 0.3 * torch.randn(60, 4, generator=generator)
    optimizer = torch.optim.Adam(top.parameters(), lr=0.05)
    for step in range(80):
        loss.set_step(step)
        optimizer.zero_grad()
        loss(top(x), y).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in top.parameters())
        optimizer.step()
    assert (loss.scores(top(x)).argmax(1) == y).float().mean() > 0.95
