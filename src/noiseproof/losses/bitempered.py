"""The bi-tempered logistic loss (Amid et al. 2019): a tempered logarithm of a tempered softmax."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from noiseproof.core.checks import check_number
from noiseproof.core.output import Output
from noiseproof.core.tensors import wide
from noiseproof.losses.base import Loss, register
from noiseproof.losses.rows import check_not_negative, countable, value_dtype, weigh_rows


def tempered_log(x_log: Tensor, t: float) -> Tensor:
    """Return log_t x = (x^(1−t) − 1)/(1 − t), from log x."""
    return x_log if t == 1 else torch.expm1((1 - t) * x_log) / (1 - t)


def tempered_log_softmax(logits: Tensor, t: float) -> Tensor:
    """Return log p with p_i = exp_t(z_i − λ) and Σ p_i = 1, where
    exp_t(x) = [1 + (1 − t)x]_+^(1/(1−t)).

    λ is found by Newton's method on (Σ p)^(1−t), which is concave (t > 1) or convex (t < 1) in λ
    and nearly straight, so that a handful of steps suffice.
    """
    if t == 1:
        return F.log_softmax(logits, 1)
    a = logits.amax(1, keepdim=True) - logits  # (B, K), ≥ 0
    # With s = t − 1, log p = −log(u + s·a)/s. Near t = 1 the digits are in u − 1, elsewhere in u
    # itself.
    log = torch.log
    lowest = 0.0
    if abs(t - 1) < 0.1:
        log = torch.log1p
        lowest = -1.0
    scaled = a * (t - 1)
    u = torch.full_like(a[:, :1], 1.0 + lowest)  # λ = max z, where Σ p ≥ 1
    # Steps to the last digit for K ≤ 1000 and logits of ±500, measured: strong temperatures below
    # one need most.
    steps = 6 if t > 1 else 10
    if abs(t - 1) <= 0.25:
        steps = 4
    for _ in range(steps + (logits.dtype is torch.float64)):
        base = (scaled + u).clamp_min(lowest)
        p = (log(base) / (1 - t)).exp()
        total = p.sum(1, keepdim=True)
        # Σ p^t
        escort = (p / (base - lowest).clamp_min(torch.finfo(p.dtype).tiny)).sum(1, keepdim=True)
        u = u + total * torch.expm1((t - 1) * total.log()) / escort
    return log((scaled + u).clamp_min(lowest)) / (1 - t)


def _power(log_p: Tensor, exponent: float) -> Tensor:
    """Return p^exponent, and zero outside the support.

    There p = 0, and moving a logit changes nothing, whatever the exponent.
    """
    return torch.where(log_p > -torch.inf, (exponent * log_p).exp(), 0)


class _BiTempered(torch.autograd.Function):
    """Value and closed-form gradient; the normaliser's derivative is the escort distribution
    p^t2/Σp^t2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, target: Tensor, t1: float, t2: float) -> tuple[Tensor, Tensor]:
        log_p = tempered_log_softmax(logits, t2)
        spread = ((2 - t1) * log_p).exp().sum(1) / (2 - t1)
        if target.dim() == 1:
            label_log_p = log_p.gather(1, target[:, None]).squeeze(1)
            return spread - tempered_log(label_log_p, t1) - 1 / (2 - t1), log_p
        log_y = target.log()
        gain = torch.where(
            target > 0, target * (tempered_log(log_y, t1) - tempered_log(log_p, t1)), 0
        )
        return spread + (gain - ((2 - t1) * log_y).exp() / (2 - t1)).sum(1), log_p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, target, ctx.t1, ctx.t2 = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(target, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        target, log_p = ctx.saved_tensors
        # (p − y)·p^(t2−t1), in two parts. In the part of p a plain power does: with t1 < 1 + t2 its
        # exponent is positive and p = 0 gives 0. The exponent of y's part may be zero or negative:
        # there `_power` takes 0 for p = 0.
        exponent = ctx.t2 - ctx.t1
        error = ((1 + ctx.t2 - ctx.t1) * log_p).exp()
        if target.dim() == 1:
            label = target[:, None]
            error = error.scatter_add(1, label, -_power(log_p.gather(1, label), exponent))
        else:
            error = error - target * _power(log_p, exponent)
        escort = (ctx.t2 * log_p).exp()
        escort = escort / escort.sum(1, keepdim=True)
        return grad[:, None] * (error - escort * error.sum(1, keepdim=True)), None, None, None


@register("bitempered")
class BiTempered(Loss):
    """Bi-tempered logistic loss: bounded for t1 < 1, heavy-tailed probabilities for t2 > 1.

    L = Σ_k [y_k(log_t1 y_k − log_t1 p_k) − (y_k^(2−t1) − p_k^(2−t1))/(2 − t1)] with p the tempered
    softmax of temperature t2 (bias paper, Table 1; Amid et al. 2019, Eq. 5). Real-valued targets
    must not be negative. Once differentiable.

    >>> BiTempered(t1=0.8, t2=1.2)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1096)
    """

    formula = (
        "Σ_k y_k(log_t1 y_k − log_t1 p_k) − (y_k^(2−t1) − p_k^(2−t1))/(2 − t1), p = exp_t2(z − λ)"
    )
    source = "bias paper, Table 1; Amid et al. 2019"
    kind = "other"
    takes = "probabilities"

    def __init__(self, t1: float = 0.8, t2: float = 1.2, **options: Any) -> None:
        super().__init__(**options)
        self.t1 = check_number("t1", t1, "[0, 2)")
        self.t2 = check_number("t2", t2, "(0, inf)")
        if self.t1 >= 1 + self.t2:  # the gradient has p^(1 + t2 − t1), also of p = 0
            raise ValueError(
                f"Expected t1 below 1 + t2, got t1={t1} and t2={t2}. Choose a t1 up to t2, such"
                " as the paper's t1=0.8 with t2=1.2."
            )

    def scores(self, out: Output) -> Tensor:
        """Return log p of the tempered softmax, (B, K)."""
        return tempered_log_softmax(out.logits.to(wide(out.logits.dtype)), self.t2)

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        logits = out.logits.to(wide(out.logits.dtype))
        hard = target.dim() == 1
        if not hard and target.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "Expected a target without a gradient for bitempered, whose formula has none."
                " Detach it."
            )
        check_not_negative(self.name, target)
        label = countable(target, self.ignore_index) if hard else target.to(logits.dtype)
        value: Tensor
        value, _ = _BiTempered.apply(logits, label, self.t1, self.t2)  # type: ignore[no-untyped-call]
        return weigh_rows(value.to(value_dtype(out.logits)), target, self.weight)
