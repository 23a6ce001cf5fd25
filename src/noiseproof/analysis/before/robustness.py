"""Which robustness theorem covers a loss, tested numerically."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.core.margin import LabelProb
from noiseproof.core.output import Output
from noiseproof.losses import Loss
from noiseproof.losses.sums import as_loss


def more_than_logits(loss: Loss, num_classes: int) -> str | None:
    """Return what a loss needs in addition to the ``num_classes`` logits of one row; None if
    nothing.
    """
    if loss.needs != {"logits"}:
        return f"needs {', '.join(sorted(loss.needs))}"
    if not loss.independent_rows:
        return "depends on the other rows of a batch"
    outputs = loss.num_outputs(num_classes)
    return None if outputs == num_classes else f"takes {outputs} logits"


def check_of_logits(loss: Loss, num_classes: int, given: Loss | None = None) -> None:
    """Refuse a loss, called ``given``, that needs more than ``num_classes`` logits of one row."""
    if (why := more_than_logits(loss, num_classes)) is not None:
        raise ValueError(
            f"Expected a loss of one row's {num_classes} logits alone, got `{given or loss}`, which"
            f" {why}. Give a loss such as ce or gce; what this one does shows only in training."
        )


@dataclass(frozen=True)
class Robustness:
    """The theorem that covers a loss, with its numbers."""

    # Σ_y L(z, y) is the same for all z (bias paper, Eq. 1): robust to symmetric noise below
    # (K − 1)/K
    symmetric: bool
    total: float  # mean of that sum over random logits
    spread: float  # largest minus smallest sum over random logits
    # asymmetric up to this r̃ (curriculum paper, §3.1); None if it is not a function of p_y
    largest_ratio: float | None
    noise_ratio: float | None  # r̃ of the transition matrix; None without one
    asymmetric: bool | None  # whether r̃ < 1 and r̃ ≤ largest_ratio; None if either is unknown


def robustness(loss: Loss | str, num_classes: int, transition: Tensor | None = None) -> Robustness:
    """Test a loss for the symmetric (bias paper, Eq. 1) and the asymmetric condition (curriculum
    paper, §3.1).

    ``transition`` (K, K) is T[i, j] = P(given j | true i). The infimum of
    (l(p_i) − l(p_i + p_j))/(l(0) − l(p_j)) is computed; App. A.3 swaps the cases of AUL, which is
    asymmetric for every r̃ ≤ 1 if q ≤ 1, and up to ((a − 1)/a)^(q−1) if q > 1.

    >>> robustness("mae", 10).symmetric, robustness("ce", 10).symmetric
    (True, False)
    """
    loss = as_loss(loss)
    K = check_count("num_classes", num_classes, 2, "A classifier has at least two classes.")
    check_of_logits(loss, K)
    sums = _sums_over_labels(loss, K)
    total = float(sums.mean())
    spread = float(sums.max() - sums.min())
    largest = _largest_ratio(loss) if loss.kind == "margin" else None
    ratio = None if transition is None else _noise_ratio(transition, K)
    holds = (
        None if largest is None or ratio is None else ratio < 1 and ratio <= largest * (1 + 1e-9)
    )
    return Robustness(spread <= 1e-6 * max(1.0, abs(total)), total, spread, largest, ratio, holds)


def _sums_over_labels(loss: Loss, num_classes: int, draws: int = 16) -> Tensor:
    """Return Σ_y L(z, y) for random logits of several sizes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_classes)
    sums = []
    for size in (0.1, 1.0, 5.0, 20.0):
        for z in size * torch.randn(draws, num_classes, generator=generator, dtype=torch.float64):
            with torch.no_grad():
                sums.append(loss.per_sample(Output(z.expand(num_classes, -1)), labels).sum())
    return torch.stack(sums)


def _noise_ratio(transition: Tensor, num_classes: int) -> float:
    """Return r̃ = max_{i ≠ y} P(given i | true y)/P(given y | true y), infinite if the true label
    is never given.
    """
    T = torch.as_tensor(transition, dtype=torch.float64)
    if (
        T.shape != (num_classes, num_classes)
        or bool((T < 0).any())
        or not torch.allclose(T.sum(1), T.new_ones(()))
    ):
        raise ValueError(
            f"Expected `transition` ({num_classes}, {num_classes}) with rows that sum to one, got"
            f" {tuple(T.shape)}."
        )
    right = T.diagonal().clone()
    wrong = T.clone().fill_diagonal_(0).amax(1)
    return float(torch.where(wrong > 0, wrong / right, 0.0).max())


def _largest_ratio(loss: Loss) -> float:
    """Return inf (l(p_i) − l(p_i + p_j))/(l(0) − l(p_j)) over p_i + p_j ≤ 1: zero for unbounded
    losses, at most one.
    """

    def value(p: Tensor) -> Tensor:
        return loss.evaluate(LabelProb.from_margin(torch.logit(p)))

    def slope(at: Tensor) -> Tensor:
        """Return −dl/dp = w(Δ)/(p(1 − p))."""
        return loss.sample_weight(at) * (2 + at.exp() + (-at).exp())

    with torch.no_grad():
        far = loss.evaluate(LabelProb.from_margin(torch.tensor([-1e6, -1e12], dtype=torch.float64)))
        if not bool(torch.isclose(far[0], far[1], rtol=1e-6, atol=0)):
            return 0.0  # l(0) is infinite, as for cross entropy
        near, at_zero = slope(torch.tensor([-30.0, -60.0], dtype=torch.float64)).tolist()
        if at_zero > 1.001 * near:
            return 0.0  # dl/dp(0) is infinite, as for GCE: the ratio tends to zero with p_j
        step = torch.logspace(-4, 0, 400, dtype=torch.float64)  # p_j
        start = torch.linspace(0, 1, 400, dtype=torch.float64) * (1 - step[:, None])  # (p_j, p_i)
        fall = value(start) - value((start + step[:, None]).clamp_max(1))
        first = far[1] - value(step)
        infimum = float((fall[first > 0] / first[first > 0, None]).min())
        if at_zero > 0.999 * near > 0:  # p_j → 0: the slope at p_i over that at zero
            infimum = min(
                infimum,
                float(slope(torch.linspace(-30, 30, 601, dtype=torch.float64)).min()) / at_zero,
            )
        return max(0.0, min(1.0, infimum))


def robustness_of(
    losses: Mapping[str, Loss], num_classes: int, transition: Tensor | None = None
) -> tuple[dict[str, Robustness], dict[str, str]]:
    """Return the robustness of each loss, and for those without such conditions why they have
    none.
    """
    others = {
        name: why for name, loss in losses.items() if (why := more_than_logits(loss, num_classes))
    }
    tested = {
        name: robustness(loss, num_classes, transition)
        for name, loss in losses.items()
        if name not in others
    }
    return tested, others
