"""Normalised cross entropy taken apart: a weighted cross entropy and a regulariser (curriculum
paper, section 4.1).
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.analysis.before.losses import Start, starting_losses
from noiseproof.analysis.figures import Layer, figure
from noiseproof.core.checks import check_count, check_labels
from noiseproof.core.margin import margin
from noiseproof.losses.base import terms_of
from noiseproof.losses.coupled import NCE
from noiseproof.losses.initial import expected_margin
from noiseproof.losses.sums import as_loss

DRAWS = 256  # of the other classes' logits


class NCESplit(NamedTuple):
    """∇L_NCE = γ·(∇L_CE + ε·∇R) of each row, all (N,)."""

    gamma: Tensor  # γ = −1/Σ_k log p_k
    epsilon: Tensor  # ε = K·log p_y/Σ_k log p_k
    regulariser: Tensor  # R = Σ_k log p_k/K
    weight: Tensor  # ½‖∇L_NCE‖₁, the size of the gradient in units of the margin's
    bound: Tensor  # of the weight: γ·(w_CE + ε·(K − 1)/K), w_CE = 1 − p_y
    estimate: Tensor  # ½ŵ_NCE = γ·(1 + ε)·w_CE, the paper's Eq. 3, which the weight may exceed


def split_nce(logits: Tensor, labels: Tensor) -> NCESplit:
    """Split NCE into cross entropy and a regulariser (curriculum paper, Eqs. 2 and 3, A.5.1), in
    float64.

    The paper's bound 2·γ·(1 + ε)·w_CE fails where the label is probable and the others are not;
    ``bound`` takes 1 − p_k of each class k, whose mean is (K − 1)/K. ε falls as the margin grows; γ
    does so from p_y = 1/K on, where it is largest.

    >>> split = split_nce(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
    >>> [round(float(value), 4) for value in split]
    [0.2119, 0.1523, -1.5729, 0.0598, 0.0667, 0.052]
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"Expected logits (N, K) and labels (N,), got shapes {tuple(logits.shape)} and"
            f" {tuple(labels.shape)}."
        )
    K = logits.shape[1]
    check_labels(labels, K)
    z = logits.detach().double()
    log_p = F.log_softmax(z, 1)
    total = -log_p.sum(1)
    label = labels[:, None]
    gamma = 1 / total
    epsilon = -K * log_p.gather(1, label)[:, 0] / total
    miss = torch.sigmoid(-margin(z, labels))  # 1 − p_y, whose digits 1 − p would lose
    p = log_p.exp()
    of_ce = p.scatter(1, label, -miss[:, None])
    gradient = gamma[:, None] * (of_ce + epsilon[:, None] * (1 / K - p))
    bound = gamma * (miss + epsilon * (K - 1) / K)
    return NCESplit(
        gamma, epsilon, -total / K, gradient.abs().sum(1) / 2, bound, gamma * (1 + epsilon) * miss
    )


def nce_over_margins(num_classes: int, *, points: int = 49) -> pd.DataFrame:
    """Return the parts of ``split_nce`` over the ``margin``, averaged over the other logits, N(0,
    1).
    """
    K = check_count("num_classes", num_classes, 2)
    others = torch.randn(
        DRAWS, K - 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    start = expected_margin(K)
    rows = []
    for at in torch.linspace(min(start - 4, -6.0), max(6.0, -start), points, dtype=torch.float64):
        logits = torch.cat([(at + others.logsumexp(1))[:, None], others], 1)
        split = split_nce(logits, torch.zeros(DRAWS, dtype=torch.int64))
        means = {name: float(value.mean()) for name, value in split._asdict().items()}
        rows.append({"margin": float(at), **means})
    return pd.DataFrame(rows)


@figure(
    "nce-split",
    "Why normalised cross entropy stops learning early",
    Layer("line", "margin", "value", color="part"),
    subject=starting_losses,
    reading=(
        "NCE is cross entropy times γ, and a regulariser times γ·ε; both factors fall as a label is"
        " learned, so that its weight falls faster than cross entropy's. ŵ_NCE is the paper's"
        " bound, which does not hold everywhere."
    ),
    paper="curriculum paper, Eqs. 2 and 3, Fig. 1a",
    axes=("margin Δ of the label", "mean over the other logits"),
    panel="panel",
    share_y=False,
)
def nce_figure(start: Start) -> pd.DataFrame | None:
    losses = [term for loss in start.of_logits for _, term in terms_of(as_loss(loss))]
    if not any(isinstance(loss, NCE) for loss in losses):
        return None
    table = nce_over_margins(start.num_classes)
    table["ce"] = 1 / (1 + np.exp(table["margin"]))  # w_CE = 1 − p_y
    # as in the paper, over their values at the first margin
    for column in ("weight", "bound", "estimate", "ce"):
        table[column] /= table[column].iloc[0]
    factors = {"gamma": "γ = −1/Σ log p_k", "epsilon": "ε = K·log p_y/Σ log p_k"}
    names = factors | {
        "ce": "cross entropy",
        "weight": "NCE: ½‖∇L‖₁",
        "bound": "its bound γ(w + ε(K − 1)/K)",
        "estimate": "½ŵ_NCE = γ(1 + ε)w",
    }
    long = table.melt("margin", list(names), "column", "value")
    is_factor = long["column"].isin(list(factors))
    panels = np.where(is_factor, "factors", "weights, over that of the smallest margin")
    return long.assign(part=long["column"].map(names), panel=panels)
