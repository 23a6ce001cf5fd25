"""Label noise as parameters of each sample, which explain wrong labels in place of the model
(SOP).
"""

from dataclasses import dataclass

import torch

from noiseproof.core.checks import number
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register


@register("sparse-noise")
@dataclass(eq=False)
class SparseNoise(Strategy):
    """s_i = u_i² ⊙ y_i − v_i² ⊙ (1 − y_i) for each sample, learned by gradient descent (Liu et al.
    2022, section 3.2).

    u_i is a number, v_i has one for each class; both are drawn from N(0, std²), learn with rates of
    their own, which no schedule lowers, and stay in [−1, 1]. The squares grow slowly from almost
    nothing, which keeps s sparse. The loss ``sop`` reads them from ``Output.noise``. Each model has
    its own. A step descends on the mean over its rows, so the rates belong to the batch size of
    128.
    """

    adds = frozenset({"noise"})
    capturable = True  # tables are written in place
    remembers = ("u", "v")

    lr_u: float = number("[0, inf)", 10.0)
    lr_v: float = number("[0, inf)", 10.0)
    std: float = number("(0, 1]", 1e-8)

    def setup(self, run: Run) -> None:
        generator = run.random.generator(self.name, device="cpu")
        # (N, M, 1) and (N, M, K)
        self.u, self.v = (
            (self.std * torch.randn(run.num_rows, len(run.models), width, generator=generator)).to(
                run.device, run.dtype
            )
            for width in (1, run.num_classes)
        )

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        u, v = (table[batch.rows].requires_grad_() for table in (self.u, self.v))
        self._step = batch, u, v
        y = batch.with_target(batch.label).soft_target(run.num_classes, u)[:, None]  # (b, 1, K)
        noise = torch.stack([u.square() * y, v.square() * (1 - y)], 2)  # (b, M, 2, K)
        return [out._replace(noise=noise[:, m]) for m, out in enumerate(outs)]

    @torch.no_grad()
    def gradients(self, run: Run) -> None:
        batch, *leaves = self._step
        del self._step
        for table, leaf, rate in zip((self.u, self.v), leaves, (self.lr_u, self.lr_v), strict=True):
            assert leaf.grad is not None
            # Of the loss that each process multiplies by their number, since DDP averages.
            gradient = run.processes.gather(leaf.grad, batch) / run.processes.world_size
            table.index_add_(0, batch.all_rows, gradient, alpha=-rate)
            table[batch.all_rows] = table[batch.all_rows].clamp(-1, 1)
