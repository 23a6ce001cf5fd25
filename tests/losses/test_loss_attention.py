"""NAL, ELR and SOP against 60-digit arithmetic, the NAL paper's Theorem 1, the released codes'
behaviour, and the contract.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from functools import cache
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
from noiseproof.losses import fast, get_loss
from noiseproof.models.base import INITS

mp.dps = 60


# --- The formulas in 60 digits -------------------------------------------------------------------
@cache
def softmax(z: tuple[float, ...], digits: int) -> list[mpf]:
    e = [mp.exp(mpf(x) - mpf(max(z))) for x in z]
    return [x / mp.fsum(e) for x in e]


def nal_truth(
    z: Sequence[float], a: float, q: Sequence[float], lam: float, beta: float = 0, floor: float = 0
) -> tuple[mpf, list[mpf], mpf]:
    """NAL paper, Eq. 1 with the released reverse term: value, gradient in z (Eq. 6) and in the
    logit a of τ.
    """
    p, tau, rest = softmax(tuple(z), mp.dps), 1 / (1 + mp.exp(-mpf(a))), 1 / (1 + mp.exp(mpf(a)))
    q = [max(mpf(x), mpf(floor)) for x in q]
    m = [tau * pk + rest * qk for pk, qk in zip(p, q, strict=True)]
    log_q = [mp.log(max(x, mpf("1e-4"))) for x in q]
    value = -mp.fsum(qk * mp.log(mk) for qk, mk in zip(q, m, strict=True) if qk)
    value += -mpf(lam) * mp.log(tau) - mpf(beta) * mp.fsum(
        mk * lk for mk, lk in zip(m, log_q, strict=True)
    )
    # −dL/dm_k
    pull = [(qk / mk if qk else 0) + mpf(beta) * lk for qk, mk, lk in zip(q, m, log_q, strict=True)]
    total = mp.fsum(tau * g * pk for g, pk in zip(pull, p, strict=True))
    in_z = [-tau * g * pk + pk * total for g, pk in zip(pull, p, strict=True)]
    in_tau = -mp.fsum(g * (pk - qk) for g, pk, qk in zip(pull, p, q, strict=True)) - mpf(lam) / tau
    return value, in_z, in_tau * tau * rest


def elr_truth(
    z: Sequence[float], t: Sequence[float], q: Sequence[float], lam: float
) -> tuple[mpf, list[mpf]]:
    """Cross entropy + λ·log(1 − ⟨t, p⟩); digits enough that 1 − ⟨t, p⟩ keeps 60 of them."""
    with mp.workdps(520):
        p = softmax(tuple(z), mp.dps)
        apart = 1 - mp.fsum(mpf(tk) * pk for tk, pk in zip(t, p, strict=True))
        total = mp.fsum(mpf(x) for x in q)  # linear in the target, as every loss
        value = -mp.fsum(mpf(qk) * mp.log(pk) for qk, pk in zip(q, p, strict=True)) + mpf(
            lam
        ) * total * mp.log(apart)
        pull = [pk * (mpf(tk) - 1 + apart) / apart for tk, pk in zip(t, p, strict=True)]
        gradient = [
            pk * total - qk - mpf(lam) * total * g for pk, qk, g in zip(p, q, pull, strict=True)
        ]
    return value, gradient


def released_nal(z: Tensor, a: Tensor, y: Tensor, lam: float, beta: float) -> Tensor:
    """What the released code computes, from its description in the papers' README: all its
    clamps.
    """
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
    t[1:2] = one_hot(y, K)[1:2] * (1 - 2**-20)
    t[2:3] *= 0.3
    t[3:4] = one_hot(y, K)[3:4]
    return t.astype(np.float32).astype(np.float64)


def evaluate(
    run: Callable[..., Tensor], *inputs: np.ndarray, dtype: torch.dtype
) -> list[np.ndarray]:
    leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
    losses = run(*leaves)
    gradients = torch.autograd.grad(losses.sum(), leaves)
    assert losses.dtype == dtype
    return [x.detach().double().numpy() for x in (losses, *gradients)]


def floats(rows: list[Any]) -> np.ndarray:
    return np.array(
        [[float(x) for x in row] if isinstance(row, list) else float(row) for row in rows]
    )


ATTENTION = np.array([0.5, -2.0, 8.0, 500.0, -500.0, -30.0])  # σ⁻¹(τ) of the rows
NAL = [
    {"lam": 0.5},
    {"lam": 50.0, "beta": 0.1},
    {"lam": 10.0, "floor": 1e-4},
    {"lam": 0.0, "beta": 1.0, "floor": 1e-4},
]
# 60 digits are dear at 1000 classes
FEWER = [case for case in CASES if case[0] < 1000 or case[1] in (1, 500)]


def name_of(hp: dict[str, float]) -> str:
    return ",".join(f"{k}={v}" for k, v in hp.items())


def targets(kind: str, y: np.ndarray, q: np.ndarray, dtype: torch.dtype) -> list[Tensor]:
    """The same target in every form that a loss takes."""
    real = torch.tensor(q, dtype=dtype)
    return [torch.from_numpy(y), real] if kind == "class" else [real]


@pytest.mark.parametrize("hp", NAL, ids=name_of)
@pytest.mark.parametrize("kind", ["class", "soft"])
def test_nal_value_and_gradients(kind: str, hp: dict[str, float]) -> None:
    """K = 2 … 1000, logits and attention to ±500, float64 and float32."""
    loss, slope = get_loss("nal", **hp, reduction="none"), 1 + hp["lam"] + 10 * hp.get("beta", 0)
    for K, scale, centre in FEWER:
        z, y = batch(K, scale, centre)
        q = soft(len(z), K) if kind == "soft" else one_hot(y, K)
        a = np.roll(ATTENTION, K + scale)[: len(z)]
        truths = zip(*(nal_truth(*row, **hp) for row in zip(z, a, q, strict=True)), strict=True)
        truths = [floats(list(column)) for column in truths]
        for dtype in TOLERANCE:
            for target in targets(kind, y, q, dtype):
                got = evaluate(
                    lambda z, a, t=target: loss(Output(z, attention=a), t), z, a, dtype=dtype
                )
                for what, have, want in zip(("value", "dz", "da"), got, truths, strict=True):
                    error = excess(have, want, dtype, slope)
                    assert error <= 1, (
                        f"{what} at K={K}, logits {centre}±{scale}, {dtype}: {error:.3g} × allowed"
                    )


@pytest.mark.parametrize("lam", [1.0, 7.0])
@pytest.mark.parametrize("kind", ["class", "soft"])
def test_elr_value_and_gradient(kind: str, lam: float) -> None:
    loss = get_loss("elr", lam=lam, reduction="none")
    for K, scale, centre in FEWER:
        z, y = batch(K, scale, centre)
        q, t = soft(len(z), K) if kind == "soft" else one_hot(y, K), memory(len(z), K, y)
        truths = zip(*(elr_truth(*row, lam=lam) for row in zip(z, t, q, strict=True)), strict=True)
        truths = [floats(list(column)) for column in truths]
        for dtype in TOLERANCE:
            held = torch.tensor(t, dtype=dtype)
            for target in targets(kind, y, q, dtype):
                got = evaluate(
                    lambda z, m=held, t=target: loss(Output(z, memory=m), t), z, dtype=dtype
                )
                for what, have, want in zip(("value", "dz"), got, truths, strict=True):
                    error = excess(have, want, dtype, 1 + lam)
                    assert error <= 1, (
                        f"{what} at K={K}, logits {centre}±{scale}, {dtype}: {error:.3g} × allowed"
                    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_nal_of_a_class_keeps_relative_accuracy(beta: float, dtype: torch.dtype) -> None:
    """Where the label is nearly certain or hopeless, value and gradients still have all their
    digits.
    """
    z = np.array([[sure, 0.0, 0.25, -1.0] for sure in (-80.0, -20.0, 0.0, 20.0, 50.0, 80.0)])
    a = np.array([2.0, -1.0, 0.5, 3.0, -2.0, 20.0])
    loss = get_loss("nal", lam=0.0, beta=beta, reduction="none")
    target = torch.zeros(len(z), dtype=torch.long)
    got = evaluate(lambda z, a: loss(Output(z, attention=a), target), z, a, dtype=dtype)
    with mp.workdps(120):
        rows = [nal_truth(*row, [1, 0, 0, 0], 0.0, beta) for row in zip(z, a, strict=True)]
    for have, want in zip((got[0], got[1][:, 0], got[2]), zip(*rows, strict=True), strict=True):
        want = floats([w[0] if isinstance(w, list) else w for w in want])
        np.testing.assert_allclose(have, want, rtol=TOLERANCE[dtype][0], atol=1e-36)


# --- What the papers say -------------------------------------------------------------------------
B, K = 6, 5
g = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(B, K, generator=g, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 1, 4, 3, 2])
HINT = 2 * torch.randn(B, generator=g, dtype=torch.float64)
MEMORY = (
    torch.softmax(torch.randn(B, K, generator=g, dtype=torch.float64), 1)
    * torch.linspace(0, 1, B).double()[:, None]
)
SOFT = torch.softmax(2 * torch.randn(B, K, generator=g, dtype=torch.float64), 1)
SOFT[1], SOFT[2, 3] = F.one_hot(LABELS, K)[1].double(), 0
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)
NOISE = 0.5 * torch.rand(B, 2, K, generator=g, dtype=torch.float64)


def test_theorem_1() -> None:
    """∂L/∂z_j = φ·(p_j − 1(j = y)) with φ = p_y/(p_y − 1 + 1/τ) in (0, 1), whatever λ is."""
    p, tau = torch.softmax(LOGITS, 1), torch.sigmoid(HINT)
    own = p[torch.arange(B), LABELS]
    phi = own / (own - 1 + 1 / tau)
    assert bool(((phi > 0) & (phi < 1)).all())
    for lam in (0.0, 0.5, 50.0):
        z = LOGITS.clone().requires_grad_()
        losses = get_loss("nal", lam=lam, reduction="none")(Output(z, attention=HINT), LABELS)
        (gradient,) = torch.autograd.grad(losses.sum(), z)
        torch.testing.assert_close(
            gradient, phi[:, None] * (p - F.one_hot(LABELS, K)), rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("lam", [0.05, 0.5, 10.0])
def test_the_best_attention(lam: float) -> None:
    """The minimiser over τ is λ/((1 + λ)(1 − p_y)) where that is below one; else the loss falls as
    τ → 1.
    """
    best = lam / ((1 + lam) * (1 - torch.softmax(LOGITS, 1)[torch.arange(B), LABELS]))
    inside = best < 1
    a = torch.where(inside, torch.logit(best.clamp_max(1 - 1e-9)), 3.0).requires_grad_()
    losses = get_loss("nal", lam=lam, reduction="none")(Output(LOGITS, attention=a), LABELS)
    (slope,) = torch.autograd.grad(losses.sum(), a)
    torch.testing.assert_close(
        slope[inside], torch.zeros_like(slope[inside]), rtol=0, atol=1e-12 * (1 + lam)
    )
    assert bool((slope[~inside] < 0).all()) and bool(inside.any())


@pytest.mark.parametrize("wrap", ["nal:lam=0.5,warmup=2", "0.5*ce + 0.5*nal:lam=0.5,warmup=2"])
def test_before_its_epoch_nal_is_cross_entropy_whatever_the_attention(wrap: str) -> None:
    loss, whole = (
        get_loss(spec, reduction="none") for spec in (wrap, wrap.replace(",warmup=2", ""))
    )
    for target in (LABELS, SOFT):
        for epoch in (0, 1, 2, 1, 5):
            z, a = LOGITS.clone().requires_grad_(), HINT.clone().requires_grad_()
            out = Output(z, attention=a)
            loss.set_epoch(epoch)
            is_early = epoch < 2
            want = F.cross_entropy(z, target, reduction="none") if is_early else whole(out, target)
            torch.testing.assert_close(loss.train()(out, target), want, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(loss.eval()(out, target), whole(out, target))
            (slope,) = torch.autograd.grad(loss.train()(out, target).sum(), a)
            assert bool((slope == 0).all()) == is_early


@pytest.mark.parametrize(("lam", "beta"), [(0.5, 0.0), (50.0, 0.1)])
def test_nal_as_released(lam: float, beta: float) -> None:
    """``floor=1e-4`` is the released loss; without it the value is Eq. 1's, which is smaller by
    what the floor adds.
    """
    ours, theirs = ([x.clone().requires_grad_() for x in (LOGITS, HINT)] for _ in range(2))
    loss = get_loss("nal", lam=lam, beta=beta, floor=1e-4, reduction="none")(
        Output(ours[0], attention=ours[1]), LABELS
    )
    released = released_nal(*theirs, LABELS, lam, beta)
    torch.testing.assert_close(loss, released, rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(loss.sum(), ours),
        torch.autograd.grad(released.sum(), theirs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    plain = get_loss("nal", lam=lam, beta=beta, reduction="none")(
        Output(LOGITS, attention=HINT), LABELS
    )
    added = released.detach() - plain
    assert bool((added > 1e-4).all()) and bool((added < 1e-4 * 10 * K).all())


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_elr_as_released(scale: float) -> None:
    ours, theirs = ((scale * LOGITS).requires_grad_() for _ in range(2))
    loss = get_loss("elr", lam=3.0, clip=1e-4, reduction="none")(
        Output(ours, memory=MEMORY), LABELS
    )
    released = released_elr(theirs, MEMORY, LABELS, 3.0)
    torch.testing.assert_close(loss, released)
    torch.testing.assert_close(
        *(torch.autograd.grad(x.sum(), z)[0] for x, z in ((loss, ours), (released, theirs)))
    )


def test_elr_is_bounded_where_the_memory_is_below_one_and_clip_bounds_it_elsewhere() -> None:
    """Memory on class 1, label 0: the surer the model is of class 1, the lower the loss, to λ·log(1
    − t) or no end.
    """
    sure = torch.tensor([[0.0, 10.0], [0.0, 50.0], [0.0, 200.0]], dtype=torch.float64)
    y = torch.zeros(3, dtype=torch.long)

    def kept(memory: float, **hp: float) -> Tensor:
        held = torch.tensor([[0.0, memory]], dtype=torch.float64).expand(3, 2)
        loss = get_loss("elr", lam=3.0, reduction="none", **hp)(Output(sure, memory=held), y)
        return loss - F.cross_entropy(sure, y, reduction="none")

    assert bool((kept(0.99) >= 3 * math.log(0.01)).all())
    torch.testing.assert_close(kept(1.0)[1:], torch.tensor([-150.0, -600.0], dtype=torch.float64))
    torch.testing.assert_close(
        kept(1.0, clip=1e-4)[1:], torch.full((2,), 3 * math.log(1e-4), dtype=torch.float64)
    )


def sop_truth(
    z: Sequence[float], u: float, v: Sequence[float], y: int
) -> tuple[mpf, list[mpf], mpf, list[mpf]]:
    """Liu et al. (2022), section 3.2: value, the gradients of CE in z and u, and that of MSE in v;
    nothing clipped.
    """
    p, K = softmax(tuple(z), mp.dps), range(len(z))
    s = [mpf(u) ** 2 if k == y else -(mpf(v[k]) ** 2) for k in K]
    a = [p[k] + s[k] for k in K]
    assert min(a) > mpf("1e-4")
    total, best = mp.fsum(a), max(K, key=lambda k: p[k])
    rest = [(k == best) + s[k] - (k == y) for k in K]
    value = mp.log(total) - mp.log(a[y]) + mp.fsum(r**2 for r in rest)
    in_a = [1 / total - (k == y) / a[y] for k in K]
    mean = mp.fsum(in_a[k] * p[k] for k in K)
    in_z = [p[k] * (in_a[k] - mean) for k in K]
    return value, in_z, 2 * mpf(u) * in_a[y], [0 if k == y else -4 * mpf(v[k]) * rest[k] for k in K]


def test_sop_value_and_gradients() -> None:
    """The model and u learn from the cross entropy, v from the squares alone."""
    u, v = (
        torch.linspace(0.1, 0.9, B).double(),
        torch.rand(B, K, generator=torch.Generator().manual_seed(5)).double(),
    )
    v = v * (0.5 * LOGITS.softmax(1)).sqrt()
    leaves = [x.clone().requires_grad_() for x in (LOGITS, u, v)]
    y = F.one_hot(LABELS, K).double()
    noise = torch.stack([leaves[1][:, None] ** 2 * y, leaves[2] ** 2 * (1 - y)], 1)
    losses = get_loss("sop", reduction="none")(Output(leaves[0], noise=noise), LABELS)
    found = [losses, *torch.autograd.grad(losses.sum(), leaves)]
    rows = zip(LOGITS.tolist(), u.tolist(), v.tolist(), LABELS.tolist(), strict=True)
    for ours, truth in zip(
        found, zip(*(sop_truth(*row) for row in rows), strict=True), strict=True
    ):
        np.testing.assert_allclose(
            ours.detach().numpy(), np.array(truth, dtype=float), rtol=1e-12, atol=1e-14
        )


def test_sop_without_noise_is_cross_entropy_and_a_square_without_a_gradient() -> None:
    z = LOGITS.clone().requires_grad_()
    losses = get_loss("sop", reduction="none")(
        Output(z, noise=torch.zeros(B, 2, K).double()), LABELS
    )
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    missed = 2.0 * (LOGITS.argmax(1) != LABELS)
    torch.testing.assert_close(losses.detach(), plain + missed)
    torch.testing.assert_close(
        torch.autograd.grad(losses.sum(), z)[0], LOGITS.softmax(1) - F.one_hot(LABELS, K)
    )


# --- The contract of every loss, with what these need beside logits ------------------------------
SETTINGS = [
    *(("nal", hp) for hp in ({}, {"beta": 0.1}, {"floor": 1e-4})),
    ("elr", {}),
    ("elr", {"clip": 1e-4}),
    ("sop", {}),
]
every_loss = pytest.mark.parametrize(
    ("name", "hp"), SETTINGS, ids=[f"{n}:{name_of(hp)}" for n, hp in SETTINGS]
)


def output(z: Tensor, rows: Any = slice(None)) -> Output:
    """All that a head and a strategy give, in the precision of the logits."""
    return Output(z, *[None] * 3, *(field[rows].to(z.dtype) for field in (HINT, MEMORY, NOISE)))


def with_gradient(
    loss: Any, z: Tensor, target: Tensor, rows: Any = slice(None), **options: Any
) -> tuple[Tensor, Tensor]:
    z = z.detach().clone().requires_grad_()
    losses = loss(output(z, rows), target, **options)
    return losses.detach(), torch.autograd.grad(losses.sum(), z)[0]


@every_loss
def test_gradcheck(name: str, hp: dict[str, float]) -> None:
    loss = get_loss(name, **hp, reduction="none")
    inputs = (LOGITS.clone().requires_grad_(), HINT.clone().requires_grad_())
    for target in (LABELS, SOFT):

        def run(z: Tensor, a: Tensor, target: Tensor = target) -> Tensor:
            return loss(Output(z, attention=a, memory=MEMORY, noise=NOISE), target)

        assert torch.autograd.gradcheck(run, inputs) and torch.autograd.gradgradcheck(run, inputs)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite_at_the_ends(name: str, hp: dict[str, float], dtype: torch.dtype) -> None:
    """p, τ and the memory at 0 and 1."""
    z = torch.zeros(4, K, dtype=dtype)
    z[0, 0], z[1, 0], z[2], z[3] = 200, -200, 200, -200
    y, held = torch.zeros(4, dtype=torch.long), torch.zeros(4, K, dtype=dtype)
    held[:, 0] = 1
    noise = torch.stack([held, 1 - held], 1)
    for hint in (-500.0, 0.0, 500.0):
        for target in (y, F.one_hot(y, K).to(dtype)):
            leaves = (
                z.clone().requires_grad_(),
                torch.full((4,), hint, dtype=dtype, requires_grad=True),
            )
            losses = get_loss(name, **hp, reduction="none")(
                Output(leaves[0], None, None, None, leaves[1], held, noise), target
            )
            assert losses.dtype == dtype and bool(losses.isfinite().all())
            for gradient in torch.autograd.grad(losses.sum(), leaves, allow_unused=True):
                assert gradient is None or bool(gradient.isfinite().all())


@every_loss
def test_targets_weights_and_reduction(name: str, hp: dict[str, float]) -> None:
    """Class ≡ one-hot; rows times weight[y] times sample_weight; ignored rows are not there; mean
    of real targets.
    """
    rows = get_loss(name, **hp, reduction="none")(output(LOGITS), LABELS)
    each = torch.linspace(0.5, 2, B).double()
    weighed = get_loss(name, **hp, weight=WEIGHT, reduction="none")
    hot = F.one_hot(LABELS, K).double()
    torch.testing.assert_close(weighed(output(LOGITS), LABELS), rows * WEIGHT[LABELS])
    torch.testing.assert_close(weighed(output(LOGITS), hot), rows * WEIGHT[LABELS])
    torch.testing.assert_close(*(with_gradient(weighed, LOGITS, t)[1] for t in (LABELS, hot)))
    counted = LABELS != 3
    loss = get_loss(name, **hp, ignore_index=3)
    value, gradient = with_gradient(loss, LOGITS, LABELS, sample_weight=each)
    torch.testing.assert_close(value, (rows * each)[counted].sum() / counted.sum())
    assert bool((gradient[~counted] == 0).all())
    torch.testing.assert_close(
        loss(output(LOGITS), SOFT),
        get_loss(name, **hp, reduction="none")(output(LOGITS), SOFT).mean(),
    )


@every_loss
def test_rows_do_not_see_each_other(
    name: str, hp: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, without a batch, by vmap, and where a large batch would go by blocks of rows."""
    loss = get_loss(name, **hp, reduction="none")
    for target in (LABELS, SOFT):
        values, gradients = with_gradient(loss, LOGITS, target)
        for i in range(B):
            torch.testing.assert_close(
                loss(output(LOGITS[i : i + 1], slice(i, i + 1)), target[i : i + 1])[0], values[i]
            )
            torch.testing.assert_close(loss(output(LOGITS[i], i), target[i]), values[i])
        mapped = torch.func.vmap(
            torch.func.grad(lambda z, a, m, s, t: loss(Output(z, *[None] * 3, a, m, s), t))
        )
        torch.testing.assert_close(mapped(LOGITS, HINT, MEMORY, NOISE, target), gradients)
        with monkeypatch.context() as patch:
            patch.setattr(fast, "LARGE", 4 * K)
            patch.setattr(fast, "BLOCK", 2 * K)
            torch.testing.assert_close(with_gradient(loss, LOGITS, target), (values, gradients))


@every_loss
def test_compile(name: str, hp: dict[str, float]) -> None:
    torch._dynamo.reset()
    loss = get_loss(name, **hp)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for target in (LABELS, SOFT.float()):
        want, got = (with_gradient(run, LOGITS.float(), target) for run in (loss, fast))
        torch.testing.assert_close(got, want)


@every_loss
def test_copies_and_spec(name: str, hp: dict[str, float]) -> None:
    loss = get_loss(name, **hp, weight=WEIGHT)
    want = with_gradient(loss, LOGITS, LABELS)
    again = get_loss(str(loss), weight=WEIGHT)
    for copied in (
        copy.deepcopy(loss),
        pickle.loads(pickle.dumps(loss)),
        again,
        loss.with_hyperparameters(),
    ):
        torch.testing.assert_close(with_gradient(copied, LOGITS, LABELS), want)


def test_sums_and_shifts_pass_on_what_a_loss_needs() -> None:
    both = get_loss("nal + 0.5*elr + ce", reduction="none")
    assert both.needs == {"logits", "attention", "memory"}
    parts = [
        c * get_loss(name, reduction="none")(output(LOGITS), LABELS)
        for c, name in ((1, "nal"), (0.5, "elr"), (1, "ce"))
    ]
    torch.testing.assert_close(both(output(LOGITS), LABELS), sum(parts))
    shifted = get_loss("remargin:loss=nal,shift=1.5")
    assert shifted.needs == {"logits", "attention"}
    moved = LOGITS + 1.5 * F.one_hot(LABELS, K)
    torch.testing.assert_close(
        shifted(output(LOGITS), LABELS), get_loss("nal")(output(moved), LABELS)
    )


@pytest.mark.parametrize(
    ("name", "out", "target", "message"),
    [
        ("nal", Output(LOGITS), LABELS, "`attention` of shape (6,), got none. Use a head"),
        (
            "nal",
            Output(LOGITS, attention=HINT[:, None]),
            LABELS,
            "`attention` of shape (6,), got shape (6, 1)",
        ),
        (
            "nal",
            Output(LOGITS, attention=HINT),
            SOFT - 0.5,
            "no negative entries in the target of nal, got -0.5",
        ),
        ("elr", Output(LOGITS), LABELS, "`memory` of shape (6, 5), got none. A strategy keeps it"),
        (
            "elr",
            Output(LOGITS, memory=MEMORY[:, :4]),
            LABELS,
            "`memory` of shape (6, 5), got shape (6, 4)",
        ),
        (
            "sop",
            Output(LOGITS, noise=MEMORY),
            LABELS,
            "`noise` of shape (6, 2, 5), got shape (6, 5). A strategy",
        ),
    ],
)
def test_refusals(name: str, out: Output, target: Tensor, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_loss(name)(out, target)
    assert message in str(caught.value)


# --- The head ------------------------------------------------------------------------------------
def test_attention_head() -> None:
    """A classifier drawn as the linear head's, and one more row for the attention."""
    heads = {name: get_head(name, 8, 3) for name in ("linear", "attention")}
    before = torch.get_rng_state()
    for head in heads.values():
        head.reset_parameters(INITS["pytorch"], torch.Generator().manual_seed(1))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    plain, out = (head(x) for head in heads.values())
    assert torch.equal(torch.get_rng_state(), before)
    assert out.attention is not None and out.attention.shape == (4,) and out.memory is None
    torch.testing.assert_close(out.logits, plain.logits)
    assert heads["attention"].gives >= get_loss("nal").needs
    get_loss("nal")(out, torch.tensor([0, 2, 1, 0])).backward()
    assert all(
        p.grad is not None and bool(p.grad.abs().sum() > 0) for p in heads["attention"].parameters()
    )
