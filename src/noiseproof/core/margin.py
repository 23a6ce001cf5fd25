"""The one number per sample that almost every robust loss is a function of.

Δ_y = z_y − log Σ_{i≠y} exp z_i        p_y = σ(Δ_y)        nll = softplus(−Δ_y) = −log p_y
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def margin(logits: Tensor, target: Tensor) -> Tensor:
    """Soft margin Δ_y of the labelled class (curriculum paper, section 4), exact where p_y → 1 too.

    ``z_y − logsumexp`` of *all* classes cancels when p_y → 1; the logsumexp of the *other* classes
    does not.

    >>> margin(torch.tensor([[20.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor([19.3069])
    """
    column = target[:, None]  # (B, 1)
    others = logits.scatter(1, column, -torch.inf)
    numbers = torch.finfo(logits.dtype)
    # finite where all others are masked: −∞ − (−∞) would be NaN
    largest = others.detach().amax(1, keepdim=True).clamp_min(numbers.min)
    # The largest other class contributes exp(0) = 1; the sum is 0 only where all are masked.
    rest = (others - largest).exp().sum(1).clamp_min(numbers.tiny).log()
    return (logits.gather(1, column) - largest).squeeze(1) - rest


def margins(logits: Tensor) -> Tensor:
    """Soft margin Δ_k of every class k, (B, K), at the cost of O(B·K)."""
    first = logits.detach().argmax(1, keepdim=True)  # (B, 1)
    shifted = logits - logits.detach().gather(1, first)
    scaled = shifted.exp()
    # Taking a class that is not the largest out of the sum keeps at least half: nothing cancels.
    rest = (scaled.sum(1, keepdim=True) - scaled).clamp_min(torch.finfo(logits.dtype).tiny).log()
    return torch.where(
        torch.zeros_like(logits, dtype=torch.bool).scatter(1, first, True),
        margin(logits, first.squeeze(1))[:, None],
        shifted - rest,
    )


class LabelProb:
    """The probability of the labelled class, seen through its negative logarithm.

    ``nll`` is (B,) for class labels; for real-valued targets it is (B, K), each class in the role
    of the label. ``log_p`` (B, K) is given only to losses that depend on the other classes too.
    """

    __slots__ = ("nll", "_log_p", "_margin")

    def __init__(
        self, nll: Tensor, log_p: Tensor | None = None, margin: Tensor | None = None
    ) -> None:
        self.nll = nll
        self._log_p = log_p
        self._margin = margin

    @classmethod
    def from_margin(cls, margin: Tensor, log_p: Tensor | None = None) -> LabelProb:
        """nll = softplus(−Δ), with full relative accuracy at both ends."""
        return cls(-F.logsigmoid(margin), log_p, margin)

    @property
    def p(self) -> Tensor:
        """p = exp(−nll)."""
        return torch.exp(-self.nll)

    @property
    def miss(self) -> Tensor:
        """1 − p = −expm1(−nll); ``elu``, because the gradient of ``expm1`` underflows where p →
        0.
        """
        return F.elu(-self.nll, alpha=-1.0)

    @property
    def margin(self) -> Tensor:
        """Δ, given if the loss sets ``exact``."""
        if self._margin is None:
            raise RuntimeError("This loss needs margins: set `exact = True` on it.")
        return self._margin

    @property
    def log_p(self) -> Tensor:
        """log-probabilities of all classes (B, K), given if the loss is of kind ``coupled``."""
        if self._log_p is None:
            raise RuntimeError("This loss needs all classes: set `kind = 'coupled'` on it.")
        return self._log_p

    def total(self, per_class: Tensor) -> Tensor:
        """Sum (B, K) over classes into a shape that broadcasts with ``nll``."""
        return per_class.sum(-1, keepdim=self.nll.dim() == 2)
