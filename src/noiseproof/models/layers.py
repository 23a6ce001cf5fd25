"""Layers as PyTorch's, which several networks of one shape, or one that only predicts, compute faster on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDEST = 128  # channels: of wider convolutions cuDNN runs one network's faster than ours run several
MOST = 2**31  # numbers that a kernel of ours can count


def _only_predicts(x: Tensor) -> bool:
    """Whether it is a pass in reduced precision that nothing is learned from, for which there are our kernels."""
    return x.is_cuda and not torch.is_grad_enabled() and torch.is_autocast_enabled("cuda") and bool(find_spec("triton"))


class Conv2d(nn.Conv2d):
    """A convolution; where it only predicts its bias costs nothing, which cuDNN adds in a pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        wide = max(self.in_channels, self.out_channels)
        if self.bias is None or wide > WIDEST or not _only_predicts(x) or x[:, :1].numel() * wide >= MOST:
            return super().forward(x)
        from noiseproof.models.kernels import stacked_conv

        x, weight = x.to(torch.get_autocast_dtype("cuda")), self.weight.permute(0, 2, 3, 1).contiguous()
        out: Tensor = stacked_conv(x, weight[None], self.bias[None], self.stride[0], int(self.padding[0]))
        return out


class NormReLU(nn.BatchNorm2d):
    """Batch normalisation and ReLU as one layer, which a stack of networks, or one that predicts, computes at once."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not _only_predicts(x) or x.numel() >= MOST:
            return F.relu(super().forward(x))
        from noiseproof.models.kernels import affine

        assert self.running_mean is not None and self.running_var is not None
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
