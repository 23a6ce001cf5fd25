"""The record of a run: metrics of every epoch and, optionally, margin, weight and prediction of
every sample.

The record is the only part of a run that sees clean labels, and it does not influence the run.
"""

import csv
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
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
from noiseproof.strategies import Batch, Run, Step, per_row, sweep
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
            dtypes |= {"margin": torch.float32, "weight": torch.float32, "pull": torch.float32}
            dtypes |= {"trust": torch.float32} if "attention" in run.loss.needs else {}
            dtypes |= {"variance": torch.float32} if run.loss.needs & {"root", "scale"} else {}
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
        if not self.observed:
            return
        loss = self.run.loss
        scores = [loss.scores(out) for out in step.outs]
        for m, model_scores in enumerate(scores):
            self._store("loss", m, step.losses[m], batch)
            self._store("prediction", m, _predicted(loss, model_scores), batch)
            if self.samples:
                weights = (
                    torch.ones_like(step.losses[m]) if step.weights is None else step.weights[m]
                )
                self._store("margin", m, margin(model_scores, batch.given), batch)
                self._store("weight", m, weights, batch)
                self._store("pull", m, pull(loss, step.outs[m], batch.label), batch)
                if (attention := step.outs[m].attention) is not None and "trust" in self.seen:
                    self._store("trust", m, attention.sigmoid(), batch)
                if (
                    "variance" in self.seen
                    and (variance := loss.variance(step.outs[m])) is not None
                ):
                    self._store("variance", m, variance.mean(1), batch)

    def _store(self, name: str, m: int, values: Tensor, batch: Batch) -> None:
        table = self.seen[name]
        table[m, batch.all_rows] = self.run.processes.gather(values.to(table.dtype), batch)

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
            if data is not None:
                labels |= {
                    f"{part}given": data.given.to(self._label_dtype),
                    f"{part}index": data.index.int(),
                }
                labels |= (
                    {} if data.clean is None else {f"{part}clean": data.clean.to(self._label_dtype)}
                )
                labels |= {} if data.soft is None else {f"{part}soft": data.soft}
        checkpoint.write_tensors(self.folder / "labels.safetensors", labels)

    @property
    def _label_dtype(self) -> torch.dtype:
        return torch.int16 if self.task.train.num_classes <= 2**15 else torch.int32

    def measure(self) -> list[Tensor]:
        """Compute the sums that the metrics of the epoch consist of, without waiting for the
        device.
        """
        run = self.run
        if not self.observed:
            self._sweep_training_set()
        measured = [self._train_sums()]
        if (held := self.task.validation) is not None:
            labels = [held.given] if held.clean is None else [held.given, held.clean]
            measured.append(_evaluate(run, held.x, labels, held.soft))
        if (clean := self.task.clean_validation) is not None:
            measured.append(_evaluate(run, clean.x, [clean.y], clean.soft))
        if (test := self.task.test) is not None:
            measured.append(_evaluate(run, test.x, [test.y], test.soft, top=TOP))
        return measured

    def _train_sums(self) -> Tensor:
        """[all, correct, wrong, of a class, wrong and of a class] × [rows, loss, hits of given, of
        true label].
        """
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
        flipped = given != truth
        of_a_class = truth >= 0
        groups = [
            seen,
            seen & ~flipped,
            seen & flipped,
            seen & of_a_class,
            seen & flipped & of_a_class,
        ]
        masks = torch.stack(groups).double()
        return masks @ torch.stack([torch.ones_like(loss), loss, hits_given, hits_truth], 1)

    def end_epoch(self, measured: list[Tensor]) -> Metrics:
        """End the epoch: compute, store and write its metrics."""
        run = self.run
        metrics: Metrics = {
            "epoch": run.epoch + 1,
            "lr": float(run.models[0].optimizer.param_groups[0]["lr"]),
            "seconds": self.seconds,
        }
        sums = [tensor.tolist() for tensor in measured]
        every, correct, wrong, known, corrected = sums.pop(0)
        metrics |= {
            "train_loss": _ratio(every[1], every[0]),
            "train_accuracy": _ratio(every[2], every[0]),
        }
        if self.truth is not None:
            metrics |= {
                "train_loss_clean": _ratio(correct[1], correct[0]),
                "train_loss_flipped": _ratio(wrong[1], wrong[0]),
                "train_accuracy_clean": _ratio(correct[2], correct[0]),
                "false_label_accuracy": _ratio(wrong[2], wrong[0]),
                "train_accuracy_true": _ratio(known[3], known[0]),
                "train_accuracy_corrected": _ratio(corrected[3], corrected[0]),
            }
        if self.task.validation is not None:
            nll, _, _, accuracy, *clean = (_ratio(*pair) for pair in sums.pop(0))
            metrics |= {"validation_loss": nll, "validation_accuracy": accuracy}
            if clean:
                metrics["validation_accuracy_clean"] = clean[0]
        if self.task.clean_validation is not None:
            nll, _, _, accuracy = (_ratio(*pair) for pair in sums.pop(0))
            metrics |= {"clean_validation_loss": nll, "clean_validation_accuracy": accuracy}
        if self.task.test is not None:
            nll, best, joint, accuracy = (_ratio(*pair) for pair in sums.pop(0))
            metrics |= {"test_loss": nll, "test_accuracy": accuracy}
            metrics["test_exact_match" if run.loss.multilabel else f"test_top{TOP}"] = best
            if len(run.models) > 1:
                metrics["test_accuracy_ensemble"] = joint
        self.metrics.append(metrics)
        if self.folder is not None and run.processes.rank == 0:
            self._write(run.epoch)
        for name, values in self.seen.items():
            values.fill_(NOT_SEEN[name])
        return metrics

    def _sweep_training_set(self) -> None:
        """Evaluate the training rows at the end of an epoch whose steps mix samples, where no
        output is of one row.
        """
        run = self.run
        names = ["loss", "prediction", *(("margin", "pull") if self.samples else ())]

        def measure(rows: Tensor, outs: list[Output]) -> Tensor:  # (b, names, M)
            given = run.data.given[rows]
            label = run.labels(rows)
            each = []
            for out in outs:
                scores = run.loss.scores(out)
                if run.loss.multilabel:
                    losses = F.binary_cross_entropy_with_logits(
                        scores, label, reduction="none"
                    ).sum(1, keepdim=True)
                    each.append(
                        torch.cat([losses.double(), _predicted(run.loss, scores).double()], 1)
                    )
                    continue
                values = [F.cross_entropy(scores, label, reduction="none"), scores.argmax(1)]
                values += (
                    [margin(scores, given), pull(run.loss, out, label)] if self.samples else []
                )
                each.append(torch.stack([value.double() for value in values], 1))
            return torch.stack(each, 2)

        measured = per_row(run, measure, models=[model.trained for model in run.models])
        if run.loss.multilabel:
            self.seen["loss"].copy_(measured[:, 0].T)
            self.seen["prediction"].copy_(measured[:, 1:].permute(2, 0, 1))
            return
        for name, values in zip(names, measured.permute(1, 2, 0), strict=True):
            self.seen[name].copy_(values)

    def write_metrics(self) -> None:
        """Write the metrics of all epochs."""
        assert self.folder is not None
        checkpoint.write_checked(self.folder / "record.csv", to_csv(self.metrics))

    def _write(self, epoch: int) -> None:
        assert self.folder is not None
        self.write_metrics()
        if self.samples:
            # Of the first model. Half precision is enough for figures, except for values without a
            # bound.
            compact = {
                "prediction": self._label_dtype,
                "pull": torch.float32,
                "variance": torch.float32,
            }
            names = [name for name in self.seen if name != "loss"]
            tensors = {
                name: self.seen[name][0].to(compact.get(name, torch.float16)) for name in names
            }
            checkpoint.write_tensors(
                self.folder / "samples" / f"epoch-{epoch + 1:04d}.safetensors", tensors
            )

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
    """½‖∂L/∂z‖₁ of each row, the gradient on its logits.

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


def _ratio(sum_: float, count: float) -> float:
    return sum_ / count if count else math.nan


@torch.no_grad()
def _evaluate(
    run: Run, x: Inputs, labels: Sequence[Tensor], soft: Tensor | None = None, top: int = 1
) -> Tensor:
    """[sum, rows] of nll, top-``top`` hits and ensemble hits on ``labels[0]``, and of hits on each
    of ``labels``.

    All but the hits of the ensemble are averages over the models. Rows of no class (−1) do not
    count. The nll of ``soft`` labels (N, K) is −Σ_k q_k log p_k.
    """
    parts = [
        (rows, counts, torch.stack([run.loss.scores(out) for out in outs], 1))
        for rows, counts, outs in sweep(run, x)
    ]
    # scores: (n, M, K)
    rows, counts, scores = (torch.cat(column) for column in zip(*parts, strict=True))
    if run.loss.multilabel:
        return run.processes.sum(
            _evaluate_labels(scores, counts, [moved(y, run.device)[rows] for y in labels])
        )
    columns = [moved(column, run.device)[rows] for column in labels]
    y = columns[0].clamp(min=0)
    log_p = scores.log_softmax(2).double()
    predicted = scores.argmax(2)
    if soft is None:
        nll = -log_p.gather(2, y[:, None, None].expand(-1, scores.shape[1], 1))[..., 0]
    else:
        soft = moved(soft, run.device)[rows, None]
        nll = -(soft * log_p[..., : soft.shape[2]]).sum(2)  # LN's dummy class has no label
    values = [
        nll.mean(1),
        (scores.topk(min(top, scores.shape[2]), 2).indices == y[:, None, None])
        .any(2)
        .double()
        .mean(1),
        (log_p.logsumexp(1).argmax(1) == y).double(),
        *((predicted == column[:, None]).double().mean(1) for column in columns),
    ]
    known = [(counts & (column >= 0)).double() for column in columns]
    masks = torch.stack([known[0]] * 3 + known)
    return run.processes.sum(torch.stack([(torch.stack(values) * masks).sum(1), masks.sum(1)], 1))


def _evaluate_labels(scores: Tensor, counts: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """As ``_evaluate`` for rows with several labels, in shares of their K labels.

    A top hit is a row without error.
    """
    y = labels[0].to(scores.dtype)
    predicted = scores > 0
    nll = F.binary_cross_entropy_with_logits(scores, y[:, None].expand_as(scores), reduction="none")
    values = [
        nll.double().mean((1, 2)),
        (predicted == (y > 0)[:, None]).all(2).double().mean(1),
        ((scores.sigmoid().mean(1) > 0.5) == (y > 0)).double().mean(1),
        *((predicted == (column > 0)[:, None]).double().mean((1, 2)) for column in labels),
    ]
    mask = counts.double()
    return torch.stack([torch.stack([(value * mask).sum(), mask.sum()]) for value in values])


def _predicted(loss: Loss, scores: Tensor) -> Tensor:
    """The predicted class of each row, (b,).

    0 or 1 for each class (b, K) where rows have several labels.
    """
    return (scores > 0).long() if loss.multilabel else scores.argmax(1)


def best_epoch(metrics: Sequence[Metrics], metric: str) -> Metrics | None:
    """The metrics of the first epoch with the largest ``metric``; None if it was not measured."""
    measured = [row for row in metrics if not math.isnan(row.get(metric, math.nan))]
    return max(measured, key=lambda row: row[metric]) if measured else None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows, such as metrics, as CSV; numbers are read back exactly."""
    text = io.StringIO()
    if rows:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(text, list(names), restval="nan", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
