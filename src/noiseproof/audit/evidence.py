"""What models have to say of each given label: from folds that did not train on it, or from watching one training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.folds import in_one_fold
from noiseproof.audit.neighbours import Neighbours, nearest, neighbour_votes
from noiseproof.audit.posterior import fit_class_noise
from noiseproof.core.checks import check_count, check_labels
from noiseproof.data import NoisyData
from noiseproof.data.base import derive_seed, take
from noiseproof.strategies import Strategy
from noiseproof.strategies.averages import HeldOutAverages, Towards, TrainingAverages
from noiseproof.train.fleet import fit_many
from noiseproof.train.loop import Job, Result
from noiseproof.train.methods import get_method
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

VOTERS = 25  # neighbours that are asked
MODEL = "mlp:hidden=[128,128]"
LINEAR = "mlp:hidden=[]"
ONE_UNIT = 100.0  # columns whose deviations differ by less are in one unit: their proportions are left as they are
FAR = 10.0  # deviations after which a number is cut off
LARGE = 50_000_000  # numbers in a table of soft labels that are too many: no second round

Progress = Callable[[int, int], None]  # epochs done, of how many


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one or several trainings, and neighbours, say of N rows and K classes."""

    pred_probs: NDArray[np.float32]  # (N, K): averaged over epochs, models and neighbours' votes
    features: NDArray[np.float32] | None  # (N, F): the inputs as the models saw them
    unlearned: NDArray[np.float32] | None = None  # (N,): share of epochs in which the given label was not predicted
    doubt: NDArray[np.float32] | None = None  # (N,) in [0, 1]: what the head says of its noise (LN's Σ, 1 − NAL's τ)
    neighbour_agreement: NDArray[np.float32] | None = None  # (N,): share of neighbours that bear the given label
    dynamics: NDArray[np.float32] | None = None  # (N, K): what models said of the rows that they trained on, on the way
    first_guess: NDArray[np.int64] | None = None  # (N,): the likeliest class, untouched by the row's own label
    sureness: NDArray[np.float32] | None = None  # (N,): neighbours' share for it, where models saw the row's own label


def cross_validate(
    x: Any,
    labels: Any,
    num_classes: int,
    folds: Any,
    *,
    method: str = "ln:lam=1,tau=0.5",
    model: str = "auto",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
    neighbours: Neighbours | None = None,
) -> Evidence:
    """Out-of-sample evidence, in two rounds: each row is judged by models and neighbours of other folds.

    In the first round ``model`` learns the given labels by the robust ``method``, a linear classifier by cross entropy,
    and neighbours vote. Their mean and the class-noise posterior make soft labels P(true k | x, given y) of all rows,
    which ``model`` learns by cross entropy in the second round, and with which neighbours vote again. The predictions
    are the mean of all five, those of models averaged over epochs. ``dynamics``, which are not out of sample, are what
    the first round's models said of their training rows: wrong labels are learned late.

    Args:
        folds: (N,) integers; a row is judged without the rows of its own fold.
        epochs: by default 150/N^¼, between 5 and 40.
        neighbours: of the rows of ``x``, where they are known already.
    """
    inputs, given = _prepared(x, labels, num_classes)
    fold, names = np.asarray(folds), np.unique(folds)
    if fold.shape != (len(given),) or len(names) < 2:
        raise ValueError(f"Expected `folds` of shape ({len(given)},) with two values or more, got {fold.shape}.")
    again = len(given) * num_classes <= LARGE
    parts = [torch.from_numpy(np.flatnonzero(fold != name)) for name in names]
    fit = _Fit(inputs, given, num_classes, epochs, seed, device, progress, runs=len(parts) * (3 if again else 2))
    near = neighbours or _neighbours(inputs, seed)

    robust = fit.held_out(parts, method, MODEL if model == "auto" else model)
    linear = fit.held_out(parts, "ce", LINEAR)
    votes, agreement = neighbour_votes(given, near, num_classes, apart=fold)
    probs = _mean([robust.pred_probs, linear.pred_probs, votes])
    first = probs.argmax(1)  # in the second round a row's own label comes back, a little, by its neighbours' soft ones
    if again:
        truth = soft_labels(given, torch.from_numpy(probs))
        votes = neighbour_votes(truth, near, num_classes, apart=fold)[0]
        second = fit.held_out(parts, "ce", MODEL if model == "auto" else model, truth)
        probs = _mean([probs, probs, probs, votes, second.pred_probs])
    assert robust.dynamics is not None and linear.dynamics is not None
    return replace(
        robust,
        pred_probs=probs,
        features=inputs.flatten(1).numpy(),
        neighbour_agreement=agreement,
        dynamics=_mean([robust.dynamics, linear.dynamics]),
        first_guess=first,
    )


def watch_training(
    x: Any,
    labels: Any,
    num_classes: int,
    *,
    method: str = "ln:lam=1,tau=0.5",
    model: str = "auto",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
    neighbours: Neighbours | None = None,
    groups: Any = None,
) -> Evidence:
    """Evidence from one training over all rows: what each step said of its rows before it learned from them.

    Averaged over epochs, this is little touched by what the model learns by heart at the end. A linear classifier is
    watched beside ``model``; neighbours vote with the given labels, and once more with the soft labels that the
    class-noise posterior makes of all that. Rows of one of the ``groups`` (N,) don't vote for each other: unless
    ``neighbours`` are given, they are looked for in other groups, but for rows whose class no other group has.
    """
    inputs, given = _prepared(x, labels, num_classes)
    fit = _Fit(inputs, given, num_classes, epochs, seed, device, progress, runs=2)
    near = neighbours or _neighbours(inputs, seed, given, groups)
    watched = fit.watched(method, MODEL if model == "auto" else model)
    linear = fit.watched("ce", LINEAR)
    votes, agreement = neighbour_votes(given, near, num_classes, apart=groups)
    first, sure = votes.argmax(1), votes.max(1)  # models learn some rows by heart on the way
    probs = _mean([watched.pred_probs, linear.pred_probs, votes])
    if len(given) * num_classes <= LARGE:
        votes = neighbour_votes(soft_labels(given, torch.from_numpy(probs)), near, num_classes, apart=groups)[0]
        probs = _mean([probs, probs, probs, votes])
    features = inputs.flatten(1).numpy()
    return replace(
        watched, pred_probs=probs, features=features, neighbour_agreement=agreement, first_guess=first, sureness=sure
    )


def soft_labels(given: Tensor, probs: Tensor) -> Tensor:
    """P(true k | x, given y), (N, K) float32."""
    truth = torch.empty_like(probs)
    noise = fit_class_noise(given, probs, generator=torch.Generator().manual_seed(0), rates=False)
    for rows, part in noise.truth(given, probs):
        truth[rows] = part.to(truth.dtype)
    return truth


def _mean(tables: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    total = tables[0].copy()
    for table in tables[1:]:
        total += table
    total /= len(tables)
    return total


def _prepared(x: Any, labels: Any, num_classes: int) -> tuple[Tensor, Tensor]:
    """Inputs of mean 0 and deviation 1: of all columns together where they are in one unit, else of each."""
    check_count("num_classes", num_classes, 2, "A label of a single class cannot be wrong.")
    inputs = torch.as_tensor(np.asarray(x)).to(torch.float32)
    given = torch.as_tensor(np.asarray(labels)).to(torch.int64)
    if inputs.dim() < 2 or len(inputs) != len(given) or len(given) < 2:
        raise ValueError(f"Expected `x` of shape (N, …) and N labels, got {tuple(inputs.shape)}, {len(given)} labels.")
    check_labels(given, num_classes)
    if not bool(torch.isfinite(inputs).all()):
        raise ValueError("Expected finite numbers in `x`, got NaN or infinite ones. Drop these rows or fill them in.")
    centred = inputs - inputs.mean(0)
    deviation = centred.square().mean(0).sqrt()
    varied = deviation[deviation > 0]
    if not len(varied):
        raise ValueError("Expected columns of `x` that vary, got none. Labels cannot be judged by constants.")
    low, high = varied.quantile(torch.tensor([0.1, 0.9])) if len(varied) < 10**6 else (varied.min(), varied.max())
    unit = varied.square().mean().sqrt() if high < ONE_UNIT * low else torch.where(deviation > 0, deviation, 1.0)
    return centred.div_(unit).clamp_(-FAR, FAR), given


def _neighbours(inputs: Tensor, seed: int, given: Tensor | None = None, groups: Any = None) -> Neighbours:
    near = nearest(inputs.flatten(1).numpy(), min(VOTERS, len(inputs) - 1), seed=seed, apart=groups)
    if given is not None and groups is not None:  # strangers, who can't bear its label, would all speak against it
        alone = np.flatnonzero(in_one_fold(given.numpy(), np.unique(np.asarray(groups), return_inverse=True)[1]))
        near.index[alone] = alone[:, None]
    return near


class _Fit:
    """Trains models on some rows and keeps what they say of others."""

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
    ) -> None:
        N = len(x)
        self.data = NoisyData(x, given, tuple(map(str, range(num_classes))), torch.arange(N))
        self.epochs = min(40, max(5, round(150 / N**0.25))) if epochs is None else check_count("epochs", epochs, 1)
        self.batch_size = min(128, max(16, N // 16)) if N <= 20_000 else min(1024, int(128 * (N / 20_000) ** 0.5))
        kind = "auto" if device is None else torch.device(device).type
        self.fabric = Fabric(accelerator=kind, devices=1)
        self.seed = seed
        self.done, self.progress, self.total = 0, progress, runs * self.epochs
        self.fits = 0

    def held_out(self, parts: Sequence[Tensor], method: str, model: str, truth: Tensor | None = None) -> Evidence:
        """One run for each of ``parts``, the rows it trains on; evidence of the rows that are in none but one."""
        data = self.data
        others = []
        jobs = []
        for rows in parts:
            rest = torch.ones(len(data), dtype=torch.bool)
            rest[rows] = False
            others.append(rest.nonzero()[:, 0])
            extra: list[Strategy] = [TrainingAverages()] if truth is None else [Towards(truth[rows])]
            extra.append(HeldOutAverages(take(data.x, others[-1]), data.given[others[-1]]))
            jobs.append(self._job(data.subset(rows), method, model, extra))
        outcomes = self._run(jobs)
        found = _evidence([outcome.strategies[-1] for outcome in outcomes], torch.cat(others).argsort())
        if truth is not None:
            return found
        seen, times = torch.zeros(len(data), data.num_classes), torch.zeros(len(data), 1)
        for rows, outcome in zip(parts, outcomes, strict=True):
            watched = outcome.strategies[-2]
            assert isinstance(watched, TrainingAverages)
            seen[rows] += watched.probs.cpu()
            times[rows] += watched.sums[:, :1].cpu()
        return replace(found, dynamics=seen.div_(times).numpy())

    def watched(self, method: str, model: str) -> Evidence:
        """One run over all rows; evidence of what it said of each row on the way."""
        (outcome,) = self._run([self._job(self.data, method, model, [TrainingAverages()])])
        return _evidence([outcome.strategies[-1]], torch.arange(len(self.data)))

    def _job(self, data: NoisyData, method: str, model: str, extra: Sequence[Strategy]) -> Job:
        rate = 1e-2 if model == LINEAR else 2e-3
        settings = Settings(
            model=model,
            epochs=self.epochs,
            batch_size=self.batch_size,
            optimizer=f"adam:lr={rate},weight_decay=1e-4",
        )
        task = Task(data)
        made = get_method(method, task, settings)
        self.fits += 1
        return Job(
            task,
            replace(made, strategies=(*made.strategies, *extra)),
            settings,
            seed=derive_seed(self.seed, self.fits),
            progress=self._count,
        )

    def _count(self, epoch: int, step: int, steps: int, row: Any) -> None:
        if row is not None:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)

    def _run(self, jobs: Sequence[Job]) -> list[Result]:
        outcomes = []
        for outcome in fit_many(jobs, fabric=self.fabric):
            if isinstance(outcome, Exception):
                raise outcome
            outcomes.append(outcome)
        return outcomes


def _evidence(found: Sequence[Any], order: Tensor) -> Evidence:
    def all_rows(name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = torch.cat([part.mean(name).cpu() for part in found])[order].numpy()
        return values

    return Evidence(all_rows("probs"), None, all_rows("missed"), all_rows("doubt"))
