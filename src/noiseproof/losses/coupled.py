"""Losses that depend on the other classes too: normalised, smoothed and regularised ones, and peer
loss.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_count, check_number, check_tensor
from noiseproof.core.margin import LabelProb, margins
from noiseproof.core.output import Output
from noiseproof.core.tensors import wide
from noiseproof.losses.base import Kind, Loss, inherit_from, register
from noiseproof.losses.margin import Focal
from noiseproof.losses.pointwise import pointwise
from noiseproof.losses.rows import one_hot, over_classes
from noiseproof.losses.sums import inner_loss


class CoupledLoss(Loss):
    """A loss of all log-probabilities: ``value`` may use ``y.log_p`` (B, K) as well as the label's
    ``y.nll``.

    Sums over classes go by ``y.total``, so that they fit where ``y.nll`` is (B, K), as it is with
    real-valued targets.
    """

    kind: Kind = "coupled"


@register("nce")
class NCE(CoupledLoss):
    """Normalised cross entropy (Ma et al. 2020), a symmetric loss.

    L = log p_y / Σ_k log p_k (curriculum paper, Table 1).

    >>> NCE()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0563)
    """

    formula = "log p / Σ_k log p_k"
    source = "curriculum paper, Table 1, Eq. 2; bias paper, Table 1"

    def value(self, y: LabelProb) -> Tensor:
        return y.nll / -y.total(y.log_p)


@register("nfl")
class NFL(CoupledLoss):
    """Normalised focal loss (Ma et al. 2020; the bias paper misprints it).

    L = f(p_y) / Σ_k f(p_k) with f(p) = −(1 − p)^γ log p.

    >>> NFL(gamma=0.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0215)
    """

    formula = "f(p) / Σ_k f(p_k), f(p) = −(1 − p)^γ log p"
    source = "bias paper, Table 1; Ma et al. 2020"

    def __init__(self, gamma: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = check_number("gamma", gamma, "[0, inf)")
        self._focal = Focal(self.gamma)

    def value(self, y: LabelProb) -> Tensor:
        kind = torch.finfo(y.log_p.dtype)
        log_p = y.log_p.clamp_min(kind.min)  # of a masked class, whose p·log p is 0·∞ else
        miss = (-torch.expm1(log_p)).clamp_min(kind.tiny)
        return pointwise(y.nll, self._focal) / -y.total(miss**self.gamma * log_p)


@register("mse")
class MSE(CoupledLoss):
    """Mean square error in the curriculum paper's form: MAE plus α times a regulariser that raises
    entropy.

    L = 1 − p_y + α Σ_k p_k² (curriculum paper, A.5); α = ½ is half the Brier score.

    >>> MSE()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.5142)
    """

    formula = "1 − p + α Σ_k p_k²"
    source = "curriculum paper, A.5, Eq. 5"

    def __init__(self, alpha: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = check_number("alpha", alpha, "[0, inf)")

    def value(self, y: LabelProb) -> Tensor:
        return torch.add(y.miss, y.total((2 * y.log_p).exp()), alpha=self.alpha)


@register("brier")
class Brier(CoupledLoss):
    """Brier score (Ghosh et al. 2017's MSE), zero for a certain label.

    L = Σ_k (1(k = y) − p_k)² = (1 − p_y)² + Σ_{k≠y} p_k² (curriculum paper, A.5).

    >>> Brier()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0284)
    """

    formula = "Σ_k (1(k = y) − p_k)²"
    source = "curriculum paper, A.5"

    def value(self, y: LabelProb) -> Tensor:
        squares = (2 * y.log_p).exp()
        return y.miss.square() + (y.total(squares) - (-2 * y.nll).exp())


class Smoothed(CoupledLoss):
    """Cross entropy against the label with a share of itself spread over all classes.

    L = (1 − r)·nll_y + (r/K)·Σ_k nll_k; with class weights w each nll_k is multiplied by its own
    w_k.
    """

    weighs_classes = True
    spread: float  # r

    def value(self, y: LabelProb) -> Tensor:
        if not self.spread:
            return y.nll  # also where a class is masked, whose nll is infinite
        return torch.sub(
            y.nll * (1 - self.spread), y.total(y.log_p), alpha=self.spread / y.log_p.shape[1]
        )

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        if self.weight is None:
            return super().per_sample(out, target)
        target = one_hot(target, out.logits, self.ignore_index)
        mass = target.sum(1, keepdim=True)
        smooth = torch.add(
            target * (1 - self.spread), mass, alpha=self.spread / out.logits.shape[1]
        )
        nll = -F.logsigmoid(margins(out.logits)) if self.exact else -F.log_softmax(out.logits, 1)
        return over_classes(nll, smooth, self.weight)


@register("gls")
class GLS(Smoothed):
    """Generalised label smoothing (Wei et al. 2021); r < 0 is negative smoothing.

    L = (1 − r)·nll_y + (r/K)·Σ_k nll_k (curriculum paper, A.5, Eq. 7); class weights as in ``ls``.

    >>> GLS(r=-0.4)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-0.2731)
    """

    formula = "−(1 − r) log p − (r/K) Σ_k log p_k"
    source = "curriculum paper, A.5, Eq. 7"

    def __init__(self, r: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.r = self.spread = check_number("r", r, "(-inf, 1]")


@register("ls")
class LabelSmoothing(Smoothed):
    """Label smoothing (Szegedy et al. 2016), as in ``torch.nn.CrossEntropyLoss(weight,
    label_smoothing=alpha)``.

    L = (1 − α)·nll_y + (α/K)·Σ_k nll_k (curriculum paper, A.5), each nll_k times its class weight.

    >>> LabelSmoothing(alpha=0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.2269)
    """

    formula = "−(1 − α) log p − (α/K) Σ_k log p_k"
    source = "curriculum paper, A.5, Eq. 7; the LN paper and the SLN paper (LS)"

    def __init__(self, alpha: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = self.spread = check_number(
            "alpha", alpha, "[0, 1]", "Use gls for negative smoothing."
        )


class PriorLoss(Loss):
    """A loss less what random labels cost, of which class k has the share ``prior[k]``, or its
    share of the batch.

    With a ``warmup``, training before this epoch (counted from 0, by ``set_epoch``) uses the shares
    of all labels, as the training loop gives them by ``set_shares``, or the shares of the batch
    without that call. Early in training, a prior above the true share of a class rewards never
    predicting it, and a bounded loss has no gradient that leads back.
    """

    kind: Kind = "other"  # without a prior it depends on the labels of the other rows
    prior: Tensor | None
    _moved: Tensor
    _first: Tensor | None

    def __init__(
        self, loss: Loss | str, prior: Tensor | None, warmup: int | None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.loss = inner_loss(loss, self.ignore_index)
        inherit_from(self, self.loss)
        if prior is not None:
            prior = check_tensor("prior", prior, torch.float64)
            sums_to_one = abs(float(prior.sum()) - 1) <= 1e-6
            if prior.dim() != 1 or bool((prior < 0).any()) or not sums_to_one:
                raise ValueError(
                    "Expected `prior` to hold probabilities (K,) that sum to one, got"
                    f" {prior.tolist()}."
                )
        self.register_buffer("prior", prior)
        self.warmup = None if warmup is None else check_count("warmup", warmup, 0)
        if self.warmup and prior is None:
            raise ValueError(
                "Expected a `prior` to wait for with `warmup`, got none. Leave `warmup` out."
            )
        # 0 during the warm-up, then 1; a tensor for CUDA graphs
        self.register_buffer("_moved", torch.ones(()), persistent=False)
        # the shares of the warm-up, and how numbers are summed over processes: by ``set_shares``
        self.register_buffer("_first", None, persistent=False)
        self._sum: Callable[[Tensor], Tensor] | None = None

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._moved.fill_(epoch >= (self.warmup or 0))

    def set_shares(self, shares: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> None:
        super().set_shares(shares, total)
        self._first = shares.to(self._moved.device)
        self._sum = total

    def random_cost(self, out: Output, target: Tensor, shares: Tensor) -> Tensor:
        """Return what random labels with these ``shares`` cost, for each row or in the mean."""
        raise NotImplementedError

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        cost = self.random_cost(out, target, self._shares(target, out.logits))
        if target.dim() == 2:
            target = target if self.weight is None else target * self.weight
            cost = cost * target.sum(1)
        losses = self.loss.per_sample(out, target)
        return (losses - cost).to(losses.dtype)

    def _counted(self, target: Tensor) -> Tensor:
        """Return whether each row has a label, (B,)."""
        return target != self.ignore_index if target.dim() == 1 else (target != 0).any(1)

    def _mean(self, sums: Tensor, target: Tensor) -> Tensor:
        """Return the mean over the rows that count, of all processes, from the sums of this one."""
        number = self._counted(target).sum().to(sums.dtype)
        totals = torch.cat([sums.reshape(-1), number[None]])
        if self._sum is not None:
            totals = self._sum(totals)
        return (totals[:-1] / totals[-1].clamp(min=1)).view(sums.shape)

    def _batch_shares(self, target: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
        """Return the share of each class in the labels of a step, (K,)."""
        if target.dim() == 2:
            return self._mean(target.to(dtype).sum(0), target)
        counted = self._counted(target)
        counts = torch.zeros(num_classes, dtype=dtype, device=target.device)
        labels = torch.where(counted, target, 0)
        return self._mean(counts.index_add(0, labels, counted.to(dtype)), target)

    def _shares(self, target: Tensor, like: Tensor) -> Tensor:
        """Return the shares of random labels, for the classes of the logits ``like``.

        In float32 at least: bfloat16 cannot count beyond 256.
        """
        num_classes = like.shape[1] + self.implied
        dtype = wide(like.dtype)
        if self.prior is None:
            return self._batch_shares(target, num_classes, dtype)
        if self.prior.shape[0] != num_classes:
            raise ValueError(
                f"Expected `prior` of {num_classes} classes, got {self.prior.shape[0]}."
            )
        prior = self.prior.to(dtype)
        if not (self.warmup and self.training):
            return prior
        if self._first is None:
            first = self._batch_shares(target, num_classes, dtype)
        else:
            first = self._first.to(dtype)
        return first.lerp(prior, self._moved.to(dtype))


@register("cr")
class CR(PriorLoss):
    """Cross entropy with the confidence regulariser (Cheng et al. 2021).

    L = nll_y − β Σ_k P(ỹ = k)·nll_k (curriculum paper, A.5, Eq. 6). ``prior`` (K,) is the
    distribution of the noisy labels: by default of the batch, and before the epoch ``warmup`` of
    all labels of the run. The loss has no lower bound, and training may go after it without end;
    with a bounded ``loss`` in the place of nll, such as ``phuber:tau=1e3``, it has one.

    >>> CR(beta=1.0, prior=[0.5, 0.5])(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-1.)
    """

    formula = "−log p + β Σ_k P(ỹ = k) log p_k"
    source = "curriculum paper, A.5, Eq. 6"

    def __init__(
        self,
        beta: float = 1.0,
        prior: Tensor | None = None,
        loss: Loss | str = "ce",
        warmup: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(loss, prior, warmup, **options)
        self.beta = check_number("beta", beta, "[0, inf)")
        is_fixed = prior is not None and not self.warmup
        self.independent_rows = self.independent_rows and is_fixed

    def random_cost(self, out: Output, target: Tensor, shares: Tensor) -> Tensor:
        # bfloat16 would round a loss for each class before they are summed
        logits = out.logits.to(wide(out.logits.dtype))
        return self.beta * self.loss.expected(out._replace(logits=logits), shares)


@register("peer")
class Peer(PriorLoss):
    """Peer loss (Liu & Guo 2020): what a loss charges the label, less what it charges a random
    label elsewhere.

    L_i = L(z_i, y_i) − L(z_n, y_m) with n and m from the batch, or y_m from ``prior`` (K,), in
    training from the epoch ``warmup`` on (curriculum paper, A.5). The second term is its exact mean
    over all pairs, which has the expectation of random pairs and no variance. A ``loss`` of class
    indices only costs that mean a pass for each class.

    >>> Peer("ce")(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    tensor(-1.)
    """

    formula = "L(z_i, y_i) − L(z_n, y_m)"
    source = "curriculum paper, A.5; Liu & Guo 2020"

    def __init__(
        self,
        loss: Loss | str = "ce",
        prior: Tensor | None = None,
        warmup: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(loss, prior, warmup, **options)
        self.independent_rows = False

    def random_cost(self, out: Output, target: Tensor, shares: Tensor) -> Tensor:
        each = self.loss.expected(out, shares)
        total = torch.where(self._counted(target), each, 0).sum()
        return self._mean(total.to(wide(each.dtype)), target)
