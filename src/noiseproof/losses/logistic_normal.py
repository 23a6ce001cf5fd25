"""The Logistic-Normal distribution (LN paper): a Gaussian over logits that the centred softmax
carries to the simplex.

The centred softmax S_C(z) = softmax([z, 0]) is a bijection of D logits and the probabilities of
D + 1 classes. All covariances here have a root Σ^½ whose inverse and determinant cost O(D): no
D × D matrix is built.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from noiseproof.core.checks import check_number


def softmax_centred(logits: Tensor, tau: float = 1.0) -> Tensor:
    """Return probabilities (…, D + 1) of logits (…, D): S_C(z/τ) = softmax([z/τ, 0]) (LN paper, Eq.
    10).
    """
    return F.softmax(F.pad(logits / tau, (0, 1)), -1)


def inverse_softmax_centred(probs: Tensor, tau: float = 1.0) -> Tensor:
    """Return logits (…, D) of probabilities (…, D + 1), none of them zero: τ·log(q_k/q_{D+1}) (LN
    paper, Eq. 11).
    """
    log_q = probs.log()
    return tau * (log_q[..., :-1] - log_q[..., -1:])


def negative_log_normal(
    error: Tensor, lam: float, root: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """Return ½ eᵀΣ⁻¹e + ½ log|Σ| for e (…, D): what LN paper, Eq. 5, sums over samples, in float64.

    Σ^½ is ccᵀ + λI with ``root`` c (Eq. 9), diag(σ) + λI with ``scale`` σ, (…, D) or (…, 1), and λI
    with neither.
    """
    error = error.double()
    D = error.shape[-1]
    square: Tensor
    if root is not None and D == 1:
        scale = root.square()
        root = None  # Eq. 9 in one dimension
    if root is None:
        # (…, D) or (…, 1)
        deviation = error.new_full((1,), lam) if scale is None else scale.double() + lam
        log_det = deviation.log().sum(-1) * (D // deviation.shape[-1])
        square = (error / deviation).square().sum(-1)
        return square / 2 + log_det
    c = root.double()
    wide: Tensor = torch.linalg.vecdot(c, c) + lam  # the one eigenvalue of Σ^½ that is not λ
    along = (torch.linalg.vecdot(c, error) / wide)[..., None]
    square = ((error - c * along) / lam).square().sum(-1)
    return square / 2 + wide.log() + (D - 1) * math.log(lam)


@dataclass(frozen=True, eq=False)
class LogisticNormal:
    """Probabilities S_C((μ + Σ^½ε)/τ) with ε standard normal (LN paper, Eqs. 3 and 10), over D + 1
    classes.

    Args:
        loc: μ (…, D).
        lam: λ > 0, the smallest standard deviation.
        root: c (…, D) of Σ^½ = ccᵀ + λI (Eq. 9).
        scale: σ ≥ 0, (…, D) or (…, 1), of Σ^½ = diag(σ) + λI. With neither, Σ^½ = λI.
        tau: the temperature τ.

    >>> distribution = LogisticNormal(
    ...     torch.tensor([1.0, 0.0]), root=torch.tensor([0.5, -0.5]), lam=0.5
    ... )
    >>> distribution.log_prob(torch.tensor([0.6, 0.2, 0.2]))
    tensor(2.5728)
    """

    loc: Tensor
    lam: float = field(default=1.0, kw_only=True)
    root: Tensor | None = field(default=None, kw_only=True)
    scale: Tensor | None = field(default=None, kw_only=True)
    tau: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        check_number("lam", self.lam, "(0, inf)")
        check_number("tau", self.tau, "(0, inf)")
        if self.root is not None and self.scale is not None:
            raise ValueError("Expected `root` or `scale`, got both. Leave one out.")

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density at probabilities ``value`` (…, D + 1), none of them zero (LN
        paper, Eq. 4).

        With τ it is log N(τ·S_C⁻¹(q); μ, Σ) + D·log τ − Σ_k log q_k.
        """
        D = self.loc.shape[-1]
        q = value.double()
        error = self.loc.double() - inverse_softmax_centred(q, self.tau)
        constant = D * math.log(self.tau) - D / 2 * math.log(2 * math.pi)
        density = (
            constant - negative_log_normal(error, self.lam, self.root, self.scale) - q.log().sum(-1)
        )
        return density.to(torch.promote_types(self.loc.dtype, value.dtype))

    @torch.no_grad()
    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Return samples (*sample_shape, …, D + 1)."""
        shape = (*sample_shape, *self.loc.shape)
        noise = torch.randn(
            shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        step = noise * self.lam
        if self.root is not None:
            step = step + self.root * torch.linalg.vecdot(self.root, noise)[..., None]
        elif self.scale is not None:
            step = step + noise * self.scale
        return softmax_centred(self.loc + step, self.tau)

    @property
    def logit_variance(self) -> Tensor:
        """Variance of each logit, (…, D): the diagonal of Σ, in O(D)."""
        if self.root is not None:
            size: Tensor = torch.linalg.vecdot(self.root, self.root)[..., None]
            return self.root.square() * (size + 2 * self.lam) + self.lam**2
        deviation = torch.full_like(self.loc, self.lam)
        if self.scale is not None:
            deviation = deviation + self.scale
        return deviation.square()
