"""One wrapper for logit bias (bias paper), shift and scale of the margin (curriculum paper), and
schedules of the shift.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.margin import LabelProb
from noiseproof.core.output import Output
from noiseproof.core.tensors import wide
from noiseproof.losses.base import Loss, inherit_from, register
from noiseproof.losses.gaussian import LN
from noiseproof.losses.pointwise import pointwise
from noiseproof.losses.rows import countable
from noiseproof.losses.sums import inner_loss

BIAS_CYCLE = (5.2, 4.8, 4.3, 3.7, 3.0, 2.3)  # bias paper, appendix 2: 11 epochs each


class LogitBias(nn.Module):
    """The label's nll after ε is added to its logit: p' = p·e^ε/(1 − p + p·e^ε)."""

    epsilon: Tensor

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        # a tensor, so that a schedule changes it inside compiled code and CUDA graphs
        self.register_buffer("epsilon", torch.tensor(epsilon, dtype=torch.float64))

    def value(self, y: LabelProb) -> Tensor:
        near = torch.log1p(torch.expm1(y.nll.clamp_max(80)) * torch.exp(-self.epsilon))
        # where expm1(nll) overflows
        far = y.nll - self.epsilon + torch.log1p(y.p * torch.expm1(self.epsilon))
        return torch.where(y.nll < 80, near, far)

    def slope(self, y: LabelProb) -> Tensor:
        return 1 / (y.miss + y.p * torch.exp(self.epsilon))


@register("remargin")
class Remargin(Loss):
    """A loss at the margin αΔ + β instead of Δ, for class-index targets.

    ``shift`` β adds to the labelled logit of any loss, in training mode only: the logit bias ε of
    the bias paper and the curriculum paper's w⁺. ``scale`` α is for margin losses; the value is
    l(σ(αΔ + β))/α, so that the weight is exactly w(αΔ + β) (the curriculum paper's w*; its printed
    l(σ(αΔ)) has α times that weight). Of a sequence of shifts each holds for ``every`` epochs, and
    the cycle repeats (the bias paper's ``**``: ``BIAS_CYCLE``, every=11).

    >>> loss = Remargin("mae", shift=3.0)
    >>> logits = torch.zeros(1, 2)
    >>> loss(logits, torch.tensor([0])), loss.eval()(logits, torch.tensor([0]))
    (tensor(0.0474), tensor(0.5000))
    """

    formula = "l(σ(αΔ + β))/α"
    source = "bias paper, Eq. 4; curriculum paper, §5.1.1"

    def __init__(
        self,
        loss: Loss | str,
        shift: float | Sequence[float] = 0.0,
        scale: float = 1.0,
        every: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.loss = inner_loss(loss, self.ignore_index)
        inherit_from(self, self.loss)
        self.takes = "classes"
        shifts = list(shift) if isinstance(shift, Sequence) else [shift]
        if not shifts:
            raise ValueError(
                "Expected `shift` to be a number or a list of numbers, got an empty list."
            )
        self.shifts = [
            check_number("shift", s, "[-80, 80]", "It adds to the labelled logit.") for s in shifts
        ]
        self.every = check_count("every", every, 1)
        self.scale = check_number("scale", scale, "(0, inf)")
        if self.scale != 1 and self.loss.kind != "margin":
            raise ValueError(
                f"Expected a margin loss to scale, got `{self.loss}`, which depends on other"
                " classes too."
            )
        self.kind = "margin" if self.loss.kind == "margin" else "other"
        # A scale needs Δ itself; so does a strongly negative shift, which enlarges the nll where
        # p → 1.
        self.exact = self.exact or self.loss.exact or self.scale != 1 or min(self.shifts) < -5
        self.bias = LogitBias(self.shifts[0])
        # Whether adding a number to all logits of a row changes nothing.
        self._is_relative = not any(isinstance(part, LN) for part in self.loss.modules())

    @property
    def shift(self) -> float | list[float]:
        """The shift, or the list that the schedule cycles through."""
        return self.shifts if len(self.shifts) > 1 else self.shifts[0]

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.bias.epsilon.fill_(self.shifts[epoch // self.every % len(self.shifts)])

    def _at(self, margin: Tensor) -> Tensor:
        if self.scale != 1:
            margin = margin * self.scale
        if self.training:
            margin = margin + self.bias.epsilon
        return margin

    def evaluate(self, y: LabelProb) -> Tensor:
        if self.exact:
            moved = LabelProb.from_margin(self._at(y.margin))
        elif self.training:
            # Else e^ε has the three digits of bfloat16.
            moved = LabelProb(pointwise(y.nll.to(wide(y.nll.dtype)), self.bias))
        else:
            moved = y
        value = self.loss.evaluate(moved).to(y.nll.dtype)
        return value / self.scale if self.scale != 1 else value

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        if self.kind == "margin":
            return super().per_sample(out, target)
        logits = out.logits
        if self.training:
            label = countable(target, self.ignore_index)[:, None]
            if self._is_relative:  # otherwise large logits swallow digits of the shift
                logits = logits - logits.detach().amax(1, keepdim=True)
            logits = logits.scatter_add(
                1, label, self.bias.epsilon.to(logits.dtype).expand_as(label)
            )
        return self.loss.per_sample(out._replace(logits=logits), target)

    def sample_weight(self, margin: Tensor) -> Tensor:
        return self.loss.sample_weight(self._at(margin))

    @property
    def max_weight(self) -> float:
        return self.loss.max_weight


@register("unit")
class Unit(Loss):
    """A margin loss divided by its largest sample weight, as all experiments of the curriculum
    paper train it.

    L = l(p_y)/max_Δ w(Δ) (curriculum paper, section 5), which makes learning rates comparable
    across losses.

    >>> round(Unit("mae").factor, 4), round(Unit("gce:q=0.7").factor, 4)
    (4.0, 3.1637)
    """

    formula = "l(p)/max w"
    source = "curriculum paper, §5"

    def __init__(self, loss: Loss | str, **options: Any) -> None:
        super().__init__(**options)
        self.loss = inner_loss(loss, self.ignore_index)
        inherit_from(self, self.loss)
        self.factor = 1 / self.loss.max_weight
        self.exact = self.exact or self.loss.exact

    def evaluate(self, y: LabelProb) -> Tensor:
        return self.loss.evaluate(y) * self.factor

    def sample_weight(self, margin: Tensor) -> Tensor:
        return self.loss.sample_weight(margin) * self.factor
