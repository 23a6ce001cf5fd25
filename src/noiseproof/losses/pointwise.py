"""A function of the label's nll whose derivative is known in closed form."""

from typing import Any, Protocol

import torch
from torch import Tensor

from noiseproof.core.margin import LabelProb
from noiseproof.core.tensors import in_torch_func
from noiseproof.losses.fast import apply


class Curve(Protocol):
    """A scalar function of the label's nll with its derivative in closed form."""

    def value(self, y: LabelProb) -> Tensor: ...

    def slope(self, y: LabelProb) -> Tensor: ...


def pointwise(nll: Tensor, curve: Curve) -> Tensor:
    """``curve.value`` at ``nll`` with ``curve.slope`` as its derivative, in eager, compiled and
    functional code.
    """
    function = (
        _PointwiseForwardMode
        if in_torch_func() and not torch.compiler.is_compiling()
        else _Pointwise
    )
    value: Tensor = apply(function, nll, curve)
    return value


class _Pointwise(torch.autograd.Function):
    """value(nll) whose derivative is the closed-form slope; the slope is differentiable, so higher
    orders work.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(nll: Tensor, curve: Curve) -> Tensor:
        return curve.value(LabelProb(nll))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Curve], output: Tensor) -> None:
        nll, ctx.curve = inputs
        ctx.save_for_backward(nll)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (nll,) = ctx.saved_tensors
        return grad * ctx.curve.slope(LabelProb(nll)), None


class _PointwiseForwardMode(_Pointwise):
    """The same with forward-mode derivatives, which ``torch.compile`` cannot trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Curve], output: Tensor) -> None:
        _Pointwise.setup_context(ctx, inputs, output)
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent * ctx.curve.slope(LabelProb(ctx.saved_tensors[0]))  # type: ignore[no-any-return]
