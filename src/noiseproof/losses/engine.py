"""The autograd functions behind the losses: closed-form slopes, and large batches by blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.margin import LabelProb

BLOCK = 2**20  # logits: the size from which blocks pay, twice the size of a block; measured, see benchmarks/losses.py


class Curve(Protocol):
    """A scalar function of the label's nll with its derivative in closed form."""

    def value(self, y: LabelProb) -> Tensor: ...

    def slope(self, y: LabelProb) -> Tensor: ...


class _Pointwise(torch.autograd.Function):
    """value(nll) whose derivative is the closed-form slope; the slope is differentiable, so higher orders work."""

    generate_vmap_rule = True

    @staticmethod
    def forward(nll: Tensor, curve: Curve, mean: bool) -> Tensor:
        value = curve.value(LabelProb(nll))
        return value.mean() if mean else value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Curve, bool], output: Tensor) -> None:
        nll, ctx.curve, ctx.mean = inputs
        ctx.save_for_backward(nll)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (nll,) = ctx.saved_tensors
        return (grad / nll.numel() if ctx.mean else grad) * ctx.curve.slope(LabelProb(nll)), None, None


class _PointwiseForwardMode(_Pointwise):
    """The same with forward-mode derivatives, which ``torch.compile`` cannot trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Curve, bool], output: Tensor) -> None:
        _Pointwise.setup_context(ctx, inputs, output)
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None, __: None) -> Tensor:
        change: Tensor = tangent * ctx.curve.slope(LabelProb(ctx.saved_tensors[0]))
        return change.mean() if ctx.mean else change


class _Blocks(torch.autograd.Function):
    """A row-wise loss by blocks of rows, value and gradient together, so that no (B, K) temporary leaves the cache."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Callable[[Tensor, int], Tensor]) -> Tensor:
        size = max(1, BLOCK // (2 * logits.shape[1]))
        values, gradient = [], torch.empty_like(logits)
        for start in range(0, len(logits), size):
            block = logits[start : start + size].detach().requires_grad_()
            with torch.enable_grad():
                value = rows(block, start)
                gradient[start : start + size] = torch.autograd.grad(value.sum(), block)[0]
            values.append(value.detach())
        ctx.save_for_backward(logits, gradient)
        ctx.rows = rows
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the stored gradient is a constant, so derive it again
            gradient = torch.autograd.grad(ctx.rows(logits, 0).sum(), logits, create_graph=True)[0]
        return grad[:, None] * gradient, None


def label_nll(logits: Tensor, target: Tensor, ignore_index: int, closed: bool) -> Tensor:
    """−log p_y of each row (B,), zero where the target is ``ignore_index``; ``closed``: ``pointwise`` follows."""
    if closed or not torch.compiler.is_compiling():
        return F.cross_entropy(logits, target, reduction="none", ignore_index=ignore_index)
    # In operations whose gradients are pointwise, of which a compiler makes one pass, g·(softmax − onehot). Of cross
    # entropy's own, a scatter and a sum over it, it keeps a float32 (B, K) where g is a short expression that it
    # inlines; that of a closed slope is long enough to be made a vector first (torch 2.11, see benchmarks/gpu.py).
    z = logits.to(wide(logits.dtype))
    is_label = torch.arange(logits.shape[1], device=logits.device) == target[:, None]
    nll = z.logsumexp(1) - torch.where(is_label, z, 0).sum(1)
    return torch.where(target != ignore_index, nll, 0).to(logits.dtype)


def mean(losses: Tensor) -> Tensor:
    """Mean of (B,), as a dot product where that can be: its node of the graph costs half of what ``mean``'s does."""
    if readable(losses) and losses.dtype in (torch.float32, torch.float64) and losses.numel():
        return torch.dot(losses, torch.full_like(losses, 1 / losses.numel()))
    return losses.mean()


def pays_in_blocks(logits: Tensor, target: Tensor) -> bool:
    """Whether to go by blocks of rows: for large batches on a CPU, where a block stays in its cache."""
    return logits.numel() >= BLOCK and logits.requires_grad and not target.requires_grad and readable(logits)


def by_blocks(logits: Tensor, rows: Callable[[Tensor, int], Tensor]) -> Tensor:
    """``rows(block, start)`` over all rows of ``logits``: (B, K) → (B,)."""
    losses: Tensor = _Blocks.apply(logits, rows)  # type: ignore[no-untyped-call]
    return losses


# ``Function.apply`` binds its arguments by signature on every call, half the cost of a loss at (128, 10). The class
# below it in the hierarchy skips that, and knows nothing of torch.func, which we therefore ask for first.
_apply_directly = super(torch.autograd.Function, _Pointwise).apply
_in_torch_func = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def pointwise(nll: Tensor, curve: Curve, mean: bool = False) -> Tensor:
    """``curve.value`` at ``nll`` with ``curve.slope`` as its derivative, in eager, compiled and functional code."""
    if torch.compiler.is_compiling():
        apply = _Pointwise.apply
    else:
        apply = _PointwiseForwardMode.apply if _in_torch_func() else _apply_directly
    value: Tensor = apply(nll, curve, mean)  # type: ignore[no-untyped-call]
    return value


def seed_of(seed: int, step: int | None) -> int:
    """The seed of what a loss with a ``seed`` of its own draws in a step; ``None`` is evaluation."""
    state = np.random.SeedSequence([seed, 0 if step is None else step + 1]).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))


def eager() -> bool:
    """Whether operations run as they are called: neither compiled nor transformed by torch.func."""
    return not torch.compiler.is_compiling() and not _in_torch_func()


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 at least: float16 and bfloat16 have too few digits, or too small a range, for sums."""
    return torch.promote_types(dtype, torch.float32)


def readable(tensor: Tensor) -> bool:
    """Whether looking at values costs nothing: on a CPU, and at once."""
    return tensor.is_cpu and eager()
