"""Losses corrected by the noise transition matrix, and the estimate of that matrix (Patrini et al.
2017).
"""

import math
import zlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_number, check_transition
from noiseproof.core.grammar import format_call
from noiseproof.core.output import Output
from noiseproof.core.probs import check_probabilities
from noiseproof.losses.base import Loss, register
from noiseproof.losses.rows import countable, over_classes

WRITTEN_OUT = 20  # classes up to which a spec holds all of T


class Corrected(Loss):
    """A cross entropy that knows T[i, j] = P(given j | true i); a number K stands for the identity
    of K classes.
    """

    kind = "other"

    def __init__(self, T: Tensor | int, **options: Any) -> None:
        super().__init__(**options)
        matrix = torch.eye(T) if isinstance(T, int) and not isinstance(T, bool) and T >= 0 else T
        self.register_buffer("T", check_transition(matrix).clone())
        self.T: Tensor

    def set_transition(self, T: Tensor) -> None:
        """Replace T by one of the same classes, such as an estimate made during training."""
        T = check_transition(T)
        if T.shape != self.T.shape:
            raise ValueError(f"Expected `T` of {self.T.shape[0]} classes, got {T.shape[0]}.")
        self.T.copy_(T)

    def _log_p(self, logits: Tensor) -> Tensor:
        if self.T.shape[0] != logits.shape[1]:
            raise ValueError(f"Expected `T` of {logits.shape[1]} classes, got {self.T.shape[0]}.")
        return F.log_softmax(logits, 1)

    def __str__(self) -> str:
        """Return the spec, with a checksum in place of a large T: such a one cannot be built from
        text.
        """
        K = len(self.T)
        T = self.T.cpu()
        short: object = K if torch.equal(T, torch.eye(K).to(T)) else T
        if short is T and K > WRITTEN_OUT:
            short = f"{K}x{K}#{zlib.crc32(T.numpy().tobytes()):08x}"
        return format_call(self.name, {**self.hyperparameters, "T": short})


@register("forward")
class Forward(Corrected):
    """Forward correction: the cross entropy of the given label under the corrupted prediction.

    L = −log (Tᵀp)_y = −log Σ_i p_i T[i, y] (the LN paper's transposition mended), as a logsumexp.

    >>> Forward(T=[[0.8, 0.2], [0.0, 1.0]])(torch.tensor([[2.0, 0.0]]), torch.tensor([1]))
    tensor(1.2196)
    """

    formula = "−log Σ_i p_i T[i, y]"
    source = "Patrini et al. 2017; the LN paper and the SLN paper (Forward)"

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        log_p = self._log_p(out.logits)
        log_T = self.T.log().to(log_p.dtype)  # (K, K), −inf where T is zero
        if target.dim() == 1:
            return -torch.logsumexp(log_p + log_T.T[countable(target, self.ignore_index)], 1)
        given = torch.logsumexp(log_p[:, :, None] + log_T, 1)  # (B, K)
        # A class that T can never give costs nothing where the target has none of it.
        return over_classes(torch.where(target == 0, 0, -given), target, self.weight)


@register("backward")
class Backward(Corrected):
    """Backward correction: cross entropy against the label pulled back through T⁻¹; unbiased, may
    be negative.

    L = Σ_k T⁻¹[y, k]·nll_k. It has no lower bound: a model that can fit every label gains without
    end from driving p to zero where T⁻¹ is negative. ``clip`` keeps every p in [clip, 1 − clip],
    without a gradient outside, which bounds the loss; the released code does so with 1e-7.

    >>> Backward(T=[[0.8, 0.2], [0.0, 1.0]])(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-0.3731)
    """

    formula = "−Σ_k T⁻¹[y, k] log p_k"
    source = "Patrini et al. 2017; the SLN paper (Backward)"

    def __init__(self, T: Tensor | int, clip: float = 0.0, **options: Any) -> None:
        super().__init__(T, **options)
        self.clip = check_number("clip", clip, "[0, 0.5)")
        self.register_buffer("inverse", _inverse(self.T))
        self.inverse: Tensor

    def set_transition(self, T: Tensor) -> None:
        inverse = _inverse(check_transition(T))
        super().set_transition(T)
        self.inverse.copy_(inverse)

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        nll = -self._log_p(out.logits)
        if self.clip:
            nll = nll.clamp(-math.log1p(-self.clip), -math.log(self.clip))
        inverse = self.inverse.to(nll.dtype)
        if target.dim() == 1:
            return (inverse[countable(target, self.ignore_index)] * nll).sum(1)
        return over_classes(nll @ inverse.T, target, self.weight)


def _inverse(T: Tensor) -> Tensor:
    if float(torch.linalg.cond(T)) > 1e12:
        raise ValueError(
            "Expected an invertible `T`, got one that is singular. Use forward instead."
        )
    inverse: Tensor = torch.linalg.inv(T)
    return inverse


def estimate_transition(pred_probs: Tensor, percentile: float | None = 97.0) -> Tensor:
    """Estimate the transition matrix from anchor points: row i is the prediction for the sample
    most surely of class i.

    Patrini et al. 2017, Eq. 12-13, with their outlier rule: predictions for class i at or above its
    ``percentile`` are not trusted as anchors (``None``, as they do for CIFAR-100, trusts all). The
    released code zeroes part of a row by accident.
    """
    probs = check_probabilities("pred_probs", pred_probs)
    trusted = probs
    if percentile is not None:
        quantile = check_number("percentile", percentile, "(0, 100]") / 100
        limit = torch.quantile(probs, quantile, dim=0, interpolation="higher")
        trusted = torch.where(probs >= limit, 0.0, probs)
    rows = probs[trusted.argmax(0)]  # (K, K)
    return rows / rows.sum(1, keepdim=True)
