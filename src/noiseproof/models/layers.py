"""Layers as PyTorch's, which several networks of one shape, or one that only predicts, compute faster on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.gpu import has_kernels

STRIDES = (1, 1), (2, 2)  # for which the kernels were checked
WIDEST = 128  # channels: of wider convolutions cuDNN runs one network's faster than ours run several
MOST = 2**31  # numbers that a kernel of ours can count


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether our kernels can compute such a convolution."""
    square = not isinstance(layer.padding, str) and len({*layer.padding}) == 1 and layer.stride in STRIDES
    return square and layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """S convolutions by our kernels, in autocast's precision where it is on; weight (S, O, KH, KW, I)."""
    from noiseproof.models.kernels import stacked_conv

    if torch.is_autocast_enabled("cuda"):
        x = x.to(torch.get_autocast_dtype("cuda"))
    out: Tensor = stacked_conv(x, weight, bias, stride, padding)
    return out


def _only_predicts(x: Tensor, weight: Tensor, channels: int) -> bool:
    """Whether it is a pass in reduced precision that nothing is learned from, for which there are our kernels."""
    if torch.is_grad_enabled() or not torch.is_autocast_enabled("cuda") or not has_kernels(x):
        return False
    usual = x.dim() == 4 and x.dtype is not torch.float64 and weight.dtype is torch.float32
    return usual and x[:, :1].numel() * channels < MOST


class Conv2d(nn.Conv2d):
    """A convolution; where it only predicts its bias costs nothing, which cuDNN adds in a pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        wide = max(self.in_channels, self.out_channels)
        if self.bias is None or wide > WIDEST or not _only_predicts(x, self.weight, wide) or not is_plain(self):
            return super().forward(x)
        weight = self.weight.permute(0, 2, 3, 1).contiguous()
        return convolved(x, weight[None], self.bias[None], self.stride[0], int(self.padding[0]))


class NormReLU(nn.BatchNorm2d):
    """Batch normalisation and ReLU as one layer, which a stack of networks, or one that predicts, computes at once."""

    def forward(self, x: Tensor) -> Tensor:
        known = not self.training and self.affine and _only_predicts(x, self.weight, self.num_features)
        if not known or self.running_mean is None or self.running_var is None:
            return F.relu(super().forward(x))
        from noiseproof.models.kernels import affine

        out: Tensor = affine(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, relu=True)
        return out


class FlatLinear(nn.Linear):
    """A linear layer of whole images (B, C, H, W), with a weight (O, C, H, W): as if they were flattened before."""

    def __init__(self, channels: int, side: int, out_features: int) -> None:
        super().__init__(channels * side**2, out_features)
        self.weight = nn.Parameter(self.weight.detach().view(-1, channels, side, side))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if not x.is_contiguous():  # then channels lie last, in both, and nothing has to move
            x, weight = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
        return F.linear(x.flatten(1), weight.flatten(1), self.bias)
