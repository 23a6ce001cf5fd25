"""Losses that need more than logits: attention from the head, a memory of predictions, or the noise
of each label.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, register
from noiseproof.losses.rows import (
    check_not_negative,
    countable,
    field_of,
    one_hot,
    over_classes,
    weigh_rows,
)

FULL = 1e4  # the attention at which τ is 1 for any logits
# the target that NAL's reverse term takes for a zero, as the released code does
REVERSE_FLOOR = 1e-4


@register("nal")
class NoiseAttention(Loss):
    """Noise attention learning: a head's attention τ says how much of a label the prediction has to
    explain itself.

    L = −Σ_k q_k log m_k − λ log τ with the mix m = τ·p + (1 − τ)·q of prediction and target (NAL
    paper, Eq. 1); τ = σ(a), and ``Output.attention`` is a. For a class label m_y = σ(Δ′),
    Δ′ = log(e^Δ + (1 + e^Δ)·e^(−a)).

    Args:
        lam: λ, what turning away from a label costs.
        beta: factor of the released code's reverse term −Σ_k m_k log q_k, where a zero q_k counts
            as 1e-4.
        floor: raise every entry of the target to this, without renormalising; the released code
            does so with 1e-4.
        warmup: training before this epoch (counted from 0, by ``set_epoch``) is with τ = 1, cross
            entropy: attention turns away from classes that are not learned yet, and they are not
            learned then.

    >>> loss = NoiseAttention(lam=0.5)
    >>> # τ = 0.88
    >>> loss(Output(torch.tensor([[0.0, 3.0]]), attention=torch.tensor([2.0])), torch.tensor([0]))
    tensor(1.8900)
    """

    needs = frozenset({"logits", "attention"})
    formula = "−Σ_k q_k log(τ p_k + (1 − τ) q_k) − λ log τ"
    source = "NAL paper, Eq. 1, Theorem 1"
    kind = "other"
    takes = "probabilities"

    def __init__(
        self,
        lam: float = 0.5,
        beta: float = 0.0,
        floor: float = 0.0,
        warmup: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.warmup = None if warmup is None else check_count("warmup", warmup, 0)
        # a tensor for CUDA graphs
        self.register_buffer("_attends", torch.ones((), dtype=torch.bool), persistent=False)
        self._attends: Tensor
        self.lam = check_number("lam", lam, "[0, inf)")
        self.beta = check_number("beta", beta, "[0, inf)")
        self.floor = check_number("floor", floor, "[0, 1)")

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._attends.fill_(epoch >= (self.warmup or 0))

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        logits = out.logits
        attention = field_of(
            out, "attention", logits.shape[:1], remedy="Use a head that gives it: `attention`."
        )
        if self.warmup and self.training:
            attention = torch.where(self._attends, attention, FULL)
        if target.dim() == 1 and self.floor == 0:
            value, reverse = self._of_classes(logits, attention, target)
        else:
            value, reverse = self._of_distributions(logits, attention, target)
        value = torch.sub(value, F.logsigmoid(attention), alpha=self.lam)
        if self.beta:
            value = torch.add(value, reverse, alpha=self.beta)
        return weigh_rows(value, target, self.weight)

    def _of_classes(
        self, logits: Tensor, attention: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return −log m_y and the reverse term for class labels, from the margin Δ′."""
        delta = margin(logits, countable(target, self.ignore_index))
        mixed_margin = torch.logaddexp(delta, -F.logsigmoid(-delta) - attention)  # Δ′
        value = -F.logsigmoid(mixed_margin)
        missed = torch.sigmoid(-mixed_margin)  # 1 − m_y, where q_k = 0
        return value, -math.log(REVERSE_FLOOR) * missed

    def _of_distributions(
        self, logits: Tensor, attention: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return −Σ_k q_k log m_k and the reverse term for any target, from the whole mix m."""
        check_not_negative(self.name, target)
        q = one_hot(target, logits, self.ignore_index)
        q = q.clamp_min(self.floor) if self.floor else q
        log_predicted = F.log_softmax(logits, 1) + F.logsigmoid(attention)[:, None]  # log τ·p
        # log (1 − τ)·q; a zero q counts as one here and is passed over in the mix, so that it
        # leaves no NaN behind
        log_given = torch.where(q > 0, q, 1).log() + F.logsigmoid(-attention)[:, None]
        log_mix = torch.where(q > 0, torch.logaddexp(log_predicted, log_given), log_predicted)
        value = -(q * log_mix).sum(1)
        reverse = -(log_mix.exp() * q.clamp_min(REVERSE_FLOOR).log()).sum(1)
        return value, reverse


@register("elr")
class EarlyLearning(Loss):
    """Early-learning regularisation (Liu et al. 2020): cross entropy that holds on to what the
    model believed before.

    L = −log p_y + λ log(1 − ⟨t, p⟩), where t, ``Output.memory``, is a running mean of the sample's
    earlier predictions (zero at first) and a constant. 1 − ⟨t, p⟩ is computed as Σ_k (1 − t_k) p_k,
    which keeps its digits as ⟨t, p⟩ → 1.

    Args:
        lam: λ, how strongly to hold on.
        clip: keep p in [clip, 1 − clip] inside ⟨t, p⟩, without a gradient outside, as the released
            code with 1e-4. Without it, λ > 1 and a memory that reaches 1, as in ELR+, leave
            the loss without a lower bound.

    >>> memory = torch.tensor([[0.0, 0.9]])
    >>> EarlyLearning(lam=3.0)(Output(torch.tensor([[0.0, 3.0]]), memory=memory), torch.tensor([0]))
    tensor(-2.7928)
    """

    needs = frozenset({"logits", "memory"})
    formula = "−log p + λ log(1 − Σ_k t_k p_k)"
    source = "NAL paper, Table 2 (ELR); Liu et al. 2020"
    kind = "other"

    def __init__(self, lam: float = 3.0, clip: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.lam = check_number("lam", lam, "[0, inf)")
        self.clip = check_number("clip", clip, "[0, 0.5)")

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        log_p = F.log_softmax(out.logits, 1)
        remedy = "A strategy keeps it: Output(logits, memory=…), zeros at first."
        memory = field_of(out, "memory", log_p.shape, remedy=remedy).detach()
        if self.clip:
            # of p, whose 1 − clip bfloat16 rounds to one
            miss = (-torch.expm1(log_p)).clamp(self.clip, 1 - self.clip)
            apart = ((1 - memory.sum(1)).clamp_min(0) + (memory * miss).sum(1)).log()
        else:
            apart = torch.logsumexp(log_p + torch.log1p(-memory), 1)
        if target.dim() == 1:
            nll = F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index)
            return torch.add(nll, apart, alpha=self.lam)
        return over_classes(self.lam * apart[:, None] - log_p, target, self.weight)


@register("sop")
class OverParameterised(Loss):
    """Cross entropy of a prediction with a learned noise of each label added (Liu et al. 2022,
    SOP).

    L = −Σ_k t_k log φ(p + s)_k + ‖onehot(argmax p) + s − t‖² with the noise
    s = u² ⊙ y − v² ⊙ (1 − y), whose two parts are ``Output.noise``, and
    φ(a)_k = max(a_k, floor) / Σ_i max(a_i, floor). The model and u learn from the first term, v
    from the second alone (section 3.2). Where noise explains a label, the model need not.

    Args:
        floor: the smallest value before φ normalises; 1e-4 in the released code.

    >>> logits, label = torch.tensor([[0.0, 3.0]]), torch.tensor([0])
    >>> noise = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # all of this label is noise
    >>> [
    ...     round(OverParameterised()(Output(logits, noise=c * noise), label).item(), 3)
    ...     for c in (0, 1)
    ... ]
    [5.049, 0.0]
    """

    needs = frozenset({"logits", "noise"})
    formula = "−log φ(p + s) + ‖onehot(argmax p) + s − onehot(y)‖²"
    source = "Liu et al. 2022"
    kind = "other"
    takes = "probabilities"

    def __init__(self, floor: float = 1e-4, **options: Any) -> None:
        super().__init__(**options)
        self.floor = check_number("floor", floor, "(0, 0.1]")

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        p = F.softmax(out.logits, 1)
        remedy = "A strategy learns it: sparse-noise."
        noise = field_of(out, "noise", (len(p), 2, p.shape[1]), remedy=remedy)
        more, less = noise.unbind(1)  # (B, K) each
        t = one_hot(target, p, self.ignore_index)
        explained = (p + more - less.detach()).clamp_min(self.floor)
        log_q = explained.log() - explained.sum(1, keepdim=True).log()
        predicted = torch.zeros_like(p).scatter(1, p.argmax(1, keepdim=True), 1)
        gap = predicted + more.detach() - less - t
        value = gap.square().sum(1) - (t * log_q).sum(1)
        return weigh_rows(value, target, self.weight)
