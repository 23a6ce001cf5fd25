"""Weights and targets from a table of the training rows.

Built from tensors, so without a name in the registry.
"""

from dataclasses import dataclass

from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy


@dataclass(eq=False)
class SampleWeights(Strategy):
    """Multiply the loss of row i by w_i, for weights (N,) in the order of the training rows."""

    capturable = True
    multilabel = True

    table: Tensor

    def setup(self, run: Run) -> None:
        if self.table.shape != (run.num_rows,):
            raise ValueError(
                f"Expected weights of {run.num_rows} rows, got shape {tuple(self.table.shape)}."
            )
        self._table = self.table.to(run.device, run.dtype)

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
        return self._table[batch.rows].expand_as(losses)


@dataclass(eq=False)
class FixedTargets(Strategy):
    """Train towards a ``table`` of distributions (N, K) in place of the given labels."""

    capturable = True
    multilabel = True
    makes = "probabilities"

    table: Tensor

    def setup(self, run: Run) -> None:
        self.table = self.table.to(run.device, run.dtype)

    def targets(self, batch: Batch, run: Run) -> Batch:
        return batch.with_target(self.table[batch.rows])
