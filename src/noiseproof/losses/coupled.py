"""Losses that depend on the other classes too: normalised, smoothed and regularised ones, and peer
loss.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import (
    check_count,
    check_flag,
    check_number,
    check_reached,
    check_tensor,
)
from noiseproof.core.margin import LabelProb, margins
from noiseproof.core.output import Output
from noiseproof.core.tensors import readable, wide
from noiseproof.losses.base import Kind, Loss, countable, derive_seed, register, value_dtype
from noiseproof.losses.margin import Focal
from noiseproof.losses.pointwise import pointwise
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

    L = f(p_y) / Σ_k f(p_k) with f(p) = −(1 − p)^γ log p. ``detach`` reproduces the gradient of the
    released code, which treats every (1 − p)^γ as a constant.

    >>> NFL(gamma=0.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0215)
    """

    formula = "f(p) / Σ_k f(p_k), f(p) = −(1 − p)^γ log p"
    source = "bias paper, Table 1; Ma et al. 2020"

    def __init__(self, gamma: float = 0.5, detach: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = check_number("gamma", gamma, "[0, inf)")
        self.detach = check_flag("detach", detach)
        self._focal = Focal(self.gamma)

    def value(self, y: LabelProb) -> Tensor:
        if self.detach:
            constant = (-torch.expm1(y.log_p.detach())) ** self.gamma
            return y.miss.detach() ** self.gamma * y.nll / -y.total(constant * y.log_p)
        if self.gamma == 0:
            return y.nll / -y.total(y.log_p)
        focal = pointwise(y.nll, self._focal)
        if readable(y.log_p):
            total: Tensor = _FocalTotal.apply(y.log_p, self._focal)  # type: ignore[no-untyped-call]
            return focal / (total if focal.dim() == 1 else total[:, None])
        return focal / y.total(pointwise(-y.log_p, self._focal))


class _FocalTotal(torch.autograd.Function):
    """Σ_k −(1 − p_k)^γ log p_k with few passes over (B, K): ``pointwise`` spends four
    transcendentals a class.
    """

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, focal: Focal) -> Tensor:
        p = log_p.exp()
        # The digits of 1 − p are lost only where f(p) itself vanishes; half an ulp keeps log p/(1 −
        # p) bounded there.
        miss = (1 - p).clamp_min_(torch.finfo(p.dtype).eps / 2)
        power = miss**focal.gamma
        ctx.save_for_backward(log_p, p, miss, power)
        total: Tensor = -torch.linalg.vecdot(power, log_p)
        ctx.focal = focal
        ctx.masked = not total.is_cpu or bool(total.isinf().any())  # a GPU is not waited for
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        log_p, p, miss, power = ctx.saved_tensors
        # create_graph: what was saved is a constant, so derive it again
        if torch.is_grad_enabled():
            return -grad[:, None] * ctx.focal.slope(LabelProb(-log_p)), None
        if ctx.masked:
            # of a logit of −∞, p·log p is 0·∞ else
            log_p = log_p.clamp_min(torch.finfo(p.dtype).min)
        gamma = ctx.focal.gamma  # the slope is (1 − p)^γ (γ p log p/(1 − p) − 1)
        return (p * log_p).div_(miss).sub_(1 / gamma).mul_(power).mul_(grad[:, None] * gamma), None


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
        if target.dim() == 1:
            target = torch.zeros_like(out.logits).scatter(
                1, countable(target, self.ignore_index)[:, None], 1
            )
        mass = target.sum(1, keepdim=True)
        smooth = torch.add(
            target * (1 - self.spread), mass, alpha=self.spread / out.logits.shape[1]
        )
        nll = -F.logsigmoid(margins(out.logits)) if self.exact else -F.log_softmax(out.logits, 1)
        return self._over_classes(nll, smooth)


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


def _counted(target: Tensor, ignore_index: int) -> Tensor:
    """Whether each row counts, (B,): not those without a label."""
    return target != ignore_index if target.dim() == 1 else (target != 0).any(1)


def _check_prior(prior: Tensor | None) -> Tensor | None:
    if prior is not None:
        prior = check_tensor("prior", prior, torch.float64)
        if prior.dim() != 1 or bool((prior < 0).any()) or not abs(float(prior.sum()) - 1) <= 1e-6:
            raise ValueError(
                "Expected `prior` to hold probabilities (K,) that sum to one, got"
                f" {prior.tolist()}."
            )
    return prior


class PriorLoss(Loss):
    """A loss less what random labels cost, of which class k has the share ``prior[k]``, or its
    share of the batch.

    With a ``warmup``, training before this epoch (counted from 0, by ``set_epoch``) uses the shares
    of all labels, as the training loop gives them by ``set_shares``; without that call, those of
    the batch. Early in training, a prior above the true share of a class rewards never predicting
    it, and a bounded loss has no gradient that leads back.
    """

    prior: Tensor | None
    warmup: int | None = None

    def _set_prior(self, prior: Tensor | None, warmup: int | None) -> None:
        self.register_buffer("prior", _check_prior(prior))
        self.warmup = None if warmup is None else check_count("warmup", warmup, 0)
        if self.warmup and prior is None:
            raise ValueError(
                "Expected a `prior` to wait for beside `warmup`, got none. Leave `warmup` out."
            )
        self.register_buffer("_moved", torch.ones(()), persistent=False)  # a tensor for CUDA graphs
        self.register_buffer("_first", None, persistent=False)
        self._sum: Callable[[Tensor], Tensor] | None = None
        self._moved: Tensor
        self._first: Tensor | None

    @property
    def _waits(self) -> bool:
        return self.prior is not None and bool(self.warmup)

    def check(self, epochs: float) -> None:
        super().check(epochs)
        check_reached(self.name, "warmup", self.warmup, epochs)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._moved.fill_(epoch >= (self.warmup or 0))

    def set_shares(self, shares: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> None:
        super().set_shares(shares, total)
        self._first = shares.to(self._moved.device)
        self._sum = total

    def _mean(self, values: Tensor, counted: Tensor) -> Tensor:
        """The mean over the rows that count, of all processes, of the sum (…) of ``values`` over
        those of this one.
        """
        totals = torch.cat([values.reshape(-1), counted.sum()[None].to(values.dtype)])
        totals = totals if self._sum is None else self._sum(totals)
        return (totals[:-1] / totals[-1].clamp(min=1)).view(values.shape)

    def _batch_shares(self, target: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
        """The share of each class in the labels of a step, (K,)."""
        counted = _counted(target, self.ignore_index)
        if target.dim() == 2:
            return self._mean(target.to(dtype).sum(0), counted)
        counts = torch.zeros(num_classes, dtype=dtype, device=target.device)
        return self._mean(
            counts.index_add(0, torch.where(counted, target, 0), counted.to(dtype)), counted
        )

    def _shares(self, target: Tensor, like: Tensor) -> Tensor:
        """The shares of random labels, for the classes of the logits ``like``.

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
        if not (self._waits and self.training):
            return prior
        first = (
            self._batch_shares(target, num_classes, dtype)
            if self._first is None
            else self._first.to(dtype)
        )
        return first.lerp(prior, self._moved.to(dtype))


@register("cr")
class CR(PriorLoss, CoupledLoss):
    """Cross entropy with the confidence regulariser (Cheng et al. 2021).

    L = nll_y − β Σ_k P(ỹ = k)·nll_k (curriculum paper, A.5, Eq. 6). ``prior`` (K,) is the
    distribution of the noisy labels; without it, that of the batch, and before the epoch ``warmup``
    of a run that of all its labels. The loss has no lower bound, and training may go after it
    without end; with a bounded ``loss`` in the place of nll, such as ``phuber:tau=1e3``, it has
    one.

    >>> CR(beta=1.0, prior=[0.5, 0.5])(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-1.)
    """

    formula = "−log p + β Σ_k P(ỹ = k) log p_k"
    source = "curriculum paper, A.5, Eq. 6"
    kind = "other"  # without a prior it depends on the other rows' labels

    def __init__(
        self,
        beta: float = 1.0,
        prior: Tensor | None = None,
        loss: Loss | str = "ce",
        warmup: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.loss = inner_loss(loss, self.ignore_index)
        self._inherit_from(self.loss)
        self.beta = check_number("beta", beta, "[0, inf)")
        self._set_prior(prior, warmup)
        self.independent_rows = self.independent_rows and prior is not None and not self._waits

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        log_p = F.log_softmax(out.logits, 1, dtype=wide(out.logits.dtype))
        prior = self._shares(target, log_p)
        if self.loss.name != "ce":
            losses = self.loss.per_sample(
                out, target if target.dim() == 1 else self._weighed(target)
            )
            share = 1.0 if target.dim() == 1 else self._weighed(target).sum(1)
            return (losses - self.beta * share * self.loss.expected(out, prior)).to(losses.dtype)
        regulariser = self.beta * self._expected(log_p, prior)  # (B,)
        if target.dim() == 1:
            value = (
                F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index)
                + regulariser
            )
        else:
            value = self._over_classes(regulariser[:, None] - log_p, target)
        return value.to(value_dtype(out.logits))

    @staticmethod
    def _expected(log_p: Tensor, prior: Tensor) -> Tensor:
        """Σ_k P_k log p_k; a class without labels may be masked."""
        if readable(log_p) and not bool((mean := log_p @ prior).isnan().any()):
            return mean
        return torch.where(prior != 0, log_p, 0) @ prior


@register("peer")
class Peer(PriorLoss):
    """Peer loss (Liu & Guo 2020): what a loss charges the label, less what it charges a random
    label elsewhere.

    L_i = L(z_i, y_i) − L(z_n, y_m) with n and m drawn from the batch, or y_m from ``prior`` (K,),
    in training from the epoch ``warmup`` on (curriculum paper, A.5). ``generator`` is a
    ``torch.Generator`` or a seed; without one the second term is its exact mean over all pairs,
    which has the same expectation and no variance. A ``loss`` of class indices only costs that mean
    a pass for each class.

    Every call draws again, until ``set_step`` is called, as the training loop does before every
    step: from then on the pairs depend on the generator's seed and on the step, in evaluation mode
    on that seed alone.

    >>> Peer("ce")(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    tensor(-1.)
    """

    formula = "L(z_i, y_i) − L(z_n, y_m)"
    source = "curriculum paper, A.5; Liu & Guo 2020"
    kind = "other"

    def __init__(
        self,
        loss: Loss | str = "ce",
        generator: torch.Generator | int | None = None,
        prior: Tensor | None = None,
        warmup: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.loss = inner_loss(loss, self.ignore_index)
        self._set_prior(prior, warmup)
        self._inherit_from(self.loss)
        self.independent_rows = False
        if generator is not None and not isinstance(generator, torch.Generator):
            generator = torch.Generator().manual_seed(
                check_count("generator", generator, 0, "It is a seed.")
            )
        self.generator = generator
        self._step: int | None = None

    def set_step(self, seed: int, generator: torch.Generator | None = None) -> None:
        super().set_step(seed, generator)
        self._step = seed

    def _source(self, given: torch.Generator) -> torch.Generator:
        """What the next pairs are drawn from."""
        if self.training and self._step is None:
            return given
        step = self._step if self.training else None
        return torch.Generator(given.device).manual_seed(derive_seed(given.initial_seed(), step))

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        logits = out.logits
        hard = target.dim() == 1
        counted = _counted(target, self.ignore_index)
        if self.generator is None:
            shares = self._shares(target, logits)
            # The mean over rows m comes from the shares, the mean over rows n is taken here.
            each = self.loss.expected(out, shares)
            peer = self._mean(torch.where(counted, each, 0).sum().to(wide(each.dtype)), counted)
        else:
            # rows that only fill up a process's share need peers, too
            counted = counted | ~counted.any()
            rows = counted.nonzero().squeeze(1)
            source = self._source(self.generator)
            draw = partial(
                torch.randint, len(rows), target.shape[:1], generator=source, device=source.device
            )
            n, m = (rows[draw().to(rows.device)] for _ in range(2))
            elsewhere = Output._make(field if field is None else field[n] for field in out)
            if self.prior is None:
                labels = target[m]
            else:
                prior = self._shares(target, logits).to(source.device)
                labels = torch.multinomial(prior, len(target), True, generator=source).to(
                    target.device
                )
            peer = self.loss.per_sample(elsewhere, labels)
        weighed = target if hard else self._weighed(target)
        losses = self.loss.per_sample(out, weighed)
        return (losses - peer * (1.0 if hard else weighed.sum(1))).to(losses.dtype)
