"""What a run leaves behind: metrics of every epoch; where asked for, margin, weight and prediction of every sample.

The record is the only part of a run that knows clean labels, and it changes nothing of the run.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.margin import margin
from noiseproof.data import Inputs
from noiseproof.strategies import Batch, Run, Step
from noiseproof.train import checkpoint
from noiseproof.train.task import Task

Row = dict[str, float]

NOT_SEEN = {"margin": math.nan, "weight": math.nan, "prediction": -1}  # of rows that an epoch leaves out
# What a method may look at to decide when to stop: everything else takes clean labels to know.
VISIBLE = ("epoch", "lr", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


class Record:
    """Sums over an epoch's training batches, and passes over the validation and test sets at its end."""

    def __init__(self, task: Task, run: Run, *, samples: bool = False, folder: Path | None = None) -> None:
        self.rows: list[Row] = []
        self.task = task
        self.folder = folder
        self.truth = None if task.train.clean is None else task.train.clean.to(run.device)
        # Given labels that are [right, wrong, of an input of no class], where the truth is known, times
        # [rows, loss, agrees with given, with truth].
        self.sums = torch.zeros(3, 4, dtype=torch.float64, device=run.device)
        self.observed = True
        self.samples: dict[str, Tensor] = {}
        if samples:
            dtypes = {"margin": torch.float32, "weight": torch.float32, "prediction": torch.int32}
            self.samples = {
                name: torch.full((run.num_rows,), NOT_SEEN[name], dtype=dtype, device=run.device)
                for name, dtype in dtypes.items()
            }

    @torch.no_grad()
    def observe(self, batch: Batch, step: Step, run: Run) -> None:
        """Add a training step, as the models saw it: with dropout, augmentation and the weights of that moment."""
        self.observed = bool(step.outs)
        if not self.observed:
            return
        scores = torch.stack([run.loss.scores(out) for out in step.outs])  # (M, b, K)
        predicted = scores.argmax(2)
        self._add(batch.rows, batch.counts, batch.given, step.losses, predicted)
        if self.samples:
            # Once for all processes; of several models, the first speaks.
            weights = torch.ones_like(step.losses[0]) if step.weights is None else step.weights[0]
            columns = {"margin": margin(scores[0], batch.given), "weight": weights, "prediction": predicted[0]}
            for name, values in columns.items():
                self.samples[name][batch.all_rows] = run.gather(values.to(self.samples[name].dtype), batch)

    def _add(self, rows: Tensor, counts: Tensor | None, given: Tensor, losses: Tensor, predicted: Tensor) -> None:
        """``losses`` and ``predicted`` (M, b), averaged over models."""
        one = torch.ones_like(losses[0]) if counts is None else counts.to(losses.dtype)
        truth = given if self.truth is None else self.truth[rows]
        agree = (predicted == given).to(losses.dtype).mean(0), (predicted == truth).to(losses.dtype).mean(0)
        columns = torch.stack([one, one * losses.mean(0), one * agree[0], one * agree[1]], 1).double()  # (b, 4)
        wrong, foreign = given != truth, truth < 0
        self.sums += torch.stack([~wrong, wrong & ~foreign, foreign]).double() @ columns

    def end_epoch(self, run: Run, seconds: float) -> Row:
        """Close the epoch: its metrics as one row."""
        if not self.observed:
            self._sweep_training_set(run)
        sums = run.sum(self.sums)
        right, flipped = sums[0].tolist(), sums[1:].sum(0).tolist()
        of_classes, every = sums[:2].sum(0).tolist(), sums.sum(0).tolist()
        self.sums.zero_()
        row: Row = {"epoch": run.epoch + 1, "lr": float(run.optimizers[0].param_groups[0]["lr"]), "seconds": seconds}
        row |= {"train_loss": _ratio(every[1], every[0]), "train_accuracy": _ratio(every[2], every[0])}
        if self.truth is not None:
            row |= {
                "train_loss_clean": _ratio(right[1], right[0]),
                "train_loss_flipped": _ratio(flipped[1], flipped[0]),
                "train_accuracy_clean": _ratio(right[2], right[0]),
                "false_label_accuracy": _ratio(flipped[2], flipped[0]),
                "train_accuracy_true": _ratio(of_classes[3], of_classes[0]),
            }
        if (held := self.task.validation) is not None:
            found = _evaluate(run, held.x, [held.given] if held.clean is None else [held.given, held.clean])
            row |= {"validation_loss": found["loss"], "validation_accuracy": found["accuracy"]}
            if held.clean is not None:
                row["validation_accuracy_clean"] = found["accuracy_1"]
        if (test := self.task.test) is not None:
            row |= {f"test_{name}": value for name, value in _evaluate(run, test.x, [test.y], top=5).items()}
        self.rows.append(row)
        if self.folder is not None and run.rank == 0:
            self._write(run.epoch)
        for name, values in self.samples.items():
            values.fill_(NOT_SEEN[name])
        return row

    def _sweep_training_set(self, run: Run) -> None:
        """For steps that mix samples, whose outputs belong to none: what the models say of each at the epoch's end."""
        given = run.data.given.to(run.device)
        self.sums.zero_()
        for rows, counts, outs in run.sweep():
            scores = torch.stack([run.loss.scores(out) for out in outs])
            losses = torch.stack([F.cross_entropy(s, given[rows], reduction="none") for s in scores])
            self._add(rows, counts, given[rows], losses, scores.argmax(2))

    def _write(self, epoch: int) -> None:
        assert self.folder is not None
        checkpoint.write_text(self.folder / "record.csv", to_csv(self.rows))
        if self.samples:
            compact = {"margin": torch.float16, "weight": torch.float16, "prediction": torch.int16}
            if self.task.train.num_classes > 2**15:
                del compact["prediction"]
            tensors = {name: values.to(compact.get(name, values.dtype)) for name, values in self.samples.items()}
            checkpoint.write_tensors(self.folder / "samples" / f"epoch-{epoch + 1:04d}.safetensors", tensors)

    def state_dict(self, run: Run) -> dict[str, Any]:
        return {"rows": self.rows, "sums": run.sum(self.sums), "samples": self.samples, "observed": self.observed}

    def load_state_dict(self, state: dict[str, Any], run: Run) -> None:
        self.rows = state["rows"]
        self.observed = state["observed"]
        if run.rank == 0:  # the sum over all processes is this one's from here on
            self.sums.copy_(state["sums"])
        for name, values in self.samples.items():
            if name in state["samples"]:  # else they were not asked for until now
                values.copy_(state["samples"][name])


def _ratio(sum_: float, count: float) -> float:
    return sum_ / count if count else math.nan


@torch.no_grad()
def _evaluate(run: Run, x: Inputs, labels: Sequence[Tensor], top: int | None = None) -> Row:
    """Mean nll and accuracy against ``labels[0]``, averaged over the models, accuracy against each further column.

    Rows of no class (−1) do not count. Two models are also joined: the mean of their predicted distributions.
    """
    columns = [column.to(run.device) for column in labels]
    several = len(run.evaluated) > 1
    total: Tensor = torch.zeros(4 + len(columns), 2, dtype=torch.float64, device=run.device)
    for rows, counts, outs in run.sweep(x):
        scores = torch.stack([run.loss.scores(out) for out in outs])  # (M, b, K)
        log_p = scores.log_softmax(2).double()
        known = [counts & (column[rows] >= 0) for column in columns]
        y = columns[0][rows].clamp(min=0)
        predicted = scores.argmax(2)
        nll = -log_p.gather(2, y.expand(len(outs), -1)[..., None])[..., 0].mean(0)
        best = scores.topk(min(top or 1, scores.shape[2]), 2).indices
        found = [
            nll,
            (best == y[:, None]).any(2).double().mean(0),
            (log_p.logsumexp(0).argmax(1) == y).double(),
            (predicted == y).double().mean(0),
            *((predicted == column[rows]).double().mean(0) for column in columns[1:]),
        ]
        masks = [known[0]] * 4 + known[1:]
        total[: len(found)] += torch.stack(
            [torch.stack([(v * k).sum(), k.sum().double()]) for v, k in zip(found, masks, strict=True)]
        )
    nll_, best_, joint, *accuracies = (_ratio(*pair) for pair in run.sum(total).tolist())
    row: Row = {"loss": nll_, "accuracy": accuracies[0]}
    row |= {f"accuracy_{i}": accuracies[i] for i in range(1, len(columns))}
    if top:
        row[f"top{top}"] = best_
    if several:
        row["accuracy_ensemble"] = joint
    return row


def best_row(rows: Sequence[Row], metric: str) -> Row | None:
    """The epoch of the largest ``metric``, the first of equals; None where it was not measured."""
    measured = [row for row in rows if not math.isnan(row.get(metric, math.nan))]
    return max(measured, key=lambda row: row[metric]) if measured else None


def to_csv(rows: Sequence[Row]) -> str:
    """The record as CSV; numbers read back exactly."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
