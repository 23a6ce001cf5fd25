"""The rows of an epoch, where they are not every row once."""

from dataclasses import dataclass

from torch import Tensor

from noiseproof.data.base import ClassBalanced
from noiseproof.strategies.run import Run, Strategy, register


@register("class-balanced")
@dataclass(eq=False)
class ClassBalancedEpochs(Strategy):
    """Equally many rows of each given class in every epoch, as in the papers' training on
    Clothing1M.

    ``per_class=18976`` is the SLN paper's section 4.4 (the LN paper has the same total),
    ``total=128000`` the NAL paper's B.3: 2000 batches of 64. A class with too few rows repeats
    them; the record has the last occurrence of a row.
    """

    per_class: int | None = None
    total: int | None = None

    def setup(self, run: Run) -> None:
        seed = run.random.seed_for("class-balanced")
        self._sampler = ClassBalanced(
            run.data.given.cpu(), per_class=self.per_class, total=self.total, seed=seed
        )

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        return self._sampler.draw(run.epoch).to(rows.device)
