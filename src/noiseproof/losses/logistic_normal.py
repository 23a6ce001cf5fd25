"""The Logistic-Normal distribution (LN paper): a Gaussian over logits that the centred softmax
carries to the simplex.

The centred softmax S_C(z) = softmax([z, 0]) is a bijection of D logits and the probabilities of D +
1 classes. All covariances here have a root Σ^½ whose inverse and determinant cost O(D): no D × D
matrix is built.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints

from noiseproof.core.checks import check_number

Shape = Size | list[int] | tuple[int, ...]


def softmax_centred(logits: Tensor, tau: float = 1.0) -> Tensor:
    """Probabilities (…, D + 1) of logits (…, D): S_C(z/τ) = softmax([z/τ, 0]) (LN paper, Eq.
    10).
    """
    return F.softmax(F.pad(logits / tau, (0, 1)), -1)


def inverse_softmax_centred(probs: Tensor, tau: float = 1.0) -> Tensor:
    """Logits (…, D) of probabilities (…, D + 1), none of them zero: τ·log(q_k/q_{D+1}) (LN paper,
    Eq. 11).
    """
    log_q = probs.log()
    return tau * (log_q[..., :-1] - log_q[..., -1:])


def negative_log_normal(
    error: Tensor, lam: float, root: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """½ eᵀΣ⁻¹e + ½ log|Σ| for e (…, D): what LN paper, Eq. 5, sums over samples, in float64.

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


class LogisticNormal(Distribution):
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

    support = constraints.simplex
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        *,
        lam: float = 1.0,
        root: Tensor | None = None,
        scale: Tensor | None = None,
        tau: float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        if root is not None and scale is not None:
            raise ValueError("Expected `root` or `scale`, got both.")
        if root is not None and root.shape[-1:] != loc.shape[-1:]:
            raise ValueError(
                f"Expected a `root` of {loc.shape[-1]} columns, got shape {tuple(root.shape)}."
            )
        if scale is not None and scale.shape[-1:] not in (loc.shape[-1:], (1,)):
            raise ValueError(
                f"Expected a `scale` of {loc.shape[-1]} columns or one, got shape"
                f" {tuple(scale.shape)}."
            )
        self.lam = check_number("lam", lam, "(0, inf)")
        self.tau = check_number("tau", tau, "(0, inf)")
        self.loc = loc
        self.root = root
        self.scale = scale
        others = [x.shape[:-1] for x in (root, scale) if x is not None]
        batch = torch.broadcast_shapes(loc.shape[:-1], *others)  # type: ignore[no-untyped-call]
        super().__init__(batch, Size([loc.shape[-1] + 1]), validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """What is checked of the parameters that were given."""
        known = {
            "loc": constraints.real_vector,
            "root": constraints.real_vector,
            "scale": constraints.nonnegative,
        }
        return {name: check for name, check in known.items() if self.__dict__[name] is not None}

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at probabilities ``value`` (…, D + 1), none of them zero (LN paper, Eq. 4).

        With τ it is log N(τ·S_C⁻¹(q); μ, Σ) + D·log τ − Σ_k log q_k.
        """
        if self._validate_args:
            self._validate_sample(value)
        D = self.loc.shape[-1]
        q = value.double()
        error = self.loc.double() - inverse_softmax_centred(q, self.tau)
        constant = D * math.log(self.tau) - D / 2 * math.log(2 * math.pi)
        density = (
            constant - negative_log_normal(error, self.lam, self.root, self.scale) - q.log().sum(-1)
        )
        return density.to(torch.promote_types(self.loc.dtype, value.dtype))

    def rsample(self, sample_shape: Shape = (), *, generator: Generator | None = None) -> Tensor:
        """Reparametrised samples (*sample_shape, …, D + 1)."""
        shape = (*sample_shape, *self.batch_shape, self.loc.shape[-1])
        noise = torch.randn(
            shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        step = noise * self.lam
        if self.root is not None:
            step = step + self.root * torch.linalg.vecdot(self.root, noise)[..., None]
        elif self.scale is not None:
            step = step + noise * self.scale
        return softmax_centred(self.loc + step, self.tau)

    def sample(self, sample_shape: Shape = (), *, generator: Generator | None = None) -> Tensor:
        """Samples (*sample_shape, …, D + 1), without a gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    @property
    def logit_variance(self) -> Tensor:
        """Variance of each logit, (…, D): the diagonal of Σ, in O(D)."""
        if self.root is None:
            deviation = (
                self.loc.new_full((), self.lam) if self.scale is None else self.scale + self.lam
            )
            return deviation.square().expand((*self.batch_shape, self.loc.shape[-1]))
        size: Tensor = torch.linalg.vecdot(self.root, self.root)[..., None]
        variance = self.root.square() * (size + 2 * self.lam) + self.lam**2
        return variance.expand((*self.batch_shape, self.loc.shape[-1]))

    def logit_covariance(self) -> Tensor:
        """Σ (…, D, D) = (cᵀc + 2λ)·ccᵀ + λ²I: the one thing here that costs O(D²)."""
        if self.root is None:
            return torch.diag_embed(self.logit_variance)
        size: Tensor = torch.linalg.vecdot(self.root, self.root)[..., None, None]
        outer = self.root[..., :, None] * self.root[..., None, :]
        covariance = outer * (size + 2 * self.lam) + self.lam**2 * torch.eye(self.loc.shape[-1]).to(
            outer
        )
        return covariance.expand((*self.batch_shape, *covariance.shape[-2:]))
