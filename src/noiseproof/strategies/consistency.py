"""Regularisers of predictions: the same for two augmentations of a row, and every class as often
(SOP+).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.core.checks import number
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.mixing import imbalance, second_view
from noiseproof.strategies.run import Run, Strategy, register


@register("consistency")
@dataclass(eq=False)
class Consistency(Strategy):
    """Add λ_C·KL(p(x) ‖ p(x′)) + λ_B·KL(uniform ‖ mean p(x)) to the loss (Liu et al. 2022, SOP+).

    x′ is a second augmentation of the row, and p(x) in the first term a constant; without
    augmentation the term is zero. x′ has AutoAugment and Cutout where inputs are prepared as in the
    paper (``paper="sop+"``), else it is drawn as x is. The mean is over the rows of a step; in the
    released code the noise of labels is added first.

    Args:
        lambda_c: λ_C, 0.9 in the paper.
        lambda_b: λ_B, 0.1 in the paper.
    """

    lambda_c: float = number("[0, inf)", 0.9)
    lambda_b: float = number("[0, inf)", 0.1)

    def penalties(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
        log_p = [run.loss.scores(out).log_softmax(1) for out in outs]
        terms = torch.stack([self.lambda_b * imbalance(each.exp(), batch, run) for each in log_p])
        if not self.lambda_c or run.strong is None or not run.strong.columns:
            return terms
        view = second_view(self.name, batch, run, run.strong)
        # Not through the wrapper for several processes, which allows one forward pass before each
        # backward pass.
        again = [
            run.loss.scores(run.forward(model.trained, view)).log_softmax(1) for model in run.models
        ]
        pairs = [(first.detach(), second) for first, second in zip(log_p, again, strict=True)]
        return terms + self.lambda_c * torch.stack([(p.exp() * (p - q)).sum(1) for p, q in pairs])
