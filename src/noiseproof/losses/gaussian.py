"""Logistic-Normal likelihood (LN paper): a Gaussian over logits, whose covariance the head
predicts.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_flag, check_number, check_word
from noiseproof.core.output import Output
from noiseproof.core.tensors import eager, readable, wide
from noiseproof.losses.base import Loss, NotFinite, countable, field_of, register
from noiseproof.losses.logistic_normal import LogisticNormal, negative_log_normal

Covariance = Literal["full", "diagonal", "isotropic", "identity"]
Predict = Literal["classes", "released"]
NEEDS = {"full": {"root"}, "diagonal": {"scale"}, "isotropic": {"scale"}, "identity": set()}


field = partial(field_of, remedy="Use a head that gives it, or a loss with another `covariance`.")


class _RankOne(torch.autograd.Function):
    """Eq. 5 with Σ^½ = ccᵀ + λI, and its gradients in closed form, from the scalars cᵀc and cᵀe.

    With u = 1/(λ + cᵀc) and e = αc + p, p ⊥ c, Σ^-½e = p/λ + αu·c: nothing cancels where e is
    parallel to c, which is what training drives c to (Eq. 7). α and p are taken in float64, since
    float32 would lose digits of the gradients.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, root: Tensor, target: Tensor, loss: LN) -> Tensor:
        e = loss.error(mean, target)
        c = root.double()
        lam = loss.lam
        size = torch.linalg.vector_norm(c, dim=1).square_()  # cᵀc
        inner = (c * e).sum(1)
        u = (size + lam).reciprocal_()
        # a root so small does nothing, but its α would overflow
        alpha = torch.where(size > 1e-60, inner / size, 0)
        p = e.addcmul_(c, alpha[:, None], value=-1).to(wide(root.dtype))
        alpha = alpha * u
        inner = inner * u
        share = alpha * inner  # of ‖Σ^-½e‖², along c
        # The gradients are combinations of p and c: p/λ² + αu²·c (Eq. 6), and −αu·cᵀc·(1 + λu)/λ²·p
        # + 2u(1 − share)·c.
        factors = torch.stack(
            (
                alpha * u,
                torch.addcmul(inner, inner, u, value=lam),
                torch.addcmul(u, u, share, value=-1),
            )
        )
        ctx.save_for_backward(mean, root, target, p, factors.to(p.dtype))
        ctx.loss = loss
        length = torch.linalg.vector_norm(p, dim=1).double()
        value = share.addcmul_(length, length, value=lam**-2).mul_(0.5).sub_(u.log())
        return loss.finished(value.add_((c.shape[1] - 1) * math.log(lam)), Output(mean, root=root))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mean, root, target, p, factors = ctx.saved_tensors
        # create_graph: what was saved is a constant, so derive it again
        if torch.is_grad_enabled():
            value = negative_log_normal(ctx.loss.error(mean, target), ctx.loss.lam, root).to(
                grad.dtype
            )
            inputs = [x for x in (mean, root) if x.requires_grad]
            gradients = iter(torch.autograd.grad(value, inputs, grad, create_graph=True))
            return *(next(gradients) if x.requires_grad else None for x in (mean, root)), None, None  # type: ignore[return-value]
        grad = grad[:, None].to(p.dtype)
        c = root.to(p.dtype)
        along, across_root, along_root = (factors[..., None] * grad).unbind()  # (B, 1) each
        grad = grad * ctx.loss.lam**-2
        of_mean = (p * grad).addcmul_(c, along)
        of_root = (p * (across_root * -(ctx.loss.lam**-2))).addcmul_(c, along_root, value=2)
        return of_mean.to(mean.dtype), of_root.to(root.dtype), None, None


@register("ln")
class LN(Loss):
    """Logistic-Normal likelihood: a label is a point of logit space, seen through noise whose
    spread the head predicts.

    L = ½ (τy − μ)ᵀΣ⁻¹(τy − μ) + ½ log|Σ| with Σ^½ = ccᵀ + λI (LN paper, Eqs. 5, 9 and 11), μ the
    logits and c ``Output.root``. The label is smoothed over K′ classes by t, which makes y_k =
    log(((1 − t)K′ + t)/t) at the label and 0 elsewhere. A target (B, K) of probabilities is
    smoothed and mapped the same way, so the loss is not linear in it. Defaults are the LN paper's
    most frequent choice (Tables 5 and 6).

    Args:
        lam: λ, the smallest standard deviation: smaller residuals are not attenuated (LN paper,
            section 3.1).
        tau: the temperature τ of the targets and of the prediction.
        t: how much of the label is spread over all classes.
        dummy: count one class more than there are (K′ = K + 1), whose logit is 0, so that all K are
            treated alike. Without it the last class has no logit, and the head gives K − 1.
        covariance: ``full`` as above; ``diagonal`` and ``isotropic`` Σ^½ = diag(σ) + λI with
            ``Output.scale`` σ, (B, D) or (B, 1) (the LN paper gives no formula for these);
            ``identity`` is Σ = I.
        predict: ``classes`` predicts softmax(μ/τ) over the K classes; ``released`` as the released
            code, over K + 1 with the dummy class.
        nll: add the constants of Eq. 4, so that the value is −log of the density
            (``LogisticNormal.log_prob``).
        start: the first weights of the head's layers, over those of the model's own initialisation,
            which the LN paper (ten classes) takes. With many classes a root of that size explains
            every label as noise at first.

    >>> loss, mean = LN(lam=0.5, tau=1.0, reduction="none"), torch.tensor([[4.0, 0.0], [4.0, 0.0]])
    >>> # the second label is wrong
    >>> loss(Output(mean, root=torch.zeros(2, 2)), torch.tensor([0, 1]))
    tensor([ 4.3740, 95.5275])
    >>> # ... and forgiven
    >>> loss(Output(mean, root=torch.tensor([[1.5, -2.0]] * 2)), torch.tensor([0, 1]))
    tensor([4.9143, 1.8429])
    """

    needs = frozenset({"logits", "root"})
    formula = "½ (τy − μ)ᵀΣ⁻¹(τy − μ) + ½ log|Σ|, Σ^½ = ccᵀ + λI"
    source = "LN paper, Eqs. 4-11"
    kind = "other"
    linear = False
    takes = "probabilities"
    max_norm = 5.0  # ∂L/∂μ = Σ⁻¹e is as large as e/λ²

    def __init__(
        self,
        lam: float = 0.5,
        tau: float = 0.5,
        t: float = 0.01,
        dummy: bool = True,
        covariance: Covariance = "full",
        predict: Predict = "classes",
        nll: bool = False,
        start: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.lam = check_number(
            "lam", lam, "[0.0001, inf)", "Σ⁻¹ grows as 1/λ²; the LN paper takes 0.1 to 1."
        )
        self.tau = check_number("tau", tau, "(0, inf)")
        self.t = check_number("t", t, "(0, 1)", "A label without smoothing has infinite logits.")
        self.dummy = check_flag("dummy", dummy)
        self.covariance: Covariance = check_word("covariance", covariance, get_args(Covariance))
        self.predict: Predict = check_word("predict", predict, get_args(Predict))
        self.nll = check_flag("nll", nll)
        self.start = check_number("start", start, "(0, inf)", "A root of zero never moves.")
        self.starts = dict.fromkeys(("logits", "root", "scale"), self.start)
        self.needs = frozenset({"logits"} | NEEDS[covariance])
        self.head = "gaussian-scale:isotropic=true" if covariance == "isotropic" else None
        self.implied = 0 if self.dummy else 1
        self.extra_scores = int(self.dummy and self.predict == "released")

    def label_logit(self, num_classes: int) -> float:
        """τ·C, the target of the labelled logit: C = log(((1 − t)K′ + t)/t) (LN paper, B.5)."""
        return self.tau * math.log1p((1 - self.t) * (num_classes + self.dummy) / self.t)

    def error(self, mean: Tensor, target: Tensor) -> Tensor:
        """μ − τy (B, D) in float64, for class indices (no −1 for ignored rows) or probabilities (B,
        K).
        """
        num_classes = mean.shape[1] + self.implied
        error = mean.to(torch.float64, copy=True)
        if target.dim() == 2:
            y = torch.log1p(target.double() * ((1 - self.t) * (num_classes + self.dummy) / self.t))
            return error - self.tau * (y if self.dummy else y[:, :-1] - y[:, -1:])
        aim = torch.full_like(error[:, :1], -self.label_logit(num_classes))
        column = target[:, None]
        if not self.dummy:  # the last class aims at −τC everywhere
            last = column == num_classes - 1
            error = error - aim * last
            column = torch.where(last, 0, column)
            aim = torch.where(last, 0, aim)
        return error.scatter_add_(1, column, aim)

    def smoothed(self, target: Tensor, num_classes: int) -> Tensor:
        """Probabilities (B, K′) of a label, spread over all classes by t (LN paper, footnote 2), in
        float64.
        """
        if target.dim() == 1:
            target = target.new_zeros((len(target), num_classes), dtype=torch.float64).scatter(
                1, target[:, None], 1
            )
        sure = F.pad(target.double(), (0, int(self.dummy)))
        return sure * (1 - self.t) + self.t / sure.shape[1]

    def _spread(self, out: Output) -> dict[str, Any]:
        """What makes Σ^½, under the names that ``LogisticNormal`` gives it."""
        rows, D = out.logits.shape
        if self.covariance == "identity":
            return {"lam": 1.0}
        if self.covariance == "full":
            return {"lam": self.lam, "root": field(out, "root", (rows, D))}
        shape = (rows, D if self.covariance == "diagonal" else 1)
        return {"lam": self.lam, "scale": field(out, "scale", shape)}

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        mean = out.logits
        spread = self._spread(out)
        hard = target.dim() == 1
        self._check_not_negative(target, "probabilities")
        label = countable(target, self.ignore_index) if hard else target
        value: Tensor
        if (
            self.covariance == "full"
            and mean.shape[1] > 1
            and eager()
            and not (self.nll or target.requires_grad)
        ):
            value = _RankOne.apply(mean, spread["root"], label, self)  # type: ignore[no-untyped-call]
        elif self.nll:
            distribution = LogisticNormal(
                mean.double(), **spread, tau=self.tau, validate_args=False
            )
            value = self.finished(
                -distribution.log_prob(self.smoothed(label, mean.shape[1] + self.implied)), out
            )
        else:
            value = self.finished(negative_log_normal(self.error(mean, label), **spread), out)
        return self._weigh_rows(value, target)

    def finished(self, value: Tensor, out: Output) -> Tensor:
        """``value`` in the precision of the logits; raises NotFinite if a covariance exploded; NaN
        logits give NaN.
        """
        if readable(value) and not math.isfinite(float(value.detach().sum())):
            rows = (~value.isfinite() & out.logits.isfinite().all(1)).nonzero()
            for name in self.needs - {"logits"} if len(rows) else ():
                row = int(rows[0])
                largest = float(getattr(out, name)[row].abs().max())
                raise NotFinite(
                    f"Expected a finite covariance, got `{name}` up to {largest:.3g} in row {row}. "
                    "Lower the learning rate, clip the norm of the gradient, or raise `lam`."
                )
        return value.to(out.logits.dtype)

    def scores(self, out: Output) -> Tensor:
        # a class beyond the logits has logit 0
        every = self.predict == "released" or not self.dummy
        return (F.pad(out.logits, (0, 1)) if every else out.logits) / self.tau

    def variance(self, out: Output) -> Tensor | None:
        """diag Σ (B, D): c_k²(‖c‖² + 2λ) + λ² of Σ^½ = ccᵀ + λI, (σ_k + λ)² of a diagonal one.

        It is None where Σ = I.
        """
        if self.covariance == "identity":
            return None
        spread: Tensor = self._spread(out)["root" if self.covariance == "full" else "scale"]
        if self.covariance == "full":
            squares = spread.square()
            return squares * (squares.sum(1, keepdim=True) + 2 * self.lam) + self.lam**2
        return (spread + self.lam).square().expand_as(out.logits)

    def distribution(self, out: Output) -> LogisticNormal:
        """The distribution over labels that ``out`` predicts, with each sample's Σ."""
        return LogisticNormal(out.logits, **self._spread(out), tau=self.tau)
