"""Losses of rows with several labels: K questions with the answer yes or no, each a margin loss of
its own.
"""

from typing import Any

import torch
from torch import Tensor

from noiseproof.core.checks import check_number
from noiseproof.core.margin import LabelProb
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, MarginLoss, register
from noiseproof.losses.margin import Focal
from noiseproof.losses.sums import inner_loss


@register("multilabel")
class MultiLabel(Loss):
    """A margin loss for each of K yes-or-no questions: Δ_k = z_k if label k is given, else −z_k.

    L = Σ_k t_k·l(σ(z_k)) + (1 − t_k)·l₀(σ(−z_k)), with logits (B, K) and targets t (B, K), 0 or 1;
    other numbers interpolate. l₀ is the loss ``absent`` of labels that are not given, by default l.
    Of ``ce``, the mean over rows is K times ``torch.nn.BCEWithLogitsLoss``. ``weight`` multiplies
    each question.

    >>> MultiLabel("gce:q=0.7")(torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.4027)
    """

    kind = "other"
    multilabel = True
    formula = "Σ_k t_k·l(σ(z_k)) + (1 − t_k)·l₀(σ(−z_k))"
    source = "curriculum paper, §4, with two classes for each question"

    def __init__(self, loss: Loss | str, absent: Loss | str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.loss = self._of_margins(loss)
        self.absent = None if absent is None else self._of_margins(absent)

    def _of_margins(self, loss: Loss | str) -> Loss:
        inner = inner_loss(loss, self.ignore_index)
        if inner.kind != "margin" or inner.needs != {"logits"} or not inner.independent_rows:
            raise ValueError(
                "Expected a loss of the label's probability alone for each label of a row, got"
                f" `{inner}`, which depends on more. Use ce, gce, mae, agce or another margin loss,"
                " or a sum of them."
            )
        return inner

    def _check(self, logits: Tensor, target: Tensor) -> None:
        if logits.dim() != 2 or not logits.is_floating_point():
            raise ValueError(
                f"Expected floating-point logits of shape (B, K), got {logits.dtype}"
                f" {logits.shape}."
            )
        if target.shape != logits.shape or not target.is_floating_point():
            raise ValueError(
                f"Expected a floating-point target of shape {tuple(logits.shape)}, 1 for each label"
                f" of a row, got {target.dtype} {tuple(target.shape)}. Use target.float(), or the"
                " loss without multilabel."
            )
        if self.weight is not None and self.weight.shape[0] != logits.shape[1]:
            raise ValueError(
                f"Expected `weight` of {logits.shape[1]} classes, got {self.weight.shape[0]}."
            )

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        present = self.loss.evaluate(LabelProb.from_margin(out.logits))  # (B, K)
        absent = (self.absent or self.loss).evaluate(LabelProb.from_margin(-out.logits))
        value = torch.lerp(absent, present, target.to(absent.dtype))
        return (value if self.weight is None else value * self.weight).sum(1)

    def probabilities(self, out: Output) -> Tensor:
        return out.logits.sigmoid()

    def sample_weight(self, margin: Tensor) -> Tensor:
        return self.loss.sample_weight(margin)


class _ShiftedFocal(MarginLoss):
    """Focal loss of the probability p + m, one at most: −u^γ·log(1 − u) with u = max(1 − p − m,
    0).
    """

    def __init__(self, gamma: float, shift: float, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.shift = shift

    def value(self, y: LabelProb) -> Tensor:
        u = (y.miss - self.shift).clamp_min(0)
        return u**self.gamma * -torch.log1p(-u)

    def slope(self, y: LabelProb) -> Tensor:
        p = y.p
        u = (y.miss - self.shift).clamp_min(torch.finfo(y.nll.dtype).tiny)
        slope = p * u**self.gamma * (1 / (p + self.shift) - self.gamma * torch.log1p(-u) / u)
        return torch.where(y.miss > self.shift, slope, 0)


@register("asl")
class ASL(MultiLabel):
    """Asymmetric loss (Ridnik et al. 2021): labels that are not given count less, and not at all
    where p ≤ m.

    l = −(1 − p)^γ₊ log p of a given label, −p_m^γ₋ log(1 − p_m) of another, p_m = max(p − m, 0),
    with p = σ(z) and their true derivatives (the released code holds the powers constant).

    >>> ASL()(torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.1275)
    """

    formula = "−(1 − p)^γ₊ log p, −p_m^γ₋ log(1 − p_m) of absent labels, p_m = max(p − m, 0)"
    source = "Ridnik et al. 2021, Eqs. 4-6"

    def __init__(
        self, gamma_pos: float = 0.0, gamma_neg: float = 4.0, shift: float = 0.05, **options: Any
    ) -> None:
        gamma_neg = check_number("gamma_neg", gamma_neg, "[0, inf)")
        shift = check_number("shift", shift, "[0, 1)")
        absent = _ShiftedFocal(gamma_neg, shift) if shift else Focal(gamma_neg)
        super().__init__(Focal(check_number("gamma_pos", gamma_pos, "[0, inf)")), absent, **options)
        self.gamma_pos = float(gamma_pos)
        self.gamma_neg = gamma_neg
        self.shift = shift
