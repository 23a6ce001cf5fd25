"""PyTorch's layers, with faster kernels on a GPU for stacks of networks and for prediction.

The kernels are provided by ``noiseproof.accelerate``, which this package does not import.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.lazy import provided
from noiseproof.core.tensors import has_kernels, is_hopper

STRIDES = (1, 1), (2, 2)  # for which the kernels were checked
WIDEST = 128  # channels: cuDNN runs wider convolutions of one network faster than ours run several
MOST = 2**31  # numbers of a tensor that our kernels can index


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether our kernels can compute such a convolution."""
    square = (
        not isinstance(layer.padding, str)
        and len({*layer.padding}) == 1
        and layer.stride in STRIDES
    )
    return (
        square
        and layer.groups == 1
        and set(layer.dilation) == {1}
        and layer.padding_mode == "zeros"
    )


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """S convolutions by our kernels, in autocast's precision where it is on.

    Weight (S, O, KH, KW, I).
    """
    if torch.is_autocast_enabled("cuda"):
        x = x.to(torch.get_autocast_dtype("cuda"))
    out: Tensor = provided("layer_kernels").stacked_conv(x, weight, bias, stride, padding)
    return out


def _suits(x: Tensor, weight: Tensor, channels: int) -> bool:
    """Whether our kernels can compute such a pass, in reduced precision."""
    if torch.compiler.is_compiling():
        return False  # it fuses PyTorch's own
    if not torch.is_autocast_enabled("cuda") or not has_kernels(x):
        return False
    usual = x.dim() == 4 and x.dtype is not torch.float64 and weight.dtype is torch.float32
    return usual and x[:, :1].numel() * channels < MOST


def _only_predicts(x: Tensor, weight: Tensor, channels: int) -> bool:
    """Whether our kernels can compute such a pass, without gradients."""
    return not torch.is_grad_enabled() and _suits(x, weight, channels)


class Conv2d(nn.Conv2d):
    """A convolution; in prediction the bias is added by the same kernel, which cuDNN does in a
    second one.
    """

    def forward(self, x: Tensor) -> Tensor:
        wide = max(self.in_channels, self.out_channels)
        if (
            self.bias is None
            or wide > WIDEST
            or not _only_predicts(x, self.weight, wide)
            or not is_plain(self)
        ):
            return super().forward(x)
        weight = self.weight.permute(0, 2, 3, 1).contiguous()
        return convolved(x, weight[None], self.bias[None], self.stride[0], int(self.padding[0]))


class NormReLU(nn.BatchNorm2d):
    """Batch normalisation, sum with ``shortcut`` (the shortcut of a residual block) and ReLU, one
    kernel on a GPU.
    """

    # whether it is trained in a CUDA graph, where starting our kernels takes no time
    is_captured = False

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        mean = self.running_mean
        var = self.running_var
        momentum = self.momentum
        if mean is None or var is None or momentum is None or not self._has_kernels(x):
            out = super().forward(x)
            if shortcut is not None:
                out = out + shortcut
            return F.relu(out)
        kernels = provided("layer_kernels")
        fused: Tensor
        if not self.training:
            fused = kernels.affine(x, self.weight, self.bias, mean, var, self.eps, True, shortcut)
        else:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            stacked = self.weight[None], self.bias[None], mean[None], var[None]
            fused = kernels.stacked_norm(x, *stacked, momentum, self.eps, True, shortcut)
        return fused

    def _has_kernels(self, x: Tensor) -> bool:
        if not self.affine or (self.training and not self.is_captured):
            return False
        suits = _suits if self.training else _only_predicts
        return suits(x, self.weight, self.num_features)


def normalised(
    conv: nn.Module, norm: nn.Module, x: Tensor, shortcut: Tensor | None = None
) -> Tensor:
    """``norm(conv(x), shortcut)``, in prediction by one kernel."""
    predicted = _folded(conv, norm, x, shortcut)
    if predicted is not None:
        return predicted
    out: Tensor = norm(conv(x), shortcut)
    return out


def _folded(
    conv: nn.Module, norm: nn.Module, x: Tensor, shortcut: Tensor | None = None
) -> Tensor | None:
    """``norm(conv(x), shortcut)`` by one of cuDNN's kernels, with the normalisation in its weights
    and bias.

    For predictions in reduced precision on a Hopper GPU, where it was measured; None elsewhere.
    """
    if (
        not isinstance(conv, nn.Conv2d)
        or not isinstance(norm, NormReLU)
        or not _can_fold(conv, norm, x)
    ):
        return None
    assert norm.running_mean is not None and norm.running_var is not None
    padding = [int(side) for side in conv.padding]
    keeps_shape = conv.in_channels == conv.out_channels and conv.stride == (1, 1)
    if shortcut is None and not (
        keeps_shape and conv.kernel_size == tuple(2 * side + 1 for side in padding)
    ):
        return None
    dtype = torch.get_autocast_dtype("cuda")
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    weight = (conv.weight * scale[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
    bias = torch.addcmul(norm.bias, norm.running_mean, scale, value=-1).to(dtype)
    x = x.to(dtype)
    # In `cudnn_convolution_relu` 0 is multiplied by memory that was never written, where NaN may
    # lie: x is better.
    other, alpha = (x, 0.0) if shortcut is None else (shortcut.to(dtype), 1.0)
    return torch.cudnn_convolution_add_relu(
        x, weight, other, alpha, bias, conv.stride, padding, conv.dilation, conv.groups
    )


def _can_fold(conv: nn.Conv2d, norm: NormReLU, x: Tensor) -> bool:
    if (
        norm.training
        or not norm.affine
        or norm.running_mean is None
        or conv.bias is not None
        or not is_plain(conv)
    ):
        return False
    if type(conv) not in (nn.Conv2d, Conv2d) or type(norm) is not NormReLU:
        return False  # subclasses may compute something else
    if any(module._forward_hooks or module._forward_pre_hooks for module in (conv, norm)):
        return False  # they want to be called
    flags = torch.backends.cudnn
    is_exact = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    if is_exact or not flags.enabled or conv.in_channels % 8 or conv.out_channels % 8:
        return False
    return _only_predicts(x, norm.weight, max(conv.in_channels, conv.out_channels)) and is_hopper(
        x.get_device()
    )


class FlatLinear(nn.Linear):
    """A linear layer of images (B, C, H, W), with a weight (O, C, H, W), as of flattened images."""

    def __init__(self, channels: int, side: int, out_features: int) -> None:
        super().__init__(channels * side**2, out_features)
        self.weight = nn.Parameter(self.weight.detach().view(-1, channels, side, side))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if not x.is_contiguous():
            # Both are channels last in memory: flattened in that order, neither is copied.
            x = x.permute(0, 2, 3, 1)
            weight = weight.permute(0, 2, 3, 1)
        return F.linear(x.flatten(1), weight.flatten(1), self.bias)
