"""Inception-ResNet-v2."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.models.base import MODELS, Backbone

Kernel = int | tuple[int, int]


def unit(
    in_channels: int, channels: int, kernel: Kernel, stride: int = 1, padding: int | str = 0
) -> nn.Sequential:
    """A convolution, batch normalisation and ReLU."""
    convolution = nn.Conv2d(in_channels, channels, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels, eps=1e-3), nn.ReLU())


def chain(in_channels: int, *units: tuple[int, Kernel], stride: int = 1) -> nn.Sequential:
    """Units of these channels and kernels, one after the other, which keep the size of the image.

    A ``stride`` is the last one's, which pads nothing then.
    """
    layers = []
    for number, (channels, kernel) in enumerate(units, 1):
        if stride > 1 and number == len(units):
            layers.append(unit(in_channels, channels, kernel, stride))
        else:
            layers.append(unit(in_channels, channels, kernel, padding="same"))
        in_channels = channels
    return nn.Sequential(*layers)


class Parallel(nn.Module):
    """Branches over the same input, side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Residual(nn.Module):
    """x + scale · (1×1 convolution of the branches), with or without a last ReLU."""

    def __init__(
        self, branches: Parallel, width: int, channels: int, scale: float, relu: bool = True
    ) -> None:
        super().__init__()
        self.branches = branches
        self.scale = scale
        self.relu = relu
        self.project = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.scale * self.project(self.branches(x))
        return F.relu(out) if self.relu else out


def block35() -> Residual:
    """Inception-ResNet-A, on 35×35 maps of a 299×299 image."""
    branches = Parallel(
        unit(320, 32, 1),
        chain(320, (32, 1), (32, 3)),
        chain(320, (32, 1), (48, 3), (64, 3)),
    )
    return Residual(branches, 128, 320, scale=0.17)


def block17() -> Residual:
    """Inception-ResNet-B."""
    long = chain(1088, (128, 1), (160, (1, 7)), (192, (7, 1)))
    return Residual(Parallel(unit(1088, 192, 1), long), 384, 1088, scale=0.10)


def block8(scale: float = 0.20, relu: bool = True) -> Residual:
    """Inception-ResNet-C."""
    long = chain(2080, (192, 1), (224, (1, 3)), (256, (3, 1)))
    return Residual(Parallel(unit(2080, 192, 1), long), 448, 2080, scale, relu)


@MODELS.register("inception-resnet-v2")
class InceptionResNetV2(Backbone):
    """Inception-ResNet-v2 (Szegedy et al., 2017) as the NAL paper and DivideMix run it on
    WebVision, for 75×75 and more.

    It is the network of the TensorFlow release, which differs from the article's figures in several
    widths.
    """

    num_features = 1536

    def __init__(self, *, in_channels: int = 3, init: str = "pytorch") -> None:
        super().__init__(init)
        stem = [
            unit(in_channels, 32, 3, stride=2),
            unit(32, 32, 3),
            unit(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            unit(64, 80, 1),
            unit(80, 192, 3),
            nn.MaxPool2d(3, 2),
        ]
        mixed5 = Parallel(
            unit(192, 96, 1),
            chain(192, (48, 1), (64, 5)),
            chain(192, (64, 1), (96, 3), (96, 3)),
            nn.Sequential(nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), unit(192, 64, 1)),
        )
        mixed6 = Parallel(
            unit(320, 384, 3, stride=2),
            chain(320, (256, 1), (256, 3), (384, 3), stride=2),
            nn.MaxPool2d(3, 2),
        )
        mixed7 = Parallel(
            chain(1088, (256, 1), (384, 3), stride=2),
            chain(1088, (256, 1), (288, 3), stride=2),
            chain(1088, (256, 1), (288, 3), (320, 3), stride=2),
            nn.MaxPool2d(3, 2),
        )
        self.features = nn.Sequential(
            *stem,
            mixed5,
            *(block35() for _ in range(10)),
            mixed6,
            *(block17() for _ in range(20)),
            mixed7,
            *(block8() for _ in range(9)),
            block8(scale=1.0, relu=False),
            unit(2080, self.num_features, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(x).mean((2, 3))  # (B, 1536)
        return out
