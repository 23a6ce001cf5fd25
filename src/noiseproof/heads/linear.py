"""The usual head: one linear layer."""

from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.heads.base import HEADS, Head


@HEADS.register("linear")
class Linear(Head):
    """z = W h + b."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.logits = nn.Linear(num_features, num_outputs)

    def forward(self, features: Tensor) -> Output:
        return Output(self.logits(features))
