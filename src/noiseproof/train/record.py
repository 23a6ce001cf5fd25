"""The record of a run: metrics of every epoch and, optionally, margin, weight and prediction of
every sample.

The record is the only part of a run that sees clean labels, and it does not influence the run.
"""

import csv
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.core.tensors import moved
from noiseproof.data import Inputs
from noiseproof.losses import Loss
from noiseproof.strategies import Batch, Run, Step, sweep
from noiseproof.train import checkpoint
from noiseproof.train.task import Task

Metrics = dict[str, float]
TOP = 5  # test accuracy is measured as top-1 and top-5

# Values of the rows that an epoch skips.
NOT_SEEN = {
    "loss": 0.0,
    "prediction": -1,
    "margin": math.nan,
    "weight": math.nan,
    "pull": math.nan,
    "trust": math.nan,
    "variance": math.nan,
}
# Metrics that a method may use to decide when to stop: the others need clean labels.
VISIBLE = ("epoch", "lr", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


class Record:
    """Losses and predictions of each training row in an epoch, and metrics on validation and test
    sets at its end.

    A step only stores the losses and predictions of its rows; metrics are computed once an epoch.
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        *,
        samples: bool = False,
        folder: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.task = task
        self.run = run
        self.folder = folder
        self.metrics: list[Metrics] = []  # of each epoch
        self.clock = clock
        self.started = clock()  # when the epoch started, by that clock
        self.truth = None if task.train.clean is None else task.train.clean.to(run.device)
        self.observed = True
        dtypes = {"loss": run.dtype, "prediction": torch.int64}
        if samples:
            names = ["margin", "weight", "pull"]
            if "attention" in run.loss.needs:
                names.append("trust")
            if run.loss.needs & {"root", "scale"}:
                names.append("variance")
            dtypes |= dict.fromkeys(names, torch.float32)
        self.samples = samples
        self.seen = {
            name: torch.full(
                (len(run.models), run.num_rows), NOT_SEEN[name], dtype=dtype, device=run.device
            )
            for name, dtype in dtypes.items()
        }
        if run.loss.multilabel:  # the prediction for each class, 0 or 1
            self.seen["prediction"] = self.seen["prediction"][..., None].repeat(
                1, 1, run.num_classes
            )

    def start_epoch(self, elapsed: float = 0.0) -> None:
        """Count the seconds of an epoch, of which ``elapsed`` have passed before."""
        self.started = self.clock() - elapsed

    @property
    def seconds(self) -> float:
        """Seconds of the epoch so far."""
        return self.clock() - self.started

    @torch.no_grad()
    def observe(self, batch: Batch, step: Step) -> None:
        """Store the outputs of a training step, with its dropout, augmentation and weights."""
        self.observed = bool(step.outs)
        loss = self.run.loss
        for m, out in enumerate(step.outs):
            scores = loss.scores(out)
            values = {"loss": step.losses[m], "prediction": _predicted(loss, scores)}
            if self.samples:
                values |= self._sample_values(m, scores, batch, step)
            for name, value in values.items():
                table = self.seen[name]
                gathered = self.run.processes.gather(value.to(table.dtype), batch)
                table[m, batch.all_rows] = gathered

    def _sample_values(self, m: int, scores: Tensor, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Return what is recorded of every sample where ``samples`` are asked for."""
        out = step.outs[m]
        weights = torch.ones_like(step.losses[m]) if step.weights is None else step.weights[m]
        values = {
            "margin": margin(scores, batch.given),
            "weight": weights,
            "pull": pull(self.run.loss, out, batch.label),
        }
        if "trust" in self.seen and out.attention is not None:
            values["trust"] = out.attention.sigmoid()
        if "variance" in self.seen:
            variance = self.run.loss.variance(out)
            assert variance is not None
            values["variance"] = variance.mean(1)
        return values

    def describe(self, config: dict[str, Any]) -> None:
        """Write the configuration and the given and clean labels of the run, from which it can be
        opened again.
        """
        assert self.folder is not None
        task = self.task
        about = {**config, "classes": task.train.classes, "source": task.source}
        checkpoint.write_checked(self.folder / "run.json", checkpoint.to_json(about))
        labels: dict[str, Tensor] = {}
        for part, data in (("", task.train), ("validation.", task.validation)):
            if data is None:
                continue
            labels[f"{part}given"] = data.given.to(self._label_dtype)
            labels[f"{part}index"] = data.index.int()
            if data.clean is not None:
                labels[f"{part}clean"] = data.clean.to(self._label_dtype)
            if data.soft is not None:
                labels[f"{part}soft"] = data.soft
        checkpoint.write_tensors(self.folder / "labels.safetensors", labels)

    @property
    def _label_dtype(self) -> torch.dtype:
        return torch.int16 if self.task.train.num_classes <= 2**15 else torch.int32

    def measure(self) -> dict[str, Tensor]:
        """Compute the metrics of the epoch, without waiting for the device."""
        run = self.run
        if not self.observed:
            self._sweep_training_set()
        metrics = self._training_metrics()
        if (held := self.task.validation) is not None:
            labels = [held.given] if held.clean is None else [held.given, held.clean]
            nll, _, _, accuracy, *clean = _evaluate(run, held.x, labels, held.soft)
            metrics |= {"validation_loss": nll, "validation_accuracy": accuracy}
            if clean:
                metrics["validation_accuracy_clean"] = clean[0]
        if (split := self.task.clean_validation) is not None:
            nll, _, _, accuracy = _evaluate(run, split.x, [split.y], split.soft)
            metrics |= {"clean_validation_loss": nll, "clean_validation_accuracy": accuracy}
        if (test := self.task.test) is not None:
            nll, top, joint, accuracy = _evaluate(run, test.x, [test.y], test.soft, top=TOP)
            metrics |= {"test_loss": nll, "test_accuracy": accuracy}
            metrics["test_exact_match" if run.loss.multilabel else f"test_top{TOP}"] = top
            if len(run.models) > 1:
                metrics["test_accuracy_ensemble"] = joint
        return metrics

    def _training_metrics(self) -> dict[str, Tensor]:
        given = self.run.data.given
        truth = given if self.truth is None else self.truth
        loss = self.seen["loss"].double().mean(0)
        predicted = self.seen["prediction"]
        if given.dim() == 2:  # each label of a row counts
            loss = loss[:, None].expand_as(given).flatten()
            given = given.flatten()
            truth = truth.flatten()
            predicted = predicted.flatten(1)
        hits_given, hits_truth = ((predicted == label).double().mean(0) for label in (given, truth))
        seen = predicted[0] >= 0
        wrong = seen & (given != truth)
        of_a_class = truth >= 0
        groups = [seen, seen & (given == truth), wrong, seen & of_a_class, wrong & of_a_class]
        columns = torch.stack([torch.ones_like(loss), loss, hits_given, hits_truth], 1)
        sums = torch.stack(groups).double() @ columns
        every, right, wrong_rows, known, corrected = sums[:, 1:] / sums[:, :1]
        metrics = {"train_loss": every[0], "train_accuracy": every[1]}
        if self.truth is not None:
            metrics |= {
                "train_loss_clean": right[0],
                "train_loss_flipped": wrong_rows[0],
                "train_accuracy_clean": right[1],
                "false_label_accuracy": wrong_rows[1],
                "train_accuracy_true": known[2],
                "train_accuracy_corrected": corrected[2],
            }
        return metrics

    def end_epoch(self, measured: dict[str, Tensor]) -> Metrics:
        """End the epoch: store and write its metrics."""
        run = self.run
        metrics: Metrics = {
            "epoch": run.epoch + 1,
            "lr": float(run.models[0].optimizer.param_groups[0]["lr"]),
            "seconds": self.seconds,
        }
        values = torch.stack(list(measured.values())).tolist()
        metrics |= dict(zip(measured, values, strict=True))
        self.metrics.append(metrics)
        if self.folder is not None and run.processes.rank == 0:
            self.write_metrics()
            if self.samples:
                self._write_samples(self.folder / "samples" / f"epoch-{run.epoch + 1:04d}")
        for name, table in self.seen.items():
            table.fill_(NOT_SEEN[name])
        return metrics

    def _sweep_training_set(self) -> None:
        """Observe the training rows at the end of an epoch whose steps mix samples, where no
        output is of one row.
        """
        run = self.run
        for rows, counts, outs in sweep(run, models=[model.trained for model in run.models]):
            label = run.labels(rows)
            count = len(rows)
            if run.processes.world_size > 1:  # one process does not wait for its device
                count = int(run.processes.sum(counts.sum()))
            batch = Batch(
                x=rows,  # which nothing reads
                target=label,
                given=run.data.given[rows],
                rows=rows,
                all_rows=rows,
                count=count,  # those that fill up are the last
                soft=label if label.is_floating_point() else None,
            )
            batch = replace(batch, all_rows=run.processes.gather(rows, batch))
            losses = torch.stack([_plain_loss(run.loss, out, label) for out in outs])
            self.observe(batch, Step(outs, losses, torch.full_like(losses, math.nan)))

    def write_metrics(self) -> None:
        """Write the metrics of all epochs."""
        assert self.folder is not None
        checkpoint.write_checked(self.folder / "record.csv", to_csv(self.metrics))

    def _write_samples(self, path: Path) -> None:
        """Write the samples of the first model.

        Half precision is enough for figures, except for values without a bound.
        """
        dtypes = {
            "prediction": self._label_dtype,
            "pull": torch.float32,
            "variance": torch.float32,
        }
        tensors = {
            name: table[0].to(dtypes.get(name, torch.float16))
            for name, table in self.seen.items()
            if name != "loss"
        }
        checkpoint.write_tensors(path.with_suffix(".safetensors"), tensors)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.metrics, "seen": self.seen, "observed": self.observed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.metrics = state["rows"]
        self.observed = state["observed"]
        for name, values in self.seen.items():
            # otherwise samples are recorded only since the run was resumed
            if name in state["seen"]:
                values.copy_(state["seen"][name])


def pull(loss: Loss, out: Output, label: Tensor) -> Tensor:
    """Return ½‖∂L/∂z‖₁ of each row, the gradient on its logits.

    Equals w(Δ) if L is a function of Δ (curriculum paper, §4).

    >>> from noiseproof.losses import get_loss
    >>> # p(1 − p)
    >>> pull(
    ...     get_loss("mae", reduction="none"), Output(torch.tensor([[1.0, 0.0]])), torch.tensor([0])
    ... )
    tensor([0.1966])
    """
    with torch.enable_grad():
        logits = out.logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(out._replace(logits=logits), label).sum(), logits)
    return gradient.abs().sum(1) / 2


@torch.no_grad()
def _evaluate(
    run: Run, x: Inputs, labels: Sequence[Tensor], soft: Tensor | None = None, top: int = 1
) -> list[Tensor]:
    """Return the nll, accuracy among the ``top`` and of the ensemble on ``labels[0]``, and accuracy
    on each of ``labels``.

    All but the ensemble's are averages over the models. Rows of no class (−1) do not count.
    The nll of ``soft`` labels (N, K) is −Σ_k q_k log p_k.
    """
    parts = [
        (rows, counts, torch.stack([run.loss.scores(out) for out in outs], 1))
        for rows, counts, outs in sweep(run, x)
    ]
    # scores: (n, M, K)
    rows, counts, scores = (torch.cat(column) for column in zip(*parts, strict=True))
    columns = [moved(column, run.device)[rows] for column in labels]
    if run.loss.multilabel:
        values = _label_values(scores, columns)
        masks = counts.double().expand(len(values), -1)
    else:
        if soft is not None:
            soft = moved(soft, run.device)[rows, None]
        values = _class_values(scores, columns, soft, top)
        known = [(counts & (column >= 0)).double() for column in columns]
        masks = torch.stack([known[0]] * 3 + known)
    sums = torch.stack([(torch.stack(values) * masks).sum(1), masks.sum(1)])
    total, count = run.processes.sum(sums)
    return list(total / count)


def _class_values(
    scores: Tensor, columns: Sequence[Tensor], soft: Tensor | None, top: int
) -> list[Tensor]:
    """Return the values of each row (n,) that ``_evaluate`` averages."""
    y = columns[0].clamp(min=0)
    log_p = scores.log_softmax(2).double()
    predicted = scores.argmax(2)
    if soft is None:
        nll = -log_p.gather(2, y[:, None, None].expand(-1, scores.shape[1], 1))[..., 0]
    else:
        nll = -(soft * log_p[..., : soft.shape[2]]).sum(2)  # LN's dummy class has no label
    best = scores.topk(min(top, scores.shape[2]), 2).indices
    return [
        nll.mean(1),
        (best == y[:, None, None]).any(2).double().mean(1),
        (log_p.logsumexp(1).argmax(1) == y).double(),
        *((predicted == column[:, None]).double().mean(1) for column in columns),
    ]


def _label_values(scores: Tensor, columns: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of ``_class_values`` for rows with several labels, in shares of their K
    labels.

    A top hit is a row without error.
    """
    y = columns[0].to(scores.dtype)
    predicted = scores > 0
    nll = F.binary_cross_entropy_with_logits(scores, y[:, None].expand_as(scores), reduction="none")
    return [
        nll.double().mean((1, 2)),
        (predicted == (y > 0)[:, None]).all(2).double().mean(1),
        ((scores.sigmoid().mean(1) > 0.5) == (y > 0)).double().mean(1),
        *((predicted == (column > 0)[:, None]).double().mean((1, 2)) for column in columns),
    ]


def _plain_loss(loss: Loss, out: Output, label: Tensor) -> Tensor:
    """Return the cross entropy of each row, (b,), summed over classes if it has several labels."""
    scores = loss.scores(out)
    if loss.multilabel:
        return F.binary_cross_entropy_with_logits(scores, label, reduction="none").sum(1)
    return F.cross_entropy(scores, label, reduction="none")


def _predicted(loss: Loss, scores: Tensor) -> Tensor:
    """Return the predicted class of each row, (b,); 0 or 1 for each class (b, K) if rows have
    several.
    """
    if loss.multilabel:
        return (scores > 0).long()
    return scores.argmax(1)


def best_epoch(metrics: Sequence[Metrics], metric: str) -> Metrics | None:
    """Return the metrics of the first epoch with the largest ``metric``; None if it was not
    measured.
    """
    measured = [row for row in metrics if not math.isnan(row.get(metric, math.nan))]
    return max(measured, key=lambda row: row[metric]) if measured else None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows, such as metrics, as CSV; numbers are read back exactly."""
    text = io.StringIO()
    if rows:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(text, list(names), restval="nan", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
