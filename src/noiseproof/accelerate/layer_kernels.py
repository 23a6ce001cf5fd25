"""Convolutions and batch normalisations of many networks at once, in Triton, with one launch for
all of them.

Images are (S·B, H, W, C) in memory, network after network; parameters are (S, …) and float32.
With patches X (a row for each pixel, columns of taps × channels; gathered on the way, never
stored), weights W and output gradients G of one network, a convolution is three products of
matrices,

    output = X·W        input gradient = patches(G)·Wᵀ        weight gradient = Xᵀ·G

A row of a patch is one stretch of memory, KW·C numbers, so that columns may be cut anywhere. Long
sums are made in parts of a fixed number of rows, added up in order: no network's result depends on
how many others there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language import constexpr

from noiseproof.accelerate import hopper
from noiseproof.core.tensors import device_of

# Triton is not typed. These sizes do not specialise a kernel: a single network must run the same
# code as several, and batches of another length (the last one, those of test sets) need not be
# compiled again.
SIZES = ["seats", "B", "rows", "count"]
_kernel: Callable[[Callable[..., Any]], Any] = partial(triton.jit, do_not_specialize=SIZES)


class Tile(NamedTuple):
    """Rows, outputs and columns that a program of a convolution holds at a time, and how it is
    run.
    """

    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int


def product_tile(
    columns: int, outputs: int, dtype: torch.dtype, taps: int = 9, step: int = 1
) -> Tile:
    """The tile of patches of ``columns`` times weights; it must not depend on the batch or the
    number of networks.

    ``step``: the stride in an input gradient, else 1.
    """
    bn = _pow2(outputs, 16, 128)
    if dtype == torch.float32:
        return Tile(64, min(bn, 64), _pow2(columns, 16, 32), 4, 2)
    # a linear layer: long sums for few rows, so let many programs share the rows
    if taps == 1 and columns > 1024:
        return Tile(32, bn, 128, 4, 3)
    bk = 64 if columns % 64 == 0 or columns > 1024 else _pow2(columns, 16, 32)
    # 192 KiB: only Hopper GPUs stack such widths (hopper.widest)
    if outputs % 256 == columns % 64 == 0 and step == 1:
        return Tile(128, 256, bk, 8, 4)
    return Tile(128, bn, bk, 8 if bn == 128 else 4, 3)


def weight_tile(columns: int, outputs: int, dtype: torch.dtype) -> Tile:
    """The tile of transposed patches times output gradients."""
    bn = _pow2(outputs, 16, 128)
    bk = _pow2(columns, 16, 128)
    if dtype == torch.float32:
        return Tile(32, min(bn, 64), min(bk, 64), 4, 2)
    if bn == 16:
        return Tile(128, bn, min(bk, 64), 4, 2)
    return Tile(min(8192 // bk, 256), bn, bk, 8 if bn * bk > 8192 else 4, 3)


def _pow2(n: int, low: int, high: int) -> int:
    return max(low, min(high, 1 << (n - 1).bit_length()))


# Convolution


@_kernel
def _read(x, mask):
    """Numbers in float32, zero outside of ``mask``."""
    return tl.load(x, mask=mask, other=0.0).to(tl.float32)


@_kernel
def _within(m, rows, n, columns):
    """Where a matrix has rows m and columns n."""
    return (m < rows)[:, None] & (n < columns)[None, :]


@_kernel
def _places(m, columns, n):
    """Places of rows m and columns n in the memory of a matrix."""
    return (m * columns)[:, None] + n[None, :]


@_kernel
def _divide(n, by):
    """Quotient and remainder of numbers that are not negative, in half the instructions."""
    n = tl.cast(n, tl.uint32)
    by = tl.cast(by, tl.uint32)
    return (n // by).to(tl.int32), (n % by).to(tl.int32)


@_kernel
def _gather(x, image, h, w, u, side, H: constexpr, W: constexpr, C: constexpr):
    """Patches that begin at pixels (h, w) of images, (rows, columns); column k is number side[k] of
    row u[k].
    """
    begin = ((image * H + h) * W + w) * C
    w = w * C
    shift = u * (W * C) + side
    # u is the row of a patch, and side the place in this row, tap·C + channel: both of each column.
    # With an odd C no two numbers can be read at once: let the threads of a warp go along pixels,
    # not columns. The patches are then read as (columns, rows), and transposed at the end.
    if C % 2:
        row = h[None, :] + u[:, None]
        column = w[None, :] + side[:, None]
        at = begin[None, :] + shift[:, None]
    else:
        row = h[:, None] + u[None, :]
        column = w[:, None] + side[None, :]
        at = begin[:, None] + shift[None, :]
    hit = (row >= 0) & (row < H) & (column >= 0) & (column < W * C)
    # Patches overlap: the first-level cache, which copies to shared memory bypass by default, holds
    # what the next tap reads.
    patch = tl.load(x + at, mask=hit, other=0.0, cache_modifier=".ca")
    if C % 2:
        patch = tl.trans(patch)
    return patch


@_kernel
def _product(
    x,
    weight,
    bias,
    out,
    B,
    IH: constexpr,
    IW: constexpr,
    OH: constexpr,
    OW: constexpr,
    C: constexpr,
    N: constexpr,
    KH: constexpr,
    KW: constexpr,
    STRIDE: constexpr,
    PAD: constexpr,
    BACK: constexpr,
    BIAS: constexpr,
    PRECISION: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
):
    """Patches (rows, U·V·C) times weights. BACK: x is an output gradient, out that of an input.

    Going back, pixels with the same remainder by STRIDE are reached by the same taps, every
    STRIDE-th one, and their patches are dense; each such class of pixels has its own programs.
    """
    seat = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    GH = OH
    GW = OW
    if BACK:
        classes: tl.constexpr = STRIDE * STRIDE
        top = tl.program_id(0) % classes // STRIDE
        left = tl.program_id(0) % STRIDE
        m = tl.program_id(0) // classes * BM + tl.arange(0, BM)
        GH = tl.cdiv(OH, STRIDE)
        GW = tl.cdiv(OW, STRIDE)
    else:
        m = tl.program_id(0) * BM + tl.arange(0, BM)
    image, pixel = _divide(m, GH * GW)
    i, j = _divide(pixel, GW)
    if BACK:
        i = i * STRIDE + top
        j = j * STRIDE + left
    # the first taps that reach these pixels, and the numbers of taps
    r = 0
    q = 0
    U = KH
    V = KW
    if BACK and STRIDE > 1:
        r = (top + PAD) % STRIDE
        q = (left + PAD) % STRIDE
        U = tl.cdiv(KH - r, STRIDE)
        V = tl.cdiv(KW - q, STRIDE)
        h = (i + PAD - r) // STRIDE - U + 1
        w = (j + PAD - q) // STRIDE - V + 1
    elif BACK:
        h = i + PAD - (KH - 1)
        w = j + PAD - (KW - 1)
    else:
        h = i * STRIDE - PAD
        w = j * STRIDE - PAD
    valid = (image < B) & (i < OH) & (j < OW)
    h = tl.where(valid, h, -KH)  # outside of the image for every tap
    x += seat * (B * IH * IW * C)
    weight += seat * (N * KH * KW * C)
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, U * V * C, BK):
        k = start + tl.arange(0, BK)
        u, side = _divide(k, V * C)
        if (KH * KW * C) % BK != 0 or STRIDE > 1:
            u = tl.where(k < U * V * C, u, IH + KH)
        patch = _gather(x, image, h, w, u, side, IH, IW, C)
        if BACK:
            v, c = _divide(side, C)
            tap = (r + STRIDE * (U - 1 - u)) * KW + q + STRIDE * (V - 1 - v)
            at = (c * (KH * KW * N) + tap * N)[:, None] + n[None, :]
        else:
            at = k[:, None] + (n * (KH * KW * C))[None, :]
        part = tl.load(weight + at, mask=_within(k, U * V * C, n, N), other=0.0)
        sums = tl.dot(patch, part, sums, input_precision=PRECISION)
    if BIAS:
        sums += tl.load(bias + seat * N + n, mask=n < N, other=0.0)[None, :]
    out += seat * (B * OH * OW * N)
    at = ((image * OH + i) * OW + j)[:, None] * N + n[None, :]
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=valid[:, None] & (n < N)[None, :])


@_kernel
def _weight_gradient(
    x,
    grad,
    out,
    seats,
    B,
    IH: constexpr,
    IW: constexpr,
    OH: constexpr,
    OW: constexpr,
    C: constexpr,
    N: constexpr,
    KH: constexpr,
    KW: constexpr,
    STRIDE: constexpr,
    PAD: constexpr,
    PRECISION: constexpr,
    SHARE: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
):
    """Patches' transpose times output gradients, over SHARE rows; after the last columns: those
    gradients' sum.
    """
    K: tl.constexpr = KH * KW * C
    seat = tl.program_id(2) % seats
    first = tl.program_id(2) // seats * SHARE
    rows = B * OH * OW
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    x += seat.to(tl.int64) * (B * IH * IW * C)
    grad += seat.to(tl.int64) * (rows * N)
    out += (tl.program_id(2) // seats).to(tl.int64) * (
        seats * N * (K + (tl.num_programs(0) - tl.cdiv(K, BK)))
    )
    if tl.program_id(0) * BK < K:
        k = tl.program_id(0) * BK + tl.arange(0, BK)
        u, side = _divide(k, KW * C)
        sums = tl.zeros((BK, BN), tl.float32)
        for start in range(first, min(first + SHARE, rows), BM):
            m = start + tl.arange(0, BM)
            image, pixel = _divide(m, OH * OW)
            h, w = _divide(pixel, OW)
            # Rows past the last hit nothing; columns past the last, in rows below the patch, are
            # left out in the end.
            h = tl.where(m < rows, h * STRIDE - PAD, -KH - BK)
            w = w * STRIDE - PAD
            patch = _gather(x, image, h, w, u, side, IH, IW, C)
            at = _places(m, N, n)
            g = tl.load(grad + at, mask=_within(m, rows, n, N), other=0.0)
            sums = tl.dot(tl.trans(patch), g, sums, input_precision=PRECISION)
        at = (seat * N + n)[None, :] * K + k[:, None]
        tl.store(out + at, sums, mask=_within(k, K, n, N))
    else:
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(first, min(first + SHARE, rows), BM):
            m = start + tl.arange(0, BM)
            at = _places(m, N, n)
            total += _read(grad + at, _within(m, rows, n, N))
        tl.store(out + seats * N * K + seat * N + n, tl.sum(total, 0), mask=n < N)


@_kernel
def _add_up(parts, out, count, size, BP: constexpr, BLOCK: constexpr):
    """The sum of parts (count, size), always in the same order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BP, BLOCK), tl.float32)
    for start in range(0, count, BP):
        p = start + tl.arange(0, BP)
        at = p.to(tl.int64)[:, None] * size + i[None, :]
        sums += _read(parts + at, _within(p, count, i, size))
    tl.store(out + i, tl.sum(sums, 0), mask=i < size)


def _summed(parts: Tensor) -> Tensor:
    """(P, …) → (…)."""
    if len(parts) == 1:
        return parts[0]
    out = torch.empty_like(parts[0])
    bp = _pow2(len(parts), 1, 256)
    _add_up[(triton.cdiv(out.numel(), 2048 // bp),)](
        parts, out, len(parts), out.numel(), BP=bp, BLOCK=2048 // bp, num_warps=4
    )
    return out


def _images(x: Tensor) -> Tensor:
    # (S·B, H, W, C); no copy where the memory format is channels last
    return x.permute(0, 2, 3, 1).contiguous()


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    height: int,
    width: int,
    stride: int,
    padding: int,
    back: bool,
) -> Tensor:
    """Images (S·B, C, H, W) times weights (S, O, KH, KW, I): forward, or back to an input of
    ``height`` × ``width``.
    """
    x = _images(x)
    fast = hopper.product(x, weight, bias, back) if stride == padding == 1 else None
    if fast is not None:
        return fast.permute(0, 3, 1, 2)
    seats, o, kh, kw, i = weight.shape
    images, ih, iw, c = x.shape
    n = i if back else o
    step = stride if back else 1
    tile = product_tile(kh * kw * c, n, x.dtype, kh * kw, step)
    out = torch.empty(images, height, width, n, dtype=x.dtype, device=x.device)
    pixels = images // seats * triton.cdiv(height, step) * triton.cdiv(width, step)
    _product[triton.cdiv(pixels, tile.rows) * step**2, triton.cdiv(n, tile.outputs), seats](
        x,
        weight,
        x if bias is None else bias,
        out,
        images // seats,
        IH=ih,
        IW=iw,
        OH=height,
        OW=width,
        C=c,
        N=n,
        KH=kh,
        KW=kw,
        STRIDE=stride,
        PAD=padding,
        BACK=back,
        BIAS=bias is not None,
        PRECISION=_precision(),
        BM=tile.rows,
        BN=tile.outputs,
        BK=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out.permute(0, 3, 1, 2)


def _sizes(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, int]:
    h, w = x.shape[2:]
    kh, kw = weight.shape[2:4]
    return (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1


def _weights_gradient(
    x: Tensor, grad: Tensor, seats: int, kh: int, kw: int, stride: int, padding: int, bias: bool
) -> Tensor:
    """The gradients of weights, (S, O, KH, KW, I), and then of biases, (S, O), in one row."""
    x = _images(x)
    grad = _images(grad)
    images, ih, iw, c = x.shape
    _, oh, ow, n = grad.shape
    fast = (
        hopper.weight_gradient(x, grad, seats, bias)
        if (kh, kw, stride, padding) == (3, 3, 1, 1)
        else None
    )
    if fast is not None:
        return _summed(fast)
    tile = weight_tile(kh * kw * c, n, x.dtype)
    blocks = triton.cdiv(kh * kw * c, tile.columns), triton.cdiv(n, tile.outputs)
    count = blocks[0] * blocks[1]
    # Many blocks fill a GPU without many parts, which take long to write: at most 256 programs for
    # a batch of 128.
    share = max(
        tile.rows,
        min(4096, _pow2(12288 // count + 1, 1, 8192) // 2),
        _pow2(oh * ow * count // 2, 1, 4096),
    )
    parts = triton.cdiv(images // seats * oh * ow, share)
    out = torch.empty(parts, seats * n * (kh * kw * c + bias), dtype=torch.float32, device=x.device)
    _weight_gradient[blocks[0] + bias, blocks[1], seats * parts](
        x,
        grad,
        out,
        seats,
        images // seats,
        IH=ih,
        IW=iw,
        OH=oh,
        OW=ow,
        C=c,
        N=n,
        KH=kh,
        KW=kw,
        STRIDE=stride,
        PAD=padding,
        PRECISION=_precision(),
        SHARE=share,
        BM=tile.rows,
        BN=tile.outputs,
        BK=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return _summed(out)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding):
        rounded = weight.to(x.dtype)
        ctx.save_for_backward(x, rounded)
        ctx.shape = weight.shape
        ctx.has_bias = bias is not None
        ctx.stride = stride
        ctx.padding = padding
        sizes = _sizes(x, weight, stride, padding)
        return _multiply(x, rounded, bias, *sizes, stride, padding, False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, rounded = ctx.saved_tensors
        seats, o, kh, kw, _ = ctx.shape
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            height, width = x.shape[2:]
            to_x = _multiply(grad, rounded, None, height, width, ctx.stride, ctx.padding, True)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            both = _weights_gradient(x, grad, seats, kh, kw, ctx.stride, ctx.padding, ctx.has_bias)
            to_weight = both[: ctx.shape.numel()].view(ctx.shape)
            to_bias = both[ctx.shape.numel() :].view(seats, o) if ctx.has_bias else None
        return to_x, to_weight, to_bias, None, None


def stacked_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """S convolutions: x (S·B, I, H, W), weight (S, O, KH, KW, I), bias (S, O) → (S·B, O, OH, OW).

    Weights are ``rounded`` to the precision of x, sums and the gradients of parameters are float32.
    """
    _check(x, weight, *([] if bias is None else [bias]))
    if x.shape[1] == stride == 1 and weight.shape[3] <= 8 and not x.requires_grad:
        # Eight numbers are read at once: neighbours become channels of a kernel one column wide.
        rest = 8 - weight.shape[3]
        x = (
            F.pad(x, (padding, padding + rest, padding, padding))
            .squeeze(1)
            .unfold(2, 8, 1)
            .permute(0, 3, 1, 2)
        )
        weight = F.pad(weight.transpose(3, 4), (0, rest))
        padding = 0
    # eight numbers are read at once; a compiler fuses the padding
    if x.shape[1] > 4 and x.shape[1] % 8:
        more = -x.shape[1] % 8
        x = F.pad(x, (0, 0, 0, 0, 0, more))
        weight = F.pad(weight, (0, more))
    with device_of(x):
        out: Tensor = _Conv.apply(x, weight, bias, stride, padding)
    return out


def _check(x: Tensor, *parameters: Tensor) -> None:
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(
            f"Expected float32, bfloat16 or float16 on a GPU, got {x.dtype}. Convert the inputs."
        )
    for each in parameters:
        if each.dtype != torch.float32 or not each.is_contiguous():
            raise TypeError(
                f"Expected parameters in float32 and in one piece, got {each.dtype},"
                f" {each.stride()}."
            )
        if x.shape[0] % each.shape[0]:
            raise ValueError(
                f"Expected as many rows for each of {each.shape[0]} networks, got {x.shape[0]}"
                " rows."
            )


# Pooling


@_kernel
def _pool(
    x,
    grad,
    out,
    total,
    H: constexpr,
    W: constexpr,
    OH: constexpr,
    OW: constexpr,
    GH: constexpr,
    GW: constexpr,
    C: constexpr,
    BACK: constexpr,
    BLOCK: constexpr,
):
    """The largest of 2×2 numbers; BACK: its gradient to the first that is as large, zero to the
    others.

    There are GH × GW windows. Going back, they cover the whole image: those past the last output
    have no gradient.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    window, c = _divide(i, C)
    image, place = _divide(window, GH * GW)
    h, w = _divide(place, GW)
    image = image.to(tl.int64)
    at = ((image * H + 2 * h) * W + 2 * w) * C + c
    right = 2 * w + 1 < W
    below = 2 * h + 1 < H
    valid = i < total
    a = tl.load(x + at, mask=valid, other=0.0)
    b = tl.load(x + at + C, mask=valid & right, other=float("-inf"))
    d = tl.load(x + at + W * C, mask=valid & below, other=float("-inf"))
    e = tl.load(x + at + (W + 1) * C, mask=valid & below & right, other=float("-inf"))
    a = a.to(tl.float32)
    b = b.to(tl.float32)
    d = d.to(tl.float32)
    e = e.to(tl.float32)
    if BACK:
        g = tl.load(
            grad + ((image * OH + h) * OW + w) * C + c, mask=valid & (h < OH) & (w < OW), other=0.0
        )
        first = (a >= b) & (a >= d) & (a >= e)
        second = (b >= d) & (b >= e) & (first == 0)
        third = (d >= e) & (first == 0) & (second == 0)
        tl.store(out + at, tl.where(first, g, 0.0), mask=valid)
        tl.store(out + at + C, tl.where(second, g, 0.0), mask=valid & right)
        tl.store(out + at + W * C, tl.where(third, g, 0.0), mask=valid & below)
        none = (first == 0) & (second == 0) & (third == 0)
        tl.store(out + at + (W + 1) * C, tl.where(none, g, 0.0), mask=valid & below & right)
    else:
        a = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
        d = tl.maximum(d, e, propagate_nan=tl.PropagateNan.ALL)
        a = tl.maximum(a, d, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + i, a.to(out.dtype.element_ty), mask=valid)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, height, width):
        ctx.save_for_backward(x)
        inner = _images(x)
        images, _, _, c = inner.shape
        out = torch.empty(images, height, width, c, dtype=x.dtype, device=x.device)
        _launch_pool(inner, inner, out, (height, width), (height, width), back=False)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inner = _images(x)
        grad = _images(grad)
        out = torch.empty_like(inner)
        windows = (inner.shape[1] + 1) // 2, (inner.shape[2] + 1) // 2
        _launch_pool(inner, grad, out, grad.shape[1:3], windows, back=True)
        return out.permute(0, 3, 1, 2), None, None


def _launch_pool(
    x: Tensor,
    grad: Tensor,
    out: Tensor,
    size: Sequence[int],
    windows: tuple[int, int],
    back: bool,
) -> None:
    """Pool images (N, H, W, C) to ``size``, or ``back``, with one program for 1024 numbers of the
    ``windows``.
    """
    images, h, w, c = x.shape
    total = images * windows[0] * windows[1] * c
    _pool[(triton.cdiv(total, 1024),)](
        x,
        grad,
        out,
        total,
        H=h,
        W=w,
        OH=size[0],
        OW=size[1],
        GH=windows[0],
        GW=windows[1],
        C=c,
        BACK=back,
        BLOCK=1024,
        num_warps=4,
    )


def pool(x: Tensor, ceil: bool) -> Tensor:
    """The largest of every 2×2 pixels, (N, C, H, W) → (N, C, H/2, W/2), a last odd row or column
    kept if ``ceil``.
    """
    _check(x)
    if x.numel() >= 2**31:
        raise ValueError(
            f"Expected less than 2³¹ numbers to pool, got {x.numel()}. Take smaller batches."
        )
    with device_of(x):
        out: Tensor = _Pool.apply(x, *((side + ceil) // 2 for side in x.shape[2:]))
    return out


# Batch normalisation


@_kernel
def _moments(x, out, rows, C: constexpr, SHARE: constexpr, BM: constexpr, BC: constexpr):
    """Means and sums of squared deviations over SHARE rows, measured from the first of these."""
    seat = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * SHARE
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += seat * rows * C
    origin = _read(x + first * C + c, c < C)[None, :]
    sums = tl.zeros((BM, BC), tl.float32)
    squares = tl.zeros((BM, BC), tl.float32)
    # not a loop: a warp waits once for all that it reads
    for start in tl.static_range(0, SHARE, BM):
        m = first + start + tl.arange(0, BM)
        valid = _within(m, rows, c, C)
        at = _places(m, C, c)
        value = _read(x + at, valid)
        value = tl.where(valid, value - origin, 0.0)
        sums += value
        squares += value * value
    count = min(SHARE, rows - first)
    shift = tl.sum(sums, 0)
    out += (seat * tl.num_programs(0) + tl.program_id(0)) * 2 * C
    tl.store(out + c, tl.sum(origin, 0) + shift / count, mask=c < C)
    tl.store(out + C + c, tl.sum(squares, 0) - shift * shift / count, mask=c < C)


@_kernel
def _statistics(
    parts,
    out,
    running_mean,
    running_var,
    rows,
    count,
    momentum,
    eps,
    C: constexpr,
    SHARE: constexpr,
    BP: constexpr,
    BC: constexpr,
):
    """Mean and 1/√(variance + eps) from the moments of all parts (count, 2, C), and running
    statistics.
    """
    seat = tl.program_id(1)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    parts += seat * count * 2 * C
    origin = _read(parts + c, c < C)[None, :]
    sums = tl.zeros((BP, BC), tl.float32)
    squares = tl.zeros((BP, BC), tl.float32)
    for start in range(0, count, BP):
        p = start + tl.arange(0, BP)
        valid = _within(p, count, c, C)
        share = tl.minimum(rows - p * SHARE, SHARE).to(tl.float32)[:, None]
        at = parts + (p * 2 * C)[:, None] + c[None, :]
        away = tl.where(valid, _read(at, valid) - origin, 0.0)
        sums += share * away
        squares += _read(at + C, valid) + share * away * away
    total = tl.sum(sums, 0)
    mean = tl.sum(origin, 0) + total / rows
    deviations = tl.maximum(tl.sum(squares, 0) - total * total / rows, 0.0)
    at = seat * C + c
    tl.store(out + at, mean, mask=c < C)
    tl.store(out + tl.num_programs(1) * C + at, 1.0 / tl.sqrt(deviations / rows + eps), mask=c < C)
    old = _read(running_mean + at, c < C)
    tl.store(running_mean + at, (1 - momentum) * old + momentum * mean, mask=c < C)
    old = _read(running_var + at, c < C)
    tl.store(
        running_var + at, (1 - momentum) * old + momentum * (deviations / (rows - 1)), mask=c < C
    )


@_kernel
def _affine(
    x,
    shortcut,
    grad,
    out,
    weight,
    bias,
    moments,
    sums,
    rows,
    C: constexpr,
    RELU: constexpr,
    SHORTCUT: constexpr,
    BACK: constexpr,
    BM: constexpr,
    BC: constexpr,
):
    """x̂·weight + bias + shortcut, with ReLU; BACK: the gradient of x,
    weight/σ · (g − mean(g) − x̂·mean(g·x̂)).

    The last rows come first: the kernel before has just read them, so that the second-level cache
    still has them.
    """
    seat = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)
    m = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    valid = _within(m, rows, c, C)
    at = _places(m, C, c)
    per = seat * C + c
    size = tl.num_programs(2) * C
    value = _read(x + seat * rows * C + at, valid)
    scale = _read(moments + size + per, c < C)[None, :]
    value = (value - _read(moments + per, c < C)[None, :]) * scale
    slope = _read(weight + per, c < C)[None, :]
    y = value * slope + _read(bias + per, c < C)[None, :]
    if BACK:
        g = _read(grad + seat * rows * C + at, valid)
        if RELU:
            g = tl.where(y <= 0, 0.0, g)  # so that NaN is not hidden
        to_bias = _read(sums + per, c < C)[None, :] / rows
        y = (g - to_bias - value * (_read(sums + size + per, c < C)[None, :] / rows)) * (
            slope * scale
        )
    if SHORTCUT:
        y += _read(shortcut + seat * rows * C + at, valid)
    if RELU and not BACK:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + seat * rows * C + at, y.to(out.dtype.element_ty), mask=valid)


@_kernel
def _gradient_sums(
    x,
    shortcut,
    grad,
    out,
    stored,
    weight,
    bias,
    moments,
    seats,
    rows,
    C: constexpr,
    RELU: constexpr,
    SHORTCUT: constexpr,
    SHARE: constexpr,
    BM: constexpr,
    BC: constexpr,
):
    """Sums of g and of g·x̂ over SHARE rows, for out (parts, 2, S, C); SHORTCUT: g is stored."""
    seat = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * SHARE
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    per = seat * C + c
    size = seats * C
    mean = _read(moments + per, c < C)[None, :]
    scale = _read(moments + size + per, c < C)[None, :]
    slope = _read(weight + per, c < C)[None, :]
    offset = _read(bias + per, c < C)[None, :]
    x += seat * rows * C
    shortcut += seat * rows * C
    grad += seat * rows * C
    stored += seat * rows * C
    to_bias = tl.zeros((BM, BC), tl.float32)
    to_weight = tl.zeros((BM, BC), tl.float32)
    # not a loop: a warp waits once for all that it reads
    for start in tl.static_range(0, SHARE, BM):
        m = first + start + tl.arange(0, BM)
        valid = _within(m, rows, c, C)
        at = _places(m, C, c)
        value = (_read(x + at, valid) - mean) * scale
        g = _read(grad + at, valid)
        if RELU:
            y = value * slope + offset
            if SHORTCUT:
                y += _read(shortcut + at, valid)
            g = tl.where(y <= 0, 0.0, g)
        if SHORTCUT:
            tl.store(stored + at, g.to(stored.dtype.element_ty), mask=valid)
        to_bias += g
        to_weight += g * value
    out += tl.program_id(0) * 2 * size
    tl.store(out + per, tl.sum(to_bias, 0), mask=c < C)
    tl.store(out + size + per, tl.sum(to_weight, 0), mask=c < C)


def _rows(x: Tensor) -> Tensor:
    return _images(x) if x.dim() == 4 else x.contiguous()  # (…, C)


def _outer(rows: Tensor, x: Tensor) -> Tensor:
    """The inverse of ``_rows``, for rows like those of ``x``."""
    return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows


def _blocks(channels: int, warps: int) -> tuple[int, int]:
    """Rows and channels that a program of a normalisation holds at a time.

    On an H200 sums are fastest with one warp, which need not wait for others, in parts of 4 blocks,
    or of 8 where two tensors are read and none is written; a normalisation is with 8 warps, and its
    gradient with 4.
    """
    bc = _pow2(channels, 4, 128)
    return 1024 * warps // bc, bc


def _measure(
    x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> Tensor:
    """Means and reciprocal deviations, (2, S, C), of each network's rows, which also enter the
    running statistics.
    """
    inner = _rows(x)
    seats, c = running_mean.shape
    rows = x.numel() // (seats * c)
    bm, bc = _blocks(c, 1)
    share = 4 * bm
    count = triton.cdiv(rows, share)
    parts = torch.empty(seats, count, 2, c, dtype=torch.float32, device=x.device)
    out = torch.empty(2, seats, c, dtype=torch.float32, device=x.device)
    _moments[count, triton.cdiv(c, bc), seats](
        inner, parts, rows, C=c, SHARE=share, BM=bm, BC=bc, num_warps=1
    )
    bc = _pow2(c, 4, 8)
    bp = _pow2(count, 1, 256)
    _statistics[triton.cdiv(c, bc), seats](
        parts,
        out,
        running_mean,
        running_var,
        rows,
        count,
        momentum,
        eps,
        C=c,
        SHARE=share,
        BP=bp,
        BC=bc,
        num_warps=4,
    )
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, moments, shortcut, relu):
        ctx.save_for_backward(x, weight, bias, moments, shortcut)
        ctx.relu = relu
        inner = _rows(x)
        seats, c = weight.shape
        rows = x.numel() // (seats * c)
        bm, bc = _blocks(c, 8)
        out = torch.empty_like(inner)
        # Without BACK, the kernel does not read its third and eighth argument.
        _affine[triton.cdiv(rows, bm), triton.cdiv(c, bc), seats](
            inner,
            inner if shortcut is None else _rows(shortcut),
            inner,
            out,
            weight,
            bias,
            moments,
            moments,
            rows,
            C=c,
            RELU=relu,
            SHORTCUT=shortcut is not None,
            BACK=False,
            BM=bm,
            BC=bc,
            num_warps=8,
        )
        return _outer(out, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, bias, moments, shortcut = ctx.saved_tensors
        inner = _rows(x)
        grad = _rows(grad)
        relu = ctx.relu
        seats, c = weight.shape
        rows = x.numel() // (seats * c)
        bm, bc = _blocks(c, 1)
        share = (8 if shortcut is None else 4) * bm
        count = triton.cdiv(rows, share)
        blocks = triton.cdiv(c, bc)
        parts = torch.empty(count, 2, seats, c, dtype=torch.float32, device=x.device)
        out = torch.empty_like(inner)
        stored = None if shortcut is None else torch.empty_like(inner)
        _gradient_sums[count, blocks, seats](
            inner,
            inner if shortcut is None else _rows(shortcut),
            grad,
            parts,
            out if stored is None else stored,
            weight,
            bias,
            moments,
            seats,
            rows,
            C=c,
            RELU=relu,
            SHORTCUT=shortcut is not None,
            SHARE=share,
            BM=bm,
            BC=bc,
            num_warps=1,
        )
        sums = _summed(parts)
        bm, _ = _blocks(c, 4)
        if stored is not None:  # it has gone through ReLU
            grad = stored
            relu = False
        _affine[triton.cdiv(rows, bm), blocks, seats](
            inner,
            inner,
            grad,
            out,
            weight,
            bias,
            moments,
            sums,
            rows,
            C=c,
            RELU=relu,
            SHORTCUT=False,
            BACK=True,
            BM=bm,
            BC=bc,
            num_warps=4,
        )
        to_shortcut = None if stored is None else _outer(stored, x)
        return _outer(out, x), sums[1], sums[0], None, to_shortcut, None


def affine(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    relu: bool,
    shortcut: Tensor | None = None,
) -> Tensor:
    """One batch normalisation in evaluation mode, (B, C, H, W) or (B, C), + ``shortcut``; ReLU
    follows if ``relu``.
    """
    _check(x, weight[None], bias[None])
    moments = torch.stack([running_mean, (running_var + eps).rsqrt()])[:, None]
    with device_of(x):
        out: Tensor = _Norm.apply(x, weight[None], bias[None], moments, _as(shortcut, x), relu)
    return out


def stacked_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
    shortcut: Tensor | None = None,
) -> Tensor:
    """S batch normalisations in training mode: x (S·B, C, H, W) or (S·B, C), each over its
    network's rows, + shortcut.

    Parameters and statistics are (S, C). The running ones move by ``momentum`` towards this batch's
    mean and unbiased variance. ``shortcut``, of the shape of x, is added, and ReLU follows if
    ``relu``.
    """
    _check_norm(x, weight, bias, running_mean, running_var)
    # The gradient of _Norm includes the dependence of the moments on x.
    with device_of(x):
        moments = _measure(x.detach(), running_mean, running_var, momentum, eps)
        out: Tensor = _Norm.apply(x, weight, bias, moments, _as(shortcut, x), relu)
    return out


def _check_norm(x: Tensor, *parameters: Tensor) -> None:
    _check(x, *parameters)
    if x.dim() not in (2, 4):
        raise ValueError(
            f"Expected images (N, C, H, W) or vectors (N, C) to normalise, got {tuple(x.shape)}."
        )
    if x.numel() <= parameters[0].numel():
        raise ValueError(
            "Expected more than one number per channel to normalise in training, got"
            f" {tuple(x.shape)}."
        )


def _as(shortcut: Tensor | None, x: Tensor) -> Tensor | None:
    if shortcut is not None and shortcut.shape != x.shape:
        raise ValueError(
            f"Expected `shortcut` of shape {tuple(x.shape)}, as x has, got {tuple(shortcut.shape)}."
        )
    return None if shortcut is None else shortcut.to(x.dtype)


# Updates


@_kernel
def _descend(weight, momentum, g, at, valid, rate, factor, decay, NESTEROV: constexpr):
    """m ← factor·m + g + decay·w, w ← w − rate·m, or with Nesterov's m; the new w."""
    w = _read(weight + at, valid)
    g += decay * w
    m = factor * _read(momentum + at, valid) + g
    w -= rate * (g + factor * m if NESTEROV else m)
    tl.store(momentum + at, m, mask=valid)
    tl.store(weight + at, w, mask=valid)
    return w


@_kernel
def _sgd(
    weight,
    grad,
    momentum,
    rates,
    n,
    factor,
    decay,
    NESTEROV: constexpr,
    BLOCK: constexpr,
):
    seat = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = seat.to(tl.int64) * n + i
    valid = i < n
    g = _read(grad + at, valid)
    _descend(
        weight, momentum, g, at, valid, tl.load(rates + seat), factor, decay, NESTEROV=NESTEROV
    )


def sgd(
    weight: Tensor,
    grad: Tensor,
    momentum: Tensor,
    rates: Tensor,
    factor: float,
    decay: float,
    nesterov: bool,
) -> None:
    """m ← factor·m + g + decay·w, w ← w − rate·m, or with Nesterov's m, of S tensors (S, …) in
    place.
    """
    n = weight[0].numel()
    with device_of(weight):
        _sgd[triton.cdiv(n, 1024), len(weight)](
            weight,
            grad,
            momentum,
            rates,
            n,
            factor,
            decay,
            NESTEROV=nesterov,
            BLOCK=1024,
            num_warps=4,
        )


@_kernel
def _linear_sgd(
    x,
    grad,
    weight,
    momentum,
    rounded,
    bias,
    bias_momentum,
    rates,
    B,
    factor,
    decay,
    N: constexpr,
    K: constexpr,
    BIAS: constexpr,
    NESTEROV: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
):
    """A tile of gradᵀ·x, and the update by it; the programs of the first columns update the bias,
    too.
    """
    seat = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    rate = tl.load(rates + seat)
    x += seat * B * K
    grad += seat * B * N
    sums = tl.zeros((BN, BK), tl.float32)
    for start in range(0, B, BM):
        m = start + tl.arange(0, BM)
        g = tl.load(grad + m[:, None] * N + n[None, :], mask=_within(m, B, n, N), other=0.0)
        v = tl.load(x + m[:, None] * K + k[None, :], mask=_within(m, B, k, K), other=0.0)
        sums = tl.dot(tl.trans(g), v, sums)
    at = seat * (N * K) + n[:, None] * K + k[None, :]
    valid = _within(n, N, k, K)
    w = _descend(weight, momentum, sums, at, valid, rate, factor, decay, NESTEROV=NESTEROV)
    tl.store(rounded + at, w.to(rounded.dtype.element_ty), mask=valid)
    if BIAS:  # noqa: SIM102 - the compiler knows this, but not the other
        if tl.program_id(0) == 0:
            total = tl.zeros((BM, BN), tl.float32)
            for start in range(0, B, BM):
                m = start + tl.arange(0, BM)
                hit = _within(m, B, n, N)
                total += _read(grad + m[:, None] * N + n[None, :], hit)
            _descend(
                bias,
                bias_momentum,
                tl.sum(total, 0),
                seat * N + n,
                n < N,
                rate,
                factor,
                decay,
                NESTEROV=NESTEROV,
            )


def linear_sgd(
    grad: Tensor,
    x: Tensor,
    rounded: Tensor,
    weight: Tensor,
    momentum: Tensor,
    bias: Tensor | None,
    bias_momentum: Tensor | None,
    rates: Tensor,
    factor: float,
    decay: float,
    nesterov: bool,
) -> None:
    """``sgd`` of S linear layers from output gradients (S, B, O) and inputs (S, B, I), and their
    rounded weights.

    The gradient of the weights is not stored: writing and reading it takes longer than these
    products of few rows.
    """
    seats, rows, n = grad.shape
    k = x.shape[2]
    # With larger tiles a processor has room for one program only, and idles while that reads.
    bn = _pow2(n, 16, 32)
    bk = _pow2(k, 16, 128)
    with device_of(weight):
        _linear_sgd[triton.cdiv(k, bk), triton.cdiv(n, bn), seats](
            x,
            grad,
            weight,
            momentum,
            rounded,
            weight if bias is None else bias,
            momentum if bias_momentum is None else bias_momentum,
            rates,
            rows,
            factor,
            decay,
            N=n,
            K=k,
            BIAS=bias is not None,
            NESTEROV=nesterov,
            BM=32,
            BN=bn,
            BK=bk,
            num_warps=8 if bn * bk == 4096 else 4,
            num_stages=1,
        )
