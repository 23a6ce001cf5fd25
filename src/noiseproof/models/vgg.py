"""VGG with batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from noiseproof.core.checks import check_count
from noiseproof.models.base import MODELS, Backbone
from noiseproof.models.cnn import conv_stages

STAGES = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


@MODELS.register("vgg19-bn")
class VGG19(Backbone):
    """VGG-19 with batch normalisation (Simonyan & Zisserman, 2015, E), torchvision's, as the NAL paper on ANIMAL-10N.

    The parameters have torchvision's names. ``pool=1,hidden=[]`` is the small variant common on CIFAR.

    Args:
        pool: side of the grid that the last feature map is averaged to.
        hidden: widths of the hidden layers, each followed by dropout.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        pool: int = 7,
        hidden: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
        init: str = "vgg",
    ) -> None:
        super().__init__(init)
        self.features = conv_stages(in_channels, STAGES)
        self.avgpool = nn.AdaptiveAvgPool2d(check_count("pool", pool, 1))
        self.num_features = STAGES[-1][-1] * pool**2
        dense: list[nn.Module] = []
        for width in hidden:
            dense += [nn.Linear(self.num_features, check_count("hidden", width, 1)), nn.ReLU(), nn.Dropout(dropout)]
            self.num_features = width
        self.classifier = nn.Sequential(*dense)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))  # (B, num_features)
        return out
