"""A function of the label's nll whose derivative is known in closed form."""

from typing import Any, Protocol

import torch
from torch import Tensor

from noiseproof.core.margin import LabelProb
from noiseproof.core.tensors import in_torch_func


class Curve(Protocol):
    """A scalar function of the label's nll with its derivative in closed form."""

    def value(self, y: LabelProb) -> Tensor: ...

    def slope(self, y: LabelProb) -> Tensor: ...


def pointwise(nll: Tensor, curve: Curve) -> Tensor:
    """Return ``curve.value`` at ``nll`` with ``curve.slope`` as its derivative, in eager, compiled
    and functional code.
    """
    transformed = in_torch_func() and not torch.compiler.is_compiling()
    function = _FunctionalPointwise if transformed else _Pointwise
    value: Tensor = function.apply(nll, curve)  # type: ignore[no-untyped-call]
    return value


class _Pointwise(torch.autograd.Function):
    """value(nll) whose derivative is the closed-form slope; the slope is differentiable, so higher
    orders work.

    Without ``setup_context``, which torch.func needs: PyTorch would bind arguments by signature,
    a quarter of the time of a loss call of a small batch.
    """

    @staticmethod
    def forward(ctx: Any, nll: Tensor, curve: Curve) -> Tensor:
        ctx.curve = curve
        ctx.save_for_backward(nll)
        return curve.value(LabelProb(nll))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (nll,) = ctx.saved_tensors
        return grad * ctx.curve.slope(LabelProb(nll)), None


class _FunctionalPointwise(torch.autograd.Function):
    """The same for torch.func."""

    generate_vmap_rule = True
    backward = _Pointwise.backward

    @staticmethod
    def forward(nll: Tensor, curve: Curve) -> Tensor:
        return curve.value(LabelProb(nll))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Curve], output: Tensor) -> None:
        nll, ctx.curve = inputs
        ctx.save_for_backward(nll)
        ctx.save_for_forward(nll)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent * ctx.curve.slope(LabelProb(ctx.saved_tensors[0]))  # type: ignore[no-any-return]
