"""Heads of the Gaussian likelihoods: logits, and the covariance of the noise on them."""

import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.checks import check_count, check_flag, check_number
from noiseproof.core.output import Output
from noiseproof.heads.base import HEADS
from noiseproof.heads.linear import Linear


@HEADS.register("gaussian-root")
class GaussianRoot(Linear):
    """μ = W h + b and c = W′h + b′, linear too, of Σ^½ = ccᵀ + λI: the head of ``ln`` (LN paper,
    Eq. 9).

    >>> import torch
    >>> GaussianRoot(8, 3)(torch.zeros(2, 8)).root.shape
    torch.Size([2, 3])
    """

    gives = frozenset({"logits", "root"})

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__(num_features, num_outputs)
        self.root = nn.Linear(num_features, num_outputs)

    def forward(self, features: Tensor) -> Output:
        return Output(self.logits(features), root=self.root(features))


@HEADS.register("gaussian-scale")
class GaussianScale(Linear):
    """μ and standard deviations d = softplus(W′h + b′) + floor: the head of ``het``, and of ``ln``
    without ``root``.

    One standard deviation for each logit, or, ``isotropic``, one for all. The ``floor`` is from
    Het's released code.
    """

    gives = frozenset({"logits", "scale"})

    def __init__(
        self, num_features: int, num_outputs: int, isotropic: bool = False, floor: float = 1e-3
    ) -> None:
        super().__init__(num_features, num_outputs)
        self.scale = nn.Linear(
            num_features, 1 if check_flag("isotropic", isotropic) else num_outputs
        )
        self.floor = check_number("floor", floor, "[0, inf)")

    def forward(self, features: Tensor) -> Output:
        return Output(self.logits(features), scale=F.softplus(self.scale(features)) + self.floor)


@HEADS.register("gaussian-factors")
class GaussianFactors(GaussianScale):
    """μ, d and ``rank`` factors V, linear, of u = μ + Vε_R + d·ε_K: the head of
    ``het:covariance=full``.
    """

    gives = frozenset({"logits", "scale", "factors"})

    def __init__(
        self, num_features: int, num_outputs: int, rank: int = 4, floor: float = 1e-3
    ) -> None:
        super().__init__(num_features, num_outputs, floor=floor)
        self.rank = check_count("rank", rank, 1)
        self.factors = nn.Linear(num_features, num_outputs * self.rank)

    def forward(self, features: Tensor) -> Output:
        factors = self.factors(features).unflatten(1, (-1, self.rank))  # (B, K, R)
        return super().forward(features)._replace(factors=factors)
