"""Several classifiers of one architecture as one network, so that a GPU starts each kernel once for
all of them.

The batches of S members are concatenated, (S·B, …): layers that treat rows one by one need no
change, and linear layers, convolutions and batch normalisations apply each member's weights to its
rows. The parameters of members become views into the stack's, so they follow its training. A stack
trains; members evaluate by themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from noiseproof.core.output import Output
from noiseproof.core.tensors import has_kernels
from noiseproof.models.layers import WIDEST, Conv2d, FlatLinear, NormReLU, convolved, is_plain

FEW_ROWS = 128  # of a member, for which a weight's gradient takes longer to store than to compute


class Unstackable(ValueError):
    """A network that cannot be stacked."""


class _Stacked(nn.Module):
    """One layer of all members, whose parameters and buffers are those of the members stacked: (S,
    …).
    """

    weight: Tensor
    bias: Tensor | None
    # of the weight's gradient: of the output (S, B, O), input (S, B, I)
    factors: tuple[Tensor, Tensor] | None = None
    # the weight in the precision of products, while a joint update keeps it
    rounded: Tensor | None = None
    dtype: torch.dtype | None = None  # of the last products, if it is not that of the weight

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.seats = len(layers)
        for name, value in _tensors(layers[0]):
            parts: list[Tensor] = [getattr(layer, name) for layer in layers]
            stacked = torch.stack([self.inner(part.detach()) for part in parts])
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, nn.Parameter(stacked))
            else:
                self.register_buffer(name, stacked)
            for seat, part in enumerate(parts):
                part.data = self.outer(stacked[seat])
        if layers[0]._parameters.get("bias", 0) is None:
            self.bias = None

    @staticmethod
    def check(layer: Any) -> None:
        """Refuse a layer that cannot be stacked."""

    @staticmethod
    def inner(value: Tensor) -> Tensor:
        """A member's parameter in the layout of the stack: channels last."""
        return value.permute(0, 2, 3, 1) if value.dim() == 4 else value

    @staticmethod
    def outer(value: Tensor) -> Tensor:
        """The inverse of ``inner``, without a copy."""
        return value.permute(0, 3, 1, 2) if value.dim() == 4 else value

    def abreast(self, x: Tensor) -> Tensor:
        """Concatenate the channels of members instead of their rows: (S·B, C, …) to (B, S·C, …)."""
        x = x.view(self.seats, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
        # Of one row it is a view, whose strides PyTorch's grouped convolution in float64 does not
        # accept.
        return x.clone(memory_format=torch.contiguous_format) if len(x) == 1 else x

    def apart(self, x: Tensor) -> Tensor:
        """The inverse of ``abreast``."""
        return x.view(len(x), self.seats, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)

    def defer(self, deferred: bool) -> None:
        """Leave rounding, and weight gradients as ``factors``, to a joint update where that saves
        time, or end it.
        """
        self.factors = None
        self.rounded = self.weight.detach().to(self.dtype) if deferred and self.dtype else None

    def share_gradients(self, layers: Sequence[nn.Module]) -> None:
        """Give each member its part of the gradients."""
        for name, value in self.named_parameters(recurse=False):
            if value.grad is not None:
                for seat, layer in enumerate(layers):
                    layer.get_parameter(name).grad = self.outer(value.grad[seat])


class StackedLinear(_Stacked):
    """S linear layers, of vectors or of images."""

    weight: Tensor  # (S, O, I) or (S, O, H, W, C)
    bias: Tensor | None  # (S, O)

    def forward(self, x: Tensor) -> Tensor:
        x = (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)
        weight = self.weight.flatten(2)
        device = x.device.type
        dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        )
        if has_kernels(x) and dtype != weight.dtype and any(side % 8 for side in weight.shape[1:]):
            # cuBLAS is slow at such products in reduced precision, our kernels are not.
            points = weight[:, :, None, None]
            return convolved(x[:, :, None, None], points, self.bias, stride=1, padding=0).flatten(1)
        x = x.to(dtype).view(self.seats, -1, x.shape[1])
        self.dtype = dtype if x.shape[1] <= FEW_ROWS else None
        out: Tensor = _Products.apply(x, weight, self.bias, None if self.rounded is None else self)  # type: ignore[no-untyped-call]
        return out.flatten(0, 1)


class _Products(torch.autograd.Function):
    """x·Wᵀ + b of S layers, (S, B, I) to (S, B, O); the factors of W's gradient go to a ``keeper``,
    if there is one.

    PyTorch's own gradient of a transposed W is transposed, too, and copied into the layout of W
    afterwards.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, keeper: Any) -> Tensor:
        small = weight.to(x.dtype) if keeper is None else keeper.rounded.flatten(2)
        ctx.save_for_backward(x, small)
        ctx.dtype = weight.dtype
        ctx.has_bias = bias is not None
        ctx.keeper = keeper
        if bias is None:
            return torch.bmm(x, small.mT)
        return torch.baddbmm(bias[:, None].to(x.dtype), x, small.mT)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        if ctx.keeper is not None:
            # of another call of this layer
            pair = (grad.contiguous(), x.contiguous())
            other = ctx.keeper.factors
            if other is not None:
                pair = torch.cat([pair[0], other[0]], 1), torch.cat([pair[1], other[1]], 1)
            ctx.keeper.factors = pair
            return of_x, None, None, None
        of_bias = grad.sum(1, dtype=ctx.dtype) if ctx.has_bias else None
        # without a copy to convert it
        if x.is_cuda and x.dtype != ctx.dtype and hasattr(torch.ops.aten.bmm, "dtype"):
            return of_x, torch.ops.aten.bmm.dtype(grad.mT, x, ctx.dtype), of_bias, None
        return of_x, torch.bmm(grad.mT, x), of_bias, None


class StackedConv2d(_Stacked):
    """S convolutions."""

    weight: Tensor  # (S, O, KH, KW, I)
    bias: Tensor | None  # (S, O)

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self.stride = layers[0].stride[0]
        self.padding = int(layers[0].padding[0])

    @staticmethod
    def check(layer: nn.Conv2d) -> None:
        if not is_plain(layer):
            raise Unstackable(f"{layer} has no stacked form")

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return convolved(x, self.weight, self.bias, self.stride, self.padding)
        weight = self.weight.permute(0, 1, 4, 2, 3).flatten(0, 1)
        bias = None if self.bias is None else self.bias.flatten()
        return self.apart(
            F.conv2d(self.abreast(x), weight, bias, self.stride, self.padding, groups=self.seats)
        )


class StackedBatchNorm(_Stacked):
    """S batch normalisations in training mode, each over the rows of its member."""

    weight: Tensor  # (S, C), like the others
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layers: Sequence[_BatchNorm]) -> None:
        super().__init__(layers)
        layer = layers[0]
        assert layer.momentum is not None
        self.eps = layer.eps
        self.momentum = layer.momentum
        self.relu = isinstance(layer, NormReLU)

    @staticmethod
    def check(layer: _BatchNorm) -> None:
        if not (layer.affine and layer.track_running_stats) or layer.momentum is None:
            raise Unstackable(f"{layer} has no stacked form")

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        # the stack counts the batches of all its layers at once
        state = self.weight, self.bias, self.running_mean, self.running_var
        out: Tensor
        if x.is_cuda:
            from noiseproof.accelerate.layer_kernels import stacked_norm

            out = stacked_norm(x, *state, self.momentum, self.eps, self.relu, shortcut)
            return out
        weight, bias, mean, var = (value.flatten() for value in state)
        out = self.apart(
            F.batch_norm(self.abreast(x), mean, var, weight, bias, True, self.momentum, self.eps)
        )
        out = out if shortcut is None else out + shortcut
        return F.relu(out) if self.relu else out


class StackedMaxPool(nn.MaxPool2d):
    """Pooling over 2×2 by a kernel that is faster than PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return F.max_pool2d(x, 2, ceil_mode=self.ceil_mode)
        from noiseproof.accelerate.layer_kernels import pool

        out: Tensor = pool(x, self.ceil_mode)
        return out


LAYERS: dict[type[nn.Module], type[_Stacked]] = {
    nn.Linear: StackedLinear,
    FlatLinear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    Conv2d: StackedConv2d,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.BatchNorm2d: StackedBatchNorm,
    NormReLU: StackedBatchNorm,
}


class Stack(nn.Module):
    """The members as one network, from rows (S·B, …) to outputs of all members."""

    def __init__(
        self, members: Sequence[nn.Module], *, trains: bool = True, widest: int = WIDEST
    ) -> None:
        super().__init__()
        if trains:
            _check(members[0], widest)
        self.joint = copy.deepcopy(members[0])
        self.layers: list[tuple[_Stacked, list[nn.Module]]] = []
        for path, layer in list(self.joint.named_modules()):
            if type(layer) in LAYERS:
                parts = [member.get_submodule(path) for member in members]
                stacked = LAYERS[type(layer)](parts)
                self.joint.set_submodule(path, stacked)
                self.layers.append((stacked, parts))
            elif type(layer) is nn.MaxPool2d and _halves(layer):
                self.joint.set_submodule(path, StackedMaxPool(2, ceil_mode=layer.ceil_mode))
        norms = [layer for layer, _ in self.layers if isinstance(layer, StackedBatchNorm)]
        self._batches = [norm.num_batches_tracked for norm in norms]

    def forward(self, x: Tensor) -> Output:
        if self._batches:
            torch._foreach_add_(self._batches, 1)
        out: Output = self.joint(x)
        return out

    def clear_gradients(self) -> None:
        """Forget gradients and their factors, of a backward pass that failed half way, too."""
        self.zero_grad()
        for stacked, _ in self.layers:
            stacked.factors = None

    def share_gradients(self) -> None:
        """Give each member its part of the gradients."""
        for stacked, parts in self.layers:
            stacked.share_gradients(parts)


def release(member: nn.Module) -> None:
    """Copy the weights of a member out of its stack."""
    for module in member.modules():
        for _, value in _tensors(module):
            last = (
                torch.channels_last
                if value.is_cuda and value.dim() == 4
                else torch.contiguous_format
            )
            value.data = value.data.clone(memory_format=last)


def draws(network: nn.Module, call: Callable[[nn.Module], object]) -> bool:
    """Whether a training pass draws random numbers, as dropout does; ``call`` makes one with a copy
    of ``network``.
    """
    device = next(network.parameters()).device
    on_gpu = device.type == "cuda"
    states: list[Callable[[], Tensor]] = [torch.get_rng_state]
    states += [partial(torch.cuda.get_rng_state, device)] if on_gpu else []
    with torch.random.fork_rng(devices=[device] if on_gpu else []), torch.no_grad():
        before = [state() for state in states]
        call(copy.deepcopy(network).train())
        return not all(torch.equal(state(), old) for state, old in zip(states, before, strict=True))


def _check(network: nn.Module, widest: int) -> None:
    """Raise ``Unstackable`` for a network that a stack would train differently, or more slowly."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and max(layer.in_channels, layer.out_channels) > widest:
            raise Unstackable(
                f"convolutions of more than {widest} channels fill a GPU by themselves"
            )
        stacked = LAYERS.get(type(layer))
        if stacked is not None:
            stacked.check(layer)
        elif _tensors(layer):
            raise Unstackable(f"{type(layer).__name__} has weights but no stacked form")
        if not layer.training:
            raise Unstackable(f"{type(layer).__name__} is not trained")
    named = [
        *network.named_modules(remove_duplicate=False),
        *network.named_parameters(remove_duplicate=False),
    ]
    if len({id(each) for _, each in named}) < len(named):
        raise Unstackable("layers share their weights")
    if not all(value.requires_grad for value in network.parameters()):
        raise Unstackable("weights are frozen")


def _halves(layer: nn.MaxPool2d) -> bool:
    shape = [layer.kernel_size, layer.stride, layer.padding, layer.dilation]
    return [side if isinstance(side, int) else {*side} for side in shape] == [
        2,
        2,
        0,
        1,
    ] and not layer.return_indices


def _tensors(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
