"""The noise that stochastic label noise puts on gradients (SLN paper, Propositions 1 to 3).

With labels y + σ_y·z and cross entropy, the gradients of one sample get normal noise with
covariance σ²·M: in its logits by Proposition 2, in the weights by Proposition 3; noise on the
gradient in the logits that of Proposition 1.
"""

import torch
from torch import Tensor


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
