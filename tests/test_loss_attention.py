"""NAL and ELR against 60-digit arithmetic, paper 003's Theorem 1, the released codes' behaviour, and the contract."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mpmath import mp, mpf
from test_loss_truth import CASES, TOLERANCE, batch, excess
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.heads import get_head
from noiseproof.losses import engine, get_loss
from noiseproof.models.base import INITS

mp.dps = 60


# --- The formulas in 60 digits ---------------------------------------------------------------------------------------
def softmax(z: Sequence[float]) -> list[mpf]:
    e = [mp.exp(mpf(x) - mpf(max(z))) for x in z]
    return [x / mp.fsum(e) for x in e]


def nal_truth(
    z: Sequence[float], a: float, q: Sequence[float], lam: float, beta: float = 0, floor: float = 0
) -> tuple[mpf, list[mpf], mpf]:
    """003 Eq. 1 with the released reverse term: value, gradient in z (Eq. 6) and in the logit a of τ."""
    p, tau, rest = softmax(z), 1 / (1 + mp.exp(-mpf(a))), 1 / (1 + mp.exp(mpf(a)))
    q = [max(mpf(x), mpf(floor)) for x in q]
    m = [tau * pk + rest * qk for pk, qk in zip(p, q, strict=True)]
    log_q = [mp.log(max(x, mpf("1e-4"))) for x in q]
    value = -mp.fsum(qk * mp.log(mk) for qk, mk in zip(q, m, strict=True) if qk)
    value += -mpf(lam) * mp.log(tau) - mpf(beta) * mp.fsum(mk * lk for mk, lk in zip(m, log_q, strict=True))
    # −dL/dm_k
    pull = [(qk / mk if qk else 0) + mpf(beta) * lk for qk, mk, lk in zip(q, m, log_q, strict=True)]
    total = mp.fsum(tau * g * pk for g, pk in zip(pull, p, strict=True))
    in_z = [-tau * g * pk + pk * total for g, pk in zip(pull, p, strict=True)]
    in_tau = -mp.fsum(g * (pk - qk) for g, pk, qk in zip(pull, p, q, strict=True)) - mpf(lam) / tau
    return value, in_z, in_tau * tau * rest


def elr_truth(z: Sequence[float], t: Sequence[float], q: Sequence[float], lam: float) -> tuple[mpf, list[mpf]]:
    """Cross entropy + λ·log(1 − ⟨t, p⟩); digits enough that 1 − ⟨t, p⟩ keeps 60 of them."""
    with mp.workdps(520):
        p = softmax(z)
        apart = 1 - mp.fsum(mpf(tk) * pk for tk, pk in zip(t, p, strict=True))
        total = mp.fsum(mpf(x) for x in q)  # linear in the target, as every loss
        value = -mp.fsum(mpf(qk) * mp.log(pk) for qk, pk in zip(q, p, strict=True)) + mpf(lam) * total * mp.log(apart)
        pull = [pk * (mpf(tk) - 1 + apart) / apart for tk, pk in zip(t, p, strict=True)]
        gradient = [pk * total - qk - mpf(lam) * total * g for pk, qk, g in zip(p, q, pull, strict=True)]
    return value, gradient


def released_nal(z: Tensor, a: Tensor, y: Tensor, lam: float, beta: float) -> Tensor:
    """What the released code computes, from its description in the papers' README: all its clamps."""
    tau, p = (x.clamp(1e-12, 1 - 1e-12) for x in (torch.sigmoid(a)[:, None], torch.softmax(z, 1)))
    q = F.one_hot(y, z.shape[1]).to(z.dtype).clamp_min(1e-4)
    m = (tau * p + (1 - tau) * q).clamp_min(1e-7)
    return -(q * m.log()).sum(1) - lam * tau.squeeze(1).log() - beta * (m * q.log()).sum(1)


def released_elr(z: Tensor, t: Tensor, y: Tensor, lam: float) -> Tensor:
    p = torch.softmax(z, 1).clamp(1e-4, 1 - 1e-4)
    return F.cross_entropy(z, y, reduction="none") + lam * torch.log(1 - (t * p).sum(1))


def one_hot(y: np.ndarray, K: int) -> np.ndarray:
    return np.eye(K)[y]


def soft(rows: int, K: int) -> np.ndarray:
    """Targets as label correction makes them, some entries exactly zero, in float32's digits."""
    rng = np.random.default_rng([rows, K])
    q = np.where(rng.random((rows, K)) < 0.3, 0, rng.random((rows, K)) ** 4)
    q[:, 0] += 0.01
    return (q / q.sum(1, keepdims=True)).astype(np.float32).astype(np.float64)


def memory(rows: int, K: int, y: np.ndarray) -> np.ndarray:
    """Zero at first, then less than a distribution, then nearly and wholly one-hot."""
    t = soft(rows, K)
    t[0] = 0
    t[1] = one_hot(y, K)[1] * (1 - 2**-20)
    t[2:3] *= 0.3
    t[3:4] = one_hot(y, K)[3:4]
    return t.astype(np.float32).astype(np.float64)


def evaluate(run: Callable[..., Tensor], *inputs: np.ndarray, dtype: torch.dtype) -> list[np.ndarray]:
    leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
    losses = run(*leaves)
    gradients = torch.autograd.grad(losses.sum(), leaves)
    assert losses.dtype == dtype
    return [x.detach().double().numpy() for x in (losses, *gradients)]


def floats(rows: list[Any]) -> np.ndarray:
    return np.array([[float(x) for x in row] if isinstance(row, list) else float(row) for row in rows])


ATTENTION = np.array([0.5, -2.0, 8.0, 500.0, -500.0, -30.0])  # σ⁻¹(τ) of the rows
NAL = [{"lam": 0.5}, {"lam": 50.0, "beta": 0.1}, {"lam": 10.0, "floor": 1e-4}, {"lam": 0.0, "beta": 1.0, "floor": 1e-4}]


def name_of(hp: dict[str, float]) -> str:
    return ",".join(f"{k}={v}" for k, v in hp.items())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("hp", NAL, ids=name_of)
@pytest.mark.parametrize("kind", ["class", "one-hot", "soft"])
def test_nal_value_and_gradients(kind: str, hp: dict[str, float], dtype: torch.dtype) -> None:
    """K = 2 … 1000, logits and attention to ±500."""
    loss = get_loss("nal", **hp, reduction="none")
    for K, scale, centre in CASES:
        z, y = batch(K, scale, centre)
        for a in (ATTENTION[: len(z)], -ATTENTION[::-1][: len(z)]):
            q = soft(len(z), K) if kind == "soft" else one_hot(y, K)
            target = torch.from_numpy(y) if kind == "class" else torch.tensor(q, dtype=dtype)
            rows = [nal_truth(*row, **hp) for row in zip(z, a, q, strict=True)]
            got = evaluate(lambda z, a, t=target: loss(Output(z, attention=a), t), z, a, dtype=dtype)
            slope = 1 + hp["lam"] + 10 * hp.get("beta", 0)
            for what, have, want in zip(("value", "dz", "da"), got, zip(*rows, strict=True), strict=True):
                error = excess(have, floats(list(want)), dtype, slope)
                assert error <= 1, f"{what} at K={K}, logits {centre}±{scale}: {error:.3g} times the allowed error"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lam", [1.0, 7.0])
@pytest.mark.parametrize("kind", ["class", "soft"])
def test_elr_value_and_gradient(kind: str, lam: float, dtype: torch.dtype) -> None:
    loss = get_loss("elr", lam=lam, reduction="none")
    for K, scale, centre in CASES:
        z, y = batch(K, scale, centre)
        q = soft(len(z), K) if kind == "soft" else one_hot(y, K)
        t = memory(len(z), K, y)
        target, held = torch.from_numpy(y) if kind == "class" else torch.tensor(q, dtype=dtype), torch.tensor(t).to(dtype)
        rows = [elr_truth(*row, lam=lam) for row in zip(z, t, q, strict=True)]
        got = evaluate(lambda z, t=target, m=held: loss(Output(z, memory=m), t), z, dtype=dtype)
        for what, have, want in zip(("value", "dz"), got, zip(*rows, strict=True), strict=True):
            error = excess(have, floats(list(want)), dtype, 1 + lam)
            assert error <= 1, f"{what} at K={K}, logits {centre}±{scale}: {error:.3g} times the allowed error"
