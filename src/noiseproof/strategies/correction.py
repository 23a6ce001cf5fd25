"""Label correction: targets move from the given label to the model's own prediction (SLN paper,
section 3.3).
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import count, flag, word
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import log_probs, per_row


@register("label-correction")
@dataclass(eq=False)
class LabelCorrection(Strategy):
    """Before each epoch from ``start`` on (counted from 0):
    target = ω·onehot(given) + (1 − ω)·prediction.

    ω is each sample's loss, scaled to [0, 1] over the whole set (SLN paper, section 3.3; its Fig.
    10 shows why not 1 − ω). Loss and prediction are from the model that predicts, the momentum
    model where there is one, on augmented inputs.

    Args:
        soft: mix in the predicted distribution (Clothing1M) instead of its largest class (CIFAR).
        invert: 1 − ω in place of ω (SLN paper, Appendix D).
        against: measure the loss against the ``current`` targets of the last correction, as the
            released code does on CIFAR, or against the ``original`` labels, as in the paper.
    """

    capturable = True
    remembers = ("kept", "predicted")
    makes = "probabilities"

    start: int = count(0)
    soft: bool = flag(False)
    invert: bool = flag(False)
    against: Literal["current", "original"] = word(("current", "original"), "current")
    # (N,): the share of the given label in the target
    kept: Tensor | None = field(default=None, init=False)
    # (N,) classes or (N, K) distributions: the other part of the target
    predicted: Tensor | None = field(default=None, init=False)

    def start_epoch(self, run: Run) -> None:
        if run.epoch < self.start:
            return

        def measure(rows: Tensor, outs: list[Output]) -> Tensor:
            """Return the loss of each row, and the class or distribution predicted for it."""
            log_p = log_probs(run.loss, outs)
            loss = _cross_entropy(log_p, run.labels(rows))
            if self.against == "current" and self.kept is not None and self.predicted is not None:
                kept = self.kept[rows]
                loss = kept * loss + (1 - kept) * _cross_entropy(log_p, self.predicted[rows])
            prediction = log_p.argmax(1, keepdim=True).to(log_p.dtype)
            if self.soft:
                prediction = log_p.exp()
            return torch.cat([loss[:, None], prediction], 1)

        measured = per_row(run, measure, augment="label-correction")
        kept = _kept_share(measured[:, 0])
        if self.invert:
            kept = 1 - kept
        predicted = measured[:, 1:] if self.soft else measured[:, 1].long()
        if self.kept is None or self.predicted is None:
            self.kept = kept
            self.predicted = predicted
        else:  # in place: a CUDA graph holds their addresses
            self.kept.copy_(kept)
            self.predicted.copy_(predicted)

    def phase(self, run: Run) -> bool:
        return self.kept is None

    def targets(self, batch: Batch, run: Run) -> Batch:
        if self.kept is None or self.predicted is None:
            return batch
        kept = self.kept[batch.rows]
        predicted = self.predicted[batch.rows]
        return batch.with_target(mixed(kept, batch.soft_target(run.num_classes, kept), predicted))


def corrected_targets(
    log_probs: Tensor,
    given: Tensor,
    *,
    current: Tensor | None = None,
    soft: bool = False,
) -> Tensor:
    """Return ω·onehot(given) + (1 − ω)·prediction for all rows (N, K), before an epoch of your own
    training loop.

    Args:
        log_probs: (N, K), predicted log-probabilities: ``average(x).log_softmax(1)``.
        given: (N,), the given labels, or their distributions (N, K).
        current: (N, K), the targets of the last epoch, against which the loss is measured; by
            default the given labels.
        soft: mix in the predicted distribution instead of its largest class.

    >>> log_probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]).log()
    >>> # the second row has the largest loss: ω = 1
    >>> corrected_targets(log_probs, torch.tensor([0, 1, 1]))
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.6309, 0.3691]])
    """
    if given.dim() == 1:
        given = F.one_hot(given, log_probs.shape[1])
    label = given.to(log_probs.dtype)
    target = label if current is None else current
    kept = _kept_share(_cross_entropy(log_probs, target))
    return mixed(kept, label, log_probs.exp() if soft else log_probs.argmax(1))


def _cross_entropy(log_p: Tensor, target: Tensor) -> Tensor:
    """Return the loss (b,) of classes (b,) or distributions (b, K)."""
    if target.dim() == 1:
        return -log_p.gather(1, target[:, None])[:, 0]
    return -(target * log_p).sum(1)


def _kept_share(losses: Tensor) -> Tensor:
    """Return ω from the losses (N,) of all rows."""
    low, high = losses.aminmax()
    # 1 where all losses are equal
    return torch.where(high > low, (losses - low) / (high - low), 1.0)


def mixed(kept: Tensor, target: Tensor, predicted: Tensor) -> Tensor:
    """Return kept·target + (1 − kept)·predicted (b, K), for predicted classes (b,) or distributions
    (b, K).
    """
    if predicted.dim() == 1:
        predicted = F.one_hot(predicted, target.shape[1]).to(kept.dtype)
    return kept[:, None] * target + (1 - kept[:, None]) * predicted
