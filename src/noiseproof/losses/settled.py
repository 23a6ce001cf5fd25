"""Losses of a head as losses of the margin alone, for the verdict before training (``losses.verdict``).

The covariance of LN and the attention of NAL are taken at their best value for the margin, the noise of Het where its
head starts. Margins are those of the scores, logits over the temperature τ: weights have the factor 1/τ².
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.margin import LabelProb
from noiseproof.losses.attention import NoiseAttention
from noiseproof.losses.base import Loss, MarginLoss
from noiseproof.losses.gaussian import LN
from noiseproof.losses.het import Het
from noiseproof.losses.margin import CE
from noiseproof.losses.sums import WeightedSum, terms_of

ROOT = 77.0  # K·start² up to which LN's mean learns first: 60 classes from the model's own start do, 100 do not
HET_SCALE = math.log(2) + 1e-3  # the standard deviation with which the head of Het starts


class SettledNormal(MarginLoss):
    """LN at its best covariance, the other logits at their start: the weight is r/(τ·max(r² + s², λ²)).

    r = τ(C − z) is the residual of the label at the score z = Δ + log(K − 1), and s² = (K − 1)·start² those of the
    other classes (LN paper, Eqs. 7-8 and B.4); with one standard deviation for all K logits its square is shared by K.
    """

    def __init__(self, loss: LN, num_classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.loss, self.num_classes = loss, num_classes
        self.tau, self.lam, self.covariance = loss.tau, loss.lam, loss.covariance
        self.K, self.aim = num_classes, loss.label_logit(num_classes)
        self.others = (num_classes - 1) * loss.start**2

    def value(self, y: LabelProb) -> Tensor:
        residual = self.aim - self.tau * (y.margin + math.log(self.K - 1))
        if self.covariance == "identity":
            return residual.square() / 2 / self.tau**2
        square = residual.square() + (0.0 if self.covariance == "diagonal" else self.others)
        share = self.K if self.covariance == "isotropic" else 1
        variance = square / share / self.lam**2
        return share * torch.where(variance <= 1, variance / 2, 0.5 + variance.log() / 2) / self.tau**2


class SettledAttention(MarginLoss):
    """NAL at its best attention τ = min(1, λ/((1 + λ)(1 − p))): the weight is λp up to p = 1/(1 + λ), then 1 − p.

    Attention is predicted from the features, so that labels which fall behind return from less than elsewhere.
    """

    thresholds = 0.0034, 0.0023  # of ``left_behind``: between Gaussian classes that learn, partly and not

    def __init__(self, lam: float, **options: Any) -> None:
        super().__init__(**options)
        self.lam = lam

    def value(self, y: LabelProb) -> Tensor:
        attended = math.log1p(self.lam) - self.lam * math.log(self.lam / (1 + self.lam))
        ignored = attended + self.lam * F.logsigmoid(-y.margin)  # − λ log τ of the label that the attention turns from
        return torch.where(y.p >= 1 / (1 + self.lam), y.nll, ignored)


def settled(loss: Loss, num_classes: int) -> Loss:
    """``loss`` of the margin alone where it comes with a head, otherwise itself; sums term by term."""

    def of(term: Loss) -> tuple[float, Loss]:
        if isinstance(term, LN):
            return 1.0, SettledNormal(term, num_classes)
        if isinstance(term, Het):  # the softmax averaged over noise is about one of this temperature (MacKay 1992)
            return 1 / (term.tau**2 + math.pi / 8 * HET_SCALE**2), CE()
        if isinstance(term, NoiseAttention) and term.lam > 0 and term.beta == 0:
            return 1.0, SettledAttention(term.lam)
        return 1.0, term

    terms = terms_of(loss)
    changed = [(scale * factor, inner) for scale, term in terms for factor, inner in [of(term)]]
    if all(factor == scale and inner is term for (scale, term), (factor, inner) in zip(terms, changed, strict=True)):
        return loss
    return WeightedSum(changed)


def root_excess(loss: Loss, num_classes: int) -> float:
    """K·start² of LN's root over ``ROOT``: above 1 it is so long at first that it explains every label as noise."""
    roots = [part for _, part in terms_of(loss) if isinstance(part, LN) and "root" in part.needs]
    return max((num_classes * part.start**2 for part in roots), default=0.0) / ROOT
