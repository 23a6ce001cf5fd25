"""Noise against noise (SLN paper): random numbers on labels, on logits' gradients, or on weights'
gradients.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from noiseproof.core.checks import count, number
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register


@register("sln")
@dataclass(eq=False)
class StochasticLabelNoise(Strategy):
    """Stochastic label noise: target = onehot(y) + σ_y·z, with fresh z ~ N(0, I) in every step (SLN
    paper, Eq. 3).

    The target is neither clipped nor renormalised. From the epoch ``until`` on (counted from 0)
    there is no noise, for label correction. Once a row is fitted nothing holds its logits against
    the noise on their gradient, so they wander off at high learning rates: a step's gradient has at
    most the norm ``max_norm``, unless the settings have another.
    """

    capturable = True
    joins = True
    multilabel = True

    sigma: float = number("[0, inf)", 1.0)
    until: int | None = count(0, None)
    max_norm: float | None = number("(0, inf)", 1.0, optional=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.makes = "real"
        if not self.ends:  # no noise: nothing to hold, and targets stay classes
            self.max_norm = None
            self.makes = "classes"

    @property
    def ends(self) -> float:
        if self.sigma == 0:
            return 0
        return math.inf if self.until is None else self.until

    def phase(self, run: Run) -> bool:
        return run.epoch >= self.ends

    def targets(self, batch: Batch, run: Run) -> Batch:
        if self.phase(run):
            return batch
        z = run.random.normal("sln", batch, run.num_classes)
        return batch.with_target(batch.soft_target(run.num_classes, z) + self.sigma * z)


@dataclass(eq=False)
class _GradientNoise(Strategy):
    capturable = True
    multilabel = True

    sigma: float = number("[0, inf)", 0.1)

    @property
    def ends(self) -> float:
        return math.inf if self.sigma else 0


@register("noise-f")
class LogitGradientNoise(_GradientNoise):
    """Noise on the gradient of each sample's loss in its logits: ∇_f ℓ + σ_f·z (SLN paper, Eq. 2).

    Loss and noise of a sample have the same weight: on rows that a selection leaves out, nothing
    would hold against it.
    """

    def penalties(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> None:
        for m, out in enumerate(outs):
            z = run.random.normal(f"noise-f {m}", batch, out.logits.shape[1])
            if batch.counts is not None:
                z = z * batch.counts[:, None]
            if batch.weights is not None:
                z = z * batch.weights[m][:, None]
            # The loss is divided by the rows of the step, so the noise on each row's gradient must
            # be, too.
            noise = z * (self.sigma * run.processes.world_size / batch.count)
            out.logits.register_hook(partial(torch.add, noise))  # type: ignore[no-untyped-call]


@register("noise-theta")
class WeightGradientNoise(_GradientNoise):
    """Noise on the gradient in the weights: each sample's ∇_θ ℓ + σ_θ·z (SLN paper, Eq. 1), so
    σ_θ/√B on the mean of B.
    """

    def gradients(self, run: Run) -> None:
        # The same on all processes, whose weights are the same.
        generator = run.random.generator("noise-theta", run.step)
        for model in run.models:
            for parameter in model.plain.parameters():
                if parameter.grad is not None:
                    z = torch.randn(
                        parameter.shape,
                        generator=generator,
                        device=parameter.device,
                        dtype=parameter.dtype,
                    )
                    parameter.grad.add_(z, alpha=self.sigma / math.sqrt(run.count))
