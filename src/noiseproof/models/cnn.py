"""The small convolutional networks of MNIST and CIFAR-10, and VGG."""

from collections.abc import Sequence

from torch import Tensor, nn

from noiseproof.core.checks import check_count
from noiseproof.models.base import MODELS, Backbone
from noiseproof.models.layers import Conv2d, FlatLinear


@MODELS.register("lenet5")
class LeNet5(Backbone):
    """LeNet-5 as the LN paper runs it on MNIST: ReLU, max-pooling, and all three convolutions keep
    the image size.
    """

    num_features = 84

    def __init__(self, *, in_channels: int = 1, image_size: int = 28, init: str = "xavier") -> None:
        super().__init__(init)
        side = -(-check_count("image_size", image_size, 1) // 4)  # two poolings, each rounding up
        self.features = nn.Sequential(
            Conv2d(in_channels, 6, 5, padding=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),  # after the pooling it gives the same, for a quarter of the pixels
            Conv2d(6, 16, 5, padding=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
            Conv2d(16, 120, 5, padding=2),
            nn.ReLU(),
        )
        self.hidden = nn.Sequential(FlatLinear(120, side, self.num_features), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hidden(self.features(x))  # (B, 84)
        return out


def conv_stages(in_channels: int, stages: Sequence[Sequence[int]]) -> nn.Sequential:
    """3×3 convolutions of the widths given, each with batch normalisation and ReLU.

    Each stage halves the image.
    """
    layers: list[nn.Module] = []
    for stage in stages:
        for width in stage:
            layers += [
                nn.Conv2d(in_channels, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            in_channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class StageCNN(Backbone):
    """Stages of 3×3 convolutions, each halving the image, and one hidden layer, all with batch
    normalisation.

    The networks of Active Passive Losses (Ma et al., 2020) and Asymmetric Loss Functions (Zhou et
    al., 2021), which the curriculum paper takes over.
    """

    def __init__(
        self,
        *,
        stages: Sequence[Sequence[int]],
        hidden: int,
        in_channels: int = 3,
        image_size: int = 32,
        init: str = "apl",
    ) -> None:
        super().__init__(init)
        self.features = conv_stages(in_channels, stages)
        side = check_count("image_size", image_size, 2 ** len(stages)) // 2 ** len(stages)
        self.hidden = nn.Sequential(
            FlatLinear(stages[-1][-1], side, hidden), nn.BatchNorm1d(hidden), nn.ReLU()
        )
        self.num_features = hidden

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hidden(self.features(x))  # (B, hidden)
        return out


MODELS.register_variant(
    "cnn4", StageCNN, stages=((32,), (64,)), hidden=128, in_channels=1, image_size=28
)
MODELS.register_variant("cnn8", StageCNN, stages=((64, 64), (128, 128), (196, 196)), hidden=256)


@MODELS.register("cnn9")
class CNN9(Backbone):
    """The nine convolutions of Co-teaching (Han et al., 2018, Table 2), for images of at least
    28×28.

    Args:
        dropout: rate of dropping channels after each pooling. The released code calls a function
            for it that does nothing by default in the authors' PyTorch 0.3: ``dropout=0`` is what
            their numbers come from.
    """

    num_features = 128

    def __init__(
        self, *, in_channels: int = 3, dropout: float = 0.25, init: str = "pytorch"
    ) -> None:
        super().__init__(init)
        layers: list[nn.Module] = []
        channels = in_channels
        for stage, padding in (((128, 128, 128), 1), ((256, 256, 256), 1), ((512, 256, 128), 0)):
            for width in stage:
                layers += [
                    nn.Conv2d(channels, width, 3, padding=padding),
                    nn.BatchNorm2d(width),
                    nn.LeakyReLU(0.01),
                ]
                channels = width
            if padding:
                layers += [nn.MaxPool2d(2), nn.Dropout2d(dropout)]
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(x).mean((2, 3))  # (B, 128)
        return out


VGG_STAGES = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


@MODELS.register("vgg19-bn")
class VGG19(Backbone):
    """VGG-19 with batch normalisation (Simonyan & Zisserman, 2015, E), torchvision's, as the NAL
    paper on ANIMAL-10N.

    The parameters have torchvision's names. ``pool=1,hidden=[]`` is the small variant common on
    CIFAR.

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
        self.features = conv_stages(in_channels, VGG_STAGES)
        self.avgpool = nn.AdaptiveAvgPool2d(check_count("pool", pool, 1))
        self.num_features = VGG_STAGES[-1][-1] * pool**2
        dense: list[nn.Module] = []
        for width in hidden:
            dense += [
                nn.Linear(self.num_features, check_count("hidden", width, 1)),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
            self.num_features = width
        self.classifier = nn.Sequential(*dense)

    def forward(self, x: Tensor) -> Tensor:
        # (B, num_features)
        out: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return out
