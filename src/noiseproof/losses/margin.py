"""Losses of the label's probability alone: l(p_y), each a few operations on a (B,) vector.

Every one works in nll = −log p and keeps its gradient where p underflows; ``y.miss`` is 1 − p.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.margin import LabelProb
from noiseproof.losses.base import MarginLoss, register

LOG_1E4 = math.log(1e-4)  # A = log 1e-4 ≈ −9.21, what the released SCE code puts for log 0


@register("ce")
class CE(MarginLoss):
    """Cross entropy.

    l = −log p_y, w = 1 − p_y (curriculum paper, Table 1).

    >>> CE()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """

    formula = "−log p"
    source = "curriculum paper, Table 1"

    def value(self, y: LabelProb) -> Tensor:
        return y.nll


@register("focal")
class Focal(MarginLoss):
    """Focal loss (Lin et al. 2017), with its true derivative.

    l = −(1 − p)^γ log p, w = (1 − p)^γ (1 − p − γ p log p) (curriculum paper, Table 6).

    >>> Focal(gamma=2)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0018)
    """

    formula = "−(1 − p)^γ log p"
    source = "curriculum paper, Table 6"

    def __init__(self, gamma: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = check_number("gamma", gamma, "[0, inf)")

    def value(self, y: LabelProb) -> Tensor:
        return y.miss**self.gamma * y.nll

    def slope(self, y: LabelProb) -> Tensor:
        kind = torch.finfo(y.nll.dtype)
        nll = y.nll.clamp(kind.tiny, kind.max)  # nll/expm1(nll) → 1 as nll → 0, and 0 as nll → ∞
        power = y.miss**self.gamma
        return torch.addcmul(power, power, nll / torch.expm1(nll), value=self.gamma)


@register("mae")
class MAE(MarginLoss):
    """Mean absolute error (Ghosh et al. 2017).

    l = scale·(1 − p), w = scale·p(1 − p) (curriculum paper, Table 1); the bias paper uses scale 2.

    >>> MAE()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1192)
    """

    formula = "scale·(1 − p)"
    source = "curriculum paper, Table 1; bias paper, Table 1 (scale 2)"

    def __init__(self, scale: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.scale = check_number("scale", scale, "(0, inf)")

    def value(self, y: LabelProb) -> Tensor:
        return F.elu(-y.nll, alpha=-self.scale)


@register("rce")
class RCE(MarginLoss):
    """Reverse cross entropy (Wang et al. 2019): MAE times −A, where A stands for log 0.

    l = −A·(1 − p) (curriculum paper, A.2 with its sign mended).

    >>> RCE()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(1.0979)
    """

    formula = "−A·(1 − p)"
    source = "curriculum paper, A.2"

    def __init__(self, A: float = LOG_1E4, **options: Any) -> None:
        super().__init__(**options)
        self.A = check_number("A", A, "(-inf, 0)", "A stands for log 0.")

    def value(self, y: LabelProb) -> Tensor:
        return F.elu(-y.nll, alpha=self.A)


@register("gce")
class GCE(MarginLoss):
    """Generalised cross entropy (Zhang & Sabuncu 2018), between CE (q → 0) and MAE (q = 1).

    l = (1 − p^q)/q, w = p^q (1 − p) (curriculum paper, Table 1).

    >>> GCE(q=0.7)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1215)
    """

    formula = "(1 − p^q)/q"
    source = "curriculum paper, Table 1; bias paper, Table 1"

    def __init__(self, q: float = 0.7, **options: Any) -> None:
        super().__init__(**options)
        self.q = check_number("q", q, "(0, 1]", "Use ce for q → 0.")

    def value(self, y: LabelProb) -> Tensor:
        return F.elu(y.nll * -self.q, alpha=-1 / self.q)


@register("tgce")
class TruncatedGCE(MarginLoss):
    """Truncated generalised cross entropy (Zhang & Sabuncu 2018): no gradient where p ≤ k.

    l = (1 − max(p, k)^q)/q, the constant L_q(k) where p ≤ k.

    >>> TruncatedGCE(q=0.7, k=0.5)(torch.tensor([[0.0, 9.0]]), torch.tensor([0]))
    tensor(0.5492)
    """

    formula = "(1 − max(p, k)^q)/q"
    source = "Zhang & Sabuncu 2018, Eq. 8; SLN paper, B.1"

    def __init__(self, q: float = 0.7, k: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.q = check_number("q", q, "(0, 1]", "Use ce for q → 0.")
        self.k = check_number("k", k, "(0, 1)", "Use gce for k → 0.")

    def value(self, y: LabelProb) -> Tensor:
        # hardtanh, not clamp: its gradient is zero at the threshold itself, where p = k.
        log_p = F.hardtanh(-y.nll, math.log(self.k), 1.0)
        return F.elu(log_p * self.q, alpha=-1 / self.q)


@register("sce")
class SCE(MarginLoss):
    """Symmetric cross entropy (Wang et al. 2019): α·CE + β·RCE.

    l = −α log p − β·A·(1 − p); the curriculum paper's (1 − q)·CE + q·MAE is α = 1 − q, β = q,
    A = −1.

    >>> SCE(alpha=0.1, beta=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(1.1106)
    """

    formula = "−α log p − β·A·(1 − p)"
    source = "curriculum paper, Table 1, A.4"

    def __init__(
        self, alpha: float = 0.1, beta: float = 1.0, A: float = LOG_1E4, **options: Any
    ) -> None:
        super().__init__(**options)
        self.alpha = check_number("alpha", alpha, "[0, inf)")
        self.beta = check_number("beta", beta, "[0, inf)")
        self.A = check_number("A", A, "(-inf, 0)", "A stands for log 0.")

    def value(self, y: LabelProb) -> Tensor:
        return torch.add(F.elu(-y.nll, alpha=self.A * self.beta), y.nll, alpha=self.alpha)


@register("aul")
class AUL(MarginLoss):
    """Asymmetric unhinged loss (Zhou et al. 2021).

    l = ((a − p)^q − (a − 1)^q)/q, w = p(1 − p)(a − p)^(q−1) (curriculum paper, Table 1; Table 6
    swaps it with AGCE).

    >>> AUL(a=1.1, q=5)(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))
    tensor(0.1815)
    """

    formula = "((a − p)^q − (a − 1)^q)/q"
    source = "curriculum paper, Table 1, A.3"

    def __init__(self, a: float = 1.1, q: float = 5.0, **options: Any) -> None:
        super().__init__(**options)
        self.a = check_number("a", a, "(1, inf)")
        self.q = check_number("q", q, "(0, inf)")

    def value(self, y: LabelProb) -> Tensor:
        gap = self.a - 1  # a − p = gap + miss: nothing cancels
        miss = y.miss
        growth = torch.log1p(miss / gap) * self.q  # log of ((a − p)/(a − 1))^q
        return (miss + gap) ** self.q * torch.expm1(-growth) * (-1 / self.q)

    def slope(self, y: LabelProb) -> Tensor:
        return y.p * (y.miss + (self.a - 1)) ** (self.q - 1)


@register("agce")
class AGCE(MarginLoss):
    """Asymmetric generalised cross entropy (Zhou et al. 2021).

    l = ((a + 1)^q − (a + p)^q)/q, w = p(a + p)^(q−1)(1 − p) (curriculum paper, Table 1, with the ^q
    it drops; the bias paper calls a b).

    >>> AGCE(a=0.6, q=0.6)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1003)
    """

    formula = "((a + 1)^q − (a + p)^q)/q"
    source = "curriculum paper, Table 1, A.3; bias paper, Table 1"

    def __init__(self, a: float = 0.6, q: float = 0.6, **options: Any) -> None:
        super().__init__(**options)
        self.a = check_number("a", a, "(0, inf)")
        self.q = check_number("q", q, "(0, inf)")
        log_highest = self.q * math.log(self.a + 1)
        self._highest = math.exp(min(log_highest, 709.0)) / self.q  # ((a + 1)^q)/q, below infinity

    def value(self, y: LabelProb) -> Tensor:
        top = self.a + 1
        # log((a + p)/(a + 1)) as log(1 − (1 − p)/(a + 1)), which keeps its digits where p → 1
        log_ratio = torch.log1p(torch.expm1(-y.nll) / top)
        # Where a + p → 0 that difference cancels: for a = 1e-4 and p → 0 float32 keeps less than
        # five digits. The plain form keeps all of them up to p = 0.61 (nll = 0.5), and loses them
        # only where p → 1. From a = 0.01 on, too little cancels to need it.
        if self.a < 0.01:
            log_ratio = torch.where(y.nll < 0.5, log_ratio, torch.log((y.p + self.a) / top))
        return torch.expm1(self.q * log_ratio) * (-self._highest)

    def slope(self, y: LabelProb) -> Tensor:
        p = y.p
        return p * torch.pow(p + self.a, self.q - 1)


@register("ael")
class AEL(MarginLoss):
    """Asymmetric exponential loss (Zhou et al. 2021).

    l = exp(−p/a), w = p(1 − p)·exp(−p/a)/a (curriculum paper, Table 6, whose q is a).

    >>> AEL(a=2.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.7031)
    """

    formula = "exp(−p/a)"
    source = "curriculum paper, Table 6, A.3"

    def __init__(self, a: float = 2.5, **options: Any) -> None:
        super().__init__(**options)
        self.a = check_number("a", a, "(0, inf)")

    def value(self, y: LabelProb) -> Tensor:
        return torch.exp(y.p * (-1 / self.a))

    def slope(self, y: LabelProb) -> Tensor:
        log_p = -y.nll
        # p·exp(−p/a)/a
        return torch.exp(torch.sub(log_p, log_p.exp(), alpha=1 / self.a)) * (1 / self.a)


@register("tce")
class TCE(MarginLoss):
    """Taylor cross entropy (Feng et al. 2020): the series of −log p in 1 − p, cut after order t.

    l = Σ_{i=1..t} (1 − p)^i/i, w = p Σ_{i=1..t} (1 − p)^i (curriculum paper, Table 6); t = 1 is
    MAE.

    >>> TCE(t=2)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1263)
    """

    formula = "Σ_{i=1..t} (1 − p)^i/i"
    source = "curriculum paper, Table 6, A.4"

    def __init__(self, t: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.t = check_count("t", t, 1, "t is the order of the Taylor series.")

    def value(self, y: LabelProb) -> Tensor:
        miss = y.miss
        total = miss / self.t
        for order in range(self.t - 1, 0, -1):  # Horner: miss·(1/order + total)
            total = torch.addcmul(miss / order, miss, total)
        return total

    def slope(self, y: LabelProb) -> Tensor:
        return F.elu(torch.log1p(-y.p) * self.t, alpha=-1.0)  # p Σ (1 − p)^(i−1) = 1 − (1 − p)^t


@register("phuber")
class PHuber(MarginLoss):
    """Partially Huberised cross entropy (Menon et al. 2020): cross entropy, linear in p where
    p ≤ 1/τ.

    l = −log p where p > 1/τ, else −τp + log τ + 1.

    >>> PHuber(tau=10)(torch.tensor([[0.0, 9.0]]), torch.tensor([0]))
    tensor(3.3014)
    """

    formula = "−log p if p > 1/τ else −τp + log τ + 1"
    source = "Menon et al. 2020; SLN paper, B.1"

    def __init__(self, tau: float = 10.0, **options: Any) -> None:
        super().__init__(**options)
        self.tau = check_number("tau", tau, "[1, inf)")
        self._bend = math.log(self.tau)

    def value(self, y: LabelProb) -> Tensor:
        # Cross entropy up to the bend, then 1 − τp more; by 1 − p where τ is near one and that
        # would cancel.
        if self.tau < 2:
            beyond = torch.expm1(-y.nll) * -self.tau + (1 - self.tau)
        else:
            beyond = 1 - y.p * self.tau
        return y.nll.clamp_max(self._bend) + torch.relu(beyond)

    def slope(self, y: LabelProb) -> Tensor:
        return (y.p * self.tau).clamp_max(1)
