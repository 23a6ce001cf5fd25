"""The softmax averaged over noise on its logits, in Triton: a GPU keeps nothing of the noise's size but the noise.

Each program takes a few rows and SHARE samples; the shares are put together afterwards, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from noiseproof.core.gpu import device_of

SHARE = 64  # samples of a program
TILE = 2048  # numbers that it holds at a time

_kernel: Callable[[Callable[..., Any]], Any] = partial(triton.jit, do_not_specialize=["rows", "samples"])


@_kernel
def _place(s, b, rows, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the noise of samples s and rows b lies, (s, b)."""
    return s[:, None] + 0 * b[None, :] if SHARED else s[:, None] * rows + b[None, :]


@_kernel
def _factor_noise(across, r, rows, samples, s, b, RANK: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """ε_R's column r for samples s and rows b, (s, b, 1)."""
    at = _place(s, b, rows, SHARED=SHARED) * RANK + r
    return tl.load(across + at, mask=(s < samples)[:, None] & (b < rows)[None, :], other=0.0)[:, :, None]


@_kernel
def _log_softmax(  # type: ignore[no-untyped-def]
    mean, scale, factors, each, across, tau, rows, samples, s, b, k,
    K: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """log softmax((μ + Vε_R + d·ε_K)/τ) for samples s, rows b and classes k, (s, b, k), and ε_K; −∞ past the last."""
    of_row, some = b[:, None] * K + k[None, :], (b < rows)[:, None] & (k < K)[None, :]
    drawn = (s < samples)[:, None, None] & some[None, :, :]
    at = _place(s, b, rows, SHARED=SHARED)[:, :, None] * K + k[None, None, :]
    noise = tl.load(each + at, mask=drawn, other=0.0)
    logits = noise * tl.load(scale + of_row, mask=some, other=0.0)[None, :, :]
    for r in tl.static_range(RANK):
        column = tl.load(factors + of_row * RANK + r, mask=some, other=0.0)[None, :, :]
        logits += _factor_noise(across, r, rows, samples, s, b, RANK=RANK, SHARED=SHARED) * column
    logits = (logits + tl.load(mean + of_row, mask=some, other=0.0)[None, :, :]) / tau
    logits = tl.where((k < K)[None, None, :], logits, float("-inf"))
    logits -= tl.max(logits, 2)[:, :, None]
    return logits - tl.log(tl.sum(tl.exp(logits), 2))[:, :, None], noise


@_kernel
def _average(  # type: ignore[no-untyped-def]
    mean, scale, factors, each, across, tops, sums, tau, rows, samples,
    K: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr,
    SHARE: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of SHARE samples: the largest log-probability of each class, and Σ_s exp(log p − that)."""
    b, k = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BK)
    top, total = tl.full((BR, BK), float("-inf"), tl.float32), tl.zeros((BR, BK), tl.float32)
    first = tl.program_id(1) * SHARE
    for start in range(first, min(first + SHARE, samples), BS):
        s = start + tl.arange(0, BS)
        log_p, _ = _log_softmax(
            mean, scale, factors, each, across, tau, rows, samples, s, b, k, K=K, RANK=RANK, SHARED=SHARED
        )
        log_p = tl.where((s < samples)[:, None, None], log_p, float("-inf"))
        higher = tl.maximum(top, tl.max(log_p, 0))
        away = tl.where(higher == float("-inf"), 0.0, higher)  # past the last class
        total = total * tl.exp(top - away) + tl.sum(tl.exp(log_p - away[None, :, :]), 0)
        top = higher
    at = (tl.program_id(1) * rows + b)[:, None] * K + k[None, :]
    some = (b < rows)[:, None] & (k < K)[None, :]
    tl.store(tops + at, top, mask=some)
    tl.store(sums + at, total, mask=some)


@_kernel
def _slopes(  # type: ignore[no-untyped-def]
    mean, scale, factors, each, across, log_mean, grad, out, tau, rows, samples,
    K: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr,
    SHARE: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Over SHARE samples, Σ_s slope_s · (1, ε_K, ε_R's columns): gradients of μ and d, and by other programs of V."""
    factor = tl.program_id(2) - 1
    b, k = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BK)
    of_row, some = b[:, None] * K + k[None, :], (b < rows)[:, None] & (k < K)[None, :]
    average = tl.load(log_mean + of_row, mask=some, other=0.0)[None, :, :]
    g = tl.load(grad + of_row, mask=some, other=0.0)[None, :, :]
    total, scaled = tl.zeros((BR, BK), tl.float32), tl.zeros((BR, BK), tl.float32)
    first = tl.program_id(1) * SHARE
    for start in range(first, min(first + SHARE, samples), BS):
        s = start + tl.arange(0, BS)
        log_p, noise = _log_softmax(
            mean, scale, factors, each, across, tau, rows, samples, s, b, k, K=K, RANK=RANK, SHARED=SHARED
        )
        pull = tl.exp(log_p - average) * g
        slope = pull - tl.exp(log_p) * tl.sum(pull, 2)[:, :, None]
        slope = tl.where((s < samples)[:, None, None], slope, 0.0)
        if factor >= 0:
            slope *= _factor_noise(across, factor, rows, samples, s, b, RANK=RANK, SHARED=SHARED)
        total += tl.sum(slope, 0)
        scaled += tl.sum(slope * noise, 0)
    shares = tl.num_programs(1)
    at = (tl.program_id(1) * rows + b)[:, None] * K + k[None, :]
    row = tl.where(factor < 0, 0, factor + 2)
    tl.store(out + row * shares * rows * K + at, total, mask=some)
    if factor < 0:
        tl.store(out + shares * rows * K + at, scaled, mask=some)


def _launch(
    mean: Tensor, scale: Tensor, factors: Tensor | None, each: Tensor, across: Tensor | None
) -> tuple[tuple[int, int], list[Tensor], dict[str, int]]:
    """Programs over rows and over samples, the tensors that they read, and the sizes of a tile."""
    rows, K = mean.shape
    bk = triton.next_power_of_2(max(K, 2))
    br = max(1, min(16, TILE // bk))
    read = [mean, scale.expand_as(mean), mean if factors is None else factors, each, each if across is None else across]
    sizes = {
        "K": K, "RANK": 0 if factors is None else factors.shape[2], "SHARED": each.shape[1] < rows,
        "SHARE": SHARE, "BS": max(1, TILE // (bk * br)), "BR": br, "BK": bk, "num_warps": 4,
    }  # fmt: skip
    return (triton.cdiv(rows, br), triton.cdiv(len(each), SHARE)), [value.contiguous() for value in read], sizes


def log_sum_softmax(
    mean: Tensor, scale: Tensor, factors: Tensor | None, tau: float, each: Tensor, across: Tensor | None
) -> Tensor:
    """log Σ_s softmax((μ + Vε_R + d·ε_K)/τ), (B, K) in float64, of noise (S, B or 1, K) and (S, B or 1, R).

    Less log S it is the log of the mean in paper 000, Eq. 13.
    """
    grid, inputs, sizes = _launch(mean, scale, factors, each, across)
    tops, sums = (torch.empty(grid[1], *mean.shape, dtype=torch.float32, device=mean.device) for _ in range(2))
    with device_of(mean):
        _average[grid](*inputs, tops, sums, tau, len(mean), len(each), **sizes)
    return torch.logsumexp(tops.double() + sums.double().log_(), 0)


def mean_softmax_gradients(
    mean: Tensor, scale: Tensor, factors: Tensor | None, tau: float, each: Tensor, across: Tensor | None,
    log_mean: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    """Σ_s slope_s · (1, ε_K, ε_R's columns), (2 + R, B, K), with slope = p/p̄·g − p·Σ(p/p̄·g) (000 Eq. 14)."""
    grid, inputs, sizes = _launch(mean, scale, factors, each, across)
    out = torch.empty(2 + sizes["RANK"], grid[1], *mean.shape, dtype=torch.float32, device=mean.device)
    with device_of(mean):
        _slopes[(*grid, 1 + sizes["RANK"])](
            *inputs, log_mean.contiguous(), grad.contiguous(), out, tau, len(mean), len(each), **sizes
        )
    return out.sum(1)
