"""Multilayer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from noiseproof.core.checks import check_count
from noiseproof.models.base import MODELS, Backbone


@MODELS.register("mlp")
class MLP(Backbone):
    """Linear layers with ReLU; images are flattened; ``hidden=[]`` makes the head a linear
    classifier.

    Args:
        in_features: length of a (flattened) input.
        hidden: widths of the hidden layers, or the width of one; the last one is the number of
            features.
    """

    def __init__(
        self, *, in_features: int, hidden: int | Sequence[int], init: str = "xavier"
    ) -> None:
        super().__init__(init)
        widths = [hidden] if isinstance(hidden, int) else hidden
        sizes = [
            check_count("in_features", in_features, 1),
            *(check_count("hidden", width, 1) for width in widths),
        ]
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))
        )
        self.num_features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x.flatten(1))  # (B, num_features)
        return out


# LN paper, C.1; its code for the synthetic data is not released, so the initialisation is Keras'
# default.
MODELS.register_variant("mlp-2x2000", MLP, in_features=2, hidden=(2000, 2000))
# bias paper, appendix 1.
MODELS.register_variant("mlp1024", MLP, in_features=3 * 32 * 32, hidden=(1024, 512, 512))
