"""Label correction: targets move from the given label to the model's own prediction (paper 001, section 3.3)."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_count, check_flag
from noiseproof.strategies.base import Batch, Strategy, register
from noiseproof.strategies.run import Run

Against = Literal["current", "original"]


@register("label-correction")
class LabelCorrection(Strategy):
    """Before each epoch from ``start`` on (counted from 0): target = ω·onehot(given) + (1 − ω)·prediction.

    ω is each sample's loss, scaled over the whole set to [0, 1] (001 section 3.3; its Fig. 10 shows why not 1 − ω).
    Loss and prediction are those of the model that predicts, the momentum model where there is one, on augmented
    inputs.

    Args:
        soft: mix in the predicted distribution (Clothing1M) instead of its largest class (CIFAR).
        invert: 1 − ω in place of ω (001 Appendix D).
        against: the loss is measured against the ``current`` targets, which the last correction made, as the released
            code does on CIFAR; or against the ``original`` labels, as the paper's text has it.
    """

    capturable = True

    def __init__(self, start: int, soft: bool = False, invert: bool = False, against: Against = "current") -> None:
        self.start = check_count("start", start, 0)
        self.soft = check_flag("soft", soft)
        self.invert = check_flag("invert", invert)
        if against not in get_args(Against):
            raise ValueError(f"Expected `against` to be one of {', '.join(get_args(Against))}, got {against!r}.")
        self.against: Against = against
        self.kept: Tensor | None = None  # (N,): the share of the given label in the target
        self.predicted: Tensor | None = None  # (N,) classes or (N, K) distributions: what the rest goes to

    def start_epoch(self, run: Run) -> None:
        if run.epoch < self.start:
            return
        losses, predictions = [], []
        for rows, counts, outs in run.sweep(augment="label-correction"):
            log_p = run.log_probs(outs)
            loss = -log_p.gather(1, run.data.given[rows, None])[:, 0]
            if self.against == "current" and self.kept is not None and self.predicted is not None:
                kept, last = self.kept[rows], self.predicted[rows]
                other = (last * -log_p).sum(1) if self.soft else -log_p.gather(1, last[:, None])[:, 0]
                loss = kept * loss + (1 - kept) * other
            losses.append((rows, counts, loss))
            predictions.append((rows, counts, log_p.exp() if self.soft else log_p.argmax(1)))
        loss = run.merge(losses)
        low, high = loss.aminmax()
        omega = torch.where(high > low, (loss - low) / (high - low), 1.0)  # 1: nothing to tell them apart by
        kept, predicted = 1 - omega if self.invert else omega, run.merge(predictions)
        if self.kept is None or self.predicted is None:
            self.kept, self.predicted = kept, predicted
        else:  # in place: a CUDA graph knows where they lie
            self.kept.copy_(kept)
            self.predicted.copy_(predicted)

    def phase(self, run: Run) -> bool:
        return self.kept is None

    def targets(self, batch: Batch, run: Run) -> Batch:
        if self.kept is None or self.predicted is None:
            return batch
        kept, predicted = self.kept[batch.rows, None], self.predicted[batch.rows]
        if not self.soft:
            predicted = F.one_hot(predicted, run.num_classes).to(kept.dtype)
        return batch.with_target(kept * batch.soft_target(run.num_classes, kept) + (1 - kept) * predicted)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "predicted": self.predicted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept, self.predicted = state["kept"], state["predicted"]
