"""The softmax averaged over noise on its logits, in Triton: no tensor of the size of the noise but
the noise.

With few classes a thread computes all classes of a row for SHARE samples in turn, so that a softmax
needs no other thread; therefore classes come first in memory, and rows last. The shares are joined
afterwards, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from noiseproof.core.tensors import device_of

SHARE = 16  # samples of a program
TILE = 8192  # numbers that it holds at a time, at most
LOWEST = tl.constexpr(-3e38)

_kernel: Callable[[Callable[..., Any]], Any] = partial(
    triton.jit, do_not_specialize=["rows", "samples", "shares"]
)


@_kernel
def _read(x, mask):
    """Numbers in float32, zero outside of ``mask``."""
    return tl.load(x, mask=mask, other=0.0).to(tl.float32)


@_kernel
def _within(m, rows, n, columns):
    """Where a matrix has rows m and columns n."""
    return (m < rows)[:, None] & (n < columns)[None, :]


@_kernel
def _place(rows, BR: constexpr):
    """The share of the samples and the rows of this program."""
    blocks = tl.cdiv(rows, BR)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * BR + tl.arange(0, BR)


@_kernel
def _weights(values, b, k, rows, K: constexpr):
    """Numbers of rows b and classes k, of (K, B): (k, b), zero past the last."""
    at = k[:, None] * rows + b[None, :]
    return _read(values + at, _within(k, K, b, rows))


@_kernel
def _over_tau(mean, scale, tau, b, k, rows, K: constexpr):
    """μ/τ, −∞ past the last class, and d/τ: (k, b)."""
    middle = tl.where((k < K)[:, None], _weights(mean, b, k, rows, K=K) / tau, float("-inf"))
    return middle, _weights(scale, b, k, rows, K=K) / tau


@_kernel
def _noise(values, column, s, b, rows, samples, SHARED: constexpr):
    """The address of the noise of sample s and rows b, in (columns, S, B or 1)."""
    at = s + 0 * b if SHARED else s * rows + b
    return values + column * (samples if SHARED else samples * rows) + at


@_kernel
def _log_softmax(
    mean,
    scale,
    factors,
    each,
    across,
    tau,
    s,
    b,
    k,
    rows,
    samples,
    K: constexpr,
    RANK: constexpr,
    SHARED: constexpr,
):
    """log softmax of ``mean`` + Vε_R/τ + ``scale``·ε_K for sample s, (k, b), and ε_K; −∞ past the
    last class.
    """
    # Two noises: `each` is ε_K, a number for each logit, and `across` is ε_R, a number for each
    # factor, which moves the logits of all classes. `mean` and `scale` have been divided by τ
    # (`_over_tau`), the factors have not.
    valid = _within(k, K, b, rows)
    noise = _read(_noise(each, k[:, None], s, b[None, :], rows, samples, SHARED=SHARED), valid)
    logits = noise * scale + mean
    for r in tl.static_range(RANK):
        drawn = _read(_noise(across, r, s, b, rows, samples, SHARED=SHARED), b < rows)
        logits += _weights(factors + r * K * rows, b, k, rows, K=K) * (drawn / tau)[None, :]
    logits -= tl.max(logits, 0)[None, :]
    return logits - tl.log(tl.sum(tl.exp(logits), 0))[None, :], noise


@_kernel
def _average(
    mean,
    scale,
    factors,
    each,
    across,
    tops,
    sums,
    tau,
    rows,
    samples,
    K: constexpr,
    RANK: constexpr,
    SHARED: constexpr,
    SHARE: constexpr,
    BR: constexpr,
    BK: constexpr,
):
    """Of SHARE samples: the largest log-probability of each class, and Σ_s exp(log p − that)."""
    share, b = _place(rows, BR=BR)
    k = tl.arange(0, BK)
    middle, width = _over_tau(mean, scale, tau, b, k, rows, K=K)
    top = tl.full((BK, BR), LOWEST, tl.float32)
    total = tl.zeros((BK, BR), tl.float32)
    for s in range(share * SHARE, min(share * SHARE + SHARE, samples)):
        log_p, _ = _log_softmax(
            middle,
            width,
            factors,
            each,
            across,
            tau,
            s,
            b,
            k,
            rows,
            samples,
            K=K,
            RANK=RANK,
            SHARED=SHARED,
        )
        away = tl.exp(-tl.abs(log_p - top))
        higher = log_p > top
        total = tl.where(higher, total * away + 1, total + away)
        top = tl.where(higher, log_p, top)
    at = (share * K + k)[:, None] * rows + b[None, :]
    valid = _within(k, K, b, rows)
    tl.store(tops + at, top, mask=valid)
    tl.store(sums + at, total, mask=valid)


@_kernel
def _join(tops, sums, out, rows, shares, BS: constexpr, BC: constexpr):
    """log Σ over shares of Σ·exp(top), (columns,) in float64; ``rows`` is the number of columns."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    share = tl.arange(0, BS)
    highest = tl.full((BS, BC), LOWEST, tl.float32)
    for start in range(0, shares, BS):
        valid = _within(start + share, shares, c, rows)
        highest = tl.maximum(
            highest, tl.load(tops + (start + share)[:, None] * rows + c[None, :], valid, LOWEST)
        )
    top = tl.max(highest, 0)
    total = tl.zeros((BS, BC), tl.float64)
    for start in range(0, shares, BS):
        at = (start + share)[:, None] * rows + c[None, :]
        valid = _within(start + share, shares, c, rows)
        lower = tl.load(tops + at, mask=valid, other=LOWEST) - top[None, :]
        total += _read(sums + at, valid).to(tl.float64) * tl.exp(lower.to(tl.float64))
    tl.store(out + c, top.to(tl.float64) + tl.log(tl.sum(total, 0)), mask=c < rows)


@_kernel
def _slopes(
    mean,
    scale,
    factors,
    each,
    across,
    log_mean,
    grad,
    out,
    tau,
    rows,
    samples,
    K: constexpr,
    RANK: constexpr,
    SHARED: constexpr,
    SHARE: constexpr,
    BR: constexpr,
    BK: constexpr,
    RANKS: constexpr,
):
    """Over SHARE samples, Σ_s slope_s · (1, ε_K, ε_R's columns): gradients of μ, d and V's
    columns.
    """
    share, b = _place(rows, BR=BR)
    k = tl.arange(0, BK)
    r = tl.arange(0, RANKS)
    middle, width = _over_tau(mean, scale, tau, b, k, rows, K=K)
    average = _weights(log_mean, b, k, rows, K=K)
    g = _weights(grad, b, k, rows, K=K)
    of_mean = tl.zeros((BK, BR), tl.float32)
    of_scale = tl.zeros((BK, BR), tl.float32)
    of_factors = tl.zeros((RANKS, BK, BR), tl.float32)
    for s in range(share * SHARE, min(share * SHARE + SHARE, samples)):
        log_p, noise = _log_softmax(
            middle,
            width,
            factors,
            each,
            across,
            tau,
            s,
            b,
            k,
            rows,
            samples,
            K=K,
            RANK=RANK,
            SHARED=SHARED,
        )
        pull = tl.exp(log_p - average) * g
        slope = pull - tl.exp(log_p) * tl.sum(pull, 0)[None, :]
        of_mean += slope
        of_scale += slope * noise
        if RANK > 0:
            at = _noise(across, r[:, None], s, b[None, :], rows, samples, SHARED=SHARED)
            drawn = _read(at, _within(r, RANK, b, rows))
            of_factors += drawn[:, None, :] * slope[None, :, :]
    valid = _within(k, K, b, rows)
    # out is (2 + RANK, shares, K, rows): slopes of μ, of d, and of each column of V
    part = tl.cdiv(samples, SHARE) * K * rows
    at = (share * K + k)[:, None] * rows + b[None, :]
    tl.store(out + at, of_mean, mask=valid)
    tl.store(out + part + at, of_scale, mask=valid)
    if RANK > 0:
        column = r[:, None, None]
        tl.store(
            out + (2 + column) * part + at[None, :, :],
            of_factors,
            mask=valid[None, :, :] & (column < RANK),
        )


def _launch(
    mean: Tensor, scale: Tensor, factors: Tensor | None, each: Tensor, across: Tensor | None
) -> tuple[int, list[Tensor], dict[str, int]]:
    """The number of shares, the tensors that programs read, and the sizes of a tile."""
    rows, K = mean.shape
    bk = triton.next_power_of_2(max(K, 2))
    br = max(1, min(32, TILE // bk))
    sizes = {
        "K": K,
        "RANK": 0 if factors is None else factors.shape[2],
        "SHARED": each.shape[1] < rows,
        "SHARE": SHARE,
        "BR": br,
        "BK": bk,
        "num_warps": max(1, bk * br // 512),
    }
    mean, scale = mean.t().contiguous(), scale.expand_as(mean).t().contiguous()
    each = each.permute(2, 0, 1).contiguous()
    factors, across = (
        (mean, each)
        if factors is None or across is None
        else (factors.permute(2, 1, 0).contiguous(), across.permute(2, 0, 1).contiguous())
    )
    return triton.cdiv(each.shape[1], SHARE), [mean, scale, factors, each, across], sizes


def log_sum_softmax(
    mean: Tensor,
    scale: Tensor,
    factors: Tensor | None,
    tau: float,
    each: Tensor,
    across: Tensor | None,
) -> Tensor:
    """log Σ_s softmax((μ + Vε_R + d·ε_K)/τ), (B, K) in float64, of noise (S, B or 1, K) and (S, B
    or 1, R).

    Less log S it is the log of the mean in LN paper, Eq. 13. Noise in the layout (K, S, B) is not
    copied.
    """
    shares, inputs, sizes = _launch(mean, scale, factors, each, across)
    rows, K = mean.shape
    tops, sums = (
        torch.empty(shares, K, rows, dtype=torch.float32, device=mean.device) for _ in range(2)
    )
    out = torch.empty(K, rows, dtype=torch.float64, device=mean.device)
    with device_of(mean):
        _average[shares * triton.cdiv(rows, sizes["BR"]),](
            *inputs, tops, sums, tau, rows, len(each), **sizes
        )
        _join[triton.cdiv(K * rows, 32),](
            tops, sums, out, K * rows, shares, BS=32, BC=32, num_warps=4
        )
    return out.t()


def mean_softmax_gradients(
    mean: Tensor,
    scale: Tensor,
    factors: Tensor | None,
    tau: float,
    each: Tensor,
    across: Tensor | None,
    log_mean: Tensor,
    grad: Tensor,
) -> Tensor:
    """Σ_s slope_s · (1, ε_K, ε_R's columns), (2 + R, B, K), with slope = p/p̄·g − p·Σ(p/p̄·g) (LN
    paper, Eq. 14).
    """
    shares, inputs, sizes = _launch(mean, scale, factors, each, across)
    out = torch.empty(
        2 + sizes["RANK"], shares, *mean.t().shape, dtype=torch.float32, device=mean.device
    )
    with device_of(mean):
        _slopes[shares * triton.cdiv(len(mean), sizes["BR"]),](
            *inputs,
            log_mean.t().contiguous(),
            grad.t().contiguous(),
            out,
            tau,
            len(mean),
            len(each),
            RANKS=triton.next_power_of_2(max(1, sizes["RANK"])),
            **sizes,
        )
    return out.sum(1).transpose(1, 2)
