"""Sample selection: train on rows of small loss, and leave the others out or ascend on them.

Rows are selected by the loss of their given labels, whatever target other strategies make of them:
noise on a target (``sln``) would decide in place of the row. Noise, on gradients too, also moves
the logit of a class for all rows, and a class that is left out has no row to bring it back: with
noise, rows are ranked within their own class. The rows of a step are ranked over all
processes, so the selection does not depend on their number; ties go to the earlier row of the
batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.core.checks import count, flag, number
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import per_row


@register("small-loss")
@dataclass(eq=False)
class SmallLoss(Strategy):
    """Train on the int((1 − forget(T))·B) rows of smallest loss of the B rows of a step, at least
    one, T epochs after the epoch ``start``.

    forget(T) = min(T/ramp, 1)·forget, so all rows are kept up to the epoch ``start`` itself
    (counted from 0), which leaves room for another initialisation (SLN paper, Table 4). ``forget``
    should be the share of wrong labels; it is not estimated.
    """

    capturable = True
    forget: float = number("[0, 1)", remedy="It is the share of rows that are left out.")
    ramp: int = count(0, 10, "It is the number of epochs until `forget` is reached.")
    start: int = count(0, 0)

    def setup(self, run: Run) -> None:
        # Rows of small loss have next to no gradient of their own to hold against noise.
        noisy = [other for other in run.strategies if other.sigma and other.ends > self.start]
        if any("max_norm" not in other.parameters for other in noisy):
            self.max_norm = 1.0

    def forgotten(self, T: int) -> float:
        """Return forget(T), the share of rows that are left out T epochs after the start."""
        if T >= self.ramp:
            return self.forget
        return self.forget * (T / self.ramp)

    def phase(self, run: Run) -> float | None:
        """Return the share that is left out, which decides how many rows are kept.

        It is None before ``start``.
        """
        if run.epoch < self.start:
            return None
        return self.forgotten(run.epoch - self.start)

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        forgotten = self.phase(run)
        if forgotten is None:
            return None
        order = _ranked(given_losses(losses, outs, batch, run), batch, run)
        kept = max(1, int((1 - forgotten) * batch.count))
        return self.select(order, kept, batch, run)

    def select(self, order: Tensor, kept: int, batch: Batch, run: Run) -> Tensor:
        """Return the weights (M, b) of the rows in the ``order`` of their losses (count, M)."""
        return _mean_over(order[:kept], batch, run)


@torch.no_grad()
def given_losses(losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
    """Return the losses (M, b) of the given labels, from the ``losses`` of the targets where these
    are the same.
    """
    if batch.target is batch.label:
        return losses
    return torch.stack([run.losses(out, batch.label, batch) for out in outs])


def _ranked(values: Tensor, batch: Batch, run: Run) -> Tensor:
    """Return positions in ``batch.all_rows`` by ascending values (M, b), for each model: (count,
    M).
    """
    gathered = run.processes.gather(values.T, batch)
    if any(strategy.sigma and run.epoch < strategy.ends for strategy in run.strategies):
        gathered = quantiles(gathered, run.processes.gather(batch.given, batch), run.num_classes)
    return gathered.sort(dim=0, stable=True).indices


def quantiles(values: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Return (r + ½)/n for the r-th smallest of the n values of each class, (N, M).

    Equal ones keep their order.

    >>> quantiles(torch.tensor([[5.0], [1.0], [2.0], [9.0]]), torch.tensor([0, 0, 1, 0]), 2)[:, 0]
    tensor([0.5000, 0.1667, 0.5000, 0.8333])
    """
    sizes = torch.zeros(num_classes, dtype=torch.int64, device=classes.device)
    sizes = sizes.scatter_add(0, classes, torch.ones_like(classes))
    order = values.sort(dim=0, stable=True).indices  # (N, M)
    # by class, then by value
    order = order.gather(0, classes[order].sort(dim=0, stable=True).indices)
    of_class = classes[order]
    place = (
        torch.arange(len(classes), device=classes.device)[:, None]
        - (sizes.cumsum(0) - sizes)[of_class]
    )
    shares = (place.to(values.dtype) + 0.5) / sizes[of_class]
    return torch.empty_like(values).scatter_(0, order, shares)


def _mean_over(chosen: Tensor, batch: Batch, run: Run, factor: float = 1.0) -> Tensor:
    """Return weights (M, b) that turn the mean over a step into ``factor`` times that over the
    positions ``chosen`` (n, M).
    """
    weights = torch.zeros(batch.count, chosen.shape[1], device=chosen.device, dtype=run.dtype)
    if len(chosen):
        weights.scatter_(0, chosen, factor * batch.count / len(chosen))
    return run.processes.share(weights).T


@register("co-teaching")
@dataclass(eq=False)
class CoTeaching(SmallLoss):
    """Co-teaching (Han et al. 2018): two models, each trained on the rows of small loss of the
    other, in one pass.

    The loss of a step is the mean over int((1 − forget(T))·B) rows, with T the epochs since
    ``start`` (their Algorithm 1 updates R(T) at the end of an epoch, so that T = 0 in the first).
    """

    models = 2

    def select(self, order: Tensor, kept: int, batch: Batch, run: Run) -> Tensor:
        return _mean_over(order[:kept].flip(1), batch, run)


@register("sigua")
@dataclass(eq=False)
class Sigua(SmallLoss):
    """SIGUA with small losses (Han et al. 2020): descend on the rows of small loss, ascend slowly
    on some others.

    L = mean over the int((1 − forget(T))·B) rows of smallest loss − scale·mean over the int(rate·n)
    smallest of the n others (at least one, if any is left out), as in their code. The SLN paper
    (B.1) uses scale 0.001.
    """

    rate: float = number("[0, 1]", 0.3)
    scale: float = number("[0, inf)", 0.01)

    def select(self, order: Tensor, kept: int, batch: Batch, run: Run) -> Tensor:
        bad = order[kept : kept + max(1, int((batch.count - kept) * self.rate))]
        return _mean_over(order[:kept], batch, run) + _mean_over(bad, batch, run, -self.scale)


@register("sigua-bc")
@dataclass(eq=False)
class SiguaBackward(Strategy):
    """SIGUA with backward correction (Han et al. 2020): rows whose corrected loss is negative count
    −scale times.

    L = mean of ℓ where ℓ ≥ 0, of −scale·ℓ where ℓ < 0, with ℓ the loss ``backward``; plain before
    the epoch ``warmup``.
    """

    capturable = True

    scale: float = number("[0, inf)", 0.01)
    warmup: int = count(0, 0)

    def phase(self, run: Run) -> bool:
        return run.epoch < self.warmup

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        if self.phase(run):
            return None
        return torch.where(given_losses(losses, outs, batch, run) < 0, -self.scale, 1.0).to(
            losses.dtype
        )


@register("prune")
@dataclass(eq=False)
class Prune(Strategy):
    """Pruning of truncated GCE (Zhang & Sabuncu 2018, Algorithm 1): train on samples with p_y ≥ k
    only.

    Each model decides for itself, by a pass over the whole set at the start of every ``every``-th
    epoch from ``start`` on (counted from 0). p_y ≥ k is where a loss that decreases in p_y is at
    most its value at p_y = k. Pruned rows have weight zero, which is the gradient of the constant
    L_q(k) that the paper assigns to them; they still count in the mean of a step. If no sample
    reaches k, none is pruned; with ``spare``, none of a class of which no sample does, as it could
    not come back (the paper prunes these). A decision holds for ``lasts`` epochs, by default until
    the next one; with 1, one epoch in ``every`` is pruned, as the SLN paper (B.1) reads to the
    letter.
    """

    capturable = True
    remembers = ("keep",)

    start: int = count(0)
    every: int = count(1, 10)
    k: float = number("(0, 1)", 0.5, "It is the probability below which a sample is pruned.")
    lasts: int | None = count(1, None)
    spare: bool = flag(True)

    def setup(self, run: Run) -> None:
        shape = run.num_rows, len(run.models)
        self.keep = torch.ones(shape, dtype=torch.bool, device=run.device)

    def start_epoch(self, run: Run) -> None:
        age = (run.epoch - self.start) % self.every  # of the last decision, in epochs
        if run.epoch >= self.start and age == self.lasts:
            self.keep.fill_(True)
        if run.epoch < self.start or age:
            return

        def label_probs(rows: Tensor, outs: list[Output]) -> Tensor:  # (b, M)
            y = run.data.given[rows, None]
            return torch.cat([run.loss.scores(out).softmax(1).gather(1, y) for out in outs], 1)

        keep = per_row(run, label_probs) >= self.k
        groups = run.data.given
        if not self.spare:  # all rows in one
            groups = torch.zeros_like(groups)
        reached = torch.zeros(run.num_classes, keep.shape[1], dtype=torch.int64, device=keep.device)
        keep |= reached.index_add(0, groups, keep.long())[groups] == 0
        self.keep.copy_(keep)  # in place: a CUDA graph holds its address

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
        return self.keep[batch.rows].T.to(losses.dtype)
