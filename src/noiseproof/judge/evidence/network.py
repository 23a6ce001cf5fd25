"""Predictions of networks and neighbours for each row: out of fold, or collected during one
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from noiseproof.accelerate import Job, fit_many
from noiseproof.accelerate.networks import Stack
from noiseproof.core.arrays import Floats, Floats32, Ints
from noiseproof.core.checks import check_count, check_labels
from noiseproof.core.cluster import is_distributed, map_jobs
from noiseproof.core.messages import Brief, Progress
from noiseproof.data import NoisyData
from noiseproof.data.base import derive_seed, take
from noiseproof.judge.evidence.fold_networks import is_foldable, make_members, train_folds
from noiseproof.judge.evidence.folds import in_one_fold, make_folds
from noiseproof.judge.evidence.join import join, mix
from noiseproof.judge.evidence.neighbours import VOTERS, Neighbours, nearest, neighbour_votes
from noiseproof.judge.posterior import NoisyRows, fit_class_noise
from noiseproof.strategies import Strategy
from noiseproof.strategies.averages import HeldOutAverages, TrainingAverages
from noiseproof.strategies.row_tables import FixedTargets
from noiseproof.train.loop import Result
from noiseproof.train.methods import Method, get_method
from noiseproof.train.settings import Settings, make_fabric
from noiseproof.train.task import Task

METHOD = "ln:lam=1,tau=0.5"
MODEL = "mlp:hidden=[128,128]"
LINEAR = "mlp:hidden=[]"
# columns whose deviations differ by a smaller factor share one unit, so their proportions are kept
ONE_UNIT = 100.0
CLIP = 10.0  # deviations
# rows per column below which one training memorises too many wrong labels to count them by
WIDE = 100
AVERAGED = ("probs", "missed", "doubt")  # over the epochs of a training
CORRECTED = ", corrected"  # of a model fitted to soft labels, after its name
MANY = 20_000  # rows beyond which the number of epochs falls faster
CONSTANTS = "Expected columns that vary, got constants alone, by which labels cannot be judged."
LARGE = 50_000_000  # probabilities N·K beyond which there is no second round


@dataclass(frozen=True, eq=False, repr=False)
class Evidence(Brief):
    """Predictions for N rows and K classes, from trainings and neighbours; of several labels a row,
    of each label.
    """

    pred_probs: Floats32  # (N, K): averaged over epochs, models and neighbours' votes
    # (N,): share of epochs in which the given label was not predicted
    unlearned: Floats32 | None = None
    # (N,) in [0, 1]: noise that the head predicts (LN's Σ, 1 − NAL's τ)
    doubt: Floats32 | None = None
    # (N,): share of neighbours with the given label; or (N, K)
    neighbour_agreement: Floats32 | None = None
    # (N, K): predictions for training rows, averaged over the epochs
    dynamics: Floats32 | None = None
    # (N,): the most likely class, without the row's own label; or (N, K)
    guess: Ints | None = None
    # (N,): neighbours' share for it, where models saw the label
    guess_confidence: Floats32 | None = None
    # of the models and neighbours in pred_probs
    weights: Mapping[str, float] = field(default_factory=dict)
    # (K, M + 1), with several labels per row: the weights of `join_answers`
    label_weights: Floats | None = None


@dataclass(frozen=True, eq=False)
class Taught:
    """Labels of N rows to fit models to.

    A model of a fold learns the decisions on the rows of other folds only. Soft labels and weights,
    which all folds share and which would carry a decision back to its own row, come from models
    that saw no decision.
    """

    labels: Ints  # (N,), or answers (N, K): the decided label, else the given one
    undecided: Evidence  # of models that saw no decision
    # (N, K): P(true k) without decisions, of a decided row 1 for its label; None of many rows, and
    # of several labels
    truth: Tensor | None = None


def cross_validate(
    x: Any,
    labels: Any,
    num_classes: int,
    folds: Any,
    *,
    method: str = METHOD,
    model: str | None = "auto",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
    neighbours: Neighbours | None = None,
    others: Mapping[str, Floats32] | None = None,
    taught: Taught | None = None,
) -> Evidence:
    """Out-of-sample evidence in two rounds: models and neighbours of other folds predict each row.

    In the first round ``model`` is trained on the given labels by the robust ``method``, a linear
    classifier by cross entropy, and neighbours vote. From their mean the class-noise posterior
    makes soft labels P(true k | x, given y), on which ``model`` is trained in the second round, and
    with which neighbours vote again. The predictions are the mean of all five. ``dynamics``, which
    are not out of sample, are the first round's predictions for training rows. With predictions of
    ``others``, both rounds take the mixture of all under which the given labels are most likely,
    without ``dynamics``.

    Args:
        folds: (N,) integers; a row is predicted without the rows of its own fold.
        model: None for neighbours and ``others`` alone.
        epochs: by default 150/N^¼, at most 40; beyond 20 000 rows it falls as 1/√N, to 4.
        neighbours: of the rows of ``x``; by default they are searched for.
        others: out-of-sample predictions (N, K) of other models, by name.
        taught: labels to train on in place of ``labels``, and what both rounds would estimate.
    """
    inputs, given = prepare_inputs(x, labels, num_classes)
    fold = np.asarray(folds)
    fold_ids = np.unique(fold)
    if fold.shape != (len(given),) or len(fold_ids) < 2:
        raise ValueError(
            f"Expected `folds` of shape ({len(given)},) with two values or more, got {fold.shape}."
        )
    has_second_round = len(given) * num_classes <= LARGE
    learned = given if taught is None else torch.from_numpy(taught.labels)
    near = neighbours or find_neighbours(inputs, seed)
    own = None if taught is None else given
    votes, agreement = neighbour_votes(learned, near, num_classes, apart=fold, given=own)

    predictions = {}
    evidence = Evidence(votes)
    dynamics = None
    if model is not None:
        model = MODEL if model == "auto" else model
        number = torch.from_numpy(np.unique(fold, return_inverse=True)[1])
        runs = len(fold_ids) * (3 if has_second_round else 2)
        trainer = Trainer(inputs, given, num_classes, epochs, seed, device, progress, runs, learned)
        evidence, linear = trainer.train([(method, model, number), ("ce", LINEAR, number)])
        predictions = {"network": evidence.pred_probs, "linear": linear.pred_probs}
        if not others:
            assert evidence.dynamics is not None and linear.dynamics is not None
            dynamics = _mean([evidence.dynamics, linear.dynamics])
    predictions |= {"neighbours": votes, **(others or {})}
    probs, weights = _combined(given, predictions, others, taught)
    # in the second round a row's own label has some influence, by its neighbours' soft labels
    guess = probs.argmax(1)
    if has_second_round:
        truth = None if taught is None else taught.truth
        if truth is None:
            truth = soft_labels(given, torch.from_numpy(probs))
        votes = neighbour_votes(truth, near, num_classes, apart=fold, given=own)[0]
        predictions[f"neighbours{CORRECTED}"] = votes
        if model is not None:
            (second,) = trainer.train([("ce", model, number)], truth)
            predictions[f"network{CORRECTED}"] = second.pred_probs
        probs, weights = _combined(given, predictions, others, taught)
    return replace(
        evidence,
        pred_probs=probs,
        neighbour_agreement=agreement,
        dynamics=dynamics,
        guess=guess,
        weights=weights,
    )


def watch_training(
    x: Any,
    labels: Any,
    num_classes: int,
    *,
    method: str = METHOD,
    model: str = "auto",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
    neighbours: Neighbours | None = None,
    groups: Any = None,
    others: Mapping[str, Floats32] | None = None,
) -> Evidence:
    """Evidence from one training on all rows: the predictions of each step before it learns from
    its rows.

    Averaged over epochs, these are little affected by what the model memorises at the end. A linear
    classifier is trained as well as ``model``; neighbours vote with the given labels, and with the
    soft labels of the class-noise posterior. With fewer than 100 rows per column, models memorise
    wrong labels at once: then the linear classifier predicts each third of the rows out of sample,
    and the training only helps to rank (``dynamics``). Rows of one of the ``groups`` (N,) don't
    vote for each other, except where no other group has the class. Predictions of ``others`` (N, K)
    count as much as each model: the likelihood of labels would favour models that saw them.
    """
    inputs, given = prepare_inputs(x, labels, num_classes)
    fold = _thirds(inputs, given, groups, seed)
    runs = 2 if fold is None else 2 + int(fold.max())
    trainer = Trainer(inputs, given, num_classes, epochs, seed, device, progress, runs)
    near = neighbours or find_neighbours(inputs, seed, given, groups)
    robust, linear = trainer.train(
        [(method, MODEL if model == "auto" else model, None), ("ce", LINEAR, fold)]
    )
    votes, agreement = neighbour_votes(given, near, num_classes, apart=groups)
    first_votes = votes
    predictions = {"linear": linear.pred_probs, "neighbours": votes, **(others or {})}
    if fold is None:
        predictions["network"] = robust.pred_probs
    probs = _mean([*predictions.values()])
    if len(given) * num_classes <= LARGE:  # soft labels need as many numbers again
        truth = soft_labels(given, torch.from_numpy(probs))
        votes = neighbour_votes(truth, near, num_classes, apart=groups)[0]
        predictions[f"neighbours{CORRECTED}"] = votes
        probs = _mean([*predictions.values()])
    return replace(
        robust,
        pred_probs=probs,
        neighbour_agreement=agreement,
        dynamics=None if linear.dynamics is None else _mean([robust.pred_probs, linear.dynamics]),
        guess=first_votes.argmax(1),  # of neighbours alone, as models memorise some rows
        guess_confidence=first_votes.max(1),
        weights=dict.fromkeys(predictions, 1 / len(predictions)),
    )


def _thirds(inputs: Tensor, given: Tensor, groups: Any, seed: int) -> Tensor | None:
    """Three folds (N,) where features are wide; else None."""
    several = groups is None or len(np.unique(groups)) > 1
    if len(inputs) >= WIDE * inputs[0].numel() or not several:
        return None
    fold = make_folds(given.numpy(), folds=3, groups=groups, seed=seed)
    return torch.from_numpy(np.unique(fold, return_inverse=True)[1])


def soft_labels(given: Tensor, probs: Tensor) -> Tensor:
    """P(true k | x, given y), (N, K) float32."""
    truth = torch.empty_like(probs)
    rows = NoisyRows.of(given, probs)
    noise = fit_class_noise(rows, rows.sample(torch.Generator().manual_seed(0)))
    for block, part in noise.posterior(given, probs):
        truth[block] = part.to(truth.dtype)
    return truth


def _combined(
    given: Tensor,
    predictions: Mapping[str, Floats32],
    others: Mapping[str, Floats32] | None,
    taught: Taught | None,
) -> tuple[Floats32, Mapping[str, float]]:
    """The mixture of all predictions and its weights: by the likelihood of the labels with
    ``others``, else equal.
    """
    if taught is not None:
        weights = taught.undecided.weights
        return mix(predictions, weights), weights
    if others:
        return join(given.numpy(), predictions)
    return _mean([*predictions.values()]), dict.fromkeys(predictions, 1 / len(predictions))


def _mean(tables: Sequence[Floats32]) -> Floats32:
    total = tables[0].copy()
    for table in tables[1:]:
        total += table
    total /= len(tables)
    return total


def prepare_inputs(x: Any, labels: Any, num_classes: int) -> tuple[Tensor, Tensor]:
    """Inputs of mean 0 and deviation 1, over all columns where they share one unit, else for each
    column.
    """
    check_count("num_classes", num_classes, 2, "A label of a single class cannot be wrong.")
    inputs = torch.as_tensor(np.asarray(x)).to(torch.float32)
    given = torch.as_tensor(np.asarray(labels)).to(torch.int64)
    if inputs.dim() < 2 or len(inputs) != len(given) or len(given) < 2:
        raise ValueError(
            f"Expected `x` of shape (N, …) and N labels, got {tuple(inputs.shape)}, {len(given)}"
            " labels."
        )
    check_labels(given.flatten(), num_classes if given.dim() == 1 else 2)
    if not bool(torch.isfinite(inputs).all()):
        raise ValueError(
            "Expected finite numbers in `x`, got NaN or infinite ones. Drop these rows or fill"
            " them in."
        )
    centred = inputs - inputs.mean(0)
    deviation = centred.square().mean(0).sqrt()
    varied = deviation[deviation > 0]
    if not len(varied):
        raise ValueError(CONSTANTS)
    unit = torch.where(deviation > 0, deviation, 1.0)
    low, high = varied.quantile(torch.tensor([0.1, 0.9]))
    if high < ONE_UNIT * low:
        unit = varied.square().mean().sqrt()
    return centred.div_(unit).clamp_(-CLIP, CLIP), given


def find_neighbours(
    inputs: Tensor, seed: int, given: Tensor | None = None, groups: Any = None
) -> Neighbours:
    near = nearest(inputs.flatten(1).numpy(), min(VOTERS, len(inputs) - 1), seed=seed, apart=groups)
    # where no other group has the class, all would vote against it
    if given is not None and groups is not None:
        number = np.unique(np.asarray(groups), return_inverse=True)[1]
        alone = np.flatnonzero(in_one_fold(given.numpy(), number))
        near.index[alone] = alone[:, None]
    return near


def default_epochs(num_rows: int) -> int:
    """150/N^¼, at most 40; beyond 20 000 rows it falls as 1/√N, to 4.

    >>> [default_epochs(n) for n in (100, 1000, 20_000, 100_000, 1_000_000)]
    [40, 27, 13, 6, 4]
    """
    epochs: float = 150 / num_rows**0.25 * min(1.0, (MANY / num_rows) ** 0.25)
    return min(40, max(4, round(epochs)))


@dataclass(frozen=True)
class _Training:
    """Networks of one method and model: one for each fold, or one of all rows."""

    method: str
    model: str
    fold: Tensor | None  # (N,), None for one run on all rows
    is_stacked: bool  # whether all folds train as one network
    first_run: int  # its number among the trainer's runs, from which its seed is derived

    @property
    def runs(self) -> int:
        return 1 if self.fold is None else int(self.fold.max()) + 1


def _train(training: _Training, trainer: Trainer, truth: Tensor | None) -> Evidence:
    if training.is_stacked:
        return trainer.together(training, truth)
    if training.fold is None:
        return trainer.watch(training)
    return trainer.leave_out(training, training.fold, truth)


class Trainer:
    """Trains models, all folds at once where the method allows it, and collects predictions."""

    def __init__(
        self,
        x: Tensor,
        given: Tensor,
        num_classes: int,
        epochs: int | None,
        seed: int,
        device: torch.device | str | None,
        progress: Progress | None,
        runs: int,
        learned: Tensor | None = None,
    ) -> None:
        N = len(x)
        self.learned = given if learned is None else learned  # (N,): the labels to train on
        self.data = NoisyData(x, given, tuple(map(str, range(num_classes))), torch.arange(N))
        self.epochs = default_epochs(N) if epochs is None else check_count("epochs", epochs, 1)
        self.batch_size = min(128, max(24, N // 12))
        if N > MANY:
            self.batch_size = min(1024, int(128 * (N / MANY) ** 0.5))
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.seed = seed
        self.num_jobs = 0
        self.progress = progress
        self.done = 0
        self.total = runs * self.epochs

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"progress": None}  # which belongs to this process

    def train(
        self, wanted: Sequence[tuple[str, str, Tensor | None]], truth: Tensor | None = None
    ) -> list[Evidence]:
        """Evidence from each (method, model, fold); as they don't depend on each other, from tasks
        of their own on Ray.

        With folds (N,) from models trained without a row's own, on soft labels where there is
        ``truth`` (N, K); with None from one run on all rows, by its predictions for each row during
        training.
        """
        planned = [self._plan(*each) for each in wanted]
        # a GPU of this machine is faster than tasks
        if not is_distributed() or self.device.type != "cpu":
            return [_train(training, self, truth) for training in planned]
        evidence = []
        for training, found in zip(planned, map_jobs(_train, planned, self, truth), strict=True):
            self._count_epochs(self.epochs * training.runs)
            evidence.append(found)
        return evidence

    def _plan(self, method: str, model: str, fold: Tensor | None) -> _Training:
        """A training of the folds: together where method and model allow it, else one run for
        each.
        """
        is_stacked = self._make_stack(method, model, 1, 0) is not None
        training = _Training(method, model, fold, is_stacked, self.num_jobs + 1)
        self.num_jobs += 1 if is_stacked else training.runs
        return training

    def _make_stack(
        self, spec: str, model: str, num_folds: int, run: int
    ) -> tuple[Method, Stack] | None:
        """Return the method of a ``spec``, and the networks of all folds as one; None where method
        or model need a run for each fold.

        The seed is derived from ``run``, a number.
        """
        settings = self._settings(model)
        method = get_method(spec, Task(self.data), settings)
        if not is_foldable(method):
            return None
        x = self.data.to(self.device).x
        seed = derive_seed(self.seed, run)
        stack = make_members(method, settings, seed, x, self.data.num_classes, num_folds)
        return None if stack is None else (method, stack)

    def together(self, training: _Training, truth: Tensor | None) -> Evidence:
        """Evidence from one stacked training of all folds."""
        made = self._make_stack(training.method, training.model, training.runs, training.first_run)
        assert made is not None
        method, stack = made
        data = self.data.to(self.device)
        fold = torch.full((len(data),), -1) if training.fold is None else training.fold
        target = (self.learned if truth is None else truth).to(self.device)
        averages = train_folds(
            stack,
            method.loss.to(self.device),
            data,
            target.float() if target.dim() == 2 else target,
            fold.to(self.device),
            self._settings(training.model),
            derive_seed(self.seed, training.first_run),
            lambda: self._count_epochs(training.runs),
        )
        probs, missed, doubt, dynamics = (each.cpu().numpy() for each in averages)
        return Evidence(probs, missed, doubt, dynamics=None if training.fold is None else dynamics)

    def watch(self, training: _Training) -> Evidence:
        """Evidence from one run on all rows."""
        (result,) = self._run([self._job(self.data, training, [TrainingAverages()])])
        averages: Any = result.strategies[-1]
        return Evidence(*(averages.mean(name).cpu().numpy() for name in AVERAGED))

    def leave_out(self, training: _Training, fold: Tensor, truth: Tensor | None) -> Evidence:
        """Evidence from a run without the rows of each fold; dynamics, on the given labels alone,
        from the runs that train on a row.
        """
        data = self.data
        learned = replace(data, given=self.learned)
        jobs = []
        for i in range(training.runs):
            rows = (fold != i).nonzero()[:, 0]
            held_out = (fold == i).nonzero()[:, 0]
            taught = TrainingAverages() if truth is None else FixedTargets(truth[rows])
            watched = HeldOutAverages(take(data.x, held_out), data.given[held_out])
            jobs.append(self._job(learned.subset(rows), training, [taught, watched], i))
        total = torch.zeros(len(data), data.num_classes)
        columns = [torch.empty_like(total), torch.empty(len(data)), torch.empty(len(data))]
        times = torch.zeros(len(data), 1)
        for i, result in enumerate(self._run(jobs)):
            seen, predicted = cast("list[Any]", result.strategies[-2:])
            for column, name in zip(columns, AVERAGED, strict=True):
                column[fold == i] = predicted.mean(name).cpu()
            if truth is None:
                total[fold != i] += seen.probs.cpu()
                times[fold != i] += seen.sums[:, :1].cpu()
        dynamics = None if truth is not None else total.div_(times).numpy()
        probs, missed, doubt = (column.numpy() for column in columns)
        return Evidence(probs, missed, doubt, dynamics=dynamics)

    def _settings(self, model: str) -> Settings:
        rate = 1e-2 if model == LINEAR else 2e-3
        return Settings(model, self.epochs, self.batch_size, f"adam:lr={rate},weight_decay=1e-4")

    def _job(
        self, data: NoisyData, training: _Training, extra: Sequence[Strategy], fold: int = 0
    ) -> Job:
        settings = self._settings(training.model)
        task = Task(data)
        base = get_method(training.method, task, settings)
        observed = replace(base, strategies=(*base.strategies, *extra))
        seed = derive_seed(self.seed, training.first_run + fold)
        return Job(task, observed, settings, seed, progress=self._count)

    def _count(self, epoch: int, step: int, steps: int, row: Any) -> None:
        if row is not None:
            self._count_epochs(1)

    def _count_epochs(self, number: int) -> None:
        self.done += number
        if self.progress is not None:
            self.progress("training", self.done, self.total)

    def _run(self, jobs: Sequence[Job]) -> list[Result]:
        results = []
        for result in fit_many(jobs, fabric=make_fabric(accelerator=self.device.type, devices=1)):
            if isinstance(result, Exception):
                raise result
            results.append(result)
        return results
