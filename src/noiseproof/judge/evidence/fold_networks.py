"""One network for each fold, all trained at once: stacked into one network whose members each skip
their own fold.

Every step passes its rows through all members: the one that skips a row predicts it out of fold,
the others give its training dynamics.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.adam import adam

from noiseproof.accelerate.networks import Stack, Unstackable, draws
from noiseproof.core.cluster import threads_for
from noiseproof.core.output import Output
from noiseproof.data import Inputs, NoisyData
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.losses import Loss
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies.averages import doubt, missed_labels
from noiseproof.train.guard import Diverged
from noiseproof.train.methods import Method
from noiseproof.train.schedule import OPTIMIZERS
from noiseproof.train.settings import Settings


class FoldAverages(NamedTuple):
    """Predictions for N rows and K classes, averaged over the epochs of a training."""

    # (N, K): by the member that skips the row, from the second epoch on; or by the only one
    probs: Tensor
    missed: Tensor  # (N,): share of epochs in which it did not predict the given label
    doubt: Tensor  # (N,): noise that its head predicts
    dynamics: Tensor  # (N, K): by the members that train on the row


def is_foldable(method: Method) -> bool:
    """Whether ``method`` is a loss alone that depends on nothing but the row: folds step together,
    and on all rows.
    """
    parts = [type(part) for part in method.loss.modules() if isinstance(part, Loss)]
    knows_more = any(
        part.set_step is not Loss.set_step or part.set_shares is not Loss.set_shares
        for part in parts
    )
    return method.loss.independent_rows and not method.strategies and not knows_more


def make_members(
    method: Method, settings: Settings, seed: int, x: Inputs, num_classes: int, num_folds: int
) -> Stack | None:
    """Networks for inputs like ``x`` (N, …), as one; None where the model has no stacked form."""
    assert isinstance(x, Tensor)
    members = [
        build_classifier(
            settings.model,
            method.head,
            input_shape=tuple(x.shape[1:]),
            num_outputs=method.loss.num_outputs(num_classes),
            generator=derive_generator(seed, fold),
        )
        for fold in range(max(1, num_folds))
    ]
    if any(isinstance(layer, _BatchNorm) for layer in members[0].modules()) or draws(
        members[0], lambda m: m(x[:2])
    ):
        return None  # members of a stack that normalises would learn from rows that they skip
    # a linear classifier needs no random start, which it only unlearns
    if not list(members[0].backbone.parameters()):
        for parameter in (p for member in members for p in member.parameters()):
            parameter.data.zero_()
    try:
        return Stack([member.to(x.device) for member in members])
    except Unstackable:
        return None


def train_folds(
    stack: Stack,
    loss: Loss,
    data: NoisyData,
    target: Tensor,
    fold: Tensor,
    settings: Settings,
    seed: int,
    progress: Callable[[], None],
) -> FoldAverages:
    """Train member f of ``stack`` on the rows whose ``fold`` (N,) is not f; a fold of −1 is in no
    row's way.

    Args:
        target: classes (N,), or distributions or several labels (N, K), to train towards.
        settings: with ``adam``, and about as many rows of a step as each member learns from.
        progress: called after each epoch.
    """
    assert isinstance(data.x, Tensor)
    loss.reduction = "none"
    seats = max(1, int(fold.max()) + 1)
    rows_per_step = settings.batch_rows(len(data))
    if seats > 1:  # of which each member skips one part
        rows_per_step = round(rows_per_step * seats / (seats - 1))
    optimizer = _Adam(list(stack.parameters()), settings.optimizer)
    schedule = settings.make_schedule()
    sums = _Sums(loss, data, fold, seats)
    # Predictions out of fold count once the members have seen all rows: untrained networks are no
    # evidence.
    first_judged = int(seats > 1 and settings.epochs > 1)
    with threads_for(rows_per_step * sum(p.numel() for p in optimizer.params)):
        for epoch in range(settings.epochs):
            loss.set_epoch(epoch)
            factor = schedule(epoch, settings.epochs)
            order = shuffled(len(data), derive_generator(seed, seats, epoch), device=fold.device)
            total = torch.zeros((), device=fold.device)
            for rows in torch.split(order, rows_per_step):
                trains = fold[rows] != torch.arange(seats, device=fold.device)[:, None]  # (F, b)
                out = stack(_repeated(data.x[rows], seats))
                losses = loss(out, _repeated(target[rows], seats)).view(seats, -1)
                value = (losses * (trains / trains.sum(1, keepdim=True).clamp(min=1))).sum()
                value.backward()
                sums.record(rows, out)
                optimizer.step(factor)
                total += value.detach()
            if not math.isfinite(float(total)):
                raise Diverged(
                    f"The loss is not finite in epoch {epoch + 1} of {settings.model}. Scale the"
                    " inputs."
                )
            sums.end_epoch(is_judged=epoch >= first_judged)
            progress()
    return sums.averages(settings.epochs, settings.epochs - first_judged)


def _repeated(values: Tensor, times: int) -> Tensor:
    """The rows of ``values`` (b, …) one time after the other, (times·b, …)."""
    return values.expand(times, *values.shape).flatten(0, 1)


class _Adam:
    """The optimiser ``adam``, by the function behind ``torch.optim.Adam``.

    The class would import a compiler, which takes a second and which nothing here needs.
    """

    def __init__(self, params: list[Tensor], spec: str) -> None:
        name, given = OPTIMIZERS.parse(spec, {})
        self.options = {**OPTIMIZERS.parameters(name), **given}
        self.params = params
        self.means = [torch.zeros_like(p) for p in params]
        self.squares = [torch.zeros_like(p) for p in params]
        self.steps = [torch.zeros((), device=p.device) for p in params]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Take a step with ``factor`` times the learning rate."""
        adam(
            self.params,
            [p.grad for p in self.params if p.grad is not None],
            self.means,
            self.squares,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            maximize=False,
            **{**self.options, "lr": self.options["lr"] * factor},
        )
        for p in self.params:
            p.grad = None


class _Sums:
    """Sums over the epochs of the predictions for each row."""

    def __init__(self, loss: Loss, data: NoisyData, fold: Tensor, seats: int) -> None:
        self.loss = loss
        self.given = data.given
        # the member whose predictions count for each row
        self.judge = fold.clamp(min=0), torch.arange(len(fold), device=fold.device)
        trains = fold != torch.arange(seats, device=fold.device)[:, None]  # (F, N)
        self.share = trains / trains.sum(0).clamp(min=1)  # of each member in the dynamics of a row
        # of this epoch, by all members
        self.epoch_doubt = torch.zeros(seats, len(fold), device=fold.device)
        self.epoch_probs = self.epoch_doubt.new_zeros(seats, len(fold), data.num_classes)
        self.dynamics = torch.zeros_like(self.epoch_probs[0])
        self.probs = torch.zeros_like(self.dynamics)
        self.missed = torch.zeros_like(self.epoch_doubt[0])
        self.doubt = torch.zeros_like(self.missed)

    @torch.no_grad()
    def record(self, rows: Tensor, out: Output) -> None:
        """Keep the outputs (F·b, …) of a step for ``rows`` (b,)."""
        seats = len(self.epoch_probs)
        self.epoch_probs[:, rows] = self.loss.probabilities(out).view(seats, len(rows), -1)
        self.epoch_doubt[:, rows] = doubt(out).view(seats, -1)

    def end_epoch(self, *, is_judged: bool) -> None:
        """Add what was kept, all rows at once; the predictions of members for rows that they skip
        only where ``is_judged``.
        """
        self.dynamics += torch.einsum("fn,fnk->nk", self.share, self.epoch_probs)
        if is_judged:
            probs = self.epoch_probs[self.judge]
            self.probs += probs
            self.missed += missed_labels(probs, self.given)
            self.doubt += self.epoch_doubt[self.judge]

    def averages(self, epochs: int, judged: int) -> FoldAverages:
        return FoldAverages(
            self.probs / judged, self.missed / judged, self.doubt / judged, self.dynamics / epochs
        )
