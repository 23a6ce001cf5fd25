"""The noise that stochastic label noise puts on gradients (SLN paper, Propositions 1 to 3).

With labels y + σ_y·z and cross entropy, the gradients of one sample get normal noise with
covariance σ²·M: in its logits by Proposition 2, in the weights by Proposition 3; noise on the
gradient in the logits that of Proposition 1.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noiseproof.analysis.before.losses import Start, starting_losses
from noiseproof.analysis.figures import Layer, figure
from noiseproof.losses.margin import CE
from noiseproof.losses.sums import as_loss


def logit_noise_covariance(probs: Tensor) -> Tensor:
    """Return M (…, K, K) of SLN's noise on ∂L/∂z, with the covariance σ_y²·M, for predicted
    probabilities (…, K) (SLN paper, Proposition 2).

    M_ii = K(p_i − 1/K)² + (K − 1)/K and M_ij = K·p_i·p_j − p_i − p_j.

    >>> logit_noise_covariance(torch.tensor([0.5, 0.5]))
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]])
    """
    K = probs.shape[-1]
    rows = probs[..., :, None]
    columns = probs[..., None, :]
    one = torch.eye(K, dtype=probs.dtype, device=probs.device)
    return K * rows * columns - rows - columns + one


def weight_noise_covariance(jacobian: Tensor, probs: Tensor | None = None) -> Tensor:
    """Return M (P, P) of the noise on ∂L/∂θ of one sample, with the covariance σ²·M, from the
    ``jacobian`` ∂z/∂θ (K, P) of its logits.

    Without ``probs`` M_ij = ⟨∂z/∂θ_i, ∂z/∂θ_j⟩, of noise on the gradient in the logits (SLN paper,
    Proposition 1). With the predicted ``probs`` p (K,) M_ij = ⟨∂log p/∂θ_i, ∂log p/∂θ_j⟩, of SLN
    (Proposition 3).
    """
    if jacobian.dim() != 2 or (probs is not None and probs.shape != jacobian.shape[:1]):
        shapes = [tuple(jacobian.shape), *([] if probs is None else [tuple(probs.shape)])]
        raise ValueError(
            "Expected a jacobian (K, P) and probabilities (K,), got"
            f" {' and '.join(map(str, shapes))}."
        )
    if probs is not None:
        jacobian = jacobian - probs @ jacobian  # ∂log p_k = ∂z_k − Σ_i p_i ∂z_i
    return jacobian.T @ jacobian


def logit_noise(num_classes: Sequence[int]) -> pd.DataFrame:
    """Return the ``deviation`` √M_ii of the noise on a logit's gradient over its ``probability``
    (Proposition 2), σ_y = 1.
    """
    p = np.linspace(0, 1, 101)
    tables = []
    for K in num_classes:
        deviation = np.sqrt(K * (p - 1 / K) ** 2 + (K - 1) / K)
        tables.append(pd.DataFrame({"classes": K, "probability": p, "deviation": deviation}))
    return pd.concat(tables, ignore_index=True)


@figure(
    "sln-noise",
    "How much noise stochastic label noise puts on the gradient",
    Layer("line", "probability", "deviation", color="number of classes"),
    subject=starting_losses,
    reading=(
        "The noise is smallest where the prediction is uniform, and largest where it is certain:"
        " √(K − 1) times σ_y. That keeps a network from confidence in any label, and the more so"
        " the more classes there are."
    ),
    paper="SLN paper, Proposition 2",
    axes=("predicted probability of a class", "standard deviation of the noise on ∂L/∂z, over σ_y"),
)
def logit_noise_figure(start: Start) -> pd.DataFrame | None:
    # the propositions are about cross entropy
    if not any(isinstance(as_loss(loss), CE) for loss in start.of_logits):
        return None
    table = logit_noise(sorted({2, 10, 100, start.num_classes}))
    return table.assign(**{"number of classes": table["classes"].map("{} classes".format)})
