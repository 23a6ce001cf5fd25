"""Logistic-Normal likelihood (LN paper): a Gaussian over logits, whose covariance the head
predicts.
"""

import math
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_flag, check_number, check_word
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, register
from noiseproof.losses.logistic_normal import LogisticNormal, negative_log_normal
from noiseproof.losses.rows import check_not_negative, countable, field_of, weigh_rows

Covariance = Literal["full", "diagonal", "isotropic", "identity"]
# the field of a head's output that makes the covariance
FIELDS = {"full": "root", "diagonal": "scale", "isotropic": "scale"}

field = partial(field_of, remedy="Use a head that gives it, or a loss with another `covariance`.")


@register("ln")
class LN(Loss):
    """Logistic-Normal likelihood: a label is a point of logit space, seen through noise whose
    spread the head predicts.

    L = ½ (τy − μ)ᵀΣ⁻¹(τy − μ) + ½ log|Σ| with Σ^½ = ccᵀ + λI (LN paper, Eqs. 5, 9 and 11), μ the
    logits and c ``Output.root``. The label is smoothed over K′ classes by t, which makes
    y_k = log(((1 − t)K′ + t)/t) at the label and 0 elsewhere. A target (B, K) of probabilities is
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
        start: the first weights of the head's layers, relative to the model's own initialisation,
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
    takes = "probabilities"
    max_norm = 5.0  # ∂L/∂μ = Σ⁻¹e is as large as e/λ²

    def __init__(
        self,
        lam: float = 0.5,
        tau: float = 0.5,
        t: float = 0.01,
        dummy: bool = True,
        covariance: Covariance = "full",
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
        self.start = check_number("start", start, "(0, inf)", "A root of zero never moves.")
        self.starts = dict.fromkeys(("logits", "root", "scale"), self.start)
        self.field = FIELDS.get(covariance)
        self.needs = frozenset({"logits", *filter(None, [self.field])})
        self.implied = int(not self.dummy)

    def label_logit(self, num_classes: int) -> float:
        """Return τ·C, the labelled logit's target: C = log(((1 − t)K′ + t)/t) (LN paper, B.5)."""
        return self.tau * math.log1p((1 - self.t) * (num_classes + self.dummy) / self.t)

    def error(self, mean: Tensor, target: Tensor) -> Tensor:
        """Return μ − τy (B, D) in float64, for class indices (no −1 for ignored rows) or
        probabilities (B, K).
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

    def _spread(self, out: Output) -> dict[str, Any]:
        """Return what makes Σ^½, under the names that ``LogisticNormal`` gives it."""
        if self.field is None:
            return {"lam": 1.0}
        rows, D = out.logits.shape
        shape = (rows, 1 if self.covariance == "isotropic" else D)
        return {"lam": self.lam, self.field: field(out, self.field, shape)}

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        check_not_negative(self.name, target, "probabilities")
        label = countable(target, self.ignore_index) if target.dim() == 1 else target
        error = self.error(out.logits, label)
        value = negative_log_normal(error, **self._spread(out))
        return weigh_rows(value.to(out.logits.dtype), target, self.weight)

    def scores(self, out: Output) -> Tensor:
        # without the dummy class the last class has no logit: it is 0
        return (out.logits if self.dummy else F.pad(out.logits, (0, 1))) / self.tau

    def variance(self, out: Output) -> Tensor | None:
        """Return diag Σ (B, D); None where Σ = I."""
        return None if self.field is None else self.distribution(out).logit_variance

    def distribution(self, out: Output) -> LogisticNormal:
        """Return the distribution over labels that ``out`` predicts, with the Σ of each row."""
        return LogisticNormal(out.logits, **self._spread(out), tau=self.tau)
