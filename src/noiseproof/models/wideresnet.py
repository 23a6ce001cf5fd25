"""Wide residual networks for small images."""

from typing import Literal, get_args

from torch import Tensor, nn

from noiseproof.core.checks import check_count, check_word
from noiseproof.models.base import MODELS, Backbone
from noiseproof.models.layers import Conv2d, NormReLU

StrideOn = Literal["first", "second"]


class WideBlock(nn.Module):
    """Batch normalisation and ReLU before each of two 3×3 convolutions, added to the untouched
    input.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int,
        bias: bool,
        stride_on: StrideOn,
        dropout: float,
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_on == "first" else (1, stride)
        self.bn1 = NormReLU(in_channels)
        self.conv1 = Conv2d(in_channels, channels, 3, first, padding=1, bias=bias)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.bn2 = NormReLU(channels)
        self.conv2 = Conv2d(channels, channels, 3, second, padding=1, bias=bias)
        same = stride == 1 and in_channels == channels
        self.shortcut = (
            nn.Identity() if same else Conv2d(in_channels, channels, 1, stride, bias=bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dropout(self.conv1(self.bn1(x)))
        out: Tensor = self.conv2(self.bn2(inner)) + self.shortcut(x)
        return out


class WideResNet(Backbone):
    """WRN-depth-width (Zagoruyko & Komodakis, 2016), by default as in the LN paper (``wrn-28-2``).

    ``wrn-28-2-sln`` is the SLN paper's: biased convolutions, the stride on the second convolution
    of a block, momentum 0.9 in the last batch normalisation, PyTorch's initialisation. Chen et al.
    (2020) make their noise with ``wrn-28-2-sln:width=10``.

    Args:
        depth: 6n + 4 for n blocks in each of three stages.
        width: factor on the 16, 32 and 64 channels of the stages.
        bias: give the convolutions biases.
        stride_on: which convolution of a block halves the image.
        last_momentum: of the last batch normalisation (PyTorch's convention: the weight of the new
            batch).
        dropout: rate between the convolutions of a block.
    """

    def __init__(
        self,
        *,
        depth: int = 28,
        width: int = 2,
        in_channels: int = 3,
        bias: bool = False,
        stride_on: StrideOn = "first",
        last_momentum: float = 0.1,
        dropout: float = 0.0,
        init: str = "keras-he",
    ) -> None:
        super().__init__(init)
        if check_count("depth", depth, 10) % 6 != 4:
            raise ValueError(
                f"Expected `depth` to be 6n + 4 (10, 16, 22, 28, 34, 40, …), got {depth}."
            )
        check_word("stride_on", stride_on, get_args(StrideOn))
        check_count("width", width, 1)
        channels = 16
        self.stem = Conv2d(in_channels, channels, 3, padding=1, bias=bias)
        blocks = []
        for wider, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for i in range((depth - 4) // 6):
                blocks.append(
                    WideBlock(channels, wider, 1 if i else stride, bias, stride_on, dropout)
                )
                channels = wider
        self.blocks = nn.Sequential(*blocks)
        self.bn = NormReLU(channels, momentum=last_momentum)
        self.num_features = channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.blocks(self.stem(x)))
        return out.mean((2, 3))  # (B, 64·width)


MODELS.register_variant("wrn-28-2", WideResNet, depth=28, width=2)
MODELS.register_variant("wrn-28-10", WideResNet, depth=28, width=10)
MODELS.register_variant(
    "wrn-28-2-sln",
    WideResNet,
    depth=28,
    width=2,
    bias=True,
    stride_on="second",
    last_momentum=0.9,
    init="pytorch",
)
