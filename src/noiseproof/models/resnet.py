"""Residual networks: torchvision's, and their relatives for small images."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.checks import check_count, check_word
from noiseproof.models.base import MODELS, Backbone
from noiseproof.models.layers import NormReLU, normalised

Shortcut = Literal["projection", "pad"]


def conv(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)


class Pad(nn.Module):
    """Every ``stride``-th pixel and zeros for the new channels: option A of He et al. (2016),
    without parameters.
    """

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.side = new_channels // 2
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.side, self.side))


class Block(nn.Module):
    """What the residual blocks share: the way past the convolutions. ``inner`` widens the
    convolutions between.
    """

    expansion = 1
    norm_shortcut = True

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        out = channels * self.expansion
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out:
            if shortcut == "pad":
                self.downsample = Pad(out - in_channels, stride)
            else:
                norm = [nn.BatchNorm2d(out)] if self.norm_shortcut else []
                self.downsample = nn.Sequential(conv(in_channels, out, 1, stride), *norm)


class Basic(Block):
    """Two 3×3 convolutions."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, shortcut: Shortcut, inner: int
    ) -> None:
        super().__init__(in_channels, channels, stride, shortcut)
        self.conv1 = conv(in_channels, channels * inner, 3, stride)
        self.bn1 = NormReLU(channels * inner)
        self.conv2 = conv(channels * inner, channels, 3)
        self.bn2 = NormReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = normalised(self.conv1, self.bn1, x)
        return normalised(self.conv2, self.bn2, out, self.downsample(x))


class Bottleneck(Block):
    """A 3×3 convolution between two 1×1 ones."""

    expansion = 4

    def __init__(
        self, in_channels: int, channels: int, stride: int, shortcut: Shortcut, inner: int
    ) -> None:
        super().__init__(in_channels, channels, stride, shortcut)
        width = channels * inner
        out = channels * self.expansion
        self.conv1 = conv(in_channels, width, 1)
        self.bn1 = NormReLU(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = NormReLU(width)
        self.conv3 = conv(width, out, 1)
        self.bn3 = NormReLU(out)

    def forward(self, x: Tensor) -> Tensor:
        out = normalised(self.conv1, self.bn1, x)
        out = normalised(self.conv2, self.bn2, out)
        return normalised(self.conv3, self.bn3, out, self.downsample(x))


class PreAct(Block):
    """Two 3×3 convolutions after their activations.

    The way past starts after the first activation, also where it is the identity: so in DivideMix's
    released code, unlike He et al. (2016b).
    """

    norm_shortcut = False

    def __init__(
        self, in_channels: int, channels: int, stride: int, shortcut: Shortcut, inner: int
    ) -> None:
        super().__init__(in_channels, channels, stride, shortcut)
        self.bn1 = NormReLU(in_channels)
        self.conv1 = conv(in_channels, channels * inner, 3, stride)
        self.bn2 = NormReLU(channels * inner)
        self.conv2 = conv(channels * inner, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(x)
        out: Tensor = self.conv2(normalised(self.conv1, self.bn2, x)) + self.downsample(x)
        return out


BLOCKS = {"basic": Basic, "bottleneck": Bottleneck, "preact": PreAct}


class ResNet(Backbone):
    """A residual network (He et al., 2016) whose parameters have torchvision's names.

    ImageNet weights of torchvision load with ``load_state_dict(weights, strict=False)``: only
    ``fc`` is left over. Papers start ResNet-34 differently: ``init="kaiming-normal"`` is the bias
    paper, ``"pytorch"`` the NAL paper, ``"apl"`` the curriculum paper.

    Args:
        block: ``"basic"``, ``"bottleneck"`` or ``"preact"``.
        layers: number of blocks in each stage; each stage after the first halves the image.
        stem: ``"imagenet"`` (7×7 convolution and pooling, a quarter of the image) or ``"cifar"``
            (3×3, full size).
        width: channels of the first stage, doubled by each further one.
        inner: factor on the channels inside a block; 2 makes a bottleneck network wide.
        shortcut: ``"projection"`` (a 1×1 convolution) or ``"pad"`` (zeros) where a block changes
            the shape.
    """

    def __init__(
        self,
        *,
        block: Literal["basic", "bottleneck", "preact"],
        layers: Sequence[int],
        stem: Literal["imagenet", "cifar"] = "imagenet",
        in_channels: int = 3,
        width: int = 64,
        inner: int = 1,
        shortcut: Shortcut = "projection",
        init: str = "kaiming-out",
    ) -> None:
        super().__init__(init)
        check_word("block", block, BLOCKS)
        check_word("stem", stem, ("imagenet", "cifar"))
        check_word("shortcut", shortcut, get_args(Shortcut))
        imagenet = stem == "imagenet"
        self.conv1 = conv(in_channels, width, 7, 2) if imagenet else conv(in_channels, width, 3)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if imagenet else nn.Identity()
        self.bn1 = NormReLU(width)
        self.num_features = width
        self.stages = [f"layer{i + 1}" for i in range(len(layers))]
        for i, (name, count) in enumerate(zip(self.stages, layers, strict=True)):
            blocks = []
            for j in range(check_count("layers", count, 1)):
                stride = 2 if i and not j else 1
                blocks.append(
                    BLOCKS[block](self.num_features, width * 2**i, stride, shortcut, inner)
                )
                self.num_features = width * 2**i * BLOCKS[block].expansion
            self.add_module(name, nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x.mean((2, 3))  # (B, num_features)


MODELS.register_variant("resnet18", ResNet, block="basic", layers=(2, 2, 2, 2))
MODELS.register_variant("resnet50", ResNet, block="bottleneck", layers=(3, 4, 6, 3))
MODELS.register_variant("wrn-101-2", ResNet, block="bottleneck", layers=(3, 4, 23, 3), inner=2)
MODELS.register_variant(
    "resnet34", ResNet, block="basic", layers=(3, 4, 6, 3), stem="cifar", init="kaiming-normal"
)
MODELS.register_variant(
    "resnet32",
    ResNet,
    block="basic",
    layers=(5, 5, 5),
    stem="cifar",
    width=16,
    shortcut="pad",
    init="kaiming-normal",
)
MODELS.register_variant(
    "preact-resnet18", ResNet, block="preact", layers=(2, 2, 2, 2), stem="cifar", init="pytorch"
)
