"""Tables of past predictions: targets that follow them (NAL, SELC), or that regularise the loss
(ELR, ELR+).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import count, flag, number
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import evaluating, per_row


class _Memory(Strategy):
    """A distribution for each sample and model; every process holds the full table and writes all
    rows of a step.
    """

    capturable = True  # the table is written in place
    remembers: ClassVar[tuple[str, ...]] = ("table",)
    table: Tensor  # (N, M, K)

    def _write(self, values: Tensor, batch: Batch, run: Run) -> None:
        self.table[batch.all_rows] = run.processes.gather(values, batch)


@register("estimated-targets")
@dataclass(eq=False)
class EstimatedTargets(_Memory):
    """Targets that follow the model: t ← α·t + (1 − α)·softmax(z), started from the given label
    (NAL paper; SELC).

    z are the scores of the step itself, with augmentation and dropout, and the loss of the step
    already uses the new t. Updates happen in the epoch ``start`` (counted from 0) and in every
    ``every``-th epoch after it; from ``start`` on t is the target in all epochs. Each model has its
    own targets. With ``spare``, a class that it predicts for no row by then keeps its labels, as it
    could not come back (not in papers). NAL: start 59, every 10 (CIFAR; 199 on WebVision;
    ANIMAL-10N: 40, every 1). SELC, whose loss is cross entropy: every 1, start 40 on CIFAR-10 (30
    with 40 or 60 % symmetric noise), 20 to 40 on CIFAR-100.
    """

    makes = "probabilities"
    remembers = ("table", "keeps")

    start: int = count(0)
    every: int = count(1, 1)
    alpha: float = number("[0, 1]", 0.9)
    spare: bool = flag(True)

    def setup(self, run: Run) -> None:
        given = run.data.labels
        given = F.one_hot(given, run.num_classes) if given.dim() == 1 else given
        self.table = given.to(run.device, run.dtype)[:, None].repeat(1, len(run.models), 1)
        # (N, M): rows of classes that were not predicted at ``start``
        self.keeps = torch.zeros(self.table.shape[:2], dtype=torch.bool, device=run.device)

    def start_epoch(self, run: Run) -> None:
        if self.spare and run.epoch == self.start > 0:  # an untrained model says nothing of a class
            best = per_row(
                run,
                lambda rows, outs: torch.stack([run.loss.scores(out).argmax(1) for out in outs], 1),
            )
            unknown = torch.ones(
                run.num_classes, best.shape[1], dtype=torch.bool, device=best.device
            )
            self.keeps.copy_(unknown.scatter(0, best, False)[run.data.given])

    def phase(self, run: Run) -> tuple[bool, bool]:
        """Return whether targets follow the model in this epoch, and whether they are updated."""
        since = run.epoch - self.start
        return since >= 0, since >= 0 and since % self.every == 0

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        follows, updates = self.phase(run)
        if not follows:
            return batch
        if updates:
            before = self.table[batch.rows]  # (b, M, K)
            after = torch.lerp(before, _predictions(outs, run), 1 - self.alpha)
            after = torch.where(self.keeps[batch.rows][..., None], before, after)
            self._write(after, batch, run)
        target = self.table[batch.rows]
        return batch.with_target(target[:, 0] if len(outs) == 1 else target.movedim(1, 0))


@register("target-memory")
@dataclass(eq=False)
class TargetMemory(_Memory):
    """The targets of early-learning regularisation: t ← β·t + (1 − β)·p, zero at first (Liu et al.
    2020; ELR).

    p is the prediction of the step itself, as a constant; the loss ``elr`` reads the new t from
    ``Output.memory``. Each model has its own memory. CIFAR-10: β = 0.7; CIFAR-100: 0.9.

    Args:
        clip: clip p to [clip, 1 − clip] and renormalise it, as the released code does.
    """

    adds = frozenset({"memory"})
    reweigh = False  # whether the memory is used without a loss that reads it

    beta: float = number("[0, 1]", 0.7)
    clip: float = number("[0, 0.5)", 1e-4)

    def setup(self, run: Run) -> None:
        self.table = torch.zeros(
            run.num_rows, len(run.models), run.num_classes, device=run.device, dtype=run.dtype
        )

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        self._remember(_predictions(outs, run), batch, run)
        return self._recall(outs, batch)

    def _remember(self, p: Tensor, batch: Batch, run: Run) -> None:
        """Update the rows of the step with ``p`` (b, M, K)."""
        if self.clip:
            p = F.normalize(p.clamp(self.clip, 1 - self.clip), p=1, dim=2)
        # never leaves [0, 1]
        self._write(torch.lerp(self.table[batch.rows], p, 1 - self.beta), batch, run)

    def _recall(self, outs: list[Output], batch: Batch) -> list[Output]:
        memory = self.table[batch.rows]
        return [out._replace(memory=memory[:, m]) for m, out in enumerate(outs)]


@register("exchanged-memory")
@dataclass(eq=False)
class ExchangedMemory(TargetMemory):
    """Two models, each regularised by the past predictions of the other (ELR+): p is the prediction
    of the other one.

    It comes from the model that predicts, the momentum model where there is one, in evaluation mode
    (the released code leaves its batch normalisation in training mode) and from inputs before they
    are mixed: name this strategy before ``mixup``, which then mixes memories like inputs and
    targets. ELR+ is elr × (exchanged-memory, mixup, momentum:alpha=0.997).

    Args:
        clip: zero by default, as in the released code.
        reweigh: multiply targets by the memory and renormalise them, as the released code does on
            CIFAR-100.
    """

    models = 2

    clip: float = number("[0, 0.5)", 0.0)
    reweigh: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.makes = "probabilities" if self.reweigh else "classes"

    def targets(self, batch: Batch, run: Run) -> Batch:
        run.processes.broadcast_buffers(run.evaluated)
        with torch.no_grad(), evaluating(run.evaluated):
            outs = [run.forward(model, batch.x) for model in run.evaluated]
        self._remember(_predictions(outs, run).flip(1), batch, run)
        return batch

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        return self._recall(outs, batch)

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        if not self.reweigh:
            return batch
        target = batch.soft_target(run.num_classes, self.table)
        # (M, b, K)
        weighed = target * torch.stack([out.memory for out in outs if out.memory is not None])
        total = weighed.sum(2, keepdim=True)
        return batch.with_target(torch.where(total > 0, weighed / total, target))


def _predictions(outs: Sequence[Output], run: Run) -> Tensor:
    """Return predicted distributions (b, M, K), as constants."""
    return torch.stack([run.loss.scores(out).detach().softmax(1) for out in outs], 1)
