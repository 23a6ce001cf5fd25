"""Predictions of each row, averaged over the epochs of a training: the evidence that audits judge
labels by.

These strategies have no name in the registry: they are built from rows, and leave the training
unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.data import Inputs
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy
from noiseproof.strategies.sweeps import per_row

COLUMNS = ("times", "missed", "doubt")


class _Averages(Strategy):
    """Sums by row: of predicted probabilities (N, K), and of times seen, wrong predictions and
    doubts (N, 3).
    """

    multilabel = True
    remembers: ClassVar[tuple[str, ...]] = ("probs", "sums")
    probs: Tensor
    sums: Tensor

    def _begin(self, num_rows: int, run: Run) -> None:
        self.probs = torch.zeros(num_rows, run.num_classes, device=run.device, dtype=torch.float32)
        self.sums = torch.zeros(num_rows, len(COLUMNS), device=run.device, dtype=torch.float32)

    @torch.no_grad()
    def _values(self, outs: Sequence[Output], labels: Tensor, run: Run) -> Tensor:
        """Return what is summed up, (b, K + 3), averaged over models: probabilities, one, label
        missed or not, doubt.
        """
        each = []
        for out in outs:
            probs = run.loss.probabilities(out).detach()
            missed = missed_labels(probs, labels)
            columns = [torch.ones_like(missed), missed, doubt(out)]
            each.append(torch.cat([probs, torch.stack([c.to(probs.dtype) for c in columns], 1)], 1))
        return torch.stack(each).mean(0).to(torch.float32)

    def _add(self, rows: Tensor, values: Tensor) -> None:
        K = self.probs.shape[1]
        self.probs.index_add_(0, rows, values[:, :K])
        self.sums.index_add_(0, rows, values[:, K:])

    def mean(self, name: str) -> Tensor:
        """Return ``probs`` (N, K), or one of the columns (N,), averaged over the times a row was
        seen.
        """
        times = self.sums[:, 0].clamp(min=1)
        if name == "probs":
            return self.probs / times[:, None]
        return self.sums[:, COLUMNS.index(name)] / times


def missed_labels(probs: Tensor, labels: Tensor) -> Tensor:
    """Return whether the given label of each row is not predicted, (b,).

    With several labels a row, (b, K), it is the share of labels that are not predicted.
    """
    if labels.dim() == 1:
        return (probs.argmax(1) != labels).to(probs.dtype)
    return ((probs > 0.5) != (labels > 0)).float().mean(1).to(probs.dtype)


@dataclass(eq=False)
class HeldOutAverages(_Averages):
    """Averages of rows ``x`` with ``labels`` that the run does not train on, updated at the end of
    each epoch.
    """

    x: Inputs
    labels: Tensor

    def setup(self, run: Run) -> None:
        self._begin(len(self.labels), run)
        self.labels = self.labels.to(run.device)

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        values = per_row(run, lambda rows, outs: self._values(outs, self.labels[rows], run), self.x)
        self._add(torch.arange(len(values), device=run.device), values)


class TrainingAverages(_Averages):
    """Averages of the training rows, from the outputs of each step before it learns from them: no
    extra pass.

    The outputs of methods that mix samples belong to no single row: they get a pass at the end of
    each epoch.
    """

    capturable = True
    observes = True
    remembers = (*_Averages.remembers, "before")

    def setup(self, run: Run) -> None:
        self._begin(run.num_rows, run)
        # Times seen before this epoch, over all rows; from a tensor, since a CUDA graph runs no
        # Python.
        self.before = 0.0

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        if not any(strategy.mixes for strategy in run.strategies):
            self._add(
                batch.all_rows, run.processes.gather(self._values(outs, batch.given, run), batch)
            )
        return outs

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        if self._times() == self.before:
            given = run.data.given
            models = [model.trained for model in run.models]
            values = per_row(
                run, lambda rows, outs: self._values(outs, given[rows], run), models=models
            )
            self._add(torch.arange(run.num_rows, device=run.device), values)
        self.before = self._times()

    def _times(self) -> float:
        return float(self.sums[:, 0].double().sum())


def doubt(out: Output) -> Tensor:
    """Return the noise that the head predicts for each row, (b,) in [0, 1): s/(1 + s) of ‖c‖² or of
    the mean scale; 1 − τ.
    """
    if out.attention is not None:
        return 1 - out.attention.detach().sigmoid()
    if out.root is not None:
        spread = out.root.detach().square().sum(1)
    elif out.scale is not None:
        spread = out.scale.detach().mean(1)
    else:
        return out.logits.new_zeros(len(out.logits))
    return spread / (1 + spread)
