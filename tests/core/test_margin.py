"""The margin, the one number that the margin losses share, against 60-digit arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import Row, mpf, row, sigmoid
from torch import Tensor

from noiseproof.core.margin import LabelProb, margin, margins

RELATIVE = {torch.float64: 1e-12, torch.float32: 2e-6}


def truth(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Δ_k (B, K) and dΔ_k/dz_j (B, K, K)."""
    rows = [row(tuple(r)) for r in z]
    deltas = np.array([[float(r.margin(k)) for k in range(len(r.z))] for r in rows])
    return deltas, np.array([[gradient(r, k) for k in range(len(r.z))] for r in rows])


def gradient(r: Row, k: int) -> list[float]:
    return [1.0 if j == k else -float(e / r.rest[k]) for j, e in enumerate(r.e)]


def cases() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(4, K)) * scale for K in (2, 3, 10, 100) for scale in (0.1, 5, 100)]
    found += [rng.uniform(-500, 500, size=(3, 10)), 480 + rng.normal(size=(3, 10))]
    found += [
        np.array([[sure, 0.0, 0.25, -1.0] for sure in (-80.0, 0.0, 10.0, 20.0, 50.0, 80.0, 400.0)])
    ]
    found += [np.zeros((1, 2)), np.zeros((1, 7)), np.array([[3.0, 3.0, -1.0]])]  # ties
    return [z.astype(np.float32).astype(np.float64) for z in found]


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_margins_are_exact(dtype: torch.dtype) -> None:
    """Δ of the label and of every class, relative to the larger of |Δ| and one: also where p_y →
    1.
    """
    rtol = RELATIVE[dtype]
    for z in cases():
        want, slopes = truth(z)
        for k in range(min(z.shape[1], 10)):
            logits = torch.tensor(z, dtype=dtype, requires_grad=True)
            got = margin(logits, torch.full((len(z),), k))
            (grad,) = torch.autograd.grad(got.sum(), logits)
            np.testing.assert_allclose(
                got.detach().double().numpy(), want[:, k], rtol=rtol, atol=rtol
            )
            np.testing.assert_allclose(
                grad.double().numpy(), slopes[:, k], rtol=10 * rtol, atol=10 * rtol
            )
        logits = torch.tensor(z, dtype=dtype, requires_grad=True)
        every = margins(logits)
        cotangent = torch.linspace(-1, 1, z.shape[1], dtype=dtype).expand_as(logits)
        (grad,) = torch.autograd.grad(every, logits, cotangent)
        np.testing.assert_allclose(every.detach().double().numpy(), want, rtol=rtol, atol=rtol)
        together = np.einsum("bk,bkj->bj", cotangent.double().numpy(), slopes)
        np.testing.assert_allclose(
            grad.double().numpy(), together, rtol=1e3 * rtol, atol=20 * rtol * z.shape[1]
        )


@pytest.mark.parametrize("offset", [0.0, -64.0, 256.0])
def test_margins_do_not_depend_on_a_common_offset(offset: float) -> None:
    z = torch.tensor([[0.5, -1.25, 2.0]])
    torch.testing.assert_close(margins(z + offset), margins(z), rtol=0, atol=1e-6)


def test_impossible_classes() -> None:
    """A class masked with −inf has margin −inf and does not disturb the others."""
    z = torch.tensor([[1.0, 2.0, -math.inf]])
    assert margin(z, torch.tensor([0])).item() == pytest.approx(-1)
    assert margin(z, torch.tensor([2])).item() == -math.inf
    torch.testing.assert_close(margins(z), torch.tensor([[-1.0, 1.0, -math.inf]]))


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_label_probability_from_margin(dtype: torch.dtype) -> None:
    """p, 1 − p and −log p with relative accuracy at both ends."""
    at = [-80.0, -20.0, -1.5, 0.0, 0.5, 10.0, 20.0, 80.0]
    y = LabelProb.from_margin(torch.tensor(at, dtype=dtype))
    rtol = 2e-5 if dtype is torch.float32 else 1e-12
    for have, want in zip(
        (y.p, y.miss, y.nll), zip(*(sigmoid(mpf(d)) for d in at), strict=True), strict=True
    ):
        np.testing.assert_allclose(have.double().numpy(), [float(w) for w in want], rtol=rtol)


def test_label_probability_keeps_the_gradient_where_p_underflows() -> None:
    """d(1 − p)/dnll = p: 1.5e-8 at nll = 18, which the autograd of 1 − exp loses in float32."""
    nll = torch.tensor([18.0, 60.0], requires_grad=True)
    (slope,) = torch.autograd.grad(LabelProb(nll).miss.sum(), nll)
    torch.testing.assert_close(slope, torch.exp(-nll.detach()), rtol=1e-5, atol=0)


def test_compiled_and_mapped() -> None:
    z, y = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 4])

    def one(logits: Tensor, label: Tensor) -> Tensor:
        return margin(logits[None], label[None])[0]

    torch.testing.assert_close(torch.func.vmap(one)(z, y), margin(z, y))
    compiled = torch.compile(
        lambda a, b: (margin(a, b), margins(a)), fullgraph=True, backend="aot_eager"
    )
    for have, want in zip(compiled(z, y), (margin(z, y), margins(z)), strict=True):
        torch.testing.assert_close(have, want)
    torch.testing.assert_close(-F.logsigmoid(margin(z, y)), F.cross_entropy(z, y, reduction="none"))
