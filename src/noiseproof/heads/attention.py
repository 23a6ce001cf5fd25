"""The head of noise attention learning: logits, and the trust in the label."""

from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.heads.base import HEADS
from noiseproof.heads.linear import Linear


@HEADS.register("attention")
class Attention(Linear):
    """z = W h + b and a = wᵀh + c, the logit of the attention τ = σ(a) of the NAL paper.

    >>> import torch
    >>> Attention(8, 3)(torch.zeros(2, 8)).attention.shape
    torch.Size([2])
    """

    gives = frozenset({"logits", "attention"})

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__(num_features, num_outputs)
        self.attention = nn.Linear(num_features, 1)

    def forward(self, features: Tensor) -> Output:
        return Output(self.logits(features), attention=self.attention(features).squeeze(1))
